/* tools/convert/engine/select.h - which tensors of a checkpoint are converted, and whose elements
 * they get. */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_SELECT_H
#define CAIRN_TOOLS_CONVERT_ENGINE_SELECT_H

#include "tools/convert/core/checkpoint.h"

/* Removes tensors whose name fits a pattern (fnmatch; '*' matches dots and slashes); *dropped
 * counts them. An alias that loses its original becomes one itself. CAIRN_INVAL if a pattern fits
 * nothing; CAIRN_NOMEM. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_drop(struct cairn_checkpoint *checkpoint,
                                                 const char *const *patterns, size_t pattern_count,
                                                 uint32_t *dropped);

/* Makes each BF16 or F16 parameter that has a master (`fp32.<parameter>`, F32, same shape), or is
 * tied to one that has, an F32 alias of the master: cast, it would have lost what training knew.
 * The parameters' own elements are not read. *taken counts them. CAIRN_NOMEM, complained about. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_take_masters(struct cairn_checkpoint *checkpoint,
                                                         uint32_t *taken);

#endif
