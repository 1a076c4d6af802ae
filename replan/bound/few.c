/*
 * replan/bound/few.c - branch and bound over the longest stages of few pipelines.
 *
 * A box says how many pipelines there are, and between what times the longest stage of each lies.
 * Its bound is a Lagrangian one: prices on the layers that each pipeline needs, and on the places
 * of its stages. The box with the least bound is cut in two, again and again; the least bound of
 * all boxes holds for every plan.
 *
 * Invariants:
 *   - the boxes on the heap cover every plan that is faster than plan_ms;
 *   - a box's bound_ms holds for the plans in it, at any prices.
 */
#include "replan/bound/few.h"
#include "base/array.h"

#include "replan/bound/groupings.h"
#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIPELINES_MAX = CAIRN_BOUND_FEW_PIPELINES,
    PLACES_MAX = 20, /* of stages with a price, from the last stage on; then the rest */
    BOXES_MAX = 8000,
    LIMITS_MAX = 40, /* on numbers of groups, of one box */
    ROUNDS = 160,    /* of prices, for one box */
    ROUNDS_NARROW = 300,
    ROUNDS_ROOT = 300,
    DEPTH_MAX = 16, /* micro-batches: of more in flight, hardly any layers are on such stages */
    CRITICAL_MAX = 1 << 18,
    GUESSED = 4, /* boxes */
    PATIENCE = 8 /* rounds without a better bound before steps get shorter */
};
#define ENOUGH 1.0002 /* how near the plan a bound need not be raised */
#define ROUNDING 1e-9
#define NARROW 1.02 /* where a box that is not refused is priced from the beginning, too */
#define DEPTH_WEIGHT 0.25
#define SINGLE (1 + 1e-6) /* above it, times cut a box better than numbers of groups */
#define STEP_MIN 0.005
#define IDLE 0.2 /* micro-batches: from there on a pipeline's time gets less weight */
#define LIGHTER 0.3f
#define WEIGHT_MIN 0.01f
#define WIDE 1.05   /* above it prices need not be as good */
#define SCALE 12.0  /* of the price of layers to that of places: the stages of a pipeline */
#define MIXED 0.03f /* of a round into the mean of the rounds before */

/* Stages from the last one on share a place, and its price: the first of each place, as many as
 * there are until the next. Those from the last on are not counted. */
static const uint8_t place_first[PLACES_MAX] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                                                10, 11, 12, 14, 16, 20, 24, 32, 40, 56};

/* How many groups of a size a sort of nodes forms at most, or at least. */
struct limit {
    uint16_t which; /* sort of nodes, then size */
    uint16_t count;
    bool at_least;
    float price;
};

struct box {
    double bound_ms;
    uint32_t limit_count;
    struct limit limits[LIMITS_MAX];
    uint32_t cut_by; /* `which` of the limit that cuts it best; UINT32_MAX: none */
    uint32_t cut_at; /* at most that many on one side */
    uint32_t pipelines;
    double low_ms[PIPELINES_MAX], high_ms[PIPELINES_MAX]; /* of the longest stages, ascending */
    uint32_t least[PIPELINES_MAX], most[PIPELINES_MAX];   /* micro-batches */
    double priced_ms[PIPELINES_MAX];                      /* low_ms that the prices are for */
    float weight[PIPELINES_MAX];                          /* of its time, times low_ms */
    float layers_price[PIPELINES_MAX];                    /* of all layers of a pipeline */
    float place_price[PIPELINES_MAX][PLACES_MAX];
};

/* Where a group of a kind gains most. */
struct best_place {
    uint8_t pipeline, place;
    uint32_t layers;
};

/* The most layers that a group holds, by place: fewer and fewer from the second-last stage on. */
struct holds {
    uint32_t last; /* in the last stage */
    uint32_t step_count;
    struct {
        uint16_t layers;
        uint8_t end; /* the last place with that many */
    } steps[PLACES_MAX];
};

/* What follows from a box's limits, for the first of each pipelines that are alike. */
struct shape {
    uint32_t alike[PIPELINES_MAX];  /* as many from this on */
    uint32_t places[PIPELINES_MAX]; /* with a price */
};

/* A group of a node, of a solution of a box. */
struct pick {
    uint32_t step; /* of the node's grouping; UINT32_MAX ends them */
    uint8_t pipeline, place;
};

