/* tools/convert/megatron_target.c - sizes, keys and layers of a Megatron-LM checkpoint that shall
 * be written. */
#include "tools/convert/megatron_target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron_join.h"
#include "tools/convert/megatron_plain.h"
#include "tools/convert/pickle_read.h"

static cairn_err
refuse(const struct cairn_megatron_target *target, const char *why)
{
    return cairn_complain(target->complaint, CAIRN_INVAL, "%s: %s", target->checkpoint->place.path,
                          why);
}

uint32_t
cairn_megatron_target_find(const struct cairn_megatron_target *target, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);

    return tensor != UINT32_MAX && target->alias_of[tensor] != UINT32_MAX ? target->alias_of[tensor]
                                                                          : tensor;
}

void
cairn_megatron_target_place(struct cairn_megatron_target *target, uint32_t tensor)
{
    target->placed[tensor] = true;
}

/* ---- keys ---- */

static cairn_err
add_key(struct cairn_megatron_target *target, char class, const char *text)
{
    struct cairn_megatron_key *key;

    if (target->key_count == target->key_room) {
        uint32_t room = target->key_room ? 2 * target->key_room : 256;
        struct cairn_megatron_key *grown = realloc(target->keys, room * sizeof(*grown));

        if (!grown)
            return CAIRN_NOMEM;
        target->keys = grown;
        target->key_room = room;
    }
    key = &target->keys[target->key_count++];
    key->class = class;
    return cairn_megatron_name_parse(text, &key->name) ? CAIRN_OK : CAIRN_CORRUPT;
}

/* "S <pp> <vpp> <layers of each chunk>…": how layers were split unevenly. */
static cairn_err
take_split(struct cairn_megatron_target *target, const char *text)
{
    uint32_t chunks = target->sizes.pp * target->sizes.vpp, next = 0;
    char *at;

    if (strtoul(text, &at, 10) != target->sizes.pp || strtoul(at, &at, 10) != target->sizes.vpp)
        return CAIRN_OK;
    target->uneven = true;
    for (uint32_t i = 0; i < chunks; i++) {
        target->first_layer[i] = next;
        next += (uint32_t)strtoul(at, &at, 10);
    }
    target->first_layer[chunks] = next;
    return CAIRN_OK;
}

static cairn_err
read_keys(struct cairn_megatron_target *target, char *text)
{
    cairn_err err = CAIRN_OK;

    for (char *rest = NULL, *line = strtok_r(text, "\n", &rest); line && !err;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strlen(line) < 3 || !strchr("BLAS", line[0]) || line[1] != ' ')
            err = CAIRN_CORRUPT;
        else if (line[0] == 'S')
            err = take_split(target, line + 2);
        else
            err = add_key(target, line[0], line + 2);
    }
    return err == CAIRN_CORRUPT ? refuse(target, CAIRN_MEGATRON_KEYS " is damaged") : err;
}

struct found {
    char class;
    uint32_t layer, order;
    bool shared; /* shared experts register after the others */
    const char *name;
};

static int
by_place(const void *left, const void *right)
{
    const struct found *a = left, *b = right;
    const char *classes = "BLA";

    if (a->class != b->class)
        return strchr(classes, a->class) < strchr(classes, b->class) ? -1 : 1;
    if (a->layer != b->layer)
        return a->layer < b->layer ? -1 : 1;
    if (a->shared != b->shared)
        return a->shared ? 1 : -1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return strcmp(a->name, b->name);
}

static size_t
module_bytes(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) : 0;
}

/* After a module's last parameter: what it has as extra state, if its kind has one. */
static cairn_err
add_extra(struct cairn_megatron_target *target, const struct found *found, const char *next)
{
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(found->name);
    size_t bytes = module_bytes(found->name);
    char text[CAIRN_NAME_BYTES_MAX];

    if (!rule || !rule->extra_state || bytes + sizeof("._extra_state") > sizeof(text) ||
        (next && module_bytes(next) == bytes && strncmp(next, found->name, bytes) == 0))
        return CAIRN_OK;
    memcpy(text, found->name, bytes);
    memcpy(text + bytes, "._extra_state", sizeof("._extra_state"));
    return add_key(target, found->class, text);
}

