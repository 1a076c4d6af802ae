/*
 * tools/convert/torch/plan.c - lays out one file of torch.save around a tree: the source's own, or
 * one that is made (torch/build.c).
 */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/building.h"
#include "tools/convert/torch/refs.h"

#define TREE_BYTES_MAX ((uint64_t)1 << 32)

/* What is kept between plan and finish. */
struct state {
    struct cairn_torch_plan plan;
    uint32_t *sums; /* [plan.storage_count]; UINT32_MAX where a storage is empty */
};

void
cairn_torch_format_release(void *kept)
{
    struct state *state = kept;

    if (!state)
        return;
    cairn_torch_plan_fini(&state->plan);
    free(state->sums);
    free(state);
}

static cairn_err
place_storages(struct cairn_torch_building *building, const struct cairn_torch_refs *refs,
               struct state *state, struct cairn_output *output, uint32_t file)
{
    const struct cairn_layout *layout = building->source->layout;
    cairn_err err = CAIRN_OK;

    state->sums = calloc((size_t)refs->count + 1, sizeof(*state->sums));
    if (!state->sums)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < refs->count && !err; i++) {
        const struct cairn_zip_planned *entry = cairn_torch_plan_storage_at(&state->plan, i);
        uint32_t target;

        state->sums[i] = UINT32_MAX;
        err = cairn_output_add_tensor(output, building->options,
                                      cairn_layout_tensor(layout, refs->tensors[i]), &target);
        if (!err)
            err = cairn_output_add_box(output, target, file, NULL, NULL, entry->at, NULL);
        if (!err && entry->bytes > 0)
            err = cairn_output_add_sum(output, file, CAIRN_SUM_CRC32, entry->at, entry->bytes,
                                       entry->bytes, &state->sums[i]);
    }
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
plan_tree(struct cairn_torch_building *building, struct state *state, struct cairn_output *output)
{
    struct cairn_pickle_node *root = NULL;
    struct cairn_torch_refs refs = {0};
    uint32_t file;
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
        err = cairn_torch_refs_find(building->source, building->options, &building->tree, root,
                                    &refs);
    if (!err)
        err = cairn_torch_refs_plan(building->source->layout, building->options, &refs,
                                    &building->builder, root, "archive", &state->plan,
                                    building->complaint);
    if (!err)
        err = cairn_output_add_file(output, "", &file);
    if (!err) {
        cairn_output_set_bytes(output, file, cairn_torch_plan_bytes(&state->plan));
        err = place_storages(building, &refs, state, output, file);
    }
    cairn_torch_refs_fini(&refs);
    return err;
}

cairn_err
cairn_torch_format_plan(const struct cairn_checkpoint *checkpoint,
                        const struct cairn_output_options *options, struct cairn_output *output,
                        struct cairn_complaint *complaint)
{
    size_t count = (size_t)cairn_layout_tensor_count(checkpoint->layout) + 1;
    struct cairn_torch_building building = {
        .source = checkpoint, .options = options, .complaint = complaint};
    struct state *state = calloc(1, sizeof(*state));
    cairn_err err = CAIRN_NOMEM;

    output->state = state;
    cairn_pickle_init(&building.tree, TREE_BYTES_MAX);
    cairn_torch_builder_init(&building.builder, &building.tree);
    building.used = calloc(count, sizeof(*building.used));
    building.numbers = calloc(count, sizeof(*building.numbers));
    if (state && building.used && building.numbers)
        err = options->canonical_names
                  ? CAIRN_OK
                  : cairn_kept_names_load(checkpoint, &building.names, complaint);
    if (!err)
        err = plan_tree(&building, state, output);
    cairn_kept_names_fini(&building.names);
    cairn_pickle_fini(&building.tree);
    free(building.used);
    free(building.numbers);
    return cairn_complain_failed(complaint, err, "%s: cannot be laid out as a file of torch.save",
                                 checkpoint->place.path);
}

static cairn_err
put_literal(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    uint8_t *copy = malloc(bytes_len + 1);

    if (!copy)
        return CAIRN_NOMEM;
    memcpy(copy, bytes, bytes_len);
    return cairn_output_add_literal(context, 0, at, copy, bytes_len);
}

cairn_err
cairn_torch_format_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output,
                          struct cairn_complaint *complaint)
{
    struct state *state = output->state;
    cairn_err err;

    for (uint32_t i = 0; i < state->plan.storage_count; i++)
        if (state->sums[i] != UINT32_MAX)
            cairn_torch_plan_storage_at(&state->plan, i)->crc32 =
                (uint32_t)output->sums[state->sums[i]].values[0];
    err = cairn_torch_plan_put(&state->plan, put_literal, output);
    return cairn_complain_failed(complaint, err, "%s: the archive around the tensors",
                                 checkpoint->place.path);
}
