/* agent/service/proposal.c - how rounds, offers and relaunches change a book; see proposal.h. */
#include "agent/service/proposal_book.h"

#include "base/clock.h"
#include "base/crc.h"
#include "client/placement_bugs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rates of one rank that differ by less are the same evidence: measured rates scatter. */
#define RATE_CHANGED 0.25
static const uint64_t again_ns = UINT64_C(300) * CAIRN_NS_PER_S; /* a relaunch that failed */
static const uint64_t day_ns = UINT64_C(86400) * CAIRN_NS_PER_S;

/* ---- placements and evidence ---- */

bool
proposal_is_same(const struct cairn_session_shares *left, const struct cairn_session_shares *right)
{
    return left->count == right->count && left->stages == right->stages &&
           memcmp(left->parts, right->parts, sizeof left->parts) == 0 &&
           memcmp(left->layers, right->layers, sizeof left->layers) == 0;
}

uint64_t
proposal_name(const struct cairn_session_shares *placement)
{
    size_t layers = (size_t)placement->count * placement->stages;
    uint64_t name = cairn_crc64(0, &placement->count, sizeof placement->count);

    name = cairn_crc64(name, placement->parts, placement->count * sizeof *placement->parts);
    name = cairn_crc64(name, &placement->stages, sizeof placement->stages);
    name = cairn_crc64(name, placement->layers, layers * sizeof *placement->layers);
    return name ? name : 1;
}

uint64_t
proposal_full_name(const struct proposal *proposal)
{
    const struct proposal_shape *shape = &proposal->shape;
    uint64_t name = proposal_name(&proposal->placement);

    if (shape->tp == 0)
        return name;
    name = cairn_crc64(name, &shape->tp, sizeof shape->tp);
    name = cairn_crc64(name, shape->nodes, shape->node_count * sizeof *shape->nodes);
    return name ? name : 1;
}

bool
proposal_is_same_slow(const struct proposal_slow *left, const struct proposal_slow *right)
{
    if (left->count != right->count)
        return false;
    for (uint32_t i = 0; i < left->count && i < PROPOSAL_SLOW_MAX; i++)
        if (left->ranks[i] != right->ranks[i] ||
            fabs(left->rates[i] - right->rates[i]) >
                RATE_CHANGED * fmax(left->rates[i], right->rates[i]))
            return false;
    return true;
}

/* Adds numbers to a text; "..." for those without room. */
static void
add_numbers(char text[PROPOSAL_TEXT_BYTES], const char *before, const char *between,
            const uint32_t *numbers, uint32_t count)
{
    size_t used = strlen(text);

    for (uint32_t i = 0; i < count; i++) {
        bool has_room = used + 32 < PROPOSAL_TEXT_BYTES;

        if (used + 8 >= PROPOSAL_TEXT_BYTES)
            return;
        if (has_room)
            (void)snprintf(text + used, PROPOSAL_TEXT_BYTES - used, "%s%" PRIu32,
                           i ? between : before, numbers[i]);
        else
            (void)snprintf(text + used, PROPOSAL_TEXT_BYTES - used, " ...");
        used = has_room ? strlen(text) : PROPOSAL_TEXT_BYTES;
    }
}

const char *
proposal_describe(const struct cairn_session_shares *placement, char text[PROPOSAL_TEXT_BYTES])
{
    text[0] = 0;
    add_numbers(text, "", " | ", placement->parts, placement->count);
    for (uint32_t r = 0; placement->stages && r < placement->count; r++)
        add_numbers(text, r ? " | " : ", layers ", ",",
                    placement->layers + (size_t)r * placement->stages, placement->stages);
    return text;
}

