/* agent/process/memory_region.c - see memory_region.h. */
#include "agent/process/memory_region.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char name_format[] =
    "cairn-slot%" PRIu32 "-region%" PRIu32 "-first%" PRIu64 "-blocks%" PRIu64 "-rank%" PRIu32;

static void
name_region(const struct cairn_memory_region *region, char name[CAIRN_KEEPER_NAME_BYTES_MAX])
{
    snprintf(name, CAIRN_KEEPER_NAME_BYTES_MAX, name_format, region->slot, region->index,
             region->first_block, region->blocks, region->rank);
}

cairn_err
regions_init(struct memory_regions *regions, uint32_t slot, _Atomic uint64_t *moved)
{
    pthread_rwlockattr_t attributes;
    int failed;

    memset(regions, 0, sizeof *regions);
    regions->slot = slot;
    regions->moved = moved;
    if (pthread_rwlockattr_init(&attributes))
        return CAIRN_NOMEM;
    /* else two workers could take turns, and the loop wait for ever */
    (void)pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    failed = pthread_rwlock_init(&regions->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return failed ? CAIRN_NOMEM : CAIRN_OK;
}

void
regions_fini(struct memory_regions *regions)
{
    for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++)
        if (regions->list[i]) {
            close(regions->list[i]->pages.fd);
            free(regions->list[i]);
        }
    pthread_rwlock_destroy(&regions->lock);
    memset(regions, 0, sizeof *regions);
}

struct cairn_memory_region *
regions_get(const struct memory_regions *regions, uint64_t first_block, uint64_t blocks,
            uint32_t rank)
{
    for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++) {
        struct cairn_memory_region *region = regions->list[i];

        if (region && region->first_block == first_block && region->blocks == blocks &&
            region->rank == rank)
            return region;
    }
    return NULL;
}

static void
set_pages(struct memory_regions *regions, struct cairn_memory_region *region)
{
    uint64_t unit = cairn_region_unit_bytes(regions->arena);
    uint64_t bytes = region->blocks * CAIRN_BLOCK_BYTES;

    region->pages.arena = regions->arena;
    region->pages.begin = region->first_block * CAIRN_BLOCK_BYTES;
    region->pages.end = region->pages.begin + (bytes + unit - 1) / unit * unit;
    region->pages.moved = &regions->moved[region->index];
}

cairn_err
regions_add(struct memory_regions *regions, uint64_t first_block, uint64_t blocks, uint32_t rank,
            struct cairn_memory_region **out)
{
    struct cairn_memory_region *region;
    char name[CAIRN_KEEPER_NAME_BYTES_MAX];
    uint32_t index = 0;
    cairn_err err;

    while (index < MEMORY_REGIONS_MAX && regions->list[index])
        index++;
    if (index == MEMORY_REGIONS_MAX)
        return CAIRN_FULL;
    region = calloc(1, sizeof *region);
    if (!region)
        return CAIRN_NOMEM;
    region->slot = regions->slot;
    region->index = index;
    region->rank = rank;
    region->first_block = first_block;
    region->blocks = blocks;
    atomic_store(&regions->moved[index], 0);
    set_pages(regions, region);
    name_region(region, name);
    err = cairn_region_create(name, &region->pages);
    if (err) {
        free(region);
        return err;
    }
    regions->list[index] = region;
    *out = region;
    return CAIRN_OK;
}

static void
drop_item(struct cairn_keeper *keeper, const char *name)
{
    if (keeper && cairn_keeper_drop(keeper, name) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "memory: the keeper still holds %s", name);
}

void
regions_drop(struct memory_regions *regions, struct cairn_memory_region *region,
             struct cairn_keeper *keeper)
{
    char name[CAIRN_KEEPER_NAME_BYTES_MAX];

    name_region(region, name);
    if (region->is_kept)
        drop_item(keeper, name);
    close(region->pages.fd);
    regions->list[region->index] = NULL;
    free(region);
}

cairn_err
regions_keep(struct cairn_memory_region *region, struct cairn_keeper *keeper)
{
    char name[CAIRN_KEEPER_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    name_region(region, name);
    if (keeper)
        err = cairn_keeper_put(keeper, name, region->pages.fd, region->pages.end);
    if (err == CAIRN_PEER) /* it has died: the next one is handed all of them */
        err = CAIRN_OK;
    if (err)
        CAIRN_LOG_AT(WARN, "memory: the keeper refuses %s: %s", name, cairn_err_text(err));
    else
        region->is_kept = true;
    return err;
}

struct cairn_memory_region *
regions_in_way(const struct memory_regions *regions, const struct cairn_memory_region *region)
{
    for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++) {
        struct cairn_memory_region *other = regions->list[i];

        if (other && other != region && other->is_kept && other->pages.begin < region->pages.end &&
            region->pages.begin < other->pages.end)
            return other;
    }
    return NULL;
}

