/* tests/unit/bindings/nccl/test_chain.c - another profiler plugin goes on working behind ours. */
#include "tests/support/cmocka.h"
#include "tests/support/nccl/fake_nccl.h"
#include "tests/support/nccl/recording_plugin.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum {
    RECORDS_MAX = 1 << 15,
    OPERATIONS = 300,
    BIT_GROUP = 0,
    BIT_COLL = 1,
    BIT_PROXY_CTRL = 5,
    BIT_KERNEL_CH = 6,
    BIT_COLL_API = 9
};

static struct cairn_timing_record records[RECORDS_MAX];

static const struct fake_task all_reduce = {
    .func = "AllReduce", .datatype = "ncclFloat32", .count = 1000, .channels = 2, .rank = -1};

/* The other plugin, opened as ours opens it, so that it is the same one. */
static struct recording *
open_recording(void)
{
    void *library = dlopen(fake_nccl_path("recording"), RTLD_NOW | RTLD_LOCAL);

    CHECK(library);
    setenv("CAIRN_NCCL_PROFILER_CHAIN", fake_nccl_path("recording"), 1);
    return dlsym(library, "recording");
}

static void
run_operations(struct fake_comm *comm)
{
    for (uint64_t i = 0; i < OPERATIONS; i++) {
        struct fake_operation operation = fake_enqueue(comm, &all_reduce);

        fake_kernel(&operation, 2, 1000 * i + 1000, 1000 * i + 1500);
    }
}

static void
both_are_told(int version)
{
    struct recording *other = open_recording();
    struct fake_operation again;
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;
    uint8_t late[128] = {NCCL_PROXY_CTRL};
    uint32_t count, whole = 0;
    void *context;

    fake_open_one(&nccl, &comm, version);
    /* Copy engines are in version 6 alone, which the other plugin does not have. */
    CHECK(nccl.mask == 0xfff && other->joined == 1);
    ring = fake_reader();
    run_operations(&comm);
    count = fake_read_operations(&ring, records, RECORDS_MAX);
    for (uint32_t i = 0; i < count; i++)
        whole += records[i].end_ns != 0;
    CHECK(whole == OPERATIONS - (version == 3)); /* of v3 the last one is settled by the next */
    CHECK(other->wrong == 0);
    for (int bit = 0; bit < 15; bit++)
        CHECK(other->started[bit] == other->stopped[bit]);
    CHECK(other->started[BIT_GROUP] == OPERATIONS && other->started[BIT_COLL] == OPERATIONS);
    CHECK(other->started[BIT_KERNEL_CH] == 2 * OPERATIONS &&
          other->with_parent[BIT_KERNEL_CH] == 2 * OPERATIONS);
    CHECK(other->with_parent[BIT_COLL] == OPERATIONS && other->with_parent[BIT_GROUP] == 0);
    CHECK(other->started[BIT_COLL_API] == (version < 5 ? 0 : OPERATIONS));
    CHECK(other->kernel_stops == (version == 3 ? 0 : 2 * OPERATIONS));
    again = fake_enqueue(&comm, &all_reduce);
    fake_stop(&nccl, again.handle); /* a second time: it has ended once */
    CHECK(other->wrong == 0);
    context = comm.context;
    fake_comm_finalize(&comm);
    CHECK(other->left == 1);
    /* NCCL's proxy thread, which communicators may share, comes with the one that has ended: the
     * other has left it. */
    CHECK(fake_start(&nccl, context, late) == NULL && other->started[BIT_PROXY_CTRL] == 0);
    fake_nccl_close(&nccl);
}

static void
only_what_it_asks_for(int version)
{
    struct recording *other = open_recording();
    struct fake_nccl nccl;
    struct fake_comm comm;
    struct cairn_ring ring;

    other->mask = NCCL_COLL;
    fake_open_one(&nccl, &comm, version);
    CHECK(nccl.mask == (NCCL_COLL | NCCL_P2P | NCCL_KERNEL_CH));
    ring = fake_reader();
    run_operations(&comm);
    CHECK(other->started[BIT_COLL] == OPERATIONS && other->started[BIT_KERNEL_CH] == 0 &&
          other->kernel_stops == 0);
    CHECK(other->wrong == 0 && other->started[BIT_GROUP] == OPERATIONS);
    CHECK(fake_read_operations(&ring, records, RECORDS_MAX) >= 3 * OPERATIONS - 1);
}

/* What we stop asking for, it may go on asking for. */
static void
ours_ends(int version)
{
    struct recording *other = open_recording();
    struct fake_task task = all_reduce;
    struct fake_nccl nccl;
    struct fake_comm comm;

    if (version == 3)
        return;
    other->mask = NCCL_COLL | NCCL_PROXY_OP;
    fake_open_one(&nccl, &comm, version);
    task.rank = 2;
    fake_enqueue(&comm, &task);
    CHECK(nccl.mask == (NCCL_COLL | NCCL_PROXY_OP));
    run_operations(&comm);
    CHECK(other->started[BIT_COLL] == OPERATIONS + 1 && other->wrong == 0);
}

/* More events than entries, and none ends: those that run are not overwritten. */
static void
entries_run_out(int version)
{
    /* every entry is met again, the first twice */
    enum { RUNNING = 40, MANY = (1 << 16) + 1000 };
    struct recording *other = open_recording();
    struct nccl_descriptor_v5 event;
    void *running[RUNNING];
    struct fake_nccl nccl;
    struct fake_comm comm;

    if (version < 5) /* the events are of one form here */
        return;
    fake_open_one(&nccl, &comm, version);
    memset(&event, 0, sizeof event);
    event.head.type64 = NCCL_PROXY_STEP;
    for (int i = 0; i < RUNNING; i++)
        running[i] = fake_start(&nccl, comm.context, &event);
    for (int i = 0; i < MANY; i++)
        fake_stop(&nccl, fake_start(&nccl, comm.context, &event));
    for (int i = 0; i < RUNNING; i++)
        fake_stop(&nccl, running[i]);
    CHECK(other->wrong == 0 && other->started[4] == other->stopped[4]);
}

static void
it_cannot_be_opened(int version)
{
    struct fake_nccl nccl;
    struct fake_comm comm;

    setenv("CAIRN_NCCL_PROFILER_CHAIN", "/nowhere/libother.so", 1);
    fake_open_one(&nccl, &comm, version);
    CHECK(version == 3 || strstr(nccl.said, "/nowhere/libother.so cannot be opened"));
    CHECK(nccl.mask == (NCCL_COLL | NCCL_P2P | NCCL_KERNEL_CH));
    CHECK(fake_enqueue(&comm, &all_reduce).handle);
}

static void
it_is_ourselves(int version)
{
    struct fake_nccl nccl;
    struct fake_comm comm;

    setenv("CAIRN_NCCL_PROFILER_CHAIN", fake_nccl_path("cairn"), 1);
    fake_open_one(&nccl, &comm, version);
    CHECK(fake_enqueue(&comm, &all_reduce).handle);
}

static void
test_both(void **state)
{
    assert_true(fake_each_version(both_are_told, "100"));
    assert_true(fake_each_version(only_what_it_asks_for, "100"));
}

static void
test_limits(void **state)
{
    assert_true(fake_each_version(ours_ends, "100"));
    assert_true(fake_each_version(entries_run_out, "0"));
}

static void
test_none(void **state)
{
    assert_true(fake_each_version(it_cannot_be_opened, "100"));
    assert_true(fake_each_version(it_is_ourselves, "100"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
