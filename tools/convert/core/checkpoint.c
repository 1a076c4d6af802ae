/*
 * tools/convert/core/checkpoint.c - a checkpoint opened, its containers, checksums, warnings and
 * opaque state; its tensors, their pieces and aliases; its end.
 *
 * Every piece is checked here against the size of its container. So a header with false numbers
 * cannot make the executor read past the end of a file.
 */
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
#include "base/json.h"
#include "snapshot/box.h"

cairn_err
cairn_checkpoint_check_name(const struct cairn_checkpoint *checkpoint, const char *name)
{
    size_t bytes = strlen(name);
    const char *why = NULL;

    if (bytes >= CAIRN_NAME_BYTES_MAX)
        return cairn_refuse(
            checkpoint, CAIRN_CORRUPT,
            "%.100s…: the name has %zu bytes; at most %d are supported; shorten its keys", name,
            bytes, CAIRN_NAME_BYTES_MAX - 1);
    if (bytes == 0)
        why = "is empty; give it one";
    else if (!cairn_utf8_valid(name, bytes))
        why = "is not UTF-8; rename it";
    for (size_t i = 0; i < bytes && !why; i++)
        if ((uint8_t)name[i] < 0x20 || name[i] == 0x7f)
            why = "has a control character; rename it";
    return why ? cairn_refuse(checkpoint, CAIRN_CORRUPT, "%s: the name %s", name, why) : CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_tensor(struct cairn_checkpoint *checkpoint, const char *name,
                            enum cairn_dtype dtype, enum cairn_kind kind, uint32_t dims,
                            const uint64_t *shape, uint32_t *tensor)
{
    const char *why = "";
    cairn_err err;

    if (dims > CAIRN_DIMS_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "tensor %.300s has %" PRIu32 " dimensions; at most %d are known", name,
                            dims, CAIRN_DIMS_MAX);
    if (cairn_layout_tensor_count(checkpoint->layout) >= CAIRN_CONVERT_TENSORS_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "more than %d tensors",
                            CAIRN_CONVERT_TENSORS_MAX);
    err = cairn_checkpoint_check_name(checkpoint, name);
    if (err)
        return err;
    err = cairn_box_add_tensor(checkpoint->layout, name, dtype, kind, dims, shape, tensor, &why);
    if (err == CAIRN_INVAL)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "tensor %.300s: %s", name, why);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %" PRIu32 " tensors",
                            cairn_layout_tensor_count(checkpoint->layout));
    return CAIRN_OK;
}

/* Checks the pieces that the layout accepted, from `first` on. */
static cairn_err
check_pieces(const struct cairn_checkpoint *checkpoint, size_t first)
{
    size_t count = cairn_layout_piece_count(checkpoint->layout);

    if (count > CAIRN_CONVERT_PIECES_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "more than %d pieces of tensors",
                            CAIRN_CONVERT_PIECES_MAX);
    for (size_t i = first; i < count; i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, piece->tensor);
        const struct cairn_container *container = &checkpoint->containers[piece->container];

        if (cairn_box_end(known, piece) > container->bytes)
            return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                                  "%s: tensor %s ends at byte %" PRIu64 " and the file has %" PRIu64
                                  "; it is truncated, take another copy",
                                  cairn_checkpoint_container_name(checkpoint, piece->container),
                                  known->name, cairn_box_end(known, piece), container->bytes);
    }
    return CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_box(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t container,
                         const uint64_t *start, const uint64_t *extent, uint64_t offset_bytes,
                         const uint64_t *stride_bytes)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const struct cairn_tensor *known;
    struct cairn_piece piece;
    cairn_err err;

    CAIRN_ASSERT(tensor < cairn_layout_tensor_count(checkpoint->layout) &&
                 container < checkpoint->container_count);
    known = cairn_layout_tensor(checkpoint->layout, tensor);
    if (!cairn_box_make(known, tensor, container, start, extent, offset_bytes, stride_bytes,
                        &piece))
        return CAIRN_OK;
    err = cairn_layout_add_piece(checkpoint->layout, &piece);
    if (err == CAIRN_INVAL)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: a part of tensor %s lies outside its shape or every file",
                              cairn_checkpoint_container_name(checkpoint, container), known->name);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %zu pieces of tensors", first);
    return check_pieces(checkpoint, first);
}

