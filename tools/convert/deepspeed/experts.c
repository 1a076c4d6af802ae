/* tools/convert/deepspeed/experts.c - see deepspeed/experts.h. */
#include "tools/convert/deepspeed/experts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/torch/carry.h"

#define MARK ".deepspeed_moe.experts.deepspeed_experts."
#define GROUP_NAME "ep_size_"

enum { LAYERS_MAX = 4096, EXPERTS_MAX = 1 << 20, PARAMETERS_MAX = 1 << 24 };

bool
cairn_deepspeed_expert_in(const char *name, struct cairn_deepspeed_expert *expert)
{
    const char *mark = strstr(name, MARK), *digits;
    size_t count;

    if (!mark || mark == name)
        return false;
    digits = mark + strlen(MARK);
    count = strspn(digits, "0123456789");
    if (count == 0 || count > 7 || digits[count] != '.' || (count > 1 && digits[0] == '0'))
        return false;
    expert->begin = (size_t)(digits - name);
    expert->end = expert->begin + count;
    expert->number = (uint32_t)strtoul(digits, NULL, 10);
    return expert->number < EXPERTS_MAX;
}

/* ---- layers ---- */

const struct cairn_deepspeed_layer *
cairn_deepspeed_layer_find(const struct cairn_deepspeed_layers *layers, const char *prefix,
                           size_t bytes)
{
    for (uint32_t i = layers->count; i-- > 0;) /* mostly the last one */
        if (strncmp(layers->layers[i].prefix, prefix, bytes) == 0 &&
            layers->layers[i].prefix[bytes] == '\0')
            return &layers->layers[i];
    return NULL;
}

cairn_err
cairn_deepspeed_layer_add(struct cairn_deepspeed_layers *layers, const char *prefix, size_t bytes,
                          uint32_t experts)
{
    if (layers->count == LAYERS_MAX)
        return CAIRN_VERSION;
    if (!cairn_array_grow(&layers->layers, layers->count, sizeof(*layers->layers)))
        return CAIRN_NOMEM;
    layers->layers[layers->count] = (struct cairn_deepspeed_layer){strndup(prefix, bytes), experts};
    return layers->layers[layers->count++].prefix ? CAIRN_OK : CAIRN_NOMEM;
}

cairn_err
cairn_deepspeed_layers_of(const struct cairn_deepspeed_groups *groups,
                          struct cairn_deepspeed_layers *out)
{
    struct cairn_deepspeed_layer *layer = NULL;
    cairn_err err = CAIRN_OK;

    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; i < groups->parameter_count && !err; i++) {
        const char *name = groups->parameters[i].name;
        struct cairn_deepspeed_expert expert;

        if (!cairn_deepspeed_expert_in(name, &expert))
            continue;
        if (!layer || strncmp(layer->prefix, name, expert.begin) != 0 ||
            layer->prefix[expert.begin] != '\0') {
            layer =
                (struct cairn_deepspeed_layer *)cairn_deepspeed_layer_find(out, name, expert.begin);
            if (!layer)
                err = cairn_deepspeed_layer_add(out, name, expert.begin, 0);
            layer = layer || err ? layer : &out->layers[out->count - 1];
        }
        if (!err && expert.number >= layer->experts)
            layer->experts = expert.number + 1;
    }
    return err;
}

void
cairn_deepspeed_layers_fini(struct cairn_deepspeed_layers *layers)
{
    for (uint32_t i = 0; i < layers->count; i++)
        free(layers->layers[i].prefix);
    free(layers->layers);
    memset(layers, 0, sizeof(*layers));
}

/* ---- a rank's groups ---- */

/* How many of a layer's experts the rank has. */
static cairn_err
count_own(const struct cairn_deepspeed_groups *groups, const struct cairn_deepspeed_layers *layers,
          struct cairn_deepspeed_layers *own, const char **why)
{
    cairn_err err = cairn_deepspeed_layers_of(groups, own);