cairn_err
regions_move(struct memory_regions *regions, const struct cairn_memory_region *region, bool out)
{
    cairn_err err = CAIRN_AGAIN;

    while (err == CAIRN_AGAIN && !atomic_load(&regions->is_stopping)) {
        pthread_rwlock_rdlock(&regions->lock);
        err = cairn_region_move(&region->pages, out, !atomic_load(&regions->is_blank));
        pthread_rwlock_unlock(&regions->lock);
    }
    return err;
}

void
regions_write_begin(struct memory_regions *regions)
{
    pthread_rwlock_wrlock(&regions->lock);
    atomic_store(&regions->is_blank, false);
}

void
regions_write_end(struct memory_regions *regions)
{
    pthread_rwlock_unlock(&regions->lock);
}

/* ---- adoption ---- */

/* Makes a region from its item's name. NULL: not a region of this slot, or impossible. */
static struct cairn_memory_region *
read_item(struct memory_regions *regions, const struct cairn_keeper_item *item,
          uint64_t arena_bytes)
{
    struct cairn_memory_region *region = calloc(1, sizeof *region);
    char name[CAIRN_KEEPER_NAME_BYTES_MAX] = "";

    if (!region)
        return NULL;
    if (sscanf(item->name, name_format, &region->slot, &region->index, &region->first_block,
               &region->blocks, &region->rank) == 5)
        name_region(region, name);
    region->pages.begin = region->first_block * CAIRN_BLOCK_BYTES;
    region->pages.end = item->bytes;
    if (strcmp(name, item->name) != 0 || region->slot != regions->slot ||
        region->index >= MEMORY_REGIONS_MAX || regions->list[region->index] ||
        region->first_block > UINT64_MAX / CAIRN_BLOCK_BYTES ||
        region->pages.begin >= item->bytes || item->bytes > arena_bytes || region->blocks == 0 ||
        region->blocks > (item->bytes - region->pages.begin) / CAIRN_BLOCK_BYTES ||
        atomic_load(&regions->moved[region->index]) > item->bytes - region->pages.begin) {
        free(region);
        return NULL;
    }
    region->is_kept = true;
    return region;
}

static int
compare_ranges(const void *left, const void *right)
{
    const struct cairn_arena_range *a = left, *b = right;

    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

void
regions_find(struct memory_regions *regions, struct cairn_keeper *keeper,
             struct cairn_keeper_item *items, uint32_t item_count, uint64_t arena_bytes,
             struct cairn_arena_range away[MEMORY_REGIONS_MAX], uint32_t *away_count)
{
    char prefix[32];

    *away_count = 0;
    snprintf(prefix, sizeof prefix, "cairn-slot%" PRIu32 "-region", regions->slot);
    for (uint32_t i = 0; i < item_count; i++) {
        struct cairn_memory_region *region;

        if (items[i].fd < 0 || strncmp(items[i].name, prefix, strlen(prefix)) != 0)
            continue;
        region = read_item(regions, &items[i], arena_bytes);
        if (!region || regions_in_way(regions, region)) {
            CAIRN_LOG_AT(WARN, "memory: %s cannot be used, and is given up", items[i].name);
            drop_item(keeper, items[i].name);
            close(items[i].fd);
            items[i].fd = -1;
            free(region);
            continue;
        }
        region->pages.fd = items[i].fd;
        items[i].fd = -1;
        regions->list[region->index] = region;
        away[(*away_count)++] = (struct cairn_arena_range){
            region->pages.begin, region->pages.begin + regions->moved[region->index]};
    }
    if (*away_count > 1)
        qsort(away, *away_count, sizeof *away, compare_ranges);
}

void
regions_adopt(struct memory_regions *regions, const struct cairn_arena *arena)
{
    regions->arena = arena;
    for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++) {
        struct cairn_memory_region *region = regions->list[i];
        uint64_t end = region ? region->pages.end : 0;
        cairn_err err;

        if (!region)
            continue;
        set_pages(regions, region);
        err = region->pages.end == end ? cairn_region_adopt(&region->pages) : CAIRN_CORRUPT;
        if (!err)
            continue;
        CAIRN_LOG_AT(ERROR,
                     "memory: the region of rank=%u in slot=%u is lost: %s; what it held is "
                     "rebuilt from other nodes",
                     region->rank, regions->slot, cairn_err_text(err));
        atomic_store(region->pages.moved, 0);
        region->pages.end = end; /* what the keeper knows */
    }
}
