/* agent/process/memory.c - see memory.h. */
#include "agent/process/memory.h"

#include "agent/core/env/types.h"
#include "agent/process/memory_region.h"
#include "base/log.h"
#include "snapshot/arena.h"
#include "snapshot/budget.h"
#include "snapshot/slot.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PARTS_LIMIT = 32,
    MEMORY_NAME_BYTES = 64,
    MOVED_BYTES = CAIRN_OWN_SLOTS_MAX * MEMORY_REGIONS_MAX * sizeof(_Atomic uint64_t)
};

#define SIZES_ADVICE                                                                               \
    "set state_bytes, slots, parity, group_size and the nodes back to what they were, or end "     \
    "this node's keeper "                                                                          \
    "process (`cairn keeper`) to give up the generations that it holds"

struct place {
    struct cairn_arena *data;
    struct cairn_arena *parity;
    struct cairn_arena *record; /* hosted parts have their own; own slots share one */
    struct cairn_slots record_store;
    uint64_t data_blocks;
    uint64_t parity_blocks;
    uint32_t users;
    bool free_when_unused;
};

struct cairn_memory {
    struct cairn_memory_options options;
    struct cairn_arena *records;
    struct cairn_slots record_store;
    struct place places[PARTS_LIMIT];
    struct cairn_arena *moved; /* the table of moved bytes, of all regions */
    struct memory_regions regions[CAIRN_OWN_SLOTS_MAX];
    uint32_t regions_count; /* that are initialised */
    uint64_t reserved_bytes;
    struct cairn_keeper_item *kept; /* found in the keeper at start */
    uint32_t kept_count;
    bool adopted;
};

/* Ranges of an arena that lie elsewhere, as cairn_arena_adopt has them. */
struct away {
    struct cairn_arena_range ranges[MEMORY_REGIONS_MAX];
    uint32_t count;
};

static const struct away nothing_away;

static struct cairn_keeper_item *
find_kept(struct cairn_memory *memory, const char *name)
{
    for (uint32_t i = 0; i < memory->kept_count; i++)
        if (memory->kept[i].fd >= 0 && strcmp(memory->kept[i].name, name) == 0)
            return &memory->kept[i];
    return NULL;
}

/* Adopts the arena of that name from the keeper, or reserves it and has the keeper hold it. */
static cairn_err
take_arena(struct cairn_memory *memory, const char *name, uint64_t bytes, const struct away *away,
           struct cairn_arena **out, bool *adopted, char *report, size_t report_bytes)
{
    struct cairn_arena_options options = {
        .hugepages = memory->options.hugepages && bytes > MOVED_BYTES ? CAIRN_HUGEPAGES_TRY
                                                                      : CAIRN_HUGEPAGES_NEVER};
    struct cairn_keeper_item *kept = find_kept(memory, name);
    cairn_err err;

    *adopted = false;
    if (kept) {
        if (kept->bytes < bytes || kept->bytes - bytes >= (UINT64_C(2) << 20)) {
            snprintf(report, report_bytes,
                     "the keeper holds %s of %" PRIu64
                     " bytes from an earlier agent, but the configuration asks for %" PRIu64
                     ": " SIZES_ADVICE,
                     name, kept->bytes, bytes);
            return CAIRN_CONFIG;
        }
        err = cairn_arena_adopt(kept->fd, bytes, away->ranges, away->count, out, report,
                                report_bytes);
        if (err)
            return err;
        kept->fd = -1;
        *adopted = true;
        memory->adopted = true;
    } else {
        err = cairn_arena_create(name, bytes, &options, out, report, report_bytes);
        if (err)
            return err;
        if (memory->options.keeper) {
            err = cairn_keeper_put(memory->options.keeper, name, cairn_arena_fd(*out),
                                   cairn_arena_bytes(*out));
            if (err) {
                snprintf(report, report_bytes, "the keeper refuses %s: %s", name,
                         cairn_err_text(err));
                cairn_arena_destroy(*out);
                *out = NULL;
                return err;
            }
        }
    }
    memory->reserved_bytes += cairn_arena_bytes(*out);
    return CAIRN_OK;
}

