/*
 * tools/stack_view.h - the Python stacks of a job that hangs, one line per group of ranks.
 */
#ifndef CAIRN_TOOLS_STACK_VIEW_H
#define CAIRN_TOOLS_STACK_VIEW_H

#include "tools/tree.h"

#include <stddef.h>

/* Describes an item of the status' "detection.stacks": "ranks 0, 2: step (train.py:40) < main
 * (train.py:90)", the innermost frames of the first thread. Cut if it does not fit. Returns out. */
const char *cairn_stack_describe(const struct cairn_tree *tree, const struct cairn_tree_value *item,
                                 char *out, size_t out_bytes);

#endif
