/*
 * tests/unit/replan/detect/test_detect.c - the detector on small jobs written by hand: four
 * data-parallel groups of two pipelines' stages, clocks seconds apart, and one thing wrong at a
 * time.
 */
#include <stdlib.h>

#include "replan/detect/detector.h"
#include "tests/unit/replan/detect/job.h"

enum { WORLD = 8, NODE_RANKS = 2 };

/* Ranks 2i and 2i + 1 are the tensor-parallel pair of replica i, on node i; dp0 has the even, dp1
 * the odd ranks. */
static const char header[] = "{\"cairn_trace\":1,\"world\":8,\"nodes\":[0,0,1,1,2,2,3,3],\"comms\":"
                             "{\"tp0\":[0,1],\"tp1\":[2,3],\"tp2\":[4,5],"
                             "\"tp3\":[6,7],\"dp0\":[0,2,4,6],\"dp1\":[1,3,5,7]}}";

/* Time is true; each rank's clock is 3 s times its number ahead. */
static void
start(struct job *job)
{
    job_start(job, header, 7);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] = 1000;
}

static void
feed_op(struct job *job, uint8_t op, uint32_t rank, uint32_t comm, uint64_t seq, uint32_t step,
        uint64_t start_ns, uint64_t end_ns)
{
    uint64_t ahead_ns = 3000000000ull * rank;
    struct cairn_record record = {.rank = rank,
                                  .comm = comm,
                                  .peer = CAIRN_PEER_NONE,
                                  .seq = seq,
                                  .step = step,
                                  .op = op,
                                  .has_seq = true,
                                  .has_step = !job->unnumbered,
                                  .bytes = 1000,
                                  .start_ns = start_ns + ahead_ns,
                                  .end_ns = end_ns ? end_ns + ahead_ns : 0};

    assert_int_equal(cairn_detector_feed(job->detector, &record), CAIRN_OK);
}

static void
feed(struct job *job, uint32_t rank, uint32_t comm, uint64_t seq, uint32_t step, uint64_t start_ns,
     uint64_t end_ns)
{
    feed_op(job, CAIRN_ALL_REDUCE, rank, comm, seq, step, start_ns, end_ns);
}

static void
live(struct job *job, uint32_t rank, uint64_t at_ns)
{
    struct cairn_record record = {.rank = rank,
                                  .comm = CAIRN_COMM_NONE,
                                  .peer = CAIRN_PEER_NONE,
                                  .start_ns = at_ns + 3000000000ull * rank};

    assert_int_equal(cairn_detector_feed(job->detector, &record), CAIRN_OK);
}

/* A communicator's operation: ends for all when the last has come and transfer_ns have passed. */
static void
join(struct job *job, uint32_t comm, uint64_t seq, uint32_t step, uint64_t transfer_ns)
{
    const struct cairn_comm *members = &job->topology->comms[comm];
    uint64_t last_ns = 0;

    for (uint32_t i = 0; i < members->count; i++)
        if (job->now_ns[members->ranks[i]] > last_ns)
            last_ns = job->now_ns[members->ranks[i]];
    for (uint32_t i = 0; i < members->count; i++) {
        feed(job, members->ranks[i], comm, seq, step, job->now_ns[members->ranks[i]],
             last_ns + transfer_ns);
        job->now_ns[members->ranks[i]] = last_ns + transfer_ns;
    }
}

static double
jitter(struct job *job)
{
    return 0.98 + 0.04 * job_draw(job);
}

/* One step; slow[rank] is a factor on its computation, tp_slow one on the transfers of tp1. */
static void
run_step(struct job *job, uint32_t step, const double *slow, double tp1_slow)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] += (uint64_t)(100 * MS * jitter(job) * (slow ? slow[rank] : 1));
    for (uint32_t comm = 0; comm < 4; comm++)
        join(job, comm, step, step, (uint64_t)(5 * MS * jitter(job) * (comm == 1 ? tp1_slow : 1)));
    for (uint32_t comm = 4; comm < 6; comm++)
        join(job, comm, step, step, (uint64_t)(20 * MS * jitter(job)));
}

