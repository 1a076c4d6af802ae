/*
 * agent/process/fleet.h - operators' changes to the configured nodes: nodes that another machine
 * replaces, under its own address, and nodes that are removed.
 *
 * The records of the epochs carry these changes, opaque to the core. Every agent applies them to
 * its configuration when it starts and at each activation, so nobody edits a file. A node keeps its
 * number. An agent whose own node was replaced or removed stops.
 *
 * Packed (little-endian): u32 version, u32 count, per changed node u32 node, u8 removed, the
 * address as a string ("": the configured one).
 */
#ifndef CAIRN_AGENT_PROCESS_FLEET_H
#define CAIRN_AGENT_PROCESS_FLEET_H

#include "agent/process/config.h"

struct cairn_agent;

struct cairn_fleet_change {
    uint32_t node;
    bool removed;
    const char *address; /* NULL: it keeps its address */
};

/*
 * Packs all changes of the configuration and, unless it is NULL, one more. The caller frees *bytes.
 * CAIRN_INVAL: no such node, or an address too long; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_fleet_pack(const struct cairn_config *config,
                                            const struct cairn_fleet_change *change,
                                            uint8_t **bytes, size_t *len);

/* A node's address has changed, or it was removed. */
typedef void cairn_fleet_changed_fn(void *context, uint32_t node);

/*
 * Applies packed changes to the configuration, and calls `changed` (NULL is allowed) for each node
 * that differs from before. Nodes that are not configured are skipped; no bytes change nothing.
 * CAIRN_CORRUPT, CAIRN_VERSION: nothing is changed.
 */
CAIRN_MUST_CHECK cairn_err cairn_fleet_apply(struct cairn_config *config, const uint8_t *bytes,
                                             size_t len, cairn_fleet_changed_fn *changed,
                                             void *context);

/* Applies the fleet of the active epoch: tells the transport where nodes are, and stops this agent
 * if it is not in the fleet any more. */
void fleet_activated(struct cairn_agent *agent);

#endif
