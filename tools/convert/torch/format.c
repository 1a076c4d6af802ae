/*
 * tools/convert/torch/format.c - one file of torch.save: a state dict, or a dict of them with an
 * optimizer's and anything else beside.
 */
#include "tools/convert/core/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/torch/parameters.h"
#include "tools/convert/torch/refs.h"
#include "tools/convert/state/opaque_tree.h"

static bool
probe(const struct cairn_place *place)
{
    uint8_t first[CAIRN_TORCH_PROBE_BYTES];
    enum cairn_torch_form form = CAIRN_TORCH_NOT;
    size_t got = 0;
    int fd = -1;

    if (place->name && cairn_place_open_file(place, "", &fd, NULL) == CAIRN_OK &&
        cairn_file_read_at(fd, 0, first, sizeof(first), &got) == CAIRN_OK)
        form = cairn_torch_probe(first, got);
    (void)cairn_file_close(fd); /* only looked at; -1 is allowed */
    return form != CAIRN_TORCH_NOT;
}

/* ---- reading ---- */

/* A tensor of the layout that is the same view of the same bytes, and of the same kind. */
static uint32_t
find_tied(const struct cairn_torch_reading *reading, const struct cairn_torch_tensor *tensor,
          enum cairn_kind kind)
{
    for (uint32_t i = reading->last_in[tensor->storage]; i != 0; i = reading->before[i - 1]) {
        const struct cairn_torch_tensor *other = &reading->source.torch.tensors[i - 1];
        uint32_t known = reading->layout_of[i - 1] - 1;

        if (other->at == tensor->at && other->view.dtype == tensor->view.dtype &&
            other->view.dims == tensor->view.dims &&
            memcmp(other->view.shape, tensor->view.shape, sizeof(tensor->view.shape)) == 0 &&
            memcmp(other->view.stride, tensor->view.stride, sizeof(tensor->view.stride)) == 0 &&
            cairn_layout_tensor(reading->checkpoint->layout, known)->kind == kind)
            return known;
    }
    return UINT32_MAX;
}

/* Adds a tensor, whose node says its name from here on. */
static cairn_err
add_tensor(struct cairn_torch_reading *reading, const struct cairn_torch_tensor *tensor,
           const char *name, enum cairn_kind kind)
{
    struct cairn_checkpoint *checkpoint = reading->checkpoint;
    struct cairn_torch_file *file = &reading->source.torch;
    uint32_t known = 0, tied = UINT32_MAX, index = (uint32_t)(tensor - file->tensors);
    cairn_err err = cairn_torch_check_view(checkpoint, tensor, name);

    if (err)
        return err;
    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "two tensors are called %.300s once the keys that lead to them are "
                            "joined by dots; rename one",
                            name);
    if (tensor->bytes > 0 && kind == CAIRN_PARAM)
        tied = find_tied(reading, tensor, kind);
    if (tied != UINT32_MAX) {
        err = cairn_checkpoint_add_alias(checkpoint, name, tied);
    } else {
        err =
            cairn_torch_add_view(checkpoint, reading->source.container, tensor, name, kind, &known);
        reading->layout_of[index] = known + 1;
        reading->before[index] = reading->last_in[tensor->storage];
        reading->last_in[tensor->storage] = index + 1;
    }
    return err ? err
               : cairn_pickle_replace(&file->tree, tensor->node,
                                      cairn_pickle_tensor(&file->tree, name));
}

/* A second name of a tensor that the tree holds twice. */
static cairn_err
add_second_name(struct cairn_torch_reading *reading, const struct cairn_pickle_node *node,
                const char *name)
{
    const struct cairn_checkpoint *checkpoint = reading->checkpoint;
    char first[CAIRN_NAME_BYTES_MAX];
    uint32_t of = UINT32_MAX;

    if (cairn_pickle_tensor_name(node, first))
        of = cairn_layout_tensor_find(checkpoint->layout, first);
    of = cairn_checkpoint_past_alias(checkpoint, of);
    return cairn_checkpoint_add_alias(reading->checkpoint, name, of);
}

/* ---- parameter groups ---- */

static cairn_err
gather_group(struct cairn_torch_reading *reading, const struct cairn_torch_leaf *leaf,
             struct cairn_group_value *value)
{
    struct cairn_state_path path = cairn_torch_leaf_path(leaf);
    struct cairn_state_place place;
    char *text;

