/* tools/convert/engine/whole.c - see whole.h. */
#include "tools/convert/engine/whole.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "snapshot/reshard_pieces.h"
#include "snapshot/box.h"
#include "tools/convert/engine/gather.h"
#include "tools/convert/engine/memory_limit.h"

enum {
    REPORT_BYTES = 700,
    GAP_BYTES_MAX = 65536,
    NUMBER_TEXT_BYTES = 32,
    EXPANSION_MAX = 16 /* times the bytes of the files; tied tensors and views of one storage need
                        * some */
};
#define EXPANDED_BYTES_FREE (UINT64_C(1) << 30) /* no need to ask for that much */

static bool allow_expanded;

void
cairn_whole_allow_expanded(bool allow)
{
    allow_expanded = allow;
}

void
cairn_whole_fini(struct cairn_whole *whole)
{
    cairn_layout_destroy(whole->owned);
    cairn_layout_destroy(whole->replicas);
    free(whole->replica_containers);
    memset(whole, 0, sizeof(*whole));
}

static cairn_err
copy_piece(struct cairn_layout *layout, const struct cairn_piece *piece, uint32_t tensor)
{
    struct cairn_piece copy = *piece;

    copy.tensor = tensor;
    return cairn_layout_add_piece(layout, &copy);
}

static cairn_err
add_replica(struct cairn_whole *whole, const struct cairn_tensor *tensor,
            const struct cairn_piece *piece)
{
    size_t index = cairn_layout_piece_count(whole->replicas);
    struct cairn_piece copy = *piece;
    uint32_t tensor_index;
    cairn_err err;

    if (!cairn_box_nests(tensor, piece)) {
        whole->unchecked_count++;
        return CAIRN_OK;
    }
    if (!cairn_array_grow(&whole->replica_containers, index, sizeof(*whole->replica_containers)))
        return CAIRN_NOMEM;
    err = cairn_box_copy_tensor(whole->replicas, tensor, tensor->dtype, &tensor_index);
    if (err)
        return err;
    whole->replica_containers[index] = piece->container;
    whole->replica_bytes +=
        cairn_dtype_bytes(tensor->dtype) * cairn_shape_elements(tensor->dims, piece->extent);
    copy.container = (uint32_t)index;
    return copy_piece(whole->replicas, &copy, tensor_index);
}

static bool
same_bytes(const struct cairn_piece *a, const struct cairn_piece *b)
{
    return a->container == b->container && a->offset_bytes == b->offset_bytes &&
           memcmp(a->stride_bytes, b->stride_bytes, sizeof(a->stride_bytes)) == 0;
}

/* Copies the pieces of tensor `from` as those of the tensor `name`: the first of each box to be
 * read, the others as replicas (of an alias, nothing: they are its original's). */
static cairn_err
split_tensor(struct cairn_whole *whole, const struct cairn_layout *layout,
             const struct cairn_piece_table *table, uint32_t from, uint32_t as)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(layout, as);
    uint32_t reads;
    cairn_err err;

    err = cairn_box_copy_tensor(whole->owned, tensor, tensor->dtype, &reads);
    for (size_t at = table->begin[from]; !err && at < table->begin[from + 1];) {
        size_t count = cairn_piece_replicas(table, at, table->begin[from + 1], tensor->dims);

        err = copy_piece(whole->owned, table->piece[at], reads);
        for (size_t i = at + 1; !err && from == as && i < at + count; i++)
            if (!same_bytes(table->piece[at], table->piece[i]))
                err = add_replica(whole, tensor, table->piece[i]);
        at += count;
    }
    return err;
}

