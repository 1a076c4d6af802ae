/*
 * replan/live_state.h - what the files of the live analysis share.
 *
 *   live.c       reports in, verdicts out, and when a detector begins anew
 *   live_comms.c which communicators there are, who is in them, and what that says of the job's shape
 */
#ifndef CAIRN_REPLAN_LIVE_STATE_H
#define CAIRN_REPLAN_LIVE_STATE_H

#include "replan/detect.h"
#include "replan/live.h"

struct live_member {
    uint32_t rank;
    uint32_t place; /* CAIRN_PLACE_NONE */
};

struct live_comm {
    uint64_t hash;
    uint32_t ranks;
    struct live_member *members; /* in the order of ranks */
    uint32_t member_count, member_room;
    uint32_t steps, last_step; /* in which it was used; the newest of them */
    uint32_t ops;              /* a bit for each operation that was used in it */
    uint32_t index;            /* in the topology, CAIRN_COMM_NONE */
};

struct live_comms {
    struct live_comm *items;
    uint32_t count, room;
    uint32_t *names; /* open hash of hashes: index plus 1 */
    uint32_t name_room;
};

struct live_rank {
    bool known;
    bool has_steps; /* it has reported one */
    uint32_t node;
    uint64_t attachment;
    uint64_t heard_ns;
    enum cairn_presence presence;
};

struct cairn_live {
    struct cairn_live_options options;
    uint64_t run; /* of the present detector */
    uint32_t runs;
    uint32_t world;
    uint64_t present_ns;     /* when some rank was last known to be there */
    uint64_t world_heard_ns; /* when a report of that world came last */
    struct live_rank *ranks; /* [world] */
    uint32_t ranks_with_steps;
    bool is_partial; /* nothing was known of some ranks when the present run began */
    struct live_comms comms;
    struct cairn_topology *topology; /* NULL as the detector, before one has begun */
    struct cairn_detector *detector;
    uint32_t newest_step;
    bool is_due; /* a detector is to begin */
    bool wants_announcements;
    uint64_t ignored;
};

/* ---- live_comms.c ---- */
void live_comms_fini(struct live_comms *comms);
/* NULL where there is none. */
struct live_comm *live_comms_find(const struct live_comms *comms, uint64_t hash);
/* CAIRN_NOMEM; CAIRN_FULL: there are too many communicators, or another size of this one was said. */
CAIRN_MUST_CHECK cairn_err live_comms_join(struct live_comms *comms, uint32_t world, const struct cairn_report *report);
/* A rank's process is another now, which has joined nothing. What live_comms_find has given is void. */
void live_comms_leave(struct live_comms *comms, uint32_t rank);
bool live_comm_is_complete(const struct live_comm *comm);
/* The global rank at a place, UINT32_MAX where it is not known. */
uint32_t live_comm_rank_at(const struct live_comm *comm, uint32_t place);
/* Makes the topology of all complete communicators that were used, and numbers them. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err live_topology(struct cairn_live *live, struct cairn_topology **out);

#endif
