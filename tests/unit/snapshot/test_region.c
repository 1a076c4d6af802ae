/* tests/unit/snapshot/test_region.c - ranges of an arena in files of their own, with every system
 * call failing in turn. This program's own functions stand in for those of libc. */
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/arena.h"
#include "snapshot/region.h"
#include "tests/support/cmocka.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ARENA_BYTES = 8 << 20,
    BEGIN = 3 * CAIRN_BLOCK_BYTES,
    END = 7 << 20, /* four slices */
    SLICES = 4
};

/* ---- calls that fail ---- */

static int fail_at = -1, calls, fail_errno;

static bool
fails(void)
{
    if (fail_at < 0 || calls++ != fail_at)
        return false;
    errno = fail_errno;
    return true;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int
memfd_create(const char *name, unsigned flags)
{
    return fails() ? -1 : REAL(memfd_create)(name, flags);
}

int
ftruncate(int fd, off_t bytes)
{
    return fails() ? -1 : REAL(ftruncate)(fd, bytes);
}

int
fallocate(int fd, int mode, off_t begin, off_t bytes)
{
    return fails() ? -1 : REAL(fallocate)(fd, mode, begin, bytes);
}

void *
mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return fails() ? MAP_FAILED : REAL(mmap)(at, bytes, protection, flags, fd, offset);
}

/* ---- an arena with a pattern ---- */

static struct cairn_arena *
make_arena(void)
{
    struct cairn_arena_options options = {.hugepages = CAIRN_HUGEPAGES_NEVER};
    struct cairn_arena *arena = NULL;
    uint64_t *words;

    assert_int_equal(cairn_arena_create("test", ARENA_BYTES, &options, &arena, NULL, 0), CAIRN_OK);
    words = (uint64_t *)(void *)cairn_arena_base(arena);
    for (uint64_t i = 0; i < ARENA_BYTES / 8; i += 64)
        words[i] = i + 1;
    return arena;
}

static void
expect_pattern(const struct cairn_arena *arena)
{
    const uint64_t *words = (const uint64_t *)(const void *)cairn_arena_base(arena);

    for (uint64_t i = 0; i < ARENA_BYTES / 8; i += 64)
        if (words[i] != i + 1)
            fail_msg("byte %llu is lost", (unsigned long long)i * 8);
}

static uint64_t
pages_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return (uint64_t)status.st_blocks * 512;
}

