/*
 * replan/bound/pipelines.c - what helpers the mains of one pipeline need at least, to do as many
 * micro-batches as they can.
 *
 * Everything that is not looked at closely is taken at its best: helpers hold what they can hold
 * without others, all of them are as fast as the fastest, and parts of layers count where that lets
 * more fit.
 */
#include "replan/bound/pricer.h"

#include "replan/fleet/cost.h"

#include <math.h>

/* ---- helpers ---- */

/*
 * A helper with n layers in a pipeline of m micro-batches whose fastest main takes y per layer: its
 * own m times n layers, and all other layers once at y or more, are within the time.
 */
static void
fill_helpers(const struct cairn_prices *prices, struct cairn_helpers *helpers)
{
    uint32_t layers = prices->fleet->problem->layers;
    double spare_ms = prices->step_ms - prices->work_layers * helpers->fastest_ms;

    for (uint32_t i = 0; i < prices->kind_count; i++) {
        const struct cairn_kind *kind = &prices->kinds[i];
        double most = spare_ms / (helpers->microbatches * kind->layer_ms - helpers->fastest_ms);

        most = most * (1 + CAIRN_PRICER_MARGIN) + CAIRN_PRICER_MARGIN;
        helpers->most[i] = kind->alone >= 1      ? 0
                           : most < kind->layers ? (uint32_t)most
                                                 : kind->layers;
    }
    helpers->price[0] = 0;
    for (uint32_t n = 1; n <= layers; n++) {
        helpers->price[n] = INFINITY;
        for (uint32_t i = 0; i < prices->kind_count; i++) {
            uint32_t most = helpers->most[i];
            double price = most > 0
                               ? prices->kinds[i].price + helpers->price[n > most ? n - most : 0]
                               : INFINITY;

            if (price < helpers->price[n]) {
                helpers->price[n] = price;
                helpers->kind[n] = (uint16_t)i;
            }
        }
    }
}

/* NULL: there are too many. */
static const struct cairn_helpers *
helpers_for(struct cairn_prices *prices, uint32_t microbatches, double fastest_ms)
{
    struct cairn_helpers *own;

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
    fill_helpers(prices, own);
    return own;
}

/* ---- one pipeline ---- */

/*
 * What mains hold together at most. Stages before others hold more micro-batches in flight: those
 * with most memory last is best, where parts of layers count.
 */
static uint32_t
layers_held(const struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count)
{
    const struct cairn_problem *problem = prices->fleet->problem;
    double bytes[CAIRN_PRICER_MAINS_MAX], held = 0;

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

/* The parts of a choice of mains, the fastest first; one main of the kind `holder`, if any, is a
 * part of its own, with the vocabulary. */
static void
set_parts(struct cairn_prices *prices, const uint32_t *chosen, uint32_t chosen_count,
          uint32_t holder, double vocabulary)
{
    bool held = false;

    prices->part_count = 0;
    for (uint32_t i = 0; i < chosen_count; i++) {
        struct cairn_mains part = {&prices->kinds[chosen[i]], 1, 0, 0};
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

/* The longest stage that the present layers may mean. */
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

/* The layers that helpers must hold where stages take no longer than `longest`, and what is then
 * left of the time, below 0 where it takes too long. */
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
        spare_ms -= *left * prices->helper_ms;
    for (uint32_t i = 0; room > 0 && i < prices->part_count; i++) {
        uint32_t own = prices->parts[i].count * prices->parts[i].layers;

        own = own < room ? own : room;
        spare_ms -= own * prices->parts[i].kind->layer_ms;
        room -= own;
    }
    return spare_ms + CAIRN_PRICER_MARGIN * prices->step_ms;
}

/* The whole layers of each main where stages take no longer than that. */
static void
limit_layers(struct cairn_prices *prices, double longest)
{
    for (uint32_t i = 0; i < prices->part_count; i++) {
        struct cairn_mains *part = &prices->parts[i];
        double own = longest * (1 + CAIRN_PRICER_MARGIN) / part->kind->layer_ms - part->vocabulary;

        part->layers = own < 0 ? 0 : own < part->kind->layers ? (uint32_t)own : part->kind->layers;
    }
}

/*
 * The fewest layers on helpers with which the pipeline can do its micro-batches, up to `most`;
 * above `most` where it cannot. Only the mains' whole layers matter for the longest stage, so it is
 * lowered from one of these to the next. What is too long by some time is so until the longest
 * stage, which counts m - 1 times, is shorter by at least its part of that: shorter stages make all
 * of them together no shorter.
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
    const struct cairn_helpers *helpers = NULL;
    uint32_t most = 0, fewest = problem->layers + 1;

    for (uint32_t i = 0; i < chosen_count; i++)
        fastest_ms = fmin(fastest_ms, prices->kinds[chosen[i]].layer_ms);
    other_ms = fmin(problem->embed_layers, problem->head_layers) * fastest_ms;
    prices->holds = layers_held(prices, chosen, chosen_count);
    if (prices->helper_ms < INFINITY) {
        helpers = helpers_for(prices, (uint32_t)prices->microbatches, fastest_ms);
        if (!helpers)
            return false;
        while (most < problem->layers && helpers->price[most + 1] < enough)
            most++;
    }
    *price = INFINITY;
    if (prices->holds + most < problem->layers)
        return true;
    for (uint32_t i = 0; i <= chosen_count && fewest > 0; i++) {
        bool helped = i == chosen_count; /* a helper holds the vocabulary */
        double holder_ms = helped ? prices->helper_ms : prices->kinds[chosen[i]].layer_ms;
        uint32_t own;

        if ((i > 0 && i < chosen_count && chosen[i] == chosen[i - 1]) ||
            (helped && (most == 0 || vocabulary <= 0)) || (i > 0 && vocabulary <= 0))
            continue;
        set_parts(prices, chosen, chosen_count, helped ? UINT32_MAX : chosen[i], vocabulary);
        own = fewest_left(prices, vocabulary * holder_ms + other_ms, helped, most);
        fewest = own < fewest ? own : fewest;
    }
    *left = fewest;
    if (fewest <= most)
        *price = fewest > 0 ? helpers->price[fewest] : 0;
    return true;
}

void
cairn_pricer_count_helpers(struct cairn_prices *prices, uint32_t left, uint16_t *count)
{
    const struct cairn_helpers *helpers = NULL;

    if (left > 0)
        helpers =
            helpers_for(prices, (uint32_t)prices->microbatches, prices->parts[0].kind->layer_ms);
    while (helpers && left > 0) {
        /* cppcheck-suppress arrayIndexOutOfBoundsCond ; at most CAIRN_PRICER_LAYERS_MAX are left */
        uint32_t kind = helpers->kind[left];

        count[kind]++;
        left = left > helpers->most[kind] ? left - helpers->most[kind] : 0;
    }
}
