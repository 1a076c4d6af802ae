/*
 * replan/assign/trade.c - long sequences moved and traded between pipelines, until the longest
 * pipeline takes no less.
 *
 * Places that were found for sequences of rounded cost take longer than was counted. One sequence
 * of the pipeline that takes longest is moved, or traded for one of another pipeline, wherever the
 * longer of both then takes least.
 */
#include "replan/assign/assigner.h"

#include <math.h>

enum { TRADES_MAX = 100 };
#define LESS 1e-9 /* a trade gains more than that part */

/* What a pipeline has: the two most costly of them, since one may leave. */
struct load {
    double sum_ms;
    double first_ms;
    double second_ms;
};

/* What is best so far: sequence `one` goes where `other` is, which comes back, or to a pipeline. */
struct trade {
    uint32_t one;
    uint32_t other; /* count: none comes back */
    uint32_t to;    /* pipeline */
    double worse_ms;
};

static void
load_up(struct load *load, double cost_ms)
{
    load->sum_ms += cost_ms;
    if (cost_ms > load->first_ms) {
        load->second_ms = load->first_ms;
        load->first_ms = cost_ms;
    } else {
        load->second_ms = fmax(load->second_ms, cost_ms);
    }
}

/* The time of a pipeline that gives one sequence and takes another; 0: none. */
static double
time_after(const struct cairn_assign_pipeline *pipeline, const struct load *load, double gives_ms,
           double takes_ms)
{
    double largest_ms = gives_ms >= load->first_ms ? load->second_ms : load->first_ms;

    return (load->sum_ms - gives_ms + takes_ms +
            (pipeline->stages - 1) * fmax(largest_ms, takes_ms)) *
           pipeline->time_scale;
}

static void
try_trade(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences,
          uint32_t count, const struct load *loads, uint32_t from, const struct trade *trade,
          struct trade *best)
{
    const struct cairn_assign_pipeline *to = &problem->pipelines[trade->to];
    double one_ms = sequences[trade->one].cost_ms,
           other_ms = trade->other < count ? sequences[trade->other].cost_ms : 0;
    double there_ms;

    if (sequences[trade->one].tokens > to->max_tokens ||
        (trade->other < count &&
         sequences[trade->other].tokens > problem->pipelines[from].max_tokens))
        return;
    there_ms = time_after(to, &loads[trade->to], other_ms, one_ms);
    if (there_ms >= best->worse_ms)
        return;
    there_ms =
        fmax(there_ms, time_after(&problem->pipelines[from], &loads[from], one_ms, other_ms));
    if (there_ms >= best->worse_ms)
        return;
    *best = *trade;
    best->worse_ms = there_ms;
}

/* The best trade of the pipeline that takes longest, none where best->one is count. */
static struct trade
find_trade(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences,
           uint32_t count, const struct load *loads, const uint32_t *places)
{
    struct trade best = {.one = count, .worse_ms = 0};
    uint32_t from = 0;

    for (uint32_t p = 0; p < problem->pipeline_count; p++) {
        double own_ms = time_after(&problem->pipelines[p], &loads[p], 0, 0);

        if (own_ms > best.worse_ms) {
            best.worse_ms = own_ms;
            from = p;
        }
    }
    best.worse_ms *= 1 - LESS;
    for (uint32_t i = 0; i < count; i++) {
        if (places[i] != from)
            continue;
        for (uint32_t j = 0; j < count; j++)
            if (places[j] != from)
                try_trade(problem, sequences, count, loads, from,
                          &(struct trade){i, j, places[j], 0}, &best);
        for (uint32_t p = 0; p < problem->pipeline_count; p++)
            if (p != from)
                try_trade(problem, sequences, count, loads, from, &(struct trade){i, count, p, 0},
                          &best);
    }
    return best;
}

uint32_t
cairn_trade(const struct cairn_assign_problem *problem, const struct cairn_sequence *sequences,
            uint32_t count, uint32_t *places)
{
    static const struct load nothing = {0, 0, 0};
    struct load loads[CAIRN_TRADE_PIPELINES_MAX];
    uint32_t trades = 0;

    if (problem->pipeline_count > CAIRN_TRADE_PIPELINES_MAX)
        return 0;
    for (; trades < TRADES_MAX; trades++) {
        struct trade best;

        for (uint32_t p = 0; p < problem->pipeline_count; p++)
            loads[p] = nothing;
        for (uint32_t i = 0; i < count; i++)
            load_up(&loads[places[i]], sequences[i].cost_ms);
        best = find_trade(problem, sequences, count, loads, places);
        if (best.one == count)
            break;
        if (best.other < count)
            places[best.other] = places[best.one];
        places[best.one] = best.to;
    }
    return trades;
}
