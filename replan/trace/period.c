/* replan/trace/period.c - steps from the repetition of a rank's operations. */
#include "replan/trace/period.h"

#include <stdlib.h>
#include <string.h>

static const uint32_t repeats = 3, symbols_max = 64;

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
    for (uint32_t i = 0; i < period->kept_count; i++)
        if (symbol_of(&period->kept[i]) == period->anchor) {
            period->anchor_numbered = period->kept[i].has_seq;
            period->anchor_seq = period->kept[i].seq;
            if (period->anchor_numbered && period->anchor_count == 1) {
                /* or it counts others too */
                for (uint32_t k = i + 1; k < period->kept_count; k++)
                    if (symbol_of(&period->kept[k]) == period->anchor) {
                        period->anchor_numbered = period->kept[k].seq == period->anchor_seq + 1;
                        break;
                    }
            }
            break;
        }
    if (period->anchor_count > 1)
        period->anchor_numbered = false;
}

/* The rarest collective that comes once each time the others come as often as before. Operations
 * that go on at once may be recorded in any order, so that the sequence repeats nearly. */
static bool
find_rarest(struct cairn_period *period)
{
    uint64_t seen[64];
    uint32_t counts[64], used = 0, rarest = 0, first = UINT32_MAX, last = 0, uneven = 0, since = 0;

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
    if (used == 0 || is_pair(seen[rarest]) || counts[rarest] < repeats + 2)
        return false;
    for (uint32_t i = 0; i < period->kept_count; i++) {
        if (symbol_of(&period->kept[i]) != seen[rarest])
            continue;
        if (first == UINT32_MAX)
            first = i;
        else if (since == 0)
            since = i - last;
        else if (i - last + 2 < since || i - last > since + 2)
            uneven++;
        last = i;
    }
    if (since < 2 || uneven * 10 > counts[rarest])
        return false;
    period->period = since;
    period->anchor = seen[rarest];
    period->anchor_count = 1;
    period->anchor_numbered = period->kept[first].has_seq;
    period->anchor_seq = period->kept[first].seq;
    for (uint32_t i = first + 1; i < period->kept_count; i++)
        if (symbol_of(&period->kept[i]) == period->anchor) {
            period->anchor_numbered &= period->kept[i].seq == period->anchor_seq + 1;
            break;
        }
    return true;
}

static bool
has_pairs(const struct cairn_period *period)
{
    for (uint32_t i = 0; i < period->period; i++)
        if (is_pair(symbol_of(&period->kept[i])))
            return true;
    return false;
}

/* The micro-batches of a pipeline repeat too, differently for each of its stages. If none of a
 * rank's operations comes once in what repeats, that may be one of them and no step. */
static void
search(struct cairn_period *period)
{
    if (find_rarest(period))
        return;
    for (uint32_t lag = 1; lag * (repeats + 1) <= period->kept_count; lag++)
        if (nearly_repeats_after(period, lag) && repeats_after(period, lag)) {
            period->period = lag;
            choose_anchor(period);
            if (period->anchor_count > 1 && has_pairs(period))
                period->period = 0;
            return;
        }
}

cairn_err
cairn_period_keep(struct cairn_period *period, const struct cairn_record *record, bool *known)
{
    if (period->kept_count == period->kept_room) {
        uint32_t room = period->kept_room ? 2 * period->kept_room : 64;
        struct cairn_record *kept = realloc(period->kept, room * sizeof *kept);

        if (!kept)
            return CAIRN_NOMEM;
        period->kept = kept;
        period->kept_room = room;
    }
    period->kept[period->kept_count++] = *record;
    if (period->kept_count == period->kept_max) {
        cairn_period_settle(period);
    } else if (period->kept_count >= CAIRN_PERIOD_RECORDS_MIN &&
               period->kept_count >= period->tried_count + period->tried_count / 4) {
        period->tried_count = period->kept_count;
        search(period);
    }
    *known = period->period > 0;
    return CAIRN_OK;
}

void
cairn_period_settle(struct cairn_period *period)
{
    search(period);
    if (period->period == 0)
        period->period = UINT32_MAX;
}

void
cairn_period_release(struct cairn_period *period)
{
    free(period->kept);
    period->kept = NULL;
    period->kept_count = period->kept_room = 0;
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
        record->step = (uint32_t)(record->seq - period->anchor_seq);
        period->step = record->step + 1;
    } else if (++period->anchors % period->anchor_count == 0) {
        period->step++;
    }
}
