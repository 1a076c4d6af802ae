/* tests/unit/snapshot/test_arena.c - what an arena promises: size, seals, pages, life, refusal. */
#include "snapshot/arena.h"

#include "base/log.h"
#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 * 1024 * 1024 + 5 };

static unsigned hugepage_lines;
static unsigned memlock_lines;

static void
count_lines(void *context, enum cairn_log_level level, const char *line)
{
    assert_true(level >= CAIRN_LOG_WARN);
    hugepage_lines += strstr(line, "huge pages") != NULL;
    memlock_lines += strstr(line, "memlock") != NULL && strstr(line, "fix=") != NULL;
}

static struct cairn_arena *
make(enum cairn_hugepages hugepages)
{
    struct cairn_arena_options options = {.hugepages = hugepages};
    struct cairn_arena *arena = NULL;
    char report[CAIRN_ARENA_REPORT_BYTES];

    assert_int_equal(cairn_arena_create("test", BYTES, &options, &arena, report, sizeof report),
                     CAIRN_OK);
    return arena;
}

static void
test_create(void **state)
{
    struct cairn_arena *arena = make(CAIRN_HUGEPAGES_NEVER);
    uint64_t bytes = cairn_arena_bytes(arena);
    int fd = cairn_arena_fd(arena);
    unsigned char resident[1024];
    struct stat info;

    assert_true(bytes >= BYTES && bytes < BYTES + 4096);
    assert_false(cairn_arena_has_hugepages(arena));
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(ftruncate(fd, 4096), -1);
    assert_int_equal(ftruncate(fd, 2 * (off_t)bytes), -1);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, bytes);
    assert_true((uint64_t)info.st_blocks * 512 >= bytes); /* every page is there */
    assert_int_equal(mincore(cairn_arena_base(arena), bytes, resident), 0);
    for (size_t i = 0; i < bytes / 4096; i++)
        assert_int_equal(resident[i] & 1, 1);
    for (uint64_t i = 0; i < bytes; i += 511)
        assert_int_equal(cairn_arena_base(arena)[i], 0);
    cairn_arena_destroy(arena);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    cairn_arena_destroy(NULL);
}

static void
test_not_dumped(void **state)
{
    struct cairn_arena *arena = make(CAIRN_HUGEPAGES_NEVER);
    char line[512], start[32];
    bool found = false;
    FILE *maps = fopen("/proc/self/smaps", "r");

    assert_non_null(maps);
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)cairn_arena_base(arena));
    while (fgets(line, sizeof line, maps)) {
        if (strncmp(line, start, strlen(start)) == 0)
            found = true;
        if (found && strncmp(line, "VmFlags:", 8) == 0) {
            assert_non_null(strstr(line, " dd"));
            break;
        }
    }
    fclose(maps);
    assert_true(found);
    cairn_arena_destroy(arena);
}

/* With huge pages or without, an arena is made, with one line of log. */
static void
test_hugepages_are_tried(void **state)
{
    for (int i = 0; i < 3; i++) {
        struct cairn_arena *arena = make(CAIRN_HUGEPAGES_TRY);

        memset(cairn_arena_base(arena), 0x5a, cairn_arena_bytes(arena));
        if (cairn_arena_has_hugepages(arena))
            assert_int_equal(cairn_arena_bytes(arena) % (2 << 20), 0);
        else
            assert_int_equal(hugepage_lines, 1);
        cairn_arena_destroy(arena);
    }
    assert_true(hugepage_lines <= 1);
}

static void
test_small_memlock_is_said_once(void **state)
{
    struct rlimit old, small;

    assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &small), 0);
    cairn_arena_destroy(make(CAIRN_HUGEPAGES_NEVER));
    cairn_arena_destroy(make(CAIRN_HUGEPAGES_NEVER));
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &old), 0);
    assert_int_equal(memlock_lines, 1);
}

static void
test_refusals(void **state)
{
    struct cairn_arena_options options = {.hugepages = CAIRN_HUGEPAGES_NEVER};
    struct cairn_arena *arena = NULL;
    char report[CAIRN_ARENA_REPORT_BYTES] = "";

    assert_int_equal(cairn_arena_create("test", 0, NULL, &arena, NULL, 0), CAIRN_INVAL);
    assert_int_equal(cairn_arena_create("test", UINT64_MAX, NULL, &arena, NULL, 0), CAIRN_INVAL);
    assert_int_equal(
        cairn_arena_create("test", UINT64_C(1) << 50, &options, &arena, report, sizeof report),
        CAIRN_NOMEM);
    assert_non_null(strstr(report, "1.00 PiB needed"));
    assert_non_null(strstr(report, "short"));
    options.margin_bytes = UINT64_C(1) << 50; /* fits, but leaves too little */
    assert_int_equal(cairn_arena_create("test", 4096, &options, &arena, report, sizeof report),
                     CAIRN_NOMEM);
    assert_non_null(strstr(report, "1.00 PiB reserved for the job"));
    options.margin_bytes = UINT64_MAX;
    assert_int_equal(cairn_arena_create("test", 4096, &options, &arena, report, sizeof report),
                     CAIRN_INVAL);
    assert_null(arena);
}