const char *
proposal_describe_full(const struct proposal *proposal, char text[PROPOSAL_TEXT_BYTES])
{
    const struct cairn_session_shares *placement = &proposal->placement;
    const struct proposal_shape *shape = &proposal->shape;
    char shares[PROPOSAL_TEXT_BYTES];

    if (shape->tp == 0) {
        (void)snprintf(text, PROPOSAL_TEXT_BYTES, "micro-batches %.*s", PROPOSAL_TEXT_BYTES - 16,
                       proposal_describe(placement, shares));
        return text;
    }
    (void)snprintf(text, PROPOSAL_TEXT_BYTES,
                   "%" PRIu32 " x %" PRIu32 " stages of %" PRIu32 " device%s", placement->count,
                   placement->stages, shape->tp, shape->tp == 1 ? "" : "s");
    add_numbers(text, shape->node_count == 1 ? " on node " : " on nodes ", ", ", shape->nodes,
                shape->node_count);
    add_numbers(text, ", micro-batches ", " | ", placement->parts, placement->count);
    add_numbers(text, ", layers ", ",", placement->layers, placement->stages);
    return text;
}

const char *
proposal_gate_name(enum proposal_gate gate)
{
    static const char *const names[PROPOSAL_GATES] = {
        [PROPOSAL_GATE_NONE] = "none",   [PROPOSAL_GATE_GAIN] = "gain",
        [PROPOSAL_GATE_RANKS] = "ranks", [PROPOSAL_GATE_COMMIT] = "commit",
        [PROPOSAL_GATE_SLOTS] = "slots", [PROPOSAL_GATE_BUDGET] = "budget"};

    return names[gate];
}

const char *
proposal_gate_why(enum proposal_gate gate)
{
    static const char *const whys[PROPOSAL_GATES] = {
        [PROPOSAL_GATE_NONE] = "nothing refuses it",
        [PROPOSAL_GATE_GAIN] = "the best plan shortens a step by less than 3 %",
        [PROPOSAL_GATE_RANKS] = "not all ranks report, or one hangs; see `cairn status`",
        [PROPOSAL_GATE_COMMIT] = "layers would move, and the newest commit is older than two "
                                 "intervals of snapshots; see `cairn status`",
        [PROPOSAL_GATE_SLOTS] = "layers would move, and a node's state would exceed state_bytes; "
                                "set it higher in the agents' files",
        [PROPOSAL_GATE_BUDGET] = "the day's budget is spent (plans_per_day, standstill_per_day_s)"};

    return whys[gate];
}

/* ---- the book ---- */

uint32_t
proposal_count_changes(struct proposal_book *book, uint64_t wall_ns)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < book->away_count; i++)
        if (wall_ns < book->away_wall_ns[i] + day_ns)
            book->away_wall_ns[kept++] = book->away_wall_ns[i];
    book->away_count = kept;
    return kept;
}

const struct proposal *
proposal_running(const struct proposal_book *book, const struct proposal *home)
{
    return book->offer.placement.count ? &book->offer : home;
}

const struct proposal_story *
proposal_story_of(const struct proposal_book *book, uint64_t number)
{
    for (uint32_t i = book->story_count; i-- > 0;)
        if (book->stories[i].number == number)
            return &book->stories[i];
    return NULL;
}

bool
proposal_is_taken(const struct proposal_book *book)
{
    const struct proposal_story *story = proposal_story_of(book, book->offer.placement.number);

    return book->offer.placement.count && story &&
           (story->fate == PROPOSAL_TAKEN || story->fate == PROPOSAL_KEPT);
}

static void
forget_spent(struct proposal_book *book, uint64_t wall_ns)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < book->spent_count; i++)
        if (wall_ns < book->spent[i].wall_ns + day_ns)
            book->spent[kept++] = book->spent[i];
    book->spent_count = kept;
}

uint64_t
proposal_spent_ns(const struct proposal_book *book, uint64_t wall_ns)
{
    uint64_t spent_ns = 0;

    for (uint32_t i = 0; i < book->spent_count; i++)
        if (wall_ns < book->spent[i].wall_ns + day_ns)
            spent_ns += book->spent[i].standstill_ns;
    return spent_ns;
}

