/*
 * tools/convert/torch/plan.c - lays out one file of torch.save around a tree: the source's own
 * (torch/state.h), where all that the tree names is still there and nothing else is, or one that is
 * made:
 *
 *   only weights   OrderedDict of names
 *   with more      {"model": OrderedDict,
 *                   "optimizer": {"state": {number: {key: tensor}}, "param_groups": [...]},
 *                   opaque state and tensors by the keys of their names}
 *
 * What PyTorch would not understand lies under "cairn", opaque state as bytes; torch/format.c reads
 * it from there. Parameters are numbered in the order of the groups, or of the model if there are
 * no groups.
 */
#include "tools/convert/torch/parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/refs.h"
#include "tools/convert/state/param_groups.h"
#include "base/text.h"
#include "tools/convert/state/opaque_tree.h"
#include "base/array.h"

/* ---- opaque state as nodes ---- */

/* Opaque state as a node of the tree. Errors of loading and of cairn_pickle_read. */
static cairn_err
building_read(struct cairn_torch_building *building, const char *name,
              struct cairn_pickle_node **node)
{
    return cairn_opaque_read(building->source, name, CAIRN_TORCH_OBJECT_BYTES_MAX, &building->tree,
                             node);
}

/* Its bytes as a node. The errors of loading it, CAIRN_NOMEM. */
static cairn_err
building_bytes(struct cairn_torch_building *building, const char *name,
               struct cairn_pickle_node **node)
{
    size_t bytes_len = 0;
    uint8_t *bytes = NULL;
    cairn_err err = cairn_opaque_load(building->source, name, CAIRN_TORCH_OBJECT_BYTES_MAX,
                                      &building->tree, &bytes, &bytes_len);

    if (err)
        return err;
    *node = cairn_pickle_borrow(&building->tree, CAIRN_PICKLE_BYTES, bytes, bytes_len);
    return *node ? CAIRN_OK : CAIRN_NOMEM;
}

/* ---- parameter groups ---- */

static void
number_parameter(struct cairn_torch_building *building, uint32_t tensor)
{
    if (building->numbers[tensor] == 0)
        building->numbers[tensor] = ++building->number_count;
}

/* The list of parameter groups with numbers where it has names, counted as torch does: through all
 * groups. CAIRN_CORRUPT: it is none; CAIRN_NOMEM. */
static cairn_err
building_number_groups(struct cairn_torch_building *building, struct cairn_pickle_node *list)
{
    struct cairn_pickle *tree = &building->tree;
    uint32_t position = 0;

    if (list->kind != CAIRN_PICKLE_LIST)
        return CAIRN_CORRUPT;
    for (uint32_t g = 0; g < list->count; g++) {
        struct cairn_pickle_node *members = cairn_pickle_get(list->items[g], "params");

        if (!cairn_pickle_is_list(members))
            return CAIRN_CORRUPT;
        for (uint32_t i = 0; i < members->count; i++, position++) {
            char name[CAIRN_NAME_BYTES_MAX];
            uint32_t tensor = UINT32_MAX;

            if (cairn_pickle_copy_text(members->items[i], name, sizeof(name)))
                tensor = cairn_layout_tensor_find(building->source->layout, name);
            if (members->items[i]->kind != CAIRN_PICKLE_TEXT)
                continue;
            members->items[i] = cairn_pickle_int(tree, position);
            if (tensor != UINT32_MAX)
                building->numbers[tensor] = position + 1;
        }
    }
    building->number_count = position;
    return cairn_pickle_done(tree);
}

/* ---- a tree of its own ---- */

static struct cairn_pickle_node *
tensor_node(struct cairn_torch_building *building, uint32_t tensor)
{
    building->used[tensor] = true;
    return cairn_pickle_tensor(&building->tree,
                               cairn_layout_tensor(building->source->layout, tensor)->name);
}

/* The dict at a key, made where there is none; NULL where something else is there. */
static struct cairn_pickle_node *
dict_at(struct cairn_torch_building *building, struct cairn_pickle_node *dict, const char *key)
{
    struct cairn_pickle_node *found = cairn_pickle_get(dict, key);

    if (!found) {
        found = cairn_pickle_dict(&building->tree);
        cairn_pickle_set(&building->tree, dict, key, found);
    }
    return found && found->kind == CAIRN_PICKLE_DICT ? found : NULL;
}

