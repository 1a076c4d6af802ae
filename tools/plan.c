/* tools/plan.c - `cairn plan`: pipelines for the remaining devices, and a bound on how good plans
 * can be. */
#include "replan/search/answer.h"
#include "tools/common.h"
#include "tools/measure.h"
#include "tools/plan_view.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char about[] =
    "Plans pipelines for the devices of a problem file: groups, stages, layers, micro-batches, and "
    "unused devices. Prints the predicted step time and a lower bound that no plan for these "
    "devices can beat. docs/PLANNER.md has the formats and formulas.\n"
    "\n"
    "With --trace or --agent the problem is first measured, as `cairn profile` does it.\n"
    "\n"
    "Exits 4 and gives the reason if no plan fits.";
static const char examples[] =
    "  cairn plan --problem problem.json --explain\n"
    "  cairn plan --problem problem.json --agent /run/cairn/agent.sock\n"
    "  cairn plan --problem problem.json --time-limit 200 -o json > plan.json\n";

static cairn_err
write_plan(struct cairn_json_writer *writer, const struct cairn_problem *problem,
           const struct cairn_answer_plan *answer, double plan_ms)
{
    cairn_err err = cairn_plan_write(answer->plan, problem, writer);

    cairn_json_write_line(writer);
    cairn_json_put_double(writer, "step_ms", answer->step_ms);
    cairn_json_put_double(writer, "schedule_ms", answer->schedule_ms);
    cairn_json_put_double(writer, "lower_bound_ms", answer->bound_ms);
    cairn_json_put_double(writer, "gap", answer->step_ms / answer->bound_ms - 1);
    cairn_json_put_double(writer, "healthy_ms", answer->healthy_ms);
    cairn_json_put_u64(writer, "moved_bytes", answer->migration.moved_bytes);
    cairn_json_put_double(writer, "migrate_ms", answer->migration.migrate_ms);
    cairn_json_put_u64(writer, "payback_steps", answer->payback_steps);
    cairn_json_put_double(writer, "current_ms",
                          answer->current_ms); /* null: there is none that can go on */
    cairn_json_put_u64(writer, "slow_reduction_layers", answer->slow_layers);
    cairn_json_put_bool(writer, "complete", answer->complete);
    cairn_json_put_bool(writer, "cut_short", answer->cut_short);
    cairn_json_put_double(writer, "plan_ms", plan_ms);
    return err;
}

static void
write_infeasible(struct cairn_json_writer *writer, const struct cairn_infeasible *why)
{
    cairn_json_put_object(writer, "infeasible");
    cairn_json_put_string(writer, "constraint", why->constraint);
    cairn_json_write_key(writer, "short_by_bytes");
    if (why->short_by_bytes < UINT64_MAX)
        cairn_json_write_u64(writer, why->short_by_bytes);
    else
        cairn_json_write_null(writer);
    cairn_json_put_string(writer, "would_fit", why->would_fit);
    cairn_json_write_object_end(writer);
}

static int
print_json(const struct cairn_problem *problem, const struct cairn_answer_plan *answer,
           double plan_ms)
{
    struct cairn_json_writer writer;
    cairn_err err = CAIRN_OK;

    cairn_json_begin(&writer);
    if (answer->plan)
        err = write_plan(&writer, problem, answer, plan_ms);
    else
        write_infeasible(&writer, &answer->infeasible);
    cairn_json_write_object_end(&writer);
    if (err) {
        cairn_json_writer_fini(&writer);
        cairn_tool_error("plan", "the answer could not be assembled", cairn_err_text(err), NULL);
        return cairn_exit_code(err);
    }
    return cairn_json_finish("plan", &writer);
}

/* What moves, and how long that takes if link_gbps tells. */
static void
print_move(const struct cairn_answer_plan *answer)
{
    char shown[CAIRN_SHOWN_BYTES];

    printf("%s move", cairn_show_bytes(answer->migration.moved_bytes, shown));
    if (answer->migration.migrate_ms > 0)
        printf(", in about %.0f ms", answer->migration.migrate_ms);
    if (answer->current_ms < INFINITY)
        printf("; the plan that runs takes %.1f ms a step\n", answer->current_ms);
    else
        printf("; the plan that runs cannot go on\n");
}

