/* replan/detect/detect.c - takes records in, decides when a step is whole, and has it analysed. */
#include "replan/detect/detector.h"

#include "base/array.h"
#include "base/assert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The flight of a step, made where there is none. */
static cairn_err
flight_of(struct cairn_detector *detector, uint32_t step, struct cairn_flight **out)
{
    uint32_t at = detector->flight_count;

    while (at > 0 && detector->flights[at - 1].step > step)
        at--;
    if (at > 0 && detector->flights[at - 1].step == step) {
        *out = &detector->flights[at - 1];
        return CAIRN_OK;
    }
    if (!cairn_array_grow(&detector->flights, detector->flight_count, sizeof *detector->flights))
        return CAIRN_NOMEM;
    struct cairn_rank_step **ranks = calloc(detector->topology->world, sizeof *ranks);

    if (!ranks)
        return CAIRN_NOMEM;
    memmove(&detector->flights[at + 1], &detector->flights[at],
            (detector->flight_count - at) * sizeof *detector->flights);
    detector->flights[at] = (struct cairn_flight){.step = step, .ranks = ranks};
    detector->flight_count++;
    *out = &detector->flights[at];
    return CAIRN_OK;
}

static void
note_span(struct cairn_detector *detector, const struct cairn_flight *flight)
{
    double sum_ns = 0;
    uint32_t count = 0;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++)
        if (flight->ranks[rank] && !isnan(flight->ranks[rank]->span_ns)) {
            sum_ns += flight->ranks[rank]->span_ns;
            count++;
        }
    if (count > 0)
        detector->spans_ns[detector->span_count++ % CAIRN_SPANS] = sum_ns / count;
}

/* Analyses the oldest step in flight and releases it. */
static cairn_err
analyse_first(struct cairn_detector *detector)
{
    struct cairn_flight flight = detector->flights[0];
    cairn_err err;

    detector->flight_count--;
    memmove(detector->flights, detector->flights + 1,
            detector->flight_count * sizeof *detector->flights);
    detector->steps++;
    detector->last_step = flight.step;
    note_span(detector, &flight);
    err = cairn_detect_match(detector, &flight);
    if (!err)
        err = cairn_detect_ranks(detector);
    if (!err)
        err = cairn_detect_links(detector);
    if (!err && cairn_detect_links_gathered(detector))
        err = cairn_detect_link_causes(detector);
    if (!err)
        err = cairn_detect_data(detector);
    cairn_flight_fini(detector, &flight);
    return err;
}

/* Analyses the steps that every rank has gone past, and those too far behind the fastest. */
static cairn_err
analyse_whole(struct cairn_detector *detector)
{
    uint32_t slowest = UINT32_MAX, fastest = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        uint32_t step = detector->seen[rank] ? detector->rank_step[rank] : 0;

        if (detector->left_out[rank])
            continue;
        slowest = step < slowest ? step : slowest;
        fastest = step > fastest ? step : fastest;
    }
    while (!err && detector->flight_count > 0 &&
           (detector->flights[0].step < slowest ||
            (detector->flights[0].step < fastest &&
             fastest - detector->flights[0].step > detector->steps_in_flight_max)))
        err = analyse_first(detector);
    return err;
}

static cairn_err
hand_in(struct cairn_detector *detector, uint32_t rank, struct cairn_rank_step *summary)
{
    struct cairn_flight *flight;
    cairn_err err;

    if (detector->steps > 0 && summary->step <= detector->last_step) {
        detector->intakes[rank].ignored += summary->sample_count; /* analysed without it */
        free(summary);
        return CAIRN_OK;
    }
    err = flight_of(detector, summary->step, &flight);
    if (err) {
        free(summary);
        return err;
    }
    free(flight->ranks[rank]);
    flight->ranks[rank] = summary;
    detector->arrivals++;
    return CAIRN_OK;
}

static void
see(struct cairn_detector *detector, uint32_t rank)
{
    if (!detector->seen[rank]) {
        detector->seen[rank] = true;
        detector->ranks_seen++;
    }
}

cairn_err
cairn_detector_take_step(struct cairn_detector *detector, uint32_t rank,
                         struct cairn_rank_step *summary, uint64_t end_ns)
{
    struct cairn_intake *intake = &detector->intakes[rank];
    cairn_err err;

