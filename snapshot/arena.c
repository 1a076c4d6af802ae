/*
 * snapshot/arena.c - memfds that are sealed, pre-faulted and mapped.
 *
 * Invariants of an arena that a caller holds:
 *   1. the descriptor carries F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL, so its size is final;
 *   2. every page of [0, bytes) is allocated, so no access can need a page that is not there;
 *   3. the mapping covers exactly [0, bytes) and is left out of core dumps.
 *
 * Pages are allocated by fallocate, which fails with an error where a fault would end in SIGBUS,
 * and mapped by MADV_POPULATE_WRITE (Linux 5.14) or else by touching each page.
 */
#include "snapshot/arena.h"

#include "base/log.h"
#include "snapshot/budget.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Constants that are newer than the oldest headers we build with. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#endif

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static const uint64_t HUGE_BYTES = UINT64_C(2) << 20;
static const uint64_t BYTES_LIMIT = UINT64_C(1) << 62;

struct cairn_arena {
    uint8_t *base;
    uint64_t bytes;
    int fd;
    bool hugepages;
    bool advised;
};

__attribute__((format(printf, 3, 4))) static void
say(char *report, size_t report_bytes, const char *format, ...)
{
    va_list arguments;

    if (!report)
        return;
    va_start(arguments, format);
    vsnprintf(report, report_bytes, format, arguments);
    va_end(arguments);
}

static cairn_err
translate_errno(int error)
{
    return error == ENOMEM || error == ENOSPC || error == EDQUOT ? CAIRN_NOMEM : CAIRN_IO;
}

static uint64_t
round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Allocates every page of [begin, end); contents stay. Leaves errno. */
static cairn_err
allocate_pages(int fd, uint64_t begin, uint64_t end)
{
    int result = 0;

    while (begin < end && (result = fallocate(fd, 0, (off_t)begin, (off_t)(end - begin))) &&
           errno == EINTR)
        ;
    return result ? translate_errno(errno) : CAIRN_OK;
}

/* Enters every page into the page tables, so that the first capture is as fast as the next. */
static void
map_pages(uint8_t *base, uint64_t bytes)
{
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    int result;

    do
        result = madvise(base, bytes, MADV_POPULATE_WRITE);
    while (result && errno == EINTR);
    if (!result)
        return;
    /* Adding zero writes without changing what another process may be writing. */
    for (uint64_t at = 0; at < bytes; at += page_bytes)
        atomic_fetch_add((_Atomic uint8_t *)(base + at), 0);
}

/*
 * Whether the kernel gives shared memory transparent huge pages where a mapping asks for them. Then
 * it does so on faults alone, not in fallocate; in all other modes the order makes no difference.
 */
static bool
advice_counts(void)
{
    char text[128] = "";
    int fd = open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    if (read(fd, text, sizeof text - 1) < 0)
        text[0] = '\0';
    close(fd);
    return strstr(text, "[advise]") != NULL;
}

/* Makes every page between the ranges exist and maps it. */
static cairn_err
fill_pages(int fd, uint8_t *base, uint64_t bytes, const struct cairn_arena_range *away,
           uint32_t away_count)
{
    uint64_t begin = 0;

    for (uint32_t i = 0; i <= away_count; i++) {
        uint64_t end = i < away_count ? away[i].begin : bytes;
        cairn_err err = allocate_pages(fd, begin, end);

        if (err)
            return err;
        if (begin < end)
            map_pages(base + begin, end - begin);
        begin = i < away_count ? away[i].end : end;
    }
    return CAIRN_OK;
}

/* Maps an arena, with every page that is not away. On success *out holds everything but
 * `hugepages`. */
