/* tests/unit/base/test_file_queue.c - each engine moves the same bytes, in order, and tells of what
 * it could not do as base/file.h does. */
#include "base/file_queue.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

enum { RUN_BYTES = 64 << 10, RUNS = 37 };

static const enum cairn_file_engine engines[] = {CAIRN_FILE_ENGINE_RING, CAIRN_FILE_ENGINE_THREADS,
                                                 CAIRN_FILE_ENGINE_CALLS};
enum { ENGINES = sizeof engines / sizeof *engines };

static struct cairn_file_queue *
open_queue(enum cairn_file_engine engine)
{
    struct cairn_file_queue *queue = NULL;
    char why[128];

    assert_int_equal(cairn_file_queue_open(engine, &queue), CAIRN_OK);
    if (engine != CAIRN_FILE_ENGINE_RING || cairn_file_engine_best(why, sizeof why) == engine)
        assert_int_equal(cairn_file_queue_engine(queue), engine);
    return queue;
}

static int
open_file(void)
{
    char path[] = "/tmp/cairn-test-queue-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static uint8_t
byte_of(size_t run)
{
    return (uint8_t)(run * 7 + 1);
}

static void
same_bytes_come_back_in_order(void **state)
{
    uint8_t *bytes = malloc(RUNS * RUN_BYTES), *back = calloc(RUNS, RUN_BYTES);

    for (size_t run = 0; run < RUNS; run++)
        memset(bytes + run * RUN_BYTES, byte_of(run), RUN_BYTES);
    for (size_t e = 0; e < ENGINES; e++) {
        struct cairn_file_queue *queue = open_queue(engines[e]);
        int fd = open_file();
        size_t begun = 0, ended = 0, got;

        while (ended < RUNS) {
            if (begun < RUNS && cairn_file_queue_count(queue) < CAIRN_FILE_QUEUE_DEPTH) {
                cairn_file_queue_write(queue, fd, begun * RUN_BYTES, bytes + begun * RUN_BYTES,
                                       RUN_BYTES);
                begun++;
                continue;
            }
            assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
            assert_int_equal(got, RUN_BYTES);
            ended++;
        }
        memset(back, 0, RUNS * RUN_BYTES);
        for (size_t run = 0; run < RUNS; run++) {
            /* the last request begins before the end of the file and goes beyond it */
            size_t at = run * RUN_BYTES + (run == RUNS - 1 ? 100 : 0);

            cairn_file_queue_read(queue, fd, at, back + run * RUN_BYTES, RUN_BYTES);
            if (cairn_file_queue_count(queue) < CAIRN_FILE_QUEUE_DEPTH)
                continue;
            assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
            assert_int_equal(got, RUN_BYTES);
        }
        while (cairn_file_queue_count(queue) > 1)
            assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
        assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
        assert_int_equal(got, RUN_BYTES - 100);
        assert_memory_equal(back, bytes, (RUNS - 1) * RUN_BYTES);
        cairn_file_queue_close(queue);
        close(fd);
    }
    free(bytes);
    free(back);
}

static void
drop_line(void *context, enum cairn_log_level level, const char *line)
{
    (void)context, (void)level, (void)line;
}

static void
failures_are_those_of_single_calls(void **state)
{
    struct rlimit limit, before;
    uint8_t bytes[4096] = {0};

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (size_t e = 0; e < ENGINES; e++) {
        struct cairn_file_queue *queue = open_queue(engines[e]);
        int fd = open_file(), read_only = open("/dev/null", O_RDONLY | O_CLOEXEC);
        size_t got;

        (void)cairn_file_errno_take();
        cairn_file_queue_write(queue, read_only, 0, bytes, sizeof bytes);
        cairn_file_queue_write(queue, fd, 0, bytes, sizeof bytes);
        assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_IO);
        assert_int_equal(got, 0);
        assert_int_equal(cairn_file_errno_take(), EBADF);
        assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);

        /* a write that the file has room for in part only */
        limit = (struct rlimit){5000, before.rlim_max};
        signal(SIGXFSZ, SIG_IGN);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        cairn_file_queue_write(queue, fd, 4096, bytes, sizeof bytes);
        assert_int_not_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
        assert_int_equal(cairn_file_errno_take(), EFBIG);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);

        /* what nobody pops is waited for */
        cairn_file_queue_write(queue, fd, 0, bytes, sizeof bytes);
        cairn_file_queue_close(queue);
        close(read_only);
        close(fd);
    }
    cairn_log_setup(CAIRN_LOG_INFO, NULL, NULL);
}

static int write_calls;

static ssize_t
count_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    write_calls++;
    return cairn_file_ops_os.write(fd, bytes, bytes_len, at);
}

static void
nothing_goes_past_a_table_of_tests(void **state)
{
    struct cairn_file_ops ops = cairn_file_ops_os;
    struct cairn_file_queue *queue = NULL;
    uint8_t bytes[4096] = {0};
    int fd = open_file();
    size_t got;

    ops.write = count_write;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_file_queue_open(CAIRN_FILE_ENGINE_BEST, &queue), CAIRN_OK);
    cairn_file_queue_write(queue, fd, 0, bytes, sizeof bytes);
    assert_int_equal(cairn_file_queue_pop(queue, &got), CAIRN_OK);
    assert_int_equal(write_calls, 1);
    cairn_file_queue_close(queue);
    cairn_file_setup(NULL);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes_come_back_in_order),
        cmocka_unit_test(failures_are_those_of_single_calls),
        cmocka_unit_test(nothing_goes_past_a_table_of_tests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
