/* tools/convert/engine/masters.h - parameters in float32 out of the optimizer's master weights. */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_MASTERS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_MASTERS_H

#include "tools/convert/core/checkpoint.h"

/* Makes each BF16 or F16 parameter that has a master (`fp32.<parameter>`, F32, same shape), or is
 * tied to one that has, an F32 alias of the master: cast, it would have lost what training knew.
 * The parameters' own elements are not read. *taken counts them. CAIRN_NOMEM, complained about. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_take_masters(struct cairn_checkpoint *checkpoint,
                                                         uint32_t *taken);

#endif
