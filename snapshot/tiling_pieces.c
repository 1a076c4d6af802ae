/*
 * snapshot/tiling_pieces.c - the pieces of a few tensors, packed by each part and brought together:
 * what is wrong with them, in words.
 *
 * Packed (little-endian): u8 1 where more did not fit, else 0; then tensor by tensor: the name (u32
 * bytes, the bytes), u8 dtype, u8 kind, u8 dims, u64 shape, dims times, u32 count of pieces, and of
 * each: u32 rank, u64 start, dims times, u64 extent, dims times; u32 count of replicas, and of
 * each: u64 group, u32 rank, u32 index, u32 count.
 */
#include "snapshot/tiling.h"

#include "base/array.h"
#include "base/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECES_MAX = 1 << 18, REPLICA_BYTES = 20 }; /* with replicas and tensors */

static size_t
count_pieces(const struct cairn_layout *layout, uint32_t t)
{
    size_t count = 0;

    for (size_t p = 0; p < cairn_layout_piece_count(layout); p++)
        count += cairn_layout_piece(layout, p)->tensor == t;
    return count;
}

/* The replicas of one tensor, side by side in a part's. */
static const struct cairn_tiling_replica *
replicas_of(const struct cairn_tiling *tiling, uint32_t t, size_t *count)
{
    size_t all, begin = 0, end;
    const struct cairn_tiling_replica *replicas = cairn_tiling_replicas(tiling, &all);

    while (begin < all && replicas[begin].tensor != t)
        begin++;
    for (end = begin; end < all && replicas[end].tensor == t;)
        end++;
    *count = end - begin;
    return replicas + begin;
}

static void
write_pieces(struct cairn_writer *writer, const struct cairn_layout *layout, uint32_t t,
             uint32_t count)
{
    uint32_t dims = cairn_layout_tensor(layout, t)->dims;

    cairn_write_u32(writer, count);
    for (size_t p = 0; p < cairn_layout_piece_count(layout) && count > 0; p++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, p);

        if (piece->tensor != t)
            continue;
        count--;
        cairn_write_u32(writer, piece->container);
        for (uint32_t d = 0; d < dims; d++)
            cairn_write_u64(writer, piece->start[d]);
        for (uint32_t d = 0; d < dims; d++)
            cairn_write_u64(writer, piece->extent[d]);
    }
}

/* Writes what fits of one tensor into the writer's `room` bytes; false if not all of it fits. */
static bool
write_tensor(struct cairn_writer *writer, const struct cairn_tiling *tiling, uint32_t t,
             size_t room)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(cairn_tiling_layout(tiling), t);
    size_t head_bytes = 4 + strlen(tensor->name) + 3 + 8 * (size_t)tensor->dims + 4 + 4;
    size_t left = room - writer->used_bytes, pieces = count_pieces(cairn_tiling_layout(tiling), t),
           replica_count, fit;
    const struct cairn_tiling_replica *replicas = replicas_of(tiling, t, &replica_count);
    bool whole;

    if (left < head_bytes)
        return false;
    left -= head_bytes;
    fit = left / (4 + 16 * (size_t)tensor->dims);
    whole = pieces <= fit;
    if (!whole)
        pieces = fit;
    left -= pieces * (4 + 16 * (size_t)tensor->dims);
    fit = left / REPLICA_BYTES;
    whole &= replica_count <= fit;
    if (replica_count > fit)
        replica_count = fit;
    cairn_write_string(writer, tensor->name);
    cairn_write_u8(writer, (uint8_t)tensor->dtype);
    cairn_write_u8(writer, (uint8_t)tensor->kind);
    cairn_write_u8(writer, (uint8_t)tensor->dims);
    for (uint32_t d = 0; d < tensor->dims; d++)
        cairn_write_u64(writer, tensor->shape[d]);
    write_pieces(writer, cairn_tiling_layout(tiling), t, (uint32_t)pieces);
    cairn_write_u32(writer, (uint32_t)replica_count);
    for (size_t i = 0; i < replica_count; i++) {
        cairn_write_u64(writer, replicas[i].group);
        cairn_write_u32(writer, replicas[i].rank);
        cairn_write_u32(writer, replicas[i].index);
        cairn_write_u32(writer, replicas[i].count);
    }
    return whole;
}

