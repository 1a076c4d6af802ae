/*
 * snapshot/generation.h - the full name of a generation, as agents, clients and files know it.
 * Trainers see its epoch and step only (struct cairn_generation), whose size is part of the ABI.
 */
#ifndef CAIRN_SNAPSHOT_GENERATION_H
#define CAIRN_SNAPSHOT_GENERATION_H

#include "base/codec.h"
#include "cairn/types.h"

/*
 * Ordered by epoch, then run, then step. All zero: no generation. The epoch says which agents hold
 * it, the run which start of the trainers wrote it; a generation read from files has run 0.
 */
struct cairn_generation_id {
    uint64_t epoch;
    uint64_t step;
    uint64_t run;
};

/* An epoch's number, as people see it; the low bits name the agent that claimed the epoch. */
static inline uint64_t
cairn_epoch_number(uint64_t epoch)
{
    return epoch >> 16;
}

/* Returns -1, 0 or 1 if a is older than, the same as or newer than b. */
static inline int
cairn_generation_id_compare(struct cairn_generation_id a, struct cairn_generation_id b)
{
    if (a.epoch != b.epoch)
        return a.epoch < b.epoch ? -1 : 1;
    if (a.run != b.run)
        return a.run < b.run ? -1 : 1;
    if (a.step != b.step)
        return a.step < b.step ? -1 : 1;
    return 0;
}

static inline bool
cairn_generation_is(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) == 0;
}

static inline bool
cairn_generation_later(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return cairn_generation_id_compare(a, b) > 0;
}

/* Without the run: a spilled generation keeps its epoch and step only. */
static inline bool
cairn_generation_is_older(struct cairn_generation_id a, struct cairn_generation_id b)
{
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.step < b.step;
}

/* Codes u64 epoch, step, run. */
static inline void
cairn_generation_code(struct cairn_codec *codec, struct cairn_generation_id *value)
{
    cairn_codec_u64(codec, &value->epoch);
    cairn_codec_u64(codec, &value->step);
    cairn_codec_u64(codec, &value->run);
}

#endif
