/*
 * tools/demo_options.c - the command line of `cairn demo`.
 */
#include "tools/demo.h"

#include "tools/common.h"
#include "tools/usage.h"
#include "tools/verb.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 100000, SPILL_MAX = 1000000, SLOW_MAX = 100 };

const char *const demo_fault_names[] = {
    [DEMO_FAULT_NODE] = "node", [DEMO_FAULT_TRAINER] = "trainer", [DEMO_FAULT_AGENT] = "agent"};

static const char about[] =
    "Runs the whole system on this machine: one agent and one rank per node, a real training job "
    "on real text, faults, restores, and a report. A second job without protection and faults runs "
    "in turns with it, to compare results and speed. Needs no GPU, no root and no network, and "
    "removes its files unless --dir is given.\n"
    "\n"
    "A killed node loses its agent, its trainer and its memory. A kill waits until there is a "
    "generation to restore (a spilled one, if more nodes die than --parity covers). The default is "
    "--kill 1,4@30.\n"
    "\n"
    "With --slow, devices are emulated: the device of one rank becomes slow for some steps, the "
    "replicas' shares of the micro-batches and the layers of the stages follow, and the report "
    "compares step times with the planner's. Only trainers are killed then, at a point of the "
    "first move of layers: enter, fill, vote or adopt.";

static const char examples[] =
    "  cairn demo                             # lose two of six nodes at once\n"
    "  cairn demo --kill 1@15 --kill 3,5@35   # lose nodes at different steps\n"
    "  cairn demo --kill trainer:2@20         # lose a trainer: rebuild nothing\n"
    "  cairn demo --kill agent:2@20           # lose an agent: training goes on\n"
    "  cairn demo --kill 0,1,2@30 --spill 10  # lose too many: restore from files\n"
    "  cairn demo --slow 4:2@20-120 --steps 240   # a slow device: work moves off\n"
    "  cairn demo --slow 4:2@20-120 --steps 240 --kill trainer:5@vote\n";

static bool
read_number(const char **at, uint64_t max, uint64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0 && *out <= max;
}

static bool
parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    return read_number(&text, max, out) && *text == '\0' && *out >= min;
}

/* A point of a move of layers, for a trainer's death; NULL: none. */
static const char *
find_point(const char *text)
{
    static const char *const points[] = {"enter", "fill", "vote", "adopt"};

    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        if (strcmp(text, points[i]) == 0)
            return points[i];
    return NULL;
}

/* When the faults from `first` on happen: "30", and with --slow "vote"; reports errors. */
static bool
parse_moment(const struct cairn_usage *usage, const char *text, const char *moment,
             struct demo_options *options, uint32_t first)
{
    const char *point = find_point(moment);
    uint64_t number = 0;

    if (options->slow.text && (!point || options->faults[first].kind != DEMO_FAULT_TRAINER)) {
        cairn_usage_error(usage,
                          "--kill %s: with --slow only trainers are killed, in a move of layers; "
                          "expected trainer:N@enter, fill, vote or adopt",
                          text);
        return false;
    }
    if (point && !options->slow.text) {
        cairn_usage_error(usage, "--kill %s: layers move with --slow only; give a step, or --slow",
                          text);
        return false;
    }
    if (!point && !parse_number(moment, 0, UINT64_MAX, &number)) {
        cairn_usage_error(usage, "--kill %s: expected [node:|trainer:|agent:]N,N…@STEP", text);
        return false;
    }
    if (!point && (number == 0 || number >= options->steps)) {
        cairn_usage_error(usage, "--kill %s: step %llu is outside the run; expected 1 to %llu",
                          text, (unsigned long long)number, (unsigned long long)options->steps - 1);
        return false;
    }
    for (uint32_t i = first; i < options->fault_count; i++) {
        options->faults[i].point = point;
        options->faults[i].step = number;
    }
    return true;
}

