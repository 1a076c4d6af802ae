/*
 * tools/convert/megatron_dist/format.c - checkpoints of Megatron-Core's dist_checkpointing, backend
 * torch_dist (mdist.h), read into logical tensors: one per layer and expert, each chunk a box of
 * one or more of them.
 */
#include "tools/convert/state/opaque_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron/plain.h"
#include "tools/convert/megatron/target.h"
#include "base/array.h"
#include "tools/convert/core/format.h"
#include "tools/convert/torch/tree.h"
#include "tools/convert/megatron_dist/mdist.h"
#include "tools/convert/megatron/names.h"

struct keeping {
    struct cairn_pickle pickle;
    struct cairn_pickle_node *list;
};

static void
keep_line(struct keeping *keeping, const char *word, const char *text)
{
    struct cairn_pickle_node *items[2];

    items[0] = cairn_pickle_text(&keeping->pickle, word);
    items[1] = cairn_pickle_text(&keeping->pickle, text);
    cairn_pickle_append(&keeping->pickle, keeping->list,
                        cairn_pickle_sequence(&keeping->pickle, CAIRN_PICKLE_TUPLE, items, 2));
}

/* What in front of a number in a parameter's name is not stacked. */
static void
keep_form(struct keeping *keeping, const struct cairn_mdist_array *array)
{
    struct cairn_mdist_name pattern;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
    char fused[CAIRN_MDIST_NAME_BYTES_MAX];
    uint32_t star = 0;

    if (array->half != CAIRN_MDIST_WHOLE)
        keep_line(keeping, "halves", "");
    if (cairn_megatron_norm_rename(array->name.pattern, true, fused, sizeof(fused)))
        keep_line(keeping, "norms", "");
    if (!cairn_mdist_pattern_of(array->name.pattern, 0, &pattern, numbers))
        return;
    for (char *at = strchr(pattern.pattern, '*'); at; at = strchr(at + 1, '*'), star++) {
        if (numbers[star] == CAIRN_MDIST_DIMENSION)
            continue;
        *at = '\0';
        keep_line(keeping, "apart", pattern.pattern);
        *at = '*';
    }
}

static void
keep_key(struct keeping *keeping, const struct cairn_mdist_array *array, const char *said)
{
    char key[CAIRN_MDIST_NAME_BYTES_MAX], cut[CAIRN_MDIST_NAME_BYTES_MAX];

    (void)snprintf(cut, sizeof(cut), "%s", said);
    if (array->half != CAIRN_MDIST_WHOLE)
        cut[strlen(cut) - 2] = '\0';
    if (cairn_mdist_key_of(&array->name, key) && strcmp(key, cut) != 0 &&
        array->half != CAIRN_MDIST_UP)
        keep_line(keeping, key, cut);
}

static int
compare_lines(const void *left, const void *right)
{
    const struct cairn_pickle_node *a = *(struct cairn_pickle_node *const *)left;
    const struct cairn_pickle_node *b = *(struct cairn_pickle_node *const *)right;
    char one[CAIRN_MDIST_NAME_BYTES_MAX], other[CAIRN_MDIST_NAME_BYTES_MAX];
    int order = 0;

    for (uint32_t i = 0; i < 2 && order == 0; i++)
        if (cairn_pickle_copy_text(a->items[i], one, sizeof(one)) &&
            cairn_pickle_copy_text(b->items[i], other, sizeof(other)))
            order = strcmp(one, other);
    return order;
}

