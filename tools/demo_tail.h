/*
 * tools/demo_tail.h - whole lines of files that children append to, and fields of such lines.
 *
 * The lines are those of our own programs: JSON objects of one line (the trainer's events) and
 * "key=value" (agents' logs). A field is found by its key; keys are unique in a line.
 */
#ifndef CAIRN_TOOLS_DEMO_TAIL_H
#define CAIRN_TOOLS_DEMO_TAIL_H

#include "tools/demo_process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEMO_LINE_BYTES = 16384 };

/* All zero but for `path` and fd = -1: nothing read yet. */
struct demo_tail {
    char path[DEMO_PATH_BYTES];
    int fd;
    size_t used;
    size_t taken; /* of the lines handed out */
    char bytes[DEMO_LINE_BYTES];
};

void demo_tail_init(struct demo_tail *tail, const char *path);
void demo_tail_fini(struct demo_tail *tail);
/* The next whole line without its newline, valid until the next call; NULL: none yet. A line that
 * is too long is cut. */
const char *demo_tail_line(struct demo_tail *tail);

/* "key": value in JSON. */
bool demo_json_u64(const char *text, const char *key, uint64_t *out);
bool demo_json_double(const char *text, const char *key, double *out);
/* A string, with ASCII escapes decoded; cut at out_bytes - 1. */
bool demo_json_text(const char *text, const char *key, char *out, size_t out_bytes);
/* The strings of an array, each followed by a newline. */
bool demo_json_lines(const char *text, const char *key, char *out, size_t out_bytes);
/* The whole numbers of an array, also of nested arrays, up to numbers_max; returns their count,
 * numbers_max + 1 if there are more, or 0 if it is not such an array. */
uint32_t demo_json_numbers(const char *text, const char *key, uint32_t *numbers,
                           uint32_t numbers_max);
/* key=123 after a space. */
bool demo_log_u64(const char *line, const char *key, uint64_t *out);

/* A whole file as text; NULL if unreadable. Freed by the caller. */
char *demo_file_text(const char *path);

#endif
