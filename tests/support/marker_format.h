/*
 * tests/support/marker_format.h - a checkpoint of random shards whose every element says where it
 * belongs, and a format that reads it and lays it out in another random way.
 *
 * An element's bytes are a hash of its tensor and its own row-major index, so that any other
 * element in its place is seen. The layouts are made by a seed: boxes of a grid, flat ranges,
 * columns, transposes and interleaved parts, with replicas and gaps. Everything is checked element
 * by element with plain loops that share nothing with what is tested.
 */
#ifndef CAIRN_TESTS_MARKER_FORMAT_H
#define CAIRN_TESTS_MARKER_FORMAT_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/convert/core/format.h"

enum { MARKER_TENSORS = 5, MARKER_FILES = 6, MARKER_PIECES_MAX = 256, MARKER_FILE_BYTES = 1 << 20 };

/* How one side's tensors are cut. */
struct marker_side {
    struct cairn_piece pieces[MARKER_PIECES_MAX];
    uint32_t piece_count;
    uint64_t file_bytes[MARKER_FILES];
};

struct marker {
    uint64_t random;
    struct cairn_tensor tensors[MARKER_TENSORS];
    struct marker_side source, target;
    bool replicas;
    uint64_t scale; /* of shapes: 1 small */
};

/* The one that the formats below read and write. */
static struct marker *marker_now;

static inline uint64_t
marker_random(struct marker *marker, uint64_t below)
{
    marker->random = marker->random * 6364136223846793005u + 1442695040888963407u;
    return (marker->random >> 33) % below;
}

static inline void
marker_bytes(uint32_t tensor, uint64_t element, uint8_t *out, size_t bytes)
{
    uint64_t value = (element + 1) * 0x9e3779b97f4a7c15u + tensor * 0xbf58476d1ce4e5b9u;

    value ^= value >> 29;
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * (i % 8)));
}

static inline uint64_t
marker_elements(const struct cairn_tensor *tensor)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < tensor->dims; d++)
        elements *= tensor->shape[d];
    return elements;
}

/* Calls `visit` for every element of a piece with its index in the tensor and its place in the
 * file. */
static inline void
marker_visit(const struct cairn_tensor *tensor, const struct cairn_piece *piece,
             void (*visit)(void *context, uint64_t element, uint64_t offset), void *context)
{
    uint64_t at[CAIRN_DIMS_MAX] = {0};

    for (;;) {
        uint64_t element = 0, offset = piece->offset_bytes;
        uint32_t d = tensor->dims;

        for (uint32_t i = 0; i < tensor->dims; i++) {
            element = element * tensor->shape[i] + piece->start[i] + at[i];
            offset += at[i] * piece->stride_bytes[i];
        }
        visit(context, element, offset);
        while (d > 0 && ++at[d - 1] == piece->extent[d - 1])
            at[--d] = 0;
        if (d == 0)
            return;
    }
}

static inline void
marker_add(struct marker_side *side, uint32_t tensor, uint32_t file, const uint64_t *start,
           const uint64_t *extent, const uint64_t *stride, uint64_t offset, uint32_t dims)
{
    struct cairn_piece *piece = &side->pieces[side->piece_count++];

    memset(piece, 0, sizeof(*piece));
    piece->tensor = tensor;
    piece->container = file;
    piece->offset_bytes = offset;
    for (uint32_t d = 0; d < dims; d++) {
        piece->start[d] = start[d];
        piece->extent[d] = extent[d];
        piece->stride_bytes[d] = stride[d];
    }
}

/* A box, dense in the file, its dimensions in a given order (the last in `order` is innermost). */
static inline void
marker_add_box(struct marker *marker, struct marker_side *side, uint32_t t, const uint64_t *start,
               const uint64_t *extent, const uint32_t *order)
{
    const struct cairn_tensor *tensor = &marker->tensors[t];
    uint32_t file = (uint32_t)marker_random(marker, MARKER_FILES);
    uint64_t stride[CAIRN_DIMS_MAX] = {0}, bytes = cairn_dtype_bytes(tensor->dtype);
    /* Gaps, and places off the multiples of the element. */
    uint64_t offset = side->file_bytes[file] + marker_random(marker, 3) * 7;

    for (uint32_t i = tensor->dims; i-- > 0;) {
        stride[order[i]] = bytes;
        bytes *= extent[order[i]];
    }
    if (bytes == 0)
        return;
    marker_add(side, t, file, start, extent, stride, offset, tensor->dims);
    side->file_bytes[file] = offset + bytes;
}

