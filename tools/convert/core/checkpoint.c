/* tools/convert/core/checkpoint.c - a checkpoint opened, its containers, checksums, warnings and
 * opaque state, and its end. Tensors and pieces: checkpoint_pieces.c. */
#include "tools/convert/core/checkpoint.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/array.h"
#include "base/file.h"
#include "base/text.h"
#include "tools/convert/core/format.h"

enum { WARNINGS_MAX = 1000, WARNING_BYTES_MAX = 512 };

void
cairn_checkpoint_close(struct cairn_checkpoint *checkpoint)
{
    for (uint32_t i = 0; i < checkpoint->container_count; i++) {
        free(checkpoint->containers[i].path);
        free(checkpoint->containers[i].literal);
    }
    for (uint32_t i = 0; i < checkpoint->warning_count; i++)
        free(checkpoint->warnings[i]);
    for (uint32_t i = 0; i < checkpoint->sum_count; i++)
        free(checkpoint->sums[i].values);
    free(checkpoint->sums);
    free(checkpoint->containers);
    free(checkpoint->aliases);
    free(checkpoint->warnings);
    cairn_layout_destroy(checkpoint->layout);
    cairn_place_close(&checkpoint->place);
    *checkpoint = (struct cairn_checkpoint){.place.dir_fd = -1};
}

/* ---- containers ---- */

static cairn_err
append_container(struct cairn_checkpoint *checkpoint, const struct cairn_container *container,
                 uint32_t *index)
{
    if (checkpoint->container_count >= CAIRN_CONVERT_CONTAINERS_MAX)
        return CAIRN_CORRUPT;
    if (!cairn_array_grow(&checkpoint->containers, checkpoint->container_count,
                          sizeof(*checkpoint->containers)))
        return CAIRN_NOMEM;
    *index = checkpoint->container_count++;
    checkpoint->containers[*index] = *container;
    return CAIRN_OK;
}

cairn_err
cairn_refuse(const struct cairn_checkpoint *checkpoint, cairn_err err, const char *format, ...)
{
    char text[CAIRN_COMPLAINT_BYTES_MAX];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return cairn_complain(checkpoint->complaint, err, "%s: %s", checkpoint->place.path, text);
}

cairn_err
cairn_refuse_file(const struct cairn_checkpoint *checkpoint, const char *path, cairn_err err,
                  const char *format, ...)
{
    char text[CAIRN_COMPLAINT_BYTES_MAX];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return cairn_complain(checkpoint->complaint, err, "%s/%s: %s", checkpoint->place.path, path,
                          text);
}

const char *
cairn_checkpoint_container_name(const struct cairn_checkpoint *checkpoint, uint32_t container)
{
    const char *path;

    CAIRN_ASSERT(container < checkpoint->container_count);
    path = checkpoint->containers[container].path;
    return !path ? "(memory)" : path[0] ? path : checkpoint->place.path;
}
cairn_err
cairn_checkpoint_complain_changed(const struct cairn_checkpoint *checkpoint, const char *path,
                                  struct cairn_complaint *complaint)
{
    return cairn_complain(
        complaint, CAIRN_CORRUPT,
        "%s/%s: changed after its metadata was read; wait until no job writes there",
        checkpoint->place.path, path);
}

cairn_err
cairn_checkpoint_add_file(struct cairn_checkpoint *checkpoint, const char *path,
                          uint32_t *container)
{
    struct cairn_container added = {0};
    cairn_err err;
    int fd = -1;

    err = cairn_place_open_file(&checkpoint->place, path, &fd, checkpoint->complaint);
    if (err == CAIRN_NOT_FOUND)
        return cairn_refuse_file(checkpoint, path, err,
                                 "missing, the checkpoint names it; copy it there");
    if (err)
        return err;
    err = cairn_file_mark_take(fd, &added.mark);
    (void)cairn_file_close(fd); /* only looked at */
    if (err)
        return cairn_complain(checkpoint->complaint, err, "%s/%s %s", checkpoint->place.path, path,
                              err == CAIRN_CORRUPT ? "is not a regular file"
                                                   : "cannot be examined");
    added.bytes = added.mark.bytes;
    added.path = strdup(path);
    err = added.path ? append_container(checkpoint, &added, container) : CAIRN_NOMEM;
    if (err)
        free(added.path);
    return err ? cairn_refuse(checkpoint, err, "too many files, or no memory for them") : CAIRN_OK;
}

