/*
 * tools/convert/compare/difference_opaque.h - opaque state that differs in bytes and says the same:
 * pickles compared by what they say.
 */
#ifndef CAIRN_TOOLS_CONVERT_COMPARE_DIFFERENCE_OPAQUE_H
#define CAIRN_TOOLS_CONVERT_COMPARE_DIFFERENCE_OPAQUE_H

#include "tools/convert/compare/difference.h"

/* Removes pickles that are equal in value from differences[*count]; other pickles become
 * CAIRN_OTHER_VALUE with the path to the first difference. Also removes, with a warning at that
 * side's checkpoint, how one side's container nests tensors, and notes in headers that one side
 * alone has. Complained about: CAIRN_NOMEM, errors of reading. */
CAIRN_MUST_CHECK cairn_err cairn_difference_opaque(const struct cairn_difference_side sides[2],
                                                   bool bits, struct cairn_difference *differences,
                                                   size_t *count);

#endif
