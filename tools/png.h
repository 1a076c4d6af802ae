/* tools/png.h - pictures of few colours as PNG files. */
#ifndef CAIRN_TOOLS_PNG_H
#define CAIRN_TOOLS_PNG_H

#include "cairn/err.h"

#include <stdint.h>

enum { CAIRN_PNG_COLOURS_MAX = 256, CAIRN_PNG_SIDE_MAX = 8192 };

/*
 * Writes a picture of width x height pixels (each 1 … CAIRN_PNG_SIDE_MAX), row by row from the top,
 * each an index into colours[colour_count] of red, green and blue. Not compressed. CAIRN_IO with
 * errno, and no file; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_png_write(const char *path, const uint8_t *pixels, uint32_t width,
                                           uint32_t height, const uint8_t (*colours)[3],
                                           uint32_t colour_count);

#endif