uint64_t
proposal_price_ns(const struct proposal_book *book)
{
    const uint64_t *measured = book->standstills_ns;
    uint64_t low, high;

    if (book->standstill_count == 0)
        return 0;
    if (book->standstill_count == 1)
        return measured[0];
    low = measured[0] < measured[1] ? measured[0] : measured[1];
    high = measured[0] < measured[1] ? measured[1] : measured[0];
    if (book->standstill_count == 2) /* the careful one */
        return high;
    return measured[2] < low ? low : measured[2] > high ? high : measured[2];
}

void
proposal_note_number(struct proposal_book *book, uint64_t number)
{
    if (number > book->last_number && number < UINT64_MAX / 2)
        book->last_number = number;
}

void
book_note_end(struct proposal_book *book, uint64_t number, enum proposal_end end,
              const struct proposal_decision *decision, uint64_t wall_ns)
{
    if (book->ended_count == PROPOSAL_ENDED_MAX) {
        book->ended_count--;
        memmove(book->ended, book->ended + 1, book->ended_count * sizeof *book->ended);
    }
    book->ended[book->ended_count++] =
        (struct proposal_ended){number, end, decision ? decision->node : UINT32_MAX,
                                decision ? decision->token : 0, wall_ns};
}

bool
book_end_relaunch(struct proposal_book *book, enum proposal_end end, uint64_t wall_ns)
{
    if (book->relaunch.placement.count == 0)
        return false;
    book_note_end(book, book->relaunch.placement.number, end, NULL, wall_ns);
    memset(&book->relaunch, 0, sizeof book->relaunch);
    return true;
}

bool
book_end_waiting(struct proposal_book *book, enum proposal_end end, uint64_t wall_ns)
{
    if (book->waiting.placement.count == 0)
        return false;
    book_note_end(book, book->waiting.placement.number, end, NULL, wall_ns);
    memset(&book->waiting, 0, sizeof book->waiting);
    return true;
}

/* Of offers to the trainers, or of relaunches. */
static struct proposal_story *
newest_of(struct proposal_book *book, bool is_relaunch)
{
    for (uint32_t i = book->story_count; i-- > 0;)
        if (book->stories[i].is_relaunch == is_relaunch)
            return &book->stories[i];
    return NULL;
}

static struct proposal_story *
newest_story(struct proposal_book *book)
{
    return newest_of(book, false);
}

static void
end_story(struct proposal_book *book, bool is_relaunch, enum proposal_fate fate, uint64_t wall_ns)
{
    struct proposal_story *story = newest_of(book, is_relaunch);

    if (!story || story->ended_wall_ns)
        return;
    if (fate != PROPOSAL_LEFT || story->fate != PROPOSAL_KEPT)
        story->fate = fate;
    story->ended_wall_ns = wall_ns;
}

void
book_begin_story(struct proposal_book *book, const struct proposal *made, uint64_t withdraws,
                 uint64_t wall_ns)
{
    bool is_relaunch = made->shape.tp > 0;
    struct proposal_story *story;

    end_story(book, is_relaunch, PROPOSAL_LEFT, wall_ns);
    if (book->story_count == PROPOSAL_STORIES_MAX) {
        book->story_count--;
        memmove(book->stories, book->stories + 1, book->story_count * sizeof *book->stories);
    }
    story = &book->stories[book->story_count++];
    *story = (struct proposal_story){.number = made->placement.number,
                                     .withdraws = withdraws,
                                     .fate = PROPOSAL_OFFERED,
                                     .is_home = made->is_home,
                                     .is_relaunch = is_relaunch,
                                     .action = made->action,
                                     .current_ms = made->current_ms,
                                     .running_ms = made->running_ms,
                                     .step_ms = made->step_ms,
                                     .bound_ms = made->bound_ms,
                                     .cost_ms = made->cost_ms,
                                     .moved_layers = made->moved_layers,
                                     .moved_bytes = made->moved_bytes,
                                     .decided = made->decided,
                                     .node = made->node,
                                     .slow = made->slow,
                                     .refused = made->refused,
                                     .offered_wall_ns = wall_ns,
                                     .before_ms = INFINITY,
                                     .expected_ms = INFINITY,
                                     .after_ms = INFINITY};
    memcpy(story->alternatives, made->alternatives, sizeof story->alternatives);
    if (is_relaunch)
        (void)proposal_describe_full(made, story->text);
    else
        (void)proposal_describe(&made->placement, story->text);
}

