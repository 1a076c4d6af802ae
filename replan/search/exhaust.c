/* replan/search/exhaust.c - the best plan of a handful of devices. */
#include "replan/search/exhaust.h"

#include "replan/fleet/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = CAIRN_EXHAUST_DEVICES_MAX, SUBSETS = 1 << DEVICES_MAX };
#define ANY_MS 1e30
#define NOTHING_GAINED 1e-9 /* of a time: less than that is rounding */

/* A pipeline of a subset: its groups in order, and what it does within the time to beat. */
struct sequence {
    uint32_t microbatches;
    uint32_t stage_count;
    uint8_t groups[DEVICES_MAX]; /* subsets */
};

struct exhaust {
    const struct cairn_fleet *fleet;
    const struct cairn_problem *problem;
    struct cairn_divider *divider;
    const struct cairn_stop *stop;
    bool has_plan;
    bool stopped;
    double step_ms;                    /* to beat */
    uint32_t alike;                    /* bit i: devices i and i + 1 of the order are the same */
    struct cairn_group group[SUBSETS]; /* layer_ms 0: may not be a group */
    struct sequence best[SUBSETS];     /* of subsets in their first form */
    uint32_t total[SUBSETS];           /* micro-batches of disjoint pipelines */
    uint8_t part[SUBSETS];             /* the subset that is one pipeline in that total */
};

/* Whether a subset takes devices that are alike in order from those that are left. */
static bool
in_order(const struct exhaust *exhaust, uint32_t subset, uint32_t left)
{
    return ((subset >> 1) & ~subset & left & exhaust->alike) == 0;
}

/* The subset with the same devices as far as anything but ids goes, the first in order. */
static uint32_t
first_form(const struct exhaust *exhaust, uint32_t subset)
{
    for (;;) {
        uint32_t move = (subset >> 1) & ~subset & exhaust->alike;

        if (move == 0)
            return subset;
        move &= ~move + 1;
        subset = (subset & ~(move << 1)) | move;
    }
}

static void
fill_groups(struct exhaust *exhaust)
{
    const struct cairn_problem *problem = exhaust->problem;
    uint32_t count = exhaust->fleet->device_count;

    for (uint32_t i = 0; i + 1 < count; i++) {
        const struct cairn_device *a = &problem->devices[exhaust->fleet->order[i]];
        const struct cairn_device *b = &problem->devices[exhaust->fleet->order[i + 1]];

        if (a->node == b->node && a->memory_bytes == b->memory_bytes && !(a->rate < b->rate))
            exhaust->alike |= 1u << i;
    }
    for (uint32_t subset = 1; subset < 1u << count; subset++) {
        const struct cairn_device *first = NULL;
        uint64_t memory_bytes = UINT64_MAX;
        double rate = 0;
        uint32_t size = 0;
        bool one_node = true;

        for (uint32_t i = 0; i < count; i++) {
            const struct cairn_device *device = &problem->devices[exhaust->fleet->order[i]];

            if (!(subset >> i & 1))
                continue;
            first = first ? first : device;
            size++;
            one_node = one_node && device->node == first->node;
            rate = device->rate > rate ? device->rate : rate;
            memory_bytes =
                device->memory_bytes < memory_bytes ? device->memory_bytes : memory_bytes;
        }
        if (one_node)
            exhaust->group[subset] =
                (struct cairn_group){problem->layer_ms * cairn_cost_of_size(problem, size) * rate,
                                     cairn_cost_group_bytes(problem, size, memory_bytes)};
    }
}

/* The most micro-batches of a sequence of groups within the time; only asked where more than
 * `known` may come out, as the fluid limit of docs/PLANNER.md tells. */
