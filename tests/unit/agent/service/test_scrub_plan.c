/*
 * tests/unit/agent/service/test_scrub_plan.c - what a scrub reads next, at which pace, and what
 * becomes of the damage that it finds.
 */
#include <string.h>

#include "agent/service/scrub_plan.h"
#include "base/clock.h"
#include "tests/support/cmocka.h"

enum { EXTENTS = 4, UNITS_MAX = 16 };

static const uint64_t interval_ns = 100 * CAIRN_NS_PER_S;
static const uint64_t start_ns = 7 * CAIRN_NS_PER_S;

/* Reads one run, at once when it is due; returns when. */
static uint64_t
read_next(struct scrub_course *course, const uint64_t *extents, uint64_t now_ns, uint64_t cpu_ns,
          struct scrub_run *run)
{
    uint64_t due_ns, passes = course->passes;

    while (!scrub_course_next(course, extents, EXTENTS, UNITS_MAX, interval_ns, now_ns, run,
                              &due_ns)) {
        assert_true(due_ns > now_ns || course->passes > passes);
        now_ns = due_ns > now_ns ? due_ns : now_ns;
    }
    scrub_course_took(course, cpu_ns, now_ns);
    return now_ns;
}

/* A pass reads every unit once, in order, and ends within the interval. */
static void
test_pass(void **state)
{
    const uint64_t extents[EXTENTS] = {40, 0, 3, 100};
    uint64_t next[EXTENTS] = {0}, now_ns = start_ns;
    struct scrub_course course;
    struct scrub_run run;
    uint32_t runs = 0;

    scrub_course_init(&course, start_ns);
    while (course.passes == 0) {
        now_ns = read_next(&course, extents, now_ns, 1000, &run);
        assert_true(run.count >= 1 && run.count <= UNITS_MAX);
        assert_int_equal(run.first, next[run.extent]);
        next[run.extent] += run.count;
        runs++;
    }
    assert_memory_equal(next, extents, sizeof next);
    assert_int_equal(runs, 3 + 1 + 7);
    assert_true(now_ns <= start_ns + interval_ns);
    assert_true(now_ns > start_ns + interval_ns / 2); /* spread over it */
    assert_int_equal(course.ended_ns, now_ns);

    now_ns = read_next(&course, extents, now_ns, 1000, &run);
    assert_int_equal(now_ns, start_ns + interval_ns);
    assert_int_equal(run.extent, 0);
    assert_int_equal(run.first, 0);
}

/* Every unit is read again within an interval and the time of a run, pass after pass. */
static void
test_period(void **state)
{
    const uint64_t extents[EXTENTS] = {64, 0, 0, 64};
    uint64_t last_ns[8] = {0}, now_ns = start_ns;
    struct scrub_course course;
    struct scrub_run run;

    scrub_course_init(&course, start_ns);
    for (uint32_t i = 0; i < 80; i++) {
        uint32_t key;

        now_ns = read_next(&course, extents, now_ns, 1000, &run);
        key = (run.extent ? 4 : 0) + (uint32_t)(run.first / UNITS_MAX);
        if (last_ns[key])
            assert_true(now_ns - last_ns[key] <= interval_ns + interval_ns / 8);
        last_ns[key] = now_ns;
    }
}

/* The share of a processor wins over the interval. */
static void
test_share(void **state)
{
    const uint64_t extents[EXTENTS] = {64, 0, 0, 0}, cpu_ns = CAIRN_NS_PER_S;
    uint64_t now_ns = start_ns, before_ns;
    struct scrub_course course;
    struct scrub_run run;

    scrub_course_init(&course, start_ns);
    now_ns = read_next(&course, extents, now_ns, cpu_ns, &run);
    for (uint32_t i = 0; i < 12; i++) {
        before_ns = now_ns;
        now_ns = read_next(&course, extents, now_ns, cpu_ns, &run);
        assert_true(now_ns - before_ns >= (SCRUB_SHARE - 1) * cpu_ns);
    }
    assert_true(course.passes >= 3);
}

