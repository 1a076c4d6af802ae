/* tools/convert/universal/format.h - the row of the format "universal": Cairn's own. */
#ifndef CAIRN_TOOLS_CONVERT_UNIVERSAL_FORMAT_H
#define CAIRN_TOOLS_CONVERT_UNIVERSAL_FORMAT_H

#include "tools/convert/core/format.h"

extern const struct cairn_format cairn_format_universal;

#endif
