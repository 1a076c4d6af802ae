/*
 * tests/unit/agent/process/test_memory.c - the agent's memory: reserved, kept by a real keeper,
 * adopted, hosted and given back. This program is also the keeper's executable, when its first
 * argument is "keeper".
 */
#include "agent/process/keeper.h"
#include "agent/process/memory.h"
#include "base/log.h"
#include "snapshot/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    TIMEOUT_MS = 60000,
    SLOTS = 2,
    PARTS = 4,
    DATA_BLOCKS = 3,
    PARITY_BLOCKS = 4,
    RECORD_BYTES = 5000
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

    (void)state;
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
    assert_int_equal(cairn_memory_slot_fd(memory, SLOTS), -1);
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
    assert_int_equal(kept_count(place), 2 * SLOTS + 1);
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

    (void)state;
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
    assert_int_equal(kept_count(place), 2 * SLOTS + 1 + 2);
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
    assert_int_equal(kept_count(place), 2 * SLOTS + 1);
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
    assert_int_equal(kept_count(place), 2 * SLOTS + 1);
    host(memory, 2, 1, 1);
    assert_int_equal(kept_count(place), 2 * SLOTS + 1 + 3);
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
    };
    ssize_t len = readlink("/proc/self/exe", executable, sizeof executable - 1);

    if (argc == 4 && strcmp(argv[1], "keeper") == 0)
        return (int)cairn_keeper_run(argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    if (len < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
