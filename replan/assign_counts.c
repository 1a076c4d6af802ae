/*
 * replan/assign_counts.c - a lower bound from how many long sequences there is room for.
 *
 * Few long sequences leave gaps in pipelines that no fraction shows. Of two sorts of them, the longest and those that are somewhat
 * shorter, all ways to divide their numbers over the pipelines are looked at, by a table: so many of the first sort beside at most
 * so many of the second. docs/PLANNER.md has the proof.
 */
#include "replan/assigner.h"

#include <math.h>
#include <stdlib.h>

enum {
    COUNTED_MAX = 40, /* sequences of both sorts */
    SECOND_MAX = 16,  /* of the second: of more, sizes differ too much for the least to say something */
    HERE_MAX = 12     /* of the first sort in one pipeline; what holds more of them is no obstacle */
};
#define MARGIN 1e-9
#define RAISED_BY 2e-3 /* by what the bound is raised at least */

struct counts {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
};

/* How many sequences of a cost there is room for beside what is taken; rounding on the safe side. */
static double
fitting(double holds_ms, double taken_ms, double cost_ms)
{
    return floor((holds_ms * (1 + MARGIN) - taken_ms) / cost_ms * (1 + MARGIN));
}

/* How many of the second sort a pipeline has room for beside 0, 1, … of the first; the most of the first. */
static uint32_t
count_beside(const struct cairn_assign_pipeline *own, double step_ms, const struct cairn_sequence *first,
             const struct cairn_sequence *second, double *beside)
{
    double holds_ms = step_ms / own->time_scale, lost = own->stages - 1, most = 0;

    beside[0] = second->tokens <= own->max_tokens ? fmax(0, fitting(holds_ms, lost * second->cost_ms, second->cost_ms)) : 0;
    if (first->tokens <= own->max_tokens)
        most = fmin(HERE_MAX, fmax(0, fitting(holds_ms, lost * first->cost_ms, first->cost_ms)));
    for (uint32_t here = 1; here <= (uint32_t)most; here++)
        beside[here] = fmax(0, fitting(holds_ms, (lost + here) * first->cost_ms, second->cost_ms));
    return (uint32_t)most;
}

/*
 * Whether pipelines cannot hold the `first` most costly sequences and the others of the `both` most costly, by their numbers: each
 * counts with the least cost of its sort. most[a] is how many of the second sort there is room for beside a of the first.
 */
static bool
out_of_count(const struct counts *counts, double step_ms, uint32_t first, uint32_t both)
{
    double most[COUNTED_MAX + 1], beside[HERE_MAX + 1];

    for (uint32_t a = 0; a <= first; a++)
        most[a] = a == 0 ? 0 : -INFINITY; /* no room for so many */
    for (uint32_t i = 0; i < counts->problem->pipeline_count; i++) {
        uint32_t here_most = count_beside(&counts->problem->pipelines[i], step_ms, &counts->sequences[first - 1],
                                          &counts->sequences[both - 1], beside);

        if (here_most == HERE_MAX)
            return false;
        if (here_most == 0 && beside[0] <= 0)
            continue;
        for (uint32_t a = first + 1; a-- > 0;) { /* downwards: what is read is still without this pipeline */
            double best = most[a] + beside[0];

            for (uint32_t here = 1; here <= a && here <= here_most; here++)
                best = most[a - here] + beside[here] > best ? most[a - here] + beside[here] : best;
            most[a] = best;
        }
    }
    return most[first] < both - first;
}

/* Whether all that cost as much as the last of the `count` most costly are among them: only then they say all that they can. */
static bool
ends_a_sort(const struct counts *counts, uint32_t count)
{
    return count == counts->problem->sequence_count ||
           counts->sequences[count].cost_ms < counts->sequences[count - 1].cost_ms;
}

void
cairn_assign_raise_bound(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences, double enough_ms,
                         double *bound_ms)
{
    const struct counts counts = {problem, sequences};
    uint32_t all = problem->sequence_count < COUNTED_MAX ? problem->sequence_count : COUNTED_MAX;

    for (uint32_t first = 1; first < all; first++)
        for (uint32_t both = first + 1; both <= all && both <= first + SECOND_MAX && ends_a_sort(&counts, first); both++)
            /* In growing steps while they are refused, then in shorter ones. */
            for (double step = RAISED_BY; ends_a_sort(&counts, both) && step >= RAISED_BY && *bound_ms < enough_ms;) {
                bool refused = out_of_count(&counts, *bound_ms * (1 + step), first, both);

                *bound_ms *= refused ? 1 + step : 1;
                step *= refused ? 2 : 0.5;
            }
}