/* Cuts a dimension in up to 4 uneven parts, each in an order of its own. */
static inline void
marker_cut_boxes(struct marker *marker, struct marker_side *side, uint32_t t, bool transpose)
{
    const struct cairn_tensor *tensor = &marker->tensors[t];
    uint32_t cut = (uint32_t)marker_random(marker, tensor->dims), order[CAIRN_DIMS_MAX];
    uint64_t start[CAIRN_DIMS_MAX] = {0}, extent[CAIRN_DIMS_MAX], at = 0;

    for (uint32_t d = 0; d < tensor->dims; d++) {
        extent[d] = tensor->shape[d];
        order[d] = d;
    }
    while (at < tensor->shape[cut]) {
        uint64_t left = tensor->shape[cut] - at;

        for (uint32_t d = tensor->dims; transpose && d > 1; d--) {
            uint32_t other = (uint32_t)marker_random(marker, d), kept = order[d - 1];

            order[d - 1] = order[other];
            order[other] = kept;
        }
        start[cut] = at;
        extent[cut] =
            left < 3 || marker_random(marker, 4) == 0 ? left : 1 + marker_random(marker, left);
        marker_add_box(marker, side, t, start, extent, order);
        at += extent[cut];
    }
}

/* Interleaves: even and odd steps of the first dimension fill one array in the file by turns. */
static inline void
marker_interleave(struct marker *marker, struct marker_side *side, uint32_t t)
{
    const struct cairn_tensor *tensor = &marker->tensors[t];
    uint32_t file = (uint32_t)marker_random(marker, MARKER_FILES);
    uint64_t element = cairn_dtype_bytes(tensor->dtype), row = element, half = tensor->shape[0] / 2;
    uint64_t start[CAIRN_DIMS_MAX] = {0}, extent[CAIRN_DIMS_MAX], stride[CAIRN_DIMS_MAX];
    uint64_t offset = side->file_bytes[file];

    for (uint32_t d = tensor->dims; d-- > 1;) {
        extent[d] = tensor->shape[d];
        stride[d] = row;
        row *= tensor->shape[d];
    }
    stride[0] = 2 * row;
    extent[0] = half;
    if (half > 0)
        marker_add(side, t, file, start, extent, stride, offset, tensor->dims);
    start[0] = half;
    extent[0] = tensor->shape[0] - half;
    marker_add(side, t, file, start, extent, stride, offset + row, tensor->dims);
    side->file_bytes[file] = offset + 2 * (half + 1) * row;
}

/* Flat ranges: as ZeRO cuts. The layout is asked for the boxes, which its own tests check. */
static inline void
marker_cut_flat(struct marker *marker, struct marker_side *side, uint32_t t)
{
    const struct cairn_tensor *tensor = &marker->tensors[t];
    uint64_t elements = marker_elements(tensor), at = 0;
    struct cairn_layout *layout = NULL;

    while (at < elements) {
        uint64_t left = elements - at, bytes = cairn_dtype_bytes(tensor->dtype);
        uint64_t end =
            at + (marker_random(marker, 4) == 0 ? left : 1 + marker_random(marker, left));
        uint32_t file = (uint32_t)marker_random(marker, MARKER_FILES);
        struct cairn_slice slice = {.name = "t",
                                    .dtype = tensor->dtype,
                                    .kind = CAIRN_PARAM,
                                    .dims = tensor->dims,
                                    .replica_count = 1};

        memcpy(slice.shape, tensor->shape, sizeof(slice.shape));
        memcpy(slice.extent, tensor->shape, sizeof(slice.extent));
        if (cairn_layout_create(&layout) ||
            cairn_layout_add(layout, file, &slice, at, end, side->file_bytes[file], NULL))
            abort();
        for (size_t i = 0; i < cairn_layout_piece_count(layout); i++) {
            side->pieces[side->piece_count] = *cairn_layout_piece(layout, i);
            side->pieces[side->piece_count++].tensor = t;
        }
        cairn_layout_destroy(layout);
        side->file_bytes[file] += (end - at) * bytes;
        at = end;
    }
}

