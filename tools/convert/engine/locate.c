/* tools/convert/engine/locate.c - see locate.h. */
#include "tools/convert/engine/locate.h"

#include <stdlib.h>

#include "snapshot/reshard_pieces.h"
#include "snapshot/box.h"

enum { RUN_BYTES_MIN = 64 };

struct entry {
    const struct cairn_piece *piece;
    uint64_t reach; /* the farthest end of the pieces up to this one in tensor and container */
};

struct cairn_locator {
    const struct cairn_layout *layout;
    struct entry *entries; /* by tensor, container, offset */
    size_t *first;         /* [tensor_count + 1] */
    bool *regular;         /* [tensor_count] */
    bool *replica;         /* [piece_count] */
};

/* Bytes of a run that is contiguous in the piece's container and in the tensor. */
static uint64_t
unit_bytes(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t unit = cairn_dtype_bytes(tensor->dtype);

    for (uint32_t d = tensor->dims; d-- > 0;) {
        if (tensor->shape[d] == 1)
            continue;
        if (piece->extent[d] > 1 && piece->stride_bytes[d] != unit)
            break;
        unit *= piece->extent[d];
        if (piece->extent[d] != tensor->shape[d])
            break;
    }
    return unit;
}

/* Dimensions of more than one step, longest stride first; returns how many. */
static uint32_t
by_stride(const struct cairn_tensor *tensor, const struct cairn_piece *piece,
          uint32_t order[CAIRN_DIMS_MAX])
{
    uint32_t count = 0;

    for (uint32_t d = 0; d < tensor->dims; d++) {
        uint32_t at = count;

        if (piece->extent[d] == 1)
            continue;
        while (at > 0 && piece->stride_bytes[order[at - 1]] < piece->stride_bytes[d]) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = d;
        count++;
    }
    return count;
}

static bool
piece_regular(const struct cairn_tensor *tensor, const struct cairn_piece *piece)
{
    uint64_t element = cairn_dtype_bytes(tensor->dtype), span = element, unit, bytes = element;
    uint32_t order[CAIRN_DIMS_MAX], count = by_stride(tensor, piece, order);

    for (uint32_t i = count; i-- > 0;) {
        uint32_t d = order[i];

        if (piece->stride_bytes[d] < span)
            return false;
        span += (piece->extent[d] - 1) * piece->stride_bytes[d];
        bytes *= piece->extent[d];
    }
    unit = unit_bytes(tensor, piece);
    return unit >= RUN_BYTES_MIN || unit == bytes;
}

static int
compare_entries(const void *left, const void *right)
{
    const struct cairn_piece *a = ((const struct entry *)left)->piece;
    const struct cairn_piece *b = ((const struct entry *)right)->piece;

    if (a->container != b->container)
        return a->container < b->container ? -1 : 1;
    if (a->offset_bytes != b->offset_bytes)
        return a->offset_bytes < b->offset_bytes ? -1 : 1;
    return (a > b) - (a < b);
}

/* Takes the pieces of one tensor over from the table, which has replicas side by side. */
static void
index_tensor(struct cairn_locator *locator, const struct cairn_piece_table *table, uint32_t t)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(locator->layout, t);
    const struct cairn_piece *all = cairn_layout_piece(locator->layout, 0);
    size_t begin = table->begin[t], end = table->begin[t + 1];

    locator->first[t] = begin;
    locator->regular[t] = true;
    for (size_t at = begin; at < end;) {
        size_t count = cairn_piece_replicas(table, at, end, tensor->dims);

        for (size_t i = at; i < at + count; i++) {
            locator->entries[i].piece = table->piece[i];
            locator->replica[table->piece[i] - all] = i > at;
            locator->regular[t] = locator->regular[t] && piece_regular(tensor, table->piece[i]);
        }
        at += count;
    }
    if (end - begin > 1)
        qsort(locator->entries + begin, end - begin, sizeof(*locator->entries), compare_entries);
    for (size_t i = begin; i < end; i++) {
        struct entry *entry = &locator->entries[i];

        entry->reach = cairn_box_end(tensor, entry->piece);
        if (i > begin && entry[-1].piece->container == entry->piece->container &&
            entry[-1].reach > entry->reach)
            entry->reach = entry[-1].reach;
    }
}