    *why = "it has too many layers of experts";
    for (uint32_t i = 0; i < own->count && !err; i++) {
        const struct cairn_deepspeed_layer *whole = cairn_deepspeed_layer_find(
            layers, own->layers[i].prefix, strlen(own->layers[i].prefix));

        *why = "it has experts that are in no layer_…_expert_… file; copy these from the nodes "
               "that wrote them";
        if (!whole)
            return CAIRN_CORRUPT;
        *why = "its ranks cannot have as many experts each as it says: layer_…_expert_… files are "
               "missing";
        if (whole->experts % own->layers[i].experts != 0)
            return CAIRN_CORRUPT;
    }
    return err == CAIRN_VERSION ? CAIRN_CORRUPT : err;
}

static cairn_err
place_group(struct cairn_deepspeed_groups *groups, struct cairn_deepspeed_group *group,
            const struct cairn_deepspeed_layers *layers, const struct cairn_deepspeed_layers *own,
            const char **why)
{
    uint32_t experts = 0;

    for (uint32_t i = 0; i < group->count; i++) {
        struct cairn_deepspeed_parameter *parameter = &groups->parameters[group->first + i];
        const struct cairn_deepspeed_layer *mine;
        struct cairn_deepspeed_expert expert;
        uint32_t spread;

        if (!cairn_deepspeed_expert_in(parameter->name, &expert))
            continue;
        experts++;
        mine = cairn_deepspeed_layer_find(own, parameter->name, expert.begin);
        parameter->own_experts = mine->experts;
        spread = cairn_deepspeed_layer_find(layers, parameter->name, expert.begin)->experts /
                 mine->experts;
        *why = "a group of its optimizer has layers whose experts are spread over different "
               "numbers of ranks";
        if (experts > 1 && spread != group->spread)
            return CAIRN_CORRUPT;
        group->spread = spread;
    }
    *why = "a group of its optimizer has experts and other parameters";
    return experts == 0 || experts == group->count ? CAIRN_OK : CAIRN_CORRUPT;
}

cairn_err
cairn_deepspeed_experts_place(struct cairn_deepspeed_groups *groups,
                              const struct cairn_deepspeed_layers *layers, uint32_t ranks,
                              const char **why)
{
    struct cairn_deepspeed_layers own = {0};
    cairn_err err = count_own(groups, layers, &own, why);

    for (uint32_t i = 0; i < groups->group_count && !err; i++) {
        err = place_group(groups, &groups->groups[i], layers, &own, why);
        if (!err && ranks % groups->groups[i].spread != 0) {
            *why = "its experts cannot be spread evenly over its ranks";
            err = CAIRN_CORRUPT;
        }
    }
    cairn_deepspeed_layers_fini(&own);
    return err;
}

struct cairn_deepspeed_share
cairn_deepspeed_share(const struct cairn_deepspeed_groups *groups, uint32_t group, uint32_t ranks,
                      uint32_t rank)
{
    uint32_t spread = groups->groups[group].spread, among = ranks / spread;

    return groups->data_first ? (struct cairn_deepspeed_share){among, rank % among, rank / among}
                              : (struct cairn_deepspeed_share){among, rank / spread, rank % spread};
}

uint64_t
cairn_deepspeed_unpadded(const struct cairn_deepspeed_groups *groups, uint32_t group,
                         uint32_t ranks, uint32_t rank)
{
    uint64_t partition = cairn_deepspeed_partition(groups, group, false, ranks);
    uint64_t begin = partition * cairn_deepspeed_share(groups, group, ranks, rank).rank;
    uint64_t all = groups->groups[group].elements, left = begin < all ? all - begin : 0;

    return left < partition ? left : partition;
}

