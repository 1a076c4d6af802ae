/*
 * tools/convert/torch/restore.c - gives a source that came from a file of torch.save its own tree
 * back (torch/state.h), where all that the tree names is still there and nothing else is.
 */
#include "tools/convert/torch/building.h"

#include <string.h>

#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/refs.h"

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
        err = cairn_torch_building_bytes(building, name, &read);
    else if (strcmp(word, "opaque") == 0)
        err = cairn_torch_building_read(building, name, &read);
    else
        return CAIRN_OK; /* a tensor */
    if (!err && strcmp(name, CAIRN_PARAM_GROUPS_NAME) == 0)
        err = cairn_torch_building_number_groups(building, read);
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

/* *root stays NULL where the kept tree does not fit what is there. */
cairn_err
cairn_torch_building_restore(struct cairn_torch_building *building, struct cairn_pickle_node **root)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t tree = cairn_layout_tensor_find(layout, CAIRN_TORCH_TREE);
    struct cairn_pickle_node *kept = NULL;
    cairn_err err;

    if (tree == UINT32_MAX)
        return CAIRN_OK;
    err = cairn_torch_building_read(building, CAIRN_TORCH_TREE, &kept);
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