static inline void
marker_cut(struct marker *marker, struct marker_side *side)
{
    memset(side, 0, sizeof(*side));
    for (uint32_t t = 0; t < MARKER_TENSORS; t++) {
        uint64_t way = marker_random(marker, 4);
        uint32_t before = side->piece_count;

        if (way == 0)
            marker_cut_flat(marker, side, t);
        else if (way == 1)
            marker_interleave(marker, side, t);
        else
            marker_cut_boxes(marker, side, t, way == 2);
        for (uint32_t i = before, end = side->piece_count; marker->replicas && i < end; i++)
            if (marker_random(marker, 3) == 0 && side->piece_count < MARKER_PIECES_MAX) {
                struct cairn_piece copy = side->pieces[i];
                uint64_t bytes = cairn_dtype_bytes(marker->tensors[t].dtype);

                for (uint32_t d = marker->tensors[t].dims; d-- > 0;) {
                    copy.stride_bytes[d] = bytes;
                    bytes *= copy.extent[d];
                }
                copy.container = (uint32_t)marker_random(marker, MARKER_FILES);
                copy.offset_bytes = side->file_bytes[copy.container];
                side->file_bytes[copy.container] += bytes;
                side->pieces[side->piece_count++] = copy;
            }
    }
}

/* Makes shapes and both sides. */
static inline void
marker_init(struct marker *marker, uint64_t seed, uint64_t scale, bool replicas)
{
    static const enum cairn_dtype dtypes[] = {CAIRN_U8, CAIRN_BF16, CAIRN_F32, CAIRN_C64,
                                              CAIRN_I64};

    memset(marker, 0, sizeof(*marker));
    marker->random = seed * 7919 + 1;
    marker->replicas = replicas;
    marker->scale = scale;
    for (uint32_t t = 0; t < MARKER_TENSORS; t++) {
        struct cairn_tensor *tensor = &marker->tensors[t];

        (void)snprintf(tensor->name, sizeof(tensor->name), "layers.%u.weight", t);
        tensor->dtype = dtypes[marker_random(marker, 5)];
        tensor->kind = CAIRN_PARAM;
        tensor->dims = 1 + (uint32_t)marker_random(marker, 4);
        for (uint32_t d = 0; d < tensor->dims; d++)
            tensor->shape[d] = 1 + marker_random(marker, d < 2 ? 7 * scale : 5);
    }
    marker_cut(marker, &marker->source);
    marker_cut(marker, &marker->target);
}

/* ---- files ---- */

struct marker_file {
    uint8_t *bytes;
    uint32_t tensor;
    size_t element;
    uint64_t wrong;
};

static inline void
marker_put(void *context, uint64_t element, uint64_t offset)
{
    struct marker_file *file = context;

    marker_bytes(file->tensor, element, file->bytes + offset, file->element);
}

static inline void
marker_compare(void *context, uint64_t element, uint64_t offset)
{
    struct marker_file *file = context;
    uint8_t expected[16];

    marker_bytes(file->tensor, element, expected, file->element);
    file->wrong += memcmp(expected, file->bytes + offset, file->element) != 0;
}

static inline void
marker_name(uint32_t file, char name[32])
{
    (void)snprintf(name, 32, "part/%u.bin", file);
}

