/*
 * agent/service/spill_fill.c - see spill_fill.h.
 *
 * `order` holds the container's moves by their begin in the target; those that reach into the
 * buffer are in `active`, in the order of the plan (source container, source offset), so that
 * neighbouring runs share blocks. A cursor is a place in the buffer's bytes in that order; a piece
 * is the longest stretch from there within one run and one source block.
 */
#include "agent/service/spill_fill.h"

#include <stdlib.h>
#include <string.h>

enum { NO_SLOT = UINT32_MAX };

struct cursor {
    uint32_t at;  /* in active */
    bool entered; /* run and run_end are of that move */
    uint64_t run; /* of the move */
    uint64_t run_end;
    uint64_t done; /* bytes of the run's part in this buffer */
};

struct piece {
    uint32_t container;
    uint64_t block;
    size_t block_offset;
    size_t buffer_offset;
    size_t bytes;
};

struct slot {
    uint32_t container;
    bool filled;
    uint64_t block;
    uint64_t pass; /* that used it last */
};

struct fill {
    const struct cairn_moves *moves;
    uint32_t *order;
    uint32_t order_count;
    uint32_t order_next; /* first that has not been active */
    uint32_t *active;
    uint32_t active_count;
    uint8_t *buffer;
    uint64_t begin, end; /* of the buffer in the target */
    uint64_t copied_bytes;
    struct cursor from, to; /* of the pass */
    uint64_t pass;
    uint8_t *window;
    struct slot slots[FILL_WINDOW_BLOCKS];
    uint32_t hand;     /* slot that is taken next */
    uint32_t last_hit; /* slot */
};

static uint64_t
move_end(const struct cairn_move *move)
{
    return move->target_offset + (move->run_count - 1) * move->target_stride + move->run_bytes;
}

/* Every run is inside 63 bits, and no two share a byte. */
static bool
move_is_sound(const struct cairn_move *move)
{
    uint64_t last, end;

    if (move->run_count == 0 || move->run_bytes == 0)
        return false;
    if (move->run_count > 1 && move->target_stride < move->run_bytes)
        return false;
    for (int side = 0; side < 2; side++) {
        if (__builtin_mul_overflow(move->run_count - 1,
                                   side ? move->source_stride : move->target_stride, &last) ||
            __builtin_add_overflow(last, side ? move->source_offset : move->target_offset, &end) ||
            __builtin_add_overflow(end, move->run_bytes, &end) || end > INT64_MAX)
            return false;
    }
    return true;
}

static int
by_target(const void *a, const void *b, void *context)
{
    const struct cairn_move *moves = context;
    uint64_t x = moves[*(const uint32_t *)a].target_offset;
    uint64_t y = moves[*(const uint32_t *)b].target_offset;

    return x < y ? -1 : x > y;
}

static int
by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

cairn_err
fill_create(const struct cairn_moves *moves, uint32_t target_container, struct fill **out)
{
    struct fill *fill = calloc(1, sizeof *fill);
    cairn_err err = CAIRN_NOMEM;

    if (!fill || moves->count > UINT32_MAX)
        goto done;
    fill->moves = moves;
    for (size_t i = 0; i < moves->count; i++)
        fill->order_count += moves->moves[i].target_container == target_container;
    fill->order = calloc(fill->order_count + (size_t)1, sizeof *fill->order);
    fill->active = calloc(fill->order_count + (size_t)1, sizeof *fill->active);
    fill->window = malloc((size_t)FILL_WINDOW_BLOCKS * CAIRN_BLOCK_BYTES);
    if (!fill->order || !fill->active || !fill->window)
        goto done;
    err = CAIRN_INVAL;
    for (uint32_t i = 0, used = 0; i < (uint32_t)moves->count; i++) {
        if (moves->moves[i].target_container != target_container)
            continue;
        if (!move_is_sound(&moves->moves[i]))
            goto done;
        fill->order[used++] = i;
    }
    qsort_r(fill->order, fill->order_count, sizeof *fill->order, by_target, moves->moves);
    *out = fill;
    fill = NULL;
    err = CAIRN_OK;
done:
    fill_destroy(fill);
    return err;
}

void
fill_destroy(struct fill *fill)
{
    if (!fill)
        return;
    free(fill->order);
    free(fill->active);
    free(fill->window);
    free(fill);
}

void
fill_begin(struct fill *fill, uint8_t *buffer, uint64_t offset, size_t bytes)
{
    uint32_t kept = 0;

    fill->buffer = buffer;
    fill->begin = offset;
    fill->end = offset + bytes;
    fill->copied_bytes = 0;
    fill->from = fill->to = (struct cursor){0};
    while (fill->order_next < fill->order_count &&
           fill->moves->moves[fill->order[fill->order_next]].target_offset < fill->end)
        fill->active[fill->active_count++] = fill->order[fill->order_next++];
    for (uint32_t i = 0; i < fill->active_count; i++)
        if (move_end(&fill->moves->moves[fill->active[i]]) > offset)
            fill->active[kept++] = fill->active[i];
    fill->active_count = kept;
    qsort(fill->active, kept, sizeof *fill->active, by_number);
}

