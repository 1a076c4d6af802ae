/* tests/placements/planner.c - plans of the product's planner, kept by rates; see world.h. */
#include "tests/placements/world.h"
#include "tests/support/never.h"

#include "replan/fleet/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT_MAX = 1024 };

static const char problem_text[] =
    "{\"layers\": 8, \"layer_ms\": 4, \"microbatches\": 8, \"tp_cost\": {\"1\": 1}, "
    "\"layer_bytes\": 1000, \"link_gbps\": {\"intra\": 100, \"inter\": 10}, \"devices\": ["
    "{\"id\": 0, \"node\": 0, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 1, \"node\": 1, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 2, \"node\": 2, \"rate\": 1, \"memory_bytes\": 7000},"
    "{\"id\": 3, \"node\": 3, \"rate\": 1, \"memory_bytes\": 7000}],"
    "\"current\": {\"pipelines\": ["
    "{\"microbatches\": 4, \"stages\": [{\"devices\": [0], \"layers\": [0, 4]}, "
    "{\"devices\": [1], \"layers\": [4, 8]}]},"
    "{\"microbatches\": 4, \"stages\": [{\"devices\": [2], \"layers\": [0, 4]}, "
    "{\"devices\": [3], \"layers\": [4, 8]}]}]}}";

struct kept {
    double rate[RANKS];
    struct cairn_offers offers;
};

static struct kept kept[KEPT_MAX];
static uint32_t kept_count;

static void
must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "placements: %s\n", what);
    exit(1);
}

struct cairn_adviser *
planner_adviser(void)
{
    struct cairn_problem problem = {0};
    struct cairn_adviser *adviser = NULL;
    struct cairn_fault fault;

    must(cairn_problem_read(problem_text, sizeof problem_text - 1, &problem, &fault) == CAIRN_OK &&
             cairn_adviser_create(&problem, &adviser, &fault) == CAIRN_OK,
         "no memory for an adviser");
    return adviser;
}

static struct cairn_plan *
copy_of(const struct cairn_plan *plan)
{
    struct cairn_plan *copy = NULL;

    if (!plan)
        return NULL;
    must(cairn_plan_create(plan->pipeline_count, plan->stage_count, plan->device_count, &copy) ==
             CAIRN_OK,
         "no memory for a plan");
    memcpy(copy->pipelines, plan->pipelines, plan->pipeline_count * sizeof *plan->pipelines);
    memcpy(copy->stages, plan->stages, plan->stage_count * sizeof *plan->stages);
    memcpy(copy->devices, plan->devices, plan->device_count * sizeof *plan->devices);
    copy->pipeline_count = plan->pipeline_count;
    copy->stage_count = plan->stage_count;
    copy->device_count = plan->device_count;
    return copy;
}

static const struct cairn_offers *
find(const struct cairn_problem *problem)
{
    static const struct cairn_offer_costs nothing = {.restart_ms = INFINITY};
    const struct cairn_stop stop = {never, NULL};
    struct kept *found;

    for (uint32_t i = 0; i < kept_count; i++) {
        bool is_same = true;

        for (uint32_t r = 0; r < RANKS; r++)
            is_same &= fabs(kept[i].rate[r] - problem->devices[r].rate) < 1e-9;
        if (is_same)
            return &kept[i].offers;
    }
    if (kept_count == KEPT_MAX) {
        kept_count--;
        cairn_offers_fini(&kept[kept_count].offers);
    }
    found = &kept[kept_count++];
    for (uint32_t r = 0; r < RANKS; r++)
        found->rate[r] = problem->devices[r].rate;
    must(cairn_offers_make(problem, &nothing, &stop, &found->offers) == CAIRN_OK,
         "the planner failed");
    return &found->offers;
}

void
planner_offers(const struct cairn_problem *problem, const struct cairn_offer_costs *costs,
               struct cairn_offers *out)
{
    const struct cairn_offers *found = find(problem);

    *out = *found;
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++)
        out->plans[i] = copy_of(found->plans[i]);
    out->offers[CAIRN_REPLAN_LAYERS].cost_ms += costs->layers_ms;
    out->offers[CAIRN_REPLAN_GROUPS].cost_ms += costs->pause_ms;
}

double
planner_step_ms(const struct cairn_session_shares *placement, const double rate[RANKS])
{
    double slowest = 0;

    for (uint32_t r = 0; r < REPLICAS; r++) {
        double sum = 0, most = 0;

        for (uint32_t s = 0; s < STAGES; s++) {
            double ms = 4 * placement->layers[r * STAGES + s] * rate[r * STAGES + s];

            sum += ms;
            most = fmax(most, ms);
        }
        slowest = fmax(slowest, sum + (placement->parts[r] - 1) * most);
    }
    return slowest;
}

void
planner_home(struct cairn_session_shares *out)
{
    *out = (struct cairn_session_shares){
        .count = REPLICAS, .parts = {4, 4}, .stages = STAGES, .layers = {4, 4, 4, 4}};
}
