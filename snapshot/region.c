/* snapshot/region.c - see region.h. */
#include "snapshot/region.h"

#include "base/limits.h"
#include "base/log.h"
#include "snapshot/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Constants that are newer than the oldest headers we build with. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21u << 26)
#endif
#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 1
#define FALLOC_FL_PUNCH_HOLE 2
#endif

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

static const uint64_t HUGE_BYTES = UINT64_C(2) << 20;
static const uint64_t SLICE_BYTES = UINT64_C(2) << 20; /* a writer waits for one: 1 to 20 ms */

static cairn_err
translate_errno(int error)
{
    return error == ENOMEM || error == ENOSPC || error == EDQUOT || error == EMFILE ||
                   error == ENFILE
               ? CAIRN_NOMEM
               : CAIRN_IO;
}

uint64_t
cairn_region_unit_bytes(const struct cairn_arena *arena)
{
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);

    if (cairn_arena_has_hugepages(arena))
        return HUGE_BYTES;
    return page_bytes > CAIRN_BLOCK_BYTES ? page_bytes : (uint64_t)CAIRN_BLOCK_BYTES;
}

cairn_err
cairn_region_create(const char *name, struct cairn_region *region)
{
    bool huge = cairn_arena_has_hugepages(region->arena);
    uint64_t unit = cairn_region_unit_bytes(region->arena);
    uint64_t bytes = region->end ? region->end : unit;
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING |
                                    (huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0));

    if (fd < 0)
        return translate_errno(errno);
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, SEALS)) {
        cairn_err err = translate_errno(errno);

        close(fd);
        return err;
    }
    region->fd = fd;
    return CAIRN_OK;
}

/* Leaves errno. */
static bool
allocate(int fd, uint64_t begin, uint64_t bytes)
{
    int result;

    do
        result = fallocate(fd, 0, (off_t)begin, (off_t)bytes);
    while (result && errno == EINTR);
    return result == 0;
}

/* Gives pages back. On failure they stay: more memory is used, no byte is wrong. */
static void
release(int fd, uint64_t begin, uint64_t bytes)
{
    int result;

    do
        result =
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)bytes);
    while (result && errno == EINTR);
    if (result)
        CAIRN_LOG_AT(WARN, "region: pages are not given back bytes=%" PRIu64 ": %m", bytes);
}

/* Puts [begin, begin + bytes) of a file into the arena's mapping, in one step for its readers. */
static cairn_err
map_over(const struct cairn_region *region, int fd, uint64_t begin, uint64_t bytes)
{
    uint8_t *at = cairn_arena_base(region->arena) + begin;

    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)begin) ==
        MAP_FAILED)
        return translate_errno(errno);
    (void)madvise(at, bytes, MADV_DONTDUMP);
    (void)madvise(at, bytes, MADV_POPULATE_WRITE); /* else the first capture's faults do it */
    return CAIRN_OK;
}

/* Has the kernel make transparent huge pages, which it gives on faults alone. A hint. */
static void
ask_for_huge(int fd, uint64_t begin, uint64_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);

    if (map == MAP_FAILED)
        return;
    if (!madvise(map, bytes, MADV_HUGEPAGE))
        (void)madvise(map, bytes, MADV_POPULATE_WRITE);
    munmap(map, bytes);
}

static cairn_err
copy_into(int fd, uint64_t begin, uint64_t bytes, const uint8_t *source)
{
    void *target = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)begin);

    if (target == MAP_FAILED)
        return translate_errno(errno);
    memcpy(target, source, bytes);
    munmap(target, bytes);
    return CAIRN_OK;
}

/*
 * Reserved huge pages are all in use, so the slice's own pages must be given back before others can
 * be had: the bytes wait in private memory.
 */
static cairn_err
move_aside(const struct cairn_region *region, int from, int to, uint64_t begin, uint64_t bytes)
{
    const uint8_t *at = cairn_arena_base(region->arena) + begin;
    uint8_t *kept = malloc(bytes);
    cairn_err err = CAIRN_OK;

    if (!kept)
        return CAIRN_NOMEM;
    memcpy(kept, at, bytes);
    release(from, begin, bytes);
    if (!allocate(to, begin, bytes)) {
        int saved = errno;

        if (!allocate(from, begin, bytes)) /* faults would end in SIGBUS */
            CAIRN_LOG_AT(ERROR, "region: pages are lost to another process bytes=%" PRIu64, bytes);
        else
            err = copy_into(from, begin, bytes, kept);
        free(kept);
        return err ? err : translate_errno(saved);
    }
    err = copy_into(to, begin, bytes, kept);
    free(kept);
    return err;
}

/* Moves one slice from a file to the other, and stores `moved` between the two. */
static cairn_err
move_slice(const struct cairn_region *region, int from, int to, uint64_t begin, uint64_t bytes,
           bool keep, uint64_t moved)
{
    cairn_err err;

    if (cairn_arena_is_advised(region->arena))
        ask_for_huge(to, begin, bytes);
    if (allocate(to, begin, bytes))
        err =
            keep ? copy_into(to, begin, bytes, cairn_arena_base(region->arena) + begin) : CAIRN_OK;
    else if (cairn_arena_has_hugepages(region->arena))
        err = move_aside(region, from, to, begin, bytes);
    else
        err = translate_errno(errno);
    if (!err)
        err = map_over(region, to, begin, bytes);
    if (err) {
        release(to, begin, bytes);
        (void)allocate(from, begin, bytes); /* there still, but for huge pages that were moved */
        return err;
    }
    atomic_store(region->moved, moved);
    release(from, begin, bytes);
    return CAIRN_OK;
}

cairn_err
cairn_region_move(const struct cairn_region *region, bool out, bool keep)
{
    uint64_t moved = atomic_load(region->moved);
    uint64_t left = out ? region->end - region->begin - moved : moved;
    uint64_t at = region->begin + moved; /* slices end at multiples, where huge pages do */
    uint64_t bytes = out ? SLICE_BYTES - at % SLICE_BYTES : (at - 1) % SLICE_BYTES + 1;
    int arena_fd = cairn_arena_fd(region->arena);
    cairn_err err;

    if (left == 0)
        return CAIRN_OK;
    if (bytes > left)
        bytes = left;
    if (out)
        err = move_slice(region, arena_fd, region->fd, at, bytes, keep, moved + bytes);
    else
        err = move_slice(region, region->fd, arena_fd, at - bytes, bytes, keep, moved - bytes);
    if (err)
        return err;
    return left == bytes ? CAIRN_OK : CAIRN_AGAIN;
}

cairn_err
cairn_region_adopt(const struct cairn_region *region)
{
    uint64_t unit = cairn_region_unit_bytes(region->arena), moved = atomic_load(region->moved);
    uint64_t middle = region->begin + moved;
    int seals = fcntl(region->fd, F_GET_SEALS);
    struct stat status;

    if (seals != SEALS || fstat(region->fd, &status) || status.st_size < 0 ||
        (uint64_t)status.st_size != region->end || region->begin % unit || region->end % unit ||
        region->begin >= region->end || region->end > cairn_arena_bytes(region->arena) ||
        moved > region->end - region->begin || moved % unit)
        return CAIRN_CORRUPT;
    (void)fcntl(region->fd, F_SETFD, FD_CLOEXEC);
    if (middle < region->end)
        release(region->fd, middle, region->end - middle);
    if (moved == 0)
        return CAIRN_OK;
    release(cairn_arena_fd(region->arena), region->begin, moved);
    if (!allocate(region->fd, region->begin, moved)) /* they are there already */
        return translate_errno(errno);
    return map_over(region, region->fd, region->begin, moved);
}