/* Puts a node under the keys of a path; false where something else is in the way. */
static bool
put_at(struct cairn_torch_building *building, struct cairn_pickle_node *root,
       const struct cairn_state_path *path, struct cairn_pickle_node *node)
{
    struct cairn_pickle_node *dict = root;

    for (uint32_t i = 0; i + 1 < path->count && dict; i++)
        dict = dict_at(building, dict, path->keys[i].text);
    if (!dict || path->count == 0 || cairn_pickle_get(dict, path->keys[path->count - 1].text))
        return false;
    cairn_pickle_set(&building->tree, dict, path->keys[path->count - 1].text, node);
    return true;
}

/* The object that a tensor lies in, below whose name it then has its own; UINT32_MAX. */
static uint32_t
object_of(const struct cairn_layout *layout, const struct cairn_tensor *tensor)
{
    char name[CAIRN_NAME_BYTES_MAX + 8];
    uint32_t object = UINT32_MAX;

    for (const char *dot = strchr(tensor->name, '.'); dot && object == UINT32_MAX;
         dot = strchr(dot + 1, '.')) {
        (void)snprintf(name, sizeof(name), "%.*s.pickle", (int)(dot - tensor->name), tensor->name);
        object = cairn_layout_tensor_find(layout, name);
    }
    return object;
}

/* Whether an object brings its tensors: one of a scope does not, it is carried as bytes. */
static bool
comes_with_object(const struct cairn_layout *layout, const struct cairn_tensor *tensor)
{
    uint32_t object = tensor->kind == CAIRN_BUFFER ? object_of(layout, tensor) : UINT32_MAX;

    return object != UINT32_MAX && !strchr(cairn_layout_tensor(layout, object)->name, '/');
}

/* Whether a buffer belongs to an object of a rank of Megatron-LM, such as its random states. */
static bool
is_of_rank(const struct cairn_layout *layout, const struct cairn_tensor *tensor)
{
    const char *scope = strstr(tensor->name, CAIRN_MEGATRON_SCOPE);
    char object[CAIRN_NAME_BYTES_MAX + sizeof(CAIRN_MEGATRON_COMMON)];

    if (!scope)
        return false;
    (void)snprintf(object, sizeof(object), "%.*s" CAIRN_MEGATRON_COMMON,
                   (int)(scope - tensor->name), tensor->name);
    return cairn_layout_tensor_find(layout, object) != UINT32_MAX;
}

/* Whether a distributed checkpoint had a buffer beside the model. Where it had the parameters under
 * names of its own too, nothing tells the two apart. */
static bool
is_beside_model(const struct cairn_torch_building *building, const struct cairn_tensor *tensor,
                bool model_renamed)
{
    if (tensor->kind != CAIRN_BUFFER)
        return false;
    return object_of(building->source->layout, tensor) != UINT32_MAX ||
           is_of_rank(building->source->layout, tensor) ||
           (!model_renamed && cairn_kept_names_find(&building->names, tensor->name));
}

static struct cairn_pickle_node *
build_model(struct cairn_torch_building *building)
{
    const struct cairn_layout *layout = building->source->layout;
    struct cairn_pickle_node *model = cairn_torch_ordered_dict(&building->builder);
    bool renamed = false;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        renamed = renamed || (tensor->kind == CAIRN_PARAM &&
                              cairn_kept_names_find(&building->names, tensor->name));
    }

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        if (!building->used[i] && !is_beside_model(building, tensor, renamed) &&
            (tensor->kind == CAIRN_PARAM || tensor->kind == CAIRN_BUFFER))
            cairn_pickle_set(&building->tree, model, tensor->name, tensor_node(building, i));
    }
    return model;
}

/* A moment, with the number of its parameter, and where its key is in its name. */
struct moment {
    uint32_t number, tensor, prefix_bytes, key_at, key_bytes;
};

/* State under the number of its parameter: [<prefix>.]state.<number>.<key>, with ".pickle" at the
 * end if it is not a tensor. */
