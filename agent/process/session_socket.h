/*
 * agent/process/session_socket.h - the Unix socket of the node: locks it, listens, accepts
 * sessions.
 *
 * Invariants:
 *  1. One agent at most serves a socket: it holds the lock beside it (served.h).
 *  2. The socket is 0600, and only processes of the agent's user or of root are accepted.
 */
#ifndef CAIRN_AGENT_PROCESS_SESSION_SOCKET_H
#define CAIRN_AGENT_PROCESS_SESSION_SOCKET_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_agent;

struct session_socket {
    int lock_fd;   /* -1: not locked */
    int listen_fd; /* -1: not listening */
    bool paused;   /* out of descriptors: accepts again from the next tick on */
    uint64_t next_serial;
};

/* Makes this the only agent of its socket. CAIRN_AGAIN: there is another; CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err sessions_lock(struct cairn_agent *agent);
CAIRN_MUST_CHECK cairn_err sessions_open(struct cairn_agent *agent);

/* Ends all sessions and the socket; the lock stays until sessions_unlock. */
void sessions_close(struct cairn_agent *agent);
void sessions_unlock(struct cairn_agent *agent);

/* Ends sessions that are overdue, and sends grants that waited. */
void sessions_tick(struct cairn_agent *agent);

#endif
