/*
 * tools/convert/deepspeed/subgroups.c - where ZeRO 3 splits a group of the optimizer into buffers.
 * It goes by what one rank has of the group (sub_group_size), so another number of ranks has other
 * buffers. Notes the size with a checkpoint that is read; deepspeed/subgroup_write.c splits again.
 */
#include "tools/convert/deepspeed/subgroups.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/convert/state/opaque_tree.h"

bool
cairn_deepspeed_splits_after(struct cairn_deepspeed_splitting *splitting, uint64_t elements)
{
    splitting->held += elements;
    if (splitting->size >= splitting->all || splitting->held < splitting->size)
        return false;
    splitting->held = 0;
    return true;
}

uint64_t
cairn_deepspeed_subgroups_size(const struct cairn_pickle_node *model)
{
    const struct cairn_pickle_node *zero =
        cairn_pickle_get(cairn_pickle_get(model, "ds_config"), "zero_optimization");
    const struct cairn_pickle_node *said = cairn_pickle_get(zero, "sub_group_size");
    uint64_t size;

    if (said && said->kind == CAIRN_PICKLE_FLOAT && said->real >= 0 && said->real < 9e15) /* 1e9 */
        return (uint64_t)said->real;
    return cairn_pickle_u64(said, &size) ? size : CAIRN_DEEPSPEED_SUB_GROUP_ELEMENTS;
}

/* Whether buffers [first, first + count) are what DeepSpeed makes of their parameters. */
static bool
fits(const struct cairn_deepspeed_groups *groups, uint32_t first, uint32_t count, uint64_t size,
     uint32_t ranks)
{
    struct cairn_deepspeed_splitting splitting = {.size = size};

    for (uint32_t g = first; g < first + count; g++)
        splitting.all += cairn_deepspeed_partition(groups, g, true, ranks);
    if (size >= splitting.all)
        return count <= 1;
    for (uint32_t g = first; g < first + count; g++) {
        const struct cairn_deepspeed_group *group = &groups->groups[g];

        for (uint32_t i = 0; i < group->count; i++) {
            uint64_t elements =
                cairn_deepspeed_evenly(groups->parameters[group->first + i].elements, ranks);
            bool ends = i + 1 == group->count, last = ends && g + 1 == first + count;

            if ((cairn_deepspeed_splits_after(&splitting, elements) || last) != ends)
                return false;
        }
    }
    return true;
}

bool
cairn_deepspeed_subgroups_fit(const struct cairn_deepspeed_groups *groups,
                              const struct cairn_pickle_node *settings, uint64_t size,
                              uint32_t ranks, bool *known)
{
    uint32_t first = 0;
    bool alike = true;

    *known = false;
    if (!cairn_pickle_is_list(settings))
        return false;
    for (uint32_t i = 0; i < settings->count; i++) {
        const struct cairn_pickle_node *buffers = cairn_pickle_get(settings->items[i], "params");
        uint32_t count = cairn_pickle_is_list(buffers) ? buffers->count : 0;

        if (count > groups->group_count - first)
            return false;
        alike = alike && fits(groups, first, count, size, ranks);
        first += count;
    }
    *known = first == groups->group_count;
    return alike && *known;
}

const struct cairn_pickle_node *
cairn_deepspeed_subgroups_settings(const struct cairn_pickle_node *object)
{
    const struct cairn_pickle_node *optimizer = cairn_pickle_get(object, "optimizer_state_dict");

    return cairn_pickle_get(cairn_pickle_get(optimizer, "optimizer_state_dict"), "param_groups");
}

cairn_err
cairn_deepspeed_subgroups_note(struct cairn_checkpoint *checkpoint,
                               const struct cairn_deepspeed_state *state,
                               const struct cairn_pickle_node *model)
{
    struct cairn_opaque_tree optim;
    uint64_t size = cairn_deepspeed_subgroups_size(model);
    char text[32];
    bool known;
    cairn_err err;

    if (!state->stage3 || !state->has_groups)
        return CAIRN_OK;
    err = cairn_opaque_tree_open(checkpoint, CAIRN_DEEPSPEED_OPTIM, &optim);
    if (!err && cairn_deepspeed_subgroups_fit(&state->groups,
                                              cairn_deepspeed_subgroups_settings(optim.root), size,
                                              state->ranks, &known)) {
        (void)snprintf(text, sizeof(text), "%" PRIu64, size);
        err = cairn_checkpoint_add_opaque(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_SIZE, text,
                                          strlen(text));
    } else if (!err) {
        (void)snprintf(text, sizeof(text), "%" PRIu32 " %" PRIu32, state->ranks,
                       state->cut ? state->part_count : 1);
        err = cairn_checkpoint_add_opaque(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_RANKS, text,
                                          strlen(text));
    }
    cairn_opaque_tree_close(&optim);
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}
