/* tools/bench.c - `cairn bench`: one stage against its floor, as a table for people or as JSON. */
#include "tools/bench.h"

#include "agent/process/config.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "tools/bench_cluster.h"
#include "tools/common.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char about[] =
    "Measures stages, each against its floor in the same run. Stages:\n"
    "  capture    copy with checksum, against a plain copy\n"
    "  device     capture from a CUDA device, against the driver's copy; skipped without a device\n"
    "  erasure    encode, fold and rebuild, against bare ISA-L\n"
    "  transport  payloads between two processes, against bare TCP on loopback\n"
    "  protect    CPU time from begin to commit on several agents, against the sum of its stages\n"
    "  restore    CPU time to rebuild lost nodes, against decoding and moving alone\n"
    "  migrate    standstill of a move of 1 GiB between two agents, against copying and sending "
    "it\n"
    "  reshard    change the layout in memory, against memcpy\n"
    "  convert    change the layout in files, against copying them\n"
    "  disk       write and read a file by io_uring and by threads, against one call after the "
    "other\n"
    "  scrub      comparing memory with its checksums in the background, against 1 % of a "
    "processor\n"
    "  history    recording commits and timed operations, merging histories, against copying them\n"
    "  timing     calls of NCCL's profiler plugin, against reading the clock and copying the "
    "records\n"
    "  detect     timing records through reports and analysis, against reading them\n"
    "  plan       steps of plans and assignments, against proven bounds\n"
    "  all        every stage, one line each\n"
    "\n"
    "A ratio is value / floor. Numbers are medians over rounds, which alternate with the floor's.";

static const char examples[] = "  cairn bench all\n"
                               "  cairn bench capture\n"
                               "  cairn bench protect --size 256MiB --rounds 9\n"
                               "  cairn bench restore --nodes 6 --parity 2 -o json\n";

static const struct stage {
    const char *name;
    cairn_err (*run)(const struct cairn_bench_options *options, struct cairn_bench_report *report);
    bool has_size;  /* takes --size */
    bool has_nodes; /* takes --nodes, --parity and --keep */
} stages[] = {
    {"capture", cairn_bench_capture, true, false},
    {"device", cairn_bench_device, true, false},
    {"erasure", cairn_bench_erasure, true, false},
    {"transport", cairn_bench_transport, true, false},
    {"protect", cairn_bench_protect, true, true},
    {"restore", cairn_bench_restore, true, true},
    {"migrate", cairn_bench_migrate, true, false},
    {"reshard", cairn_bench_reshard, true, false},
    {"convert", cairn_bench_convert, true, false},
    {"disk", cairn_bench_disk, true, false},
    {"scrub", cairn_bench_scrub, true, false},
    {"history", cairn_bench_history, false, false},
    {"timing", cairn_bench_timing, false, false},
    {"detect", cairn_bench_detect, false, false},
    {"plan", cairn_bench_plan, false, false},
};
enum { STAGE_COUNT = sizeof stages / sizeof stages[0] };

/* ---- the machine ---- */

struct machine {
    long cores;
    uint64_t memory_bytes;
    char model[128];
};

/* The value of the first line "key : value" of /proc/cpuinfo; "unknown" without one. */
static void
read_model(char *model, size_t model_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    (void)snprintf(model, model_bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = '\0';
        (void)snprintf(model, model_bytes, "%s", value);
        break;
    }
    if (file)
        (void)fclose(file);
}

static void
read_machine(struct machine *out)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);

    out->cores = sysconf(_SC_NPROCESSORS_ONLN);
    out->memory_bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    read_model(out->model, sizeof out->model);
}

/* ---- output ---- */

static double
ratio_of(const struct cairn_bench_case *value)
{
    return value->floor > 0 ? value->value / value->floor : 0;
}

/* How far a case is from its bound: below 1 the promise is broken. */
static double
reach(const struct cairn_bench_case *value)
{
    double ratio = ratio_of(value);

    return value->at_most ? (ratio > 0 ? value->bound / ratio : 0) : ratio / value->bound;
}

