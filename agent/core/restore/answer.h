/*
 * agent/core/restore/answer.h - how an agent answers coordinators: ASK, INVENTORY, and the pin.
 *
 * A pin keeps one generation and keeps this agent from opening new parts, so that what a
 * coordinator saw stays true while it rebuilds. It only saves work: if a pin ends too early, the
 * coordinator's claim is refused (R9) and nothing is lost. So there is one pin, and the newest
 * ASK(VERIFY) of any coordinator has it. It ends with RELEASE, the coordinator's session, or an
 * activation. Every coordinator that asked gets its answer, with or without the pin.
 *
 * LIST is answered at once and never touches the pin.
 */
#ifndef CAIRN_AGENT_CORE_RESTORE_ANSWER_H
#define CAIRN_AGENT_CORE_RESTORE_ANSWER_H

#include "agent/core/restore/inventory.h"
#include "agent/core/epoch/peers.h"

/* An agent that coordinates, and the INVENTORY that it has not got yet: parts are being compared
 * for it. */
struct asker {
    uint64_t attempt;                      /* that the INVENTORY answers; 0: none is owed */
    struct cairn_generation_id generation; /* step 0: all parts */
};

struct answering {
    uint64_t attempt; /* that has the pin; 0: none */
    uint32_t coordinator;
    struct asker *askers; /* [agent_count] */
};

CAIRN_MUST_CHECK cairn_err answer_init(struct answering *answering, uint32_t agent_count);
void answer_fini(struct answering *answering);
/* Takes ASK. */
void answer_ask(struct env *env, struct answering *answering, const struct inventory_self *self,
                const struct cairn_message *message);
/* Sends each INVENTORY that is owed and for which everything is compared. */
void answer_progress(struct env *env, struct answering *answering,
                     const struct inventory_self *self);
/* The session with a coordinator ends, or it sends RELEASE. */
void answer_end(struct env *env, struct answering *answering, uint32_t coordinator);
/* Ends the pin: an epoch is active. */
void answer_unpin(struct env *env, struct answering *answering);
/* True if that coordinator's round holds the pin: its RELEASE may overtake its REBUILD, and
 * then the plan is void. */
bool answer_pins_for(const struct answering *answering, uint32_t coordinator, uint64_t attempt);

#endif
