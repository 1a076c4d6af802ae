/* tests/traces/second/noise.c - what varies from step to step, and what faults stretch. */
#include "tests/traces/second/state.h"

#include <math.h>

/* One innovation of unit variance: normal, or Student's t. */
static double
innovation(struct run *run)
{
    double freedom = run->model->freedom, sum = 0;

    if (freedom <= 2)
        return random_normal(run->random);
    for (uint32_t i = 0; i < (uint32_t)freedom; i++)
        sum += pow(random_normal(run->random), 2);
    return random_normal(run->random) / sqrt(sum / freedom) * sqrt((freedom - 2) / freedom);
}

double
model_move(struct run *run, struct wander *wander, double correlation)
{
    double kept = run->tick > 0 ? correlation : 0;

    wander->value = kept * wander->value + sqrt(1 - kept * kept) * innovation(run);
    return wander->value;
}

double
model_jitter(struct run *run, double ns, double share)
{
    return ns * exp(share * random_normal(run->random) - share * share / 2);
}

bool
model_active(const struct model_fault *fault, uint32_t tick)
{
    return tick >= fault->since && tick < fault->until;
}

/* How much longer a rank's computation takes, from what is wrong with it. */
static double
slowness(const struct run *run, uint32_t rank)
{
    const struct model *model = run->model;
    double factor = 1;

    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];

        if (!model_active(fault, run->tick))
            continue;
        if ((fault->cause == CAUSE_RANK && fault->rank == rank) ||
            (fault->cause == CAUSE_NODE && fault->node == model_node(model, rank)) ||
            (fault->cause == CAUSE_STAGE && fault->stage == model_stage(model, rank)))
            factor *= fault->factor;
        if (fault->cause == CAUSE_THROTTLE && fault->rank == rank)
            factor *= 1 + (fault->factor - 1) *
                              fmin(1, (run->tick - fault->since + 1.0) / fmax(1, fault->ramp));
    }
    return factor;
}

/* What a rank's speed shows in this tick. The job's and the node's parts have moved already. */
double
model_speed(struct run *run, uint32_t rank)
{
    const struct model *model = run->model;
    struct worker *worker = &run->workers[rank];
    double noise = model->spread * model_move(run, &worker->wander, model->correlation) +
                   model->drift * model_move(run, &worker->drift, 0.97) +
                   model->common * run->common.value +
                   model->node_common * run->nodes[model_node(model, rank)].value;

    return slowness(run, rank) * exp(fmax(-0.5, fmin(noise, 2)));
}

double
model_length(struct run *run)
{
    const struct model *model = run->model;
    double spread = model->lengths;

    for (uint32_t i = 0; i < model->fault_count; i++)
        if (model->faults[i].cause == CAUSE_LENGTHS && model_active(&model->faults[i], run->tick))
            spread = model->faults[i].factor;
    return exp(spread * random_normal(run->random) - spread * spread / 2);
}

/* What a step computes without noise, roughly: pauses are measured in it. */
double
model_usual_ns(const struct model *model)
{
    return 3 * model->layer_ns * model->layers * model->microbatches + model->optimizer_ns;
}

/* Time lost at the beginning of a tick. */
double
model_lost_ns(struct run *run, uint32_t rank)
{
    const struct model *model = run->model;
    const struct worker *worker = &run->workers[rank];
    double ns = 0;

    if (model->checkpoint_every && run->tick && run->tick % model->checkpoint_every == 0)
        ns += model_jitter(run, model->checkpoint_ns, 0.01);
    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];

        if (fault->cause == CAUSE_PAUSE && fault->rank == rank && fault->since == run->tick)
            ns += 3e9;
        if (fault->cause == CAUSE_COLLECTOR && model_active(fault, run->tick) &&
            run->tick % worker->collect_every == worker->collect_phase)
            ns += model_usual_ns(model) * fault->factor * random_between(run->random, 0.7, 1.3);
    }
    return ns;
}

double
model_channel_ns(struct run *run, struct wander *wander, double ns, bool far)
{
    const struct model *model = run->model;
    double spread = far ? model->channel_far : model->channel_near;

    ns = model_jitter(run, ns, spread) * exp(model->channel_wander * wander->value);
    if (far && random_unit(run->random) < model->spikes)
        ns *= random_between(run->random, 1, 3);
    return ns;
}

/* By what factor faults stretch a transfer among these ranks. */
double
model_stretch(const struct run *run, const uint32_t *ranks, uint32_t count)
{
    const struct model *model = run->model;
    double factor = 1;

    for (uint32_t i = 0; i < model->fault_count; i++) {
        const struct model_fault *fault = &model->faults[i];
        bool on_node = false, off_node = false, one = false, other = false;

        if (!model_active(fault, run->tick))
            continue;
        for (uint32_t k = 0; k < count; k++) {
            on_node |= model_node(model, ranks[k]) == fault->node;
            off_node |= model_node(model, ranks[k]) != fault->node;
            one |= ranks[k] == fault->rank;
            other |= ranks[k] == fault->peer;
        }
        if ((fault->cause == CAUSE_NIC && on_node && off_node) ||
            (fault->cause == CAUSE_LINK && count == 2 && one && other))
            factor = fmax(factor, fault->factor);
    }
    return factor;
}

/* True where a transfer among these ranks has stopped for good. */
bool
model_stops(const struct run *run, const uint32_t *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < run->model->fault_count; i++) {
        const struct model_fault *fault = &run->model->faults[i];

        for (uint32_t k = 0; k < count && fault->cause == CAUSE_HANG_LINK; k++) {
            uint32_t a = ranks[k], b = ranks[(k + 1) % count];

            if (run->tick >= fault->since &&
                ((a == fault->rank && b == fault->peer) || (a == fault->peer && b == fault->rank)))
                return true;
        }
    }
    return false;
}