static uint32_t
microbatches_of(struct exhaust *exhaust, const uint8_t *subsets, uint32_t stages, uint32_t known)
{
    struct cairn_group groups[DEVICES_MAX];
    double work = cairn_problem_work_layers(exhaust->problem), limit = 1 + NOTHING_GAINED;
    uint32_t low = known, high = exhaust->problem->microbatches;

    for (uint32_t i = 0; i < stages; i++) {
        double alone;

        groups[i] = exhaust->group[subsets[i]];
        alone = exhaust->step_ms / (work * groups[i].layer_ms);
        limit += alone > 1 ? alone - 1 : 0;
    }
    if (limit < high)
        high = (uint32_t)limit;
    while (low < high) {
        uint32_t middle = high - (high - low) / 2;

        if (cairn_divide_layers(exhaust->divider, groups, stages, middle, NULL) <=
            exhaust->step_ms * (1 - NOTHING_GAINED))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The best sequence of all devices of a subset: each stage steps through the subsets of what is
 * left, downwards; 0 stands before the first. */
static void
find_sequence(struct exhaust *exhaust, uint32_t subset, struct sequence *best)
{
    uint32_t left[DEVICES_MAX + 1] = {subset}, depth = 0;
    uint8_t groups[DEVICES_MAX] = {0};

    *best = (struct sequence){0};
    for (;;) {
        uint32_t group = (groups[depth] - 1u) & left[depth], count;

        groups[depth] = (uint8_t)group;
        if (group == 0 && depth == 0)
            return;
        if (group == 0) {
            depth--;
            continue;
        }
        if (exhaust->group[group].layer_ms <= 0 || !in_order(exhaust, group, left[depth]))
            continue;
        left[depth + 1] = left[depth] & ~group;
        if (left[depth + 1] != 0) {
            if (depth + 1 < exhaust->problem->layers)
                groups[++depth] = 0;
            continue;
        }
        count = microbatches_of(exhaust, groups, depth + 1, best->microbatches);
        if (count > best->microbatches) {
            best->microbatches = count;
            best->stage_count = depth + 1;
            memcpy(best->groups, groups, sizeof(groups));
        }
    }
}

/* The most micro-batches within the time; false where that is not all of them, or `stop` stops
 * it. */
static bool
beat(struct exhaust *exhaust)
{
    uint32_t count = exhaust->fleet->device_count, all = (1u << count) - 1;

    for (uint32_t subset = 1; subset <= all; subset++) {
        exhaust->stopped = exhaust->has_plan && exhaust->stop->over(exhaust->stop->context);
        if (exhaust->stopped)
            return false;
        if (first_form(exhaust, subset) == subset)
            find_sequence(exhaust, subset, &exhaust->best[subset]);
    }
    for (uint32_t subset = 1; subset <= all; subset++) {
        exhaust->total[subset] = 0;
        exhaust->part[subset] = 0;
        for (uint32_t part = subset; part > 0; part = (part - 1) & subset) {
            uint32_t own = exhaust->best[first_form(exhaust, part)].microbatches;
            uint32_t total = own + exhaust->total[subset & ~part];

            if (own > 0 && total > exhaust->total[subset]) {
                exhaust->total[subset] = total;
                exhaust->part[subset] = (uint8_t)part;
            }
        }
    }
    return exhaust->total[all] >= exhaust->problem->microbatches;
}

/* The devices of a sequence's group, a subset in first form, among those of the actual subset: the
 * i-th of one stands for the i-th of the other, since both take devices that are alike in order. */
static uint32_t
actual_group(uint32_t group, uint32_t form, uint32_t subset)
{
    uint32_t out = 0;

    for (; form != 0; form &= form - 1, subset &= subset - 1)
        if (group & form & (~form + 1))
            out |= subset & (~subset + 1);
    return out;
}

/* The plan of the totals that were found; all micro-batches divided exactly. */
static cairn_err
take_plan(struct exhaust *exhaust, struct cairn_plan **plan, double *step_ms)
{
    uint32_t stage_counts[DEVICES_MAX] = {0}, microbatches[DEVICES_MAX], layers[DEVICES_MAX];
    uint32_t actual[DEVICES_MAX] = {0}, left = (1u << exhaust->fleet->device_count) - 1;
    uint32_t pipeline_count = 0, at = 0;
    struct cairn_group groups[DEVICES_MAX] = {{0}};
    struct cairn_plan *made = NULL;
    cairn_err err;

    for (; exhaust->part[left] != 0 && exhaust->total[left] > 0;
         left &= ~(uint32_t)exhaust->part[left]) {
        uint32_t part = exhaust->part[left], form = first_form(exhaust, part);
        const struct sequence *best = &exhaust->best[form];

        stage_counts[pipeline_count++] = best->stage_count;
        for (uint32_t i = 0; i < best->stage_count; i++, at++) {
            actual[at] = actual_group(best->groups[i], form, part);
            groups[at] = exhaust->group[best->groups[i]];
        }
    }
    /* More than are needed may have been counted: then there can be more pipelines than
     * micro-batches. */
    for (; pipeline_count > exhaust->problem->microbatches; pipeline_count--)
        at -= stage_counts[pipeline_count - 1];
    *step_ms =
        cairn_divide(exhaust->divider, groups, stage_counts, pipeline_count, microbatches, layers);
    err = cairn_plan_create(pipeline_count, at, DEVICES_MAX, &made);
    for (uint32_t i = 0, stage = 0; !err && i < pipeline_count; i++) {
        uint32_t first_layer = 0;

        made->pipelines[made->pipeline_count++] =
            (struct cairn_plan_pipeline){microbatches[i], stage, stage_counts[i]};
        for (uint32_t j = 0; j < stage_counts[i]; j++, stage++) {
            struct cairn_plan_stage *into = &made->stages[made->stage_count++];

            *into = (struct cairn_plan_stage){made->device_count, 0, first_layer, layers[stage]};
            first_layer += layers[stage];
            for (uint32_t k = 0; k < exhaust->fleet->device_count; k++)
                if (actual[stage] >> k & 1)
                    made->devices[made->device_count++] =
                        exhaust->problem->devices[exhaust->fleet->order[k]].id;
            into->device_count = made->device_count - into->first_device;
        }
    }
    if (err)
        return err;
    cairn_plan_destroy(*plan);
    *plan = made;
    return CAIRN_OK;
}

cairn_err
cairn_exhaust(const struct cairn_fleet *fleet, const struct cairn_stop *stop,
              struct cairn_plan **plan, double *step_ms, bool *complete)
{
    struct exhaust *exhaust = calloc(1, sizeof(*exhaust));
    cairn_err err = exhaust ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        exhaust->fleet = fleet;
        exhaust->problem = fleet->problem;
        exhaust->stop = stop;
        exhaust->has_plan = *plan != NULL;
        exhaust->step_ms = *plan ? *step_ms : ANY_MS;
        err = cairn_divider_create(fleet->problem, &exhaust->divider);
    }
    if (!err)
        fill_groups(exhaust);
    while (!err && fleet->device_count > 0 && beat(exhaust)) {
        err = take_plan(exhaust, plan, &exhaust->step_ms);
        if (!err) {
            *step_ms = exhaust->step_ms;
            exhaust->has_plan = true;
        }
    }
    if (!err)
        *complete = !exhaust->stopped;
    if (exhaust)
        cairn_divider_destroy(exhaust->divider);
    free(exhaust);
    return err;
}