/* Adds bytes in memory, which are copied, as a container. */
static cairn_err
add_bytes(struct cairn_checkpoint *checkpoint, const void *bytes, size_t bytes_len,
          uint32_t *container)
{
    struct cairn_container added = {.bytes = bytes_len};
    cairn_err err;

    added.literal = malloc(bytes_len);
    if (!added.literal)
        return CAIRN_NOMEM;
    memcpy(added.literal, bytes, bytes_len);
    err = append_container(checkpoint, &added, container);
    if (err) {
        free(added.literal);
        return cairn_refuse(checkpoint, err, "too many files, or no memory for them");
    }
    return CAIRN_OK;
}

/* ---- checksums, warnings ---- */

cairn_err
cairn_checkpoint_add_sums(struct cairn_checkpoint *checkpoint, uint32_t container,
                          enum cairn_crc_kind kind, uint64_t offset_bytes, uint64_t bytes,
                          uint64_t block_bytes, const uint64_t *values)
{
    struct cairn_source_sum sum = {.container = container,
                                   .kind = kind,
                                   .offset_bytes = offset_bytes,
                                   .bytes = bytes,
                                   .block_bytes = block_bytes};

    if (container >= checkpoint->container_count || block_bytes == 0)
        return cairn_refuse(checkpoint, CAIRN_INTERNAL, "checksums of an unknown file");
    if (offset_bytes > checkpoint->containers[container].bytes ||
        bytes > checkpoint->containers[container].bytes - offset_bytes)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: has %" PRIu64 " bytes and should have %" PRIu64
                              "; it is truncated, take another copy",
                              cairn_checkpoint_container_name(checkpoint, container),
                              checkpoint->containers[container].bytes, offset_bytes + bytes);
    if (!cairn_array_grow(&checkpoint->sums, checkpoint->sum_count, sizeof(*checkpoint->sums)))
        return CAIRN_NOMEM;
    sum.count = bytes / block_bytes + (bytes % block_bytes != 0);
    sum.values = malloc((size_t)sum.count * sizeof(*sum.values) + 1);
    if (!sum.values)
        return CAIRN_NOMEM;
    if (sum.count > 0)
        memcpy(sum.values, values, (size_t)sum.count * sizeof(*sum.values));
    checkpoint->sums[checkpoint->sum_count++] = sum;
    return CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_storage_sum(struct cairn_checkpoint *checkpoint, uint32_t container,
                                 uint64_t offset_bytes, uint64_t bytes, uint32_t crc32)
{
    uint64_t value = crc32;

    if (bytes == 0)
        return CAIRN_OK;
    if (crc32 != 0)
        return cairn_checkpoint_add_sums(checkpoint, container, CAIRN_CRC_ZIP, offset_bytes, bytes,
                                         bytes, &value);
    if (checkpoint->unsummed_count++ == 0)
        checkpoint->unsummed_first = container;
    return CAIRN_OK;
}

cairn_err
cairn_checkpoint_warn(struct cairn_checkpoint *checkpoint, const char *format, ...)
{
    char said[WARNING_BYTES_MAX], text[WARNING_BYTES_MAX];
    va_list arguments;

    if (checkpoint->warning_count == WARNINGS_MAX) /* nobody reads more */
        return CAIRN_OK;
    va_start(arguments, format);
    (void)vsnprintf(said, sizeof(said), format, arguments);
    va_end(arguments);
    cairn_text_clean(text, sizeof(text), said);
    if (!cairn_array_grow(&checkpoint->warnings, checkpoint->warning_count,
                          sizeof(*checkpoint->warnings)))
        return CAIRN_NOMEM;
    checkpoint->warnings[checkpoint->warning_count] = strdup(text);
    if (!checkpoint->warnings[checkpoint->warning_count])
        return CAIRN_NOMEM;
    checkpoint->warning_count++;
    return CAIRN_OK;
}

static cairn_err
warn_of_unsummed(struct cairn_checkpoint *checkpoint)
{
    if (checkpoint->unsummed_count == 0)
        return CAIRN_OK;
    return cairn_checkpoint_warn(
        checkpoint,
        "%" PRIu64 " tensors or objects, the first in %.200s, were saved without checksums (after "
        "torch.serialization.set_crc32_options(False), in the form of before PyTorch "
        "1.6, or as plain bytes): damage to their data cannot be detected",
        checkpoint->unsummed_count,
        cairn_checkpoint_container_name(checkpoint, checkpoint->unsummed_first));
}

/* Lets a format read the place, which the checkpoint takes over, also on failure. */
static cairn_err
read_place(struct cairn_place *place, const struct cairn_format *format, uint32_t thread_count,
           struct cairn_checkpoint *out, struct cairn_complaint *complaint)
{
    struct cairn_checkpoint checkpoint = {
        .format = format, .place = *place, .thread_count = thread_count, .complaint = complaint};
    cairn_err err = cairn_layout_create(&checkpoint.layout);

