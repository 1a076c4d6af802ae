/*
 * replan/assign_sorts.c - a lower bound from how many long sequences there is room for.
 *
 * Few long sequences leave gaps in pipelines that no fraction shows. The longest ones are cut into two to four sorts by their cost, of
 * which each sequence counts with the least of its sort; all ways to divide the numbers of each sort over the pipelines are looked at
 * by a table: so many of the first sorts beside at most so many of the last. Where to cut is found by climbing: pairs of cuts first,
 * then triples of those after which costs drop most, then one cut moved or added at a time. docs/PLANNER.md has the proof.
 */
#include "replan/assigner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SORTS_MAX = 4,
    CUTS_MAX = 36,     /* sequences that are counted at most */
    NATURAL_MAX = 12,  /* cuts that triples are tried of */
    STATES_MAX = 4096, /* numbers of all sorts but the last */
    OPTIONS_MAX = 256, /* of one pipeline; with more, which is no obstacle, nothing is said */
    WORK_BUDGET = 2000000, /* places of tables that are looked at: some three milliseconds */
    PIPELINE_WORK = 8      /* what a pipeline takes at least, in such places */
};
#define MARGIN 1e-9
#define RAISED_BY 1e-3   /* by what the bound is raised at least */
#define BEGIN_BELOW 0.97 /* of the bound: cuts that say less than it may lead to others that say more */

/* Where the sequences are cut: sort i ends before sequence at[i]. */
struct cuts {
    uint32_t at[SORTS_MAX];
    uint32_t count;
};

/* So many of the first sorts in one pipeline, and at most so many of the last beside them. */
struct option {
    uint32_t here[SORTS_MAX - 1];
    int8_t last;
};

/* The sorts that some cuts make. Of all but the last: dimensions of the table, which has one at least of each. */
struct sorts {
    uint32_t count;
    double cost_ms[SORTS_MAX];  /* the least of each */
    uint64_t tokens[SORTS_MAX]; /* so too */
    uint32_t all[SORTS_MAX];
    uint32_t states;
};

struct climb {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
    uint32_t candidates[CUTS_MAX]; /* places to cut at, growing */
    uint32_t candidate_count;
    double step_ms; /* refused by `best`, or where it began */
    double enough_ms;
    struct cuts best;
    int64_t work_left;
    int8_t tables[2][STATES_MAX];
    struct option options[OPTIONS_MAX];
};

static struct sorts
sorts_of(const struct climb *climb, const struct cuts *cuts)
{
    struct sorts sorts = {.count = cuts->count, .states = 1};

    for (uint32_t i = 0; i < cuts->count; i++) {
        const struct cairn_sequence *least = &climb->sequences[cuts->at[i] - 1];

        sorts.cost_ms[i] = least->cost_ms;
        sorts.tokens[i] = least->tokens;
        sorts.all[i] = cuts->at[i] - (i > 0 ? cuts->at[i - 1] : 0);
        if (i + 1 < cuts->count)
            sorts.states *= sorts.all[i] + 1;
    }
    for (uint32_t i = cuts->count - 1; i < SORTS_MAX - 1; i++)
        sorts.all[i] = 0; /* dimensions that are not there */
    sorts.all[SORTS_MAX - 1] = cuts->at[cuts->count - 1] - cuts->at[cuts->count - 2];
    return sorts;
}

/* How many of the last sort a pipeline has room for beside so many of the others; below 0: not even for those. Rounding is on the
 * safe side. */
static int32_t
count_beside(const struct sorts *sorts, const struct cairn_assign_pipeline *own, double holds_ms, const uint32_t *here)
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
    return count < sorts->all[SORTS_MAX - 1] ? (int32_t)count : (int32_t)sorts->all[SORTS_MAX - 1];
}

/* Whether one more of some sort leaves as much room: then that option is the better one. */
static bool
is_surpassed(const struct sorts *sorts, const struct cairn_assign_pipeline *own, double holds_ms, const struct option *option)
{
    for (uint32_t i = 0; i + 1 < sorts->count; i++) {
        uint32_t here[SORTS_MAX - 1];

        memcpy(here, option->here, sizeof here);
        if (++here[i] <= sorts->all[i] && count_beside(sorts, own, holds_ms, here) >= option->last)
            return true;
    }
    return false;
}

