/* tools/convert/megatron/format.h - the row of the format "megatron": Megatron-LM's own files. */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_FORMAT_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_megatron;

#endif
