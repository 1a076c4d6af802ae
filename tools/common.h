/*
 * tools/common.h - shared by the verbs: exit codes of errors, one style of message, sizes and times
 * for people, colour and progress on terminals.
 */
#ifndef CAIRN_TOOLS_COMMON_H
#define CAIRN_TOOLS_COMMON_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"

/* The contract's exit code of an error. */
int cairn_exit_code(cairn_err err);

/* One message on stderr: what happened, why we think so, what to do. `why` and `fix` may be NULL.
 */
void cairn_tool_error(const char *verb, const char *what, const char *why, const char *fix);

/* Begins an answer in JSON: an object with "schema": 1. */
void cairn_json_begin(struct cairn_json_writer *writer);

/* Ends a writer, and prints its text as a line. cairn_json_finish complains and gives the exit
 * code. */
CAIRN_MUST_CHECK cairn_err cairn_json_print(struct cairn_json_writer *writer);
int cairn_json_finish(const char *verb, struct cairn_json_writer *writer);

/* The path of this program, for starting it again; false, with a message, if it is unknown. */
bool cairn_own_path(char *path, size_t path_bytes);

enum { CAIRN_PLACES_MAX = 4, CAIRN_PLACED_PATH_BYTES = 4096 + 64 };

/* The first of these folders, relative to this program's and ended by NULL, that has a file of this
 * name. */
bool cairn_find_beside(const char *const places[CAIRN_PLACES_MAX], const char *name,
                       char path[CAIRN_PLACED_PATH_BYTES]);

/* A library of ours: beside this program, or in the tree's or the installation's lib folder. */
bool cairn_find_library(const char *name, char path[CAIRN_PLACED_PATH_BYTES]);

/* An absolute path, resolved against the working directory (links are kept); false if it does not
 * fit or is empty. */
bool cairn_absolute_path(const char *path, char *out, size_t out_bytes);

/* A port of 127.0.0.1 that is free now, 0 without one. Another process may take it first. */
uint16_t cairn_free_port(void);

/* "-o table" (or NULL) and "-o json"; else false. */
bool cairn_output_parse(const char *text, bool *json);

/* "E:S" as `cairn snapshots` prints it; else false. The epoch is the number shown to people. */
bool cairn_generation_parse(const char *text, struct cairn_generation_id *out);

/* "90s", "30m", "24h" or "7d", at most a year; else false. */
bool cairn_duration_parse(const char *text, uint64_t *out_ns);

/* "850 ns", "12.5 us", "3.20 ms", "4.1 s", "2 min 5 s", "3 h 4 min", "2 d 3 h". Returns out. */
const char *cairn_show_duration(uint64_t duration_ns, char out[CAIRN_SHOWN_BYTES]);

/* True where colour may be used on a stream: a terminal, NO_COLOR not set, TERM not "dumb". */
bool cairn_colour(FILE *stream);
/* A text in a colour ("1;31" bold red) if allowed, else plain. */
void cairn_print_coloured(FILE *stream, const char *colour, const char *text);

/*
 * Progress on stderr: on a terminal one line with bar, share, rate and time left, redrawn at most
 * ten times a second; elsewhere one line per 10 %. total = 0: unknown, then only the elapsed time
 * is shown.
 */
struct cairn_progress {
    const char *what; /* borrowed */
    uint64_t total_bytes;
    uint64_t started_ns;
    uint64_t drawn_ns;
    uint32_t tenths; /* lines printed so far */
    bool terminal;
    bool drawn;
};
void cairn_progress_start(struct cairn_progress *progress, const char *what, uint64_t total_bytes,
                          uint64_t now_ns);
void cairn_progress_show(struct cairn_progress *progress, uint64_t done_bytes, uint64_t now_ns);
/* Clears or ends the line. */
void cairn_progress_stop(struct cairn_progress *progress);

#endif
