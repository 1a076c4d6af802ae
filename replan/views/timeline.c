/* replan/views/timeline.c - keeps the last steps and makes spans of them, with the gaps between. */
#include "replan/views/timeline.h"

#include "base/assert.h"
#include "replan/trace/intake.h"
#include "replan/trace/period.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 64, REOPENED_MAX = 8 };
static const uint64_t apart_ns = 2000; /* operations that are begun together start less than this
                                        * apart */

/* What is kept of one rank. */
struct kept {
    struct cairn_record *records;
    uint32_t count, room;
    uint32_t step; /* of the last */
    uint64_t life_ns;
};

struct cairn_timeline {
    const struct cairn_topology *topology;
    uint32_t steps;
    struct kept *ranks;           /* [world] */
    struct cairn_period *periods; /* [world], where records name no steps */
    struct cairn_span *spans;
    size_t span_count;
    uint32_t operation_count;
    bool sends_aside;
};

cairn_err
cairn_timeline_create(const struct cairn_topology *topology, uint32_t steps,
                      struct cairn_timeline **out)
{
    struct cairn_timeline *timeline = calloc(1, sizeof *timeline);

    CAIRN_ASSERT(steps >= 1 && steps <= CAIRN_TIMELINE_STEPS_MAX);
    if (!timeline)
        return CAIRN_NOMEM;
    timeline->topology = topology;
    timeline->steps = steps;
    timeline->ranks = calloc(topology->world, sizeof *timeline->ranks);
    if (!timeline->ranks) {
        free(timeline);
        return CAIRN_NOMEM;
    }
    *out = timeline;
    return CAIRN_OK;
}

static void
free_records(struct cairn_timeline *timeline)
{
    for (uint32_t rank = 0; rank < timeline->topology->world; rank++) {
        free(timeline->ranks[rank].records);
        if (timeline->periods)
            cairn_period_fini(&timeline->periods[rank]);
    }
    free(timeline->ranks);
    free(timeline->periods);
    timeline->ranks = NULL;
    timeline->periods = NULL;
}

void
cairn_timeline_destroy(struct cairn_timeline *timeline)
{
    if (!timeline)
        return;
    if (timeline->ranks)
        free_records(timeline);
    free(timeline->spans);
    free(timeline);
}

/* ---- keeping ---- */

/* Makes room for one more: lets go of the steps that are too old, or doubles. */
static cairn_err
make_room(const struct cairn_timeline *timeline, struct kept *kept)
{
    uint32_t first = 0, room = kept->room ? 2 * kept->room : ROOM_FIRST;
    struct cairn_record *records;

    if (kept->count < kept->room)
        return CAIRN_OK;
    while (first < kept->count && kept->records[first].step + timeline->steps < kept->step)
        first++;
    kept->count -= first;
    if (first > 0)
        memmove(kept->records, kept->records + first, kept->count * sizeof *kept->records);
    if (kept->count * 2 <= kept->room && kept->room > 0)
        return CAIRN_OK;
    records = realloc(kept->records, room * sizeof *records);
    if (!records)
        return CAIRN_NOMEM;
    kept->records = records;
    kept->room = room;
    return CAIRN_OK;
}

/* The record of the same operation that was still open; NULL where there is none. */
static struct cairn_record *
opened_before(struct kept *kept, const struct cairn_record *record)
{
    for (uint32_t back = 1; back <= REOPENED_MAX && back <= kept->count; back++) {
        struct cairn_record *other = &kept->records[kept->count - back];

        if (other->end_ns == 0 && other->op == record->op && other->comm == record->comm &&
            other->peer == record->peer && other->start_ns == record->start_ns)
            return other;
    }
    return NULL;
}

