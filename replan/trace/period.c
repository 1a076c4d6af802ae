/* replan/trace/period.c - steps from the repetition of a rank's operations. */
#include "replan/trace/period.h"
#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const uint32_t repeats = 3, symbols_max = 64;
/* A sequence that repeats is part of a step if its durations repeat after several repeats, to this
 * share of what they differ by from one to the next. Equally good numbers of repeats differ by less
 * than alike_gain. */
static const double several_gain = 0.6, alike_gain = 1.25;
enum {
    NEAR = 2,                    /* by which operations that go on at once change places */
    ANCHORS_MAX = 16,            /* of the rarest collective in a step */
    SEVERAL_MAX = 64,            /* repetitions in a step, ... */
    SEVERAL_OPERATIONS_MAX = 512 /* ... and operations in them */
};

struct cairn_period *
cairn_periods_create(uint32_t rank_count)
{
    struct cairn_period *periods = calloc(rank_count, sizeof *periods);
    uint32_t kept_max = CAIRN_PERIOD_RECORDS_TOTAL / rank_count;

    if (kept_max > CAIRN_PERIOD_RECORDS_MAX)
        kept_max = CAIRN_PERIOD_RECORDS_MAX;
    if (kept_max < 4 * CAIRN_PERIOD_RECORDS_MIN)
        kept_max = 4 * CAIRN_PERIOD_RECORDS_MIN;
    for (uint32_t i = 0; periods && i < rank_count; i++)
        periods[i].kept_max = kept_max;
    return periods;
}

void
cairn_period_fini(struct cairn_period *period)
{
    free(period->kept);
    *period = (struct cairn_period){0};
}

/* What makes two operations the same one of two steps. */
static uint64_t
symbol_of(const struct cairn_record *record)
{
    return (uint64_t)record->op << 56 | (uint64_t)(record->comm & 0xffffff) << 32 | record->peer;
}

static bool
is_pair(uint64_t symbol)
{
    return symbol >> 56 == CAIRN_SEND || symbol >> 56 == CAIRN_RECV;
}

struct symbol {
    uint64_t symbol;
    uint32_t count, matched;
};

/* False where the kept sequence as a whole does not repeat after `lag`, which is soon seen. */
static bool
nearly_repeats_after(const struct cairn_period *period, uint32_t lag)
{
    uint32_t pairs = period->kept_count - lag, different = 0;

    for (uint32_t i = 0; i < pairs; i++) {
        different += symbol_of(&period->kept[i]) != symbol_of(&period->kept[i + lag]);
        if (different * 10 > pairs)
            return false;
    }
    return true;
}

/* True where the kept sequence repeats after `lag`, each of its operations by itself. */
static bool
repeats_after(const struct cairn_period *period, uint32_t lag)
{
    struct symbol symbols[64];
    uint32_t used = 0;

    for (uint32_t i = 0; i + lag < period->kept_count; i++) {
        uint64_t symbol = symbol_of(&period->kept[i]);
        uint32_t k = 0;

        while (k < used && symbols[k].symbol != symbol)
            k++;
        if (k == symbols_max)
            return false;
        if (k == used)
            symbols[used++] = (struct symbol){.symbol = symbol};
        symbols[k].count++;
        symbols[k].matched += symbol_of(&period->kept[i + lag]) == symbol;
    }
    for (uint32_t k = 0; k < used; k++)
        if (symbols[k].matched * 10 < symbols[k].count * 9)
            return false;
    return used > 0;
}

/* True if nearly each of the anchors in the kept records has the number after that of the last:
 * otherwise the numbers count other operations too. */
static bool
are_numbered(const struct cairn_period *period)
{
    uint32_t count = 0, next = 0;
    uint64_t last = 0;

    for (uint32_t i = 0; i < period->kept_count; i++) {
        const struct cairn_record *record = &period->kept[i];

        if (symbol_of(record) != period->anchor)
            continue;
        if (!record->has_seq)
            return false;
        next += count++ > 0 && record->seq == last + 1;
        last = record->seq;
    }
    return count > 1 && next * 10 >= (count - 1) * 9;
}

static void
number_anchors(struct cairn_period *period)
{
    period->anchor_numbered = are_numbered(period);
    for (uint32_t i = 0; i < period->kept_count; i++)
        if (symbol_of(&period->kept[i]) == period->anchor) {
            period->anchor_seq = period->kept[i].seq;
            return;
        }
}

/* The rarest operation of a period; of equally rare operations, the last. */
static void
choose_anchor(struct cairn_period *period)
{
    uint32_t fewest = UINT32_MAX;

    for (uint32_t i = 0; i < period->period; i++) {
        uint64_t symbol = symbol_of(&period->kept[i]);
        uint32_t count = 0;

        for (uint32_t k = 0; k < period->period; k++)
            count += symbol_of(&period->kept[k]) == symbol;
        if (count <= fewest) {
            fewest = count;
            period->anchor = symbol;
        }
    }
    period->anchor_count = fewest;
    number_anchors(period);
}

/* ---- repetitions within a step ---- */

/* From the start of one repetition to that of the next. */
static double
duration_ns(const struct cairn_period *period, uint32_t lag, uint32_t at)
{
    return (double)period->kept[(at + 1) * lag].start_ns - (double)period->kept[at * lag].start_ns;
}

/* By how much the durations of repetitions differ from those `several` later, in the mean. A pause
 * counts as one repetition more at most. */
static double
differ_by(const struct cairn_period *period, uint32_t lag, uint32_t several)
{
    uint32_t count = (period->kept_count - 1) / lag;
    double most_ns =
               fabs((double)period->kept[count * lag].start_ns - (double)period->kept[0].start_ns) /
               count,
           sum_ns = 0;

    for (uint32_t i = 0; i + several < count; i++)
        sum_ns += fmin(fabs(duration_ns(period, lag, i) - duration_ns(period, lag, i + several)),
                       most_ns);
    return sum_ns / (count - several);
}

