/* tools/convert/pickle/text.h - the values that protocol 0 of pickle writes as lines of text. */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_TEXT_H
#define CAIRN_TOOLS_CONVERT_PICKLE_TEXT_H

#include "tools/convert/pickle/machine.h"

enum cairn_pickle_line {
    CAIRN_PICKLE_LINE_INT,
    CAIRN_PICKLE_LINE_LONG,
    CAIRN_PICKLE_LINE_FLOAT,
    CAIRN_PICKLE_LINE_STRING,
    CAIRN_PICKLE_LINE_UNICODE
};

/* The value of a line that holds what vm->count says. */
void cairn_pickle_op_line(struct cairn_pickle_machine *vm);

#endif
