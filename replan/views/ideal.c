/*
 * replan/views/ideal.c - the operations of a timeline replayed as if nothing were slow.
 *
 * A gap takes the lower median of the gaps in the same place of a step, over the steps and over the
 * ranks of the stage; a transfer that of its kind: the same kind of communicator, operation and
 * size. Then every operation begins when what it followed has begun or ended, and ends when the
 * last has come and the transfer is over.
 */
#include "replan/views/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value among those that should be equal to it. */
struct sample {
    uint64_t key, bytes;
    double value_ns; /* NaN: it has none, and takes the others' */
    size_t index;
};

static int
compare_samples(const void *left, const void *right)
{
    const struct sample *a = left, *b = right;

    if (a->key != b->key)
        return a->key > b->key ? 1 : -1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? 1 : -1;
    if (isnan(a->value_ns) || isnan(b->value_ns)) /* last */
        return isnan(a->value_ns) - isnan(b->value_ns);
    return a->value_ns > b->value_ns ? 1 : a->value_ns < b->value_ns ? -1 : 0;
}

/* Gives each sample the lower median of its equals, 0 where none of them has a value. */
static void
level(struct sample *samples, size_t count)
{
    qsort(samples, count, sizeof *samples, compare_samples);
    for (size_t i = 0, next; i < count; i = next) {
        size_t known = 0;
        double middle_ns = 0;

        for (next = i; next < count && samples[next].key == samples[i].key &&
                       samples[next].bytes == samples[i].bytes;
             next++)
            known += isnan(samples[next].value_ns) ? 0 : 1;
        if (known > 0)
            middle_ns = samples[i + (known - 1) / 2].value_ns;
        for (size_t k = i; k < next; k++)
            samples[k].value_ns = middle_ns;
    }
}

static void
level_gaps(const struct cairn_topology *topology, struct cairn_span *spans, size_t count,
           struct sample *samples)
{
    uint32_t place = 0;

    for (size_t i = 0; i < count; i++) {
        bool first = spans[i].before == UINT32_MAX;

        place = first || spans[i].step != spans[i - 1].step ? 0 : place + 1;
        samples[i] = (struct sample){.key = (uint64_t)topology->stage[spans[i].rank] << 40 |
                                            (uint64_t)(place & 0xffffff) << 8 |
                                            (uint64_t)first << 7 | spans[i].op,
                                     .value_ns = first ? spans[i].start_ns : spans[i].gap_ns,
                                     .index = i};
    }
    level(samples, count);
    for (size_t i = 0; i < count; i++)
        spans[samples[i].index].ideal_gap_ns = samples[i].value_ns;
}

static uint64_t
kind_of(const struct cairn_topology *topology, const struct cairn_span *span)
{
    if (span->op == CAIRN_SEND || span->op == CAIRN_RECV)
        return cairn_topology_apart(topology, span->rank, span->peer);
    return 2 + (((uint64_t)topology->comms[span->comm].kind << 8 | span->op) << 1 |
                topology->comms[span->comm].crosses);
}

/* Puts into transfer_ns[operation_count] what each operation takes once the last has come. */
static void
level_transfers(const struct cairn_topology *topology, const struct cairn_span *spans, size_t count,
                uint32_t operation_count, struct sample *samples, double *transfer_ns)
{
    for (uint32_t i = 0; i < operation_count; i++)
        samples[i] = (struct sample){.value_ns = (double)NAN, .index = i};
    for (size_t i = 0; i < count; i++) {
        struct sample *sample = &samples[spans[i].operation];

        sample->key = kind_of(topology, &spans[i]);
        sample->bytes = spans[i].bytes > sample->bytes ? spans[i].bytes : sample->bytes;
        if (!spans[i].open) /* fmin passes over the NaN it begins with */
            sample->value_ns = fmin(sample->value_ns, spans[i].end_ns - spans[i].start_ns);
    }
    level(samples, operation_count);
    for (uint32_t i = 0; i < operation_count; i++)
        transfer_ns[samples[i].index] = samples[i].value_ns;
}

struct replay {
    struct cairn_span *spans;
    size_t *rank_next, *rank_end;  /* [world] of its spans */
    size_t *part_begin, *parts;    /* spans of operation i: parts[part_begin[i] …] */
    uint32_t *missing;             /* parts that have not begun */
    double *last_ns, *transfer_ns; /* of each operation */
    uint32_t *ready;               /* ranks that may go on */
    size_t ready_count;
};