static int
open_descriptors(void)
{
    int count = 0;

    for (int fd = 0; fd < 256; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* ---- tests ---- */

static void
test_to_and_fro(void **state)
{
    struct cairn_arena *arena = make_arena();
    _Atomic uint64_t moved = 0;
    struct cairn_region region = {.arena = arena, .begin = BEGIN, .end = END, .moved = &moved};
    uint8_t byte;
    int slices = 0;

    assert_int_equal(cairn_region_create("test-region", &region), CAIRN_OK);
    assert_int_equal(pages_of(region.fd), 0);
    for (int out = 1; out >= 0; out--) {
        cairn_err err = CAIRN_AGAIN;

        while (err == CAIRN_AGAIN) {
            err = cairn_region_move(&region, out, true);
            slices++;
            expect_pattern(arena);
            assert_int_equal(pages_of(region.fd), moved);
            assert_int_equal(pages_of(cairn_arena_fd(arena)) + moved, ARENA_BYTES);
        }
        assert_int_equal(err, CAIRN_OK);
        assert_int_equal(moved, out ? END - BEGIN : 0);
    }
    assert_int_equal(slices, 2 * SLICES);
    /* Sealed: nobody can take pages or bytes away under a mapping. */
    assert_int_equal(fcntl(region.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(pread(region.fd, &byte, 1, END), 0);
    /* Without contents the file begins as zeros. */
    while (cairn_region_move(&region, true, false) == CAIRN_AGAIN)
        ;
    assert_int_equal(cairn_arena_base(arena)[BEGIN], 0);
    assert_int_equal(*(uint64_t *)(void *)cairn_arena_base(arena), 1);
    close(region.fd);
    cairn_arena_destroy(arena);
}

/* Each call in turn fails once; what was to be done is tried again, and no byte is lost. */
static void
test_every_call_fails_once(void **state)
{
    int descriptors = open_descriptors(), failures = 0;
    bool failed = true;

    for (int at = 0; failed; at++) {
        struct cairn_arena *arena = make_arena();
        _Atomic uint64_t moved = 0;
        struct cairn_region region = {.arena = arena, .begin = BEGIN, .end = END, .moved = &moved};
        cairn_err err;

        failed = false;
        calls = 0;
        fail_errno = at % 2 ? ENOSPC : EMFILE;
        fail_at = at;
        while ((err = cairn_region_create("test-region", &region)) != CAIRN_OK) {
            assert_int_equal(err, CAIRN_NOMEM);
            assert_int_equal(open_descriptors(), descriptors + 1); /* the arena's */
            failed = true;
        }
        for (int out = 1; out >= 0; out--)
            while ((err = cairn_region_move(&region, out, true)) != CAIRN_OK) {
                if (err == CAIRN_AGAIN)
                    continue;
                assert_int_equal(err, CAIRN_NOMEM);
                expect_pattern(arena);
                failed = true;
            }
        failed |= calls > at; /* a page that is not given back is not an error */
        fail_at = -1;
        failures += failed;
        expect_pattern(arena);
        assert_int_equal(moved, 0);
        close(region.fd);
        cairn_arena_destroy(arena);
    }
    assert_int_equal(open_descriptors(), descriptors);
    assert_true(failures > 20);
}

static void
test_out_of_descriptors(void **state)
{
    struct cairn_arena *arena = make_arena();
    _Atomic uint64_t moved = 0;
    struct cairn_region region = {.arena = arena, .begin = BEGIN, .end = END, .moved = &moved};
    struct rlimit old, none;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none = old;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(cairn_region_create("test-region", &region), CAIRN_NOMEM);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    cairn_arena_destroy(arena);
}

/* Where reserved huge pages are all in use, the bytes of a slice wait in private memory. */
static void
test_huge_pages(void **state)
{
    struct cairn_arena_options options = {.hugepages = CAIRN_HUGEPAGES_TRY};
    struct cairn_arena *arena = NULL, *rest[64] = {NULL};
    _Atomic uint64_t moved = 0;
    struct cairn_region region = {.begin = 2 << 20, .end = 8 << 20, .moved = &moved};
    size_t taken = 0;
    bool huge;

    assert_int_equal(cairn_arena_create("test", ARENA_BYTES, &options, &arena, NULL, 0), CAIRN_OK);
    huge = cairn_arena_has_hugepages(arena);
    if (huge) {
        uint64_t *words = (uint64_t *)(void *)cairn_arena_base(arena);

        for (uint64_t i = 0; i < ARENA_BYTES / 8; i += 64)
            words[i] = i + 1;
        assert_int_equal(cairn_region_unit_bytes(arena), 2 << 20);
        while (taken < 64) { /* until none is left */
            assert_int_equal(cairn_arena_create("rest", 2 << 20, &options, &rest[taken], NULL, 0),
                             CAIRN_OK);
            if (!cairn_arena_has_hugepages(rest[taken++]))
                break;
        }
        region.arena = arena;
        assert_int_equal(cairn_region_create("test-region", &region), CAIRN_OK);
        for (int round = 0; round < 4; round++) {
            cairn_err err;

            do {
                err = cairn_region_move(&region, round % 2 == 0, true);
                expect_pattern(arena);
            } while (err == CAIRN_AGAIN);
            assert_int_equal(err, CAIRN_OK);
        }
        close(region.fd);
    }
    for (size_t i = 0; i < taken; i++)
        cairn_arena_destroy(rest[i]);
    cairn_arena_destroy(arena);
    if (!huge) {
        print_message("no huge pages to be had: sysctl vm.nr_hugepages=12 would do\n");
        skip();
    }
}

/* What another process may have left in the keeper, or in the table of moved bytes. */
static void
test_adopt_refuses(void **state)
{
    static const struct {
        uint64_t begin, end, moved, file_bytes;
    } cases[] = {
        {BEGIN, END, END - BEGIN + CAIRN_BLOCK_BYTES, END}, /* more than there is */
        {BEGIN, END, 4096, END},                            /* not whole blocks */
        {BEGIN + 4096, END, 0, END},
        {BEGIN, END, 0, END - CAIRN_BLOCK_BYTES}, /* another file */
        {END, END, 0, END},
        {BEGIN, ARENA_BYTES + CAIRN_BLOCK_BYTES, 0, ARENA_BYTES + CAIRN_BLOCK_BYTES},
    };
    struct cairn_arena *arena = make_arena();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        _Atomic uint64_t moved = cases[i].moved;
        struct cairn_region made = {.arena = arena, .end = cases[i].file_bytes};
        struct cairn_region region = {
            .arena = arena, .begin = cases[i].begin, .end = cases[i].end, .moved = &moved};

        assert_int_equal(cairn_region_create("test-region", &made), CAIRN_OK);
        region.fd = made.fd;
        assert_int_equal(cairn_region_adopt(&region), CAIRN_CORRUPT);
        close(made.fd);
    }
    expect_pattern(arena);
    cairn_arena_destroy(arena);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_and_fro),         cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_out_of_descriptors), cmocka_unit_test(test_adopt_refuses),
        cmocka_unit_test(test_huge_pages),
    };

    cairn_log_setup(CAIRN_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