cairn_err
cairn_deepspeed_state_name(const char *key, const struct cairn_deepspeed_parameter *parameter,
                           uint32_t expert_rank, char name[CAIRN_NAME_BYTES_MAX])
{
    struct cairn_deepspeed_expert expert;
    int bytes;

    if (parameter->own_experts > 0 && cairn_deepspeed_expert_in(parameter->name, &expert))
        bytes = snprintf(name, CAIRN_NAME_BYTES_MAX, "%s.%.*s%" PRIu64 "%s", key, (int)expert.begin,
                         parameter->name,
                         expert.number + (uint64_t)expert_rank * parameter->own_experts,
                         parameter->name + expert.end);
    else
        bytes = snprintf(name, CAIRN_NAME_BYTES_MAX, "%s.%s", key, parameter->name);
    return bytes >= 0 && bytes < CAIRN_NAME_BYTES_MAX ? CAIRN_OK : CAIRN_VERSION;
}

uint32_t
cairn_deepspeed_spread(const struct cairn_deepspeed_groups *groups, bool *mixed)
{
    uint32_t spread = 0;

    *mixed = false;
    for (uint32_t i = 0; i < groups->group_count; i++) {
        const struct cairn_deepspeed_group *group = &groups->groups[i];

        if (group->count == 0 || groups->parameters[group->first].own_experts == 0)
            continue;
        *mixed = *mixed || (spread > 0 && spread != group->spread);
        spread = spread > group->spread ? spread : group->spread;
    }
    return spread > 0 ? spread : 1;
}

/* ---- another spread ---- */

/* Parameters of one layer in a row: experts 0, 1, …, each with the same rests of names. */
struct run {
    uint32_t first, count, experts;
    size_t begin; /* of the number in names */
};

static struct run
find_run(const struct cairn_deepspeed_groups *groups, uint32_t first, uint32_t end)
{
    const char *name = groups->parameters[first].name;
    struct run run = {.first = first, .count = 1};
    struct cairn_deepspeed_expert expert;

    if (!cairn_deepspeed_expert_in(name, &expert))
        return run;
    run.begin = expert.begin;
    run.experts = expert.number + 1;
    for (; first + run.count < end; run.count++) {
        const char *next = groups->parameters[first + run.count].name;

        if (!cairn_deepspeed_expert_in(next, &expert) || expert.begin != run.begin ||
            strncmp(name, next, run.begin) != 0)
            break;
        run.experts = expert.number >= run.experts ? expert.number + 1 : run.experts;
    }
    return run;
}

static bool
is_by_number(const struct cairn_deepspeed_groups *groups, const struct run *run)
{
    uint32_t each = run->count / run->experts;

    for (uint32_t i = 0; i < run->count; i++) {
        const char *name = groups->parameters[run->first + i].name;
        const char *first = groups->parameters[run->first + i % (each ? each : 1)].name;
        struct cairn_deepspeed_expert expert, least;

        if (each == 0 || run->count % run->experts != 0 ||
            !cairn_deepspeed_expert_in(name, &expert) ||
            !cairn_deepspeed_expert_in(first, &least) || expert.number != i / each ||
            strcmp(name + expert.end, first + least.end) != 0)
            return false;
    }
    return true;
}

static char *
renumbered(const char *name, uint32_t number)
{
    char made[2 * CAIRN_NAME_BYTES_MAX];
    struct cairn_deepspeed_expert expert;

    if (!cairn_deepspeed_expert_in(name, &expert))
        return strdup(name);
    (void)snprintf(made, sizeof(made), "%.*s%" PRIu32 "%s", (int)expert.begin, name, number,
                   name + expert.end);
    return strdup(made);
}

static cairn_err
copy_parameter(struct cairn_deepspeed_groups *out, struct cairn_deepspeed_group *group,
               const struct cairn_deepspeed_parameter *from, uint32_t number, uint32_t own_experts)
{
    struct cairn_deepspeed_parameter *made = &out->parameters[out->parameter_count++];

    *made = *from;
    made->own_experts = own_experts;
    made->name = renumbered(from->name, number);
    made->path = renumbered(from->path, number);
    if (own_experts > 0) { /* others keep the gaps that they may have */
        made->begin = group->elements;
        group->elements += made->elements;
    }
    group->count++;
    return made->name && made->path ? CAIRN_OK : CAIRN_NOMEM;
}

