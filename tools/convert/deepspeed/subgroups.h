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

/* Buffers, in the order of parameters. All zero is the empty value. */
struct cairn_deepspeed_splits {
    struct cairn_deepspeed_group *groups;
    uint32_t *setting_of; /* [count]: which of the optimizer's groups */
    uint32_t count;
    bool known; /* the settings have all buffers that there were */
    bool alike; /* these are those buffers */
};

/* With room for the buffers of so many parameters; the caller ends it in any case. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_splits_init(struct cairn_deepspeed_splits *splits,
                                                       uint32_t parameter_count);
void cairn_deepspeed_splits_fini(struct cairn_deepspeed_splits *splits);

/* Adds the buffers that ZeRO 3 makes of parameters [first, end), all of one of the optimizer's
 * groups (`setting`), if it splits them at `size` elements of one of `ranks`. */
void cairn_deepspeed_splits_add(struct cairn_deepspeed_splits *splits,
                                const struct cairn_deepspeed_parameter *parameters, uint32_t first,
                                uint32_t end, uint32_t setting, uint64_t size, uint32_t ranks);

/* The same of all of the optimizer's groups (`settings`: its param_groups with the numbers of
 * buffers), which are compared with the buffers that there are. CAIRN_NOMEM; the caller ends *out
 * in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_splits_find(const struct cairn_deepspeed_groups *groups,
                                                       const struct cairn_pickle_node *settings,
                                                       uint64_t size, uint32_t ranks,
                                                       struct cairn_deepspeed_splits *out);

/* Adds to a checkpoint that is read how ZeRO 3 splits groups into buffers. Call it after the first
 * part's objects are carried; `model` is the model's. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_subgroups_note(struct cairn_checkpoint *checkpoint,
                                                          const struct cairn_deepspeed_state *state,
                                                          const struct cairn_pickle_node *model);

#endif
