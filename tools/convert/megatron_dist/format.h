/* tools/convert/megatron_dist/format.h - the row of the format "megatron-dist": Megatron-Core's
 * distributed checkpoints. */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_FORMAT_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_megatron_dist;

#endif