/* Parameters of a run for `experts` of them. */
static cairn_err
spread_run(const struct cairn_deepspeed_groups *from, const struct run *run, uint32_t experts,
           struct cairn_deepspeed_groups *out, struct cairn_deepspeed_group *group,
           const char **why)
{
    uint32_t each = run->count / run->experts;
    struct cairn_deepspeed_parameter *grown;
    cairn_err err = CAIRN_OK;

    *why = "the experts of a group of its optimizer do not follow one another by number, each with "
           "the same parameters";
    if (!is_by_number(from, run))
        return CAIRN_VERSION;
    *why = "it has too many experts";
    if ((uint64_t)experts * each + out->parameter_count > PARAMETERS_MAX)
        return CAIRN_VERSION;
    grown = realloc(out->parameters,
                    ((size_t)experts * each + out->parameter_count + from->parameter_count + 1) *
                        sizeof(*grown));
    if (!grown)
        return CAIRN_NOMEM;
    out->parameters = grown;
    for (uint32_t i = 0; i < experts * each && !err; i++)
        err = copy_parameter(out, group, &from->parameters[run->first + i % run->count], i / each,
                             experts);
    return err;
}

cairn_err
cairn_deepspeed_experts_spread(const struct cairn_deepspeed_groups *from,
                               const struct cairn_deepspeed_layers *layers, uint32_t spread,
                               struct cairn_deepspeed_groups *out, const char **why)
{
    cairn_err err = CAIRN_OK;

    memset(out, 0, sizeof(*out));
    out->data_first = from->data_first;
    out->parameters = calloc((size_t)from->parameter_count + 1, sizeof(*out->parameters));
    out->groups = calloc((size_t)from->group_count + 1, sizeof(*out->groups));
    if (!out->parameters || !out->groups)
        return CAIRN_NOMEM;
    out->group_count = from->group_count;
    for (uint32_t g = 0; g < from->group_count && !err; g++) {
        const struct cairn_deepspeed_group *known = &from->groups[g];
        struct cairn_deepspeed_group *group = &out->groups[g];
        uint32_t end = known->first + known->count;

        group->first = out->parameter_count;
        group->spread = 1;
        for (uint32_t i = known->first; i < end && !err;) {
            struct run run = find_run(from, i, end);
            const struct cairn_deepspeed_layer *layer =
                run.experts > 0
                    ? cairn_deepspeed_layer_find(layers, from->parameters[i].name, run.begin)
                    : NULL;

            if (run.experts > 0 && (!layer || layer->experts % spread != 0)) {
                *why = "the experts of its layers cannot be spread evenly over so many ranks";
                return CAIRN_VERSION;
            }
            if (run.experts > 0)
                err = spread_run(from, &run, layer->experts / spread, out, group, why);
            else
                err = copy_parameter(out, group, &from->parameters[i], 0, 0);
            group->spread = run.experts > 0 ? spread : group->spread;
            i += run.count;
        }
        if (group->count == 0 || out->parameters[group->first].own_experts == 0)
            group->elements = known->elements;
    }
    return err;
}

/* ---- in objects ---- */

struct cairn_pickle_node *
cairn_deepspeed_shapes_node(const struct cairn_deepspeed_groups *groups, struct cairn_pickle *tree)
{
    struct cairn_pickle_node *list = cairn_pickle_list(tree);
    struct cairn_torch_builder builder;

    cairn_torch_builder_init(&builder, tree);
    for (uint32_t g = 0; g < groups->group_count; g++) {
        struct cairn_pickle_node *shapes = cairn_torch_ordered_dict(&builder);

        for (uint32_t i = 0; i < groups->groups[g].count; i++) {
            const struct cairn_deepspeed_parameter *parameter =
                &groups->parameters[groups->groups[g].first + i];

            cairn_pickle_set(tree, shapes, parameter->path,
                             cairn_torch_size(&builder, parameter->shape, parameter->dims));
        }
        cairn_pickle_append(tree, list, shapes);
    }
    return list;
}