static void
give_back_arena(struct cairn_memory *memory, const char *name, struct cairn_arena **arena)
{
    if (!*arena)
        return;
    memory->reserved_bytes -= cairn_arena_bytes(*arena);
    cairn_arena_destroy(*arena);
    *arena = NULL;
    if (memory->options.keeper && cairn_keeper_drop(memory->options.keeper, name) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "memory: the keeper still holds %s", name);
}

/*
 * Finds the store of records in an adopted arena, or makes an empty one. Memory whose agent died
 * before formatting it holds no generation. Records of another version or shape are refused: they
 * may describe committed generations.
 */
static cairn_err
attach_records(const struct cairn_arena *arena, uint32_t count, uint64_t record_bytes, bool adopted,
               struct cairn_slots *out, char *report, size_t report_bytes)
{
    cairn_err err = CAIRN_NOT_FOUND;

    if (adopted)
        err = cairn_slot_attach(cairn_arena_base(arena), cairn_arena_bytes(arena), out);
    if (err == CAIRN_OK && (out->slot_count != count || out->payload_bytes_max < record_bytes)) {
        snprintf(report, report_bytes,
                 "the keeper holds records for %u slots of %" PRIu64
                 " bytes from an earlier agent, but the "
                 "configuration asks for %u of %" PRIu64 ": " SIZES_ADVICE,
                 out->slot_count, out->payload_bytes_max, count, record_bytes);
        return CAIRN_CONFIG;
    }
    if (err == CAIRN_VERSION)
        snprintf(report, report_bytes,
                 "the keeper holds records that another version of cairn wrote; run that version, "
                 "or end this node's keeper "
                 "process (`cairn keeper`) to give up the generations that it holds");
    if (err == CAIRN_OK || err == CAIRN_VERSION)
        return err;
    if (err == CAIRN_CORRUPT)
        CAIRN_LOG_AT(ERROR,
                     "memory: the store of records is damaged: what this node held counts as lost");
    return cairn_slot_format(cairn_arena_base(arena), cairn_arena_bytes(arena), count, record_bytes,
                             out);
}

static cairn_err
check_budget(const struct cairn_memory_options *options, char *report, size_t report_bytes)
{
    struct cairn_budget_demand demand = {
        .state_bytes = options->slot_blocks * CAIRN_BLOCK_BYTES,
        .slots = options->slots,
        .data_count = options->data_count,
        .parity_count = options->parity_count,
        .fixed_bytes =
            cairn_slot_memory_bytes(options->slots, options->record_bytes) + options->ring_bytes};
    struct cairn_budget_free memory_free;
    struct cairn_budget budget;
    cairn_err err = cairn_budget_free_read("/", &memory_free);

    if (err)
        return CAIRN_OK; /* unknown: the reservation itself will tell */
    err = cairn_budget_check(&demand, &memory_free, CAIRN_BUDGET_MARGIN_BYTES, &budget);
    if (err == CAIRN_OK || err == CAIRN_NOMEM)
        cairn_budget_text(&demand, &memory_free, &budget, report, report_bytes);
    if (err == CAIRN_OK)
        CAIRN_LOG_AT(INFO, "memory: reserve %s", report);
    return err;
}

/* Takes a slot's data: its arena, and the files of its regions. */
static cairn_err
open_data(struct cairn_memory *memory, uint32_t slot, char *report, size_t report_bytes)
{
    struct memory_regions *regions = &memory->regions[slot];
    struct place *place = &memory->places[slot];
    const struct cairn_keeper_item *kept;
    char name[MEMORY_NAME_BYTES];
    struct away away;
    bool adopted;
    cairn_err err;

    err = regions_init(regions, slot,
                       (_Atomic uint64_t *)(void *)cairn_arena_base(memory->moved) +
                           (size_t)slot * MEMORY_REGIONS_MAX);
    if (err)
        return err;
    memory->regions_count++;
    snprintf(name, sizeof name, "cairn-slot%u-data", slot);
    kept = find_kept(memory, name);
    regions_find(regions, memory->options.keeper, memory->kept, memory->kept_count,
                 kept ? kept->bytes : 0, away.ranges, &away.count);
    err = take_arena(memory, name, memory->options.slot_blocks * CAIRN_BLOCK_BYTES, &away,
                     &place->data, &adopted, report, report_bytes);
    if (err)
        return err;
    regions_adopt(regions, place->data);
    atomic_store(&regions->is_blank, !adopted);
    place->data_blocks = memory->options.slot_blocks;
    return CAIRN_OK;
}