/* Nothing to read counts as no pass; lengths change under the course. */
static void
test_changes(void **state)
{
    uint64_t extents[EXTENTS] = {0}, due_ns, now_ns = start_ns;
    struct scrub_course course;
    struct scrub_run run;

    scrub_course_init(&course, start_ns);
    for (uint32_t i = 0; i < 5; i++) {
        assert_false(scrub_course_next(&course, extents, EXTENTS, UNITS_MAX, interval_ns, now_ns,
                                       &run, &due_ns));
        assert_true(due_ns > now_ns);
        now_ns = due_ns;
    }
    assert_int_equal(course.passes, 0);

    extents[0] = 32;
    extents[3] = 32;
    (void)read_next(&course, extents, now_ns, 1, &run);
    assert_int_equal(run.extent, 0);
    extents[0] = 4; /* what it would read next has gone */
    (void)read_next(&course, extents, now_ns, 1, &run);
    assert_int_equal(run.extent, 3);
    assert_int_equal(run.first, 0);
    extents[3] = 8; /* the rest has gone too: the pass has ended */
    (void)read_next(&course, extents, now_ns, 1, &run);
    assert_int_equal(course.passes, 1);
    assert_int_equal(run.extent, 0);
    assert_int_equal(run.first, 0);

    /* a run that is under way is not read twice */
    assert_true(scrub_course_next(&course, extents, EXTENTS, UNITS_MAX, interval_ns,
                                  now_ns + 10 * interval_ns, &run, &due_ns));
    assert_false(scrub_course_next(&course, extents, EXTENTS, UNITS_MAX, interval_ns,
                                   now_ns + 20 * interval_ns, &run, &due_ns));
}

/* What is damaged is read again, also if it was the end of a pass. */
static void
test_again(void **state)
{
    const uint64_t extents[EXTENTS] = {0, UNITS_MAX, 0, 3};
    uint64_t due_ns, now_ns = start_ns;
    struct scrub_course course;
    struct scrub_run run, next;

    scrub_course_init(&course, start_ns);
    for (uint32_t i = 0; i < 2; i++) {
        while (!scrub_course_next(&course, extents, EXTENTS, UNITS_MAX, interval_ns, now_ns, &run,
                                  &due_ns))
            now_ns = due_ns;
        scrub_course_again(&course, &run, CAIRN_NS_PER_S, now_ns);
        assert_int_equal(course.passes, 0);
        assert_int_equal(scrub_course_extent(&course, extents, EXTENTS), run.extent);
        assert_false(scrub_course_next(&course, extents, EXTENTS, UNITS_MAX, interval_ns, now_ns,
                                       &next, &due_ns));
        assert_true(due_ns >= now_ns + (SCRUB_SHARE - 1) * CAIRN_NS_PER_S); /* within its share */
        now_ns = read_next(&course, extents, due_ns, 1, &next);
        assert_memory_equal(&next, &run, sizeof run);
    }
    assert_int_equal(run.extent, 3);
    assert_int_equal(course.passes, 1);
}

/* The extent that must be open for the next run, also when the list shrinks under the course. */
static void
test_extent(void **state)
{
    uint64_t extents[EXTENTS] = {2, 4, 4, 0}, now_ns = start_ns;
    struct scrub_course course;
    struct scrub_run run;

    scrub_course_init(&course, start_ns);
    for (uint32_t i = 0; i < 5; i++) { /* with the rest between two passes */
        uint32_t extent = scrub_course_extent(&course, extents, EXTENTS);

        now_ns = read_next(&course, extents, now_ns, 1, &run);
        assert_int_equal(run.extent, extent);
    }
    assert_int_equal(course.passes, 1);
    assert_int_equal(scrub_course_extent(&course, extents, EXTENTS), 2);
    extents[2] = 0;
    assert_int_equal(scrub_course_extent(&course, extents, EXTENTS), EXTENTS);
    assert_int_equal(scrub_course_extent(&course, extents, 1), 1);
}

