/* tools/convert/engine/gather.c - see gather.h. */
#include "tools/convert/engine/gather.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/array.h"

uint64_t
cairn_move_target_end(const struct cairn_move *move)
{
    CAIRN_ASSERT(move->run_count > 0);
    return move->target_offset + (move->run_count - 1) * move->target_stride + move->run_bytes;
}

static void
push_clip(struct cairn_move *clips, size_t *count, const struct cairn_move *move, uint64_t run,
          uint64_t runs, uint64_t skip, uint64_t bytes, uint64_t tile_begin)
{
    struct cairn_move *clip = &clips[(*count)++];

    *clip = *move;
    clip->source_offset += run * move->source_stride + skip;
    clip->target_offset += run * move->target_stride + skip - tile_begin;
    clip->run_bytes = bytes;
    clip->run_count = runs;
    if (runs == 1)
        clip->source_stride = clip->target_stride = 0;
}

void
cairn_clip_move(const struct cairn_move *move, uint64_t begin, uint64_t end,
                struct cairn_move *clips, size_t *count)
{
    uint64_t stride = move->target_stride, run = 0, last = move->run_count - 1;

    CAIRN_ASSERT(move->run_count > 0 && begin < end);
    CAIRN_ASSERT(move->run_count == 1 || stride > 0); /* runs of a target never overlap */

    if (move->target_offset < begin && move->run_count > 1) {
        run = (begin - move->target_offset) / stride;
        if (run > last)
            run = last;
    }
    if (move->run_count > 1 && last > (end - 1 - move->target_offset) / stride)
        last = (end - 1 - move->target_offset) / stride;
    if (move->target_offset + run * stride + move->run_bytes <= begin)
        run++;
    for (; run <= last;) {
        uint64_t at = move->target_offset + run * stride;
        uint64_t from = at < begin ? begin : at;
        uint64_t to = at + move->run_bytes > end ? end : at + move->run_bytes;
        uint64_t runs = 1;

        if (from == at && to == at + move->run_bytes) { /* whole: and all others that are */
            runs = last - run + 1;
            if (move->target_offset + last * stride + move->run_bytes > end)
                runs--;
        }
        push_clip(clips, count, move, run, runs, from - at, to - from, begin);
        run += runs;
    }
}

enum {
    ENTRIES_MAX = 16384,
    LONG_RUN_BYTES = 256,        /* from here on a part of a preadv costs less than a copy */
    GAP_BYTES_MAX = 4096,        /* read over rather than ask twice */
    STAGING_BYTES = 1024 * 1024, /* fits the second cache of most machines */
    READ_BYTES_MAX = 16 * 1024 * 1024
};

struct entry {
    uint64_t offset;
    uint64_t bytes;
    uint8_t *to;
    uint32_t container;
};

struct cairn_gather {
    const struct cairn_checkpoint *checkpoint;
    struct cairn_handles *handles;
    struct entry *entries; /* [ENTRIES_MAX] */
    size_t entry_count;
    struct iovec *parts; /* [CAIRN_FILE_PARTS_MAX] */
    uint8_t *staging;    /* [STAGING_BYTES] */
    uint8_t *scrap;      /* [GAP_BYTES_MAX]: where the bytes of gaps go */
};

size_t
cairn_gather_bytes(void)
{
    return sizeof(struct cairn_gather) + ENTRIES_MAX * sizeof(struct entry) +
           CAIRN_FILE_PARTS_MAX * sizeof(struct iovec) + STAGING_BYTES + GAP_BYTES_MAX;
}

cairn_err
cairn_gather_create(const struct cairn_checkpoint *checkpoint, struct cairn_handles *handles,
                    struct cairn_gather **out)
{
    struct cairn_gather *gather = calloc(1, sizeof(*gather));

    if (!gather)
        return CAIRN_NOMEM;
    gather->checkpoint = checkpoint;
    gather->handles = handles;
    gather->entries = malloc(ENTRIES_MAX * sizeof(*gather->entries));
    gather->parts = malloc(CAIRN_FILE_PARTS_MAX * sizeof(*gather->parts));
    gather->staging = malloc(STAGING_BYTES);
    gather->scrap = malloc(GAP_BYTES_MAX);
    if (!gather->entries || !gather->parts || !gather->staging || !gather->scrap) {
        cairn_gather_destroy(gather);
        return CAIRN_NOMEM;
    }
    *out = gather;
    return CAIRN_OK;
}

void
cairn_gather_destroy(struct cairn_gather *gather)
{
    if (!gather)
        return;
    free(gather->entries);
    free(gather->parts);
    free(gather->staging);
    free(gather->scrap);
    free(gather);
}

