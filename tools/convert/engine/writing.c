/* tools/convert/engine/writing.c - see writing.h. */
#include "tools/convert/engine/writing.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/crc.h"
#include "tools/convert/engine/cast.h"

/* Where a literal or a sum lies. */
struct range {
    uint32_t file;
    uint64_t begin, end;
    union {
        const struct cairn_output_literal *literal;
        struct cairn_output_sum *sum;
    };
};

/* Sorted by file and begin. They do not overlap. */
struct ranges {
    struct range *ranges;
    uint32_t count;
};

struct cairn_writing {
    const struct cairn_conversion *conversion;
    struct cairn_target *target;
    struct cairn_tally *tally;
    struct ranges literals, sums;
    uint64_t total_bytes;
    uint64_t kept_bytes; /* atomic */
};

static int
compare_ranges(const void *left, const void *right)
{
    const struct range *a = left, *b = right;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Sorts ranges. CAIRN_INTERNAL if one leaves its file, or overlaps another. */
static cairn_err
sort_ranges(const struct cairn_output_file *files, struct ranges *sorted)
{
    const struct range *range = sorted->ranges;

    qsort(sorted->ranges, sorted->count, sizeof(*range), compare_ranges);
    for (uint32_t i = 0; i < sorted->count; i++, range++)
        if (range->begin > range->end || range->end > files[range->file].bytes ||
            (i > 0 && range->file == range[-1].file && range->begin < range[-1].end))
            return CAIRN_INTERNAL;
    return CAIRN_OK;
}

cairn_err
cairn_writing_create(struct cairn_conversion *conversion, struct cairn_target *target,
                     struct cairn_tally *tally, struct cairn_writing **out)
{
    struct cairn_output *output = &conversion->output;
    struct cairn_writing *writing = calloc(1, sizeof(*writing));
    cairn_err err = writing ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        writing->conversion = conversion;
        writing->target = target;
        writing->tally = tally;
        writing->literals.ranges = calloc(output->literal_count + 1, sizeof(struct range));
        writing->sums.ranges = calloc(output->sum_count + 1, sizeof(struct range));
        if (!writing->literals.ranges || !writing->sums.ranges)
            err = CAIRN_NOMEM;
    }
    if (!err) {
        for (uint32_t i = 0; i < output->literal_count; i++) {
            const struct cairn_output_literal *literal = &output->literals[i];

            writing->literals.ranges[writing->literals.count++] =
                (struct range){literal->file,
                               literal->offset_bytes,
                               literal->offset_bytes + literal->bytes_len,
                               {.literal = literal}};
        }
        for (uint32_t i = 0; i < output->sum_count; i++) {
            struct cairn_output_sum *sum = &output->sums[i];

            memset(sum->values, 0, (size_t)sum->count * sizeof(*sum->values));
            writing->sums.ranges[writing->sums.count++] = (struct range){
                sum->file, sum->offset_bytes, sum->offset_bytes + sum->bytes, {.sum = sum}};
        }
        for (size_t i = 0; i < conversion->regions.stretch_count; i++)
            writing->total_bytes +=
                conversion->regions.stretches[i].end - conversion->regions.stretches[i].begin;
        err = sort_ranges(output->files, &writing->literals);
    }
    if (!err)
        err = sort_ranges(output->files, &writing->sums);
    if (err) {
        cairn_writing_destroy(writing);
        return err;
    }
    *out = writing;
    return CAIRN_OK;
}

void
cairn_writing_destroy(struct cairn_writing *writing)
{
    if (!writing)
        return;
    free(writing->literals.ranges);
    free(writing->sums.ranges);
    free(writing);
}

uint64_t
cairn_writing_kept_bytes(const struct cairn_writing *writing)
{
    return writing->kept_bytes;
}

/* ---- one tile ---- */

/* The bytes of a file that a tile becomes. */
struct span {
    uint32_t file;
    uint64_t begin, end;
    uint8_t *bytes;
};

static struct span
span_of(const struct cairn_writing *writing, const struct cairn_tile *tile)
{
    const struct cairn_region *region = &writing->conversion->regions.regions[tile->container];

    return (struct span){.file = region->file,
                         .begin = cairn_region_file_offset(region, tile->begin),
                         .end = cairn_region_file_offset(region, tile->end),
                         .bytes = region->from ? tile->spare : tile->bytes};
}

/* The first range that ends behind the span's begin. */
static uint32_t
first_range(const struct ranges *sorted, const struct span *span)
{
    uint32_t low = 0, high = sorted->count;

    CAIRN_BISECT(low, high, middle,
                 sorted->ranges[middle].file < span->file ||
                     (sorted->ranges[middle].file == span->file &&
                      sorted->ranges[middle].end <= span->begin));
    return low;
}

/* The part of range number `index` that the span has, [*begin, *end); false if it lies behind the
 * span, as all later ranges then do. */
