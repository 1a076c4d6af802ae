/*
 * tests/unit/client/test_placement.c - shares that change while training goes on: the rank's state
 * machine by itself, and many ranks of it around a model collective, with offers that are late,
 * lost, damaged or differ, agents that die, and a collective that breaks with some ranks informed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/placement.h"
#include "tests/support/cases.h"

enum { RANKS = 6, REPLICAS = 3, TOTAL = 12, STEPS = 40, SCHEDULES = 10000 };

static struct cairn_session_shares
shares(uint64_t number, uint32_t first, uint32_t second, uint32_t third)
{
    return (struct cairn_session_shares){number, REPLICAS, {first, second, third}};
}

/* ---- one rank ---- */

static void
test_an_offer_is_taken_only_by_all(void **state)
{
    struct cairn_session_shares home = shares(0, 4, 4, 4), offer = shares(1, 6, 4, 2);
    struct client_placement rank = {0};
    uint64_t vote;

    (void)state;
    assert_false(client_placement_offer(&rank, &offer)); /* nobody asked */
    assert_true(client_placement_run(&rank, &home));
    assert_false(client_placement_run(&rank, &home));
    assert_true(client_placement_offer(&rank, &offer));
    vote = client_placement_vote(&rank);
    assert_true(vote == client_placement_name(&offer));
    assert_false(client_placement_decide(&rank, cairn_placement_agree(vote, 77)));
    assert_int_equal(rank.now.number, 0);
    vote = client_placement_vote(&rank);
    assert_true(client_placement_decide(&rank, cairn_placement_agree(vote, vote)));
    assert_memory_equal(&rank.now, &offer, sizeof offer);
    assert_false(client_placement_decide(&rank, vote)); /* once */
    vote = client_placement_vote(&rank);
    assert_true(vote == client_placement_name(&offer));
    assert_false(client_placement_decide(&rank, vote)); /* nothing new */
}

static void
test_only_a_vote_that_was_given_counts(void **state)
{
    struct cairn_session_shares home = shares(0, 4, 4, 4), offer = shares(1, 6, 4, 2);
    struct cairn_session_shares later = shares(2, 5, 5, 2);
    struct client_placement rank = {0};
    uint64_t vote;

    (void)state;
    assert_true(client_placement_run(&rank, &home));
    vote = client_placement_vote(&rank);
    assert_true(client_placement_offer(&rank, &offer));
    assert_false(client_placement_decide(&rank, client_placement_name(&offer)));
    assert_false(client_placement_decide(&rank, vote));
    vote = client_placement_vote(&rank);
    assert_true(client_placement_offer(&rank, &later)); /* after the vote: for the next step */
    assert_true(client_placement_decide(&rank, vote));
    assert_memory_equal(&rank.now, &offer, sizeof offer);
    assert_true(client_placement_vote(&rank) == client_placement_name(&later));
    client_placement_detach(&rank); /* no agent: for what it runs */
    assert_true(client_placement_vote(&rank) == client_placement_name(&offer));
}

static void
test_what_cannot_be_an_offer(void **state)
{
    const struct cairn_session_shares wrong[] = {
        shares(3, 6, 4, 2),              /* no new number */
        shares(4, 6, 4, 3),              /* another sum */
        shares(4, 12, 0, 0),             /* nothing to do for a replica */
        {4, REPLICAS - 1, {6, 6}},       /* other replicas */
        {4, REPLICAS + 1, {4, 4, 3, 1}}, /* … more of them */
        {4, 0, {0}},                     /* none */
        shares(4, UINT32_MAX, 4, 9),     /* 12, if sums overflowed */
    };
    struct cairn_session_shares home = shares(3, 4, 4, 4);
    struct client_placement rank = {0};

    (void)state;
    assert_true(client_placement_run(&rank, &home));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(client_placement_offer(&rank, &wrong[i]));
    assert_true(client_placement_vote(&rank) == client_placement_name(&home));
}

static void
test_names_tell_shares_apart(void **state)
{
    struct cairn_session_shares one = shares(1, 6, 4, 2), other = shares(1, 6, 2, 4);
    struct cairn_session_shares next = shares(2, 6, 4, 2);

    (void)state;
    assert_true(client_placement_name(&one) != client_placement_name(&other));
    assert_true(client_placement_name(&one) != client_placement_name(&next));
    assert_true(cairn_placement_agree(5, 5) == 5 && cairn_placement_agree(5, 6) == 0);
    assert_true(cairn_placement_agree(0, 5) == 0 && cairn_placement_agree(0, 0) == 0);
}

/* ---- a job ---- */

enum planted { NONE, WITHOUT_THE_OTHERS, SHARES_LOSE_ONE, AGENTS_FORGET_NUMBERS };

struct job {
    uint64_t seed;
    enum planted planted;
    struct client_placement ranks[RANKS];
    bool has_agent[RANKS];
    struct cairn_session_shares offers[4]; /* the last ones, that may still arrive */
    uint64_t number;
    uint32_t changes;
    bool is_broken; /* an invariant is */
};

static uint32_t
draw(struct job *job, uint32_t below)
{
    job->seed = job->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(job->seed >> 33) % below;
}

static void
start_ranks(struct job *job)
{
    const struct cairn_session_shares home = shares(0, 4, 4, 4);

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        job->ranks[rank] = (struct client_placement){0};
        (void)client_placement_run(&job->ranks[rank], &home);
    }
}

/* Some analyst makes an offer; now and then two make different ones of one number, or one is
 * wrong. */
