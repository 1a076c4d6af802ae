/*
 * tools/convert/pickle/compare.h - whether two pickles say the same, however their bytes are: what
 * a memo shares, the protocol, and the order of a dict's keys and of a set do not count. An
 * OrderedDict's order is.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_COMPARE_H
#define CAIRN_TOOLS_CONVERT_PICKLE_COMPARE_H

#include "tools/convert/pickle/pickle.h"

/* Compares two trees; `tree` is the left one's arena. Without `bits`, -0 is 0 and NaNs are equal.
 * If they differ, `path` (ended by NUL, cut to fit) leads to the first difference:
 * "param_groups[0].lr". Trees that share so much that comparing would not end count as different,
 * as do dicts with a duplicate key. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_compare(const struct cairn_pickle *tree,
                                                const struct cairn_pickle_node *left,
                                                const struct cairn_pickle_node *right, bool bits,
                                                char *path, size_t path_bytes, bool *same);

#endif
