/* tests/traces/second/draw.c - draws a job of a case: its shape, its noise, what its sources record
 * and what is wrong with it. */
#include "tests/traces/second/model.h"

#include <math.h>
#include <string.h>

struct draw {
    struct model *model;
    struct random *random;
    const char *name;
    double drift; /* < 0: as drawn */
    bool unknown; /* there is no such case */
};

static bool
is(const struct draw *draw, const char *name)
{
    return strcmp(draw->name, name) == 0;
}

static bool
one_in(struct draw *draw, uint32_t count)
{
    return random_below(draw->random, count) == 0;
}

static double
between(struct draw *draw, double low, double high)
{
    return random_between(draw->random, low, high);
}

static uint32_t
one_of(struct draw *draw, const uint32_t *choices, uint32_t count)
{
    return choices[random_below(draw->random, count)];
}

/* ---- the job ---- */

static void
draw_layout(struct draw *draw)
{
    struct model *model = draw->model;
    static const enum model_layout layouts[] = {LAYOUT_DATA,   LAYOUT_SHARDED, LAYOUT_TENSOR,
                                                LAYOUT_STAGES, LAYOUT_STAGES,  LAYOUT_EXPERTS};

    model->layout = layouts[random_below(draw->random, 6)];
    if (strstr(draw->name, "stage") || is(draw, "link") || is(draw, "nic") ||
        is(draw, "nameless") || is(draw, "hang_link"))
        model->layout = LAYOUT_STAGES;
    if (is(draw, "hot_expert"))
        model->layout = LAYOUT_EXPERTS;
    if (is(draw, "overlapped") || is(draw, "overlapped_nic"))
        model->layout = one_in(draw, 2) ? LAYOUT_DATA : LAYOUT_TENSOR;
    if (is(draw, "lengths") || is(draw, "collector"))
        model->layout = one_in(draw, 2) ? LAYOUT_STAGES : LAYOUT_TENSOR;
}

static void
draw_shape(struct draw *draw)
{
    struct model *model = draw->model;
    struct random *random = draw->random;
    static const uint32_t twos[] = {2, 4}, few[] = {1, 1, 2}, pipes[] = {2, 4, 4, 8};
    static const uint32_t worlds[] = {8, 16, 16, 32, 64};

    draw_layout(draw);
    model->tp = model->pp = model->dp = model->ep = 1;
    switch (model->layout) {
    case LAYOUT_DATA:
    case LAYOUT_SHARDED:
        model->dp = one_of(draw, worlds, 4);
        break;
    case LAYOUT_TENSOR:
        model->tp = is(draw, "overlapped_nic") ? 2 : one_of(draw, twos, 2);
        model->dp = one_of(draw, worlds, 5) / model->tp;
        break;
    case LAYOUT_STAGES:
        do {
            model->tp = one_of(draw, few, 3);
            model->pp = one_of(draw, pipes, 4);
            model->dp = 1u << random_below(random, 4);
            model->world = model->tp * model->pp * model->dp;
        } while (model->world < 8 || model->world > 64 ||
                 ((strstr(draw->name, "stage") || is(draw, "link")) && model->pp < 4) ||
                 (is(draw, "lengths") && model->dp < 4) || (is(draw, "nic") && model->world < 16) ||
                 (is(draw, "nameless") && model->dp < 2));
        break;
    case LAYOUT_EXPERTS:
        model->dp = one_of(draw, worlds, 4);
        model->ep = model->dp == 8 ? 4 : one_of(draw, twos, 2) * 2;
        break;
    }
    model->world = model->tp * model->pp * model->dp;
    model->ranks_per_node = model->world >= 32 ? 8 : 4;
    model->stages_outside = one_in(draw, 2) || is(draw, "nic");
    model->overlapped = model->layout != LAYOUT_STAGES && one_in(draw, 2);
    if (strstr(draw->name, "overlapped"))
        model->overlapped = true;
    model->sends = (enum model_sends)random_below(random, 3);
    model->norm = one_in(draw, 3);
    model->layers =
        model->layout == LAYOUT_STAGES ? 1 + random_below(random, 2) : 2 + random_below(random, 3);
    model->microbatches = model->layout == LAYOUT_STAGES   ? model->pp + random_below(random, 5)
                          : model->layout == LAYOUT_TENSOR ? 1 + random_below(random, 2)
                                                           : 1;
}