static void
test_quiet(void **state)
{
    struct cairn_detector_summary summary;
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 200; step++)
        run_step(&job, step, NULL, 1);
    job_finish(&job, 0);
    cairn_detector_summarize(job.detector, &summary);
    assert_int_equal(summary.steps, 200);
    assert_int_equal(summary.ranks_seen, WORLD);
    assert_true(summary.period_ms > 120 && summary.period_ms < 130);
    job_end(&job);
}

static void
check_slow(bool unnumbered)
{
    double slow[WORLD] = {1, 1, 1, 1, 1, 1.4, 1, 1};
    const struct cairn_verdict *verdict;
    struct job job;

    start(&job);
    job.unnumbered = unnumbered;
    for (uint32_t step = 0; step < 400; step++)
        run_step(&job, step, step >= 40 && step < 80 ? slow : NULL, 1);
    verdict = job_finish_with(&job, CAIRN_SLOW_COMPUTE);
    assert_only(&verdict->ranks, 5);
    assert_true(verdict->rate > 1.36 && verdict->rate < 1.44);
    assert_in_range(verdict->since_step, 39, 41);
    assert_in_range(verdict->until_step, 78, 81);
    assert_in_range(verdict->detected_step, 42, 45);
    assert_int_equal(verdict->victims.count, WORLD - 1);
    job_end(&job);
}

static void
test_slow_rank(void **state)
{
    check_slow(false);
}

static void
test_slow_rank_without_steps(void **state)
{
    check_slow(true);
}

/* Sequences vary by up to 8 % for each pair of ranks, and nobody reports it: one at 1.1 times is
 * known beside its partner at once, and neither while nothing is wrong. */
static void
test_slow_of_a_pair(void **state)
{
    for (uint32_t wrong = 0; wrong < 2; wrong++) {
        const struct cairn_verdicts *verdicts;
        struct job job;

        start(&job);
        for (uint32_t step = 0; step < 120; step++) {
            double slow[WORLD];

            for (uint32_t rank = 0; rank < WORLD; rank += 2)
                slow[rank] = slow[rank + 1] = 1 + 4 * (jitter(&job) - 1);
            if (wrong && step >= 40 && step < 70)
                slow[5] *= 1.1;
            run_step(&job, step, slow, 1);
        }
        verdicts = job_finish(&job, wrong);
        if (wrong) {
            assert_int_equal(verdicts->items[0].kind, CAIRN_SLOW_COMPUTE);
            assert_only(&verdicts->items[0].ranks, 5);
            assert_in_range(verdicts->items[0].since_step, 38, 42);
            assert_in_range(verdicts->items[0].detected_step, 42, 47);
            assert_in_range(verdicts->items[0].until_step, 68, 71);
            assert_true(verdicts->items[0].rate > 1.07 && verdicts->items[0].rate < 1.12);
        }
        job_end(&job);
    }
}

/* What gets well little by little is over too, and its rate is never that of something faster than
 * normal. */
static void
test_fading(void **state)
{
    for (uint32_t seed = 0; seed < 24; seed++) {
        const struct cairn_verdicts *verdicts;
        bool is_link = seed % 2;
        double excess = is_link ? 1 : 0.12;
        struct job job;

        start(&job);
        job.seed = seed;
        for (uint32_t step = 0; step < 900; step++) {
            double slow[WORLD] = {1, 1, 1, 1, 1, 1, 1, 1};

            excess *= step > 100 ? 0.994 : 1;
            slow[5] += step < 40 || is_link ? 0 : excess;
            run_step(&job, step, slow, step < 40 || !is_link ? 1 : 1 + excess);
        }
        assert_int_equal(cairn_detector_finish(job.detector), CAIRN_OK);
        verdicts = cairn_detector_verdicts(job.detector);
        assert_true(verdicts->count > 0);
        for (uint32_t i = 0; i < verdicts->count; i++) {
            assert_int_equal(verdicts->items[i].kind,
                             is_link ? CAIRN_SLOW_LINK : CAIRN_SLOW_COMPUTE);
            assert_true(verdicts->items[i].rate > 1);
            assert_true(verdicts->items[i].until_step < 500);
        }
        job_end(&job);
    }
}

