/*
 * agent/service/history_changes.h - the changes of the ledger of verdicts and of the book of
 * placements since the last look, as events. Pure.
 */
#ifndef CAIRN_AGENT_SERVICE_HISTORY_CHANGES_H
#define CAIRN_AGENT_SERVICE_HISTORY_CHANGES_H

#include "agent/history/event.h"
#include "agent/service/proposal.h"
#include "replan/live/ledger.h"

/* What was seen of the ledger; all zero: nothing. */
struct history_verdicts {
    uint64_t version;
    uint64_t newest; /* number */
    uint32_t count;
    struct {
        uint64_t number;
        uint32_t returns;
        bool is_closed;
    } seen[CAIRN_LEDGER_MAX];
};

/* The same of the book. */
struct history_placements {
    uint64_t version;
    uint64_t offered, waited; /* numbers; 0: none */
    uint64_t ended_wall_ns;   /* of the newest proposal that is over */
    uint32_t count;
    struct {
        uint64_t number;
        enum proposal_fate fate;
    } seen[PROPOSAL_STORIES_MAX];
};

/* Gets one event; its text is borrowed for the call. */
typedef void history_changed_fn(void *context, const struct history_event *event);

/* Reports each change since the last look; `changed` may be NULL, and so may ledger and book. */
void history_verdicts_look(struct history_verdicts *verdicts, const struct cairn_ledger *ledger,
                           history_changed_fn *changed, void *context);
void history_placements_look(struct history_placements *placements,
                             const struct proposal_book *book, history_changed_fn *changed,
                             void *context);

#endif