/* "1,4@30", "trainer:2@20", "agent:0@5", "trainer:5@vote"; reports errors. */
static bool
parse_kill(const struct cairn_usage *usage, const char *text, struct demo_options *options)
{
    struct demo_fault fault = {.kind = DEMO_FAULT_NODE};
    uint32_t first = options->fault_count;
    const char *at = text;
    const char *colon = strchr(text, ':');
    uint64_t number;

    for (uint32_t kind = 0; colon && kind <= DEMO_FAULT_AGENT; kind++) {
        size_t len = strlen(demo_fault_names[kind]);

        if (len == (size_t)(colon - text) && strncmp(text, demo_fault_names[kind], len) == 0) {
            fault.kind = (enum demo_fault_kind)kind;
            at = colon + 1;
        }
    }
    for (;;) {
        if (!read_number(&at, UINT32_MAX, &number) || options->fault_count >= DEMO_FAULTS_MAX)
            break;
        fault.target = (uint32_t)number;
        if (fault.target >= options->nodes) {
            cairn_usage_error(usage, "--kill %s: unknown node %u; the nodes are 0 to %u", text,
                              fault.target, options->nodes - 1);
            return false;
        }
        for (uint32_t i = first; i < options->fault_count; i++)
            if (options->faults[i].target == fault.target) {
                cairn_usage_error(usage, "--kill %s: node %u is named twice", text, fault.target);
                return false;
            }
        options->faults[options->fault_count++] = fault;
        if (*at != ',')
            break;
        at++;
    }
    if (options->fault_count == first || *at != '@') {
        cairn_usage_error(usage, "--kill %s: expected [node:|trainer:|agent:]N,N…@STEP", text);
        return false;
    }
    return parse_moment(usage, text, at + 1, options, first);
}

/* --kill may be given several times: all of them, in order. */
static bool
parse_kills(const struct cairn_usage *usage, int argc, char **argv, struct demo_options *options)
{
    for (int i = 1; i < argc; i++) {
        bool takes_value = strcmp(argv[i], "-o") == 0;

        if (strncmp(argv[i], "--kill=", 7) == 0 && !parse_kill(usage, argv[i] + 7, options))
            return false;
        for (size_t f = 0; f < usage->flag_count && strncmp(argv[i], "--", 2) == 0; f++)
            takes_value = takes_value ||
                          (usage->flags[f].value && strcmp(argv[i] + 2, usage->flags[f].name) == 0);
        if (!takes_value || i + 1 >= argc)
            continue;
        if (strcmp(argv[i], "--kill") == 0 && !parse_kill(usage, argv[i + 1], options))
            return false;
        i++;
    }
    return true;
}

/* A whole number, and the character that has to follow it. */
static bool
read_field(const char **at, char after, uint64_t *out)
{
    if (!read_number(at, UINT64_MAX, out) || **at != after)
        return false;
    *at += after != '\0';
    return true;
}

static bool
read_factor(const char **at, char after, double *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    *out = strtod(*at, &end);
    if (*end != after)
        return false;
    *at = end + 1;
    return true;
}

/* "4:2@20-120"; says what is wrong. */
static bool
parse_slow(const struct cairn_usage *usage, const char *text, struct demo_options *options)
{
    struct demo_slow_option slow = {.text = text};
    const char *at = text;
    uint64_t rank = 0;
    uint32_t dp, pp;

    demo_shape(options->nodes, &dp, &pp);
    if (!read_field(&at, ':', &rank) || !read_factor(&at, '@', &slow.factor) ||
        !read_field(&at, '-', &slow.first) || !read_field(&at, '\0', &slow.last))
        cairn_usage_error(usage, "--slow %s: expected RANK:FACTOR@FROM-TO, such as 4:2@20-120",
                          text);
    else if (rank >= options->nodes)
        cairn_usage_error(usage, "--slow %s: unknown rank %llu; the ranks are 0 to %u", text,
                          (unsigned long long)rank, options->nodes - 1);
    else if (!(slow.factor > 1 && slow.factor <= SLOW_MAX))
        cairn_usage_error(usage, "--slow %s: expected a factor above 1 and at most %d", text,
                          SLOW_MAX);
    else if (slow.first < 2 || slow.first > slow.last || slow.last >= options->steps)
        cairn_usage_error(usage,
                          "--slow %s: expected steps from 2 to %llu; change them or raise --steps",
                          text, (unsigned long long)options->steps - 1);
    else if (dp < 2)
        cairn_usage_error(usage,
                          "--slow %s: %u nodes are one replica, and micro-batches move between "
                          "replicas; set --nodes to 4 or 6",
                          text, options->nodes);
    else {
        slow.rank = (uint32_t)rank;
        options->slow = slow;
    }
    return options->slow.text != NULL;
}

static bool
check_text(const char *path, int *exit_code)
{
    FILE *file = path ? fopen(path, "rb") : NULL;
    int byte = file ? fgetc(file) : EOF;
    const char *why = !file ? strerror(errno) : ferror(file) ? "it cannot be read" : "it is empty";

    if (file)
        fclose(file);
    if (!path || byte != EOF)
        return true;
    fprintf(stderr,
            "cairn demo: %s: cannot train on this text: %s; give --text a file of a few kilobytes "
            "at least\n",
            path, why);
    *exit_code = CAIRN_EXIT_INPUT;
    return false;
}

struct given {
    const char *nodes, *parity, *steps, *kill, *slow, *spill, *output;
    bool no_faults, no_reference;
};