static cairn_err
take_numbered(struct cairn_timeline *timeline, const struct cairn_record *record)
{
    struct kept *kept = &timeline->ranks[record->rank];
    uint64_t last_ns = record->end_ns > record->start_ns ? record->end_ns : record->start_ns;
    struct cairn_record *other;
    cairn_err err;

    if (last_ns > kept->life_ns)
        kept->life_ns = last_ns;
    if (record->op == 0 || (kept->count > 0 && record->step < kept->step))
        return CAIRN_OK;
    other = opened_before(kept, record);
    if (other) {
        *other = *record;
        return CAIRN_OK;
    }
    err = make_room(timeline, kept);
    if (err)
        return err;
    kept->records[kept->count++] = *record;
    kept->step = record->step;
    return CAIRN_OK;
}

cairn_err
cairn_timeline_feed(struct cairn_timeline *timeline, const struct cairn_record *record)
{
    struct cairn_record numbered = *record;
    struct cairn_period *period;
    cairn_err err;
    bool known;

    CAIRN_ASSERT(record->rank < timeline->topology->world && timeline->ranks);
    if (record->op == 0 || record->has_step)
        return take_numbered(timeline, record);
    if (!timeline->periods) {
        timeline->periods = cairn_periods_create(timeline->topology->world);
        if (!timeline->periods)
            return CAIRN_NOMEM;
    }
    period = &timeline->periods[record->rank];
    if (period->period > 0) {
        cairn_period_number(period, &numbered);
        return take_numbered(timeline, &numbered);
    }
    err = cairn_period_keep(period, record, &known);
    if (err || !known)
        return err;
    for (uint32_t i = 0; !err && i < period->kept_count; i++) {
        cairn_period_number(period, &period->kept[i]);
        err = take_numbered(timeline, &period->kept[i]);
    }
    cairn_period_release(period);
    return err;
}

/* What was kept back until a period would be known. */
static cairn_err
settle_periods(struct cairn_timeline *timeline)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; timeline->periods && !err && rank < timeline->topology->world; rank++) {
        struct cairn_period *period = &timeline->periods[rank];

        if (period->kept_count == 0)
            continue;
        cairn_period_settle(period);
        for (uint32_t i = 0; !err && i < period->kept_count; i++) {
            cairn_period_number(period, &period->kept[i]);
            err = take_numbered(timeline, &period->kept[i]);
        }
        cairn_period_release(period);
    }
    return err;
}

/* ---- from records to spans ---- */

static int
compare_starts(const void *left, const void *right)
{
    const struct cairn_span *a = left, *b = right;

    return a->start_ns > b->start_ns ? 1 : a->start_ns < b->start_ns ? -1 : 0;
}

/* Numbers what has no number by its place among those of its kind in the rank's step. Spans of a
 * rank. */
static void
number_spans(struct cairn_span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (spans[i].has_seq)
            continue;
        spans[i].seq = 0;
        for (size_t k = i; k-- > 0 && spans[k].step == spans[i].step;)
            if (spans[k].op == spans[i].op && spans[k].comm == spans[i].comm &&
                spans[k].peer == spans[i].peer) {
                spans[i].seq = spans[k].seq + 1;
                break;
            }
    }
}

/* Fills in a rank's spans, with times since its own first; returns how many. */
static size_t
spans_of(const struct kept *kept, uint32_t rank, uint32_t first_step, struct cairn_span *spans)
{
    uint64_t begin_ns = UINT64_MAX;
    size_t count = 0;

    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->records[i].step >= first_step && kept->records[i].start_ns < begin_ns)
            begin_ns = kept->records[i].start_ns;
    for (uint32_t i = 0; i < kept->count; i++) {
        const struct cairn_record *record = &kept->records[i];
        uint64_t end_ns = record->end_ns > 0 ? record->end_ns : kept->life_ns;

        if (record->step < first_step)
            continue;
        spans[count++] = (struct cairn_span){
            .start_ns = (double)(record->start_ns - begin_ns),
            .end_ns = (double)((end_ns > record->start_ns ? end_ns : record->start_ns) - begin_ns),
            .seq = record->seq,
            .bytes = record->bytes,
            .rank = rank,
            .comm = record->comm,
            .peer = record->peer,
            .step = record->step,
            .before = UINT32_MAX,
            .op = record->op,
            .has_seq = record->has_seq,
            .open = record->end_ns == 0};
    }
    qsort(spans, count, sizeof *spans, compare_starts);
    number_spans(spans, count);
    return count;
}

