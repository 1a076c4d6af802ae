/*
 * replan/assign/table.c - how many long sequences pipelines have room for, by sorts of cost.
 *
 * All ways to divide the numbers of each sort over the pipelines are looked at, one pipeline after
 * the other.
 */
#include "replan/assign/table.h"

#include <math.h>
#include <string.h>

#define MARGIN 1e-9

struct cairn_sorts
cairn_sorts_of(const struct cairn_sequence *sequences, const struct cairn_cuts *cuts)
{
    struct cairn_sorts sorts = {.count = cuts->count, .states = 1};

    for (uint32_t i = 0; i < cuts->count; i++) {
        const struct cairn_sequence *least = &sequences[cuts->at[i] - 1];

        sorts.cost_ms[i] = least->cost_ms;
        sorts.tokens[i] = least->tokens;
        sorts.all[i] = cuts->at[i] - (i > 0 ? cuts->at[i - 1] : 0);
        if (i + 1 < cuts->count)
            sorts.states *= sorts.all[i] + 1;
    }
    for (uint32_t i = cuts->count - 1; i < CAIRN_SORTS_MAX - 1; i++)
        sorts.all[i] = 0; /* dimensions that are not there */
    sorts.all[CAIRN_SORTS_MAX - 1] = cuts->at[cuts->count - 1] - cuts->at[cuts->count - 2];
    return sorts;
}

/* How many of the last sort a pipeline has room for beside so many of the others; below 0: not even
 * for those. Rounding is on the safe side. */
static int32_t
count_beside(const struct cairn_sorts *sorts, const struct cairn_assign_pipeline *own,
             double holds_ms, const uint32_t *here)
{
    uint32_t last = sorts->count - 1, first = last;
    double taken_ms = 0, count;

    for (uint32_t i = last; i-- > 0;)
        if (here[i] > 0) {
            if (sorts->tokens[i] > own->max_tokens)
                return -1;
            taken_ms += here[i] * sorts->cost_ms[i];
            first = i;
        }
    taken_ms += (own->stages - 1) * sorts->cost_ms[first];
    if (first == last && (sorts->tokens[last] > own->max_tokens || holds_ms < taken_ms))
        return 0;
    if (holds_ms < taken_ms)
        return -1;
    count = floor((holds_ms - taken_ms) / sorts->cost_ms[last] * (1 + MARGIN));
    return count < sorts->all[CAIRN_SORTS_MAX - 1] ? (int32_t)count
                                                   : (int32_t)sorts->all[CAIRN_SORTS_MAX - 1];
}

/* Whether one more of some sort leaves as much room: then that option is the better one. */
static bool
is_dominated(const struct cairn_sorts *sorts, const struct cairn_assign_pipeline *own,
             double holds_ms, const struct cairn_option *option)
{
    for (uint32_t i = 0; i + 1 < sorts->count; i++) {
        uint32_t here[CAIRN_SORTS_MAX - 1];

        memcpy(here, option->here, sizeof here);
        if (++here[i] <= sorts->all[i] && count_beside(sorts, own, holds_ms, here) >= option->last)
            return true;
    }
    return false;
}

uint32_t
cairn_table_list(struct cairn_table *table, const struct cairn_sorts *sorts,
                 const struct cairn_assign_pipeline *own, double step_ms)
{
    double holds_ms = step_ms / own->time_scale * (1 + MARGIN);
    struct cairn_option option = {.here = {0}};
    uint32_t count = 0, at = 0;

    while (at + 1 < sorts->count) {
        int32_t last = count_beside(sorts, own, holds_ms, option.here);

        option.last = (int8_t)last;
        if (last >= 0 && !is_dominated(sorts, own, holds_ms, &option)) {
            if (count == CAIRN_TABLE_OPTIONS_MAX)
                return 0;
            table->options[count++] = option;
        }
        /* The next: one more of the first sort; where there is no room for it none of that, and one
         * more of the second; and so on. */
        at = 0;
        if (last < 0)
            while (at + 1 < sorts->count && option.here[at] == 0)
                at++;
        if (last < 0 && at + 1 < sorts->count)
            option.here[at++] = 0;
        for (; at + 1 < sorts->count && ++option.here[at] > sorts->all[at]; at++)
            option.here[at] = 0;
    }
    return count;
}

/* Takes what one pipeline may hold into the table: to[n] is the most of the last sort beside at
 * least n of each of the others. */
static void
add_option(const struct cairn_sorts *sorts, const struct cairn_option *option, const int8_t *from,
           int8_t *to)
{
    uint32_t row = sorts->all[0] + 1, plane = row * (sorts->all[1] + 1), skip = option->here[0];

    for (uint32_t k = 0; k <= sorts->all[2]; k++)
        for (uint32_t j = 0; j <= sorts->all[1]; j++) {
            const int8_t *source = from + (k > option->here[2] ? k - option->here[2] : 0) * plane +
                                   (j > option->here[1] ? j - option->here[1] : 0) * row;
            int8_t *target = to + k * plane + j * row;
            int8_t sum = (int8_t)(source[0] + option->last);

            for (uint32_t i = 0; i < skip; i++)
                target[i] = sum > target[i] ? sum : target[i];
            for (uint32_t i = skip; i < row; i++) {
                sum = (int8_t)(source[i - skip] + option->last);
                target[i] = sum > target[i] ? sum : target[i];
            }
        }
}

void
cairn_table_add(const struct cairn_table *table, const struct cairn_sorts *sorts,
                uint32_t option_count, const int8_t *from, int8_t *to)
{
    for (uint32_t i = 0; i < sorts->states; i++)
        to[i] = CAIRN_TABLE_NO_ROOM;
    for (uint32_t i = 0; i < option_count; i++)
        add_option(sorts, &table->options[i], from, to);
    /* more than enough, or less than nothing, says no more */
    for (uint32_t i = 0; i < sorts->states; i++) {
        to[i] = to[i] > CAIRN_TABLE_COUNT_MAX ? CAIRN_TABLE_COUNT_MAX : to[i];
        to[i] = to[i] < 0 ? CAIRN_TABLE_NO_ROOM : to[i];
    }
}
