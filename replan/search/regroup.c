/* replan/search/regroup.c - simulated annealing over groups and pipelines. */
#include "replan/search/regroup.h"

#include "replan/fleet/cost.h"
#include "replan/search/sets.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEVICES = CAIRN_REGROUP_DEVICES_MAX,
    PIPELINES_MAX = 32,
    STAGES_MAX = 32,    /* of a pipeline whose stages are swapped */
    MOVES_AT_ONCE = 16, /* between two looks at the time */
    WHOLE_NODES = 4,    /* of so many changes of a node's groups, one changes all */
    NONE = UINT16_MAX
};
#define BELOW (1 - 1e-6) /* of a step: what is less */

/* How a round anneals. Where memory is tight, what fits lies apart: some rounds pass through
 * divisions that lack layers. No single way finds good plans for all problems. */
struct round {
    double hot, cold; /* layers: what a move may lose at first, and in the end */
    double ambition;  /* how far the target lies from the best towards the bound */
    bool fitting;     /* layers that do not fit are refused */
};
static const struct round rounds[] = {{0.6, 0.006, 0, true},
                                      {0.3, 0.1, 0, false},
                                      {0.3, 0.1, 0.4, false},
                                      {0.3, 0.1, 0.1, false},
                                      {0.3, 0.1, 0.8, false}};

struct part {
    struct cairn_group group;
    uint16_t node;     /* of the fleet */
    uint16_t pipeline; /* pipeline_count: unused */
    uint16_t rank;     /* among the stages of its pipeline */
    uint8_t size;      /* index; UINT8_MAX: there is no such part */
};

/* A whole division. */
struct state {
    uint16_t part_of[DEVICES]; /* by place in the fleet's order; NONE */
    struct part parts[DEVICES];
    uint32_t microbatches[PIPELINES_MAX];
    double shortage[PIPELINES_MAX]; /* layers, at the target */
};

struct regroup {
    const struct cairn_fleet *fleet;
    const struct cairn_problem *problem;
    struct cairn_divider *divider;
    uint32_t pipeline_count;
    uint64_t seed;
    double step_ms; /* of `best` */
    double bound_ms;
    struct round round;
    double target_ms;
    double lowest; /* shortage at the target */
    struct state now, tried, best;
    bool changed[PIPELINES_MAX + 1];
    struct cairn_unit units[DEVICES]; /* scratch: of one pipeline */
    uint32_t members[DEVICES], ranks[DEVICES];
    struct cairn_group groups[DEVICES];
    uint32_t stages[DEVICES]; /* the parts that they are */
    int32_t held[STAGES_MAX][STAGES_MAX];
    uint32_t stood[STAGES_MAX];
    struct cairn_group all_groups[DEVICES]; /* of all pipelines */
    uint32_t layers[DEVICES];
};

