/* replan/profile/profile.c - a problem's times and rates from what was measured. */
#include "replan/profile/profile.h"

#include "replan/fleet/cost.h"
#include "replan/fleet/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define NS_PER_MS 1e6
#define RATE_OFF 0.05    /* a device that is less off than this is healthy */
#define ERRORS_OFF 3.0   /* or less than so many standard errors */
#define RATE_STEPS 100.0 /* rates are rounded to hundredths */
#define RATE_MIN 0.01
#define NEAR 0.1 /* of a stage's time: that near to it the fit says something of the stage */

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

static double
work_layers(const struct cairn_problem *problem, const struct cairn_plan_pipeline *pipeline,
            uint32_t stage)
{
    return problem->current->stages[pipeline->first_stage + stage].layer_count +
           cairn_cost_vocabulary_layers(problem, stage, pipeline->stage_count);
}

/* The lower median of what the ranks of a stage compute in a step; NaN where none is known.
 * times[device_count]: scratch. */
static double
stage_ns(const struct cairn_plan *plan, const struct cairn_plan_stage *stage,
         const struct cairn_load *loads, double *times)
{
    uint32_t known = 0;

    for (uint32_t i = 0; i < stage->device_count; i++) {
        double own_ns = loads[plan->devices[stage->first_device + i]].compute_ns;

        if (own_ns > 0 && own_ns < INFINITY)
            times[known++] = own_ns;
    }
    if (known == 0)
        return (double)NAN;
    qsort(times, known, sizeof(*times), ascending);
    return times[(known - 1) / 2];
}

static cairn_err
check(const struct cairn_problem *problem, uint32_t rank_count, struct cairn_fault *fault)
{
    const struct cairn_plan *plan = problem->current;

    if (!plan) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "the problem has no \"current\"; give there the plan that ran while the "
                       "timing was taken");
        return CAIRN_INVAL;
    }
    for (uint32_t i = 0; i < plan->device_count; i++) {
        if (plan->devices[i] >= rank_count) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "the plan names device %" PRIu64 ", and the job has ranks 0 to %" PRIu32
                           "; give devices the numbers of their ranks as ids",
                           plan->devices[i], rank_count - 1);
            return CAIRN_INVAL;
        }
        if (cairn_problem_device_find(problem, plan->devices[i]) == problem->device_count) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "the plan names device %" PRIu64 ", which the problem does not have",
                           plan->devices[i]);
            return CAIRN_INVAL;
        }
    }
    for (uint32_t i = 0; i < plan->stage_count; i++)
        if (cairn_cost_of_size(problem, plan->stages[i].device_count) <= 0) {
            (void)snprintf(fault->text, sizeof(fault->text),
                           "the plan has a group of %" PRIu32
                           " devices, a size that tp_cost does not have",
                           plan->stages[i].device_count);
            return CAIRN_INVAL;
        }
    return CAIRN_OK;
}

/* Stages' times for one micro-batch of a group of `tp` devices. */
static uint32_t
list_samples(const struct cairn_problem *problem, const struct cairn_load *loads, double *times,
             struct cairn_stage_sample *samples)
{
    const struct cairn_plan *plan = problem->current;
    uint32_t count = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];

        for (uint32_t j = 0; j < pipeline->stage_count; j++) {
            const struct cairn_plan_stage *stage = &plan->stages[pipeline->first_stage + j];
            double ns = stage_ns(plan, stage, loads, times);

            if (isnan(ns))
                continue;
            samples[count++] = (struct cairn_stage_sample){
                stage->layer_count, j == 0, j + 1 == pipeline->stage_count,
                ns / NS_PER_MS / pipeline->microbatches /
                    cairn_cost_of_size(problem, stage->device_count)};
        }
    }
    return count;
}

static double
sample_layers(const struct cairn_problem *problem, const struct cairn_stage_sample *sample)
{
    return sample->layers + (sample->first ? problem->embed_layers : 0) +
           (sample->last ? problem->head_layers : 0);
}

/* The layers' time alone, the vocabulary's weight being what the problem says: the lower median
 * over stages. times[count]: scratch. */
static void
fit_layers(struct cairn_problem *problem, const struct cairn_stage_sample *samples, uint32_t count,
           double *times, struct cairn_fit *fit)
{
    double sum = 0;

    for (uint32_t i = 0; i < count; i++)
        times[i] = samples[i].ms / sample_layers(problem, &samples[i]);
    qsort(times, count, sizeof(*times), ascending);
    problem->layer_ms = times[(count - 1) / 2];
    for (uint32_t i = 0; i < count; i++)
        sum += pow(problem->layer_ms * sample_layers(problem, &samples[i]) / samples[i].ms - 1, 2);
    *fit = (struct cairn_fit){sqrt(sum / count), count};
}

/* Whether every coefficient takes one sample: then any times fit, also those of slow devices. */
static bool
fits_anything(const struct cairn_stage_sample *samples, uint32_t count, const struct cairn_fit *fit)
{
    bool any_first = false, any_last = false;

    for (uint32_t i = 0; i < count; i++) {
        any_first |= samples[i].first;
        any_last |= samples[i].last;
    }
    return fit->used <= 1u + any_first + any_last;
}

/* Fits the times of layers and of the vocabulary, or of layers alone where the vocabulary cannot be
 * told. times[count]: scratch. */
