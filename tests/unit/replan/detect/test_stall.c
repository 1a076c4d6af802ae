/* tests/unit/replan/detect/test_stall.c - who hangs, from counts alone. */
#include "replan/detect/stall.h"

#include "cairn/timing.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <string.h>

enum { COUNTS_MAX = 32 };

struct counts {
    struct cairn_op_count items[COUNTS_MAX];
    size_t count;
};

static struct cairn_op_count *
add(struct counts *counts, const char *comm, uint32_t rank, uint64_t entered)
{
    struct cairn_op_count *item = &counts->items[counts->count++];

    assert_true(counts->count <= COUNTS_MAX);
    *item = (struct cairn_op_count){.rank = rank,
                                    .ranks = 4,
                                    .op = CAIRN_ALL_REDUCE,
                                    .entered = entered,
                                    .started = CAIRN_PROGRESS_UNKNOWN,
                                    .completed = CAIRN_PROGRESS_UNKNOWN};
    snprintf(item->comm, sizeof item->comm, "%s", comm);
    return item;
}

static void
ras(const struct counts *before, const struct counts *after, struct cairn_verdicts *out,
    uint32_t *still)
{
    *out = (struct cairn_verdicts){0};
    assert_int_equal(
        cairn_stall_of_ras(before->items, before->count, after->items, after->count, out, still),
        CAIRN_OK);
}

static void
assert_list(const struct cairn_u32_list *list, uint32_t count, const uint32_t *items)
{
    assert_int_equal(list->count, count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(list->items[i], items[i]);
}

static void
ras_who_is_behind_hangs_once_nothing_moves(void **state)
{
    struct counts before = {0}, after = {0};
    struct cairn_verdicts verdicts;
    uint32_t still;

    for (uint32_t rank = 4; rank-- > 0;) { /* in any order */
        add(&before, "0xa", rank, rank == 2 ? 40 : 41);
        add(&before, "0xb", rank, 7);
        add(&after, "0xb", rank, 7);
        add(&after, "0xa", rank, rank == 2 ? 40 : 41);
    }
    ras(&before, &after, &verdicts, &still);
    assert_int_equal(verdicts.count, 1);
    assert_int_equal(verdicts.items[0].kind, CAIRN_HANG_COMPUTE);
    assert_list(&verdicts.items[0].ranks, 1, (uint32_t[]){2});
    assert_list(&verdicts.items[0].victims, 3, (uint32_t[]){0, 1, 3});
    assert_non_null(strstr(verdicts.items[0].evidence, "communicator 0xa of 4 ranks"));
    assert_true(verdicts.items[0].confidence > 0.8);
    assert_int_equal(still, 1);
    cairn_verdicts_fini(&verdicts);

    after.items[7].entered++; /* one rank of 0xa has moved: it trains */
    ras(&before, &after, &verdicts, &still);
    assert_int_equal(verdicts.count, 0);
    assert_int_equal(still, 1);
    cairn_verdicts_fini(&verdicts);
}

static void
ras_behind_in_several_communicators_is_less_sure(void **state)
{
    struct counts counts = {0};
    struct cairn_verdicts verdicts;
    uint32_t still;

    for (uint32_t rank = 0; rank < 4; rank++) {
        add(&counts, "0xa", rank, rank == 2 ? 40 : UINT64_MAX - 1);
        add(&counts, "0xb", rank, rank == 1 ? 6 : 7);
        add(&counts, "0xc", rank, 0); /* never used: says nothing */
    }
    ras(&counts, &counts, &verdicts, &still);
    assert_int_equal(verdicts.count, 2);
    assert_int_equal(still, 0);
    assert_true(verdicts.items[0].confidence < 0.5);
    cairn_verdicts_fini(&verdicts);
}

static void
ras_silent_ranks_are_a_crash(void **state)
{
    struct counts before = {0}, after = {0};
    struct cairn_verdicts verdicts;
    uint32_t still;

    for (uint32_t rank = 0; rank < 4; rank++) {
        struct cairn_op_count *item = add(&after, "0xa", rank, 5);

        add(&before, "0xa", rank, 5);
        if (rank == 1) {
            item->presence = CAIRN_CONSIDERED_DEAD;
            item->op = 0;
            item->entered = CAIRN_PROGRESS_UNKNOWN;
        }
    }
    ras(&before, &after, &verdicts, &still);
    assert_int_equal(verdicts.count, 1);
    assert_int_equal(verdicts.items[0].kind, CAIRN_CRASH);
    assert_list(&verdicts.items[0].ranks, 1, (uint32_t[]){1});
    assert_non_null(
        strstr(verdicts.items[0].evidence, "1 of 4 ranks of communicator 0xa do not answer"));
    cairn_verdicts_fini(&verdicts);
    ras(&(struct counts){0}, &(struct counts){0}, &verdicts, &still);
    assert_int_equal(verdicts.count, 0);
}

static void
dump(struct counts *counts, const char *group, uint32_t rank, uint64_t entered, uint64_t completed)
{
    add(counts, group, rank, entered)->completed = completed;
}

/* Rank 1 never comes to operation 9 of the world; 3, behind in pair "b", waits for it inside "b"
 * itself and is not a culprit. */
static void
dumps_name_who_is_inside_nothing(void **state)
{
    struct counts counts = {0};
    struct cairn_verdicts verdicts = {0};

    dump(&counts, "world", 0, 9, 8);
    dump(&counts, "world", 1, 8, 8);
    dump(&counts, "world", 2, 9, 8);
    dump(&counts, "world", 3, 8, 8);
    dump(&counts, "b", 1, 4, 4);
    dump(&counts, "b", 3, 5, 4);
    assert_int_equal(cairn_stall_of_dumps(counts.items, counts.count, &verdicts), CAIRN_OK);
    assert_int_equal(verdicts.count, 1);
    assert_int_equal(verdicts.items[0].kind, CAIRN_HANG_COMPUTE);
    assert_list(&verdicts.items[0].ranks, 1, (uint32_t[]){1});
    assert_list(&verdicts.items[0].victims, 3, (uint32_t[]){0, 2, 3});
    cairn_verdicts_fini(&verdicts);
}

static void
dumps_show_a_transfer_that_stopped(void **state)
{
    struct counts counts = {0};
    struct cairn_verdicts verdicts = {0};

    dump(&counts, "a", 0, 9, 8);
    dump(&counts, "a", 1, 9, CAIRN_PROGRESS_UNKNOWN);
    dump(&counts, "b", 2, 3, 3);
    dump(&counts, "b", 3, 3, 3);
    dump(&counts, "alone", 2, 3, 2); /* of one rank nothing can be told */
    assert_int_equal(cairn_stall_of_dumps(counts.items, counts.count, &verdicts), CAIRN_OK);
    assert_int_equal(verdicts.count, 1);
    assert_int_equal(verdicts.items[0].kind, CAIRN_HANG_LINK);
    assert_list(&verdicts.items[0].ranks, 2, (uint32_t[]){0, 1});
    cairn_verdicts_fini(&verdicts);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ras_who_is_behind_hangs_once_nothing_moves),
        cmocka_unit_test(ras_behind_in_several_communicators_is_less_sure),
        cmocka_unit_test(ras_silent_ranks_are_a_crash),
        cmocka_unit_test(dumps_name_who_is_inside_nothing),
        cmocka_unit_test(dumps_show_a_transfer_that_stopped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
