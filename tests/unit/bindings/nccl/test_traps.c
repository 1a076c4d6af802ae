/* tests/unit/bindings/nccl/test_traps.c - what NCCL has done to profiler plugins that they did not
 * expect, versions 3 to 6. */
#include "tests/support/cmocka.h"
#include "tests/support/nccl/fake_nccl.h"

#include <string.h>

enum { RECORDS_MAX = 1 << 15, SLOTS = 1024 };

static struct cairn_timing_record records[RECORDS_MAX];

static const struct fake_task all_reduce = {
    .func = "AllReduce", .datatype = "ncclFloat32", .count = 1000, .channels = 4, .rank = -1};

/* The last record of the operation with this number; 0 seq where there is none among the first
 * `count`. */
static struct cairn_timing_record
ended(uint32_t count, uint64_t seq)
{
    struct cairn_timing_record found = {0};

    for (uint32_t i = 0; i < count; i++)
        if (records[i].seq == seq && records[i].end_ns) {
            CHECK(found.seq == 0); /* once */
            found = records[i];
        }
    return found;
}

static void
kernels_go_wrong(int version)
{
    struct fake_operation operations[70], none;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    void *handles[4], *first;
    uint32_t count;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    /* A kernel whose task has no handle, and channels that cannot be. */
    none = (struct fake_operation){.comm = &comm, .timed = true};
    CHECK(fake_kernel_start(&none, 0, 1) == NULL);
    operations[0] = fake_enqueue(&comm, &all_reduce);
    CHECK(operations[0].handle && operations[0].timed);
    fake_kernel_stop(&comm, fake_kernel_start(&operations[0], 64, 1), 2);
    fake_kernel_stop(&comm, fake_kernel_start(&operations[0], 255, 1), 2);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), 1).seq == 0);
    /* Fewer channels than announced: what has stopped by the next kernel's start is over. */
    fake_kernel(&operations[0], 2, 1000, 5000);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), 1).seq == 0);
    operations[1] = fake_enqueue(&comm, &all_reduce);
    first = fake_kernel_start(&operations[1], 0, 6000);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), 1).seq == 1);
    /* A stop that is missing on one channel, doubled on another, of one that never started; started
     * twice. */
    CHECK(fake_kernel_start(&operations[1], 0, 5) == first);
    for (int i = 1; i < 4; i++)
        handles[i] = fake_kernel_start(&operations[1], i, 6000 + (uint64_t)i);
    fake_kernel_stop(&comm, first, 9000);
    fake_kernel_stop(&comm, first, 99000);
    fake_kernel_stop(&comm, handles[1], 9001);
    fake_kernel_stop(&comm, handles[2], 9002);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), 2).seq == 0);
    fake_kernel_stop(&comm, handles[3], 9003); /* late, and on time after all */
    operations[2] = fake_enqueue(&comm, &all_reduce);
    fake_kernel(&operations[2], 1, 9500, 9600);
    count = fake_read_operations(&ring, records, RECORDS_MAX);
    CHECK(ended(count, 2).seq == 2);
    CHECK(version == 3 || ended(count, 2).end_ns - ended(count, 2).start_ns == 3003);
    /* More operations at once than a channel of NCCL's can tell of, then their kernels, the newest
     * first. */
    for (int i = 0; i < 70; i++)
        operations[i] = fake_enqueue(&comm, &all_reduce);
    for (int i = 69; i >= 0; i--)
        fake_kernel(&operations[i], 4, 10000 + (uint64_t)i * 100, 10090 + (uint64_t)i * 100);
    none = fake_enqueue(&comm, &all_reduce);
    fake_kernel(&none, 4, 20000, 20001);
    count = fake_read_operations(&ring, records, RECORDS_MAX);
    for (uint64_t seq = 4; seq < 74; seq++)
        CHECK(ended(count, seq).seq == seq);
    /* More timers than channels were announced, after the end. */
    fake_kernel_stop(&comm, fake_kernel_start(&operations[0], 9, 10001), 10099);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), 4).seq == 0);
}

