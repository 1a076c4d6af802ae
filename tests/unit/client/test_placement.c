/*
 * tests/unit/client/test_placement.c - shares and layers that change while training goes on: the
 * rank's state machine by itself, and many ranks around a model collective, with offers that
 * are late, lost, damaged or differ, agents that die, fills that fail, and a collective that breaks
 * with some ranks informed.
 */
#include <stdlib.h>
#include <string.h>

#include "client/placement.h"
#include "tests/support/cases.h"
#include "tests/support/cmocka.h"

enum { RANKS = 6, REPLICAS = 3, TOTAL = 12, STEPS = 40, SCHEDULES = 10000, STAGES = 2, LAYERS = 6 };

static struct cairn_session_shares
shares(uint64_t number, uint32_t first, uint32_t second, uint32_t third)
{
    return (struct cairn_session_shares){
        .number = number, .count = REPLICAS, .parts = {first, second, third}};
}

/* ---- one rank ---- */

static void
test_an_offer_is_taken_only_by_all(void **state)
{
    struct cairn_session_shares home = shares(0, 4, 4, 4), offer = shares(1, 6, 4, 2);
    struct client_placement rank = {0};
    uint64_t vote;

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
        shares(3, 6, 4, 2),                      /* no new number */
        shares(4, 6, 4, 3),                      /* another sum */
        shares(4, 12, 0, 0),                     /* nothing to do for a replica */
        {4, REPLICAS - 1, {6, 6}, 0, {0}},       /* other replicas */
        {4, REPLICAS + 1, {4, 4, 3, 1}, 0, {0}}, /* … more of them */
        {4, 0, {0}, 0, {0}},                     /* none */
        shares(4, UINT32_MAX, 4, 9),             /* 12, if sums overflowed */
    };
    struct cairn_session_shares home = shares(3, 4, 4, 4);
    struct client_placement rank = {0};

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

    assert_true(client_placement_name(&one) != client_placement_name(&other));
    assert_true(client_placement_name(&one) != client_placement_name(&next));
    assert_true(cairn_placement_agree(5, 5) == 5 && cairn_placement_agree(5, 6) == 0);
    assert_true(cairn_placement_agree(0, 5) == 0 && cairn_placement_agree(0, 0) == 0);
}

/* ---- one rank, layers ---- */

static struct cairn_session_shares
placed(uint64_t number, uint32_t first, uint32_t third)
{
    struct cairn_session_shares out = shares(number, 4, 4, 4);

    out.stages = STAGES;
    for (uint32_t r = 0; r < REPLICAS; r++) {
        out.layers[r * STAGES] = r == 2 ? third : first;
        out.layers[r * STAGES + 1] = LAYERS - out.layers[r * STAGES];
    }
    return out;
}

/* A rank that has entered `offer`. */
static struct client_placement
entered(const struct cairn_session_shares *home, const struct cairn_session_shares *offer)
{
    struct client_placement rank = {0};

    assert_true(client_placement_run(&rank, home));
    assert_true(client_placement_offer(&rank, offer));
    assert_int_equal(client_placement_decide(&rank, client_placement_vote(&rank)),
                     CAIRN_PLACEMENT_ENTER);
    assert_memory_equal(&rank.now, home, sizeof *home); /* which goes on until all have filled */
    assert_memory_equal(&rank.offer, offer, sizeof *offer);
    return rank;
}

static void
test_layers_move_after_two_votes(void **state)
{
    struct cairn_session_shares home = placed(0, 3, 3), offer = placed(1, 3, 2);
    struct cairn_session_shares later = placed(2, 3, 1);
    struct client_placement rank = entered(&home, &offer);

    assert_false(client_placement_offer(&rank, &later)); /* not while layers move */
    assert_true(client_placement_vote(&rank) == client_placement_name(&home)); /* not filled yet */
    client_placement_filled(&rank, true);
    assert_true(client_placement_vote(&rank) == client_placement_name(&offer));
    assert_int_equal(client_placement_decide(&rank, rank.vote), CAIRN_PLACEMENT_TAKEN);
    assert_memory_equal(&rank.now, &offer, sizeof offer);
    assert_true(client_placement_offer(&rank, &later));
}

static void
test_a_move_that_fails_anywhere_is_given_up(void **state)
{
    struct cairn_session_shares home = placed(0, 3, 3), offer = placed(1, 3, 2);
    struct cairn_session_shares later = placed(2, 3, 1);

    for (int how = 0; how < 4; how++) {
        struct client_placement rank = entered(&home, &offer);
        uint64_t vote, other = client_placement_name(&home);

        if (how != 2)
            client_placement_filled(&rank, how > 0);
        if (how > 1)
            client_placement_detach(&rank);   /* also before it was filled */
        client_placement_filled(&rank, true); /* too late */
        vote = client_placement_vote(&rank);
        assert_true(vote == client_placement_name(how == 1 ? &offer : &home));
        assert_int_equal(client_placement_decide(&rank, cairn_placement_agree(vote, other)),
                         CAIRN_PLACEMENT_ABANDONED);
        assert_memory_equal(&rank.now, &home, sizeof home);
        assert_false(client_placement_offer(&rank, &offer)); /* not again */
        assert_true(client_placement_offer(&rank, &later));
    }
}