void
book_offer(struct proposal_book *book, const struct proposal *proposal,
           const struct proposal_decision *decision, uint64_t withdraws, uint64_t wall_ns)
{
    uint32_t kept = proposal_count_changes(book, wall_ns);
    bool is_away = !proposal->is_home && withdraws == 0;

    if (is_away && kept == PROPOSAL_AWAY_MAX) {
        memmove(book->away_wall_ns, book->away_wall_ns + 1, (kept - 1) * sizeof(uint64_t));
        book->away_count = --kept;
    }
    if (is_away)
        book->away_wall_ns[book->away_count++] = wall_ns;
    if (proposal_is_taken(book))
        book->before = book->offer;
    book->offer = *proposal;
    book->offer.made_wall_ns = wall_ns;
    book->offer.decided = book->offer.node = 0;
    if (decision) {
        book->offer.decided =
            decision->word == PROPOSAL_GO_BACK ? PROPOSAL_BACK : PROPOSAL_APPROVED;
        book->offer.node = decision->node;
    }
    book_begin_story(book, &book->offer, withdraws, wall_ns);
}

void
book_give_number(struct proposal_book *book, struct proposal *proposal, const struct proposal *from,
                 uint64_t wall_ns)
{
    *proposal = *from;
    proposal->placement.number = PLACEMENT_BUG(NUMBER_TWICE) && book->last_number > 0
                                     ? book->last_number
                                     : ++book->last_number;
    proposal->made_wall_ns = wall_ns;
    if (proposal->evidence_wall_ns == 0)
        proposal->evidence_wall_ns = wall_ns;
}

/* Ends the denials that hold for an evidence. */
static void
clear_denials(struct proposal_book *book)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < book->denied_count; i++)
        if (book->denied[i].until_wall_ns)
            book->denied[kept++] = book->denied[i];
    memset(book->denied + kept, 0, (PROPOSAL_DENIED_MAX - kept) * sizeof *book->denied);
    book->denied_count = kept;
    book->is_all_denied = false;
    memset(&book->denied_at, 0, sizeof book->denied_at);
}

void
book_set_evidence(struct proposal_book *book, const struct proposal_slow *slow)
{
    if (!proposal_is_same_slow(&book->denied_at, slow)) {
        clear_denials(book);
        book->denied_at = *slow;
    }
}

void
book_deny(struct proposal_book *book, const struct proposal *proposal, uint64_t until_wall_ns)
{
    if (until_wall_ns == 0)
        book_set_evidence(book, &proposal->slow);
    if (book->denied_count == PROPOSAL_DENIED_MAX) {
        book->denied_count--;
        memmove(book->denied, book->denied + 1, book->denied_count * sizeof *book->denied);
    }
    book->denied[book->denied_count++] =
        (struct proposal_denial){proposal_full_name(proposal), until_wall_ns};
}

static bool
is_denied(const struct proposal_book *book, const struct proposal *wanted, uint64_t wall_ns)
{
    uint64_t name = proposal_full_name(wanted);

    for (uint32_t i = 0; i < book->denied_count; i++)
        if (book->denied[i].name == name &&
            (book->denied[i].until_wall_ns == 0 || wall_ns < book->denied[i].until_wall_ns))
            return true;
    return book->is_all_denied && !wanted->is_home;
}

