/* tools/convert/engine/writing.c - see writing.h. */
#include "tools/convert/engine/writing.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "tools/convert/engine/cast.h"
#include "base/crc_join.h"

struct cairn_writing {
    const struct cairn_conversion *conversion;
    struct cairn_target *target;
    struct cairn_tally *tally;
    const struct cairn_output_literal **literals; /* by file, offset */
    uint32_t literal_count;
    struct cairn_output_sum **sums; /* by file, offset */
    uint32_t sum_count;
    uint64_t total_bytes;
    uint64_t kept_bytes; /* atomic */
};

static int
compare_literals(const void *left, const void *right)
{
    const struct cairn_output_literal *a = *(const struct cairn_output_literal *const *)left;
    const struct cairn_output_literal *b = *(const struct cairn_output_literal *const *)right;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset_bytes < b->offset_bytes ? -1 : a->offset_bytes > b->offset_bytes;
}

static int
compare_sums(const void *left, const void *right)
{
    const struct cairn_output_sum *a = *(const struct cairn_output_sum *const *)left;
    const struct cairn_output_sum *b = *(const struct cairn_output_sum *const *)right;

    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    return a->offset_bytes < b->offset_bytes ? -1 : a->offset_bytes > b->offset_bytes;
}

/* Ranges lie in their files, and not over each other. */
static cairn_err
check_ranges(const struct cairn_writing *writing)
{
    const struct cairn_output_file *files = writing->conversion->output.files;

    for (uint32_t i = 0; i < writing->literal_count; i++) {
        const struct cairn_output_literal *literal = writing->literals[i];

        if (literal->offset_bytes > files[literal->file].bytes ||
            literal->bytes_len > files[literal->file].bytes - literal->offset_bytes ||
            (i > 0 && literal->file == writing->literals[i - 1]->file &&
             literal->offset_bytes <
                 writing->literals[i - 1]->offset_bytes + writing->literals[i - 1]->bytes_len))
            return CAIRN_INTERNAL;
    }
    for (uint32_t i = 0; i < writing->sum_count; i++) {
        const struct cairn_output_sum *sum = writing->sums[i];

        if (sum->offset_bytes > files[sum->file].bytes ||
            sum->bytes > files[sum->file].bytes - sum->offset_bytes ||
            (i > 0 && sum->file == writing->sums[i - 1]->file &&
             sum->offset_bytes < writing->sums[i - 1]->offset_bytes + writing->sums[i - 1]->bytes))
            return CAIRN_INTERNAL;
    }
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
        writing->literals = malloc((output->literal_count + 1) * sizeof(*writing->literals));
        writing->sums = malloc((output->sum_count + 1) * sizeof(*writing->sums));
        if (!writing->literals || !writing->sums)
            err = CAIRN_NOMEM;
    }
    if (!err) {
        for (uint32_t i = 0; i < output->literal_count; i++)
            writing->literals[writing->literal_count++] = &output->literals[i];
        for (uint32_t i = 0; i < output->sum_count; i++) {
            memset(output->sums[i].values, 0,
                   (size_t)output->sums[i].count * sizeof(*output->sums[i].values));
            writing->sums[writing->sum_count++] = &output->sums[i];
        }
        qsort(writing->literals, writing->literal_count, sizeof(*writing->literals),
              compare_literals);
        qsort(writing->sums, writing->sum_count, sizeof(*writing->sums), compare_sums);
        for (size_t i = 0; i < conversion->regions.stretch_count; i++)
            writing->total_bytes +=
                conversion->regions.stretches[i].end - conversion->regions.stretches[i].begin;
        err = check_ranges(writing);
    }
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
    free(writing->literals);
    free(writing->sums);
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

/* The first of sorted literals that ends behind an offset. */
static uint32_t
first_literal(const struct cairn_writing *writing, uint32_t file, uint64_t offset)
{
    uint32_t low = 0, high = writing->literal_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct cairn_output_literal *literal = writing->literals[middle];

        if (literal->file < file ||
            (literal->file == file && literal->offset_bytes + literal->bytes_len <= offset))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void
put_literals(const struct cairn_writing *writing, const struct span *span)
{
    for (uint32_t i = first_literal(writing, span->file, span->begin); i < writing->literal_count;
         i++) {
        const struct cairn_output_literal *literal = writing->literals[i];
        uint64_t begin = literal->offset_bytes, end = begin + literal->bytes_len;

        if (literal->file != span->file || begin >= span->end)
            break;
        begin = begin < span->begin ? span->begin : begin;
        end = end > span->end ? span->end : end;
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
    bool zip = sum->kind == CAIRN_SUM_CRC32;
    enum cairn_crc_kind kind = zip ? CAIRN_CRC_ZIP : CAIRN_CRC_ECMA;
    uint64_t crc = zip ? cairn_crc32(0, bytes, (size_t)(end - begin))
                       : cairn_crc64(0, bytes, (size_t)(end - begin));

    if (after > 0)
        crc = cairn_crc_multiply(kind, crc, cairn_crc_factor(kind, after));
    (void)__atomic_fetch_xor(&sum->values[block], crc, __ATOMIC_RELAXED);
}

static void
add_sums(const struct cairn_writing *writing, const struct span *span)
{
    uint32_t low = 0, high = writing->sum_count;

    while (low < high) { /* the first that ends behind the span's begin */
        uint32_t middle = low + (high - low) / 2;
        const struct cairn_output_sum *sum = writing->sums[middle];

        if (sum->file < span->file ||
            (sum->file == span->file && sum->offset_bytes + sum->bytes <= span->begin))
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < writing->sum_count; low++) {
        struct cairn_output_sum *sum = writing->sums[low];
        uint64_t begin = sum->offset_bytes, end = begin + sum->bytes;

        if (sum->file != span->file || begin >= span->end)
            break;
        begin = begin < span->begin ? span->begin : begin;
        end = end > span->end ? span->end : end;
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
