/* replan/search/pipelines.c - groups divided over pipelines, judged at a target time. */
#include "replan/search/pipelines.h"

#include "replan/search/deal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_MORE = 6 }; /* units that a pipeline may gain beyond twice what it was dealt */

/* Slowest first; units of equal speed by memory, most first. */
static bool
stands_before(const struct cairn_unit *left, const struct cairn_unit *right)
{
    if (left->group.layer_ms > right->group.layer_ms ||
        left->group.layer_ms < right->group.layer_ms)
        return left->group.layer_ms > right->group.layer_ms;
    return left->group.bytes > right->group.bytes;
}

static void
insert(const struct cairn_division *division, struct cairn_pipeline *pipeline, uint32_t unit)
{
    uint32_t at = pipeline->member_count++;

    for (; at > 0 &&
           stands_before(&division->units[unit], &division->units[pipeline->members[at - 1]]);
         at--)
        pipeline->members[at] = pipeline->members[at - 1];
    pipeline->members[at] = unit;
}

/* Whether a group goes before one that stands already, and is not faster. */
static bool
goes_before(enum cairn_order order, const struct cairn_group *group,
            const struct cairn_group *standing)
{
    if (order == CAIRN_ORDER_SPEED)
        return false;
    if (order == CAIRN_ORDER_SPEED_MEMORY_LAST)
        return group->layer_ms >= standing->layer_ms && group->bytes < standing->bytes;
    if (order == CAIRN_ORDER_ROOM_FIRST)
        return (double)group->bytes * group->layer_ms >
               (double)standing->bytes * standing->layer_ms;
    return order == CAIRN_ORDER_MEMORY_FIRST ? group->bytes > standing->bytes
                                             : group->bytes < standing->bytes;
}

/* The stage of a member if ranks tell. */
static uint32_t
given_stage(const struct cairn_division *division, const struct cairn_pipeline *pipeline,
            uint32_t member)
{
    const uint32_t *ranks = division->ranks, rank = ranks[pipeline->members[member]];
    uint32_t stage = 0;

    for (uint32_t i = 0; i < pipeline->member_count; i++) {
        uint32_t other = ranks[pipeline->members[i]];

        stage += other < rank || (other == rank && i < member);
    }
    return stage;
}

void
cairn_division_stages(const struct cairn_division *division, const struct cairn_pipeline *pipeline,
                      struct cairn_group *groups, uint32_t *units)
{
    for (uint32_t i = 0; i < pipeline->member_count; i++) {
        const struct cairn_unit *unit = &division->units[pipeline->members[i]];
        bool given = pipeline->order == CAIRN_ORDER_GIVEN;
        uint32_t at = given ? given_stage(division, pipeline, i) : i;

        for (; !given && at > 0 && goes_before(pipeline->order, &unit->group, &groups[at - 1]);
             at--) {
            groups[at] = groups[at - 1];
            if (units)
                units[at] = units[at - 1];
        }
        groups[at] = unit->group;
        if (units)
            units[at] = pipeline->members[i];
    }
}

/* Micro-batches within a time. The lines have the memory of as many micro-batches as stages; a
 * pipeline that does fewer may fit more layers, and is asked exactly. */
static double
microbatches_within(struct cairn_division *division, const struct cairn_pipeline *pipeline,
                    double step_ms)
{
    double most = division->problem->microbatches, count;
    uint32_t stages = pipeline->member_count, low, high;
    struct cairn_group *groups;

    count = cairn_lines_microbatches(&pipeline->lines, step_ms, most);
    if (count >= stages || stages < 2)
        return count;
    groups = malloc(stages * sizeof(*groups));
    if (!groups)
        return count;
    cairn_division_stages(division, pipeline, groups, NULL);
    low = (uint32_t)count;
    high =
        stages - 1 < division->problem->microbatches ? stages - 1 : division->problem->microbatches;
    while (low < high) { /* low can be done, high + 1 not */
        uint32_t middle = high - (high - low) / 2;

        if (cairn_divide_layers(division->divider, groups, stages, middle, NULL) <= step_ms)
            low = middle;
        else
            high = middle - 1;
    }
    free(groups);
    return count > low ? count : low;
}

