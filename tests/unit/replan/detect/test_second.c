/*
 * tests/unit/replan/detect/test_second.c - jobs of the second trace generator, each with one
 * difficulty: the culprit is named, and nobody else. make bench-detect has the shares.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/traces/second/model.h"
#include "tests/unit/replan/detect/trace.h"

static const double rate_error = 0.25; /* what operations hide is known only roughly */

struct job {
    const char *name;
    uint64_t seed;
};

/* Whether a verdict is of a fault. */
static bool
is_of(const struct cairn_verdict *verdict, const struct model_fault *fault)
{
    if (fault->cause == CAUSE_RANK || fault->cause == CAUSE_THROTTLE)
        return verdict->kind == CAIRN_SLOW_COMPUTE && verdict->ranks.count == 1 &&
               verdict->ranks.items[0] == fault->rank;
    if (fault->cause == CAUSE_LINK)
        return verdict->kind == CAIRN_SLOW_LINK && verdict->ranks.count == 2 &&
               verdict->nodes.count == 0 &&
               (verdict->ranks.items[0] == fault->rank || verdict->ranks.items[1] == fault->rank);
    if (fault->cause == CAUSE_LENGTHS)
        return verdict->kind == CAIRN_STRUCTURAL &&
               strcmp(verdict->pattern, "sequence_length") == 0;
    if (fault->cause == CAUSE_NIC)
        return verdict->kind == CAIRN_SLOW_LINK && verdict->ranks.count > 2;
    return fault->cause == CAUSE_NODE && verdict->kind == CAIRN_SLOW_NODE &&
           verdict->nodes.count == 1 && verdict->nodes.items[0] == fault->node;
}

/* Each fault has its verdict, which ended if and only if the fault did, and there is no other. */
static void
check(const struct job *job, const struct model *model, const struct cairn_verdicts *verdicts)
{
    uint32_t expected = 0;

    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];
        const struct cairn_verdict *found = NULL;

        if (fault->cause == CAUSE_EXPERT || fault->cause == CAUSE_PAUSE)
            continue;
        expected++;
        for (uint32_t k = 0; k < verdicts->count; k++)
            if (is_of(&verdicts->items[k], fault))
                found = &verdicts->items[k];
        if (!found)
            fail_msg("%s %u: rank %u is not named", job->name, (uint32_t)job->seed, fault->rank);
        assert_int_equal(found->until_step != CAIRN_STEP_NONE, fault->until < model->ticks);
        if (fault->cause == CAUSE_RANK && fabs(found->rate / fault->factor - 1) > rate_error)
            fail_msg("%s %u: rank %u is %.2f times slow, not %.2f", job->name, (uint32_t)job->seed,
                     fault->rank, fault->factor, found->rate);
    }
    if (verdicts->count != expected)
        fail_msg("%s %u: %u verdicts for %u faults: %s", job->name, (uint32_t)job->seed,
                 verdicts->count, expected, verdicts->items[0].evidence);
}

static void
run_all(const struct job *jobs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct random random = model_seed(jobs[i].seed);
        struct model model = {.ticks = 0};
        struct cairn_topology *topology = NULL;
        struct cairn_detector *detector;
        char *trace = NULL;
        size_t trace_bytes;
        FILE *out = open_memstream(&trace, &trace_bytes);

        assert_true(model_draw(&model, &random, jobs[i].name, -1));
        model_run(&model, &random, out);
        assert_int_equal(fclose(out), 0);
        detector = trace_detect(trace, &topology);
        check(&jobs[i], &model, cairn_detector_verdicts(detector));
        cairn_detector_destroy(detector);
        cairn_topology_destroy(topology);
        free(trace);
    }
}

#define RUN(jobs) run_all(jobs, sizeof(jobs) / sizeof *(jobs))

static void
test_noise(void **state)
{
    static const struct job jobs[] = {
        {"correlated", 3001}, {"correlated", 3002},  {"drifting", 3000},   {"drifting", 3007},
        {"slow", 3003},       {"slow_slight", 3002}, {"slow_slight", 3012}};

    RUN(jobs);
}