static void
draw_times(struct draw *draw)
{
    struct model *model = draw->model;

    model->layer_ns = between(draw, 4e6, 25e6);
    model->optimizer_ns = between(draw, 2e6, 10e6);
    model->tensor_ns = between(draw, 0.2e6, 1.5e6);
    model->pair_ns = between(draw, 0.4e6, 3e6);
    model->gradients_ns = between(draw, 2e6, 12e6);
    model->expert_ns = model->layer_ns * between(draw, 0.5, 1.5);
    model->shuffle_ns = between(draw, 0.5e6, 3e6);
}

static void
draw_noise(struct draw *draw)
{
    struct model *model = draw->model;

    model->spread = between(draw, 0.004, 0.02);
    model->correlation = between(draw, 0, 0.5);
    model->drift = between(draw, 0.002, 0.01);
    model->common = one_in(draw, 2) ? between(draw, 0, 0.015) : 0;
    model->node_common = one_in(draw, 3) ? between(draw, 0, 0.004) : 0;
    model->freedom = one_in(draw, 3) ? 6 : 0;
    model->micro = between(draw, 0.003, 0.015);
    model->channel_near = between(draw, 0.02, 0.06);
    model->channel_far = between(draw, 0.03, 0.15);
    model->channel_wander = between(draw, 0, 0.04);
    model->spikes = one_in(draw, 3) ? between(draw, 0, 0.02) : 0;
    if (one_in(draw, 4)) {
        model->lengths = between(draw, 0.01, 0.06);
        model->work_named = true;
    }
    if (is(draw, "correlated")) {
        model->spread = between(draw, 0.02, 0.03);
        model->correlation = between(draw, 0.5, 0.85);
    }
    if (is(draw, "drifting"))
        model->drift = between(draw, 0.006, 0.012);
    if (is(draw, "heavy_tails")) {
        model->spread = between(draw, 0.01, 0.025);
        model->freedom = 3;
        model->correlation = between(draw, 0, 0.3);
    }
    if (draw->drift >= 0)
        model->drift = draw->drift;
}

static void
draw_source(struct draw *draw)
{
    struct model *model = draw->model;

    model->steps_named = !one_in(draw, 10);
    model->bytes_named = !one_in(draw, 5) || is(draw, "hot_expert");
    model->pair_seqs = one_in(draw, 2);
    model->op_seqs = one_in(draw, 3);
    model->enters_alone = one_in(draw, 6);
    model->enters = !model->enters_alone && one_in(draw, 3);
    model->by_end = one_in(draw, 4);
    model->life = one_in(draw, 4);
    model->rank_by_rank = one_in(draw, 3);
    model->missing = model->replaced = UINT32_MAX;
    if (is(draw, "nameless"))
        model->steps_named = false;
    else if (is(draw, "restart") || is(draw, "replaced"))
        model->steps_named = true;
}

/* ---- what is wrong ---- */

static struct model_fault *
add_fault(struct draw *draw, enum model_cause cause, double factor)
{
    struct model *model = draw->model;
    struct model_fault *fault = &model->faults[model->fault_count++];
    uint32_t room = model->ticks - 70;

    *fault = (struct model_fault){.cause = cause,
                                  .rank = random_below(draw->random, model->world),
                                  .since = 25 + random_below(draw->random, room),
                                  .until = UINT32_MAX,
                                  .factor = factor};
    fault->node = fault->rank / model->ranks_per_node;
    if (one_in(draw, 3) && cause != CAUSE_HANG && cause != CAUSE_HANG_LINK && cause != CAUSE_CRASH)
        fault->until = fault->since + 30 + random_below(draw->random, 25);
    return fault;
}

static void
add_rank(struct draw *draw)
{
    static const double factors[] = {1.2, 1.5, 2, 3};

    add_fault(draw, CAUSE_RANK, factors[random_below(draw->random, 4)]);
}

