/* tools/convert/engine/regions.c - see regions.h. */
#include "tools/convert/engine/regions.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "snapshot/box.h"
#include "tools/convert/engine/cast.h"
#include "base/array.h"

void
cairn_regions_fini(struct cairn_regions *regions)
{
    free(regions->regions);
    free(regions->stretches);
    cairn_layout_destroy(regions->owned);
    memset(regions, 0, sizeof(*regions));
}

uint64_t
cairn_region_file_offset(const struct cairn_region *region, uint64_t offset_bytes)
{
    CAIRN_ASSERT(region->from_bytes > 0);
    return region->file_offset + offset_bytes / region->from_bytes * region->to_bytes;
}

struct entry {
    const struct cairn_piece *piece;
    uint64_t end;
    enum cairn_dtype from, to; /* 0: not cast */
    uint32_t region;
};

static int
compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    int order = CAIRN_COMPARE(a->piece->container, b->piece->container);

    order = order ? order : CAIRN_COMPARE(a->piece->offset_bytes, b->piece->offset_bytes);
    return order ? order : CAIRN_COMPARE(a->piece, b->piece);
}

/* The pieces of the output, sorted by place, each with what it is cast from and to. */
static cairn_err
list_entries(const struct cairn_output *output, const struct cairn_layout *source,
             struct entry *entries, bool *casts, struct cairn_complaint *complaint)
{
    size_t count = cairn_layout_piece_count(output->layout);

    *casts = false;
    for (size_t i = 0; i < count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(output->layout, i);
        const struct cairn_tensor *to = cairn_layout_tensor(output->layout, piece->tensor);
        uint32_t found = cairn_layout_tensor_find(source, to->name);
        enum cairn_dtype from =
            found == UINT32_MAX ? to->dtype : cairn_layout_tensor(source, found)->dtype;
        uint64_t bytes = cairn_dtype_bytes(to->dtype);

        entries[i] = (struct entry){.piece = piece, .end = cairn_box_end(to, piece)};
        if (from == to->dtype)
            continue;
        if (!cairn_cast_knows(from, to->dtype))
            return cairn_complain(
                complaint, CAIRN_INVAL,
                "tensor %s: cannot be cast from %s to %s: only F64, F32, F16 and BF16 are cast",
                to->name, cairn_dtype_name(from), cairn_dtype_name(to->dtype));
        for (uint32_t d = 0; d < to->dims; d++)
            if (piece->extent[d] > 1 && piece->stride_bytes[d] % bytes != 0)
                return cairn_complain(complaint, CAIRN_INVAL,
                                      "tensor %s: cannot be cast in the layout of this format",
                                      to->name);
        entries[i].from = from;
        entries[i].to = to->dtype;
        *casts = true;
    }
    if (count > 1)
        qsort(entries, count, sizeof(*entries), compare_entries);
    return CAIRN_OK;
}

/* Gives each cast entry a region: one for all that follow one another and are cast alike. */
static cairn_err
make_regions(const struct cairn_output *output, struct entry *entries, size_t count,
             struct cairn_regions *regions, uint64_t *ends, struct cairn_complaint *complaint)
{
    uint32_t open = UINT32_MAX;

    for (size_t i = 0; i < count; i++) {
        struct entry *entry = &entries[i];
        struct cairn_region *region = open == UINT32_MAX ? NULL : &regions->regions[open];
        bool inside = region && region->file == entry->piece->container &&
                      entry->piece->offset_bytes < ends[open];

        entry->region = entry->piece->container;
        if (region && entry->from == region->from && entry->to == region->to &&
            region->file == entry->piece->container && entry->piece->offset_bytes <= ends[open] &&
            (entry->piece->offset_bytes - region->file_offset) % region->to_bytes == 0) {
            entry->region = open;
        } else if (inside) {
            const struct cairn_tensor *tensor =
                cairn_layout_tensor(output->layout, entry->piece->tensor);

            return cairn_complain(complaint, CAIRN_INVAL,
                                  "tensor %s: lies between parts of tensors that are cast in "
                                  "another way, which this format cannot express",
                                  tensor->name);
        } else if (entry->from) {
            open = entry->region = regions->region_count++;
            regions->regions[open] =
                (struct cairn_region){.file = entry->piece->container,
                                      .from = entry->from,
                                      .to = entry->to,
                                      .from_bytes = cairn_dtype_bytes(entry->from),
                                      .to_bytes = cairn_dtype_bytes(entry->to),
                                      .file_offset = entry->piece->offset_bytes};
            ends[open] = entry->end;
        }
        if (entry->from && entry->end > ends[entry->region])
            ends[entry->region] = entry->end;
    }
    return CAIRN_OK;
}

