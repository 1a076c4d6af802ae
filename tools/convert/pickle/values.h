/*
 * tools/convert/pickle/values.h - plain values that protocol 0 of pickle has as lines of text; for
 * the opcodes of pickle/read.c.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_VALUES_H
#define CAIRN_TOOLS_CONVERT_PICKLE_VALUES_H

#include "tools/convert/pickle/pickle.h"

enum cairn_pickle_line {
    CAIRN_PICKLE_LINE_INT,
    CAIRN_PICKLE_LINE_LONG,
    CAIRN_PICKLE_LINE_FLOAT,
    CAIRN_PICKLE_LINE_STRING,
    CAIRN_PICKLE_LINE_UNICODE
};

/* The value of a line without its newline. NULL: *why is what is wrong (static), or the arena is
 * full. */
struct cairn_pickle_node *cairn_pickle_read_line(struct cairn_pickle *pickle,
                                                 enum cairn_pickle_line kind, const uint8_t *line,
                                                 size_t line_bytes, const char **why);

#endif