struct cairn_few {
    const struct cairn_fleet *fleet;
    const struct cairn_problem *problem;
    struct cairn_groupings *groupings;
    double plan_ms;    /* of the best plan known */
    double fastest_ms; /* of a layer, on any group */
    double work_layers;
    bool begun;        /* there were boxes */
    struct box *boxes; /* a heap, the least bound on top */
    uint32_t box_count;
    uint32_t kind_count;
    struct holds *holds;        /* [PIPELINES_MAX][kinds] */
    uint32_t *caps;             /* [kinds][PLACES_MAX]: by memory, with as many in flight */
    double *gain;               /* [kinds] */
    double idle[PIPELINES_MAX]; /* micro-batches that they would have time for, of the last box */
    struct best_place *best;
    uint32_t *used;       /* [kinds] */
    uint32_t which_count; /* sorts of nodes * sizes */
    double *more;         /* [which_count] */
    double *mean;         /* the same: of `formed`, over the last rounds */
    double *square;       /* the same, of its square */
    uint32_t *formed;
    double *critical; /* what the longest stage may take, ascending */
    uint32_t critical_count;
    struct pick *picks; /* [nodes * groupings->room]: a solution; NULL while none is wanted */
    uint64_t draw;      /* random */
};

/* ---- one box ---- */

/* Counts the micro-batches that pipelines of a plan in the box do, if it is faster than the best;
 * false: there is none. */
static bool
count_microbatches(const struct cairn_few *few, struct box *box)
{
    double room_ms = few->plan_ms - few->work_layers * few->fastest_ms, sum = 0, sum_least = 0;

    for (uint32_t i = 0; i < box->pipelines; i++) {
        double most = 1 + floor(room_ms / box->low_ms[i] + ROUNDING);

        if (most < box->most[i])
            box->most[i] = (uint32_t)most;
        sum += box->most[i];
    }
    for (uint32_t i = 0; i < box->pipelines; i++) {
        double least = few->problem->microbatches - (sum - box->most[i]);

        if (least > box->least[i])
            box->least[i] = (uint32_t)least;
        sum_least += box->least[i];
    }
    for (uint32_t i = 0; i < box->pipelines; i++) {
        double most = few->problem->microbatches - (sum_least - box->least[i]);

        if (most < box->least[i] || box->least[i] > box->most[i])
            return false;
        if (most < box->most[i])
            box->most[i] = (uint32_t)most;
    }
    return true;
}

/* The longest stage takes one of few times; false where none is between these. */
static bool
snap(const struct cairn_few *few, double *low_ms, double *high_ms)
{
    uint32_t first = 0, end = few->critical_count;

    if (end == 0)
        return true;
    /* The first that is not below */
    CAIRN_BISECT(first, end, middle, few->critical[middle] < *low_ms * (1 - ROUNDING));
    if (first == few->critical_count || few->critical[first] > *high_ms * (1 + ROUNDING))
        return false;
    *low_ms = fmax(*low_ms, few->critical[first]);
    end = few->critical_count;
    while (first + 1 < end) { /* the last that is not above */
        uint32_t middle = first + (end - first) / 2;

        if (few->critical[middle] > *high_ms * (1 + ROUNDING))
            end = middle;
        else
            first = middle;
    }
    *high_ms = fmin(*high_ms, few->critical[first]);
    *low_ms = fmin(*low_ms, *high_ms);
    return true;
}

/* Makes a box as small as it may be; false where nothing is left. */
static bool
shrink(const struct cairn_few *few, struct box *box)
{
    double room_ms = few->plan_ms - few->work_layers * few->fastest_ms;
    uint32_t count = box->pipelines;

    if (room_ms <= 0 || !count_microbatches(few, box))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (box->least[i] > 1)
            box->high_ms[i] = fmin(box->high_ms[i], room_ms / (box->least[i] - 1) * (1 + ROUNDING));
    for (uint32_t i = count - 1; i-- > 0;)
        box->high_ms[i] = fmin(box->high_ms[i], box->high_ms[i + 1]);
    for (uint32_t i = 1; i < count; i++)
        box->low_ms[i] = fmax(box->low_ms[i], box->low_ms[i - 1]);
    for (uint32_t i = 0; i < count; i++) {
        if (box->low_ms[i] > box->high_ms[i] * (1 + ROUNDING))
            return false;
        if (!snap(few, &box->low_ms[i], &box->high_ms[i]))
            return false;
    }
    return count_microbatches(few, box);
}

/* The number of places with a price: stages before those hold as few layers as each other. */
static uint32_t
place_count(uint32_t least_microbatches)
{
    uint32_t places = 1;

    while (places < PLACES_MAX - 1 && place_first[places] + 1u < least_microbatches)
        places++;
    return places;
}

static uint32_t
place_width(uint32_t place)
{
    return place_first[place + 1] - place_first[place];
}

/* Pipelines of one box count together, at one price: as many from one on. */
static uint32_t
alike_from(const struct box *box, uint32_t pipeline)
{
    uint32_t end = pipeline + 1;

    while (end < box->pipelines && box->low_ms[end] <= box->low_ms[pipeline] &&
           box->high_ms[end] <= box->high_ms[pipeline] && box->least[end] == box->least[pipeline] &&
           box->most[end] == box->most[pipeline])
        end++;
    return end - pipeline;
}

