/*
 * tools/bench_plan.c - how near the planner comes to its own bound, and how long it takes.
 *
 *   case     plan: the predicted step of 64 and of 1,024 devices, 5 in 100 of them slow and 1 in
 *            100 dead assign: that of 4,096 sequences of 512 to 262,144 tokens, given to 64
 *            pipelines of mixed speed
 *   floor    the lower bound of the same problem, which provably no plan, and no assignment, beats
 * Each round has problems of its own, made from its number; value and floor are means over the
 * rounds. A plan may take LIMIT_S of CPU time of one thread; the times that were needed are further
 * figures. `make bench-plan` has many more problems, and other planners.
 */
#include "tools/bench.h"
#include "tools/bench_measure.h"

#include "replan/search/answer.h"
#include "replan/assign/assign.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    ROUNDS_DEFAULT = 5,
    NODE_DEVICES = 8,
    SEQUENCES = 4096,
    PIPELINES = 64,
    TOKENS_MIN = 512,
    TOKENS_MAX = 262144
};
#define LIMIT_S 1.0
#define GIB (UINT64_C(1) << 30)

/* What rounds of one kind came to. */
struct sums {
    double step_ms;
    double bound_ms;
    double took_ms[CAIRN_BENCH_ROUNDS_MAX];
    uint32_t rounds;
};

/* From 0 to 1; splitmix64. */
static double
next_part(uint64_t *state)
{
    uint64_t mixed = *state += UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((mixed ^ (mixed >> 31)) >> 11) * 0x1p-53;
}

static bool
is_over(void *until_s)
{
    return cairn_bench_thread_cpu_s() >= *(const double *)until_s;
}

static void
count_round(struct sums *sums, double step_ms, double bound_ms, double began_s)
{
    sums->step_ms += step_ms;
    sums->bound_ms += bound_ms;
    sums->took_ms[sums->rounds++] = (cairn_bench_thread_cpu_s() - began_s) * 1e3;
}

/* ---- plans ---- */

static cairn_err
make_problem(uint32_t devices, uint64_t seed, struct cairn_problem *out)
{
    struct cairn_problem problem = {.layers = 80,
                                    .layer_ms = 10,
                                    .head_layers = 5.4,
                                    .microbatches = devices,
                                    .tp = 8,
                                    .sizes = {{1, 8}, {2, 4}, {4, 2}, {8, 1}},
                                    .size_count = 4,
                                    .layer_bytes = 3 * GIB / 2,
                                    .activation_bytes = 3 * GIB / 16,
                                    .reserved_bytes = 4 * GIB,
                                    .device_count = devices,
                                    .intra_gbps = 3600,
                                    .inter_gbps = 400};

    problem.devices = calloc(devices, sizeof(*problem.devices));
    if (!problem.devices)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < devices; i++) {
        double lot = next_part(&seed), slow = 1.1 + 4.4 * next_part(&seed);

        problem.devices[i] = (struct cairn_device){i, i / NODE_DEVICES,
                                                   lot < 0.01   ? 0
                                                   : lot < 0.06 ? slow
                                                                : 1,
                                                   80 * GIB};
    }
    *out = problem;
    return CAIRN_OK;
}

static cairn_err
plan_once(uint32_t devices, uint64_t seed, struct sums *sums)
{
    struct cairn_problem problem = {0};
    struct cairn_answer_plan answer = {0};
    struct cairn_fault fault = {""};
    double began_s, until_s;
    struct cairn_stop stop = {is_over, &until_s};
    cairn_err err = make_problem(devices, seed, &problem);

    began_s = cairn_bench_thread_cpu_s();
    until_s = began_s + LIMIT_S;
    if (!err)
        err = cairn_answer_plan_best(&problem, &stop, &answer);
    if (!err && !answer.plan)
        err = CAIRN_INTERNAL; /* these problems have plans */
    if (!err) {
        count_round(sums, answer.step_ms, answer.bound_ms, began_s);
        err = cairn_plan_check(answer.plan, &problem, &fault);
    }
    if (err == CAIRN_INVAL)
        err = CAIRN_CORRUPT; /* the result is not a plan */
    cairn_answer_plan_fini(&answer);
    cairn_problem_fini(&problem);
    return err;
}

/* ---- assignments ---- */

