/*
 * replan/profile/memory.h - what a problem's layers hold, from the most that the devices of a
 * running plan held.
 */
#ifndef CAIRN_REPLAN_PROFILE_MEMORY_H
#define CAIRN_REPLAN_PROFILE_MEMORY_H

#include "replan/profile/fit.h"

struct cairn_profiled_memory {
    uint32_t devices; /* of the plan that were measured; 0: unknown */
    uint32_t outside; /* measured, but in no stage of the plan */
    struct cairn_memory_told told;
    bool contradicts;     /* by them layers hold nothing: they are not layers alone, and nothing was
                       * taken from them */
    struct cairn_fit fit; /* where anything is told */
    double off_worst;     /* what the problem says now of a device over what was measured, less 1,
                           * where that is furthest from nothing */
};

/*
 * Sets those of layer_bytes, activation_bytes and reserved_bytes that memory_bytes[rank_count] (0:
 * not measured) tell, by the formula of docs/PLANNER.md; the others stay. problem->current is the
 * plan that ran, which cairn_profile_take has checked; ids of devices are ranks. CAIRN_NOMEM, with
 * the problem as it was.
 */
CAIRN_MUST_CHECK cairn_err cairn_profile_memory(struct cairn_problem *problem,
                                                const uint64_t *memory_bytes, uint32_t rank_count,
                                                struct cairn_profiled_memory *out);

#endif