    if (!cairn_state_classify(&reading->roots, &path, &place) || place.class != CAIRN_STATE_GROUP ||
        place.flat)
        return CAIRN_CORRUPT; /* deeper than a value: the list stays as it is */
    value->group = place.group;
    value->key = leaf->keys[leaf->key_count - 1].text;
    if (cairn_pickle_tensor_name(leaf->node, NULL)) {
        text = cairn_pickle_alloc(&reading->source.torch.names, CAIRN_NAME_BYTES_MAX);
        if (!text || !cairn_pickle_tensor_name(leaf->node, text))
            return CAIRN_NOMEM;
        value->tensor = text;
        return CAIRN_OK;
    }
    return cairn_pickle_write(&reading->source.torch.tree, leaf->node,
                              (uint8_t **)(uintptr_t)&value->bytes, &value->bytes_len, NULL);
}

/* Makes the groups one opaque state, and lets the tree name it in their place. */
static cairn_err
pack_groups(struct cairn_torch_reading *reading, struct cairn_torch_leaf *list)
{
    uint32_t first = (uint32_t)(list - reading->leaves.leaves) + 1;
    size_t count = list->group_end - first;
    struct cairn_group_value *values = calloc(count + 1, sizeof(*values));
    bool added = false;
    cairn_err err = values ? CAIRN_OK : CAIRN_NOMEM;

    for (size_t i = 0; i < count && !err; i++)
        err = gather_group(reading, &reading->leaves.leaves[first + i], &values[i]);
    if (!err)
        err = cairn_param_groups_add(reading->checkpoint, values, count,
                                     (const char *const *)reading->parameters,
                                     reading->parameter_count, &added);
    for (size_t i = 0; values && i < count; i++)
        free((void *)(uintptr_t)values[i].bytes);
    free(values);
    if (err == CAIRN_CORRUPT || (!err && !added))
        return CAIRN_OK;
    if (!err) {
        *list->slot =
            cairn_pickle_named(&reading->source.torch.tree, "opaque", CAIRN_PARAM_GROUPS_NAME);
        err = *list->slot ? CAIRN_OK : CAIRN_NOMEM;
    }
    for (uint32_t i = first; i < list->group_end; i++)
        reading->leaves.leaves[i].node = NULL; /* done */
    return err;
}

/* ---- leaves ---- */

/* The name of what the writer had no place for; NULL for any other leaf, or if it is taken. */
static const char *
carried_name(const struct cairn_torch_reading *reading, const struct cairn_torch_leaf *leaf)
{
    const char *name;

    if (leaf->key_count != 2 || leaf->keys[0].number || leaf->keys[1].number ||
        strcmp(leaf->keys[0].text, CAIRN_CARRIED_KEY) != 0)
        return NULL;
    name = leaf->keys[1].text;
    return strlen(name) < CAIRN_NAME_BYTES_MAX && strcmp(name, CAIRN_TORCH_TREE) != 0 &&
                   cairn_layout_tensor_find(reading->checkpoint->layout, name) == UINT32_MAX
               ? name
               : NULL;
}

/* A name that leaves out keys, or else the whole path: another tensor is called so. */
static bool
choose_name(const struct cairn_torch_reading *reading, const struct cairn_state_path *path,
            char *name, size_t name_bytes)
{
    char joined[CAIRN_STATE_NAME_BYTES_MAX];

    if (!cairn_state_join(path, joined, sizeof(joined)))
        return false;
    if (strcmp(joined, name) != 0 &&
        (cairn_name_set_has(&reading->whole, name) ||
         cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX))
        (void)snprintf(name, name_bytes, "%s", joined);
    return true;
}

static cairn_err
refuse_long_name(const struct cairn_torch_reading *reading, const struct cairn_state_path *path)
{
    char joined[CAIRN_STATE_NAME_BYTES_MAX];

    (void)cairn_state_join(path, joined, sizeof(joined)); /* what fits */
    return cairn_refuse(
        reading->checkpoint, CAIRN_CORRUPT,
        "%.100s…: the name has more than %d bytes; at most %d are supported; shorten its keys",
        joined, CAIRN_STATE_NAME_BYTES_MAX - 1, CAIRN_NAME_BYTES_MAX - 1);
}