static void
print_table(const struct cairn_problem *problem, const struct cairn_answer_plan *answer,
            double plan_ms)
{
    const struct cairn_plan *plan = answer->plan;

    printf("%-9s %-13s %-6s %s\n", "pipeline", "micro-batches", "stages",
           "layers (devices) of each stage");
    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];

        printf("%-9" PRIu32 " %-13" PRIu32 " %-6" PRIu32, i, pipeline->microbatches,
               pipeline->stage_count);
        for (uint32_t j = 0; j < pipeline->stage_count; j++)
            printf(" %" PRIu32 "(%" PRIu32 ")", plan->stages[pipeline->first_stage + j].layer_count,
                   plan->stages[pipeline->first_stage + j].device_count);
        printf("\n");
    }
    printf("%" PRIu32 " of %" PRIu32 " devices are in use\n", plan->device_count,
           problem->device_count);
    printf("a step takes %.1f ms; no plan takes less than %.1f ms (%.2f %% less)", answer->step_ms,
           answer->bound_ms, 100 * (1 - answer->bound_ms / answer->step_ms));
    if (answer->schedule_ms < answer->step_ms * 0.999)
        printf("; its 1F1B schedule, which is not what the bound is of, ends after %.1f ms",
               answer->schedule_ms);
    if (answer->healthy_ms < INFINITY)
        printf("; healthy: %.1f ms", answer->healthy_ms);
    printf("\n");
    if (answer->migration.moved_bytes > 0)
        print_move(answer);
    if (answer->payback_steps > 0)
        printf("the move has paid for itself after %" PRIu64 " steps\n", answer->payback_steps);
    if (answer->slow_layers > 0)
        printf("%" PRIu32 " layers are reduced over pipelines by links that slow_links names\n",
               answer->slow_layers);
    printf("planned in %.1f ms%s\n", plan_ms,
           answer->complete ? ", and no plan is better"
           : answer->cut_short
               ? ", cut short by --time-limit: a longer one may find a better plan, "
                 "or a better bound"
               : "");
}

struct options {
    struct cairn_trace_from from; /* that the problem is measured from; without a place it is not */
    const char *problem;
    const char *svg; /* NULL: no drawing */
    bool json;
    bool explain;
};

/* Prints what was requested beside the answer; returns the exit code. */
static int
show(const struct options *options, const struct cairn_problem *problem,
     const struct cairn_answer_plan *answer)
{
    if (options->explain) /* stdout is the JSON's where that was asked for */
        cairn_plan_explain(problem, answer, options->json ? stderr : stdout);
    if (options->svg && cairn_plan_draw(problem, answer, options->svg)) {
        cairn_tool_error("plan", options->svg, strerror(errno), "name a file that can be written");
        return CAIRN_EXIT_IO;
    }
    return CAIRN_EXIT_OK;
}

static int
run(const struct options *options, struct cairn_deadline *deadline)
{
    struct cairn_deadline first = {deadline->started_ns, deadline->limit_ns / 10 * 7};
    struct cairn_stop stop = {cairn_deadline_over, &first}; /* the rest is for the healthy plan */
    struct cairn_stop stop_healthy = {cairn_deadline_over, deadline};
    struct cairn_problem problem = {0};
    struct cairn_answer_plan answer = {0};
    int exit_code = CAIRN_EXIT_OK;
    double plan_ms;
    cairn_err err;

    if (!cairn_planning_problem("plan", options->problem, &problem, &exit_code))
        return exit_code;
    if (options->from.path || options->from.agent)
        exit_code = cairn_measure_problem("plan", &options->from, &problem);
    if (exit_code) {
        cairn_problem_fini(&problem);
        return exit_code;
    }
    err = cairn_answer_plan_make(&problem, &stop, &stop_healthy, &answer);
    plan_ms = cairn_deadline_elapsed_ms(deadline);
    if (err) {
        cairn_tool_error("plan", "no plan was made", cairn_err_text(err), NULL);
        exit_code = cairn_exit_code(err);
    } else if (options->json) {
        exit_code = print_json(&problem, &answer, plan_ms);
    } else if (answer.plan) {
        print_table(&problem, &answer, plan_ms);
    }
    if (!err && answer.plan && exit_code == CAIRN_EXIT_OK)
        exit_code = show(options, &problem, &answer);
    if (!err && !answer.plan) {
        cairn_tool_error("plan", "nothing fits these devices", answer.infeasible.constraint,
                         answer.infeasible.would_fit);
        exit_code = exit_code == CAIRN_EXIT_OK ? CAIRN_EXIT_LOST : exit_code;
    }
    cairn_answer_plan_fini(&answer);
    cairn_problem_fini(&problem);
    return exit_code;
}

int
cairn_verb_plan(int argc, char **argv)
{
    const char *output = NULL, *limit = "1000";
    struct options options = {.problem = NULL};
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE", "read the problem from this JSON file", &options.problem, NULL},
        CAIRN_TRACE_FLAGS(options.from),
        CAIRN_TRACE_STEPS_FLAG(options.from, "50"),
        {"time-limit", 0, "MS", "search for at most this many milliseconds of work (default: 1000)",
         &limit, NULL},
        {"explain", 0, NULL, "draw the pipelines: stages, layers, slow devices, idle time", NULL,
         &options.explain},
        {"svg", 0, "FILE", "draw the pipelines into this file", &options.svg, NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "plan",
        "--problem FILE [--trace FILE | --agent SOCKET [--steps N]] [--time-limit MS] [--explain] "
        "[--svg FILE] [-o table|json]",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};
    struct cairn_deadline deadline;
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!options.problem)
        return cairn_usage_error(&usage, "--problem FILE is missing");
    if ((options.from.path || options.from.agent || options.from.steps) &&
        !cairn_trace_from_check(&usage, &options.from, &exit_code))
        return exit_code;
    if (!cairn_output_parse(output, &options.json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (!cairn_deadline_parse(limit, &deadline))
        return cairn_usage_error(&usage, "--time-limit %s: expected milliseconds from 1 to 3600000",
                                 limit);
    return run(&options, &deadline);
}
