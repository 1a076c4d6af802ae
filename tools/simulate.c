/* tools/simulate.c - `cairn simulate`: a plan's step replayed operation by operation. */
#include "replan/fleet/schedule.h"
#include "replan/fleet/simulate.h"
#include "tools/common.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char about[] =
    "Replays one step of a plan under the 1F1B schedule, operation by operation and without the "
    "planner's formula. Prints the step time, each stage's idle time, and its memory. The plan "
    "must be for this problem, as `cairn plan -o json` prints it; exits 65 otherwise.";
static const char examples[] = "  cairn simulate --problem problem.json --plan plan.json\n"
                               "  cairn simulate --problem problem.json --plan plan.json -o json\n";

struct files {
    struct cairn_problem problem;
    struct cairn_plan *plan;
};

static int
print_json(const struct files *files, const struct cairn_simulated *simulated, double schedule_ms)
{
    const struct cairn_plan *plan = files->plan;
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    cairn_json_put_double(&writer, "simulated_ms", simulated->step_ms);
    cairn_json_put_double(&writer, "step_ms", cairn_plan_step_ms(plan, &files->problem));
    cairn_json_put_double(&writer, "schedule_ms", schedule_ms);
    cairn_json_put_array(&writer, "pipelines");
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        cairn_json_write_line(&writer);
        cairn_json_write_object_begin(&writer);
        cairn_json_put_double(&writer, "simulated_ms", simulated->pipeline_ms[i]);
        cairn_json_put_array(&writer, "stages");
        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++) {
            const struct cairn_simulated_stage *stage =
                &simulated->stages[plan->pipelines[i].first_stage + j];

            cairn_json_write_object_begin(&writer);
            cairn_json_put_double(&writer, "busy_ms", stage->busy_ms);
            /* the share of the step in which it stands still */
            cairn_json_put_double(&writer, "bubble", 1 - stage->busy_ms / simulated->step_ms);
            cairn_json_put_u64(&writer, "in_flight", stage->in_flight);
            cairn_json_put_u64(&writer, "device_bytes", stage->device_bytes);
            cairn_json_write_object_end(&writer);
        }
        cairn_json_write_array_end(&writer);
        cairn_json_write_object_end(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_finish("simulate", &writer);
}

static void
print_table(const struct files *files, const struct cairn_simulated *simulated, double schedule_ms)
{
    const struct cairn_plan *plan = files->plan;
    double step_ms = cairn_plan_step_ms(plan, &files->problem);
    char shown[CAIRN_SHOWN_BYTES];

    printf("%-9s %-6s %-8s %12s %9s %10s %12s\n", "pipeline", "stage", "devices", "busy", "still",
           "in flight", "per device");
    for (uint32_t i = 0; i < plan->pipeline_count; i++)
        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++) {
            uint32_t at = plan->pipelines[i].first_stage + j;
            const struct cairn_simulated_stage *stage = &simulated->stages[at];

            printf("%-9" PRIu32 " %-6" PRIu32 " %-8" PRIu32 " %9.1f ms %7.1f %% %10" PRIu32
                   " %12s\n",
                   i, j, plan->stages[at].device_count, stage->busy_ms,
                   100 * (1 - stage->busy_ms / simulated->step_ms), stage->in_flight,
                   cairn_show_bytes(stage->device_bytes, shown));
        }
    printf("a step takes %.1f ms; the formula of the schedule says %.1f ms (%+.2f %%), the simpler "
           "one that plans are compared by "
           "%.1f ms (%+.2f %%)\n",
           simulated->step_ms, schedule_ms, 100 * (schedule_ms / simulated->step_ms - 1), step_ms,
           100 * (step_ms / simulated->step_ms - 1));
}

static bool
read_plan(const char *path, struct cairn_plan **plan, int *exit_code)
{
    struct cairn_fault fault = {""};
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    cairn_err err;

    if (!cairn_planning_load("simulate", path, &text, &text_bytes, exit_code))
        return false;
    err = cairn_plan_read_text(text, text_bytes, plan, &fault);
    free(text);
    if (!err)
        return true;
    cairn_tool_error("simulate", path, err == CAIRN_CORRUPT ? fault.text : cairn_err_text(err),
                     err == CAIRN_CORRUPT ? "give what `cairn plan -o json` printed" : NULL);
    *exit_code = cairn_exit_code(err);
    return false;
}

static int
run(const char *problem_path, const char *plan_path, bool json)
{
    struct files files = {.plan = NULL};
    struct cairn_simulated simulated = {0};
    struct cairn_fault fault = {""};
    int exit_code = CAIRN_EXIT_OK;
    double schedule_ms = 0;
    cairn_err err;

    if (!cairn_planning_problem("simulate", problem_path, &files.problem, &exit_code))
        return exit_code;
    if (!read_plan(plan_path, &files.plan, &exit_code)) {
        cairn_problem_fini(&files.problem);
        return exit_code;
    }
    err = cairn_plan_check(files.plan, &files.problem, &fault);
    if (err == CAIRN_INVAL) {
        cairn_tool_error("simulate", plan_path, fault.text, "give the plan of this problem");
        exit_code = CAIRN_EXIT_INPUT;
    } else if (!err) {
        err = cairn_simulate(files.plan, &files.problem, &simulated);
        if (!err)
            err = cairn_plan_schedule_ms(files.plan, &files.problem, &schedule_ms);
        if (!err && json)
            exit_code = print_json(&files, &simulated, schedule_ms);
        else if (!err)
            print_table(&files, &simulated, schedule_ms);
    }
    if (err && exit_code == CAIRN_EXIT_OK) {
        cairn_tool_error("simulate", "the plan was not replayed",
                         err == CAIRN_INVAL ? "a pipeline has more than 50,000,000 operations"
                                            : cairn_err_text(err),
                         NULL);
        exit_code = err == CAIRN_INVAL ? CAIRN_EXIT_INPUT : cairn_exit_code(err);
    }
    cairn_simulated_fini(&simulated);
    cairn_plan_destroy(files.plan);
    cairn_problem_fini(&files.problem);
    return exit_code;
}

int
cairn_verb_simulate(int argc, char **argv)
{
    const char *output = NULL, *problem = NULL, *plan = NULL;
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE", "read the problem from this JSON file", &problem, NULL},
        {"plan", 0, "FILE", "read the plan from this JSON file", &plan, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {"simulate", "--problem FILE --plan FILE [-o table|json]",
                                      about,      examples,
                                      flags,      sizeof flags / sizeof *flags,
                                      NULL,       NULL};
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!problem || !plan)
        return cairn_usage_error(&usage, "%s FILE is missing", problem ? "--plan" : "--problem");
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    return run(problem, plan, json);
}
