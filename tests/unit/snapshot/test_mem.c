/* tests/unit/snapshot/test_mem.c - the backends: host, and cuda against the fake driver. */
#include "snapshot/mem.h"

#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"
#include "tests/support/fakecuda_load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 64 * 1024, HOST_BYTES = 24 << 20 };

static uint8_t *host;
static uint64_t region;

static int (*fake_retain)(void **context, int device);
static int (*fake_release)(int device);
static int (*fake_push)(void *context);
static int (*fake_pop)(void **context);

static const struct cairn_mem_options options = {.driver_path = fake_path, .log = keep_line};

static int
load_fake(void **state)
{
    void *library = load_fakecuda();

    if (!library)
        return 1;
    load(library, "cuDevicePrimaryCtxRetain", &fake_retain);
    load(library, "cuDevicePrimaryCtxRelease_v2", &fake_release);
    load(library, "cuCtxPushCurrent_v2", &fake_push);
    load(library, "cuCtxPopCurrent_v2", &fake_pop);
    return 0;
}

static int
setup(void **state)
{
    fake_reset();
    lines[0] = '\0';
    host = mmap(NULL, HOST_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return host == MAP_FAILED || fake_alloc(0, &region, HOST_BYTES) != 0;
}

/* After every test nothing of the driver lives but what the test's own trainer holds. */
static int
teardown(void **state)
{
    struct fakecuda_state live;

    fake_free(region);
    fake_state(&live);
    munmap(host, HOST_BYTES);
    return live.contexts || live.streams || live.events || live.registered || live.host_allocated ||
           live.device_allocated || live.misuses || fake_depth();
}

static struct cairn_mem *
open_device(void)
{
    struct cairn_mem *mem = NULL;

    assert_int_equal(cairn_mem_open(0, &options, &mem), CAIRN_OK);
    assert_int_equal(fake_depth(), 0);
    return mem;
}

static void
fill_device(void)
{
    uint8_t *view = fake_view(region);

    for (size_t i = 0; i < HOST_BYTES; i++)
        view[i] = (uint8_t)(i * 7 + (i >> 12));
}

static struct cairn_mem_copy
piece(size_t index)
{
    return (struct cairn_mem_copy){host + index * PIECE, region + index * PIECE, PIECE};
}

/* Copies all of the device out in batches of `count` pieces with as many in flight as there may
 * be. */
static void
copy_all_out(struct cairn_mem *mem, uint32_t count)
{
    struct cairn_mem_copy copies[64];
    uint64_t ticket = 0, last = 0;

    for (size_t index = 0; index < HOST_BYTES / PIECE; index += count) {
        cairn_err err;

        for (uint32_t i = 0; i < count; i++)
            copies[i] = piece(index + i);
        while ((err = cairn_mem_copy_out(mem, copies, count, &ticket)) == CAIRN_AGAIN)
            usleep(50);
        assert_int_equal(err, CAIRN_OK);
        assert_true(last == 0 || ticket == last + 1);
        last = ticket;
    }
    assert_int_equal(cairn_mem_wait(mem, ticket, UINT64_MAX), CAIRN_OK);
    assert_memory_equal(host, fake_view(region), HOST_BYTES);
}

static void
test_host(void **state)
{
    uint8_t from[300], to[300];
    struct cairn_mem_copy copies[2] = {{to, (uintptr_t)from, 100},
                                       {to + 200, (uintptr_t)from + 200, 100}};
    struct cairn_mem *mem = NULL;
    uint64_t ticket;

    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (uint8_t)i;
    memset(to, 0xee, sizeof to);
    assert_int_equal(cairn_mem_open(CAIRN_MEM_HOST, NULL, &mem), CAIRN_OK);
    assert_string_equal(mem->ops->name, "host");
    assert_int_equal(cairn_mem_pin(mem, to, sizeof to), CAIRN_OK);
    assert_int_equal(cairn_mem_after(mem, NULL), CAIRN_OK);
    assert_int_equal(cairn_mem_copy_out(mem, copies, 2, &ticket), CAIRN_OK);
    assert_int_equal(cairn_mem_poll(mem, ticket), CAIRN_OK);
    assert_int_equal(cairn_mem_poll(mem, ticket + 1), CAIRN_INVAL);
    assert_memory_equal(to, from, 100);
    assert_int_equal(to[150], 0xee);
    assert_memory_equal(to + 200, from + 200, 100);
    assert_int_equal(cairn_mem_put(mem, (uintptr_t)from, to, sizeof to, 0), CAIRN_OK);
    assert_memory_equal(from, to, sizeof to);
    cairn_mem_unpin(mem, to);
    cairn_mem_close(mem);
    cairn_mem_close(NULL);
}

static void
test_batch_limits(void **state)
{
    struct cairn_mem_copy copies[CAIRN_MEM_BATCH_COPIES_MAX + 1];
    struct cairn_mem *mem = open_device();
    uint64_t ticket = 77;

    for (size_t i = 0; i <= CAIRN_MEM_BATCH_COPIES_MAX; i++)
        copies[i] = (struct cairn_mem_copy){host + i, region + i, 1};
    assert_int_equal(cairn_mem_copy_out(mem, copies, 0, &ticket), CAIRN_INVAL);
    assert_int_equal(cairn_mem_copy_out(mem, copies, CAIRN_MEM_BATCH_COPIES_MAX + 1, &ticket),
                     CAIRN_INVAL);
    copies[1].bytes = 0;
    assert_int_equal(cairn_mem_copy_out(mem, copies, 2, &ticket), CAIRN_INVAL);
    copies[1].bytes = CAIRN_MEM_BATCH_BYTES_MAX;
    assert_int_equal(cairn_mem_copy_in(mem, copies, 2, &ticket), CAIRN_INVAL);
    assert_int_equal(cairn_mem_pin(mem, NULL, 1), CAIRN_INVAL);
    assert_int_equal(cairn_mem_pin(mem, host, 0), CAIRN_INVAL);
    assert_int_equal(cairn_mem_poll(mem, 1), CAIRN_INVAL);
    assert_int_equal(ticket, 77);
    cairn_mem_close(mem);
}

static void
test_copy_out_pinned(void **state)
{
    struct cairn_mem *mem = open_device();
    struct fakecuda_state seen;

    fill_device();
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    copy_all_out(mem, 1);
    fake_state(&seen);
    assert_int_equal(seen.batches, 0);
    memset(host, 0, HOST_BYTES);
    copy_all_out(mem, 48);
    fake_state(&seen);
    assert_int_equal(seen.batches, HOST_BYTES / PIECE / 48);
    assert_int_equal(seen.pageable_copies, 0);
    assert_int_equal(seen.host_allocated, 0);
    assert_int_equal(seen.registered, 1);
    assert_string_equal(lines, "");
    cairn_mem_unpin(mem, host);
    cairn_mem_unpin(mem, host); /* unknown now */
    cairn_mem_close(mem);
}

/* Batches are for pinned memory and for drivers that can; else copies are issued one by one. */
static void
test_copies_one_by_one(void **state)
{
    struct cairn_mem *mem = open_device();
    struct fakecuda_state seen;

    fill_device();
    copy_all_out(mem, 48);
    fake_state(&seen);
    assert_int_equal(seen.pageable_copies, HOST_BYTES / PIECE);
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    memset(host, 0, HOST_BYTES);
    fake_fail("cuMemcpyBatchAsync", 1, 801);
    copy_all_out(mem, 48);
    fake_state(&seen);
    assert_int_equal(seen.async_copies, HOST_BYTES / PIECE);
    assert_int_equal(seen.batches, 0);
    assert_string_equal(lines, "");
    cairn_mem_close(mem);
}

/* The message says which copy of a batch the driver refuses. */
static void
test_refused_copy_of_a_batch(void **state)
{
    struct cairn_mem *mem = open_device();
    struct cairn_mem_copy copies[3] = {piece(0), piece(1), piece(2)};
    uint64_t ticket = 0;
    char wanted[64];

    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    copies[1].region = region + HOST_BYTES - 1; /* over its end */
    (void)snprintf(wanted, sizeof wanted, "of %d bytes, device 0x%" PRIx64, PIECE,
                   copies[1].region);
    assert_int_equal(cairn_mem_copy_out(mem, copies, 3, &ticket), CAIRN_DEVICE);
    assert_non_null(strstr(lines, wanted));
    cairn_mem_close(mem);
}

/* Refused registration: the same bytes arrive through the ring, with one line of log. */
static void
test_copy_through_the_ring(void **state)
{
    struct cairn_mem *mem = open_device();
    struct fakecuda_state seen;

    fill_device();
    fake_speed(0, 100);
    fake_fail("cuMemHostRegister_v2", 1, 2);
    fake_fail("cuMemHostRegister_v2", 2, 2);
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES / 2), CAIRN_OK);
    assert_int_equal(cairn_mem_pin(mem, host + HOST_BYTES / 2, HOST_BYTES / 2), CAIRN_OK);
    copy_all_out(mem, 48);
    memset(host, 0, HOST_BYTES);
    copy_all_out(mem, 1);
    fake_state(&seen);
    assert_int_equal(seen.pageable_copies, 0);
    assert_int_equal(seen.host_allocated, 1);
    assert_int_equal(seen.registered, 0);
    assert_non_null(strstr(lines, "1 cuda: memory cannot be pinned device=0"));
    assert_non_null(strstr(lines, "name=CUDA_ERROR_OUT_OF_MEMORY"));
    assert_ptr_equal(strchr(lines, '\n'), lines + strlen(lines) - 1);
    for (size_t i = 0; i < HOST_BYTES; i++)
        host[i] = (uint8_t)(i * 3);
    assert_int_equal(cairn_mem_put(mem, region, host, HOST_BYTES - 5, UINT64_MAX), CAIRN_OK);
    assert_memory_equal(fake_view(region), host, HOST_BYTES - 5);
    assert_int_not_equal(fake_view(region)[HOST_BYTES - 5], host[HOST_BYTES - 5]);
    cairn_mem_close(mem);
}