/* Adds CAIRN_MDIST_KEYS where there is anything to keep. */
static cairn_err
keep_keys(struct cairn_mdist_reading *reading)
{
    struct keeping keeping = {0};
    cairn_err err;

    cairn_pickle_init(&keeping.pickle, CAIRN_DCP_TREE_BYTES_MAX);
    keeping.list = cairn_pickle_list(&keeping.pickle);
    for (uint32_t i = 0; i < reading->metadata.entry_count; i++) {
        const struct cairn_mdist_array *array = &reading->arrays[i];

        if (array->known && !array->name.state[0])
            keep_form(&keeping, array);
        if (array->known && !array->flat)
            keep_key(&keeping, array, reading->metadata.entries[i].name);
    }
    err = cairn_pickle_done(&keeping.pickle);
    if (!err && keeping.list->count > 0) {
        struct cairn_pickle_node **lines = keeping.list->items;
        uint32_t count = 1;

        qsort(lines, keeping.list->count, sizeof(*lines), compare_lines);
        for (uint32_t i = 1; i < keeping.list->count; i++) /* all layers have the same form */
            if (compare_lines(&lines[count - 1], &lines[i]) != 0)
                lines[count++] = lines[i];
        keeping.list->count = count;
        err =
            cairn_opaque_add(reading->checkpoint, CAIRN_MDIST_KEYS, &keeping.pickle, keeping.list);
    }
    cairn_pickle_fini(&keeping.pickle);
    return err;
}

static cairn_err
refuse(struct cairn_mdist_reading *reading, const char *key, const char *why)
{
    return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT, "array %.300s %s", key, why);
}

/* ---- what an array holds ---- */

/* The halves of a gated layer may be two arrays: "_w" (gate) and "_v" (up) behind the key. */
static enum cairn_mdist_half
half_of(const char *key)
{
    size_t bytes = strlen(key);

    if (bytes < 9 || key[bytes - 2] != '_' || (key[bytes - 1] != 'w' && key[bytes - 1] != 'v') ||
        (strncmp(key + bytes - 9, ".weight_", 8) != 0 &&
         strncmp(key + bytes - 7, ".bias_", 6) != 0))
        return CAIRN_MDIST_WHOLE;
    return key[bytes - 1] == 'w' ? CAIRN_MDIST_GATE : CAIRN_MDIST_UP;
}

/* fully_sharded_model_space: an array of [how many boxes by dimension, elements of a box], whose
 * real shape stands in mcore_data. */
static cairn_err
note_flat(struct cairn_mdist_reading *reading, const struct cairn_dcp_entry *entry,
          struct cairn_mdist_array *array)
{
    const struct cairn_pickle_node *shape =
        cairn_pickle_get(cairn_pickle_get(reading->metadata.mcore_data, entry->name),
                         "nd_reformulated_orig_global_shape");
    uint64_t elements = 1;

    array->dims = entry->dims;
    memcpy(array->shape, entry->shape, sizeof(array->shape));
    if (!shape)
        return CAIRN_OK;
    if (!cairn_torch_read_size(shape, array->shape, &array->dims) || array->dims + 1 != entry->dims)
        return refuse(
            reading, entry->name,
            "has another number of dimensions than declared have had; .metadata is damaged");
    array->flat = true;
    for (uint32_t d = 0; d < array->dims; d++) {
        if (entry->shape[d] == 0 || array->shape[d] % entry->shape[d] != 0)
            return refuse(reading, entry->name,
                          "is not a whole number of boxes; .metadata is damaged");
        array->box[d] = array->shape[d] / entry->shape[d];
        if (array->box[d] > 0 && elements > UINT64_MAX / array->box[d])
            return refuse(reading, entry->name, "has boxes that are too large");
        elements *= array->box[d];
    }
    return elements == entry->shape[array->dims]
               ? CAIRN_OK
               : refuse(reading, entry->name, "has boxes of another size; .metadata is damaged");
}

/* The tensors that the gates are in already, of twice the rows. */
static cairn_err
find_half(struct cairn_mdist_reading *reading, uint32_t index)
{
    struct cairn_mdist_array *array = &reading->arrays[index];
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    const struct cairn_layout *layout = reading->checkpoint->layout;
    uint32_t stars = array->name.stars, dims = array->dims - stars, first, last = UINT32_MAX;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX] = {0}, count = 1;
    char name[CAIRN_NAME_BYTES_MAX];
    const struct cairn_tensor *known;

    first = cairn_mdist_expand(&array->name, numbers, name) ? cairn_layout_tensor_find(layout, name)
                                                            : UINT32_MAX;
    for (uint32_t d = 0; d < stars; d++) {
        numbers[d] = array->shape[d] - 1;
        count *= array->shape[d];
    }
    if (cairn_mdist_expand(&array->name, numbers, name))
        last = cairn_layout_tensor_find(layout, name);
    known = first != UINT32_MAX ? cairn_layout_tensor(layout, first) : NULL;
    if (!known || last == UINT32_MAX || last - first != count - 1 || known->dims != dims ||
        known->dtype != entry->dtype || known->shape[0] != 2 * array->shape[stars] ||
        memcmp(known->shape + 1, array->shape + stars + 1, (dims - 1) * sizeof(*known->shape)) != 0)
        return refuse(reading, entry->name,
                      "has no other half of its shape; the checkpoint is not whole");
    array->first = first;
    array->rows = known->shape[0];
    return CAIRN_OK;
}

