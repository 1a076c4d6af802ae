/*
 * tests/bench/bench_plan.c - what the planner reaches, beside a proven bound and other planners.
 *
 * Every row is made from seeds, so that each run shows the same problems. Times are those of one
 * thread. The baselines are described in tests/bench/baseline.h. `make bench-plan` runs it; --full
 * takes all problems, some minutes.
 */
#include "cairn/client.h"
#include "replan/search/answer.h"
#include "replan/fleet/preset.h"
#include "replan/fleet/simulate.h"
#include "tests/bench/baseline.h"
#include "tests/bench/made.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VALUES_MAX = 4096, BASELINES = 4, SEQUENCES = 4096, CAP_TOKENS = 8192 };
#define GIB (UINT64_C(1) << 30)
#define MIB (UINT64_C(1) << 20)

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(1);
}

static double
now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

struct limit {
    double until_ms;
};

static bool
is_over(void *context)
{
    return now_ms() >= ((const struct limit *)context)->until_ms;
}

/* Numbers of one row. */
struct values {
    double value[VALUES_MAX];
    uint32_t count;
};

static void
add(struct values *values, double value)
{
    if (values->count < VALUES_MAX)
        values->value[values->count++] = value;
}

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* The least value that `part` of all are not above; NAN of none. */
static double
quantile(struct values *values, double part)
{
    double at = part * values->count - 1e-9;

    qsort(values->value, values->count, sizeof(*values->value), ascending);
    return values->count == 0 ? NAN : values->value[at < 1 ? 0 : (uint32_t)ceil(at) - 1];
}

/* Plans within a time, and checks the plan by the rules. */
static struct cairn_answer_plan
try_plan(const struct cairn_problem *problem, double limit_ms, double *took_ms)
{
    struct cairn_answer_plan answer = {0};
    double began_ms = now_ms();
    struct limit limit = {began_ms + limit_ms};
    struct cairn_stop stop = {is_over, &limit};
    struct cairn_fault fault;

    if (cairn_answer_plan_best(problem, &stop, &answer))
        fail("planning for %u devices failed", problem->device_count);
    *took_ms = now_ms() - began_ms;
    if (!answer.plan)
        return answer;
    if (cairn_plan_check(answer.plan, problem, &fault))
        fail("the plan for %u devices is none: %s", problem->device_count, fault.text);
    if (answer.bound_ms > answer.step_ms * (1 + 1e-9))
        fail("a plan of %g ms beats the bound, %g ms", answer.step_ms, answer.bound_ms);
    return answer;
}

/* The same, of problems that have plans. */
static struct cairn_answer_plan
plan(const struct cairn_problem *problem, double limit_ms, double *took_ms)
{
    struct cairn_answer_plan answer = try_plan(problem, limit_ms, took_ms);

    if (!answer.plan)
        fail("no plan for %u devices", problem->device_count);
    return answer;
}

/* What random clusters are like: how much memory layers take, and how many micro-batches there
 * are. */
struct model {
    const char *name;
    uint64_t layer_bytes;
    uint64_t activation_bytes;
    uint32_t microbatches_per_64; /* devices */
};

static const struct model models[] = {
    {"1.5 GiB layers, 64 micro-batches per 64 devices", 3 * GIB / 2, 192 * MIB, 64},
    {"1.5 GiB layers, 256 per 64", 3 * GIB / 2, 192 * MIB, 256},
    {"6 GiB layers, 64 per 64", 6 * GIB, 512 * MIB, 64},
    {"6 GiB layers, 256 per 64", 6 * GIB, 512 * MIB, 256},
};
enum { MODELS = sizeof(models) / sizeof(*models) };

static struct cairn_problem
make(const struct model *model, uint32_t devices, uint64_t seed)
{
    struct cairn_made_cluster cluster = {devices,
                                         devices / 64 * model->microbatches_per_64,
                                         model->layer_bytes,
                                         model->activation_bytes,
                                         0.05,
                                         0.01};
    struct cairn_problem problem;

    if (cairn_made_problem(&cluster, seed, &problem))
        fail("out of memory");
    return problem;
}

/* ---- rows ---- */

