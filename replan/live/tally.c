/* replan/live/tally.c - operations that a rank has entered, counted; see tally.h. */
#include "replan/live/tally.h"

#include <stdlib.h>

/* A step with its pauses lies within; gaps are remembered for one to two of these. */
static const uint64_t gaps_span_ns = 300000000000;
static const uint64_t young_ns = 30000000000;

static uint64_t
time_of(const struct cairn_timing_record *record)
{
    uint64_t begun_ns = record->start_ns > record->enter_ns ? record->start_ns : record->enter_ns;

    return record->end_ns > begun_ns ? record->end_ns : begun_ns;
}

static struct cairn_tally_lane *
lane_of(struct cairn_tally *tally, const struct cairn_timing_record *record)
{
    uint32_t peer = record->op >= CAIRN_SEND ? record->peer : CAIRN_PEER_NONE;
    uint32_t first = (uint32_t)((record->comm ^ (uint64_t)peer << 8 ^ record->op) *
                                    UINT64_C(0x9e3779b97f4a7c15) >>
                                56);
    struct cairn_tally_lane *oldest = NULL;

    for (uint32_t i = 0; i < CAIRN_TALLY_LANES_MAX; i++) {
        struct cairn_tally_lane *lane = &tally->lanes[(first + i) % CAIRN_TALLY_LANES_MAX];

        if (lane->comm == record->comm && lane->op == record->op && lane->peer == peer)
            return lane;
        if (lane->comm == 0 || !oldest || lane->used_ns < oldest->used_ns)
            oldest = lane;
        if (lane->comm == 0)
            break;
    }
    tally->has_forgotten |= oldest->comm != 0;
    *oldest = (struct cairn_tally_lane){
        .comm = record->comm, .peer = peer, .op = record->op, .is_anew = tally->has_forgotten};
    return oldest;
}

/* The longest time in which a rank begins nothing is what its steps look like, where nobody names
 * them. At first it compiles. */
static void
note_gap(struct cairn_tally *tally, uint64_t time_ns)
{
    uint64_t gap_ns = tally->last_ns > 0 && time_ns > tally->last_ns ? time_ns - tally->last_ns : 0;

    if (tally->first_ns == 0)
        tally->first_ns = tally->gaps_begin_ns = time_ns;
    if (time_ns > tally->gaps_begin_ns + gaps_span_ns) {
        tally->gap_ns[1] = tally->gap_ns[0];
        tally->gap_ns[0] = 0;
        tally->gaps_begin_ns = time_ns;
    }
    if (gap_ns > tally->gap_ns[0] && tally->last_ns - tally->first_ns > young_ns)
        tally->gap_ns[0] = gap_ns;
    if (time_ns > tally->last_ns)
        tally->last_ns = time_ns;
}

void
cairn_tally_take(struct cairn_tally *tally, const struct cairn_timing_record *record)
{
    struct cairn_tally_lane *lane = lane_of(tally, record);
    bool is_entry = record->start_ns == 0 && record->end_ns == 0;

    note_gap(tally, time_of(record));
    lane->used_ns = time_of(record);
    lane->repeats |= is_entry && record->seq > 0 && record->seq <= lane->count;
    if (record->seq > lane->count)
        lane->count = record->seq;
    if (is_entry) {
        /* what began and ended before it was entered before, too */
        if (lane->entered == 0 && tally->is_late && record->seq > 0)
            lane->before = record->seq - 1;
        tally->entered++;
        lane->entered++;
        lane->is_stale = false;
        if (record->op >= CAIRN_SEND)
            lane->count = lane->entered;
    } else if (record->end_ns == 0) {
        lane->running_seq = record->seq;
        lane->running_ns = record->start_ns;
    } else if (record->seq >= lane->running_seq) {
        lane->running_seq = 0;
    }
}

void
cairn_tally_lose(struct cairn_tally *tally, uint64_t count)
{
    tally->lost += count;
    for (uint32_t i = 0; i < CAIRN_TALLY_LANES_MAX; i++) {
        tally->lanes[i].is_stale = true;
        tally->lanes[i].running_seq = 0; /* its end may be among them */
    }
}

static int
by_use(const void *left, const void *right)
{
    const struct cairn_tally_lane *a = *(const struct cairn_tally_lane *const *)left;
    const struct cairn_tally_lane *b = *(const struct cairn_tally_lane *const *)right;

    return (a->used_ns < b->used_ns) - (a->used_ns > b->used_ns);
}

static uint64_t
before(uint64_t time_ns, uint64_t now_ns)
{
    return now_ns > time_ns ? now_ns - time_ns : 0;
}

void
cairn_tally_fill(const struct cairn_tally *tally, struct cairn_report *report)
{
    const struct cairn_tally_lane *used[CAIRN_TALLY_LANES_MAX];
    uint32_t used_count = 0;

    for (uint32_t i = 0; i < CAIRN_TALLY_LANES_MAX; i++)
        if (tally->lanes[i].comm)
            used[used_count++] = &tally->lanes[i];
    /* cppcheck-suppress uninitvar ; the loop above fills `used_count` of them */
    qsort(used, used_count, sizeof *used, by_use);
    report->entered = tally->entered;
    report->active_ns = before(tally->first_ns, tally->last_ns);
    report->gap_ns = tally->gap_ns[0] > tally->gap_ns[1] ? tally->gap_ns[0] : tally->gap_ns[1];
    report->counts_whole = !tally->is_late && tally->lost == 0 && !tally->has_forgotten &&
                           used_count <= CAIRN_REPORT_COUNTS_MAX;
    report->count_count =
        used_count < CAIRN_REPORT_COUNTS_MAX ? used_count : CAIRN_REPORT_COUNTS_MAX;
    for (uint32_t i = 0; i < report->count_count; i++) {
        const struct cairn_tally_lane *lane = used[i];
        bool is_transfer = lane->op >= CAIRN_SEND;

        report->counts[i] = (struct cairn_report_count){
            .lane = {.comm = lane->comm,
                     .peer = lane->peer,
                     .op = (uint8_t)lane->op,
                     .is_place = is_transfer},
            .count = lane->count,
            .is_known = is_transfer ? !tally->is_late && !lane->is_anew && tally->lost == 0
                                    : !lane->is_stale && !lane->repeats && lane->entered > 0 &&
                                          lane->count - lane->before <= lane->entered + tally->lost,
            .age_ns = before(lane->used_ns, tally->last_ns)};
        if (lane->running_seq > 0)
            report->counts[i].running_seq = lane->running_seq;
        if (lane->running_seq > 0)
            report->counts[i].running_age_ns = before(lane->running_ns, tally->last_ns);
    }
}