/* What a pipeline may hold within step_ms, only what nothing surpasses. 0: too many ways. */
static uint32_t
list_options(struct climb *climb, const struct sorts *sorts, const struct cairn_assign_pipeline *own, double step_ms)
{
    double holds_ms = step_ms / own->time_scale * (1 + MARGIN);
    struct option option = {.here = {0}};
    uint32_t count = 0, at = 0;

    while (at + 1 < sorts->count) {
        int32_t last = count_beside(sorts, own, holds_ms, option.here);

        option.last = (int8_t)last;
        if (last >= 0 && !is_surpassed(sorts, own, holds_ms, &option)) {
            if (count == OPTIONS_MAX)
                return 0;
            climb->options[count++] = option;
        }
        /* The next: one more of the first sort; where there is no room for it none of that, and one more of the second; and so on. */
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

/* Takes what one pipeline may hold into the table: to[n] is the most of the last sort beside at least n of each of the others. */
static void
add_option(const struct sorts *sorts, const struct option *option, const int8_t *from, int8_t *to)
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

static bool
is_last_alone(const struct option *option)
{
    for (uint32_t i = 0; i < SORTS_MAX - 1; i++)
        if (option->here[i] > 0)
            return false;
    return true;
}

/* Whether pipelines cannot hold the sequences that are cut into these sorts within step_ms. */
static bool
are_refused(struct climb *climb, const struct cuts *cuts, double step_ms)
{
    enum { NO_ROOM = -64 }; /* below 0 also with CUTS_MAX more */
    struct sorts sorts = sorts_of(climb, cuts);
    int8_t *table = climb->tables[0], *next = climb->tables[1];
    int32_t needed = (int32_t)sorts.all[SORTS_MAX - 1]; /* of the last sort, beside what pipelines hold that hold no others */

    if (sorts.states > STATES_MAX || climb->work_left <= 0)
        return false;
    climb->work_left -= (int64_t)PIPELINE_WORK * climb->problem->pipeline_count;
    for (uint32_t i = 0; i < sorts.states; i++)
        table[i] = i == 0 ? 0 : NO_ROOM;
    for (uint32_t p = 0; p < climb->problem->pipeline_count; p++) {
        const struct cairn_assign_pipeline *own = &climb->problem->pipelines[p];
        uint32_t option_count;
        int8_t *swap;

        if (own->max_tokens < sorts.tokens[sorts.count - 1] ||
            step_ms / own->time_scale * (1 + MARGIN) < own->stages * sorts.cost_ms[sorts.count - 1])
            continue; /* not one of the least */
        option_count = list_options(climb, &sorts, own, step_ms);
        if (option_count == 0)
            return false;
        if (option_count == 1 && is_last_alone(&climb->options[0])) {
            needed -= climb->options[0].last;
            if (table[sorts.states - 1] >= 0 && table[sorts.states - 1] >= needed)
                return false; /* there is room already */
            continue;
        }
        climb->work_left -= (int64_t)option_count * sorts.states;
        for (uint32_t i = 0; i < sorts.states; i++)
            next[i] = NO_ROOM;
        for (uint32_t i = 0; i < option_count; i++)
            add_option(&sorts, &climb->options[i], table, next);
        for (uint32_t i = 0; i < sorts.states; i++) { /* more than enough, or less than nothing, says no more */
            next[i] = next[i] > CUTS_MAX ? CUTS_MAX : next[i];
            next[i] = next[i] < 0 ? NO_ROOM : next[i];
        }
        swap = table;
        table = next;
        next = swap;
        if (table[sorts.states - 1] >= needed && table[sorts.states - 1] >= 0)
            return false;
    }
    return true;
}

/* Raises the time as far as these cuts refuse it. True: they did. */
static bool
try_cuts(struct climb *climb, const struct cuts *cuts)
{
    bool any = false;

    for (double step = RAISED_BY; step >= RAISED_BY && climb->step_ms < climb->enough_ms;) {
        bool refused = are_refused(climb, cuts, climb->step_ms * (1 + step));

        climb->step_ms *= refused ? 1 + step : 1;
        step *= refused ? 2 : any ? 0.5 : 0;
        any |= refused;
    }
    if (any)
        climb->best = *cuts;
    return any;
}

static bool
is_over(const struct climb *climb)
{
    return climb->work_left <= 0 || climb->step_ms >= climb->enough_ms;
}

static void
try_pairs(struct climb *climb)
{
    for (uint32_t i = 0; i < climb->candidate_count; i++)
        for (uint32_t j = i + 1; j < climb->candidate_count && !is_over(climb); j++)
            (void)try_cuts(climb, &(struct cuts){{climb->candidates[i], climb->candidates[j]}, 2});
}

/* Of the places to cut at those that say most: where fewer pipelines take what is before than what is after, or costs drop most. */
static uint32_t
find_natural(const struct climb *climb, uint32_t *natural)
{
    double drops[CUTS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < climb->candidate_count; i++) {
        const struct cairn_sequence *before = &climb->sequences[climb->candidates[i] - 1], *after = before + 1;

        drops[i] = climb->candidates[i] == climb->problem->sequence_count ? 0 : after->cost_ms / before->cost_ms;
        for (uint32_t p = 0; drops[i] > 0 && p < climb->problem->pipeline_count; p++)
            if (climb->problem->pipelines[p].max_tokens < before->tokens && climb->problem->pipelines[p].max_tokens >= after->tokens)
                drops[i] = 0;
    }
    for (uint32_t i = 0; i < climb->candidate_count && count < NATURAL_MAX; i++) {
        uint32_t rank = 0;

        for (uint32_t j = 0; j < climb->candidate_count; j++)
            rank += drops[j] < drops[i] || (drops[j] <= drops[i] && j < i);
        if (rank < NATURAL_MAX)
            natural[count++] = climb->candidates[i];
    }
    return count;
}

static bool
try_triples(struct climb *climb)
{
    uint32_t natural[NATURAL_MAX], count = find_natural(climb, natural);
    bool any = false;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = i + 1; j < count; j++)
            for (uint32_t k = j + 1; k < count && !is_over(climb); k++)
                any |= try_cuts(climb, &(struct cuts){{natural[i], natural[j], natural[k]}, 3});
    return any;
}

/* Moves one cut of the best, or adds one, wherever that says more. */
static bool
move_cuts(struct climb *climb)
{
    bool any = false;

    for (uint32_t k = 0; k < climb->best.count; k++)
        for (uint32_t i = 0; i < climb->candidate_count && !is_over(climb); i++) {
            struct cuts cuts = climb->best;
            uint32_t at = climb->candidates[i];

            if (at == cuts.at[k] || (k > 0 && at <= cuts.at[k - 1]) || (k + 1 < cuts.count && at >= cuts.at[k + 1]))
                continue;
            cuts.at[k] = at;
            any |= try_cuts(climb, &cuts);
        }
    return any;
}

static bool
add_cut(struct climb *climb)
{
    if (climb->best.count == 0 || climb->best.count == SORTS_MAX)
        return false;
    for (uint32_t i = 0; i < climb->candidate_count && !is_over(climb); i++) {
        struct cuts cuts = climb->best;
        uint32_t at = climb->candidates[i], k = cuts.count;

        for (; k > 0 && cuts.at[k - 1] > at; k--)
            cuts.at[k] = cuts.at[k - 1];
        if (k > 0 && cuts.at[k - 1] == at)
            continue;
        cuts.at[k] = at;
        cuts.count++;
        if (try_cuts(climb, &cuts))
            return true;
    }
    return false;
}

/* Only sorts that have all sequences of their least cost say all that they can. */
static void
find_candidates(struct climb *climb)
{
    uint32_t all = climb->problem->sequence_count;

    for (uint32_t at = 1; at <= all && at <= CUTS_MAX; at++)
        if (at == all || climb->sequences[at].cost_ms < climb->sequences[at - 1].cost_ms)
            climb->candidates[climb->candidate_count++] = at;
}

cairn_err
cairn_assign_raise_bound(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences, double enough_ms,
                         double *bound_ms)
{
    struct climb *climb = calloc(1, sizeof *climb);

    if (!climb)
        return CAIRN_NOMEM;
    climb->problem = problem;
    climb->sequences = sequences;
    climb->step_ms = *bound_ms * BEGIN_BELOW;
    climb->enough_ms = enough_ms;
    climb->work_left = WORK_BUDGET;
    find_candidates(climb);
    try_pairs(climb);
    while (!is_over(climb) && (move_cuts(climb) || add_cut(climb) || (climb->best.count <= 2 && try_triples(climb))))
        continue;
    *bound_ms = fmax(*bound_ms, climb->step_ms);
    free(climb);
    return CAIRN_OK;
}