static bool
clip_range(const struct ranges *sorted, uint32_t index, const struct span *span, uint64_t *begin,
           uint64_t *end)
{
    const struct range *range = &sorted->ranges[index];

    if (index == sorted->count || range->file != span->file || range->begin >= span->end)
        return false;
    *begin = range->begin < span->begin ? span->begin : range->begin;
    *end = range->end > span->end ? span->end : range->end;
    return true;
}

static void
put_literals(const struct cairn_writing *writing, const struct span *span)
{
    uint64_t begin, end;

    for (uint32_t i = first_range(&writing->literals, span);
         clip_range(&writing->literals, i, span, &begin, &end); i++) {
        const struct cairn_output_literal *literal = writing->literals.ranges[i].literal;

        memcpy(span->bytes + (begin - span->begin),
               literal->bytes + (begin - literal->offset_bytes), (size_t)(end - begin));
    }
}

/* Adds what the span has of one block of a sum. */
static void
add_to_block(struct cairn_output_sum *sum, uint64_t block, uint64_t begin, uint64_t end,
             const uint8_t *bytes)
{
    uint64_t block_end = (block + 1) * sum->block_bytes;
    uint64_t after =
        (block_end > sum->bytes || block_end < sum->block_bytes ? sum->bytes : block_end) +
        sum->offset_bytes - end;
    uint64_t crc =
        cairn_crc_shift(sum->kind, cairn_crc_of(sum->kind, 0, bytes, (size_t)(end - begin)), after);

    (void)__atomic_fetch_xor(&sum->values[block], crc, __ATOMIC_RELAXED);
}

static void
add_sums(const struct cairn_writing *writing, const struct span *span)
{
    uint64_t begin, end;

    for (uint32_t i = first_range(&writing->sums, span);
         clip_range(&writing->sums, i, span, &begin, &end); i++) {
        struct cairn_output_sum *sum = writing->sums.ranges[i].sum;

        while (begin < end) {
            uint64_t block = (begin - sum->offset_bytes) / sum->block_bytes;
            uint64_t in_block = (begin - sum->offset_bytes) % sum->block_bytes;
            uint64_t part_end = end - begin > sum->block_bytes - in_block
                                    ? begin + (sum->block_bytes - in_block)
                                    : end;

            add_to_block(sum, block, begin, part_end, span->bytes + (begin - span->begin));
            begin = part_end;
        }
    }
}

static cairn_err
have_tile(void *context, const struct cairn_tile *tile, bool *have,
          struct cairn_complaint *complaint)
{
    struct cairn_writing *writing = context;
    struct span span = span_of(writing, tile);
    size_t bytes = (size_t)(span.end - span.begin), got = 0;
    uint64_t crc;
    cairn_err err;

    *have = false;
    /* What was cast cannot be cast back, so such tiles are made again. */
    if (writing->conversion->regions.regions[tile->container].from ||
        !cairn_journal_find(cairn_target_journal(writing->target), tile->container, tile->begin,
                            tile->end, &crc))
        return CAIRN_OK;
    err = cairn_target_read(writing->target, span.file, span.begin, tile->bytes, bytes, &got,
                            complaint);
    if (err)
        return err;
    *have = got == bytes && cairn_crc64(0, tile->bytes, bytes) == crc;
    if (*have)
        (void)__atomic_fetch_add(&writing->kept_bytes, bytes, __ATOMIC_RELAXED);
    return CAIRN_OK;
}

static cairn_err
take_tile(void *context, const struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    struct cairn_writing *writing = context;
    const struct cairn_region *region = &writing->conversion->regions.regions[tile->container];
    struct span span = span_of(writing, tile);
    size_t bytes = (size_t)(span.end - span.begin);
    cairn_err err;

    if (region->from)
        cairn_cast(tile->bytes, region->from, tile->spare, region->to,
                   (tile->end - tile->begin) / region->from_bytes);
    err = cairn_tally_tile(writing->tally, tile, span.bytes, complaint);
    if (err)
        return err;
    if (!tile->had)
        put_literals(writing, &span);
    add_sums(writing, &span);
    if (tile->had)
        return CAIRN_OK;
    err = cairn_target_write(writing->target, span.file, span.begin, span.bytes, bytes, complaint);
    if (err)
        return err;
    err = cairn_journal_add(cairn_target_journal(writing->target), tile->container, tile->begin,
                            tile->end, cairn_crc64(0, span.bytes, bytes));
    return cairn_complain_failed(complaint, err, "the journal of %s cannot be written",
                                 cairn_target_directory(writing->target));
}

static void
show(void *context, uint64_t done_bytes)
{
    const struct cairn_writing *writing = context;
    const struct cairn_conversion_options *options = writing->conversion->options;

    if (options->progress)
        options->progress(options->context, "converting", done_bytes, writing->total_bytes);
}

void
cairn_writing_attach(struct cairn_writing *writing, struct cairn_execution *execution)
{
    execution->have = have_tile;
    execution->take = take_tile;
    execution->progress = show;
    execution->context = writing;
}
