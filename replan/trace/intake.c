/* replan/trace/intake.c - one rank's records become one summary per step. */
#include "replan/trace/intake.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Operations that are begun together start less than this apart. */
static const uint64_t apart_ns = 2000;
/* A job computes while all its operations run if the intervals between their starts vary less from
 * step to step than this share of the variation of the gaps between operations. */
static const double behind_gain = 0.8;
/* An operation that begins this part of a gap after a send has ended waited for that. */
static const double at_once_share = 0.02;
enum { BEHIND_MIN = 2, BEHIND_STEPS_MIN = 3 };

void
cairn_intake_fini(struct cairn_intake *intake)
{
    free(intake->samples);
    free(intake->stream);
    *intake = (struct cairn_intake){0};
}

/* What a record has told of the step's computation replaces the sums of gaps. */
static void
tell(struct cairn_intake *intake, struct cairn_rank_step *summary)
{
    for (int i = 0; i < CAIRN_GAPS; i++) {
        summary->compute_ns[i] = intake->told_ns;
        summary->jumps_ns[i] = 0;
    }
    summary->most_ns = intake->told_ns;
    summary->first_ns = (double)NAN;
    summary->hidden_ns = 0;
    summary->is_measured = !isnan(intake->told_ns);
    summary->all_behind = summary->sends_aside = false;
    intake->is_told = false;
}

cairn_err
cairn_intake_flush(struct cairn_intake *intake, struct cairn_rank_step **done)
{
    struct cairn_rank_step *summary;
    double stream_ns[CAIRN_GAPS];

    *done = NULL;
    if (intake->sample_count == 0)
        return CAIRN_OK;
    summary = malloc(sizeof *summary + intake->sample_count * sizeof *intake->samples);
    if (!summary)
        return CAIRN_NOMEM;
    summary->step = intake->step;
    summary->sample_count = intake->sample_count;
    for (int i = 0; i < CAIRN_GAPS; i++) {
        struct cairn_reading *reading = &intake->readings[i];

        summary->compute_ns[i] = intake->step_end_ns > 0 ? reading->compute_ns : (double)NAN;
        summary->jumps_ns[i] = reading->jumps_ns;
        reading->compute_ns = reading->jumps_ns = 0;
    }
    if (intake->steps_judged >= BEHIND_STEPS_MIN)
        intake->all_behind = intake->interval_jumps_ns < behind_gain * intake->gap_jumps_ns;
    intake->steps_judged += intake->places_known > 0;
    summary->most_ns = intake->step_end_ns > 0 ? intake->most_ns : (double)NAN;
    summary->first_ns = intake->step_end_ns > 0 ? intake->first_ns : (double)NAN;
    summary->hidden_ns = intake->hidden_ns;
    summary->gap_jumps_ns = intake->gap_jumps_ns;
    summary->interval_jumps_ns = intake->interval_jumps_ns;
    intake->most_ns = intake->hidden_ns = 0;
    summary->all_behind = intake->all_behind;
    summary->by_stream = intake->stream && cairn_stream_end_step(intake->stream, stream_ns);
    if (summary->by_stream) {
        for (int i = 0; i < CAIRN_GAPS; i++)
            summary->compute_ns[i] = intake->step_end_ns > 0 ? stream_ns[i] : (double)NAN;
        summary->most_ns = summary->hidden_ns = 0;
        summary->all_behind = false;
    }
    summary->sends_aside = intake->sends_aside >= CAIRN_SENDS_ASIDE;
    summary->is_measured = false;
    if (intake->is_told)
        tell(intake, summary);
    summary->span_ns = intake->step_end_ns > 0 && intake->end_ns > intake->step_end_ns
                           ? (double)(intake->end_ns - intake->step_end_ns)
                           : NAN;
    summary->work = intake->work;
    memcpy(summary->samples, intake->samples, intake->sample_count * sizeof *intake->samples);
    intake->span_ns = isnan(summary->span_ns) ? 0 : (uint64_t)summary->span_ns;
    intake->step_end_ns = intake->end_ns;
    intake->places_known =
        intake->sample_count < CAIRN_INTAKE_PLACES ? intake->sample_count : CAIRN_INTAKE_PLACES;
    intake->sample_count = 0;
    intake->work = 0;
    *done = summary;
    return CAIRN_OK;
}

