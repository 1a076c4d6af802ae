/* agent/service/proposal.c - the transitions of the book of placements; see proposal.h. */
#include "agent/service/proposal.h"

#include "base/clock.h"
#include "base/crc.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 64, EXIT_DENIED = 77 };
/* Rates of one rank that differ by less are the same evidence: measured rates scatter. */
#define RATE_CHANGED 0.25
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

/* Adds numbers to a text, as far as it has room; "..." where it has not. */
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

void
proposal_note_number(struct proposal_book *book, uint64_t number)
{
    if (number > book->last_number && number < UINT64_MAX / 2)
        book->last_number = number;
}

static void
note_end(struct proposal_book *book, uint64_t number, enum proposal_end end,
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

/* Ends the proposal that waits, if one does. */
static bool
end_waiting(struct proposal_book *book, enum proposal_end end, uint64_t wall_ns)
{
    if (book->waiting.placement.count == 0)
        return false;
    note_end(book, book->waiting.placement.number, end, NULL, wall_ns);
    memset(&book->waiting, 0, sizeof book->waiting);
    return true;
}

/* Makes a proposal the offer, under its number. decision NULL: nobody was asked. */
static void
offer(struct proposal_book *book, const struct proposal *proposal,
      const struct proposal_decision *decision, uint64_t wall_ns)
{
    uint32_t kept = proposal_count_changes(book, wall_ns);

    if (!proposal->is_home && kept == PROPOSAL_AWAY_MAX) {
        memmove(book->away_wall_ns, book->away_wall_ns + 1, (kept - 1) * sizeof(uint64_t));
        book->away_count = --kept;
    }
    if (!proposal->is_home)
        book->away_wall_ns[book->away_count++] = wall_ns;
    book->offer = *proposal;
    book->offer.made_wall_ns = wall_ns;
    if (decision) {
        book->offer.decided =
            decision->word == PROPOSAL_GO_BACK ? PROPOSAL_BACK : PROPOSAL_APPROVED;
        book->offer.node = decision->node;
    }
}

/* A proposal with the next number. */
static void
give_number(struct proposal_book *book, struct proposal *proposal, const struct proposal *from,
            uint64_t wall_ns)
{
    *proposal = *from;
    proposal->placement.number = ++book->last_number;
    proposal->made_wall_ns = wall_ns;
}

static void
clear_denials(struct proposal_book *book)
{
    book->is_all_denied = false;
    book->denied_count = 0;
    memset(book->denied, 0, sizeof book->denied);
    memset(&book->denied_at, 0, sizeof book->denied_at);
}

/* Denials hold for one evidence: others end with it. */
static void
set_evidence(struct proposal_book *book, const struct proposal_slow *slow)
{
    if (!proposal_is_same_slow(&book->denied_at, slow)) {
        clear_denials(book);
        book->denied_at = *slow;
    }
}

static void
deny(struct proposal_book *book, const struct proposal *proposal)
{
    set_evidence(book, &proposal->slow);
    if (book->denied_count == PROPOSAL_DENIED_MAX) {
        book->denied_count--;
        memmove(book->denied, book->denied + 1, book->denied_count * sizeof *book->denied);
    }
    book->denied[book->denied_count++] = proposal_name(&proposal->placement);
}

static bool
is_denied(const struct proposal_book *book, const struct cairn_session_shares *placement)
{
    uint64_t name = proposal_name(placement);

    for (uint32_t i = 0; i < book->denied_count; i++)
        if (book->denied[i] == name)
            return true;
    return book->is_all_denied;
}

/* ---- rounds ---- */

/* The wanted placement is what the trainers were offered last, or was denied: none may wait. */
static uint32_t
want_nothing(struct proposal_book *book, const struct proposal_round *round)
{
    return end_waiting(book, PROPOSAL_WITHDRAWN, round->wall_ns) ? PROPOSAL_CHANGED | PROPOSAL_OVER
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
        *waiting = same;
        return PROPOSAL_CHANGED;
    }
    (void)end_waiting(book, PROPOSAL_REPLACED, wall_ns);
    give_number(book, waiting, wanted, wall_ns);
    return PROPOSAL_CHANGED | PROPOSAL_WAITS;
}

static uint32_t
offer_at_once(struct proposal_book *book, const struct proposal *wanted,
              const struct proposal_round *round)
{
    uint32_t changes = proposal_count_changes(book, round->wall_ns);
    struct proposal numbered;

    if (!wanted->is_home && (changes >= round->changes_per_day || changes >= PROPOSAL_AWAY_MAX))
        return PROPOSAL_SPENT;
    (void)end_waiting(book, PROPOSAL_REPLACED, round->wall_ns);
    give_number(book, &numbered, wanted, round->wall_ns);
    offer(book, &numbered, NULL, round->wall_ns);
    return PROPOSAL_CHANGED | PROPOSAL_OFFER;
}

