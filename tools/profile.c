/* tools/profile.c - `cairn profile`: a problem with the times, rates, links and memory of a
 * trace. */
#include "tools/common.h"
#include "tools/measure.h"
#include "tools/planning.h"
#include "tools/verb.h"

#include <string.h>

static const char about[] =
    "Measures a planning problem from a trace: prints the problem with the layer time, the "
    "vocabulary's weight and the device rates of the last 16 steps, the link speeds of the last "
    "transfers, and the memory per layer (from lines with \"memory_bytes\").\n"
    "\n"
    "The problem's \"current\" must be the plan that ran, and its device ids the ranks of the "
    "trace. stderr tells how well the numbers fit, and which numbers the trace does not determine; "
    "these stay as they are in the problem.";
static const char examples[] =
    "  cairn profile --problem problem.json --trace job.jsonl > measured.json\n"
    "  cairn plan --problem measured.json --explain\n"
    "  cairn profile --problem problem.json --agent agent.sock > measured.json\n";

static int
print(const struct cairn_problem *problem)
{
    struct cairn_json_writer writer;
    cairn_err err;

    cairn_json_writer_init(&writer);
    err = cairn_problem_write(problem, &writer);
    if (err) {
        cairn_json_writer_fini(&writer);
        cairn_tool_error("profile", "the problem could not be assembled", cairn_err_text(err),
                         NULL);
        return cairn_exit_code(err);
    }
    return cairn_json_finish("profile", &writer);
}

static int
run(const char *problem_path, const struct cairn_trace_from *from)
{
    struct cairn_problem problem = {0};
    int exit_code = CAIRN_EXIT_OK;

    if (!cairn_planning_problem("profile", problem_path, &problem, &exit_code))
        return exit_code;
    exit_code = cairn_measure_problem("profile", from, &problem);
    if (exit_code == CAIRN_EXIT_OK)
        exit_code = print(&problem);
    cairn_problem_fini(&problem);
    return exit_code;
}

int
cairn_verb_profile(int argc, char **argv)
{
    const char *problem = NULL, *output = NULL;
    struct cairn_trace_from from = {NULL};
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE",
         "read the problem, with the plan that ran as \"current\", from this JSON file", &problem,
         NULL},
        CAIRN_TRACE_FLAGS(from),
        CAIRN_TRACE_STEPS_FLAG(from, "50"),
        {"output", 'o', "json", "accepted for scripts: the output is always JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "profile", "--problem FILE (--trace FILE | --agent SOCKET [--steps N])",
        about,     examples,
        flags,     sizeof flags / sizeof *flags,
        NULL,      NULL};
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (output && strcmp(output, "json") != 0)
        return cairn_usage_error(&usage, "-o %s: expected json; `cairn plan` reads nothing else",
                                 output);
    if (!problem)
        return cairn_usage_error(&usage, "--problem FILE is missing");
    if (!cairn_trace_from_check(&usage, &from, &exit_code))
        return exit_code;
    return run(problem, &from);
}