static uint64_t
name_of(const struct cairn_division *division, const struct cairn_pipeline *pipeline)
{
    uint64_t name = UINT64_C(14695981039346656037);

    for (uint32_t i = 0; i < pipeline->member_count; i++)
        name = (name ^ division->units[pipeline->members[i]].kind) * UINT64_C(1099511628211);
    return name ^ name >> 32;
}

static bool
are_alike(const struct cairn_division *division, const struct cairn_pipeline *left,
          const struct cairn_pipeline *right)
{
    if (left->name != right->name || left->member_count != right->member_count)
        return false;
    for (uint32_t i = 0; i < left->member_count; i++)
        if (division->units[left->members[i]].kind != division->units[right->members[i]].kind)
            return false;
    return true;
}

/* For each pipeline the first one with the same kinds of groups; most are alike in a large cluster,
 * and what is found for one holds for all. NULL: out of memory. */
static uint32_t *
find_alike(const struct cairn_division *division)
{
    uint32_t count = division->pipeline_count, *alike, *table; /* of pipelines + 1; 0: free */
    uint64_t room = 2;

    while (room < (uint64_t)count * 2)
        room *= 2;
    table = calloc(room, sizeof(*table));
    alike = table ? calloc((size_t)count + 1, sizeof(*alike)) : NULL;
    for (uint32_t i = 0; alike && i < count; i++) {
        uint64_t at = division->pipelines[i].name & (room - 1);

        while (table[at] != 0 &&
               !are_alike(division, &division->pipelines[table[at] - 1], &division->pipelines[i]))
            at = (at + 1) & (room - 1);
        if (table[at] == 0)
            table[at] = i + 1;
        alike[i] = table[at] - 1;
    }
    free(table);
    return alike;
}

/* Finds a pipeline's lines, and what it does within the target. */
static void
judge(struct cairn_division *division, struct cairn_pipeline *pipeline)
{
    uint32_t count = pipeline->member_count;
    struct cairn_group *groups;
    bool equal = true;

    pipeline->name = name_of(division, pipeline);
    pipeline->microbatches = 0;
    pipeline->lines.line_count = 0;
    pipeline->lines.stage_count = count;
    pipeline->order = CAIRN_ORDER_SPEED;
    if (count == 0 || count > division->problem->layers ||
        pipeline == &division->pipelines[division->pipeline_count])
        return;
    groups = malloc(count * sizeof(*groups));
    if (!groups)
        return;
    cairn_division_stages(division, pipeline, groups, NULL);
    for (uint32_t i = 1; i < count; i++)
        equal = equal && groups[i].bytes == groups[0].bytes;
    cairn_divide_lines(division->divider, groups, count, &pipeline->lines);
    pipeline->microbatches = microbatches_within(division, pipeline, division->target_ms);
    for (int order = CAIRN_ORDER_SPEED + 1; order < CAIRN_ORDER_COUNT; order++) {
        struct cairn_pipeline other = *pipeline;

        if (order == CAIRN_ORDER_GIVEN ? !division->ranks : equal)
            continue;
        other.order = (enum cairn_order)order;
        cairn_division_stages(division, &other, groups, NULL);
        cairn_divide_lines(division->divider, groups, count, &other.lines);
        other.microbatches = microbatches_within(division, &other, division->target_ms);
        if (other.microbatches > pipeline->microbatches)
            *pipeline = other;
    }
    free(groups);
}

