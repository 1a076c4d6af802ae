/*
 * tools/convert/engine/fingerprints.c - see fingerprints.h.
 *
 * The target is one container in memory that nobody keeps: the wanted tensors one after the other,
 * row-major. So each tile is parts of canonical bytes for any source.
 */
#include "tools/convert/engine/fingerprints.h"
#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "snapshot/box.h"
#include "tools/convert/engine/cast.h"
#include "tools/convert/engine/memory_limit.h"

enum { CAST_ELEMENTS = 4096 };

struct reading {
    const struct cairn_layout *layout;
    const struct cairn_fingerprints_options *options;
    uint64_t *base;    /* [count + 1]: where tensors begin in the container */
    uint32_t *tensors; /* [count]: which they are */
    uint32_t count;
    struct cairn_fingerprint *out;
};

/* Adds bytes [begin, end) of a tensor to its walk, as they are or cast. */
static void
walk_over(const struct reading *reading, enum cairn_dtype dtype, const uint8_t *bytes,
          uint64_t begin, uint64_t end, struct cairn_fingerprint_walk *walk)
{
    uint64_t from_bytes = cairn_dtype_bytes(dtype),
             to_bytes = cairn_dtype_bytes(reading->options->cast);
    uint8_t cast[CAST_ELEMENTS * sizeof(double)];

    if (!reading->options->cast) {
        cairn_fingerprint_walk_add(walk, cairn_fingerprint_of(bytes, (size_t)(end - begin)), begin,
                                   end - begin);
        return;
    }
    for (uint64_t at = begin / from_bytes, count; at < end / from_bytes; at += count) {
        count = end / from_bytes - at < CAST_ELEMENTS ? end / from_bytes - at : CAST_ELEMENTS;
        cairn_cast(bytes + (at * from_bytes - begin), dtype, cast, reading->options->cast, count);
        cairn_fingerprint_walk_add(walk, cairn_fingerprint_of(cast, (size_t)(count * to_bytes)),
                                   at * to_bytes, count * to_bytes);
    }
}

static cairn_err
take_tile(void *context, const struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    const struct reading *reading = context;
    size_t low = 0, high = reading->count;

    (void)complaint;
    /* The first tensor that ends behind the tile's begin */
    CAIRN_BISECT(low, high, middle, reading->base[middle + 1] <= tile->begin);
    for (; low < reading->count && reading->base[low] < tile->end; low++) {
        uint64_t base = reading->base[low], total = reading->base[low + 1] - base;
        uint64_t begin = base > tile->begin ? base : tile->begin;
        uint64_t end = base + total < tile->end ? base + total : tile->end;
        struct cairn_fingerprint *sum = &reading->out[reading->tensors[low]], part;
        enum cairn_dtype dtype = cairn_layout_tensor(reading->layout, reading->tensors[low])->dtype;
        struct cairn_fingerprint_walk walk;

        if (begin == end)
            continue;
        if (reading->options->cast &&
            ((begin - base) % cairn_dtype_bytes(dtype) || (end - base) % cairn_dtype_bytes(dtype)))
            return CAIRN_INTERNAL; /* tiles are cut at elements where all are of one type */
        if (reading->options->cast)
            total = total / cairn_dtype_bytes(dtype) * cairn_dtype_bytes(reading->options->cast);
        cairn_fingerprint_walk_init(&walk, total);
        walk_over(reading, dtype, tile->bytes + (begin - tile->begin), begin - base, end - base,
                  &walk);
        part = cairn_fingerprint_walk_end(&walk);
        (void)__atomic_fetch_xor(&sum->ecma, part.ecma, __ATOMIC_RELAXED);
        (void)__atomic_fetch_xor(&sum->jones, part.jones, __ATOMIC_RELAXED);
    }
    return CAIRN_OK;
}

static void
show(void *context, uint64_t done_bytes)
{
    const struct reading *reading = context;

    if (reading->options->progress)
        reading->options->progress(reading->options->context, done_bytes,
                                   reading->base[reading->count]);
}

/* Lays the wanted tensors out one after the other. */
static cairn_err
lay_out(const struct cairn_layout *layout, struct reading *reading, struct cairn_layout *target)
{
    uint32_t all = cairn_layout_tensor_count(layout);
    cairn_err err = CAIRN_OK;

    reading->base = malloc(((size_t)all + 1) * sizeof(*reading->base));
    reading->tensors = malloc(((size_t)all + 1) * sizeof(*reading->tensors));
    if (!reading->base || !reading->tensors)
        return CAIRN_NOMEM;
    reading->base[0] = 0;
    for (uint32_t t = 0; !err && t < all; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, t);
        uint64_t base = reading->base[reading->count];

        if (reading->options->wanted && !reading->options->wanted[t])
            continue;
        reading->out[t] = (struct cairn_fingerprint){0, 0};
        err = cairn_box_copy_whole(target, tensor, base);
        reading->tensors[reading->count++] = t;
        if (!err && __builtin_add_overflow(base, cairn_tensor_bytes(tensor),
                                           &reading->base[reading->count]))
            err = CAIRN_INVAL;
    }
    return err;
}

