/* tools/convert/steps.c - see steps.h. */
#include "tools/convert/steps.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/box.h"

static bool
load_bytes(const struct cairn_checkpoint *checkpoint, const struct cairn_piece *piece,
           uint8_t *bytes, size_t bytes_len)
{
    const struct cairn_container *container = &checkpoint->containers[piece->container];
    size_t got = 0;
    int fd = -1;

    if (!container->path) {
        memcpy(bytes, container->literal + piece->offset_bytes, bytes_len);
        return true;
    }
    if (cairn_place_open_file(&checkpoint->place, container->path, &fd, NULL) != CAIRN_OK)
        return false;
    if (cairn_file_read_at(fd, piece->offset_bytes, bytes, bytes_len, &got) != CAIRN_OK)
        got = 0;
    (void)cairn_file_close(fd); /* only read */
    return got == bytes_len;
}

static bool
is_count(enum cairn_dtype dtype, const uint8_t *bytes, uint64_t *count)
{
    float real = -1;
    int64_t whole = -1;

    if (dtype == CAIRN_F32)
        memcpy(&real, bytes, sizeof(real));
    if (dtype == CAIRN_I64)
        memcpy(&whole, bytes, sizeof(whole));
    if (real >= 0 && real < 16777216.0f && (float)(int64_t)real == real)
        whole = (int64_t)real;
    *count = (uint64_t)whole;
    return whole >= 0;
}

bool
cairn_steps_load(const struct cairn_checkpoint *checkpoint, uint32_t tensor, uint64_t *count)
{
    const struct cairn_layout *layout = checkpoint->layout;
    uint8_t bytes[16];
    size_t bytes_len;

    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        if (checkpoint->aliases[i].tensor == tensor) {
            tensor = checkpoint->aliases[i].of;
            break;
        }
    bytes_len = cairn_dtype_bytes(cairn_layout_tensor(layout, tensor)->dtype);
    if (bytes_len > sizeof(bytes))
        return false;
    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);

        if (piece->tensor == tensor)
            return load_bytes(checkpoint, piece, bytes, bytes_len) &&
                   is_count(cairn_layout_tensor(layout, tensor)->dtype, bytes, count);
    }
    return false;
}

cairn_err
cairn_steps_common(const struct cairn_checkpoint *checkpoint, bool *known, uint64_t *count,
                   struct cairn_complaint *complaint)
{
    const struct cairn_layout *layout = checkpoint->layout;
    const char *first = NULL;

    *known = false;
    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, piece->tensor);
        uint8_t bytes[16];
        uint64_t found;

        if (tensor->kind != CAIRN_OPTIMIZER || strncmp(tensor->name, "step.", 5) != 0)
            continue;
        if (cairn_tensor_bytes(tensor) != cairn_dtype_bytes(tensor->dtype) ||
            cairn_tensor_bytes(tensor) > sizeof(bytes) ||
            !load_bytes(checkpoint, piece, bytes, (size_t)cairn_tensor_bytes(tensor)) ||
            !is_count(tensor->dtype, bytes, &found))
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: %s cannot be read as a count of steps",
                                  checkpoint->place.path, tensor->name);
        if (*known && found != *count)
            return cairn_complain(complaint, CAIRN_INVAL,
                                  "%s: %s is %" PRIu64 " and %s is %" PRIu64
                                  ", and the optimizer that shall load it has one for all",
                                  checkpoint->place.path, first, *count, tensor->name, found);
        if (!*known)
            first = tensor->name;
        *known = true;
        *count = found;
    }
    return CAIRN_OK;
}
