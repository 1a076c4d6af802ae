/*
 * client/placement.h - whether this rank computes by other shares: the rank's state machine.
 *
 *   RUN(n) --offer p--> READY(p) --all votes are p--> RUN(p)
 *                          |  ^
 *     newer offer, detached|  |offer
 *                          v  |
 *                        RUN(n)
 *
 * A vote is a name of whole shares: number and every part of them. So ranks agree on one value or
 * on none. What the agents say decides whether a change comes, never what it is: a late, lost or
 * differing offer only makes the votes differ, and then nothing changes.
 *
 * Invariants:
 *  1. The parts of what is offered are as many as now, each at least 1, with the same sum.
 *  2. Numbers grow.
 *  3. Only a vote that was given can be taken: an offer that comes between the two is not.
 *
 * Pure: no clock, no I/O, no threads, no allocation.
 */
#ifndef CAIRN_CLIENT_PLACEMENT_H
#define CAIRN_CLIENT_PLACEMENT_H

#include "client/session.h"

struct client_placement {
    struct cairn_session_shares now;   /* count 0: the trainer has not asked yet */
    struct cairn_session_shares offer; /* where is_ready */
    bool is_ready;
    uint64_t vote; /* the last one, for `voted`; 0: none */
    struct cairn_session_shares voted;
};

/* The name of shares, never 0. */
uint64_t client_placement_name(const struct cairn_session_shares *shares);

/* The trainer computes by these shares. True if it did not by then. */
bool client_placement_run(struct client_placement *placement,
                          const struct cairn_session_shares *shares);

/* Takes an offer; false if it cannot be one (invariants 1 and 2), or nobody asked. */
bool client_placement_offer(struct client_placement *placement,
                            const struct cairn_session_shares *offer);

/* There is no agent any more: this rank votes for what it runs. */
void client_placement_detach(struct client_placement *placement);

uint64_t client_placement_vote(struct client_placement *placement);

/* All ranks' votes joined. True: the shares in `now` are new. */
bool client_placement_decide(struct client_placement *placement, uint64_t agreed);

#endif
