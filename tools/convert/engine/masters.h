/* tools/convert/engine/masters.h - parameters in float32 out of the optimizer's master weights. */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_MASTERS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_MASTERS_H

#include "tools/convert/core/checkpoint.h"

/*
 * Every parameter in BF16 or F16 that has a master (`fp32.<parameter>`, F32, of the same shape), or
 * is tied to one that has, becomes an alias of the master, in F32: cast, it would have lost what
 * training knew. *taken says how many. What the parameters' own elements were is not read then.
 * CAIRN_NOMEM, complained about.
 */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_take_masters(struct cairn_checkpoint *checkpoint,
                                                         uint32_t *taken);

#endif
