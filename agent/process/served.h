/*
 * agent/process/served.h - the lock beside an agent's socket, which stays when the agent has ended,
 * and says who serves or served it.
 *
 * The file is the socket's path and ".lock": "pid P", "node I of N" and "config PATH", a line each.
 * The agent holds a lock on it as long as it lives.
 */
#ifndef CAIRN_AGENT_PROCESS_SERVED_H
#define CAIRN_AGENT_PROCESS_SERVED_H

#include "agent/process/config.h"

/*
 * Takes the lock and writes what it says. CAIRN_AGAIN where another agent has it, CAIRN_IO where
 * the file cannot be made; both are logged. The caller closes *lock_fd, with which the lock ends.
 */
CAIRN_MUST_CHECK cairn_err cairn_served_claim(const struct cairn_config *config, int *lock_fd);

struct cairn_served {
    uint32_t pid; /* 0: the file does not say */
    bool lives;   /* it holds the lock; its number alone may be another process' by now */
    uint32_t node;
    uint32_t node_count;                      /* of the job; 0: the file does not say */
    char config[CAIRN_CONFIG_PATH_BYTES_MAX]; /* empty: the file does not say */
};

/* Who serves the socket, or did before it ended. False where no agent ever has, or the file cannot
 * be read. */
bool cairn_served_look(const char *socket_path, struct cairn_served *out);

#endif