static cairn_err
open_slots(struct cairn_memory *memory, char *report, size_t report_bytes)
{
    const struct cairn_memory_options *options = &memory->options;
    bool adopted;
    cairn_err err = take_arena(memory, "cairn-regions", MOVED_BYTES, &nothing_away, &memory->moved,
                               &adopted, report, report_bytes);

    for (uint32_t i = 0; !err && i < options->slots; i++) {
        struct place *place = &memory->places[i];
        char name[MEMORY_NAME_BYTES];

        err = open_data(memory, i, report, report_bytes);
        if (err || options->parity_blocks == 0)
            continue;
        snprintf(name, sizeof name, "cairn-slot%u-parity", i);
        err = take_arena(memory, name, options->parity_blocks * CAIRN_BLOCK_BYTES, &nothing_away,
                         &place->parity, &adopted, report, report_bytes);
        place->parity_blocks = options->parity_blocks;
    }
    if (!err)
        err = take_arena(memory, "cairn-records",
                         cairn_slot_memory_bytes(options->slots, options->record_bytes),
                         &nothing_away, &memory->records, &adopted, report, report_bytes);
    if (!err)
        err = attach_records(memory->records, options->slots, options->record_bytes, adopted,
                             &memory->record_store, report, report_bytes);
    return err;
}

/*
 * A hosted part is as large as its arenas, which huge pages may make longer than requested: an
 * agent that adopts it knows no other size, and the beginning of each parity row follows from it.
 */
static void
measure_hosted(struct place *place)
{
    place->data_blocks = cairn_arena_bytes(place->data) / CAIRN_BLOCK_BYTES;
    place->parity_blocks = place->parity ? cairn_arena_bytes(place->parity) / CAIRN_BLOCK_BYTES : 0;
}

/* Hosted parts that an earlier agent left in the keeper. */
static void
adopt_hosted(struct cairn_memory *memory)
{
    char report[256];
    bool adopted;

    for (uint32_t i = memory->options.slots; i < memory->options.parts; i++) {
        struct place *place = &memory->places[i];
        struct cairn_keeper_item *data, *parity, *record;
        char name[MEMORY_NAME_BYTES];

        snprintf(name, sizeof name, "cairn-hosted%u-data", i);
        data = find_kept(memory, name);
        snprintf(name, sizeof name, "cairn-hosted%u-parity", i);
        parity = find_kept(memory, name);
        snprintf(name, sizeof name, "cairn-hosted%u-record", i);
        record = find_kept(memory, name);
        if (!data || !record)
            continue;
        if (take_arena(memory, record->name, record->bytes, &nothing_away, &place->record, &adopted,
                       report, sizeof report) ||
            attach_records(place->record, 1, 1, true, &place->record_store, report,
                           sizeof report) ||
            take_arena(memory, data->name, data->bytes, &nothing_away, &place->data, &adopted,
                       report, sizeof report) ||
            (parity && take_arena(memory, parity->name, parity->bytes, &nothing_away,
                                  &place->parity, &adopted, report, sizeof report))) {
            CAIRN_LOG_AT(WARN, "memory: a hosted part is given up: %s", report);
            cairn_memory_free(memory, i);
            continue;
        }
        measure_hosted(place);
    }
}

/*
 * The keeper's further items: own slots of a configuration with more of them may be committed, and
 * are refused; pieces of a hosted part whose agent died while making it are given back.
 */
static cairn_err
settle_rest(struct cairn_memory *memory, char *report, size_t report_bytes)
{
    for (uint32_t i = 0; i < memory->kept_count; i++) {
        struct cairn_keeper_item *kept = &memory->kept[i];

        if (kept->fd < 0)
            continue;
        if (strncmp(kept->name, "cairn-slot", 10) == 0) {
            snprintf(report, report_bytes,
                     "the keeper holds %s from an earlier agent, for which the configuration has "
                     "no place: " SIZES_ADVICE,
                     kept->name);
            return CAIRN_CONFIG;
        }
        if (strncmp(kept->name, "cairn-hosted", 12) == 0 &&
            cairn_keeper_drop(memory->options.keeper, kept->name) != CAIRN_OK)
            CAIRN_LOG_AT(WARN, "memory: the keeper still holds %s", kept->name);
    }
    return CAIRN_OK;
}