/* The key of a parameter, and of the extra state behind it. */
static cairn_err
add_found(struct cairn_megatron_target *target, const struct found *found, const char *next,
          bool local)
{
    char plain[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (local && cairn_megatron_norm_rename(found->name, false, plain, sizeof(plain)))
        return add_key(target, found->class, plain);
    err = add_key(target, found->class, found->name);
    return err ? err : add_extra(target, found, next);
}

/* Where a parameter stands in its layer: a norm that is a module of its own, before the layer that
 * its name in a distributed checkpoint speaks of. */
static uint32_t
order_of(const char *name, bool local)
{
    char plain[CAIRN_NAME_BYTES_MAX];

    return cairn_megatron_order_of(
        local && cairn_megatron_norm_rename(name, false, plain, sizeof(plain)) ? plain : name);
}

/* Whether the table says where a parameter registers among all others, by which the optimizer's buffers go. */
static bool
is_order_known(const struct found *found)
{
    static const char *const places[] = {"embedding.", "decoder.layers.", "decoder.final_layernorm.",
                                         "output_layer."};
    bool placed = false;

    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
        placed = placed || strncmp(found->name, places[i], strlen(places[i])) == 0;
    return placed && cairn_megatron_rule_of(found->name) && !strstr(found->name, "cross_attention.");
}

static cairn_err
check_order(const struct cairn_megatron_target *target, const struct found *found, uint32_t count)
{
    if (!target->has_optim && (!target->plain_state || target->omit_optimizer))
        return CAIRN_OK;
    for (uint32_t i = 0; i < count; i++)
        if (!is_order_known(&found[i]))
            return cairn_complain(target->complaint, CAIRN_INVAL,
                                  "%s: the buffers of Megatron-LM's optimizer name no parameters, and "
                                  "where %s is in their order is not known; write it as megatron-dist, or "
                                  "leave the optimizer out with --drop 'fp32.*,exp_avg.*,exp_avg_sq.*'",
                                  target->checkpoint->place.path, found[i].name);
    return CAIRN_OK;
}

/* Keys of a checkpoint that Megatron-LM did not save. */
static cairn_err
make_keys(struct cairn_megatron_target *target)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    uint32_t count = cairn_layout_tensor_count(layout), found_count = 0;
    struct found *found = calloc((size_t)count + 1, sizeof(*found));
    bool local = false;
    cairn_err err;

    if (!found)
        return CAIRN_NOMEM;
    err = cairn_megatron_args_spec(target->checkpoint, &local, target->complaint);
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(tensor->name);
        struct cairn_megatron_name name;

        if (!(tensor->kind == CAIRN_PARAM ||
              (tensor->kind == CAIRN_BUFFER && rule && rule->buffer)) ||
            strchr(tensor->name, '/') || !cairn_megatron_name_parse(tensor->name, &name) ||
            (name.has_expert && name.expert != 0) ||
            (target->tied && strcmp(tensor->name, CAIRN_MEGATRON_OUTPUT) == 0))
            continue;
        found[found_count++] =
            (struct found){.class = name.has_layer                                 ? 'L'
                                    : strncmp(tensor->name, "embedding.", 10) == 0 ? 'B'
                                                                                   : 'A',
                           .layer = name.layer,
                           .order = order_of(tensor->name, local),
                           .shared = strstr(tensor->name, ".shared_experts.") != NULL,
                           .name = tensor->name};
    }
    qsort(found, found_count, sizeof(*found), by_place);
    if (!err)
        err = check_order(target, found, found_count);
    for (uint32_t i = 0; i < found_count && !err; i++)
        err = add_found(target, &found[i], i + 1 < found_count ? found[i + 1].name : NULL, local);
    free(found);
    if (!err && target->tied)
        err = add_key(target, 'A', "output_layer._extra_state");
    return err;
}

