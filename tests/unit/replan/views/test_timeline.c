/*
 * tests/unit/replan/views/test_timeline.c - the last steps on one clock: starts are where they were
 * in true time with any clocks of the ranks, parts of operations find each other, and the ideal
 * leaves out what one rank is slow by.
 */
#include <math.h>
#include <string.h>

#include "replan/views/timeline.h"
#include "replan/trace/read.h"
#include "tests/support/cmocka.h"

enum { WORLD = 4, STEPS = 30, KEPT = 3, OPERATIONS = 3 /* of a rank in a step */, MS = 1000000 };

/* Two stages of two: 0 and 1 send to 2 and 3. */
static const char header[] =
    "{\"cairn_trace\":1,\"world\":4,\"nodes\":[0,0,1,1],\"comms\":{"
    "\"pp0\":[0,2],\"pp1\":[1,3],\"dp0\":[0,1],\"dp1\":[2,3],\"all0\":[0,1,2,3]}}";

struct job {
    struct cairn_topology *topology;
    struct cairn_timeline *timeline;
    double true_starts_ns[WORLD][STEPS * 4]; /* of every operation, in true time */
    uint32_t counts[WORLD];
    bool numbered;
};

static void
start(struct job *job)
{
    struct cairn_trace_fault fault;

    memset(job, 0, sizeof *job);
    job->numbered = true;
    assert_int_equal(cairn_trace_read_header(header, strlen(header), &job->topology, &fault),
                     CAIRN_OK);
    assert_int_equal(cairn_timeline_create(job->topology, KEPT, &job->timeline), CAIRN_OK);
}

static void
end(struct job *job)
{
    cairn_timeline_destroy(job->timeline);
    cairn_topology_destroy(job->topology);
}

/* Clocks are seconds apart: rank r's is 7 r s ahead. end_ms < 0: still open. */
static void
feed(struct job *job, uint32_t rank, uint8_t op, uint32_t comm, uint32_t peer, uint32_t step,
     double start_ms, double end_ms)
{
    uint64_t ahead_ns = 1000 + 7000000000ull * rank;
    struct cairn_record record = {.rank = rank,
                                  .comm = comm,
                                  .peer = peer,
                                  .step = step,
                                  .op = op,
                                  .bytes = 1000,
                                  .has_step = job->numbered,
                                  .start_ns = (uint64_t)(start_ms * MS) + ahead_ns,
                                  .end_ns = end_ms < 0 ? 0 : (uint64_t)(end_ms * MS) + ahead_ns};

    assert_int_equal(cairn_timeline_feed(job->timeline, &record), CAIRN_OK);
    job->true_starts_ns[rank][job->counts[rank]++] = start_ms * MS;
}

/* One step from begin_ms: stage 0 computes 10 ms, sends (1 ms), computes 5 ms; stage 1 computes 20
 * ms (rank 3: slow_ms more); each stage's ranks meet (2 ms), then all (1 ms). Returns when that is
 * over. */
static double
run_step(struct job *job, uint32_t step, double begin_ms, double slow_ms, bool open)
{
    double sent_ms = begin_ms + 11, last_ms = sent_ms + 20 + slow_ms;

    for (uint32_t rank = 0; rank < 2; rank++) {
        feed(job, rank, CAIRN_SEND, rank, rank + 2, step, begin_ms + 10, sent_ms);
        feed(job, rank + 2, CAIRN_RECV, rank, rank, step, begin_ms, sent_ms);
    }
    for (uint32_t rank = 0; rank < 2; rank++)
        feed(job, rank, CAIRN_ALL_REDUCE, 2, CAIRN_PEER_NONE, step, sent_ms + 5, sent_ms + 7);
    feed(job, 2, CAIRN_ALL_REDUCE, 3, CAIRN_PEER_NONE, step, sent_ms + 20, last_ms + 2);
    feed(job, 3, CAIRN_ALL_REDUCE, 3, CAIRN_PEER_NONE, step, last_ms, last_ms + 2);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        feed(job, rank, CAIRN_BARRIER, 4, CAIRN_PEER_NONE, step,
             rank < 2 ? sent_ms + 7 : last_ms + 2, open ? -1 : last_ms + 3);
    return last_ms + 3;
}

static double
run_steps(struct job *job, double slow_ms, bool open)
{
    double now_ms = 100;

    for (uint32_t step = 0; step < STEPS; step++)
        now_ms = run_step(job, step, now_ms, slow_ms, open && step + 1 == STEPS);
    assert_int_equal(cairn_timeline_finish(job->timeline), CAIRN_OK);
    return now_ms;
}