/* What to do about memory that is not pinned depends on why. */
static void
test_unpinned_says_what_to_do(void **state)
{
    static const struct {
        int code;
        const char *fix;
    } cases[] = {{2, "raise memlock"},
                 {800, "let the container"},
                 {801, "let the container"},
                 {719, "look up the driver's code"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cairn_mem *mem = open_device();

        lines[0] = '\0';
        fake_fail("cuMemHostRegister_v2", 1, cases[i].code);
        assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
        assert_non_null(strstr(lines, cases[i].fix));
        cairn_mem_close(mem);
    }
}

/* What was issued through the ring reaches the host before close and unpin return. */
static void
test_close_and_unpin_land_the_ring(void **state)
{
    fill_device();
    for (int unpin = 0; unpin < 2; unpin++) {
        struct cairn_mem_copy copies[2] = {piece(0), piece(1)};
        struct cairn_mem *mem = open_device();
        uint64_t ticket;

        memset(host, 0, 2 * PIECE);
        fake_speed(0, 3000);
        fake_fail("cuMemHostRegister_v2", 1, 2);
        assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
        assert_int_equal(cairn_mem_copy_out(mem, copies, 2, &ticket), CAIRN_OK);
        assert_int_equal(cairn_mem_poll(mem, ticket), CAIRN_AGAIN);
        if (unpin)
            cairn_mem_unpin(mem, host);
        else
            cairn_mem_close(mem);
        assert_memory_equal(host, fake_view(region), 2 * PIECE);
        if (unpin)
            cairn_mem_close(mem);
    }
}

static void
test_no_ring_either(void **state)
{
    struct cairn_mem *mem = open_device();

    fake_fail("cuMemHostRegister_v2", 1, 2);
    fake_fail("cuMemHostAlloc", 1, 2);
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_NOMEM);
    assert_non_null(strstr(lines, "not protected"));
    cairn_mem_close(mem);
}

