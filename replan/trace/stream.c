/* replan/trace/stream.c - which operations go on behind a rank's computation, and what it computes
 * between the others. */
#include "replan/trace/stream.h"

#include <math.h>
#include <string.h>

/* One reading is surely right if the gaps vary by less than the first share of what they vary by in
 * the other, and likely by less than the second. */
static const double sure_gain = 0.5, doubt_gain = 0.8;
static const double alike_share = 0.02; /* of the gaps, that readings differ by at most */
enum {
    OVERLAPS_MIN = 2,
    STEPS_MIN = 6 /* steps in which places are compared */
};

/* Index of a lane; CAIRN_STREAM_LANES if there are too many. */
static uint32_t
find_lane(struct cairn_stream *stream, uint32_t lane)
{
    uint32_t i = 0;

    while (i < stream->lane_count && stream->lanes[i].lane != lane)
        i++;
    if (i == stream->lane_count && i < CAIRN_STREAM_LANES)
        stream->lanes[stream->lane_count++] = (struct cairn_stream_lane){.lane = lane};
    return i;
}

void
cairn_stream_overlap(struct cairn_stream *stream, uint32_t lane, uint32_t other)
{
    uint32_t at[] = {find_lane(stream, lane), find_lane(stream, other)};

    if (stream->chosen || at[0] == CAIRN_STREAM_LANES || at[1] == CAIRN_STREAM_LANES)
        return;
    for (int i = 0; i < 2; i++) {
        uint8_t *overlaps = &stream->lanes[at[i]].overlaps[at[1 - i]];

        *overlaps = (uint8_t)(*overlaps + (*overlaps < UINT8_MAX));
    }
}

static bool
overlap(const struct cairn_stream *stream, uint32_t lane, uint32_t other)
{
    return stream->lanes[lane].overlaps[other] >= OVERLAPS_MIN;
}

/* The lanes that go on behind the computation, as bits; 0 where none overlaps with one that does
 * not overlap with itself. */
static uint32_t
find_behind(const struct cairn_stream *stream)
{
    uint32_t best = CAIRN_STREAM_LANES, behind = 0;

    for (uint32_t i = 0; i < stream->lane_count; i++) {
        bool any = false;

        for (uint32_t k = 0; k < stream->lane_count; k++)
            any |= overlap(stream, i, k);
        if (any && !overlap(stream, i, i) &&
            (best == CAIRN_STREAM_LANES || stream->lanes[i].count > stream->lanes[best].count))
            best = i;
    }
    for (uint32_t i = 0; i < stream->lane_count && best < CAIRN_STREAM_LANES; i++)
        behind |= (uint32_t)overlap(stream, i, best) << i;
    return behind;
}

static bool
is_behind(const struct cairn_stream *stream, uint32_t index)
{
    return index < CAIRN_STREAM_LANES && (stream->behind >> index & 1);
}

/* True where an operation that goes on behind is under way at the point of the last start. */
static bool
any_open(const struct cairn_stream *stream)
{
    return stream->gaps[0][CAIRN_BEHIND_WAITS].pending_count >
           stream->gaps[0][CAIRN_BEHIND_IGNORED].pending_count;
}

static bool
surely_waits(const struct cairn_stream_place *at)
{
    return !at->open &&
           at->jumps_ns[CAIRN_BEHIND_WAITS] < sure_gain * at->jumps_ns[CAIRN_BEHIND_IGNORED];
}

/* One place where a rank waits is enough: if it surely does somewhere, it does nowhere else unless
 * that is as sure. Otherwise it does unless it likely does not. */
static bool
waits_at(const struct cairn_stream *stream, uint32_t place)
{
    const struct cairn_stream_place *at;

    if (place >= CAIRN_STREAM_PLACES)
        return true;
    at = &stream->places[place];
    if (stream->waits_somewhere)
        return surely_waits(at);
    return !at->open &&
           at->jumps_ns[CAIRN_BEHIND_IGNORED] >= doubt_gain * at->jumps_ns[CAIRN_BEHIND_WAITS];
}

/* True where both readings have been the same so far, so that one may take the other's place. */
static bool
are_alike(const struct cairn_stream_place *at)
{
    return at->waited_ns <= alike_share * at->gaps_ns;
}

