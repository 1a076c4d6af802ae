/*
 * tools/convert/torch/plan.c - lays out one file of torch.save around a tree: the source's own
 * (torch/state.h), where all that the tree names is still there and nothing else is, or one that is
 * made (torch/build.c).
 */
#include "tools/convert/torch/building.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/refs.h"
#include "tools/convert/state/param_groups.h"

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
        err = cairn_torch_building_make(building, &root);
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
