/* replan/search/sets.c - sets of groups that a search begins with. */
#include "replan/search/sets.h"

#include "replan/bound/parts.h"
#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What groups are wanted for. */
enum aim {
    AIM_WHOLE,  /* micro-batches, as pipelines by themselves */
    AIM_STAGES, /* micro-batches, as stages */
    AIM_SPEED,  /* every device that adds to the speed of all; of equal speed the largest groups */
    AIM_MEMORY  /* all the memory there is, and only then speed */
};

struct aimed {
    const struct cairn_unit_sets *sets;
    double step_ms;
    enum aim aim;
};

static double
gain_of(const void *context, uint32_t size_index, double rate, uint64_t memory_bytes)
{
    const struct aimed *aimed = context;
    const struct cairn_problem *problem = aimed->sets->problem;
    const struct cairn_group_size *size = &problem->sizes[size_index];
    uint64_t bytes = cairn_cost_group_bytes(problem, size->size, memory_bytes);
    uint32_t layers = cairn_cost_layers_max(problem, bytes, 1);
    double alone =
        aimed->step_ms / (aimed->sets->work_layers * problem->layer_ms * size->cost * rate);

    if (layers == 0)
        return 0;
    if (aimed->aim == AIM_MEMORY)
        return (double)bytes * (1 + 1e-6 / (1 + rate)); /* of equal memory the fastest */
    if (aimed->aim == AIM_SPEED)
        return (1 + 1e-6 * size->size) / (size->cost * rate);
    if (aimed->aim == AIM_WHOLE) /* fractions only where whole numbers are equal */
        return layers < problem->layers ? 0 : floor(alone) + 1e-3 * alone;
    return alone < 1 ? 0 : alone - 1 + (double)layers / problem->layers;
}

int
cairn_unit_by_speed_and_memory(const void *left, const void *right)
{
    const struct cairn_unit *a = left, *b = right;

    if (a->group.layer_ms < b->group.layer_ms || a->group.layer_ms > b->group.layer_ms)
        return a->group.layer_ms < b->group.layer_ms ? -1 : 1;
    if (a->group.bytes != b->group.bytes)
        return a->group.bytes > b->group.bytes ? -1 : 1;
    return a->devices[0] < b->devices[0] ? -1 : a->devices[0] > b->devices[0];
}

static struct cairn_unit
unit_at(const struct cairn_unit_sets *sets, const struct cairn_group_place *place)
{
    const struct cairn_problem *problem = sets->problem;
    struct cairn_unit unit = {.devices = sets->fleet->order + place->first, .size = place->size};
    uint64_t memory_bytes = UINT64_MAX;
    double rate = 0;

    for (uint32_t i = 0; i < unit.size; i++) {
        const struct cairn_device *device = &problem->devices[unit.devices[i]];

        rate = device->rate > rate ? device->rate : rate;
        memory_bytes = device->memory_bytes < memory_bytes ? device->memory_bytes : memory_bytes;
    }
    unit.group.layer_ms = problem->layer_ms * cairn_cost_of_size(problem, place->size) * rate;
    unit.group.bytes = cairn_cost_group_bytes(problem, place->size, memory_bytes);
    return unit;
}

static bool
same_units(const struct cairn_unit_set *left, const struct cairn_unit_set *right)
{
    if (left->unit_count != right->unit_count)
        return false;
    for (uint32_t i = 0; i < left->unit_count; i++)
        if (left->units[i].size != right->units[i].size ||
            memcmp(left->units[i].devices, right->units[i].devices,
                   left->units[i].size * sizeof(*left->units[i].devices)) != 0)
            return false;
    return true;
}

void
cairn_unit_sets_take(struct cairn_unit_sets *sets, struct cairn_unit_set set)
{
    qsort(set.units, set.unit_count, sizeof(*set.units), cairn_unit_by_speed_and_memory);
    for (uint32_t i = 0; i < set.unit_count; i++) {
        const struct cairn_group *own = &set.units[i].group;

        set.speed += 1 / own->layer_ms;
        set.units[i].kind = i == 0 ? 0 : set.units[i - 1].kind;
        if (i > 0 && (own->bytes != set.units[i - 1].group.bytes ||
                      own->layer_ms > set.units[i - 1].group.layer_ms))
            set.units[i].kind++;
    }
    for (uint32_t i = 0; i < sets->count; i++)
        if (same_units(&set, &sets->sets[i]))
            set.unit_count = 0;
    if (set.unit_count == 0 || sets->count == CAIRN_UNIT_SETS_MAX) {
        free(set.units);
        return;
    }
    sets->sets[sets->count++] = set;
}

