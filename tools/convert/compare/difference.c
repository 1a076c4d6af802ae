/*
 * tools/convert/compare/difference.c - see compare/difference.h.
 *
 * Both sides are planned into the same container, which is never written: the tensors that both
 * have, row-major, one after the other. The executor gathers a tile from the left; this file
 * gathers it from the right, and compares the two in memory.
 */
#include "tools/convert/compare/difference.h"
#include "base/array.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/engine/memory_limit.h"
#include "tools/convert/engine/cast.h"
#include "tools/convert/compare/difference_opaque.h"
#include "tools/convert/engine/gather.h"

enum { REPORT_BYTES = 700, BASE_ALIGN_BYTES = 16 };

/* What gathers from the right; one per thread, kept in a list while it is not used. */
struct hand {
    struct hand *next;
    struct cairn_gather *gather;
    struct cairn_move *clips;
};

struct comparing {
    const struct cairn_difference_side *sides;
    const struct cairn_difference_options *options;
    struct cairn_difference *differences; /* [tensors]: of what both have, by place */
    uint64_t *base;                       /* [count + 1] */
    uint32_t count;
    uint64_t total_bytes;
    struct cairn_moves moves[2];
    uint64_t *reach; /* of the right moves: the farthest end so far */
    size_t clips_max;
    struct cairn_handles *handles[2];
    struct cairn_source_sums *sums[2];
    pthread_mutex_t lock; /* guards hands and differences' counts */
    struct hand *hands;
};

/* ---- the right side of a tile ---- */

static struct hand *
take_hand(struct comparing *comparing)
{
    struct hand *hand;

    (void)pthread_mutex_lock(&comparing->lock);
    hand = comparing->hands;
    if (hand)
        comparing->hands = hand->next;
    (void)pthread_mutex_unlock(&comparing->lock);
    if (hand)
        return hand;
    hand = calloc(1, sizeof(*hand));
    if (!hand)
        return NULL;
    hand->clips = malloc(comparing->clips_max * sizeof(*hand->clips));
    if (!hand->clips ||
        cairn_gather_create(comparing->sides[1].checkpoint, comparing->handles[1], &hand->gather)) {
        free(hand->clips);
        free(hand);
        return NULL;
    }
    return hand;
}

static void
give_hand(struct comparing *comparing, struct hand *hand)
{
    (void)pthread_mutex_lock(&comparing->lock);
    hand->next = comparing->hands;
    comparing->hands = hand;
    (void)pthread_mutex_unlock(&comparing->lock);
}

/* The first of the right side's moves that begins at or after an offset. */
static size_t
first_behind(const struct comparing *comparing, uint64_t offset)
{
    size_t low = 0, high = comparing->moves[1].count;

    CAIRN_BISECT(low, high, middle, comparing->moves[1].moves[middle].target_offset < offset);
    return low;
}

static cairn_err
gather_right(struct comparing *comparing, const struct cairn_tile *tile, struct hand *hand,
             struct cairn_complaint *complaint)
{
    size_t count = 0;
    cairn_err err;

    for (size_t i = first_behind(comparing, tile->end);
         i > 0 && comparing->reach[i - 1] > tile->begin; i--) {
        const struct cairn_move *move = &comparing->moves[1].moves[i - 1];

        if (cairn_move_target_end(move) > tile->begin)
            cairn_clip_move(move, tile->begin, tile->end, hand->clips, &count);
    }
    /* Gaps between tensors are never looked at, so they need no zeros. */
    err = cairn_gather_run(hand->gather, hand->clips, count, tile->spare, complaint);
    if (!err)
        cairn_source_sums_add(comparing->sums[1], hand->clips, count, tile->spare);
    return err;
}

/* ---- comparing ---- */

static bool
is_floating(enum cairn_dtype dtype)
{
    return cairn_cast_knows(dtype, dtype);
}