static void
test_slow_node(void **state)
{
    double slow[WORLD] = {1, 1, 1, 1, 1.5, 1.5, 1, 1};
    const struct cairn_verdict *verdict;
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 60; step++)
        run_step(&job, step, step >= 30 ? slow : NULL, 1);
    verdict = job_finish_with(&job, CAIRN_SLOW_NODE);
    assert_int_equal(verdict->nodes.items[0], 2);
    assert_int_equal(verdict->ranks.count, NODE_RANKS);
    job_end(&job);
}

static void
test_slow_link(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 60; step++)
        run_step(&job, step, NULL, step >= 30 ? 2.0 : 1);
    verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
    assert_int_equal(verdict->links.items[0], 2);
    assert_int_equal(verdict->links.items[1], 3);
    assert_true(verdict->rate > 1.9 && verdict->rate < 2.1);
    job_end(&job);
}

/* Step 20: rank 3 does not come to its pair's operation. The others wait for wait_ns; life says of
 * rank 3. */
static void
stop_at(struct job *job, uint64_t wait_ns, bool rank3_lives)
{
    uint64_t latest_ns = 0;

    for (uint32_t step = 0; step < 20; step++)
        run_step(job, step, NULL, 1);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        job->now_ns[rank] += 100 * MS;
    for (uint32_t comm = 0; comm < 4; comm++)
        if (comm != 1)
            join(job, comm, 20, 20, 5 * MS);
    feed(job, 2, 1, 20, 20, job->now_ns[2], 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != 2 && rank != 3)
            feed(job, rank, 4 + rank % 2, 20, 20, job->now_ns[rank], 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        latest_ns = job->now_ns[rank] > latest_ns ? job->now_ns[rank] : latest_ns;
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != 3 || rank3_lives)
            live(job, rank, latest_ns + wait_ns);
}

static void
test_hangs(void **state)
{
    static const enum cairn_verdict_kind kinds[] = {CAIRN_CRASH, CAIRN_HANG_COMPUTE};

    for (int lives = 0; lives < 2; lives++) {
        const struct cairn_verdict *verdict;
        struct job job;

        start(&job);
        stop_at(&job, 9000ull * MS, lives);
        verdict = job_finish_with(&job, kinds[lives]);
        assert_only(&verdict->ranks, 3);
        assert_int_equal(verdict->victims.count, WORLD - 1);
        assert_in_range(verdict->since_step, 19, 20);
        job_end(&job);
        start(&job); /* five seconds are a pause */
        stop_at(&job, 5000ull * MS, lives);
        job_finish(&job, 0);
        job_end(&job);
    }
}

