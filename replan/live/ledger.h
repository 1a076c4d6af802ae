/*
 * replan/live/ledger.h - the verdicts on a running job: numbered, one entry per cause, what is over
 * for a while too.
 *
 * A detector's list changes with every step and ends with the detector. The ledger outlives both:
 * it is packed, stored, and handed to the next analyst. A verdict of the same kind on the same
 * culprits as an entry is that entry; one that comes back within a minute continues it. Each
 * detector has a number (a run), so that what an earlier one said can be told from what the present
 * one confirms. Runs are this process's own: they are not packed, and what is unpacked has none.
 *
 * What the operator's command did about an entry is kept with it (replan/live/enforce.h).
 *
 * A plain value of fixed size. Pure.
 */
#ifndef CAIRN_REPLAN_LIVE_LEDGER_H
#define CAIRN_REPLAN_LIVE_LEDGER_H

#include "base/wire.h"
#include "replan/detect/verdict.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_LEDGER_MAX = 32,
    CAIRN_LEDGER_RANKS_MAX = 16, /* listed in an entry, as the next two; the counts are whole */
    CAIRN_LEDGER_NODES_MAX = 8,
    CAIRN_LEDGER_LINKS_MAX = 8,
    CAIRN_LEDGER_EXCHANGES_MAX = 16,
    CAIRN_LEDGER_SLOW_MAX = CAIRN_LEDGER_MAX * CAIRN_LEDGER_RANKS_MAX,
    CAIRN_LEDGER_PATTERN_BYTES = 24,
    CAIRN_LEDGER_WHY_BYTES = 96,
    CAIRN_LEDGER_BYTES_MAX = 32 << 10 /* of one that is packed */
};

/* Kinds of evidence that do not follow from each other. */
enum {
    CAIRN_EVIDENCE_COMPUTE = 1,  /* the culprit's own time between operations */
    CAIRN_EVIDENCE_WAITING = 2,  /* others wait for it */
    CAIRN_EVIDENCE_TRANSFER = 4, /* time in transfers that nobody is late for */
    CAIRN_EVIDENCE_PROGRESS = 8, /* who is in which operation, and who is not */
    CAIRN_EVIDENCE_PROCESS = 16, /* the node sees that the process is stopped or gone */
    CAIRN_EVIDENCE_ALL = 31
};

/* How the operator's command for an entry fares. What stands further down is known better. */
enum cairn_enforcement_state {
    CAIRN_ENFORCEMENT_NONE,
    CAIRN_ENFORCEMENT_RUNNING,     /* also where it has been decided on alone */
    CAIRN_ENFORCEMENT_UNKNOWN,     /* its agent ended before it did */
    CAIRN_ENFORCEMENT_NOT_STARTED, /* value: errno */
    CAIRN_ENFORCEMENT_TIMEOUT,
    CAIRN_ENFORCEMENT_SIGNALLED, /* value: the signal */
    CAIRN_ENFORCEMENT_EXITED     /* value: the exit status */
};

/* What that comes to. */
enum cairn_enforcement_result {
    CAIRN_ENFORCED_SUCCEEDED,
    CAIRN_ENFORCED_FAILED,
    CAIRN_ENFORCED_TIMEOUT,
    CAIRN_ENFORCED_NOT_STARTED,
    CAIRN_ENFORCED_UNKNOWN,
    CAIRN_ENFORCED_RESULTS
};

struct cairn_enforcement {
    enum cairn_enforcement_state state;
    uint32_t node;        /* whose agent runs it, or has */
    uint64_t incarnation; /* of that agent's start */
    uint64_t begun_wall_ns, ended_wall_ns;
    uint32_t exchanges; /* that it was decided on for: ranks or nodes, 1 or more */
    uint32_t value;
};

struct cairn_ledger_entry {
    uint64_t number; /* from 1, never used again */
    uint64_t run;    /* of this agent's detector that says it, or said it last; 0: none has */
    enum cairn_verdict_kind kind;
    char pattern[CAIRN_LEDGER_PATTERN_BYTES]; /* of structural */
    uint32_t rank_count, node_count, link_count, victim_count;
    uint32_t ranks[CAIRN_LEDGER_RANKS_MAX];
    uint32_t nodes[CAIRN_LEDGER_NODES_MAX];
    uint32_t links[2 * CAIRN_LEDGER_LINKS_MAX]; /* pairs: source, target */
    /* until_step: CAIRN_STEP_NONE while it lasts, or where nobody knows */
    uint32_t since_step, until_step, detected_step;
    uint32_t run_since_step; /* when it last began: after since_step if it came back */
    uint32_t returns;        /* how often it came back */
    double rate, confidence;
    uint32_t evidence_kinds;
    uint64_t opened_wall_ns;
    uint64_t closed_wall_ns; /* 0: it lasts */
    uint64_t lost_ns;        /* to a rate above 1 while it was open, until lost_until_wall_ns: since
                              * then the present rate holds */
    uint64_t lost_until_wall_ns;
    char evidence[CAIRN_EVIDENCE_BYTES];
    char closed_why[CAIRN_LEDGER_WHY_BYTES];
    struct cairn_enforcement enforcement;
};

/* What entries that had to make room would have had exchanged. Beyond the bound two are one, at the
 * later time. */
struct cairn_ledger_exchanges {
    uint64_t wall_ns;
    uint32_t count;
    uint32_t begun; /* of these, for which the command was run */
};

