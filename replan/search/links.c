/* replan/search/links.c - keeps the reduction over pipelines off slow links. */
#include "replan/search/links.h"

#include "replan/search/migrate.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGES_MAX = 2048,
    PASSES_MAX = 8,
    CANDIDATES_MAX = 256,
    WORK_MAX = 32 * 1024 * 1024, /* stages looked at, in all passes: a fifth of a second */
    NO_SLOW_LINK = UINT32_MAX,
    SEVERAL = UINT32_MAX /* pipelines that hold a layer */
};

/* A stage's place in the plan, and the group that fills it. */
struct place {
    uint32_t pipeline;
    uint32_t first_layer;
    uint32_t layer_end;
    uint64_t node; /* of the group */
    struct cairn_stage_kind kind;
    uint32_t slow_node; /* the node's place among the ends of slow links, or NO_SLOW_LINK */
};

struct links {
    const struct cairn_problem *problem;
    struct cairn_plan *plan;
    struct place *places; /* [stage_count] */
    double *prices;       /* [end_count * end_count] of a layer reduced between two nodes; 0: their
                           * link is as fast as others */
    uint32_t end_count;   /* of slow links */
    uint64_t work_left;
};

/* The first of all ends of slow links that is a node. */
static uint32_t
slow_node_of(const struct cairn_problem *problem, uint64_t node)
{
    for (uint32_t i = 0; i < 2 * problem->slow_link_count; i++)
        if (problem->slow_links[i / 2].nodes[i % 2] == node)
            return i;
    return NO_SLOW_LINK;
}

static double *
prices_of(const struct cairn_problem *problem)
{
    uint32_t ends = 2 * problem->slow_link_count;
    double *prices = calloc((size_t)ends * ends + 1, sizeof(*prices));

    for (uint32_t i = 0; prices && i < problem->slow_link_count; i++) {
        const struct cairn_slow_link *link = &problem->slow_links[i];
        uint32_t left = slow_node_of(problem, link->nodes[0]),
                 right = slow_node_of(problem, link->nodes[1]);

        prices[(size_t)left * ends + right] = prices[(size_t)right * ends + left] = 1 / link->gbps;
    }
    return prices;
}

static uint32_t
shared_layers(const struct place *left, const struct place *right)
{
    uint32_t first =
        left->first_layer > right->first_layer ? left->first_layer : right->first_layer;
    uint32_t end = left->layer_end < right->layer_end ? left->layer_end : right->layer_end;

    return left->pipeline != right->pipeline && end > first ? end - first : 0;
}

static struct place *
places_of(const struct cairn_problem *problem, const struct cairn_plan *plan)
{
    struct place *places = calloc((size_t)plan->stage_count + 1, sizeof(*places));

    for (uint32_t i = 0; places && i < plan->pipeline_count; i++)
        for (uint32_t j = 0; j < plan->pipelines[i].stage_count; j++) {
            uint32_t at = plan->pipelines[i].first_stage + j;
            const struct cairn_plan_stage *stage = &plan->stages[at];
            uint32_t device =
                cairn_problem_device_find(problem, plan->devices[stage->first_device]);

            places[at] = (struct place){.pipeline = i,
                                        .first_layer = stage->first_layer,
                                        .layer_end = stage->first_layer + stage->layer_count,
                                        .node = problem->devices[device].node,
                                        .kind = cairn_stage_kind_of(problem, plan, stage)};
            places[at].slow_node = slow_node_of(problem, places[at].node);
        }
    return places;
}

/* Which pipeline holds each layer on a node: its number and 1, 0: none, or SEVERAL. */
static void
find_holders(const struct place *places, uint32_t stage_count, uint32_t slow_node, uint32_t layers,
             uint32_t *holders)
{
    memset(holders, 0, layers * sizeof(*holders));
    for (uint32_t i = 0; i < stage_count; i++)
        for (uint32_t k = places[i].first_layer;
             places[i].slow_node == slow_node && k < places[i].layer_end; k++)
            holders[k] = holders[k] == 0 || holders[k] == places[i].pipeline + 1
                             ? places[i].pipeline + 1
                             : SEVERAL;
}

