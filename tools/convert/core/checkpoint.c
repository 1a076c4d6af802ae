/*
 * tools/convert/core/checkpoint.c - a checkpoint that was read: opening it by asking the table of
 * formats, its containers, and what it has beside tensors and their pieces (checkpoint_pieces.c).
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/text.h"
#include "base/json.h"

enum { WARNINGS_MAX = 1000, WARNING_BYTES_MAX = 512 };

/* ---- opening and closing ---- */

static cairn_err
warn_of_unsummed(struct cairn_checkpoint *checkpoint)
{
    if (checkpoint->unsummed_count == 0)
        return CAIRN_OK;
    return cairn_checkpoint_warn(
        checkpoint,
        "%" PRIu64 " tensors or objects, the first in %.200s, were saved without checksums (after "
        "torch.serialization.set_crc32_options(False), in the form of before PyTorch 1.6, or as "
        "plain bytes): "
        "damage of their data cannot be seen",
        checkpoint->unsummed_count,
        cairn_checkpoint_container_name(checkpoint, checkpoint->unsummed_first));
}

static cairn_err
find_format(const struct cairn_place *place, const struct cairn_format **format,
            struct cairn_complaint *complaint)
{
    if (*format)
        return CAIRN_OK;
    for (size_t i = 0; cairn_formats[i]; i++)
        if (cairn_formats[i]->reads && cairn_formats[i]->probe(place)) {
            *format = cairn_formats[i];
            return CAIRN_OK;
        }
    return cairn_complain(complaint, CAIRN_NOT_FOUND,
                          "%s is no checkpoint that is known here: none of its files has the name "
                          "or the first bytes of one; name the directory that was saved, or the "
                          "file",
                          place->path);
}

cairn_err
cairn_checkpoint_open(const char *path, const struct cairn_format *format,
                      struct cairn_checkpoint *out, struct cairn_complaint *complaint)
{
    return cairn_checkpoint_open_threads(path, format, 0, out, complaint);
}

cairn_err
cairn_checkpoint_open_threads(const char *path, const struct cairn_format *format,
                              uint32_t thread_count, struct cairn_checkpoint *out,
                              struct cairn_complaint *complaint)
{
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1, .thread_count = thread_count};
    cairn_err err;

    err = cairn_place_open(path, &checkpoint.place, complaint);
    if (!err)
        err = find_format(&checkpoint.place, &format, complaint);
    if (!err)
        err = cairn_layout_create(&checkpoint.layout);
    if (!err) {
        checkpoint.format = format;
        err = format->read(&checkpoint, complaint);
    }
    if (!err)
        err = warn_of_unsummed(&checkpoint);
    if (!err) {
        *out = checkpoint;
        return CAIRN_OK;
    }
    (void)cairn_complain(complaint, err, "%s cannot be read%s%s: %s", path, format ? " as " : "",
                         format ? format->name : "", cairn_err_text(err));
    cairn_checkpoint_close(&checkpoint);
    return err;
}

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
    uint32_t room = checkpoint->container_room ? 2 * checkpoint->container_room : 16;

    if (checkpoint->container_count >= CAIRN_CONVERT_CONTAINERS_MAX)
        return CAIRN_CORRUPT;
    if (checkpoint->container_count == checkpoint->container_room) {
        struct cairn_container *grown =
            realloc(checkpoint->containers, room * sizeof(*checkpoint->containers));

        if (!grown)
            return CAIRN_NOMEM;
        checkpoint->containers = grown;
        checkpoint->container_room = room;
    }
    *index = checkpoint->container_count++;
    checkpoint->containers[*index] = *container;
    return CAIRN_OK;
}

const char *
cairn_checkpoint_container_name(const struct cairn_checkpoint *checkpoint, uint32_t container)
{
    const char *path = checkpoint->containers[container].path;

    return !path ? "(memory)" : path[0] ? path : checkpoint->place.path;
}

cairn_err
cairn_file_mark_take(int fd, struct cairn_file_mark *out)
{
    struct stat found;

    if (fstat(fd, &found) != 0)
        return CAIRN_IO;
    if (!S_ISREG(found.st_mode))
        return CAIRN_CORRUPT;
    out->bytes = (uint64_t)found.st_size;
    out->modified_ns =
        (uint64_t)found.st_mtim.tv_sec * 1000000000u + (uint64_t)found.st_mtim.tv_nsec;
    out->changed_ns =
        (uint64_t)found.st_ctim.tv_sec * 1000000000u + (uint64_t)found.st_ctim.tv_nsec;
    return CAIRN_OK;
}

bool
cairn_file_mark_equal(const struct cairn_file_mark *a, const struct cairn_file_mark *b)
{
    return a->bytes == b->bytes && a->modified_ns == b->modified_ns &&
           a->changed_ns == b->changed_ns;
}

