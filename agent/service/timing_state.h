/*
 * agent/service/timing_state.h - detection in the agent: the state that its files share.
 *
 *   timing.c          the timer, messages, numbers for operators
 *   timing_analysis.c the analysis, if this agent is the analyst, in a thread of its own
 *   timing_ledger.c   the verdicts: logged, told to the other agents, stored
 *   timing_rings.c    rings that trainers handed over, and what is read from them
 *   timing_process.c  how a trainer's process is doing
 *   timing_causes.c   what the node can tell about the causes of verdicts, and stacks of its ranks
 *   enforcing.c       the operator's command for verdicts that propose an exchange
 *   watch.c           who analyses, and how reports get there (pure)
 *
 * Everything but the analysis runs in the loop, from one timer. A trainer's process counts here,
 * not its session: a trainer that reconnects is the same one, and its rings are read meanwhile.
 */
#ifndef CAIRN_AGENT_SERVICE_TIMING_STATE_H
#define CAIRN_AGENT_SERVICE_TIMING_STATE_H

#include "agent/process/session.h"
#include "agent/service/timing_process.h"
#include "agent/service/watch.h"
#include "base/loop.h"
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

struct timing_rank {
    bool used;
    uint32_t rank;
    uint64_t serial; /* of the session that handed its rings over last */
    struct timing_process process;
    enum cairn_presence presence;
    uint64_t gone_ns; /* when it was found gone, 0: it was not */
    bool is_cut;      /* its session ended without LEAVE */
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
struct timing_causes;

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
    struct timing_causes *causes;
    uint64_t unsent_said, unsent_said_ns; /* of the watch's overflows: logged, and when */
    bool has_reports;                     /* some have come at some time: the job is timed */
    struct cairn_ledger ledger;
    uint64_t told_version, told_ns;     /* to the other agents */
    uint64_t stored_version, stored_ns; /* in the catalog */

    uint8_t packed[CAIRN_WATCH_REPORT_BYTES_MAX];
    uint8_t ledger_bytes[CAIRN_LEDGER_BYTES_MAX];
};

_Static_assert((int)CAIRN_REPORT_BYTES_MAX <= (int)CAIRN_WATCH_REPORT_BYTES_MAX,
               "every report fits on its way");

#endif
