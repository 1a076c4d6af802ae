/*
 * replan/assign/slots.c - places for the longest sequences, pipeline after pipeline, in few kinds.
 *
 * Dynamic programming over pipelines (docs/PLANNER.md, Sequences). The longest sequences are cut
 * into few kinds of nearly equal cost; each counts with the least of its kind. Pipelines are filled
 * one after the other with numbers of each kind, in all undominated ways. The state is the vector
 * of numbers left, and infeasible states are remembered. Tables over the empty pipelines, with the
 * kinds merged into four sorts, tell how much still fits. If the search fails, no assignment keeps
 * the time. If it succeeds, sequences take the places counted for them, which may take a little
 * longer.
 */
#include "replan/assign/assigner.h"
#include "replan/assign/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KIND_BITS = 6,   /* numbers of a kind are below 64 */
    HOSTS_MAX = 256, /* pipelines that could hold any; with more there is no result */
    LIMITS_MAX = 8,  /* of pipelines' tokens that are looked at */
    FAILED_ROOM = 1 << 14,
    SEARCHES_MAX = 1 << 16
};
#define MARGIN 1e-9

/* Sequences of more tokens than some pipelines take, and what they cost in sum. */
struct limit {
    uint64_t tokens; /* more than so many; 0: all sequences */
    uint32_t count;
    double work_ms;
};

/* A pipeline that is filled. */
struct host {
    double holds_ms;
    uint32_t lost_times; /* stages - 1 */
    uint32_t first;      /* kind that is not too long for it */
    uint32_t index;      /* in the problem */
};

/* Where the search stands for one pipeline. */
struct level {
    uint8_t left[CAIRN_SLOTS_KINDS_MAX]; /* before it is filled */
    uint8_t here[CAIRN_SLOTS_KINDS_MAX];
    double slack_ms; /* of all pipelines, before */
    bool begun, over;
    bool is_short; /* with more slack there could be a way */
};

/* All that a state is, in two words. */
struct name {
    uint64_t low, high;
};

/* From this state there is no way with so much time left over in all pipelines, nor with less;
 * INFINITY: any remainder. */
struct failure {
    struct name name;
    double slack_ms;
};

struct cairn_slots {
    const struct cairn_assign_problem *problem;
    const struct cairn_sequence *sequences;
    struct limit limits[LIMITS_MAX];
    uint32_t limit_count;
    uint32_t count; /* of the longest sequences */
    uint32_t kind_count;
    uint32_t ends[CAIRN_SLOTS_KINDS_MAX];    /* kind i ends before this sequence */
    double cost_ms[CAIRN_SLOTS_KINDS_MAX];   /* the least of each */
    double per_ms[CAIRN_SLOTS_KINDS_MAX];    /* of those, rounded up a little */
    uint32_t sort_of[CAIRN_SLOTS_KINDS_MAX]; /* in the tables */
    struct cairn_cuts cuts;                  /* of the tables */
    uint32_t strides[CAIRN_SORTS_MAX];
    uint32_t host_count;
    struct host hosts[HOSTS_MAX];
    struct level levels[HOSTS_MAX + 1];
    uint64_t searches;                  /* so far: names of one search mean nothing in another */
    struct failure failed[FAILED_ROOM]; /* later entries replace earlier entries */
    bool said[HOSTS_MAX + 1];           /* whether there is a table from this pipeline on */
    struct cairn_table table;
    int8_t room[HOSTS_MAX + 1][CAIRN_TABLE_STATES_MAX]; /* of the pipelines from this one on */
};

/* All sequences, and those too long for some pipelines. */
static void
list_limits(struct cairn_slots *slots)
{
    const struct cairn_assign_problem *problem = slots->problem;

    slots->limit_count = 1;
    for (uint32_t p = 0; p < problem->pipeline_count && slots->limit_count < LIMITS_MAX; p++) {
        bool known = false;

        for (uint32_t i = 0; i < slots->limit_count; i++)
            known |= slots->limits[i].tokens == problem->pipelines[p].max_tokens;
        if (!known)
            slots->limits[slots->limit_count++].tokens = problem->pipelines[p].max_tokens;
    }
    for (uint32_t i = 0; i < slots->limit_count; i++) {
        struct limit *limit = &slots->limits[i];

        while (limit->count < problem->sequence_count &&
               slots->sequences[limit->count].tokens > limit->tokens)
            limit->work_ms += slots->sequences[limit->count++].cost_ms;
    }
}

