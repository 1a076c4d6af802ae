/*
 * tests/unit/agent/process/test_memory.c - the agent's memory: reserved, kept by a real keeper,
 * adopted, hosted and given back. This program is also the keeper's executable, when its first
 * argument is "keeper".
 */
#include "agent/process/keeper.h"
#include "agent/process/memory.h"
#include "agent/process/memory_region.h"
#include "base/log.h"
#include "snapshot/arena.h"
#include "tests/support/cmocka.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TIMEOUT_MS = 60000,
    SLOTS = 2,
    PARTS = 4,
    DATA_BLOCKS = 3,
    PARITY_BLOCKS = 4,
    RECORD_BYTES = 5000,
    KEPT = 2 * SLOTS + 2 /* data and parity, the records, the table of regions */
};

static char executable[512];

struct place {
    char dir[32];
    char path[96];
    struct cairn_keeper *keeper;
};

static int
make_place(void **state)
{
    struct place *place = calloc(1, sizeof *place);

    assert_non_null(place);
    snprintf(place->dir, sizeof place->dir, "/tmp/cairn-memory-XXXXXX");
    assert_non_null(mkdtemp(place->dir));
    snprintf(place->path, sizeof place->path, "%s/keeper.sock", place->dir);
    assert_int_equal(cairn_keeper_spawn(executable, place->path, 60, TIMEOUT_MS, NULL), CAIRN_OK);
    assert_int_equal(cairn_keeper_connect(place->path, TIMEOUT_MS, &place->keeper), CAIRN_OK);
    *state = place;
    return 0;
}

static int
end_place(void **state)
{
    struct place *place = *state;

    assert_int_equal(cairn_keeper_shutdown(place->keeper), CAIRN_OK);
    cairn_keeper_close(place->keeper);
    for (int i = 0; i < TIMEOUT_MS / 5 && rmdir(place->dir) != 0; i++)
        usleep(5000);
    free(place);
    return 0;
}

static struct cairn_memory_options
sizes(struct cairn_keeper *keeper)
{
    return (struct cairn_memory_options){.slots = SLOTS,
                                         .parts = PARTS,
                                         .slot_blocks = DATA_BLOCKS,
                                         .parity_blocks = PARITY_BLOCKS,
                                         .record_bytes = RECORD_BYTES,
                                         .data_count = 2,
                                         .parity_count = 2,
                                         .keeper = keeper};
}

static struct cairn_memory *
open_memory(const struct cairn_memory_options *options, bool adopted_wanted)
{
    struct cairn_memory *memory = NULL;
    char report[1024] = "";
    bool adopted = !adopted_wanted;

    assert_int_equal(cairn_memory_open(options, &memory, &adopted, report, sizeof report),
                     CAIRN_OK);
    assert_int_equal(adopted, adopted_wanted);
    return memory;
}

static void
host(struct cairn_memory *memory, uint32_t part, uint64_t data_blocks, uint64_t parity_blocks)
{
    struct cairn_memory_reserved reserved = {0};

    assert_int_equal(cairn_memory_reserve(memory, data_blocks, parity_blocks, &reserved), CAIRN_OK);
    assert_int_equal(cairn_memory_host(memory, part, &reserved), CAIRN_OK);
    assert_null(reserved.data); /* taken over */
}

static uint32_t
kept_count(const struct place *place)
{
    struct cairn_keeper_item *items = NULL;
    uint32_t count = 0;

    assert_int_equal(cairn_keeper_list(place->keeper, &items, &count), CAIRN_OK);
    cairn_keeper_items_free(items, count);
    return count;
}

static void
expect_record(struct cairn_memory *memory, uint32_t part, const char *wanted)
{
    uint8_t *bytes = NULL;
    size_t len = 0;

    assert_int_equal(cairn_memory_record_load(memory, part, &bytes, &len), CAIRN_OK);
    if (!wanted) {
        assert_null(bytes);
        return;
    }
    assert_int_equal(len, strlen(wanted));
    assert_memory_equal(bytes, wanted, len);
    free(bytes);
}