static void
test_remedy(void **state)
{
    for (uint32_t tries = 0; tries <= SCRUB_TRIES_MAX; tries++) {
        assert_int_equal(scrub_remedy(false, false, tries), SCRUB_WAIT);
        assert_int_equal(scrub_remedy(false, true, tries), SCRUB_WAIT);
        assert_int_equal(scrub_remedy(true, false, tries), SCRUB_MARK);
        assert_int_equal(scrub_remedy(true, true, tries),
                         tries < SCRUB_TRIES_MAX ? SCRUB_REPAIR : SCRUB_MARK);
    }
}

static void
test_damage(void **state)
{
    static struct scrub_ledger ledger;
    const struct cairn_generation_id g1 = {1, 10, 5}, g2 = {1, 20, 5};
    uint64_t now_ns = start_ns, pause_ns;

    memset(&ledger, 0, sizeof ledger);
    assert_false(scrub_ledger_ask(&ledger, now_ns));
    assert_true(scrub_ledger_add(&ledger, g1, 0, 7));
    assert_false(scrub_ledger_add(&ledger, g1, 0, 7));
    assert_true(scrub_ledger_add(&ledger, g2, 0, 7));
    assert_true(scrub_ledger_add(&ledger, g1, 1, 7));
    assert_int_equal(ledger.found, 3);

    assert_true(scrub_ledger_ask(&ledger, now_ns));                          /* at once */
    assert_false(scrub_ledger_ask(&ledger, now_ns + CAIRN_NS_PER_S * 1000)); /* it runs */
    scrub_ledger_look(&ledger, 2, SCRUB_GOOD, true);
    scrub_ledger_look(&ledger, 1, SCRUB_GONE, true);
    scrub_ledger_look(&ledger, 0, SCRUB_STILL, true);
    scrub_ledger_tried(&ledger);
    assert_int_equal(ledger.repaired, 1);
    assert_int_equal(ledger.count, 1);
    assert_int_equal(scrub_ledger_unrepairable(&ledger), 0);

    assert_false(scrub_ledger_ask(&ledger, now_ns + 1)); /* a pause first, then a longer one */
    for (pause_ns = CAIRN_NS_PER_S; !scrub_ledger_ask(&ledger, now_ns + pause_ns);)
        pause_ns += CAIRN_NS_PER_S;
    now_ns += pause_ns;
    scrub_ledger_look(&ledger, 0, SCRUB_STILL, true);
    scrub_ledger_tried(&ledger);
    assert_int_equal(scrub_ledger_unrepairable(&ledger), 1);
    assert_false(scrub_ledger_ask(&ledger, now_ns + pause_ns));
    assert_true(scrub_ledger_ask(&ledger, now_ns + 2 * pause_ns));
    scrub_ledger_tried(&ledger);

    scrub_ledger_look(&ledger, 0, SCRUB_GONE, false); /* a newer generation took its place */
    assert_int_equal(scrub_ledger_unrepairable(&ledger), 0);
    assert_int_equal(ledger.repaired, 1);
    assert_true(scrub_ledger_add(&ledger, g2, 3, 1));
    assert_true(scrub_ledger_ask(&ledger, now_ns + 2 * pause_ns + 1)); /* at once again */
}

/* More damage than is listed is found by later passes. */
static void
test_much_damage(void **state)
{
    static struct scrub_ledger ledger;
    const struct cairn_generation_id g = {1, 10, 5};
    uint64_t unit = 0;

    memset(&ledger, 0, sizeof ledger);
    while (scrub_ledger_add(&ledger, g, 0, unit))
        unit++;
    assert_int_equal(unit, SCRUB_DAMAGE_MAX);
    while (ledger.count > 0)
        scrub_ledger_look(&ledger, 0, SCRUB_GOOD, true);
    assert_int_equal(ledger.repaired, SCRUB_DAMAGE_MAX);
    assert_true(scrub_ledger_add(&ledger, g, 0, unit));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pass),        cmocka_unit_test(test_period),
        cmocka_unit_test(test_share),       cmocka_unit_test(test_changes),
        cmocka_unit_test(test_again),       cmocka_unit_test(test_extent),
        cmocka_unit_test(test_remedy),      cmocka_unit_test(test_damage),
        cmocka_unit_test(test_much_damage),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
