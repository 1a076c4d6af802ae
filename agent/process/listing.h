/*
 * agent/process/listing.h - the list of this node's agents, by which `cairn` finds them.
 *
 * An agent adds an entry when it takes the lock of its socket and removes it before it releases
 * that lock. The list is a folder "agents", mode 0700, in one of these places:
 *   $XDG_RUNTIME_DIR/cairn   the only place, if the variable names another folder than
 *                            /run/user/UID: tests and demos have a list of their own
 *   /run/cairn               for root, and for a user who owns that folder
 *   /run/user/UID/cairn
 *   /tmp/cairn-UID
 * A writer takes the first place that works; readers look in all of them.
 *
 * An entry is a file that holds the socket's path and a newline. Its name is the CRC-64 of the path
 * in 16 hex digits. Readers do not trust the list: they skip a folder that is not ours with mode
 * 0700, symbolic links, and files that are not as described; they look at no more than
 * CAIRN_LISTING_FILES_MAX names. The entry of an agent that crashed stays until an agent starts and
 * finds its lock file gone. Only the lock beside the socket tells whether an agent lives
 * (served.h).
 *
 * Each user has a list. Root can use the agents of other users, but only by naming their sockets.
 */
#ifndef CAIRN_AGENT_PROCESS_LISTING_H
#define CAIRN_AGENT_PROCESS_LISTING_H

#include "agent/process/config.h"

#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_LISTING_FILES_MAX = 4096 };

/* Adds the entry of a socket, an absolute path. Logs a warning if no place works: the agent runs
 * as well without an entry. */
void cairn_listing_add(const char *socket_path);

/* Removes the entry of a socket, if there is one. */
void cairn_listing_remove(const char *socket_path);

/*
 * Reads the list into sockets[max] and returns the number of entries, dead agents included.
 * *complete is false if some did not fit.
 */
uint32_t cairn_listing_read(char (*sockets)[CAIRN_CONFIG_SOCKET_BYTES_MAX], uint32_t max,
                            bool *complete);

#endif
