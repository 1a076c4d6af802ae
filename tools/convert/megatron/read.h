/* tools/convert/megatron/read.h - reads a Megatron-LM checkpoint, and which of its ranks have
 * files. */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_READ_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_READ_H

#include "tools/convert/core/checkpoint.h"

/* As `read` of struct cairn_format. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_read(struct cairn_checkpoint *checkpoint);

/* Whether any of the first `ranks` ranks of a stage is both of them; all sizes at least 1. */
bool cairn_megatron_is_file(const struct cairn_parallelism *sizes, uint32_t tp, uint32_t ep,
                            uint32_t ranks);

#endif