/* Whether its first dimension is the vocabulary, which is padded. */
static bool
is_vocabulary(const char *pattern)
{
    return strcmp(pattern, "embedding.word_embeddings.weight") == 0 ||
           strcmp(pattern, "output_layer.weight") == 0 || strcmp(pattern, "output_layer.bias") == 0;
}

static cairn_err
add_logical(struct cairn_mdist_reading *reading, uint32_t index)
{
    struct cairn_mdist_array *array = &reading->arrays[index];
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    uint32_t stars = array->name.stars, dims = array->dims - stars;
    uint64_t shape[CAIRN_DIMS_MAX], numbers[CAIRN_MDIST_STARS_MAX] = {0}, count = 1;
    enum cairn_kind kind = array->name.state[0]                           ? CAIRN_OPTIMIZER
                           : cairn_state_is_parameter_dtype(entry->dtype) ? CAIRN_PARAM
                                                                          : CAIRN_BUFFER;
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t d = 0; d < stars; d++) {
        if (array->shape[d] == 0 || array->shape[d] > CAIRN_CONVERT_TENSORS_MAX / count)
            return refuse(reading, entry->name, "holds none, or too many layers or experts");
        count *= array->shape[d];
    }
    memcpy(shape, array->shape + stars, dims * sizeof(*shape));
    if (dims > 0) {
        if (array->half != CAIRN_MDIST_WHOLE)
            shape[0] *= 2;
        else if (is_vocabulary(array->name.pattern) && reading->args.vocabulary > 0 &&
                 shape[0] > reading->args.vocabulary && shape[0] == reading->args.padded_vocabulary)
            shape[0] = reading->args.vocabulary;
        array->rows = shape[0];
    }
    for (uint64_t i = 0; i < count && !err; i++) {
        uint64_t rest = i;
        uint32_t tensor;

        for (uint32_t d = stars; d-- > 0; rest /= array->shape[d])
            numbers[d] = rest % array->shape[d];
        if (!cairn_mdist_expand(&array->name, numbers, name))
            return refuse(reading, entry->name, "has a name that is too long");
        if (cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX)
            return refuse(
                reading, entry->name,
                "holds a tensor that is there twice; .metadata is of several checkpoints");
        err = cairn_checkpoint_add_tensor(reading->checkpoint, name, entry->dtype, kind, dims,
                                          shape, &tensor);
        if (i == 0)
            array->first = tensor;
    }
    return err;
}

static cairn_err
note_array(struct cairn_mdist_reading *reading, uint32_t index)
{
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[index];
    struct cairn_mdist_array *array = &reading->arrays[index];
    size_t prefix = strlen(CAIRN_MDIST_CARRIED);
    cairn_err err;

    if (strncmp(entry->name, CAIRN_MDIST_CARRIED, prefix) == 0 && entry->dtype == CAIRN_U8 &&
        entry->dims == 1) {
        array->carried = true;
        return cairn_checkpoint_add_tensor(reading->checkpoint, entry->name + prefix, CAIRN_U8,
                                           CAIRN_OPAQUE, 1, entry->shape, &array->first);
    }
    if (!cairn_mdist_name_of_key(entry->name, &array->name))
        return refuse(reading, entry->name, "has a name that is too long, or has a '*' in it");
    err = note_flat(reading, entry, array);
    if (err)
        return err;
    if (array->name.stars > array->dims)
        return refuse(reading, entry->name, "has no dimension for its layers or experts");
    array->known = true;
    array->half = half_of(entry->name);
    if (array->half != CAIRN_MDIST_WHOLE && array->dims > array->name.stars)
        array->name.pattern[strlen(array->name.pattern) - 2] = '\0';
    else
        array->half = CAIRN_MDIST_WHOLE;
    return array->half == CAIRN_MDIST_UP ? find_half(reading, index) : add_logical(reading, index);
}