/* given: NULL, or the pipeline of each unit. */
static cairn_err
deal_units(struct cairn_division *division, uint32_t dealt, enum cairn_deal deal,
           const uint32_t *given)
{
    uint32_t unit_count = division->unit_count, pipeline_count = division->pipeline_count, at = 0;
    uint32_t *pipeline_of = calloc((size_t)unit_count + 1, sizeof(*pipeline_of));
    uint32_t *counts = calloc((size_t)pipeline_count + 1, sizeof(*counts));
    cairn_err err = pipeline_of && counts ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && given)
        memcpy(pipeline_of, given, unit_count * sizeof(*pipeline_of));
    else if (!err)
        err = cairn_deal_units(division->problem, division->units, unit_count, dealt,
                               pipeline_count, deal, pipeline_of);
    for (uint32_t unit = 0; !err && unit < unit_count; unit++)
        counts[pipeline_of[unit]]++;
    for (uint32_t i = 0; !err && i <= pipeline_count; i++) {
        struct cairn_pipeline *pipeline = &division->pipelines[i];

        pipeline->members = division->members + at;
        pipeline->room = i == pipeline_count ? unit_count : 2 * counts[i] + ROOM_MORE;
        at += pipeline->room;
    }
    for (uint32_t unit = 0; !err && unit < unit_count; unit++)
        insert(division, &division->pipelines[pipeline_of[unit]], unit);
    free(pipeline_of);
    free(counts);
    return err;
}

static cairn_err
create(const struct cairn_problem *problem, struct cairn_divider *divider,
       const struct cairn_unit *units, uint32_t unit_count, uint32_t dealt, uint32_t pipeline_count,
       enum cairn_deal deal, const uint32_t *given, const uint32_t *ranks, double target_ms,
       struct cairn_division **out)
{
    struct cairn_division *division = calloc(1, sizeof(*division));
    size_t room = (size_t)3 * unit_count + (size_t)ROOM_MORE * pipeline_count;
    cairn_err err = CAIRN_NOMEM;

    if (!division)
        return err;
    *division = (struct cairn_division){.problem = problem,
                                        .divider = divider,
                                        .units = units,
                                        .unit_count = unit_count,
                                        .pipeline_count = pipeline_count,
                                        .ranks = ranks,
                                        .target_ms = target_ms};
    division->pipelines = calloc((size_t)pipeline_count + 1, sizeof(*division->pipelines));
    division->members = calloc(room, sizeof(*division->members));
    if (division->pipelines && division->members)
        err = deal_units(division, dealt, deal, given);
    if (err) {
        cairn_division_destroy(division);
        return err;
    }
    cairn_division_set_target(division, target_ms);
    *out = division;
    return CAIRN_OK;
}

cairn_err
cairn_division_create(const struct cairn_problem *problem, struct cairn_divider *divider,
                      const struct cairn_unit *units, uint32_t unit_count, uint32_t dealt,
                      uint32_t pipeline_count, enum cairn_deal deal, double target_ms,
                      struct cairn_division **out)
{
    return create(problem, divider, units, unit_count, dealt, pipeline_count, deal, NULL, NULL,
                  target_ms, out);
}

cairn_err
cairn_division_create_given(const struct cairn_problem *problem, struct cairn_divider *divider,
                            const struct cairn_unit *units, uint32_t unit_count,
                            const uint32_t *pipeline_of, const uint32_t *ranks,
                            uint32_t pipeline_count, double target_ms, struct cairn_division **out)
{
    return create(problem, divider, units, unit_count, unit_count, pipeline_count, CAIRN_DEAL_SPEED,
                  pipeline_of, ranks, target_ms, out);
}

void
cairn_division_destroy(struct cairn_division *division)
{
    if (!division)
        return;
    free(division->pipelines);
    free(division->members);
    free(division);
}