cairn_err
cairn_links_slow_layers(const struct cairn_problem *problem, const struct cairn_plan *plan,
                        uint32_t *layers)
{
    struct place *places = places_of(problem, plan);
    uint32_t *left = calloc((size_t)problem->layers + 1, sizeof(*left));
    uint32_t *right = calloc((size_t)problem->layers + 1, sizeof(*right));
    bool *slow = calloc((size_t)problem->layers + 1, sizeof(*slow));
    cairn_err err = places && left && right && slow ? CAIRN_OK : CAIRN_NOMEM;

    *layers = 0;
    for (uint32_t i = 0; !err && i < problem->slow_link_count; i++) {
        const struct cairn_slow_link *link = &problem->slow_links[i];

        find_holders(places, plan->stage_count, slow_node_of(problem, link->nodes[0]),
                     problem->layers, left);
        find_holders(places, plan->stage_count, slow_node_of(problem, link->nodes[1]),
                     problem->layers, right);
        for (uint32_t k = 0; k < problem->layers; k++) /* two pipelines, one on each side */
            slow[k] = slow[k] || (left[k] != 0 && right[k] != 0 &&
                                  (left[k] == SEVERAL || left[k] != right[k]));
    }
    for (uint32_t i = 0; !err && i < problem->layers; i++)
        *layers += slow[i];
    free(places);
    free(left);
    free(right);
    free(slow);
    return err;
}

/* What is reduced over slow links between two places. */
static double
price_between(const struct links *links, const struct place *left, const struct place *right)
{
    if (left->slow_node == NO_SLOW_LINK || right->slow_node == NO_SLOW_LINK)
        return 0;
    return shared_layers(left, right) *
           links->prices[(size_t)left->slow_node * links->end_count + right->slow_node];
}

/* The same of two places' groups, with all others and with one another. */
static double
price_of_pair(const struct links *links, uint32_t left, uint32_t right)
{
    const struct place *places = links->places;
    double price = price_between(links, &places[left], &places[right]);

    for (uint32_t i = 0; i < links->plan->stage_count; i++)
        if (i != left && i != right)
            price += price_between(links, &places[left], &places[i]) +
                     price_between(links, &places[right], &places[i]);
    return price;
}

/* Two places' groups change places; only what belongs to the group does. */
static void
exchange(struct links *links, uint32_t left, uint32_t right)
{
    struct place *a = &links->places[left], *b = &links->places[right];
    struct cairn_plan_stage *stages = links->plan->stages;
    uint64_t node = a->node;
    uint32_t slow_node = a->slow_node, first_device = stages[left].first_device;

    a->node = b->node;
    a->slow_node = b->slow_node;
    b->node = node;
    b->slow_node = slow_node;
    stages[left].first_device = stages[right].first_device;
    stages[right].first_device = first_device;
}

static bool
are_alike(const struct links *links, uint32_t left, uint32_t right)
{
    const struct cairn_stage_kind *a = &links->places[left].kind, *b = &links->places[right].kind;

    return links->plan->stages[left].device_count == links->plan->stages[right].device_count &&
           !(a->rate < b->rate) && !(b->rate < a->rate) && a->memory_bytes == b->memory_bytes;
}

/* Gives a group that reduces over a slow link the place where least is; false where none is better,
 * or the work is done that is allowed for. */
static bool
move(struct links *links, uint32_t at)
{
    uint32_t best = at, tried = 0;
    double most_saved = 1e-12;

    for (uint32_t i = 0;
         i < links->plan->stage_count && tried < CANDIDATES_MAX && links->work_left > 0; i++) {
        uint64_t work = 2 * (uint64_t)links->plan->stage_count;
        double before, after;

        if (i == at || !are_alike(links, at, i) || links->places[i].node == links->places[at].node)
            continue;
        tried++;
        links->work_left -= work < links->work_left ? work : links->work_left;
        before = price_of_pair(links, at, i);
        exchange(links, at, i);
        after = price_of_pair(links, at, i);
        exchange(links, at, i);
        if (before - after > most_saved) {
            most_saved = before - after;
            best = i;
            if (after <= 0)
                break; /* neither is in a reduction over a slow link any more */
        }
    }
    if (best != at)
        exchange(links, at, best);
    return best != at;
}

cairn_err
cairn_links_settle(const struct cairn_problem *problem, struct cairn_plan *plan)
{
    struct links links = {.problem = problem,
                          .plan = plan,
                          .end_count = 2 * problem->slow_link_count,
                          .work_left = WORK_MAX};
    bool moved = true;

    if (problem->slow_link_count == 0 || plan->stage_count > STAGES_MAX)
        return CAIRN_OK;
    links.places = places_of(problem, plan);
    links.prices = prices_of(problem);
    if (!links.places || !links.prices) {
        free(links.places);
        free(links.prices);
        return CAIRN_NOMEM;
    }
    for (uint32_t pass = 0; moved && pass < PASSES_MAX; pass++) {
        moved = false;
        for (uint32_t i = 0; i < plan->stage_count; i++)
            if (links.places[i].slow_node != NO_SLOW_LINK)
                moved = move(&links, i) || moved;
    }
    free(links.places);
    free(links.prices);
    return CAIRN_OK;
}
