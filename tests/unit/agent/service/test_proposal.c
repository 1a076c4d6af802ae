/*
 * tests/unit/agent/service/test_proposal.c - the book of placements: each transition and refusal by
 * itself. tests/placements runs many schedules.
 */
#include "agent/service/proposal.h"
#include "agent/service/proposal_plan.h"

#include "base/clock.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S CAIRN_NS_PER_S
#define DAY (UINT64_C(86400) * S)
enum { REPLICAS = 2 };

/* 10 micro-batches; replica 0 has `first`. */
static struct proposal
placing(uint32_t first, double rate)
{
    struct proposal made = {
        .placement = {.count = REPLICAS, .parts = {first, 10 - first}},
        .is_home = first == 5,
        .action = first == 5 ? CAIRN_REPLAN_NONE : CAIRN_REPLAN_MICROBATCHES,
        .current_ms = first == 5 ? INFINITY : 200,
        .step_ms = 100,
        .bound_ms = 90,
    };

    if (rate > 1)
        made.slow = (struct proposal_slow){.count = 1, .ranks = {7}, .rates = {rate}};
    return made;
}

static struct proposal_round
round_of(const struct proposal *home, const struct proposal *plan, bool needs_approval,
         uint64_t wall_ns)
{
    return (struct proposal_round){.home = home,
                                   .plan = plan,
                                   .at_rest = plan == NULL,
                                   .needs_approval = needs_approval,
                                   .changes_per_day = 4,
                                   .standstill_per_day_ns = 60 * S,
                                   .wall_ns = wall_ns};
}

/* A round in which `first` for replica 0 is best, while a rank is `rate` times slow. */
static uint32_t
plan(struct proposal_book *book, uint32_t first, double rate, bool needs_approval, uint64_t wall_ns)
{
    struct proposal home = placing(5, rate), wanted = placing(first, rate);
    struct proposal_round round =
        round_of(&home, first == 5 ? NULL : &wanted, needs_approval, wall_ns);

    return proposal_take_round(book, &round);
}

/* The same under approval, once other evidence than that of the denials has lasted long enough. */
static uint32_t
plan_anew(struct proposal_book *book, uint32_t first, double rate, uint64_t wall_ns)
{
    struct proposal home = placing(5, rate), wanted = placing(first, rate);
    struct proposal_round round = round_of(&home, &wanted, true, wall_ns);

    round.is_other_evidence = true;
    return proposal_take_round(book, &round);
}

static uint64_t
name_of(uint32_t first)
{
    struct proposal made = placing(first, 1);

    return proposal_name(&made.placement);
}

/* An operator at node 2 decides, at 100 s. */
static uint32_t
decide(struct proposal_book *book, enum proposal_word word, uint64_t number, uint64_t token,
       struct proposal_answer *out)
{
    struct proposal home = placing(5, 2);
    struct proposal_scene scene = {
        .home = &home, .slow = &home.slow, .needs_approval = true, .wall_ns = 100 * S};
    struct proposal_decision decision = {.word = word, .number = number, .token = token, .node = 2};

    if (book->waiting.placement.number == number)
        decision.name = proposal_name(&book->waiting.placement);
    if (book->relaunch.placement.number == number)
        decision.name = proposal_full_name(&book->relaunch);
    return proposal_decide(book, &decision, &scene, out);
}

#define assert_refused(code, said)                                                                 \
    do {                                                                                           \
        assert_int_equal(answer.exit_code, code);                                                  \
        if (!strstr(answer.text, said))                                                            \
            fail_msg("\"%s\" does not say \"%s\"", answer.text, said);                             \
    } while (0)

/* ---- one book ---- */