void
cairn_division_set_target(struct cairn_division *division, double target_ms)
{
    uint32_t *alike;

    division->target_ms = target_ms;
    for (uint32_t i = 0; i < division->pipeline_count; i++)
        division->pipelines[i].name = name_of(division, &division->pipelines[i]);
    alike = find_alike(division);
    for (uint32_t i = 0; i <= division->pipeline_count; i++) {
        struct cairn_pipeline *own = &division->pipelines[i];

        if (alike && i < division->pipeline_count && alike[i] != i) {
            const struct cairn_pipeline *same = &division->pipelines[alike[i]];

            own->order = same->order;
            own->lines = same->lines;
            own->microbatches = same->microbatches;
        } else {
            judge(division, own);
        }
    }
    free(alike);
}

/* The whole micro-batches that all pipelines do within a time. alike: as above, or NULL;
 * counts[pipeline_count]: scratch. */
static uint64_t
count_within(struct cairn_division *division, double step_ms, const uint32_t *alike,
             uint64_t *counts)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < division->pipeline_count; i++) {
        uint64_t own =
            alike && counts && alike[i] != i
                ? counts[alike[i]]
                : (uint64_t)microbatches_within(division, &division->pipelines[i], step_ms);

        if (counts)
            counts[i] = own;
        total += own;
    }
    return total;
}

uint64_t
cairn_division_microbatches(struct cairn_division *division, double step_ms)
{
    return count_within(division, step_ms, NULL, NULL);
}

double
cairn_division_step_ms(struct cairn_division *division, double low_ms, double high_ms)
{
    uint32_t *alike = find_alike(division);
    uint64_t *counts = calloc((size_t)division->pipeline_count + 1, sizeof(*counts));

    while (high_ms - low_ms > 1e-7 * high_ms) {
        double middle_ms = low_ms + (high_ms - low_ms) / 2;

        if (count_within(division, middle_ms, alike, counts) >= division->problem->microbatches)
            high_ms = middle_ms;
        else
            low_ms = middle_ms;
    }
    free(alike);
    free(counts);
    return high_ms;
}

/* ---- moves ---- */

enum { LOOKED_AT_MAX = 24, NONE = UINT32_MAX };

/* Pipelines that differ in kind, two of each, beginning at another one each time; the unused come
 * last. */
static uint32_t
look_at(const struct cairn_division *division, uint32_t begin, uint32_t *looked)
{
    uint64_t names[LOOKED_AT_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < division->pipeline_count && count < LOOKED_AT_MAX - 1; i++) {
        uint32_t at = (begin + i) % division->pipeline_count, same = 0;
        const struct cairn_pipeline *pipeline = &division->pipelines[at];

        for (uint32_t j = 0; j < count; j++)
            same += names[j] == pipeline->name;
        if (same < 2) {
            names[count] = pipeline->name;
            looked[count++] = at;
        }
    }
    looked[count++] = division->pipeline_count;
    return count;
}

/* Whether what two pipelines do is better than what they did: more whole micro-batches, or
 * fractions nearer to a whole one. */
static bool
is_better(const struct cairn_pipeline *was[2], const struct cairn_pipeline *now)
{
    double whole = 0, parts = 0;

    for (int side = 0; side < 2; side++) {
        double before = was[side]->microbatches, after = now[side].microbatches;

        whole += floor(after) - floor(before);
        parts += (after - floor(after)) * (after - floor(after)) -
                 (before - floor(before)) * (before - floor(before));
    }
    return whole > 0 || (whole >= 0 && parts > 1e-6);
}

static void
copy_without(const struct cairn_pipeline *pipeline, uint32_t without, struct cairn_pipeline *out)
{
    out->member_count = 0;
    for (uint32_t i = 0; i < pipeline->member_count; i++)
        if (i != without)
            out->members[out->member_count++] = pipeline->members[i];
}

struct move {
    uint32_t pipelines[2];
    uint32_t members[2]; /* places that change sides; NONE: none from there */
};