/*
 * How many repetitions of what repeats after `lag` are a step. The micro-batches of a pipeline and
 * the buckets of gradients repeat too; between two steps there is more, at least the optimizer, so
 * durations repeat after a step and not before (Wu et al., "FALCON", use their autocorrelation).
 */
static uint32_t
count_several(const struct cairn_period *period, uint32_t lag)
{
    uint32_t max = SEVERAL_OPERATIONS_MAX / lag, several = 1;
    double next, least;

    max = max > SEVERAL_MAX ? SEVERAL_MAX : max;
    while (max > 1 && (uint64_t)(repeats + 1) * max * lag >= period->kept_count)
        max--;
    if (max < 2)
        return 1;
    next = least = differ_by(period, lag, 1);
    for (uint32_t i = 2; i <= max; i++)
        least = fmin(least, differ_by(period, lag, i));
    if (least >= several_gain * next)
        return 1;
    while (differ_by(period, lag, several) > fmax(alike_gain * least, 1))
        several++;
    return several;
}

/* ---- the rarest collective ---- */

/* True where each `several`-th of an operation comes about as many operations after the last one;
 * that many are *since. Few may be otherwise. */
static bool
comes_evenly(const struct cairn_period *period, uint64_t symbol, uint32_t several, uint32_t *since)
{
    uint32_t last[ANCHORS_MAX], seen = 0, uneven = 0, near = 0;

    *since = 0;
    for (uint32_t i = 0; i < period->kept_count; i++) {
        uint32_t *before = &last[seen % several];

        if (symbol_of(&period->kept[i]) != symbol)
            continue;
        if (seen == several) {
            *since = i - *before;
            near = *since / 2 < NEAR ? *since / 2 : NEAR;
        } else if (seen > several)
            uneven += i - *before + near < *since || i - *before > *since + near;
        *before = i;
        seen++;
    }
    return seen >= (repeats + 2) * several && uneven * 10 <= seen;
}

/* The rarest collective, which comes once in a step, or a few times as gradients of layers do: the
 * others come as often in between each time. Operations that go on at once may be recorded in any
 * order, so that the sequence repeats nearly. */
static bool
find_rarest(struct cairn_period *period)
{
    uint64_t seen[64];
    uint32_t counts[64], used = 0, rarest = 0, since;

    for (uint32_t i = 0; i < period->kept_count; i++) {
        uint64_t symbol = symbol_of(&period->kept[i]);
        uint32_t k = 0;

        while (k < used && seen[k] != symbol)
            k++;
        if (k == symbols_max)
            return false;
        if (k == used) {
            seen[used] = symbol;
            counts[used++] = 0;
        }
        counts[k]++;
    }
    for (uint32_t k = 1; k < used; k++)
        rarest = counts[k] <= counts[rarest] ? k : rarest; /* of equally rare operations, the
                                                            * last */
    if (used < 2 || is_pair(seen[rarest]))
        return false;
    for (uint32_t several = 1; several <= ANCHORS_MAX; several++)
        if (comes_evenly(period, seen[rarest], several, &since) && since > several) {
            period->period = since;
            period->anchor = seen[rarest];
            period->anchor_count = several;
            number_anchors(period);
            return true;
        }
    return false;
}

/* What repeats may be part of a step as long as no operation comes once in it; that shows once
 * enough is kept (or `last`: no more will come). */
static void
search(struct cairn_period *period, bool last)
{
    if (find_rarest(period))
        return;
    for (uint32_t lag = 1; lag * (repeats + 1) <= period->kept_count; lag++)
        if (nearly_repeats_after(period, lag) && repeats_after(period, lag)) {
            if (last || period->kept_count > (repeats + 1) * SEVERAL_OPERATIONS_MAX) {
                period->period = lag * count_several(period, lag);
                choose_anchor(period);
            }
            return;
        }
}

cairn_err
cairn_period_keep(struct cairn_period *period, const struct cairn_record *record, bool *known)
{
    if (!cairn_array_grow(&period->kept, period->kept_count, sizeof *period->kept))
        return CAIRN_NOMEM;
    period->kept[period->kept_count++] = *record;
    if (period->kept_count == period->kept_max) {
        cairn_period_settle(period);
    } else if (period->kept_count >= CAIRN_PERIOD_RECORDS_MIN &&
               period->kept_count >= period->tried_count + period->tried_count / 4) {
        period->tried_count = period->kept_count;
        search(period, false);
    }
    *known = period->period > 0;
    return CAIRN_OK;
}

void
cairn_period_settle(struct cairn_period *period)
{
    search(period, true);
    if (period->period == 0)
        period->period = UINT32_MAX;
}

void
cairn_period_release(struct cairn_period *period)
{
    free(period->kept);
    period->kept = NULL;
    period->kept_count = 0;
}

void
cairn_period_number(struct cairn_period *period, struct cairn_record *record)
{
    record->has_step = true;
    if (period->period == UINT32_MAX) {
        record->step = 0;
        return;
    }
    record->step = period->step;
    if (symbol_of(record) != period->anchor)
        return;
    if (period->anchor_numbered && record->seq >= period->anchor_seq &&
        record->seq - period->anchor_seq < UINT32_MAX - 1) {
        uint64_t nth = record->seq - period->anchor_seq;

        record->step = (uint32_t)(nth / period->anchor_count);
        period->step = (uint32_t)((nth + 1) / period->anchor_count);
    } else if (++period->anchors % period->anchor_count == 0) {
        period->step++;
    }
}