/* A pair of neighbouring stages. */
static void
add_link(struct draw *draw, enum model_cause cause, double factor)
{
    struct model *model = draw->model;
    struct model_fault *fault = add_fault(draw, cause, factor);
    uint32_t distance = model->stages_outside ? model->tp * model->dp : model->tp;
    uint32_t stage = model_stage(model, fault->rank);

    fault->peer = stage + 1 < model->pp ? fault->rank + distance : fault->rank - distance;
}

static void
add_even(struct draw *draw, enum model_cause cause, double factor)
{
    struct model *model = draw->model;
    struct model_fault *fault = add_fault(draw, cause, factor);

    fault->since = 0;
    fault->until = UINT32_MAX;
    fault->stage = is(draw, "last_stage") ? model->pp - 1
                   : model->pp > 1        ? random_below(draw->random, model->pp - 1)
                                          : 0;
}

static void
add_several(struct draw *draw)
{
    struct model *model = draw->model;
    uint32_t wanted = 2 + random_below(draw->random, 2);

    for (uint32_t tries = 0; model->fault_count < wanted && tries < 50; tries++) {
        const struct model_fault *fault;
        bool clash = false;

        if (model->layout == LAYOUT_STAGES && one_in(draw, 3))
            add_link(draw, CAUSE_LINK, between(draw, 2, 4));
        else
            add_rank(draw);
        fault = &model->faults[model->fault_count - 1];
        for (uint32_t i = 0; i + 1 < model->fault_count; i++)
            clash |= model->faults[i].node == fault->node ||
                     (fault->cause == CAUSE_LINK && model->faults[i].cause == CAUSE_LINK);
        if (clash)
            model->fault_count--;
    }
}

static void
add_replacement(struct draw *draw)
{
    struct model *model = draw->model;
    struct model_fault *fault = add_fault(draw, CAUSE_RANK, between(draw, 1.5, 3));
    double behind = one_in(draw, 2) ? -1 : 1;

    model->replaced = fault->node;
    model->restart = 60 + random_below(draw->random, 20);
    model->back = random_below(draw->random, 6);
    model->replaced_clock_ns = behind * pow(10, between(draw, 8, 13)); /* 0.1 s to 3 h */
    fault->since = 25 + random_below(draw->random, 15);
    fault->until = model->restart;
    if (one_in(draw, 2)) {
        uint32_t node = fault->node, rank;

        rank = node * model->ranks_per_node + random_below(draw->random, model->ranks_per_node);
        fault = add_fault(draw, CAUSE_RANK, between(draw, 1.5, 3));
        fault->rank = rank;
        fault->node = node;
        fault->since = model->restart + 25 + random_below(draw->random, 15);
        fault->until = UINT32_MAX;
    }
}

static void
add_hard(struct draw *draw)
{
    struct model *model = draw->model;
    bool quiet = one_in(draw, 4);

    if (is(draw, "restart")) {
        model->restart = 50 + random_below(draw->random, 30);
        model->back = random_below(draw->random, 12);
    } else if (is(draw, "losses")) {
        if (one_in(draw, 2))
            model->lost = between(draw, 0.0005, 0.01);
        else
            model->lost_runs = 1;
        if (one_in(draw, 4))
            model->missing = random_below(draw->random, model->world);
    } else if (is(draw, "clock_steps")) {
        model->clock_step_count = 1 + random_below(draw->random, MODEL_CLOCK_STEPS_MAX);
        for (uint32_t i = 0; i < model->clock_step_count; i++)
            model->clock_steps[i] = (struct model_clock_step){
                .node = random_below(draw->random, model->world / model->ranks_per_node),
                .tick = 5 + random_below(draw->random, model->ticks - 10),
                .ns = (one_in(draw, 2) ? -1 : 1) * pow(10, between(draw, 6, 9.3))};
    } else if (is(draw, "checkpoints")) {
        static const uint32_t every[] = {25, 50, 100};

        model->checkpoint_every = one_of(draw, every, 3);
        model->checkpoint_ns = between(draw, 1e9, 8e9);
    } else if (is(draw, "replaced")) {
        add_replacement(draw);
        return;
    } else if (is(draw, "hot_expert")) {
        add_fault(draw, CAUSE_EXPERT, between(draw, 1.3, 2.5));
        return;
    }
    if (quiet)
        return;
    if (is(draw, "overlapped_nic"))
        add_fault(draw, CAUSE_NIC, between(draw, 2, 5));
    else if (is(draw, "throttle"))
        add_fault(draw, CAUSE_THROTTLE, between(draw, 1.2, 1.6))->ramp =
            50 + random_below(draw->random, 250);
    else if (is(draw, "correlated") || is(draw, "drifting"))
        add_fault(draw, CAUSE_RANK, one_in(draw, 2) ? 2 : 3);
    else
        add_fault(draw, CAUSE_RANK, between(draw, 1.4, 3));
    if (is(draw, "throttle")) {
        model->faults[0].since = 25 + random_below(draw->random, 30);
        model->faults[0].until = UINT32_MAX;
    } else if (is(draw, "restart") && one_in(draw, 2)) {
        model->faults[0].since = 25; /* and goes on after the restart */
        model->faults[0].until = UINT32_MAX;
    } else if (is(draw, "restart")) {
        model->faults[0].since = model->restart + 25;
        if (model->faults[0].until <= model->faults[0].since)
            model->faults[0].until = UINT32_MAX;
    }
    if (model->faults[0].rank == model->missing)
        model->missing = UINT32_MAX;
}

