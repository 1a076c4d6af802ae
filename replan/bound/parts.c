/*
 * replan/bound/parts.c - prices of groups in whole parts of a micro-batch.
 *
 * Groups that hold the model alone (owners) cost what they could do by themselves, rounded down to
 * parts; those that need others
 * (dependents) what they add to a pipeline, rounded up. What an owner does beyond its price may
 *              make a whole micro-batch with what
 * dependents add, and pipelines of dependents alone do one micro-batch more than they add up to. By
 * a table of what every sum of prices can add at most, pipelines are found that would do more than
 * they cost, and one of their groups costs more from then on.
 */
#include "replan/bound/parts.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MARGIN 1e-9
#define STEEP                                                                                      \
    4.0 /* how much less slow groups count that are slower than helps on average; any number above 0
         * is right */
enum {
    COVER = 32,        /* levels of the part of the layers that groups hold together */
    MICROBATCHES = 32, /* of a pipeline of dependents that is looked at: those that would do more
                        * cost enough */
    UNITS_MAX = 2 * CAIRN_PARTS_MAX * MICROBATCHES,
    LEVELS = CAIRN_PARTS_MAX * MICROBATCHES + 2,
    RAISES_MAX = 40
};
#define WORK_PER_DEVICE                                                                            \
    375e3 /* places of the table that are looked at: ten milliseconds for 64 devices, and at most
           * four times that */

/* Dependents of one size that add the same, rounded up. */
struct level {
    double adds;    /* the most of them */
    uint32_t cover; /* of COVER, rounded up; 0: there are none */
    uint32_t price; /* in units */
};

/* A kind of group that may form. */
struct kind {
    double layer_ms;
    uint32_t size_index;
    uint32_t cover; /* what it holds at most, of COVER, rounded up; 0: an owner */
};

struct cairn_parts {
    const struct cairn_fleet *fleet;
    double work_layers;
    struct kind *kinds;
    uint32_t kind_count;
    double fastest_ms;  /* of dependents, per layer; INFINITY: there are none */
    uint32_t cover_max; /* of a dependent */
    double work_left;
    double step_ms;
    uint32_t owner_parts;
    uint32_t parts;
    uint32_t enough;    /* of COVER: who holds that much is taken to hold all layers */
    double beyond_most; /* what owners may do beyond their price: more, and they cost half a part
                         * more */
    double beyond[2 * CAIRN_PARTS_MAX]; /* by the half parts of a micro-batch in their price: the
                                         * most; below 0: there are none */
    struct level levels[CAIRN_PROBLEM_SIZES_MAX][LEVELS];
    double table[UNITS_MAX + 1][COVER + 1]; /* what groups of a price that hold a part of the layers
                                             * add at most; below 0: there are none */
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

/* Every rate of a node's devices may be a group's worst. Of one size and time the dependent that
 * holds most is enough, and one owner. */
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
            bool owner = layers == problem->layers;

