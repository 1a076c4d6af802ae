/*
 * replan/detect/behind.c - what a rank computes in a job all of whose operations go on behind the
 * computation, as gradients that are reduced during the backward pass do.
 *
 * There a rank starts an operation when it has computed so far, and does not wait for it before the
 * end of the step. So a gap before an operation shows by how much the rank is behind everything
 * that it has computed since the step began, and a sum of gaps counts that again and again. The
 * computation is the time up to the last start that usually stands behind a gap. Where it stands
 * behind none, an operation that others are late for has hidden when the rank was through; then
 * only the gap before the first operation of the step tells its speed. A rank that gathers
 * parameters meanwhile may wait for those, so all operations must be reductions.
 */
#include "replan/detect/detector.h"

#include <math.h>

/* A job is one of these if the intervals between starts vary less than this share of what the gaps
 * do, from step to step … */
static const double behind_gain = 0.8;
static const double shown_share = 0.9; /* of the steps of ranks, in which the last place is seen */
/* … or if a place stands behind a gap in some steps and in others does not, by these shares of all:
 * elsewhere a rank computes there, or it does not. */
static const double mixed_min = 0.1, mixed_max = 0.9;
/* Ends are known to the microsecond; and a gap is one of this share of the first gap. */
static const double gap_min_ns = 3000, gap_share = 0.01;
enum { STEPS = 6 }; /* that show it */

/* Fills begun_ns[count] with the operations' starts, counted from the first one's, and shown[count]
 * with whether a gap stands before them. */
static uint32_t
read_places(const struct cairn_rank_step *part, double *begun_ns, bool *shown)
{
    uint32_t count =
        part->sample_count < CAIRN_INTAKE_PLACES ? part->sample_count : CAIRN_INTAKE_PLACES;
    double last_ns = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct cairn_sample *sample = &part->samples[i], *first = &part->samples[0];
        double end_ns =
            (double)first->duration_ns + 1000.0 * (double)(int32_t)(sample->end_us - first->end_us);

        begun_ns[i] = end_ns - (double)sample->duration_ns;
        shown[i] = i > 0 && begun_ns[i] > last_ns + fmax(gap_min_ns, gap_share * part->first_ns);
        last_ns = fmax(last_ns, end_ns);
    }
    return count;
}

/* What other operations give a rank it may need to compute on. */
static bool
has_reductions_alone(const struct cairn_rank_step *part)
{
    for (uint32_t i = 0; i < part->sample_count; i++) {
        uint32_t lane = part->samples[i].lane, op = lane % 16;

        if ((lane & CAIRN_LANE_PAIR) || (op != CAIRN_ALL_REDUCE && op != CAIRN_REDUCE_SCATTER))
            return false;
    }
    return true;
}

/* The last place that nearly all ranks show in nearly all steps; 0: only the first gap shows. */
static uint32_t
last_shown(const struct cairn_behind *behind)
{
    uint32_t place = CAIRN_INTAKE_PLACES - 1;

    while (place > 0 && behind->shown[place] < shown_share * behind->rank_steps)
        place--;
    return place;
}

/* True where some places show sometimes, or none ever does. */
static bool
shows_at_times(const struct cairn_behind *behind)
{
    bool any = false, at_times = false;

    for (uint32_t place = 1; place < CAIRN_INTAKE_PLACES; place++) {
        bool shows = behind->shown[place] > mixed_min * behind->rank_steps;

        any |= shows;
        at_times |= shows && behind->shown[place] < mixed_max * behind->rank_steps;
    }
    return at_times || !any;
}

bool
cairn_detect_learn_behind(struct cairn_detector *detector, const struct cairn_flight *flight)
{
    struct cairn_behind *behind = &detector->behind;
    double begun_ns[CAIRN_INTAKE_PLACES], gaps_ns = 0, intervals_ns = 0;
    bool shown[CAIRN_INTAKE_PLACES];

    if (behind->steps >= STEPS || detector->calibrated || detector->by_reports)
        return false;
    for (uint32_t rank = 0; rank < detector->topology->world; rank++) {
        const struct cairn_rank_step *part = flight->ranks[rank];
        uint32_t count;

        if (!part || !(part->first_ns > 0) || part->is_measured)
            continue;
        if (part->by_stream || !has_reductions_alone(part)) { /* another one */
            behind->steps = STEPS;
            return false;
        }
        count = read_places(part, begun_ns, shown);
        for (uint32_t i = 1; i < count; i++)
            behind->shown[i] += shown[i];
        behind->rank_steps++;
        gaps_ns += part->gap_jumps_ns;
        intervals_ns += part->interval_jumps_ns;
    }
    if (behind->rank_steps == 0 || ++behind->steps < STEPS)
        return false;
    if (intervals_ns >= behind_gain * gaps_ns && !shows_at_times(behind))
        return false;
    behind->place = last_shown(behind);
    behind->is_found = true;
    return true;
}

double
cairn_detect_behind_ns(const struct cairn_detector *detector, const struct cairn_rank_step *part,
                       bool *is_shown)
{
    double begun_ns[CAIRN_INTAKE_PLACES];
    bool shown[CAIRN_INTAKE_PLACES];
    uint32_t place = detector->behind.place;

    *is_shown = false;
    if (place >= read_places(part, begun_ns, shown))
        return (double)NAN;
    *is_shown = place == 0 || shown[place];
    return part->first_ns + begun_ns[place];
}
