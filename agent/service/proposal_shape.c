/* agent/service/proposal_shape.c - relaunches as proposals; see proposal_shape.h. */
#include "agent/service/proposal_shape.h"

#include "agent/service/proposal_plan.h"
#include "replan/search/migrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A node, and the rate of its slowest device; a dead one counts as the slowest. */
struct node_rate {
    uint64_t node;
    double rate;
};

static double
rate_of_node(const struct cairn_problem *problem, const double *settled, uint64_t node)
{
    double slowest = 1;

    for (uint32_t i = 0; i < problem->device_count; i++)
        if (problem->devices[i].node == node)
            slowest = fmax(slowest, settled[i] > 0 ? settled[i] : (double)INFINITY);
    return slowest;
}

static int
compare_rates(const void *left, const void *right)
{
    const struct node_rate *a = left, *b = right;

    return (a->rate < b->rate) - (a->rate > b->rate);
}

static void
take_shape(const struct cairn_problem *problem, const struct cairn_shape *shape,
           const uint64_t *nodes, uint32_t node_count, struct proposal *out)
{
    struct cairn_session_shares *placement = &out->placement;

    placement->count = shape->dp;
    placement->stages = shape->pp;
    for (uint32_t r = 0; r < shape->dp; r++) {
        placement->parts[r] = shape->shares[r];
        for (uint32_t s = 0; s < shape->pp; s++)
            placement->layers[r * shape->pp + s] = shape->layers[s];
    }
    out->shape.tp = shape->tp;
    out->shape.node_count = node_count;
    for (uint32_t i = 0; i < node_count; i++)
        out->shape.nodes[i] = (uint32_t)nodes[i];
    out->moved_bytes = (uint64_t)shape->dp * problem->layers * problem->layer_bytes;
}

/* Whether a shape on all nodes is the current plan. */
static bool
is_current(const struct cairn_problem *problem, const struct cairn_shape *shape)
{
    struct cairn_shape current;

    return cairn_shape_current(problem, &current) && current.dp == shape->dp &&
           current.pp == shape->pp &&
           memcmp(current.shares, shape->shares, sizeof current.shares) == 0 &&
           memcmp(current.layers, shape->layers, sizeof current.layers) == 0;
}

static bool
is_small(const struct cairn_shape *shape, uint32_t node_count)
{
    return shape->dp * shape->pp <= CAIRN_STAGES_MAX && node_count <= CAIRN_SHAPE_NODES_MAX;
}

/* A shape on these nodes, if it is faster than what was found. */
static void
offer_shape(const struct cairn_problem *problem, const struct cairn_shape *shape,
            const uint64_t *nodes, uint32_t node_count, struct proposal *out)
{
    if (!(shape->step_ms < out->step_ms) || !is_small(shape, node_count))
        return;
    out->step_ms = shape->step_ms;
    take_shape(problem, shape, nodes, node_count, out);
}

/* The nodes of the current plan in the order of ranks, and again from the slowest on. */
struct fleet {
    uint32_t count;
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];
    struct node_rate slowest[CAIRN_SHAPE_NODES_MAX];
};

static void
find_fleet(const struct cairn_problem *problem, const double *settled, struct fleet *out)
{
    out->count = cairn_shape_nodes(problem, out->nodes);
    for (uint32_t i = 0; i < out->count; i++)
        out->slowest[i] =
            (struct node_rate){out->nodes[i], rate_of_node(problem, settled, out->nodes[i])};
    qsort(out->slowest, out->count, sizeof *out->slowest, compare_rates);
}

/* The best of all nodes, and of all without the 1, 2, … slowest; step_ms INFINITY: none. */
static void
find_best(const struct cairn_problem *problem, const struct fleet *fleet, uint64_t reads,
          const struct cairn_shape_rules *rules, struct proposal *out)
{
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];

    for (uint32_t without = 0; without < fleet->count; without++) {
        struct cairn_shape shape;
        uint32_t left = 0;

        if (without > 0 &&
            (!(reads & OPERATOR_READS_NODES) || !(fleet->slowest[without - 1].rate > 1)))
            return;
        for (uint32_t i = 0; i < fleet->count; i++) {
            bool leaves = false;

            for (uint32_t k = 0; k < without; k++)
                leaves |= fleet->slowest[k].node == fleet->nodes[i];
            if (!leaves)
                nodes[left++] = fleet->nodes[i];
        }
        if (cairn_shape_find(problem, nodes, left, rules, &shape) == CAIRN_OK &&
            (without > 0 || !is_current(problem, &shape)))
            offer_shape(problem, &shape, nodes, left, out);
    }
}

/* Gives the devices of a node the rates and memory of another's, and those theirs. False: one has
 * more devices. */
static bool
exchange_devices(struct cairn_problem *problem, uint64_t node, uint64_t other)
{
    struct cairn_device *devices = problem->devices;
    uint32_t from = 0, to = 0, count = problem->device_count;

    for (;;) {
        struct cairn_device kept;

        while (from < count && devices[from].node != node)
            from++;
        while (to < count && devices[to].node != other)
            to++;
        if (from == count || to == count)
            return from == to;
        kept = devices[from];
        devices[from].rate = devices[to].rate;
        devices[from].memory_bytes = devices[to].memory_bytes;
        devices[to].rate = kept.rate;
        devices[to].memory_bytes = kept.memory_bytes;
        from++;
        to++;
    }
}