cairn_err
cairn_slots_create(const struct cairn_assign_problem *problem,
                   const struct cairn_sequence *sequences, struct cairn_slots **out)
{
    struct cairn_slots *slots = calloc(1, sizeof(*slots));

    if (!slots)
        return CAIRN_NOMEM;
    slots->problem = problem;
    slots->sequences = sequences;
    list_limits(slots);
    *out = slots;
    return CAIRN_OK;
}

void
cairn_slots_destroy(struct cairn_slots *slots)
{
    free(slots);
}

/* Marks before which sequences there may be a cut that tells more: where a less costly one follows.
 * `border`: some pipeline takes that one and not the one before. How many of these. */
static uint32_t
mark_ends(const struct cairn_slots *slots, bool *may_end, bool *border)
{
    uint32_t found = 0;

    for (uint32_t i = 1; i <= slots->count; i++) {
        const struct cairn_sequence *before = &slots->sequences[i - 1], *after = before + 1;

        may_end[i] = i == slots->count || after->cost_ms < before->cost_ms;
        for (uint32_t p = 0;
             i < slots->count && may_end[i] && !border[i] && p < slots->problem->pipeline_count;
             p++)
            border[i] = slots->problem->pipelines[p].max_tokens < before->tokens &&
                        slots->problem->pipelines[p].max_tokens >= after->tokens;
        found += border[i];
    }
    return found;
}

/* Cuts the sequences into at most `parts`, at all borders and where `may_end` says, so that least
 * cost is lost by counting each with the least of its part. ends[parts]; how many. */
static uint32_t
cut_least(const struct cairn_slots *slots, const bool *may_end, const bool *border, uint32_t parts,
          uint32_t *ends)
{
    double lost_ms[CAIRN_SLOTS_KINDS_MAX + 1][CAIRN_SLOTS_SEQUENCES_MAX + 1],
        sums[CAIRN_SLOTS_SEQUENCES_MAX + 1] = {0};
    uint8_t from[CAIRN_SLOTS_KINDS_MAX + 1][CAIRN_SLOTS_SEQUENCES_MAX + 1] = {{0}};
    uint32_t found = 0, part = parts;

    for (uint32_t i = 0; i < slots->count; i++)
        sums[i + 1] = sums[i] + slots->sequences[i].cost_ms;
    for (uint32_t p = 0; p <= parts; p++)
        for (uint32_t i = 0; i <= slots->count; i++) {
            lost_ms[p][i] = i == 0 ? 0 : INFINITY;
            for (uint32_t k = p > 0 && i > 0 && may_end[i] ? i : 0; k-- > 0;) {
                double lost = lost_ms[p - 1][k] + sums[i] - sums[k] -
                              (i - k) * slots->sequences[i - 1].cost_ms;

                if (lost < lost_ms[p][i]) {
                    lost_ms[p][i] = lost;
                    from[p][i] = (uint8_t)k;
                }
                if (border[k])
                    break;
            }
        }
    for (uint32_t at = slots->count; at > 0; at = from[part--][at])
        found++;
    part = parts;
    for (uint32_t at = slots->count, i = found; at > 0; at = from[part--][at])
        ends[--i] = at;
    return found;
}

bool
cairn_slots_cut(struct cairn_slots *slots, uint32_t count, uint32_t kinds)
{
    static const bool no_border[CAIRN_SLOTS_SEQUENCES_MAX + 1];
    bool may_end[CAIRN_SLOTS_SEQUENCES_MAX + 1] = {0}, border[CAIRN_SLOTS_SEQUENCES_MAX + 1] = {0};
    uint32_t sorts = CAIRN_SORTS_MAX, borders;

    if (!(slots->sequences[count - 1].cost_ms > 0))
        return false;
    slots->count = count;
    borders = mark_ends(slots, may_end, border);
    slots->kind_count =
        cut_least(slots, may_end, borders < kinds ? border : no_border, kinds, slots->ends);
    memset(may_end, 0, sizeof(may_end));
    for (uint32_t i = 0; i < slots->kind_count; i++) {
        slots->cost_ms[i] = slots->sequences[slots->ends[i] - 1].cost_ms;
        slots->per_ms[i] = (1 + MARGIN) / slots->cost_ms[i];
        may_end[slots->ends[i]] = true;
    }
    do
        slots->cuts.count = cut_least(slots, may_end, no_border, sorts, slots->cuts.at);
    while (slots->cuts.count >= 2 &&
           cairn_sorts_of(slots->sequences, &slots->cuts).states > CAIRN_TABLE_STATES_MAX &&
           --sorts >= 2);
    for (uint32_t i = 0, sort = 0; i < slots->kind_count; i++) {
        slots->sort_of[i] = sort;
        sort += slots->ends[i] == slots->cuts.at[sort];
    }
    return true;
}

