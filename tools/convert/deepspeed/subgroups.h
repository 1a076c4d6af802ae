/*
 * tools/convert/deepspeed/subgroups.h - where ZeRO 3 splits a group of the optimizer into buffers.
 * It goes by what one rank has of the group (sub_group_size), so another number of ranks has other
 * buffers.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_SUBGROUPS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_SUBGROUPS_H

#include "tools/convert/deepspeed/state.h"

/* What DeepSpeed takes for sub_group_size where the job's configuration does not say it. */
#define CAIRN_DEEPSPEED_SUB_GROUP_ELEMENTS UINT64_C(1000000000)

/* One of the optimizer's groups while its parameters are walked in order. */
struct cairn_deepspeed_splitting {
    uint64_t size; /* sub_group_size */
    uint64_t all;  /* elements that a rank has of the group */
    uint64_t held; /* of them, in the buffer so far */
};

/* Takes a rank's `elements` of the next parameter. True if ZeRO 3 ends the buffer after it. */
bool cairn_deepspeed_splits_after(struct cairn_deepspeed_splitting *splitting, uint64_t elements);

/* Whether ZeRO 3 makes these buffers of the optimizer's groups (`settings`: its param_groups with
 * the numbers of buffers) if it splits them at `size` elements of one of `ranks`. *known: whether
 * all buffers are in the settings; if not, the answer is false. */
bool cairn_deepspeed_subgroups_fit(const struct cairn_deepspeed_groups *groups,
                                   const struct cairn_pickle_node *settings, uint64_t size,
                                   uint32_t ranks, bool *known);

/* Adds to a checkpoint that is read how ZeRO 3 splits groups into buffers. Call it after the first
 * part's objects are carried; `model` is the model's. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_subgroups_note(struct cairn_checkpoint *checkpoint,
                                                          const struct cairn_deepspeed_state *state,
                                                          const struct cairn_pickle_node *model);

#endif