/* splitmix64 */
static uint64_t
next(uint64_t *seed)
{
    uint64_t mixed = *seed += UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

static uint32_t
below(struct regroup *regroup, uint32_t bound)
{
    return (uint32_t)((next(&regroup->seed) >> 32) * bound >> 32);
}

/* Copies what is in use of a state. */
static void
copy(const struct regroup *regroup, struct state *into, const struct state *from)
{
    uint32_t devices = regroup->fleet->device_count, pipelines = regroup->pipeline_count;

    memcpy(into->part_of, from->part_of, devices * sizeof(*from->part_of));
    memcpy(into->parts, from->parts, devices * sizeof(*from->parts));
    memcpy(into->microbatches, from->microbatches, pipelines * sizeof(*from->microbatches));
    memcpy(into->shortage, from->shortage, pipelines * sizeof(*from->shortage));
}

/* ---- how good a state is ---- */

/* Slowest first; of equal speed most memory first. */
static bool
stands_before(const struct cairn_group *left, const struct cairn_group *right)
{
    if (left->layer_ms > right->layer_ms || left->layer_ms < right->layer_ms)
        return left->layer_ms > right->layer_ms;
    return left->bytes > right->bytes;
}

/* The groups of a pipeline in an order of its stages, and the parts that they are. */
static uint32_t
list_groups(struct regroup *regroup, const struct state *state, uint32_t pipeline,
            enum cairn_order order)
{
    const struct cairn_division shell = {.units = regroup->units, .ranks = regroup->ranks};
    struct cairn_pipeline standing = {.members = regroup->members, .order = order};
    uint32_t count = 0;

    for (uint32_t i = 0; i < regroup->fleet->device_count; i++) {
        const struct part *part = &state->parts[i];
        uint32_t at = count;

        if (part->size == UINT8_MAX || part->pipeline != pipeline)
            continue;
        regroup->units[i].group = part->group;
        regroup->ranks[i] = part->rank;
        for (;
             at > 0 && stands_before(&part->group, &regroup->units[regroup->members[at - 1]].group);
             at--)
            regroup->members[at] = regroup->members[at - 1];
        regroup->members[at] = i;
        count++;
    }
    standing.member_count = count;
    cairn_division_stages(&shell, &standing, regroup->groups, regroup->stages);
    return count;
}

/* By how many layers the groups of a pipeline miss the target; a time beyond it counts as the
 * layers that take so long. */
static double
measure(struct regroup *regroup, uint32_t count, uint32_t microbatches, double *limit_ms)
{
    const struct cairn_group *groups = regroup->groups;
    double layers = regroup->problem->layers, own_ms, shortage = INFINITY;

    if (!regroup->round.fitting)
        shortage = cairn_divide_shortage(regroup->divider, groups, count, microbatches,
                                         regroup->target_ms, limit_ms);
    if (shortage <= 0 || microbatches == 0)
        return shortage;
    own_ms = cairn_divide_layers(regroup->divider, groups, count, microbatches, NULL);
    return fmin(shortage, fmax(0, own_ms / regroup->target_ms - 1) * layers);
}

/* The layers that a group holds as a stage if no stage takes longer than a limit; -1: none. */
static int32_t
holds(const struct regroup *regroup, const struct cairn_group *group, uint32_t stage,
      uint32_t stage_count, uint32_t microbatches, double limit_ms)
{
    const struct cairn_problem *problem = regroup->problem;
    uint32_t fits = cairn_cost_layers_max(problem, group->bytes,
                                          cairn_cost_in_flight(stage, stage_count, microbatches));
    double most = floor(limit_ms / group->layer_ms -
                        cairn_cost_vocabulary_layers(problem, stage, stage_count) + 1e-9);

    return most < 1 || fits == 0 ? -1 : most < fits ? (int32_t)most : (int32_t)fits;
}

/* Lets two stages change places while more layers fit then; false: none did. */
static bool
swap_stages(struct regroup *regroup, uint32_t count, uint32_t microbatches, double limit_ms)
{
    int32_t(*held)[STAGES_MAX] = regroup->held;
    bool swapped = false, again = true;

    if (count > STAGES_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++) /* of the group that stood at i, at j */
        for (uint32_t j = 0; j < count; j++)
            held[i][j] = holds(regroup, &regroup->groups[i], j, count, microbatches, limit_ms);
    for (uint32_t i = 0; i < count; i++)
        regroup->stood[i] = i;
    while (again) {
        again = false;
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = i + 1; j < count; j++) {
                uint32_t a = regroup->stood[i], b = regroup->stood[j], stage = regroup->stages[i];
                struct cairn_group group = regroup->groups[i];

                if (held[a][j] + held[b][i] <= held[a][i] + held[b][j])
                    continue;
                regroup->stood[i] = b;
                regroup->stood[j] = a;
                regroup->groups[i] = regroup->groups[j];
                regroup->groups[j] = group;
                regroup->stages[i] = regroup->stages[j];
                regroup->stages[j] = stage;
                swapped = again = true;
            }
    }
    return swapped;
}

/* Keeps the order of stages if it is better than the best so far. */
static void
take_order(struct regroup *regroup, struct state *state, uint32_t pipeline, uint32_t count,
           double shortage)
{
    if (!(shortage < state->shortage[pipeline]))
        return;
    state->shortage[pipeline] = shortage;
    for (uint32_t i = 0; i < count; i++)
        state->parts[regroup->stages[i]].rank = (uint16_t)i;
}

/* Judges a pipeline in its order, in another one, and with stages swapped. */
static void
judge(struct regroup *regroup, struct state *state, uint32_t pipeline)
{
    enum cairn_order orders[] = {CAIRN_ORDER_GIVEN,
                                 (enum cairn_order)below(regroup, CAIRN_ORDER_GIVEN)};
    uint32_t microbatches = state->microbatches[pipeline];

    state->shortage[pipeline] = INFINITY;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t count = list_groups(regroup, state, pipeline, orders[i]);
        double limit_ms = 0, shortage = measure(regroup, count, microbatches, &limit_ms);

        take_order(regroup, state, pipeline, count, shortage);
        if (shortage > 0 && limit_ms > 0 && swap_stages(regroup, count, microbatches, limit_ms)) {
            shortage = measure(regroup, count, microbatches, &limit_ms);
            take_order(regroup, state, pipeline, count, shortage);
        }
    }
}