    CAIRN_ASSERT(rank < detector->topology->world);
    detector->left_out[rank] = false;
    detector->by_reports = true;
    see(detector, rank);
    intake->records += summary->sample_count;
    intake->open_count = 0;
    intake->is_stopped = intake->is_gone = false;
    if (end_ns > intake->end_ns)
        intake->end_ns = end_ns;
    if (end_ns > intake->life_ns)
        intake->life_ns = end_ns;
    if (summary->sends_aside)
        intake->sends_aside = CAIRN_SENDS_ASIDE;
    intake->step = detector->rank_step[rank] = summary->step + 1; /* what it is in now */
    err = hand_in(detector, rank, summary);
    if (!err && detector->arrivals >= detector->ranks_seen) {
        detector->arrivals = 0;
        err = analyse_whole(detector);
    }
    return err;
}

void
cairn_detector_take_standing(struct cairn_detector *detector, uint32_t rank,
                             const struct cairn_standing *standing)
{
    struct cairn_intake *intake = &detector->intakes[rank];

    CAIRN_ASSERT(rank < detector->topology->world && standing->open_count <= CAIRN_INTAKE_OPEN);
    see(detector, rank);
    intake->life_ns = standing->life_ns;
    intake->end_ns = standing->end_ns;
    intake->step = standing->step;
    intake->is_stopped = standing->is_stopped;
    intake->is_gone = standing->is_gone;
    intake->open_count = standing->is_stopped || standing->is_gone ? 0 : standing->open_count;
    for (uint32_t i = 0; i < intake->open_count; i++)
        intake->open[i] = standing->open[i];
}

static cairn_err
take_numbered(struct cairn_detector *detector, const struct cairn_record *record)
{
    struct cairn_rank_step *done;
    cairn_err err, taken = cairn_intake_take(&detector->intakes[record->rank], record, &done);

    detector->rank_step[record->rank] = detector->intakes[record->rank].step;
    err = done ? hand_in(detector, record->rank, done) : CAIRN_OK;
    if (!err && detector->arrivals >= detector->ranks_seen) {
        /* once a step or so, not every time */
        detector->arrivals = 0;
        err = analyse_whole(detector);
    }
    return taken ? taken : err;
}

/* A rank whose records name no step. */
static cairn_err
take_unnumbered(struct cairn_detector *detector, const struct cairn_record *record)
{
    struct cairn_record numbered = *record;
    struct cairn_period *period;
    cairn_err err;
    bool known;

    if (!detector->periods) {
        detector->periods = cairn_periods_create(detector->topology->world);
        if (!detector->periods)
            return CAIRN_NOMEM;
    }
    period = &detector->periods[record->rank];
    if (period->period > 0) {
        cairn_period_number(period, &numbered);
        return take_numbered(detector, &numbered);
    }
    err = cairn_period_keep(period, record, &known);
    for (uint32_t i = 0; !err && known && i < period->kept_count; i++) {
        cairn_period_number(period, &period->kept[i]);
        err = take_numbered(detector, &period->kept[i]);
    }
    if (known)
        cairn_period_release(period);
    return err;
}

cairn_err
cairn_detector_feed(struct cairn_detector *detector, const struct cairn_record *record)
{
    CAIRN_ASSERT(record->rank < detector->topology->world);
    CAIRN_ASSERT(!detector->finished);
    see(detector, record->rank);
    return record->op == 0 || record->has_step ? take_numbered(detector, record)
                                               : take_unnumbered(detector, record);
}

/* What a rank did in the last step: whole only if it did as much as in the one before. */
static cairn_err
flush_rank(struct cairn_detector *detector, uint32_t rank)
{
    struct cairn_intake *intake = &detector->intakes[rank];
    struct cairn_rank_step *summary;
    cairn_err err;

    if (detector->periods && detector->periods[rank].kept_count > 0) {
        struct cairn_period *period = &detector->periods[rank];

        cairn_period_settle(period);
        for (uint32_t i = 0; i < period->kept_count; i++) {
            cairn_period_number(period, &period->kept[i]);
            err = take_numbered(detector, &period->kept[i]);
            if (err)
                return err;
        }
        cairn_period_release(period);
    }
    err = cairn_intake_flush(intake, &summary);
    if (err || !summary)
        return err;
    if (intake->open_count > 0) {
        free(summary);
        return CAIRN_OK;
    }
    return hand_in(detector, rank, summary);
}

cairn_err
cairn_detector_finish(struct cairn_detector *detector)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; !err && rank < detector->topology->world; rank++)
        err = flush_rank(detector, rank);
    while (!err && detector->flight_count > 0)
        err = analyse_first(detector);
    detector->finished = true;
    if (!err)
        err = cairn_detect_slow_finish(detector);
    if (!err && detector->links_pending)
        err = cairn_detect_link_causes(detector);
    if (!err)
        err = cairn_detector_check_hangs(detector);
    return err;
}