static cairn_err
find_keys(struct cairn_megatron_target *target)
{
    uint8_t *bytes = NULL;
    char *text;
    size_t bytes_len = 0;
    uint32_t carried = cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_MEGATRON_KEYS);
    cairn_err err;

    if (cairn_megatron_target_find(target, CAIRN_MEGATRON_EMBEDDING) == UINT32_MAX)
        return refuse(target, "it has no " CAIRN_MEGATRON_EMBEDDING
                              ": its tensors have not the names that Megatron-LM has; map them "
                              "with a preset or --map");
    if (carried == UINT32_MAX)
        return make_keys(target);
    err = cairn_checkpoint_load_opaque(target->checkpoint, CAIRN_MEGATRON_KEYS,
                                       CAIRN_CONVERT_METADATA_BYTES_MAX, &bytes, &bytes_len,
                                       target->complaint);
    if (err)
        return err;
    text = malloc(bytes_len + 1);
    if (!text) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    memcpy(text, bytes, bytes_len);
    text[bytes_len] = '\0';
    free(bytes);
    cairn_megatron_target_place(target, carried);
    err = cairn_output_add_carried(target->output, carried);
    if (!err)
        err = read_keys(target, text);
    free(text);
    return err;
}

/* ---- sizes ---- */

static uint32_t
first_of(uint32_t a, uint32_t b, uint32_t c)
{
    return a ? a : b ? b : c ? c : 1;
}

static cairn_err
find_sizes(struct cairn_megatron_target *target)
{
    const struct cairn_parallelism *wanted = &target->options->parallelism;
    const struct cairn_parallelism *had = &target->checkpoint->parallelism;
    const struct cairn_parallelism *said = &target->args.sizes;
    struct cairn_parallelism *sizes = &target->sizes;
    uint32_t had_tp = first_of(0, had->tp, said->tp);
    uint32_t had_etp = had->etp || said->etp ? first_of(0, had->etp, said->etp) : had_tp;

    sizes->tp = first_of(wanted->tp, had->tp, said->tp);
    sizes->pp = first_of(wanted->pp, had->pp, said->pp);
    sizes->vpp = first_of(wanted->vpp, had->vpp, target->args.vpp);
    sizes->ep = first_of(wanted->ep, had->ep, said->ep);
    sizes->dp = first_of(wanted->dp, had->dp, said->dp);
    sizes->etp = wanted->etp           ? wanted->etp
                 : had_etp == had_tp   ? sizes->tp
                 : sizes->tp % had_etp ? sizes->tp
                                       : had_etp;
    if (wanted->pp == 1 && wanted->vpp == 0)
        sizes->vpp = 1; /* one stage is not interleaved */
    if (sizes->pp > CAIRN_MEGATRON_CHUNKS_MAX || sizes->vpp > CAIRN_MEGATRON_CHUNKS_MAX ||
        sizes->tp > CAIRN_MEGATRON_CHUNKS_MAX || sizes->ep > CAIRN_MEGATRON_CHUNKS_MAX)
        return refuse(target, "more ranks were asked for than can be written");
    if (sizes->tp % sizes->etp != 0)
        return refuse(target,
                      "--etp has to divide --tp: files are named by tensor-parallel rank, so "
                      "those of experts would overwrite one another");
    if (sizes->vpp > 1 && sizes->pp == 1)
        return refuse(target, "--vpp needs --pp of at least 2");
    target->first_layer = calloc((size_t)sizes->pp * sizes->vpp + 1, sizeof(*target->first_layer));
    return target->first_layer ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
count_layers(struct cairn_megatron_target *target)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(target->checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, i);
        struct cairn_megatron_name name;

        if (tensor->kind != CAIRN_PARAM || strchr(tensor->name, '/') ||
            !cairn_megatron_name_parse(tensor->name, &name))
            continue;
        if (name.has_layer && name.layer >= target->layer_count)
            target->layer_count = name.layer + 1;
        if (name.has_expert && name.expert >= target->expert_count)
            target->expert_count = name.expert + 1;
    }
    if (target->sizes.ep > 1 &&
        (target->expert_count == 0 || target->expert_count % target->sizes.ep != 0))
        return cairn_complain(target->complaint, CAIRN_INVAL,
                              "%s: %" PRIu32 " experts cannot be split over --ep %" PRIu32,
                              target->checkpoint->place.path, target->expert_count,
                              target->sizes.ep);
    return CAIRN_OK;
}