cairn_err
cairn_memory_open(const struct cairn_memory_options *options, struct cairn_memory **out,
                  bool *adopted, char *report, size_t report_bytes)
{
    struct cairn_memory *memory;
    cairn_err err = CAIRN_OK;

    if (options->parts > PARTS_LIMIT || options->slots > options->parts ||
        options->slots > CAIRN_OWN_SLOTS_MAX || options->slot_blocks == 0)
        return CAIRN_INVAL;
    memory = calloc(1, sizeof *memory);
    if (!memory)
        return CAIRN_NOMEM;
    memory->options = *options;
    if (options->keeper)
        err = cairn_keeper_get(options->keeper, &memory->kept, &memory->kept_count);
    if (err)
        snprintf(report, report_bytes, "the keeper does not answer: %s", cairn_err_text(err));
    if (!err && memory->kept_count == 0)
        err = check_budget(options, report, report_bytes);
    if (!err)
        err = open_slots(memory, report, report_bytes);
    if (!err)
        adopt_hosted(memory);
    if (!err)
        err = settle_rest(memory, report, report_bytes);
    if (memory->kept)
        cairn_keeper_items_free(memory->kept, memory->kept_count);
    memory->kept = NULL;
    memory->kept_count = 0;
    if (err) {
        cairn_memory_close(memory);
        return err;
    }
    *adopted = memory->adopted;
    *out = memory;
    return CAIRN_OK;
}

void
cairn_memory_close(struct cairn_memory *memory)
{
    if (!memory)
        return;
    for (uint32_t i = 0; i < memory->regions_count; i++)
        regions_fini(&memory->regions[i]);
    for (uint32_t i = 0; i < PARTS_LIMIT; i++) {
        cairn_arena_destroy(memory->places[i].data);
        cairn_arena_destroy(memory->places[i].parity);
        cairn_arena_destroy(memory->places[i].record);
    }
    cairn_arena_destroy(memory->moved);
    cairn_arena_destroy(memory->records);
    free(memory);
}

uint64_t
cairn_memory_reserved_bytes(const struct cairn_memory *memory)
{
    return memory->reserved_bytes;
}

/* ---- regions ---- */

uint64_t
cairn_memory_region_unit_blocks(const struct cairn_memory *memory)
{
    uint64_t unit = CAIRN_BLOCK_BYTES;

    for (uint32_t i = 0; i < memory->options.slots; i++)
        if (cairn_region_unit_bytes(memory->places[i].data) > unit)
            unit = cairn_region_unit_bytes(memory->places[i].data);
    return unit / CAIRN_BLOCK_BYTES;
}

struct cairn_memory_region *
cairn_memory_region_find(const struct cairn_memory *memory, uint32_t slot, uint64_t first_block,
                         uint64_t blocks, uint32_t rank)
{
    return regions_get(&memory->regions[slot], first_block, blocks, rank);
}

cairn_err
cairn_memory_region_make(struct cairn_memory *memory, uint32_t slot, uint64_t first_block,
                         uint64_t blocks, uint32_t rank, struct cairn_memory_region **out)
{
    return regions_add(&memory->regions[slot], first_block, blocks, rank, out);
}

uint64_t
cairn_memory_region_place(const struct cairn_memory *memory, uint64_t blocks, uint32_t rank)
{
    for (uint32_t slot = 0; slot < memory->regions_count; slot++)
        for (uint32_t i = 0; i < MEMORY_REGIONS_MAX; i++) {
            const struct cairn_memory_region *region = memory->regions[slot].list[i];

            if (region && region->is_kept && region->rank == rank && region->blocks == blocks)
                return region->first_block;
        }
    return UINT64_MAX;
}

int
cairn_memory_region_fd(const struct cairn_memory_region *region)
{
    return region->pages.fd;
}

