/* tests/unit/base/test_array.c - an array has room for one more element, at any count. */
#include "base/array.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>

/* The address sanitizer's build finds an element that has no room. */
static void
elements_keep_their_values(void **state)
{
    enum { COUNT = 1000 };
    uint64_t *array = NULL;

    for (size_t i = 0; i < COUNT; i++) {
        assert_true(cairn_array_grow(&array, i, sizeof(*array)));
        array[i] = i;
    }
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(array[i], i);
    free(array);
}

static void
an_array_may_shrink(void **state)
{
    uint64_t *array = NULL;

    for (size_t i = 0; i < 17; i++) {
        assert_true(cairn_array_grow(&array, i, sizeof(*array)));
        array[i] = i;
    }
    for (size_t count = 17; count > 0; count--) {
        assert_true(cairn_array_grow(&array, count - 1, sizeof(*array)));
        array[count - 1] = count;
    }
    free(array);
}

static void
a_size_that_overflows_is_refused(void **state)
{
    uint64_t *array = NULL;

    assert_false(cairn_array_grow(&array, (size_t)1 << 62, sizeof(*array)));
    assert_null(array);
}

/* Every sorted array of up to six numbers below three, for every number that may be looked for. */
static void
bisection_finds_the_first(void **state)
{
    for (uint32_t count = 0; count <= 6; count++)
        for (uint32_t zeroes = 0; zeroes <= count; zeroes++)
            for (uint32_t ones = 0; zeroes + ones <= count; ones++)
                for (uint32_t key = 0; key < 4; key++) {
                    uint32_t low = 0, expected = 0;

                    expected += key > 0 ? zeroes : 0;
                    expected += key > 1 ? ones : 0;
                    expected += key > 2 ? count - zeroes - ones : 0;
                    CAIRN_BISECT(low, count, at,
                                 (at >= zeroes ? at >= zeroes + ones ? 2u : 1u : 0u) < key);
                    assert_int_equal(low, expected);
                }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_keep_their_values),
        cmocka_unit_test(an_array_may_shrink),
        cmocka_unit_test(a_size_that_overflows_is_refused),
        cmocka_unit_test(bisection_finds_the_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