cairn_err
cairn_locator_create(const struct cairn_layout *layout, struct cairn_locator **out)
{
    uint32_t tensor_count = cairn_layout_tensor_count(layout);
    size_t piece_count = cairn_layout_piece_count(layout);
    struct cairn_piece_table table = {0};
    struct cairn_locator *locator = calloc(1, sizeof(*locator));
    cairn_err err = locator ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        locator->layout = layout;
        locator->entries = malloc((piece_count + 1) * sizeof(*locator->entries));
        locator->first = malloc(((size_t)tensor_count + 1) * sizeof(*locator->first));
        locator->regular = malloc((size_t)tensor_count + 1);
        locator->replica = malloc(piece_count + 1);
        if (!locator->entries || !locator->first || !locator->regular || !locator->replica)
            err = CAIRN_NOMEM;
    }
    if (!err)
        err = cairn_piece_table_init(&table, layout);
    if (!err) {
        for (uint32_t t = 0; t < tensor_count; t++)
            index_tensor(locator, &table, t);
        locator->first[tensor_count] = piece_count;
        *out = locator;
        locator = NULL;
    }
    cairn_piece_table_fini(&table);
    cairn_locator_destroy(locator);
    return err;
}

void
cairn_locator_destroy(struct cairn_locator *locator)
{
    if (!locator)
        return;
    free(locator->entries);
    free(locator->first);
    free(locator->regular);
    free(locator->replica);
    free(locator);
}

bool
cairn_locator_regular(const struct cairn_locator *locator, uint32_t tensor)
{
    return locator->regular[tensor];
}

bool
cairn_locator_is_replica(const struct cairn_locator *locator, size_t piece)
{
    return locator->replica[piece];
}

/* Finds the byte in one piece. Its strides nest, so the indices are the digits of the offset. */
static bool
find_in_piece(const struct cairn_tensor *tensor, const struct cairn_piece *piece, uint64_t offset,
              struct cairn_spot *out)
{
    uint64_t element = cairn_dtype_bytes(tensor->dtype), left = offset - piece->offset_bytes;
    uint64_t canonical = element, unit = unit_bytes(tensor, piece);
    uint32_t order[CAIRN_DIMS_MAX], count = by_stride(tensor, piece, order);
    uint64_t index[CAIRN_DIMS_MAX] = {0};

    for (uint32_t i = 0; i < count; i++) {
        uint32_t d = order[i];

        index[d] = left / piece->stride_bytes[d];
        if (index[d] >= piece->extent[d])
            return false;
        left -= index[d] * piece->stride_bytes[d];
    }
    if (left >= element)
        return false;
    out->position_bytes = left;
    out->run_bytes = unit - left;
    for (uint32_t d = tensor->dims; d-- > 0;) {
        out->position_bytes += (piece->start[d] + index[d]) * canonical;
        if (canonical < unit) /* inside of the unit: what lies before the byte is not of the run */
            out->run_bytes -= index[d] * canonical;
        canonical *= tensor->shape[d];
    }
    return true;
}

bool
cairn_locate(const struct cairn_locator *locator, uint32_t tensor, uint32_t container,
             uint64_t offset_bytes, struct cairn_spot *out)
{
    const struct cairn_tensor *known = cairn_layout_tensor(locator->layout, tensor);
    const struct entry *entries = locator->entries;
    size_t low = locator->first[tensor], high = locator->first[tensor + 1], first = low;

    while (low < high) { /* the first entry behind the byte */
        size_t middle = low + (high - low) / 2;
        const struct cairn_piece *piece = entries[middle].piece;

        if (piece->container < container ||
            (piece->container == container && piece->offset_bytes <= offset_bytes))
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i > first; i--) {
        const struct entry *entry = &entries[i - 1];

        if (entry->piece->container != container || entry->reach <= offset_bytes)
            return false;
        if (find_in_piece(known, entry->piece, offset_bytes, out)) {
            out->piece = (size_t)(entry->piece - cairn_layout_piece(locator->layout, 0));
            return true;
        }
    }
    return false;
}
