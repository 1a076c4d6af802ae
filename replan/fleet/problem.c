/* replan/fleet/problem.c - small questions about a problem, and its end. */
#include "replan/fleet/problem.h"
#include "base/array.h"

#include "replan/fleet/plan.h"

#include <stdlib.h>

void
cairn_problem_fini(struct cairn_problem *problem)
{
    free(problem->devices);
    free(problem->slow_links);
    cairn_plan_destroy(problem->current);
    *problem = (struct cairn_problem){0};
}

double
cairn_problem_work_layers(const struct cairn_problem *problem)
{
    return problem->layers + problem->embed_layers + problem->head_layers;
}

uint32_t
cairn_problem_device_find(const struct cairn_problem *problem, uint64_t id)
{
    uint32_t low = 0, high = problem->device_count;

    CAIRN_BISECT(low, high, middle, problem->devices[middle].id < id);
    return low < problem->device_count && problem->devices[low].id == id ? low
                                                                         : problem->device_count;
}