static bool
read_numbered(const struct cairn_tensor *tensor, struct moment *moment)
{
    const char *name = tensor->name, *end = name + strlen(name), *key, *number, *state;
    bool plain =
        tensor->kind == CAIRN_OPAQUE && cairn_text_ends(name, ".pickle") && !strchr(name, '/');
    size_t digits;

    if (tensor->kind != CAIRN_OPTIMIZER && !plain)
        return false;
    if (plain)
        end -= strlen(".pickle");
    for (key = end; key > name && key[-1] != '.'; key--)
        continue;
    if (key == end || key == name)
        return false;
    for (number = key - 1; number > name && number[-1] != '.'; number--)
        continue;
    if (number < name + 6)
        return false;
    digits = strspn(number, "0123456789");
    state = number - 6;
    if (digits == 0 || digits > 9 || number + digits != key - 1 ||
        (number[0] == '0' && digits > 1) || strncmp(state, "state.", 6) != 0 ||
        (state > name && state[-1] != '.'))
        return false;
    moment->number = (uint32_t)strtoul(number, NULL, 10);
    moment->prefix_bytes = (uint32_t)(state - name);
    moment->key_at = (uint32_t)(key - name);
    moment->key_bytes = (uint32_t)(end - key);
    return true;
}

/* Adds what is not a tensor (a step that is a plain number), where the optimizer's tensors are
 * under the same prefix: what is elsewhere is not this optimizer's. Where the tensors have names,
 * only groups say that the numbers are still those. */
static uint32_t
list_plain(const struct cairn_layout *layout, bool grouped, struct moment *moments, uint32_t found)
{
    const char *prefix = grouped && found > 0 ? "optimizer." : NULL;
    uint32_t prefix_bytes = prefix ? (uint32_t)strlen(prefix) : 0;

    for (uint32_t i = 0; i < found; i++)
        if (moments[i].key_at > 0) {
            prefix = cairn_layout_tensor(layout, moments[i].tensor)->name;
            prefix_bytes = moments[i].prefix_bytes;
            break;
        }
    for (uint32_t i = 0; prefix && i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        moments[found].tensor = i;
        found += tensor->kind == CAIRN_OPAQUE && read_numbered(tensor, &moments[found]) &&
                 moments[found].prefix_bytes == prefix_bytes &&
                 strncmp(tensor->name, prefix, prefix_bytes) == 0;
    }
    return found;
}

static int
compare_moments(const void *left, const void *right)
{
    const struct moment *a = left, *b = right;

    return CAIRN_COMPARE(a->number, b->number) ?: CAIRN_COMPARE(a->tensor, b->tensor);
}

static cairn_err
list_moments(struct cairn_torch_building *building, bool grouped, struct moment **out,
             uint32_t *count)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t total = cairn_layout_tensor_count(layout), found = 0, key_bytes = 0, parameter;
    struct moment *moments = calloc((size_t)total + 1, sizeof(*moments));

    if (!moments)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < total; i++) {
        parameter = cairn_checkpoint_parameter_of(building->source, i, &key_bytes);
        if (parameter == UINT32_MAX) {
            moments[found].tensor = i;
            found += cairn_layout_tensor(layout, i)->kind == CAIRN_OPTIMIZER &&
                     read_numbered(cairn_layout_tensor(layout, i), &moments[found]);
            continue;
        }
        if (building->numbers[parameter] == 0)
            number_parameter(building, parameter);
        moments[found++] = (struct moment){building->numbers[parameter] - 1, i, 0, 0, key_bytes};
    }
    found = list_plain(layout, grouped, moments, found);
    qsort(moments, found, sizeof(*moments), compare_moments);
    *out = moments;
    *count = found;
    return CAIRN_OK;
}

/* One group of all, for a source that says nothing of groups. */
static struct cairn_pickle_node *
build_groups(struct cairn_torch_building *building)
{
    struct cairn_pickle *tree = &building->tree;
    struct cairn_pickle_node *list = cairn_pickle_list(tree);
    struct cairn_pickle_node *members = cairn_pickle_list(tree);
    struct cairn_pickle_node *group = cairn_pickle_dict(tree);

    for (uint32_t i = 0; i < building->number_count; i++)
        cairn_pickle_append(tree, members, cairn_pickle_int(tree, i));
    cairn_pickle_set(tree, group, "params", members);
    cairn_pickle_append(tree, list, group);
    return list;
}

