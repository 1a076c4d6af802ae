/* tests/unit/replan/views/test_heatmap.c - what a field of computation times looks like in words:
 * even, a cell, a row, a column. */
#include <math.h>
#include <string.h>

#include "replan/views/heatmap.h"
#include "tests/support/cmocka.h"

enum { STAGES = 3, PIPELINES = 5, WORLD = STAGES * PIPELINES };

/* Rank = stage + 3 * pipeline; each pipeline is a node. */
static struct cairn_topology *
make_topology(void)
{
    struct cairn_topology *topology;
    char name[8] = "pp0";

    assert_int_equal(cairn_topology_create(WORLD, &topology), CAIRN_OK);
    for (uint32_t pipeline = 0; pipeline < PIPELINES; pipeline++) {
        uint32_t ranks[STAGES];

        for (uint32_t stage = 0; stage < STAGES; stage++) {
            ranks[stage] = stage + STAGES * pipeline;
            topology->node[ranks[stage]] = pipeline;
        }
        name[2] = (char)('0' + pipeline);
        assert_int_equal(cairn_topology_add(topology, name, ranks, STAGES), CAIRN_OK);
    }
    assert_int_equal(cairn_topology_finish(topology), CAIRN_OK);
    assert_int_equal(topology->stage_count, STAGES);
    assert_int_equal(topology->pipeline_count, PIPELINES);
    return topology;
}

static void
fill(struct cairn_load *loads)
{
    for (uint32_t rank = 0; rank < WORLD; rank++)
        loads[rank] = (struct cairn_load){100e6 * (1 + 0.01 * (rank * 7 % 5 - 2.0)), 0.5e6};
}

static void
check(const struct cairn_load *loads, enum cairn_heat_pattern pattern, const char *words)
{
    struct cairn_topology *topology = make_topology();
    struct cairn_heatmap map;

    assert_int_equal(cairn_heatmap_make(topology, loads, &map), CAIRN_OK);
    assert_int_equal(map.pattern, pattern);
    assert_non_null(strstr(map.words, words));
    cairn_heatmap_fini(&map);
    cairn_topology_destroy(topology);
}

static void
test_patterns(void **state)
{
    struct cairn_load loads[WORLD];

    fill(loads);
    check(loads, CAIRN_HEAT_EVEN, "even field");
    fill(loads);
    loads[1 + STAGES * 4].compute_ns *= 1.5;
    check(loads, CAIRN_HEAT_CELL, "stage 1 of pipeline 4, rank 13 on node 4");
    fill(loads);
    for (uint32_t pipeline = 0; pipeline < PIPELINES; pipeline++)
        loads[2 + STAGES * pipeline].compute_ns *= 1.3;
    check(loads, CAIRN_HEAT_ROW, "stage 2 of 3 computes");
    fill(loads);
    for (uint32_t stage = 0; stage < STAGES; stage++)
        loads[stage + STAGES * 3].compute_ns *= 1.4;
    check(loads, CAIRN_HEAT_COLUMN, "pipeline 3 of 5 computes");
    check(loads, CAIRN_HEAT_COLUMN, "node 3");
}

/* A long stage does not hide a slow device in it, nor look like one. */
static void
test_row_and_cell(void **state)
{
    struct cairn_load loads[WORLD];

    fill(loads);
    for (uint32_t pipeline = 0; pipeline < PIPELINES; pipeline++)
        loads[STAGES * pipeline].compute_ns *= 1.5;
    loads[STAGES * 2].compute_ns *= 1.4;
    check(loads, CAIRN_HEAT_SEVERAL, "stage 0 of 3");
    check(loads, CAIRN_HEAT_SEVERAL, "stage 0 of pipeline 2, rank 6");
}

/* What the noise explains is not hot, and what is not known is not even looked at. */
static void
test_noise_and_gaps(void **state)
{
    struct cairn_load loads[WORLD];

    fill(loads);
    for (uint32_t rank = 0; rank < WORLD; rank++)
        loads[rank].error_ns = 10e6;
    loads[4].compute_ns *= 1.3;
    check(loads, CAIRN_HEAT_EVEN, "50 %");
    fill(loads);
    loads[0].compute_ns = loads[7].compute_ns = (double)NAN;
    loads[4].compute_ns *= 2;
    check(loads, CAIRN_HEAT_CELL, "rank 4");
    for (uint32_t rank = 0; rank < WORLD; rank++)
        loads[rank] = (struct cairn_load){(double)NAN, (double)NAN};
    check(loads, CAIRN_HEAT_UNKNOWN, "Nothing to compare");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_patterns),
                                       cmocka_unit_test(test_row_and_cell),
                                       cmocka_unit_test(test_noise_and_gaps)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