static cairn_err
split(const struct cairn_checkpoint *checkpoint, const struct cairn_piece_table *table,
      struct cairn_whole *whole)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);
    cairn_err err = cairn_layout_create(&whole->owned);

    if (!err)
        err = cairn_layout_create(&whole->replicas);
    for (uint32_t t = 0; !err && t < count; t++)
        err = split_tensor(whole, checkpoint->layout, table,
                           cairn_checkpoint_past_alias(checkpoint, t), t);
    if (err)
        return err;
    whole->layout = whole->owned;
    if (cairn_layout_piece_count(whole->replicas) == 0) {
        cairn_layout_destroy(whole->replicas);
        whole->replicas = NULL;
    }
    return CAIRN_OK;
}

/* Whether some box is there twice. */
static bool
has_replicas(const struct cairn_layout *layout, const struct cairn_piece_table *table)
{
    for (uint32_t t = 0; t < cairn_layout_tensor_count(layout); t++) {
        uint32_t dims = cairn_layout_tensor(layout, t)->dims;

        for (size_t at = table->begin[t]; at < table->begin[t + 1]; at++)
            if (cairn_piece_replicas(table, at, table->begin[t + 1], dims) > 1)
                return true;
    }
    return false;
}

static cairn_err
check_expansion(const struct cairn_checkpoint *checkpoint)
{
    const struct cairn_tensor *largest = NULL;
    uint64_t stored_bytes = 0, tensor_bytes = 0;

    for (uint32_t c = 0; c < checkpoint->container_count; c++)
        if (__builtin_add_overflow(stored_bytes, checkpoint->containers[c].bytes, &stored_bytes))
            stored_bytes = UINT64_MAX;
    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);

        if (!largest || cairn_tensor_bytes(tensor) > cairn_tensor_bytes(largest))
            largest = tensor;
        if (__builtin_add_overflow(tensor_bytes, cairn_tensor_bytes(tensor), &tensor_bytes))
            tensor_bytes = UINT64_MAX;
    }
    if (allow_expanded || tensor_bytes <= EXPANDED_BYTES_FREE ||
        tensor_bytes / EXPANSION_MAX <= stored_bytes)
        return CAIRN_OK;
    return cairn_refuse(checkpoint, CAIRN_INVAL,
                        "its files have %" PRIu64 " bytes and its tensors %" PRIu64
                        ", %s alone %" PRIu64 "; if expanded on purpose, add --allow-expanded",
                        stored_bytes, tensor_bytes, largest->name, cairn_tensor_bytes(largest));
}

cairn_err
cairn_whole_init(const struct cairn_checkpoint *checkpoint, struct cairn_whole *out)
{
    struct cairn_whole whole = {.layout = checkpoint->layout};
    struct cairn_piece_table table = {0};
    char report[REPORT_BYTES] = "";
    cairn_err err;

    err = check_expansion(checkpoint);
    if (err)
        return err;
    err = cairn_piece_table_init(&table, checkpoint->layout);
    if (!err && (checkpoint->alias_count > 0 || has_replicas(checkpoint->layout, &table)))
        err = split(checkpoint, &table, &whole);
    cairn_piece_table_fini(&table);
    if (!err)
        err = cairn_layout_check_tiling(whole.layout, true, report, sizeof(report));
    if (err == CAIRN_CORRUPT)
        (void)cairn_refuse(checkpoint, err,
                           "is not whole: %s; copy the files of missing ranks, all of one step",
                           report);
    if (err) {
        cairn_whole_fini(&whole);
        return cairn_complain_failed(checkpoint->complaint, err, "%s", checkpoint->place.path);
    }
    *out = whole;
    return CAIRN_OK;
}

/* ---- stretches ---- */

static int
compare_stretches(const void *left, const void *right)
{
    const struct cairn_stretch *a = left, *b = right;

    return CAIRN_COMPARE(a->container, b->container) ?: CAIRN_COMPARE(a->begin, b->begin);
}

/* The ranges of containers that a layout's pieces touch, sorted; freed by the caller. Ranges that
 * are at most `gap_max` apart are one. CAIRN_NOMEM. */
