/*
 * tools/convert/deepspeed/groups.h - the order of parameters in DeepSpeed's flat buffers, and where
 * each lies in them.
 *
 * ZeRO 1, 2 and BF16: per group, the parameters follow one another (with gaps, where the job asked
 * for alignment); the whole is padded to a multiple of 2 * ranks and cut into equal parts. ZeRO 3:
 * each parameter alone is cut into parts of ceil(elements / ranks), and a rank's buffer is its
 * parts of all parameters of the group one after the other; what the last parts have too much is
 * padding.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_GROUPS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_GROUPS_H

#include "tools/convert/pickle/pickle.h"
#include "tools/convert/torch/tree.h"

struct cairn_deepspeed_parameter {
    char *name; /* owned; canonical */
    char *path; /* owned; as DeepSpeed has it, with what wrappers put in front */
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
    uint64_t elements;
    uint64_t begin;       /* in the group's flat buffer, ZeRO 1 and 2 */
    uint32_t own_experts; /* of its layer on a rank, where it is of one; else 0
                           * (deepspeed/experts.h) */
};

struct cairn_deepspeed_group {
    uint32_t first, count; /* of the parameters */
    uint64_t elements;     /* with gaps, without the padding at the end */
    uint32_t spread;       /* ranks that hold different experts; 1 for all other groups */
};

/* All zero is the empty value. */
struct cairn_deepspeed_groups {
    struct cairn_deepspeed_parameter *parameters;
    uint32_t parameter_count;
    struct cairn_deepspeed_group *groups;
    uint32_t group_count;
    bool data_first; /* use_data_before_expert_parallelism */
};

enum { CAIRN_DEEPSPEED_KEYS_MAX = 32, CAIRN_DEEPSPEED_KEY_BYTES_MAX = 64 };

/* The distinct keys of an optimizer's state. All zero is the empty value. */
struct cairn_deepspeed_keys {
    char keys[CAIRN_DEEPSPEED_KEYS_MAX][CAIRN_DEEPSPEED_KEY_BYTES_MAX];
    uint32_t count;
};

/* The index of a key, added where it is new and `add`; UINT32_MAX where it is not there, too long,
 * or one too many. */
uint32_t cairn_deepspeed_keys_index(struct cairn_deepspeed_keys *keys, const char *key,
                                    size_t bytes, bool add);

/* A name without the prefixes of module wrappers; points into `path`. */
const char *cairn_deepspeed_canonical(const char *path);

/* Reads `param_shapes` (a list of {name: torch.Size}), without gaps. CAIRN_CORRUPT with *why
 * (static), CAIRN_NOMEM. The caller ends *out in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_groups_read(const struct cairn_pickle_node *shapes,
                                                       struct cairn_deepspeed_groups *out,
                                                       const char **why);
/* Takes a group's `param_alignment_paddings`; false where the list does not fit the group. */
bool cairn_deepspeed_groups_set_gaps(struct cairn_deepspeed_groups *groups, uint32_t group,
                                     const struct cairn_pickle_node *gaps);
void cairn_deepspeed_groups_fini(struct cairn_deepspeed_groups *groups);

/* Elements of each rank's part of what is cut evenly; the last part may have padding. */
uint64_t cairn_deepspeed_evenly(uint64_t elements, uint64_t ranks);

/* Elements of one rank's part of a group's buffer; `ranks` are those of the job. */
uint64_t cairn_deepspeed_partition(const struct cairn_deepspeed_groups *groups, uint32_t group,
                                   bool stage3, uint32_t ranks);

/* The elements [*begin, *end) of a parameter that a rank holds, of those that cut its group, and
 * where they are in the rank's buffer (ZeRO 1 and 2; in ZeRO 3 the caller adds up parts of
 * ceil(elements / ranks)). Empty: *begin = *end. */
void cairn_deepspeed_part(const struct cairn_deepspeed_parameter *parameter, bool stage3,
                          uint32_t ranks, uint32_t rank, uint64_t partition, uint64_t *begin,
                          uint64_t *end, uint64_t *at);

#endif
