/*
 * tools/convert/engine/fingerprints.c - see fingerprints.h.
 *
 * The target is one container in memory that nobody keeps: the wanted tensors one after the other,
 * row-major. So each tile is parts of canonical bytes for any source.
 */
#include "tools/convert/engine/fingerprints.h"
#include "base/array.h"

#include <stdlib.h>

#include "snapshot/box.h"
#include "tools/convert/engine/cast.h"
#include "tools/convert/engine/memory_limit.h"

enum { REPORT_BYTES = 700, CAST_ELEMENTS = 4096 };

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
    struct cairn_execution execution = {.source = checkpoint,
                                        .handles = handles,
                                        .stretch_count = 1,
                                        .thread_count = options->thread_count,
                                        .sums = options->sums,
                                        .take = take_tile,
                                        .progress = show,
                                        .context = &reading};
    struct cairn_stretch all = {0};
    struct cairn_layout *target = NULL;
    struct cairn_moves moves = {0};
    char report[REPORT_BYTES] = "";
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
        err = cairn_reshard_plan(layout, target, NULL, &moves, report, sizeof(report));
    if (!err) {
        cairn_execute_sort(&moves);
        all.end = reading.base[reading.count];
        execution.moves = moves.moves;
        execution.move_count = moves.count;
        execution.stretches = &all;
        err = cairn_memory_limit_fit(&execution, options->memory_limit_bytes, 0,
                                     checkpoint->complaint);
    }
    if (!err)
        err = cairn_execute(&execution, checkpoint->complaint);
    if (err)
        (void)cairn_refuse(checkpoint, err, "cannot be read whole: %s%s%s", report,
                           report[0] ? "; " : "", cairn_err_text(err));
    cairn_moves_fini(&moves);
    cairn_layout_destroy(target);
    free(reading.base);
    free(reading.tensors);
    return err;
}

static cairn_err
digest_of(const struct cairn_layout *layout, const struct cairn_fingerprint *fingerprints,
          bool opaque, char text[65])
{
    uint32_t all = cairn_layout_tensor_count(layout);
    struct cairn_fingerprint_entry *entries = malloc(((size_t)all + 1) * sizeof(*entries));
    size_t count = 0;
    cairn_err err;

    if (!entries)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < all; t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, t);

        if ((tensor->kind == CAIRN_OPAQUE) == opaque)
            entries[count++] = (struct cairn_fingerprint_entry){
                tensor->name, tensor->dtype, tensor->dims, tensor->shape, fingerprints[t]};
    }
    err = cairn_fingerprint_digest(entries, count, text);
    free(entries);
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
