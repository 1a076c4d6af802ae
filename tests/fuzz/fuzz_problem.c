/*
 * tests/fuzz/fuzz_problem.c - any bytes as a problem, a plan or an assignment: refused with a
 * reason, or read; a plan that was read is written and read again the same, and checked against any
 * problem.
 */
#include "replan/assign/assign.h"
#include "replan/fleet/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
try_plan(const struct cairn_plan *plan)
{
    struct cairn_problem problem = {0};
    struct cairn_json_writer writer;
    struct cairn_plan *again = NULL;
    struct cairn_fault fault;
    size_t text_bytes;
    char *text;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    if (cairn_plan_write(plan, &problem, &writer))
        abort();
    cairn_json_write_object_end(&writer);
    if (cairn_json_writer_done(&writer, &text, &text_bytes) ||
        cairn_plan_read_text(text, text_bytes, &again, &fault))
        abort();
    if (again->stage_count != plan->stage_count || again->device_count != plan->device_count ||
        memcmp(again->stages, plan->stages, plan->stage_count * sizeof(*plan->stages)) != 0)
        abort();
    cairn_json_writer_fini(&writer);
    free(text);
    cairn_plan_destroy(again);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_assign_problem assign = {0};
    struct cairn_problem problem = {0};
    struct cairn_plan *plan = NULL;
    struct cairn_fault fault = {""};

    if (!cairn_problem_read(data, size, &problem, &fault)) {
        if (problem.current)
            (void)!cairn_plan_check(problem.current, &problem, &fault);
        cairn_problem_fini(&problem);
    } else if (fault.text[0] == '\0') {
        abort();
    }
    if (!cairn_plan_read_text(data, size, &plan, &fault)) {
        try_plan(plan);
        cairn_plan_destroy(plan);
    }
    if (!cairn_assign_problem_read(data, size, &assign, &fault))
        cairn_assign_problem_fini(&assign);
    return 0;
}