static bool
is_bucket(const char *key)
{
    return strstr(key, "optimizer.distributed.dp_group_idx_") && strstr(key, ".bucket_idx_");
}

/* Gates before ups: both are of one tensor. */
static cairn_err
note_arrays(struct cairn_mdist_reading *reading)
{
    cairn_err err = CAIRN_OK;

    for (int ups = 0; ups < 2; ups++)
        for (uint32_t i = 0; i < reading->metadata.entry_count && !err; i++) {
            const struct cairn_dcp_entry *entry = &reading->metadata.entries[i];

            if (entry->chunks && !is_bucket(entry->name) &&
                (half_of(entry->name) == CAIRN_MDIST_UP) == ups)
                err = note_array(reading, i);
        }
    return err;
}

/* ---- chunks ---- */

/* Moves a box to the array's half, and cuts off rows beyond the array; false if none is left. */
static bool
cut_rows(const struct cairn_mdist_array *array, uint32_t dims, uint64_t *start, uint64_t *extent)
{
    if (dims == 0)
        return true;
    if (array->half == CAIRN_MDIST_UP)
        start[0] += array->rows / 2;
    if (start[0] >= array->rows)
        return false;
    if (extent[0] > array->rows - start[0])
        extent[0] = array->rows - start[0];
    return true;
}

/* Part of a chunk within one logical tensor: a box in it, at `at`. */
static cairn_err
add_box(struct cairn_mdist_reading *reading, const struct cairn_mdist_array *array,
        uint32_t container, uint32_t tensor, const struct cairn_dcp_chunk *chunk, uint64_t at)
{
    uint32_t stars = array->name.stars, dims = array->dims - stars;
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];

    memcpy(start, chunk->start + stars, dims * sizeof(*start));
    memcpy(extent, chunk->extent + stars, dims * sizeof(*extent));
    if (!cut_rows(array, dims, start, extent))
        return CAIRN_OK; /* padding */
    return cairn_checkpoint_add_box(reading->checkpoint, tensor, container, start, extent, at,
                                    chunk->stride_bytes + stars);
}

/* Whether a chunk is of layers and experts that the array has. */
static bool
is_within(const struct cairn_mdist_array *array, const struct cairn_dcp_chunk *chunk)
{
    for (uint32_t d = 0; d < array->name.stars; d++)
        if (chunk->start[d] >= array->shape[d] ||
            chunk->extent[d] > array->shape[d] - chunk->start[d])
            return false;
    return true;
}

static cairn_err
add_chunk(struct cairn_mdist_reading *reading, const struct cairn_mdist_array *array,
          const char *key, uint32_t container, const struct cairn_dcp_chunk *chunk)
{
    uint32_t stars = array->name.stars;
    uint64_t count = 1;
    cairn_err err = CAIRN_OK;

    if (!is_within(array, chunk))
        return refuse(reading, key, "has a part outside its shape; .metadata is damaged");
    for (uint32_t d = 0; d < stars; d++)
        count *= chunk->extent[d];
    for (uint64_t i = 0; i < count && !err; i++) {
        uint64_t rest = i, index = 0, at = chunk->at, step[CAIRN_MDIST_STARS_MAX];

        for (uint32_t d = stars; d-- > 0; rest /= chunk->extent[d])
            step[d] = rest % chunk->extent[d];
        for (uint32_t d = 0; d < stars; d++) {
            /* cppcheck-suppress uninitvar ; the loop above sets step[d] */
            index = index * array->shape[d] + chunk->start[d] + step[d];
            at += step[d] * chunk->stride_bytes[d];
        }
        err = add_box(reading, array, container, array->first + (uint32_t)index, chunk, at);
    }
    return err;
}

