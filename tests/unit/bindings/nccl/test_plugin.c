/*
 * tests/unit/bindings/nccl/test_plugin.c - the profiler plugin as NCCL loads and calls it, versions
 * 3 to 6: what it records, which kernels it asks for, and many threads.
 */
#include "tests/support/cmocka.h"
#include "tests/support/nccl/fake_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

enum { RECORDS_MAX = 1 << 15, RANK = 37, LASTED_NS = 123456 };

static struct cairn_timing_record records[RECORDS_MAX];

static const struct fake_task all_reduce = {
    .func = "AllReduce", .datatype = "ncclFloat32", .count = 1000, .channels = 4, .rank = -1};

static void
records_of_an_operation(int version)
{
    struct fake_task task = {.func = "ReduceScatter",
                             .datatype = "ncclBfloat16",
                             .count = 50,
                             .channels = 3,
                             .rank = -1};
    struct cairn_timing_record member;
    struct fake_operation operation;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    uint64_t before_ns, device_ns;
    bool found = false;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    CHECK((nccl.mask & (NCCL_COLL | NCCL_P2P)) == (NCCL_COLL | NCCL_P2P));
    CHECK(nccl.mask == (NCCL_COLL | NCCL_P2P | NCCL_KERNEL_CH));
    if (version > 3) { /* v3 learns who we are from the first operation */
        CHECK(fake_read(&ring, &member, 1) == 1);
        CHECK(member.op == CAIRN_TIMING_MEMBER && member.comm == 0xabc && member.peer == 5 &&
              member.ranks == 8);
        CHECK(member.rank == RANK);
    }
    before_ns = fake_now_ns();
    for (int i = 0; i < 3; i++)
        operation = fake_enqueue(&comm, &task);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == 3);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(records[i].comm == 0xabc && records[i].seq == i + 1 &&
              records[i].op == CAIRN_REDUCE_SCATTER);
        /* v3 does not know how many ranks there are */
        CHECK(records[i].bytes == (version == 3 ? 100 : 800));
        CHECK(records[i].ranks == (version == 3 ? 0 : 8));
        CHECK(records[i].rank == RANK && records[i].peer == CAIRN_PEER_NONE &&
              records[i].step == 0);
        CHECK(records[i].enter_ns >= before_ns && records[i].enter_ns <= fake_now_ns());
        CHECK(records[i].start_ns == 0 && records[i].end_ns == 0);
    }
    /* The kernel of the third, which has just ended, on a clock far away. */
    device_ns = UINT64_C(5000000000000000) + fake_now_ns() - LASTED_NS;
    fake_kernel(&operation, 3, device_ns, device_ns + LASTED_NS);
    if (version == 3) /* it does not say how many channels are coming: the next kernel tells */
        operation = fake_enqueue(&comm, &task), fake_kernel(&operation, 1, 1, 2);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == (version == 3 ? 4 : 2));
    CHECK(records[0].seq == 3 && records[0].start_ns > before_ns - LASTED_NS &&
          records[0].end_ns == 0);
    for (uint32_t i = 1; i < 4; i++)
        if (records[i].end_ns) {
            CHECK(records[i].seq == 3 && records[i].op == CAIRN_REDUCE_SCATTER &&
                  records[i].comm == 0xabc);
            CHECK(records[i].start_ns > before_ns - LASTED_NS &&
                  records[i].end_ns <= fake_now_ns());
            CHECK(version == 3 ? records[i].end_ns > records[i].start_ns
                               : records[i].end_ns - records[i].start_ns == LASTED_NS);
            found = true;
            break;
        }
    CHECK(found);
    fake_comm_finalize(&comm);
    fake_nccl_close(&nccl);
}

static void
test_records(void **state)
{
    assert_true(fake_each_version(records_of_an_operation, "100"));
}

