/*
 * tools/convert/deepspeed/tensor_read.c - the objects of a job with tensor parallelism as those of
 * one without: shapes are those of whole parameters, and what says how ranks hold them is left out,
 * but for the patterns.
 */
#include "tools/convert/deepspeed/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/convert/torch/carry.h"

/* Shapes of whole parameters for those of parts; a name that cannot be cut keeps its own. */
static struct cairn_pickle_node *
whole_shapes(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
             const struct cairn_pickle_node *shapes)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shapes);
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *made;

    cairn_torch_builder_init(&builder, tree);
    made = cairn_torch_ordered_dict(&builder);
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        struct cairn_pickle_node *size = pairs->items[2 * i + 1];
        uint64_t shape[CAIRN_DIMS_MAX];
        struct cairn_deepspeed_cut cut;
        char path[CAIRN_NAME_BYTES_MAX];
        uint32_t dims = 0;

        if (cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) &&
            cairn_torch_read_size(size, shape, &dims) &&
            !cairn_deepspeed_cut(&state->cuts, path, dims, shape, state->part_count, state->part,
                                 &cut))
            size = cairn_torch_size(&builder, cut.shape, dims);
        cairn_pickle_put(tree, made, pairs->items[2 * i], size);
    }
    return made;
}

static void
gather_groups(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
              struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *groups = cairn_pickle_get(root, "param_shapes");
    struct cairn_pickle_node *list;

    if (!cairn_pickle_is_list(groups))
        return;
    list = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < groups->count; i++)
        cairn_pickle_append(tree, list, whole_shapes(state, tree, groups->items[i]));
    cairn_torch_carry_replace(root, "param_shapes", list);
}

void
cairn_deepspeed_tensor_forget(struct cairn_pickle_node *dict)
{
    cairn_torch_carry_remove(cairn_pickle_get(dict, "universal_checkpoint_info"), "affine_map");
}

void
cairn_deepspeed_tensor_gather(struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
                              struct cairn_pickle_node *root)
{
    struct cairn_pickle_node *frozen = cairn_pickle_get(root, "frozen_param_shapes");

    gather_groups(state, tree, root);
    if (cairn_pickle_pairs(frozen))
        cairn_torch_carry_replace(root, "frozen_param_shapes", whole_shapes(state, tree, frozen));
    cairn_torch_carry_replace(root, "mp_world_size", cairn_pickle_int(tree, 1));
    cairn_torch_carry_replace(cairn_pickle_get(root, "checkpoint_parallel_dimensions"), "tp_degree",
                              cairn_pickle_int(tree, 1));
    cairn_deepspeed_tensor_forget(root);
}

cairn_err
cairn_deepspeed_tensor_rows(struct cairn_checkpoint *checkpoint,
                            const struct cairn_deepspeed_state *state)
{
    uint64_t rows = 0;
    char text[32];

    for (uint32_t i = 0; i < state->groups.parameter_count; i++)
        rows = state->cut_of[i].padded_rows > rows ? state->cut_of[i].padded_rows : rows;
    if (rows == 0)
        return CAIRN_OK;
    (void)snprintf(text, sizeof(text), "%" PRIu64, rows);
    return cairn_checkpoint_add_opaque(checkpoint, CAIRN_DEEPSPEED_VOCABULARY_ROWS, text,
                                       strlen(text));
}
