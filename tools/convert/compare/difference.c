/*
 * tools/convert/compare/difference.c - see compare/difference.h.
 *
 * Both sides are planned into the same container, which is never written: the tensors that both
 * have, row-major, one after the other. The executor gathers each tile from both sides, and this
 * file compares the two in memory.
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

enum { BASE_ALIGN_BYTES = 16 };

struct comparing {
    const struct cairn_difference_side *sides;
    const struct cairn_difference_options *options;
    struct cairn_difference *differences; /* [tensors]: of what both have, by place */
    uint64_t *base;                       /* [count + 1] */
    uint32_t count;
    uint64_t total_bytes;
    struct cairn_layout *target; /* the common container */
    struct cairn_feed feeds[2];
    pthread_mutex_t lock; /* guards differences' counts */
};

/* ---- comparing ---- */

static bool
is_floating(enum cairn_dtype dtype)
{
    return cairn_cast_knows(dtype, dtype);
}

/* The value of an element, where it is a number that a double can tell; else 0. */
static double
number_of(const uint8_t *at, enum cairn_dtype dtype)
{
    double value = 0;
    uint64_t bits = 0;

    if (is_floating(dtype) && dtype != CAIRN_F64) { /* which would go by way of a float */
        cairn_cast(at, dtype, (uint8_t *)&value, CAIRN_F64, 1);
        return value;
    }
    memcpy(&bits, at, cairn_dtype_bytes(dtype));
    switch (dtype) {
    case CAIRN_F64:
        memcpy(&value, at, sizeof(value));
        return value;
    case CAIRN_I8:
        return (double)(int8_t)bits;
    case CAIRN_I16:
        return (double)(int16_t)bits;
    case CAIRN_I32:
        return (double)(int32_t)bits;
    case CAIRN_I64:
        return (double)(int64_t)bits;
    case CAIRN_BOOL:
    case CAIRN_U8:
    case CAIRN_U16:
    case CAIRN_U32:
    case CAIRN_U64:
        return (double)bits;
    default:
        return 0;
    }
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
    size_t low = 0;

    (void)complaint;
    /* The first tensor that ends behind the tile's begin */
    CAIRN_BISECT(low, comparing->count, middle, comparing->base[middle + 1] <= tile->begin);
    for (; low < comparing->count && comparing->base[low] < tile->end; low++) {
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
    return CAIRN_OK;
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
    cairn_err err = cairn_layout_create(&comparing->target);

    comparing->base[0] = 0;
    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(left); t++) {
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
        err = cairn_box_copy_whole(comparing->target, a, comparing->base[comparing->count]);
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
    return err;
}

/* Plans one side into the common container, and opens what reads it. */
static cairn_err
open_side(struct comparing *comparing, int side, struct cairn_complaint *complaint)
{
    struct cairn_checkpoint *checkpoint = comparing->sides[side].checkpoint;
    struct cairn_feed *feed = &comparing->feeds[side];
    cairn_err err;

    feed->source = checkpoint;
    err = cairn_feed_plan(feed, comparing->sides[side].layout, comparing->target, complaint);
    if (!err)
        err = cairn_handles_create(checkpoint->container_count, cairn_execute_open, checkpoint,
                                   &feed->handles);
    return err ? err : cairn_source_sums_create(checkpoint, &feed->sums);
}

static cairn_err
compare(struct comparing *comparing, struct cairn_complaint *complaint)
{
    struct cairn_stretch all = {.end = comparing->base[comparing->count]};
    struct cairn_execution execution = {.feeds = {&comparing->feeds[0], &comparing->feeds[1]},
                                        .stretches = &all,
                                        .stretch_count = 1,
                                        .thread_count = comparing->options->thread_count,
                                        .take = take_tile,
                                        .progress = show,
                                        .context = comparing};
    cairn_err err;

    err = cairn_memory_limit_fit(&execution, comparing->options->memory_limit_bytes, 1, complaint);
    if (!err)
        err = cairn_execute(&execution, complaint);
    for (int side = 0; !err && side < 2; side++)
        err =
            cairn_source_sums_check(comparing->feeds[side].sums, comparing->sides[side].checkpoint,
                                    comparing->feeds[side].handles);
    for (int side = 0; !err && side < 2; side++)
        err = cairn_execute_check_unchanged(comparing->sides[side].checkpoint);
    return err;
}

static void
comparing_fini(struct comparing *comparing)
{
    for (int side = 0; side < 2; side++) {
        cairn_source_sums_destroy(comparing->feeds[side].sums);
        (void)cairn_handles_destroy(comparing->feeds[side].handles); /* only read */
        cairn_moves_fini(&comparing->feeds[side].moves);
    }
    (void)pthread_mutex_destroy(&comparing->lock);
    cairn_layout_destroy(comparing->target);
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
            err = open_side(&comparing, side, complaint);
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
    return cairn_complain_failed(complaint, err, "the checkpoints cannot be compared");
}