cairn_err
cairn_gather_parts(const struct cairn_checkpoint *checkpoint, struct cairn_handles *handles,
                   uint32_t container, uint64_t at, struct iovec *parts, int count,
                   struct cairn_complaint *complaint)
{
    const struct cairn_container *source = &checkpoint->containers[container];
    const char *name = cairn_checkpoint_container_name(checkpoint, container);
    uint64_t bytes = 0, got = 0;
    cairn_err err;
    int fd = -1;

    for (int i = 0; i < count; i++) {
        if (!source->path) /* in memory; the layout was held against its size */
            memcpy(parts[i].iov_base, source->literal + at + bytes, parts[i].iov_len);
        bytes += parts[i].iov_len;
    }
    if (!source->path)
        return CAIRN_OK;
    err = cairn_handles_acquire(handles, container, &fd, complaint);
    if (err)
        return err;
    err = cairn_file_read_parts_at(fd, at, parts, count, &got);
    cairn_handles_release(handles, container);
    if (!err && got < bytes)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: ended at byte %" PRIu64
                              " while it was read; wait until no job writes there",
                              name, at + got);
    return cairn_complain_failed(complaint, err, "%s: cannot be read at byte %" PRIu64 "", name,
                                 at);
}

static cairn_err
read_parts(struct cairn_gather *gather, uint32_t container, uint64_t at, int count,
           struct cairn_complaint *complaint)
{
    return cairn_gather_parts(gather->checkpoint, gather->handles, container, at, gather->parts,
                              count, complaint);
}

static int
compare_entries(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;

    return CAIRN_COMPARE(a->container, b->container) ?: CAIRN_COMPARE(a->offset, b->offset);
}

/* Reads all entries: from each on as many as one call takes without a long gap or a step back. */
static cairn_err
read_entries(struct cairn_gather *gather, struct cairn_complaint *complaint)
{
    struct entry *entries = gather->entries;
    size_t count = gather->entry_count;
    cairn_err err = CAIRN_OK;

    gather->entry_count = 0;
    if (count > 1)
        qsort(entries, count, sizeof(*entries), compare_entries);
    for (size_t i = 0; i < count && !err;) {
        uint32_t container = entries[i].container;
        uint64_t begin = entries[i].offset, end = begin;
        int parts = 0;

        for (; i < count && entries[i].container == container && entries[i].offset >= end &&
               entries[i].offset - end <= GAP_BYTES_MAX && parts + 2 <= CAIRN_FILE_PARTS_MAX &&
               (parts == 0 || entries[i].offset + entries[i].bytes - begin <= READ_BYTES_MAX);
             i++) {
            if (entries[i].offset > end)
                gather->parts[parts++] =
                    (struct iovec){gather->scrap, (size_t)(entries[i].offset - end)};
            gather->parts[parts++] = (struct iovec){entries[i].to, (size_t)entries[i].bytes};
            end = entries[i].offset + entries[i].bytes;
        }
        err = read_parts(gather, container, begin, parts, complaint);
    }
    return err;
}

static cairn_err
add_entry(struct cairn_gather *gather, const struct entry *entry, struct cairn_complaint *complaint)
{
    if (gather->entry_count == ENTRIES_MAX) {
        cairn_err err = read_entries(gather, complaint);

        if (err)
            return err;
    }
    gather->entries[gather->entry_count++] = *entry;
    return CAIRN_OK;
}

/* ---- short runs ---- */

/* Moves whose runs lie side by side in the source, row after row: `count` of them, with the same
 * number of runs and stride; a row is `width` bytes. */
struct bundle {
    const struct cairn_move *moves;
    size_t count;
    uint64_t width;
};

static bool
is_short(const struct cairn_move *move)
{
    return move->run_bytes < LONG_RUN_BYTES && move->run_count > 1;
}

static int
compare_short(const void *left, const void *right)
{
    const struct cairn_move *a = left, *b = right;
    int order = CAIRN_COMPARE(is_short(a), is_short(b));

    order = order ? order : CAIRN_COMPARE(a->source_container, b->source_container);
    order = order ? order : CAIRN_COMPARE(a->source_stride, b->source_stride);
    order = order ? order : CAIRN_COMPARE(a->run_count, b->run_count);
    return order ? order : CAIRN_COMPARE(a->source_offset, b->source_offset);
}

static struct bundle
next_bundle(const struct cairn_move *moves, size_t count)
{
    struct bundle bundle = {moves, 1, moves->run_bytes};

    while (bundle.count < count) {
        const struct cairn_move *next = &moves[bundle.count];

        if (next->source_container != moves->source_container ||
            next->source_stride != moves->source_stride || next->run_count != moves->run_count ||
            next->source_offset != moves->source_offset + bundle.width ||
            bundle.width + next->run_bytes > moves->source_stride ||
            bundle.width + next->run_bytes > STAGING_BYTES)
            break;
        bundle.width += next->run_bytes;
        bundle.count++;
    }
    return bundle;
}