static cairn_err
name_tensors(struct cairn_torch_reading *reading, bool moments)
{
    char name[2 * CAIRN_STATE_NAME_BYTES_MAX + 2];
    struct cairn_state_place place;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_torch_leaf *leaf = &reading->leaves.leaves[i];
        struct cairn_state_path path = cairn_torch_leaf_path(leaf);
        const struct cairn_torch_tensor *tensor;
        enum cairn_kind kind = CAIRN_OPTIMIZER;
        bool second;

        if (!leaf->node)
            continue;
        tensor = leaf->groups ? NULL : cairn_torch_source_tensor(&reading->source, leaf->node);
        second = !leaf->groups && !tensor && cairn_pickle_tensor_name(leaf->node, NULL);
        if (!tensor && !second)
            continue;
        if (path.count == 0) /* the file is one tensor */
            path = (struct cairn_state_path){.count = 1, .keys = {{"tensor", false}}};
        if (!cairn_state_classify(&reading->roots, &path, &place))
            return refuse_long_name(reading, &path);
        if (moments != (place.class == CAIRN_STATE_MOMENT))
            continue;
        if (place.class == CAIRN_STATE_MOMENT) {
            uint64_t number = 0;
            bool numbered = cairn_number_read(place.parameter, UINT32_MAX, &number);

            cairn_state_unwrap(place.parameter);
            if (numbered && number < reading->parameter_count)
                (void)snprintf(name, sizeof(name), "%s.%s", place.key, reading->parameters[number]);
            else if (numbered || !cairn_state_join(&path, name, sizeof(name)))
                (void)cairn_state_join(&path, name, sizeof(name));
            else
                (void)snprintf(name, sizeof(name), "%s.%s", place.key, place.parameter);
        } else if (place.class == CAIRN_STATE_GROUP) {
            if (!cairn_state_join(&path, name, sizeof(name)))
                return CAIRN_CORRUPT;
        } else {
            kind = place.in_model && tensor &&
                           cairn_state_is_parameter_dtype(tensor->view.dtype->dtype)
                       ? CAIRN_PARAM
                       : CAIRN_BUFFER;
            (void)snprintf(name, sizeof(name), "%s", place.parameter);
            if (carried_name(reading, leaf))
                (void)snprintf(name, sizeof(name), "%s", carried_name(reading, leaf));
        }
        if (!choose_name(reading, &path, name, sizeof(name)))
            return refuse_long_name(reading, &path);
        if (second) {
            err = add_second_name(reading, leaf->node, name);
            continue;
        }
        err = add_tensor(reading, tensor, name, kind);
    }
    return err;
}

/* Tensors that are deeper than leaves: in tuples, sets and objects. */
static cairn_err
name_hidden(struct cairn_torch_reading *reading)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->source.torch.tensor_count && !err; i++) {
        const struct cairn_torch_tensor *tensor = &reading->source.torch.tensors[i];

        if (cairn_torch_source_tensor(&reading->source, tensor->node) == tensor)
            err = add_tensor(reading, tensor, tensor->name[0] ? tensor->name : "object",
                             CAIRN_BUFFER);
    }
    return err;
}

/* Opaque state that the file holds as bytes; *taken: the leaf is such. */
static cairn_err
take_carried(struct cairn_torch_reading *reading, struct cairn_torch_leaf *leaf, bool *taken)
{
    const char *name = carried_name(reading, leaf);
    const uint8_t *bytes;
    size_t bytes_len;
    cairn_err err;

    *taken = name &&
             cairn_pickle_read_bytes(&reading->source.torch.tree, leaf->node, &bytes, &bytes_len);
    if (!*taken)
        return CAIRN_OK;
    err = cairn_checkpoint_add_opaque(reading->checkpoint, name, bytes, bytes_len);
    *leaf->slot = cairn_pickle_named(&reading->source.torch.tree, "carried", name);
    return err ? err : cairn_pickle_done(&reading->source.torch.tree);
}

static cairn_err
refuse_storage(struct cairn_torch_reading *reading, const struct cairn_torch_leaf *leaf,
               const char *name)
{
    bool found;
    cairn_err err = cairn_torch_has_storage(&reading->source.torch.tree, leaf->node, &found);

    if (err || !found)
        return err;
    return cairn_complain(reading->checkpoint->complaint, CAIRN_INVAL, CAIRN_TORCH_STORAGE_LEFT,
                          reading->checkpoint->place.path, name);
}

static cairn_err
add_objects(struct cairn_torch_reading *reading)
{
    char name[CAIRN_STATE_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_torch_leaf *leaf = &reading->leaves.leaves[i];
        struct cairn_state_path path = cairn_torch_leaf_path(leaf);
        bool taken = false;

        if (!leaf->node || leaf->groups || cairn_pickle_tensor_name(leaf->node, NULL))
            continue;
        err = take_carried(reading, leaf, &taken);
        if (err || taken)
            continue;
        if (path.count == 0)
            path = (struct cairn_state_path){.count = 1, .keys = {{"object", false}}};
        if (!cairn_state_join(&path, name, sizeof(name) - sizeof(".pickle")))
            return refuse_long_name(reading, &path);
        err = refuse_storage(reading, leaf, name);
        if (err)
            return err;
        strcat(name, ".pickle");
        err = cairn_opaque_add(reading->checkpoint, name, &reading->source.torch.tree, leaf->node);
        if (!err) {
            *leaf->slot = cairn_pickle_named(&reading->source.torch.tree, "opaque", name);
            err = *leaf->slot ? CAIRN_OK : CAIRN_NOMEM;
        }
    }
    return err;
}