/* What a group of a kind holds in a pipeline with `least` micro-batches. */
static void
list_layers(struct cairn_few *few, uint32_t kind, double high_ms, uint32_t least, uint32_t places,
            struct holds *into)
{
    double free = high_ms / few->groupings->kinds[kind].layer_ms + ROUNDING;
    double free_last = fmax(0, free - few->problem->head_layers);
    uint32_t cap_least =
        cairn_cost_layers_max(few->problem, few->groupings->kinds[kind].bytes, least);

    into->last = few->caps[kind * PLACES_MAX];
    if (into->last > free_last)
        into->last = (uint32_t)free_last;
    into->step_count = 0;
    for (uint32_t d = 1; d <= places; d++) {
        uint32_t cap = place_first[d] + 1u > least ? cap_least : few->caps[kind * PLACES_MAX + d];

        if (cap > free)
            cap = (uint32_t)free;
        if (cap == 0)
            break;
        if (into->step_count == 0 || into->steps[into->step_count - 1].layers > cap)
            into->steps[into->step_count++].layers = (uint16_t)cap;
        into->steps[into->step_count - 1].end = (uint8_t)d;
    }
}

/* The places and holds of all pipelines of a box. */
static void
list_holds(struct cairn_few *few, const struct box *box, struct shape *shape)
{
    for (uint32_t i = 0; i < box->pipelines; i += shape->alike[i]) {
        shape->alike[i] = alike_from(box, i);
        shape->places[i] = place_count(box->least[i]);
        for (uint32_t k = 0; k < few->kind_count; k++)
            list_layers(few, k, box->high_ms[i], box->least[i], shape->places[i],
                        &few->holds[i * few->kind_count + k]);
    }
}

/* What groups gain at the prices in one pipeline, and where, if no earlier one offers as much. */
static void
price_pipeline(struct cairn_few *few, const struct box *box, uint32_t pipeline, uint32_t places)
{
    double head_layers = few->problem->head_layers, weight = box->weight[pipeline];
    double layer_price = (double)box->layers_price[pipeline] / few->problem->layers;
    const float *price = box->place_price[pipeline];
    uint8_t cheapest[PLACES_MAX]; /* of the places up to one, without the last stage's */

    cheapest[1] = 1;
    for (uint32_t d = 2; d < places; d++)
        cheapest[d] = price[d] < price[cheapest[d - 1]] ? (uint8_t)d : cheapest[d - 1];
    for (uint32_t k = 0; k < few->kind_count; k++) {
        const struct holds *holds = &few->holds[pipeline * few->kind_count + k];
        double ms = few->groupings->kinds[k].layer_ms * weight / box->low_ms[pipeline];
        double each = layer_price - ms, most = few->gain[k], gain;
        struct best_place best = {(uint8_t)pipeline, PLACES_MAX, 0};

        /* more layers come first */
        for (uint32_t i = 0; i < holds->step_count && each * holds->steps[i].layers > most; i++) {
            uint32_t end = holds->steps[i].end, place = end < places ? cheapest[end] : places;

            gain = each * holds->steps[i].layers - (place < places ? price[place] : 0);
            if (gain > most) {
                most = gain;
                best.place = (uint8_t)place;
                best.layers = holds->steps[i].layers;
            }
        }
        if (holds->last > 0) {
            uint32_t layers = each > 0 ? holds->last : 1;

            gain = each * layers - price[0] - head_layers * ms;
            if (gain > most) {
                most = gain;
                best.place = 0;
                best.layers = layers;
            }
        }
        if (most > few->gain[k]) {
            few->gain[k] = most;
            few->best[k] = best;
        }
    }
}

/* What groups gain at the prices, and where. */
static void
price_kinds(struct cairn_few *few, const struct box *box, const struct shape *shape)
{
    for (uint32_t k = 0; k < few->kind_count; k++) {
        few->gain[k] = 0;
        few->best[k] = (struct best_place){0, PLACES_MAX, 0}; /* in none */
    }
    for (uint32_t i = 0; i < box->pipelines; i += shape->alike[i])
        price_pipeline(few, box, i, shape->places[i]);
}

/* By how much plans at some prices break what the prices are for. */
struct way {
    float sum_ms[PIPELINES_MAX]; /* of the stages of pipelines that are alike */
    float layers[PIPELINES_MAX];
    float places[PIPELINES_MAX][PLACES_MAX];
    float limits[LIMITS_MAX];
};

/* By how much a limit is broken. */
static float
limit_way(const struct cairn_few *few, const struct limit *limit)
{
    float over = (float)few->formed[limit->which] - (float)limit->count;

    return limit->at_least ? -over : over;
}