static void
test_a_proposal_waits_until_it_is_approved(void **state)
{
    static struct proposal_book book, before;
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    assert_int_equal(plan(&book, 5, 1, true, 1 * S), 0); /* home is what runs */
    assert_int_equal(book.version, 0);
    assert_int_equal(plan(&book, 8, 2, true, 90 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(book.waiting.placement.number, 1);
    assert_int_equal(book.offer.placement.count, 0);
    before = book;
    assert_int_equal(plan(&book, 8, 2.1, true, 91 * S), 0); /* the same once more */
    assert_memory_equal(&book, &before, sizeof book);
    assert_int_equal(plan(&book, 8, 3, true, 92 * S), PROPOSAL_CHANGED); /* at other rates */
    assert_int_equal(book.waiting.placement.number, 1);
    assert_true(book.waiting.made_wall_ns == 90 * S && book.waiting.slow.rates[0] > 2.9);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 1, 11, &answer),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(answer.exit_code, 0);
    assert_string_equal(answer.text, "micro-batches 8 | 2");
    assert_int_equal(book.offer.placement.number, 1);
    assert_true(book.offer.decided == PROPOSAL_APPROVED && book.offer.node == 2);
    assert_int_equal(book.waiting.placement.count, 0);
    assert_int_equal(proposal_count_changes(&book, 101 * S), 1);
    assert_int_equal(plan(&book, 8, 3, true, 102 * S), 0); /* it runs */
    assert_int_equal(plan(&book, 5, 1, true, 103 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_true(book.waiting.is_home && book.waiting.placement.number == 2);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 2, 12, &answer),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(proposal_count_changes(&book, 104 * S), 1); /* going home is none */
    assert_int_equal(proposal_count_changes(&book, 101 * S + DAY), 0);
}

static void
test_late_decisions_are_refused(void **state)
{
    static struct proposal_book book, before;
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 1, 10, &answer), 0);
    assert_refused(64, "proposal 1: there is none with this number, and none waits");
    (void)plan(&book, 8, 2, true, 90 * S);
    (void)plan(&book, 7, 2, true, 95 * S); /* 1 is replaced by 2 */
    before = book;
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 1, 11, &answer), 0);
    assert_refused(1, "proposal 1: replaced 5 s ago; look at proposal 2, which waits now");
    assert_int_equal(decide(&book, PROPOSAL_DENY, 3, 12, &answer), 0);
    assert_refused(64, "proposal 3: there is none with this number; 2 is the one that waits");
    assert_int_equal(decide(&book, PROPOSAL_DENY, 0, 12, &answer), 0);
    assert_refused(64, "proposal 0: there is none");
    assert_memory_equal(&book, &before, sizeof book); /* refusals change nothing */
    assert_int_equal(plan(&book, 5, 1, true, 96 * S), PROPOSAL_CHANGED | PROPOSAL_OVER);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 2, 13, &answer), 0);
    assert_refused(1, "proposal 2: withdrawn 4 s ago, since it gained nothing any more; wait");
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 1, 13, &answer), 0);
    assert_refused(1, "proposal 1: replaced 5 s ago by a later one, which is over too");
    (void)plan(&book, 8, 2, true, 97 * S);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 3, 14, &answer),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(decide(&book, PROPOSAL_DENY, 3, 15, &answer), 0);
    assert_refused(1, "proposal 3: approved 0 s ago at node 2, and the trainers have the offer");
    for (uint32_t i = 0; i < 2 * PROPOSAL_ENDED_MAX; i++)
        (void)plan(&book, 6 + i % 2, 2, true, 98 * S);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 2, 16, &answer), 0);
    assert_refused(1, "proposal 2: over for long");
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 3, 16, &answer), 0);
    assert_refused(1, "offer 3: the trainers have it already");
}

static void
test_a_decision_that_arrives_twice_is_carried_out_once(void **state)
{
    static struct proposal_book book, before;
    struct proposal_answer answer;

    for (enum proposal_word word = PROPOSAL_APPROVE; word <= PROPOSAL_GO_BACK; word++) {
        memset(&book, 0, sizeof book);
        if (word == PROPOSAL_GO_BACK)
            (void)plan(&book, 8, 2, false, 90 * S);
        (void)plan(&book, 7, 2, true, 90 * S);
        assert_true(decide(&book, word, book.last_number, 11, &answer) & PROPOSAL_CHANGED);
        before = book;
        assert_int_equal(decide(&book, word, book.last_number, 11, &answer), 0);
        assert_int_equal(answer.exit_code, 0);
        assert_int_equal(answer.number, word == PROPOSAL_GO_BACK ? 3 : 1);
        assert_memory_equal(&book, &before, sizeof book);
        assert_int_equal(decide(&book, word, 1, 12, &answer), 0); /* another operator's */
        assert_int_equal(answer.exit_code, 1);
    }
}

/* Two agents planned while they were cut off from each other. */
static void
test_another_placement_of_the_same_number_is_not_approved(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2);
    struct proposal_scene scene = {
        .home = &home, .slow = &home.slow, .needs_approval = true, .wall_ns = 100 * S};
    struct proposal_decision decision = {
        .word = PROPOSAL_APPROVE, .number = 1, .name = name_of(7), .token = 11, .node = 2};
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, true, 90 * S);
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, "proposal 1: node 2 has another placement under this number");
    decision.name = 0; /* it knows of none */
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    decision.name = name_of(8);
    assert_true(proposal_decide(&book, &decision, &scene, &answer) & PROPOSAL_OFFER);
}