static void
test_nothing_wrong(void **state)
{
    static const struct job jobs[] = {{"quiet", 3016},      {"quiet", 3018},
                                      {"hot_expert", 3002}, {"hot_expert", 3003},
                                      {"lengths", 7000929}, {"checkpoints", 3017}};

    RUN(jobs);
}

/* In a job of eight ranks or sixteen few series show how ranks wander, and each alone shows it only
 * roughly. */
static void
test_few_ranks_that_wander(void **state)
{
    static const struct job jobs[] = {
        {"quiet", 60001074}, {"quiet", 71002104}, {"quiet", 71002519}};

    RUN(jobs);
}

/* A rank of a sharded job that is 3 % slower waits less for others, so that operations hide less of
 * what it computes; likewise all others, once a slow rank has its speed again. */
static void
test_less_is_hidden(void **state)
{
    static const struct job jobs[] = {
        {"quiet", 60000564}, {"quiet", 60000718}, {"quiet", 71002094}, {"slow_slight", 71100071}};

    RUN(jobs);
}

static void
test_communication(void **state)
{
    static const struct job jobs[] = {
        {"link", 3006}, {"link", 3014}, {"overlapped", 3020}, {"overlapped", 3028}, {"slow", 3016}};

    RUN(jobs);
}

/* Gradients are reduced behind the backward pass of tensor-parallel layers; a slow rank hides what
 * those that wait for it compute. */
static void
test_behind(void **state)
{
    static const struct job jobs[] = {
        {"slow_slight", 7000028}, {"several", 7002435}, {"slow", 7000837}, {"lengths", 7000254}};

    RUN(jobs);
}

/* All operations go on behind the computation: those that wait for a slower rank hide what they
 * compute, and a small change of speed shows in each gap. */
static void
test_hidden(void **state)
{
    static const struct job jobs[] = {{"several", 21000061},        {"several", 21000187},
                                      {"several", 21000299},        {"quiet", 21000489},
                                      {"overlapped_nic", 22000120}, {"heavy_tails", 24000129}};

    RUN(jobs);
}

/* A rank that waits for its own sends before the next step, or for the gradients' norm, is
 * innocent. */
static void
test_awaited_sends(void **state)
{
    static const struct job jobs[] = {
        {"slow", 21000364}, {"heavy_tails", 22000701}, {"several", 31000061}};

    RUN(jobs);
}

/* Sends end when their data is out; in a long pipeline most receivers have waited for it. */
static void
test_buffered_sends(void **state)
{
    static const struct job jobs[] = {{"node", 7001163}};

    RUN(jobs);
}

/* No operation names its step, and none comes once in it: micro-batches of a pipeline without
 * replicas, buckets of gradients. */
static void
test_repeated_within_a_step(void **state)
{
    static const struct job jobs[] = {
        {"node", 7000326}, {"checkpoints", 7000724}, {"slow_slight", 7002431}};

    RUN(jobs);
}

static void
test_sources(void **state)
{
    static const struct job jobs[] = {
        {"nameless", 3003},  {"nameless", 3006},  {"clock_steps", 3006}, {"clock_steps", 3013},
        {"replaced", 3002},  {"replaced", 3003},  {"replaced", 7000451}, {"losses", 3007},
        {"losses", 3009},    {"losses", 7000209}, {"restart", 3018},     {"losses", 22000539},
        {"losses", 22000058}};

    RUN(jobs);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise),          cmocka_unit_test(test_nothing_wrong),
        cmocka_unit_test(test_communication),  cmocka_unit_test(test_behind),
        cmocka_unit_test(test_hidden),         cmocka_unit_test(test_awaited_sends),
        cmocka_unit_test(test_buffered_sends), cmocka_unit_test(test_repeated_within_a_step),
        cmocka_unit_test(test_sources),        cmocka_unit_test(test_few_ranks_that_wander),
        cmocka_unit_test(test_less_is_hidden),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