/* Tries a move in `scratch[2]`, and makes it where it is better. */
static bool
try_move(struct cairn_division *division, const struct move *move, struct cairn_pipeline *scratch)
{
    struct cairn_pipeline *sides[2] = {&division->pipelines[move->pipelines[0]],
                                       &division->pipelines[move->pipelines[1]]};
    const struct cairn_pipeline *was[2] = {sides[0], sides[1]};

    for (int side = 0; side < 2; side++) {
        uint32_t gained = move->members[!side];

        copy_without(sides[side], move->members[side], &scratch[side]);
        if (gained != NONE)
            insert(division, &scratch[side], sides[!side]->members[gained]);
        if (scratch[side].member_count > sides[side]->room)
            return false;
        if (move->pipelines[side] == division->pipeline_count)
            scratch[side].microbatches = 0;
        else
            judge(division, &scratch[side]);
    }
    if (!is_better(was, scratch))
        return false;
    for (int side = 0; side < 2; side++) {
        struct cairn_pipeline *into = sides[side];
        uint32_t *members = into->members, room = into->room;

        memcpy(members, scratch[side].members, scratch[side].member_count * sizeof(*members));
        *into = scratch[side];
        into->members = members;
        into->room = room;
    }
    return true;
}

/* The next place of another kind; NONE comes after the last. */
static uint32_t
next_member(const struct cairn_division *division, const struct cairn_pipeline *pipeline,
            uint32_t at)
{
    uint32_t kind = division->units[pipeline->members[at]].kind;

    while (++at < pipeline->member_count)
        if (division->units[pipeline->members[at]].kind != kind)
            return at;
    return NONE;
}

/* All moves between two pipelines; true after one that was made. */
static bool
improve_pair(struct cairn_division *division, uint32_t left, uint32_t right,
             struct cairn_pipeline *scratch, uint32_t *tried)
{
    const struct cairn_pipeline *a = &division->pipelines[left], *b = &division->pipelines[right];
    uint32_t at = a->member_count > 0 ? 0 : NONE;

    for (bool last = false; !last;) {
        uint32_t with = b->member_count > 0 ? 0 : NONE;

        last = at == NONE;
        for (bool end = false; !end;) {
            struct move move = {{left, right}, {at, with}};

            end = with == NONE;
            if (at != NONE && with != NONE &&
                division->units[a->members[at]].kind == division->units[b->members[with]].kind) {
                with = next_member(division, b, with);
                continue;
            }
            if (at != NONE || with != NONE) {
                ++*tried;
                if (try_move(division, &move, scratch))
                    return true;
            }
            if (!end)
                with = next_member(division, b, with);
        }
        if (!last)
            at = next_member(division, a, at);
    }
    return false;
}

bool
cairn_division_improve(struct cairn_division *division, uint32_t moves_max,
                       const struct cairn_stop *stop)
{
    struct cairn_pipeline scratch[2] = {{0}, {0}};
    uint32_t *members = calloc(2 * ((size_t)division->unit_count + 1), sizeof(*members));
    uint32_t looked[LOOKED_AT_MAX], tried = 0, begin = 0;
    bool reached = false, moved = members != NULL;

    scratch[0].members = members;
    scratch[1].members = members ? members + division->unit_count + 1 : NULL;
    while (moved && !reached && tried < moves_max) {
        uint32_t count = look_at(division, begin, looked);

        moved = false;
        for (uint32_t i = 0; i < count && !reached && tried < moves_max; i++)
            for (uint32_t j = i + 1; j < count && !reached && tried < moves_max; j++) {
                if (stop->over(stop->context)) {
                    moves_max = 0;
                    break;
                }
                if (improve_pair(division, looked[i], looked[j], scratch, &tried)) {
                    uint64_t total = 0;

                    moved = true;
                    for (uint32_t k = 0; k < division->pipeline_count; k++)
                        total += (uint64_t)division->pipelines[k].microbatches;
                    reached = total >= division->problem->microbatches;
                }
            }
        begin += LOOKED_AT_MAX / 2;
    }
    free(members);
    return reached;
}
