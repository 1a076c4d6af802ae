/* replan/detect/detector.c - the state of a detector: its memory, its verdicts, its summary. */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdlib.h>

cairn_err
cairn_detector_create(const struct cairn_topology *topology, uint32_t steps_in_flight_max,
                      struct cairn_detector **out)
{
    struct cairn_detector *detector = calloc(1, sizeof *detector);
    uint32_t world = topology->world;

    if (!detector)
        return CAIRN_NOMEM;
    detector->topology = topology;
    detector->noise_growth = 1;
    detector->steps_in_flight_max = steps_in_flight_max ? steps_in_flight_max : UINT32_MAX;
    detector->intakes = calloc(world, sizeof *detector->intakes);
    detector->rank_step = calloc(world, sizeof *detector->rank_step);
    detector->seen = calloc(world, sizeof *detector->seen);
    detector->left_out = calloc(world, sizeof *detector->left_out);
    detector->ranks = calloc(world, sizeof *detector->ranks);
    detector->now.compute_ns = calloc(world, sizeof *detector->now.compute_ns);
    detector->now.aside_ns = calloc(world, sizeof *detector->now.aside_ns);
    detector->now.most_ns = calloc(world, sizeof *detector->now.most_ns);
    detector->now.first_ns = calloc(world, sizeof *detector->now.first_ns);
    detector->now.hidden_ns = calloc(world, sizeof *detector->now.hidden_ns);
    detector->now.is_hidden = calloc(world, sizeof *detector->now.is_hidden);
    detector->now.dealt = calloc(world, sizeof *detector->now.dealt);
    detector->now.operations_ns = calloc(world, sizeof *detector->now.operations_ns);
    detector->now.work = calloc(world, sizeof *detector->now.work);
    detector->now.wait_ns = calloc(world, sizeof *detector->now.wait_ns);
    detector->calibrate =
        calloc((size_t)world * CAIRN_CALIBRATE_STEPS * CAIRN_KEPT, sizeof *detector->calibrate);
    detector->scratch =
        calloc((size_t)world * (CAIRN_CALIBRATE_STEPS + 1), sizeof *detector->scratch);
    detector->value = calloc(world, sizeof *detector->value);
    detector->early = calloc(world, sizeof *detector->early);
    detector->value_aside = calloc(world, sizeof *detector->value_aside);
    detector->pauses = calloc(world, sizeof *detector->pauses);
    detector->pauses_now = calloc((size_t)world * 2, sizeof *detector->pauses_now);
    detector->pipeline_common = calloc(topology->pipeline_count, sizeof *detector->pipeline_common);
    if (!detector->intakes || !detector->rank_step || !detector->seen || !detector->left_out ||
        !detector->ranks || !detector->now.compute_ns || !detector->now.aside_ns ||
        !detector->now.most_ns || !detector->now.first_ns || !detector->now.hidden_ns ||
        !detector->now.is_hidden || !detector->now.dealt || !detector->now.operations_ns ||
        !detector->now.work || !detector->now.wait_ns || !detector->calibrate ||
        !detector->scratch || !detector->value || !detector->value_aside || !detector->early ||
        !detector->pauses || !detector->pauses_now || !detector->pipeline_common) {
        cairn_detector_destroy(detector);
        return CAIRN_NOMEM;
    }
    for (uint32_t rank = 0; rank < world; rank++)
        detector->ranks[rank] =
            (struct cairn_rank_state){.verdict = UINT32_MAX, .earlier = (double)NAN};
    *out = detector;
    return CAIRN_OK;
}

void
cairn_detect_drop(struct cairn_detector *detector, uint32_t index)
{
    cairn_verdicts_remove(&detector->verdicts, index);
    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        if (detector->ranks[rank].verdict != UINT32_MAX && detector->ranks[rank].verdict > index)
            detector->ranks[rank].verdict--;
    for (uint32_t i = 0; i < detector->channel_count; i++)
        if (detector->channels[i].verdict != UINT32_MAX && detector->channels[i].verdict > index)
            detector->channels[i].verdict--;
    for (uint32_t node = 0; detector->wholes && node < detector->topology->node_count; node++)
        if (detector->wholes[node].verdict != UINT32_MAX && detector->wholes[node].verdict > index)
            detector->wholes[node].verdict--;
}