static void
make_offer(struct job *job)
{
    struct cairn_session_shares *offer = &job->offers[draw(job, 4)];
    uint32_t first = 1 + draw(job, 9), second = 1 + draw(job, 10 - first);

    if (draw(job, 5) > 0 && !(job->planted == AGENTS_FORGET_NUMBERS && draw(job, 2)))
        job->number++;
    *offer = shares(job->number, first, second, TOTAL - first - second);
    if (draw(job, 8) == 0)
        offer->parts[draw(job, REPLICAS)] += draw(job, 2) ? 1 : UINT32_MAX;
}

static void
tell(struct job *job, uint32_t rank)
{
    const struct cairn_session_shares *offer = &job->offers[draw(job, 4)];

    if (offer->count == 0 || !job->has_agent[rank])
        return;
    if (job->planted == SHARES_LOSE_ONE && offer->number > job->ranks[rank].now.number) {
        job->ranks[rank].offer = *offer; /* as it came */
        job->ranks[rank].is_ready = true;
        return;
    }
    (void)client_placement_offer(&job->ranks[rank], offer);
}

/* P1 to P6, as far as shares can break them: those of each step partition the batch, all ranks
 * that go on compute by the same, and numbers grow. */
static void
check(struct job *job, const struct client_placement *before)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct cairn_session_shares *now = &job->ranks[rank].now;
        uint64_t sum = 0;

        for (uint32_t i = 0; i < now->count; i++) {
            job->is_broken |= now->parts[i] == 0;
            sum += now->parts[i];
        }
        job->is_broken |= sum != TOTAL || now->count != REPLICAS;
        job->is_broken |= memcmp(now, &job->ranks[0].now, sizeof *now) != 0;
        job->is_broken |= now->number < before[rank].now.number;
    }
}

/* A step: all vote, between events; the votes are joined in any order. It may break, with some
 * ranks informed; then all ranks start again. */
static void
take_step(struct job *job)
{
    struct client_placement before[RANKS];
    uint64_t votes[RANKS], agreed;
    uint32_t order = draw(job, RANKS), informed;

    memcpy(before, job->ranks, sizeof before);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        tell(job, rank);
        votes[rank] = client_placement_vote(&job->ranks[rank]);
        if (draw(job, 4) == 0)
            tell(job, rank); /* too late for this step */
        if (draw(job, 50) == 0)
            client_placement_detach(&job->ranks[rank]);
    }
    agreed = votes[order];
    for (uint32_t i = 1; i < RANKS; i++)
        agreed = cairn_placement_agree(votes[(order + i) % RANKS], agreed);
    informed = draw(job, 20) == 0 ? draw(job, RANKS) : RANKS;
    for (uint32_t rank = 0; rank < informed; rank++)
        job->changes += client_placement_decide(
            &job->ranks[rank], job->planted == WITHOUT_THE_OTHERS ? votes[rank] : agreed);
    if (informed < RANKS)
        start_ranks(job);
    else
        check(job, before);
}

/* Returns how often ranks have changed their shares; *broken if an invariant was. */
static uint32_t
run_schedule(uint64_t seed, enum planted planted, bool *broken)
{
    struct job job = {.seed = seed * 2654435761u + 1, .planted = planted};

    for (uint32_t rank = 0; rank < RANKS; rank++)
        job.has_agent[rank] = true;
    start_ranks(&job);
    for (uint32_t i = 0; i < STEPS && !job.is_broken; i++) {
        if (draw(&job, 3) == 0)
            make_offer(&job);
        for (uint32_t k = draw(&job, 2 * RANKS); k > 0; k--)
            tell(&job, draw(&job, RANKS));
        if (draw(&job, 20) == 0) { /* an agent dies, or is back */
            uint32_t rank = draw(&job, RANKS);

            job.has_agent[rank] = !job.has_agent[rank];
            if (!job.has_agent[rank])
                client_placement_detach(&job.ranks[rank]);
        }
        take_step(&job);
    }
    *broken = job.is_broken;
    return job.changes;
}

static void
test_schedules(void **state)
{
    uint64_t changes = 0;
    uint32_t stride = CASE_STRIDE;

    (void)state;
    for (uint64_t seed = 0; seed < SCHEDULES; seed += stride) {
        bool broken;

        changes += run_schedule(seed, NONE, &broken);
        if (broken)
            fail_msg("seed %llu breaks an invariant", (unsigned long long)seed);
    }
    assert_true(changes > SCHEDULES / stride * RANKS); /* they do change */
}

static void
test_planted_bugs_are_found(void **state)
{
    (void)state;
    for (int planted = WITHOUT_THE_OTHERS; planted <= SHARES_LOSE_ONE; planted++) {
        bool broken = false;

        for (uint64_t seed = 0; seed < 200 && !broken; seed++)
            (void)run_schedule(seed, (enum planted)planted, &broken);
        assert_true(broken);
    }
    /* numbers that come twice do no harm: names tell the shares apart */
    for (uint64_t seed = 0; seed < 200; seed++) {
        bool broken;

        (void)run_schedule(seed, AGENTS_FORGET_NUMBERS, &broken);
        assert_false(broken);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_offer_is_taken_only_by_all),
        cmocka_unit_test(test_only_a_vote_that_was_given_counts),
        cmocka_unit_test(test_what_cannot_be_an_offer),
        cmocka_unit_test(test_names_tell_shares_apart),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_planted_bugs_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