/* A rank stops before it can say that its last operation has ended, which its partner has left. */
static void
test_hang_after_an_unseen_end(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 20; step++)
        run_step(&job, step, NULL, 1);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        job.now_ns[rank] += 100 * MS;
        feed(&job, rank, rank / 2, 20, 20, job.now_ns[rank],
             rank == 3 ? 0 : job.now_ns[rank] + 5 * MS);
    }
    feed(&job, 2, 1, 21, 20, job.now_ns[2] + 10 * MS, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        if (rank != 2 && rank != 3)
            feed(&job, rank, 4 + rank % 2, 20, 20, job.now_ns[rank] + 5 * MS, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        live(&job, rank, job.now_ns[rank] + 10000ull * MS);
    verdict = job_finish_with(&job, CAIRN_HANG_COMPUTE);
    assert_only(&verdict->ranks, 3);
    assert_int_equal(verdict->victims.count, WORLD - 1);
    job_end(&job);
}

/* Two ranks of dp0 have left an operation that a stopped rank is in: the fourth, which still needs
 * that one's part, waits as the others do. */
static void
test_stopped_where_others_have_left(void **state)
{
    enum { STOPPED = 2, NEEDS_IT = 0, DP0 = 4 };
    const struct cairn_verdicts *verdicts;
    struct cairn_standing standing = {.step = 20, .is_stopped = true};
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 20; step++)
        run_step(&job, step, NULL, 1);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        bool leaves = rank % 2 == 0 && rank != STOPPED && rank != NEEDS_IT;
        uint64_t at_ns = job.now_ns[rank] + 100 * MS;

        if (rank % 2 == 0)
            feed(&job, rank, DP0, 20, 20, at_ns, leaves ? at_ns + 20 * MS : 0);
        else
            feed(&job, rank, rank / 2, 20, 20, at_ns, 0);
        if (leaves)
            feed(&job, rank, DP0, 21, 21, at_ns + 100 * MS, 0);
        live(&job, rank, at_ns + 10000ull * MS);
    }
    standing.life_ns = job.detector->intakes[STOPPED].life_ns;
    standing.end_ns = job.detector->intakes[STOPPED].end_ns;
    cairn_detector_take_standing(job.detector, STOPPED, &standing);
    assert_int_equal(cairn_detector_check_hangs(job.detector), CAIRN_OK);
    verdicts = cairn_detector_verdicts(job.detector);
    assert_int_equal(verdicts->count, 1);
    assert_int_equal(verdicts->items[0].kind, CAIRN_HANG_COMPUTE);
    assert_only(&verdicts->items[0].ranks, STOPPED);
    assert_int_equal(verdicts->items[0].victims.count, WORLD - 1);
    assert_non_null(strstr(verdicts->items[0].evidence, "the process of rank 2 is stopped"));
    job_end(&job);
}

/* In step 20 the odd ranks wait for their partners. Of dp0, ranks 4 and 6 have left an operation
 * and are in the next one; rank 0 is in it still, and rank 2 too, or in none, or in the next
 * one. */
static void
stop_in_dp0(struct job *job, uint8_t op, uint64_t seq_of_2)
{
    enum { DP0 = 4 };

    start(job);
    for (uint32_t step = 0; step < 20; step++)
        run_step(job, step, NULL, 1);
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        uint64_t at_ns = job->now_ns[rank] + 100 * MS, seq = rank == 0 ? 20 : 21;

        if (rank == 2)
            seq = seq_of_2;
        if (rank % 2)
            feed(job, rank, rank / 2, 20, 20, at_ns, 0);
        else if (seq > 0)
            feed_op(job, op, rank, DP0, 20, 20, at_ns, seq == 20 ? 0 : at_ns + 20 * MS);
        if (rank % 2 == 0 && seq == 21)
            feed_op(job, op, rank, DP0, 21, 20, at_ns + 100 * MS, 0);
        live(job, rank, at_ns + 10000ull * MS);
    }
}

/* One of two ranks has stopped in a collective, and the other one lacks its part: records do not
 * tell which. Neither is accused alone. */
static void
test_hang_within_a_collective(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    stop_in_dp0(&job, CAIRN_ALL_REDUCE, 20);
    verdict = job_finish_with(&job, CAIRN_HANG_LINK);
    assert_int_equal(verdict->ranks.count, 2);
    assert_int_equal(verdict->ranks.items[0], 0);
    assert_int_equal(verdict->ranks.items[1], 2);
    assert_int_equal(verdict->links.count, 4);
    assert_int_equal(verdict->victims.count, WORLD - 2);
    assert_true(verdict->confidence > 0.5 && verdict->confidence < 0.7);
    assert_non_null(strstr(verdict->evidence, "others have left an operation of dp0 that 2 ranks"));
    job_end(&job);
}

