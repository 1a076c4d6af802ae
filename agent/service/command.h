/*
 * agent/service/command.h - the operator's command of `enforce_command` in the configuration:
 * checked, and run, as a process.
 *
 * It gets a document on its standard input, and settings in its environment. Its standard output
 * and error are read to the end and kept up to a bound. It has a process group of its own, which is
 * killed when its time is over or the agent stops; it has no other descriptor of the agent, no
 * blocked or ignored signals, and no shell in between.
 */
#ifndef CAIRN_AGENT_SERVICE_COMMAND_H
#define CAIRN_AGENT_SERVICE_COMMAND_H

#include "agent/process/config.h"
#include "replan/live/ledger.h"

#include <stdatomic.h>

enum {
    CAIRN_COMMAND_OUTPUT_BYTES = 16 << 10,
    CAIRN_COMMAND_PIECE_BYTES = 900 /* fits a line of the log with its prefix */
};

struct cairn_command {
    const struct cairn_config_command *what;
    const char *const *settings; /* "NAME=value", ended by NULL; for names that this process has too
                                  * these hold */
    const char *input;           /* [input_bytes] */
    size_t input_bytes;
    uint64_t limit_ns;
    const atomic_bool *is_closing; /* when it becomes true, the command is killed */

    enum cairn_enforcement_state end; /* UNKNOWN if it was killed for is_closing, or cannot be
                                       * waited for */
    uint32_t value;
    bool is_cut; /* there was more than `output` holds */
    size_t output_bytes;
    char output[CAIRN_COMMAND_OUTPUT_BYTES + 1]; /* ended by NUL */
};

/* A line of the output, or a part of one that is longer than CAIRN_COMMAND_PIECE_BYTES. */
struct cairn_command_piece {
    const char *text; /* [len], in the output */
    size_t len;
    bool is_continued;  /* more of its line comes with the next piece */
    bool is_continuing; /* the one before had the begin of its line */
};

/* CAIRN_CONFIG with the text in error[error_bytes] if the configuration names a program that this
 * process may not run. CAIRN_OK without a command. Blocks on the disk. */
CAIRN_MUST_CHECK cairn_err cairn_command_check(const struct cairn_config *config, char *error,
                                               size_t error_bytes);

/* Runs it to its end, and puts the outcome into the struct. Blocks for limit_ns and five seconds at
 * most. Thread: a worker. */
void cairn_command_run(struct cairn_command *command);

/* The next piece of a command's output, from *at on, which is 0 first; skips empty lines. False: no
 * more. */
bool cairn_command_next_piece(const struct cairn_command *command, size_t *at,
                              struct cairn_command_piece *out);

#endif