static bool
has_denials(const struct proposal_book *book)
{
    for (uint32_t i = 0; i < book->denied_count; i++)
        if (book->denied[i].until_wall_ns == 0)
            return true;
    return false;
}

/* ---- rounds ---- */

/* The wanted placement was the last offer, or was denied: none may wait. */
static uint32_t
want_nothing(struct proposal_book *book, const struct proposal_round *round)
{
    return book_end_waiting(book, PROPOSAL_WITHDRAWN, round->wall_ns)
               ? PROPOSAL_CHANGED | PROPOSAL_OVER
               : 0;
}

static uint32_t
propose(struct proposal_book *book, const struct proposal *wanted, uint64_t wall_ns)
{
    struct proposal *waiting = &book->waiting;
    struct proposal same;

    if (proposal_is_same(&waiting->placement, &wanted->placement)) {
        if (proposal_is_same_slow(&waiting->slow, &wanted->slow))
            return 0;
        same = *wanted; /* the same placement, with the figures of other rates */
        same.placement.number = waiting->placement.number;
        same.made_wall_ns = waiting->made_wall_ns;
        same.evidence_wall_ns = wall_ns;
        *waiting = same;
        return PROPOSAL_CHANGED;
    }
    (void)book_end_waiting(book, PROPOSAL_REPLACED, wall_ns);
    book_give_number(book, waiting, wanted, wall_ns);
    return PROPOSAL_CHANGED | PROPOSAL_WAITS;
}

/* Whether the day's budgets allow no further change. Going home is always allowed: a budget must
 * not hold a job in a plan for a rank that is well. */
static bool
is_spent(struct proposal_book *book, const struct proposal *wanted,
         const struct proposal_round *round)
{
    uint32_t changes = proposal_count_changes(book, round->wall_ns);
    double left_ns =
        (double)round->standstill_per_day_ns - (double)proposal_spent_ns(book, round->wall_ns);
    bool stands_still = wanted->moved_layers > 0 && wanted->cost_ms < INFINITY;

    if (wanted->is_home || PLACEMENT_BUG(OVERSPENDS))
        return false;
    return changes >= round->changes_per_day || changes >= PROPOSAL_AWAY_MAX ||
           (stands_still && wanted->cost_ms * 1e6 > left_ns);
}

static uint32_t
offer_at_once(struct proposal_book *book, const struct proposal *wanted,
              const struct proposal_round *round)
{
    struct proposal numbered;

    if (is_spent(book, wanted, round))
        return PROPOSAL_SPENT;
    (void)book_end_waiting(book, PROPOSAL_REPLACED, round->wall_ns);
    book_give_number(book, &numbered, wanted, round->wall_ns);
    book_offer(book, &numbered, NULL, 0, round->wall_ns);
    return PROPOSAL_CHANGED | PROPOSAL_OFFER;
}

uint32_t
proposal_take_round(struct proposal_book *book, const struct proposal_round *round)
{
    const struct proposal *wanted = round->plan ? round->plan : round->at_rest ? round->home : NULL;
    bool is_asked = round->needs_approval, is_other = round->is_other_evidence;
    uint32_t follows = 0;

    if (!wanted)
        return 0; /* what is there stays until more is known */
    if (!wanted->is_home && round->wall_ns < book->doubt_until_wall_ns)
        is_asked = true;
    if (PLACEMENT_BUG(FORGETS_DENIAL))
        is_other = !proposal_is_same_slow(&book->denied_at, &wanted->slow);
    if (is_other && (book->is_all_denied || has_denials(book))) {
        clear_denials(book);
        follows = PROPOSAL_CHANGED;
    }
    if (proposal_is_same(&wanted->placement, &proposal_running(book, round->home)->placement) ||
        is_denied(book, wanted, round->wall_ns))
        follows |= want_nothing(book, round);
    else if (round->gate) /* a waiting proposal goes on waiting, unless it gains too little now */
        follows |=
            PROPOSAL_SHUT | (round->gate == PROPOSAL_GATE_GAIN ? want_nothing(book, round) : 0);
    else
        follows |=
            is_asked ? propose(book, wanted, round->wall_ns) : offer_at_once(book, wanted, round);
    book->version += (follows & PROPOSAL_CHANGED) != 0;
    return follows;
}