static bool
complete(const struct cairn_usage *usage, const struct given *given, int argc, char **argv,
         struct demo_options *options)
{
    uint64_t nodes = 6, parity = 2, spill = 0;

    if (!cairn_output_parse(given->output, &options->json)) {
        cairn_usage_error(usage, "-o %s: expected table or json", given->output);
        return false;
    }
    if (given->nodes && !parse_number(given->nodes, 1, DEMO_NODES_MAX, &nodes)) {
        cairn_usage_error(usage, "--nodes %s: expected a number from 1 to %d", given->nodes,
                          DEMO_NODES_MAX);
        return false;
    }
    if (nodes <= parity)
        parity = nodes - 1;
    if (given->parity && !parse_number(given->parity, 0, nodes - 1, &parity)) {
        cairn_usage_error(usage,
                          "--parity %s: expected a number from 0 to %llu, less than the nodes",
                          given->parity, (unsigned long long)nodes - 1);
        return false;
    }
    if (given->steps && !parse_number(given->steps, 1, STEPS_MAX, &options->steps)) {
        cairn_usage_error(usage, "--steps %s: expected a number from 1 to %d", given->steps,
                          STEPS_MAX);
        return false;
    }
    if (given->spill && !parse_number(given->spill, 1, SPILL_MAX, &spill)) {
        cairn_usage_error(usage, "--spill %s: expected a number from 1 to %d", given->spill,
                          SPILL_MAX);
        return false;
    }
    if (given->kill && given->no_faults) {
        cairn_usage_error(usage, "--kill conflicts with --no-faults; omit one");
        return false;
    }
    options->nodes = (uint32_t)nodes;
    options->parity = (uint32_t)parity;
    options->spill_every = (uint32_t)spill;
    options->reference = !given->no_reference;
    if (given->slow && options->quick) {
        cairn_usage_error(usage, "--slow conflicts with --quick; omit one");
        return false;
    }
    if (given->slow && !parse_slow(usage, given->slow, options))
        return false;
    if (given->kill)
        return parse_kills(usage, argc, argv, options);
    if (given->no_faults || given->slow)
        return true;
    if (nodes < 5 || options->steps <= 30) {
        cairn_usage_error(usage, "the default fault, --kill 1,4@30, needs 5 nodes and 31 steps; "
                                 "set --kill or --no-faults");
        return false;
    }
    return parse_kill(usage, "1,4@30", options);
}

bool
demo_options_parse(int argc, char **argv, struct demo_options *out, int *exit_code)
{
    struct demo_options options = {.steps = 60};
    struct given given = {0};
    const struct cairn_flag flags[] = {
        {"nodes", 0, "N", "run N nodes (default: 6)", &given.nodes, NULL},
        {"parity", 0, "M", "survive the loss of M nodes at once (default: 2)", &given.parity, NULL},
        {"steps", 0, "N", "train for N steps (default: 60)", &given.steps, NULL},
        {"text", 0, "FILE", "train on this file (default: a licence text of the system)",
         &options.text, NULL},
        {"kill", 0, "[KIND:]N,N@STEP",
         "kill nodes, or with KIND trainer or agent only that process, after a step; with --slow "
         "trainer:N@POINT, in a move of layers; may be repeated",
         &given.kill, NULL},
        {"slow", 0, "RANK:FACTOR@FROM-TO", "make a rank's emulated device slow in these steps",
         &given.slow, NULL},
        {"no-faults", 0, NULL, "kill nothing", NULL, &given.no_faults},
        {"no-reference", 0, NULL, "skip the job without protection", NULL, &given.no_reference},
        {"spill", 0, "N", "write every N-th generation to files too", &given.spill, NULL},
        {"quick", 0, NULL, "train a smaller model", NULL, &options.quick},
        {"dir", 0, "DIR", "keep configurations, logs and events in DIR", &options.dir, NULL},
        {"output", 'o', "table|json", "print the report as a table (default) or JSON",
         &given.output, NULL},
    };
    const struct cairn_usage usage = {
        "demo",
        "[--nodes N] [--parity M] [--steps N] [--kill N,N@STEP]… [--slow R:F@A-B] [-o json]",
        about,
        examples,
        flags,
        sizeof flags / sizeof *flags,
        NULL,
        NULL};

    if (!cairn_usage_parse(&usage, argc, argv, NULL, exit_code))
        return false;
    if (!complete(&usage, &given, argc, argv, &options)) {
        *exit_code = CAIRN_EXIT_USAGE;
        return false;
    }
    if (!check_text(options.text, exit_code))
        return false;
    *out = options;
    return true;
}
