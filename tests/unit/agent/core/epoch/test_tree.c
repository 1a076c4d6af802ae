/*
 * tests/unit/agent/core/epoch/test_tree.c - the tree of every size: everyone is reached, and
 * nobody has many neighbours.
 */
#include "agent/core/epoch/tree.h"
#include "tests/support/cmocka.h"

/* Checks the children of every member against the parents; returns the most neighbours. */
static uint32_t
check(uint32_t count)
{
    uint32_t most = 0, reached = 1;

    assert_int_equal(tree_parent(0, count), UINT32_MAX);
    for (uint32_t m = 0; m < count; m++) {
        uint32_t neighbours = m != 0, last = m;

        for (uint32_t c = tree_next_child(m, count, UINT32_MAX); c != UINT32_MAX;
             c = tree_next_child(m, count, c)) {
            assert_true(c > last && c < count);
            assert_int_equal(tree_parent(c, count), m);
            assert_int_equal(tree_towards(m, count, c), c);
            assert_true(tree_is_above(m, count, c));
            last = c;
            reached++;
            neighbours++;
        }
        most = neighbours > most ? neighbours : most;
    }
    assert_int_equal(reached, count);
    return most;
}

static void
everyone_is_reached(void **unused)
{
    for (uint32_t count = 1; count <= 300; count++)
        (void)check(count);
}

static void
small_trees_are_flat(void **unused)
{
    for (uint32_t m = 1; m < TREE_FLAT_MAX; m++)
        assert_int_equal(tree_parent(m, TREE_FLAT_MAX), 0);
}

static void
large_trees_have_few_neighbours(void **unused)
{
    assert_true(check(1024) <= 64);
    assert_true(check(10000) <= 200);
    assert_true(check(16384) <= 256);
}

static void
news_goes_by_the_head(void **unused)
{
    assert_int_equal(tree_parent(57, 100), 50);
    assert_int_equal(tree_parent(50, 100), 0);
    assert_int_equal(tree_towards(0, 100, 57), 50);
    assert_int_equal(tree_towards(50, 100, 57), 57);
    assert_true(tree_is_above(50, 100, 57));
    assert_true(tree_is_above(57, 100, 57));
    assert_false(tree_is_above(40, 100, 57));
    assert_false(tree_is_above(57, 100, 50));
    assert_int_equal(tree_next_child(57, 100, UINT32_MAX), UINT32_MAX);
    assert_int_equal(tree_next_child(0, 100, 9), 10);
    assert_int_equal(tree_next_child(0, 100, 10), 20);
    assert_int_equal(tree_next_child(90, 100, 99), UINT32_MAX);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_is_reached),
        cmocka_unit_test(small_trees_are_flat),
        cmocka_unit_test(large_trees_have_few_neighbours),
        cmocka_unit_test(news_goes_by_the_head),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