cairn_err
cairn_fingerprints_read(const struct cairn_checkpoint *checkpoint,
                        const struct cairn_layout *layout, struct cairn_handles *handles,
                        const struct cairn_fingerprints_options *options,
                        struct cairn_fingerprint *out)
{
    struct reading reading = {.layout = layout, .options = options, .out = out};
    struct cairn_feed feed = {.source = checkpoint, .handles = handles, .sums = options->sums};
    struct cairn_stretch all = {0};
    struct cairn_execution execution = {.feeds = {&feed},
                                        .stretches = &all,
                                        .stretch_count = 1,
                                        .thread_count = options->thread_count,
                                        .take = take_tile,
                                        .progress = show,
                                        .context = &reading};
    struct cairn_layout *target = NULL;
    cairn_err err;

    err = cairn_layout_create(&target);
    if (!err)
        err = cairn_memory_limit_check(
            options->memory_limit_bytes,
            cairn_memory_limit_plan_bytes(cairn_layout_piece_count(layout),
                                          cairn_layout_tensor_count(layout)) +
                cairn_layout_tensor_count(layout) *
                    (sizeof(struct cairn_tensor) + sizeof(struct cairn_piece)),
            "planning", checkpoint->complaint);
    if (!err)
        err = lay_out(layout, &reading, target);
    if (!err)
        err = cairn_feed_plan(&feed, layout, target, checkpoint->complaint);
    if (!err) {
        all.end = reading.base[reading.count];
        err = cairn_memory_limit_fit(&execution, options->memory_limit_bytes, 0,
                                     checkpoint->complaint);
    }
    if (!err)
        err = cairn_execute(&execution, checkpoint->complaint);
    cairn_moves_fini(&feed.moves);
    cairn_layout_destroy(target);
    free(reading.base);
    free(reading.tensors);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be read whole",
                                 checkpoint->place.path);
}

static void
add_tensor(struct cairn_sha256 *sha, const struct cairn_tensor *tensor,
           struct cairn_fingerprint fingerprint)
{
    char line[64 + 24 * CAIRN_DIMS_MAX], hex[CAIRN_FINGERPRINT_TEXT_BYTES];
    int used = snprintf(line, sizeof(line), "%s", cairn_dtype_name(tensor->dtype));

    for (uint32_t d = 0; d < tensor->dims; d++)
        used += snprintf(line + used, sizeof(line) - (size_t)used, " %" PRIu64, tensor->shape[d]);
    cairn_fingerprint_text(fingerprint, hex);
    cairn_sha256_update(sha, tensor->name, strlen(tensor->name) + 1);
    cairn_sha256_update(sha, line, (size_t)used + 1);
    cairn_sha256_update(sha, hex, sizeof(hex));
}

static cairn_err
digest_of(const struct cairn_layout *layout, const struct cairn_fingerprint *fingerprints,
          bool opaque, char text[CAIRN_SHA256_TEXT_BYTES])
{
    uint32_t all = cairn_layout_tensor_count(layout), count = 0;
    uint32_t *tensors = malloc(((size_t)all + 1) * sizeof(*tensors));
    struct cairn_sha256 *sha = NULL;
    uint8_t digest[CAIRN_SHA256_BYTES];
    cairn_err err = tensors ? cairn_sha256_create(&sha) : CAIRN_NOMEM;

    for (uint32_t t = 0; !err && t < all; t++)
        if ((cairn_layout_tensor(layout, t)->kind == CAIRN_OPAQUE) == opaque)
            tensors[count++] = t;
    if (!err) {
        cairn_checkpoint_sort(layout, tensors, count);
        for (uint32_t i = 0; i < count; i++)
            add_tensor(sha, cairn_layout_tensor(layout, tensors[i]), fingerprints[tensors[i]]);
        err = cairn_sha256_final(sha, digest);
    }
    if (!err)
        cairn_sha256_text(digest, text);
    cairn_sha256_destroy(sha);
    free(tensors);
    return err;
}

cairn_err
cairn_fingerprints_digest(const struct cairn_layout *layout,
                          const struct cairn_fingerprint *fingerprints, char state[65],
                          char opaque[65])
{
    cairn_err err = digest_of(layout, fingerprints, false, state);

    return err ? err : digest_of(layout, fingerprints, true, opaque);
}
