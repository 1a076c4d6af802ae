/*
 * tests/unit/replan/live/test_recording.c - the last steps of ranks: what a ring keeps, what its
 * bytes hold, and how the recordings of several nodes become one trace.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replan/live/merge.h"
#include "replan/live/recording.h"
#include "replan/live/reduce.h"
#include "tests/support/cmocka.h"

enum { WORLD = 4, MS = 1000000, COMM = 0xc0, PAIRS = 0xd0, PARCEL_BYTES = 1 << 20 };

struct job {
    struct cairn_reduce *reduces[WORLD];
    uint64_t now_ns;
    uint64_t seq;
};

static void
ignore(void *context, const struct cairn_report *report)
{
}

static void
start(struct job *job, uint64_t recording_bytes)
{
    *job = (struct job){.now_ns = 1000 * (uint64_t)MS};
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_reduce_options options = {.rank = rank,
                                               .world = WORLD,
                                               .attachment = 1,
                                               .recording_bytes = recording_bytes,
                                               .emit = ignore};

        assert_int_equal(cairn_reduce_create(&options, &job->reduces[rank]), CAIRN_OK);
    }
}

static void
end(struct job *job)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        cairn_reduce_destroy(job->reduces[rank]);
}

static void
put(struct job *job, struct cairn_timing_record record)
{
    assert_int_equal(
        cairn_reduce_take(job->reduces[record.rank], &record, job->now_ns + 1000 * (uint64_t)MS),
        CAIRN_OK);
}

/* One step of all ranks: 10 ms of computation (rank 2: 20 ms), then an operation of 1 ms. Without
 * `ends` the last operation is entered only. */
static void
step(struct job *job, uint32_t number, bool ends)
{
    job->seq++;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        struct cairn_timing_record record = {.comm = COMM,
                                             .seq = job->seq,
                                             .bytes = 64,
                                             .enter_ns =
                                                 job->now_ns + (rank == 2 ? 20 : 10) * (uint64_t)MS,
                                             .rank = rank,
                                             .peer = CAIRN_PEER_NONE,
                                             .step = number,
                                             .ranks = WORLD,
                                             .op = CAIRN_ALL_REDUCE};

        put(job, record);
        record.end_ns = job->now_ns + 21 * (uint64_t)MS;
        if (ends)
            put(job, record);
    }
    job->now_ns += 21 * (uint64_t)MS;
}

/* Packs two ranks, as a node does. */
static size_t
pack(const struct job *job, uint32_t node, uint32_t steps, uint32_t until, uint8_t *bytes)
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, PARCEL_BYTES);
    for (uint32_t rank = 2 * node; rank < 2 * node + 2; rank++)
        cairn_reduce_pack_recording(job->reduces[rank], steps, until, CAIRN_PRESENCE_RUNS,
                                    job->now_ns, &writer);
    assert_int_equal(cairn_writer_done(&writer), CAIRN_OK);
    return writer.used_bytes;
}

static struct cairn_merge *
merge(const struct job *job, uint32_t steps)
{
    uint8_t *bytes = malloc(PARCEL_BYTES);
    struct cairn_merge *merge = NULL;

    assert_non_null(bytes);
    assert_int_equal(cairn_merge_create(&merge), CAIRN_OK);
    for (uint32_t node = 0; node < WORLD / 2; node++) {
        size_t len = pack(job, node, steps, cairn_merge_newest(merge), bytes);

        assert_int_equal(cairn_merge_add(merge, node, bytes, len), CAIRN_OK);
    }
    free(bytes);
    assert_int_equal(cairn_merge_finish(merge), CAIRN_OK);
    return merge;
}