static cairn_err
make_sequences(uint64_t seed, struct cairn_assign_problem *out)
{
    static const double scales[] = {1, 1, 1, 1.3, 2, 0.5};
    static const uint32_t stages[] = {1, 2, 4, 4, 8};
    struct cairn_assign_problem problem = {
        .sequence_count = SEQUENCES, .square = 1e-6, .linear = 0.18, .pipeline_count = PIPELINES};

    problem.tokens = calloc(SEQUENCES, sizeof(*problem.tokens));
    problem.pipelines = calloc(PIPELINES, sizeof(*problem.pipelines));
    if (!problem.tokens || !problem.pipelines) {
        cairn_assign_problem_fini(&problem);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < SEQUENCES; i++) { /* Pareto, cut at both ends */
        double tokens = TOKENS_MIN * pow(1 - next_part(&seed), -1 / 0.9);

        problem.tokens[i] = tokens < TOKENS_MAX ? (uint64_t)tokens : TOKENS_MAX;
    }
    for (uint32_t i = 0; i < PIPELINES; i++)
        problem.pipelines[i] = (struct cairn_assign_pipeline){
            scales[(uint32_t)(6 * next_part(&seed))], stages[(uint32_t)(5 * next_part(&seed))],
            i == 0 ? TOKENS_MAX : (uint64_t)TOKENS_MAX >> (uint32_t)(3 * next_part(&seed))};
    *out = problem;
    return CAIRN_OK;
}

static cairn_err
assign_once(uint64_t seed, struct sums *sums)
{
    struct cairn_assign_problem problem = {0};
    struct cairn_assignment assignment = {0};
    struct cairn_fault fault = {""};
    cairn_err err = make_sequences(seed, &problem);
    double began_s = cairn_bench_thread_cpu_s(), step_ms = 0;

    if (!err)
        err = cairn_assign(&problem, &assignment, &fault);
    if (!err) {
        count_round(sums, assignment.step_ms, assignment.bound_ms, began_s);
        err = cairn_assign_step_ms(&problem, assignment.pipelines, &step_ms);
    }
    if (!err && fabs(step_ms - assignment.step_ms) > 1e-6 * step_ms)
        err = CAIRN_CORRUPT; /* the result takes another time than it claims */
    free(assignment.pipelines);
    cairn_assign_problem_fini(&problem);
    return err;
}

/* ---- the report ---- */

static void
add_case(struct cairn_bench_report *report, const char *name, struct sums *sums,
         const char *command, double bound)
{
    struct cairn_bench_case result = {.value = sums->step_ms / sums->rounds,
                                      .floor = sums->bound_ms / sums->rounds,
                                      .unit = "ms/step",
                                      .command = command,
                                      .bound = bound,
                                      .at_most = true,
                                      .threads = 1};

    (void)snprintf(result.name, sizeof result.name, "%s", name);
    cairn_bench_add(report, &result);
}

cairn_err
cairn_bench_plan(const struct cairn_bench_options *options, struct cairn_bench_report *report)
{
    uint32_t rounds = options->rounds ? options->rounds : ROUNDS_DEFAULT;
    struct sums few = {0}, many = {0}, sequences = {0};
    cairn_err err = CAIRN_OK;

    report->stage = "plan";
    for (uint32_t round = 0; !err && round < rounds; round++) {
        err = plan_once(64, round, &few);
        if (!err)
            err = plan_once(1024, round, &many);
        if (!err)
            err = assign_once(round, &sequences);
    }
    if (err)
        return err;
    add_case(report, "plan, 64 devices", &few, "a bound that no plan for the same devices beats",
             1.015);
    add_case(report, "plan, 1,024 devices", &many,
             "a bound that no plan for the same devices beats", 1.015);
    add_case(report, "assign, 4,096 sequences", &sequences,
             "a bound that no assignment of the same sequences beats", 1.01);
    cairn_bench_note(report, "ms to plan 64 devices, median",
                     cairn_bench_median(few.took_ms, few.rounds));
    cairn_bench_note(report, "ms to plan 1,024 devices, median",
                     cairn_bench_median(many.took_ms, many.rounds));
    cairn_bench_note(report, "ms to assign, median",
                     cairn_bench_median(sequences.took_ms, sequences.rounds));
    return CAIRN_OK;
}