/* A flat range of a box of an array: the box is of one layer and expert. */
static cairn_err
add_flat(struct cairn_mdist_reading *reading, const struct cairn_mdist_array *array,
         const struct cairn_dcp_entry *entry, uint32_t container,
         const struct cairn_dcp_chunk *chunk)
{
    uint32_t stars = array->name.stars, dims = array->dims - stars;
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX], index = 0, row = 1;
    uint64_t begin = chunk->start[array->dims], end = begin + chunk->extent[array->dims];

    if (!is_within(array, chunk))
        return refuse(reading, entry->name, "has a part outside its shape; .metadata is damaged");
    for (uint32_t d = 0; d < array->dims; d++)
        if (chunk->extent[d] != 1 || (d < stars && array->box[d] != 1))
            return refuse(
                reading, entry->name,
                "has a flat range of several boxes, which is not how Megatron-Core writes it");
    for (uint32_t d = 0; d < stars; d++)
        index = index * array->shape[d] + chunk->start[d];
    for (uint32_t d = 0; d < dims; d++) {
        extent[d] = array->box[stars + d];
        start[d] = chunk->start[stars + d] * extent[d];
        row *= d > 0 ? extent[d] : 1;
    }
    if (!cut_rows(array, dims, start, extent))
        return CAIRN_OK; /* padding */
    if (dims > 0)
        end = end < extent[0] * row ? end : extent[0] * row;
    if (begin >= end)
        return CAIRN_OK;
    return cairn_checkpoint_add_flat(reading->checkpoint, array->first + (uint32_t)index, container,
                                     start, extent, begin, end, chunk->at);
}

static cairn_err
read_chunk(struct cairn_mdist_reading *reading, const struct cairn_dcp_source *source,
           struct cairn_dcp_chunks *chunks, size_t index)
{
    const struct cairn_dcp_wanted *wanted = &reading->wants.items[index];
    const struct cairn_mdist_array *array = &reading->arrays[wanted->entry];
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[wanted->entry];
    const struct cairn_dcp_chunk *chunk;
    cairn_err err;

    err = cairn_dcp_chunks_take(chunks, index, reading->checkpoint, source, &chunk);
    if (err)
        return err;
    if (array->carried)
        return cairn_checkpoint_add_box(reading->checkpoint, array->first, source->container,
                                        chunk->start, chunk->extent, chunk->at,
                                        chunk->stride_bytes);
    if (!array->known)
        return cairn_mdist_buckets_note(reading, wanted->entry, source->container, chunk);
    return array->flat ? add_flat(reading, array, entry, source->container, chunk)
                       : add_chunk(reading, array, entry->name, source->container, chunk);
}

/* ---- objects ---- */

static cairn_err
read_object(struct cairn_mdist_reading *reading, struct cairn_dcp_source *source,
            const struct cairn_dcp_wanted *wanted)
{
    const struct cairn_dcp_entry *entry = &reading->metadata.entries[wanted->entry];
    char final_name[CAIRN_NAME_BYTES_MAX];
    struct cairn_mdist_object object;
    cairn_err err;

    if (!cairn_mdist_is_object(entry->name, &object))
        return cairn_dcp_add_object(reading->checkpoint, source, wanted, entry->name, final_name);
    object.entry = wanted->entry;
    err = cairn_dcp_load_object(source, wanted, entry->name, &object.bytes, &object.bytes_len,
                                reading->checkpoint->complaint);
    if (err)
        return err;
    if (!object.bytes) /* it has tensors */
        return cairn_dcp_add_object(reading->checkpoint, source, wanted, entry->name, final_name);
    if (!cairn_array_grow(&reading->objects, reading->object_count, sizeof(*reading->objects))) {
        free(object.bytes);
        return CAIRN_NOMEM;
    }
    reading->objects[reading->object_count++] = object;
    return CAIRN_OK;
}