static double
shortage_of(const struct regroup *regroup, const struct state *state)
{
    double shortage = 0;

    for (uint32_t i = 0; i < regroup->pipeline_count; i++)
        shortage += state->shortage[i];
    return shortage;
}

/* The time of a state, divided exactly; its micro-batches are then divided so where it is less than
 * a limit. */
static double
divide(struct regroup *regroup, struct state *state, double limit_ms)
{
    uint32_t stage_counts[PIPELINES_MAX], microbatches[PIPELINES_MAX], stages = 0;
    double step_ms;

    for (uint32_t i = 0; i < regroup->pipeline_count; i++) {
        stage_counts[i] = list_groups(regroup, state, i, CAIRN_ORDER_GIVEN);
        memcpy(regroup->all_groups + stages, regroup->groups,
               stage_counts[i] * sizeof(*regroup->groups));
        stages += stage_counts[i];
    }
    step_ms = cairn_divide(regroup->divider, regroup->all_groups, stage_counts,
                           regroup->pipeline_count, microbatches, regroup->layers);
    if (step_ms < limit_ms)
        memcpy(state->microbatches, microbatches, regroup->pipeline_count * sizeof(*microbatches));
    return step_ms;
}

/* Aims below the best. */
static void
aim(struct regroup *regroup, struct state *state)
{
    double room_ms = fmax(0, regroup->step_ms - regroup->bound_ms);

    regroup->target_ms = (regroup->step_ms - regroup->round.ambition * room_ms) * BELOW;
    regroup->lowest = INFINITY;
    for (uint32_t i = 0; i < regroup->pipeline_count; i++)
        judge(regroup, state, i);
}

/* ---- moves ---- */

static void
count_part(struct regroup *regroup, struct state *state, uint32_t part)
{
    const struct cairn_fleet *fleet = regroup->fleet;
    const struct cairn_problem *problem = regroup->problem;
    struct part *own = &state->parts[part];
    const struct cairn_group_size *size = &problem->sizes[own->size];
    uint64_t memory_bytes = UINT64_MAX;
    double rate = 0;

    for (uint32_t i = fleet->node_first[own->node]; i < fleet->node_first[own->node + 1]; i++) {
        const struct cairn_device *device = &problem->devices[fleet->order[i]];

        if (state->part_of[i] != part)
            continue;
        rate = device->rate > rate ? device->rate : rate;
        memory_bytes = device->memory_bytes < memory_bytes ? device->memory_bytes : memory_bytes;
    }
    own->group.layer_ms = problem->layer_ms * size->cost * rate;
    own->group.bytes = cairn_cost_group_bytes(problem, size->size, memory_bytes);
    regroup->changed[own->pipeline] = true;
}

/* Two devices of a node change groups, or one goes in for another. */
static bool
swap_devices(struct regroup *regroup, struct state *state, uint32_t node)
{
    uint32_t first = regroup->fleet->node_first[node];
    uint32_t count = regroup->fleet->node_first[node + 1] - first;
    uint32_t a = first + below(regroup, count), b = first + below(regroup, count);
    uint16_t part_a = state->part_of[a], part_b = state->part_of[b];

    if (part_a == part_b)
        return false;
    state->part_of[a] = part_b;
    state->part_of[b] = part_a;
    if (part_a != NONE)
        count_part(regroup, state, part_a);
    if (part_b != NONE)
        count_part(regroup, state, part_b);
    return true;
}

static uint32_t
free_part(const struct state *state)
{
    uint32_t part = 0;

    while (state->parts[part].size != UINT8_MAX)
        part++;
    return part;
}

/* Devices in the order in which they are grouped: of rate, as in the fleet, or of memory first. */
static void
order_loose(struct regroup *regroup, uint32_t *loose, uint32_t count)
{
    const struct cairn_device *devices = regroup->problem->devices;
    const uint32_t *order = regroup->fleet->order;

    for (uint32_t i = 1; i < count; i++) {
        uint32_t own = loose[i], at = i;

        for (; at > 0 &&
               devices[order[loose[at - 1]]].memory_bytes < devices[order[own]].memory_bytes;
             at--)
            loose[at] = loose[at - 1];
        loose[at] = own;
    }
}

