/*
 * replan/live/enforce.h - whether, and for which verdict, the operator's command must run: once
 * each, within the budget.
 *
 *     NONE ── next ──► RUNNING ── end ──► EXITED, SIGNALLED, TIMEOUT, NOT_STARTED
 *                         └── settle: its agent is gone ──► UNKNOWN ── keep: it has answered after
 *                         all ──► …
 *
 * Invariants. 1. An entry that is not NONE never becomes so again: a verdict that comes back within
 * a minute is the same entry, and nothing is run for it a second time. 2. At most one entry is
 * RUNNING in what a ledger knows. 3. What was begun within 24 hours, as of now and not of a
 * verdict's begin, stays within exchanges_per_day. 4. What is only slow is acted on when it has
 * cost as much as the exchange will: who waits so loses at most twice what the best choice would
 * have, had the future been known. The caller makes RUNNING durable before it runs anything; who
 * finds a RUNNING that is nobody's any more says UNKNOWN, and does not run it again.
 *
 * Pure: no clock, no I/O; the state is that of replan/live/ledger.h.
 */
#ifndef CAIRN_REPLAN_LIVE_ENFORCE_H
#define CAIRN_REPLAN_LIVE_ENFORCE_H

#include "replan/live/ledger.h"

enum { CAIRN_ENFORCE_LIMIT_S = 60, CAIRN_ENFORCE_TEXT_BYTES = 224 };

/* Who decides. */
struct cairn_enforcer {
    uint32_t node;
    uint64_t incarnation; /* of its agent's start */
    uint64_t run;         /* of its present detector, which must confirm a verdict; not 0 */
    uint64_t running;     /* the verdict whose command runs here now; 0: none */
    uint64_t exchange_ns; /* training stands still for that long when ranks are exchanged */
};

/* Decides: marks the entry RUNNING and returns its number; 0: nothing must run now. */
uint64_t cairn_enforce_next(struct cairn_ledger *ledger, const struct cairn_enforcer *by,
                            uint32_t exchanges_per_day, uint64_t wall_ns);

/* The command for an entry has ended, or was not started. False: the ledger does not know it as
 * running here. */
bool cairn_enforce_end(struct cairn_ledger *ledger, const struct cairn_enforcer *by,
                       uint64_t number, enum cairn_enforcement_state state, uint32_t value,
                       uint64_t wall_ns);

/* Says UNKNOWN of what no agent runs any more: one of this node's earlier starts, or of this one,
 * which is not what it runs (another agent's list may bring it back when it has ended), of a node
 * that is not alive[node_count] (NULL: nobody knows who is), or for longer than any may run. True:
 * something has changed. */
bool cairn_enforce_settle(struct cairn_ledger *ledger, const struct cairn_enforcer *by,
                          const bool *alive, uint32_t node_count, uint64_t wall_ns);

/* What `from` knows better about commands for the entries of `to` is taken over. True: something
 * was; `to` is a newer version then. */
bool cairn_enforce_keep(struct cairn_ledger *to, const struct cairn_ledger *from);
/* Where `to` replaces `from`: what `from` has had run for entries that `to` does not have still
 * counts for the budget. */
bool cairn_enforce_keep_budget(struct cairn_ledger *to, const struct cairn_ledger *from);

const char *cairn_enforce_result_text(enum cairn_enforcement_result result);
/* How often each result came, those of entries included that are not kept any more:
 * out[CAIRN_ENFORCED_RESULTS]. */
void cairn_enforce_count(const struct cairn_ledger *ledger, uint64_t *out);

/* One clause without a stop: what became of the command. Not for NONE. */
void cairn_enforce_describe(const struct cairn_enforcement *enforcement, char *out,
                            size_t out_bytes);

#endif