static cairn_err
build_optimizer(struct cairn_torch_building *building, struct cairn_pickle_node *root)
{
    const struct cairn_layout *layout = building->source->layout;
    struct cairn_pickle *tree = &building->tree;
    uint32_t groups_index = cairn_layout_tensor_find(layout, CAIRN_PARAM_GROUPS_NAME), count = 0;
    struct cairn_pickle_node *state, *optimizer, *entry = NULL, *groups = NULL, *said = NULL;
    struct moment *moments = NULL;
    char key[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    if (groups_index != UINT32_MAX) {
        err = building_read(building, CAIRN_PARAM_GROUPS_NAME, &groups);
        if (!err)
            err = building_number_groups(building, groups);
        if (err)
            return err;
        building->used[groups_index] = true;
    } else { /* in the order of the model */
        for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
            uint32_t key_bytes, parameter;

            parameter = cairn_checkpoint_parameter_of(building->source, i, &key_bytes);
            if (parameter != UINT32_MAX)
                building->numbers[parameter] = UINT32_MAX; /* has state */
        }
        for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
            if (building->numbers[i] == UINT32_MAX)
                building->numbers[i] = ++building->number_count;
    }
    err = list_moments(building, groups != NULL, &moments, &count);
    if (err || (count == 0 && !groups))
        goto done;
    state = cairn_pickle_dict(tree);
    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, moments[i].tensor);
        struct cairn_pickle_node *value = NULL;

        if (i == 0 || moments[i].number != moments[i - 1].number) {
            entry = cairn_pickle_dict(tree);
            cairn_pickle_put(tree, state, cairn_pickle_int(tree, moments[i].number), entry);
        }
        if (tensor->kind == CAIRN_OPAQUE) {
            err = building_read(building, tensor->name, &value);
            if (err == CAIRN_NOMEM || err == CAIRN_IO)
                goto done;
            if (err) /* carried as bytes */
                continue;
            building->used[moments[i].tensor] = true;
        } else {
            value = tensor_node(building, moments[i].tensor);
        }
        memcpy(key, tensor->name + moments[i].key_at, moments[i].key_bytes);
        key[moments[i].key_bytes] = '\0';
        cairn_pickle_set(tree, entry, key, value);
    }
    optimizer = dict_at(building, root, "optimizer");
    if (!groups)
        groups = build_groups(building);
    cairn_pickle_set(tree, optimizer, "state", state);
    cairn_pickle_set(tree, optimizer, "param_groups", groups);
    if (groups) /* else memory ran out, which the tree says */
        err = cairn_torch_building_say(building, groups->count, &said);
    if (!err && said)
        cairn_pickle_set(tree, dict_at(building, root, CAIRN_CARRIED_KEY), CAIRN_TORCH_PARAMETERS,
                         said);
    if (!err)
        err = cairn_pickle_done(tree);
done:
    free(moments);
    return err;
}

/* What is neither of the model nor of the optimizer. */
static cairn_err
build_rest(struct cairn_torch_building *building, struct cairn_pickle_node *root)
{
    const struct cairn_layout *layout = building->source->layout;
    struct cairn_pickle *tree = &building->tree;
    struct cairn_pickle_node *node = NULL, *carried;
    char text[CAIRN_STATE_NAME_BYTES_MAX], name[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_state_path path;
    cairn_err err;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        bool opaque = tensor->kind == CAIRN_OPAQUE;

        if (building->used[i] || comes_with_object(layout, tensor))
            continue;
        building->used[i] = true;
        if (!opaque || (cairn_text_ends(tensor->name, ".pickle") && !strchr(tensor->name, '/'))) {
            err = opaque ? building_read(building, tensor->name, &node) : CAIRN_OK;
            if (err == CAIRN_NOMEM || err == CAIRN_IO)
                return err;
            if (!opaque)
                node = tensor_node(building, i);
            if (!err &&
                cairn_kept_names_choose(&building->names, building->source, i, text, name, &path) &&
                put_at(building, root, &path, node))
                continue;
        }
        carried = dict_at(building, root, CAIRN_CARRIED_KEY);
        if (!carried)
            return CAIRN_INVAL;
        if (opaque) {
            err = building_bytes(building, tensor->name, &node);
            if (err)
                return err;
        }
        cairn_pickle_set(tree, carried, tensor->name, node);
    }
    return cairn_pickle_done(tree);
}

