/*
 * base/output.h - stdout and stderr of a program whose output holds names from files and peers:
 * none of them can steer the terminal.
 *
 * After cairn_output_setup every byte that is printed to stdout or stderr passes one filter:
 *   - control characters but newline and tab (C0, delete, C1) and those that change the direction
 *     of text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069) become \uXXXX, which
 *     inside a JSON string means the same character
 *   - a byte that is not UTF-8 becomes "?"
 * Our own colours and cursor movements go past it with cairn_output_steer.
 *
 * Thread: setup before others start; then as stdio. A signal handler and a child that called exec
 * write to the descriptors, which stay as they are.
 */
#ifndef CAIRN_BASE_OUTPUT_H
#define CAIRN_BASE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Filters stdout and stderr from here on. If memory is short, ends the program. */
void cairn_output_setup(void);

/* Writes a sequence for the terminal, in order with what was printed before. */
void cairn_output_steer(FILE *stream, const char *sequence);

/* True if a stream, stdout or stderr in particular, is a terminal. */
bool cairn_output_is_terminal(FILE *stream);

enum { CAIRN_OUTPUT_HELD_BYTES = 4, CAIRN_OUTPUT_GROWTH = 6 };

/* What the filter holds back: the begin of a character whose rest comes with the next bytes. */
struct cairn_output_held {
    char bytes[CAIRN_OUTPUT_HELD_BYTES];
    size_t count;
};

/* The filter. out has room for CAIRN_OUTPUT_GROWTH * (bytes_len + CAIRN_OUTPUT_HELD_BYTES); returns
 * the bytes written there. Pure. */
size_t cairn_output_filter(struct cairn_output_held *held, const char *bytes, size_t bytes_len,
                           char *out);

#endif
