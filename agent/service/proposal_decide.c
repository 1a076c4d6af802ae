/* agent/service/proposal_decide.c - the effect of an operator's decision on a book, or its refusal;
 * see proposal.h. */
#include "agent/service/proposal_book.h"

#include "base/clock.h"
#include "client/placement_bugs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 64, EXIT_DENIED = 77 };

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
        if (book->ended[i].token == token && !PLACEMENT_BUG(DECIDES_TWICE))
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
    else if (book->relaunch.placement.count)
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": there is none with this number; relaunch %" PRIu64
                       " waits",
                       wrong, book->relaunch.placement.number);
    else
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": there is none with this number, and none waits; see "
                       "`cairn replan`",
                       wrong);
    return refuse(out, EXIT_USAGE);
}

/* A gate that holds for operators too refuses their decision. */
static uint32_t
refuse_gate(enum proposal_gate gate, struct proposal_answer *out)
{
    (void)snprintf(out->text, sizeof out->text, "plan: %s; training goes on as before",
                   proposal_gate_why(gate));
    return refuse(out, EXIT_FAILED);
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
    if (approves && scene->waiting_gate)
        return refuse_gate(scene->waiting_gate, out);
    if (approves)
        book_offer(book, &waiting, decision, 0, scene->wall_ns);
    else
        book_deny(book, &waiting, decision->for_ns ? scene->wall_ns + decision->for_ns : 0);
    book_note_end(book, decision->number, approves ? PROPOSAL_APPROVED : PROPOSAL_DENIED, decision,
                  scene->wall_ns);
    memset(&book->waiting, 0, sizeof book->waiting);
    return answer(out, &waiting.placement, PROPOSAL_CHANGED | (approves ? PROPOSAL_OFFER : 0));
}

/* Makes a relaunch the shape that the launchers carry out. */
static void
approve_relaunch(struct proposal_book *book, const struct proposal *relaunch,
                 const struct proposal_decision *decision, uint64_t wall_ns)
{
    (void)book_end_waiting(book, PROPOSAL_REPLACED, wall_ns); /* it is for the shape of now */
    book->shape = *relaunch;
    book->shape.made_wall_ns = wall_ns;
    book->shape.decided = decision->word == PROPOSAL_GO_BACK ? PROPOSAL_BACK : PROPOSAL_APPROVED;
    book->shape.node = decision->node;
    book_begin_story(book, &book->shape, 0, wall_ns);
}

static uint32_t
answer_relaunch(struct proposal_answer *out, const struct proposal *relaunch)
{
    char text[PROPOSAL_TEXT_BYTES];

    out->number = relaunch->placement.number;
    (void)snprintf(out->text, sizeof out->text, "%s", proposal_describe_full(relaunch, text));
    return PROPOSAL_CHANGED;
}

/* A decision about the relaunch that waits. */
static uint32_t
decide_relaunch(struct proposal_book *book, const struct proposal_decision *decision,
                const struct proposal_scene *scene, struct proposal_answer *out)
{
    bool approves = decision->word == PROPOSAL_APPROVE;
    struct proposal relaunch = book->relaunch;

    if (decision->name != proposal_full_name(&relaunch)) {
        (void)snprintf(out->text, sizeof out->text,
                       "proposal %" PRIu64 ": node %u has another relaunch under this number; run "
                       "`cairn replan` again in 10 s",
                       decision->number, decision->node);
        return refuse(out, EXIT_FAILED);
    }
    book_note_end(book, decision->number, approves ? PROPOSAL_APPROVED : PROPOSAL_DENIED, decision,
                  scene->wall_ns);
    memset(&book->relaunch, 0, sizeof book->relaunch);
    if (approves)
        approve_relaunch(book, &relaunch, decision, scene->wall_ns);
    else
        book_deny(book, &relaunch, decision->for_ns ? scene->wall_ns + decision->for_ns : 0);
    return answer_relaunch(out, &relaunch);
}

/* The job runs in the shape of a relaunch: home is another relaunch. */
static uint32_t
go_back_by_relaunch(struct proposal_book *book, const struct proposal_decision *decision,
                    const struct proposal_scene *scene, struct proposal_answer *out)
{
    struct proposal home;

    if (!scene->home_shape) {
        (void)snprintf(out->text, sizeof out->text,
                       "home placement: its replicas are not divided alike, so no relaunch leads "
                       "there; end the job, and start it with --resume");
        return refuse(out, EXIT_FAILED);
    }
    (void)book_end_relaunch(book, PROPOSAL_BACK, scene->wall_ns);
    book_set_evidence(book, scene->slow);
    book->is_all_denied = true;
    book_give_number(book, &home, scene->home_shape, scene->wall_ns);
    approve_relaunch(book, &home, decision, scene->wall_ns);
    book_note_end(book, home.placement.number, PROPOSAL_BACK, decision, scene->wall_ns);
    return answer_relaunch(out, &home);
}

