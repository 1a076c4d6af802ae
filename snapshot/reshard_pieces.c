/* snapshot/reshard_pieces.c - see reshard_pieces.h. */
#include "snapshot/reshard_pieces.h"

#include <stdlib.h>
#include <string.h>

static int
compare_u64(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int
compare_pieces(const void *left, const void *right)
{
    const struct cairn_piece *a = *(const struct cairn_piece *const *)left;
    const struct cairn_piece *b = *(const struct cairn_piece *const *)right;

    /* Unused dimensions are 0 in both. */
    for (uint32_t d = 0; d < CAIRN_DIMS_MAX; d++)
        if (a->start[d] != b->start[d])
            return compare_u64(a->start[d], b->start[d]);
    for (uint32_t d = 0; d < CAIRN_DIMS_MAX; d++)
        if (a->extent[d] != b->extent[d])
            return compare_u64(a->extent[d], b->extent[d]);
    if (a->container != b->container)
        return compare_u64(a->container, b->container);
    if (a->offset_bytes != b->offset_bytes)
        return compare_u64(a->offset_bytes, b->offset_bytes);
    return (a > b) - (a < b);
}

cairn_err
cairn_piece_table_init(struct cairn_piece_table *table, const struct cairn_layout *layout)
{
    size_t tensor_count = cairn_layout_tensor_count(layout);
    size_t piece_count = cairn_layout_piece_count(layout);
    size_t *begin = calloc(tensor_count + 2, sizeof *begin);
    const struct cairn_piece **piece = malloc((piece_count + 1) * sizeof(struct cairn_piece *));

    if (!begin || !piece) {
        free(begin);
        free(piece);
        return CAIRN_NOMEM;
    }
    /* A counting sort by tensor; begin is shifted by one until the pieces are placed. */
    for (size_t i = 0; i < piece_count; i++)
        begin[cairn_layout_piece(layout, i)->tensor + 2]++;
    for (size_t t = 0; t < tensor_count; t++)
        begin[t + 2] += begin[t + 1];
    for (size_t i = 0; i < piece_count; i++) {
        const struct cairn_piece *at = cairn_layout_piece(layout, i);

        piece[begin[at->tensor + 1]++] = at;
    }
    for (size_t t = 0; t < tensor_count; t++)
        if (begin[t + 1] - begin[t] > 1)
            qsort(piece + begin[t], begin[t + 1] - begin[t], sizeof(struct cairn_piece *),
                  compare_pieces);
    table->begin = begin;
    table->piece = piece;
    return CAIRN_OK;
}

void
cairn_piece_table_fini(struct cairn_piece_table *table)
{
    free(table->begin);
    free(table->piece);
    memset(table, 0, sizeof *table);
}

size_t
cairn_piece_replicas(const struct cairn_piece_table *table, size_t at, size_t end, uint32_t dims)
{
    const struct cairn_piece *first = table->piece[at];
    size_t next = at + 1;

    while (next < end &&
           memcmp(first->start, table->piece[next]->start, dims * sizeof first->start[0]) == 0 &&
           memcmp(first->extent, table->piece[next]->extent, dims * sizeof first->extent[0]) == 0)
        next++;
    return next - at;
}