/* Notes the gaps of a place in this step. */
static void
note_place(struct cairn_stream *stream, const double *gap_ns)
{
    struct cairn_stream_place *at;

    if (stream->place >= CAIRN_STREAM_PLACES)
        return;
    at = &stream->places[stream->place];
    at->open_now = any_open(stream);
    for (int i = 0; i < CAIRN_BEHIND_READINGS; i++)
        at->now_ns[i] = (float)gap_ns[i];
}

/* Compares the places of this step with those of the one before. */
static void
compare_places(struct cairn_stream *stream)
{
    for (uint32_t k = 0; k < stream->place && k < CAIRN_STREAM_PLACES; k++) {
        struct cairn_stream_place *at = &stream->places[k];

        if (stream->operations == stream->operations_known) {
            at->open |= at->open_now && (!stream->chosen || are_alike(at));
            for (int i = 0; i < CAIRN_BEHIND_READINGS && !stream->chosen; i++)
                at->jumps_ns[i] += fabsf(at->now_ns[i] - at->before_ns[i]);
            if (!stream->chosen) {
                at->gaps_ns += at->now_ns[CAIRN_BEHIND_IGNORED];
                at->waited_ns += at->now_ns[CAIRN_BEHIND_IGNORED] - at->now_ns[CAIRN_BEHIND_WAITS];
            }
        }
        memcpy(at->before_ns, at->now_ns, sizeof at->before_ns);
    }
}

void
cairn_stream_take(struct cairn_stream *stream, uint32_t lane, bool is_send, uint64_t start_ns,
                  uint64_t end_ns)
{
    uint32_t index = find_lane(stream, lane);

    stream->operations++;
    if (index < CAIRN_STREAM_LANES)
        stream->lanes[index].count++;
    if (is_behind(stream, index)) {
        for (int sends = 0; sends < 2; sends++)
            cairn_gaps_add(&stream->gaps[sends][CAIRN_BEHIND_WAITS], end_ns);
        return;
    }
    for (int sends = 0; sends < 2; sends++) {
        struct cairn_gaps *gaps = stream->gaps[sends];
        double gap_ns[CAIRN_BEHIND_READINGS];

        if (sends == 1 && is_send)
            continue;
        for (int i = 0; i < CAIRN_BEHIND_READINGS; i++)
            gap_ns[i] = cairn_gaps_before(&gaps[i], start_ns);
        if (sends == 0)
            note_place(stream, gap_ns);
        for (int i = 0; i < CAIRN_BEHIND_READINGS; i++)
            cairn_gaps_add(&gaps[i], end_ns);
        stream->compute_ns[sends] +=
            gap_ns[waits_at(stream, stream->place) ? CAIRN_BEHIND_WAITS : CAIRN_BEHIND_IGNORED];
    }
    stream->place++;
}

bool
cairn_stream_end_step(struct cairn_stream *stream, double *compute_ns)
{
    bool known = stream->chosen, like_before = stream->operations == stream->operations_known;
    uint32_t behind;

    for (int sends = 0; sends < 2; sends++) {
        compute_ns[sends] = known ? stream->compute_ns[sends] : (double)NAN;
        stream->compute_ns[sends] = 0;
    }
    compare_places(stream);
    stream->operations_known = stream->operations;
    stream->place = stream->operations = 0;
    if (known)
        return true;
    behind = ++stream->age <= CAIRN_STREAM_STEPS_MAX ? find_behind(stream) : stream->behind;
    if (behind != stream->behind) { /* begin again */
        stream->behind = behind;
        memset(stream->places, 0, sizeof stream->places);
        stream->operations_known = stream->steps = 0;
        cairn_stream_forget_times(stream);
    } else if (behind && like_before) {
        stream->chosen = ++stream->steps >= STEPS_MIN;
        for (uint32_t i = 0; stream->chosen && i < CAIRN_STREAM_PLACES; i++)
            stream->waits_somewhere |= surely_waits(&stream->places[i]);
    }
    return behind != 0;
}

void
cairn_stream_forget_times(struct cairn_stream *stream)
{
    memset(stream->gaps, 0, sizeof stream->gaps);
}