static void
test_blocks_are_bounded(void **state)
{
    struct cairn_memory_options options = sizes(NULL);
    struct cairn_memory *memory = open_memory(&options, false);
    uint8_t *base = cairn_memory_data(memory, 0, 0, DATA_BLOCKS);

    assert_non_null(base);
    assert_ptr_equal(cairn_memory_data(memory, 0, 2, 1), base + 2 * CAIRN_BLOCK_BYTES);
    assert_null(cairn_memory_data(memory, 0, 2, 2));
    assert_null(cairn_memory_data(memory, 0, UINT64_MAX, 2));
    assert_null(cairn_memory_data(memory, 0, 1, UINT64_MAX));
    assert_null(cairn_memory_data(memory, 2, 0, 1)); /* hosts nothing */
    assert_null(cairn_memory_data(memory, PARTS, 0, 0));
    assert_null(cairn_memory_data(memory, UINT32_MAX, 0, 0));
    assert_null(cairn_memory_parity(memory, UINT32_MAX, 0, 2, 0, 1));
    base = cairn_memory_parity(memory, 1, 0, 2, 0, 2);
    assert_ptr_equal(cairn_memory_parity(memory, 1, 1, 2, 1, 1), base + 3 * CAIRN_BLOCK_BYTES);
    assert_null(cairn_memory_parity(memory, 1, 1, 2, 1, 2));
    assert_null(cairn_memory_parity(memory, 1, 2, 2, 0, 1));
    assert_null(cairn_memory_parity(memory, 1, 0, 0, 0, 1));
    cairn_memory_close(memory);
}

static void
test_adopted_with_its_contents(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper);
    struct cairn_memory *memory = open_memory(&options, false);

    memset(cairn_memory_data(memory, 1, 0, DATA_BLOCKS), 0x5a, DATA_BLOCKS * CAIRN_BLOCK_BYTES);
    assert_int_equal(cairn_memory_record_store(memory, 1, "first", 5), CAIRN_OK);
    assert_int_equal(cairn_memory_record_store(memory, 1, "second one", 10), CAIRN_OK);
    host(memory, 3, 2, 1);
    memset(cairn_memory_parity(memory, 3, 0, 1, 0, 1), 0x77, CAIRN_BLOCK_BYTES);
    assert_int_equal(cairn_memory_record_store(memory, 3, "hosted", 6), CAIRN_OK);
    cairn_memory_close(memory);

    memory = open_memory(&options, true);
    assert_int_equal(*cairn_memory_data(memory, 1, 2, 1), 0x5a);
    assert_int_equal(*cairn_memory_parity(memory, 3, 0, 1, 0, 1), 0x77);
    assert_null(cairn_memory_data(memory, 3, 0, 3)); /* two blocks were hosted */
    expect_record(memory, 0, NULL);
    expect_record(memory, 1, "second one");
    expect_record(memory, 3, "hosted");
    assert_int_equal(cairn_memory_record_store(memory, 1, NULL, 0), CAIRN_OK);
    cairn_memory_free(memory, 3);
    cairn_memory_close(memory);

    memory = open_memory(&options, true);
    expect_record(memory, 1, NULL);
    assert_null(cairn_memory_data(memory, 3, 0, 1));
    expect_record(memory, 3, NULL);
    cairn_memory_close(memory);
    assert_int_equal(kept_count(place), KEPT);
}

static void
test_other_sizes_are_refused(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper), other;
    struct cairn_memory *memory = open_memory(&options, false);
    char report[1024];
    bool adopted;

    assert_int_equal(cairn_memory_record_store(memory, 0, "committed", 9), CAIRN_OK);
    cairn_memory_close(memory);
    for (int changed = 0; changed < 4; changed++) {
        other = options;
        other.slot_blocks += changed == 0 ? 100 : 0;
        other.parity_blocks += changed == 1 ? 100 : 0;
        other.slots -= changed == 2 ? 1 : 0;
        other.record_bytes += changed == 3 ? 1 << 20 : 0;
        memory = NULL;
        report[0] = 0;
        assert_int_equal(cairn_memory_open(&other, &memory, &adopted, report, sizeof report),
                         CAIRN_CONFIG);
        assert_null(memory);
        assert_non_null(strstr(report, "the keeper holds")); /* what, and what to do */
        assert_non_null(strstr(report, "back to what they were"));
    }
    memory = open_memory(&options, true); /* nothing was harmed by the refusals */
    expect_record(memory, 0, "committed");
    cairn_memory_close(memory);
}