/* The case that represents the stage: of those with a promise, the one nearest to breaking it. */
static const struct cairn_bench_case *
headline(const struct cairn_bench_report *report)
{
    const struct cairn_bench_case *worst = NULL;

    for (uint32_t i = 0; i < report->case_count; i++) {
        const struct cairn_bench_case *value = &report->cases[i];

        if (value->bound > 0 && (!worst || reach(value) < reach(worst)))
            worst = value;
    }
    return worst ? worst : &report->cases[0];
}

static void
write_case(struct cairn_json_writer *writer, const struct cairn_bench_case *value)
{
    cairn_json_put_string(writer, "case", value->name);
    cairn_json_put_double(writer, "value", value->value);
    cairn_json_put_string(writer, "unit", value->unit);
    cairn_json_put_double(writer, "floor", value->floor);
    cairn_json_put_string(writer, "floor_unit", value->unit);
    cairn_json_put_double(writer, "ratio", ratio_of(value));
    cairn_json_write_key(writer, "bound");
    if (value->bound > 0)
        cairn_json_write_double(writer, value->bound);
    else
        cairn_json_write_null(writer);
    cairn_json_put_string(writer, "better", value->at_most ? "less" : "more");
    cairn_json_put_u64(writer, "bytes", value->bytes);
    cairn_json_put_u64(writer, "threads", value->threads);
    cairn_json_put_double(writer, "cpu_seconds_per_gib", value->cpu_seconds_per_gib);
    cairn_json_put_string(writer, "command", value->command);
}

static void
write_machine(struct cairn_json_writer *writer, const struct machine *machine)
{
    cairn_json_put_object(writer, "machine");
    cairn_json_put_u64(writer, "cores", machine->cores > 0 ? (uint64_t)machine->cores : 0);
    cairn_json_put_string(writer, "model", machine->model);
    cairn_json_put_u64(writer, "memory_bytes", machine->memory_bytes);
    cairn_json_write_object_end(writer);
}

/* The fields of a stage, in an object that is begun. */
static void
write_report(struct cairn_json_writer *writer, const struct cairn_bench_report *report)
{
    cairn_json_put_string(writer, "stage", report->stage);
    if (report->skipped) {
        cairn_json_put_string(writer, "skipped", report->skipped);
        return;
    }
    write_case(writer, headline(report));
    cairn_json_put_array(writer, "cases");
    for (uint32_t i = 0; i < report->case_count; i++) {
        cairn_json_write_line(writer);
        cairn_json_write_object_begin(writer);
        write_case(writer, &report->cases[i]);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_put_object(writer, "details");
    for (uint32_t i = 0; i < report->detail_count; i++)
        cairn_json_put_double(writer, report->details[i].name, report->details[i].value);
    cairn_json_write_object_end(writer);
}

static int
print_json(const struct cairn_bench_report *report, const struct machine *machine)
{
    struct cairn_json_writer writer;

    cairn_json_begin(&writer);
    write_report(&writer, report);
    write_machine(&writer, machine);
    cairn_json_write_object_end(&writer);
    return cairn_json_finish("bench", &writer);
}

static void
print_line(const struct cairn_bench_report *report)
{
    const struct cairn_bench_case *value;

    if (report->skipped) {
        (void)printf("%-10s skipped: %s\n", report->stage, report->skipped);
        return;
    }
    value = headline(report);
    (void)printf("%-10s %-32s %9.3f %9.3f %-9s %6.3f", report->stage, value->name, value->value,
                 value->floor, value->unit, ratio_of(value));
    if (value->bound > 0)
        (void)printf("  %s %.2f  %s", value->at_most ? "<=" : ">=", value->bound,
                     reach(value) >= 1 ? "reached" : "missed");
    (void)printf("\n");
    (void)fflush(stdout);
}

static void
print_table(const struct cairn_bench_report *report, const struct machine *machine)
{
    char memory[CAIRN_SHOWN_BYTES], bytes[CAIRN_SHOWN_BYTES];

    (void)printf("%s on %ld cores, %s, %s\n", report->stage, machine->cores, machine->model,
                 cairn_show_bytes(machine->memory_bytes, memory));
    (void)printf("%-38s %9s %9s %-9s %6s %-8s %10s %8s\n", "case", "value", "floor", "unit",
                 "ratio", "promised", "bytes", "CPU s/GiB");
    for (uint32_t i = 0; i < report->case_count; i++) {
        const struct cairn_bench_case *value = &report->cases[i];
        char bound[16] = "";

        if (value->bound > 0)
            (void)snprintf(bound, sizeof bound, "%s %.2f",
                           value->at_most ? "<=" : ">=", value->bound);
        (void)printf("%-38s %9.3f %9.3f %-9s %6.3f %-8s %10s %8.4f\n", value->name, value->value,
                     value->floor, value->unit, ratio_of(value), bound,
                     cairn_show_bytes(value->bytes, bytes), value->cpu_seconds_per_gib);
    }
    for (uint32_t i = 0; i < report->case_count; i++)
        if (i == 0 || strcmp(report->cases[i].command, report->cases[i - 1].command) != 0)
            (void)printf("floor: %s\n", report->cases[i].command);
    for (uint32_t i = 0; i < report->detail_count; i++)
        (void)printf("  %-40s %.6g\n", report->details[i].name, report->details[i].value);
}

/* ---- the command line ---- */

/* A whole number in its bounds; else false. Without a text sets nothing. */
static bool
take_number(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
    unsigned long value;
    char *end;

    if (!text)
        return true;
    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || end == text || *end || text[0] < '0' || text[0] > '9' || value < min ||
        value > max)
        return false;
    *out = (uint32_t)value;
    return true;
}

