/* tools/convert/engine/drop.h - leaving tensors of a checkpoint out, because the user said so. */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_DROP_H
#define CAIRN_TOOLS_CONVERT_ENGINE_DROP_H

#include "tools/convert/core/checkpoint.h"

/* Removes tensors whose name fits a pattern (fnmatch; '*' matches dots and slashes); *dropped
 * counts them. An alias that loses its original becomes one itself. CAIRN_INVAL if a pattern fits
 * nothing; CAIRN_NOMEM. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_drop(struct cairn_checkpoint *checkpoint,
                                                 const char *const *patterns, size_t pattern_count,
                                                 uint32_t *dropped);

#endif