/* One or two groups of a node, or all, and the devices in none, are grouped again. */
static bool
reshape(struct regroup *regroup, struct state *state, uint32_t node)
{
    const struct cairn_problem *problem = regroup->problem;
    uint32_t first = regroup->fleet->node_first[node], end = regroup->fleet->node_first[node + 1];
    uint32_t loose[DEVICES] = {0}, count = 0, at = 0;
    uint16_t opened[2], pipelines[2];
    uint32_t opened_count = 1 + below(regroup, 2);
    bool all = below(regroup, WHOLE_NODES) == 0;

    for (uint32_t i = 0; i < opened_count; i++) {
        opened[i] = state->part_of[first + below(regroup, end - first)];
        pipelines[i] = opened[i] == NONE ? (uint16_t)below(regroup, regroup->pipeline_count)
                                         : state->parts[opened[i]].pipeline;
    }
    for (uint32_t i = first; i < end; i++) {
        uint16_t part = state->part_of[i];
        bool open = all || part == NONE;

        for (uint32_t j = 0; j < opened_count; j++)
            open = open || part == opened[j];
        if (!open)
            continue;
        loose[count++] = i;
        state->part_of[i] = NONE;
        if (part != NONE) {
            state->parts[part].size = UINT8_MAX;
            regroup->changed[state->parts[part].pipeline] = true;
        }
    }
    if (below(regroup, 2))
        order_loose(regroup, loose, count);
    while (at < count) {
        uint32_t size = below(regroup, problem->size_count), part;

        if (problem->sizes[size].size > count - at || below(regroup, 16) == 0) {
            at += problem->sizes[0].size > count - at || below(regroup, 8) == 0;
            continue;
        }
        part = free_part(state);
        state->parts[part] = (struct part){.node = (uint16_t)node,
                                           .pipeline = pipelines[below(regroup, opened_count)],
                                           .size = (uint8_t)size};
        for (uint32_t i = 0; i < problem->sizes[size].size; i++)
            state->part_of[loose[at++]] = (uint16_t)part;
        count_part(regroup, state, part);
    }
    return true;
}

static uint16_t
any_part(struct regroup *regroup, const struct state *state)
{
    return state->part_of[below(regroup, regroup->fleet->device_count)];
}

static bool
move_part(struct regroup *regroup, struct state *state)
{
    uint16_t part = any_part(regroup, state), to;

    if (part == NONE)
        return false;
    to = (uint16_t)below(regroup, regroup->pipeline_count + 1);
    if (to == state->parts[part].pipeline)
        return false;
    regroup->changed[to] = regroup->changed[state->parts[part].pipeline] = true;
    state->parts[part].pipeline = to;
    return true;
}

static bool
swap_parts(struct regroup *regroup, struct state *state)
{
    uint16_t a = any_part(regroup, state), b = any_part(regroup, state), pipeline;

    if (a == NONE || b == NONE || state->parts[a].pipeline == state->parts[b].pipeline)
        return false;
    pipeline = state->parts[a].pipeline;
    state->parts[a].pipeline = state->parts[b].pipeline;
    state->parts[b].pipeline = pipeline;
    regroup->changed[pipeline] = regroup->changed[state->parts[a].pipeline] = true;
    return true;
}

/* One pipeline does micro-batches of another one. */
static bool
move_microbatches(struct regroup *regroup, struct state *state)
{
    uint32_t from = below(regroup, regroup->pipeline_count);
    uint32_t to = below(regroup, regroup->pipeline_count), count = 1 + below(regroup, 2);

    if (from == to || state->microbatches[from] <= count)
        return false;
    state->microbatches[from] -= count;
    state->microbatches[to] += count;
    regroup->changed[from] = regroup->changed[to] = true;
    return true;
}

/* Makes a move in `tried`; false: it is none. */
static bool
move(struct regroup *regroup)
{
    struct state *state = &regroup->tried;
    uint32_t node = below(regroup, regroup->fleet->node_count);
    uint32_t lot = below(regroup, regroup->pipeline_count == 1 ? 9 : 12);
    bool moved;

    copy(regroup, state, &regroup->now);
    memset(regroup->changed, 0, sizeof(regroup->changed));
    if (lot < 3)
        moved = swap_devices(regroup, state, node);
    else if (lot < 7)
        moved = reshape(regroup, state, node);
    else if (lot >= 10)
        moved = move_microbatches(regroup, state);
    else
        moved = lot == 7 || regroup->pipeline_count == 1 ? move_part(regroup, state)
                                                         : swap_parts(regroup, state);
    for (uint32_t i = 0; moved && i < regroup->pipeline_count; i++)
        if (regroup->changed[i])
            judge(regroup, state, i);
    return moved;
}