static uint64_t
moved_bytes(const struct cairn_memory_region *region)
{
    return atomic_load(region->pages.moved);
}

bool
cairn_memory_region_is_whole(const struct cairn_memory_region *region)
{
    return !region->is_moving && moved_bytes(region) == region->pages.end - region->pages.begin;
}

bool
cairn_memory_region_forget(struct cairn_memory *memory, struct cairn_memory_region *region)
{
    if (region->is_moving || moved_bytes(region) > 0)
        return false;
    regions_drop(&memory->regions[region->slot], region, memory->options.keeper);
    return true;
}

cairn_err
cairn_memory_region_next_move(struct cairn_memory *memory, struct cairn_memory_region *region,
                              struct cairn_memory_region **moving, bool *out)
{
    struct memory_regions *regions = &memory->regions[region->slot];
    struct cairn_memory_region *other;
    cairn_err err;

    *moving = NULL;
    if (region->is_moving || cairn_memory_region_is_whole(region))
        return CAIRN_OK;
    while ((other = regions_in_way(regions, region)) && !other->is_moving &&
           moved_bytes(other) == 0)
        regions_drop(regions, other, memory->options.keeper);
    if (other && other->is_moving)
        return CAIRN_OK;
    err = other ? CAIRN_OK : regions_keep(region, memory->options.keeper);
    if (err)
        return err;
    *out = !other;
    *moving = other ? other : region;
    (*moving)->is_moving = true;
    return CAIRN_OK;
}

cairn_err
cairn_memory_region_move(struct cairn_memory *memory, const struct cairn_memory_region *region,
                         bool out)
{
    return regions_move(&memory->regions[region->slot], region, out);
}

void
cairn_memory_region_moved(struct cairn_memory_region *region)
{
    region->is_moving = false;
}

bool
cairn_memory_is_moving(const struct cairn_memory *memory, uint32_t part)
{
    for (uint32_t i = 0; part < memory->regions_count && i < MEMORY_REGIONS_MAX; i++)
        if (memory->regions[part].list[i] && memory->regions[part].list[i]->is_moving)
            return true;
    return false;
}

void
cairn_memory_stop_moves(struct cairn_memory *memory)
{
    for (uint32_t i = 0; i < memory->regions_count; i++)
        atomic_store(&memory->regions[i].is_stopping, true);
}

void
cairn_memory_write_begin(struct cairn_memory *memory, uint32_t part)
{
    if (part < memory->regions_count)
        regions_write_begin(&memory->regions[part]);
}

void
cairn_memory_write_end(struct cairn_memory *memory, uint32_t part)
{
    if (part < memory->regions_count)
        regions_write_end(&memory->regions[part]);
}

uint8_t *
cairn_memory_data(const struct cairn_memory *memory, uint32_t part, uint64_t block, uint64_t count)
{
    const struct place *place = &memory->places[part < PARTS_LIMIT ? part : 0];

    if (part >= memory->options.parts || !place->data || block > place->data_blocks ||
        count > place->data_blocks - block)
        return NULL;
    return cairn_arena_base(place->data) + block * CAIRN_BLOCK_BYTES;
}

uint8_t *
cairn_memory_parity(const struct cairn_memory *memory, uint32_t part, uint32_t parity_slot,
                    uint32_t parity_slots, uint64_t line, uint64_t count)
{
    const struct place *place = &memory->places[part < PARTS_LIMIT ? part : 0];
    uint64_t stride;

    if (part >= memory->options.parts || !place->parity || parity_slot >= parity_slots)
        return NULL;
    stride = place->parity_blocks / parity_slots;
    if (line > stride || count > stride - line)
        return NULL;
    return cairn_arena_base(place->parity) + (parity_slot * stride + line) * CAIRN_BLOCK_BYTES;
}

uint8_t *
cairn_memory_area(const struct cairn_memory *memory, uint32_t part, uint32_t area,
                  size_t *bytes_len)
{
    const struct place *place = &memory->places[part < PARTS_LIMIT ? part : 0];
    const struct cairn_arena *arena = area == 0 ? place->data : place->parity;

    *bytes_len = arena ? cairn_arena_bytes(arena) : 0;
    return arena ? cairn_arena_base(arena) : NULL;
}