static uint32_t
lane_of(const struct cairn_record *record)
{
    if (record->op == CAIRN_SEND)
        return CAIRN_LANE_PAIR | CAIRN_LANE_SEND | record->peer;
    if (record->op == CAIRN_RECV)
        return CAIRN_LANE_PAIR | record->peer;
    return record->comm * 16 + record->op;
}

static bool
same_operation(const struct cairn_open *open, const struct cairn_record *record)
{
    return open->op == record->op && open->comm == record->comm && open->peer == record->peer &&
           (open->seq == record->seq || !record->has_seq);
}

static void
note_open(struct cairn_intake *intake, const struct cairn_record *record)
{
    uint32_t i = 0;

    while (i < intake->open_count && !same_operation(&intake->open[i], record))
        i++;
    if (record->end_ns > 0) {
        if (i < intake->open_count)
            intake->open[i] = intake->open[--intake->open_count];
        return;
    }
    if (i == CAIRN_INTAKE_OPEN)
        i = CAIRN_INTAKE_OPEN - 1;
    else if (i == intake->open_count)
        intake->open_count++;
    intake->open[i] = (struct cairn_open){.seq = record->seq,
                                          .start_ns = record->start_ns,
                                          .comm = record->comm,
                                          .peer = record->peer,
                                          .step = record->step,
                                          .op = record->op};
}

static cairn_err
add_sample(struct cairn_intake *intake, const struct cairn_record *record)
{
    if (intake->sample_count == intake->sample_room) {
        uint32_t room = intake->sample_room ? 2 * intake->sample_room : 32;
        struct cairn_sample *samples = realloc(intake->samples, room * sizeof *samples);

        if (!samples)
            return CAIRN_NOMEM;
        intake->samples = samples;
        intake->sample_room = room;
    }
    intake->samples[intake->sample_count++] = (struct cairn_sample){
        .lane = lane_of(record),
        .seq = record->has_seq && (uint32_t)record->seq != CAIRN_SEQ_NONE ? (uint32_t)record->seq
                                                                          : CAIRN_SEQ_NONE,
        .duration_ns = (float)(record->end_ns - record->start_ns),
        .bytes = (float)record->bytes,
        .end_us = (uint32_t)(record->end_ns / 1000)};
    return CAIRN_OK;
}

/* Counts a lane in whose operations others begin, or end. */
static void
note_behind(struct cairn_intake *intake, uint32_t lane)
{
    uint32_t i = 0;

    while (i < intake->behind_count && intake->behind[i] != lane)
        i++;
    if (i == CAIRN_INTAKE_BEHIND)
        return;
    if (i == intake->behind_count) {
        intake->behind[intake->behind_count] = lane;
        intake->behind_seen[intake->behind_count++] = 0;
    }
    intake->behind_seen[i]++;
}

static bool
goes_behind(const struct cairn_intake *intake, uint32_t lane)
{
    for (uint32_t i = 0; i < intake->behind_count; i++)
        if (intake->behind[i] == lane && intake->behind_seen[i] >= BEHIND_MIN)
            return true;
    return intake->all_behind;
}

static bool
begins_inside(uint64_t start_ns, uint64_t outer_start_ns, uint64_t outer_end_ns)
{
    return start_ns > outer_start_ns + apart_ns && start_ns + apart_ns < outer_end_ns;
}

/* True for two collectives under way at the same time. */
static bool
overlap(const struct cairn_recent *recent, const struct cairn_record *record, uint32_t lane)
{
    return !(lane & CAIRN_LANE_PAIR) && !(recent->lane & CAIRN_LANE_PAIR) &&
           record->start_ns + apart_ns < recent->end_ns &&
           recent->start_ns + apart_ns < record->end_ns;
}

/* If another operation begins inside an operation, that one went on behind what the rank did
 * meanwhile. */