/* The value of an element, where it is a number that a double can tell; else 0. */
static double
value_of(const uint8_t *at, enum cairn_dtype dtype)
{
    double value = 0;
    int64_t signed_value = 0;
    uint64_t unsigned_value = 0;

    if (is_floating(dtype)) {
        cairn_cast(at, dtype, (uint8_t *)&value, CAIRN_F64, 1);
        return value;
    }
    memcpy(&unsigned_value, at, cairn_dtype_bytes(dtype));
    switch (dtype) {
    case CAIRN_I8:
        return (double)(int8_t)unsigned_value;
    case CAIRN_I16:
        return (double)(int16_t)unsigned_value;
    case CAIRN_I32:
        return (double)(int32_t)unsigned_value;
    case CAIRN_I64:
        memcpy(&signed_value, at, sizeof(signed_value));
        return (double)signed_value;
    case CAIRN_BOOL:
    case CAIRN_U8:
    case CAIRN_U16:
    case CAIRN_U32:
    case CAIRN_U64:
        return (double)unsigned_value;
    default:
        return 0;
    }
}

/* A double has all of an F64's bits, so it goes there without a float between. */
static double
number_of(const uint8_t *at, enum cairn_dtype dtype)
{
    double value;

    if (dtype != CAIRN_F64)
        return value_of(at, dtype);
    memcpy(&value, at, sizeof(value));
    return value;
}

static bool
same_element(const uint8_t *left, const uint8_t *right, enum cairn_dtype dtype, bool bits)
{
    double a, b;

    if (memcmp(left, right, cairn_dtype_bytes(dtype)) == 0)
        return true;
    if (bits || !is_floating(dtype))
        return false;
    a = number_of(left, dtype);
    b = number_of(right, dtype);
    return a == b || (isnan(a) && isnan(b));
}

/* Compares elements [first, first + count) of a tensor. */
static void
compare_elements(struct comparing *comparing, uint32_t place, const uint8_t *left,
                 const uint8_t *right, uint64_t first, uint64_t count)
{
    struct cairn_difference *difference = &comparing->differences[place];
    enum cairn_dtype dtype =
        cairn_layout_tensor(comparing->sides[0].layout, difference->left)->dtype;
    size_t element = cairn_dtype_bytes(dtype);
    uint64_t differ = 0, first_differ = UINT64_MAX;
    double largest = 0;

    if (memcmp(left, right, (size_t)count * element) == 0)
        return;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *a = left + i * element, *b = right + i * element;
        double distance;

        if (same_element(a, b, dtype, comparing->options->bits))
            continue;
        if (differ++ == 0)
            first_differ = first + i;
        distance = fabs(number_of(a, dtype) - number_of(b, dtype));
        if (isnan(distance))
            distance = INFINITY;
        if (distance > largest)
            largest = distance;
    }
    if (differ == 0)
        return;
    (void)pthread_mutex_lock(&comparing->lock);
    difference->kind = CAIRN_OTHER_ELEMENTS;
    if (difference->count == 0 || first_differ < difference->first)
        difference->first = first_differ;
    difference->count += differ;
    if (largest > difference->largest)
        difference->largest = largest;
    (void)pthread_mutex_unlock(&comparing->lock);
}

