/* tools/convert/engine/source_sums.c - see source_sums.h. */
#include "tools/convert/engine/source_sums.h"
#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "snapshot/box.h"
#include "tools/convert/engine/gather.h"

enum { READ_BYTES = 256 * 1024, HOLDS_BYTES = 450 };

/* Of one block: what was read so far. Atomic. */
struct block {
    uint64_t crc;
    uint64_t bytes;
    uint64_t ends; /* each part's mark of its begin less that of its end: see is_read_once */
};

struct cairn_source_sums {
    const struct cairn_checkpoint *checkpoint;
    size_t *first;        /* [sum_count]: where the blocks of a sum begin */
    struct block *blocks; /* of all sums */
};

static int
compare_sums(const void *left, const void *right)
{
    const struct cairn_sum *a = left, *b = right;
    int order = CAIRN_COMPARE(a->container, b->container);

    return order ? order : CAIRN_COMPARE(a->offset_bytes, b->offset_bytes);
}

cairn_err
cairn_source_sums_create(struct cairn_checkpoint *checkpoint, struct cairn_source_sums **out)
{
    struct cairn_source_sums *sums;
    size_t count = 0;

    *out = NULL;
    if (checkpoint->sum_count == 0)
        return CAIRN_OK;
    sums = calloc(1, sizeof(*sums));
    if (!sums)
        return CAIRN_NOMEM;
    qsort(checkpoint->sums, checkpoint->sum_count, sizeof(*checkpoint->sums), compare_sums);
    sums->checkpoint = checkpoint;
    sums->first = malloc(checkpoint->sum_count * sizeof(*sums->first));
    for (uint32_t i = 0; sums->first && i < checkpoint->sum_count; i++) {
        sums->first[i] = count;
        count += (size_t)checkpoint->sums[i].count;
    }
    sums->blocks = calloc(count + 1, sizeof(*sums->blocks));
    if (!sums->first || !sums->blocks) {
        cairn_source_sums_destroy(sums);
        return CAIRN_NOMEM;
    }
    *out = sums;
    return CAIRN_OK;
}

void
cairn_source_sums_destroy(struct cairn_source_sums *sums)
{
    if (!sums)
        return;
    free(sums->first);
    free(sums->blocks);
    free(sums);
}

/* A number that stands for an offset. */
static uint64_t
mark(uint64_t offset)
{
    offset = (offset ^ offset >> 30) * UINT64_C(0xbf58476d1ce4e5b9) + UINT64_C(0x9e3779b97f4a7c15);
    offset = (offset ^ offset >> 27) * UINT64_C(0x94d049bb133111eb);
    return offset ^ offset >> 31;
}

/* Whether a block's parts are all of it, each byte once: then, and only then, begins and ends
 * cancel but for the block's own. */
static bool
is_read_once(const struct cairn_sum *sum, uint64_t index, const struct block *block)
{
    return block->bytes == cairn_sum_block_end(sum, index) - cairn_sum_block_begin(sum, index) &&
           block->ends ==
               mark(cairn_sum_block_begin(sum, index)) - mark(cairn_sum_block_end(sum, index));
}

/* The part of a block that is being read: runs that follow one another are one. */
struct open_part {
    uint32_t sum; /* UINT32_MAX: none */
    uint64_t block;
    uint64_t end; /* in the container */
    uint64_t bytes;
    uint64_t crc;
};

static void
close_part(struct cairn_source_sums *sums, struct open_part *part)
{
    const struct cairn_sum *sum;
    struct block *block;
    uint64_t crc;

    if (part->sum == UINT32_MAX)
        return;
    sum = &sums->checkpoint->sums[part->sum];
    block = &sums->blocks[sums->first[part->sum] + part->block];
    crc = cairn_crc_shift(sum->kind, part->crc, cairn_sum_block_end(sum, part->block) - part->end);
    (void)__atomic_fetch_xor(&block->crc, crc, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&block->bytes, part->bytes, __ATOMIC_RELAXED);
    (void)__atomic_fetch_add(&block->ends, mark(part->end - part->bytes) - mark(part->end),
                             __ATOMIC_RELAXED);
    part->sum = UINT32_MAX;
}