static void
test_too_much_is_refused_with_the_sum(void **state)
{
    struct cairn_memory_options options = sizes(NULL);
    struct cairn_memory *memory = NULL;
    char report[1024] = "";
    bool adopted;

    options.slot_blocks = UINT64_C(1) << 30; /* 64 TiB */
    assert_int_equal(cairn_memory_open(&options, &memory, &adopted, report, sizeof report),
                     CAIRN_NOMEM);
    assert_non_null(strstr(report, "TiB"));
    assert_null(memory);
}

static void
test_hosted_is_given_back_after_its_last_user(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper);
    struct cairn_memory *memory = open_memory(&options, false);
    uint64_t before = cairn_memory_reserved_bytes(memory);
    struct cairn_memory_reserved reserved = {0};

    host(memory, 2, 4, 0);
    assert_int_equal(kept_count(place), KEPT + 2);
    assert_int_equal(cairn_memory_reserve(memory, 1, 1, &reserved), CAIRN_OK);
    assert_int_equal(cairn_memory_host(memory, 2, &reserved), CAIRN_INVAL); /* it is taken */
    assert_int_equal(cairn_memory_host(memory, 0, &reserved), CAIRN_INVAL); /* an own slot */
    cairn_memory_unreserve(&reserved);
    cairn_memory_hold(memory, 2);
    cairn_memory_hold(memory, 2);
    cairn_memory_free(memory, 2);
    assert_non_null(cairn_memory_data(memory, 2, 0, 4));
    cairn_memory_unhold(memory, 2);
    memset(cairn_memory_data(memory, 2, 0, 4), 1, 4 * CAIRN_BLOCK_BYTES);
    cairn_memory_unhold(memory, 2);
    assert_null(cairn_memory_data(memory, 2, 0, 4));
    assert_int_equal(cairn_memory_reserved_bytes(memory), before);
    assert_int_equal(kept_count(place), KEPT);
    host(memory, 2, 1, 1); /* the place can be used again */
    cairn_memory_free(memory, 2);
    cairn_memory_close(memory);
}

/* Huge pages make arenas longer than what was asked for; where the rows of a hosted part's parity
 * begin must not change by adoption. */
static void
test_hosted_rows_stay_in_longer_arenas(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper);
    struct cairn_memory *memory = open_memory(&options, false);
    struct cairn_memory_reserved reserved = {0}, longer = {0};

    assert_int_equal(cairn_memory_reserve(memory, 2, 6, &reserved), CAIRN_OK);
    assert_int_equal(cairn_memory_reserve(memory, 32, 32, &longer), CAIRN_OK);
    cairn_arena_destroy(reserved.parity);
    reserved.parity = longer.parity; /* what 6 blocks take in a huge page */
    longer.parity = NULL;
    cairn_memory_unreserve(&longer);
    assert_int_equal(cairn_memory_host(memory, 2, &reserved), CAIRN_OK);
    for (uint32_t row = 0; row < 2; row++)
        memset(cairn_memory_parity(memory, 2, row, 2, 0, 3), 0x10 + (int)row,
               3 * CAIRN_BLOCK_BYTES);
    cairn_memory_close(memory);

    memory = open_memory(&options, true);
    for (uint32_t row = 0; row < 2; row++)
        for (uint32_t line = 0; line < 3; line++)
            assert_int_equal(*cairn_memory_parity(memory, 2, row, 2, line, 1), 0x10 + (int)row);
    cairn_memory_free(memory, 2);
    cairn_memory_close(memory);
}

/* An agent that died between handing over a hosted part's pieces must not block that place for
 * ever. */
static void
test_pieces_of_a_hosted_part_are_given_back(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper);
    struct cairn_memory *memory = open_memory(&options, false);
    struct cairn_keeper_item *items = NULL;
    uint32_t count = 0;

    host(memory, 2, 1, 1);
    cairn_memory_close(memory);
    assert_int_equal(cairn_keeper_get(place->keeper, &items, &count), CAIRN_OK);
    cairn_keeper_items_free(items, count);
    assert_int_equal(cairn_keeper_drop(place->keeper, "cairn-hosted2-data"), CAIRN_OK);
    memory = open_memory(&options, true);
    assert_int_equal(kept_count(place), KEPT);
    host(memory, 2, 1, 1);
    assert_int_equal(kept_count(place), KEPT + 3);
    cairn_memory_close(memory);
}