/* The relaunch that leads home is approved, but the job still runs in the other shape. */
static uint32_t
refuse_underway(const struct proposal_book *book, struct proposal_answer *out)
{
    (void)snprintf(out->text, sizeof out->text,
                   "home placement: relaunch %" PRIu64
                   ", which leads there, is approved; wait until the job has started again",
                   book->shape.placement.number);
    return refuse(out, EXIT_FAILED);
}

static uint32_t
go_back(struct proposal_book *book, const struct proposal_decision *decision,
        const struct proposal_scene *scene, struct proposal_answer *out)
{
    const struct proposal *running = proposal_running(book, scene->home);
    struct proposal home;

    if (book->shape.placement.count && !book->shape.is_home)
        return go_back_by_relaunch(book, decision, scene, out);
    if (proposal_relaunches(book))
        return refuse_underway(book, out);
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
    if (scene->home_gate)
        return refuse_gate(scene->home_gate, out);
    if (book->waiting.placement.count) {
        book_note_end(book, book->waiting.placement.number, PROPOSAL_BACK, decision,
                      scene->wall_ns);
        memset(&book->waiting, 0, sizeof book->waiting);
    }
    (void)book_end_relaunch(book, PROPOSAL_BACK, scene->wall_ns);
    book_set_evidence(book, scene->slow);
    book->is_all_denied = true;
    book_give_number(book, &home, scene->home, scene->wall_ns);
    book_offer(book, &home, decision, 0, scene->wall_ns);
    book_note_end(book, home.placement.number, PROPOSAL_BACK, decision, scene->wall_ns);
    return answer(out, &home.placement, PROPOSAL_CHANGED | PROPOSAL_OFFER);
}

/* Offers the best plan at once, although the cost of slow ranks so far does not justify it. */
static uint32_t
offer_now(struct proposal_book *book, const struct proposal_decision *decision,
          const struct proposal_scene *scene, struct proposal_answer *out)
{
    const struct proposal *running = proposal_running(book, scene->home);
    struct proposal best;

    if (book->shape.placement.count && !book->shape.is_home) {
        (void)snprintf(out->text, sizeof out->text,
                       "plan: relaunch %" PRIu64 " is approved, so the problem's plan is for other "
                       "ranks; run `cairn replan --back` first",
                       book->shape.placement.number);
        return refuse(out, EXIT_FAILED);
    }
    if (proposal_relaunches(book))
        return refuse_underway(book, out);
    if (!scene->best) {
        (void)snprintf(out->text, sizeof out->text,
                       "plan: no other plan gains enough for what is known to be slow now; see "
                       "`cairn status` for the verdicts");
        return refuse(out, EXIT_FAILED);
    }
    if (proposal_is_same(&running->placement, &scene->best->placement)) {
        (void)snprintf(out->text, sizeof out->text,
                       "plan: the trainers have the best placement that is known; wait for "
                       "another verdict");
        return refuse(out, EXIT_FAILED);
    }
    if (scene->best_gate)
        return refuse_gate(scene->best_gate, out);
    (void)book_end_waiting(book, PROPOSAL_REPLACED, scene->wall_ns);
    book_give_number(book, &best, scene->best, scene->wall_ns);
    book_offer(book, &best, decision, 0, scene->wall_ns);
    book_note_end(book, best.placement.number, PROPOSAL_APPROVED, decision, scene->wall_ns);
    return answer(out, &best.placement, PROPOSAL_CHANGED | PROPOSAL_OFFER);
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
    if ((decision->word == PROPOSAL_APPROVE || decision->word == PROPOSAL_DENY) &&
        book->relaunch.placement.count && book->relaunch.placement.number == decision->number) {
        follows = decide_relaunch(book, decision, scene, out);
    } else if (decision->word == PROPOSAL_GO_BACK) {
        follows = go_back(book, decision, scene, out);
    } else if (decision->word == PROPOSAL_NOW) {
        follows = offer_now(book, decision, scene, out);
    } else if (!scene->needs_approval && book->waiting.placement.count == 0) {
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
