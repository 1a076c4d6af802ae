/* tools/convert/formats.h - the table of all formats. This file knows every format; no room below
 * knows it. */
#ifndef CAIRN_TOOLS_CONVERT_FORMATS_H
#define CAIRN_TOOLS_CONVERT_FORMATS_H

#include "tools/convert/core/format.h"

/* In the order in which a place is shown to them; ended by NULL. */
extern const struct cairn_format *const cairn_formats[];

/* By name; NULL if there is none. */
const struct cairn_format *cairn_format_find(const char *name);

#endif