/* The files' ranges around the regions, and the regions: all bytes once. */
static cairn_err
make_stretches(const struct cairn_output *output, const uint64_t *ends,
               struct cairn_regions *regions)
{
    uint32_t casts = regions->region_count - output->file_count, next = output->file_count;
    struct cairn_stretch *stretches =
        malloc(((size_t)output->file_count + 2 * (size_t)casts + 1) * sizeof(*stretches));
    size_t count = 0;

    if (!stretches)
        return CAIRN_NOMEM;
    for (uint32_t f = 0; f < output->file_count; f++) {
        uint64_t at = 0;

        for (; next < regions->region_count && regions->regions[next].file == f; next++) {
            if (regions->regions[next].file_offset > at)
                stretches[count++] =
                    (struct cairn_stretch){f, at, regions->regions[next].file_offset};
            at = ends[next];
        }
        if (output->files[f].bytes > at)
            stretches[count++] = (struct cairn_stretch){f, at, output->files[f].bytes};
    }
    for (uint32_t r = output->file_count; r < regions->region_count; r++) {
        const struct cairn_region *region = &regions->regions[r];

        stretches[count++] = (struct cairn_stretch){
            r, 0, (ends[r] - region->file_offset) / region->to_bytes * region->from_bytes};
    }
    regions->stretches = stretches;
    regions->stretch_count = count;
    return CAIRN_OK;
}

/* The layout with regions as containers and the source's dtypes; tensors in the same order. */
static cairn_err
scale_layout(const struct cairn_output *output, const struct cairn_layout *source,
             const struct entry *entries, size_t count, struct cairn_regions *regions)
{
    uint32_t tensor_count = cairn_layout_tensor_count(output->layout);
    cairn_err err;

    err = cairn_layout_create(&regions->owned);
    for (uint32_t t = 0; !err && t < tensor_count; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(output->layout, t);
        uint32_t found = cairn_layout_tensor_find(source, tensor->name);
        enum cairn_dtype dtype =
            found == UINT32_MAX ? tensor->dtype : cairn_layout_tensor(source, found)->dtype;
        uint32_t index;

        err = cairn_box_copy_tensor(regions->owned, tensor, dtype, &index);
    }
    for (size_t i = 0; !err && i < count; i++) {
        struct cairn_piece piece = *entries[i].piece;
        const struct cairn_region *region = &regions->regions[entries[i].region];

        piece.container = entries[i].region;
        if (entries[i].from) {
            piece.offset_bytes =
                (piece.offset_bytes - region->file_offset) / region->to_bytes * region->from_bytes;
            for (uint32_t d = 0; d < CAIRN_DIMS_MAX; d++)
                piece.stride_bytes[d] =
                    piece.stride_bytes[d] / region->to_bytes * region->from_bytes;
        }
        err = cairn_layout_add_piece(regions->owned, &piece);
    }
    regions->layout = regions->owned;
    return err == CAIRN_INVAL ? CAIRN_INTERNAL : err;
}

cairn_err
cairn_regions_init(const struct cairn_output *output, const struct cairn_layout *source,
                   struct cairn_regions *out, struct cairn_complaint *complaint)
{
    size_t count = cairn_layout_piece_count(output->layout);
    struct cairn_regions regions = {.layout = output->layout};
    struct entry *entries = malloc((count + 1) * sizeof(*entries));
    uint64_t *ends = NULL;
    bool casts = false;
    cairn_err err = entries ? CAIRN_OK : CAIRN_NOMEM;

    if (!err)
        err = list_entries(output, source, entries, &casts, complaint);
    if (!err) {
        size_t room = output->file_count + (casts ? count : 0) + 1;

        regions.regions = calloc(room, sizeof(*regions.regions));
        ends = calloc(room, sizeof(*ends));
        err = regions.regions && ends ? CAIRN_OK : CAIRN_NOMEM;
    }
    if (!err) {
        for (uint32_t f = 0; f < output->file_count; f++)
            regions.regions[f] = (struct cairn_region){.file = f, .from_bytes = 1, .to_bytes = 1};
        regions.region_count = output->file_count;
        if (casts)
            err = make_regions(output, entries, count, &regions, ends, complaint);
    }
    if (!err)
        err = make_stretches(output, ends, &regions);
    if (!err && casts)
        err = scale_layout(output, source, entries, count, &regions);
    free(entries);
    free(ends);
    if (err) {
        cairn_regions_fini(&regions);
        return cairn_complain_failed(complaint, err, "the output cannot be laid out");
    }
    *out = regions;
    return CAIRN_OK;
}