static void
names_and_sizes(int version)
{
    static const struct {
        const char *func, *datatype;
        uint16_t op;
        uint64_t bytes;
    } expected[] = {
        {"AllReduce", "ncclFloat32", CAIRN_ALL_REDUCE, 28},
        {"AllGather", "ncclInt8", CAIRN_ALL_GATHER, 7},
        {"Broadcast", "ncclInt8", CAIRN_BROADCAST, 7},
        {"Reduce", "ncclFloat64", CAIRN_REDUCE, 56},
        {"Send", "ncclFloat16", CAIRN_SEND, 14},
        {"Recv", "ncclInt64", CAIRN_RECV, 56},
        {"AllReduce", "ncclFloat8e4m3", CAIRN_ALL_REDUCE, 7},
        {"AllReduce", "Unknown", CAIRN_ALL_REDUCE, 7},
    };
    enum { COUNT = sizeof expected / sizeof *expected };
    struct fake_task task = {.count = 7, .channels = 1, .peer = 2, .rank = -1};
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    for (size_t i = 0; i < COUNT; i++) {
        task.func = expected[i].func;
        task.datatype = expected[i].datatype;
        fake_enqueue(&comm, &task);
    }
    task.func = "Invalid"; /* and any name of a later NCCL */
    fake_enqueue(&comm, &task);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) == COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        bool transfer = expected[i].op == CAIRN_SEND || expected[i].op == CAIRN_RECV;

        CHECK(records[i].op == expected[i].op && records[i].bytes == expected[i].bytes);
        CHECK(records[i].peer == (transfer ? 2 : CAIRN_PEER_NONE) &&
              (records[i].seq == 0) == transfer);
    }
    CHECK(!(nccl.mask & NCCL_KERNEL_CH)); /* 0 percent */
}

static void
test_names(void **state)
{
    assert_true(fake_each_version(names_and_sizes, "0"));
}

/* ---- which kernels are timed ---- */

static void
share_is_bounded(int version)
{
    enum { OPERATIONS = 40000, PERIOD = 4096 };
    uint32_t timed = 0, in_window = 0;
    uint64_t begin_ns = fake_now_ns(), elapsed_ns;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    for (uint32_t i = 0; i < OPERATIONS; i++) {
        struct fake_operation operation = fake_enqueue(&comm, &all_reduce);

        timed += operation.timed;
        in_window += operation.timed && i % PERIOD < PERIOD / 40;
        if (i % 4096 == 0)
            while (fake_read(&ring, records, RECORDS_MAX)) {
            }
    }
    elapsed_ns = fake_now_ns() - begin_ns;
    CHECK(timed <= OPERATIONS / 20 + 512 + 64 + 20 * (elapsed_ns / 1000000000 + 1));
    CHECK(timed >= OPERATIONS / 100);
    /* The beginnings of periods are the same on all ranks. */
    CHECK(in_window >= (OPERATIONS / PERIOD) * (PERIOD / 40 - 1));
}

static void
reader_wishes(int version)
{
    enum { OPERATIONS = 1000 };
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    uint32_t timed = 0;

    fake_open_one(&nccl, &comm, version);
    ring = fake_reader();
    for (uint32_t i = 0; i < 3000; i++) /* past the first window */
        fake_enqueue(&comm, &all_reduce);
    cairn_ring_set_wish(&ring, fake_now_ns() + UINT64_C(30000000000));
    fake_enqueue(&comm, &all_reduce);
    for (uint32_t i = 0; i < OPERATIONS; i++)
        timed += fake_enqueue(&comm, &all_reduce).timed;
    CHECK(timed == OPERATIONS);
    cairn_ring_set_wish(&ring, fake_now_ns()); /* over */
    timed = 0;
    for (uint32_t i = 0; i < OPERATIONS; i++)
        timed += fake_enqueue(&comm, &all_reduce).timed;
    CHECK(timed < OPERATIONS / 2);
    cairn_ring_set_wish(&ring, UINT64_MAX); /* no reader may ask for ever */
    timed = 0;
    for (uint32_t i = 0; i < OPERATIONS; i++)
        timed += fake_enqueue(&comm, &all_reduce).timed;
    CHECK(timed < OPERATIONS / 2);
}

static void
test_sampling(void **state)
{
    assert_true(fake_each_version(share_is_bounded, "5"));
    assert_true(fake_each_version(reader_wishes, "5"));
}

static void
setting_is_no_number(int version)
{
    struct fake_nccl nccl;
    struct fake_comm comm;

    fake_open_one(&nccl, &comm, version);
    CHECK(nccl.mask & NCCL_KERNEL_CH);
    CHECK(version == 3 || strstr(nccl.said, "CAIRN_NCCL_KERNEL_PERCENT takes a whole number"));
}