/* The first sum that ends behind an offset of a container. */
static uint32_t
first_sum(const struct cairn_checkpoint *checkpoint, uint32_t container, uint64_t offset)
{
    uint32_t low = 0, high = checkpoint->sum_count;

    CAIRN_BISECT(
        low, high, middle,
        checkpoint->sums[middle].container < container ||
            (checkpoint->sums[middle].container == container &&
             checkpoint->sums[middle].offset_bytes + checkpoint->sums[middle].bytes <= offset));
    return low;
}

static void
add_run(struct cairn_source_sums *sums, struct open_part *part, uint32_t container, uint64_t offset,
        const uint8_t *bytes, uint64_t bytes_len)
{
    const struct cairn_checkpoint *checkpoint = sums->checkpoint;
    uint64_t at = offset, end = offset + bytes_len;

    for (uint32_t i = first_sum(checkpoint, container, offset);
         i < checkpoint->sum_count && checkpoint->sums[i].container == container; i++) {
        const struct cairn_sum *sum = &checkpoint->sums[i];

        if (sum->offset_bytes > at)
            at = sum->offset_bytes;
        while (at < end && at < sum->offset_bytes + sum->bytes) {
            uint64_t block = (at - sum->offset_bytes) / sum->block_bytes;
            uint64_t to =
                cairn_sum_block_end(sum, block) < end ? cairn_sum_block_end(sum, block) : end;

            if (part->sum != i || part->block != block || part->end != at) {
                close_part(sums, part);
                *part = (struct open_part){.sum = i, .block = block};
            }
            part->crc =
                cairn_crc_of(sum->kind, part->crc, bytes + (at - offset), (size_t)(to - at));
            part->bytes += to - at;
            part->end = at = to;
        }
        if (at >= end)
            break;
    }
}

void
cairn_source_sums_add(struct cairn_source_sums *sums, const struct cairn_move *moves, size_t count,
                      const uint8_t *tile)
{
    struct open_part part = {.sum = UINT32_MAX};

    if (!sums)
        return;
    for (size_t i = 0; i < count; i++)
        for (uint64_t run = 0; run < moves[i].run_count; run++)
            add_run(sums, &part, moves[i].source_container,
                    moves[i].source_offset + run * moves[i].source_stride,
                    tile + moves[i].target_offset + run * moves[i].target_stride,
                    moves[i].run_bytes);
    close_part(sums, &part);
}

/* ---- what was not read, or not once ---- */

/* The checksum of a range of a sum's container, by reading it. */
static cairn_err
read_range(const struct cairn_checkpoint *checkpoint, struct cairn_handles *handles,
           const struct cairn_sum *sum, uint64_t at, uint64_t end, uint8_t *buffer, uint64_t *crc,
           struct cairn_complaint *complaint)
{
    cairn_err err = CAIRN_OK;

    *crc = 0;
    for (size_t bytes; !err && at < end; at += bytes) {
        struct iovec part = {buffer, end - at < READ_BYTES ? (size_t)(end - at) : READ_BYTES};

        bytes = part.iov_len;
        err = cairn_gather_parts(checkpoint, handles, sum->container, at, &part, 1, complaint);
        if (!err)
            *crc = cairn_crc_of(sum->kind, *crc, buffer, bytes);
    }
    return err;
}