/* The notes of safetensors files, where weights alone are beside them: a state dict that every
 * loader takes has no place for them. */
static uint32_t
notes_without_place(const struct cairn_checkpoint *source)
{
    uint32_t notes = cairn_layout_tensor_find(source->layout, CAIRN_SAFETENSORS_NOTES);

    for (uint32_t i = 0; notes != UINT32_MAX && i < cairn_layout_tensor_count(source->layout);
         i++) {
        enum cairn_kind kind = cairn_layout_tensor(source->layout, i)->kind;

        if (kind == CAIRN_OPTIMIZER || (kind == CAIRN_OPAQUE && i != notes))
            notes = UINT32_MAX;
    }
    return notes;
}

cairn_err
cairn_torch_format_prepare(struct cairn_checkpoint *checkpoint,
                           const struct cairn_output_options *options)
{
    (void)options;
    return notes_without_place(checkpoint) == UINT32_MAX
               ? CAIRN_OK
               : cairn_checkpoint_warn(
                     checkpoint, "the notes in the headers (__metadata__) are left out: a file of "
                                 "torch.save with weights only has no place for them");
}

/* A tree of its own. The errors of cairn_torch_building_read, CAIRN_NOMEM. */
static cairn_err
building_make(struct cairn_torch_building *building, struct cairn_pickle_node **root)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t kept = cairn_layout_tensor_find(layout, CAIRN_TORCH_TREE);
    struct cairn_pickle_node *model = build_model(building);
    uint32_t notes = notes_without_place(building->source);
    bool alone = true;
    cairn_err err;

    if (notes != UINT32_MAX)
        building->used[notes] = true;
    if (kept != UINT32_MAX)
        building->used[kept] = true; /* it no longer says how things are */
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        alone = alone && building->used[i];
    if (alone) {
        *root = model;
        return cairn_pickle_done(&building->tree);
    }
    *root = cairn_pickle_dict(&building->tree);
    cairn_pickle_set(&building->tree, *root, "model", model);
    err = build_optimizer(building, *root);
    return err ? err : build_rest(building, *root);
}

static cairn_err
put_opaque(void *context, struct cairn_pickle_node *node)
{
    struct cairn_torch_building *building = context;
    struct cairn_pickle_node *read = NULL;
    char word[CAIRN_PICKLE_WORD_BYTES_MAX], name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor;
    cairn_err err;

    if (!cairn_pickle_read_named(node, word, name))
        return CAIRN_NOT_FOUND;
    tensor = cairn_layout_tensor_find(building->source->layout, name);
    if (tensor == UINT32_MAX)
        return CAIRN_NOT_FOUND;
    building->used[tensor] = true;
    if (strcmp(word, "carried") == 0)
        err = building_bytes(building, name, &read);
    else if (strcmp(word, "opaque") == 0)
        err = building_read(building, name, &read);
    else
        return CAIRN_OK; /* a tensor */
    if (!err && strcmp(name, CAIRN_PARAM_GROUPS_NAME) == 0)
        err = building_number_groups(building, read);
    return err ? err : cairn_pickle_replace(&building->tree, node, read);
}

static cairn_err
note_tensor(void *context, struct cairn_pickle_node *node)
{
    struct cairn_torch_building *building = context;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor = UINT32_MAX;

    if (cairn_pickle_tensor_name(node, name))
        tensor = cairn_layout_tensor_find(building->source->layout, name);
    if (tensor == UINT32_MAX)
        return CAIRN_NOT_FOUND;
    building->used[tensor] = true;
    return CAIRN_OK;
}

/* Tensors call OrderedDict too, and torch.save writes the name of a class once: so they get the
 * node of the first state dict that has one. */
static void
share_class(struct cairn_torch_building *building, struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(root);

    if (cairn_pickle_is_call(root, "collections", "OrderedDict")) {
        building->builder.ordered_dict = root->object->callable;
        return;
    }
    for (uint32_t i = 0; pairs && i < pairs->count; i++)
        if (cairn_pickle_is_call(pairs->items[2 * i + 1], "collections", "OrderedDict")) {
            building->builder.ordered_dict = pairs->items[2 * i + 1]->object->callable;
            return;
        }
}

