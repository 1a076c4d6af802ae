/*
 * replan/bound/parts.c - prices of groups in whole parts of a micro-batch.
 *
 * The price of a complete group (it holds the model alone) is what it could do by itself, rounded
 * down to parts; the rest is its surplus. The price of a partial group (it needs others) is what it
 * adds to a pipeline, rounded up. Two kinds of pipelines could do more than they cost: the surplus
 * of a complete group and what partial groups add may make a whole micro-batch, and a pipeline of
 * partial groups alone does one more than they add. A table has the most that each sum of prices
 * can add. It finds such pipelines, and one of their groups then costs more.
 */
#include "replan/bound/parts.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 1e-9
#define STEEP                                                                                      \
    4.0 /* how steeply the weight of slow groups falls with their time; any positive number is
         * valid */
enum {
    COVER = 32,        /* steps of the part of the layers that groups hold together */
    MICROBATCHES = 32, /* of a pipeline of partial groups; with more the prices suffice */
    UNITS_MAX = 2 * CAIRN_PARTS_MAX * MICROBATCHES,
    LEVELS = CAIRN_PARTS_MAX * MICROBATCHES + 2,
    RAISES_MAX = 40
};
#define WORK_PER_DEVICE                                                                            \
    375e3 /* entries of the table: ten milliseconds for 64 devices, and at most four times that */

/* Partial groups of one size that add the same, rounded up. */
struct level {
    double adds;    /* the most of them */
    uint32_t cover; /* of COVER, rounded up; 0: there are none */
    uint32_t price; /* in units */
};

/* A kind of group that may form. */
struct kind {
    double layer_ms;
    uint32_t size_index;
    uint32_t cover; /* what it holds at most, of COVER, rounded up; 0: it is complete */
};

struct cairn_parts {
    const struct cairn_fleet *fleet;
    double work_layers;
    struct kind *kinds;
    uint32_t kind_count;
    double fastest_ms;  /* of partial groups, per layer; INFINITY: there are none */
    uint32_t cover_max; /* of a partial group */
    double work_left;
    double step_ms;
    uint32_t complete_parts;
    uint32_t parts;
    uint32_t enough;    /* of COVER: groups with that much count as if they held all layers */
    double surplus_max; /* complete groups with a larger one cost half a part more */
    double surplus[2 * CAIRN_PARTS_MAX]; /* the largest, by the half parts in the fraction of the
                                          * price; below 0: there are none */
    struct level levels[CAIRN_PROBLEM_SIZES_MAX][LEVELS];
    double table[UNITS_MAX + 1][COVER + 1]; /* the most that partial groups of a price in sum, which
                                             * hold a part of the layers, add; below 0: none */
};

/* Units are half parts, so that prices can be raised by less than a part. */
static uint32_t
units_of(const struct cairn_parts *parts)
{
    return 2 * parts->parts;
}

static uint32_t
layers_max(const struct cairn_problem *problem, uint32_t size_index, uint64_t memory_bytes)
{
    return cairn_cost_layers_max(
        problem, cairn_cost_group_bytes(problem, problem->sizes[size_index].size, memory_bytes), 1);
}

static int
by_size_and_time(const void *left, const void *right)
{
    const struct kind *a = left, *b = right;

    if (a->size_index != b->size_index)
        return a->size_index < b->size_index ? -1 : 1;
    if (a->layer_ms < b->layer_ms || a->layer_ms > b->layer_ms)
        return a->layer_ms < b->layer_ms ? -1 : 1;
    return a->cover > b->cover ? -1 : a->cover < b->cover;
}

/* Every rate of a node's devices may be a group's worst. For each size and time, one complete group
 * and the partial group that holds most suffice. */