static void
test_adopt(void **state)
{
    struct cairn_arena *arena = make(CAIRN_HUGEPAGES_NEVER), *other = NULL;
    uint64_t bytes = cairn_arena_bytes(arena);
    int fd = dup(cairn_arena_fd(arena));
    char report[CAIRN_ARENA_REPORT_BYTES];

    for (uint64_t i = 0; i < bytes; i++)
        cairn_arena_base(arena)[i] = (uint8_t)(i * 31 >> 3);
    cairn_arena_destroy(arena); /* its owner is gone, the descriptor is not */
    assert_int_equal(cairn_arena_adopt(fd, bytes + 1, NULL, 0, &other, report, sizeof report),
                     CAIRN_CORRUPT);
    assert_null(other);
    assert_int_equal(cairn_arena_adopt(fd, bytes, NULL, 0, &other, report, sizeof report),
                     CAIRN_OK);
    assert_int_equal(cairn_arena_bytes(other), bytes);
    assert_int_equal(cairn_arena_fd(other), fd);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(cairn_arena_base(other)[i], (uint8_t)(i * 31 >> 3));
    cairn_arena_destroy(other);
}

/* A hole that another holder punched is filled again: reading it cannot end in SIGBUS. */
static void
test_adopt_fills_holes(void **state)
{
    struct cairn_arena *arena = make(CAIRN_HUGEPAGES_NEVER), *other = NULL;
    struct stat info;
    int fd = dup(cairn_arena_fd(arena));

    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_true((uint64_t)info.st_blocks * 512 < cairn_arena_bytes(arena));
    assert_int_equal(cairn_arena_adopt(fd, 0, NULL, 0, &other, NULL, 0), CAIRN_OK);
    assert_int_equal(fstat(fd, &info), 0);
    assert_true((uint64_t)info.st_blocks * 512 >= cairn_arena_bytes(arena));
    cairn_arena_destroy(other);
    cairn_arena_destroy(arena);
}

static void
refuse(int fd, const char *why)
{
    struct cairn_arena *arena = NULL;
    char report[CAIRN_ARENA_REPORT_BYTES] = "";

    assert_int_equal(cairn_arena_adopt(fd, 0, NULL, 0, &arena, report, sizeof report),
                     CAIRN_CORRUPT);
    assert_null(arena);
    if (!strstr(report, why))
        fail_msg("\"%s\" is not in \"%s\"", why, report);
    if (fd >= 0)
        assert_int_equal(close(fd), 0); /* still the caller's */
}

static int
sealed_fd(off_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void
test_adopt_refuses_what_is_no_arena(void **state)
{
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    close(ends[1]);
    refuse(-1, "not a memfd");
    refuse(ends[0], "not a memfd");
    refuse(open("/proc/self/exe", O_RDONLY), "not a memfd");
    refuse(memfd_create("test", MFD_CLOEXEC), "not sealed");
    refuse(sealed_fd(4096, F_SEAL_GROW | F_SEAL_SEAL), "not sealed");
    refuse(sealed_fd(4096, F_SEAL_SHRINK | F_SEAL_SEAL), "not sealed");
    refuse(sealed_fd(4096, F_SEAL_SHRINK | F_SEAL_GROW), "not sealed");
    refuse(sealed_fd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE), "writing");
    refuse(sealed_fd(0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "0 bytes");
    refuse(sealed_fd(4097, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "4097 bytes");
}

/* The bytes outlive the process that wrote them. */
static void
test_bytes_outlive_their_writer(void **state)
{
    struct cairn_arena *arena = make(CAIRN_HUGEPAGES_NEVER);
    pid_t child = fork();
    int status;

    if (child == 0) {
        memset(cairn_arena_base(arena), 0x77, BYTES);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    for (uint64_t i = 0; i < BYTES; i++)
        assert_int_equal(cairn_arena_base(arena)[i], 0x77);
    cairn_arena_destroy(arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_memlock_is_said_once),
                                       cmocka_unit_test(test_create),
                                       cmocka_unit_test(test_not_dumped),
                                       cmocka_unit_test(test_hugepages_are_tried),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_adopt),
                                       cmocka_unit_test(test_adopt_fills_holes),
                                       cmocka_unit_test(test_adopt_refuses_what_is_no_arena),
                                       cmocka_unit_test(test_bytes_outlive_their_writer)};

    cairn_log_setup(CAIRN_LOG_INFO, count_lines, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
