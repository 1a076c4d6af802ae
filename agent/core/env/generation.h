/* agent/core/env/generation.h - order of generations. */
#ifndef CAIRN_AGENT_CORE_ENV_GENERATION_H
#define CAIRN_AGENT_CORE_ENV_GENERATION_H

#include "snapshot/generation.h"

#include <stdbool.h>

static inline bool
generation_is(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) == 0;
}

static inline bool
generation_later(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) > 0;
}

/* Without the run: a spilled generation keeps its epoch and step only. */
static inline bool
generation_is_older(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.step < b.step;
}

#endif