/* Even chunks; the embedding and the loss count as a layer each where args say so. */
static cairn_err
split_layers(struct cairn_megatron_target *target)
{
    uint32_t chunks = target->sizes.pp * target->sizes.vpp;
    uint32_t before = target->sizes.pp > 1 && target->args.embedding_counts;
    uint32_t after = target->sizes.pp > 1 && target->args.loss_counts;
    uint32_t all = target->layer_count + before + after;

    if (target->uneven) {
        bool fits = target->first_layer[chunks] == target->layer_count;

        for (uint32_t i = 0; i < chunks; i++)
            fits = fits && target->first_layer[i] <= target->first_layer[i + 1];
        return fits ? CAIRN_OK
                    : refuse(target, "what it carries of its layers' split is damaged");
    }
    if (all % chunks != 0)
        return cairn_complain(target->complaint, CAIRN_INVAL,
                              "%s: %" PRIu32 " layers%s cannot be split evenly over --pp %" PRIu32
                              " with --vpp %" PRIu32,
                              target->checkpoint->place.path, all,
                              before || after ? " (the embedding or the loss counted as one)" : "",
                              target->sizes.pp, target->sizes.vpp);
    for (uint32_t i = 1; i < chunks; i++)
        target->first_layer[i] = i * (all / chunks) - before;
    target->first_layer[chunks] = target->layer_count;
    return CAIRN_OK;
}

/* ---- the whole ---- */

/* Whether a name is of the state of an optimizer that is not distributed: it lies in
 * model_optim_rng.pt. */
static bool
is_plain_state(const char *name)
{
    const char *at = strstr(name, CAIRN_MEGATRON_SCOPE "optimizer.");

    return at && (strstr(at, ".state.") || strstr(at, ".fp32_from_fp16_params."));
}

/* Such an optimizer's state has no names, and is written as it was: for the ranks that it is of. */
static cairn_err
check_plain_state(struct cairn_megatron_target *target, const struct cairn_pickle_node *optimizer)
{
    const struct cairn_parallelism *sizes = &target->sizes, *said = &target->args.sizes;
    const struct cairn_pickle_node *inner = cairn_pickle_get(optimizer, "optimizer");
    const struct cairn_pickle_node *states =
        cairn_pickle_pairs(cairn_pickle_get(inner ? inner : optimizer, "state"));
    uint32_t vpp = target->args.vpp ? target->args.vpp : 1;
    bool found = false, named = false;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(target->checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, i);

        found = found || is_plain_state(tensor->name);
        named = named || (tensor->kind == CAIRN_OPTIMIZER && !strchr(tensor->name, '/'));
    }
    if (found && named) /* of a rank whose state has names, its groups were kept without them */
        return refuse(target,
                      "its optimizer is not the distributed one, and which state is which "
                      "parameter's could be told on some of its ranks only, so it is not written; "
                      "for the weights alone add --drop 'megatron/optimizer*,"
                      "rank*/megatron/optimizer*,fp32.*,exp_avg*,max_exp_avg*,step.*,"
                      "momentum_buffer.*'");
    if (!found && cairn_megatron_plain(optimizer)) {
        target->plain_state = target->has_optim;
        target->omit_optimizer = !target->has_optim || (states && states->count > 0);
        target->has_optim = false;
    }
    if (found && (sizes->tp != said->tp || sizes->pp != said->pp || sizes->ep != said->ep ||
                  sizes->etp != (said->etp ? said->etp : said->tp) || sizes->vpp != vpp))
        return refuse(target,
                      "its optimizer is not the distributed one, and its state is only written "
                      "for the parallelism that it was saved with; for the weights alone add "
                      "--drop 'megatron/optimizer*,rank*/megatron/optimizer*'");
    return CAIRN_OK;
}