/* Tiles begin at multiples of 64 KiB and tensors at multiples of 16 bytes, so no element is cut. */
static cairn_err
take_tile(void *context, const struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    struct comparing *comparing = context;
    struct hand *hand = take_hand(comparing);
    size_t low = 0, high = comparing->count;
    cairn_err err;

    if (!hand)
        return CAIRN_NOMEM;
    err = gather_right(comparing, tile, hand, complaint);
    give_hand(comparing, hand);
    while (!err && low < high) { /* the first tensor that ends behind the tile's begin */
        size_t middle = low + (high - low) / 2;

        if (comparing->base[middle + 1] <= tile->begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; !err && low < comparing->count && comparing->base[low] < tile->end; low++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(comparing->sides[0].layout, comparing->differences[low].left);
        size_t element = cairn_dtype_bytes(tensor->dtype);
        uint64_t base = comparing->base[low], end = base + cairn_tensor_bytes(tensor);
        uint64_t from = base > tile->begin ? base : tile->begin;
        uint64_t to = end < tile->end ? end : tile->end;

        if (from < to)
            compare_elements(comparing, (uint32_t)low, tile->bytes + (from - tile->begin),
                             tile->spare + (from - tile->begin), (from - base) / element,
                             (to - from) / element);
    }
    return err;
}

static void
show(void *context, uint64_t done_bytes)
{
    const struct comparing *comparing = context;

    if (comparing->options->progress)
        comparing->options->progress(comparing->options->context, done_bytes,
                                     comparing->total_bytes);
}

/* ---- matching and planning ---- */

/* Puts what differs without reading to the end of `out`, and what must be read into `comparing`. */
static cairn_err
match(struct comparing *comparing, struct cairn_difference *out, size_t *out_count)
{
    const struct cairn_layout *left = comparing->sides[0].layout;
    const struct cairn_layout *right = comparing->sides[1].layout;

    comparing->base[0] = 0;
    for (uint32_t t = 0; t < cairn_layout_tensor_count(left); t++) {
        const struct cairn_tensor *a = cairn_layout_tensor(left, t), *b;
        uint32_t found = cairn_layout_tensor_find(right, a->name);
        struct cairn_difference difference = {.left = t, .right = found};
        uint64_t end;

        b = found == UINT32_MAX ? NULL : cairn_layout_tensor(right, found);
        difference.kind = !b                     ? CAIRN_ONLY_LEFT
                          : a->dtype != b->dtype ? CAIRN_OTHER_DTYPE
                          : a->dims != b->dims || memcmp(a->shape, b->shape, sizeof(a->shape)) != 0
                              ? CAIRN_OTHER_SHAPE
                              : CAIRN_SAME;
        if (difference.kind != CAIRN_SAME) {
            out[(*out_count)++] = difference;
            continue;
        }
        end = comparing->base[comparing->count] + cairn_tensor_bytes(a);
        comparing->differences[comparing->count++] = difference;
        comparing->base[comparing->count] =
            (end + BASE_ALIGN_BYTES - 1) / BASE_ALIGN_BYTES * BASE_ALIGN_BYTES;
        if (end > INT64_MAX / 2)
            return CAIRN_INVAL;
        comparing->total_bytes += cairn_tensor_bytes(a);
    }
    for (uint32_t t = 0; t < cairn_layout_tensor_count(right); t++)
        if (cairn_layout_tensor_find(left, cairn_layout_tensor(right, t)->name) == UINT32_MAX)
            out[(*out_count)++] =
                (struct cairn_difference){.kind = CAIRN_ONLY_RIGHT, .left = UINT32_MAX, .right = t};
    return CAIRN_OK;
}

/* Plans one side into the common container. */
static cairn_err
plan_side(struct comparing *comparing, int side, char *report)
{
    struct cairn_layout *target = NULL;
    cairn_err err;

    err = cairn_layout_create(&target);
    for (uint32_t i = 0; !err && i < comparing->count; i++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(comparing->sides[0].layout, comparing->differences[i].left);

        err = cairn_box_copy_whole(target, tensor, comparing->base[i]);
    }
    if (!err)
        err = cairn_reshard_plan(comparing->sides[side].layout, target, NULL,
                                 &comparing->moves[side], report, REPORT_BYTES);
    if (!err)
        cairn_execute_sort(&comparing->moves[side]);
    cairn_layout_destroy(target);
    return err;
}

/* How far the right side's moves reach, and how many touch one tile at most. */
static cairn_err
index_right(struct comparing *comparing, uint64_t tile_bytes)
{
    const struct cairn_moves *moves = &comparing->moves[1];
    uint64_t reach = 0;
    size_t most = 0;

    comparing->reach = malloc((moves->count + 1) * sizeof(*comparing->reach));
    if (!comparing->reach)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < moves->count; i++) {
        uint64_t end = cairn_move_target_end(&moves->moves[i]);

        reach = end > reach ? end : reach;
        comparing->reach[i] = reach;
    }
    for (size_t i = 0, first = 0; i < moves->count; i++) {
        uint64_t begin = moves->moves[i].target_offset / tile_bytes * tile_bytes;

        while (first < i && comparing->reach[first] <= begin)
            first++;
        most = i - first + 1 > most ? i - first + 1 : most;
    }
    comparing->clips_max = (most + 1) * CAIRN_CLIPS_PER_MOVE_MAX;
    return CAIRN_OK;
}

static cairn_err
open_side(struct comparing *comparing, int side)
{
    struct cairn_checkpoint *checkpoint = comparing->sides[side].checkpoint;
    cairn_err err;

    err = cairn_handles_create(checkpoint->container_count, cairn_execute_open, checkpoint,
                               &comparing->handles[side]);
    return err ? err : cairn_source_sums_create(checkpoint, &comparing->sums[side]);
}

