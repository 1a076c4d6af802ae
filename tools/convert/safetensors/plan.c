/*
 * tools/convert/safetensors/plan.c - lays a checkpoint out as safetensors.
 *
 * One file holds everything. A directory gets:
 *
 *   model.safetensors, or model-00001-of-0000N.safetensors and model.safetensors.index.json
 *       parameters and buffers, which loaders of models look for
 *   optimizer-… and opaque-… in the same way
 *       what loaders of models must not see
 *
 * Within a file larger elements come first, then kinds, then names, so every tensor is aligned. The
 * format has no marker of its own: a directory's index is written last.
 */
#include "tools/convert/safetensors/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "snapshot/box.h"
#include "tools/convert/safetensors/safetensors.h"

/* What Hugging Face's own writers cut at. */
#define SHARD_BYTES_DEFAULT UINT64_C(5000000000)

/* What loaders look for apart, in the order in which it is written: a model that is there is the
 * sign that all is there. */
enum shard_class { OPAQUE = 0, OPTIMIZER = 1, MODEL = 2, CLASS_COUNT = 3 };

static const char *const class_names[] = {
    [MODEL] = "model", [OPTIMIZER] = "optimizer", [OPAQUE] = "opaque"};

struct candidate {
    const struct cairn_tensor *tensor; /* of the output: with its final dtype */
    uint64_t bytes;
    enum shard_class class;
    uint32_t file;
};

struct shards {
    struct candidate *candidates;
    uint32_t count;
    uint32_t class_files[CLASS_COUNT]; /* how many files a class has */
};

static enum shard_class
class_of(enum cairn_kind kind, bool single_file)
{
    if (single_file)
        return MODEL;
    return kind == CAIRN_OPTIMIZER ? OPTIMIZER : kind == CAIRN_OPAQUE ? OPAQUE : MODEL;
}

/* Cuts each class into files, in the order of the source. A file holds a tensor at least. */
static cairn_err
assign(struct cairn_output *output, const struct cairn_output_options *options,
       struct shards *shards)
{
    uint64_t most = options->file_bytes_max ? options->file_bytes_max : SHARD_BYTES_DEFAULT;
    uint64_t filled[CLASS_COUNT] = {0};

    shards->count = cairn_layout_tensor_count(output->layout);
    shards->candidates = calloc((size_t)shards->count + 1, sizeof(*shards->candidates));
    if (!shards->candidates)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < shards->count; t++) {
        struct candidate *candidate = &shards->candidates[t];
        enum shard_class class;

        candidate->tensor = cairn_layout_tensor(output->layout, t);
        candidate->bytes = cairn_tensor_bytes(candidate->tensor);
        class = candidate->class = class_of(candidate->tensor->kind, options->single_file);
        if (shards->class_files[class] == 0 || (!options->single_file && filled[class] > 0 &&
                                                filled[class] + candidate->bytes > most)) {
            shards->class_files[class]++;
            filled[class] = 0;
        }
        candidate->file = shards->class_files[class] - 1;
        filled[class] += candidate->bytes;
    }
    return CAIRN_OK;
}

static int
compare_candidates(const void *left, const void *right)
{
    const struct candidate *a = left, *b = right;
    size_t a_element = cairn_dtype_bytes(a->tensor->dtype);
    size_t b_element = cairn_dtype_bytes(b->tensor->dtype);

    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    if (a->file != b->file)
        return a->file < b->file ? -1 : 1;
    if (a_element != b_element)
        return a_element > b_element ? -1 : 1;
    if (a->tensor->kind != b->tensor->kind)
        return a->tensor->kind < b->tensor->kind ? -1 : 1;
    return strcmp(a->tensor->name, b->tensor->name);
}

static void
file_name(const struct shards *shards, const struct candidate *first, bool single_file,
          char name[CAIRN_SAFETENSORS_NAME_BYTES_MAX])
{
    const char *class = class_names[first->class];
    uint32_t files = shards->class_files[first->class];

    if (single_file)
        name[0] = '\0';
    else if (files == 1)
        (void)snprintf(name, CAIRN_SAFETENSORS_NAME_BYTES_MAX, "%s" CAIRN_SAFETENSORS_SUFFIX,
                       class);
    else
        (void)snprintf(name, CAIRN_SAFETENSORS_NAME_BYTES_MAX,
                       "%s-%05" PRIu32 "-of-%05" PRIu32 CAIRN_SAFETENSORS_SUFFIX, class,
                       first->file + 1, files);
}