static void
end_operation(struct replay *replay, uint32_t operation)
{
    for (size_t i = replay->part_begin[operation]; i < replay->part_begin[operation + 1]; i++) {
        struct cairn_span *span = &replay->spans[replay->parts[i]];

        span->ideal_end_ns = replay->last_ns[operation] + replay->transfer_ns[operation];
        replay->ready[replay->ready_count++] = span->rank;
    }
}

/* Begins a rank's operations up to one that follows the end of something that has not ended. */
static void
go_on(struct replay *replay, uint32_t rank)
{
    while (replay->rank_next[rank] < replay->rank_end[rank]) {
        struct cairn_span *span = &replay->spans[replay->rank_next[rank]];
        double point_ns = 0;

        if (span->before != UINT32_MAX)
            point_ns = span->after_start ? replay->spans[span->before].ideal_start_ns
                                         : replay->spans[span->before].ideal_end_ns;
        if (isnan(point_ns))
            return;
        span->ideal_start_ns = point_ns + span->ideal_gap_ns;
        replay->last_ns[span->operation] =
            fmax(replay->last_ns[span->operation], span->ideal_start_ns);
        replay->rank_next[rank]++;
        if (--replay->missing[span->operation] == 0)
            end_operation(replay, span->operation);
    }
}

static void
index_spans(struct replay *replay, size_t count, uint32_t operation_count)
{
    for (size_t i = 0; i < count; i++) {
        struct cairn_span *span = &replay->spans[i];

        span->ideal_start_ns = span->ideal_end_ns = (double)NAN;
        if (i == 0 || span[-1].rank != span->rank) {
            replay->rank_next[span->rank] = i;
            replay->ready[replay->ready_count++] = span->rank;
        }
        replay->rank_end[span->rank] = i + 1;
        replay->missing[span->operation]++;
        replay->part_begin[span->operation + 1]++;
    }
    for (uint32_t i = 0; i < operation_count; i++)
        replay->part_begin[i + 1] += replay->part_begin[i];
    for (size_t i = count; i-- > 0;) /* from behind: each part_begin goes to the end and back */
        replay->parts[--replay->part_begin[replay->spans[i].operation + 1]] = i;
    for (uint32_t i = 0; i < operation_count; i++)
        replay->part_begin[i] = replay->part_begin[i + 1];
    replay->part_begin[operation_count] = count;
}

cairn_err
cairn_ideal_replay(const struct cairn_topology *topology, struct cairn_span *spans, size_t count,
                   uint32_t operation_count)
{
    struct sample *samples = malloc((count + 1) * sizeof *samples);
    struct replay replay = {.spans = spans};
    cairn_err err = CAIRN_NOMEM;

    replay.rank_next = calloc(topology->world, sizeof *replay.rank_next);
    replay.rank_end = calloc(topology->world, sizeof *replay.rank_end);
    replay.part_begin = calloc((size_t)operation_count + 2, sizeof *replay.part_begin);
    replay.parts = calloc(count + 1, sizeof *replay.parts);
    replay.missing = calloc((size_t)operation_count + 1, sizeof *replay.missing);
    replay.last_ns = calloc((size_t)operation_count + 1, sizeof *replay.last_ns);
    replay.transfer_ns = calloc((size_t)operation_count + 1, sizeof *replay.transfer_ns);
    replay.ready = calloc(count + topology->world + 1, sizeof *replay.ready);
    if (!samples || !replay.rank_next || !replay.rank_end || !replay.part_begin || !replay.parts ||
        !replay.missing || !replay.last_ns || !replay.transfer_ns || !replay.ready)
        goto done;
    level_gaps(topology, spans, count, samples);
    level_transfers(topology, spans, count, operation_count, samples, replay.transfer_ns);
    index_spans(&replay, count, operation_count);
    while (replay.ready_count > 0)
        go_on(&replay, replay.ready[--replay.ready_count]);
    err = CAIRN_OK;
done:
    free(samples);
    free(replay.rank_next);
    free(replay.rank_end);
    free(replay.part_begin);
    free(replay.parts);
    free(replay.missing);
    free(replay.last_ns);
    free(replay.transfer_ns);
    free(replay.ready);
    return err;
}