void
cairn_flight_fini(const struct cairn_detector *detector, struct cairn_flight *flight)
{
    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        free(flight->ranks[rank]);
    free(flight->ranks);
}

void
cairn_detector_destroy(struct cairn_detector *detector)
{
    if (!detector)
        return;
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        if (detector->intakes)
            cairn_intake_fini(&detector->intakes[rank]);
        if (detector->periods)
            cairn_period_fini(&detector->periods[rank]);
    }
    for (uint32_t i = 0; i < detector->flight_count; i++)
        cairn_flight_fini(detector, &detector->flights[i]);
    for (uint32_t i = 0; i < detector->channel_count; i++)
        free(detector->channels[i].slots);
    free(detector->intakes);
    free(detector->periods);
    free(detector->rank_step);
    free(detector->seen);
    free(detector->left_out);
    free(detector->ranks);
    free(detector->now.compute_ns);
    free(detector->now.aside_ns);
    free(detector->now.most_ns);
    free(detector->now.first_ns);
    free(detector->now.hidden_ns);
    free(detector->now.is_hidden);
    free(detector->now.dealt);
    free(detector->now.operations_ns);
    free(detector->now.work);
    free(detector->now.wait_ns);
    free(detector->calibrate);
    free(detector->scratch);
    free(detector->value);
    free(detector->value_aside);
    free(detector->early);
    free(detector->pauses);
    free(detector->pauses_now);
    free(detector->pipeline_common);
    free(detector->wholes);
    free(detector->flights);
    free(detector->channels);
    free(detector->channel_index);
    free(detector->classes);
    cairn_verdicts_fini(&detector->verdicts);
    free(detector);
}

void
cairn_detector_leave_out(struct cairn_detector *detector, uint32_t rank)
{
    detector->left_out[rank] = true;
}

void
cairn_detector_recall(struct cairn_detector *detector, uint32_t rank,
                      const struct cairn_earlier *earlier)
{
    detector->ranks[rank].earlier = earlier->normal;
    detector->ranks[rank].was_slow = earlier->was_slow;
}

struct cairn_earlier
cairn_detector_earlier(const struct cairn_detector *detector, uint32_t rank)
{
    const struct cairn_rank_state *state = &detector->ranks[rank];
    bool is_known = detector->now.work[rank] > 0 && !state->is_borrowed;

    return (struct cairn_earlier){.normal = is_known ? state->normal - state->excess + state->base
                                                     : (double)NAN,
                                  .was_slow = state->verdict != UINT32_MAX};
}

bool
cairn_detector_has_recalled(const struct cairn_detector *detector, uint32_t rank)
{
    return detector->ranks[rank].is_recalled;
}

const struct cairn_verdicts *
cairn_detector_verdicts(const struct cairn_detector *detector)
{
    return &detector->verdicts;
}

void
cairn_detector_summarize(const struct cairn_detector *detector, struct cairn_detector_summary *out)
{
    uint32_t spans = detector->span_count < CAIRN_SPANS ? detector->span_count : CAIRN_SPANS;
    float values[CAIRN_SPANS];

    *out = (struct cairn_detector_summary){.steps = detector->steps,
                                           .last_step = detector->last_step,
                                           .ranks_seen = detector->ranks_seen,
                                           .is_calibrated = detector->calibrated};
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        out->records += detector->intakes[rank].records;
        out->ignored += detector->intakes[rank].ignored;
    }
    for (uint32_t i = 0; i < spans; i++)
        values[i] = (float)detector->spans_ns[i];
    if (spans > 0)
        out->period_ms = (double)cairn_quantile(values, spans, 0.5) / 1e6;
    if (spans < CAIRN_RECENT_STEPS)
        return;
    for (uint32_t i = 0; i < CAIRN_RECENT_STEPS; i++)
        values[i] = (float)detector->spans_ns[(detector->span_count - 1 - i) % CAIRN_SPANS];
    out->recent_ms = (double)cairn_quantile(values, CAIRN_RECENT_STEPS, 0.5) / 1e6;
}
