/*
 * tests/fuzz/fuzz_recording.c - recordings of a node's ranks as a hostile agent may send them:
 * refused, or a trace whose records are within its topology, in the order of steps.
 */
#include "base/assert.h"
#include "replan/live/merge.h"
#include "replan/live/recording.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORLD_MAX = 256 };

/* True if a recording names more ranks than are tried here; they are as right, and slow. */
static bool
is_large(const uint8_t *data, size_t size)
{
    struct cairn_reader reader;
    struct cairn_recorded_rank rank;

    cairn_reader_init(&reader, data, size);
    cairn_recorded_unpack_rank(&reader, &rank);
    return !reader.failed && rank.world > WORLD_MAX;
}

static void
check(const struct cairn_merge *merge, const struct cairn_record *record, uint32_t *step)
{
    const struct cairn_topology *topology = cairn_merge_topology(merge);

    CAIRN_ASSERT(record->rank < topology->world);
    if (record->op == 0)
        return;
    CAIRN_ASSERT(record->op < CAIRN_OPS && record->step >= *step);
    CAIRN_ASSERT(record->end_ns == 0 || record->end_ns >= record->start_ns);
    *step = record->step;
    if (record->op >= CAIRN_SEND)
        CAIRN_ASSERT(record->peer < topology->world && record->peer != record->rank);
    else
        CAIRN_ASSERT(cairn_topology_member(topology, record->rank, record->comm));
}

/* The first byte tells where the bytes are cut into those of two nodes. */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cairn_merge *merge;
    struct cairn_record record;
    uint32_t step = 0;
    size_t cut;

    if (size < 1)
        return 0;
    cut = (size - 1) * data[0] / 255;
    if (is_large(data + 1, cut) || is_large(data + 1 + cut, size - 1 - cut))
        return 0;
    CAIRN_ASSERT(cairn_merge_create(&merge) == CAIRN_OK);
    (void)!cairn_merge_add(merge, 0, data + 1, cut);
    (void)!cairn_merge_add(merge, 1, data + 1 + cut, size - 1 - cut);
    if (cairn_merge_finish(merge) == CAIRN_OK)
        while (cairn_merge_next(merge, &record))
            check(merge, &record, &step);
    cairn_merge_destroy(merge);
    return 0;
}