/* Memory that nobody pinned works too, only slowly. */
static void
test_copy_in(void **state)
{
    struct cairn_mem *mem = open_device();
    struct fakecuda_state seen;

    for (size_t i = 0; i < HOST_BYTES; i++)
        host[i] = (uint8_t)(i * 11 + (i >> 9));
    assert_int_equal(cairn_mem_put(mem, region, host, HOST_BYTES, UINT64_MAX), CAIRN_OK);
    assert_memory_equal(fake_view(region), host, HOST_BYTES);
    fake_state(&seen);
    assert_int_equal(seen.pageable_copies, 3);
    assert_int_equal(cairn_mem_put(mem, region, host, 0, 0), CAIRN_OK);
    cairn_mem_close(mem);
}

static void
test_flights_are_bounded(void **state)
{
    struct cairn_mem *mem = open_device();
    struct cairn_mem_copy copies[1] = {piece(0)};
    uint64_t ticket = 0;

    fill_device();
    fake_speed(0, 5000);
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    for (int i = 0; i < CAIRN_MEM_BATCHES_MAX; i++) {
        copies[0] = piece((size_t)i); /* apart: they run beside one another */
        assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_OK);
    }
    assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_AGAIN);
    assert_int_equal(ticket, CAIRN_MEM_BATCHES_MAX);
    assert_int_equal(cairn_mem_wait(mem, ticket, 0), CAIRN_TIMEOUT);
    assert_int_equal(cairn_mem_put(mem, region, host, PIECE, 0), CAIRN_TIMEOUT);
    assert_int_equal(cairn_mem_wait(mem, ticket, UINT64_MAX), CAIRN_OK);
    assert_int_equal(cairn_mem_poll(mem, 1), CAIRN_OK);
    assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_OK);
    cairn_mem_close(mem);
}