static cairn_err
compare(struct comparing *comparing, struct cairn_complaint *complaint)
{
    struct cairn_stretch all = {.end = comparing->base[comparing->count]};
    struct cairn_execution execution = {.source = comparing->sides[0].checkpoint,
                                        .handles = comparing->handles[0],
                                        .moves = comparing->moves[0].moves,
                                        .move_count = comparing->moves[0].count,
                                        .stretches = &all,
                                        .stretch_count = 1,
                                        .thread_count = comparing->options->thread_count,
                                        .sums = comparing->sums[0],
                                        .take = take_tile,
                                        .progress = show,
                                        .context = comparing};
    uint64_t limit = comparing->options->memory_limit_bytes, hands;
    cairn_err err;

    err = index_right(comparing, CAIRN_TILE_BYTES_MAX);
    hands = comparing->options->thread_count *
            (cairn_gather_bytes() + comparing->clips_max * sizeof(struct cairn_move));
    if (!err)
        err = cairn_memory_limit_fit(&execution, limit > hands ? limit - hands : 0, 1, complaint);
    if (!err)
        err = cairn_execute(&execution, complaint);
    for (int side = 0; !err && side < 2; side++)
        err = cairn_source_sums_check(comparing->sums[side], comparing->sides[side].checkpoint,
                                      comparing->handles[side]);
    for (int side = 0; !err && side < 2; side++)
        err = cairn_execute_check_unchanged(comparing->sides[side].checkpoint);
    return err;
}

static void
comparing_fini(struct comparing *comparing)
{
    while (comparing->hands) {
        struct hand *hand = comparing->hands;

        comparing->hands = hand->next;
        cairn_gather_destroy(hand->gather);
        free(hand->clips);
        free(hand);
    }
    for (int side = 0; side < 2; side++) {
        cairn_source_sums_destroy(comparing->sums[side]);
        (void)cairn_handles_destroy(comparing->handles[side]); /* only read */
        cairn_moves_fini(&comparing->moves[side]);
    }
    (void)pthread_mutex_destroy(&comparing->lock);
    free(comparing->reach);
    free(comparing->base);
    free(comparing->differences);
}

static int
compare_order(const void *left, const void *right)
{
    const struct cairn_difference *a = left, *b = right;

    return CAIRN_COMPARE(a->left, b->left) ?: CAIRN_COMPARE(a->right, b->right);
}

cairn_err
cairn_difference_find(const struct cairn_difference_side sides[2],
                      const struct cairn_difference_options *options, struct cairn_difference **out,
                      size_t *count, uint32_t *compared, uint64_t *bytes,
                      struct cairn_complaint *complaint)
{
    struct comparing comparing = {
        .sides = sides, .options = options, .lock = PTHREAD_MUTEX_INITIALIZER};
    size_t left = cairn_layout_tensor_count(sides[0].layout), found = 0;
    size_t right = cairn_layout_tensor_count(sides[1].layout);
    struct cairn_difference *differences = calloc(left + right + 1, sizeof(*differences));
    char report[REPORT_BYTES] = "";
    cairn_err err;

    comparing.differences = calloc(left + 1, sizeof(*comparing.differences));
    comparing.base = calloc(left + 2, sizeof(*comparing.base));
    err = differences && comparing.differences && comparing.base ? CAIRN_OK : CAIRN_NOMEM;
    if (!err)
        err = match(&comparing, differences, &found);
    for (int side = 0; !err && side < 2; side++) {
        err = cairn_memory_limit_check(
            options->memory_limit_bytes,
            cairn_memory_limit_plan_bytes(cairn_layout_piece_count(sides[side].layout), left),
            "planning", complaint);
        if (!err)
            err = plan_side(&comparing, side, report);
        if (!err)
            err = open_side(&comparing, side);
    }
    if (!err)
        err = compare(&comparing, complaint);
    for (uint32_t i = 0; !err && i < comparing.count; i++)
        if (comparing.differences[i].kind != CAIRN_SAME)
            differences[found++] = comparing.differences[i];
    if (!err)
        err = cairn_difference_opaque(sides, options->bits, differences, &found);
    if (!err) {
        qsort(differences, found, sizeof(*differences), compare_order);
        *out = differences;
        *count = found;
        *compared = comparing.count;
        *bytes = comparing.total_bytes;
        differences = NULL;
    }
    cairn_differences_free(differences, found);
    comparing_fini(&comparing);
    return err ? cairn_complain(complaint, err, "the checkpoints cannot be compared: %s%s%s",
                                report, report[0] ? "; " : "", cairn_err_text(err))
               : CAIRN_OK;
}
