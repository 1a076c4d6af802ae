/* tools/convert/core/output.c - see core/output.h: the tables that a format's plan fills. */
#include "tools/convert/core/format.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/array.h"
#include "snapshot/box.h"

static cairn_err
grow(void *table, uint32_t count, size_t element_bytes)
{
    return cairn_array_grow(table, count, element_bytes) ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_output_fini(struct cairn_output *output)
{
    for (uint32_t i = 0; i < output->file_count; i++)
        free(output->files[i].path);
    for (uint32_t i = 0; i < output->literal_count; i++)
        free(output->literals[i].bytes);
    for (uint32_t i = 0; i < output->sum_count; i++)
        free(output->sums[i].values);
    for (uint32_t i = 0; i < output->small_count; i++) {
        free(output->smalls[i].path);
        free(output->smalls[i].bytes);
    }
    free(output->files);
    free(output->literals);
    free(output->sums);
    free(output->smalls);
    free(output->carried);
    free(output->equals);
    cairn_layout_destroy(output->layout);
    if (output->format && output->format->release)
        output->format->release(output->state);
    memset(output, 0, sizeof(*output));
}

cairn_err
cairn_output_add_file(struct cairn_output *output, const char *path, uint32_t *file)
{
    cairn_err err = grow(&output->files, output->file_count, sizeof(*output->files));
    char *copy = err ? NULL : strdup(path);

    if (!copy)
        return CAIRN_NOMEM;
    *file = output->file_count++;
    output->files[*file] = (struct cairn_output_file){.path = copy};
    return CAIRN_OK;
}

void
cairn_output_set_bytes(struct cairn_output *output, uint32_t file, uint64_t bytes)
{
    CAIRN_ASSERT(file < output->file_count);
    output->files[file].bytes = bytes;
}

cairn_err
cairn_output_add_literal(struct cairn_output *output, uint32_t file, uint64_t offset_bytes,
                         uint8_t *bytes, size_t bytes_len)
{
    cairn_err err = grow(&output->literals, output->literal_count, sizeof(*output->literals));

    CAIRN_ASSERT(file < output->file_count);
    if (err) {
        free(bytes);
        return err;
    }
    output->literals[output->literal_count++] =
        (struct cairn_output_literal){file, offset_bytes, bytes_len, bytes};
    return CAIRN_OK;
}

cairn_err
cairn_output_add_sum(struct cairn_output *output, uint32_t file, enum cairn_crc_kind kind,
                     uint64_t offset_bytes, uint64_t bytes, uint64_t block_bytes, uint32_t *sum)
{
    struct cairn_sum added = {file, kind, offset_bytes, bytes, block_bytes, 0, NULL};

    CAIRN_ASSERT(file < output->file_count);
    *sum = output->sum_count;
    return cairn_sum_append(&output->sums, &output->sum_count, &added, NULL);
}

cairn_err
cairn_output_add_small(struct cairn_output *output, const char *path, uint8_t *bytes,
                       size_t bytes_len)
{
    cairn_err err = grow(&output->smalls, output->small_count, sizeof(*output->smalls));
    char *copy = err ? NULL : strdup(path);

    if (!copy) {
        free(bytes);
        return CAIRN_NOMEM;
    }
    output->smalls[output->small_count++] = (struct cairn_output_small){copy, bytes, bytes_len};
    return CAIRN_OK;
}

cairn_err
cairn_output_add_text(struct cairn_output *output, const char *path, const char *text)
{
    uint8_t *copy = (uint8_t *)strdup(text);

    return copy ? cairn_output_add_small(output, path, copy, strlen(text)) : CAIRN_NOMEM;
}

cairn_err
cairn_output_add_carried(struct cairn_output *output, uint32_t tensor)
{
    cairn_err err = grow(&output->carried, output->carried_count, sizeof(*output->carried));

    if (!err)
        output->carried[output->carried_count++] = tensor;
    return err;
}

cairn_err
cairn_output_add_equal(struct cairn_output *output, uint32_t tensor, uint32_t of)
{
    cairn_err err = grow(&output->equals, output->equal_count, sizeof(*output->equals));

    CAIRN_ASSERT(tensor != of);
    if (err)
        return err;
    output->equals[output->equal_count++] = (struct cairn_output_equal){tensor, of};
    return cairn_output_add_carried(output, tensor);
}

static bool
is_floating(enum cairn_dtype dtype)
{
    return dtype == CAIRN_F16 || dtype == CAIRN_BF16 || dtype == CAIRN_F32 || dtype == CAIRN_F64;
}

enum cairn_dtype
cairn_output_dtype(const struct cairn_output_options *options, const struct cairn_tensor *tensor)
{
    bool model = tensor->kind == CAIRN_PARAM || tensor->kind == CAIRN_BUFFER;

    return options->dtype && model && is_floating(tensor->dtype) ? options->dtype : tensor->dtype;
}

uint32_t
cairn_output_past_alias(const struct cairn_checkpoint *source,
                        const struct cairn_output_options *options, uint32_t tensor)
{
    uint32_t of = cairn_checkpoint_past_alias(source, tensor);

    return of == tensor ||
                   cairn_output_dtype(options, cairn_layout_tensor(source->layout, tensor)) !=
                       cairn_output_dtype(options, cairn_layout_tensor(source->layout, of))
               ? tensor
               : of;
}

cairn_err
cairn_output_add_tensor(struct cairn_output *output, const struct cairn_output_options *options,
                        const struct cairn_tensor *tensor, uint32_t *index)
{
    cairn_err err = CAIRN_OK;

    if (!output->layout)
        err = cairn_layout_create(&output->layout);
    if (!err)
        err = cairn_box_copy_tensor(output->layout, tensor, cairn_output_dtype(options, tensor),
                                    index);
    return err == CAIRN_INVAL ? CAIRN_INTERNAL : err;
}

cairn_err
cairn_output_add_box(struct cairn_output *output, uint32_t tensor, uint32_t file,
                     const uint64_t *start, const uint64_t *extent, uint64_t offset_bytes,
                     const uint64_t *stride_bytes)
{
    struct cairn_piece piece;
    cairn_err err;

    CAIRN_ASSERT(tensor < cairn_layout_tensor_count(output->layout) && file < output->file_count);
    if (!cairn_box_make(cairn_layout_tensor(output->layout, tensor), tensor, file, start, extent,
                        offset_bytes, stride_bytes, &piece))
        return CAIRN_OK;
    err = cairn_layout_add_piece(output->layout, &piece);
    return err == CAIRN_INVAL ? CAIRN_INTERNAL : err;
}

cairn_err
cairn_output_add_whole(struct cairn_output *output, const struct cairn_output_options *options,
                       const struct cairn_tensor *tensor, uint32_t file, uint64_t offset_bytes)
{
    uint32_t index = 0;
    cairn_err err = cairn_output_add_tensor(output, options, tensor, &index);

    return err ? err : cairn_output_add_box(output, index, file, NULL, NULL, offset_bytes, NULL);
}

cairn_err
cairn_output_add_flat(struct cairn_output *output, uint32_t tensor, uint32_t file,
                      const uint64_t *start, const uint64_t *extent, uint64_t flat_begin,
                      uint64_t flat_end, uint64_t offset_bytes)
{
    cairn_err err;

    CAIRN_ASSERT(tensor < cairn_layout_tensor_count(output->layout) && file < output->file_count);
    if (flat_begin == flat_end)
        return CAIRN_OK;
    err = cairn_box_add_flat(output->layout, tensor, file, start, extent, flat_begin, flat_end,
                             offset_bytes, NULL);
    return err == CAIRN_INVAL ? CAIRN_INTERNAL : err;
}