/* ---- from and to divisions ---- */

/* The state of a division. */
static void
begin(struct regroup *regroup, const struct cairn_division *division)
{
    const struct cairn_fleet *fleet = regroup->fleet;
    struct state *state = &regroup->now;
    uint32_t *place = regroup->members; /* in the fleet's order, by device */
    uint32_t part = 0, pipeline = 0;

    for (uint32_t i = 0; i < DEVICES; i++) {
        state->part_of[i] = NONE;
        state->parts[i].size = UINT8_MAX;
    }
    for (uint32_t i = 0; i <= division->pipeline_count; i++) {
        const struct cairn_pipeline *own = &division->pipelines[i];

        if (i < division->pipeline_count && own->microbatches < 1)
            continue;
        cairn_division_stages(division, own, regroup->groups, regroup->stages);
        for (uint32_t j = 0; j < own->member_count; j++, part++) {
            const struct cairn_unit *unit = &division->units[regroup->stages[j]];
            struct part *into = &state->parts[part];

            *into = (struct part){.pipeline = (uint16_t)pipeline, .rank = (uint16_t)j};
            while (regroup->problem->sizes[into->size].size != unit->size)
                into->size++;
            for (uint32_t k = 0; k < fleet->device_count; k++)
                for (uint32_t d = 0; d < unit->size; d++)
                    if (fleet->order[k] == unit->devices[d]) {
                        state->part_of[k] = (uint16_t)part;
                        *place = k;
                    }
            while (fleet->node_first[into->node + 1] <= *place)
                into->node++;
            count_part(regroup, state, part);
        }
        state->microbatches[pipeline++] = (uint32_t)own->microbatches;
    }
    (void)divide(regroup, state, INFINITY);
}

/* The state of a guess. */
static void
begin_at(struct regroup *regroup, const struct cairn_few_guess *guess)
{
    const struct cairn_fleet *fleet = regroup->fleet;
    struct state *state = &regroup->now;

    for (uint32_t i = 0; i < DEVICES; i++) {
        state->part_of[i] = NONE;
        state->parts[i].size = UINT8_MAX;
    }
    for (uint32_t node = 0; node < fleet->node_count; node++)
        for (uint32_t i = fleet->node_first[node]; i < fleet->node_first[node + 1]; i++) {
            uint32_t group = guess->group_of[i];

            if (group == UINT32_MAX)
                continue;
            state->part_of[i] = (uint16_t)group;
            state->parts[group] =
                (struct part){.node = (uint16_t)node,
                              .pipeline = (uint16_t)guess->groups[group].pipeline,
                              .rank = (uint16_t)(DEVICES - guess->groups[group].place),
                              .size = (uint8_t)guess->groups[group].size};
        }
    for (uint32_t i = 0; i < guess->group_count; i++)
        count_part(regroup, state, i);
    memcpy(state->microbatches, guess->microbatches,
           guess->pipeline_count * sizeof(*guess->microbatches));
}

/* The fastest first, with numbers for kinds. */
static void
sort_units(struct cairn_regrouped *made)
{
    for (uint32_t i = 1; i < made->unit_count; i++) {
        struct cairn_unit unit = made->units[i];
        uint32_t pipeline = made->pipeline_of[i], rank = made->ranks[i], at = i;

        for (; at > 0 && cairn_unit_by_speed_and_memory(&made->units[at - 1], &unit) > 0; at--) {
            made->units[at] = made->units[at - 1];
            made->pipeline_of[at] = made->pipeline_of[at - 1];
            made->ranks[at] = made->ranks[at - 1];
        }
        made->units[at] = unit;
        made->pipeline_of[at] = pipeline;
        made->ranks[at] = rank;
    }
    for (uint32_t i = 1; i < made->unit_count; i++) {
        const struct cairn_group *last = &made->units[i - 1].group, *own = &made->units[i].group;

        made->units[i].kind =
            made->units[i - 1].kind + (own->bytes != last->bytes || own->layer_ms > last->layer_ms);
    }
}