static cairn_err
make_spans(struct cairn_timeline *timeline)
{
    uint32_t last_step = 0, first_step;
    size_t room = 1;

    for (uint32_t rank = 0; rank < timeline->topology->world; rank++) {
        room += timeline->ranks[rank].count;
        if (timeline->ranks[rank].count > 0 && timeline->ranks[rank].step > last_step)
            last_step = timeline->ranks[rank].step;
    }
    first_step = last_step + 1 > timeline->steps ? last_step + 1 - timeline->steps : 0;
    timeline->spans = calloc(room, sizeof *timeline->spans);
    if (!timeline->spans)
        return CAIRN_NOMEM;
    for (uint32_t rank = 0; rank < timeline->topology->world; rank++)
        timeline->span_count += spans_of(&timeline->ranks[rank], rank, first_step,
                                         timeline->spans + timeline->span_count);
    free_records(timeline);
    return CAIRN_OK;
}

/* ---- gaps ---- */

static void
find_sends_aside(struct cairn_timeline *timeline)
{
    const struct cairn_span *send = NULL;
    uint32_t inside = 0;

    for (size_t i = 0; i < timeline->span_count && inside < CAIRN_SENDS_ASIDE; i++) {
        const struct cairn_span *span = &timeline->spans[i];

        if (send && send->rank != span->rank) {
            send = NULL;
            inside = 0;
        }
        inside += send && span->start_ns > send->start_ns + (double)apart_ns &&
                  span->start_ns + (double)apart_ns < send->end_ns;
        if (span->op == CAIRN_SEND)
            send = span;
    }
    timeline->sends_aside = inside >= CAIRN_SENDS_ASIDE;
}

/* What each operation follows: the last begin or end on its rank before it, sends aside. */
static void
find_gaps(struct cairn_timeline *timeline)
{
    for (size_t i = 1; i < timeline->span_count; i++) {
        struct cairn_span *span = &timeline->spans[i];
        double point_ns;

        if (span->rank != span[-1].rank)
            continue;
        span->before = (uint32_t)(i - 1);
        span->after_start = true;
        point_ns = span[-1].start_ns;
        for (size_t k = i;
             k-- > 0 && i - k <= CAIRN_GAPS_PENDING && timeline->spans[k].rank == span->rank;) {
            const struct cairn_span *other = &timeline->spans[k];

            if (other->end_ns > span->start_ns || other->end_ns < point_ns ||
                (other->op == CAIRN_SEND && timeline->sends_aside))
                continue;
            point_ns = other->end_ns;
            span->before = (uint32_t)k;
            span->after_start = false;
        }
        span->gap_ns = span->start_ns - point_ns;
    }
}

cairn_err
cairn_timeline_finish(struct cairn_timeline *timeline)
{
    struct cairn_span **order;
    cairn_err err = settle_periods(timeline);

    if (!err)
        err = make_spans(timeline);
    if (err)
        return err;
    order = malloc((timeline->span_count + 1) * sizeof(struct cairn_span *));
    if (!order)
        return CAIRN_NOMEM;
    timeline->operation_count = cairn_spans_match(timeline->spans, timeline->span_count, order);
    err =
        cairn_spans_align(timeline->topology->world, timeline->spans, timeline->span_count, order);
    free(order);
    if (err)
        return err;
    find_sends_aside(timeline);
    find_gaps(timeline);
    return cairn_ideal_replay(timeline->topology, timeline->spans, timeline->span_count,
                              timeline->operation_count);
}

const struct cairn_span *
cairn_timeline_spans(const struct cairn_timeline *timeline, size_t *count)
{
    *count = timeline->span_count;
    return timeline->spans;
}

uint32_t
cairn_timeline_operation_count(const struct cairn_timeline *timeline)
{
    return timeline->operation_count;
}

bool
cairn_timeline_sends_aside(const struct cairn_timeline *timeline)
{
    return timeline->sends_aside;
}