/* ---- what becomes of an offer ---- */

uint32_t
proposal_note_taken(struct proposal_book *book, double before_ms, double expected_ms,
                    uint64_t wall_ns)
{
    struct proposal_story *story = newest_story(book);

    if (!story || story->fate != PROPOSAL_OFFERED)
        return 0;
    story->fate = PROPOSAL_TAKEN;
    story->taken_wall_ns = wall_ns;
    story->before_ms = before_ms;
    story->expected_ms = expected_ms;
    book->version++;
    return PROPOSAL_CHANGED;
}

uint32_t
proposal_note_standstill(struct proposal_book *book, uint64_t number, uint64_t standstill_ns,
                         uint64_t wall_ns)
{
    struct proposal_story *story = NULL;

    for (uint32_t i = 0; i < book->story_count; i++)
        if (book->stories[i].number == number && book->stories[i].standstill_ns == 0)
            story = &book->stories[i];
    if (!story || standstill_ns == 0)
        return 0;
    story->standstill_ns = standstill_ns;
    forget_spent(book, wall_ns);
    if (book->spent_count == PROPOSAL_SPENT_MAX) {
        book->spent[1].standstill_ns += book->spent[0].standstill_ns;
        book->spent_count--;
        memmove(book->spent, book->spent + 1, book->spent_count * sizeof *book->spent);
    }
    book->spent[book->spent_count++] = (struct proposal_spent){wall_ns, standstill_ns};
    if (book->standstill_count == PROPOSAL_STANDSTILLS) {
        book->standstill_count--;
        memmove(book->standstills_ns, book->standstills_ns + 1,
                book->standstill_count * sizeof *book->standstills_ns);
    }
    book->standstills_ns[book->standstill_count++] = standstill_ns;
    book->version++;
    return PROPOSAL_CHANGED;
}

uint32_t
proposal_note_kept(struct proposal_book *book, double after_ms, uint64_t wall_ns)
{
    struct proposal_story *story = newest_story(book);

    (void)wall_ns;
    if (!story || story->fate != PROPOSAL_TAKEN)
        return 0;
    story->fate = PROPOSAL_KEPT;
    story->after_ms = after_ms;
    book->version++;
    return PROPOSAL_CHANGED;
}

const struct proposal *
proposal_before(const struct proposal_book *book, const struct proposal *home)
{
    return book->before.placement.count ? &book->before : home;
}

uint32_t
proposal_withdraw(struct proposal_book *book, const struct proposal *before, enum proposal_fate why,
                  double after_ms, uint64_t deny_ns, uint64_t wall_ns)
{
    const struct proposal withdrawn = book->offer;
    struct proposal again = *before;
    struct proposal_story *story = newest_story(book);

    if (withdrawn.placement.count == 0 || !story || story->ended_wall_ns)
        return 0;
    story->after_ms = after_ms;
    if (why == PROPOSAL_TAKEN_BACK)
        book->doubt_until_wall_ns = wall_ns + day_ns;
    book_deny(book, &withdrawn, wall_ns + deny_ns);
    (void)book_end_waiting(book, PROPOSAL_REPLACED, wall_ns);
    book_give_number(book, &again, &again, wall_ns);
    if (why == PROPOSAL_TAKEN_BACK)
        book->before = withdrawn;
    end_story(book, false, why, wall_ns);
    book_offer(book, &again, NULL, withdrawn.placement.number, wall_ns);
    book->version++;
    return PROPOSAL_CHANGED | PROPOSAL_OFFER;
}

/* ---- relaunches ---- */

