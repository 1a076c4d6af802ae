/*
 * tools/run_command.h - the command of `cairn run` as a process: it gets our signals, and is ended
 * in order on request.
 */
#ifndef CAIRN_TOOLS_RUN_COMMAND_H
#define CAIRN_TOOLS_RUN_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_COMMAND_CANNOT_START = 126, /* exit codes of a shell, of a command that did not run */
    CAIRN_COMMAND_NOT_FOUND = 127
};

/* How the command gets its protection. */
struct cairn_run_attachment {
    const char *socket_path;
    uint64_t attached_before; /* UINT64_MAX: unknown */
    bool has_binding;         /* Python finds our hooks */
    const char *named;        /* the socket that the user gave; NULL: none */
    uint64_t grace_ns;        /* to end in after SIGTERM; 0: SIGTERM is passed on at once */
    const char *relaunch;     /* as the user gave it; NULL: the command is not relaunched */
    char *const *command;     /* as it was given, to tell how to go on */
};

/* Who looks after the command while it runs, and may end it. */
struct cairn_run_watch {
    uint32_t period_ms;             /* between two looks */
    bool (*is_over)(void *context); /* the command must end now */
    void *context;
    uint64_t grace_ns; /* between SIGTERM and SIGKILL */
};

/* How the command has ended. */
struct cairn_run_end {
    int exit_code;      /* its own, or 128 + the signal that ended it */
    bool was_ended;     /* is_over has returned true */
    bool was_signalled; /* we were to end, and handed that on */
    bool preempted;     /* within grace_ns of the attachment */
    bool reported;      /* that no process has attached */
};

/*
 * Runs the command until it has ended. `attachment` NULL: it runs without an agent. `watch` NULL:
 * only signals end it. With a watch nothing that the command has started outlives it: we adopt its
 * orphans, and kill them. False, with a message: its end is unknown, or no process can be started.
 */
bool cairn_run_command(char **command, const struct cairn_run_attachment *attachment,
                       const struct cairn_run_watch *watch, struct cairn_run_end *out);

/* At the end of the last command: reports that nothing has attached, or what was kept. */
void cairn_run_say_end(const struct cairn_run_attachment *attachment,
                       const struct cairn_run_end *end);

#endif