size_t
cairn_tiling_pack_pieces(const struct cairn_tiling *tiling, uint64_t prefix, uint8_t *out,
                         size_t room)
{
    struct cairn_writer writer;
    size_t row_count;
    const struct cairn_tiling_row *rows = cairn_tiling_rows(tiling, &row_count);

    cairn_writer_init(&writer, out, room);
    cairn_write_u8(&writer, 0);
    for (size_t i = 0; i < row_count; i++)
        if (cairn_tiling_prefix(rows[i].key) == prefix &&
            !write_tensor(&writer, tiling, rows[i].tensor, room))
            out[0] = 1;
    return writer.used_bytes;
}

/* Reads one tensor's description into slice, with its name in name[CAIRN_NAME_BYTES_MAX]; returns
 * the count of its pieces. */
static uint32_t
read_tensor(struct cairn_reader *reader, struct cairn_slice *slice, char *name)
{
    cairn_read_string(reader, name, CAIRN_NAME_BYTES_MAX);
    *slice = (struct cairn_slice){.name = name, .device = -1, .replica_count = 1};
    slice->dtype = (enum cairn_dtype)cairn_read_u8(reader);
    slice->kind = (enum cairn_kind)cairn_read_u8(reader);
    slice->dims = cairn_read_u8(reader);
    if (slice->dims > CAIRN_DIMS_MAX)
        reader->failed = true;
    for (uint32_t d = 0; d < slice->dims && !reader->failed; d++)
        slice->shape[d] = cairn_read_u64(reader);
    return cairn_read_u32(reader);
}

/* Adds a piece, or with flat_end > 0 the tensor alone. */
static cairn_err
add_piece(struct cairn_tiling_pieces *pieces, uint32_t rank, const struct cairn_slice *slice,
          uint64_t flat_end)
{
    const char *why = NULL;
    cairn_err err;

    if (cairn_slice_check(slice, NULL) != CAIRN_OK)
        return CAIRN_CORRUPT;
    if (cairn_layout_piece_count(pieces->layout) + cairn_layout_tensor_count(pieces->layout) +
            pieces->replica_count >=
        PIECES_MAX) {
        pieces->cut = true;
        return CAIRN_OK;
    }
    err = cairn_layout_add(pieces->layout, rank, slice, flat_end, flat_end, 0, &why);
    if (err != CAIRN_INVAL)
        return err;
    if (!pieces->fault[0])
        snprintf(pieces->fault, sizeof pieces->fault,
                 "%s: rank %" PRIu32 "'s registration does not fit the others': %s", slice->name,
                 rank, why ? why : "a number is out of bounds");
    return CAIRN_OK;
}

static cairn_err
read_pieces(struct cairn_reader *reader, struct cairn_tiling_pieces *pieces,
            struct cairn_slice *slice, uint32_t count)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < count && !err && !reader->failed; i++) {
        uint32_t rank = cairn_read_u32(reader);

        for (uint32_t d = 0; d < slice->dims; d++)
            slice->offset[d] = cairn_read_u64(reader);
        for (uint32_t d = 0; d < slice->dims; d++)
            slice->extent[d] = cairn_read_u64(reader);
        if (!reader->failed)
            err = add_piece(pieces, rank, slice, 0);
    }
    return err;
}

static cairn_err
add_replica(struct cairn_tiling_pieces *pieces, const struct cairn_tiling_replica *replica)
{
    if (!cairn_array_grow(&pieces->replicas, pieces->replica_count, sizeof *pieces->replicas))
        return CAIRN_NOMEM;
    pieces->replicas[pieces->replica_count++] = *replica;
    return CAIRN_OK;
}

/* A replica shows that its tensor has elements, though it may have no piece. */
static cairn_err
read_replicas(struct cairn_reader *reader, struct cairn_tiling_pieces *pieces,
              struct cairn_slice *slice)
{
    uint32_t count = cairn_read_u32(reader);
    cairn_err err = CAIRN_OK;

    memset(slice->offset, 0, sizeof slice->offset);
    memcpy(slice->extent, slice->shape, sizeof slice->extent);
    for (uint32_t i = 0; i < count && !err && !reader->failed; i++) {
        struct cairn_tiling_replica replica = {.group = cairn_read_u64(reader)};

        replica.rank = cairn_read_u32(reader);
        replica.index = cairn_read_u32(reader);
        replica.count = cairn_read_u32(reader);
        if (reader->failed || replica.index >= replica.count)
            return CAIRN_CORRUPT;
        err = add_piece(pieces, replica.rank, slice, 1);
        replica.tensor = cairn_layout_tensor_find(pieces->layout, slice->name);
        if (!err && !pieces->cut && replica.tensor != UINT32_MAX)
            err = add_replica(pieces, &replica);
    }
    return err;
}