/* Whether a node that stands by has devices, and the current plan none of them. */
static bool
is_extra(const struct cairn_problem *problem, const struct fleet *fleet, uint64_t node)
{
    bool has_devices = false;

    for (uint32_t i = 0; i < problem->device_count; i++)
        has_devices |= problem->devices[i].node == node && problem->devices[i].rate > 0;
    for (uint32_t i = 0; i < fleet->count; i++)
        if (fleet->nodes[i] == node)
            return false;
    return has_devices;
}

/* Nodes that stand by take the places of the 1, 2, … slowest, and have their ranks. The problem's
 * devices are exchanged on the way. */
static void
find_exchange(struct cairn_problem *problem, const struct fleet *fleet,
              const struct operator_standby *standby, uint64_t reads,
              const struct cairn_shape_rules *rules, struct proposal *out)
{
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];
    struct cairn_shape shape;
    uint32_t slowest = 0;

    memcpy(nodes, fleet->nodes, sizeof nodes);
    for (uint32_t i = 0; i < standby->count && slowest < fleet->count; i++) {
        uint64_t slow = fleet->slowest[slowest].node;

        if (!(fleet->slowest[slowest].rate > 1))
            return;
        if (!is_extra(problem, fleet, standby->nodes[i]))
            continue;
        if (!exchange_devices(problem, slow, standby->nodes[i]))
            return;
        for (uint32_t k = 0; k < fleet->count; k++)
            if (fleet->nodes[k] == slow)
                nodes[k] = standby->nodes[i];
        slowest++;
        if (cairn_shape_current(problem, &shape))
            offer_shape(problem, &shape, nodes, fleet->count, out);
        if ((reads & OPERATOR_READS_SHAPE) &&
            cairn_shape_find(problem, fleet->nodes, fleet->count, rules, &shape) == CAIRN_OK)
            offer_shape(problem, &shape, nodes, fleet->count, out);
    }
}

static void
find_shape(struct cairn_problem *problem, const double *settled, uint64_t reads,
           const struct operator_standby *standby, struct proposal *out)
{
    const struct cairn_shape_rules rules = {.has_stages = reads & OPERATOR_READS_STAGES,
                                            .has_layers = reads & OPERATOR_READS_LAYERS,
                                            .has_shares = reads & OPERATOR_READS_SHARES};
    struct fleet fleet;

    find_fleet(problem, settled, &fleet);
    find_best(problem, &fleet, reads, &rules, out);
    find_exchange(problem, &fleet, standby, reads, &rules, out);
}

bool
proposal_make_relaunch(const struct cairn_adviser *adviser, uint64_t reads,
                       const struct operator_standby *standby, double running_ms, double cost_ms,
                       struct proposal *out)
{
    const double *settled = cairn_adviser_settled(adviser);
    const struct cairn_offers *offers = cairn_adviser_offers(adviser);
    struct cairn_problem problem = *cairn_adviser_problem(adviser);
    const struct cairn_device *devices = problem.devices;

    *out = (struct proposal){.action = CAIRN_REPLAN_GROUPS,
                             .current_ms = offers ? offers->current_ms : (double)INFINITY,
                             .step_ms = INFINITY,
                             .running_ms = running_ms,
                             .bound_ms = offers ? offers->bound_ms : (double)INFINITY,
                             .cost_ms = cost_ms};
    problem.devices = malloc((problem.device_count + 1) * sizeof *problem.devices);
    for (uint32_t i = 0; problem.devices && i < problem.device_count; i++) {
        problem.devices[i] = devices[i];
        problem.devices[i].rate *= settled[i];
    }
    if (problem.devices)
        find_shape(&problem, settled, reads, standby, out);
    free(problem.devices);
    if (!(out->step_ms < INFINITY) || out->step_ms > running_ms * (1 - PROPOSAL_LEAST_GAIN))
        return false;
    out->payback_steps =
        running_ms < INFINITY ? cairn_migration_payback(cost_ms, running_ms - out->step_ms) : 0;
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++)
        out->alternatives[i] =
            offers ? offers->offers[i] : (struct cairn_offer){INFINITY, INFINITY};
    proposal_find_slow(adviser, &out->slow);
    return true;
}

bool
proposal_make_home_shape(const struct cairn_adviser *adviser, double cost_ms, struct proposal *out)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    uint64_t nodes[CAIRN_SHAPE_NODES_MAX];
    uint32_t count = cairn_shape_nodes(problem, nodes);
    struct cairn_shape shape;

    if (count == 0 || !cairn_shape_current(problem, &shape) || !is_small(&shape, count))
        return false;
    *out = (struct proposal){.is_home = true,
                             .action = CAIRN_REPLAN_NONE,
                             .current_ms = INFINITY,
                             .step_ms = shape.step_ms,
                             .running_ms = INFINITY,
                             .bound_ms = INFINITY,
                             .cost_ms = cost_ms};
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++)
        out->alternatives[i] = (struct cairn_offer){INFINITY, INFINITY};
    take_shape(problem, &shape, nodes, count, out);
    return true;
}
