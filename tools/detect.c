/* tools/detect.c - `cairn detect`: what is slow or hangs, and why, from a trace of collective
 * timing. */
#include "base/json.h"
#include "replan/detect/detect.h"
#include "tools/common.h"
#include "tools/live_trace.h"
#include "tools/detect_counts.h"
#include "tools/trace_source.h"
#include "tools/usage.h"
#include "tools/verb.h"
#include "tools/verdict_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { LIST_SHOWN = 8, RAS_WAIT_S = 10, RAS_WAIT_S_MAX = 3600 };

static const char about[] =
    "Finds ranks and nodes that are slow or hang, slow links, and uneven plans, from the timing of "
    "collectives: since when, by how much, how certain, on what evidence. Clocks need not be "
    "synchronised. docs/DETECTION.md has the format.\n"
    "\n"
    "Without a trace, NCCL's RAS port or dumps of PyTorch's Flight Recorder tell which ranks hang, "
    "from counts alone. Take the dumps when the job stands still.";
static const char examples[] =
    "  cairn detect --agent /run/cairn/agent.sock   # of the running job\n"
    "  cairn detect --trace job.jsonl\n"
    "  cairn detect --trace job.jsonl -o json | jq '.verdicts[].kind'\n"
    "  cairn detect --ras localhost:28028   # needs NCCL 2.28.7 or newer\n";