static cairn_err
list_kinds(struct cairn_parts *parts)
{
    const struct cairn_fleet *fleet = parts->fleet;
    const struct cairn_problem *problem = fleet->problem;
    uint32_t count = 0, kept = 0;

    parts->kinds =
        calloc((size_t)fleet->device_count * problem->size_count + 1, sizeof(*parts->kinds));
    if (!parts->kinds)
        return CAIRN_NOMEM;
    parts->fastest_ms = INFINITY;
    for (uint32_t node = 0; node < fleet->node_count; node++)
        for (uint32_t i = 0; fleet->node_alike[node] == node && i < problem->size_count; i++) {
            uint32_t layers = layers_max(problem, i, fleet->node_memory_bytes[node]);
            uint32_t cover =
                (uint32_t)(((uint64_t)layers * COVER + problem->layers - 1) / problem->layers);
            bool complete = layers == problem->layers;

            for (uint32_t at = fleet->node_first[node];
                 layers > 0 && at < fleet->node_first[node + 1]; at++) {
                double rate = problem->devices[fleet->order[at]].rate;
                double layer_ms = problem->layer_ms * problem->sizes[i].cost * rate;

                parts->kinds[count++] = (struct kind){layer_ms, i, complete ? 0 : cover};
                parts->fastest_ms =
                    complete ? parts->fastest_ms : fmin(parts->fastest_ms, layer_ms);
                parts->cover_max = !complete && cover > parts->cover_max ? cover : parts->cover_max;
            }
        }
    qsort(parts->kinds, count, sizeof(*parts->kinds), by_size_and_time);
    for (uint32_t i = 0; i < count; i++)
        if (kept == 0 || parts->kinds[kept - 1].size_index != parts->kinds[i].size_index ||
            parts->kinds[kept - 1].layer_ms < parts->kinds[i].layer_ms ||
            (parts->kinds[i].cover == 0 && parts->kinds[kept - 1].cover > 0))
            parts->kinds[kept++] = parts->kinds[i];
    parts->kind_count = kept;
    return CAIRN_OK;
}

cairn_err
cairn_parts_create(const struct cairn_fleet *fleet, struct cairn_parts **out)
{
    struct cairn_parts *parts = calloc(1, sizeof(*parts));
    cairn_err err;

    if (!parts)
        return CAIRN_NOMEM;
    parts->fleet = fleet;
    parts->work_layers = cairn_problem_work_layers(fleet->problem);
    parts->work_left = WORK_PER_DEVICE * fmin(256, fmax(64, fleet->device_count));
    err = list_kinds(parts);
    if (err)
        cairn_parts_destroy(parts);
    else
        *out = parts;
    return err;
}

void
cairn_parts_destroy(struct cairn_parts *parts)
{
    if (!parts)
        return;
    free(parts->kinds);
    free(parts);
}

bool
cairn_parts_matter(const struct cairn_parts *parts)
{
    return parts->cover_max > 0;
}

static double
alone_microbatches(const struct cairn_parts *parts, double layer_ms)
{
    return parts->step_ms / (parts->work_layers * layer_ms) * (1 + MARGIN);
}

/* What a partial group adds, in parts, rounded up, and at least one. */
static uint32_t
level_of(const struct cairn_parts *parts, double alone)
{
    double level = ceil((alone - 1) * parts->parts);

    return level < 1 ? 1 : level < LEVELS - 1 ? (uint32_t)level : LEVELS - 1;
}

/* The price of a complete group, in half parts. */
static double
complete_halves(const struct cairn_parts *parts, double alone)
{
    double whole = floor(alone * parts->complete_parts);

    return 2 * whole + (alone - whole / parts->complete_parts > parts->surplus_max);
}

/* Sets the surplus of complete groups, so that the fastest, which most are, get the least price. */
static void
set_complete(struct cairn_parts *parts)
{
    double fastest_ms[CAIRN_PROBLEM_SIZES_MAX] = {0};

    parts->surplus_max = 0;
    for (uint32_t i = 0; i < parts->kind_count; i++) {
        const struct kind *kind = &parts->kinds[i];
        double alone = alone_microbatches(parts, kind->layer_ms);

        if (kind->cover > 0 || alone < 1 || fastest_ms[kind->size_index] > 0)
            continue;
        fastest_ms[kind->size_index] = kind->layer_ms;
        parts->surplus_max = fmax(parts->surplus_max, alone - floor(alone * parts->complete_parts) /
                                                                  parts->complete_parts);
    }
    for (uint32_t i = 0; i < 2 * parts->complete_parts; i++)
        parts->surplus[i] = -1;
    for (uint32_t i = 0; i < parts->kind_count; i++) {
        double alone = alone_microbatches(parts, parts->kinds[i].layer_ms), halves, *surplus;

        if (parts->kinds[i].cover > 0 || alone < 1)
            continue;
        halves = complete_halves(parts, alone);
        surplus = &parts->surplus[(uint32_t)fmod(halves, 2 * parts->complete_parts)];
        *surplus = fmax(*surplus, fmax(0, alone - halves / (2 * parts->complete_parts)));
    }
}