/* The root of a broadcast leaves it without waiting for anybody. Rank 0 may need what rank 2, which
 * never comes, would pass on; once all others have passed it, rank 0 itself has stopped. */
static void
test_hang_within_a_broadcast(void **state)
{
    struct job job;

    stop_in_dp0(&job, CAIRN_BROADCAST, 0);
    assert_only(&job_finish_with(&job, CAIRN_HANG_COMPUTE)->ranks, 2);
    job_end(&job);
    stop_in_dp0(&job, CAIRN_BROADCAST, 21);
    assert_only(&job_finish_with(&job, CAIRN_HANG_COMPUTE)->ranks, 0);
    job_end(&job);
}

static void
test_hang_link(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    start(&job);
    for (uint32_t step = 0; step < 20; step++)
        run_step(&job, step, NULL, 1);
    /* all in the gradients, and those of dp1 do not end */
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        job.now_ns[rank] += 100 * MS;
        feed(&job, rank, rank / 2, 20, 20, job.now_ns[rank], job.now_ns[rank] + 5 * MS);
    }
    for (uint32_t rank = 0; rank < WORLD; rank++)
        feed(&job, rank, 4 + rank % 2, 20, 20, job.now_ns[rank] + 5 * MS,
             rank % 2 ? 0 : job.now_ns[rank] + 25 * MS);
    /* the others wait for their partners in the next step */
    for (uint32_t rank = 0; rank < WORLD; rank += 2)
        feed(&job, rank, rank / 2, 21, 21, job.now_ns[rank] + 100 * MS, 0);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        live(&job, rank, job.now_ns[rank] + 10000ull * MS);
    verdict = job_finish_with(&job, CAIRN_HANG_LINK);
    assert_int_equal(verdict->ranks.count, 4);
    assert_int_equal(verdict->ranks.items[0], 1);
    job_end(&job);
}

/* One rank's whole trace after the other's gives what interleaved traces give, and a missing rank
 * is counted. */
static void
test_any_order(void **state)
{
    double slow[WORLD] = {1, 1, 1, 1, 1, 1, 1.3, 1};
    struct cairn_detector_summary summary;
    struct cairn_record kept[60 * WORLD * 2];
    struct job job;
    uint32_t count = 0;

    start(&job);
    for (uint32_t step = 0; step < 60; step++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            job.now_ns[rank] += (uint64_t)(100 * MS * jitter(&job) * (step >= 20 ? slow[rank] : 1));
        for (uint32_t comm = 0; comm < 6; comm++) {
            const struct cairn_comm *members = &job.topology->comms[comm];
            uint64_t last_ns = 0;

            for (uint32_t i = 0; i < members->count; i++)
                last_ns = job.now_ns[members->ranks[i]] > last_ns ? job.now_ns[members->ranks[i]]
                                                                  : last_ns;
            for (uint32_t i = 0; i < members->count; i++) {
                uint32_t rank = members->ranks[i];

                kept[count++] = (struct cairn_record){.rank = rank,
                                                      .comm = comm,
                                                      .peer = CAIRN_PEER_NONE,
                                                      .step = step,
                                                      .op = CAIRN_ALL_REDUCE,
                                                      .has_step = true,
                                                      .start_ns = job.now_ns[rank],
                                                      .end_ns = last_ns + 5 * MS};
                job.now_ns[rank] = last_ns + 5 * MS;
            }
        }
    }
    for (uint32_t rank = 0; rank < WORLD; rank++)
        for (uint32_t i = 0; i < count; i++)
            if (kept[i].rank == rank && rank != 1)
                assert_int_equal(cairn_detector_feed(job.detector, &kept[i]), CAIRN_OK);
    assert_int_equal(job_finish(&job, 1)->items[0].ranks.items[0], 6);
    cairn_detector_summarize(job.detector, &summary);
    assert_int_equal(summary.ranks_seen, WORLD - 1);
    job_end(&job);
}