struct cairn_ledger {
    uint64_t version; /* grows with each change that others should know of */
    uint64_t next_number;
    uint32_t count;
    struct cairn_ledger_entry entries[CAIRN_LEDGER_MAX]; /* by number */
    uint32_t exchanges_count;
    /* in the order of time; the last 24 hours' are whole */
    struct cairn_ledger_exchanges exchanges[CAIRN_LEDGER_EXCHANGES_MAX];
    uint64_t enforced_before[CAIRN_ENFORCED_RESULTS]; /* of entries that are not kept any more */
};

enum cairn_ledger_change { CAIRN_LEDGER_OPENED, CAIRN_LEDGER_RETURNED, CAIRN_LEDGER_CLOSED };

typedef void cairn_ledger_change_fn(void *context, const struct cairn_ledger_entry *entry,
                                    enum cairn_ledger_change change);

/* An empty one. */
void cairn_ledger_init(struct cairn_ledger *ledger);

/*
 * Takes over what the detector of a run says now; evidence_kinds[verdicts->count]. Entries of that
 * run that it does not say any more are closed. `said` (may be NULL) is told of each change. Where
 * there are CAIRN_LEDGER_MAX entries, the oldest closed one goes; where none is closed, a new
 * verdict waits.
 */
void cairn_ledger_merge(struct cairn_ledger *ledger, const struct cairn_verdicts *verdicts,
                        const uint32_t *evidence_kinds, uint64_t run, uint64_t wall_ns,
                        cairn_ledger_change_fn *said, void *context);

/* Closes what other runs than this one left open, with a reason. */
void cairn_ledger_close_others(struct cairn_ledger *ledger, uint64_t run, uint64_t wall_ns,
                               const char *why, cairn_ledger_change_fn *said, void *context);

uint32_t cairn_ledger_open_count(const struct cairn_ledger *ledger);

/* True where an open entry blames a rank, a node or a link. An uneven plan is nobody's fault, lasts
 * as long as the job, and does not need a closer look at a price. */
bool cairn_ledger_suspects(const struct cairn_ledger *ledger);

/* The listed ranks of open entries that call a rank or a node slow, each with its entry's rate, in
 * ranks[CAIRN_LEDGER_SLOW_MAX] and rates[CAIRN_LEDGER_SLOW_MAX]. A rank of two entries appears
 * twice. Returns how many. */
uint32_t cairn_ledger_slow_ranks(const struct cairn_ledger *ledger, uint32_t *ranks, double *rates);

/* Whether nobody can tell if a rank that was called slow still is: since this time an entry about
 * it was closed by another run than the one that gave it. That run has learned as normal what it
 * has found, so it does not see either whether the rank gets well. */
bool cairn_ledger_is_unsure(const struct cairn_ledger *ledger, uint64_t rank, uint64_t run,
                            uint64_t since_wall_ns);

/* A run that has compared a rank with the normal that it had before knows whether it is slow, so
 * what earlier runs said about it is this run's. */
void cairn_ledger_settle(struct cairn_ledger *ledger, uint64_t rank, uint64_t run);

/* What an entry would have exchanged: ranks, or nodes; 0 where that is not a cure, or there is one
 * kind of evidence alone. Where the command was run for it, what that was for. */
uint32_t cairn_ledger_exchanges_of(const struct cairn_ledger_entry *entry);

/*
 * True where an entry's exchange is proposed: it would have one, and it is within the day's. Those
 * that were proposed before and got well again count, since nobody knows what was done about them;
 * with `enforced` that is known, and they do not where the command was not run.
 */
bool cairn_ledger_proposes(const struct cairn_ledger *ledger,
                           const struct cairn_ledger_entry *entry, uint32_t exchanges_per_day,
                           bool enforced);

/* What an entry has cost until now: of each second that it was open with a rank that takes `rate`
 * times as long, 1 - 1 / rate. */
double cairn_ledger_lost_ns(const struct cairn_ledger_entry *entry, uint64_t wall_ns);

/* When an entry's exchanges count as made. */
uint64_t cairn_ledger_counted_ns(const struct cairn_ledger_entry *entry);

/* What a command's state comes to; CAIRN_ENFORCED_RESULTS: nothing yet. */
enum cairn_enforcement_result cairn_enforcement_result(const struct cairn_enforcement *enforcement);

/* Adds the exchanges of an entry that is about to be forgotten to the day's. */
void cairn_ledger_remember_exchanges(struct cairn_ledger *ledger,
                                     const struct cairn_ledger_entry *entry);

/* One sentence: who, what, how much, since when. */
void cairn_ledger_describe(const struct cairn_ledger_entry *entry, char *out, size_t out_bytes);

/* What to do about an entry of the ledger: ranks and nodes are proposed for exchange only on two
 * kinds of evidence, and only exchanges_per_day of them within 24 hours, as cairn_ledger_proposes
 * counts. Those that the command was run for are proposed. */
void cairn_ledger_advise(const struct cairn_ledger *ledger, const struct cairn_ledger_entry *entry,
                         uint32_t exchanges_per_day, bool enforced, char *out, size_t out_bytes);

/* Packs; what does not fit is the writer's failure. */
void cairn_ledger_pack(const struct cairn_ledger *ledger, struct cairn_writer *writer);

/* Unpacks a whole one. CAIRN_CORRUPT: it is none, *out is untouched. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_ledger_unpack(const void *bytes, size_t bytes_len,
                                               struct cairn_ledger *out);

#endif
