/* tools/convert/core/opaque.c - opaque state of a checkpoint: adds it from memory, and loads it for
 * a writer. */
#include "tools/convert/core/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

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