static cairn_err
end(const struct regroup *regroup, struct cairn_regrouped *out)
{
    const struct cairn_fleet *fleet = regroup->fleet;
    const struct state *state = &regroup->best;
    struct cairn_regrouped made = {.pipeline_count = regroup->pipeline_count};
    uint32_t device = 0;

    made.units = calloc((size_t)fleet->device_count + 1, sizeof(*made.units));
    made.pipeline_of = calloc((size_t)fleet->device_count + 1, sizeof(*made.pipeline_of));
    made.ranks = calloc((size_t)fleet->device_count + 1, sizeof(*made.ranks));
    made.devices = calloc((size_t)fleet->device_count + 1, sizeof(*made.devices));
    if (!made.units || !made.pipeline_of || !made.ranks || !made.devices) {
        cairn_regrouped_fini(&made);
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < fleet->device_count; i++) {
        const struct part *part = &state->parts[i];
        struct cairn_unit *unit = &made.units[made.unit_count];

        if (part->size == UINT8_MAX)
            continue;
        *unit = (struct cairn_unit){.group = part->group,
                                    .devices = made.devices + device,
                                    .size = regroup->problem->sizes[part->size].size};
        for (uint32_t k = fleet->node_first[part->node]; k < fleet->node_first[part->node + 1]; k++)
            if (state->part_of[k] == i)
                made.devices[device++] = fleet->order[k];
        made.ranks[made.unit_count] = part->rank;
        made.pipeline_of[made.unit_count++] = part->pipeline;
    }
    sort_units(&made);
    *out = made;
    return CAIRN_OK;
}

void
cairn_regrouped_fini(struct cairn_regrouped *regrouped)
{
    free(regrouped->units);
    free(regrouped->pipeline_of);
    free(regrouped->ranks);
    free(regrouped->devices);
    *regrouped = (struct cairn_regrouped){0};
}

/* Anneals: a state is the better, the fewer layers it lacks for the target. */
static void
search(struct regroup *regroup, uint32_t moves, const struct cairn_stop *stop)
{
    double heat = regroup->round.hot, cooling = pow(regroup->round.cold / heat, 1.0 / moves);

    for (uint32_t i = 0; i < moves; i++, heat *= cooling) {
        double luck = (double)(next(&regroup->seed) >> 11) * 0x1p-53, shortage, step_ms;

        if (i % MOVES_AT_ONCE == 0 && stop->over(stop->context))
            break;
        if (!move(regroup))
            continue;
        shortage = shortage_of(regroup, &regroup->tried);
        if (shortage > shortage_of(regroup, &regroup->now) - heat * log(1 - luck))
            continue;
        copy(regroup, &regroup->now, &regroup->tried);
        if (shortage > 0 && shortage >= regroup->lowest)
            continue;
        regroup->lowest = shortage;
        step_ms = divide(regroup, &regroup->now, regroup->step_ms);
        if (step_ms < regroup->step_ms) {
            regroup->step_ms = step_ms;
            copy(regroup, &regroup->best, &regroup->now);
            aim(regroup, &regroup->now);
        }
    }
}

cairn_err
cairn_regroup(const struct cairn_fleet *fleet, const struct cairn_division *division,
              const struct cairn_few_guess *guess, uint32_t moves, double bound_ms, uint64_t seed,
              const struct cairn_stop *stop, double *step_ms, struct cairn_regrouped *out)
{
    struct regroup *regroup;
    uint32_t pipeline_count = 0;
    cairn_err err;

    for (uint32_t i = 0; !guess && i < division->pipeline_count; i++)
        pipeline_count += division->pipelines[i].microbatches >= 1;
    if (guess)
        pipeline_count = guess->pipeline_count;
    if (fleet->device_count > DEVICES || pipeline_count == 0 || pipeline_count > PIPELINES_MAX)
        return CAIRN_NOT_FOUND;
    regroup = calloc(1, sizeof(*regroup));
    if (!regroup)
        return CAIRN_NOMEM;
    regroup->fleet = fleet;
    regroup->problem = fleet->problem;
    regroup->divider = division->divider;
    regroup->pipeline_count = pipeline_count;
    regroup->seed = seed;
    regroup->step_ms = *step_ms;
    regroup->bound_ms = bound_ms;
    regroup->round = rounds[seed % (sizeof(rounds) / sizeof(*rounds))];
    if (guess)
        begin_at(regroup, guess);
    else
        begin(regroup, division);
    regroup->best = regroup->now;
    aim(regroup, &regroup->now);
    search(regroup, moves, stop);
    *step_ms = regroup->step_ms;
    err = end(regroup, out);
    free(regroup);
    return err;
}