/* The bound at a box's prices, and the direction in which they get better. */
static double
look(struct cairn_few *few, const struct box *box, const struct shape *shape, struct way *way)
{
    const struct cairn_problem *problem = few->problem;
    double total = (double)problem->microbatches - box->pipelines, speed = 0;

    price_kinds(few, box, shape);
    memset(few->more, 0, few->which_count * sizeof(*few->more));
    for (uint32_t i = 0; i < box->limit_count; i++) {
        double price = box->limits[i].at_least ? box->limits[i].price : -box->limits[i].price;

        few->more[box->limits[i].which] += price;
        total += price * box->limits[i].count;
    }
    total -= cairn_groupings_best(few->groupings, few->gain, few->more, few->used, few->formed);
    for (uint32_t i = 0, alike; i < box->pipelines; i += alike) {
        double weight = box->weight[i], embed_ms = problem->embed_layers * few->fastest_ms;

        alike = shape->alike[i];
        total += alike * (box->layers_price[i] + embed_ms * weight / box->low_ms[i] -
                          (1 - weight) * (box->most[i] - 1.0));
        speed += alike * weight / box->low_ms[i];
        way->sum_ms[i] = (float)(alike * embed_ms);
        way->layers[i] = (float)(1.0 * alike);
        for (uint32_t d = 0; d < shape->places[i]; d++) {
            total -= (double)box->place_price[i][d] * alike * place_width(d);
            way->places[i][d] = (float)(-1.0 * alike * place_width(d));
        }
    }
    for (uint32_t k = 0; k < few->kind_count; k++) {
        const struct best_place *best = &few->best[k];

        if (few->used[k] == 0 || best->place == PLACES_MAX)
            continue;
        way->sum_ms[best->pipeline] +=
            (float)(few->used[k] * few->groupings->kinds[k].layer_ms *
                    (best->layers + (best->place == 0 ? problem->head_layers : 0)));
        way->layers[best->pipeline] -=
            (float)few->used[k] * (float)best->layers / (float)problem->layers;
        if (best->place < shape->places[best->pipeline])
            way->places[best->pipeline][best->place] += (float)few->used[k];
    }
    for (uint32_t i = 0; i < box->limit_count; i++)
        way->limits[i] = limit_way(few, &box->limits[i]);
    return total / speed;
}

/* The number of groups that is farthest from a whole one in the mean of the last rounds. */
static void
choose_cut(const struct cairn_few *few, struct box *box)
{
    double most = 0.0005;

    box->cut_by = UINT32_MAX;
    if (box->limit_count == LIMITS_MAX)
        return;
    for (uint32_t i = 0; i < few->which_count; i++) {
        double spread = few->square[i] - few->mean[i] * few->mean[i];

        if (spread > most) {
            most = spread;
            box->cut_by = i;
            box->cut_at = (uint32_t)floor(few->mean[i]);
        }
    }
}

/* Mixes `part` of a way into another; the square of that, where prices can follow it. */
static double
mix(struct way *into, const struct way *way, float part, const struct box *box,
    const struct shape *shape)
{
    double square = 0;

    for (uint32_t i = 0; i < box->limit_count; i++) {
        into->limits[i] += part * (way->limits[i] - into->limits[i]);
        if (into->limits[i] > 0 || box->limits[i].price > 0)
            square += into->limits[i] * into->limits[i];
    }
    for (uint32_t i = 0; i < box->pipelines; i += shape->alike[i]) {
        into->sum_ms[i] += part * (way->sum_ms[i] - into->sum_ms[i]);
        into->layers[i] += part * (way->layers[i] - into->layers[i]);
        square += SCALE * SCALE * into->layers[i] * into->layers[i];
        for (uint32_t d = 0; d < shape->places[i]; d++) {
            into->places[i][d] += part * (way->places[i][d] - into->places[i][d]);
            if (d == 0 || into->places[i][d] > 0 || box->place_price[i][d] > 0)
                square += into->places[i][d] * into->places[i][d];
        }
    }
    return square;
}

/* Prices so far along a way. */
static void
go(struct box *box, const struct way *way, float far, const struct shape *shape)
{
    for (uint32_t i = 0; i < box->limit_count; i++)
        box->limits[i].price = fmaxf(0, box->limits[i].price + far * way->limits[i]);
    for (uint32_t i = 0; i < box->pipelines; i += shape->alike[i]) {
        box->layers_price[i] =
            fmaxf(0, box->layers_price[i] + far * (float)(SCALE * SCALE) * way->layers[i]);
        for (uint32_t d = 0; d < shape->places[i]; d++) {
            box->place_price[i][d] += far * way->places[i][d];
            if (d > 0 && box->place_price[i][d] < 0)
                box->place_price[i][d] = 0;
        }
    }
}

/* Prices are of micro-batches: the longer the longest stages, the lower. */
static void
scale_prices(struct box *box)
{
    double speed = 0, priced_speed = 0;

    for (uint32_t i = 0; i < box->pipelines; i++) {
        float part = (float)(box->priced_ms[i] / box->low_ms[i]);

        speed += 1 / box->low_ms[i];
        priced_speed += 1 / box->priced_ms[i];
        box->priced_ms[i] = box->low_ms[i];
        box->layers_price[i] *= part;
        for (uint32_t d = 0; d < PLACES_MAX; d++)
            box->place_price[i][d] *= part;
    }
    for (uint32_t i = 0; i < box->limit_count; i++)
        box->limits[i].price *= (float)(speed / priced_speed);
}