static void
add_wrong(struct draw *draw)
{
    static const char *const hard[] = {"nameless",       "throttle",   "overlapped", "restart",
                                       "overlapped_nic", "replaced",   "losses",     "clock_steps",
                                       "checkpoints",    "hot_expert", "correlated", "drifting",
                                       "heavy_tails",    NULL};

    if (is(draw, "quiet"))
        return;
    if (is(draw, "slow"))
        add_rank(draw);
    else if (is(draw, "slow_slight"))
        add_fault(draw, CAUSE_RANK, 1.1);
    else if (is(draw, "node"))
        add_fault(draw, CAUSE_NODE, between(draw, 1.2, 2));
    else if (is(draw, "link"))
        add_link(draw, CAUSE_LINK, between(draw, 1.8, 5));
    else if (is(draw, "nic"))
        add_fault(draw, CAUSE_NIC, between(draw, 1.8, 5));
    else if (is(draw, "hang_rank"))
        add_fault(draw, CAUSE_HANG, 1);
    else if (is(draw, "hang_link"))
        add_link(draw, CAUSE_HANG_LINK, 1);
    else if (is(draw, "crash"))
        add_fault(draw, CAUSE_CRASH, 1);
    else if (is(draw, "several"))
        add_several(draw);
    else if (is(draw, "long_stage") || is(draw, "last_stage"))
        add_even(draw, CAUSE_STAGE, between(draw, 1.25, 2));
    else if (is(draw, "lengths"))
        add_even(draw, CAUSE_LENGTHS, between(draw, 0.25, 0.5));
    else if (is(draw, "collector"))
        add_even(draw, CAUSE_COLLECTOR, between(draw, 0.3, 1));
    else {
        uint32_t i = 0;

        while (hard[i] && !is(draw, hard[i]))
            i++;
        draw->unknown = !hard[i];
        if (hard[i])
            add_hard(draw);
    }
}

struct random
model_seed(uint64_t seed)
{
    return (struct random){(seed + 77) * 0x9e3779b97f4a7c15ull};
}

bool
model_draw(struct model *model, struct random *random, const char *name, double drift)
{
    struct draw draw = {model, random, name, drift, false};

    if (model->ticks < 120 || model->ticks > MODEL_TICKS_MAX)
        model->ticks = is(&draw, "throttle") ? 360 : 120 + random_below(random, 60);
    draw_shape(&draw);
    draw_times(&draw);
    draw_noise(&draw);
    draw_source(&draw);
    add_wrong(&draw);
    if (is(&draw, "quiet") || is(&draw, "slow") || is(&draw, "node"))
        if (one_in(&draw, 5) && model->fault_count < MODEL_FAULTS_MAX)
            add_fault(&draw, CAUSE_PAUSE, 1);
    return !draw.unknown;
}
