/*
 * tests/unit/agent/core/run/test_reports.c - what a head keeps of the reports from below: which are
 * news, who is done with a generation, and how far trainers are.
 */
#include "agent/core/run/reports.h"
#include "agent/core/epoch/tree.h"
#include "tests/support/cmocka.h"

#include <string.h>

enum { MEMBERS = 49, HEAD = 7, FIRST = 8, LAST = 13, OUTSIDE = 60, AGENTS = 70 };

/* The head of the second block; agent numbers are 10 above members'. */
struct job {
    struct membership membership;
    struct cairn_core_options options;
    struct reports reports;
    struct env env;
};

static struct job job;
static const struct cairn_generation_id older = {.epoch = 5, .run = 3, .step = 10},
                                        newer = {.epoch = 5, .run = 3, .step = 20};

static int
begin_job(void **unused)
{
    uint32_t agents[MEMBERS];

    for (uint32_t m = 0; m < MEMBERS; m++)
        agents[m] = m + 10;
    memset(&job, 0, sizeof job);
    assert_int_equal(cairn_roster_build(agents, NULL, MEMBERS, 0, 4, &job.membership.record.roster),
                     CAIRN_OK);
    job.membership.record.epoch = job.membership.promised = 5;
    job.membership.self_member = HEAD;
    job.options = (struct cairn_core_options){.self = HEAD + 10, .agent_count = AGENTS};
    job.env = (struct env){.options = &job.options, .membership = &job.membership, .now_ns = 1000};
    assert_int_equal(reports_init(&job.reports, AGENTS), CAIRN_OK);
    assert_int_equal(tree_next_child(HEAD, MEMBERS, UINT32_MAX), FIRST);
    assert_int_equal(tree_next_child(HEAD, MEMBERS, LAST), UINT32_MAX);
    return 0;
}

static int
end_job(void **unused)
{
    reports_fini(&job.reports);
    membership_fini(&job.membership);
    return 0;
}

static struct cairn_message_report
report_of(uint32_t member)
{
    return (struct cairn_message_report){.agent = member + 10,
                                         .ranks = 1,
                                         .incarnation = 1,
                                         .registration = 2,
                                         .for_agent = UINT32_MAX};
}

static bool
passes(const struct cairn_message_report *report)
{
    return reports_pass(&job.env, &job.reports, report);
}

static void
only_news_passes(void **unused)
{
    struct cairn_message_report report = report_of(FIRST);

    assert_true(passes(&report));
    assert_false(passes(&report));
    report.complete0 = report.committed = report.captured = older;
    assert_false(passes(&report));
    report.begun = 1;
    assert_true(passes(&report));
    report.begun = 2;
    assert_false(passes(&report));
    report.asked = 7;
    assert_true(passes(&report));
    report.stalled = newer;
    report.cause = CAIRN_WAIT_TRAINERS;
    assert_true(passes(&report));
    report.for_ms = 500;
    assert_false(passes(&report));
    report.aborted = newer;
    assert_true(passes(&report));
    report.aborted.step = 0; /* a new decision has come */
    assert_false(passes(&report));
    report.registration++;
    assert_true(passes(&report));
    report.incarnation++;
    assert_true(passes(&report));
}

/* The leader must hear that a session ended, and what comes in the next one. */
static void
each_session_is_news(void **unused)
{
    struct cairn_message_report report = report_of(FIRST), gone = {.agent = FIRST + 10};

    report.complete0 = older;
    assert_true(passes(&report));
    assert_true(passes(&gone));
    assert_int_equal(job.reports.heard_ns[FIRST + 10], 0);
    assert_true(cairn_generation_is(job.reports.list[FIRST + 10].complete0, older));
    assert_true(passes(&report));
    assert_false(passes(&report));
}

static void
all_below_must_be_done(void **unused)
{
    uint32_t first = UINT32_MAX;

    for (uint32_t m = FIRST; m <= LAST; m++) {
        struct cairn_message_report report = report_of(m);

        assert_int_equal(reports_missing(&job.env, &job.reports, older, &first), LAST + 1 - m);
        assert_int_equal(first, m + 10);
        report.complete0 = older;
        if (m != LAST) {
            report.complete0 = newer;
            report.complete1 = older;
        }
        (void)passes(&report);
    }
    assert_int_equal(reports_missing(&job.env, &job.reports, older, &first), 0);
    assert_int_equal(reports_missing(&job.env, &job.reports, newer, &first), 1);
    assert_int_equal(first, LAST + 10);
    job.membership.self_member = FIRST; /* has nobody below it */
    assert_int_equal(reports_missing(&job.env, &job.reports, newer, &first), 0);
}

static void
steps_below_count(void **unused)
{
    struct cairn_message_report report = report_of(FIRST);

    assert_int_equal(reports_begun(&job.env, &job.reports), 0);
    report.begun = 4;
    (void)passes(&report);
    report = report_of(LAST);
    report.begun = 3;
    report.begun_below = 6; /* of the leader's heads */
    (void)passes(&report);
    report = report_of(HEAD + 1 + LAST - FIRST + 1); /* another head: not below */
    report.begun = 9;
    (void)passes(&report);
    assert_int_equal(reports_begun(&job.env, &job.reports), 6);
}

/* A member may come back as it was; a late agent leaves nothing behind. */
static void
late_agents_are_forgotten(void **unused)
{
    struct cairn_message_report late = report_of(OUTSIDE - 10), gone = {.agent = OUTSIDE};

    assert_true(reports_take(&job.env, &job.reports, &late));
    assert_false(reports_take(&job.env, &job.reports, &late));
    assert_true(reports_take(&job.env, &job.reports, &gone));
    assert_int_equal(job.reports.list[OUTSIDE].ranks, 0);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin_job, end_job)
    const struct CMUnitTest tests[] = {
        TEST(only_news_passes),  TEST(each_session_is_news),      TEST(all_below_must_be_done),
        TEST(steps_below_count), TEST(late_agents_are_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