uint32_t
proposal_take_round(struct proposal_book *book, const struct proposal_round *round)
{
    const struct proposal *wanted = round->plan ? round->plan : round->at_rest ? round->home : NULL;
    uint32_t follows = 0;

    if (!wanted)
        return 0; /* what is there stays until more is known */
    if ((book->denied_count || book->is_all_denied) &&
        !proposal_is_same_slow(&book->denied_at, &wanted->slow)) {
        clear_denials(book);
        follows = PROPOSAL_CHANGED;
    }
    if (proposal_is_same(&wanted->placement, &proposal_running(book, round->home)->placement) ||
        is_denied(book, &wanted->placement))
        follows |= want_nothing(book, round);
    else
        follows |= round->needs_approval ? propose(book, wanted, round->wall_ns)
                                         : offer_at_once(book, wanted, round);
    book->version += (follows & PROPOSAL_CHANGED) != 0;
    return follows;
}

/* ---- decisions ---- */

static const struct proposal_ended *
find_ended(const struct proposal_book *book, uint64_t number)
{
    for (uint32_t i = book->ended_count; i-- > 0;)
        if (book->ended[i].number == number)
            return &book->ended[i];
    return NULL;
}

static const struct proposal_ended *
find_token(const struct proposal_book *book, uint64_t token)
{
    for (uint32_t i = book->ended_count; i-- > 0;)
        if (book->ended[i].token == token)
            return &book->ended[i];
    return NULL;
}

static uint32_t
refuse(struct proposal_answer *out, int exit_code)
{
    out->exit_code = exit_code;
    return 0;
}

/* Why a proposal that was there waits no longer, and what to do. */
static uint32_t
refuse_ended(const struct proposal_book *book, const struct proposal_ended *ended, uint64_t wall_ns,
             struct proposal_answer *out)
{
    uint64_t age_s = wall_ns > ended->wall_ns ? (wall_ns - ended->wall_ns) / CAIRN_NS_PER_S : 0;
    size_t room = sizeof out->text;

    switch (ended->end) {
    case PROPOSAL_APPROVED:
        (void)snprintf(out->text, room,
                       "proposal %" PRIu64 ": approved %" PRIu64
                       " s ago at node %u, and the trainers have the offer; to undo it, run `cairn "
                       "replan --back`",
                       ended->number, age_s, ended->node);
        break;
    case PROPOSAL_DENIED:
        (void)snprintf(out->text, room,
                       "proposal %" PRIu64 ": denied %" PRIu64
                       " s ago at node %u; wait for the next proposal",
                       ended->number, age_s, ended->node);
        break;
    case PROPOSAL_REPLACED:
        if (book->waiting.placement.count)
            (void)snprintf(out->text, room,
                           "proposal %" PRIu64 ": replaced %" PRIu64
                           " s ago; look at proposal %" PRIu64
                           ", which waits now, with `cairn replan`",
                           ended->number, age_s, book->waiting.placement.number);
        else
            (void)snprintf(out->text, room,
                           "proposal %" PRIu64 ": replaced %" PRIu64
                           " s ago by a later one, which is over too; see `cairn replan`",
                           ended->number, age_s);
        break;
    case PROPOSAL_BACK:
        (void)snprintf(out->text, room,
                       "proposal %" PRIu64 ": withdrawn %" PRIu64
                       " s ago at node %u, where an operator went back to the home placement; wait "
                       "for the next proposal",
                       ended->number, age_s, ended->node);
        break;
    case PROPOSAL_WITHDRAWN:
        (void)snprintf(out->text, room,
                       "proposal %" PRIu64 ": withdrawn %" PRIu64
                       " s ago, since it gained nothing any more; wait for the next proposal",
                       ended->number, age_s);
        break;
    }
    return refuse(out, EXIT_FAILED);
}

/* The number is none of a proposal that waits. */
static uint32_t
refuse_number(const struct proposal_book *book, uint64_t wrong, uint64_t wall_ns,
              struct proposal_answer *out)
{
    const struct proposal_ended *ended = find_ended(book, wrong);

    if (ended)
        return refuse_ended(book, ended, wall_ns, out);
    if (book->offer.placement.count && wrong == book->offer.placement.number) {
        (void)snprintf(out->text, sizeof out->text,
                       "offer %" PRIu64
                       ": the trainers have it already; to undo it, run `cairn replan --back`",
                       wrong);
        return refuse(out, EXIT_FAILED);
    }
    if (wrong > 0 && wrong <= book->last_number) {
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": over for long; see `cairn replan`", wrong);
        return refuse(out, EXIT_FAILED);
    }
    if (book->waiting.placement.count)
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": there is none with this number; %" PRIu64
                       " is the one that waits",
                       wrong, book->waiting.placement.number);
    else
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": there is none with this number, and none waits; see "
                       "`cairn replan`",
                       wrong);
    return refuse(out, EXIT_USAGE);
}

