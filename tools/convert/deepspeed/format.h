/* tools/convert/deepspeed/format.h - the rows of the formats "deepspeed" and
 * "deepspeed-universal". */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_FORMAT_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_deepspeed;
extern const struct cairn_format cairn_format_ds_universal;

#endif