/* Prices where a box begins: micro-batches as long as layers. */
static void
begin_prices(const struct cairn_few *few, struct box *box)
{
    memset(box->place_price, 0, sizeof(box->place_price));
    for (uint32_t i = 0; i < box->pipelines; i++) {
        box->weight[i] = 1;
        box->layers_price[i] = (float)few->problem->microbatches / (float)box->pipelines;
        box->priced_ms[i] = box->low_ms[i];
    }
    for (uint32_t i = 0; i < box->limit_count; i++)
        box->limits[i].price = 0;
}

/* Keeps the last look's groups of each node with a chance, so that every look counts as it does in
 * the mean. */
static void
pick(struct cairn_few *few, float chance)
{
    uint32_t room = few->groupings->room;

    for (uint32_t node = 0; few->picks && node < few->fleet->node_count; node++) {
        uint32_t sort = few->groupings->sort_of[node];
        const uint32_t *chosen = &few->groupings->chosen[sort * room];
        struct pick *into = &few->picks[node * room];

        few->draw = few->draw * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        if ((float)(few->draw >> 40) >= chance * 0x1p24f)
            continue;
        for (; *chosen < UINT32_MAX; chosen++) {
            const struct best_place *best =
                &few->best[cairn_groupings_span(few->groupings, sort, *chosen).kind];

            *into++ = (struct pick){*chosen, best->pipeline, best->place};
        }
        into->step = UINT32_MAX;
    }
}

/* Finds good prices of a box, beginning at those it has, and raises its bound: the volume algorithm
 * (Barahona and Anbil, Mathematical Programming 87, 2000). */
static void
raise_box(struct cairn_few *few, struct box *box, uint32_t rounds)
{
    struct shape shape;
    uint32_t idle = 0;
    double step = 1, best_ms, speed = 0, square;
    struct way way = {.layers = {0}}, mean = way;

    list_holds(few, box, &shape);
    scale_prices(box);
    for (uint32_t i = 0; i < box->pipelines; i++)
        speed += 1 / box->low_ms[i];
    best_ms = look(few, box, &shape, &mean);
    pick(few, 1);
    square = mix(&mean, &mean, 0, box, &shape);
    for (uint32_t i = 0; i < few->which_count; i++)
        few->mean[i] = few->formed[i], few->square[i] = few->mean[i] * few->mean[i];
    for (uint32_t round = 0; round < rounds && step > STEP_MIN && best_ms < few->plan_ms; round++) {
        struct box tried = *box;
        double bound_ms;

        if (square < 1e-12)
            break; /* these are the best */
        go(&tried, &mean, (float)(step * (few->plan_ms - best_ms) * speed / square), &shape);
        bound_ms = look(few, &tried, &shape, &way);
        pick(few, MIXED);
        for (uint32_t i = 0; i < few->which_count; i++) {
            double formed = few->formed[i];

            few->mean[i] += (formed - few->mean[i]) * MIXED;
            few->square[i] += (formed * formed - few->square[i]) * MIXED;
        }
        if (bound_ms > best_ms) {
            best_ms = bound_ms;
            *box = tried;
            step = fmin(step * 1.1, 1.5);
            idle = 0;
        } else if (++idle >= PATIENCE) {
            step *= 0.66;
            idle = 0;
        }
        square = mix(&mean, &way, MIXED, box, &shape);
    }
    box->bound_ms = fmax(box->bound_ms, best_ms);
    for (uint32_t i = 0; i < box->pipelines; i += shape.alike[i]) {
        double sum_ms = (double)mean.sum_ms[i] / shape.alike[i];

        few->idle[i] = (best_ms - sum_ms) / box->low_ms[i] - (box->most[i] - 1.0);
        for (uint32_t j = i + 1; j < i + shape.alike[i]; j++) { /* they may be cut apart */
            few->idle[j] = few->idle[i];
            box->weight[j] = box->weight[i];
            box->layers_price[j] = box->layers_price[i];
            memcpy(box->place_price[j], box->place_price[i], sizeof(box->place_price[i]));
        }
    }
    choose_cut(few, box);
}

/* Prices that stalled may be far from the best: narrow boxes get a second chance. So do boxes with
 * pipelines that would have time for more micro-batches than they may do. */
static void
price_box(struct cairn_few *few, struct box *box, uint32_t rounds)
{
    struct box again = *box;
    bool narrow = true, idle = false;

    raise_box(few, box, rounds);
    for (uint32_t i = 0; i < box->pipelines; i++)
        narrow = narrow && box->high_ms[i] <= box->low_ms[i] * NARROW;
    if (!narrow || box->bound_ms >= few->plan_ms)
        return;
    begin_prices(few, &again);
    raise_box(few, &again, rounds);
    if (again.bound_ms > box->bound_ms)
        *box = again;
    again = *box;
    for (uint32_t i = 0; i < box->pipelines; i++)
        if (few->idle[i] > IDLE) {
            again.weight[i] = fmaxf(WEIGHT_MIN, box->weight[i] * LIGHTER);
            idle = true;
        }
    if (!idle || box->bound_ms >= few->plan_ms)
        return;
    raise_box(few, &again, rounds);
    if (again.bound_ms > box->bound_ms)
        *box = again;
}