/*
 * The least time that pipelines have left beside sequences too long for the others: of all
 * pipelines for all sequences, and of those that take more than a limit. The first `count`
 * sequences must be among these, so that what filling and draining loses for them is lost there.
 */
static double
least_slack_ms(const struct cairn_slots *slots, double step_ms)
{
    double least_ms = INFINITY;

    for (uint32_t i = 0; i < slots->limit_count; i++) {
        const struct limit *limit = &slots->limits[i];
        double slack_ms = -limit->work_ms;

        if (limit->count < slots->count)
            continue;
        for (uint32_t p = 0; p < slots->problem->pipeline_count; p++)
            if (slots->problem->pipelines[p].max_tokens > limit->tokens)
                slack_ms += step_ms / slots->problem->pipelines[p].time_scale * (1 + MARGIN);
        least_ms = fmin(least_ms, slack_ms);
    }
    return least_ms;
}

/* The pipelines that can hold any, those that hold few first. */
static bool
find_hosts(struct cairn_slots *slots, double step_ms)
{
    const struct cairn_sequence *least = &slots->sequences[slots->count - 1];

    slots->host_count = 0;
    for (uint32_t i = 0; i < slots->problem->pipeline_count; i++) {
        const struct cairn_assign_pipeline *pipeline = &slots->problem->pipelines[i];
        struct host host = {step_ms / pipeline->time_scale * (1 + MARGIN), pipeline->stages - 1, 0,
                            i};
        uint32_t at = slots->host_count;

        if (pipeline->max_tokens < least->tokens ||
            host.holds_ms < pipeline->stages * slots->cost_ms[slots->kind_count - 1])
            continue;
        if (slots->host_count == HOSTS_MAX)
            return false;
        while (slots->sequences[slots->ends[host.first] - 1].tokens > pipeline->max_tokens)
            host.first++;
        for (; at > 0; at--) {
            const struct host *other = &slots->hosts[at - 1];

            if (other->holds_ms - other->lost_times * slots->cost_ms[0] <=
                host.holds_ms - host.lost_times * slots->cost_ms[0])
                break;
            slots->hosts[at] = *other;
        }
        slots->hosts[at] = host;
        slots->host_count++;
    }
    return true;
}

/* Tables of what the pipelines from each on have room for. */
static void
make_tables(struct cairn_slots *slots, double step_ms, uint64_t *looked_at)
{
    int8_t *last = slots->room[slots->host_count];
    bool said = slots->cuts.count >= 2;
    struct cairn_sorts sorts;

    memset(slots->said, 0, sizeof(slots->said));
    if (!said)
        return;
    sorts = cairn_sorts_of(slots->sequences, &slots->cuts);
    slots->strides[0] = 1;
    for (uint32_t i = 1; i < CAIRN_SORTS_MAX; i++)
        slots->strides[i] = slots->strides[i - 1] * (sorts.all[i - 1] + 1);
    for (uint32_t i = 0; i < sorts.states; i++)
        last[i] = i == 0 ? 0 : CAIRN_TABLE_NO_ROOM;
    slots->said[slots->host_count] = true;
    for (uint32_t p = slots->host_count; p-- > 0;) {
        uint32_t options = 0;

        if (said)
            options = cairn_table_list(&slots->table, &sorts,
                                       &slots->problem->pipelines[slots->hosts[p].index], step_ms);
        said = options > 0;
        slots->said[p] = said;
        if (said)
            cairn_table_add(&slots->table, &sorts, options, slots->room[p + 1], slots->room[p]);
        *looked_at += (uint64_t)options * sorts.states / 64;
    }
}

static bool
may_hold(const struct cairn_slots *slots, uint32_t from, const uint8_t *left)
{
    uint32_t state = 0, last = 0;

    if (!slots->said[from])
        return true;
    for (uint32_t i = 0; i < slots->kind_count; i++) {
        if (slots->sort_of[i] + 1 == slots->cuts.count)
            last += left[i];
        else
            state += left[i] * slots->strides[slots->sort_of[i]];
    }
    return slots->room[from][state] >= (int32_t)last;
}