static uint32_t
answer(struct proposal_answer *out, const struct cairn_session_shares *placement, uint32_t follows)
{
    char text[PROPOSAL_TEXT_BYTES];

    out->number = placement->number;
    (void)snprintf(out->text, sizeof out->text, "micro-batches %s",
                   proposal_describe(placement, text));
    return follows;
}

/* The answer to a decision that was carried out before. */
static uint32_t
answer_again(const struct proposal_book *book, const struct proposal_ended *repeated,
             struct proposal_answer *out)
{
    if (book->offer.placement.count && book->offer.placement.number == repeated->number)
        return answer(out, &book->offer.placement, 0);
    out->number = repeated->number;
    (void)snprintf(out->text, sizeof out->text, "carried out before");
    return 0;
}

static uint32_t
decide_waiting(struct proposal_book *book, const struct proposal_decision *decision,
               const struct proposal_scene *scene, struct proposal_answer *out)
{
    bool approves = decision->word == PROPOSAL_APPROVE;
    struct proposal waiting = book->waiting;

    if (waiting.placement.count == 0 || waiting.placement.number != decision->number)
        return refuse_number(book, decision->number, scene->wall_ns, out);
    if (decision->name != proposal_name(&waiting.placement)) {
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64
                       ": node %u has another placement under this number; run `cairn replan` "
                       "again in 10 s",
                       decision->number, decision->node);
        return refuse(out, EXIT_FAILED);
    }
    if (approves)
        offer(book, &waiting, decision, scene->wall_ns);
    else
        deny(book, &waiting);
    note_end(book, decision->number, approves ? PROPOSAL_APPROVED : PROPOSAL_DENIED, decision,
             scene->wall_ns);
    memset(&book->waiting, 0, sizeof book->waiting);
    return answer(out, &waiting.placement, PROPOSAL_CHANGED | (approves ? PROPOSAL_OFFER : 0));
}

static uint32_t
go_back(struct proposal_book *book, const struct proposal_decision *decision,
        const struct proposal_scene *scene, struct proposal_answer *out)
{
    const struct proposal *running = proposal_running(book, scene->home);
    struct proposal home;

    if (proposal_is_same(&running->placement, &scene->home->placement)) {
        if (book->waiting.placement.count)
            (void)snprintf(out->text, sizeof out->text,
                           "home placement: the trainers have it; to refuse proposal %" PRIu64
                           ", run `cairn replan --deny %" PRIu64 "`",
                           book->waiting.placement.number, book->waiting.placement.number);
        else
            (void)snprintf(
                out->text, sizeof out->text,
                "home placement: the trainers have it; there is nothing to go back from");
        return refuse(out, EXIT_FAILED);
    }
    if (book->waiting.placement.count) {
        note_end(book, book->waiting.placement.number, PROPOSAL_BACK, decision, scene->wall_ns);
        memset(&book->waiting, 0, sizeof book->waiting);
    }
    set_evidence(book, scene->slow);
    book->is_all_denied = true;
    give_number(book, &home, scene->home, scene->wall_ns);
    offer(book, &home, decision, scene->wall_ns);
    note_end(book, home.placement.number, PROPOSAL_BACK, decision, scene->wall_ns);
    return answer(out, &home.placement, PROPOSAL_CHANGED | PROPOSAL_OFFER);
}

uint32_t
proposal_decide(struct proposal_book *book, const struct proposal_decision *decision,
                const struct proposal_scene *scene, struct proposal_answer *out)
{
    const struct proposal_ended *repeated = find_token(book, decision->token);
    uint32_t follows;

    *out = (struct proposal_answer){.number = decision->number};
    if (repeated)
        return answer_again(book, repeated, out);
    if (!scene->home) {
        (void)snprintf(out->text, sizeof out->text,
                       "plan: the agent that analyses the job plans nothing; set problem and "
                       "plan_policy in its file");
        return refuse(out, EXIT_DENIED);
    }
    if (decision->word == PROPOSAL_GO_BACK) {
        follows = go_back(book, decision, scene, out);
    } else if (!scene->needs_approval) {
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64
                       ": plan_policy is enforce, so plans are offered without approval; to undo "
                       "one, run `cairn replan --back`",
                       decision->number);
        return refuse(out, EXIT_DENIED);
    } else {
        follows = decide_waiting(book, decision, scene, out);
    }
    book->version += (follows & PROPOSAL_CHANGED) != 0;
    return follows;
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