static void
test_a_denial_holds_for_its_evidence(void **state)
{
    static struct proposal_book book;
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, true, 90 * S);
    assert_int_equal(decide(&book, PROPOSAL_DENY, 1, 11, &answer), PROPOSAL_CHANGED);
    assert_int_equal(plan(&book, 8, 2, true, 101 * S), 0);
    assert_int_equal(plan(&book, 8, 2.4, true, 102 * S), 0); /* nearly the same rate */
    assert_int_equal(plan(&book, 8, 2, false, 102 * S), 0);  /* nor offered without asking */
    assert_int_equal(plan(&book, 7, 2, true, 103 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(plan(&book, 8, 2, true, 104 * S), PROPOSAL_CHANGED | PROPOSAL_OVER);
    (void)plan(&book, 7, 2, true, 105 * S);
    (void)decide(&book, PROPOSAL_DENY, 3, 12, &answer);
    assert_int_equal(book.denied_count, 2);
    assert_int_equal(plan(&book, 7, 2, true, 106 * S), 0);
    /* other ranks are slow for a moment: it is denied still */
    assert_int_equal(plan(&book, 8, 4, true, 107 * S), 0);
    assert_int_equal(plan(&book, 5, 1, true, 107 * S), 0);
    assert_int_equal(book.denied_count, 2);
    assert_int_equal(plan_anew(&book, 8, 4, 108 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(book.denied_count, 0);
    for (uint32_t i = 0; i < 3 * PROPOSAL_DENIED_MAX; i++) { /* only the last are kept */
        struct proposal home = placing(5, 4), wanted = placing(8, 4);
        struct proposal_round round = round_of(&home, &wanted, true, 110 * S);

        wanted.placement.parts[0] += i;
        (void)proposal_take_round(&book, &round);
        (void)decide(&book, PROPOSAL_DENY, book.last_number, 20 + i, &answer);
    }
    assert_int_equal(book.denied_count, PROPOSAL_DENIED_MAX);
}

static void
test_an_operator_goes_back(void **state)
{
    static struct proposal_book book;
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    assert_int_equal(decide(&book, PROPOSAL_GO_BACK, 0, 10, &answer), 0);
    assert_refused(1, "home placement: the trainers have it; there is nothing to go back from");
    (void)plan(&book, 8, 2, true, 90 * S);
    assert_int_equal(decide(&book, PROPOSAL_GO_BACK, 0, 10, &answer), 0);
    assert_refused(1, "home placement: the trainers have it; to refuse proposal 1, run");
    (void)decide(&book, PROPOSAL_APPROVE, 1, 11, &answer);
    (void)plan(&book, 7, 2, true, 91 * S);
    assert_int_equal(decide(&book, PROPOSAL_GO_BACK, 0, 12, &answer),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(answer.number, 3);
    assert_true(book.offer.is_home && book.offer.placement.number == 3);
    assert_int_equal(book.offer.decided, PROPOSAL_BACK);
    assert_int_equal(book.waiting.placement.count, 0);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 2, 13, &answer), 0);
    assert_refused(1, "proposal 2: withdrawn 0 s ago at node 2, where an operator went back");
    /* no placement is proposed or offered while the same ranks are slow */
    assert_int_equal(plan(&book, 7, 2, true, 101 * S), 0);
    assert_int_equal(plan(&book, 6, 2, false, 101 * S), 0);
    assert_int_equal(plan(&book, 6, 9, false, 102 * S), 0); /* nor others for a moment */
    assert_int_equal(plan_anew(&book, 6, 9, 103 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(book.waiting.placement.number, 4);
}

static void
test_without_approval_the_budget_counts(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2);
    struct proposal_scene scene = {.home = &home, .slow = &home.slow, .wall_ns = 100 * S};
    struct proposal_decision decision = {
        .word = PROPOSAL_APPROVE, .number = 1, .token = 11, .node = 2};
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(plan(&book, 7 + i % 2, 2, false, 90 * S),
                         PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(plan(&book, 7, 2, false, 90 * S), PROPOSAL_SPENT);
    assert_int_equal(book.offer.placement.number, 4);
    assert_int_equal(plan(&book, 5, 1, false, 91 * S), PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(plan(&book, 7, 2, false, 92 * S), PROPOSAL_SPENT);
    assert_int_equal(plan(&book, 7, 2, true, 92 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_true(decide(&book, PROPOSAL_APPROVE, 6, 10, &answer) & PROPOSAL_OFFER);
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(77, "plan_policy is enforce, so plans are offered without approval");
    scene.home = NULL;
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(77, "plans nothing; set problem and plan_policy");
    for (uint32_t i = 0; i < PROPOSAL_AWAY_MAX + 3; i++) { /* what operators approve is kept */
        (void)plan(&book, 7 + i % 2, 2, true, 93 * S);
        (void)decide(&book, PROPOSAL_APPROVE, book.last_number, 20 + i, &answer);
    }
    assert_int_equal(book.away_count, PROPOSAL_AWAY_MAX);
    assert_true(plan(&book, 6, 2, false, 100 * S + 2 * DAY) & PROPOSAL_OFFER);
}

static void
test_an_offer_that_brings_nothing_is_taken_back(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2);
    const struct proposal_story *story;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, false, 90 * S);
    assert_false(proposal_is_taken(&book));
    assert_int_equal(proposal_note_taken(&book, 200, 100, 91 * S), PROPOSAL_CHANGED);
    assert_true(proposal_is_taken(&book));
    assert_int_equal(proposal_note_taken(&book, 200, 100, 92 * S), 0); /* once */
    assert_int_equal(proposal_withdraw(&book, &home, PROPOSAL_TAKEN_BACK, 195, 1000 * S, 99 * S),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_true(book.offer.is_home && book.offer.placement.number == 2);
    assert_int_equal(proposal_count_changes(&book, 99 * S), 1); /* going back is none */
    story = proposal_story_of(&book, 1);
    assert_int_equal(story->fate, PROPOSAL_TAKEN_BACK);
    assert_true(story->after_ms > 194 && story->before_ms > 199);
    assert_int_equal(proposal_story_of(&book, 2)->withdraws, 1);
    assert_null(proposal_story_of(&book, 3));
    /* it is denied, no matter what is slow; others wait for an operator for a day */
    assert_int_equal(plan_anew(&book, 8, 4, 100 * S), 0);
    assert_int_equal(plan(&book, 7, 2, false, 101 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(plan(&book, 8, 2, false, 2000 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    assert_int_equal(plan(&book, 7, 2, false, 99 * S + DAY), PROPOSAL_CHANGED | PROPOSAL_OFFER);
}

static void
test_what_ran_before_is_offered_again(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2);

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, false, 90 * S);
    (void)proposal_note_taken(&book, 200, 100, 91 * S);
    (void)plan(&book, 7, 2, false, 92 * S); /* the ranks give it up */
    (void)proposal_withdraw(&book, proposal_before(&book, &home), PROPOSAL_FAILED, INFINITY, 10 * S,
                            93 * S);
    assert_int_equal(book.offer.placement.parts[0], 8);
    assert_int_equal(book.offer.placement.number, 3);
    assert_int_equal(proposal_story_of(&book, 2)->fate, PROPOSAL_FAILED);
    assert_int_equal(plan(&book, 7, 2, false, 94 * S), 0);
    assert_int_equal(plan(&book, 7, 2, false, 104 * S), PROPOSAL_CHANGED | PROPOSAL_OFFER);
}

static void
test_standstills_are_a_price_and_a_budget(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2), wanted = placing(8, 2);
    struct proposal_round round = round_of(&home, &wanted, false, 100 * S);
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    assert_int_equal(proposal_price_ns(&book), 0);
    (void)plan(&book, 8, 2, true, 90 * S);
    (void)decide(&book, PROPOSAL_APPROVE, 1, 11, &answer);
    assert_int_equal(proposal_note_standstill(&book, 1, 4 * S, 101 * S), PROPOSAL_CHANGED);
    assert_int_equal(proposal_note_standstill(&book, 1, 9 * S, 102 * S), 0); /* once per offer */
    assert_int_equal(proposal_note_standstill(&book, 7, 9 * S, 102 * S), 0); /* of no offer */
    assert_int_equal(proposal_price_ns(&book), 4 * S);
    assert_int_equal(proposal_spent_ns(&book, 103 * S), 4 * S); /* approved, and counted */
    for (uint32_t i = 2; i < 5; i++) {
        (void)plan(&book, 5 + i, 2, false, 103 * S);
        (void)proposal_note_standstill(&book, i, i * S, 103 * S);
    }
    assert_int_equal(proposal_price_ns(&book), 3 * S); /* the median of 2, 3 and 4 */
    assert_int_equal(proposal_spent_ns(&book, 103 * S), 13 * S);
    wanted.placement.parts[0] = 6;
    wanted.placement.parts[1] = 4;
    wanted.moved_layers = 1;
    wanted.cost_ms = 3000;
    round.changes_per_day = 99;
    round.standstill_per_day_ns = 15 * S; /* 13 are spent, and 3 more would be */
    assert_int_equal(proposal_take_round(&book, &round), PROPOSAL_SPENT);
    wanted.moved_layers = 0;
    assert_int_equal(proposal_take_round(&book, &round), PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(proposal_spent_ns(&book, 104 * S + DAY), 0);
}

static void
test_a_denial_for_a_time_and_an_offer_now(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2), best = placing(7, 2);
    struct proposal_scene scene = {
        .home = &home, .slow = &home.slow, .needs_approval = true, .wall_ns = 100 * S};
    struct proposal_decision decision = {
        .word = PROPOSAL_DENY, .number = 1, .name = name_of(8), .for_ns = 50 * S, .token = 1};
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, true, 90 * S);
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), PROPOSAL_CHANGED);
    assert_int_equal(plan_anew(&book, 8, 4, 149 * S), 0);
    assert_int_equal(plan(&book, 8, 2, true, 150 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    decision = (struct proposal_decision){.word = PROPOSAL_NOW, .token = 2};
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, "no other plan gains enough");
    scene.best = &best;
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(answer.number, 3);
    assert_int_equal(book.offer.placement.parts[0], 7);
    assert_int_equal(book.waiting.placement.count, 0);
    decision.token = 3;
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, "the trainers have the best placement");
}

static void
test_a_gate_refuses(void **state)
{
    static struct proposal_book book;
    struct proposal home = placing(5, 2), wanted = placing(7, 2), best = placing(8, 2);
    struct proposal_round round = round_of(&home, &wanted, false, 90 * S);
    struct proposal_scene scene = {
        .home = &home, .best = &best, .slow = &home.slow, .wall_ns = 100 * S};
    struct proposal_decision decision = {.word = PROPOSAL_NOW, .token = 7, .node = 2};
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    round.gate = PROPOSAL_GATE_COMMIT;
    assert_int_equal(proposal_take_round(&book, &round), PROPOSAL_SHUT);
    assert_int_equal(book.last_number, 0);
    assert_int_equal(plan(&book, 6, 2, true, 91 * S), PROPOSAL_CHANGED | PROPOSAL_WAITS);
    round.needs_approval = true;
    assert_int_equal(proposal_take_round(&book, &round), PROPOSAL_SHUT);
    assert_int_equal(book.waiting.placement.number, 1); /* waits on, for what it was */
    scene.needs_approval = true;
    scene.best_gate = scene.waiting_gate = PROPOSAL_GATE_SLOTS;
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, proposal_gate_why(PROPOSAL_GATE_SLOTS));
    decision = (struct proposal_decision){
        .word = PROPOSAL_APPROVE, .number = 1, .name = name_of(6), .token = 8, .node = 2};
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, proposal_gate_why(PROPOSAL_GATE_SLOTS));
    round.gate = PROPOSAL_GATE_GAIN;
    assert_int_equal(proposal_take_round(&book, &round),
                     PROPOSAL_SHUT | PROPOSAL_CHANGED | PROPOSAL_OVER);
    round.gate = PROPOSAL_GATE_NONE;
    round.needs_approval = false;
    wanted.refused = (struct proposal_refused){1u << PROPOSAL_GATE_GAIN, 3 * S};
    assert_int_equal(proposal_take_round(&book, &round), PROPOSAL_CHANGED | PROPOSAL_OFFER);
    assert_int_equal(proposal_story_of(&book, 2)->refused.gates, 1u << PROPOSAL_GATE_GAIN);
    scene.home_gate = PROPOSAL_GATE_RANKS;
    decision = (struct proposal_decision){.word = PROPOSAL_GO_BACK, .token = 9, .node = 2};
    assert_int_equal(proposal_decide(&book, &decision, &scene, &answer), 0);
    assert_refused(1, proposal_gate_why(PROPOSAL_GATE_RANKS));
    for (uint32_t gate = 0; gate < PROPOSAL_GATES; gate++)
        assert_non_null(proposal_gate_name((enum proposal_gate)gate));
}

static void
test_what_is_not_known_changes_nothing(void **state)
{
    static struct proposal_book book, before;
    struct proposal home = placing(5, 1);
    struct proposal_round round = {.home = &home, .needs_approval = true};

    memset(&book, 0, sizeof book);
    (void)plan(&book, 8, 2, true, 90 * S);
    before = book;
    assert_int_equal(proposal_take_round(&book, &round), 0); /* neither advice nor rest */
    assert_memory_equal(&book, &before, sizeof book);
    proposal_note_number(&book, 41); /* a trainer has run longer than this agent remembers */
    proposal_note_number(&book, UINT64_MAX);
    (void)plan(&book, 7, 2, true, 91 * S);
    assert_int_equal(book.waiting.placement.number, 42);
}

/* ---- relaunches ---- */

/* One pipeline of three stages on three nodes. */
static struct proposal
relaunching(uint32_t first_node)
{
    return (struct proposal){
        .placement = {.count = 1, .parts = {10}, .stages = 3, .layers = {4, 4, 4}},
        .shape = {.tp = 1, .node_count = 3, .nodes = {first_node, 4, 5}},
        .action = CAIRN_REPLAN_GROUPS,
        .current_ms = 200,
        .running_ms = 200,
        .step_ms = 100,
        .bound_ms = 90,
        .cost_ms = 30e3,
        .moved_bytes = 1000,
        .slow = {.count = 1, .ranks = {7}, .rates = {2}}};
}

static void
test_a_relaunch_waits_beside_a_proposal(void **state)
{
    static struct proposal_book book;
    const struct proposal one = relaunching(1), other = relaunching(2);
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 7, 2, true, 90 * S);
    assert_int_equal(proposal_want_relaunch(&book, &one, 91 * S),
                     PROPOSAL_CHANGED | PROPOSAL_RELAUNCH);
    assert_int_equal(book.waiting.placement.number, 1);
    assert_int_equal(book.relaunch.placement.number, 2);
    assert_int_equal(proposal_want_relaunch(&book, &one, 92 * S), 0); /* it waits already */
    (void)proposal_want_relaunch(&book, &other, 93 * S);
    assert_int_equal(book.relaunch.placement.number, 3);
    (void)decide(&book, PROPOSAL_APPROVE, 2, 5, &answer);
    assert_refused(1, "proposal 2: replaced");
    (void)proposal_want_relaunch(&book, NULL, 94 * S);
    (void)decide(&book, PROPOSAL_APPROVE, 3, 6, &answer);
    assert_refused(1, "proposal 3: withdrawn");
    assert_int_equal(book.shape.placement.count, 0);
    (void)proposal_want_relaunch(&book, &one, 95 * S);
    (void)decide(&book, PROPOSAL_DENY, 4, 7, &answer);
    assert_int_equal(answer.exit_code, 0);
    assert_int_equal(proposal_want_relaunch(&book, &one, 96 * S), 0); /* it was denied */
    assert_int_equal(proposal_want_relaunch(&book, &other, 97 * S),
                     PROPOSAL_CHANGED | PROPOSAL_RELAUNCH);
    assert_int_equal(book.waiting.placement.number, 1); /* untouched by all that */
}

static void
test_an_approved_relaunch(void **state)
{
    static struct proposal_book book;
    const struct proposal wanted = relaunching(1);
    struct proposal home_shape = relaunching(0);
    struct proposal home = placing(5, 2);
    struct proposal_scene scene = {
        .home = &home, .slow = &home.slow, .needs_approval = false, .wall_ns = 200 * S};
    struct proposal_decision back = {.word = PROPOSAL_GO_BACK, .token = 99, .node = 1};
    const struct proposal_decision now = {.word = PROPOSAL_NOW, .token = 98, .node = 1};
    const struct proposal_story *story;
    struct proposal_answer answer;

    memset(&book, 0, sizeof book);
    (void)plan(&book, 7, 2, false, 89 * S); /* an offer to the trainers */
    (void)plan(&book, 8, 2, true, 90 * S);  /* and a proposal */
    (void)proposal_want_relaunch(&book, &wanted, 91 * S);
    assert_int_equal(decide(&book, PROPOSAL_APPROVE, 3, 5, &answer), PROPOSAL_CHANGED);
    assert_non_null(strstr(answer.text, "1 x 3 stages of 1 device on nodes 1, 4, 5"));
    assert_int_equal(book.shape.placement.number, 3);
    assert_int_equal(book.relaunch.placement.count, 0);
    assert_int_equal(book.waiting.placement.count, 0);    /* it was for the shape of now */
    (void)decide(&book, PROPOSAL_APPROVE, 3, 6, &answer); /* a second operator */
    assert_refused(1, "proposal 3: approved");
    (void)decide(&book, PROPOSAL_APPROVE, 3, 5, &answer); /* the same decision again */
    assert_int_equal(answer.exit_code, 0);

    /* its story does not disturb that of the offer */
    story = proposal_story_of(&book, 3);
    assert_true(story->is_relaunch);
    assert_int_equal(story->fate, PROPOSAL_OFFERED);
    assert_int_equal(proposal_note_taken(&book, 200, 100, 101 * S), PROPOSAL_CHANGED);
    assert_int_equal(proposal_story_of(&book, 1)->fate, PROPOSAL_TAKEN);
    assert_true(proposal_relaunches(&book));
    assert_int_equal(proposal_note_relaunched(&book, 210, 4 * S, 110 * S), PROPOSAL_CHANGED);
    assert_false(proposal_relaunches(&book));
    assert_int_equal(story->fate, PROPOSAL_TAKEN);
    assert_true(story->expected_ms > 104.9 && story->expected_ms < 105.1);
    assert_int_equal(book.relaunch_ns, 4 * S);
    assert_int_equal(proposal_note_relaunch_kept(&book, 107), PROPOSAL_CHANGED);
    assert_int_equal(story->fate, PROPOSAL_KEPT);
    assert_int_equal(proposal_end_relaunch(&book, 111 * S), 0); /* it was carried out */

    /* other placements are for other ranks */
    scene.best = &home;
    assert_int_equal(proposal_decide(&book, &now, &scene, &answer), 0);
    assert_refused(1, "relaunch 3 is approved");

    /* going back is another relaunch, if home is divided alike */
    (void)proposal_decide(&book, &back, &scene, &answer);
    assert_refused(1, "not divided alike");
    home_shape.is_home = true;
    scene.home_shape = &home_shape;
    assert_int_equal(proposal_decide(&book, &back, &scene, &answer), PROPOSAL_CHANGED);
    assert_true(book.shape.is_home && book.shape.decided == PROPOSAL_BACK);
    assert_int_equal(proposal_want_relaunch(&book, &wanted, 201 * S), 0); /* all is denied */
    /* nobody carries it out */
    assert_int_equal(proposal_end_relaunch(&book, 900 * S), PROPOSAL_CHANGED);
    assert_int_equal(book.shape.placement.count, 0);
    assert_int_equal(book.stories[book.story_count - 1].fate, PROPOSAL_AGED);
}

/* ---- as bytes ---- */

static void
fill(struct proposal_book *book)
{
    struct proposal_answer answer;

    memset(book, 0, sizeof *book);
    (void)plan(book, 8, 2, false, 90 * S);
    (void)plan(book, 7, 2, true, 91 * S);
    (void)decide(book, PROPOSAL_DENY, 2, 5, &answer);
    (void)plan(book, 6, 2, true, 92 * S);
    book->waiting.placement.stages = 2;
    memcpy(book->waiting.placement.layers, (uint32_t[]){4, 4, 1, 7}, 4 * sizeof(uint32_t));
    book->offer.refused.gates = book->stories[0].refused.gates = 1u << PROPOSAL_GATE_SLOTS;
    book->offer.refused.ns = book->stories[0].refused.ns = 5 * S;
    book->relaunch = relaunching(2);
    book->relaunch.placement.number = book->last_number;
    book->relaunch_ns = 7 * S;
}

static void
test_books_travel(void **state)
{
    static struct proposal_book book, back;
    static uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX];
    size_t used;

    fill(&book);
    used = proposal_pack(&book, bytes);
    assert_true(used > 0);
    assert_int_equal(proposal_unpack(bytes, used, &back), CAIRN_OK);
    assert_memory_equal(&back, &book, sizeof book);
    for (size_t cut = 0; cut < used; cut++)
        assert_int_equal(proposal_unpack(bytes, cut, &back), CAIRN_CORRUPT);
    assert_memory_equal(&back, &book, sizeof book); /* untouched */
    bytes[used] = 0;
    assert_int_equal(proposal_unpack(bytes, used + 1, &back), CAIRN_CORRUPT);
    bytes[0]++;
    assert_int_equal(proposal_unpack(bytes, used, &back), CAIRN_VERSION);
    /* the largest one */
    memset(&book, 0, sizeof book);
    for (uint32_t i = 0; i < PROPOSAL_ENDED_MAX; i++)
        book.ended[book.ended_count++] = (struct proposal_ended){.end = PROPOSAL_APPROVED};
    book.denied_count = PROPOSAL_DENIED_MAX;
    book.away_count = PROPOSAL_AWAY_MAX;
    book.offer.placement.count = CAIRN_REPLICAS_MAX;
    book.offer.placement.stages = CAIRN_STAGES_MAX / CAIRN_REPLICAS_MAX;
    for (uint32_t i = 0; i < CAIRN_REPLICAS_MAX; i++)
        book.offer.placement.parts[i] = book.offer.placement.layers[i] = 1;
    book.offer.slow.count = book.denied_at.count = 5000;
    for (uint32_t i = 0; i < PROPOSAL_SLOW_MAX; i++)
        book.offer.slow.ranks[i] = book.denied_at.ranks[i] = i;
    book.waiting = book.before = book.offer;
    book.relaunch = relaunching(1);
    book.relaunch.placement.count = CAIRN_SHAPE_PARTS_MAX;
    book.relaunch.placement.stages = CAIRN_STAGES_MAX / CAIRN_SHAPE_PARTS_MAX;
    for (uint32_t i = 0; i < CAIRN_STAGES_MAX; i++)
        book.relaunch.placement.layers[i] = 1;
    for (uint32_t i = 0; i < CAIRN_SHAPE_PARTS_MAX; i++)
        book.relaunch.placement.parts[i] = 1;
    book.relaunch.shape.node_count = CAIRN_SHAPE_NODES_MAX;
    book.relaunch.slow = book.offer.slow;
    book.shape = book.relaunch;
    book.spent_count = PROPOSAL_SPENT_MAX;
    book.standstill_count = PROPOSAL_STANDSTILLS;
    for (uint32_t i = 0; i < PROPOSAL_STORIES_MAX; i++) {
        struct proposal_story *story = &book.stories[book.story_count++];

        *story = (struct proposal_story){.fate = PROPOSAL_KEPT, .slow = book.offer.slow};
        memset(story->text, 'x', sizeof story->text - 1);
    }
    used = proposal_pack(&book, bytes);
    assert_int_equal(used, PROPOSAL_BOOK_BYTES_MAX);
    assert_int_equal(proposal_unpack(bytes, used, &back), CAIRN_OK);
    assert_memory_equal(&back, &book, sizeof book);
}

