/*
 * tools/png.c - a PNG file (ISO/IEC 15948) with a palette.
 *
 * After eight fixed bytes come chunks: length (32 bits, the most significant byte first, of the
 * data alone), type, data, and the CRC-32 of type and data. IHDR has the sizes, PLTE the colours,
 * IDAT the rows, each after a byte that says "no filter", as a zlib stream (RFC 1950) of stored
 * blocks of deflate (RFC 1951): a byte that is 1 in the last block, the length and its complement
 * in 16 bits, the least significant byte first, and the bytes as they are. Adler-32 of all rows
 * ends the stream.
 */
#include "tools/png.h"

#include "base/assert.h"
#include "base/crc.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    STORED_MAX = 65535,
    STORED_HEAD = 5,
    ADLER_MODULUS = 65521,
    COLOUR_BITS = 8,
    COLOUR_PALETTE = 3
};

static void
put_u32(uint8_t *out, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> (24 - 8 * i));
}

static void
write_chunk(FILE *file, const char *type, const uint8_t *data, uint32_t bytes)
{
    uint8_t number[4];

    put_u32(number, bytes);
    fwrite(number, 1, 4, file);
    fwrite(type, 1, 4, file);
    fwrite(data, 1, bytes, file);
    put_u32(number, cairn_crc32(cairn_crc32(0, type, 4), data, bytes));
    fwrite(number, 1, 4, file);
}

static uint32_t
adler_of(const uint8_t *bytes, size_t bytes_len)
{
    uint32_t low = 1, high = 0;

    for (size_t i = 0; i < bytes_len; i++) {
        low = (low + bytes[i]) % ADLER_MODULUS;
        high = (high + low) % ADLER_MODULUS;
    }
    return high << 16 | low;
}

/* The zlib stream of rows[rows_bytes]; its length in *bytes. NULL: no memory. */
static uint8_t *
store(const uint8_t *rows, size_t rows_bytes, size_t *bytes)
{
    size_t blocks = (rows_bytes + STORED_MAX - 1) / STORED_MAX;
    uint8_t *stream = malloc(2 + blocks * STORED_HEAD + rows_bytes + 4), *out = stream;

    if (!stream)
        return NULL;
    *out++ = 0x78; /* deflate, a window of 32 KiB */
    *out++ = 0x01; /* makes the two bytes a multiple of 31 */
    for (size_t at = 0; at < rows_bytes; at += STORED_MAX) {
        uint32_t length = rows_bytes - at < STORED_MAX ? (uint32_t)(rows_bytes - at) : STORED_MAX;

        *out++ = at + length == rows_bytes;
        *out++ = (uint8_t)length;
        *out++ = (uint8_t)(length >> 8);
        *out++ = (uint8_t)~length;
        *out++ = (uint8_t)(~length >> 8);
        memcpy(out, rows + at, length);
        out += length;
    }
    put_u32(out, adler_of(rows, rows_bytes));
    *bytes = (size_t)(out + 4 - stream);
    return stream;
}

cairn_err
cairn_png_write(const char *path, const uint8_t *pixels, uint32_t width, uint32_t height,
                const uint8_t (*colours)[3], uint32_t colour_count)
{
    static const uint8_t signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    size_t rows_bytes = (size_t)height * (width + 1), stream_bytes = 0;
    uint8_t head[13] = {0}, *rows, *stream = NULL;
    cairn_err err = CAIRN_NOMEM;
    FILE *file = NULL;
    bool failed;

    CAIRN_ASSERT(width >= 1 && width <= CAIRN_PNG_SIDE_MAX && height >= 1 &&
                 height <= CAIRN_PNG_SIDE_MAX);
    CAIRN_ASSERT(colour_count >= 1 && colour_count <= CAIRN_PNG_COLOURS_MAX);
    rows = calloc(rows_bytes, 1);
    if (!rows)
        return CAIRN_NOMEM;
    for (uint32_t y = 0; y < height; y++)
        memcpy(rows + (size_t)y * (width + 1) + 1, pixels + (size_t)y * width, width);
    stream = store(rows, rows_bytes, &stream_bytes);
    if (!stream)
        goto done;
    put_u32(head, width);
    put_u32(head + 4, height);
    head[8] = COLOUR_BITS;
    head[9] = COLOUR_PALETTE;
    err = CAIRN_IO;
    file = fopen(path, "we");
    if (!file)
        goto done;
    fwrite(signature, 1, sizeof signature, file);
    write_chunk(file, "IHDR", head, sizeof head);
    write_chunk(file, "PLTE", &colours[0][0], 3 * colour_count);
    write_chunk(file, "IDAT", stream, (uint32_t)stream_bytes);
    write_chunk(file, "IEND", head, 0);
    failed = ferror(file) != 0;
    if (fclose(file) == 0 && !failed)
        err = CAIRN_OK;
    else
        unlink(path); /* half a picture is none */
done:
    free(rows);
    free(stream);
    return err;
}