static const struct cairn_slots *
record_of(const struct cairn_memory *memory, uint32_t part, uint32_t *slot)
{
    *slot = part < memory->options.slots ? part : 0;
    if (part < memory->options.slots)
        return &memory->record_store;
    return memory->places[part].record ? &memory->places[part].record_store : NULL;
}

cairn_err
cairn_memory_record_store(struct cairn_memory *memory, uint32_t part, const void *bytes, size_t len)
{
    uint32_t slot;
    const struct cairn_slots *store = record_of(memory, part, &slot);

    if (!store)
        return len ? CAIRN_INTERNAL : CAIRN_OK;
    return len ? cairn_slot_store(store, slot, bytes, len) : cairn_slot_clear(store, slot);
}

cairn_err
cairn_memory_record_load(struct cairn_memory *memory, uint32_t part, uint8_t **bytes, size_t *len)
{
    uint32_t slot;
    const struct cairn_slots *store = record_of(memory, part, &slot);
    struct cairn_slot_info info;
    uint8_t *buffer;
    cairn_err err;

    *bytes = NULL;
    *len = 0;
    if (!store)
        return CAIRN_OK;
    buffer = malloc(store->payload_bytes_max);
    if (!buffer)
        return CAIRN_NOMEM;
    err = cairn_slot_load(store, slot, buffer, store->payload_bytes_max, &info);
    if (err || info.payload_bytes == 0) {
        free(buffer);
        return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
    }
    *bytes = buffer;
    *len = info.payload_bytes;
    return CAIRN_OK;
}

bool
cairn_memory_record_is_whole(const struct cairn_memory *memory, uint32_t part)
{
    uint32_t slot;
    const struct cairn_slots *store = record_of(memory, part, &slot);
    struct cairn_slot_info info;
    cairn_err err;

    if (!store)
        return true;
    err = cairn_slot_load(store, slot, NULL, store->payload_bytes_max, &info);
    return err == CAIRN_AGAIN || (err == CAIRN_OK && info.payload_bytes && !info.damaged);
}

void
cairn_memory_unreserve(struct cairn_memory_reserved *reserved)
{
    cairn_arena_destroy(reserved->data);
    cairn_arena_destroy(reserved->parity);
    cairn_arena_destroy(reserved->record);
    memset(reserved, 0, sizeof *reserved);
}

cairn_err
cairn_memory_reserve(const struct cairn_memory *memory, uint64_t data_blocks,
                     uint64_t parity_blocks, struct cairn_memory_reserved *reserved)
{
    struct cairn_arena_options options = {
        .hugepages = memory->options.hugepages ? CAIRN_HUGEPAGES_TRY : CAIRN_HUGEPAGES_NEVER};
    struct cairn_memory_reserved fresh = {0};
    char report[CAIRN_ARENA_REPORT_BYTES] = "";
    cairn_err err = CAIRN_INVAL;

    if (data_blocks <= UINT64_MAX / CAIRN_BLOCK_BYTES &&
        parity_blocks <= UINT64_MAX / CAIRN_BLOCK_BYTES)
        err = cairn_arena_create("cairn-hosted-record",
                                 cairn_slot_memory_bytes(1, memory->options.record_bytes), &options,
                                 &fresh.record, report, sizeof report);
    if (!err)
        err = cairn_arena_create("cairn-hosted-data",
                                 (data_blocks ? data_blocks : 1) * CAIRN_BLOCK_BYTES, &options,
                                 &fresh.data, report, sizeof report);
    if (!err && parity_blocks)
        err = cairn_arena_create("cairn-hosted-parity", parity_blocks * CAIRN_BLOCK_BYTES, &options,
                                 &fresh.parity, report, sizeof report);
    if (err) {
        CAIRN_LOG_AT(ERROR, "memory: cannot host a lost part: %s",
                     report[0] ? report : cairn_err_text(err));
        cairn_memory_unreserve(&fresh);
        return err;
    }
    *reserved = fresh;
    return CAIRN_OK;
}

