/* tests/unit/agent/service/test_timing_analysis.c - reports that the analysis has no room for:
 * dropped, counted, and said once a minute. */
#include "agent/process/agent_state.h"
#include "agent/service/timing_analysis.h"
#include "agent/service/timing_state.h"

#include "base/log.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { PART_BYTES = 1 << 20, ROOM_PARTS = 64 };

struct lines {
    uint32_t count;
    char last[1024];
};

static void
keep_line(void *context, enum cairn_log_level level, const char *line)
{
    struct lines *lines = context;

    if (level != CAIRN_LOG_WARN || !strstr(line, "reports are dropped"))
        return;
    lines->count++;
    (void)snprintf(lines->last, sizeof lines->last, "%s", line);
}

/* The clock of the agent is the test's. */
static uint64_t test_now_ns;

static uint64_t
clock_now(void *state)
{
    return test_now_ns;
}

static void
ignore_turn(struct cairn_agent *agent)
{
}

static void
test_no_room(void **state)
{
    static const struct cairn_clock_ops ops = {
        .name = "test", .now_ns = clock_now, .wall_ns = clock_now};
    struct cairn_agent *agent = calloc(1, sizeof *agent);
    struct timing_state *timing = calloc(1, sizeof *timing);
    uint8_t *part = calloc(1, PART_BYTES);
    struct lines lines = {0};
    struct cairn_live_view view;

    assert_true(agent && timing && part);
    cairn_log_setup(CAIRN_LOG_INFO, keep_line, &lines);
    agent->clock = (struct cairn_clock){.ops = &ops};
    agent->timing = timing;
    assert_int_equal(cairn_loop_create(NULL, &agent->loop), CAIRN_OK);
    assert_int_equal(timing_analysis_open(agent, ignore_turn), CAIRN_OK);
    test_now_ns = 5 * CAIRN_NS_PER_S;
    for (int i = 0; i < 2 * ROOM_PARTS; i++)
        /* another agent analyses: nothing waits here */
        timing_analysis_take(agent, 1, part, PART_BYTES);
    assert_int_equal(timing_analysis_dropped(agent), 0);
    for (uint32_t turn = 0; turn < 3; turn++) { /* at once, half a minute later, and a minute after
                                                 * that */
        timing_analysis_begin(agent);
        for (int i = 0; i < ROOM_PARTS + 9; i++)
            timing_analysis_take(agent, 1, part, PART_BYTES);
        /* each part takes a few bytes more */
        assert_int_equal(timing_analysis_dropped(agent), (turn + 1) * 10);
        assert_int_equal(lines.count, turn < 2 ? 1 : 2);
        if (!strstr(lines.last, turn < 2 ? "63 MiB of them wait" : "dropped=21 since"))
            fail_msg("%s", lines.last);
        assert_true(timing_analysis_look(agent, &view));
        timing_analysis_end(agent);
        test_now_ns += (turn + 1) * 30 * CAIRN_NS_PER_S;
    }
    timing_analysis_close(agent);
    cairn_log_setup(CAIRN_LOG_INFO, NULL, NULL);
    cairn_loop_destroy(agent->loop);
    free(part);
    free(timing);
    free(agent);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_room)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