cairn_err
cairn_checkpoint_add_flat(struct cairn_checkpoint *checkpoint, uint32_t tensor, uint32_t container,
                          const uint64_t *start, const uint64_t *extent, uint64_t flat_begin,
                          uint64_t flat_end, uint64_t offset_bytes)
{
    size_t first = cairn_layout_piece_count(checkpoint->layout);
    const char *why = "";
    cairn_err err;

    CAIRN_ASSERT(tensor < cairn_layout_tensor_count(checkpoint->layout) &&
                 container < checkpoint->container_count);
    if (flat_begin == flat_end)
        return CAIRN_OK;
    err = cairn_box_add_flat(checkpoint->layout, tensor, container, start, extent, flat_begin,
                             flat_end, offset_bytes, &why);
    if (err == CAIRN_INVAL)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: elements %" PRIu64 " to %" PRIu64 " of tensor %s: %s",
                              cairn_checkpoint_container_name(checkpoint, container), flat_begin,
                              flat_end, cairn_layout_tensor(checkpoint->layout, tensor)->name, why);
    if (err)
        return cairn_refuse(checkpoint, err, "no memory for %zu pieces of tensors", first);
    return check_pieces(checkpoint, first);
}

cairn_err
cairn_checkpoint_add_alias(struct cairn_checkpoint *checkpoint, const char *name, uint32_t of)
{
    return cairn_checkpoint_add_alias_as(checkpoint, name,
                                         cairn_layout_tensor(checkpoint->layout, of)->kind, of);
}

cairn_err
cairn_checkpoint_add_alias_as(struct cairn_checkpoint *checkpoint, const char *name,
                              enum cairn_kind kind, uint32_t of)
{
    struct cairn_tensor known;
    uint32_t tensor;
    cairn_err err;

    CAIRN_ASSERT(of < cairn_layout_tensor_count(checkpoint->layout));
    known = *cairn_layout_tensor(checkpoint->layout, of);
    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "tensor %.300s exists, and is tied to %s too", name, known.name);
    if (!cairn_array_grow(&checkpoint->aliases, checkpoint->alias_count,
                          sizeof(*checkpoint->aliases)))
        return CAIRN_NOMEM;
    err = cairn_checkpoint_add_tensor(checkpoint, name, known.dtype, kind, known.dims, known.shape,
                                      &tensor);
    if (err)
        return err;
    CAIRN_ASSERT(tensor == cairn_layout_tensor_count(checkpoint->layout) - 1);
    checkpoint->aliases[checkpoint->alias_count++] = (struct cairn_alias){tensor, of};
    return CAIRN_OK;
}

uint32_t
cairn_checkpoint_past_alias(const struct cairn_checkpoint *checkpoint, uint32_t tensor)
{
    const struct cairn_alias *aliases = checkpoint->aliases;
    uint32_t low = 0;

    CAIRN_BISECT(low, checkpoint->alias_count, middle, aliases[middle].tensor < tensor);
    return low < checkpoint->alias_count && aliases[low].tensor == tensor ? aliases[low].of
                                                                          : tensor;
}

static int
compare_names(const void *left, const void *right, void *layout)
{
    return strcmp(cairn_layout_tensor(layout, *(const uint32_t *)left)->name,
                  cairn_layout_tensor(layout, *(const uint32_t *)right)->name);
}

void
cairn_checkpoint_sort(const struct cairn_layout *layout, uint32_t *tensors, size_t count)
{
    qsort_r(tensors, count, sizeof(*tensors), compare_names, (void *)(uintptr_t)layout);
}

uint32_t
cairn_checkpoint_parameter_of(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                              uint32_t *key_bytes)
{
    const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, tensor);
    const char *dot = strchr(known->name, '.');
    uint32_t parameter;

    if (known->kind != CAIRN_OPTIMIZER || !dot || dot == known->name)
        return UINT32_MAX;
    parameter = cairn_layout_tensor_find(checkpoint->layout, dot + 1);
    if (parameter == UINT32_MAX ||
        cairn_layout_tensor(checkpoint->layout, parameter)->kind != CAIRN_PARAM)
        return UINT32_MAX;
    *key_bytes = (uint32_t)(dot - known->name);
    return parameter;
}

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
cairn_refuse_file(const struct cairn_checkpoint *checkpoint, const char *path, cairn_err err,
                  const char *format, ...)
{
    char text[CAIRN_COMPLAINT_BYTES_MAX];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return cairn_complain(checkpoint->complaint, err, "%s%s%s: %s", checkpoint->place.path,
                          path ? "/" : "", path ? path : "", text);
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
        return cairn_refuse_file(checkpoint, path, err, "%s",
                                 err == CAIRN_CORRUPT ? "not a regular file"
                                                      : "cannot be examined");
    added.bytes = added.mark.bytes;
    added.path = strdup(path);
    err = added.path ? append_container(checkpoint, &added, container) : CAIRN_NOMEM;
    if (err)
        free(added.path);
    return err ? cairn_refuse(checkpoint, err, "too many files, or no memory for them") : CAIRN_OK;
}

