/*
 * agent/process/poison.h - generations that trainers of this node found to be worse than what the
 * job holds: what was wrong, and the effect of `on_poison`.
 *
 * A generation needs every rank's part, so one rank that withholds it keeps all nodes from
 * committing it. The poisoned generations of the run since the last good one are remembered: the
 * first tells most about the cause. The catalog keeps them, so that an agent that starts again
 * still names them.
 */
#ifndef CAIRN_AGENT_PROCESS_POISON_H
#define CAIRN_AGENT_PROCESS_POISON_H

#include "client/session.h"

struct cairn_agent;

struct poison {
    struct cairn_session_poison first; /* that was found; generation.step 0: none yet */
    uint32_t rank;                     /* that found it */
    struct cairn_generation_id last;
    bool is_kept; /* the last one, all the same */
};

/* Loads the catalog's records. Logs and forgets an unreadable one. */
void poison_open(struct cairn_agent *agent);

/*
 * Notes, stores and logs what a rank has found. CAIRN_OK: the generation is kept all the same.
 * CAIRN_AGAIN: it is given up. CAIRN_CORRUPT: it is given up, and the trainer is asked to stop.
 */
CAIRN_MUST_CHECK cairn_err poison_take(struct cairn_agent *agent, uint32_t rank,
                                       const struct cairn_session_poison *found);

#endif
