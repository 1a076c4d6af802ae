/*
 * tools/convert/universal/format.c - the universal checkpoint (snapshot/universal.h) as a format.
 *
 * Everything has a place of its own in it: names, kinds, opaque state. Tied tensors are written
 * twice, since a safetensors file cannot express ties. The job's name and epoch are those of a
 * running job, which a conversion is not: they are "converted" and 0.
 */
#include "tools/convert/core/format.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "snapshot/universal.h"
#include "snapshot/box.h"

enum {
    REPORT_BYTES = 512,
    INDEX_LINE_BYTES = 160, /* about what the two indexes say of a tensor beside its name */
    INDEX_SUM_BYTES = 24
};

#define JOB "converted"
/* A file per class holds at most about this much, unless asked for otherwise. */
#define FILE_BYTES_MAX (UINT64_C(32) << 30)

static bool
probe(const struct cairn_place *place)
{
    return cairn_place_has_file(place, "COMMIT") && cairn_place_has_file(place, "index.json");
}

static cairn_err
add_tensors(struct cairn_checkpoint *checkpoint, const struct cairn_universal *universal)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < universal->file_count; f++) {
        const struct cairn_universal_file *file = &universal->files[f];
        uint32_t container = 0;

        err = cairn_checkpoint_add_file(checkpoint, file->name, &container);
        if (!err)
            err =
                cairn_checkpoint_add_sums(checkpoint, container, CAIRN_CRC_ECMA, file->data_offset,
                                          file->data_bytes, CAIRN_BLOCK_BYTES, file->block_crcs);
        for (uint32_t i = 0; !err && i < file->tensor_count; i++) {
            const struct cairn_universal_tensor *tensor =
                &universal->tensors[file->tensor_first + i];
            uint32_t index = 0;

            err = cairn_checkpoint_add_tensor(checkpoint, tensor->tensor.name, tensor->tensor.dtype,
                                              tensor->tensor.kind, tensor->tensor.dims,
                                              tensor->tensor.shape, &index);
            if (!err)
                err = cairn_checkpoint_add_box(checkpoint, index, container, NULL, NULL,
                                               file->data_offset + tensor->offset_bytes, NULL);
        }
    }
    return err;
}

static cairn_err
read_metadata(struct cairn_checkpoint *checkpoint)
{
    struct cairn_universal universal = {0};
    char report[REPORT_BYTES] = "";
    cairn_err err;

    err = cairn_universal_dir_open(checkpoint->place.dir_fd, &universal, report, sizeof(report));
    if (err && report[0])
        return cairn_complain(checkpoint->complaint, err, "%s/%s; take another copy",
                              checkpoint->place.path, report);
    if (err)
        return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be read",
                                     checkpoint->place.path);
    (void)strcpy(checkpoint->framework, "Cairn");
    checkpoint->step_known = true;
    checkpoint->step = universal.generation.step;
    err = add_tensors(checkpoint, &universal);
    cairn_universal_fini(&universal);
    return err;
}

/* ---- writing ---- */

static void
release(void *state)
{
    struct cairn_universal *universal = state;

    if (universal)
        cairn_universal_fini(universal);
    free(universal);
}

/* The number of files grows with the checkpoint. Their numbers are not containers. */
static cairn_err
plan_files(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
           const struct cairn_layout *tensors, struct cairn_universal *universal)
{
    struct cairn_generation_id generation = {.epoch = 0,
                                             .step = checkpoint->step_known ? checkpoint->step : 0};
    uint64_t most = options->file_bytes_max ? options->file_bytes_max : FILE_BYTES_MAX, total = 0;
    uint32_t writers[CAIRN_NODES_MAX], count;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(tensors); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(tensors, t);

        total += cairn_tensor_bytes(tensor);
    }
    count = total / most < CAIRN_NODES_MAX - 1 ? (uint32_t)(total / most) + 1 : CAIRN_NODES_MAX;
    for (uint32_t w = 0; w < count; w++)
        writers[w] = w;
    return cairn_universal_plan(tensors, writers, count, JOB, 0, generation, universal);
}