    if (!err)
        err = format->read(&checkpoint);
    if (!err)
        err = warn_of_unsummed(&checkpoint);
    if (!err) {
        *out = checkpoint;
        return CAIRN_OK;
    }
    (void)cairn_complain_failed(complaint, err, "%s: cannot be read as %s", place->path,
                                format->name);
    cairn_checkpoint_close(&checkpoint);
    return err;
}

static cairn_err
open_place(const char *path, struct cairn_place *place, struct cairn_complaint *complaint)
{
    cairn_err err = cairn_place_open(path, place, complaint);

    return cairn_complain_failed(complaint, err, "%s: cannot be read", path);
}

cairn_err
cairn_checkpoint_open(const char *path, const struct cairn_format *format, uint32_t thread_count,
                      struct cairn_checkpoint *out, struct cairn_complaint *complaint)
{
    struct cairn_place place;
    cairn_err err = open_place(path, &place, complaint);

    return err ? err : read_place(&place, format, thread_count, out, complaint);
}

cairn_err
cairn_checkpoint_detect(const char *path, const struct cairn_format *const formats[],
                        uint32_t thread_count, struct cairn_checkpoint *out,
                        struct cairn_complaint *complaint)
{
    struct cairn_place place;
    cairn_err err = open_place(path, &place, complaint);

    if (err)
        return err;
    for (size_t i = 0; formats[i]; i++)
        if (formats[i]->probe(&place))
            return read_place(&place, formats[i], thread_count, out, complaint);
    cairn_place_close(&place);
    return cairn_complain(
        complaint, CAIRN_NOT_FOUND,
        "%s: unrecognized checkpoint format; name the directory that was saved, or the file", path);
}

cairn_err
cairn_checkpoint_add_opaque(struct cairn_checkpoint *checkpoint, const char *name,
                            const void *bytes, size_t bytes_len)
{
    uint64_t shape = bytes_len;
    uint32_t tensor, index;
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "duplicate opaque state %.300s", name);
    err = cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_U8, CAIRN_OPAQUE, 1, &shape, &tensor);
    if (err || bytes_len == 0)
        return err;
    err = add_bytes(checkpoint, bytes, bytes_len, &index);
    if (err)
        return err;
    return cairn_checkpoint_add_box(checkpoint, tensor, index, NULL, NULL, 0, NULL);
}

/* ---- for writers ---- */

cairn_err
cairn_checkpoint_load_opaque(const struct cairn_checkpoint *checkpoint, const char *name,
                             size_t bytes_max, uint8_t **bytes, size_t *bytes_len)
{
    uint32_t index = cairn_layout_tensor_find(checkpoint->layout, name);
    const struct cairn_container *container;
    const struct cairn_tensor *tensor;
    const struct cairn_piece *piece;
    uint8_t *buffer = NULL;
    size_t got = 0, size;
    int fd = -1;
    cairn_err err = CAIRN_OK;

    if (index == UINT32_MAX)
        return CAIRN_NOT_FOUND;
    tensor = cairn_layout_tensor(checkpoint->layout, index);
    piece = cairn_layout_only_piece(checkpoint->layout, index);
    if (tensor->kind != CAIRN_OPAQUE || tensor->shape[0] > bytes_max ||
        (tensor->shape[0] > 0 && (!piece || piece->extent[0] != tensor->shape[0])))
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%s expected opaque state of at most %zu bytes in one piece", name,
                            bytes_max);
    size = (size_t)tensor->shape[0];
    buffer = malloc(size + 1);
    if (!buffer)
        return CAIRN_NOMEM;
    if (size > 0) {
        container = &checkpoint->containers[piece->container];
        if (container->path) {
            err = cairn_place_open_file(&checkpoint->place, container->path, &fd,
                                        checkpoint->complaint);
            if (!err)
                err = cairn_file_read_at(fd, piece->offset_bytes, buffer, size, &got);
            (void)cairn_file_close(fd); /* only read; -1 is allowed */
        } else {
            memcpy(buffer, container->literal + piece->offset_bytes, size);
            got = size;
        }
    }
    if (!err && got < size)
        err = CAIRN_CORRUPT;
    if (err) {
        free(buffer);
        return cairn_complain_failed(checkpoint->complaint, err,
                                     "%s: opaque state %s cannot be read", checkpoint->place.path,
                                     name);
    }
    buffer[size] = 0;
    *bytes = buffer;
    *bytes_len = size;
    return CAIRN_OK;
}
