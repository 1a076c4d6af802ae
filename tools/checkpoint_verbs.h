/*
 * tools/checkpoint_verbs.h - shared by the verbs on checkpoints: words among options, threads and
 * memory, one message for an error, JSON printed as it grows.
 */
#ifndef CAIRN_TOOLS_CHECKPOINT_VERBS_H
#define CAIRN_TOOLS_CHECKPOINT_VERBS_H

#include "base/json.h"
#include "tools/common.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/usage.h"

enum { CAIRN_MEMORY_LIMIT_MIN_BYTES = 64 << 20 };

/*
 * Parses argv with exactly `count` words, which may come before, between and after the options.
 * `what` names them ("SRC and DST"). False: the command ends with *exit_code, and the error is
 * printed.
 */
bool cairn_words_parse(const struct cairn_usage *usage, int argc, char **argv, const char **words,
                       int count, const char *what, int *exit_code);

/* "--threads" (NULL: the machine's cores) and "--memory-limit" (NULL: 1 GiB); false, with a
 * message, if they are wrong. */
bool cairn_resources_parse(const struct cairn_usage *usage, const char *threads, const char *memory,
                           uint32_t *thread_count, uint64_t *memory_limit_bytes, int *exit_code);

/* Silences the log: errors of checkpoints are complained about (base/complaint.h). */
void cairn_checkpoint_log_setup(void);

/* Prints an error and returns its exit code: 65 for the input, 64 for the request, 74 for disks. */
int cairn_checkpoint_error(const char *verb, cairn_err err,
                           const struct cairn_complaint *complaint);

/* Warnings of a checkpoint, on stderr. */
void cairn_checkpoint_print_warnings(const char *verb, const struct cairn_checkpoint *checkpoint);

/* "[4096, 4096]", "[]" for a scalar. Returns out. */
const char *cairn_show_shape(const struct cairn_tensor *tensor, char *out, size_t out_bytes);

/* "param", "optimizer", "buffer", "opaque". */
const char *cairn_kind_name(enum cairn_kind kind);

/* Prints the writer's text so far and forgets it, so that long answers need little memory. */
void cairn_json_print_part(struct cairn_json_writer *writer);
/* Ends a writer, prints the rest and a newline. False, with a message, if stdout or memory
 * failed. */
bool cairn_json_print_rest(const char *verb, struct cairn_json_writer *writer);

/* A progress function for executions: `context` is a struct cairn_progress with `what` set. */
void cairn_show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes);

#endif
