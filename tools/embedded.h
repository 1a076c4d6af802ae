/*
 * tools/embedded.h - an agent with the embedded default: one node, no parity, its files in a
 * private directory.
 */
#ifndef CAIRN_TOOLS_EMBEDDED_H
#define CAIRN_TOOLS_EMBEDDED_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CAIRN_EMBEDDED_PATH_BYTES = 512 };

struct cairn_embedded {
    const char *job;
    const char *every; /* snapshot_every_steps; NULL: the default */
    const char *state; /* state_bytes; NULL: the default */
};

/* The socket of an agent without a name: <private directory>/agent.sock. False, with a message,
 * without a private directory. */
bool cairn_embedded_socket(char *path, size_t path_bytes);

/* Whether a configuration is that of an agent that cairn_embedded_start starts for this socket. */
bool cairn_embedded_is(const char *socket, const char *config_path);

struct cairn_embedded_started {
    uint32_t agent_pid;  /* 0: another one was faster */
    uint32_t keeper_pid; /* of the process that keeps its memory; 0: unknown */
};

/*
 * Starts the agent in its own session, with a log file beside its configuration, and waits until it
 * answers. Two callers at once get one agent. CAIRN_OK: it answers, even if another caller was
 * faster. All other results print a message to stderr. Blocks for at most half a minute.
 */
CAIRN_MUST_CHECK cairn_err cairn_embedded_start(const struct cairn_embedded *embedded,
                                                const char *socket,
                                                struct cairn_embedded_started *started);

#endif