/* Every byte is changed in turn: what comes out, if anything does, is a book that can be used. */
static void
test_damaged_books(void **state)
{
    static struct proposal_book book, back;
    static uint8_t bytes[PROPOSAL_BOOK_BYTES_MAX], again[PROPOSAL_BOOK_BYTES_MAX];
    size_t used;

    fill(&book);
    used = proposal_pack(&book, bytes);
    for (size_t at = 0; at < used; at += CASE_STRIDE)
        for (uint32_t bit = 0; bit < 8; bit++) {
            bytes[at] ^= (uint8_t)(1u << bit);
            if (proposal_unpack(bytes, used, &back) == CAIRN_OK) {
                assert_true(back.last_number >= back.waiting.placement.number);
                for (uint32_t i = 0; i < back.offer.placement.count; i++)
                    assert_true(back.offer.placement.parts[i] > 0);
                assert_int_equal(proposal_pack(&back, again), used);
                assert_memory_equal(again, bytes, used);
            }
            bytes[at] ^= (uint8_t)(1u << bit);
        }
}

static void
test_the_newer_book_is_taken(void **state)
{
    static struct proposal_book one, other;

    fill(&one);
    memset(&other, 0, sizeof other);
    assert_int_equal(proposal_hear(&one, &other), 0);
    proposal_note_number(&other, 77);
    assert_int_equal(proposal_hear(&other, &one),
                     PROPOSAL_CHANGED | PROPOSAL_OFFER | PROPOSAL_WAITS);
    assert_int_equal(other.waiting.placement.number, one.waiting.placement.number);
    assert_int_equal(other.last_number, 77); /* no number is given twice */
    assert_int_equal(proposal_hear(&other, &one), 0);
    (void)plan(&one, 8, 2, true, 99 * S); /* what runs */
    assert_int_equal(proposal_hear(&other, &one), PROPOSAL_CHANGED | PROPOSAL_OVER);
}

