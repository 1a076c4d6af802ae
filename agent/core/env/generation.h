/* agent/core/env/generation.h - order of generations, and their form in messages and records. */
#ifndef CAIRN_AGENT_CORE_ENV_GENERATION_H
#define CAIRN_AGENT_CORE_ENV_GENERATION_H

#include "base/wire.h"
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

/* In messages and in records: u64 epoch, step, run. */
static inline void
generation_write(struct cairn_writer *writer, struct cairn_generation_id generation)
{
    cairn_write_u64(writer, generation.epoch);
    cairn_write_u64(writer, generation.step);
    cairn_write_u64(writer, generation.run);
}

static inline struct cairn_generation_id
generation_read(struct cairn_reader *reader)
{
    struct cairn_generation_id generation;

    generation.epoch = cairn_read_u64(reader);
    generation.step = cairn_read_u64(reader);
    generation.run = cairn_read_u64(reader);
    return generation;
}

#endif
