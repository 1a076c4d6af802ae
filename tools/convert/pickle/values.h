/*
 * tools/convert/pickle/values.h - the opcodes of pickle that make plain values and containers,
 * in protocol 0 also as lines of text; for the table of pickle/read.c alone. Each takes its
 * operands from vm->kind and vm->count.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_VALUES_H
#define CAIRN_TOOLS_CONVERT_PICKLE_VALUES_H

#include "tools/convert/pickle/machine.h"

void cairn_pickle_op_none(struct cairn_pickle_machine *vm);
/* vm->count is its value. */
void cairn_pickle_op_bool(struct cairn_pickle_machine *vm);
/* BININT and its like, of vm->count bytes. */
void cairn_pickle_op_binint(struct cairn_pickle_machine *vm);
/* LONG1, LONG4: a length of vm->count bytes. */
void cairn_pickle_op_binlong(struct cairn_pickle_machine *vm);
void cairn_pickle_op_binfloat(struct cairn_pickle_machine *vm);
/* Strings and bytes of vm->kind, after a length of vm->count bytes. */
void cairn_pickle_op_bytes(struct cairn_pickle_machine *vm);
/* A sequence of vm->kind of the last vm->count values. */
void cairn_pickle_op_sequence(struct cairn_pickle_machine *vm);
/* A sequence of vm->kind of what is above the mark. */
void cairn_pickle_op_marked_sequence(struct cairn_pickle_machine *vm);
/* Onto a container of vm->kind. */
void cairn_pickle_op_append(struct cairn_pickle_machine *vm);
void cairn_pickle_op_appends(struct cairn_pickle_machine *vm);
void cairn_pickle_op_setitem(struct cairn_pickle_machine *vm);
void cairn_pickle_op_setitems(struct cairn_pickle_machine *vm);
/* With vm->kind DICT: of what is above the mark; else empty. */
void cairn_pickle_op_dict(struct cairn_pickle_machine *vm);

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