/* Writes the source's files; what no piece has is 0xee. */
static inline void
marker_write(const struct marker *marker, const char *directory)
{
    char path[512], name[32];

    (void)snprintf(path, sizeof(path), "mkdir -p %s/part", directory);
    if (system(path) != 0)
        abort();
    for (uint32_t f = 0; f < MARKER_FILES; f++) {
        struct marker_file file = {.bytes = malloc(marker->source.file_bytes[f] + 1)};
        FILE *stream;

        memset(file.bytes, 0xee, marker->source.file_bytes[f]);
        for (uint32_t i = 0; i < marker->source.piece_count; i++) {
            const struct cairn_piece *piece = &marker->source.pieces[i];

            file.tensor = piece->tensor;
            file.element = cairn_dtype_bytes(marker->tensors[piece->tensor].dtype);
            if (piece->container == f)
                marker_visit(&marker->tensors[piece->tensor], piece, marker_put, &file);
        }
        marker_name(f, name);
        (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
        stream = fopen(path, "w");
        if (!stream || fwrite(file.bytes, 1, marker->source.file_bytes[f], stream) !=
                           marker->source.file_bytes[f])
            abort();
        (void)fclose(stream);
        free(file.bytes);
    }
}

/* Counts wrong elements, and bytes that are not zero though no piece has them; UINT64_MAX: a file
 * is missing or of another size. */
static inline uint64_t
marker_check(const struct marker *marker, const char *directory)
{
    uint64_t wrong = 0;
    char path[512], name[32];

    for (uint32_t f = 0; f < MARKER_FILES; f++) {
        uint64_t bytes = marker->target.file_bytes[f];
        struct marker_file file = {.bytes = calloc(bytes + 2, 1)};
        FILE *stream;

        marker_name(f, name);
        (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
        stream = fopen(path, "r");
        if (!stream || fread(file.bytes, 1, bytes + 1, stream) != bytes) {
            if (stream)
                (void)fclose(stream);
            free(file.bytes);
            return UINT64_MAX;
        }
        (void)fclose(stream);
        for (int zero = 0; zero < 2; zero++)
            for (uint32_t i = 0; i < marker->target.piece_count; i++) {
                const struct cairn_piece *piece = &marker->target.pieces[i];
                size_t element = cairn_dtype_bytes(marker->tensors[piece->tensor].dtype);
                uint64_t at[CAIRN_DIMS_MAX] = {0};

                file.tensor = piece->tensor;
                file.element = element;
                if (piece->container != f)
                    continue;
                if (!zero) {
                    marker_visit(&marker->tensors[piece->tensor], piece, marker_compare, &file);
                    continue;
                }
                for (;;) { /* what is right is taken away: the rest must be zero */
                    uint64_t offset = piece->offset_bytes;
                    uint32_t d = marker->tensors[piece->tensor].dims;

                    for (uint32_t k = 0; k < d; k++)
                        offset += at[k] * piece->stride_bytes[k];
                    memset(file.bytes + offset, 0, element);
                    while (d > 0 && ++at[d - 1] == piece->extent[d - 1])
                        at[--d] = 0;
                    if (d == 0)
                        break;
                }
            }
        wrong += file.wrong;
        for (uint64_t b = 0; b < bytes; b++)
            wrong += file.bytes[b] != 0;
        free(file.bytes);
    }
    return wrong;
}

/* ---- the format ---- */

static inline bool
marker_probe(const struct cairn_place *place)
{
    return false; /* never found by itself */
}

static inline cairn_err
marker_read(struct cairn_checkpoint *checkpoint)
{
    const struct marker *marker = marker_now;
    uint32_t index[MARKER_TENSORS];
    cairn_err err = CAIRN_OK;
    char name[32];

    for (uint32_t f = 0; !err && f < MARKER_FILES; f++) {
        uint32_t container;

        marker_name(f, name);
        err = cairn_checkpoint_add_file(checkpoint, name, &container);
    }
    for (uint32_t t = 0; !err && t < MARKER_TENSORS; t++)
        err = cairn_checkpoint_add_tensor(
            checkpoint, marker->tensors[t].name, marker->tensors[t].dtype, CAIRN_PARAM,
            marker->tensors[t].dims, marker->tensors[t].shape, &index[t]);
    for (uint32_t i = 0; !err && i < marker->source.piece_count; i++) {
        const struct cairn_piece *piece = &marker->source.pieces[i];

        err = cairn_checkpoint_add_box(checkpoint, index[piece->tensor], piece->container,
                                       piece->start, piece->extent, piece->offset_bytes,
                                       piece->stride_bytes);
    }
    return err;
}

static inline cairn_err
marker_plan(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
            struct cairn_output *output)
{
    const struct marker *marker = marker_now;
    uint32_t index[MARKER_TENSORS], file;
    cairn_err err = CAIRN_OK;
    char name[32];

    for (uint32_t f = 0; !err && f < MARKER_FILES; f++) {
        marker_name(f, name);
        err = cairn_output_add_file(output, name, &file);
        if (!err)
            cairn_output_set_bytes(output, file, marker->target.file_bytes[f]);
    }
    for (uint32_t t = 0; !err && t < MARKER_TENSORS; t++)
        err = cairn_output_add_tensor(output, options, &marker->tensors[t], &index[t]);
    for (uint32_t i = 0; !err && i < marker->target.piece_count; i++) {
        const struct cairn_piece *piece = &marker->target.pieces[i];

        err = cairn_output_add_box(output, index[piece->tensor], piece->container, piece->start,
                                   piece->extent, piece->offset_bytes, piece->stride_bytes);
    }
    return err;
}

static inline cairn_err
marker_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    uint8_t *marker_text = (uint8_t *)strdup("done\n");

    return marker_text ? cairn_output_add_small(output, "DONE", marker_text, 5) : CAIRN_NOMEM;
}

static const struct cairn_format marker_format = {
    .name = "marker",
    .about = "for tests",
    .probe = marker_probe,
    .read = marker_read,
    .plan = marker_plan,
    .finish = marker_finish,
};

#endif