/* One file of candidates[0 … count), which are sorted. */
static cairn_err
lay_out_file(const struct cairn_checkpoint *checkpoint, struct cairn_output *output,
             const struct candidate *candidates, uint32_t count, const char *name)
{
    struct cairn_safetensors header = {
        .count = count, .step_known = checkpoint->step_known, .step = checkpoint->step};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    uint64_t at = 0;
    uint32_t file = 0;
    cairn_err err = CAIRN_OK;

    header.entries = calloc((size_t)count + 1, sizeof(*header.entries));
    if (!header.entries)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; !err && i < count; i++) {
        const struct cairn_tensor *tensor = candidates[i].tensor;
        struct cairn_safetensors_entry *entry = &header.entries[i];

        memcpy(entry->name, tensor->name, sizeof(entry->name));
        entry->dtype = tensor->dtype;
        entry->kind = tensor->kind;
        entry->dims = tensor->dims;
        memcpy(entry->shape, tensor->shape, sizeof(entry->shape));
        entry->begin = at;
        if (__builtin_add_overflow(at, candidates[i].bytes, &at) || at > INT64_MAX)
            err = cairn_complain(checkpoint->complaint, CAIRN_INVAL,
                                 "the tensors have too many bytes; leave some out with --drop");
        entry->end = at;
    }
    if (!err)
        err = cairn_safetensors_notes_load(checkpoint, &header.notes);
    if (!err) {
        cairn_safetensors_sort(&header);
        err = cairn_safetensors_pack(&header, &bytes, &bytes_len, checkpoint->complaint);
    }
    if (!err)
        err = cairn_output_add_file(output, name, &file);
    if (!err) {
        err = cairn_output_add_literal(output, file, 0, bytes, bytes_len);
        bytes = NULL;
        cairn_output_set_bytes(output, file, bytes_len + at);
    }
    for (uint32_t i = 0; !err && i < count; i++)
        err = cairn_output_add_box(output,
                                   cairn_layout_tensor_find(output->layout, header.entries[i].name),
                                   file, NULL, NULL, bytes_len + header.entries[i].begin, NULL);
    free(bytes);
    cairn_safetensors_fini(&header);
    return err;
}

/* "model.safetensors.index.json" of a class with several files. */
static cairn_err
add_index(struct cairn_output *output, const struct shards *shards, enum shard_class class)
{
    struct cairn_json_writer writer;
    char name[CAIRN_SAFETENSORS_NAME_BYTES_MAX], *text = NULL;
    size_t text_bytes = 0;
    uint64_t total = 0;
    cairn_err err;

    for (uint32_t i = 0; i < shards->count; i++)
        total += shards->candidates[i].class == class ? shards->candidates[i].bytes : 0;
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_object(&writer, "metadata");
    cairn_json_put_u64(&writer, "total_size", total);
    cairn_json_write_object_end(&writer);
    cairn_json_put_object(&writer, "weight_map");
    for (uint32_t i = 0; i < shards->count; i++) {
        if (shards->candidates[i].class != class)
            continue;
        file_name(shards, &shards->candidates[i], false, name);
        cairn_json_write_line(&writer);
        cairn_json_put_string(&writer, shards->candidates[i].tensor->name, name);
    }
    cairn_json_write_object_end(&writer);
    cairn_json_write_object_end(&writer);
    err = cairn_json_writer_done(&writer, &text, &text_bytes);
    if (err)
        return err;
    (void)snprintf(name, sizeof(name), "%s" CAIRN_SAFETENSORS_INDEX_SUFFIX, class_names[class]);
    return cairn_output_add_small(output, name, (uint8_t *)text, text_bytes);
}

static cairn_err
add_tensors(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
            struct cairn_output *output)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, t);
        uint32_t index;

        if (tensor->kind == CAIRN_OPAQUE && strcmp(tensor->name, CAIRN_SAFETENSORS_NOTES) == 0) {
            err = cairn_output_add_carried(output, t); /* in the headers */
            continue;
        }
        err = cairn_output_add_tensor(output, options, cairn_layout_tensor(checkpoint->layout, t),
                                      &index);
    }
    if (!err && !output->layout)
        err = cairn_refuse(checkpoint, CAIRN_INVAL,
                           "has no tensors; nothing to convert; nothing to convert");
    return err;
}

cairn_err
cairn_safetensors_plan(const struct cairn_checkpoint *checkpoint,
                       const struct cairn_output_options *options, struct cairn_output *output)
{
    struct shards shards = {0};
    char name[CAIRN_SAFETENSORS_NAME_BYTES_MAX];
    cairn_err err;

    err = add_tensors(checkpoint, options, output);
    if (!err)
        err = assign(output, options, &shards);
    if (!err)
        qsort(shards.candidates, shards.count, sizeof(*shards.candidates), compare_candidates);
    for (uint32_t i = 0, run; !err && i < shards.count; i += run) {
        const struct candidate *first = &shards.candidates[i];

        for (run = 1; i + run < shards.count && first[run].class == first->class &&
                      first[run].file == first->file;)
            run++;
        file_name(&shards, first, options->single_file, name);
        err = lay_out_file(checkpoint, output, first, run, name);
    }
    for (int class = 0; !err && class < CLASS_COUNT; class ++)
        if (shards.class_files[class] > 1)
            err = add_index(output, &shards, (enum shard_class) class);
    free(shards.candidates);
    return err;
}

cairn_err
cairn_safetensors_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    (void)checkpoint;
    (void)output;
    (void)checkpoint->complaint;
    return CAIRN_OK; /* no checksums in this format, and the indices follow from the plan */
}