static void
arguments_go_wrong(int version)
{
    uint8_t garbage[128];
    struct fake_operation operation;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    const struct nccl_profiler_v5 *table;
    void *handle = &comm;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    table = nccl.table;
    CHECK(table->start(comm.context, NULL, garbage) == 0 &&
          table->start(comm.context, &handle, NULL) == 0 && !handle);
    memset(garbage, 0xff, sizeof garbage); /* an event that nobody knows */
    CHECK(fake_start(&nccl, comm.context, garbage) == NULL);
    memset(garbage, 0, sizeof garbage);
    CHECK(fake_start(&nccl, comm.context, garbage) == NULL &&
          fake_start(&nccl, NULL, garbage) == NULL);
    CHECK(table->stop(NULL) == 0 && table->record(NULL, 22, NULL) == 0 &&
          table->finalize(NULL) == 0);
    /* A proxy's operation of another process: its parent means nothing here. */
    memset(garbage, 0, sizeof garbage);
    garbage[0] = NCCL_PROXY_OP;
    memset(garbage + 8, 0x5a, 8);
    garbage[24] = 77;
    CHECK(fake_start(&nccl, comm.context, garbage) == NULL);
    /* Handles that never were. */
    for (uint64_t made_up = 1; made_up; made_up <<= 1) {
        union nccl_state timer = {.device_ns = 1};

        CHECK(table->stop((void *)(uintptr_t)made_up) == 0);
        CHECK(table->stop((void *)(uintptr_t)(made_up | 2)) == 0);
        CHECK(table->record((void *)(uintptr_t)(made_up | 2), 22, &timer) == 0);
        CHECK(table->record((void *)(uintptr_t)made_up, 23, NULL) == 0);
    }
    operation = fake_enqueue(&comm, &all_reduce);
    handle = fake_kernel_start(&operation, 0, 10);
    CHECK(handle && table->record(handle, 22, NULL) == 0);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 2);
    /* init without a place for what it gives. */
    if (version == 3)
        CHECK(((const struct nccl_profiler_v3 *)nccl.table)->init(NULL, NULL) == 0);
    else if (version == 4)
        CHECK(((const struct nccl_profiler_v4 *)nccl.table)
                  ->init(NULL, NULL, NULL, 0, 0, 0, 0, NULL) == 0);
    else
        CHECK(table->init(NULL, 0, NULL, NULL, 0, 0, 0, NULL) == 0);
    /* A communicator that cannot be is not recorded; the others are. */
    fake_comm_init(&comm, &nccl, 0xdef, 4, 4);
    fake_enqueue(&comm, &all_reduce);
    CHECK(version == 3 || fake_read_operations(&ring, records, RECORDS_MAX) == 0);
}

static void
it_ends_too_early(int version)
{
    struct fake_operation operation, other;
    struct fake_nccl nccl;
    struct fake_comm comm, second;
    struct cairn_ring ring;
    void *handle;

    fake_open_one(&nccl, &comm, version);
    fake_comm_init(&second, &nccl, 0xdef, 2, 1);
    CHECK(second.context && second.context != comm.context);
    ring = fake_reader();
    operation = fake_enqueue(&comm, &all_reduce);
    other = fake_enqueue(&second, &all_reduce);
    handle = fake_kernel_start(&operation, 0, 10);
    fake_comm_finalize(&comm);
    fake_comm_finalize(&second);
    fake_nccl_close(&nccl); /* and NCCL's proxy thread is still at it */
    for (int i = 1; i < 4; i++)
        fake_kernel_stop(&comm, fake_kernel_start(&operation, i, 10), 20);
    fake_kernel_stop(&comm, handle, 30);
    fake_stop(&nccl, other.handle);
    (void)fake_read_operations(&ring, records, RECORDS_MAX);
    /* Loaded again, as with the next communicator: the ring is the same. */
    fake_nccl_open(&nccl, fake_nccl_path("cairn"), version);
    fake_comm_init(&comm, &nccl, 0x123, 2, 1);
    fake_enqueue(&comm, &all_reduce);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 1 && records[0].comm == 0x123);
    ring = fake_reader();
}

static void
handles_grow_old(int version)
{
    struct fake_operation old, young;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    void *handle;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    old = fake_enqueue(&comm, &all_reduce);
    handle = fake_kernel_start(&old, 0, 10);
    for (int i = 0; i < SLOTS - 1; i++)
        fake_enqueue(&comm, &all_reduce);
    young = fake_enqueue(&comm, &all_reduce); /* it has the slot of the old one */
    (void)fake_read_operations(&ring, records, RECORDS_MAX);
    fake_kernel_stop(&comm, handle, 20);
    fake_kernel(&old, 4, 10, 20);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 0);
    fake_kernel(&young, 4, 1000, 1500);
    old = fake_enqueue(&comm, &all_reduce);
    fake_kernel(&old, 4, 2000, 2500);
    CHECK(ended(fake_read_operations(&ring, records, RECORDS_MAX), SLOTS + 1).seq == SLOTS + 1);
}