static cairn_err
map_arena(int fd, uint64_t bytes, bool try_transparent, const struct cairn_arena_range *away,
          uint32_t away_count, struct cairn_arena *out, char *report, size_t report_bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cairn_err err;

    if (base == MAP_FAILED) {
        say(report, report_bytes, "mapping %" PRIu64 " bytes failed: %s", bytes, strerror(errno));
        return translate_errno(errno);
    }
    (void)madvise(base, bytes, MADV_DONTDUMP);
    /* Hints: if they fail, fallocate makes small pages. */
    out->advised = try_transparent && advice_counts() && !madvise(base, bytes, MADV_HUGEPAGE);
    if (out->advised)
        (void)madvise(base, bytes, MADV_POPULATE_WRITE);
    err = fill_pages(fd, base, bytes, away, away_count);
    if (err) {
        say(report, report_bytes, "the kernel refused %" PRIu64 " bytes of shared memory: %s",
            bytes, strerror(errno));
        munmap(base, bytes);
        return err;
    }
    out->base = base;
    out->bytes = bytes;
    out->fd = fd;
    return CAIRN_OK;
}

static cairn_err
check_budget(uint64_t bytes, uint64_t margin_bytes, char *report, size_t report_bytes)
{
    struct cairn_budget_demand demand = {
        .state_bytes = bytes, .slots = 1, .data_count = 1, .parity_count = 0};
    struct cairn_budget_free memory;
    struct cairn_budget budget;
    char text[CAIRN_ARENA_REPORT_BYTES];
    cairn_err err;

    if (cairn_budget_free_read("/", &memory))
        return CAIRN_OK; /* nothing is known: the kernel will say */
    err = cairn_budget_check(&demand, &memory, margin_bytes, &budget);
    if (err == CAIRN_INVAL)
        say(report, report_bytes, "the sum of bytes and margin overflows");
    if (err == CAIRN_NOMEM) {
        cairn_budget_text(&demand, &memory, &budget, text, sizeof text);
        say(report, report_bytes, "does not fit: %s", text);
    }
    return err;
}

/* A warning that is the same for every arena is logged once. */
static bool
first_time(atomic_flag *said)
{
    return !atomic_flag_test_and_set(said);
}

static void
warn_memlock(uint64_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= bytes || !first_time(&said))
        return;
    CAIRN_LOG_AT(WARN,
                 "arena: memlock too small limit_bytes=%" PRIu64 " arena_bytes=%" PRIu64
                 " effect=\"devices may copy through a small pinned buffer\" fix=\"ulimit -l "
                 "unlimited, or LimitMEMLOCK=infinity in the unit\"",
                 (uint64_t)limit.rlim_cur, bytes);
}

static void
warn_hugepages(uint64_t bytes)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;

    if (first_time(&said))
        CAIRN_LOG_AT(INFO,
                     "arena: no huge pages are reserved, small ones are used arena_bytes=%" PRIu64
                     " fix=\"sysctl vm.nr_hugepages: this arena takes %" PRIu64
                     " of them, and cairn doctor says how many all take\"",
                     bytes, round_up(bytes, HUGE_BYTES) / HUGE_BYTES);
}

/* Creates a memfd of final size. hugetlb: on reserved huge pages. */
static cairn_err
make_fd(const char *name, uint64_t bytes, bool hugetlb, int *out)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
    int fd = memfd_create(name, flags);

    if (fd < 0)
        return translate_errno(errno);
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, SEALS)) {
        cairn_err err = translate_errno(errno);
        int saved = errno;

        close(fd);
        errno = saved;
        return err;
    }
    *out = fd;
    return CAIRN_OK;
}

/* Reserved huge pages have a pool of their own: no budget applies, and a failure is normal. */
static bool
create_huge(const char *name, uint64_t bytes, struct cairn_arena *arena)
{
    int fd = -1;

    bytes = round_up(bytes, HUGE_BYTES);
    if (make_fd(name, bytes, true, &fd))
        return false;
    if (map_arena(fd, bytes, false, NULL, 0, arena, NULL, 0)) {
        close(fd);
        return false;
    }
    arena->hugepages = true;
    return true;
}

cairn_err
cairn_arena_create(const char *name, uint64_t bytes, const struct cairn_arena_options *options,
                   struct cairn_arena **out, char *report, size_t report_bytes)
{
    static const struct cairn_arena_options defaults;
    struct cairn_arena *arena = NULL;
    int fd = -1;
    cairn_err err = CAIRN_OK;

