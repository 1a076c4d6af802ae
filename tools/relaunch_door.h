/*
 * tools/relaunch_door.h - a port at which a launcher's host answers while the launcher lives, and a
 * free port for its command.
 *
 * The kernel answers at a door even while the launcher is busy. So a caller without an answer, or
 * refused, knows that the launcher or its host is dead. A launcher with a dead agent tells the
 * others at their doors that its command ended with success: the round and its node, 8 bytes each.
 * Strangers can reach a door too, so a round's name is a secret: it follows from a random number
 * that only agents exchange. Unknown rounds are ignored.
 */
#ifndef CAIRN_TOOLS_RELAUNCH_DOOR_H
#define CAIRN_TOOLS_RELAUNCH_DOOR_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_relaunch_door {
    int listener; /* -1: none */
    int reserved; /* holds the command's port; -1: none */
    uint16_t port;
};

/* Opens a door on a free port of all addresses. CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_relaunch_door_open(struct cairn_relaunch_door *out);
void cairn_relaunch_door_close(struct cairn_relaunch_door *door); /* -1, -1 is allowed */

/* Takes callers out of the queue, which would be full after some thousands. Calls `heard` for each
 * message, with its round and node. */
void cairn_relaunch_door_clear(struct cairn_relaunch_door *door,
                               void (*heard)(void *context, uint64_t round, uint64_t node),
                               void *context);

/* Holds another free port, so that no launcher of this host gets it; 0 without one. */
uint16_t cairn_relaunch_door_reserve(struct cairn_relaunch_door *door);
/* The port is for the command now. */
void cairn_relaunch_door_release(struct cairn_relaunch_door *door);

/* Whether a host answers at a door, within a second. */
bool cairn_relaunch_door_answers(const char *host, uint16_t port);

/* The same, and tells the launcher there that the command of a round ended with success on `node`.
 * A message may be lost. */
bool cairn_relaunch_door_tell(const char *host, uint16_t port, uint64_t round, uint64_t node);

#endif
