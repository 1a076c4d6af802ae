/*
 * tools/convert/megatron_dist/arrays.h - which logical tensors share an array when a checkpoint of
 * Megatron-Core is written: layers that are all alike are stacked, as are experts, and where one of
 * them is not like the others, or the source had them apart, each has an array of its own.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_ARRAYS_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_ARRAYS_H

#include "tools/convert/megatron_dist/mdist.h"

struct cairn_mdist_member {
    uint32_t tensor; /* of the source */
    uint32_t pattern;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
};

/* Tensors that have the same name but for the numbers in it. */
struct cairn_mdist_pattern {
    struct cairn_mdist_name *name; /* owned */
    size_t first, count;           /* of its members */
    uint64_t extents[CAIRN_MDIST_STARS_MAX];
    uint32_t regular; /* bits of the stars that could be dimensions */
    uint32_t stacked; /* bits of those that are */
};

/* All zero is the empty value. */
struct cairn_mdist_arrays {
    struct cairn_mdist_member *members; /* by pattern, then by array, then in the array's order */
    size_t member_count;
    struct cairn_mdist_pattern *patterns; /* sorted by name */
    uint32_t pattern_count;
};

/* What stands before numbers that the source did not stack. */
struct cairn_mdist_apart {
    const char *const *roots;
    uint32_t count;
};

/* Sorts the tensors for which take[tensor] is set. CAIRN_NOMEM, CAIRN_INVAL (a name that cannot
 * be written; complained about). The caller ends *out with cairn_mdist_arrays_fini, also on
 * failure. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_arrays_find(const struct cairn_checkpoint *source,
                                                   const bool *take,
                                                   const struct cairn_mdist_apart *apart,
                                                   struct cairn_mdist_arrays *out);
void cairn_mdist_arrays_fini(struct cairn_mdist_arrays *arrays);

/* Whether two members have the same numbers at the stars whose bits are set. */
bool cairn_mdist_same_numbers(const struct cairn_mdist_member *a,
                              const struct cairn_mdist_member *b, uint32_t bits);

#endif