/* The tree that the source was read from; *root stays NULL where there is none, or it does not fit
 * what is there. CAIRN_NOMEM, CAIRN_IO. */
static cairn_err
restore(struct cairn_torch_building *building, struct cairn_pickle_node **root)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t tree = cairn_layout_tensor_find(layout, CAIRN_TORCH_TREE);
    struct cairn_pickle_node *kept = NULL;
    cairn_err err;

    if (tree == UINT32_MAX)
        return CAIRN_OK;
    err = building_read(building, CAIRN_TORCH_TREE, &kept);
    if (!err)
        err = cairn_torch_visit_persistent(&building->tree, kept, put_opaque, building);
    if (!err) /* tensors within objects */
        err = cairn_torch_visit_persistent(&building->tree, kept, note_tensor, building);
    building->used[tree] = true;
    for (uint32_t i = 0; i < building->source->alias_count && !err; i++)
        building->used[building->source->aliases[i].tensor] = true;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && !err; i++)
        if (!building->used[i])
            err = CAIRN_NOT_FOUND;
    if (err == CAIRN_NOMEM || err == CAIRN_IO)
        return err;
    if (!err) {
        share_class(building, kept);
        *root = kept;
    }
    return CAIRN_OK;
}

#define TREE_BYTES_MAX ((uint64_t)1 << 32)

/* What is in the tree, and no tensor of the output. */
static cairn_err
add_carried(const struct cairn_torch_building *building, struct cairn_output *output)
{
    const struct cairn_layout *layout = building->source->layout;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && !err; i++)
        if (cairn_layout_tensor(layout, i)->kind == CAIRN_OPAQUE)
            err = cairn_output_add_carried(output, i);
    for (uint32_t i = 0; i < building->source->alias_count && !err; i++) {
        uint32_t alias = building->source->aliases[i].tensor;

        if (!output->layout ||
            cairn_layout_tensor_find(output->layout, cairn_layout_tensor(layout, alias)->name) ==
                UINT32_MAX)
            err = cairn_output_add_carried(output, alias);
    }
    return err;
}

static cairn_err
plan_tree(struct cairn_torch_building *building, struct cairn_output *output)
{
    struct cairn_pickle_node *root = NULL;
    struct cairn_torch_output *added = NULL;
    cairn_err err;

    err = building->options->canonical_names ? CAIRN_OK : restore(building, &root);
    if (!err && !root) {
        size_t count = (size_t)cairn_layout_tensor_count(building->source->layout) + 1;

        memset(building->used, 0, count * sizeof(*building->used));
        memset(building->numbers, 0, count * sizeof(*building->numbers));
        building->number_count = 0;
        err = building_make(building, &root);
    }
    if (!err)
        err = cairn_torch_output_next(output, &added);
    if (!err)
        err = cairn_torch_refs_add(building->source, building->options, &building->builder,
                                   &building->tree, root, output, "", added);
    return err ? err : add_carried(building, output);
}

cairn_err
cairn_torch_format_plan(const struct cairn_checkpoint *checkpoint,
                        const struct cairn_output_options *options, struct cairn_output *output)
{
    size_t count = (size_t)cairn_layout_tensor_count(checkpoint->layout) + 1;
    struct cairn_torch_building building = {.source = checkpoint, .options = options};
    cairn_err err = CAIRN_NOMEM;

    cairn_pickle_init(&building.tree, TREE_BYTES_MAX);
    cairn_torch_builder_init(&building.builder, &building.tree);
    building.used = calloc(count, sizeof(*building.used));
    building.numbers = calloc(count, sizeof(*building.numbers));
    if (building.used && building.numbers)
        err = options->canonical_names ? CAIRN_OK
                                       : cairn_kept_names_load(checkpoint, &building.names);
    if (!err)
        err = plan_tree(&building, output);
    cairn_kept_names_fini(&building.names);
    cairn_pickle_fini(&building.tree);
    free(building.used);
    free(building.numbers);
    return cairn_complain_failed(checkpoint->complaint, err,
                                 "%s: cannot be laid out as a file of torch.save",
                                 checkpoint->place.path);
}