uint32_t
proposal_want_relaunch(struct proposal_book *book, const struct proposal *wanted, uint64_t wall_ns)
{
    struct proposal *waiting = &book->relaunch;
    uint32_t follows = PROPOSAL_CHANGED;

    if (!wanted || is_denied(book, wanted, wall_ns)) {
        if (!book_end_relaunch(book, PROPOSAL_WITHDRAWN, wall_ns))
            return 0;
    } else if (waiting->placement.count &&
               proposal_full_name(waiting) == proposal_full_name(wanted)) {
        return 0; /* an operator decides by the figures that were shown first */
    } else {
        (void)book_end_relaunch(book, PROPOSAL_REPLACED, wall_ns);
        book_give_number(book, waiting, wanted, wall_ns);
        follows |= PROPOSAL_RELAUNCH;
        if (PLACEMENT_BUG(RELAUNCH_UNASKED))
            book->shape = *waiting;
    }
    book->version++;
    return follows;
}

/* The newest relaunch, if it is as far as this. */
static struct proposal_story *
relaunch_that_is(struct proposal_book *book, enum proposal_fate fate)
{
    struct proposal_story *story = newest_of(book, true);

    return story && story->fate == fate ? story : NULL;
}

bool
proposal_relaunches(const struct proposal_book *book)
{
    const struct proposal_story *story = proposal_story_of(book, book->shape.placement.number);

    return book->shape.placement.count > 0 && story && story->fate == PROPOSAL_OFFERED;
}

uint32_t
proposal_note_relaunched(struct proposal_book *book, double before_ms, uint64_t standstill_ns,
                         uint64_t wall_ns)
{
    struct proposal_story *story = relaunch_that_is(book, PROPOSAL_OFFERED);

    if (!story)
        return 0;
    story->fate = PROPOSAL_TAKEN;
    story->taken_wall_ns = wall_ns;
    story->standstill_ns = standstill_ns;
    story->before_ms = before_ms;
    if (before_ms < INFINITY && story->running_ms < INFINITY)
        story->expected_ms = before_ms * story->step_ms / story->running_ms;
    if (standstill_ns)
        book->relaunch_ns = standstill_ns;
    book->version++;
    return PROPOSAL_CHANGED;
}

uint32_t
proposal_note_relaunch_kept(struct proposal_book *book, double after_ms)
{
    struct proposal_story *story = relaunch_that_is(book, PROPOSAL_TAKEN);

    if (!story)
        return 0;
    story->fate = PROPOSAL_KEPT;
    story->after_ms = after_ms;
    book->version++;
    return PROPOSAL_CHANGED;
}

uint32_t
proposal_end_relaunch(struct proposal_book *book, uint64_t wall_ns)
{
    if (!relaunch_that_is(book, PROPOSAL_OFFERED))
        return 0;
    end_story(book, true, PROPOSAL_AGED, wall_ns);
    book_deny(book, &book->shape, wall_ns + again_ns);
    memset(&book->shape, 0, sizeof book->shape);
    book->version++;
    return PROPOSAL_CHANGED;
}
/* ---- other agents' books ---- */

uint32_t
proposal_hear(struct proposal_book *book, const struct proposal_book *heard)
{
    uint64_t last_number = book->last_number;
    uint32_t follows = PROPOSAL_CHANGED;

    if (heard->version <= book->version)
        return 0;
    if (heard->offer.placement.count &&
        heard->offer.placement.number > book->offer.placement.number)
        follows |= PROPOSAL_OFFER;
    if (heard->waiting.placement.count &&
        heard->waiting.placement.number != book->waiting.placement.number)
        follows |= PROPOSAL_WAITS;
    if (!heard->waiting.placement.count && book->waiting.placement.count &&
        !(follows & PROPOSAL_OFFER))
        follows |= PROPOSAL_OVER;
    *book = *heard;
    proposal_note_number(book, last_number);
    return follows;
}
