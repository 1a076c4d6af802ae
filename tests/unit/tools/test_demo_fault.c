/*
 * Tests of tools/demo_fault.c: when the faults of `cairn demo` are due. What they do to real
 * processes is shown by tests/cluster/test_demo.py.
 */

#include <stdlib.h>

#include "tools/common.h"
#include "tools/demo.h"
#include "tools/verb.h"
#include "tests/support/cmocka.h"

enum { FIRST = 15, SECOND = 35 };

/* Two faults at FIRST and one, named before them, at SECOND. */
static int
make_demo(void **state)
{
    struct demo *demo = calloc(1, sizeof *demo);

    assert_non_null(demo);
    demo->options.faults[0].step = SECOND;
    demo->options.faults[1].step = FIRST;
    demo->options.faults[2].step = FIRST;
    demo->options.fault_count = 3;
    *state = demo;
    return 0;
}

static int
free_demo(void **state)
{
    free(*state);
    return 0;
}

static void
test_not_before_its_step(void **state)
{
    struct demo *demo = *state;

    demo->committed_count = 1;
    demo->job.step = FIRST - 1;
    assert_false(demo_faults_due(demo));
    assert_false(demo->faults_waited);
    demo->job.step = FIRST;
    assert_true(demo_faults_due(demo));
    assert_false(demo->faults_waited);
}

static void
test_not_before_a_commit(void **state)
{
    struct demo *demo = *state;

    for (demo->job.step = FIRST; demo->job.step < SECOND + 5; demo->job.step++) {
        assert_false(demo_faults_due(demo));
        assert_true(demo->faults_waited);
    }
    demo->committed_count = 1;
    assert_true(demo_faults_due(demo));
}

static void
test_not_before_files(void **state)
{
    struct demo *demo = *state;

    demo->committed_count = 1;
    demo->job.step = FIRST;
    demo->options.parity = 1;
    assert_true(demo_faults_due(demo)); /* too many, and nothing is spilled: that is shown then */
    demo->options.spill_every = 10;
    assert_false(demo_faults_due(demo));
    assert_true(demo->faults_waited);
    demo->spilled_count = 1;
    assert_true(demo_faults_due(demo));
    demo->spilled_count = 0;
    demo->options.parity = 2;
    assert_true(demo_faults_due(demo));
    demo->options.parity = 1;
    demo->options.faults[1].kind = DEMO_FAULT_TRAINER;
    assert_true(demo_faults_due(demo));
}

static void
test_later_ones_after_the_first(void **state)
{
    struct demo *demo = *state;

    demo->committed_count = 1;
    demo->options.faults[1].done = demo->options.faults[2].done = true;
    demo->job.step = SECOND - 1; /* where the way back from the first has led to */
    assert_false(demo_faults_due(demo));
    demo->job.step = SECOND;
    assert_true(demo_faults_due(demo));
    demo->options.faults[0].done = true;
    assert_false(demo_faults_due(demo));
}

static void
test_left_at_the_end(void **state)
{
    struct demo *demo = *state;

    demo_view_init(&demo->view, 0);
    assert_int_equal(demo_faults_left(demo), CAIRN_EXIT_FAILED);
    for (uint32_t i = 0; i < demo->options.fault_count; i++)
        demo->options.faults[i].done = true;
    assert_int_equal(demo_faults_left(demo), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_not_before_its_step, make_demo, free_demo),
        cmocka_unit_test_setup_teardown(test_not_before_a_commit, make_demo, free_demo),
        cmocka_unit_test_setup_teardown(test_not_before_files, make_demo, free_demo),
        cmocka_unit_test_setup_teardown(test_later_ones_after_the_first, make_demo, free_demo),
        cmocka_unit_test_setup_teardown(test_left_at_the_end, make_demo, free_demo),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