static void
test_bad_setting(void **state)
{
    assert_true(fake_each_version(setting_is_no_number, "101"));
    assert_true(fake_in_child(setting_is_no_number, 5, "many"));
}

/* ---- threads ---- */

enum { PAIRS = 3, PER_THREAD = 3000, QUEUED = 64 };

/* A user's thread and a proxy's thread of one communicator, with a queue of operations between
 * them. */
struct pair {
    struct fake_comm comm;
    struct fake_operation queue[QUEUED];
    _Atomic uint32_t pushed, popped;
    pthread_t user, proxy;
};

static void *
run_user(void *context)
{
    struct pair *pair = context;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        struct fake_operation operation = fake_enqueue(&pair->comm, &all_reduce);

        while (pair->pushed - pair->popped == QUEUED)
            sched_yield();
        pair->queue[pair->pushed % QUEUED] = operation;
        pair->pushed++;
    }
    return NULL;
}

static void *
run_proxy(void *context)
{
    struct pair *pair = context;

    for (uint32_t i = 0; i < PER_THREAD; i++) {
        while (pair->pushed == pair->popped)
            sched_yield();
        fake_kernel(&pair->queue[i % QUEUED], 4, 1000 * (uint64_t)i + 1000,
                    1000 * (uint64_t)i + 1500);
        pair->popped++;
    }
    return NULL;
}

static void
many_threads(int version)
{
    static struct pair pairs[PAIRS];
    uint32_t entered = 0, whole = 0, running = PAIRS;
    struct fake_nccl nccl;
    struct cairn_ring ring;

    fake_nccl_open(&nccl, fake_nccl_path("cairn"), version);
    for (int i = 0; i < PAIRS; i++)
        fake_comm_init(&pairs[i].comm, &nccl, (uint64_t)i + 1, 2, 1);
    ring = fake_reader();
    for (int i = 0; i < PAIRS; i++) {
        CHECK(pthread_create(&pairs[i].user, NULL, run_user, &pairs[i]) == 0);
        CHECK(pthread_create(&pairs[i].proxy, NULL, run_proxy, &pairs[i]) == 0);
    }
    while (running || cairn_ring_waiting(&ring)) {
        uint32_t count = fake_read_operations(&ring, records, RECORDS_MAX);

        for (uint32_t i = 0; i < count; i++) {
            CHECK(records[i].comm >= 1 && records[i].comm <= PAIRS && records[i].seq <= PER_THREAD);
            entered += records[i].start_ns == 0;
            whole += records[i].end_ns != 0;
            CHECK(!records[i].end_ns || version == 3 ||
                  records[i].end_ns - records[i].start_ns == 500);
        }
        running = 0;
        for (int i = 0; i < PAIRS; i++)
            running += pairs[i].popped < PER_THREAD;
    }
    for (int i = 0; i < PAIRS; i++) {
        pthread_join(pairs[i].user, NULL);
        pthread_join(pairs[i].proxy, NULL);
        fake_comm_finalize(&pairs[i].comm);
    }
    whole += fake_read_operations(&ring, records, RECORDS_MAX);
    CHECK(cairn_ring_dropped(&ring) + entered >= PAIRS * PER_THREAD);
    CHECK(entered <= PAIRS * PER_THREAD && whole <= PAIRS * PER_THREAD);
    /* A thread that finds a slot taken goes away, so some of the times may be lost, but few. */
    CHECK(cairn_ring_dropped(&ring) > 0 || whole >= PAIRS * PER_THREAD * 9 / 10);
}

static void
test_threads(void **state)
{
    assert_true(fake_each_version(many_threads, "100"));
}

static void
test_only_tables_leave(void **state)
{
    void *library = dlopen(fake_nccl_path("cairn"), RTLD_NOW | RTLD_LOCAL);

    assert_non_null(library);
    assert_non_null(dlsym(library, "ncclProfiler_v6"));
    assert_null(dlsym(library, "cairn_ring_write"));
    assert_null(dlsym(library, "ncclProfiler_v2"));
    dlclose(library);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),  cmocka_unit_test(test_names),
        cmocka_unit_test(test_sampling), cmocka_unit_test(test_bad_setting),
        cmocka_unit_test(test_threads),  cmocka_unit_test(test_only_tables_leave),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