/* ---- the whole ---- */

static cairn_err
read_leaves(struct cairn_torch_reading *reading)
{
    struct cairn_state_path optimizer;
    cairn_err err;

    reading->layout_of =
        calloc((size_t)reading->source.torch.tensor_count + 1, sizeof(*reading->layout_of));
    reading->last_in =
        calloc((size_t)reading->source.torch.storage_count + 1, sizeof(*reading->last_in));
    reading->before =
        calloc((size_t)reading->source.torch.tensor_count + 1, sizeof(*reading->before));
    if (!reading->layout_of || !reading->last_in || !reading->before)
        return CAIRN_NOMEM;

    err = cairn_torch_leaves_list(&reading->source.torch, &reading->leaves);
    if (err == CAIRN_INVAL) {
        char joined[CAIRN_STATE_NAME_BYTES_MAX];

        (void)cairn_state_join(&reading->leaves.refused, joined, sizeof(joined)); /* what fits */
        return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT,
                            "%s%.100s: a key is not UTF-8 or has a NUL byte; rename it",
                            joined[0] ? "below " : "the object", joined);
    }
    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_state_path path = cairn_torch_leaf_path(&reading->leaves.leaves[i]);
        if (cairn_torch_source_tensor(&reading->source, reading->leaves.leaves[i].node))
            cairn_state_roots_see(&reading->roots, &path);
    }
    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_state_path path = cairn_torch_leaf_path(&reading->leaves.leaves[i]);
        if (cairn_torch_source_tensor(&reading->source, reading->leaves.leaves[i].node))
            err = cairn_whole_names_add(&reading->whole, &reading->roots, &path);
    }
    cairn_name_set_sort(&reading->whole);
    if (!err)
        err = name_tensors(reading, false);
    optimizer = reading->roots.optimizer;
    for (uint32_t i = 0; i < reading->leaves.count && !err; i++) {
        struct cairn_torch_leaf *leaf = &reading->leaves.leaves[i];
        bool ours = reading->roots.optimizer_known && leaf->groups &&
                    leaf->key_count == optimizer.count + 1;

        for (uint32_t k = 0; ours && k < optimizer.count; k++)
            ours = strcmp(leaf->keys[k].text, optimizer.keys[k].text) == 0;
        if (!ours)
            continue;
        err = cairn_torch_reading_name_parameters(reading, leaf->node);
        if (!err)
            err = pack_groups(reading, leaf);
        break;
    }
    if (!err)
        err = name_tensors(reading, true);
    if (!err)
        err = name_hidden(reading);
    if (!err)
        err = add_objects(reading);
    return err ? err
               : cairn_opaque_add(reading->checkpoint, CAIRN_TORCH_TREE,
                                  &reading->source.torch.tree, reading->source.torch.root);
}

static cairn_err
read_file(struct cairn_checkpoint *checkpoint)
{
    struct cairn_torch_reading reading = {.checkpoint = checkpoint};
    cairn_err err;

    if (!checkpoint->place.name)
        return cairn_refuse(checkpoint, CAIRN_INVAL,
                            "is a directory; name the file that torch.save wrote");
    err = cairn_torch_source_open(checkpoint, "", &reading.source);
    if (!err) {
        (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework), "PyTorch%s",
                       reading.source.torch.legacy ? " (form of before 1.6)" : "");
        err = read_leaves(&reading);
    }
    cairn_torch_reading_forget_parameters(&reading);
    cairn_torch_leaves_fini(&reading.leaves);
    cairn_name_set_fini(&reading.whole);
    cairn_torch_source_close(&reading.source);
    free(reading.layout_of);
    free(reading.last_in);
    free(reading.before);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be read",
                                 checkpoint->place.path);
}

const struct cairn_format cairn_format_torch = {
    .name = "torch",
    .about = "one file of torch.save: a state dict, or a dict with model, optimizer and more",
    .target_is_file = true,
    .probe = probe,
    .read = read_file,
    .prepare = cairn_torch_format_prepare,
    .plan = cairn_torch_format_plan,
    .finish = cairn_torch_outputs_finish,
    .release = cairn_torch_outputs_release,
};