static cairn_err
read_items(struct cairn_mdist_reading *reading)
{
    struct cairn_dcp_source source = {.fd = -1};
    struct cairn_dcp_chunks *chunks = NULL;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->metadata.entry_count && !err; i++)
        err = cairn_dcp_want_entry(reading->checkpoint, &reading->metadata, i, &reading->wants);
    if (!err)
        err = cairn_dcp_wants_sort(reading->checkpoint, &reading->metadata, &reading->wants);
    if (!err)
        err = cairn_dcp_chunks_open(reading->checkpoint, &reading->metadata, &reading->wants,
                                    &chunks);
    for (size_t i = 0; i < reading->wants.count && !err; i++) {
        const struct cairn_dcp_wanted *wanted = &reading->wants.items[i];
        const struct cairn_dcp_entry *entry = &reading->metadata.entries[wanted->entry];

        err = cairn_dcp_source_select(reading->checkpoint, &source, &wanted->item, entry->name);
        if (!err && !entry->chunks && strcmp(entry->name, CAIRN_MDIST_COMMON_KEY) == 0 &&
            !cairn_place_has_file(&reading->checkpoint->place, CAIRN_MDIST_COMMON))
            continue; /* read already */
        if (!err)
            err = entry->chunks ? read_chunk(reading, &source, chunks, i)
                                : read_object(reading, &source, wanted);
    }
    cairn_dcp_chunks_close(chunks);
    cairn_dcp_source_close(&source);
    return err;
}

/* ---- the whole ---- */

static bool
probe(const struct cairn_place *place)
{
    return cairn_place_has_file(place, CAIRN_DCP_METADATA) &&
           cairn_place_has_file(place, CAIRN_MDIST_MARKER);
}

static cairn_err
read_checkpoint(struct cairn_checkpoint *checkpoint)
{
    struct cairn_mdist_reading reading = {.checkpoint = checkpoint};
    cairn_err err = cairn_dcp_metadata_load(checkpoint, &reading.metadata);

    if (err)
        return err;
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework),
                   "Megatron-Core (torch_dist)");
    reading.arrays = calloc((size_t)reading.metadata.entry_count + 1, sizeof(*reading.arrays));
    err = reading.arrays ? cairn_mdist_read_common(&reading) : CAIRN_NOMEM;
    if (!err)
        err = note_arrays(&reading);
    if (!err)
        err = read_items(&reading);
    if (!err)
        err = cairn_mdist_buckets_add(&reading);
    if (!err)
        err = cairn_mdist_add_optimizer(&reading);
    if (!err)
        err = keep_keys(&reading);
    for (uint32_t i = 0; i < reading.object_count; i++)
        free(reading.objects[i].bytes);
    free(reading.objects);
    free(reading.arrays);
    free(reading.bucket_chunks);
    free(reading.wants.items);
    cairn_torch_source_close(&reading.common);
    cairn_dcp_metadata_fini(&reading.metadata);
    return err;
}

/* Whether any parameter has state of the optimizer, which may have been left out. */
static bool
has_moments(const struct cairn_layout *layout)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (cairn_layout_tensor(layout, i)->kind == CAIRN_OPTIMIZER)
            return true;
    return false;
}

static cairn_err
prepare(struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options)
{
    struct cairn_opaque_tree common;
    cairn_err err = cairn_megatron_prepare(checkpoint, options);

    if (err || !has_moments(checkpoint->layout))
        return err;
    err = cairn_opaque_tree_open(checkpoint, CAIRN_MEGATRON_COMMON, &common);
    if (!err && cairn_megatron_plain(cairn_pickle_get(common.root, "optimizer")))
        err = cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "has an optimizer that is not the distributed one, which Megatron-Core does not load "
            "as it is; make new settings: --drop 'megatron/*,rank*/megatron/*' with --job FILE; or "
            "take the weights alone: --drop 'fp32.*,exp_avg*,step.*'");
    cairn_opaque_tree_close(&common);
    return cairn_complain_failed(checkpoint->complaint, err == CAIRN_NOT_FOUND ? CAIRN_OK : err,
                                 "%s: the carried object " CAIRN_MEGATRON_COMMON " cannot be read",
                                 checkpoint->place.path);
}

const struct cairn_format cairn_format_megatron_dist = {
    .name = "megatron-dist",
    .about = "Megatron-Core's torch_dist checkpoint: .metadata, common.pt and .distcp files",
    .probe = probe,
    .read = read_checkpoint,
    .prepare = prepare,
    .plan = cairn_mdist_plan,
    .finish = cairn_mdist_finish,
    .release = cairn_mdist_release,
};