/* Sets the cursor to the first run of its move that reaches into the buffer. */
static void
enter(const struct fill *fill, const struct cairn_move *move, struct cursor *cursor)
{
    uint64_t first_end = move->target_offset + move->run_bytes;

    cursor->entered = true;
    cursor->done = 0;
    cursor->run = 0;
    cursor->run_end = 1;
    if (move->run_count == 1)
        return;
    if (first_end <= fill->begin)
        cursor->run = (fill->begin - first_end) / move->target_stride + 1;
    cursor->run_end = (fill->end - move->target_offset - 1) / move->target_stride + 1;
    if (cursor->run_end > move->run_count)
        cursor->run_end = move->run_count;
}

/* The piece at the cursor; false at the end of the buffer. */
static bool
piece_at(const struct fill *fill, struct cursor *cursor, struct piece *out)
{
    while (cursor->at < fill->active_count) {
        const struct cairn_move *move = &fill->moves->moves[fill->active[cursor->at]];
        uint64_t run_begin, begin, end, source;

        if (!cursor->entered)
            enter(fill, move, cursor);
        if (cursor->run >= cursor->run_end) {
            cursor->at++;
            cursor->entered = false;
            continue;
        }
        run_begin = move->target_offset + cursor->run * move->target_stride;
        begin = run_begin < fill->begin ? fill->begin : run_begin;
        end = run_begin + move->run_bytes;
        end = (end > fill->end ? fill->end : end);
        begin += cursor->done;
        if (begin >=
            end) { /* the gap between two runs holds the whole buffer, or the run is through */
            cursor->run++;
            cursor->done = 0;
            continue;
        }
        source = move->source_offset + cursor->run * move->source_stride + (begin - run_begin);
        out->container = move->source_container;
        out->block = source / CAIRN_BLOCK_BYTES;
        out->block_offset = source % CAIRN_BLOCK_BYTES;
        out->buffer_offset = begin - fill->begin;
        out->bytes = CAIRN_BLOCK_BYTES - out->block_offset;
        if (out->bytes > end - begin)
            out->bytes = end - begin;
        return true;
    }
    return false;
}

/* ---- the window ---- */

static bool
slot_holds(const struct fill *fill, uint32_t slot, const struct piece *piece)
{
    return fill->slots[slot].filled && fill->slots[slot].block == piece->block &&
           fill->slots[slot].container == piece->container;
}

static uint32_t
slot_find(struct fill *fill, const struct piece *piece)
{
    if (slot_holds(fill, fill->last_hit, piece))
        return fill->last_hit;
    for (uint32_t s = 0; s < FILL_WINDOW_BLOCKS; s++)
        if (slot_holds(fill, s, piece)) {
            fill->last_hit = s;
            return s;
        }
    return NO_SLOT;
}

/* Takes the next slot that this pass does not use; NO_SLOT when it uses all. */
static uint32_t
slot_take(struct fill *fill, const struct piece *piece)
{
    for (uint32_t tries = 0; tries < FILL_WINDOW_BLOCKS; tries++) {
        uint32_t s = fill->hand;

        fill->hand = (fill->hand + 1) % FILL_WINDOW_BLOCKS;
        if (fill->slots[s].filled && fill->slots[s].pass == fill->pass)
            continue;
        fill->slots[s] = (struct slot){piece->container, true, piece->block, fill->pass};
        fill->last_hit = s;
        return s;
    }
    return NO_SLOT;
}

/* Adds a block to the runs to fetch: to the last run where that continues. */
static void
add_run(struct fill *fill, const struct piece *piece, uint32_t slot, struct fetcher_run *runs,
        uint32_t *count)
{
    uint8_t *target = fill->window + (size_t)slot * CAIRN_BLOCK_BYTES;
    struct fetcher_run *last = *count ? &runs[*count - 1] : NULL;

    if (last && last->container == piece->container &&
        last->first_block + last->count == piece->block &&
        last->target + (size_t)last->count * CAIRN_BLOCK_BYTES == target) {
        last->count++;
        return;
    }
    runs[(*count)++] = (struct fetcher_run){piece->container, 1, piece->block, target};
}

bool
fill_next(struct fill *fill, struct fetcher_run *runs, uint32_t *count)
{
    struct piece piece;
    bool any = false;

    fill->pass++;
    fill->from = fill->to;
    *count = 0;
    while (piece_at(fill, &fill->to, &piece)) {
        uint32_t slot = slot_find(fill, &piece);

        if (slot == NO_SLOT) {
            slot = slot_take(fill, &piece);
            if (slot == NO_SLOT)
                break;
            add_run(fill, &piece, slot, runs, count);
        }
        fill->slots[slot].pass = fill->pass;
        fill->to.done += piece.bytes;
        any = true;
    }
    return any;
}

void
fill_copy(struct fill *fill)
{
    struct cursor cursor = fill->from;
    struct piece piece;

    while (piece_at(fill, &cursor, &piece)) {
        uint32_t slot;

        if (cursor.at == fill->to.at && cursor.run == fill->to.run && cursor.done == fill->to.done)
            break;
        slot = slot_find(fill, &piece);
        if (slot == NO_SLOT)
            return; /* fill_check will say that bytes are missing */
        memcpy(fill->buffer + piece.buffer_offset,
               fill->window + (size_t)slot * CAIRN_BLOCK_BYTES + piece.block_offset, piece.bytes);
        fill->copied_bytes += piece.bytes;
        cursor.done += piece.bytes;
    }
}

bool
fill_check(const struct fill *fill)
{
    return fill->copied_bytes == fill->end - fill->begin;
}