/* What lies in a range of a container: the names of the first and last tensor. */
static void
say_tensors(const struct cairn_checkpoint *checkpoint, uint32_t container, uint64_t begin,
            uint64_t end, char text[HOLDS_BYTES])
{
    const struct cairn_layout *layout = checkpoint->layout;
    const struct cairn_piece *first = NULL, *last = NULL;

    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);

        if (piece->container != container || piece->offset_bytes >= end ||
            cairn_box_end(cairn_layout_tensor(layout, piece->tensor), piece) <= begin)
            continue;
        if (!first || piece->offset_bytes < first->offset_bytes)
            first = piece;
        if (!last || piece->offset_bytes > last->offset_bytes)
            last = piece;
    }
    if (!first)
        (void)snprintf(text, HOLDS_BYTES, "no tensor");
    else if (first->tensor == last->tensor)
        (void)snprintf(text, HOLDS_BYTES, "tensor %.200s",
                       cairn_layout_tensor(layout, first->tensor)->name);
    else
        (void)snprintf(text, HOLDS_BYTES, "tensors %.200s to %.200s",
                       cairn_layout_tensor(layout, first->tensor)->name,
                       cairn_layout_tensor(layout, last->tensor)->name);
}

/* Where a piece lies in its container. */
struct span {
    uint64_t begin, end;
    uint32_t container;
    bool whole; /* all bytes from begin to end are the piece's */
};

static int
compare_spans(const void *left, const void *right)
{
    const struct span *a = left, *b = right;

    return CAIRN_COMPARE(a->container, b->container) ?: CAIRN_COMPARE(a->begin, b->begin);
}

/* All pieces, by container and place; NULL: no memory. The caller frees it. */
static struct span *
sort_pieces(const struct cairn_layout *layout, size_t *count)
{
    struct span *spans;

    *count = cairn_layout_piece_count(layout);
    spans = malloc((*count + 1) * sizeof(*spans));
    for (size_t i = 0; spans && i < *count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, piece->tensor);
        uint64_t bytes =
            cairn_dtype_bytes(tensor->dtype) * cairn_shape_elements(tensor->dims, piece->extent);
        uint64_t end = cairn_box_end(tensor, piece);

        spans[i] = (struct span){piece->offset_bytes, end, piece->container,
                                 end - piece->offset_bytes == bytes};
    }
    if (spans)
        qsort(spans, *count, sizeof(*spans), compare_spans);
    return spans;
}

/* The first of the sorted pieces that ends or begins after an offset; no pieces overlap. */
static size_t
first_span(const struct span *spans, size_t count, uint32_t container, uint64_t offset)
{
    struct span key = {.container = container, .begin = offset};
    size_t low = 0, high = count;

    CAIRN_BISECT(low, high, middle, compare_spans(&spans[middle], &key) < 0);
    return low > 0 && spans[low - 1].container == container && spans[low - 1].end > offset ? low - 1
                                                                                           : low;
}

/* Reads what lies between the pieces of a block and adds it. If pieces overlap, or something else
 * was read, that does not complete it: is_read_once tells. Errors are ignored: then the whole block
 * is read. */
static void
add_gaps(const struct cairn_checkpoint *checkpoint, struct cairn_handles *handles,
         const struct cairn_sum *sum, uint64_t index, const struct span *spans, size_t count,
         uint8_t *buffer, struct block *block)
{
    struct cairn_complaint unheard = {""};
    uint64_t at = cairn_sum_block_begin(sum, index), end = cairn_sum_block_end(sum, index);

    for (size_t i = first_span(spans, count, sum->container, at); at < end; i++) {
        bool piece = i < count && spans[i].container == sum->container && spans[i].begin < end;
        uint64_t next = piece ? spans[i].begin : end, part;

        if (piece && !spans[i].whole)
            return;
        if (next > at) {
            if (read_range(checkpoint, handles, sum, at, next, buffer, &part, &unheard))
                return;
            block->crc ^= cairn_crc_shift(sum->kind, part, end - next);
            block->bytes += next - at;
            block->ends += mark(at) - mark(next);
        }
        at = piece ? spans[i].end : end;
    }
}