static void
test_another_epoch_ends_what_was_offered(void **state)
{
    struct cairn_session_shares home = placed(0, 3, 3), offer = placed(1, 3, 2);
    struct client_placement rank = entered(&home, &offer);

    client_placement_epoch(&rank, 0); /* the same as before */
    assert_int_equal(rank.state, CLIENT_PLACEMENT_ENTERED);
    client_placement_epoch(&rank, 5);
    client_placement_filled(&rank, true); /* from a generation of the epoch before */
    assert_true(client_placement_vote(&rank) == client_placement_name(&home));
    assert_int_equal(client_placement_decide(&rank, rank.vote), CAIRN_PLACEMENT_ABANDONED);
    offer.number = 2;
    assert_true(client_placement_offer(&rank, &offer));
    client_placement_epoch(&rank, 6);
    assert_true(client_placement_vote(&rank) == client_placement_name(&home));
}

static void
test_layers_that_cannot_be_an_offer(void **state)
{
    struct cairn_session_shares home = placed(0, 3, 3), wrong = placed(1, 3, 2), less;
    struct cairn_session_shares without = shares(1, 6, 4, 2), flat = shares(0, 4, 4, 4);
    struct client_placement rank = {0};

    assert_true(client_placement_run(&rank, &home));
    wrong.layers[5]++; /* one more than the model has */
    assert_false(client_placement_offer(&rank, &wrong));
    wrong.layers[4] = 0;
    wrong.layers[5] = LAYERS;
    assert_false(client_placement_offer(&rank, &wrong));
    less = placed(1, 3, 2);
    less.stages = 1;
    assert_false(client_placement_offer(&rank, &less));
    assert_true(client_placement_offer(&rank, &without)); /* the layers stay */
    assert_int_equal(client_placement_decide(&rank, client_placement_vote(&rank)),
                     CAIRN_PLACEMENT_TAKEN);
    assert_memory_equal(rank.now.layers, home.layers, sizeof home.layers);
    rank = (struct client_placement){0};
    assert_true(client_placement_run(&rank, &flat)); /* cannot move layers */
    wrong = placed(1, 3, 2);
    assert_false(client_placement_offer(&rank, &wrong));
}

/* ---- a job ---- */

enum planted {
    NONE,
    WITHOUT_THE_OTHERS,
    SHARES_LOSE_ONE,
    FILLS_UNVERIFIED,
    ADOPTS_ALONE,
    AGENTS_FORGET_NUMBERS
};

struct job {
    uint64_t seed;
    enum planted planted;
    struct client_placement ranks[RANKS];
    bool has_agent[RANKS];
    struct cairn_session_shares offers[4]; /* the last, which may still arrive */
    uint64_t number;
    uint32_t changes, moves, abandoned;
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
    const struct cairn_session_shares home = placed(0, 3, 3);

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        job->ranks[rank] = (struct client_placement){0};
        (void)client_placement_run(&job->ranks[rank], &home);
    }
}

/* Some analyst makes an offer; now and then two make different offers of one number, or one is
 * wrong. */
static void
make_offer(struct job *job)
{
    struct cairn_session_shares *offer = &job->offers[draw(job, 4)];
    uint32_t first = 1 + draw(job, 9), second = 1 + draw(job, 10 - first);

    if (draw(job, 5) > 0 && !(job->planted == AGENTS_FORGET_NUMBERS && draw(job, 2)))
        job->number++;
    *offer = placed(job->number, 1 + draw(job, LAYERS - 1), 1 + draw(job, LAYERS - 1));
    offer->parts[0] = first;
    offer->parts[1] = second;
    offer->parts[2] = TOTAL - first - second;
    if (draw(job, 2) == 0) /* an offer without layers */
        *offer = shares(job->number, first, second, TOTAL - first - second);
    else if (draw(job, 12) == 0)
        offer->layers[draw(job, REPLICAS * STAGES)] += draw(job, 2) ? 1 : UINT32_MAX;
    if (draw(job, 8) == 0)
        offer->parts[draw(job, REPLICAS)] += draw(job, 2) ? 1 : UINT32_MAX;
}