static void
test_steps_of_all_nodes_in_order(void **state)
{
    struct job job;
    struct cairn_merge *all;
    struct cairn_record record;
    const struct cairn_topology *topology;
    uint32_t count = 0, lives = 0;

    start(&job, 1 << 20);
    for (uint32_t number = 1; number <= 20; number++)
        step(&job, number, true);
    step(&job, 21, false);
    all = merge(&job, 5);
    topology = cairn_merge_topology(all);
    assert_int_equal(topology->world, WORLD);
    assert_int_equal(topology->node[1], 0);
    assert_int_equal(topology->node[2], 1);
    assert_int_equal(topology->comm_count, 1);
    assert_int_equal(topology->comms[0].count, WORLD);
    while (cairn_merge_next(all, &record)) {
        if (record.op == 0) {
            assert_int_equal(record.rank, lives++);
            assert_int_equal(record.start_ns, job.now_ns);
            continue;
        }
        assert_int_equal(lives, 0);
        assert_int_equal(record.step, 17 + count / WORLD);
        assert_int_equal(record.rank, count % WORLD);
        assert_int_equal(record.seq, record.step);
        assert_int_equal(record.end_ns == 0, record.step == 21);
        assert_false(record.has_compute);
        count++;
    }
    assert_int_equal(count, 5 * WORLD);
    assert_int_equal(lives, WORLD);
    assert_int_equal(cairn_merge_summarize(all).first_step, 17);
    assert_int_equal(cairn_merge_summarize(all).last_step, 21);
    assert_int_equal(cairn_merge_summarize(all).left_out, 0);
    cairn_merge_destroy(all);
    end(&job);
}

/* The bytes bound what is kept, and a step whose first operations are gone does not count. */
static void
test_whole_steps_alone_are_kept(void **state)
{
    struct job job;
    struct cairn_merge *all;
    struct cairn_record record;
    uint32_t count = 0;

    start(&job, 7 * sizeof(struct cairn_recorded_op));
    for (uint32_t number = 1; number <= 10; number++) { /* two operations a step */
        step(&job, number, true);
        step(&job, number, true);
    }
    all = merge(&job, 100);
    while (cairn_merge_next(all, &record))
        count += record.op != 0;
    assert_int_equal(count, WORLD * 6);
    assert_int_equal(cairn_merge_summarize(all).first_step, 8);
    cairn_merge_destroy(all);
    end(&job);
}

/* A lost operation would read as computation: the trace of that rank begins after that. */
static void
test_nothing_before_a_loss(void **state)
{
    struct job job;
    struct cairn_merge *all;
    struct cairn_record record;
    uint32_t first[WORLD] = {0};

    start(&job, 1 << 20);
    for (uint32_t number = 1; number <= 10; number++) {
        step(&job, number, true);
        if (number == 6)
            cairn_reduce_lose(job.reduces[1], 3);
    }
    all = merge(&job, 100);
    while (cairn_merge_next(all, &record))
        if (record.op != 0 && first[record.rank] == 0)
            first[record.rank] = record.step;
    assert_int_equal(first[0], 1);
    assert_int_equal(first[1], 7);
    assert_int_equal(first[3], 1);
    cairn_merge_destroy(all);
    end(&job);
}

/* What the trainer recorded, and that nobody can know it, travel with the step. */
static void
test_computation_that_is_told(void **state)
{
    struct job job;
    struct cairn_merge *all;
    struct cairn_record record;

    start(&job, 1 << 20);
    for (uint32_t number = 1; number <= 6; number++) {
        put(&job, (struct cairn_timing_record){.enter_ns = job.now_ns,
                                               .end_ns = job.now_ns + 7 * (uint64_t)MS,
                                               .bytes = 3,
                                               .rank = 1,
                                               .step = number,
                                               .op = CAIRN_TIMING_COMPUTE});
        if (number == 4) /* its communicator shows ends: which ranks wait in it is unknown */
            put(&job, (struct cairn_timing_record){.comm = COMM,
                                                   .seq = 1000,
                                                   .enter_ns = job.now_ns + MS,
                                                   .rank = 3,
                                                   .peer = CAIRN_PEER_NONE,
                                                   .step = number,
                                                   .ranks = WORLD,
                                                   .op = CAIRN_BARRIER});
        step(&job, number, true);
    }
    all = merge(&job, 100);
    while (cairn_merge_next(all, &record)) {
        if (record.op == 0 || record.step == 6) /* which is under way */
            continue;
        if (record.rank == 1) {
            assert_true(record.has_compute);
            assert_true(record.compute_ns == 7.0 * MS && record.work == 3);
        } else if (record.rank == 3 && (record.step == 4 || record.step == 5)) {
            assert_true(record.has_compute && isnan(record.compute_ns));
        } else if (record.step > 1) {
            assert_false(record.has_compute);
        }
    }
    cairn_merge_destroy(all);
    end(&job);
}

