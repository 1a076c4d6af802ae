/*
 * client/placement.h - whether this rank computes by another placement: the rank's state machine.
 *
 * A placement is how many micro-batches each replica computes and, if the trainer can move them,
 * how many layers each stage has.
 *
 *   RUN(n) --offer p--> READY(p) --all vote p--> RUN(p)       layers stay where they are
 *      ^                   |
 *      |                   +---------all vote p--> ENTERED(p) --fill ends--> FILLED(p, good or not)
 *      |                                                                      |
 *      +---- not all vote p: n goes on ---------------------------------------+
 *            all vote p, as only good ranks do: RUN(p) <----------------------+
 *
 * A newer offer replaces one in READY; without an agent, or in another epoch, READY is RUN again. A
 * vote names a whole placement: number, shares and layers. So ranks agree on one value or on none.
 * Agents decide whether a change comes, never what it is: a late, lost or differing offer only
 * makes the votes differ, and then nothing changes.
 *
 * Invariants:
 *  1. The shares of an offer are as many as now, each at least 1, with the same sum; so are the
 *     layers of each replica. An offer without layers leaves them where they are.
 *  2. Numbers grow. A placement that was entered and not adopted is not entered again.
 *  3. Only a vote that was given can be taken: an offer that comes between the two is not.
 *  4. From ENTERED on, no offer and no agent changes p. A rank that loses its agent there, or whose
 *     agent enters another epoch, has not filled it well.
 *  5. n goes on until all have filled p well. So nothing of n may be freed or written before that.
 *
 * Pure: no clock, no I/O, no threads, no allocation.
 */
#ifndef CAIRN_CLIENT_PLACEMENT_H
#define CAIRN_CLIENT_PLACEMENT_H

#include "cairn/client.h"
#include "client/session.h"

enum client_placement_state {
    CLIENT_PLACEMENT_RUN,
    CLIENT_PLACEMENT_READY,
    CLIENT_PLACEMENT_ENTERED,
    CLIENT_PLACEMENT_FILLED
};

struct client_placement {
    enum client_placement_state state;
    bool is_good;                      /* FILLED: with the right bytes */
    struct cairn_session_shares now;   /* count 0: the trainer has not asked yet */
    struct cairn_session_shares offer; /* from READY on */
    uint64_t refused;                  /* the highest number that was entered and not adopted */
    uint64_t epoch;                    /* of this rank's agent; 0: not heard yet */
    uint64_t vote;                     /* the last one, for `voted`; 0: none */
    struct cairn_session_shares voted;
};

/* The name of a placement, never 0. */
uint64_t client_placement_name(const struct cairn_session_shares *shares);

/* The trainer computes by this placement. True if it is new to this machine. */
bool client_placement_run(struct client_placement *placement,
                          const struct cairn_session_shares *shares);

/* Takes an offer; false if it breaks invariant 1, 2 or 4, or the trainer has not asked. */
bool client_placement_offer(struct client_placement *placement,
                            const struct cairn_session_shares *offer);

/* The agent is gone: this rank votes for what it runs. */
void client_placement_detach(struct client_placement *placement);

/* The agent is in this epoch. A new epoch ends what was offered and not adopted: its generations
 * may be gone. */
void client_placement_epoch(struct client_placement *placement, uint64_t epoch);

/* The fill has ended; nothing where nothing was entered. */
void client_placement_filled(struct client_placement *placement, bool is_good);

uint64_t client_placement_vote(struct client_placement *placement);

/* All ranks' votes joined. TAKEN: the placement in `now` is new. ENTER: fill the one in `offer`,
 * then vote for it again. */
enum cairn_placement_change client_placement_decide(struct client_placement *placement,
                                                    uint64_t agreed);

#endif
