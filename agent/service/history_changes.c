/* agent/service/history_changes.c - see history_changes.h. */
#include "agent/service/history_changes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- verdicts ---- */

static void
tell_verdict(const struct cairn_ledger_entry *entry, enum history_verdict change,
             history_changed_fn *changed, void *context)
{
    struct history_event event = history_event_of(HISTORY_VERDICT);
    char said[512], text[HISTORY_TEXT_BYTES];

    if (!changed)
        return;
    cairn_ledger_describe(entry, said, sizeof said);
    snprintf(text, sizeof text, "%s; %.300s", said,
             change == HISTORY_CLOSED ? entry->closed_why : entry->evidence);
    event.subject = entry->number;
    event.change = change;
    event.rate = isfinite(entry->rate) && entry->rate > 0 ? entry->rate : 0;
    event.took_ns = entry->lost_ns;
    event.wall_ns = change == HISTORY_OPENED   ? entry->opened_wall_ns
                    : change == HISTORY_CLOSED ? entry->closed_wall_ns
                                               : 0;
    event.text = text;
    changed(context, &event);
}

void
history_verdicts_look(struct history_verdicts *verdicts, const struct cairn_ledger *ledger,
                      history_changed_fn *changed, void *context)
{
    struct history_verdicts now = {0};

    if (!ledger || (ledger->version == verdicts->version && ledger->version != 0))
        return;
    now.version = ledger->version;
    now.newest = verdicts->newest;
    now.count = ledger->count;
    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[i];
        bool is_closed = entry->closed_wall_ns != 0, was_closed = false;
        uint32_t returns = 0, j = 0;

        while (j < verdicts->count && verdicts->seen[j].number != entry->number)
            j++;
        if (j < verdicts->count) {
            returns = verdicts->seen[j].returns;
            was_closed = verdicts->seen[j].is_closed;
        } else if (entry->number > verdicts->newest) {
            tell_verdict(entry, HISTORY_OPENED, changed, context);
        }
        if (j < verdicts->count && entry->returns > returns) {
            tell_verdict(entry, HISTORY_RETURNED, changed, context);
            was_closed = false;
        }
        if (is_closed && !was_closed)
            tell_verdict(entry, HISTORY_CLOSED, changed, context);
        if (entry->number > now.newest)
            now.newest = entry->number;
        now.seen[i].number = entry->number;
        now.seen[i].returns = entry->returns;
        now.seen[i].is_closed = is_closed;
    }
    *verdicts = now;
}

/* ---- placements ---- */

static void
tell_placement(uint64_t number, enum history_placement change, uint32_t node, uint64_t wall_ns,
               const char *text, history_changed_fn *changed, void *context)
{
    struct history_event event = history_event_of(HISTORY_PLACEMENT);

    if (!changed)
        return;
    event.subject = number;
    event.change = change;
    event.node = node;
    event.wall_ns = wall_ns;
    event.text = text;
    changed(context, &event);
}

static void
tell_proposal(const struct proposal *proposal, enum history_placement change,
              history_changed_fn *changed, void *context)
{
    char placement[PROPOSAL_TEXT_BYTES], text[HISTORY_TEXT_BYTES];

    proposal_describe(&proposal->placement, placement);
    if (isfinite(proposal->step_ms) && isfinite(proposal->running_ms))
        snprintf(text, sizeof text, "%s; steps of %.4g ms instead of %.4g", placement,
                 proposal->step_ms, proposal->running_ms);
    else
        snprintf(text, sizeof text, "%s", placement);
    tell_placement(proposal->placement.number, change,
                   proposal->decided ? proposal->node : HISTORY_NONE, proposal->made_wall_ns, text,
                   changed, context);
}

static void
tell_fate(const struct proposal_story *story, history_changed_fn *changed, void *context)
{
    static const enum history_placement changes[] = {[PROPOSAL_TAKEN] = HISTORY_TAKEN,
                                                     [PROPOSAL_KEPT] = HISTORY_KEPT,
                                                     [PROPOSAL_TAKEN_BACK] = HISTORY_TAKEN_BACK,
                                                     [PROPOSAL_FAILED] = HISTORY_FAILED,
                                                     [PROPOSAL_AGED] = HISTORY_FAILED};
    char text[HISTORY_TEXT_BYTES];

    if (story->fate >= sizeof changes / sizeof *changes || !changes[story->fate])
        return;
    if (isfinite(story->after_ms) && isfinite(story->before_ms) && story->after_ms > 0)
        snprintf(text, sizeof text, "%s; steps of %.4g ms, %.4g before", story->text,
                 story->after_ms, story->before_ms);
    else
        snprintf(text, sizeof text, "%s", story->text);
    tell_placement(story->number, changes[story->fate], HISTORY_NONE,
                   story->fate == PROPOSAL_TAKEN ? story->taken_wall_ns : story->ended_wall_ns,
                   text, changed, context);
}

static void
tell_ended(struct history_placements *placements, const struct proposal_book *book,
           history_changed_fn *changed, void *context)
{
    static const char *const how[] = {[PROPOSAL_DENIED] = "denied by an operator",
                                      [PROPOSAL_REPLACED] = "replaced by a later one",
                                      [PROPOSAL_WITHDRAWN] = "it gained nothing any more"};
    uint64_t newest = placements->ended_wall_ns;

    for (uint32_t i = 0; i < book->ended_count; i++) {
        const struct proposal_ended *ended = &book->ended[i];

        if (ended->wall_ns <= placements->ended_wall_ns)
            continue;
        newest = ended->wall_ns > newest ? ended->wall_ns : newest;
        if (ended->end < sizeof how / sizeof *how && how[ended->end])
            tell_placement(ended->number, HISTORY_DENIED, ended->node, ended->wall_ns,
                           how[ended->end], changed, context);
    }
    placements->ended_wall_ns = newest;
}

void
history_placements_look(struct history_placements *placements, const struct proposal_book *book,
                        history_changed_fn *changed, void *context)
{
    struct history_placements now = *placements;

    if (!book || (book->version == placements->version && book->version != 0))
        return;
    now.version = book->version;
    if (book->waiting.placement.count && book->waiting.placement.number > placements->waited) {
        now.waited = book->waiting.placement.number;
        tell_proposal(&book->waiting, HISTORY_PROPOSED, changed, context);
    }
    tell_ended(&now, book, changed, context);
    if (book->offer.placement.count && book->offer.placement.number > placements->offered) {
        now.offered = book->offer.placement.number;
        tell_proposal(&book->offer, HISTORY_OFFERED, changed, context);
    }
    now.count = book->story_count;
    for (uint32_t i = 0; i < book->story_count; i++) {
        uint32_t j = 0;

        while (j < placements->count && placements->seen[j].number != book->stories[i].number)
            j++;
        if (j == placements->count || placements->seen[j].fate != book->stories[i].fate)
            tell_fate(&book->stories[i], changed, context);
        now.seen[i].number = book->stories[i].number;
        now.seen[i].fate = book->stories[i].fate;
    }
    *placements = now;
}