static cairn_err
load_common(struct cairn_megatron_target *target)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_MEGATRON_COMMON);
    struct cairn_pickle tree;
    struct cairn_pickle_node *root = NULL;
    size_t taken = 0;
    cairn_err err;

    cairn_megatron_args_read(NULL, &target->args);
    if (tensor == UINT32_MAX)
        err = cairn_megatron_join(target);
    else
        err = cairn_checkpoint_load_opaque(target->checkpoint, CAIRN_MEGATRON_COMMON,
                                           CAIRN_CONVERT_METADATA_BYTES_MAX, &target->common,
                                           &target->common_bytes, target->complaint);
    if (err)
        return err;
    if (!target->common) {
        target->has_optim = false;
        return find_sizes(target);
    }
    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_pickle_read(&tree, CAIRN_MEGATRON_COMMON, target->common, target->common_bytes,
                            &root, &taken);
    if (!err)
        cairn_megatron_args_read(cairn_pickle_get(root, "args"), &target->args);
    if (!err) /* without the optimizer's groups Megatron-LM loads none of its tensors */
        target->has_optim = target->has_optim && cairn_pickle_get(root, "optimizer") != NULL;
    if (target->joined) /* another optimizer's state has no place in distrib_optim.pt: it is carried */
        target->has_optim =
            target->has_optim &&
            cairn_megatron_target_find(target, "exp_avg_sq." CAIRN_MEGATRON_EMBEDDING) != UINT32_MAX;
    if (err)
        err = refuse(target, CAIRN_MEGATRON_COMMON " is damaged");
    if (!err)
        err = find_sizes(target);
    if (!err)
        err = check_plain_state(target, cairn_pickle_get(root, "optimizer"));
    cairn_pickle_fini(&tree);
    return err;
}

static cairn_err
note_aliases(struct cairn_megatron_target *target)
{
    uint32_t count = cairn_layout_tensor_count(target->checkpoint->layout);

    target->alias_of = malloc(((size_t)count + 1) * sizeof(*target->alias_of));
    target->placed = calloc((size_t)count + 1, sizeof(*target->placed));
    if (!target->alias_of || !target->placed)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < count; i++)
        target->alias_of[i] = UINT32_MAX;
    for (uint32_t i = 0; i < target->checkpoint->alias_count; i++) {
        const struct cairn_alias *alias = &target->checkpoint->aliases[i];
        const struct cairn_layout *layout = target->checkpoint->layout;

        /* a master is not cast with its parameter: then they are two */
        if (cairn_output_dtype(target->options, cairn_layout_tensor(layout, alias->tensor)) ==
            cairn_output_dtype(target->options, cairn_layout_tensor(layout, alias->of)))
            target->alias_of[alias->tensor] = alias->of;
    }
    return CAIRN_OK;
}

/* Without a weight of its own the output layer has the embedding's. */
static void
find_tie(struct cairn_megatron_target *target)
{
    uint32_t output = cairn_megatron_target_find(target, CAIRN_MEGATRON_OUTPUT);

    target->tied = output == UINT32_MAX ||
                   output == cairn_megatron_target_find(target, CAIRN_MEGATRON_EMBEDDING);
    target->has_optim = cairn_layout_tensor_find(target->checkpoint->layout,
                                                 "exp_avg." CAIRN_MEGATRON_EMBEDDING) != UINT32_MAX;
}

cairn_err
cairn_megatron_target_init(struct cairn_megatron_target *target,
                           const struct cairn_checkpoint *checkpoint,
                           const struct cairn_output_options *options, struct cairn_output *output,
                           struct cairn_complaint *complaint)
{
    cairn_err err;

    memset(target, 0, sizeof(*target));
    target->checkpoint = checkpoint;
    target->options = options;
    target->output = output;
    target->complaint = complaint;
    if (checkpoint->step_known)
        (void)snprintf(target->folder, sizeof(target->folder), "iter_%07" PRIu64, checkpoint->step);
    else
        (void)snprintf(target->folder, sizeof(target->folder), "release");
    err = note_aliases(target);
    if (!err)
        find_tie(target);
    if (!err)
        err = load_common(target);
    if (!err)
        err = count_layers(target);
    if (!err)
        err = find_keys(target);
    return err ? err : split_layers(target);
}

void
cairn_megatron_target_fini(struct cairn_megatron_target *target)
{
    free(target->common);
    free(target->keys);
    free(target->first_layer);
    free(target->placed);
    free(target->alias_of);
    free(target->parts);
    free(target->part_tensor);
    memset(target, 0, sizeof(*target));
}
