/*
 * tools/convert/zip/window.h - a range of a file whose first and last bytes are kept in memory.
 *
 * What describes an archive stands at its two ends: with these read at once, an archive with one
 * tensor is known after two reads, and not after a dozen.
 */
#ifndef CAIRN_TOOLS_CONVERT_ZIP_WINDOW_H
#define CAIRN_TOOLS_CONVERT_ZIP_WINDOW_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CAIRN_WINDOW_BYTES = 4096 }; /* kept of each end */

struct cairn_window {
    int fd;                               /* borrowed */
    uint64_t begin, bytes;                /* of the range */
    size_t head_bytes, tail_bytes;        /* kept; less than the file should have where it is cut */
    uint8_t kept[2 * CAIRN_WINDOW_BYTES]; /* the first bytes, and from the middle on the last */
};

/* Reads both ends of [begin, begin + bytes), or all of it where it is short: then it is all "head",
 * of up to the size of both. CAIRN_IO and the like, as cairn_file_read_at. */
CAIRN_MUST_CHECK cairn_err cairn_window_open(int fd, uint64_t begin, uint64_t bytes,
                                             struct cairn_window *window);

/* Reads bytes_len bytes from `at` (in the file) on, from memory where they are kept; fewer only at
 * the end of the file, *got says how many. Errors as cairn_file_read_at. */
CAIRN_MUST_CHECK cairn_err cairn_window_read(const struct cairn_window *window, uint64_t at,
                                             void *bytes, size_t bytes_len, size_t *got);

#endif
