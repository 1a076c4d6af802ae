/*
 * snapshot/tiling_pieces.c - the pieces of a few tensors, packed by each part and brought together: what is wrong with them, in words.
 *
 * Packed (little-endian): u8 1 where more did not fit, else 0; then tensor by tensor: the name (u32 bytes, the bytes), u8 dtype,
 * u8 kind, u8 dims, u64 shape, dims times, u32 count of pieces, and of each: u32 rank, u64 start, dims times, u64 extent,
 * dims times.
 */
#include "snapshot/tiling.h"

#include "base/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { PIECES_MAX = 1 << 18 }; /* and tensors */

/* The room that the tensor's pieces have, counted in pieces, behind `used` bytes and its own description. */
static size_t
pieces_that_fit(const struct cairn_tensor *tensor, size_t used, size_t room)
{
    size_t head = 4 + strlen(tensor->name) + 3 + 8 * (size_t)tensor->dims + 4;

    return room < used + head ? 0 : (room - used - head) / (4 + 16 * (size_t)tensor->dims);
}

static void
write_tensor(struct cairn_writer *writer, const struct cairn_layout *layout, uint32_t t, uint32_t count)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(layout, t);

    cairn_write_string(writer, tensor->name);
    cairn_write_u8(writer, (uint8_t)tensor->dtype);
    cairn_write_u8(writer, (uint8_t)tensor->kind);
    cairn_write_u8(writer, (uint8_t)tensor->dims);
    for (uint32_t d = 0; d < tensor->dims; d++)
        cairn_write_u64(writer, tensor->shape[d]);
    cairn_write_u32(writer, count);
    for (size_t p = 0; p < cairn_layout_piece_count(layout) && count > 0; p++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, p);

        if (piece->tensor != t)
            continue;
        count--;
        cairn_write_u32(writer, piece->container);
        for (uint32_t d = 0; d < tensor->dims; d++)
            cairn_write_u64(writer, piece->start[d]);
        for (uint32_t d = 0; d < tensor->dims; d++)
            cairn_write_u64(writer, piece->extent[d]);
    }
}

static size_t
count_pieces(const struct cairn_layout *layout, uint32_t t)
{
    size_t count = 0;

    for (size_t p = 0; p < cairn_layout_piece_count(layout); p++)
        count += cairn_layout_piece(layout, p)->tensor == t;
    return count;
}

size_t
cairn_tiling_pack_pieces(const struct cairn_tiling *tiling, uint64_t prefix, uint8_t *out, size_t room)
{
    const struct cairn_layout *layout = cairn_tiling_layout(tiling);
    struct cairn_writer writer;
    size_t row_count;
    const struct cairn_tiling_row *rows = cairn_tiling_rows(tiling, &row_count);

    cairn_writer_init(&writer, out, room);
    cairn_write_u8(&writer, 0);
    for (size_t i = 0; i < row_count; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, rows[i].tensor);
        size_t count, fit;

        if (cairn_tiling_prefix(rows[i].key) != prefix)
            continue;
        count = count_pieces(layout, rows[i].tensor);
        fit = pieces_that_fit(tensor, writer.used_bytes, room);
        if (count > fit)
            out[0] = 1;
        if (fit > 0 && count > 0)
            write_tensor(&writer, layout, rows[i].tensor, (uint32_t)(count < fit ? count : fit));
    }
    return writer.used_bytes;
}

/* Reads one tensor's description into slice, whose name lies in name[CAIRN_NAME_BYTES_MAX]; the count of its pieces. */
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

static cairn_err
add_piece(struct cairn_tiling_pieces *pieces, uint32_t rank, const struct cairn_slice *slice)
{
    const char *why = NULL;
    cairn_err err;

    if (cairn_slice_check(slice, NULL) != CAIRN_OK)
        return CAIRN_CORRUPT;
    if (cairn_layout_piece_count(pieces->layout) + cairn_layout_tensor_count(pieces->layout) >= PIECES_MAX) {
        pieces->cut = true;
        return CAIRN_OK;
    }
    err = cairn_layout_add(pieces->layout, rank, slice, 0, 0, 0, &why);
    if (err != CAIRN_INVAL)
        return err;
    if (!pieces->fault[0])
        snprintf(pieces->fault, sizeof pieces->fault, "%s: what rank %" PRIu32 " registers of it does not fit the others': %s", slice->name, rank,
                 why ? why : "a number is out of bounds");
    return CAIRN_OK;
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

        for (uint32_t i = 0; i < count && !err && !reader.failed; i++) {
            uint32_t rank = cairn_read_u32(&reader);

            for (uint32_t d = 0; d < slice.dims; d++)
                slice.offset[d] = cairn_read_u64(&reader);
            for (uint32_t d = 0; d < slice.dims; d++)
                slice.extent[d] = cairn_read_u64(&reader);
            if (!reader.failed)
                err = add_piece(pieces, rank, &slice);
        }
    }
    return err ? err : cairn_reader_done(&reader);
}

void
cairn_tiling_explain(const struct cairn_tiling_pieces *pieces, char *text, size_t text_bytes)
{
    uint32_t count = pieces->layout ? cairn_layout_tensor_count(pieces->layout) : 0;
    char others[32] = "";

    if (pieces->fault[0]) {
        snprintf(text, text_bytes, "%s", pieces->fault);
        return;
    }
    if (pieces->layout && !pieces->cut &&
        cairn_layout_check_tiling_of(pieces->layout, "rank", text, text_bytes) == CAIRN_CORRUPT)
        return;
    if (count > 1) /* those that are right came along because their keys begin alike */
        snprintf(others, sizeof others, ", or one of %" PRIu32 " others", count - 1);
    snprintf(text, text_bytes, "%s%s: not every element of it is registered by exactly one rank",
             count > 0 ? cairn_layout_tensor(pieces->layout, 0)->name : "a tensor", others);
}

void
cairn_tiling_pieces_fini(struct cairn_tiling_pieces *pieces)
{
    cairn_layout_destroy(pieces->layout);
    memset(pieces, 0, sizeof *pieces);
}
