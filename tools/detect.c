/* tools/detect.c - `cairn detect`: who is slow, who hangs, and why, from a trace of collective timing. */
#include "base/json.h"
#include "replan/detect.h"
#include "replan/trace_read.h"
#include "tools/common.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 320, READ_BYTES = 1 << 20 };

static const char about[] =
    "Reads the timing of collectives (JSON Lines; \"-\" reads stdin) and says which ranks or nodes are slow or\n"
    "hang, which links, or that the plan is uneven and no device at fault: since when, by how much, how\n"
    "sure, on what evidence. Clocks need not be synchronised. docs/DETECTION.md has the format.";
static const char examples[] = "  cairn detect --trace job.jsonl\n"
                               "  cairn detect --trace job.jsonl -o json | jq '.verdicts[].kind'\n";

static bool
print_json(const struct cairn_detector *detector)
{
    const struct cairn_verdicts *verdicts = cairn_detector_verdicts(detector);
    struct cairn_detector_summary summary;
    struct cairn_json_writer writer;
    size_t text_bytes;
    char *text = NULL;

    cairn_detector_summarize(detector, &summary);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_write_key(&writer, "schema");
    cairn_json_write_u64(&writer, 1);
    cairn_json_write_key(&writer, "verdicts");
    cairn_json_write_array_begin(&writer);
    for (uint32_t i = 0; i < verdicts->count; i++) {
        const struct cairn_verdict *verdict = &verdicts->items[i];
        const struct cairn_u32_list *lists[] = {&verdict->ranks, &verdict->nodes, &verdict->victims};
        static const char *const keys[] = {"ranks", "nodes", "victims"};

        cairn_json_write_line(&writer);
        cairn_json_write_object_begin(&writer);
        cairn_json_write_key(&writer, "kind");
        cairn_json_write_string(&writer, cairn_verdict_kind_text(verdict->kind));
        for (size_t k = 0; k < 3; k++) {
            cairn_json_write_key(&writer, keys[k]);
            cairn_json_write_array_begin(&writer);
            for (uint32_t j = 0; j < lists[k]->count; j++)
                cairn_json_write_u64(&writer, lists[k]->items[j]);
            cairn_json_write_array_end(&writer);
        }
        cairn_json_write_key(&writer, "links");
        cairn_json_write_array_begin(&writer);
        for (uint32_t j = 0; j + 1 < verdict->links.count; j += 2) {
            cairn_json_write_array_begin(&writer);
            cairn_json_write_u64(&writer, verdict->links.items[j]);
            cairn_json_write_u64(&writer, verdict->links.items[j + 1]);
            cairn_json_write_array_end(&writer);
        }
        cairn_json_write_array_end(&writer);
        cairn_json_write_key(&writer, "since_step");
        cairn_json_write_u64(&writer, verdict->since_step);
        cairn_json_write_key(&writer, "until_step");
        if (verdict->until_step == CAIRN_STEP_NONE)
            cairn_json_write_null(&writer);
        else
            cairn_json_write_u64(&writer, verdict->until_step);
        cairn_json_write_key(&writer, "detected_step");
        cairn_json_write_u64(&writer, verdict->detected_step);
        cairn_json_write_key(&writer, "rate");
        cairn_json_write_double(&writer, verdict->rate);
        cairn_json_write_key(&writer, "confidence");
        cairn_json_write_double(&writer, verdict->confidence);
        cairn_json_write_key(&writer, "pattern");
        if (verdict->pattern)
            cairn_json_write_string(&writer, verdict->pattern);
        else
            cairn_json_write_null(&writer);
        cairn_json_write_key(&writer, "evidence");
        cairn_json_write_string(&writer, verdict->evidence);
        cairn_json_write_object_end(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_key(&writer, "steps");
    cairn_json_write_u64(&writer, summary.steps);
    cairn_json_write_key(&writer, "period_ms");
    cairn_json_write_double(&writer, summary.period_ms);
    cairn_json_write_key(&writer, "ranks_seen");
    cairn_json_write_u64(&writer, summary.ranks_seen);
    cairn_json_write_key(&writer, "records");
    cairn_json_write_u64(&writer, summary.records);
    cairn_json_write_key(&writer, "ignored");
    cairn_json_write_u64(&writer, summary.ignored);
    cairn_json_write_object_end(&writer);
    if (cairn_json_writer_done(&writer, &text, &text_bytes) != CAIRN_OK)
        return false;
    printf("%s\n", text);
    free(text);
    return true;
}

static void
print_list(const char *what, const struct cairn_u32_list *list)
{
    if (list->count == 0)
        return;
    printf(" %s%s", what, list->count > 1 ? "s" : "");
    for (uint32_t i = 0; i < list->count && i < 8; i++)
        printf("%s %" PRIu32, i > 0 ? "," : "", list->items[i]);
    if (list->count > 8)
        printf(" and %" PRIu32 " more", list->count - 8);
}

static void
print_text(const struct cairn_detector *detector, uint32_t world)
{
    const struct cairn_verdicts *verdicts = cairn_detector_verdicts(detector);
    struct cairn_detector_summary summary;

    cairn_detector_summarize(detector, &summary);
    printf("sees %" PRIu32 " of %" PRIu32 " ranks, %" PRIu32 " steps of %.1f ms, %" PRIu64 " operations\n",
           summary.ranks_seen, world, summary.steps, summary.period_ms, summary.records);
    if (verdicts->count == 0)
        printf("nothing is wrong\n");
    for (uint32_t i = 0; i < verdicts->count; i++) {
        const struct cairn_verdict *verdict = &verdicts->items[i];

        printf("%s%s%s:", cairn_verdict_kind_text(verdict->kind), verdict->pattern ? " " : "",
               verdict->pattern ? verdict->pattern : "");
        print_list("node", &verdict->nodes);
        print_list("rank", &verdict->ranks);
        printf(", %.2f times normal, from step %" PRIu32, verdict->rate, verdict->since_step);
        if (verdict->until_step != CAIRN_STEP_NONE)
            printf(" to %" PRIu32, verdict->until_step);
        printf(" (known at %" PRIu32 ", confidence %.2f)\n  %s\n", verdict->detected_step,
               verdict->confidence, verdict->evidence);
        if (verdict->victims.count > 0) {
            printf("  who waits for it:");
            print_list("rank", &verdict->victims);
            printf("\n");
        }
    }
}

static int
refuse(const char *path, uint64_t line, cairn_err err, const struct cairn_trace_fault *fault)
{
    char what[MESSAGE_BYTES];

    if (err == CAIRN_CORRUPT) {
        snprintf(what, sizeof what, "%s:%" PRIu64 ":%zu: %s", path, line, fault->column + 1, fault->why);
        cairn_tool_error("detect", what, NULL, "mend or leave out the line; docs/DETECTION.md has the format");
        return CAIRN_EXIT_INPUT;
    }
    cairn_tool_error("detect", cairn_err_text(err), NULL, NULL);
    return cairn_exit_code(err);
}

/* Reads the header and hands every other line to the detector. */
static int
read_trace(FILE *file, const char *path, struct cairn_topology **topology,
           struct cairn_detector **detector)
{
    struct cairn_trace_fault fault = {"", 0};
    struct cairn_record record;
    size_t room = 0;
    char *line = NULL;
    ssize_t bytes;
    uint64_t number = 0;
    cairn_err err = CAIRN_OK;

    while (!err && (bytes = getline(&line, &room, file)) >= 0) {
        size_t used = (size_t)bytes;

        number++;
        while (used > 0 && (line[used - 1] == '\n' || line[used - 1] == '\r'))
            used--;
        if (used == 0)
            continue;
        if (!*topology) {
            err = cairn_trace_read_header(line, used, topology, &fault);
            if (!err)
                err = cairn_detector_create(*topology, 0, detector);
            continue;
        }
        err = cairn_trace_read_line(*topology, line, used, &record, &fault);
        if (!err)
            err = cairn_detector_feed(*detector, &record);
    }
    free(line);
    if (!err && ferror(file)) {
        cairn_tool_error("detect", "the trace could not be read to its end", path, NULL);
        return CAIRN_EXIT_IO;
    }
    if (!err && !*topology) {
        fault = (struct cairn_trace_fault){"the trace is empty: its first line must be a header", 0};
        number = 1;
        err = CAIRN_CORRUPT;
    }
    if (!err)
        err = cairn_detector_finish(*detector);
    return err ? refuse(path, number, err, &fault) : CAIRN_EXIT_OK;
}

int
cairn_verb_detect(int argc, char **argv)
{
    const char *output = NULL, *path = NULL;
    const struct cairn_flag flags[] = {
        {"trace", 0, "FILE", "the trace; \"-\": stdin", &path, NULL},
        {"output", 'o', "FORMAT", "table or json", &output, NULL},
    };
    const struct cairn_usage usage = {"detect", "--trace FILE [-o table|json]", about, examples, flags,
                                      sizeof flags / sizeof *flags, false};
    struct cairn_topology *topology = NULL;
    struct cairn_detector *detector = NULL;
    int exit_code;
    bool json;
    FILE *file;

    if (!cairn_usage_parse(&usage, argc, argv, NULL, &exit_code))
        return exit_code;
    if (!path)
        return cairn_usage_error(&usage, "which trace? --trace FILE");
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o takes table or json, not \"%s\"", output);
    file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file) {
        cairn_tool_error("detect", "the trace cannot be opened", strerror(errno), "see --trace FILE");
        return CAIRN_EXIT_INPUT;
    }
    setvbuf(file, NULL, _IOFBF, READ_BYTES);
    exit_code = read_trace(file, path, &topology, &detector);
    if (exit_code == CAIRN_EXIT_OK && json && !print_json(detector))
        exit_code = CAIRN_EXIT_FAILED;
    else if (exit_code == CAIRN_EXIT_OK && !json)
        print_text(detector, topology->world);
    if (file != stdin)
        fclose(file);
    cairn_detector_destroy(detector);
    cairn_topology_destroy(topology);
    return exit_code;
}
