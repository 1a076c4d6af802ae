/* tools/convert/zip/window.c - see window.h. */
#include "tools/convert/zip/window.h"

#include <stdbool.h>
#include <string.h>

#include "base/file.h"

cairn_err
cairn_window_open(int fd, uint64_t begin, uint64_t bytes, struct cairn_window *window)
{
    bool whole = bytes <= sizeof(window->kept);
    size_t head = whole ? (size_t)bytes : CAIRN_WINDOW_BYTES;
    cairn_err err;

    window->fd = fd;
    window->begin = begin;
    window->bytes = bytes;
    window->head_bytes = window->tail_bytes = 0;
    err = cairn_file_read_at(fd, begin, window->kept, head, &window->head_bytes);
    if (!err && !whole)
        err = cairn_file_read_at(fd, begin + bytes - CAIRN_WINDOW_BYTES,
                                 window->kept + CAIRN_WINDOW_BYTES, CAIRN_WINDOW_BYTES,
                                 &window->tail_bytes);
    return err;
}

/* Copies from kept[kept_bytes], which are at `kept_at` of the file, where all of it is there. */
static bool
take(const uint8_t *kept, uint64_t kept_at, size_t kept_bytes, uint64_t at, void *bytes,
     size_t bytes_len)
{
    if (at < kept_at || at - kept_at > kept_bytes || bytes_len > kept_bytes - (at - kept_at))
        return false;
    memcpy(bytes, kept + (at - kept_at), bytes_len);
    return true;
}

cairn_err
cairn_window_read(const struct cairn_window *window, uint64_t at, void *bytes, size_t bytes_len,
                  size_t *got)
{
    uint64_t tail_at = window->begin + window->bytes - CAIRN_WINDOW_BYTES;

    *got = bytes_len;
    if (take(window->kept, window->begin, window->head_bytes, at, bytes, bytes_len) ||
        (window->tail_bytes > 0 && take(window->kept + CAIRN_WINDOW_BYTES, tail_at,
                                        window->tail_bytes, at, bytes, bytes_len)))
        return CAIRN_OK;
    return cairn_file_read_at(window->fd, at, bytes, bytes_len, got);
}
