/*
 * replan/bound/pipelines.c - the least price of the slow groups that the viable groups of one
 * pipeline need, to do as many micro-batches as they can.
 *
 * A relaxation: slow groups hold what they could hold alone, all are as fast as the fastest of
 * them, and parts of layers count if that lets more fit.
 */
#include "replan/bound/pricer.h"

#include "replan/fleet/cost.h"

#include <math.h>

/* ---- slow groups ---- */

/*
 * In a pipeline of m micro-batches whose fastest viable group takes y per layer, a slow group's n
 * layers, m times, and all other layers, once at y or more, fit the time.
 */
static void
fill_slow(const struct cairn_prices *prices, struct cairn_slow *slow)
{
    uint32_t layers = prices->fleet->problem->layers;
    double spare_ms = prices->step_ms - prices->work_layers * slow->fastest_ms;

    for (uint32_t i = 0; i < prices->kind_count; i++) {
        const struct cairn_kind *kind = &prices->kinds[i];
        double most = spare_ms / (slow->microbatches * kind->layer_ms - slow->fastest_ms);

        most = most * (1 + CAIRN_PRICER_MARGIN) + CAIRN_PRICER_MARGIN;
        slow->most[i] = kind->alone >= 1 ? 0 : most < kind->layers ? (uint32_t)most : kind->layers;
    }
    slow->price[0] = 0;
    for (uint32_t n = 1; n <= layers; n++) {
        slow->price[n] = INFINITY;
        for (uint32_t i = 0; i < prices->kind_count; i++) {
            uint32_t most = slow->most[i];
            double price =
                most > 0 ? prices->kinds[i].price + slow->price[n > most ? n - most : 0] : INFINITY;

            if (price < slow->price[n]) {
                slow->price[n] = price;
                slow->kind[n] = (uint16_t)i;
            }
        }
    }
}

/* NULL: there are too many tables. */
static const struct cairn_slow *
slow_for(struct cairn_prices *prices, uint32_t microbatches, double fastest_ms)
{
    struct cairn_slow *own;

    for (uint32_t i = 0; i < prices->table_count; i++) {
        own = &prices->tables[i];
        if (own->microbatches == microbatches && own->fastest_ms >= fastest_ms &&
            own->fastest_ms <= fastest_ms)
            return own;
    }
    if (prices->table_count == CAIRN_PRICER_TABLES_MAX)
        return NULL;
    own = &prices->tables[prices->table_count++];
    own->microbatches = microbatches;
    own->fastest_ms = fastest_ms;
    fill_slow(prices, own);
    return own;
}

/* ---- one pipeline ---- */

/*
 * The most that viable groups hold together. Earlier stages have more micro-batches in flight. If
 * parts of layers count, the largest memory last is best.
 */
static uint32_t
layers_held(const struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count)
{
    const struct cairn_problem *problem = prices->fleet->problem;
    double bytes[CAIRN_PRICER_VIABLE_MAX], held = 0;

    for (uint32_t i = 0; i < chosen_count; i++) {
        uint32_t at = i;

        for (; at > 0 && bytes[at - 1] < prices->kinds[chosen[i]].bytes; at--)
            bytes[at] = bytes[at - 1];
        bytes[at] = prices->kinds[chosen[i]].bytes;
    }
    for (uint32_t i = 0; i < chosen_count; i++) {
        double in_flight = fmin(i + 1, prices->microbatches);
        double layer_bytes =
            (double)problem->layer_bytes + in_flight * (double)problem->activation_bytes;

        held += layer_bytes > 0 ? fmin(problem->layers, bytes[i] / layer_bytes) : problem->layers;
    }
    held = held * (1 + CAIRN_PRICER_MARGIN) + CAIRN_PRICER_MARGIN;
    return held < problem->layers ? (uint32_t)held : problem->layers;
}

/* Sets the parts of a choice of viable groups, the fastest first. One group of the kind `holder`,
 * if any, is a part of its own, with the vocabulary. */
static void
set_parts(struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count,
          uint32_t holder, double vocabulary)
{
    bool held = false;

    prices->part_count = 0;
    for (uint32_t i = 0; i < chosen_count; i++) {
        struct cairn_viable part = {&prices->kinds[chosen[i]], 1, 0, 0};
        uint32_t at;

        if (chosen[i] == holder && !held) {
            part.vocabulary = vocabulary;
            held = true;
        } else if (prices->part_count > 0) {
            for (at = 0; at < prices->part_count; at++)
                if (prices->parts[at].kind == part.kind && prices->parts[at].vocabulary <= 0)
                    break;
            if (at < prices->part_count) {
                prices->parts[at].count++;
                continue;
            }
        }
        for (at = prices->part_count++;
             at > 0 && prices->parts[at - 1].kind->layer_ms > part.kind->layer_ms; at--)
            prices->parts[at] = prices->parts[at - 1];
        prices->parts[at] = part;
    }
}

/* The longest stage with the present layers. */
static double
longest_ms(const struct cairn_prices *prices)
{
    double longest = 0;

    for (uint32_t i = 0; i < prices->part_count; i++)
        if (prices->parts[i].layers > 0)
            longest = fmax(longest, (prices->parts[i].layers + prices->parts[i].vocabulary) *
                                        prices->parts[i].kind->layer_ms);
    return longest;
}

/* The layers that slow groups must hold if stages take at most `longest`. Returns the time then
 * left; below 0: it takes too long. */