static cairn_err
fit_times(struct cairn_problem *problem, const struct cairn_stage_sample *samples, double *times,
          struct cairn_profiled *profiled, struct cairn_fault *fault)
{
    const double embed_layers = problem->embed_layers, head_layers = problem->head_layers;
    cairn_err err = cairn_fit_stages(samples, profiled->stages, problem, &profiled->fit, fault);

    if (err == CAIRN_INVAL || (!err && fits_anything(samples, profiled->stages, &profiled->fit))) {
        problem->embed_layers = embed_layers;
        problem->head_layers = head_layers;
        fit_layers(problem, samples, profiled->stages, times, &profiled->fit);
        profiled->vocabulary_kept = true;
        err = CAIRN_OK;
    }
    for (uint32_t i = 0; !err && i < profiled->stages; i++)
        profiled->near_stages +=
            fabs(problem->layer_ms * sample_layers(problem, &samples[i]) / samples[i].ms - 1) <
            NEAR;
    if (!err && 2 * profiled->near_stages < profiled->stages) {
        (void)snprintf(
            fault->text, sizeof(fault->text),
            "the times of %" PRIu32 " of %" PRIu32
            " stages are more than 10 %% off any fit: layers and slow devices cannot be told "
            "apart; take the timing of a plan with more than one device per stage, or with the "
            "vocabulary's weight in the problem",
            profiled->stages - profiled->near_stages, profiled->stages);
        err = CAIRN_INVAL;
    }
    return err;
}

/* What the measurement leaves open. */
static void
find_open(const struct cairn_problem *problem, const struct cairn_load *loads,
          struct cairn_profiled *profiled)
{
    const struct cairn_plan *plan = problem->current;
    uint32_t firsts = 0, lasts = 0, measured_alive = 0, alive = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];

        for (uint32_t j = 0; j < pipeline->stage_count; j++) {
            const struct cairn_plan_stage *stage = &plan->stages[pipeline->first_stage + j];

            for (uint32_t k = 0; k < stage->device_count; k++) {
                uint64_t id = plan->devices[stage->first_device + k];

                if (!(loads[id].compute_ns > 0) || isinf(loads[id].compute_ns))
                    continue;
                firsts += j == 0;
                lasts += j + 1 == pipeline->stage_count;
                measured_alive += problem->devices[cairn_problem_device_find(problem, id)].rate > 0;
            }
        }
    }
    for (uint32_t i = 0; i < problem->device_count; i++)
        alive += problem->devices[i].rate > 0;
    profiled->kept_devices = alive - measured_alive;
    profiled->first_open = !profiled->vocabulary_kept && firsts == 1;
    profiled->last_open = !profiled->vocabulary_kept && lasts == 1;
}

/* Each measured device's time over what its stage takes at rate 1. */
static uint32_t
set_rates(struct cairn_problem *problem, const struct cairn_load *loads)
{
    const struct cairn_plan *plan = problem->current;
    uint32_t slow = 0;

    for (uint32_t i = 0; i < plan->pipeline_count; i++) {
        const struct cairn_plan_pipeline *pipeline = &plan->pipelines[i];

        for (uint32_t j = 0; j < pipeline->stage_count; j++) {
            const struct cairn_plan_stage *stage = &plan->stages[pipeline->first_stage + j];
            double healthy_ns = NS_PER_MS * problem->layer_ms *
                                cairn_cost_of_size(problem, stage->device_count) *
                                work_layers(problem, pipeline, j) * pipeline->microbatches;

            for (uint32_t k = 0; k < stage->device_count; k++) {
                uint64_t id = plan->devices[stage->first_device + k];
                const struct cairn_load *load = &loads[id];
                struct cairn_device *device =
                    &problem->devices[cairn_problem_device_find(problem, id)];
                double rate = load->compute_ns / healthy_ns, error = load->error_ns / healthy_ns;

                if (!(rate > 0) || isinf(rate) || !(device->rate > 0))
                    continue; /* not measured, or dead since: it keeps its rate */
                if (fabs(rate - 1) < fmax(RATE_OFF, error > 0 ? ERRORS_OFF * error : 0))
                    rate = 1;
                device->rate = fmax(RATE_MIN, floor(rate * RATE_STEPS + 0.5) / RATE_STEPS);
                slow += rate > 1;
            }
        }
    }
    return slow;
}

cairn_err
cairn_profile_take(struct cairn_problem *problem, const struct cairn_load *loads,
                   uint32_t rank_count, struct cairn_profiled *out, struct cairn_fault *fault)
{
    struct cairn_profiled profiled = {.stages = 0};
    struct cairn_stage_sample *samples = NULL;
    double *times = NULL;
    cairn_err err = check(problem, rank_count, fault);

    if (err)
        return err;
    samples = calloc((size_t)problem->current->stage_count + 1, sizeof(*samples));
    times = calloc((size_t)problem->current->device_count + 1, sizeof(*times));
    err = samples && times ? CAIRN_OK : CAIRN_NOMEM;
    if (!err)
        profiled.stages = list_samples(problem, loads, times, samples);
    if (!err && profiled.stages == 0) {
        (void)snprintf(fault->text, sizeof(fault->text),
                       "no rank of the plan was seen to compute; take the timing of more steps");
        err = CAIRN_INVAL;
    }
    if (!err)
        err = fit_times(problem, samples, times, &profiled, fault);
    if (!err) {
        find_open(problem, loads, &profiled);
        profiled.slow_devices = set_rates(problem, loads);
        *out = profiled;
    }
    free(samples);
    free(times);
    return err;
}
