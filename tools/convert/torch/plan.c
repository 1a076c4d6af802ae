/*
 * tools/convert/torch/plan.c - lays out one file of torch.save around a tree: the source's own, or
 * one that is made (torch/build.c).
 */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/building.h"
#include "tools/convert/torch/refs.h"

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
    uint32_t file = 0;
    cairn_err err;

    err = building->options->canonical_names ? CAIRN_OK
                                             : cairn_torch_building_restore(building, &root);
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
        err = cairn_torch_refs_plan(building->source, building->options, &building->builder,
                                    &building->tree, root, "archive", added);
    if (!err)
        err = cairn_output_add_file(output, "", &file);
    if (err)
        return err;
    cairn_output_set_bytes(output, file, cairn_torch_plan_bytes(&added->plan));
    err = cairn_torch_refs_place(building->source, building->options, output, added, file, 0);
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