/* ---- all boxes ---- */

static void
push(struct cairn_few *few, const struct box *box)
{
    uint32_t at = few->box_count++;

    for (; at > 0 && few->boxes[(at - 1) / 2].bound_ms > box->bound_ms; at = (at - 1) / 2)
        few->boxes[at] = few->boxes[(at - 1) / 2];
    few->boxes[at] = *box;
}

static struct box
pop(struct cairn_few *few)
{
    struct box top = few->boxes[0], last = few->boxes[--few->box_count];
    uint32_t at = 0;

    for (uint32_t child; (child = 2 * at + 1) < few->box_count; at = child) {
        if (child + 1 < few->box_count &&
            few->boxes[child + 1].bound_ms < few->boxes[child].bound_ms)
            child++;
        if (few->boxes[child].bound_ms >= last.bound_ms)
            break;
        few->boxes[at] = few->boxes[child];
    }
    if (few->box_count > 0)
        few->boxes[at] = last;
    return top;
}

/* Keeps a box that may hold a plan faster than the best. */
static void
consider(struct cairn_few *few, struct box *box, uint32_t rounds)
{
    if (!shrink(few, box))
        return;
    price_box(few, box, rounds);
    if (box->bound_ms < few->plan_ms)
        push(few, box);
}

/* A box that nothing cuts, at other prices; false: they do not help. */
static bool
look_again(struct cairn_few *few, const struct box *box)
{
    struct box again = *box;

    price_box(few, &again, ROUNDS_ROOT);
    if (again.bound_ms <= box->bound_ms * (1 + 1e-4) && again.cut_by == UINT32_MAX)
        return false;
    if (again.bound_ms < few->plan_ms)
        push(few, &again);
    return true;
}

/* By how many micro-batches per time a pipeline's longest stage may be off. */
static double
width(const struct box *box, uint32_t pipeline)
{
    return 1 / box->low_ms[pipeline] - 1 / box->high_ms[pipeline];
}

/* How many micro-batches decide how much memory a pipeline has. */
static uint32_t
depth_width(const struct box *box, uint32_t pipeline)
{
    uint32_t least = box->least[pipeline], most = box->most[pipeline];

    if (most > DEPTH_MAX)
        most = DEPTH_MAX;
    return most > least ? most - least : 0;
}

/* Cuts a box in two; false: nothing cuts it. */
static bool
cut(struct cairn_few *few, const struct box *box)
{
    uint32_t widest = 0, deepest = 0;
    double ratio;

    for (uint32_t i = 1; i < box->pipelines; i++) {
        if (width(box, i) > width(box, widest))
            widest = i;
        if (depth_width(box, i) > depth_width(box, deepest))
            deepest = i;
    }
    ratio = box->high_ms[widest] / box->low_ms[widest];
    if (ratio <= SINGLE && box->cut_by == UINT32_MAX && depth_width(box, deepest) == 0)
        return look_again(few, box);
    for (int side = 0; side < 2; side++) {
        struct box half = *box;

        if (DEPTH_WEIGHT * depth_width(box, deepest) >
            (ratio <= SINGLE ? 0 : few->plan_ms * width(box, widest))) {
            uint32_t at = (uint32_t)sqrt((double)box->least[deepest] * box->most[deepest]);

            if (side == 0)
                half.most[deepest] = at;
            else
                half.least[deepest] = at + 1;
        } else if (ratio <= SINGLE) {
            half.limits[half.limit_count++] = (struct limit){
                (uint16_t)box->cut_by, (uint16_t)(box->cut_at + (side == 1)), side == 1, 0};
        } else {
            double middle_ms = sqrt(box->low_ms[widest] * box->high_ms[widest]);

            if (side == 0)
                half.high_ms[widest] = middle_ms;
            else
                half.low_ms[widest] = middle_ms;
        }
        consider(few, &half, ratio <= WIDE ? ROUNDS_NARROW : ROUNDS);
    }
    return true;
}

/* A box for each number of pipelines. */
static void
begin(struct cairn_few *few, double bound_ms)
{
    few->begun = true;
    for (uint32_t count = 1; count <= PIPELINES_MAX && count <= few->problem->microbatches;
         count++) {
        struct box box = {.bound_ms = bound_ms, .pipelines = count};

        for (uint32_t i = 0; i < count; i++) {
            box.low_ms[i] = few->fastest_ms;
            box.high_ms[i] = few->plan_ms;
            box.least[i] = 1;
            box.most[i] = few->problem->microbatches;
        }
        begin_prices(few, &box);
        consider(few, &box, ROUNDS_ROOT);
    }
}