cairn_err
cairn_checkpoint_complain_changed(const struct cairn_checkpoint *checkpoint, const char *path,
                                  struct cairn_complaint *complaint)
{
    return cairn_complain(
        complaint, CAIRN_CORRUPT,
        "%s/%s has changed since its metadata was read; is a job still writing there?",
        checkpoint->place.path, path);
}

cairn_err
cairn_checkpoint_add_file(struct cairn_checkpoint *checkpoint, const char *path,
                          uint32_t *container, struct cairn_complaint *complaint)
{
    struct cairn_container added = {0};
    cairn_err err;
    int fd = -1;

    err = cairn_place_open_file(&checkpoint->place, path, &fd, complaint);
    if (err == CAIRN_NOT_FOUND)
        return cairn_complain(complaint, err,
                              "%s/%s is missing, though the checkpoint names it; copy it there",
                              checkpoint->place.path, path);
    if (err)
        return err;
    err = cairn_file_mark_take(fd, &added.mark);
    (void)cairn_file_close(fd); /* only looked at */
    if (err)
        return cairn_complain(complaint, err, "%s/%s %s", checkpoint->place.path, path,
                              err == CAIRN_CORRUPT ? "is no regular file" : "cannot be looked at");
    added.bytes = added.mark.bytes;
    added.path = strdup(path);
    err = added.path ? append_container(checkpoint, &added, container) : CAIRN_NOMEM;
    if (err)
        free(added.path);
    return err ? cairn_complain(complaint, err, "%s: too many files, or no memory for them",
                                checkpoint->place.path)
               : CAIRN_OK;
}

/* ---- opaque state, aliases, checksums, warnings ---- */

cairn_err
cairn_checkpoint_add_opaque(struct cairn_checkpoint *checkpoint, const char *name,
                            const void *bytes, size_t bytes_len, struct cairn_complaint *complaint)
{
    struct cairn_container container = {.bytes = bytes_len};
    uint64_t shape = bytes_len;
    uint32_t tensor, index;
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_complain(complaint, CAIRN_CORRUPT, "%s: opaque state %.300s is there twice",
                              checkpoint->place.path, name);
    err = cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_U8, CAIRN_OPAQUE, 1, &shape, &tensor,
                                      complaint);
    if (err || bytes_len == 0)
        return err;
    container.literal = malloc(bytes_len);
    if (!container.literal)
        return CAIRN_NOMEM;
    memcpy(container.literal, bytes, bytes_len);
    err = append_container(checkpoint, &container, &index);
    if (err) {
        free(container.literal);
        return cairn_complain(complaint, err, "%s: too many files, or no memory for them",
                              checkpoint->place.path);
    }
    return cairn_checkpoint_add_box(checkpoint, tensor, index, NULL, NULL, 0, NULL, complaint);
}

cairn_err
cairn_checkpoint_add_alias(struct cairn_checkpoint *checkpoint, const char *name, uint32_t of,
                           struct cairn_complaint *complaint)
{
    enum cairn_kind kind = CAIRN_PARAM; /* where there is no such tensor, that is said below */

    if (of < cairn_layout_tensor_count(checkpoint->layout))
        kind = cairn_layout_tensor(checkpoint->layout, of)->kind;
    return cairn_checkpoint_add_alias_as(checkpoint, name, kind, of, complaint);
}

cairn_err
cairn_checkpoint_add_alias_as(struct cairn_checkpoint *checkpoint, const char *name,
                              enum cairn_kind kind, uint32_t of, struct cairn_complaint *complaint)
{
    uint32_t room = checkpoint->alias_room ? 2 * checkpoint->alias_room : 4;
    struct cairn_tensor known;
    uint32_t tensor;
    cairn_err err;

    if (of >= cairn_layout_tensor_count(checkpoint->layout))
        return cairn_complain(complaint, CAIRN_INTERNAL, "%s: an alias of nothing",
                              checkpoint->place.path);
    known = *cairn_layout_tensor(checkpoint->layout, of);
    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: tensor %.300s is there, and tied to %s as well",
                              checkpoint->place.path, name, known.name);
    if (checkpoint->alias_count == checkpoint->alias_room) {
        struct cairn_alias *grown =
            realloc(checkpoint->aliases, room * sizeof(*checkpoint->aliases));

        if (!grown)
            return CAIRN_NOMEM;
        checkpoint->aliases = grown;
        checkpoint->alias_room = room;
    }
    err = cairn_checkpoint_add_tensor(checkpoint, name, known.dtype, kind, known.dims, known.shape,
                                      &tensor, complaint);
    if (!err)
        checkpoint->aliases[checkpoint->alias_count++] = (struct cairn_alias){tensor, of};
    return err;
}

