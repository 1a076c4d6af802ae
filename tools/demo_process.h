/*
 * tools/demo_process.h - child processes of `cairn demo`, and the guard that ends what is left of
 * them.
 *
 * Children die with their parent (PR_SET_PDEATHSIG). But keepers have no parent, and a killed
 * parent removes no files: so a guard process waits for the end of the demo, then kills those of
 * our two programs that still run with a path below the demo's directory in their arguments, and
 * removes the directory if it is temporary.
 */
#ifndef CAIRN_TOOLS_DEMO_PROCESS_H
#define CAIRN_TOOLS_DEMO_PROCESS_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { DEMO_PATH_BYTES = 1024, DEMO_NODES_MAX = 32 };

struct demo_process {
    pid_t pid; /* 0: never started */
    bool running;
    int exit_code; /* of an ended one: its status, or 128 + the signal */
};

/*
 * Starts argv[0] in a process group of its own, stdin closed; stdout goes to out_path (NULL: with
 * stderr), stderr is appended to log_path. CAIRN_IO, with a message.
 */
CAIRN_MUST_CHECK cairn_err demo_process_start(struct demo_process *process, char *const argv[],
                                              const char *out_path, const char *log_path);
/* True if it has ended. Never waits. */
bool demo_process_ended(struct demo_process *process);
/* A signal to one that runs; others are left alone. */
void demo_process_signal(const struct demo_process *process, int number);
/* SIGKILL, and waits for the end. */
void demo_process_kill(struct demo_process *process);

/* Kills every process that runs one of programs[2] with an argument below `dir`; returns how many
 * there were. */
uint32_t demo_kill_below(const char *const programs[2], const char *dir);
/* Removes a directory with its contents; succeeds if it is missing. */
cairn_err demo_remove(const char *dir);

struct demo_guard {
    pid_t pid; /* 0: none */
    int fd;    /* its parent's end closes with the parent */
};

CAIRN_MUST_CHECK cairn_err demo_guard_start(struct demo_guard *guard, const char *const programs[2],
                                            const char *dir, bool remove);
/* Lets it do its work, and waits for it. */
void demo_guard_end(struct demo_guard *guard);

#endif