/* Sets the first prices of partial groups; false if they do too much for the table. */
static bool
set_levels(struct cairn_parts *parts)
{
    memset(parts->levels, 0, sizeof(parts->levels));
    for (uint32_t i = 0; i < parts->kind_count; i++) {
        const struct kind *kind = &parts->kinds[i];
        double alone = alone_microbatches(parts, kind->layer_ms);
        uint32_t at = level_of(parts, alone);
        struct level *level;

        if (kind->cover == 0 || alone < 1)
            continue;
        if (at == LEVELS - 1)
            return false;
        level = &parts->levels[kind->size_index][at];
        level->adds = fmax(level->adds, alone - 1);
        level->cover = kind->cover > level->cover ? kind->cover : level->cover;
        level->price = 2 * at > parts->parts ? 2 * at : parts->parts; /* not less than slow
                                                                       * groups */
        /* However many there are, those that do more than MICROBATCHES cost more than they do. */
        while (level->price < level->adds * units_of(parts) * (1 + 1.0 / (MICROBATCHES - 1)))
            level->price++;
    }
    return true;
}

/* One more group of a level than at a lower price. */
static void
add_level(const struct level *level, const double *from, double *to)
{
    const double adds = level->adds;
    const uint32_t cover = level->cover < COVER ? level->cover : COVER;
    double most = to[COVER];

    for (uint32_t c = 0; c < COVER - cover; c++) {
        double own = from[c] + adds;

        to[c + cover] = own > to[c + cover] ? own : to[c + cover];
    }
    for (uint32_t c = COVER - cover; c <= COVER; c++)
        most = from[c] + adds > most ? from[c] + adds : most;
    to[COVER] = most;
}

/* For each sum of prices and each part of the layers held, the most that partial groups add. */
static void
fill_table(struct cairn_parts *parts)
{
    uint32_t units = units_of(parts) * MICROBATCHES, sizes = parts->fleet->problem->size_count;

    for (uint32_t i = 0; i <= units; i++)
        for (uint32_t c = 0; c <= COVER; c++)
            parts->table[i][c] = i + c == 0 ? 0 : -INFINITY;
    for (uint32_t size = 0; size < sizes; size++)
        for (uint32_t l = 1; l < LEVELS; l++) {
            const struct level *level = &parts->levels[size][l];

            if (level->cover == 0)
                continue;
            parts->work_left -= (double)units * COVER;
            for (uint32_t i = level->price; i <= units; i++)
                add_level(level, parts->table[i - level->price], parts->table[i]);
        }
}

/* Condition (i) of (E): true if partial groups that add so much at that price do more, with some
 * complete group, than both cost. One complete group is the worst case: the surplus of each further
 * one is below the micro-batch that (1) takes off for it. */
static bool
too_cheap_for_complete(const struct cairn_parts *parts, double adds, double price)
{
    for (uint32_t i = 0; i < 2 * parts->complete_parts; i++) {
        double rest = i / (2.0 * parts->complete_parts);

        if (parts->surplus[i] >= 0 &&
            floor(rest + parts->surplus[i] + adds + MARGIN) > rest + price + MARGIN)
            return true;
    }
    return false;
}

/* Finds the first pipeline that does more than it costs: the table's entry for its partial groups.
 * False: there is none. Partial groups alone that hold few layers need slow groups, which cost half
 * a micro-batch together. */
static bool
find_too_cheap(const struct cairn_parts *parts, uint32_t *price, uint32_t *cover)
{
    uint32_t units = units_of(parts);

    for (uint32_t i = 1; i <= units * MICROBATCHES; i++)
        for (uint32_t c = 1; c <= COVER; c++) {
            double adds = parts->table[i][c];

            if (adds < 0)
                continue;
            if (floor(1 + adds + MARGIN) * units > i + (c < parts->enough ? units / 2 : 0) ||
                too_cheap_for_complete(parts, adds, (double)i / units)) {
                *price = i;
                *cover = c;
                return true;
            }
        }
    return false;
}

/* The level of one of the groups in an entry of the table; *before is what the others hold. It is
 * found by repeating the sum that filled the table, equal to the bit. NULL: no groups. */