/* The path of a sum's file below the place; NULL: it is the place itself. */
static const char *
path_of(const struct cairn_checkpoint *checkpoint, const struct cairn_sum *sum)
{
    const char *path = checkpoint->containers[sum->container].path;

    return path && path[0] ? path : NULL;
}

static cairn_err
complain_of_block(const struct cairn_checkpoint *checkpoint, const struct cairn_sum *sum,
                  uint64_t block)
{
    uint64_t begin = cairn_sum_block_begin(sum, block), end = cairn_sum_block_end(sum, block);
    char holds[HOLDS_BYTES];

    say_tensors(checkpoint, sum->container, begin, end, holds);
    return cairn_refuse_file(checkpoint, path_of(checkpoint, sum), CAIRN_CORRUPT,
                             "is damaged between byte %" PRIu64 " and %" PRIu64
                             ", which hold %s: their checksum does not fit; take another copy%s",
                             begin, end, holds,
                             sum->kind == CAIRN_CRC_ZIP
                                 ? ", or, where they were changed in place on purpose, load it "
                                   "in PyTorch and save it again"
                                 : "");
}

/* The file is right, and was not when it was read, now or by the run that is gone on with. */
static cairn_err
complain_of_reading(const struct cairn_checkpoint *checkpoint, const struct cairn_sum *sum,
                    uint64_t block)
{
    return cairn_refuse_file(checkpoint, path_of(checkpoint, sum), CAIRN_CORRUPT,
                             "does not fit its checksum between byte %" PRIu64 " and %" PRIu64
                             " as it was read before, and does now: it was changed, or read "
                             "wrongly; run the same command again",
                             cairn_sum_block_begin(sum, block), cairn_sum_block_end(sum, block));
}

/* Where the pieces are, for blocks that were read in part; made when first needed. */
struct gaps {
    struct span *spans;
    size_t count;
    uint8_t *buffer; /* [READ_BYTES] */
};

static cairn_err
check_block(const struct cairn_source_sums *sums, const struct cairn_checkpoint *checkpoint,
            struct cairn_handles *handles, uint32_t index, uint64_t b, struct gaps *gaps)
{
    const struct cairn_sum *sum = &checkpoint->sums[index];
    struct block block = sums->blocks[sums->first[index] + b];
    uint64_t crc;
    cairn_err err;

    if (block.bytes == 0)
        return CAIRN_OK;
    if (block.bytes < cairn_sum_block_end(sum, b) - cairn_sum_block_begin(sum, b)) {
        if (!gaps->spans)
            gaps->spans = sort_pieces(checkpoint->layout, &gaps->count);
        if (gaps->spans)
            add_gaps(checkpoint, handles, sum, b, gaps->spans, gaps->count, gaps->buffer, &block);
    }
    if (block.crc == sum->values[b] && is_read_once(sum, b, &block))
        return CAIRN_OK;
    err = read_range(checkpoint, handles, sum, cairn_sum_block_begin(sum, b),
                     cairn_sum_block_end(sum, b), gaps->buffer, &crc, checkpoint->complaint);
    if (err)
        return err;
    if (crc != sum->values[b])
        return complain_of_block(checkpoint, sum, b);
    return is_read_once(sum, b, &block) ? complain_of_reading(checkpoint, sum, b) : CAIRN_OK;
}

cairn_err
cairn_source_sums_check(struct cairn_source_sums *sums, const struct cairn_checkpoint *checkpoint,
                        struct cairn_handles *handles)
{
    struct gaps gaps = {NULL, 0, NULL};
    cairn_err err = CAIRN_OK;

    if (!sums)
        return CAIRN_OK;
    gaps.buffer = malloc(READ_BYTES);
    if (!gaps.buffer)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < checkpoint->sum_count; i++)
        for (uint64_t b = 0; !err && b < checkpoint->sums[i].count; b++)
            err = check_block(sums, checkpoint, handles, i, b, &gaps);
    free(gaps.spans);
    free(gaps.buffer);
    return err;
}
