/*
 * agent/history/merge.h - the histories of several nodes as one, in causal order. Pure.
 *
 * A node's own order is never changed. Between nodes, epoch, run and step decide: a later one can
 * only have begun after an earlier one was known. The wall clock decides only between events at the
 * same epoch, run and step, and about agents' starts, since an agent that starts may know no epoch
 * or an old one. Three rules override all clocks: a node dies before its agent starts again, its
 * agent starts before others see it return, and an event that all nodes see is placed where the
 * first of them saw it.
 *
 * Shared events (event.h) of several nodes are one entry. So are their ranges of commits, which
 * each node may have cut elsewhere.
 */
#ifndef CAIRN_AGENT_HISTORY_MERGE_H
#define CAIRN_AGENT_HISTORY_MERGE_H

#include "agent/history/event.h"

/* One node's events, numbers growing. Borrowed. */
struct history_list {
    uint32_t node;
    const struct history_event *events;
    uint32_t count;
};

struct history_entry {
    uint32_t node;              /* whose event it is */
    struct history_event event; /* its text is borrowed from the list */
    uint64_t *seen;             /* bitset over the lists: which nodes have it; owned by the merge */
};

struct history_merge {
    struct history_entry *entries;
    uint32_t count;
    uint64_t *seen;
    uint32_t seen_words; /* of each entry */
};

/* Merges lists[list_count]. CAIRN_NOMEM. Ended by history_merge_fini; the lists must live as
 * long. */
CAIRN_MUST_CHECK cairn_err history_merge(const struct history_list *lists, uint32_t list_count,
                                         struct history_merge *out);
void history_merge_fini(struct history_merge *merge);

#endif