static void
row_gap(bool full)
{
    static const uint32_t sizes[] = {64, 256, 1024};

    printf("\ngap to the bound, limit 1 s, 5 %% of devices slow (1.1 to 5.5), 1 %% dead\n");
    printf("%-50s %8s %6s %8s %8s %8s %10s\n", "model", "devices", "plans", "median", "p95",
           "worst", "median ms");
    for (uint32_t m = 0; m < MODELS; m++)
        for (uint32_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
            uint32_t seeds = full ? 100 : sizes[s] > 256 ? 2 : 10;
            struct values gaps = {.count = 0}, times = {.count = 0};

            for (uint64_t seed = 0; seed < seeds; seed++) {
                struct cairn_problem problem = make(&models[m], sizes[s], seed);
                struct cairn_answer_plan answer;
                double took_ms;

                answer = plan(&problem, 1000, &took_ms);
                add(&gaps, answer.step_ms / answer.bound_ms - 1);
                add(&times, took_ms);
                cairn_answer_plan_fini(&answer);
                cairn_problem_fini(&problem);
            }
            printf("%-50s %8u %6u %7.2f%% %7.2f%% %7.2f%% %10.1f\n", models[m].name, sizes[s],
                   seeds, 100 * quantile(&gaps, 0.5), 100 * quantile(&gaps, 0.95),
                   100 * quantile(&gaps, 1), quantile(&times, 0.5));
        }
}