/* Files with their headers and checksums, and the tensors in them. */
static cairn_err
lay_out(const struct cairn_universal *universal, struct cairn_output *output)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < universal->file_count; f++) {
        const struct cairn_universal_file *file = &universal->files[f];
        uint8_t *header = NULL;
        size_t header_bytes = 0;
        uint32_t index = 0, sum = 0;

        err = cairn_output_add_file(output, file->name, &index);
        if (!err)
            err = cairn_universal_header_pack(universal, f, &header, &header_bytes);
        if (!err)
            err = cairn_output_add_literal(output, index, 0, header, header_bytes);
        if (!err)
            err = cairn_output_add_sum(output, index, CAIRN_CRC_ECMA, file->data_offset,
                                       file->data_bytes, CAIRN_BLOCK_BYTES, &sum);
        if (!err)
            cairn_output_set_bytes(output, index, file->data_offset + file->data_bytes);
        for (uint32_t i = 0; !err && i < file->tensor_count; i++) {
            const struct cairn_universal_tensor *tensor =
                &universal->tensors[file->tensor_first + i];

            err = cairn_output_add_box(
                output, cairn_layout_tensor_find(output->layout, tensor->tensor.name), index, NULL,
                NULL, file->data_offset + tensor->offset_bytes, NULL);
        }
    }
    return err;
}

/* About what the indexes will take: each tensor's name twice, and a checksum of each block. */
static uint64_t
expect_indexes(const struct cairn_output *output)
{
    uint64_t bytes = 4096;

    for (uint32_t t = 0; t < cairn_layout_tensor_count(output->layout); t++)
        bytes += 2 * strlen(cairn_layout_tensor(output->layout, t)->name) + INDEX_LINE_BYTES;
    for (uint32_t i = 0; i < output->sum_count; i++)
        bytes += output->sums[i].count * INDEX_SUM_BYTES;
    return bytes;
}

static cairn_err
plan(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
     struct cairn_output *output)
{
    struct cairn_universal *universal = calloc(1, sizeof(*universal));
    cairn_err err = universal ? CAIRN_OK : CAIRN_NOMEM;

    output->state = universal;
    for (uint32_t t = 0; !err && t < cairn_layout_tensor_count(checkpoint->layout); t++) {
        uint32_t index;

        err = cairn_output_add_tensor(output, options, cairn_layout_tensor(checkpoint->layout, t),
                                      &index);
    }
    if (!err && !output->layout)
        return cairn_refuse(checkpoint, CAIRN_INVAL, "has no tensors; nothing to convert");
    if (!err)
        err = plan_files(checkpoint, options, output->layout, universal);
    if (!err)
        err = lay_out(universal, output);
    if (!err)
        output->small_bytes = expect_indexes(output);
    return err ? cairn_refuse(checkpoint, err,
                              "cannot be a universal checkpoint: a tensor's name, its size or "
                              "their number exceeds the format's limits")
               : CAIRN_OK;
}

static cairn_err
finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    struct cairn_universal *universal = output->state;
    char *map = NULL, *index = NULL, *commit = NULL;
    size_t map_bytes = 0, index_bytes = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < universal->file_count; f++) {
        uint64_t count = output->sums[f].count;
        uint64_t *crcs = count > 0 ? malloc((size_t)count * sizeof(*crcs)) : NULL;

        if (count > 0 && !crcs)
            err = CAIRN_NOMEM;
        else if (count > 0)
            memcpy(crcs, output->sums[f].values, (size_t)count * sizeof(*crcs));
        if (!err)
            err = cairn_universal_crcs_set(universal, f, crcs, count);
    }
    if (!err)
        err = cairn_universal_weight_map_pack(universal, &map, &map_bytes);
    if (!err)
        err = cairn_output_add_small(output, "model.safetensors.index.json", (uint8_t *)map,
                                     map_bytes);
    if (!err)
        err = cairn_universal_index_pack(universal, &index, &index_bytes);
    if (!err)
        err = cairn_output_add_small(output, "index.json", (uint8_t *)index, index_bytes);
    if (!err)
        err = cairn_universal_commit_pack(index, index_bytes, &commit);
    if (!err)
        err = cairn_output_add_small(output, "COMMIT", (uint8_t *)commit, strlen(commit));
    return cairn_complain_failed(checkpoint->complaint, err, "the index cannot be made");
}

const struct cairn_format cairn_format_universal = {
    .name = "universal",
    .about = "Cairn's own: whole tensors in safetensors files, an index with checksums",
    .probe = probe,
    .read = read_metadata,
    .plan = plan,
    .finish = finish,
    .release = release,
};