cairn_err
cairn_checkpoint_add_sums(struct cairn_checkpoint *checkpoint, uint32_t container,
                          enum cairn_sum_kind kind, uint64_t offset_bytes, uint64_t bytes,
                          uint64_t block_bytes, const uint64_t *values,
                          struct cairn_complaint *complaint)
{
    uint32_t room = checkpoint->sum_room ? 2 * checkpoint->sum_room : 16;
    struct cairn_source_sum sum = {.container = container,
                                   .kind = kind,
                                   .offset_bytes = offset_bytes,
                                   .bytes = bytes,
                                   .block_bytes = block_bytes};

    if (container >= checkpoint->container_count || block_bytes == 0)
        return cairn_complain(complaint, CAIRN_INTERNAL, "%s: checksums of nothing",
                              checkpoint->place.path);
    if (offset_bytes > checkpoint->containers[container].bytes ||
        bytes > checkpoint->containers[container].bytes - offset_bytes)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s has %" PRIu64 " bytes and should have %" PRIu64
                              "; it is truncated, take another copy",
                              cairn_checkpoint_container_name(checkpoint, container),
                              checkpoint->containers[container].bytes, offset_bytes + bytes);
    if (checkpoint->sum_count == checkpoint->sum_room) {
        struct cairn_source_sum *grown =
            realloc(checkpoint->sums, room * sizeof(*checkpoint->sums));

        if (!grown)
            return CAIRN_NOMEM;
        checkpoint->sums = grown;
        checkpoint->sum_room = room;
    }
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
                                 uint64_t offset_bytes, uint64_t bytes, uint32_t crc32,
                                 struct cairn_complaint *complaint)
{
    uint64_t value = crc32;

    if (bytes == 0)
        return CAIRN_OK;
    if (crc32 != 0)
        return cairn_checkpoint_add_sums(checkpoint, container, CAIRN_SUM_CRC32, offset_bytes,
                                         bytes, bytes, &value, complaint);
    if (checkpoint->unsummed_count++ == 0)
        checkpoint->unsummed_first = container;
    return CAIRN_OK;
}

cairn_err
cairn_checkpoint_warn(struct cairn_checkpoint *checkpoint, const char *format, ...)
{
    char said[WARNING_BYTES_MAX], text[WARNING_BYTES_MAX];
    va_list arguments;
    char **grown;

    if (checkpoint->warning_count == WARNINGS_MAX) /* who read a thousand has read enough */
        return CAIRN_OK;
    va_start(arguments, format);
    (void)vsnprintf(said, sizeof(said), format, arguments);
    va_end(arguments);
    cairn_text_clean(text, sizeof(text), said);
    grown = realloc(checkpoint->warnings, (checkpoint->warning_count + 1) * sizeof(*grown));
    if (!grown)
        return CAIRN_NOMEM;
    checkpoint->warnings = grown;
    grown[checkpoint->warning_count] = strdup(text);
    if (!grown[checkpoint->warning_count])
        return CAIRN_NOMEM;
    checkpoint->warning_count++;
    return CAIRN_OK;
}

/* ---- for writers ---- */

/* The only piece of a tensor, NULL where there are none or several. */
static const struct cairn_piece *
only_piece(const struct cairn_layout *layout, uint32_t tensor)
{
    const struct cairn_piece *found = NULL;

    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++)
        if (cairn_layout_piece(layout, i)->tensor == tensor) {
            if (found)
                return NULL;
            found = cairn_layout_piece(layout, i);
        }
    return found;
}

cairn_err
cairn_checkpoint_load_opaque(const struct cairn_checkpoint *checkpoint, const char *name,
                             size_t bytes_max, uint8_t **bytes, size_t *bytes_len,
                             struct cairn_complaint *complaint)
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
    piece = only_piece(checkpoint->layout, index);
    if (tensor->kind != CAIRN_OPAQUE || tensor->shape[0] > bytes_max ||
        (tensor->shape[0] > 0 && (!piece || piece->extent[0] != tensor->shape[0])))
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: %s is no opaque state of at most %zu bytes in one piece",
                              checkpoint->place.path, name, bytes_max);
    size = (size_t)tensor->shape[0];
    buffer = malloc(size + 1);
    if (!buffer)
        return CAIRN_NOMEM;
    if (size > 0) {
        container = &checkpoint->containers[piece->container];
        if (container->path) {
            err = cairn_place_open_file(&checkpoint->place, container->path, &fd, complaint);
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
        return cairn_complain(complaint, err, "%s: opaque state %s cannot be read: %s",
                              checkpoint->place.path, name, cairn_err_text(err));
    }
    buffer[size] = 0;
    *bytes = buffer;
    *bytes_len = size;
    return CAIRN_OK;
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
