/* tools/convert/dcp/format.h - the row of the format "dcp": torch.distributed.checkpoint. */
#ifndef CAIRN_TOOLS_CONVERT_DCP_FORMAT_H
#define CAIRN_TOOLS_CONVERT_DCP_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_dcp;

#endif
