/*
 * snapshot/manifest_check.c - see manifest_check.h; the numbers of the invariants are those of
 * manifest.h.
 */
#include "snapshot/manifest_check.h"

#include "base/limits.h"

#include <stdlib.h>

/* A key to sort by: bytes of the container, or a rank's number. */
struct span {
    uint64_t begin, end;
};
struct numbered_rank {
    uint32_t number, index;
};
static int
compare_spans(const void *left, const void *right)
{
    const struct span *a = left, *b = right;

    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

static int
compare_ranks(const void *left, const void *right)
{
    const struct numbered_rank *a = left, *b = right;

    return (a->number > b->number) - (a->number < b->number);
}

/* Room for `count` things, and for one more so that no room is none. */
static void *
new_array(uint64_t count, size_t bytes)
{
    return count < SIZE_MAX / bytes ? malloc((size_t)(count + 1) * bytes) : NULL;
}

/* Invariants 1 and 2, but for the distinctness of ranks. */
static bool
regions_are_sound(const struct cairn_manifest *manifest)
{
    uint64_t whole = manifest->container_bytes / CAIRN_BLOCK_BYTES;
    uint64_t at = 0;

    if (manifest->container >= manifest->container_count || manifest->container_bytes > INT64_MAX ||
        manifest->block_count != whole + (manifest->container_bytes % CAIRN_BLOCK_BYTES > 0))
        return false;
    for (uint32_t i = 0; i < manifest->rank_count; i++) {
        const struct cairn_manifest_rank *rank = &manifest->ranks[i];

        if (rank->rank >= rank->world || rank->region_offset % CAIRN_BLOCK_BYTES != 0 ||
            rank->region_bytes % CAIRN_BLOCK_BYTES != 0 || rank->region_offset < at ||
            rank->region_offset > manifest->container_bytes ||
            rank->region_bytes > manifest->container_bytes - rank->region_offset)
            return false;
        at = rank->region_offset + rank->region_bytes;
    }
    return true;
}

/* The region of a rank, NULL where there is none. */
static const struct cairn_manifest_rank *
region_of(const struct cairn_manifest *manifest, const struct numbered_rank *order, uint32_t number)
{
    struct numbered_rank key = {number, 0};
    const struct numbered_rank *found =
        bsearch(&key, order, manifest->rank_count, sizeof *order, compare_ranks);

    return found ? &manifest->ranks[found->index] : NULL;
}

/* Invariant 3 of one entry and 4 but for overlaps; *span gets its bytes. */
static bool
entry_is_sound(const struct cairn_manifest *manifest, const struct numbered_rank *order,
               const struct cairn_manifest_entry *entry, struct span *span)
{
    uint64_t low = 0, high = manifest->container_bytes;

    if (cairn_slice_check(&entry->slice, NULL) != CAIRN_OK)
        return false;
    if (manifest->rank_count > 0) {
        const struct cairn_manifest_rank *region = region_of(manifest, order, entry->rank);

        if (!region)
            return false;
        low = region->region_offset;
        high = low + region->region_bytes;
    }
    if (entry->offset_bytes < low || entry->offset_bytes > high ||
        cairn_capture_bytes(entry) > high - entry->offset_bytes)
        return false;
    span->begin = entry->offset_bytes;
    span->end = entry->offset_bytes + cairn_capture_bytes(entry);
    return true;
}

static bool
spans_are_disjoint(struct span *spans, size_t count)
{
    size_t sorted = 1;

    while (sorted < count && compare_spans(&spans[sorted - 1], &spans[sorted]) <= 0)
        sorted++;
    if (sorted < count) /* a capture plan's are in order */
        qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t i = 1; i < count; i++)
        if (spans[i].begin < spans[i - 1].end)
            return false;
    return true;
}

cairn_err
cairn_manifest_check(const struct cairn_manifest *manifest, cairn_err fault)
{
    struct numbered_rank *order = new_array(manifest->rank_count, sizeof *order);
    struct span *spans = new_array(manifest->entry_count, sizeof *spans);
    size_t span_count = 0;
    cairn_err err = CAIRN_NOMEM;

    if (!order || !spans)
        goto done;
    err = fault;
    if (!regions_are_sound(manifest))
        goto done;
    for (uint32_t i = 0; i < manifest->rank_count; i++)
        order[i] = (struct numbered_rank){manifest->ranks[i].rank, i};
    qsort(order, manifest->rank_count, sizeof *order, compare_ranks);
    for (uint32_t i = 1; i < manifest->rank_count; i++)
        if (order[i].number == order[i - 1].number)
            goto done;
    for (uint32_t i = 0; i < manifest->entry_count; i++) {
        if (!entry_is_sound(manifest, order, &manifest->entries[i], &spans[span_count]))
            goto done;
        span_count +=
            spans[span_count].begin < spans[span_count].end; /* empty spans share no byte */
    }
    if (spans_are_disjoint(spans, span_count))
        err = CAIRN_OK;
done:
    free(order);
    free(spans);
    return err;
}