cairn_err
cairn_deepspeed_names_spread(struct cairn_pickle *tree, struct cairn_pickle_node *dict,
                             const char *key, const struct cairn_deepspeed_layers *layers,
                             uint32_t spread, const char **why)
{
    const struct cairn_pickle_node *known = cairn_pickle_get(dict, key);
    struct cairn_deepspeed_groups names = {0}, made = {0};
    struct cairn_pickle_node *list = cairn_pickle_list(tree), *shapes = cairn_pickle_dict(tree);
    struct cairn_pickle_node *size = cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, NULL, 0);
    char name[CAIRN_NAME_BYTES_MAX]; /* others are of no tensor here */
    cairn_err err;

    for (uint32_t i = 0; cairn_pickle_is_list(known) && i < known->count; i++)
        if (cairn_pickle_copy_text(known->items[i], name, sizeof(name)) && name[0])
            cairn_pickle_put(tree, shapes, known->items[i], size);
    cairn_pickle_append(tree, list, shapes);
    err = cairn_pickle_done(tree);
    if (!err)
        err = cairn_deepspeed_groups_read(list, &names, why);
    if (!err)
        err = cairn_deepspeed_experts_spread(&names, layers, spread, &made, why);
    list = err ? NULL : cairn_pickle_list(tree);
    for (uint32_t i = 0; list && i < made.parameter_count; i++)
        cairn_pickle_append(tree, list, cairn_pickle_text(tree, made.parameters[i].path));
    if (list && known)
        cairn_torch_carry_replace(dict, key, list);
    cairn_deepspeed_groups_fini(&names);
    cairn_deepspeed_groups_fini(&made);
    return err ? err : cairn_pickle_done(tree);
}

static bool
is_of_experts(const struct cairn_deepspeed_groups *groups, uint32_t group)
{
    return group < groups->group_count && groups->groups[group].count > 0 &&
           groups->parameters[groups->groups[group].first].own_experts > 0;
}

/* The list with a list of zeros at each group of experts. */
static void
spread_gaps(struct cairn_pickle *tree, struct cairn_pickle_node *optimizer,
            const struct cairn_deepspeed_groups *groups)
{
    static const char key[] = "param_alignment_paddings";
    const struct cairn_pickle_node *known = cairn_pickle_get(optimizer, key);
    struct cairn_pickle_node *list, *zero = cairn_pickle_int(tree, 0);

    if (!cairn_pickle_is_list(known))
        return;
    list = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < known->count; i++) {
        struct cairn_pickle_node *gaps = known->items[i];

        if (is_of_experts(groups, i)) {
            gaps = cairn_pickle_list(tree);
            for (uint32_t p = 0; p < groups->groups[i].count; p++)
                cairn_pickle_append(tree, gaps, zero);
        }
        cairn_pickle_append(tree, list, gaps);
    }
    cairn_torch_carry_replace(optimizer, key, list);
}

void
cairn_deepspeed_optim_spread(struct cairn_pickle *tree, struct cairn_pickle_node *optimizer,
                             const struct cairn_deepspeed_groups *groups)
{
    const struct cairn_pickle_node *settings =
        cairn_pickle_get(cairn_pickle_get(optimizer, "base_optimizer_state"), "param_groups");

    spread_gaps(tree, optimizer, groups);
    for (uint32_t i = 0; cairn_pickle_is_list(settings) && i < settings->count; i++) {
        const struct cairn_pickle_node *known = cairn_pickle_get(settings->items[i], "name");
        char name[CAIRN_NAME_BYTES_MAX];

        if (!is_of_experts(groups, i) || !cairn_pickle_copy_text(known, name, sizeof(name)) ||
            strncmp(name, GROUP_NAME, strlen(GROUP_NAME)) != 0)
            continue;
        (void)snprintf(name, sizeof(name), GROUP_NAME "%" PRIu32, groups->groups[i].spread);
        cairn_torch_carry_replace(settings->items[i], "name", cairn_pickle_text(tree, name));
    }
}