/* A copy does not start before the work that the trainer's stream has been given. */
static void
test_after_waits_for_the_trainer(void **state)
{
    struct cairn_mem *mem = open_device();
    struct cairn_mem_copy copies[1] = {piece(0)};
    void *context = NULL, *popped;
    uint64_t ticket;

    assert_int_equal(fake_retain(&context, 0), 0);
    assert_int_equal(fake_push(context), 0); /* the trainer's own current context */
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    for (uint8_t value = 1; value < 4; value++) {
        assert_int_equal(fake_fill(NULL, region, value, PIECE, 20000), 0);
        assert_int_equal(cairn_mem_after(mem, NULL), CAIRN_OK);
        assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_OK);
        assert_int_equal(cairn_mem_wait(mem, ticket, UINT64_MAX), CAIRN_OK);
        for (size_t i = 0; i < PIECE; i++)
            assert_int_equal(host[i], value);
        assert_int_equal(fake_depth(), 1);
    }
    cairn_mem_close(mem);
    assert_int_equal(fake_depth(), 1);
    assert_int_equal(fake_pop(&popped), 0);
    assert_ptr_equal(popped, context);
    assert_int_equal(fake_release(0), 0);
}

static void
test_lost_event(void **state)
{
    struct cairn_mem *mem = open_device();
    struct cairn_mem_copy copies[1] = {piece(0)};
    uint64_t ticket;

    fill_device();
    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    fake_lose_event(1);
    assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_OK);
    assert_int_equal(cairn_mem_wait(mem, ticket, UINT64_MAX), CAIRN_OK);
    assert_memory_equal(host, fake_view(region), PIECE);
    cairn_mem_close(mem);
}

static void
test_no_driver(void **state)
{
    struct cairn_mem_options none = {.driver_path = "/nowhere/libcuda.so.1", .log = keep_line};
    struct cairn_mem_options other = {.driver_path = "libc.so.6", .log = keep_line};
    struct cairn_mem *mem = NULL;

    assert_int_equal(cairn_mem_open(0, &none, &mem), CAIRN_DEVICE);
    assert_non_null(strstr(lines, "no driver path=/nowhere/libcuda.so.1"));
    assert_int_equal(cairn_mem_open(0, &other, &mem), CAIRN_DEVICE);
    assert_non_null(strstr(lines, "too old path=libc.so.6 lacks=cuInit"));
    lines[0] = '\0';
    assert_int_equal(cairn_mem_open(7, &options, &mem), CAIRN_DEVICE);
    assert_non_null(strstr(lines, "cuDeviceGet failed device=7 code=101"));
    assert_null(mem);
}

/* Host memory touches nothing of CUDA. */
static void
test_host_makes_no_context(void **state)
{
    struct cairn_mem *mem = NULL;
    struct fakecuda_state seen;

    assert_int_equal(cairn_mem_open(CAIRN_MEM_HOST, &options, &mem), CAIRN_OK);
    cairn_mem_close(mem);
    fake_state(&seen);
    assert_int_equal(seen.context_creations, 0);
}

