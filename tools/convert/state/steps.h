/*
 * tools/convert/state/steps.h - how many steps an optimizer has made, by the scalars that it keeps
 * for its parameters.
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_STEPS_H
#define CAIRN_TOOLS_CONVERT_STATE_STEPS_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"

/* The count that a tensor of one element is (a float32 or an int64; an alias is what it is of);
 * false where it cannot be read, or is not a count. */
bool cairn_steps_load(const struct cairn_checkpoint *checkpoint, uint32_t tensor, uint64_t *count);

/* The count that a plain number is, of whole steps; false for what is none. NULL is allowed. */
bool cairn_steps_read(const struct cairn_pickle_node *node, uint64_t *count);

/* The count that all of step.<parameter> are, and all that are plain numbers in the optimizer's
 * state (opaque then); *known false where there are none. CAIRN_INVAL where they differ,
 * CAIRN_CORRUPT where one cannot be read or is not a count; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_steps_common(const struct cairn_checkpoint *checkpoint,
                                              bool *known, uint64_t *count);

#endif