static struct name
name_of(const struct cairn_slots *slots, uint32_t at, const uint8_t *left)
{
    struct name name = {slots->searches, at + 1};

    for (uint32_t i = 0; i < slots->kind_count; i++) {
        if (i < CAIRN_SLOTS_KINDS_MAX / 2)
            name.low = name.low << KIND_BITS | left[i];
        else
            name.high = name.high << KIND_BITS | left[i];
    }
    return name;
}

static struct failure *
failure_at(struct cairn_slots *slots, const struct name *name)
{
    uint64_t mixed = name->low * UINT64_C(0x9e3779b97f4a7c15);

    mixed = (mixed ^ mixed >> 29 ^ name->high) * UINT64_C(0xbf58476d1ce4e5b9);
    return &slots->failed[mixed >> 32 & (FAILED_ROOM - 1)];
}

/* The failure that is known of a state, NULL where there is none. */
static const struct failure *
find_failure(struct cairn_slots *slots, const struct name *name, double slack_ms)
{
    const struct failure *there = failure_at(slots, name);

    return there->name.low == name->low && there->name.high == name->high &&
                   there->slack_ms >= slack_ms
               ? there
               : NULL;
}

static void
remember(struct cairn_slots *slots, uint32_t at)
{
    const struct level *level = &slots->levels[at];
    struct name name = name_of(slots, at, level->left);

    *failure_at(slots, &name) =
        (struct failure){name, level->is_short ? level->slack_ms : INFINITY};
}

/* Fills kinds from `kind` on as full as goes, the most costly first; what is then left, and the
 * first kind that is there. */
static double
fill_from(const struct cairn_slots *slots, const struct host *host, struct level *level,
          uint32_t kind)
{
    double left_ms = host->holds_ms;
    bool any = false;

    for (uint32_t i = 0; i < slots->kind_count; i++) {
        double each_ms = slots->cost_ms[i];

        if (i >= kind) {
            double room_ms = left_ms - (any ? 0 : host->lost_times * each_ms);
            double count = level->left[i] == 0 || i < host->first ? 0 : room_ms * slots->per_ms[i];

            level->here[i] = count >= level->left[i] ? level->left[i]
                             : count > 0             ? (uint8_t)count
                                                     : 0;
        }
        if (level->here[i] > 0) {
            left_ms -= level->here[i] * each_ms + (any ? 0 : host->lost_times * each_ms);
            any = true;
        }
    }
    return left_ms;
}

/* Whether one more of a kind, or one of a more costly kind in place of another, leaves the rest as
 * it is: then that is better. */
static bool
is_dominated(const struct cairn_slots *slots, const struct level *level, double left_ms)
{
    double larger_ms = INFINITY; /* the least costly earlier kind that has more */
    bool any = false;

    for (uint32_t i = 0; i < slots->kind_count; i++) {
        if (level->here[i] > 0 && larger_ms - slots->cost_ms[i] <= left_ms)
            return true;
        any |= level->here[i] > 0;
        if (any && level->left[i] > level->here[i])
            larger_ms = slots->cost_ms[i];
    }
    return larger_ms <= left_ms;
}

/* What filling and draining loses in a pipeline. */
static double
lost_ms(const struct cairn_slots *slots, uint32_t at)
{
    for (uint32_t i = 0; i < slots->kind_count; i++)
        if (slots->levels[at].here[i] > 0)
            return slots->hosts[at].lost_times * slots->cost_ms[i];
    return 0;
}

/* The same, and its work. */
static double
used_ms(const struct cairn_slots *slots, uint32_t at)
{
    double sum_ms = lost_ms(slots, at);

    for (uint32_t i = 0; i < slots->kind_count; i++)
        sum_ms += slots->levels[at].here[i] * slots->cost_ms[i];
    return sum_ms;
}

/* The next way to fill a pipeline that is not dominated, in lexicographic order downwards. False:
 * there is none. */
static bool
next_way(struct cairn_slots *slots, uint32_t at, uint64_t *looked_at)
{
    const struct host *host = &slots->hosts[at];
    struct level *level = &slots->levels[at];
    double left_ms;

    do {
        uint32_t kind = slots->kind_count;

        ++*looked_at;
        if (level->begun) {
            while (kind > 0 && level->here[kind - 1] == 0)
                kind--;
            level->over |= kind == 0;
        }
        if (level->over)
            return false;
        if (level->begun)
            level->here[kind - 1]--;
        left_ms = fill_from(slots, host, level, level->begun ? kind : 0);
        level->begun = true;
    } while (is_dominated(slots, level, left_ms));
    return true;
}