cairn_err
cairn_tiling_add_pieces(struct cairn_tiling_pieces *pieces, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_reader reader;
    cairn_err err = pieces->layout ? CAIRN_OK : cairn_layout_create(&pieces->layout);

    if (err)
        return err;
    cairn_reader_init(&reader, bytes, bytes_len);
    pieces->cut |= cairn_read_u8(&reader) != 0;
    while (!err && !reader.failed && cairn_reader_left(&reader) > 0) {
        char name[CAIRN_NAME_BYTES_MAX];
        struct cairn_slice slice;
        uint32_t count = read_tensor(&reader, &slice, name);

        err = read_pieces(&reader, pieces, &slice, count);
        if (!err && !reader.failed)
            err = read_replicas(&reader, pieces, &slice);
    }
    return err ? err : cairn_reader_done(&reader);
}

/* By tensor, group and number. */
static int
compare_replicas(const void *left, const void *right)
{
    const struct cairn_tiling_replica *a = left, *b = right;

    if (a->tensor != b->tensor)
        return a->tensor < b->tensor ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->index != b->index)
        return a->index < b->index ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* Whether the replicas of one group, in order, have each number equally often; else explains. */
static bool
explain_group(const struct cairn_tiling_replica *replica, size_t count, const char *name,
              char *text, size_t text_bytes)
{
    uint32_t missing = 0;
    size_t most = 0, most_at = 0, distinct = 0;
    int used;

    for (size_t begin = 0, end; begin < count; begin = end, distinct++) {
        for (end = begin; end < count && replica[end].index == replica[begin].index;)
            end++;
        missing += replica[begin].index == missing;
        if (end - begin > most) {
            most = end - begin;
            most_at = begin;
        }
    }
    if (missing == replica->count && most * distinct == count)
        return false;
    used = snprintf(text, text_bytes, "%s: of its %" PRIu32 " replicas", name, replica->count);
    if (used > 0 && (size_t)used < text_bytes && missing < replica->count)
        used += snprintf(text + used, text_bytes - (size_t)used, " none is number %" PRIu32 "%s",
                         missing, most > 1 ? ", and" : "");
    if (used > 0 && (size_t)used < text_bytes && most > 1)
        snprintf(text + used, text_bytes - (size_t)used,
                 " ranks %" PRIu32 " and %" PRIu32 " both are number %" PRIu32,
                 replica[most_at].rank, replica[most_at + 1].rank, replica[most_at].index);
    return true;
}

static bool
explain_replicas(struct cairn_tiling_pieces *pieces, char *text, size_t text_bytes)
{
    if (pieces->replica_count > 0)
        qsort(pieces->replicas, pieces->replica_count, sizeof *pieces->replicas, compare_replicas);
    for (size_t begin = 0, end; begin < pieces->replica_count; begin = end) {
        const struct cairn_tiling_replica *first = &pieces->replicas[begin];

        for (end = begin; end < pieces->replica_count &&
                          pieces->replicas[end].tensor == first->tensor &&
                          pieces->replicas[end].group == first->group &&
                          pieces->replicas[end].count == first->count;)
            end++;
        if (explain_group(first, end - begin,
                          cairn_layout_tensor(pieces->layout, first->tensor)->name, text,
                          text_bytes))
            return true;
    }
    return false;
}

void
cairn_tiling_explain(struct cairn_tiling_pieces *pieces, char *text, size_t text_bytes)
{
    uint32_t count = pieces->layout ? cairn_layout_tensor_count(pieces->layout) : 0;
    char others[32] = "";

    if (pieces->fault[0]) {
        snprintf(text, text_bytes, "%s", pieces->fault);
        return;
    }
    if (pieces->layout && !pieces->cut &&
        (explain_replicas(pieces, text, text_bytes) ||
         cairn_layout_check_tiling_of(pieces->layout, "rank", text, text_bytes) == CAIRN_CORRUPT))
        return;
    if (count > 1) /* those that are right came along because their keys begin alike */
        snprintf(others, sizeof others, ", or one of %" PRIu32 " others", count - 1);
    snprintf(text, text_bytes, "%s%s: not every element is registered by exactly one rank",
             count > 0 ? cairn_layout_tensor(pieces->layout, 0)->name : "a tensor", others);
}

void
cairn_tiling_pieces_fini(struct cairn_tiling_pieces *pieces)
{
    cairn_layout_destroy(pieces->layout);
    free(pieces->replicas);
    memset(pieces, 0, sizeof *pieces);
}