static const struct stage *
find_stage(const struct cairn_usage *usage, const char *name, int *exit_code)
{
    const char *names[STAGE_COUNT], *near;

    for (size_t i = 0; i < STAGE_COUNT; i++) {
        if (strcmp(name, stages[i].name) == 0)
            return &stages[i];
        names[i] = stages[i].name;
    }
    near = cairn_nearest(name, names, STAGE_COUNT);
    *exit_code =
        near ? cairn_usage_error(usage, "unknown stage \"%s\"; did you mean \"%s\"?", name, near)
             : cairn_usage_error(usage, "unknown stage \"%s\"; see `cairn help bench`", name);
    return NULL;
}

static cairn_err
measure(const struct stage *stage, const struct cairn_bench_options *options,
        struct cairn_bench_report *report)
{
    cairn_err err;

    report->stage = stage->name;
    err = stage->run(options, report);
    if (!err && report->case_count == 0 && !report->skipped)
        err = CAIRN_INTERNAL;
    if (err)
        cairn_tool_error("bench", "the measurement failed", cairn_err_text(err),
                         "the reason is in the lines above");
    return err;
}

static int
run_one(const struct stage *stage, const struct cairn_bench_options *options, bool json)
{
    static struct cairn_bench_report report;
    struct machine machine;
    cairn_err err = measure(stage, options, &report);

    if (err)
        return cairn_exit_code(err);
    read_machine(&machine);
    if (json)
        return print_json(&report, &machine);
    if (report.skipped)
        print_line(&report);
    else
        print_table(&report, &machine);
    return CAIRN_EXIT_OK;
}

/* Runs every stage. Each is represented by its worst case. */
static int
run_all(const struct cairn_bench_options *options, bool json)
{
    static struct cairn_bench_report reports[STAGE_COUNT];
    char memory[CAIRN_SHOWN_BYTES];
    struct cairn_json_writer writer;
    struct machine machine;

    read_machine(&machine);
    if (!json)
        (void)printf("%ld cores, %s, %s\n%-10s %-32s %9s %9s %-9s %6s  promised\n", machine.cores,
                     machine.model, cairn_show_bytes(machine.memory_bytes, memory), "stage", "case",
                     "value", "floor", "unit", "ratio");
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        cairn_err err = measure(&stages[i], options, &reports[i]);

        if (err)
            return cairn_exit_code(err);
        if (!json)
            print_line(&reports[i]);
    }
    if (!json)
        return CAIRN_EXIT_OK;
    cairn_json_begin(&writer);
    write_machine(&writer, &machine);
    cairn_json_put_array(&writer, "stages");
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        cairn_json_write_line(&writer);
        cairn_json_write_object_begin(&writer);
        write_report(&writer, &reports[i]);
        cairn_json_write_object_end(&writer);
    }
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    return cairn_json_finish("bench", &writer);
}