static cairn_err
stretches_of(const struct cairn_layout *layout, uint64_t gap_max, struct cairn_stretch **out,
             size_t *count)
{
    size_t pieces = cairn_layout_piece_count(layout), kept = 0;
    struct cairn_stretch *stretches = malloc((pieces + 1) * sizeof(*stretches));

    if (!stretches)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < pieces; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, piece->tensor);

        stretches[i] = (struct cairn_stretch){piece->container, piece->offset_bytes,
                                              cairn_box_end(tensor, piece)};
    }
    if (pieces > 1)
        qsort(stretches, pieces, sizeof(*stretches), compare_stretches);
    for (size_t i = 0; i < pieces; i++) {
        struct cairn_stretch *last = kept > 0 ? &stretches[kept - 1] : NULL;

        if (last && last->container == stretches[i].container &&
            (stretches[i].begin <= last->end || stretches[i].begin - last->end <= gap_max)) {
            if (stretches[i].end > last->end)
                last->end = stretches[i].end;
        } else {
            stretches[kept++] = stretches[i];
        }
    }
    *out = stretches;
    *count = kept;
    return CAIRN_OK;
}

/* ---- comparing replicas ---- */

struct comparison {
    const struct cairn_checkpoint *checkpoint;
    const struct cairn_whole *whole;
    struct cairn_handles *handles;
};

/* A number as people write it; "another number" where its type is seldom one of an optimizer. */
static const char *
show_number(enum cairn_dtype dtype, const uint8_t *bytes, char out[NUMBER_TEXT_BYTES])
{
    union {
        float f32;
        double f64;
        int32_t i32;
        int64_t i64;
    } value;

    memcpy(&value, bytes,
           (size_t)cairn_dtype_bytes(dtype) <= sizeof(value) ? (size_t)cairn_dtype_bytes(dtype)
                                                             : sizeof(value));
    if (dtype == CAIRN_F32)
        (void)snprintf(out, NUMBER_TEXT_BYTES, "%.9g", (double)value.f32);
    else if (dtype == CAIRN_F64)
        (void)snprintf(out, NUMBER_TEXT_BYTES, "%.17g", value.f64);
    else if (dtype == CAIRN_I32)
        (void)snprintf(out, NUMBER_TEXT_BYTES, "%" PRId32, value.i32);
    else if (dtype == CAIRN_I64)
        (void)snprintf(out, NUMBER_TEXT_BYTES, "%" PRId64, value.i64);
    else
        (void)snprintf(out, NUMBER_TEXT_BYTES, "another number");
    return out;
}

/* Where a replica and what is read in its place differ. */
struct difference {
    const struct cairn_tensor *tensor;
    uint32_t replica, read; /* containers */
    uint64_t replica_offset, read_offset;
    const uint8_t *replica_bytes, *read_bytes; /* of the whole number; NULL: of a larger tensor */
};

static cairn_err
say_different(const struct comparison *comparison, const struct difference *difference,
              struct cairn_complaint *complaint)
{
    const struct cairn_tensor *tensor = difference->tensor;
    const struct cairn_checkpoint *checkpoint = comparison->checkpoint;
    const char *replica = cairn_checkpoint_container_name(checkpoint, difference->replica);
    const char *read = cairn_checkpoint_container_name(checkpoint, difference->read);
    int key_bytes = (int)strcspn(tensor->name, ".");
    char here[NUMBER_TEXT_BYTES], there[NUMBER_TEXT_BYTES];

    if (!comparison->whole->map || !difference->replica_bytes)
        return cairn_complain(
            complaint, CAIRN_CORRUPT,
            "tensor %s: is not the same in all its replicas: %s at byte %" PRIu64
            " differs from %s at byte %" PRIu64 "; remove the files of the damaged rank",
            tensor->name, replica, difference->replica_offset, read, difference->read_offset);
    return cairn_complain(
        complaint, CAIRN_CORRUPT,
        "the map %s makes one parameter of several, %s, whose %.*s must then be one: it is %s in "
        "%s at byte %" PRIu64 " and %s in %s at byte %" PRIu64
        ". Leave it out with --drop '%.*s.*', and the optimizer starts it from zero",
        comparison->whole->map, tensor->name + key_bytes + (tensor->name[key_bytes] == '.'),
        key_bytes, tensor->name, show_number(tensor->dtype, difference->read_bytes, there), read,
        difference->read_offset, show_number(tensor->dtype, difference->replica_bytes, here),
        replica, difference->replica_offset, key_bytes, tensor->name);
}