/* Whether no plan has more pipelines than are looked at: all layers of that many do not fit, with
 * one micro-batch in flight. */
static bool
are_few(struct cairn_few *few)
{
    for (uint32_t k = 0; k < few->kind_count; k++)
        few->gain[k] = few->caps[k * PLACES_MAX];
    return cairn_groupings_best(few->groupings, few->gain, few->more, few->used, few->formed) <
           (PIPELINES_MAX + 1) * (double)few->problem->layers;
}

static int
ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;

    return a < b ? -1 : a > b;
}

/* The times of all stages that there may be. Where these are too many, any time may be one. */
static cairn_err
list_critical(struct cairn_few *few)
{
    const struct cairn_problem *problem = few->problem;
    double vocabulary[4] = {0, problem->head_layers, problem->embed_layers,
                            problem->head_layers + problem->embed_layers};
    uint32_t ways = problem->embed_layers > 0 ? 4 : 2;
    uint64_t count = 0;

    for (uint32_t k = 0; k < few->kind_count; k++)
        count += ways * (uint64_t)few->caps[k * PLACES_MAX];
    if (count > CRITICAL_MAX)
        return CAIRN_OK;
    few->critical = calloc(count + 1, sizeof(*few->critical));
    if (!few->critical)
        return CAIRN_NOMEM;
    for (uint32_t k = 0; k < few->kind_count; k++)
        for (uint32_t way = 0; way < ways; way++)
            for (uint32_t layers = 1; layers <= few->caps[k * PLACES_MAX]; layers++)
                few->critical[few->critical_count++] =
                    (layers + vocabulary[way]) * few->groupings->kinds[k].layer_ms;
    qsort(few->critical, few->critical_count, sizeof(*few->critical), ascending);
    return CAIRN_OK;
}

static cairn_err
init(struct cairn_few *few, const struct cairn_fleet *fleet)
{
    size_t kinds;
    cairn_err err = cairn_groupings_create(fleet, &few->groupings);

    if (err)
        return err;
    few->fleet = fleet;
    few->problem = fleet->problem;
    few->work_layers = cairn_problem_work_layers(fleet->problem);
    few->kind_count = few->groupings->kind_count;
    kinds = (size_t)few->kind_count + 1;
    few->holds = calloc(kinds * PIPELINES_MAX, sizeof(*few->holds));
    few->caps = calloc(kinds * PLACES_MAX, sizeof(*few->caps));
    few->gain = calloc(kinds, sizeof(*few->gain));
    few->best = calloc(kinds, sizeof(*few->best));
    few->used = calloc(kinds, sizeof(*few->used));
    few->boxes = calloc(BOXES_MAX, sizeof(*few->boxes));
    few->which_count = few->groupings->sort_count * few->groupings->size_count;
    few->more = calloc((size_t)few->which_count + 1, sizeof(*few->more));
    few->mean = calloc((size_t)few->which_count + 1, sizeof(*few->mean));
    few->square = calloc((size_t)few->which_count + 1, sizeof(*few->square));
    few->formed = calloc((size_t)few->which_count + 1, sizeof(*few->formed));
    if (!few->more || !few->mean || !few->square || !few->formed || few->which_count > UINT16_MAX)
        return CAIRN_NOMEM;
    if (!few->holds || !few->caps || !few->gain || !few->best || !few->used || !few->boxes)
        return CAIRN_NOMEM;
    few->fastest_ms = INFINITY;
    for (uint32_t k = 0; k < few->kind_count; k++) {
        const struct cairn_group_kind *kind = &few->groupings->kinds[k];

        few->fastest_ms = fmin(few->fastest_ms, kind->layer_ms);
        for (uint32_t d = 0; d < PLACES_MAX; d++)
            few->caps[k * PLACES_MAX + d] =
                cairn_cost_layers_max(few->problem, kind->bytes, place_first[d] + 1u);
    }
    return list_critical(few);
}

cairn_err
cairn_few_create(const struct cairn_fleet *fleet, struct cairn_few **out)
{
    struct cairn_few *few = calloc(1, sizeof(*few));
    cairn_err err = few ? init(few, fleet) : CAIRN_NOMEM;

    if (!err && !are_few(few))
        err = CAIRN_NOT_FOUND;
    if (err)
        cairn_few_destroy(few);
    else
        *out = few;
    return err;
}

void
cairn_few_raise(struct cairn_few *few, double plan_ms, uint32_t cuts_max,
                const struct cairn_stop *stop, double *bound_ms)
{
    double raised_ms;

    if (plan_ms <= *bound_ms * ENOUGH || stop->over(stop->context))
        return;
    few->plan_ms = plan_ms;
    if (!few->begun)
        begin(few, *bound_ms);
    for (uint32_t cuts = 0;
         cuts < cuts_max && few->box_count > 0 && few->box_count + 2 <= BOXES_MAX &&
         few->boxes[0].bound_ms * ENOUGH < plan_ms && !stop->over(stop->context);
         cuts++) {
        struct box box = pop(few);

        if (!cut(few, &box)) {
            push(few, &box);
            break;
        }
    }
    raised_ms = few->box_count > 0 ? fmin(few->boxes[0].bound_ms, plan_ms) : plan_ms;
    *bound_ms = fmax(*bound_ms, raised_ms * (1 - ROUNDING));
}