static void
test_a_new_keeper_takes_everything(void **state)
{
    struct place *place = *state;
    struct cairn_memory_options options = sizes(place->keeper);
    struct cairn_memory *memory = open_memory(&options, false);

    memset(cairn_memory_data(memory, 0, 0, 1), 0x33, CAIRN_BLOCK_BYTES);
    assert_int_equal(cairn_memory_record_store(memory, 0, "kept", 4), CAIRN_OK);
    host(memory, 3, 1, 0);
    assert_int_equal(cairn_keeper_shutdown(place->keeper), CAIRN_OK);
    cairn_keeper_close(place->keeper);
    place->keeper = NULL;
    assert_int_equal(cairn_keeper_spawn(executable, place->path, 60, TIMEOUT_MS, NULL), CAIRN_OK);
    assert_int_equal(cairn_keeper_connect(place->path, TIMEOUT_MS, &place->keeper), CAIRN_OK);
    assert_int_equal(kept_count(place), 0);
    assert_int_equal(cairn_memory_keeper_set(memory, place->keeper), CAIRN_OK);
    /* may be repeated */
    assert_int_equal(cairn_memory_keeper_set(memory, place->keeper), CAIRN_OK);
    cairn_memory_close(memory);

    options.keeper = place->keeper;
    memory = open_memory(&options, true);
    assert_int_equal(*cairn_memory_data(memory, 0, 0, 1), 0x33);
    expect_record(memory, 0, "kept");
    assert_non_null(cairn_memory_data(memory, 3, 0, 1));
    cairn_memory_close(memory);
}

/* ---- regions ---- */

enum { BIG_BLOCKS = 300 }; /* more than two slices */

static struct cairn_memory *
open_big(const struct place *place, bool adopted_wanted)
{
    struct cairn_memory_options options = sizes(place ? place->keeper : NULL);

    options.slot_blocks = BIG_BLOCKS;
    return open_memory(&options, adopted_wanted);
}

static struct cairn_memory_region *
make_region(struct cairn_memory *memory, uint32_t slot, uint64_t first, uint64_t blocks,
            uint32_t rank)
{
    struct cairn_memory_region *region = NULL;

    assert_int_equal(cairn_memory_region_make(memory, slot, first, blocks, rank, &region),
                     CAIRN_OK);
    assert_ptr_equal(cairn_memory_region_find(memory, slot, first, blocks, rank), region);
    return region;
}

/* Makes one move, if there is one to make. */
static bool
move_once(struct cairn_memory *memory, struct cairn_memory_region *region)
{
    struct cairn_memory_region *moving = NULL;
    bool out = false;

    assert_int_equal(cairn_memory_region_next_move(memory, region, &moving, &out), CAIRN_OK);
    if (!moving)
        return false;
    assert_false(cairn_memory_region_is_whole(moving));
    assert_int_equal(cairn_memory_region_move(memory, moving, out), CAIRN_OK);
    cairn_memory_region_moved(moving);
    return true;
}

static void
cut(struct cairn_memory *memory, struct cairn_memory_region *region)
{
    while (move_once(memory, region))
        ;
    assert_true(cairn_memory_region_is_whole(region));
}

/* Fills a slot with a byte per block, as a generation would. */
static void
fill_slot(struct cairn_memory *memory, uint32_t slot, uint64_t from, uint64_t to, int plus)
{
    cairn_memory_write_begin(memory, slot);
    for (uint64_t block = from; block < to; block++)
        memset(cairn_memory_data(memory, slot, block, 1), (int)(block + (uint64_t)plus) & 0xff,
               CAIRN_BLOCK_BYTES);
    cairn_memory_write_end(memory, slot);
}

static void
expect_slot(const struct cairn_memory *memory, uint32_t slot, uint64_t from, uint64_t to, int plus)
{
    for (uint64_t block = from; block < to; block++) {
        const uint8_t *bytes = cairn_memory_data(memory, slot, block, 1);

        assert_int_equal(bytes[0], (int)(block + (uint64_t)plus) & 0xff);
        assert_memory_equal(bytes, bytes + 1, CAIRN_BLOCK_BYTES - 1);
    }
}

