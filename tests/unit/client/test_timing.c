/* tests/unit/client/test_timing.c - the ring of timing records: found, read and full. */
#include "cairn/timing.h"

#include "base/ring.h"
#include "tests/support/cmocka.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RECORDS = 8 };

static int interruptions;

/* In the place of the C library's, which returns when a signal comes, as a profiler's or a job
 * manager's do all the time. */
int
posix_fallocate(int fd, off_t offset, off_t bytes)
{
    if (interruptions > 0) {
        interruptions--;
        return EINTR;
    }
    return fallocate(fd, 0, offset, bytes) == 0 ? 0 : errno;
}

/* A descriptor of the ring, found as a detector finds it; -1 where there is none. */
static int
find_ring(void)
{
    DIR *folder = opendir("/proc/self/fd");
    const struct dirent *entry;
    int found = -1;

    assert_non_null(folder);
    while (found < 0 && (entry = readdir(folder))) {
        char path[300], target[300];
        ssize_t len;

        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        len = readlink(path, target, sizeof target - 1);
        target[len > 0 ? len : 0] = '\0';
        if (strncmp(target, "/memfd:cairn-timing", strlen("/memfd:cairn-timing")) == 0)
            found = open(path, O_RDWR | O_CLOEXEC);
    }
    closedir(folder);
    return found;
}

static struct cairn_timing_record
make_record(uint64_t seq)
{
    return (struct cairn_timing_record){.comm = 7,
                                        .seq = seq,
                                        .bytes = 100 * seq,
                                        .enter_ns = seq,
                                        .rank = 3,
                                        .peer = CAIRN_PEER_NONE,
                                        .ranks = 4,
                                        .op = CAIRN_ALL_REDUCE};
}

static void
test_reader_finds_the_records(void **state)
{
    struct cairn_timing *timing = NULL;
    struct cairn_timing_record records[RECORDS];
    struct cairn_ring reader;
    size_t bytes = cairn_ring_bytes(RECORDS);
    void *memory;
    int fd;

    assert_int_equal(find_ring(), -1);
    assert_int_equal(cairn_timing_open(RECORDS, &timing), CAIRN_OK);
    for (uint64_t seq = 1; seq <= RECORDS + 3; seq++) {
        struct cairn_timing_record record = make_record(seq);

        assert_int_equal(cairn_timing_write(timing, &record), seq <= RECORDS);
    }
    fd = find_ring();
    assert_true(fd >= 0);
    assert_int_not_equal(ftruncate(fd, 64), 0); /* sealed */
    assert_int_not_equal(ftruncate(fd, 1 << 20), 0);
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(cairn_ring_open(memory, bytes, &reader), CAIRN_OK);
    cairn_timing_close(timing); /* the trainer is gone */
    assert_int_equal(cairn_ring_read(&reader, records, RECORDS), RECORDS);
    for (uint64_t i = 0; i < RECORDS; i++) {
        struct cairn_timing_record expected = make_record(i + 1);

        assert_memory_equal(&records[i], &expected, sizeof expected);
    }
    assert_int_equal(cairn_ring_dropped(&reader), 3);
    munmap(memory, bytes);
    close(fd);
    assert_int_equal(find_ring(), -1);
}

/* A signal while the ring is made does not count as out of memory. */
static void
test_opens_while_signals_come(void **state)
{
    struct cairn_timing *timing = NULL;
    struct cairn_timing_record record = make_record(1);

    interruptions = 3;
    assert_int_equal(cairn_timing_open(RECORDS, &timing), CAIRN_OK);
    assert_int_equal(interruptions, 0);
    assert_true(cairn_timing_write(timing, &record));
    cairn_timing_close(timing);
}

static void
test_wrong_count(void **state)
{
    struct cairn_timing *timing = NULL;

    assert_int_equal(cairn_timing_open(0, &timing), CAIRN_INVAL);
    assert_int_equal(cairn_timing_open(12, &timing), CAIRN_INVAL);
    assert_int_equal(cairn_timing_open(UINT32_C(1) << 25, &timing), CAIRN_INVAL);
    assert_null(timing);
    cairn_timing_close(NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_finds_the_records),
        cmocka_unit_test(test_opens_while_signals_come),
        cmocka_unit_test(test_wrong_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
