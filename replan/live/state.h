/*
 * replan/live/state.h - what the files of the live analysis share.
 *
 *   live.c            takes reports, begins detectors
 *   verdicts.c        gives verdicts, closes them
 *   comms.c           which communicators there are, who is in them, the job's shape
 *   counts.c, hang.c  who has stopped, from counts of operations
 */
#ifndef CAIRN_REPLAN_LIVE_STATE_H
#define CAIRN_REPLAN_LIVE_STATE_H

#include "replan/detect/detect.h"
#include "replan/live/live.h"

/* A rank that has not reported for this long is not waited for. */
#define LIVE_SILENT_NS UINT64_C(10000000000)

struct live_member {
    uint32_t rank;
    uint32_t place; /* CAIRN_PLACE_NONE */
};

struct live_comm {
    uint64_t hash;
    uint32_t ranks;
    struct live_member *members; /* in the order of ranks */
    uint32_t member_count;
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

/* Where the job's ranks are. */
struct live_shape {
    uint32_t world;
    const uint32_t *node; /* [world]; CAIRN_NODE_UNKNOWN */
    bool takes_parts;     /* communicators with unknown members count, by the others */
};

/* How many operations a rank has entered, as it said last, in the order of communicator, operation
 * and peer. */
struct live_progress {
    uint64_t quiet_ns;         /* as struct cairn_report has these; 0: it goes on */
    uint64_t entered, counted; /* by its last standing, and when it counted: counts hold where they
                                * are equal */
    uint64_t active_ns, gap_ns;
    bool is_whole;
    uint32_t count_count, room;
    struct cairn_report_count *counts;
};

/* What was reported of a hang that counts show, and how long such waits were. */
struct live_hang {
    bool is_said, was_stopped;
    struct cairn_verdict verdict; /* where is_said */
    double longest_ns, outlived_ns;
    uint64_t looked_ns;
};

struct live_rank {
    bool known;
    bool has_earlier;
    struct cairn_earlier
        earlier;    /* of the last run that has learned what is normal, on this node */
    bool has_steps; /* it has reported one */
    bool is_idle;   /* it said last that it lives, and nothing else */
    bool has_died;  /* it is gone, and cannot have finished */
    uint32_t node;
    uint64_t attachment;
    uint64_t heard_ns;
    enum cairn_presence presence;
    struct live_progress *progress; /* NULL: it has counted nothing */
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
    struct live_hang hang;
    uint64_t begun_ns, checked_ns; /* when it was looked at first, and last */
    uint64_t ignored;
};

/* Whether a rank has stopped reporting. */
static inline bool
live_is_silent(const struct live_rank *rank, uint64_t now_ns)
{
    return now_ns > rank->heard_ns + LIVE_SILENT_NS;
}

/* ---- live.c ---- */
void live_end_run(struct cairn_live *live); /* of the detector, where there is one */

/* ---- counts.c ---- */
void live_progress_destroy(struct live_progress *progress); /* NULL is allowed */
/* CAIRN_NOMEM */
CAIRN_MUST_CHECK cairn_err live_take_counts(struct live_rank *rank,
                                            const struct cairn_report *report);
void live_take_quiet(struct live_rank *rank, const struct cairn_report *standing);

/* ---- hang.c ---- */
/* Looks for a hang, or whether the reported hang is over; CAIRN_NOMEM: it was not looked. */
CAIRN_MUST_CHECK cairn_err live_hang_check(struct cairn_live *live, uint64_t now_ns);
void live_hang_forget(struct cairn_live *live);

/* ---- comms.c ---- */
void live_comms_fini(struct live_comms *comms);
/* NULL where there is none. */
struct live_comm *live_comms_find(const struct live_comms *comms, uint64_t hash);
/* CAIRN_NOMEM; CAIRN_FULL: there are too many communicators, or another size of this one was
 * reported. */
CAIRN_MUST_CHECK cairn_err live_comms_join(struct live_comms *comms, uint32_t world,
                                           const struct cairn_report *report);
/* A rank's process is another now, which has joined nothing. What live_comms_find has given is
 * void. */
void live_comms_leave(struct live_comms *comms, uint32_t rank);
bool live_comm_is_complete(const struct live_comm *comm);
/* The global rank at a place, UINT32_MAX where it is not known. */
uint32_t live_comm_rank_at(const struct live_comm *comm, uint32_t place);
/* Makes the topology of all communicators that were used and are complete, and numbers them.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err live_topology(struct live_comms *comms, const struct live_shape *shape,
                                         struct cairn_topology **out);

#endif