/* A byte of the region's file as its trainer sees it; 0 where it has no page. */
static int
trainer_byte(const struct cairn_memory_region *region, uint64_t block)
{
    uint8_t byte = 0;

    (void)!pread(cairn_memory_region_fd(region), &byte, 1, (off_t)(block * CAIRN_BLOCK_BYTES));
    return byte;
}

/* A trainer's writes reach its own region, and nothing else of the slot. */
static void
test_a_region_is_all_that_its_file_reaches(void **state)
{
    struct cairn_memory *memory = open_big(NULL, false);
    struct cairn_memory_region *first = make_region(memory, 0, 0, 130, 4),
                               *second = make_region(memory, 0, 130, 140, 5);
    uint8_t block[CAIRN_BLOCK_BYTES];

    assert_false(cairn_memory_region_is_whole(first));
    cut(memory, first);
    cut(memory, second);
    fill_slot(memory, 0, 0, BIG_BLOCKS, 1);
    memset(block, 0xee, sizeof block);
    for (uint64_t at = 0; at < 2 * BIG_BLOCKS; at++) /* sealed beyond its end */
        (void)!pwrite(cairn_memory_region_fd(first), block, sizeof block,
                      (off_t)(at * CAIRN_BLOCK_BYTES));
    for (uint64_t at = 0; at < 130; at++)
        assert_int_equal(*cairn_memory_data(memory, 0, at, 1), 0xee);
    expect_slot(memory, 0, 130, BIG_BLOCKS, 1);
    for (uint64_t at = 0; at < 130; at++) { /* the file of the other has a hole there */
        (void)!pwrite(cairn_memory_region_fd(second), "x", 1, (off_t)(at * CAIRN_BLOCK_BYTES));
        assert_int_equal(*cairn_memory_data(memory, 0, at, 1), 0xee);
    }
    assert_int_equal(trainer_byte(second, 131), 132);
    assert_int_equal(trainer_byte(first, 131), 0);
    cairn_memory_close(memory);
}

/* Contents stay through all moves, and what is cut over goes back first. */
static void
test_another_arrangement(void **state)
{
    struct cairn_memory *memory = open_big(NULL, false);
    struct cairn_memory_region *old = make_region(memory, 1, 10, 200, 0), *young;
    struct cairn_memory_region *moving = NULL;
    bool out = false;

    fill_slot(memory, 1, 0, BIG_BLOCKS, 7);
    cut(memory, old);
    expect_slot(memory, 1, 0, BIG_BLOCKS, 7);
    young = make_region(memory, 1, 10, 200, 1); /* another rank's */
    assert_ptr_not_equal(young, old);
    assert_int_equal(trainer_byte(young, 20), 0);
    assert_int_equal(cairn_memory_region_next_move(memory, young, &moving, &out), CAIRN_OK);
    assert_ptr_equal(moving, old);
    assert_false(out);
    assert_false(cairn_memory_region_forget(memory, old)); /* a worker has it */
    assert_int_equal(cairn_memory_region_move(memory, moving, out), CAIRN_OK);
    cairn_memory_region_moved(moving);
    assert_int_equal(trainer_byte(old, 20), 0); /* who holds it reaches nothing any more */
    expect_slot(memory, 1, 0, BIG_BLOCKS, 7);
    cut(memory, young);
    assert_null(cairn_memory_region_find(memory, 1, 10, 200, 0));
    expect_slot(memory, 1, 0, BIG_BLOCKS, 7);
    assert_int_equal(trainer_byte(young, 20), 27);
    /* Freed: nobody needs what is in it, so the next owner does not get it. */
    cairn_memory_free(memory, 1);
    old = make_region(memory, 1, 0, 100, 2);
    cut(memory, old);
    assert_null(cairn_memory_region_find(memory, 1, 10, 200, 1));
    assert_int_equal(trainer_byte(old, 20), 0);
    cairn_memory_close(memory);
}