/* ---- guesses ---- */

/* As many micro-batches as lie in the middle. */
static void
guess_microbatches(const struct cairn_few *few, const struct box *box,
                   struct cairn_few_guess *guess)
{
    uint32_t left = few->problem->microbatches, width = 0;

    for (uint32_t i = 0; i < box->pipelines; i++) {
        left -= box->least[i];
        width += box->most[i] - box->least[i];
    }
    for (uint32_t i = 0; i < box->pipelines; i++) {
        uint32_t own = box->most[i] - box->least[i];
        uint32_t more = width > 0 ? (uint32_t)((uint64_t)left * own / width) : 0;

        guess->microbatches[i] = box->least[i] + more;
        left -= more;
        width -= own;
    }
}

/* A pipeline that counts together with others: the one of those with fewest groups there. */
static uint32_t
guess_pipeline(const struct box *box, const struct pick *own, const struct cairn_few_guess *guess)
{
    uint32_t counts[PIPELINES_MAX] = {0}, best = own->pipeline;
    uint32_t end = best + alike_from(box, best);

    for (uint32_t i = 0; i < guess->group_count; i++)
        counts[guess->groups[i].pipeline]++;
    for (uint32_t i = best + 1; i < end; i++)
        if (counts[i] < counts[best])
            best = i;
    return best;
}

/* The groups of one node. */
static void
guess_node(const struct cairn_few *few, const struct box *box, uint32_t node,
           struct cairn_few_guess *guess)
{
    const struct cairn_fleet *fleet = few->fleet;
    uint32_t sort = few->groupings->sort_of[node];

    for (const struct pick *own = &few->picks[node * few->groupings->room]; own->step < UINT32_MAX;
         own++) {
        struct cairn_group_span span = cairn_groupings_span(few->groupings, sort, own->step);
        uint32_t seen[2] = {0, 0};

        if (own->place == PLACES_MAX)
            continue;
        guess->groups[guess->group_count] =
            (struct cairn_few_group){span.size, guess_pipeline(box, own, guess), own->place};
        for (uint32_t i = fleet->node_first[node]; i < fleet->node_first[node + 1]; i++) {
            uint64_t bytes = fleet->problem->devices[fleet->order[i]].memory_bytes;
            uint32_t less = bytes < fleet->node_memory_bytes[node];

            if (seen[less] >= span.first[less] && seen[less] < span.end[less])
                guess->group_of[i] = guess->group_count;
            seen[less]++;
        }
        guess->group_count++;
    }
}

cairn_err
cairn_few_guess(struct cairn_few *few, uint64_t seed, struct cairn_few_guess *out)
{
    size_t devices = (size_t)few->fleet->device_count + 1;
    struct cairn_few_guess guess = {0};
    struct box box;

    if (few->box_count == 0)
        return CAIRN_NOT_FOUND;
    box = few->boxes[seed % (few->box_count < GUESSED ? few->box_count : GUESSED)];
    guess.pipeline_count = box.pipelines;
    guess.groups = calloc(devices, sizeof(*guess.groups));
    guess.group_of = calloc(devices, sizeof(*guess.group_of));
    few->picks =
        calloc((size_t)few->fleet->node_count * few->groupings->room + 1, sizeof(*few->picks));
    if (!guess.groups || !guess.group_of || !few->picks) {
        cairn_few_guess_fini(&guess);
        free(few->picks);
        few->picks = NULL;
        return CAIRN_NOMEM;
    }
    few->draw = seed;
    guess_microbatches(few, &box, &guess);
    raise_box(few, &box, ROUNDS);
    for (uint32_t i = 0; i < few->fleet->device_count; i++)
        guess.group_of[i] = UINT32_MAX;
    for (uint32_t node = 0; node < few->fleet->node_count; node++)
        guess_node(few, &box, node, &guess);
    free(few->picks);
    few->picks = NULL;
    *out = guess;
    return CAIRN_OK;
}

void
cairn_few_guess_fini(struct cairn_few_guess *guess)
{
    free(guess->groups);
    free(guess->group_of);
    *guess = (struct cairn_few_guess){0};
}

void
cairn_few_destroy(struct cairn_few *few)
{
    if (!few)
        return;
    cairn_groupings_destroy(few->groupings);
    free(few->holds);
    free(few->caps);
    free(few->gain);
    free(few->best);
    free(few->used);
    free(few->boxes);
    free(few->more);
    free(few->mean);
    free(few->square);
    free(few->formed);
    free(few->critical);
    free(few);
}
