/*
 * replan/live/counts.h - counts of operations of all ranks, looked at while some stand still: who
 * waits, and for whom; see hang.c.
 */
#ifndef CAIRN_REPLAN_LIVE_COUNTS_H
#define CAIRN_REPLAN_LIVE_COUNTS_H

#include "replan/live/state.h"

enum { LIVE_BEHIND = 1, LIVE_WAITS = 2, LIVE_DEAD = 4, LIVE_RUNNING = 8 };

/* What a look has shown of a rank, and where it is behind. */
struct live_sight {
    uint8_t marks, op;
    uint32_t comm; /* index */
    uint64_t count, needed;
};

struct live_look {
    const struct cairn_live *live;
    uint64_t now_ns;
    double limit_ns, waited_ns; /* after which a rank waits; the longest that one has who waits for
                                 * another */
    struct live_sight *sights;  /* [world] */
    bool has_unknown;           /* of some communicator not all is known */
    uint32_t link_comm;         /* the index of one in which a transfer has stopped, UINT32_MAX */
    uint8_t link_op;
    uint64_t link_seq;
};

/* For how long a rank that lives has stood still; 0: not so long that it waits. */
double live_look_stood_ns(const struct live_look *look, uint32_t rank);

/* False where nobody can be waiting. */
bool live_look_for_waiting(struct live_look *look);

/* Who waits for whom in a communicator. */
void live_look_at_comm(struct live_look *look, uint32_t index);

/* True where all members of a communicator have last entered the same of its operations. */
bool live_look_is_level(const struct live_look *look, const struct live_comm *comm);

#endif