/* An agent that dies with a region half moved, either way, leaves every byte. */
static void
test_regions_are_adopted(void **state)
{
    struct place *place = *state;
    struct cairn_memory *memory = open_big(place, false);
    struct cairn_memory_region *whole = make_region(memory, 0, 0, 100, 0),
                               *half = make_region(memory, 0, 100, 200, 1),
                               *none = make_region(memory, 1, 0, 50, 0), *moving;
    bool out;

    fill_slot(memory, 0, 0, BIG_BLOCKS, 3);
    cut(memory, whole);
    for (int stop = 0; stop < 3; stop++) {
        assert_int_equal(cairn_memory_region_next_move(memory, half, &moving, &out), CAIRN_OK);
        assert_ptr_equal(moving, half);
        /* One of its slices, as a worker that is killed after it; another, and back. */
        assert_int_equal(cairn_region_move(&half->pages, true, true), CAIRN_AGAIN);
        if (stop == 1)
            assert_int_equal(cairn_region_move(&half->pages, false, true), CAIRN_AGAIN);
        while (stop == 2 && cairn_region_move(&half->pages, true, true) == CAIRN_AGAIN)
            ;
        cairn_memory_region_moved(half);
        assert_int_equal(kept_count(place), KEPT + 2);
        cairn_memory_close(memory);
        memory = open_big(place, true);
        expect_slot(memory, 0, 0, BIG_BLOCKS, 3);
        whole = cairn_memory_region_find(memory, 0, 0, 100, 0);
        assert_non_null(whole);
        assert_true(cairn_memory_region_is_whole(whole));
        half = cairn_memory_region_find(memory, 0, 100, 200, 1);
        assert_non_null(half);
        assert_int_equal(cairn_memory_region_is_whole(half), stop == 2);
        (void)none; /* without pages it is not kept */
        assert_null(cairn_memory_region_find(memory, 1, 0, 50, 0));
    }
    assert_int_equal(trainer_byte(half, 150), 153);
    cairn_memory_close(memory);
}

/* What was reserved is what is used: a region costs no memory of its own. */
static void
test_regions_cost_nothing(void **state)
{
    struct place *place = *state;
    struct cairn_memory *memory = open_big(place, false);
    uint64_t reserved = cairn_memory_reserved_bytes(memory), used = 0;
    struct cairn_keeper_item *items = NULL;
    uint32_t count = 0;

    cut(memory, make_region(memory, 0, 0, 100, 0));
    cut(memory, make_region(memory, 0, 100, 200, 1));
    cut(memory, make_region(memory, 1, 0, BIG_BLOCKS, 0));
    cut(memory, make_region(memory, 1, 50, 20, 1));
    assert_int_equal(cairn_memory_reserved_bytes(memory), reserved);
    for (int again = 0; again < 2; again++) { /* also after adoption */
        used = 0;
        assert_int_equal(cairn_keeper_get(place->keeper, &items, &count), CAIRN_OK);
        for (uint32_t i = 0; i < count; i++) {
            struct stat status;

            assert_int_equal(fstat(items[i].fd, &status), 0);
            used += (uint64_t)status.st_blocks * 512;
        }
        assert_int_equal(used, reserved);
        cairn_memory_close(memory);
        for (uint32_t i = 0; i < count; i++) /* as an agent of an older release does */
            if (strcmp(items[i].name, "cairn-slot1-data") == 0)
                assert_int_equal(fallocate(items[i].fd, 0, 0, (off_t)items[i].bytes), 0);
        cairn_keeper_items_free(items, count);
        memory = open_big(place, true);
    }
    cairn_memory_close(memory);
}

/* Writers and movers at the same time: no write is lost. */
struct mover {
    struct cairn_memory *memory;
    struct cairn_memory_region *region;
};

static void *
move_to_and_fro(void *context)
{
    const struct mover *mover = context;

    for (int round = 0; round < 6; round++)
        if (cairn_memory_region_move(mover->memory, mover->region, round % 2 == 0) != CAIRN_OK)
            return (void *)mover;
    return NULL;
}

static void
test_writes_beside_moves(void **state)
{
    struct cairn_memory *memory = open_big(NULL, false);
    struct mover mover = {memory, make_region(memory, 0, 0, BIG_BLOCKS, 0)};
    struct cairn_memory_region *moving;
    pthread_t thread;
    void *failed;
    bool out;

    fill_slot(memory, 0, 0, BIG_BLOCKS, 0);
    assert_int_equal(cairn_memory_region_next_move(memory, mover.region, &moving, &out), CAIRN_OK);
    assert_int_equal(pthread_create(&thread, NULL, move_to_and_fro, &mover), 0);
    for (int plus = 1; plus < 20; plus++)
        for (uint64_t block = 0; block < BIG_BLOCKS; block++) {
            fill_slot(memory, 0, block, block + 1, plus);
            expect_slot(memory, 0, block, block + 1, plus);
        }
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    cairn_memory_region_moved(mover.region);
    expect_slot(memory, 0, 0, BIG_BLOCKS, 19);
    cairn_memory_close(memory);
}

