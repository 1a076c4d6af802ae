/*
 * tests/fuzz/fuzz_region.c - the regions of adopted memory: names and files in the keeper, and the
 * table of moved bytes, as an agent of another version or a damaged one may have left them.
 *
 *     items    byte 0: bit 0: the name is text, else made of numbers; bits 1, 2: a shift of the
 *              moved bytes; byte 1: the file's blocks; byte 2: moved bytes; then the name: its
 *              length and bytes, or region, first block, blocks and rank
 *
 * Each item is adopted or given up. Then every byte of the slot can be read and written, no two
 * regions overlap, each can be moved both ways, and no descriptor is leaked.
 */
#include "agent/process/memory_region.h"
#include "base/log.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ITEMS_MAX = 4, SLOT_BLOCKS = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int
lowest_free_fd(void)
{
    int fd = dup(0);

    close(fd);
    return fd;
}

static int
new_file(uint64_t bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

/* Reads an item; false: there is none. */
static bool
next_item(const uint8_t **at, const uint8_t *end, struct cairn_keeper_item *item,
          _Atomic uint64_t *moved)
{
    const uint8_t *from = *at;
    uint8_t slot;

    memset(item, 0, sizeof *item);
    if (end - from < 7)
        return false;
    item->bytes = (uint64_t)from[1] * CAIRN_BLOCK_BYTES;
    slot = from[3] % MEMORY_REGIONS_MAX;
    moved[slot] = (uint64_t)from[2] << (from[0] & 2 ? 16 : from[0] & 4 ? 56 : 12);
    if (from[0] & 1) {
        size_t len = from[3] % (sizeof item->name - 12);

        if (len > (size_t)(end - from - 4))
            len = (size_t)(end - from - 4);
        memcpy(item->name, "cairn-slot0-region", 18);
        memcpy(item->name + 18, from + 4, len > 100 ? 100 : len);
        *at = from + 4 + len;
    } else {
        snprintf(item->name, sizeof item->name, "cairn-slot0-region%u-first%u-blocks%u-rank%u",
                 slot, from[4], from[5], from[6]);
        *at = from + 7;
    }
    item->fd = new_file(item->bytes);
    return true;
}

static void
check_regions(struct memory_regions *regions, const struct cairn_arena *arena)
{
    uint8_t *base = cairn_arena_base(arena);

    for (uint64_t at = 0; at < cairn_arena_bytes(arena); at += 4096)
        base[at] = (uint8_t)(at >> 12);
    for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++) {
        struct cairn_memory_region *region = regions->list[i];

        if (!region)
            continue;
        require(!regions_in_way(regions, region));
        if (region->pages.end > cairn_arena_bytes(arena) || cairn_region_adopt(&region->pages))
            continue; /* given up: its pages were never away */
        require(regions_move(regions, region, true) == CAIRN_OK);
        require(regions_move(regions, region, false) == CAIRN_OK);
    }
    for (uint64_t at = 0; at < cairn_arena_bytes(arena); at += 4096)
        require(base[at] == (uint8_t)(at >> 12));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Atomic uint64_t moved[MEMORY_REGIONS_MAX];
    const struct cairn_arena_options options = {.hugepages = CAIRN_HUGEPAGES_NEVER};
    struct cairn_keeper_item items[ITEMS_MAX];
    struct cairn_arena_range away[MEMORY_REGIONS_MAX];
    struct cairn_arena *made = NULL, *arena = NULL;
    struct memory_regions regions;
    const uint8_t *end = data + size;
    uint32_t item_count = 0, away_count = 0;
    int free_fd, fd;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    free_fd = lowest_free_fd();
    memset((void *)moved, 0, sizeof moved);
    require(regions_init(&regions, 0, moved) == CAIRN_OK);
    while (item_count < ITEMS_MAX && next_item(&data, end, &items[item_count], moved))
        item_count++;
    regions_find(&regions, NULL, items, item_count, SLOT_BLOCKS * CAIRN_BLOCK_BYTES, away,
                 &away_count);
    require(cairn_arena_create("fuzz", SLOT_BLOCKS * CAIRN_BLOCK_BYTES, &options, &made, NULL, 0) ==
            CAIRN_OK);
    fd = fcntl(cairn_arena_fd(made), F_DUPFD_CLOEXEC, 0);
    cairn_arena_destroy(made);
    require(cairn_arena_adopt(fd, 0, away, away_count, &arena, NULL, 0) == CAIRN_OK);
    regions_adopt(&regions, arena);
    check_regions(&regions, arena);
    regions_fini(&regions);
    cairn_arena_destroy(arena);
    for (uint32_t i = 0; i < item_count; i++)
        if (items[i].fd >= 0)
            close(items[i].fd);
    require(lowest_free_fd() == free_fd);
    return 0;
}