/* ---- moves ---- */

static struct cairn_adviser *
six_devices(void)
{
    static const char text[] =
        "{\"layers\": 12, \"layer_ms\": 2, \"microbatches\": 8, \"tp_cost\": {\"1\": 1}, "
        "\"layer_bytes\": 10, \"devices\": ["
        "{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 1000},"
        "{\"id\": 1, \"node\": 1, \"rate\": 1, \"memory_bytes\": 1000},"
        "{\"id\": 2, \"node\": 2, \"rate\": 1, \"memory_bytes\": 1000},"
        "{\"id\": 3, \"node\": 3, \"rate\": 1, \"memory_bytes\": 1000},"
        "{\"id\": 4, \"node\": 4, \"rate\": 1, \"memory_bytes\": 1000},"
        "{\"id\": 5, \"node\": 5, \"rate\": 1, \"memory_bytes\": 1000}],"
        "\"current\": {\"pipelines\": ["
        "{\"microbatches\": 4, \"stages\": [{\"devices\": [0], \"layers\": [0, 4]}, "
        "{\"devices\": [1], \"layers\": [4, 8]}, {\"devices\": [2], \"layers\": [8, 12]}]},"
        "{\"microbatches\": 4, \"stages\": [{\"devices\": [3], \"layers\": [0, 4]}, "
        "{\"devices\": [4], \"layers\": [4, 8]}, {\"devices\": [5], \"layers\": [8, 12]}]}]}}";
    struct cairn_problem problem = {0};
    struct cairn_adviser *adviser = NULL;
    struct cairn_fault fault;

    assert_int_equal(cairn_problem_read(text, sizeof text - 1, &problem, &fault), CAIRN_OK);
    assert_int_equal(cairn_adviser_create(&problem, &adviser, &fault), CAIRN_OK);
    return adviser;
}

