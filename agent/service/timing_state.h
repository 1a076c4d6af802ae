/*
 * agent/service/timing_state.h - detection in the agent: what its files share.
 *
 *   timing.c          the timer; verdicts: kept, told to the others, said
 *   timing_analysis.c the analysis, where this agent does it: in a thread of its own
 *   enforcing.c       the operator's command for verdicts whose exchange is proposed
 *   timing_rings.c    rings that trainers handed over, and what is read of them
 *   timing_process.c  how a trainer's process fares
 *   watch.c           who analyses, and the reports' way there (pure)
 *
 * All else runs in the loop, from one timer. A trainer's process is what counts here, not its
 * session: a trainer that has lost its agent and comes back is the same, and its ring is read all
 * the while.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_STATE_H
#define CAIRN_AGENT_SERVICE_TIMING_STATE_H

#include "agent/process/agent_state.h"
#include "agent/service/watch.h"
#include "base/ring.h"
#include "replan/live/ledger.h"
#include "replan/live/live.h"
#include "replan/live/reduce.h"

enum {
    TIMING_RANKS_MAX = SESSIONS_MAX,
    TIMING_RINGS_MAX = 2 * SESSIONS_MAX,
    TIMING_RING_RECORDS_MAX = 1 << 20, /* 72 MiB of mapping */
    TIMING_READ_MAX = 4096,            /* records of a ring at once */
    TIMING_PERIOD_MS = 100
};

/* A process as the kernel knows it. */
struct timing_process {
    int64_t pid;          /* 0: unknown */
    uint64_t start_ticks; /* tells it from a later one of the same number */
};

struct timing_rank {
    bool used;
    uint32_t rank;
    uint64_t serial; /* of the session that handed its rings over last */
    struct timing_process process;
    enum cairn_presence presence;
    uint64_t gone_ns; /* when it was found gone, 0: it was not */
    bool is_cut;      /* its session ended, and nobody had said that it would */
    struct cairn_reduce *reduce;
};

struct timing_ring {
    void *memory; /* NULL: unused */
    size_t memory_bytes;
    uint64_t device, inode; /* of the file */
    struct cairn_ring ring;
    uint64_t dropped; /* when it was last looked at */
    uint32_t rank;    /* index in ranks */
};

struct timing_analysis;

struct timing_state {
    struct cairn_timer timer;
    struct cairn_watch *watch;
    bool *eligible; /* [node_count] */
    struct timing_rank ranks[TIMING_RANKS_MAX];
    struct timing_ring rings[TIMING_RINGS_MAX];
    uint32_t ring_count;
    uint64_t looked_ns;                                   /* when processes were last looked at */
    uint64_t lost_before, refused_before, records_before; /* of ranks that are forgotten */

    struct timing_analysis *analysis;
    uint64_t lives;                       /* of analyses, begun */
    uint64_t first_run;                   /* of the present one, or the last */
    uint64_t unsent_said, unsent_said_ns; /* of the watch's overflows, what was said, and when */
    bool has_reports;                     /* some have come at some time: the job is timed */
    struct cairn_ledger ledger;
    uint64_t told_version, told_ns;     /* to the other agents */
    uint64_t stored_version, stored_ns; /* in the catalog */

    uint8_t packed[CAIRN_WATCH_REPORT_BYTES_MAX];
    uint8_t ledger_bytes[CAIRN_LEDGER_BYTES_MAX];
};

_Static_assert((int)CAIRN_REPORT_BYTES_MAX <= (int)CAIRN_WATCH_REPORT_BYTES_MAX,
               "every report fits on its way");

/* ---- timing.c ---- */
/* Tells the other agents of the ledger, where it has changed since they were told last. */
void timing_tell_changes(struct cairn_agent *agent);
/* Stores the ledger now. False, said: it is not stored. */
bool timing_store(struct cairn_agent *agent);
/* Says in the log what has become of a verdict. */
void timing_say_change(const struct cairn_agent *agent, const struct cairn_ledger_entry *entry,
                       enum cairn_ledger_change change);

/* ---- timing_analysis.c ---- */
/* CAIRN_NOMEM, CAIRN_AGAIN: no thread. timing_analysis_close is called in both cases. */
CAIRN_MUST_CHECK cairn_err timing_analysis_open(struct cairn_agent *agent);
void timing_analysis_close(struct cairn_agent *agent);
/* This agent analyses from here on, or no longer. */
void timing_analysis_begin(struct cairn_agent *agent, uint64_t first_run);
void timing_analysis_end(struct cairn_agent *agent);
/* Packed reports of an agent; copied. Beyond 64 MiB that no turn has taken all agents are asked to
 * begin anew. */
void timing_analysis_take(struct cairn_agent *agent, uint32_t from, const uint8_t *bytes,
                          size_t bytes_len);
/* Hands what has come to the worker, unless it still has the turn before. */
void timing_analysis_turn(struct cairn_agent *agent, uint64_t now_ns);
/* What the last turn saw. False: this agent does not analyse. */
bool timing_analysis_look(const struct cairn_agent *agent, struct cairn_live_view *out);
/* Deliveries that were dropped, since there was no room for them, while this agent analysed. */
uint64_t timing_analysis_dropped(const struct cairn_agent *agent);
/* The node that a rank runs on; UINT32_MAX unknown. Only from enforcing_turn: no turn is under way
 * then. */
uint32_t timing_analysis_node_of(const struct cairn_agent *agent, uint32_t rank);

/* ---- enforcing.c ---- */
/* A turn of the analysis is done, and the ledger is up to date: runs the command where it is
 * due. */
void enforcing_turn(struct cairn_agent *agent);
/* The ledger is another agent's by now: says how the command that ran here last has ended, where
 * that one has it and does not know. True: it is a newer version then. */
bool enforcing_say_end(struct cairn_agent *agent);

/* ---- timing_rings.c ---- */
/* Reads what is waiting, and twice a second looks at the processes. */
void timing_rings_read(struct cairn_agent *agent, uint64_t now_ns);
void timing_rings_close(struct cairn_agent *agent);
/* The ranks say again what they take part in. */
void timing_rings_announce(struct cairn_agent *agent);

/* ---- timing_process.c ---- */
/* The process with this number, as it is now. False: there is none. */
bool timing_process_find(int64_t pid, struct timing_process *out);
/* GONE where it has ended, also where another one has its number. */
enum cairn_presence timing_process_look(const struct timing_process *process);

#endif
