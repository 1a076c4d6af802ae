/* replan/links.c - keeps the reduction over pipelines off slow links. */
#include "replan/links.h"

#include "replan/migrate.h"

#include <stdlib.h>
#include <string.h>

enum { STAGES_MAX = 2048, PASSES_MAX = 8, CANDIDATES_MAX = 256 };

/* A stage's place in the plan, and the group that fills it. */
struct place {
    uint32_t pipeline;
    uint32_t first_layer;
    uint32_t layer_end;
    uint64_t node;                 /* of the group */
    struct cairn_stage_kind kind;
    bool has_slow_link;
};

struct links {
    const struct cairn_problem *problem;
    struct cairn_plan *plan;
    struct place *places; /* [stage_count] */
};

/* What a layer's reduction between two nodes costs: 0 where their link is as fast as others. */
static double
price_of(const struct cairn_problem *problem, uint64_t left, uint64_t right)
{
    for (uint32_t i = 0; i < problem->slow_link_count; i++) {
        const struct cairn_slow_link *link = &problem->slow_links[i];

        if ((link->nodes[0] == left && link->nodes[1] == right) ||
            (link->nodes[0] == right && link->nodes[1] == left))
            return 1 / link->gbps;
    }
    return 0;
}

static uint32_t
shared_layers(const struct place *left, const struct place *right)
{
    uint32_t first = left->first_layer > right->first_layer ? left->first_layer : right->first_layer;
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
            uint32_t device = cairn_problem_device_find(problem, plan->devices[stage->first_device]);

            places[at] = (struct place){.pipeline = i,
                                        .first_layer = stage->first_layer,
                                        .layer_end = stage->first_layer + stage->layer_count,
                                        .node = problem->devices[device].node,
                                        .kind = cairn_stage_kind_of(problem, plan, stage)};
            for (uint32_t k = 0; k < problem->slow_link_count; k++)
                places[at].has_slow_link = places[at].has_slow_link ||
                                           problem->slow_links[k].nodes[0] == places[at].node ||
                                           problem->slow_links[k].nodes[1] == places[at].node;
        }
    return places;
}

cairn_err
cairn_links_slow_layers(const struct cairn_problem *problem, const struct cairn_plan *plan, uint32_t *layers)
{
    struct place *places = places_of(problem, plan);
    bool *slow = calloc((size_t)problem->layers + 1, sizeof(*slow));
    cairn_err err = places && slow ? CAIRN_OK : CAIRN_NOMEM;

    *layers = 0;
    for (uint32_t i = 0; !err && i < plan->stage_count; i++)
        for (uint32_t j = i + 1; places[i].has_slow_link && j < plan->stage_count; j++) {
            uint32_t first = places[i].first_layer > places[j].first_layer ? places[i].first_layer
                                                                           : places[j].first_layer;

            if (!places[j].has_slow_link || price_of(problem, places[i].node, places[j].node) <= 0)
                continue;
            for (uint32_t k = 0; k < shared_layers(&places[i], &places[j]); k++)
                slow[first + k] = true;
        }
    for (uint32_t i = 0; !err && i < problem->layers; i++)
        *layers += slow[i];
    free(places);
    free(slow);
    return err;
}

/* What is reduced over slow links by two places' groups, with all others and with one another. */
static double
price_of_pair(const struct links *links, uint32_t left, uint32_t right)
{
    const struct place *places = links->places;
    double price = shared_layers(&places[left], &places[right]) *
                   price_of(links->problem, places[left].node, places[right].node);

    for (uint32_t i = 0; i < links->plan->stage_count; i++) {
        if (!places[i].has_slow_link || i == left || i == right)
            continue;
        if (places[left].has_slow_link)
            price += shared_layers(&places[left], &places[i]) *
                     price_of(links->problem, places[left].node, places[i].node);
        if (places[right].has_slow_link)
            price += shared_layers(&places[right], &places[i]) *
                     price_of(links->problem, places[right].node, places[i].node);
    }
    return price;
}

/* Two places' groups change places; only what belongs to the group does. */
static void
exchange(struct links *links, uint32_t left, uint32_t right)
{
    struct place *a = &links->places[left], *b = &links->places[right];
    struct cairn_plan_stage *stages = links->plan->stages;
    uint64_t node = a->node;
    bool has_slow_link = a->has_slow_link;
    uint32_t first_device = stages[left].first_device;

    a->node = b->node;
    a->has_slow_link = b->has_slow_link;
    b->node = node;
    b->has_slow_link = has_slow_link;
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

/* Gives a group that reduces over a slow link the place where least is; false where none is better. */
static bool
move(struct links *links, uint32_t at)
{
    uint32_t best = at, tried = 0;
    double most_saved = 1e-12;

    for (uint32_t i = 0; i < links->plan->stage_count && tried < CANDIDATES_MAX; i++) {
        double before, after;

        if (i == at || !are_alike(links, at, i) || links->places[i].node == links->places[at].node)
            continue;
        tried++;
        before = price_of_pair(links, at, i);
        exchange(links, at, i);
        after = price_of_pair(links, at, i);
        exchange(links, at, i);
        if (before - after > most_saved) {
            most_saved = before - after;
            best = i;
        }
    }
    if (best != at)
        exchange(links, at, best);
    return best != at;
}

cairn_err
cairn_links_settle(const struct cairn_problem *problem, struct cairn_plan *plan)
{
    struct links links = {.problem = problem, .plan = plan};
    bool moved = true;

    if (problem->slow_link_count == 0 || plan->stage_count > STAGES_MAX)
        return CAIRN_OK;
    links.places = places_of(problem, plan);
    if (!links.places)
        return CAIRN_NOMEM;
    for (uint32_t pass = 0; moved && pass < PASSES_MAX; pass++) {
        moved = false;
        for (uint32_t i = 0; i < plan->stage_count; i++)
            if (links.places[i].has_slow_link)
                moved = move(&links, i) || moved;
    }
    free(links.places);
    return CAIRN_OK;
}
