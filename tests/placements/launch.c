/*
 * tests/placements/launch.c - the launchers of the job's nodes, which carry out an approved
 * relaunch; see world.h.
 */
#include "tests/placements/world.h"

#include <string.h>

bool
launch_is_reshaped(const struct world *world)
{
    return world->launch.shape != 0 && !world->launch.runs.is_home;
}

void
launch_forget(struct world *world)
{
    world->launch.shape = 0;
    memset(&world->launch.runs, 0, sizeof world->launch.runs);
}

/* The relaunch that the agents of all nodes show as approved; NULL: there is none. */
static const struct proposal *
shown(const struct world *world)
{
    const struct proposal *shape = NULL;

    for (uint32_t i = 0; i < RANKS; i++) {
        const struct proposal *own;

        if (!world->agents[i].analyst)
            return NULL;
        own = &analyst_book(world->agents[i].analyst)->shape;
        if (own->placement.count == 0 ||
            (shape && (own->placement.number != shape->placement.number ||
                       proposal_full_name(own) != proposal_full_name(shape))))
            return NULL;
        shape = own;
    }
    return shape;
}

void
launch_tick(struct world *world)
{
    struct launch *launch = &world->launch;
    const struct proposal *shape = launch->is_there && world->down_ticks == 0 ? shown(world) : NULL;

    if (!shape || shape->placement.number == launch->tried) {
        launch->ticks = (uint32_t)random_below(&world->random, 6);
        return;
    }
    if (launch->ticks > 0) {
        launch->ticks--;
        return;
    }
    launch->tried = shape->placement.number;
    if (launch->is_divided)
        return;
    judge_relaunch(world, shape);
    launch->shape = shape->placement.number;
    launch->runs = *shape;
    world->counters.relaunches += !shape->is_home;
    world->counters.relaunches_home += shape->is_home;
    job_break(world);
}