/* Peers that are places in their communicator become ranks. */
static void
test_peers(void **state)
{
    struct job job;
    struct cairn_merge *all;
    struct cairn_record record;
    uint32_t sends = 0;

    start(&job, 1 << 20);
    for (uint32_t number = 1; number <= 3; number++) {
        for (uint32_t rank = 1; rank < 4; rank += 2) {
            struct cairn_timing_record member = {.comm = PAIRS,
                                                 .enter_ns = job.now_ns,
                                                 .rank = rank,
                                                 .peer = rank / 2,
                                                 .ranks = 2,
                                                 .op = CAIRN_TIMING_MEMBER};
            struct cairn_timing_record pair = {.comm = PAIRS,
                                               .enter_ns = job.now_ns,
                                               .end_ns = job.now_ns + MS,
                                               .rank = rank,
                                               .peer = rank == 1 ? 1 : 0,
                                               .step = number,
                                               .ranks = 2,
                                               .op = rank == 1 ? CAIRN_SEND : CAIRN_RECV};

            put(&job, member);
            put(&job, pair);
        }
        step(&job, number, true);
    }
    all = merge(&job, 100);
    while (cairn_merge_next(all, &record)) {
        if (record.op < CAIRN_SEND)
            continue;
        assert_int_equal(record.peer, record.rank == 1 ? 3 : 1);
        sends++;
    }
    assert_int_equal(sends, 6);
    assert_int_equal(cairn_topology_find(cairn_merge_topology(all), "pp1", 3) == CAIRN_COMM_NONE &&
                         cairn_topology_find(cairn_merge_topology(all), "pp0", 3) ==
                             CAIRN_COMM_NONE,
                     0);
    cairn_merge_destroy(all);
    end(&job);
}

static void
test_missing_nodes_and_malformed_bytes(void **state)
{
    uint8_t *bytes = malloc(PARCEL_BYTES);
    struct cairn_merge *some;
    struct cairn_record record;
    struct job job;
    size_t len;

    assert_non_null(bytes);
    start(&job, 1 << 20);
    for (uint32_t number = 1; number <= 3; number++)
        step(&job, number, true);
    len = pack(&job, 1, 100, 0, bytes);
    assert_int_equal(cairn_merge_create(&some), CAIRN_OK);
    for (size_t cut = 1; cut < len; cut++) /* each is cut short somewhere */
        if (cairn_merge_add(some, 1, bytes, cut) == CAIRN_OK)
            break;
    assert_int_equal(cairn_merge_newest(some), 3); /* one whole rank of the two */
    assert_int_equal(cairn_merge_add(some, 1, bytes, len), CAIRN_OK);
    bytes[7] = 0xff; /* its world, of ranks that nobody can have */
    assert_int_equal(cairn_merge_add(some, 0, bytes, len), CAIRN_CORRUPT);
    assert_int_equal(cairn_merge_finish(some), CAIRN_OK);
    assert_int_equal(cairn_merge_summarize(some).ranks, 2);
    assert_int_equal(cairn_merge_summarize(some).world, WORLD);
    while (cairn_merge_next(some, &record))
        assert_true(record.rank == 2 || record.rank == 3);
    cairn_merge_destroy(some);

    assert_int_equal(cairn_merge_create(&some), CAIRN_OK);
    assert_int_equal(cairn_merge_add(some, 0, NULL, 0), CAIRN_OK);
    assert_int_equal(cairn_merge_finish(some), CAIRN_NOT_FOUND);
    cairn_merge_destroy(some);
    free(bytes);
    end(&job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_of_all_nodes_in_order),
        cmocka_unit_test(test_whole_steps_alone_are_kept),
        cmocka_unit_test(test_nothing_before_a_loss),
        cmocka_unit_test(test_computation_that_is_told),
        cmocka_unit_test(test_peers),
        cmocka_unit_test(test_missing_nodes_and_malformed_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