static struct level *
find_level(struct cairn_parts *parts, uint32_t price, uint32_t cover, uint32_t *before)
{
    double adds = parts->table[price][cover];

    for (uint32_t size = 0; size < parts->fleet->problem->size_count; size++)
        for (uint32_t l = 1; l < LEVELS; l++) {
            struct level *level = &parts->levels[size][l];
            uint32_t first = cover > level->cover ? cover - level->cover : 0;
            /* all layers are held: perhaps they were before */
            uint32_t last = cover == COVER ? COVER : first;

            if (level->cover == 0 || level->price > price ||
                (cover < level->cover && cover < COVER))
                continue;
            for (uint32_t c = first; c <= last; c++)
                if (parts->table[price - level->price][c] + level->adds >= adds) {
                    *before = c;
                    return level;
                }
        }
    return NULL;
}

/* Raises the price of the group of an entry that adds most. False if nothing must be raised. */
static bool
raise_one(struct cairn_parts *parts, uint32_t price, uint32_t cover)
{
    struct level *chosen = NULL;

    while (price > 0) {
        struct level *level = find_level(parts, price, cover, &cover);

        if (!level)
            break;
        if (!chosen || level->adds > chosen->adds)
            chosen = level;
        price -= level->price;
    }
    if (chosen)
        chosen->price++;
    return chosen != NULL;
}

/* Faster groups of a size never cost less than slower groups: what the best grouping rests on. */
static void
make_monotone(struct cairn_parts *parts)
{
    for (uint32_t size = 0; size < parts->fleet->problem->size_count; size++)
        for (uint32_t l = 2; l < LEVELS; l++)
            if (parts->levels[size][l].price < parts->levels[size][l - 1].price)
                parts->levels[size][l].price = parts->levels[size][l - 1].price;
}

bool
cairn_parts_set_prices(struct cairn_parts *parts, double step_ms, const struct cairn_parts_way *way)
{
    uint32_t price, cover;

    parts->step_ms = step_ms;
    parts->complete_parts = way->complete_parts;
    parts->parts = way->parts;
    parts->enough = (uint32_t)lround(way->enough * COVER);
    if (way->enough <= 0)
        parts->enough = parts->cover_max < COVER ? parts->cover_max + 1 : COVER;
    set_complete(parts);
    if (!set_levels(parts))
        return false;
    for (uint32_t i = 0; i < RAISES_MAX && parts->work_left > 0; i++) {
        fill_table(parts);
        if (!find_too_cheap(parts, &price, &cover)) {
            make_monotone(parts);
            return true;
        }
        if (!raise_one(parts, price, cover))
            return false;
    }
    return false;
}

/*
 * The price of a slow group: ½ min(1, w) of docs/PLANNER.md (E). It only serves pipelines of
 * partial groups, for the layers that they cannot hold. The time left at the partial groups' pace
 * pays for the slow groups' longer layers. A group that takes more than the average share of that
 * time weighs less.
 */
static double
slow_price(const struct cairn_parts *parts, double layer_ms, uint32_t layers)
{
    double lacking =
        fmax(1, parts->fleet->problem->layers * (1 - (double)(parts->enough - 1) / COVER));
    double spare_ms = parts->step_ms * (1 + MARGIN) - parts->work_layers * parts->fastest_ms;
    double more_ms = layer_ms - parts->fastest_ms, weight;

    if (spare_ms <= 0)
        return 0;
    if (more_ms <= 0)
        return 0.5;
    weight = (1 + STEEP - STEEP * more_ms * lacking / spare_ms) * fmin(layers, spare_ms / more_ms) /
             lacking * (1 + MARGIN);
    return weight <= 0 ? 0 : weight < 1 ? 0.5 * weight : 0.5;
}

double
cairn_parts_price(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct cairn_parts *parts = context;
    const struct cairn_problem *problem = parts->fleet->problem;
    double layer_ms = problem->layer_ms * problem->sizes[size_index].cost * rate;
    double alone = alone_microbatches(parts, layer_ms);
    uint32_t layers = layers_max(problem, size_index, memory_bytes);

    if (layers == 0)
        return 0;
    if (alone < 1)
        return slow_price(parts, layer_ms, layers);
    if (layers >= problem->layers)
        return complete_halves(parts, alone) / (2 * parts->complete_parts);
    return (double)parts->levels[size_index][level_of(parts, alone)].price / units_of(parts);
}