static cairn_err
note_recent(struct cairn_intake *intake, const struct cairn_record *record, uint32_t lane)
{
    for (uint32_t i = 0; i < CAIRN_INTAKE_RECENT; i++) {
        const struct cairn_recent *recent = &intake->recent[i];
        bool is_inner = begins_inside(record->start_ns, recent->start_ns, recent->end_ns);
        bool is_outer = begins_inside(recent->start_ns, record->start_ns, record->end_ns);

        if (is_inner || is_outer)
            note_behind(intake, is_inner ? recent->lane : lane);
        if (!is_inner && !is_outer && !overlap(recent, record, lane))
            continue;
        if (!intake->stream && intake->steps_judged < CAIRN_STREAM_STEPS_MAX) {
            intake->stream = calloc(1, sizeof *intake->stream);
            if (!intake->stream)
                return CAIRN_NOMEM;
        }
        if (intake->stream)
            cairn_stream_overlap(intake->stream, lane, recent->lane);
    }
    intake->recent[intake->recent_count++ % CAIRN_INTAKE_RECENT] =
        (struct cairn_recent){record->start_ns, record->end_ns, lane};
    return CAIRN_OK;
}

/* Compares the gap before an operation, and its interval from the start before, with those in the
 * same place of the step before. */
static void
compare_places(struct cairn_intake *intake, uint64_t start_ns, double gap_ns)
{
    uint32_t at = intake->sample_count - 1;
    double interval_ns = (double)start_ns - (double)intake->start_ns;

    intake->start_ns = start_ns;
    if (at >= CAIRN_INTAKE_PLACES)
        return;
    if (at > 0 && at < intake->places_known) {
        intake->gap_jumps_ns +=
            fabs(gap_ns - (double)intake->readings[CAIRN_GAPS_SENDS_WAIT].before_ns[at]);
        intake->interval_jumps_ns += fabs(interval_ns - (double)intake->interval_ns[at]);
    }
    intake->interval_ns[at] = (float)interval_ns;
}

/* Adds the gap before an operation, by each reading. */
static void
add_gap(struct cairn_intake *intake, const double *gap_ns)
{
    uint32_t at = intake->sample_count - 1;
    bool differ = false;

    for (int i = 0; i < CAIRN_GAPS; i++)
        intake->readings[i].compute_ns += gap_ns[i];
    if (at >= CAIRN_INTAKE_PLACES)
        return;
    differ = fabs(gap_ns[CAIRN_GAPS_SENDS_WAIT] - gap_ns[CAIRN_GAPS_SENDS_ASIDE]) > apart_ns;
    for (int i = 0; i < CAIRN_GAPS; i++) {
        float *before_ns = &intake->readings[i].before_ns[at];

        if (differ && at < intake->places_known)
            intake->readings[i].jumps_ns += fabs(gap_ns[i] - (double)*before_ns);
        *before_ns = (float)gap_ns[i];
    }
}

/*
 * Where operations go on behind computation, an operation that a rank computed up to begins behind
 * a gap. Since the last such start it has computed all the time, or waited for what was in between:
 * that is hidden, and would show if it took longer. What ends behind another operation would not.
 * A step begins when all that went before has ended.
 */
static void
note_hidden(struct cairn_intake *intake, const struct cairn_record *record, double gap_ns)
{
    if (intake->sample_count == 1) {
        intake->first_ns = gap_ns;
        intake->seen_ns = record->start_ns;
    } else if (gap_ns > 0) {
        intake->hidden_ns += fmax((double)record->start_ns - (double)intake->seen_ns - gap_ns, 0);
        intake->seen_ns = record->start_ns;
    }
}

/* True where a rank's clock has been set back by more than a step: an operation ends more than a
 * whole step before the end of the step before. */
static bool
is_set_back(const struct cairn_intake *intake, const struct cairn_record *record)
{
    return record->end_ns > 0 && intake->span_ns > 0 &&
           record->end_ns + intake->span_ns < intake->step_end_ns;
}

/* Begins with another clock. What is computed until the end of this step is unknown. */
static void
forget_times(struct cairn_intake *intake)
{
    for (int i = 0; i < CAIRN_GAPS; i++)
        intake->readings[i].gaps = (struct cairn_gaps){0};
    intake->most = (struct cairn_gaps){0};
    if (intake->stream)
        cairn_stream_forget_times(intake->stream);
    memset(intake->recent, 0, sizeof intake->recent);
    intake->send_start_ns = intake->send_end_ns = 0;
    intake->last_send = intake->last_send_before = (struct cairn_sent){0};
    intake->end_ns = intake->step_end_ns = intake->life_ns = intake->span_ns = 0;
    intake->open_count = 0;
}

/* Sends that follow at once have waited for each other: they are one. */
static void
note_send(struct cairn_intake *intake, const struct cairn_record *record)
{
    struct cairn_sent *last = &intake->last_send;

    if (record->end_ns <= last->end_ns)
        return;
    if (record->start_ns > last->end_ns + apart_ns)
        last->start_ns = record->start_ns;
    last->end_ns = record->end_ns;
}