static void
row_time(bool full)
{
    static const uint32_t sizes[] = {64, 1024, 16384, 65536};
    static const double limits_ms[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000};

    printf("\ntime to a plan within 2 %% of what 5 s find, and how well a limit is kept\n");
    printf("%-50s %8s %12s %10s %14s\n", "model", "devices", "limit (ms)", "took (ms)",
           "gap after 5 s");
    for (uint32_t s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
        for (uint32_t m = 0; m < MODELS; m += full ? 1 : 2) {
            struct cairn_problem problem = make(&models[m], sizes[s], 1);
            struct cairn_answer_plan best;
            double took_ms = 0, limit_ms = INFINITY;

            if (!full && sizes[s] > 16384) {
                cairn_problem_fini(&problem);
                continue;
            }
            best = plan(&problem, 5000, &took_ms);
            for (uint32_t i = 0; i < sizeof(limits_ms) / sizeof(*limits_ms) && limit_ms == INFINITY;
                 i++) {
                struct cairn_answer_plan answer = plan(&problem, limits_ms[i], &took_ms);

                if (answer.step_ms <= best.step_ms * 1.02)
                    limit_ms = limits_ms[i];
                cairn_answer_plan_fini(&answer);
            }
            printf("%-50s %8u %12.0f %10.1f %13.2f%%\n", models[m].name, sizes[s], limit_ms,
                   took_ms, 100 * (best.step_ms / best.bound_ms - 1));
            (void)fflush(stdout);
            cairn_answer_plan_fini(&best);
            cairn_problem_fini(&problem);
        }
}

struct rival {
    const char *name;
    cairn_baseline *plan;
};

static const struct rival rivals[BASELINES] = {
    {"uniform (as Megatron-LM)", cairn_baseline_uniform},
    {"micro-batches moved (as FALCON S2)", cairn_baseline_shift},
    {"slow nodes dropped", cairn_baseline_drop},
    {"Malleus's procedure", cairn_baseline_malleus},
};

/* The step of a baseline; INFINITY where it has no plan. Nothing may beat the bound. */
static double
rival_ms(const struct rival *rival, const struct cairn_problem *problem, double bound_ms)
{
    struct cairn_plan *made = NULL;
    double step_ms = INFINITY;

    if (rival->plan(problem, &made))
        fail("out of memory");
    if (made)
        step_ms = cairn_plan_step_ms(made, problem);
    if (step_ms < bound_ms * (1 - 1e-9))
        fail("%s: a plan of %g ms beats the bound, %g ms", rival->name, step_ms, bound_ms);
    cairn_plan_destroy(made);
    return step_ms;
}

static void
row_rivals(bool full)
{
    uint32_t seeds = full ? 1000 : 250, slower = 0, problems = 0;
    static struct values ratios[BASELINES + 1];

    for (uint32_t b = 0; b <= BASELINES; b++)
        ratios[b].count = 0;
    for (uint32_t m = 0; m < MODELS; m++)
        for (uint64_t seed = 1000; seed < 1000 + seeds; seed++, problems++) {
            struct cairn_problem problem = make(&models[m], 64, seed);
            struct cairn_answer_plan answer;
            double took_ms, least = INFINITY;

            answer = plan(&problem, 1000, &took_ms);
            for (uint32_t b = 0; b < BASELINES; b++) {
                double ratio = rival_ms(&rivals[b], &problem, answer.bound_ms) / answer.step_ms;

                least = fmin(least, ratio);
                if (ratio < INFINITY)
                    add(&ratios[b], ratio);
            }
            add(&ratios[BASELINES], least);
            slower += least < 1 - 1e-9;
            cairn_answer_plan_fini(&answer);
            cairn_problem_fini(&problem);
        }
    printf("\nthe baseline's step over ours, %u problems of 64 devices; ours is slower than the "
           "best of them on %u\n",
           problems, slower);
    printf("%-50s %8s %8s %8s %8s %8s %8s\n", "baseline", "plans", "least", "p5", "median", "p95",
           "most");
    for (uint32_t b = 0; b <= BASELINES; b++)
        printf("%-50s %8u %8.3f %8.3f %8.3f %8.3f %8.3f\n",
               b < BASELINES ? rivals[b].name : "the best of them", ratios[b].count,
               quantile(&ratios[b], 0), quantile(&ratios[b], 0.05), quantile(&ratios[b], 0.5),
               quantile(&ratios[b], 0.95), quantile(&ratios[b], 1));
}

/* Where memory is tight: the gap to the bound, and a simple heuristic's step over ours. The search
 * was tuned on the seeds from 0 on. */
static void
row_tight(bool full, uint64_t first)
{
    static const struct rival greedy = {"groups dealt in turn", cairn_baseline_greedy};
    static struct values gaps, ratios, times, losses;
    uint32_t slower = 0, seeds = 60, unfit = 0;

    for (uint64_t seed = first; seed < first + seeds; seed++) {
        struct cairn_problem problem;
        struct cairn_answer_plan answer;
        double took_ms, ratio;

        if (cairn_made_tight(64, seed, &problem))
            fail("out of memory");
        answer = try_plan(&problem, 1000, &took_ms);
        ratio = rival_ms(&greedy, &problem, answer.bound_ms);
        if (!answer.plan && ratio < INFINITY)
            fail("no plan for problem %u, and the heuristic has one", (unsigned)seed);
        unfit += answer.plan == NULL;
        if (answer.plan) {
            ratio /= answer.step_ms;
            slower += ratio < 1 - 1e-9;
            add(&gaps, answer.step_ms / answer.bound_ms - 1);
            add(&ratios, ratio);
            add(&times, took_ms);
        }
        if (answer.plan && full) {
            struct cairn_answer_plan late = plan(&problem, 15000, &took_ms);

            add(&losses, answer.step_ms / late.step_ms - 1);
            cairn_answer_plan_fini(&late);
        }
        cairn_answer_plan_fini(&answer);
        cairn_problem_fini(&problem);
    }
    printf("\ntight memory, %u problems of 64 devices, limit 1 s, %u of them fit nothing: ours is "
           "slower than the heuristic's on %u\n",
           seeds, unfit, slower);
    printf("%-50s %8s %8s %8s\n", "", "median", "p95", "worst");
    printf("%-50s %7.2f%% %7.2f%% %7.2f%%\n", "gap to the bound", 100 * quantile(&gaps, 0.5),
           100 * quantile(&gaps, 0.95), 100 * quantile(&gaps, 1));
    if (full)
        printf("%-50s %7.2f%% %7.2f%% %7.2f%%\n", "step over that after 15 s, less 1",
               100 * quantile(&losses, 0.5), 100 * quantile(&losses, 0.95),
               100 * quantile(&losses, 1));
    printf("%-50s %8.3f %8.3f %8.3f\n", "the heuristic's step over ours", quantile(&ratios, 0.5),
           quantile(&ratios, 0.05), quantile(&ratios, 0));
    printf("%-50s %8.0f %8.0f %8.0f\n", "ms", quantile(&times, 0.5), quantile(&times, 0.95),
           quantile(&times, 1));
}

/* Slow devices of one of Malleus's situations. */
struct situation {
    const char *name;
    uint32_t count;
    uint32_t devices[3];
    double rates[3];
};

static void
row_malleus(void)
{
    /* the slow devices of the situations; which are in one node is our reading */
    static const struct situation situations[] = {
        {"S1: 1, 2.6", 1, {0}, {2.6}},
        {"S2: 1, 5.4", 1, {0}, {5.4}},
        {"S3: 2 in one node, 2.6 and 3.8", 2, {0, 1}, {2.6, 3.8}},
        {"S4: 2 in two nodes, 2.6 and 3.8", 2, {0, 8}, {2.6, 3.8}},
        {"S5: 3 in one node, 2.6, 3.8 and 5.4", 3, {0, 1, 2}, {2.6, 3.8, 5.4}},
        {"S6: 3 in three nodes, 2.6, 3.8 and 5.4", 3, {0, 8, 16}, {2.6, 3.8, 5.4}},
    };
    static const struct {
        const char *model;
        uint32_t devices;
    } jobs[] = {{"llama-32b", 32}, {"llama2-70b", 64}, {"qwen1.5-110b", 64}};

    printf("\nMalleus's situations, A800 as a100-80g, 64 micro-batches of 4,096 tokens: step over "
           "healthy x N / sum of 1/rate\n");
    printf("%-14s %-40s %8s %8s %8s %8s %8s %8s\n", "model", "slow devices", "ours", "bound",
           "Malleus", "moved", "uniform", "dropped");
    for (uint32_t j = 0; j < sizeof(jobs) / sizeof(*jobs); j++)
        for (uint32_t i = 0; i < sizeof(situations) / sizeof(*situations); i++) {
            const struct situation *situation = &situations[i];
            const struct cairn_preset preset = {cairn_model_shape_find(jobs[j].model),
                                                cairn_device_sheet_find("a100-80g"), 4096, 0.4};
            struct cairn_problem problem = make(&models[3], 64, 0);
            struct cairn_answer_plan healthy, answer;
            double took_ms, speed = 0, ideal_ms;

            problem.device_count = jobs[j].devices;
            problem.microbatches = 64;
            cairn_preset_apply(&preset, 8, &problem);
            cairn_made_heal(&problem);
            healthy = plan(&problem, 1000, &took_ms);
            for (uint32_t k = 0; k < situation->count; k++)
                problem.devices[situation->devices[k]].rate = situation->rates[k];
            for (uint32_t k = 0; k < problem.device_count; k++)
                speed += 1 / problem.devices[k].rate;
            ideal_ms = healthy.step_ms * problem.device_count / speed;
            answer = plan(&problem, 1000, &took_ms);
            printf("%-14s %-40s %8.3f %8.3f", jobs[j].model, situation->name,
                   answer.step_ms / ideal_ms, answer.bound_ms / ideal_ms);
            for (uint32_t b = BASELINES; b-- > 0;) {
                static const uint32_t order[BASELINES] = {2, 0, 1, 3};

                printf(" %8.3f", rival_ms(&rivals[order[b]], &problem, answer.bound_ms) / ideal_ms);
            }
            printf("\n");
            cairn_answer_plan_fini(&healthy);
            cairn_answer_plan_fini(&answer);
            cairn_problem_fini(&problem);
        }
}

/* How near a short limit comes to the default one. Limits count processor time, so this may run
 * beside other programs. */
static void
row_limit(bool full)
{
    static const struct {
        uint32_t devices;
        double limit_ms;
    } jobs[] = {{64, 50}, {1024, 200}};

    printf("\nstep after a short limit over that after 1 s\n");
    printf("%8s %10s %8s %8s %8s %8s %14s\n", "devices", "limit (ms)", "plans", "median", "p95",
           "worst", "most took (ms)");
    for (uint32_t j = 0; j < sizeof(jobs) / sizeof(*jobs); j++) {
        uint32_t seeds = full ? 40 : 8;
        struct values ratios = {.count = 0}, times = {.count = 0};

        for (uint64_t seed = 0; seed < seeds; seed++) {
            struct cairn_problem problem =
                make(&models[seed % MODELS], jobs[j].devices, 7000 + seed);
            struct cairn_answer_plan early, late;
            double took_ms;

            late = plan(&problem, 1000, &took_ms);
            early = plan(&problem, jobs[j].limit_ms, &took_ms);
            add(&ratios, early.step_ms / late.step_ms);
            add(&times, took_ms);
            cairn_answer_plan_fini(&early);
            cairn_answer_plan_fini(&late);
            cairn_problem_fini(&problem);
        }
        printf("%8u %10.0f %8u %8.4f %8.4f %8.4f %14.0f\n", jobs[j].devices, jobs[j].limit_ms,
               seeds, quantile(&ratios, 0.5), quantile(&ratios, 0.95), quantile(&ratios, 1),
               quantile(&times, 1));
    }
}

static void
row_simulation(bool full)
{
    uint32_t seeds = full ? 500 : 125, near = 0;
    static struct values under, off;

    for (uint32_t m = 0; m < MODELS; m++)
        for (uint64_t seed = 5000; seed < 5000 + seeds; seed++) {
            struct cairn_problem problem = make(&models[m], 64, seed);
            struct cairn_simulated simulated;
            struct cairn_answer_plan answer;
            double took_ms;

            /* few of them are where the formulas differ */
            problem.microbatches /= seed % 2 ? 1 : 4;
            answer = plan(&problem, 50, &took_ms);
            if (cairn_simulate(answer.plan, &problem, &simulated))
                fail("a plan could not be simulated");
            add(&under, 1 - simulated.step_ms / answer.step_ms);
            add(&off, fabs(answer.schedule_ms / simulated.step_ms - 1));
            near += fabs(1 - simulated.step_ms / answer.step_ms) <= 0.02;
            cairn_simulated_fini(&simulated);
            cairn_answer_plan_fini(&answer);
            cairn_problem_fini(&problem);
        }
    printf("\nsimulated step, %u plans: at most %.2g %% off schedule_ms; under step_ms %u by at "
           "most 2 %%, median %.3f %%, most %.3f %%\n",
           under.count, 100 * quantile(&off, 1), near, 100 * quantile(&under, 0.5),
           100 * quantile(&under, 1));
}

static void
row_assign(bool full, uint32_t pipelines, uint64_t first)
{
    static const double squares[] = {1e-7, 1e-6, 5e-6};
    uint32_t seeds = full ? 200 : 20;
    static uint32_t scratch[4096];

    printf("\n4,096 sequences of 512 to 262,144 tokens to %u pipelines of mixed speed, %u seeds: "
           "gap to the bound\n",
           pipelines, seeds);
    printf("%-26s %8s %8s %8s %10s %10s %22s %22s\n", "cost of s tokens", "median", "p90", "p99",
           "median ms", "most ms", "longest first, median", "Hydraulis, median");
    for (uint32_t a = 0; a < sizeof(squares) / sizeof(*squares); a++) {
        struct values gaps = {.count = 0}, times = {.count = 0}, longest = {.count = 0},
                      random = {.count = 0};

        for (uint64_t seed = 0; seed < seeds; seed++) {
            struct cairn_assign_problem problem;
            struct cairn_assignment assignment = {0};
            struct cairn_fault fault;
            double began_ms, longest_ms, random_ms;

            if (cairn_made_sequences(4096, pipelines, squares[a], first + seed, &problem))
                fail("out of memory");
            began_ms = now_ms();
            if (cairn_assign(&problem, &assignment, &fault))
                fail("no assignment");
            add(&times, now_ms() - began_ms);
            add(&gaps, assignment.step_ms / assignment.bound_ms - 1);
            if (cairn_baseline_longest_first(&problem, scratch, &longest_ms) ||
                (seed < 10 && cairn_baseline_hydraulis(&problem, scratch, &random_ms)))
                fail("out of memory");
            if (longest_ms < assignment.bound_ms * (1 - 1e-9) ||
                (seed < 10 && random_ms < assignment.bound_ms * (1 - 1e-9)))
                fail("a baseline's assignment beats the bound, seed %u", (unsigned)(first + seed));
            add(&longest, longest_ms / assignment.bound_ms - 1);
            if (seed < 10)
                add(&random, random_ms / assignment.bound_ms - 1);
            free(assignment.pipelines);
            cairn_assign_problem_fini(&problem);
        }
        printf("%.0e s^2 + 0.18 s%10s %7.2f%% %7.2f%% %7.2f%% %10.1f %10.1f %21.2f%% %21.2f%%\n",
               squares[a], "", 100 * quantile(&gaps, 0.5), 100 * quantile(&gaps, 0.9),
               100 * quantile(&gaps, 0.99), quantile(&times, 0.5), quantile(&times, 1),
               100 * quantile(&longest, 0.5), 100 * quantile(&random, 0.5));
    }
}

/* A log-normal length: Box and Muller's transform of two uniform draws. */
static uint64_t
made_length(uint64_t *seed, double spread)
{
    double radius = sqrt(-2 * log(1 - cairn_made_part(seed)));
    double length = 512 * exp(spread * radius * cos(2 * acos(-1) * cairn_made_part(seed)));

    return length < 1 ? 1 : length < CAP_TOKENS ? (uint64_t)length : CAP_TOKENS;
}

/* What a training loop asks for in each step (cairn_sequences_assign). */
static void
row_sequences(bool full)
{
    static const uint32_t replicas[] = {1, 4, 8, 64, 256, 1024};
    static const double spreads[] = {1.2, 0.6}; /* of the logarithms of lengths */
    static const double cost[3] = {0, 1, 0};
    static uint64_t tokens[SEQUENCES];
    static uint32_t shares[1024], replica_of[SEQUENCES], microbatch_of[SEQUENCES];
    uint32_t seeds = full ? 200 : 20;

    printf("\n%d sequences of a step, log-normal, in micro-batches of %d tokens, shares from 1 to "
           "4; processor time, %u seeds\n%-10s",
           SEQUENCES, CAP_TOKENS, seeds, "replicas");
    for (uint32_t k = 0; k < sizeof spreads / sizeof *spreads; k++)
        printf("  spread %.1f: median ms, most", spreads[k]);
    for (uint32_t r = 0; r < sizeof replicas / sizeof *replicas; r++) {
        printf("\n%-10u", replicas[r]);
        for (uint32_t k = 0; k < sizeof spreads / sizeof *spreads; k++) {
            struct values times = {.count = 0};

            for (uint64_t seed = 0; seed < seeds; seed++) {
                uint64_t draw = seed;
                double began_ms;

                for (uint32_t i = 0; i < SEQUENCES; i++)
                    tokens[i] = made_length(&draw, spreads[k]);
                for (uint32_t i = 0; i < replicas[r]; i++)
                    shares[i] = 16 + cairn_made_below(&draw, 49);
                began_ms = now_ms();
                if (cairn_sequences_assign(tokens, SEQUENCES, shares, replicas[r], CAP_TOKENS, cost,
                                           replica_of, microbatch_of))
                    fail("no assignment");
                add(&times, now_ms() - began_ms);
            }
            printf("  %21.1f %6.1f", quantile(&times, 0.5), quantile(&times, 1));
        }
    }
    printf("\n");
}

int
main(int argc, char **argv)
{
    const char *only = NULL;
    uint64_t first = 0;
    bool full = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0)
            full = true;
        else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (strcmp(argv[i], "--first") == 0 && i + 1 < argc)
            first = strtoull(argv[++i], NULL, 10); /* seed of `tight`, `assign` */
        else
            fail("usage: %s [--full] [--first SEED] [--only "
                 "gap|time|limit|rivals|tight|malleus|simulation|"
                 "assign|sequences]",
                 argv[0]);
    }
    if (!only || strcmp(only, "gap") == 0)
        row_gap(full);
    if (!only || strcmp(only, "time") == 0)
        row_time(full);
    if (!only || strcmp(only, "limit") == 0)
        row_limit(full);
    if (!only || strcmp(only, "rivals") == 0)
        row_rivals(full);
    if (!only || strcmp(only, "tight") == 0)
        row_tight(full, first);
    if (!only || strcmp(only, "malleus") == 0)
        row_malleus();
    if (!only || strcmp(only, "simulation") == 0)
        row_simulation(full);
    for (uint32_t pipelines = 16; pipelines <= 64 && (!only || strcmp(only, "assign") == 0);
         pipelines *= 2)
        row_assign(full, pipelines, first);
    if (!only || strcmp(only, "sequences") == 0)
        row_sequences(full);
    return 0;
}
