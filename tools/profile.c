/* tools/profile.c - `cairn profile`: a problem with the times and rates that a trace shows. */
#include "replan/profile.h"
#include "replan/detect.h"
#include "tools/common.h"
#include "tools/planning.h"
#include "tools/trace_source.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char about[] =
    "Measures what `cairn plan` needs: prints the problem again, with the time of a layer, the vocabulary's weight and the\n"
    "devices' rates as the last 16 steps of a trace show them. The problem's \"current\" is the plan that ran then, and the\n"
    "ids of its devices are the ranks of the trace. Memory and links stay as the problem says. How well the times fit, and what they do\n"
    "not determine, is said on stderr; times that say nothing are refused.";
static const char examples[] = "  cairn profile --problem problem.json --trace job.jsonl > measured.json\n"
                               "  cairn plan --problem measured.json --explain\n";

/* What each rank computed in the last steps of the trace; *loads is the caller's. The exit code. */
static int
read_loads(const char *path, struct cairn_load **loads, uint32_t *rank_count)
{
    struct cairn_trace_source *source = NULL;
    struct cairn_detector *detector = NULL;
    const struct cairn_topology *topology;
    const struct cairn_record *records;
    int exit_code = cairn_trace_source_open("profile", path, &source);
    uint32_t count;
    cairn_err err;

    if (exit_code != CAIRN_EXIT_OK)
        return exit_code;
    topology = cairn_trace_source_topology(source);
    *rank_count = topology->world;
    *loads = calloc(topology->world, sizeof(**loads));
    err = *loads ? cairn_detector_create(topology, 0, &detector) : CAIRN_NOMEM;
    while (!err && cairn_trace_source_next(source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++)
            err = cairn_detector_feed(detector, &records[i]);
    if (!err)
        exit_code = cairn_trace_source_result(source);
    if (!err && exit_code == CAIRN_EXIT_OK)
        err = cairn_detector_finish(detector);
    for (uint32_t rank = 0; !err && rank < topology->world; rank++)
        cairn_detector_load(detector, rank, &(*loads)[rank]);
    cairn_detector_destroy(detector);
    cairn_trace_source_close(source);
    if (err) {
        cairn_tool_error("profile", cairn_err_text(err), NULL, NULL);
        exit_code = cairn_exit_code(err);
    }
    return exit_code;
}

static int
print(const struct cairn_problem *problem, const struct cairn_profiled *profiled)
{
    struct cairn_json_writer writer;
    cairn_err err;

    cairn_json_writer_init(&writer);
    err = cairn_problem_write(problem, &writer);
    if (err) {
        cairn_json_writer_fini(&writer);
        cairn_tool_error("profile", "the problem could not be put together", cairn_err_text(err), NULL);
        return cairn_exit_code(err);
    }
    (void)fprintf(stderr,
                  "a layer takes %.3f ms, first stages %.2f layers more, last ones %.2f; the times of %" PRIu32 " of %" PRIu32
                  " stages are %.1f %% off that (root mean square); %" PRIu32 " devices are slow\n",
                  problem->layer_ms, problem->embed_layers, problem->head_layers, profiled->fit.used, profiled->stages,
                  100 * profiled->fit.error_rms, profiled->slow_devices);
    if (profiled->vocabulary_kept)
        (void)fprintf(stderr, "not determined: the vocabulary's weight, since the stages are too much alike, or too few, to tell it apart from "
                              "layers: it is what the problem said\n");
    if (profiled->first_open)
        (void)fprintf(stderr, "not determined: whether the device of the only first stage is slow: it counts as healthy, and embed_layers has "
                              "what it takes longer: look at that before you plan with it\n");
    if (profiled->last_open)
        (void)fprintf(stderr, "not determined: whether the device of the only last stage is slow: it counts as healthy, and head_layers has "
                              "what it takes longer: look at that before you plan with it\n");
    if (profiled->kept_devices)
        (void)fprintf(stderr, "not determined: the rates of %" PRIu32 " devices, which were not measured: they are what the problem said\n",
                      profiled->kept_devices);
    (void)fprintf(stderr, "not measured at all: memory and links, which are what the problem said\n");
    return cairn_planning_print("profile", &writer);
}

static int
run(const char *problem_path, const char *trace_path)
{
    struct cairn_problem problem = {0};
    struct cairn_profiled profiled;
    struct cairn_fault fault = {""};
    struct cairn_load *loads = NULL;
    uint32_t rank_count = 0;
    int exit_code = CAIRN_EXIT_OK;
    cairn_err err;

    if (!cairn_planning_problem("profile", problem_path, &problem, &exit_code))
        return exit_code;
    exit_code = read_loads(trace_path, &loads, &rank_count);
    if (exit_code == CAIRN_EXIT_OK) {
        err = cairn_profile_take(&problem, loads, rank_count, &profiled, &fault);
        if (err) {
            cairn_tool_error("profile", "no times were found", err == CAIRN_INVAL ? fault.text : cairn_err_text(err),
                             err == CAIRN_INVAL ? "docs/PLANNER.md says what is measured" : NULL);
            exit_code = err == CAIRN_INVAL ? CAIRN_EXIT_INPUT : cairn_exit_code(err);
        } else {
            exit_code = print(&problem, &profiled);
        }
    }
    free(loads);
    cairn_problem_fini(&problem);
    return exit_code;
}

int
cairn_verb_profile(int argc, char **argv)
{
    const char *problem = NULL, *trace = NULL, *output = NULL;
    const struct cairn_flag flags[] = {
        {"problem", 0, "FILE", "what is planned for, with the plan that ran as \"current\" (JSON)", &problem, NULL},
        {"trace", 0, "FILE", "the trace of timing; \"-\": stdin", &trace, NULL},
        {"output", 'o', "json", "the only form there is", &output, NULL},
    };
    const struct cairn_usage usage = {"profile", "--problem FILE --trace FILE", about, examples, flags, sizeof flags / sizeof *flags,
                                      false};
    int exit_code;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (output && strcmp(output, "json") != 0)
        return cairn_usage_error(&usage, "-o takes json alone, not \"%s\": a problem is what `cairn plan` reads", output);
    if (!problem || !trace)
        return cairn_usage_error(&usage, "%s FILE is missing", problem ? "--trace" : "--problem");
    return run(problem, trace);
}