/* Rings over the same nodes, whose first `slow_rings` are slow from step 40 to 70. */
static void
run_rings(struct job *job, uint32_t slow_rings, double noise)
{
    start(job);
    for (uint32_t step = 1; step <= 110; step++) {
        for (uint32_t rank = 0; rank < WORLD; rank++)
            job->now_ns[rank] += (uint64_t)(100 * MS * jitter(job));
        for (uint32_t comm = 4; comm < 6; comm++)
            join(job, comm, step, step,
                 (uint64_t)(20 * MS * (1 + (jitter(job) - 1) * noise) *
                            (step >= 40 && step < 70 && comm < 4 + slow_rings ? 1.7 : 1)));
    }
}

static void
test_rings_together(void **state)
{
    const struct cairn_verdict *verdict;
    struct job job;

    run_rings(&job, 1, 17); /* up to a third more or less: one alone could be noise */
    job_finish(&job, 0);
    job_end(&job);
    run_rings(&job, 2, 17);
    verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
    assert_in_range(verdict->since_step, 36, 44);
    assert_true(verdict->detected_step < 70);
    job_end(&job);
    run_rings(&job, 2, 2); /* it ends, and is not found again */
    verdict = job_finish_with(&job, CAIRN_SLOW_LINK);
    assert_in_range(verdict->detected_step, 42, 48);
    assert_in_range(verdict->until_step, 68, 71);
    job_end(&job);
}

/* A rank may report any numbers for its operations: nobody keeps room for what lies between
 * them. */
static void
test_numbers_far_apart(void **state)
{
    struct job job;

    start(&job);
    for (uint32_t rank = 1; rank < WORLD; rank += 2)
        cairn_detector_leave_out(job.detector, rank);
    for (uint32_t step = 1; step < 30; step++)
        for (uint32_t rank = 0; rank < WORLD; rank += 2) {
            struct cairn_rank_step *summary =
                calloc(1, sizeof *summary + 3 * sizeof *summary->samples);

            assert_non_null(summary);
            summary->step = step;
            summary->sample_count = 3;
            summary->compute_ns[0] = summary->compute_ns[1] = 100 * MS;
            for (uint32_t i = 0; i < 3; i++)
                summary->samples[i] =
                    (struct cairn_sample){.lane = 4 * 16 + CAIRN_ALL_REDUCE,
                                          .seq = rank == 2 ? step + i * 30000 : step + i,
                                          .duration_ns = MS,
                                          .bytes = 1000};
            assert_int_equal(
                cairn_detector_take_step(job.detector, rank, summary, step * 200ull * MS),
                CAIRN_OK);
        }
    assert_true(job.detector->steps > 20);
    assert_int_equal(job.detector->channel_count, 1);
    assert_true(job.detector->channels[0].slot_room <= 64);
    /* the numbers that all have were compared */
    assert_true(job.detector->channels[0].first_count > 0);
    job_end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_quiet),
                                       cmocka_unit_test(test_slow_rank),
                                       cmocka_unit_test(test_slow_rank_without_steps),
                                       cmocka_unit_test(test_slow_of_a_pair),
                                       cmocka_unit_test(test_fading),
                                       cmocka_unit_test(test_slow_node),
                                       cmocka_unit_test(test_slow_link),
                                       cmocka_unit_test(test_hangs),
                                       cmocka_unit_test(test_hang_after_an_unseen_end),
                                       cmocka_unit_test(test_stopped_where_others_have_left),
                                       cmocka_unit_test(test_hang_within_a_collective),
                                       cmocka_unit_test(test_hang_within_a_broadcast),
                                       cmocka_unit_test(test_hang_link),
                                       cmocka_unit_test(test_any_order),
                                       cmocka_unit_test(test_rings_together),
                                       cmocka_unit_test(test_numbers_far_apart)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