/* Element by element, for the usual sizes: the compiler makes each a load and a store. */
static void
copy_runs(const uint8_t *from, uint64_t from_stride, uint8_t *to, uint64_t to_stride,
          uint64_t run_bytes, uint64_t count)
{
    switch (run_bytes) {
    case 1:
        for (uint64_t i = 0; i < count; i++)
            to[i * to_stride] = from[i * from_stride];
        break;
    case 2:
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, 2);
        break;
    case 4:
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, 4);
        break;
    case 8:
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, 8);
        break;
    default:
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * to_stride, from + i * from_stride, (size_t)run_bytes);
    }
}

/* Reads rows [row, row + rows) of a bundle into the staging buffer, `pitch` bytes apart. */
static cairn_err
stage_rows(struct cairn_gather *gather, const struct bundle *bundle, uint64_t row, uint64_t rows,
           uint64_t pitch, struct cairn_complaint *complaint)
{
    const struct cairn_move *move = bundle->moves;
    uint64_t at = move->source_offset + row * move->source_stride;
    cairn_err err = CAIRN_OK;

    if (pitch == move->source_stride) { /* gaps and all */
        gather->parts[0] =
            (struct iovec){gather->staging, (size_t)((rows - 1) * pitch + bundle->width)};
        return read_parts(gather, move->source_container, at, 1, complaint);
    }
    for (uint64_t i = 0; i < rows && !err; i++) {
        gather->parts[0] = (struct iovec){gather->staging + i * pitch, (size_t)bundle->width};
        err =
            read_parts(gather, move->source_container, at + i * move->source_stride, 1, complaint);
    }
    return err;
}

static cairn_err
read_bundle(struct cairn_gather *gather, const struct bundle *bundle, uint8_t *target,
            struct cairn_complaint *complaint)
{
    const struct cairn_move *move = bundle->moves;
    uint64_t stride = move->source_stride;
    /* A row more than twice as long as the wanted part is read piece by piece. */
    bool whole = stride >= bundle->width &&
                 (stride <= 2 * bundle->width || stride <= LONG_RUN_BYTES) &&
                 stride <= STAGING_BYTES;
    bool repeated = stride == 0;
    uint64_t pitch = whole ? stride : bundle->width;
    uint64_t rows_max = repeated ? move->run_count
                        : whole  ? (STAGING_BYTES - bundle->width) / pitch + 1
                                 : STAGING_BYTES / pitch;
    cairn_err err = CAIRN_OK;

    for (uint64_t row = 0; row < move->run_count && !err; row += rows_max) {
        uint64_t rows = move->run_count - row < rows_max ? move->run_count - row : rows_max;
        uint64_t column = 0;

        err = stage_rows(gather, bundle, row, repeated ? 1 : rows, pitch, complaint);
        for (size_t i = 0; i < bundle->count && !err; i++) {
            copy_runs(gather->staging + column, repeated ? 0 : pitch,
                      target + bundle->moves[i].target_offset +
                          row * bundle->moves[i].target_stride,
                      bundle->moves[i].target_stride, bundle->moves[i].run_bytes, rows);
            column += bundle->moves[i].run_bytes;
        }
    }
    return err;
}

cairn_err
cairn_gather_run(struct cairn_gather *gather, struct cairn_move *moves, size_t count,
                 uint8_t *target, struct cairn_complaint *complaint)
{
    size_t i = 0;
    bool some_short = false;
    cairn_err err = CAIRN_OK;

    gather->entry_count = 0;
    for (size_t m = 0; m < count; m++)
        some_short = some_short || is_short(&moves[m]);
    if (some_short)
        qsort(moves, count, sizeof(*moves), compare_short);
    for (; i < count && !is_short(&moves[i]) && !err; i++)
        for (uint64_t run = 0; run < moves[i].run_count && !err; run++) {
            struct entry entry = {.container = moves[i].source_container,
                                  .offset = moves[i].source_offset + run * moves[i].source_stride,
                                  .bytes = moves[i].run_bytes,
                                  .to = target + moves[i].target_offset +
                                        run * moves[i].target_stride};

            err = add_entry(gather, &entry, complaint);
        }
    if (!err)
        err = read_entries(gather, complaint);
    while (i < count && !err) {
        struct bundle bundle = next_bundle(moves + i, count - i);

        err = read_bundle(gather, &bundle, target, complaint);
        i += bundle.count;
    }
    return err;
}