            for (uint32_t at = fleet->node_first[node];
                 layers > 0 && at < fleet->node_first[node + 1]; at++) {
                double rate = problem->devices[fleet->order[at]].rate;
                double layer_ms = problem->layer_ms * problem->sizes[i].cost * rate;

                parts->kinds[count++] = (struct kind){layer_ms, i, owner ? 0 : cover};
                parts->fastest_ms = owner ? parts->fastest_ms : fmin(parts->fastest_ms, layer_ms);
                parts->cover_max = !owner && cover > parts->cover_max ? cover : parts->cover_max;
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

/* What a dependent adds, in parts, rounded up, and at least one. */
static uint32_t
level_of(const struct cairn_parts *parts, double alone)
{
    double level = ceil((alone - 1) * parts->parts);

    return level < 1 ? 1 : level < LEVELS - 1 ? (uint32_t)level : LEVELS - 1;
}

/* The price of an owner, in half parts of its own. */
static double
owner_halves(const struct cairn_parts *parts, double alone)
{
    double whole = floor(alone * parts->owner_parts);

    return 2 * whole + (alone - whole / parts->owner_parts > parts->beyond_most);
}

/* What owners do beyond their price. The fastest, which most are, cost no more than they must. */
static void
set_owners(struct cairn_parts *parts)
{
    double fastest_ms[CAIRN_PROBLEM_SIZES_MAX] = {0};

    parts->beyond_most = 0;
    for (uint32_t i = 0; i < parts->kind_count; i++) {
        const struct kind *kind = &parts->kinds[i];
        double alone = alone_microbatches(parts, kind->layer_ms);

        if (kind->cover > 0 || alone < 1 || fastest_ms[kind->size_index] > 0)
            continue;
        fastest_ms[kind->size_index] = kind->layer_ms;
        parts->beyond_most = fmax(parts->beyond_most,
                                  alone - floor(alone * parts->owner_parts) / parts->owner_parts);
    }
    for (uint32_t i = 0; i < 2 * parts->owner_parts; i++)
        parts->beyond[i] = -1;
    for (uint32_t i = 0; i < parts->kind_count; i++) {
        double alone = alone_microbatches(parts, parts->kinds[i].layer_ms), halves, *beyond;

        if (parts->kinds[i].cover > 0 || alone < 1)
            continue;
        halves = owner_halves(parts, alone);
        beyond = &parts->beyond[(uint32_t)fmod(halves, 2 * parts->owner_parts)];
        *beyond = fmax(*beyond, fmax(0, alone - halves / (2 * parts->owner_parts)));
    }
}

/* The dependents of each level at their first prices; false where they do too much to be looked
 * at. */
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

/* For every sum of prices, and every part of the layers that is held, the most that dependents
 * add. */
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

/* Whether dependents that add so much, at that price, make some owner do more than both cost. One
 * owner is the worst: each more does less beyond its price than the micro-batch that it is counted
 * for. */
static bool
too_cheap_for_owner(const struct cairn_parts *parts, double adds, double price)
{
    for (uint32_t i = 0; i < 2 * parts->owner_parts; i++) {
        double rest = i / (2.0 * parts->owner_parts);

        if (parts->beyond[i] >= 0 &&
            floor(rest + parts->beyond[i] + adds + MARGIN) > rest + price + MARGIN)
            return true;
    }
    return false;
}

/* The first pipeline that does more than it costs: the place of its dependents in the table; false
 * where there is none. Dependents alone that hold far from all layers need slow groups, which cost
 * half a micro-batch together. */
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
                too_cheap_for_owner(parts, adds, (double)i / units)) {
                *price = i;
                *cover = c;
                return true;
            }
        }
    return false;
}

/* The level of one of the groups that an entry of the table is of, and in *before what the others
 * hold. The same sum was made when the table was filled, so that it is found again to the bit;
 * NULL: the entry is of no groups. */
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
    parts->owner_parts = way->owner_parts;
    parts->parts = way->parts;
    parts->enough = (uint32_t)lround(way->enough * COVER);
    if (way->enough <= 0)
        parts->enough = parts->cover_max < COVER ? parts->cover_max + 1 : COVER;
    set_owners(parts);
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
 * A slow group: it is of use only in pipelines of dependents, for layers that these cannot hold.
 * The time that there is beyond all layers at the dependents' pace is for what those layers take
 * more. Where that many lack, a group that takes more time than there is for them on average counts
 * less, and one that takes less counts more.
 */
static double
slow_worth(const struct cairn_parts *parts, double layer_ms, uint32_t layers)
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
cairn_parts_worth(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct cairn_parts *parts = context;
    const struct cairn_problem *problem = parts->fleet->problem;
    double layer_ms = problem->layer_ms * problem->sizes[size_index].cost * rate;
    double alone = alone_microbatches(parts, layer_ms);
    uint32_t layers = layers_max(problem, size_index, memory_bytes);

    if (layers == 0)
        return 0;
    if (alone < 1)
        return slow_worth(parts, layer_ms, layers);
    if (layers >= problem->layers)
        return owner_halves(parts, alone) / (2 * parts->owner_parts);
    return (double)parts->levels[size_index][level_of(parts, alone)].price / units_of(parts);
}