/* Starts against true time: equal but for one number. The last KEPT steps of each rank are kept. */
static void
check_starts(const struct job *job)
{
    size_t count;
    const struct cairn_span *spans = cairn_timeline_spans(job->timeline, &count);
    double least_ns = INFINITY;

    assert_int_equal(count, WORLD * OPERATIONS * KEPT);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        least_ns = fmin(least_ns, job->true_starts_ns[rank][(STEPS - KEPT) * OPERATIONS]);
    for (size_t i = 0; i < count; i++) {
        uint32_t rank = (uint32_t)(i / (OPERATIONS * KEPT)),
                 nth = (uint32_t)(i % (OPERATIONS * KEPT));

        assert_int_equal(spans[i].rank, rank);
        assert_true(
            fabs(spans[i].start_ns -
                 (job->true_starts_ns[rank][(STEPS - KEPT) * OPERATIONS + nth] - least_ns)) < 2);
    }
}

static void
check_operations(const struct job *job)
{
    size_t count;
    const struct cairn_span *spans = cairn_timeline_spans(job->timeline, &count);

    assert_int_equal(cairn_timeline_operation_count(job->timeline), 5 * KEPT);
    for (size_t i = 0; i < count; i++) {
        uint32_t parts = 0;

        for (size_t k = 0; k < count; k++)
            if (spans[k].operation == spans[i].operation) {
                bool pair = spans[i].op == CAIRN_SEND || spans[i].op == CAIRN_RECV;

                parts++;
                assert_int_equal(spans[k].step, spans[i].step);
                assert_int_equal(spans[k].comm, spans[i].comm);
                assert_true(k == i || !pair || spans[k].op != spans[i].op);
            }
        assert_int_equal(parts, spans[i].op == CAIRN_BARRIER ? WORLD : 2);
    }
}

static void
test_aligned(void **state)
{
    struct job job;

    for (int numbered = 0; numbered < 2; numbered++) { /* or steps are found from what repeats */
        start(&job);
        job.numbered = numbered != 0;
        (void)run_steps(&job, 0, false);
        check_starts(&job);
        check_operations(&job);
        end(&job);
    }
}

static double
last_of(const struct job *job, bool ideal)
{
    size_t count;
    const struct cairn_span *spans = cairn_timeline_spans(job->timeline, &count);
    double last_ns = 0;

    for (size_t i = 0; i < count; i++) {
        assert_true(spans[i].ideal_end_ns >= 0); /* not NaN */
        last_ns = fmax(last_ns, ideal ? spans[i].ideal_end_ns : spans[i].end_ns);
    }
    return last_ns;
}

static void
test_ideal(void **state)
{
    struct job job;

    start(&job); /* nothing is slow: the replay ends when the job did */
    (void)run_steps(&job, 0, false);
    assert_true(fabs(last_of(&job, true) - last_of(&job, false)) < 1000);
    end(&job);
    start(&job); /* rank 3 takes 30 ms more in each step: none is left */
    (void)run_steps(&job, 30, false);
    check_starts(&job);
    assert_true(fabs(last_of(&job, false) - last_of(&job, true) - KEPT * 30.0 * MS) < 0.2 * MS);
    end(&job);
}

static void
test_open(void **state)
{
    const struct cairn_span *spans;
    struct job job;
    uint32_t open = 0;
    size_t count;

    start(&job);
    (void)run_steps(&job, 0, true);
    spans = cairn_timeline_spans(job.timeline, &count);
    for (size_t i = 0; i < count; i++) {
        open += spans[i].open ? 1 : 0;
        assert_true(spans[i].end_ns >= spans[i].start_ns);
        assert_true(!spans[i].open || (spans[i].comm == 4 && spans[i].step == STEPS - 1));
    }
    assert_int_equal(open, WORLD);
    end(&job);
}

static void
test_nothing(void **state)
{
    struct job job;
    size_t count;

    start(&job);
    assert_int_equal(cairn_timeline_finish(job.timeline), CAIRN_OK);
    (void)cairn_timeline_spans(job.timeline, &count);
    assert_int_equal(count, 0);
    assert_int_equal(cairn_timeline_operation_count(job.timeline), 0);
    end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_aligned), cmocka_unit_test(test_ideal),
                                       cmocka_unit_test(test_open), cmocka_unit_test(test_nothing)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
