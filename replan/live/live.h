/*
 * replan/live/live.h - the analysis of a job while it trains: reports of all ranks in, a ledger of
 * verdicts out.
 *
 * Nobody describes the job beforehand. Communicators are known by the ranks that use them, and
 * complete when as many were seen as they have; when a complete one has been used in four steps, a
 * topology is made of all complete steps and a detector begins. Where some ranks do not report, it
 * begins after 20 steps with what there is: computation is known without the others. It begins
 * again when all of them report after all, when a further communicator has come into use, and when
 * a process of a rank is replaced. The roles of communicators are guessed: where ranks only send
 * and receive it is a pipeline; one within a node is tensor parallelism; another that is less than
 * the whole job joins replicas.
 *
 * Pure: no I/O; times are those of the caller. Memory: that of a detector, 32 bytes per rank and 8
 * per rank of each communicator.
 */
#ifndef CAIRN_REPLAN_LIVE_LIVE_H
#define CAIRN_REPLAN_LIVE_LIVE_H

#include "replan/live/ledger.h"
#include "replan/live/report.h"

enum { CAIRN_LIVE_WORLD_MAX = 1 << 16 };

struct cairn_live;

struct cairn_live_options {
    struct cairn_ledger *ledger;  /* borrowed until the end; changed by take and check */
    uint64_t first_run;           /* 1 or more, and above all runs in the ledger */
    cairn_ledger_change_fn *said; /* may be NULL */
    void *context;
};

struct cairn_live_view {
    uint32_t world;                             /* 0: nothing has come */
    uint32_t ranks_reporting;                   /* that sent something in the last ten seconds */
    uint32_t comms, comms_complete, comms_used; /* known; with all ranks; analysed */
    uint32_t steps, last_step; /* analysed by the present run; the newest that was reported */
    uint32_t analysed_step;    /* the newest that was analysed */
    double period_ms;          /* 0: unknown */
    double recent_ms;          /* median of the last CAIRN_RECENT_STEPS; 0: unknown */
    bool is_calibrated;        /* slow ranks and links can be told by now */
    uint64_t run;              /* of the present detector */
    uint32_t runs;
    uint64_t ignored; /* reports that could not be used */
};

/* CAIRN_NOMEM. The caller ends *out with cairn_live_destroy, which leaves the ledger as it is. */
CAIRN_MUST_CHECK cairn_err cairn_live_create(const struct cairn_live_options *options,
                                             struct cairn_live **out);
void cairn_live_destroy(struct cairn_live *live); /* NULL is allowed */

/* Takes a report that came from a node's agent. CAIRN_NOMEM: it is lost. */
CAIRN_MUST_CHECK cairn_err cairn_live_take(struct cairn_live *live, uint32_t node,
                                           const struct cairn_report *report, uint64_t now_ns,
                                           uint64_t wall_ns);

/* Looks for hangs and for ranks that have fallen silent, and brings the ledger up to date; several
 * times a second. CAIRN_NOMEM: not all was looked at. */
CAIRN_MUST_CHECK cairn_err cairn_live_check(struct cairn_live *live, uint64_t now_ns,
                                            uint64_t wall_ns);

/* True once after a job of another size was taken up: its ranks' communicators were reported
 * before, and must be reported again. */
bool cairn_live_wants_announcements(struct cairn_live *live);

/* The node whose agent reports of a rank; UINT32_MAX: none has. */
uint32_t cairn_live_node_of(const struct cairn_live *live, uint32_t rank);

void cairn_live_look(const struct cairn_live *live, uint64_t now_ns, struct cairn_live_view *out);

#endif