/* The groups of some sizes of the highest total gain. */
static cairn_err
add_best(struct cairn_unit_sets *sets, uint32_t sizes, cairn_group_gain *gain, const void *context)
{
    struct cairn_unit_set set = {0};
    uint32_t count = 0;
    double total;
    struct cairn_group_place *places =
        calloc((size_t)sets->fleet->device_count + 1, sizeof(*places));
    cairn_err err = CAIRN_NOMEM;

    set.units = calloc((size_t)sets->fleet->device_count + 1, sizeof(*set.units));
    if (places && set.units)
        err = cairn_group_best(sets->fleet, sizes, gain, context, &total, places, &count);
    if (err) {
        free(set.units);
    } else {
        for (uint32_t i = 0; i < count; i++)
            set.units[set.unit_count++] = unit_at(sets, &places[i]);
        cairn_unit_sets_take(sets, set);
    }
    free(places);
    return err;
}

static cairn_err
add_set(struct cairn_unit_sets *sets, uint32_t sizes, double step_ms, enum aim aim)
{
    struct aimed aimed = {sets, step_ms, aim};

    return add_best(sets, sizes, gain_of, &aimed);
}

/* Groups by their gain at the bound's prices near it. */
static cairn_err
add_priced_sets(struct cairn_unit_sets *sets)
{
    static const double times[] = {1.0, 1.02, 1.05};
    static const struct cairn_parts_way way = {1, 2, 0};
    struct cairn_parts *parts = NULL;
    cairn_err err = cairn_parts_create(sets->fleet, &parts);

    for (uint32_t i = 0; !err && cairn_parts_matter(parts) && i < sizeof(times) / sizeof(*times);
         i++)
        if (cairn_parts_set_prices(parts, sets->bound_ms * times[i] * (1 + 1e-6), &way))
            err = add_best(sets, (1u << sets->problem->size_count) - 1, cairn_parts_price, parts);
    cairn_parts_destroy(parts);
    return err;
}

/* With a set to go on with, the time limit counts. */
static bool
out_of_time(const struct cairn_unit_sets *sets)
{
    return sets->count > 0 && sets->stop->over(sets->stop->context);
}

cairn_err
cairn_unit_sets_find(struct cairn_unit_sets *sets)
{
    static const double times[] = {1.0, 1.03, 1.1, 1.4};
    uint32_t size_count = sets->problem->size_count;
    cairn_err err = CAIRN_OK;

    if (!err)
        err = add_set(sets, (1u << size_count) - 1, sets->bound_ms, AIM_SPEED);
    if (!err && !sets->fleet->by_memory) /* prices rest on the order of rates */
        err = add_priced_sets(sets);
    for (uint32_t t = 0; t < sizeof(times) / sizeof(*times); t++) {
        double step_ms = sets->bound_ms * times[t] * (1 + 1e-6);

        for (uint32_t i = size_count; !err && i-- > 0 && !out_of_time(sets);) {
            uint32_t up_to = (2u << i) - 1;

            err = add_set(sets, up_to, step_ms, AIM_WHOLE);
            if (!err)
                err = add_set(sets, up_to, step_ms, AIM_STAGES);
            if (!err)
                err = add_set(sets, 1u << i, step_ms, AIM_STAGES);
        }
    }
    /* Where memory is short, slow groups may be wanted for theirs. */
    for (uint32_t i = size_count; !err && i-- > 0;)
        err = add_set(sets, 1u << i, sets->bound_ms * 1e9, AIM_STAGES);
    if (!err)
        err = add_set(sets, (1u << size_count) - 1, sets->bound_ms * 1e9, AIM_STAGES);
    for (uint32_t i = size_count; !err && i-- > 0;)
        err = add_set(sets, 1u << i, sets->bound_ms, AIM_MEMORY);
    return err;
}

void
cairn_unit_sets_fini(struct cairn_unit_sets *sets)
{
    for (uint32_t i = 0; i < sets->count; i++)
        free(sets->sets[i].units);
    sets->count = 0;
}