static void
tell(struct job *job, uint32_t rank)
{
    const struct cairn_session_shares *offer = &job->offers[draw(job, 4)];

    if (offer->count == 0 || !job->has_agent[rank])
        return;
    if (job->planted == SHARES_LOSE_ONE && offer->stages &&
        offer->number > job->ranks[rank].now.number) {
        job->ranks[rank].offer = *offer; /* as it came */
        job->ranks[rank].state = CLIENT_PLACEMENT_READY;
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

        for (uint32_t r = 0; r < REPLICAS; r++)
            job->is_broken |= now->layers[2 * r] == 0 || now->layers[2 * r + 1] == 0 ||
                              now->layers[2 * r] + now->layers[2 * r + 1] != LAYERS;
        for (uint32_t i = 0; i < now->count; i++) {
            job->is_broken |= now->parts[i] == 0;
            sum += now->parts[i];
        }
        job->is_broken |= sum != TOTAL || now->count != REPLICAS;
        job->is_broken |= memcmp(now, &job->ranks[0].now, sizeof *now) != 0;
        job->is_broken |= now->number < before[rank].now.number;
    }
}

/*
 * All ranks have entered: they fill, some badly, some lose their agent, and vote again. The old
 * tensors of a rank are gone once it has taken the new placement: then all must have filled well.
 * Returns how many ranks have heard the result.
 */
static uint32_t
move(struct job *job)
{
    uint32_t informed = draw(job, 10) == 0 ? draw(job, RANKS) : RANKS;
    uint64_t votes[RANKS], agreed;
    bool are_all_good = true;

    for (uint32_t rank = 0; rank < RANKS; rank++) {
        bool is_good = draw(job, 40) > 0;

        if (draw(job, 60) == 0) {
            client_placement_detach(&job->ranks[rank]);
            is_good = false;
        }
        are_all_good &= is_good;
        tell(job, rank);
        client_placement_filled(&job->ranks[rank], is_good || job->planted == FILLS_UNVERIFIED);
        tell(job, rank);
        votes[rank] = client_placement_vote(&job->ranks[rank]);
    }
    agreed = votes[0];
    for (uint32_t rank = 1; rank < RANKS; rank++)
        agreed = cairn_placement_agree(agreed, votes[rank]);
    for (uint32_t rank = 0; rank < informed; rank++) {
        enum cairn_placement_change change = client_placement_decide(
            &job->ranks[rank], job->planted == ADOPTS_ALONE ? votes[rank] : agreed);

        job->is_broken |= change == CAIRN_PLACEMENT_TAKEN && !are_all_good;
        job->is_broken |= change != CAIRN_PLACEMENT_TAKEN && change != CAIRN_PLACEMENT_ABANDONED;
        job->moves += change == CAIRN_PLACEMENT_TAKEN;
        job->abandoned += change == CAIRN_PLACEMENT_ABANDONED;
    }
    return informed;
}

/* A step: all vote, between events; the votes are joined in any order. It may break, with some
 * ranks informed; then all ranks start again. */
static void
take_step(struct job *job)
{
    struct client_placement before[RANKS];
    uint64_t votes[RANKS], agreed;
    uint32_t order = draw(job, RANKS), informed, entered_count = 0;

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
    for (uint32_t rank = 0; rank < informed; rank++) {
        enum cairn_placement_change change = client_placement_decide(
            &job->ranks[rank], job->planted == WITHOUT_THE_OTHERS ? votes[rank] : agreed);

        job->changes += change == CAIRN_PLACEMENT_TAKEN;
        entered_count += change == CAIRN_PLACEMENT_ENTER;
    }
    if (informed == RANKS && entered_count > 0) {
        job->is_broken |= entered_count != RANKS;
        informed = move(job);
    }
    if (informed < RANKS)
        start_ranks(job);
    else
        check(job, before);
}

static uint64_t total_moves, total_abandoned; /* of all schedules */

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
    total_moves += job.moves;
    total_abandoned += job.abandoned;
    return job.changes;
}

static void
test_schedules(void **state)
{
    uint64_t changes = 0;
    uint32_t stride = CASE_STRIDE;

    for (uint64_t seed = 0; seed < SCHEDULES; seed += stride) {
        bool broken;

        changes += run_schedule(seed, NONE, &broken);
        if (broken)
            fail_msg("seed %llu breaks an invariant", (unsigned long long)seed);
    }
    print_message("%llu changes of shares, %llu moves, %llu abandoned\n",
                  (unsigned long long)changes, (unsigned long long)total_moves,
                  (unsigned long long)total_abandoned);
    assert_true(changes + total_moves > SCHEDULES / stride * RANKS); /* they do change */
    assert_true(total_moves > SCHEDULES / stride);
    assert_true(total_abandoned > SCHEDULES / stride / 2);
}

static void
test_planted_bugs_are_found(void **state)
{
    for (int planted = WITHOUT_THE_OTHERS; planted <= ADOPTS_ALONE; planted++) {
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
        cmocka_unit_test(test_layers_move_after_two_votes),
        cmocka_unit_test(test_a_move_that_fails_anywhere_is_given_up),
        cmocka_unit_test(test_another_epoch_ends_what_was_offered),
        cmocka_unit_test(test_layers_that_cannot_be_an_offer),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_planted_bugs_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