/* Passes an arena to the keeper; if the keeper refuses, it only dies with this process. */
static cairn_err
keep_arena(const struct cairn_memory *memory, const char *name, const struct cairn_arena *arena)
{
    cairn_err err;

    if (!arena || !memory->options.keeper)
        return CAIRN_OK;
    err = cairn_keeper_put(memory->options.keeper, name, cairn_arena_fd(arena),
                           cairn_arena_bytes(arena));
    if (err)
        CAIRN_LOG_AT(WARN, "memory: the keeper refuses %s: %s", name, cairn_err_text(err));
    return err;
}

static cairn_err
keep_part(const struct cairn_memory *memory, uint32_t part)
{
    const struct place *place = &memory->places[part];
    const char *kind = part < memory->options.slots ? "slot" : "hosted";
    char name[MEMORY_NAME_BYTES];
    cairn_err err;

    snprintf(name, sizeof name, "cairn-%s%u-record", kind, part);
    err = keep_arena(memory, name, place->record);
    snprintf(name, sizeof name, "cairn-%s%u-data", kind, part);
    if (!err)
        err = keep_arena(memory, name, place->data);
    snprintf(name, sizeof name, "cairn-%s%u-parity", kind, part);
    if (!err)
        err = keep_arena(memory, name, place->parity);
    for (uint32_t i = 0; !err && part < memory->regions_count && i < MEMORY_REGIONS_MAX; i++) {
        struct cairn_memory_region *region = memory->regions[part].list[i];

        if (region && region->is_kept)
            err = regions_keep(region, memory->options.keeper);
    }
    return err;
}

cairn_err
cairn_memory_keeper_set(struct cairn_memory *memory, struct cairn_keeper *keeper)
{
    cairn_err err;

    memory->options.keeper = keeper;
    err = keep_arena(memory, "cairn-records", memory->records);
    if (!err)
        err = keep_arena(memory, "cairn-regions", memory->moved);
    for (uint32_t i = 0; !err && i < memory->options.parts; i++)
        err = keep_part(memory, i);
    return err;
}

cairn_err
cairn_memory_host(struct cairn_memory *memory, uint32_t part,
                  struct cairn_memory_reserved *reserved)
{
    struct place *place = &memory->places[part];
    char report[CAIRN_ARENA_REPORT_BYTES] = "";
    cairn_err err;

    if (part < memory->options.slots || part >= memory->options.parts || place->data ||
        !reserved->data)
        return CAIRN_INVAL;
    err = attach_records(reserved->record, 1, memory->options.record_bytes, false,
                         &place->record_store, report, sizeof report);
    if (err)
        return err;
    place->record = reserved->record;
    place->data = reserved->data;
    place->parity = reserved->parity;
    measure_hosted(place);
    memory->reserved_bytes += cairn_arena_bytes(place->record) + cairn_arena_bytes(place->data) +
                              (place->parity ? cairn_arena_bytes(place->parity) : 0);
    memset(reserved, 0, sizeof *reserved);
    if (keep_part(memory, part) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "memory: a hosted part is not kept: it is lost if this agent dies");
    return CAIRN_OK;
}

void
cairn_memory_hold(struct cairn_memory *memory, uint32_t part)
{
    memory->places[part].users++;
}

void
cairn_memory_unhold(struct cairn_memory *memory, uint32_t part)
{
    struct place *place = &memory->places[part];

    if (place->users > 0)
        place->users--;
    if (place->users == 0 && place->free_when_unused)
        cairn_memory_free(memory, part);
}

void
cairn_memory_free(struct cairn_memory *memory, uint32_t part)
{
    struct place *place = &memory->places[part];
    char name[MEMORY_NAME_BYTES];

    if (part < memory->options.slots) {
        atomic_store(&memory->regions[part].is_blank, true);
        return;
    }
    place->free_when_unused = place->users > 0;
    if (place->users > 0)
        return;
    snprintf(name, sizeof name, "cairn-hosted%u-data", part);
    give_back_arena(memory, name, &place->data);
    snprintf(name, sizeof name, "cairn-hosted%u-parity", part);
    give_back_arena(memory, name, &place->parity);
    snprintf(name, sizeof name, "cairn-hosted%u-record", part);
    give_back_arena(memory, name, &place->record);
    memset(place, 0, sizeof *place);
}