static void
another_rank_is_described(int version)
{
    struct fake_task task = all_reduce;
    struct fake_nccl nccl;
    struct fake_comm comm, second;
    struct cairn_ring ring;

    if (version == 3) /* which does not say what rank we are */
        return;
    fake_open_one(&nccl, &comm, version);
    fake_comm_init(&second, &nccl, 0xdef, 2, 1);
    ring = fake_reader();
    task.rank = 6;
    fake_enqueue(&comm, &task); /* what we read is not what NCCL wrote: it ends here, for all
                                 * communicators */
    CHECK(nccl.mask == 0);
    nccl.mask = NCCL_COLL | NCCL_KERNEL_CH;
    fake_enqueue(&second, &all_reduce);
    CHECK(nccl.mask == 0 && fake_read_operations(&ring, records, RECORDS_MAX) == 0);
    fake_comm_init(&comm, &nccl, 0x123, 2, 1);
    CHECK(nccl.mask == 0);
}

static void
replays_are_not_numbered(int version)
{
    struct fake_task replayed = all_reduce;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;

    if (version < 5) /* where NCCL does not tell them apart */
        return;
    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    replayed.replayed = true;
    fake_enqueue(&comm, &all_reduce);
    for (int i = 0; i < 3; i++)
        fake_enqueue(&comm, &replayed);
    fake_enqueue(&comm, &all_reduce);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 2 && records[0].seq == 1 &&
          records[1].seq == 2);
}

static void
nobody_reads(int version)
{
    enum { WRITTEN = 20000 };
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    uint32_t count;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    for (uint32_t i = 0; i < WRITTEN; i++)
        fake_enqueue(&comm, &all_reduce);
    count = fake_read(&ring, records, RECORDS_MAX);
    CHECK(count == 1 << 14);
    CHECK(cairn_ring_dropped(&ring) == WRITTEN + (version > 3 ? 1u : 0u) - count);
    for (uint32_t i = 1; i < count; i++)
        CHECK(records[i].seq == i + (version == 3 ? 1u : 0u));
}

static void
communicators_run_out(int version)
{
    enum { MANY = 4200 };
    static struct fake_comm comms[MANY];
    struct fake_nccl nccl;
    struct cairn_ring ring;
    int given = 0;

    fake_nccl_open(&nccl, fake_nccl_path("cairn"), version);
    for (int i = 0; i < MANY; i++) {
        fake_comm_init(&comms[i], &nccl, (uint64_t)i + 1, 2, 1);
        given += comms[i].context != NULL;
    }
    CHECK(given == 4096 && !comms[MANY - 1].context);
    ring = fake_reader();
    (void)fake_read_operations(&ring, records, RECORDS_MAX);
    fake_enqueue(&comms[MANY - 1], &all_reduce);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 0);
    fake_comm_finalize(&comms[0]);
    fake_comm_init(&comms[0], &nccl, 1, 2, 1);
    fake_enqueue(&comms[0], &all_reduce);
    CHECK(comms[0].context && fake_read_operations(&ring, records, RECORDS_MAX) == 1);
}

static void
test_kernels_go_wrong(void **state)
{
    assert_true(fake_each_version(kernels_go_wrong, "100"));
}

static void
test_arguments_go_wrong(void **state)
{
    assert_true(fake_each_version(arguments_go_wrong, "100"));
}

static void
test_it_ends_too_early(void **state)
{
    assert_true(fake_each_version(it_ends_too_early, "100"));
}

static void
test_handles_grow_old(void **state)
{
    assert_true(fake_each_version(handles_grow_old, "100"));
}

static void
test_another_rank_is_described(void **state)
{
    assert_true(fake_each_version(another_rank_is_described, "100"));
}

static void
test_replays_are_not_numbered(void **state)
{
    assert_true(fake_each_version(replays_are_not_numbered, "100"));
}

static void
test_nobody_reads(void **state)
{
    assert_true(fake_each_version(nobody_reads, "0"));
}

static void
test_communicators_run_out(void **state)
{
    assert_true(fake_each_version(communicators_run_out, "0"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_go_wrong),
        cmocka_unit_test(test_arguments_go_wrong),
        cmocka_unit_test(test_it_ends_too_early),
        cmocka_unit_test(test_handles_grow_old),
        cmocka_unit_test(test_another_rank_is_described),
        cmocka_unit_test(test_replays_are_not_numbered),
        cmocka_unit_test(test_nobody_reads),
        cmocka_unit_test(test_communicators_run_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