/* Goes on with the next pipeline, where what is left may have room. False: it has none. *all:
 * nothing is left. */
static bool
enter_next(struct cairn_slots *slots, uint32_t at, bool *all)
{
    struct level *level = &slots->levels[at], *next = level + 1;
    const struct failure *failure;
    struct name name;
    bool any = false;

    next->begun = next->over = next->is_short = false;
    next->slack_ms = level->slack_ms - lost_ms(slots, at);
    for (uint32_t i = 0; i < slots->kind_count; i++) {
        next->left[i] = (uint8_t)(level->left[i] - level->here[i]);
        any |= next->left[i] > 0;
    }
    if (next->slack_ms < 0) {
        level->is_short = true;
        return false;
    }
    *all = !any;
    if (!any)
        return true;
    if (at + 1 == slots->host_count || !may_hold(slots, at + 1, next->left))
        return false;
    name = name_of(slots, at + 1, next->left);
    failure = find_failure(slots, &name, next->slack_ms);
    if (failure)
        level->is_short |= failure->slack_ms < INFINITY;
    return !failure;
}

/* Gives sequences the places that were counted: of each kind the more costly places where a larger
 * part is left over. False: one is longer than the least of its kind, and too long for all. */
static bool
give_places(struct cairn_slots *slots, uint32_t *places)
{
    double left_ms[HOSTS_MAX];

    for (uint32_t p = 0; p < slots->host_count; p++)
        left_ms[p] = slots->hosts[p].holds_ms - used_ms(slots, p);
    for (uint32_t i = 0, kind = 0; i < slots->count; i++) {
        uint32_t best = slots->host_count;

        kind += i == slots->ends[kind];
        for (uint32_t p = 0; p < slots->host_count; p++)
            if (slots->levels[p].here[kind] > 0 &&
                slots->sequences[i].tokens <=
                    slots->problem->pipelines[slots->hosts[p].index].max_tokens &&
                (best == slots->host_count || left_ms[p] / slots->hosts[p].holds_ms >
                                                  left_ms[best] / slots->hosts[best].holds_ms))
                best = p;
        if (best == slots->host_count)
            return false;
        slots->levels[best].here[kind]--;
        left_ms[best] -= slots->sequences[i].cost_ms - slots->cost_ms[kind];
        places[i] = slots->hosts[best].index;
    }
    return true;
}

enum cairn_slots_answer
cairn_slots_place(struct cairn_slots *slots, double step_ms, uint64_t *work, uint32_t *places)
{
    struct level *first = &slots->levels[0];
    uint64_t looked_at = 0;
    uint32_t at = 0;
    bool all = false;

    *first = (struct level){.slack_ms = least_slack_ms(slots, step_ms)};
    if (!find_hosts(slots, step_ms)) {
        *work = 0;
        return CAIRN_SLOTS_UNKNOWN;
    }
    if (++slots->searches == SEARCHES_MAX) { /* more would not fit a name */
        memset(slots->failed, 0, sizeof(slots->failed));
        slots->searches = 1;
    }
    make_tables(slots, step_ms, &looked_at);
    for (uint32_t i = 0; i < slots->kind_count; i++)
        first->left[i] = (uint8_t)(slots->ends[i] - (i > 0 ? slots->ends[i - 1] : 0));
    first->over = slots->host_count == 0 || first->slack_ms < 0 || !may_hold(slots, 0, first->left);
    while (!all) {
        if (looked_at >= *work) {
            *work = 0;
            return CAIRN_SLOTS_UNKNOWN;
        }
        if (next_way(slots, at, &looked_at)) {
            if (enter_next(slots, at, &all))
                at++;
            continue;
        }
        remember(slots, at);
        if (at == 0)
            break;
        slots->levels[at - 1].is_short |= slots->levels[at].is_short;
        at--;
    }
    *work -= looked_at < *work ? looked_at : *work;
    if (!all)
        return CAIRN_SLOTS_NONE;
    for (; at < slots->host_count; at++)
        memset(slots->levels[at].here, 0, sizeof(slots->levels[at].here));
    return give_places(slots, places) ? CAIRN_SLOTS_PLACED : CAIRN_SLOTS_UNKNOWN;
}