static bool
print_json(const struct cairn_detector *detector, uint64_t backward)
{
    const struct cairn_verdicts *verdicts = cairn_detector_verdicts(detector);
    struct cairn_detector_summary summary;
    struct cairn_json_writer writer;

    cairn_detector_summarize(detector, &summary);
    cairn_json_begin(&writer);
    cairn_json_put_array(&writer, "verdicts");
    for (uint32_t i = 0; i < verdicts->count; i++) {
        cairn_json_write_line(&writer);
        cairn_verdict_write(&writer, &verdicts->items[i]);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_put_u64(&writer, "steps", summary.steps);
    cairn_json_put_double(&writer, "period_ms", summary.period_ms);
    cairn_json_put_u64(&writer, "ranks_seen", summary.ranks_seen);
    cairn_json_put_u64(&writer, "records", summary.records);
    cairn_json_put_u64(&writer, "ignored", summary.ignored + backward);
    cairn_json_write_object_end(&writer);
    return cairn_json_print(&writer) == CAIRN_OK;
}

static void
print_text(const struct cairn_detector *detector, uint32_t world, uint64_t backward)
{
    const struct cairn_verdicts *verdicts = cairn_detector_verdicts(detector);
    struct cairn_detector_summary summary;

    cairn_detector_summarize(detector, &summary);
    printf("sees %" PRIu32 " of %" PRIu32 " ranks, %" PRIu32 " steps of %.1f ms, %" PRIu64
           " operations\n",
           summary.ranks_seen, world, summary.steps, summary.period_ms, summary.records);
    if (backward > 0)
        printf("%" PRIu64 " operations end before they start and are left out; check whether a "
               "clock was set\n",
               backward);
    if (verdicts->count == 0)
        printf("nothing is wrong\n");
    for (uint32_t i = 0; i < verdicts->count; i++) {
        const struct cairn_verdict *verdict = &verdicts->items[i];

        printf("%" PRIu32 ". %s%s%s:", i + 1, cairn_verdict_kind_text(verdict->kind),
               verdict->pattern ? " " : "", verdict->pattern ? verdict->pattern : "");
        cairn_verdict_print_list(stdout, "node", &verdict->nodes, LIST_SHOWN);
        cairn_verdict_print_list(stdout, "rank", &verdict->ranks, LIST_SHOWN);
        printf(", %.2f times normal, from step %" PRIu32, verdict->rate, verdict->since_step);
        if (verdict->until_step != CAIRN_STEP_NONE)
            printf(" to %" PRIu32, verdict->until_step);
        printf(" (known at %" PRIu32 ", confidence %.2f)\n  %s\n", verdict->detected_step,
               verdict->confidence, verdict->evidence);
        if (verdict->victims.count > 0) {
            printf("  who waits for it:");
            cairn_verdict_print_list(stdout, "rank", &verdict->victims, LIST_SHOWN);
            printf("\n");
        }
    }
}

/* Hands the whole trace to a detector. */
static int
detect(struct cairn_trace_source *source, struct cairn_detector **detector)
{
    const struct cairn_record *records;
    uint32_t count;
    cairn_err err = cairn_detector_create(cairn_trace_source_topology(source), 0, detector);

    while (!err && cairn_trace_source_next(source, &records, &count))
        for (uint32_t i = 0; !err && i < count; i++)
            err = cairn_detector_feed(*detector, &records[i]);
    if (!err) {
        int exit_code = cairn_trace_source_result(source);

        if (exit_code != CAIRN_EXIT_OK)
            return exit_code;
        err = cairn_detector_finish(*detector);
    }
    if (err)
        cairn_tool_error("detect", cairn_err_text(err), NULL, NULL);
    return cairn_exit_code(err);
}

static bool
parse_seconds(const char *text, uint32_t *out)
{
    char *end;
    unsigned long value;

    errno = 0;
    value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < 1 ||
        value > RAS_WAIT_S_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

int
cairn_verb_detect(int argc, char **argv)
{
    const char *output = NULL, *ras = NULL, *dumps = NULL, *seconds = NULL;
    struct cairn_trace_from from = {NULL};
    uint32_t wait_s = RAS_WAIT_S;
    const struct cairn_flag flags[] = {
        CAIRN_TRACE_FLAGS(from),
        CAIRN_TRACE_STEPS_FLAG(from, "1000"),
        {"ras", 0, "HOST:PORT", "ask NCCL's RAS port (NCCL_RAS_ADDR, localhost:28028)", &ras, NULL},
        {"seconds", 0, "N", "with --ras: report counts that stand still this long (default: 10)",
         &seconds, NULL},
        {"flight-recorder", 0, "DIR", "read a JSON dump of each rank from this folder", &dumps,
         NULL},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    const struct cairn_usage usage = {
        "detect",
        "--trace FILE | --agent SOCKET [--steps N] | --ras HOST:PORT [--seconds N] | "
        "--flight-recorder DIR [-o table|json]",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};
    struct cairn_trace_source *source = NULL;
    struct cairn_detector *detector = NULL;
    int exit_code;
    bool json;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if ((from.path || from.agent || from.steps) + (ras != NULL) + (dumps != NULL) != 1)
        return cairn_usage_error(&usage,
                                 "which trace? --trace FILE or --agent SOCKET; or one of --ras and "
                                 "--flight-recorder");
    if (!ras && !dumps && !cairn_trace_from_check(&usage, &from, &exit_code))
        return exit_code;
    if (seconds && (!ras || !parse_seconds(seconds, &wait_s)))
        return cairn_usage_error(&usage, "--seconds %s: expected a number from 1 to %d, with --ras",
                                 seconds, RAS_WAIT_S_MAX);
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (ras)
        return cairn_detect_ras(ras, wait_s, json);
    if (dumps)
        return cairn_detect_dumps(dumps, json);
    exit_code = cairn_trace_source_open("detect", &from, CAIRN_LIVE_STEPS_MAX, &source);
    if (exit_code == CAIRN_EXIT_OK)
        exit_code = detect(source, &detector);
    if (exit_code == CAIRN_EXIT_OK && json &&
        !print_json(detector, cairn_trace_source_backward(source)))
        exit_code = CAIRN_EXIT_FAILED;
    else if (exit_code == CAIRN_EXIT_OK && !json)
        print_text(detector, cairn_trace_source_topology(source)->world,
                   cairn_trace_source_backward(source));
    cairn_detector_destroy(detector);
    cairn_trace_source_close(source);
    return exit_code;
}