int
cairn_verb_bench(int argc, char **argv)
{
    const char *size = NULL, *rounds = NULL, *nodes = NULL, *parity = NULL, *output = NULL;
    struct cairn_bench_options options = {0};
    const struct cairn_flag flags[] = {
        {"size", 0, "SIZE",
         "use this many bytes of state; per node for protect and restore; not for timing, detect "
         "and plan",
         &size, NULL},
        {"rounds", 0, "N", "measure N times, 1 to 31", &rounds, NULL},
        {"nodes", 0, "N", "protect, restore: run N agents, 2 to 24 (default: 6)", &nodes, NULL},
        {"parity", 0, "M", "protect, restore: lose M nodes, 1 to 4 (default: 2)", &parity, NULL},
        {"keep", 0, NULL, "protect, restore: keep configurations and logs", NULL, &options.keep},
        {"output", 'o', "table|json", "print a table (default) or JSON", &output, NULL},
    };
    char names[160] = "all";
    const struct cairn_usage usage = {
        "bench",
        "STAGE [--size SIZE] [--rounds N] [--nodes N] [--parity M] [--keep] [-o table|json]",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        names,
        NULL};
    const struct stage *stage = NULL;
    int operand, exit_code;
    bool json, all;

    for (size_t i = 0; i < STAGE_COUNT; i++) {
        size_t used = strlen(names);

        snprintf(names + used, sizeof names - used, "|%s", stages[i].name);
    }
    /* Moves a stage before the options behind them. */
    if (argc > 2 && argv[1][0] != '-') {
        char *name = argv[1];

        memmove(&argv[1], &argv[2], (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = name;
    }
    if (!cairn_usage_parse(&usage, argc, argv, &operand, &exit_code))
        return exit_code;
    if (operand + 1 != argc)
        return cairn_usage_error(&usage, operand == argc ? "which stage? name one, or \"all\""
                                                         : "one stage at a time");
    all = strcmp(argv[operand], "all") == 0;
    if (!all)
        stage = find_stage(&usage, argv[operand], &exit_code);
    if (!all && !stage)
        return exit_code;
    if (!cairn_output_parse(output, &json))
        return cairn_usage_error(&usage, "-o %s: expected table or json", output);
    if (size &&
        (cairn_parse_bytes(size, &options.bytes) != CAIRN_OK ||
         options.bytes < 64 * (uint64_t)CAIRN_BLOCK_BYTES || options.bytes > (uint64_t)64 << 30))
        return cairn_usage_error(&usage, "--size %s: expected 4MiB to 64GiB", size);
    if (!take_number(rounds, 1, CAIRN_BENCH_ROUNDS_MAX, &options.rounds))
        return cairn_usage_error(&usage, "--rounds %s: expected a number from 1 to %d", rounds,
                                 CAIRN_BENCH_ROUNDS_MAX);
    if (!take_number(nodes, 2, CAIRN_BENCH_NODES_MAX, &options.nodes))
        return cairn_usage_error(&usage, "--nodes %s: expected a number from 2 to %d", nodes,
                                 CAIRN_BENCH_NODES_MAX);
    if (!take_number(parity, 1, 4, &options.parity))
        return cairn_usage_error(&usage, "--parity %s: expected a number from 1 to 4", parity);
    if (2 * (options.parity ? options.parity : CAIRN_BENCH_PARITY) >
        (options.nodes ? options.nodes : CAIRN_BENCH_NODES))
        return cairn_usage_error(&usage,
                                 "--parity: at most half of the nodes; lower it or raise --nodes");
    if (stage && !stage->has_size && size)
        return cairn_usage_error(&usage, "--size %s: %s has no size; omit it", size, stage->name);
    if (stage && !stage->has_nodes && (nodes || parity || options.keep))
        return cairn_usage_error(&usage,
                                 "--nodes, --parity and --keep are for protect and restore; "
                                 "omit them");
    cairn_log_setup(CAIRN_LOG_ERROR, NULL, NULL);
    return all ? run_all(&options, json) : run_one(stage, &options, json);
}
