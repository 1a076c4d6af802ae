/*
 * agent/process/session_region.h - which blocks of the node's shard belong to which trainer, and
 * the manifest of all of them.
 *
 * Invariant: the regions of registered, not stale sessions do not overlap.
 */
#ifndef CAIRN_AGENT_PROCESS_SESSION_REGION_H
#define CAIRN_AGENT_PROCESS_SESSION_REGION_H

#include "agent/core/core.h"

struct cairn_agent;
struct session;

/* All regions together. */
struct regions {
    uint64_t shard_blocks;     /* the end of the last region */
    uint32_t registered_ranks; /* sessions that have one */
    uint64_t layout_bytes_max; /* names and shapes that one manifest has room for */
    bool is_packed; /* regions lie close together: their former places left too little room */
};

/* True for the session of a rank that takes part: registered and not stale. */
bool session_is_rank(const struct session *session);

/* The first block of a rank's region in the generation that a slot holds, if it has so many blocks;
 * UINT64_MAX: it has none. */
uint64_t session_place_in_slot(const struct cairn_agent *agent, uint32_t slot, uint32_t rank,
                               uint64_t blocks);

/*
 * Gives the session a region for its registered slices. On failure text[text_bytes] gets the
 * reason, and the caller calls session_forget_region.
 */
CAIRN_MUST_CHECK cairn_err session_plan_region(struct cairn_agent *agent, struct session *session,
                                               char *text, size_t text_bytes);
void session_forget_region(struct session *session);

/* Tells the core which ranks this node has; none before all of them are registered. */
void session_tell_ranks(struct cairn_agent *agent);

/* Packs the manifest of a captured generation, for the core's SEAL. The caller frees *bytes. */
CAIRN_MUST_CHECK cairn_err session_manifest(struct cairn_agent *agent,
                                            const struct cairn_action_part *seal, uint8_t **bytes,
                                            size_t *len);

#endif