/* How long a rank waited for a send in the gap before a start. */
static double
waited_for(const struct cairn_sent *send, uint64_t start_ns, double gap_ns)
{
    double begin_ns = fmax((double)start_ns - gap_ns, (double)send->start_ns);

    return send->end_ns <= start_ns ? fmax((double)send->end_ns - begin_ns, 0) : 0;
}

/* Sends that go on by themselves end before the next step begins, and a rank may wait for them
 * elsewhere: then it goes on as soon as the last has ended, which shows. The rest of such a gap is
 * computation. */
static double
without_sends(const struct cairn_intake *intake, uint64_t start_ns, double gap_ns)
{
    double left_ns = gap_ns - waited_for(&intake->last_send_before, start_ns, gap_ns);
    bool at_once = (double)start_ns - (double)intake->last_send.end_ns <= at_once_share * gap_ns;

    return at_once ? left_ns - waited_for(&intake->last_send, start_ns, left_ns) : left_ns;
}

cairn_err
cairn_intake_take(struct cairn_intake *intake, const struct cairn_record *record,
                  struct cairn_rank_step **done)
{
    uint64_t last_ns = record->end_ns > record->start_ns ? record->end_ns : record->start_ns;
    double gap_ns[CAIRN_GAPS];
    uint32_t lane;
    cairn_err err;

    *done = NULL;
    if (record->op != 0 && is_set_back(intake, record))
        forget_times(intake);
    if (last_ns > intake->life_ns)
        intake->life_ns = last_ns;
    if (record->op == 0) {
        intake->life_marks++;
        return CAIRN_OK;
    }
    intake->records++;
    if (intake->any && record->step < intake->step) {
        intake->ignored++;
        return CAIRN_OK;
    }
    if (!intake->any || record->step > intake->step) {
        err = cairn_intake_flush(intake, done);
        if (err)
            return err;
        intake->step = record->step;
        intake->any = true;
        intake->last_send_before = intake->last_send;
    }
    note_open(intake, record);
    if (record->end_ns == 0)
        return CAIRN_OK;
    err = add_sample(intake, record);
    if (err)
        return err;
    if (record->start_ns > intake->send_start_ns + apart_ns &&
        record->start_ns + apart_ns < intake->send_end_ns)
        intake->sends_aside++;
    for (int i = 0; i < CAIRN_GAPS; i++) {
        gap_ns[i] = 0;
        /* a send that goes on by itself may begin late, while its rank waits for something else */
        if (record->op == CAIRN_SEND && i == CAIRN_GAPS_SENDS_ASIDE)
            continue;
        gap_ns[i] = cairn_gaps_before(&intake->readings[i].gaps, record->start_ns);
        if (i == CAIRN_GAPS_SENDS_ASIDE)
            gap_ns[i] = without_sends(intake, record->start_ns, gap_ns[i]);
        cairn_gaps_add(&intake->readings[i].gaps, record->end_ns);
    }
    intake->most_ns += cairn_gaps_before(&intake->most, record->start_ns);
    lane = intake->samples[intake->sample_count - 1].lane;
    if (record->op != CAIRN_SEND) {
        err = note_recent(intake, record, lane);
        if (err)
            return err;
    }
    if (intake->stream)
        cairn_stream_take(intake->stream, lane, record->op == CAIRN_SEND, record->start_ns,
                          record->end_ns);
    if (!goes_behind(intake, lane))
        cairn_gaps_add(&intake->most, record->end_ns);
    note_hidden(intake, record, gap_ns[CAIRN_GAPS_SENDS_WAIT]);
    compare_places(intake, record->start_ns, gap_ns[CAIRN_GAPS_SENDS_WAIT]);
    add_gap(intake, gap_ns);
    if (record->op == CAIRN_SEND) {
        note_send(intake, record);
        intake->send_start_ns = record->start_ns;
        intake->send_end_ns = record->end_ns;
    }
    if (record->end_ns > intake->end_ns)
        intake->end_ns = record->end_ns;
    if (record->work > 0)
        intake->work = record->work;
    if (record->has_compute) {
        intake->told_ns = record->compute_ns;
        intake->is_told = true;
    }
    return CAIRN_OK;
}