/* One number that the optimizer keeps for a parameter. */
static bool
is_number(const struct cairn_tensor *tensor)
{
    return tensor->kind == CAIRN_OPTIMIZER &&
           (tensor->dims == 0 || (tensor->dims == 1 && tensor->shape[0] == 1));
}

static cairn_err
compare_run(const struct comparison *comparison, const struct cairn_tile *tile,
            const struct cairn_move *clip, uint64_t run, struct cairn_complaint *complaint)
{
    const struct cairn_tensor *tensor =
        cairn_layout_tensor(comparison->whole->replicas, clip->tensor);
    uint64_t at = clip->target_offset + run * clip->target_stride, byte = 0;
    bool number = is_number(tensor) && clip->run_bytes == cairn_dtype_bytes(tensor->dtype);
    struct difference difference = {.tensor = tensor,
                                    .replica =
                                        comparison->whole->replica_containers[tile->container],
                                    .read = clip->source_container,
                                    .replica_bytes = number ? tile->spare + at : NULL,
                                    .read_bytes = number ? tile->bytes + at : NULL};

    if (memcmp(tile->bytes + at, tile->spare + at, (size_t)clip->run_bytes) == 0)
        return CAIRN_OK;
    while (!number && tile->bytes[at + byte] == tile->spare[at + byte])
        byte++;
    difference.replica_offset = tile->begin + at + byte;
    difference.read_offset = clip->source_offset + run * clip->source_stride + byte;
    return say_different(comparison, &difference, complaint);
}

static cairn_err
compare_tile(void *context, const struct cairn_tile *tile, struct cairn_complaint *complaint)
{
    const struct comparison *comparison = context;
    struct iovec replica = {tile->spare, (size_t)(tile->end - tile->begin)};
    cairn_err err;

    err = cairn_gather_parts(comparison->checkpoint, comparison->handles,
                             comparison->whole->replica_containers[tile->container], tile->begin,
                             &replica, 1, complaint);
    for (size_t i = 0; !err && i < tile->clip_count; i++) {
        for (uint64_t run = 0; !err && run < tile->clips[i].run_count; run++)
            err = compare_run(comparison, tile, &tile->clips[i], run, complaint);
    }
    return err;
}

cairn_err
cairn_whole_compare(const struct cairn_checkpoint *checkpoint, const struct cairn_whole *whole,
                    struct cairn_handles *handles, uint64_t memory_limit_bytes,
                    uint32_t thread_count)
{
    struct comparison comparison = {checkpoint, whole, handles};
    struct cairn_feed feed = {.source = checkpoint, .handles = handles};
    struct cairn_execution execution = {.feeds = {&feed},
                                        .thread_count = thread_count,
                                        .take = compare_tile,
                                        .context = &comparison};
    struct cairn_stretch *stretches = NULL;
    cairn_err err;

    if (!whole->replicas)
        return CAIRN_OK;
    err = cairn_feed_plan(&feed, whole->layout, whole->replicas, checkpoint->complaint);
    if (!err)
        err = stretches_of(whole->replicas, GAP_BYTES_MAX, &stretches, &execution.stretch_count);
    execution.stretches = stretches;
    if (!err)
        err = cairn_memory_limit_fit(&execution, memory_limit_bytes, 1, checkpoint->complaint);
    if (!err)
        err = cairn_execute(&execution, checkpoint->complaint);
    free(stretches);
    cairn_moves_fini(&feed.moves);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: replicas cannot be compared",
                                 checkpoint->place.path);
}