/* One session over the whole table of operations; every error leaves all behind clean. */
static cairn_err
whole_session(void)
{
    struct cairn_mem_copy copies[2] = {piece(0), piece(2)};
    struct cairn_mem *mem = NULL;
    uint64_t ticket = 0;
    cairn_err err;

    err = cairn_mem_open(0, &options, &mem);
    if (err)
        return err;
    err = cairn_mem_pin(mem, host, HOST_BYTES);
    if (!err)
        err = cairn_mem_after(mem, NULL);
    if (!err)
        err = cairn_mem_copy_out(mem, copies, 2, &ticket);
    if (!err)
        err = cairn_mem_copy_out(mem, copies, 1, &ticket);
    if (!err)
        err = cairn_mem_wait(mem, ticket, UINT64_MAX);
    if (!err)
        err = cairn_mem_copy_in(mem, copies, 2, &ticket);
    if (!err)
        err = cairn_mem_copy_in(mem, copies, 1, &ticket);
    if (!err)
        err = cairn_mem_wait(mem, ticket, UINT64_MAX);
    cairn_mem_unpin(mem, host);
    cairn_mem_close(mem);
    return err;
}

/* The n-th call of every entry point fails, n = 1, 2, … until none is left. */
static void
test_every_driver_error(void **state)
{
    static const char *const symbols[] = {
        "cuInit",
        "cuDeviceGet",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuCtxGetStreamPriorityRange",
        "cuStreamCreateWithPriority",
        "cuStreamWaitEvent",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuMemHostAlloc",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyBatchAsync",
    };

    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        for (uint64_t nth = 1; nth < 20; nth++) {
            struct fakecuda_state live;
            bool failed;

            fake_reset();
            lines[0] = '\0';
            if (strcmp(symbols[i], "cuMemHostAlloc") == 0)
                fake_fail("cuMemHostRegister_v2", 1, 2);
            fake_fail(symbols[i], nth, 999);
            failed = whole_session() != CAIRN_OK;
            if (failed && strcmp(symbols[i], "cuMemHostAlloc") != 0) {
                assert_non_null(strstr(lines, "code=999 name=CUDA_ERROR_FAKE"));
                assert_ptr_equal(strchr(lines, '\n'), lines + strlen(lines) - 1); /* said once */
            }
            if (nth == 1)
                assert_true(failed);
            fake_state(&live);
            assert_int_equal(live.contexts + live.streams + live.events + live.registered +
                                 live.host_allocated,
                             0);
            assert_int_equal(fake_depth(), 0);
        }
    fake_reset();
    assert_int_equal(whole_session(), CAIRN_OK);
}

/* An error of the trainer's own kernels (sticky) ends the copy, is logged once, and stays. */
static void
test_asynchronous_error(void **state)
{
    struct cairn_mem *mem = open_device();
    struct cairn_mem_copy copies[1] = {piece(0)};
    uint64_t ticket;

    assert_int_equal(cairn_mem_pin(mem, host, HOST_BYTES), CAIRN_OK);
    fake_fail_async(1, 700);
    fake_hold(1); /* else the copy may fail before it is issued whole */
    assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_OK);
    fake_hold(0);
    assert_int_equal(cairn_mem_wait(mem, ticket, UINT64_MAX), CAIRN_DEVICE);
    assert_non_null(strstr(lines, "code=700"));
    assert_int_equal(cairn_mem_poll(mem, ticket), CAIRN_DEVICE);
    assert_int_equal(cairn_mem_copy_out(mem, copies, 1, &ticket), CAIRN_DEVICE);
    assert_int_equal(cairn_mem_after(mem, NULL), CAIRN_DEVICE);
    assert_ptr_equal(strchr(lines, '\n'), lines + strlen(lines) - 1);
    cairn_mem_unpin(mem, host);
    cairn_mem_close(mem);
}

int
main(void)
{
#define FRESH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {FRESH(test_host),
                                       FRESH(test_batch_limits),
                                       FRESH(test_copy_out_pinned),
                                       FRESH(test_copies_one_by_one),
                                       FRESH(test_refused_copy_of_a_batch),
                                       FRESH(test_copy_through_the_ring),
                                       FRESH(test_unpinned_says_what_to_do),
                                       FRESH(test_close_and_unpin_land_the_ring),
                                       FRESH(test_no_ring_either),
                                       FRESH(test_copy_in),
                                       FRESH(test_flights_are_bounded),
                                       FRESH(test_after_waits_for_the_trainer),
                                       FRESH(test_lost_event),
                                       FRESH(test_no_driver),
                                       FRESH(test_host_makes_no_context),
                                       FRESH(test_every_driver_error),
                                       FRESH(test_asynchronous_error)};

    return cmocka_run_group_tests(tests, load_fake, NULL);
}