/* Memory that an older release reserved has no table of regions. */
static void
test_memory_of_an_older_release(void **state)
{
    struct place *place = *state;
    struct cairn_memory *memory = open_big(place, false);
    struct cairn_memory_region *region;

    fill_slot(memory, 0, 0, BIG_BLOCKS, 5);
    cairn_memory_close(memory);
    assert_int_equal(cairn_keeper_drop(place->keeper, "cairn-regions"), CAIRN_OK);
    memory = open_big(place, true);
    expect_slot(memory, 0, 0, BIG_BLOCKS, 5);
    region = make_region(memory, 0, 3, 7, 0);
    cut(memory, region);
    expect_slot(memory, 0, 0, BIG_BLOCKS, 5); /* what it held is the rank's own: it stays */
    assert_int_equal(trainer_byte(region, 4), 9);
    cairn_memory_close(memory);
}

/* Items that only look like regions are given up, and do no harm. */
static void
test_odd_regions_in_the_keeper(void **state)
{
    static const char *const names[] = {
        "cairn-slot0-region0-first0-blocks18446744073709551615-rank0",
        "cairn-slot0-region1-first18446744073709551615-blocks1-rank0",
        "cairn-slot0-region4000000000-first0-blocks1-rank0",
        "cairn-slot0-region2-first0-blocks1-rank0x",
        "cairn-slot0-region4-first0-blocks0-rank0",
        "cairn-slot0-region03-first0-blocks1-rank0",
        "cairn-slot0-regions",
    };
    struct place *place = *state;
    struct cairn_memory *memory = open_big(place, false);

    fill_slot(memory, 0, 0, BIG_BLOCKS, 9);
    cairn_memory_close(memory);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int fd = memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0 && ftruncate(fd, CAIRN_BLOCK_BYTES) == 0);
        assert_int_equal(cairn_keeper_put(place->keeper, names[i], fd, CAIRN_BLOCK_BYTES),
                         CAIRN_OK);
        close(fd);
    }
    memory = open_big(place, true);
    expect_slot(memory, 0, 0, BIG_BLOCKS, 9);
    assert_int_equal(kept_count(place), KEPT);
    cairn_memory_close(memory);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_bounded),
        cmocka_unit_test(test_too_much_is_refused_with_the_sum),
        cmocka_unit_test_setup_teardown(test_adopted_with_its_contents, make_place, end_place),
        cmocka_unit_test_setup_teardown(test_other_sizes_are_refused, make_place, end_place),
        cmocka_unit_test_setup_teardown(test_hosted_is_given_back_after_its_last_user, make_place,
                                        end_place),
        cmocka_unit_test_setup_teardown(test_hosted_rows_stay_in_longer_arenas, make_place,
                                        end_place),
        cmocka_unit_test_setup_teardown(test_pieces_of_a_hosted_part_are_given_back, make_place,
                                        end_place),
        cmocka_unit_test_setup_teardown(test_a_new_keeper_takes_everything, make_place, end_place),
        cmocka_unit_test(test_a_region_is_all_that_its_file_reaches),
        cmocka_unit_test(test_another_arrangement),
        cmocka_unit_test_setup_teardown(test_regions_are_adopted, make_place, end_place),
        cmocka_unit_test_setup_teardown(test_regions_cost_nothing, make_place, end_place),
        cmocka_unit_test(test_writes_beside_moves),
        cmocka_unit_test_setup_teardown(test_memory_of_an_older_release, make_place, end_place),
        cmocka_unit_test_setup_teardown(test_odd_regions_in_the_keeper, make_place, end_place),
    };
    ssize_t len = readlink("/proc/self/exe", executable, sizeof executable - 1);

    if (argc == 4 && strcmp(argv[1], "keeper") == 0)
        return (int)cairn_keeper_run(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    if (len < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