static void
test_what_changes_is_compared(void **state)
{
    static const struct cairn_session_shares home = {
        .count = 2, .parts = {4, 4}, .stages = 3, .layers = {4, 4, 4, 4, 4, 4}};
    struct proposal running = {.placement = home, .is_home = true};
    struct proposal to = {.placement = home, .cost_ms = 1000, .step_ms = 80};
    struct cairn_adviser *adviser = six_devices();

    proposal_compare(adviser, &running, &to);
    assert_int_equal(to.moved_layers, 0);
    assert_true(to.cost_ms < 1);                  /* which costs nothing */
    assert_true(fabs(to.running_ms - 48) < 1e-9); /* (4 + 3 - 1) micro-batches of 8 ms */
    to = (struct proposal){.placement = home, .cost_ms = 1000, .step_ms = 38};
    memcpy(to.placement.layers, (uint32_t[]){4, 4, 4, 5, 2, 5}, 6 * sizeof(uint32_t));
    proposal_compare(adviser, &running, &to);
    assert_int_equal(to.moved_layers, 2);
    assert_int_equal(to.moved_bytes, 20);
    assert_int_equal(to.payback_steps, 100); /* a second, at 10 ms a step */
    memcpy(to.placement.layers, (uint32_t[]){10, 1, 1, 4, 4, 4}, 6 * sizeof(uint32_t));
    proposal_compare(adviser, &running, &to); /* 4 … 9 to stage 0, 10 from stage 2 to 1 */
    assert_int_equal(to.moved_layers, 7);
    running.placement.layers[3] = 5; /* what runs is not the plan of the problem */
    running.placement.layers[4] = 3;
    proposal_compare(adviser, &running, &to);
    assert_true(fabs(to.running_ms - 54) < 1e-9); /* one stage has 10 ms now */
    to.placement.stages = 0;
    proposal_compare(adviser, &running, &to);
    assert_int_equal(to.moved_layers, 0);
    cairn_adviser_destroy(adviser);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_proposal_waits_until_it_is_approved),
        cmocka_unit_test(test_late_decisions_are_refused),
        cmocka_unit_test(test_a_decision_that_arrives_twice_is_carried_out_once),
        cmocka_unit_test(test_another_placement_of_the_same_number_is_not_approved),
        cmocka_unit_test(test_a_denial_holds_for_its_evidence),
        cmocka_unit_test(test_an_operator_goes_back),
        cmocka_unit_test(test_without_approval_the_budget_counts),
        cmocka_unit_test(test_an_offer_that_brings_nothing_is_taken_back),
        cmocka_unit_test(test_what_ran_before_is_offered_again),
        cmocka_unit_test(test_standstills_are_a_price_and_a_budget),
        cmocka_unit_test(test_a_denial_for_a_time_and_an_offer_now),
        cmocka_unit_test(test_a_gate_refuses),
        cmocka_unit_test(test_what_is_not_known_changes_nothing),
        cmocka_unit_test(test_a_relaunch_waits_beside_a_proposal),
        cmocka_unit_test(test_an_approved_relaunch),
        cmocka_unit_test(test_books_travel),
        cmocka_unit_test(test_damaged_books),
        cmocka_unit_test(test_the_newer_book_is_taken),
        cmocka_unit_test(test_what_changes_is_compared),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
