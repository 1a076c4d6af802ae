/*
 * agent/service/spill_pin.h - pins of generations, and small functions that all of spilling uses.
 *
 * Invariant: the core keeps a generation while at least one of its pins is left. A pin with a lease
 * ends when the lease is not renewed.
 */
#ifndef CAIRN_AGENT_SERVICE_SPILL_PIN_H
#define CAIRN_AGENT_SERVICE_SPILL_PIN_H

#include "agent/service/spill_state.h"

/* A number that no other spill or export of the job has. */
uint64_t spill_request_next(struct cairn_agent *agent);

void spill_send(struct cairn_agent *agent, uint32_t to, enum spill_row row, uint64_t request,
                struct cairn_generation_id generation, cairn_err err, const char *text);

/* This generation is whole on durable storage. */
void spill_learn(struct cairn_agent *agent, struct cairn_generation_id generation);

/* A generation was marked as bad on durable storage, where `left` is the newest one now (step 0:
 * none). Operators read `text` until a spill succeeds. */
void spill_forget_everywhere(struct cairn_agent *agent, struct cairn_generation_id bad,
                             struct cairn_generation_id left, const char *text);
/* A SPILL_BAD arrived. */
void spill_bad_told(struct cairn_agent *agent, const struct cairn_service_message *message);

/* True if a part of the generation is complete here. */
bool spill_is_complete(const struct cairn_agent *agent, struct cairn_generation_id generation);

/*
 * Keeps a generation that is complete here, or renews the lease of the same request. lease_ns 0:
 * until spill_unpin. CAIRN_NOT_FOUND: not complete here; CAIRN_FULL: too many readers.
 */
CAIRN_MUST_CHECK cairn_err spill_pin(struct cairn_agent *agent, uint64_t request,
                                     struct cairn_generation_id generation, uint64_t lease_ns);
void spill_unpin(struct cairn_agent *agent, uint64_t request);

/*
 * How long a spill of this generation may make no progress: SPILL_HURRY_NS if every own slot is in
 * use, one of them for this generation alone.
 */
uint64_t spill_patience_ns(const struct cairn_agent *agent, struct cairn_generation_id generation);

/* A spill made no progress since then, or does again. If this agent's disk has not answered, the
 * disk is to blame; else a member's, and that member knows. */
void spill_stuck(struct cairn_agent *agent, uint64_t since_ns);
void spill_unstuck(struct cairn_agent *agent);
/* True while work that was given up is still with the disk thread. */
bool spill_disk_is_stuck(const struct cairn_agent *agent);

/* A SPILL_PIN arrived. */
void spill_pin_asked(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Ends the leases that are over. */
void spill_pins_tick(struct cairn_agent *agent);

#endif