static double
spare_with(const struct cairn_prices *prices, double longest, double vocabulary_ms, uint32_t least,
           uint32_t *left)
{
    uint32_t layers = prices->fleet->problem->layers, room = 0;
    double spare_ms = prices->step_ms - (prices->microbatches - 1) * longest - vocabulary_ms;

    for (uint32_t i = 0; i < prices->part_count; i++)
        room += prices->parts[i].count * prices->parts[i].layers;
    room = room < prices->holds ? room : prices->holds;
    room = room < layers - least ? room : layers - least;
    *left = layers - room;
    if (*left > 0)
        spare_ms -= *left * prices->slow_ms;
    for (uint32_t i = 0; room > 0 && i < prices->part_count; i++) {
        uint32_t own = prices->parts[i].count * prices->parts[i].layers;

        own = own < room ? own : room;
        spare_ms -= own * prices->parts[i].kind->layer_ms;
        room -= own;
    }
    return spare_ms + CAIRN_PRICER_MARGIN * prices->step_ms;
}

/* Sets the whole layers of each viable group if stages take at most `longest`. */
static void
limit_layers(struct cairn_prices *prices, double longest)
{
    for (uint32_t i = 0; i < prices->part_count; i++) {
        struct cairn_viable *part = &prices->parts[i];
        double own = longest * (1 + CAIRN_PRICER_MARGIN) / part->kind->layer_ms - part->vocabulary;

        part->layers = own < 0 ? 0 : own < part->kind->layers ? (uint32_t)own : part->kind->layers;
    }
}

/*
 * The fewest layers on slow groups with which the pipeline can do its micro-batches; above `most`
 * if it cannot. The longest stage is lowered from one whole number of layers of a viable group to
 * the next. If the pipeline is too long by some time, the longest stage, which counts m - 1 times,
 * must fall by at least that over m - 1: shorter stages never make their sum shorter.
 */
static uint32_t
fewest_left(struct cairn_prices *prices, double vocabulary_ms, uint32_t least, uint32_t most)
{
    uint32_t layers = prices->fleet->problem->layers;
    double limit_ms = INFINITY;

    if (prices->microbatches > 1)
        limit_ms = (prices->step_ms - prices->work_layers * prices->parts[0].kind->layer_ms) /
                   (prices->microbatches - 1);
    limit_layers(prices, limit_ms);
    for (;;) {
        double longest = longest_ms(prices), spare_ms;
        uint32_t room = 0, left;

        for (uint32_t i = 0; i < prices->part_count; i++)
            room += prices->parts[i].count * prices->parts[i].layers;
        if (room == 0 || room + most < layers)
            return layers + 1;
        spare_ms = spare_with(prices, longest, vocabulary_ms, least, &left);
        if (spare_ms >= 0)
            return left;
        if (prices->microbatches <= 1)
            return layers + 1;
        limit_layers(prices, fmin(longest * (1 - 4 * CAIRN_PRICER_MARGIN),
                                  longest + spare_ms / (prices->microbatches - 1)));
    }
}

bool
cairn_pricer_help(struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count,
                  double enough, double *price, uint32_t *left)
{
    const struct cairn_problem *problem = prices->fleet->problem;
    double vocabulary = fmax(problem->embed_layers, problem->head_layers), fastest_ms = INFINITY,
           other_ms;
    const struct cairn_slow *slow = NULL;
    uint32_t most = 0, fewest = problem->layers + 1;

    for (uint32_t i = 0; i < chosen_count; i++)
        fastest_ms = fmin(fastest_ms, prices->kinds[chosen[i]].layer_ms);
    other_ms = fmin(problem->embed_layers, problem->head_layers) * fastest_ms;
    prices->holds = layers_held(prices, chosen, chosen_count);
    if (prices->slow_ms < INFINITY) {
        slow = slow_for(prices, (uint32_t)prices->microbatches, fastest_ms);
        if (!slow)
            return false;
        while (most < problem->layers && slow->price[most + 1] < enough)
            most++;
    }
    *price = INFINITY;
    if (prices->holds + most < problem->layers)
        return true;
    for (uint32_t i = 0; i <= chosen_count && fewest > 0; i++) {
        bool on_slow = i == chosen_count; /* a slow group holds the vocabulary */
        double holder_ms = on_slow ? prices->slow_ms : prices->kinds[chosen[i]].layer_ms;
        uint32_t own;

        if ((i > 0 && i < chosen_count && chosen[i] == chosen[i - 1]) ||
            (on_slow && (most == 0 || vocabulary <= 0)) || (i > 0 && vocabulary <= 0))
            continue;
        set_parts(prices, chosen, chosen_count, on_slow ? UINT32_MAX : chosen[i], vocabulary);
        own = fewest_left(prices, vocabulary * holder_ms + other_ms, on_slow, most);
        fewest = own < fewest ? own : fewest;
    }
    *left = fewest;
    if (fewest <= most)
        *price = fewest > 0 ? slow->price[fewest] : 0;
    return true;
}

void
cairn_pricer_count_slow(struct cairn_prices *prices, uint32_t left, uint16_t *count)
{
    const struct cairn_slow *slow = NULL;

    if (left > 0)
        slow = slow_for(prices, (uint32_t)prices->microbatches, prices->parts[0].kind->layer_ms);
    while (slow && left > 0) {
        /* cppcheck-suppress arrayIndexOutOfBoundsCond ; at most CAIRN_PRICER_LAYERS_MAX are left */
        uint32_t kind = slow->kind[left];

        count[kind]++;
        left = left > slow->most[kind] ? left - slow->most[kind] : 0;
    }
}
