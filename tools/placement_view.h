/*
 * tools/placement_view.h - placements in an agent's answer as text.
 */
#ifndef CAIRN_TOOLS_PLACEMENT_VIEW_H
#define CAIRN_TOOLS_PLACEMENT_VIEW_H

#include "tools/tree.h"

/* Prints "micro-batches 7 | 5, layers 4,4,4 | 5,2,5" of an object with "micro_batches" and
 * "layers". */
void cairn_placement_print(const struct cairn_tree *tree, const struct cairn_tree_value *placement);

#endif