cairn_err
cairn_checkpoint_add_bytes(struct cairn_checkpoint *checkpoint, const void *bytes, size_t bytes_len,
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
cairn_sum_append(struct cairn_sum **sums, uint32_t *count, const struct cairn_sum *sum,
                 const uint64_t *values)
{
    struct cairn_sum added = *sum;

    CAIRN_ASSERT(sum->block_bytes > 0);
    if (!cairn_array_grow(sums, *count, sizeof(**sums)))
        return CAIRN_NOMEM;
    added.count = sum->bytes / sum->block_bytes + (sum->bytes % sum->block_bytes != 0);
    added.values = calloc((size_t)added.count + 1, sizeof(*added.values));
    if (!added.values)
        return CAIRN_NOMEM;
    if (values)
        memcpy(added.values, values, (size_t)added.count * sizeof(*added.values));
    (*sums)[(*count)++] = added;
    return CAIRN_OK;
}

uint64_t
cairn_sum_block_begin(const struct cairn_sum *sum, uint64_t block)
{
    return sum->offset_bytes + block * sum->block_bytes;
}

uint64_t
cairn_sum_block_end(const struct cairn_sum *sum, uint64_t block)
{
    return block + 1 < sum->count ? cairn_sum_block_begin(sum, block + 1)
                                  : sum->offset_bytes + sum->bytes;
}

cairn_err
cairn_checkpoint_add_sums(struct cairn_checkpoint *checkpoint, uint32_t container,
                          enum cairn_crc_kind kind, uint64_t offset_bytes, uint64_t bytes,
                          uint64_t block_bytes, const uint64_t *values)
{
    struct cairn_sum sum = {container, kind, offset_bytes, bytes, block_bytes, 0, NULL};

    CAIRN_ASSERT(container < checkpoint->container_count);
    if (offset_bytes > checkpoint->containers[container].bytes ||
        bytes > checkpoint->containers[container].bytes - offset_bytes)
        return cairn_complain(checkpoint->complaint, CAIRN_CORRUPT,
                              "%s: has %" PRIu64 " bytes and should have %" PRIu64
                              "; it is truncated, take another copy",
                              cairn_checkpoint_container_name(checkpoint, container),
                              checkpoint->containers[container].bytes, offset_bytes + bytes);
    return cairn_sum_append(&checkpoint->sums, &checkpoint->sum_count, &sum, values);
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
        "%" PRIu64 " tensors or objects, the first in %.200s, were saved without checksums: damage "
        "to their data cannot be detected",
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
    err = cairn_checkpoint_add_bytes(checkpoint, bytes, bytes_len, &index);
    if (err)
        return err;
    return cairn_checkpoint_add_box(checkpoint, tensor, index, NULL, NULL, 0, NULL);
}

/* ---- for writers ---- */

uint32_t *
cairn_checkpoint_sorted(const struct cairn_layout *layout)
{
    uint32_t count = cairn_layout_tensor_count(layout);
    uint32_t *order = calloc((size_t)count + 1, sizeof(*order));

    for (uint32_t i = 0; order && i < count; i++)
        order[i] = i;
    if (order)
        cairn_checkpoint_sort(layout, order, count);
    return order;
}

cairn_err
cairn_checkpoint_load_piece(const struct cairn_checkpoint *checkpoint,
                            const struct cairn_piece *piece, void *bytes, size_t bytes_len)
{
    const struct cairn_container *container = &checkpoint->containers[piece->container];
    size_t got = 0;
    int fd = -1;
    cairn_err err;

    if (!container->path) {
        memcpy(bytes, container->literal + piece->offset_bytes, bytes_len);
        return CAIRN_OK;
    }
    err = cairn_place_open_file(&checkpoint->place, container->path, &fd, checkpoint->complaint);
    if (!err)
        err = cairn_file_read_at(fd, piece->offset_bytes, bytes, bytes_len, &got);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    return !err && got < bytes_len ? CAIRN_CORRUPT : err;
}

cairn_err
cairn_checkpoint_load_opaque(const struct cairn_checkpoint *checkpoint, const char *name,
                             size_t bytes_max, uint8_t **bytes, size_t *bytes_len)
{
    uint32_t index = cairn_layout_tensor_find(checkpoint->layout, name);
    const struct cairn_tensor *tensor;
    const struct cairn_piece *piece;
    uint8_t *buffer = NULL;
    size_t size;
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
    if (size > 0)
        err = cairn_checkpoint_load_piece(checkpoint, piece, buffer, size);
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