    options = options ? options : &defaults;
    if (bytes == 0 || bytes > BYTES_LIMIT) {
        say(report, report_bytes, "an arena of %" PRIu64 " bytes is not possible", bytes);
        return CAIRN_INVAL;
    }
    arena = calloc(1, sizeof *arena);
    if (!arena)
        return CAIRN_NOMEM;
    if (options->hugepages == CAIRN_HUGEPAGES_TRY) {
        if (create_huge(name, bytes, arena))
            goto done;
        warn_hugepages(bytes);
    }
    bytes = round_up(bytes, (uint64_t)sysconf(_SC_PAGESIZE));
    err = check_budget(bytes, options->margin_bytes, report, report_bytes);
    if (err)
        goto done;
    err = make_fd(name, bytes, false, &fd);
    if (err) {
        say(report, report_bytes, "a sealed memfd of %" PRIu64 " bytes cannot be made: %s", bytes,
            strerror(errno));
        goto done;
    }
    err = map_arena(fd, bytes, options->hugepages == CAIRN_HUGEPAGES_TRY, NULL, 0, arena, report,
                    report_bytes);
    if (!err)
        fd = -1; /* the arena's now */
done:
    if (fd >= 0)
        close(fd);
    if (err) {
        free(arena);
        return err;
    }
    warn_memlock(arena->bytes);
    *out = arena;
    return CAIRN_OK;
}

/* Is `fd` what cairn_arena_create makes? */
static cairn_err
check_fd(int fd, uint64_t bytes_min, struct stat *info, char *report, size_t report_bytes)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0) {
        say(report, report_bytes, "the descriptor is not a memfd: %s", strerror(errno));
        return CAIRN_CORRUPT;
    }
    if ((seals & SEALS) != SEALS) {
        say(report, report_bytes, "the memfd is not sealed against shrink, grow and seal (0x%x)",
            (unsigned)seals);
        return CAIRN_CORRUPT;
    }
    if (seals & ~SEALS) { /* F_SEAL_WRITE and its kind */
        say(report, report_bytes, "the memfd is sealed against writing (0x%x)", (unsigned)seals);
        return CAIRN_CORRUPT;
    }
    if (fstat(fd, info)) {
        say(report, report_bytes, "fstat failed: %s", strerror(errno));
        return CAIRN_IO;
    }
    if (info->st_size <= 0 || (uint64_t)info->st_size < bytes_min ||
        (uint64_t)info->st_size % (uint64_t)info->st_blksize != 0) {
        say(report, report_bytes, "the memfd has %lld bytes, %" PRIu64 " are needed",
            (long long)info->st_size, bytes_min);
        return CAIRN_CORRUPT;
    }
    return CAIRN_OK;
}

cairn_err
cairn_arena_adopt(int fd, uint64_t bytes_min, const struct cairn_arena_range *away,
                  uint32_t away_count, struct cairn_arena **out, char *report, size_t report_bytes)
{
    struct cairn_arena *arena;
    struct stat info;
    cairn_err err = check_fd(fd, bytes_min, &info, report, report_bytes);

    if (err)
        return err;
    arena = calloc(1, sizeof *arena);
    if (!arena)
        return CAIRN_NOMEM;
    err =
        map_arena(fd, (uint64_t)info.st_size, false, away, away_count, arena, report, report_bytes);
    if (err) {
        free(arena);
        return err;
    }
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    arena->hugepages = (uint64_t)info.st_blksize >= HUGE_BYTES;
    *out = arena;
    return CAIRN_OK;
}

void
cairn_arena_destroy(struct cairn_arena *arena)
{
    if (!arena)
        return;
    munmap(arena->base, arena->bytes);
    close(arena->fd);
    free(arena);
}

uint8_t *
cairn_arena_base(const struct cairn_arena *arena)
{
    return arena->base;
}

uint64_t
cairn_arena_bytes(const struct cairn_arena *arena)
{
    return arena->bytes;
}

int
cairn_arena_fd(const struct cairn_arena *arena)
{
    return arena->fd;
}

bool
cairn_arena_is_advised(const struct cairn_arena *arena)
{
    return arena->advised;
}

bool
cairn_arena_has_hugepages(const struct cairn_arena *arena)
{
    return arena->hugepages;
}
