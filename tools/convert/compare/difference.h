/*
 * tools/convert/compare/difference.h - which elements differ between two checkpoints of any
 * formats.
 */
#ifndef CAIRN_TOOLS_CONVERT_COMPARE_DIFFERENCE_H
#define CAIRN_TOOLS_CONVERT_COMPARE_DIFFERENCE_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/engine/whole.h"

enum cairn_difference_kind {
    CAIRN_SAME = 0,
    CAIRN_ONLY_LEFT,
    CAIRN_ONLY_RIGHT,
    CAIRN_OTHER_DTYPE,
    CAIRN_OTHER_SHAPE,
    CAIRN_OTHER_ELEMENTS,
    CAIRN_OTHER_VALUE /* of a pickle of opaque state */
};

struct cairn_difference {
    enum cairn_difference_kind kind;
    uint32_t left, right; /* tensors of the layouts; UINT32_MAX where there is none */
    uint64_t count;       /* of elements that differ, where elements were compared */
    uint64_t first;       /* the first of them, counted row-major */
    double largest;       /* the largest difference of numbers; infinite where one side is not
                           * finite */
    char *path;           /* owned: of the first value of a pickle that differs; else NULL */
};

struct cairn_difference_side {
    struct cairn_checkpoint *checkpoint;
    const struct cairn_layout *layout; /* whole: cairn_whole's */
};

struct cairn_difference_options {
    bool bits; /* -0 is not 0, and NaNs are compared bit by bit */
    uint32_t thread_count;
    uint64_t memory_limit_bytes;
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};

/*
 * Compares; the differences (kind is never CAIRN_SAME) are in the order of the left side's tensors,
 * then those that only the right side has. Pickles are compared by value. The
 * caller ends *out with cairn_differences_free. `compared` counts the tensors that were read,
 * `bytes` their bytes. Both sides' own checksums are checked. Complained about: CAIRN_NOMEM,
 * CAIRN_CORRUPT, CAIRN_INVAL (the memory limit), errors of reading.
 */
CAIRN_MUST_CHECK cairn_err cairn_difference_find(const struct cairn_difference_side sides[2],
                                                 const struct cairn_difference_options *options,
                                                 struct cairn_difference **out, size_t *count,
                                                 uint32_t *compared, uint64_t *bytes,
                                                 struct cairn_complaint *complaint);
/* NULL is allowed */
void cairn_differences_free(struct cairn_difference *differences, size_t count);

/* ---- pickles compared by value: difference_opaque.c ---- */

/* Removes pickles that are equal in value from differences[*count]; other pickles become
 * CAIRN_OTHER_VALUE with the path to the first difference. Also removes, with a warning at that
 * side's checkpoint, how one side's container nests tensors, and notes in headers that one side
 * alone has. Complained about: CAIRN_NOMEM, errors of reading. */
CAIRN_MUST_CHECK cairn_err cairn_difference_opaque(const struct cairn_difference_side sides[2],
                                                   bool bits, struct cairn_difference *differences,
                                                   size_t *count);

#endif
