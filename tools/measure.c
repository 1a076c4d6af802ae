/* tools/measure.c - a problem with the times, rates, links and memory of a trace; see measure.h. */
#include "tools/measure.h"

#include "replan/detect/detect.h"
#include "replan/profile/links.h"
#include "replan/profile/memory.h"
#include "replan/profile/profile.h"
#include "tools/common.h"
#include "tools/live_trace.h"
#include "tools/verb.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFF_NOTED 0.05 /* of a device's memory */

/* A trace's measurements; the caller ends them with end_measured. */
struct measured {
    struct cairn_trace_source *source; /* has the topology, and what devices held */
    struct cairn_load *loads;
    struct cairn_transfers *transfers;
    uint32_t rank_count;
};

static void
end_measured(struct measured *measured)
{
    cairn_transfers_destroy(measured->transfers);
    cairn_trace_source_close(measured->source);
    free(measured->loads);
}

/* Reads the trace to its end: what ranks computed in the last steps, and what transfers took. The
 * exit code. */
static int
read_trace(const char *verb, const struct cairn_trace_from *from, struct measured *measured)
{
    struct cairn_detector *detector = NULL;
    const struct cairn_topology *topology;
    const struct cairn_record *records;
    int exit_code =
        cairn_trace_source_open(verb, from, CAIRN_LIVE_STEPS_DEFAULT, &measured->source);
    uint32_t count;
    cairn_err err;

    if (exit_code != CAIRN_EXIT_OK)
        return exit_code;
    topology = cairn_trace_source_topology(measured->source);
    measured->rank_count = topology->world;
    measured->loads = calloc(topology->world, sizeof(*measured->loads));
    err = measured->loads ? cairn_detector_create(topology, 0, &detector) : CAIRN_NOMEM;
    if (!err)
        err = cairn_transfers_create(topology, &measured->transfers);
    while (!err && cairn_trace_source_next(measured->source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++) {
            err = cairn_detector_feed(detector, &records[i]);
            if (!err)
                err = cairn_transfers_feed(measured->transfers, &records[i]);
        }
    if (!err)
        exit_code = cairn_trace_source_result(measured->source);
    if (!err && exit_code == CAIRN_EXIT_OK)
        err = cairn_detector_finish(detector);
    for (uint32_t rank = 0; !err && rank < topology->world; rank++)
        cairn_detector_load(detector, rank, &measured->loads[rank]);
    cairn_detector_destroy(detector);
    if (err) {
        cairn_tool_error(verb, cairn_err_text(err), NULL, NULL);
        exit_code = cairn_exit_code(err);
    }
    return exit_code;
}

static void
say_times(const struct cairn_problem *problem, const struct cairn_profiled *profiled)
{
    (void)fprintf(
        stderr,
        "a layer takes %.3f ms, first stages %.2f layers more, last stages %.2f; the times "
        "of %" PRIu32 " of %" PRIu32 " stages are %.1f %% off that (root mean square); %" PRIu32
        " devices are slow\n",
        problem->layer_ms, problem->embed_layers, problem->head_layers, profiled->fit.used,
        profiled->stages, 100 * profiled->fit.error_rms, profiled->slow_devices);
    if (profiled->vocabulary_kept)
        (void)fprintf(stderr, "not determined: the vocabulary's weight, since the stages are too "
                              "much alike, or too few, to tell it apart from "
                              "layers: it is what the problem said\n");
    if (profiled->first_open)
        (void)fprintf(stderr, "not determined: whether the device of the only first stage is slow: "
                              "it counts as healthy, and embed_layers has "
                              "what it takes longer; look at that before you plan with it\n");
    if (profiled->last_open)
        (void)fprintf(stderr, "not determined: whether the device of the only last stage is slow: "
                              "it counts as healthy, and head_layers has "
                              "what it takes longer; look at that before you plan with it\n");
    if (profiled->kept_devices)
        (void)fprintf(stderr,
                      "not determined: the rates of %" PRIu32
                      " devices, which were not measured: they are what the problem said\n",
                      profiled->kept_devices);
}

static void
say_links(const struct cairn_problem *problem, const struct cairn_profiled_links *links)
{
    static const char *const ops[CAIRN_OPS] = {
#define OP_NAME(symbol, value, text) [value] = text,
        CAIRN_COLLECTIVE_LIST(OP_NAME)
#undef OP_NAME
    };
    static const char *const places[CAIRN_LINK_SCOPES] = {"within nodes", "between nodes"};
    static const char *const keys[CAIRN_LINK_SCOPES] = {"intra", "inter"};

    for (int i = 0; i < CAIRN_LINK_SCOPES; i++) {
        const struct cairn_profiled_link *link = &links->scopes[i];
        bool is_said = (i == CAIRN_LINK_INTRA ? problem->intra_gbps : problem->inter_gbps) > 0;

        if (link->told)
            (void)fprintf(stderr, "%s a device gets %.1f Gb/s, by %" PRIu32 " transfers of %s\n",
                          places[i], link->gbps, link->transfers, ops[link->op]);
        else
            (void)fprintf(
                stderr, "not determined: link_gbps.%s, since too few transfers %s %s: %s\n",
                keys[i], places[i], link->at_odds ? "can be used" : "were seen from begin to end",
                is_said ? "it is what the problem said" : "the problem does not say it either");
        if (link->at_odds)
            (void)fprintf(stderr,
                          "not used: all_gather and reduce_scatter %s, which contradict each "
                          "other; check that \"bytes\" is what each rank gives\n",
                          places[i]);
    }
    if (links->unpaired)
        (void)fprintf(stderr,
                      "not used: the bandwidth %s, since link_gbps needs both; give link_gbps in "
                      "the problem\n",
                      places[links->scopes[CAIRN_LINK_INTER].told]);
    if (links->node_pairs)
        (void)fprintf(stderr, "%" PRIu32 " of %" PRIu32 " pairs of nodes have slow links\n",
                      links->slow_links + links->passed_links + links->unknown_links,
                      links->node_pairs);
    else
        (void)fprintf(stderr, "not determined: slow_links, since less than three pairs of nodes "
                              "have comparable channels of their own\n");
    if (links->unknown_links)
        (void)fprintf(
            stderr,
            "not used: the slow links of %" PRIu32
            " pairs of nodes, since the bandwidth between nodes is not known; give link_gbps "
            "in the problem\n",
            links->unknown_links);
    if (links->kept_links)
        (void)fprintf(stderr,
                      "not determined: %" PRIu32
                      " slow links that the problem names: they are as it said\n",
                      links->kept_links);
    if (links->passed_links)
        (void)fprintf(stderr,
                      "left out: %" PRIu32 " slow links beyond the %d that a problem may have\n",
                      links->passed_links, CAIRN_PROBLEM_SLOW_LINKS_MAX);
}

static void
say_memory(const struct cairn_problem *problem, const struct cairn_profiled_memory *memory)
{
    const struct cairn_memory_told *told = &memory->told;

    if (memory->outside)
        (void)fprintf(
            stderr, "not used: the memory of %" PRIu32 " ranks that are in no stage of the plan\n",
            memory->outside);
    if (memory->devices == 0) {
        (void)fprintf(stderr, "not measured: memory; no line of the trace has \"memory_bytes\", "
                              "so the problem's value stays\n");
        return;
    }
    (void)fprintf(stderr,
                  "layer_bytes %" PRIu64 " (%s), activation_bytes %" PRIu64
                  " (%s), reserved_bytes %" PRIu64 " (%s): at most %.1f %% "
                  "%s what %" PRIu32 " devices held\n",
                  problem->layer_bytes, told->layer ? "measured" : "as the problem said",
                  problem->activation_bytes, told->activation ? "measured" : "as the problem said",
                  problem->reserved_bytes, told->reserved ? "measured" : "as the problem said",
                  100 * fabs(memory->off_worst), memory->off_worst < 0 ? "below" : "above",
                  memory->devices);
    if (memory->contradicts)
        (void)fprintf(stderr, "not determined: memory, since by what was measured layers hold "
                              "nothing: it is what the problem said\n");
    else if (!told->layer || !told->activation || !told->reserved)
        (void)fprintf(
            stderr,
            "not determined: the sizes that are as the problem said, since the stages are too much "
            "alike to tell them apart%s\n",
            fabs(memory->off_worst) > OFF_NOTED
                ? ": with them the problem does not say what was measured, so look at that before "
                  "you plan with it"
                : "");
}

/* Changes the problem to what was measured, and reports how well it is known. Returns the exit
 * code. */
static int
take(const char *verb, struct cairn_problem *problem, const struct measured *measured)
{
    const struct cairn_topology *topology = cairn_trace_source_topology(measured->source);
    struct cairn_profiled profiled;
    struct cairn_profiled_links links;
    struct cairn_profiled_memory memory;
    struct cairn_fault fault = {""};
    cairn_err err =
        cairn_profile_take(problem, measured->loads, measured->rank_count, &profiled, &fault);

    if (err) {
        cairn_tool_error(verb, "no times were found",
                         err == CAIRN_INVAL ? fault.text : cairn_err_text(err),
                         err == CAIRN_INVAL ? "docs/PLANNER.md says what is measured" : NULL);
        return err == CAIRN_INVAL ? CAIRN_EXIT_INPUT : cairn_exit_code(err);
    }
    err = cairn_profile_links(problem, topology, measured->transfers, &links);
    if (!err)
        err = cairn_profile_memory(problem, cairn_trace_source_memory(measured->source),
                                   measured->rank_count, &memory);
    if (err) {
        cairn_tool_error(verb, cairn_err_text(err), NULL, NULL);
        return cairn_exit_code(err);
    }
    say_times(problem, &profiled);
    say_links(problem, &links);
    say_memory(problem, &memory);
    return CAIRN_EXIT_OK;
}

int
cairn_measure_problem(const char *verb, const struct cairn_trace_from *from,
                      struct cairn_problem *problem)
{
    struct measured measured = {0};
    int exit_code = read_trace(verb, from, &measured);

    if (exit_code == CAIRN_EXIT_OK)
        exit_code = take(verb, problem, &measured);
    end_measured(&measured);
    return exit_code;
}
