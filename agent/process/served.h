/*
 * agent/process/served.h - the lock file beside an agent's socket, with the agent that serves it.
 *
 * The file is the socket's path and ".lock". It holds the lines "pid P", "node I of N", "job NAME"
 * and "config PATH", and stays when the agent ends. The agent holds a lock on it as long as it
 * lives, and is in the list of agents (listing.h) meanwhile.
 */
#ifndef CAIRN_AGENT_PROCESS_SERVED_H
#define CAIRN_AGENT_PROCESS_SERVED_H

#include "agent/process/config.h"

/*
 * Takes the lock, writes the file and adds the agent to the list. CAIRN_AGAIN: another agent has
 * the lock; CAIRN_IO: the file cannot be made. Both are logged. The caller ends it with
 * cairn_served_release.
 */
CAIRN_MUST_CHECK cairn_err cairn_served_claim(const struct cairn_config *config, int *lock_fd);

/* Takes the agent off the list and gives up the lock. lock_fd -1: does nothing. */
void cairn_served_release(const struct cairn_config *config, int lock_fd);

struct cairn_served {
    uint32_t pid; /* 0: the file does not say */
    bool lives;   /* it holds the lock; its number alone may be another process' by now */
    uint32_t node;
    uint32_t node_count;                      /* of the job; 0: the file does not say */
    char job[CAIRN_CONFIG_JOB_BYTES_MAX];     /* empty: the file does not say */
    char config[CAIRN_CONFIG_PATH_BYTES_MAX]; /* empty: the file does not say */
};

/* The agent that serves the socket, or did before it ended. False if there never was one, or the
 * file is unreadable. */
bool cairn_served_look(const char *socket_path, struct cairn_served *out);

#endif
