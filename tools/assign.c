/* tools/assign.c - `cairn assign`: sequences of different length to pipelines of different speed. */
#include "replan/assign.h"
#include "tools/common.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char about[] =
    "Gives each sequence of a problem file to a pipeline, so that the slowest pipeline ends as early as\n"
    "possible; filling and draining are counted. A bound that no assignment beats comes with it. Exit status 4\n"
    "where a sequence is too long for every pipeline. docs/PLANNER.md has the format and the formulas.";
static const char examples[] = "  cairn assign --problem sequences.json\n"
                               "  cairn assign --problem sequences.json -o json | jq .assignment\n";

static int
print_json(const struct cairn_assign_problem *problem, const struct cairn_assignment *assignment,
           double plan_ms)
{
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_write_key(&writer, "schema");
    cairn_json_write_u64(&writer, 1);
    cairn_json_write_key(&writer, "assignment");
    cairn_json_write_array_begin(&writer);
    for (uint32_t i = 0; i < problem->sequence_count; i++)
        cairn_json_write_u64(&writer, assignment->pipelines[i]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_line(&writer);
    cairn_json_write_key(&writer, "step_ms");
    cairn_json_write_double(&writer, assignment->step_ms);
    cairn_json_write_key(&writer, "lower_bound_ms");
    cairn_json_write_double(&writer, assignment->bound_ms);
    cairn_json_write_key(&writer, "gap");
    cairn_json_write_double(
        &writer, assignment->bound_ms > 0 ? assignment->step_ms / assignment->bound_ms - 1 : 0);
    cairn_json_write_key(&writer, "plan_ms");
    cairn_json_write_double(&writer, plan_ms);
    cairn_json_write_object_end(&writer);
    return cairn_planning_print("assign", &writer);
}

static void
print_table(const struct cairn_assign_problem *problem, const struct cairn_assignment *assignment,
            double plan_ms)
{
    printf("%-9s %-9s %s\n", "pipeline", "sequences", "tokens");
    for (uint32_t i = 0; i < problem->pipeline_count; i++) {
        uint64_t tokens = 0;
        uint32_t count = 0;

        for (uint32_t j = 0; j < problem->sequence_count; j++)
            if (assignment->pipelines[j] == i) {
                tokens += problem->tokens[j];
                count++;
            }
        printf("%-9" PRIu32 " %-9" PRIu32 " %" PRIu64 "\n", i, count, tokens);
    }
    printf("a step takes %.1f ms; no assignment takes less than %.1f ms; assigned in %.1f ms\n",
           assignment->step_ms, assignment->bound_ms, plan_ms);
}

static int
run(const char *path, bool json)
{
    struct cairn_assign_problem problem = {0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};
    struct cairn_deadline deadline;
    uint8_t *text = NULL;
    size_t text_bytes = 0;
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err;

    if (!cairn_planning_load("assign", path, &text, &text_bytes, &exit_code))
        return exit_code;
    err = cairn_assign_problem_read(text, text_bytes, &problem, &fault);
    free(text);
    if (err) {
        cairn_tool_error("assign", path, err == CAIRN_CORRUPT ? fault.text : cairn_err_text(err),
                         err == CAIRN_CORRUPT ? "docs/PLANNER.md has the format" : NULL);
        return cairn_exit_code(err);
    }
    (void)cairn_deadline_parse("1", &deadline); /* to see how long it takes */
    err = cairn_assign(&problem, &assignment, &fault);
    if (err == CAIRN_NOT_FOUND) {
        cairn_tool_error("assign", "a sequence has no place", fault.text,
                         "cut it before it is assigned, or give a pipeline that takes it");
        exit_code = CAIRN_EXIT_LOST;
    } else if (err) {
        cairn_tool_error("assign", "nothing was assigned", cairn_err_text(err), NULL);
        exit_code = cairn_exit_code(err);
    } else if (json) {
        exit_code = print_json(&problem, &assignment, cairn_deadline_elapsed_ms(&deadline));
    } else {
        print_table(&problem, &assignment, cairn_deadline_elapsed_ms(&deadline));
    }
    free(assignment.pipelines);
    cairn_assign_problem_fini(&problem);
    return exit_code;
}

int
cairn_verb_assign(int argc, char **argv)
{
    const char *output = NULL, *path = NULL;
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE", "sequences, their cost, pipelines (JSON)", &path, NULL},
        {"output", 'o', "FORMAT", "table or json", &output, NULL},
    };
    const struct cairn_usage usage = {"assign", "--problem FILE [-o table|json]", about, examples, flags,
                                      sizeof flags / sizeof *flags, false};
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!path)
        return cairn_usage_error(&usage, "--problem FILE is missing");
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o takes table or json, not \"%s\"", output);
    return run(path, json);
}
