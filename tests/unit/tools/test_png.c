/* tests/unit/tools/test_png.c - a picture is written as its format says: chunks, checksums, and the
 * pixels as they were. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc.h"
#include "tools/png.h"
#include "tests/support/cmocka.h"

enum { WIDTH = 700, HEIGHT = 200 }; /* 140,200 bytes with their filters: three blocks */

static uint32_t
get_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The stored blocks of a zlib stream into rows[rows_bytes]; all of them, and the checksum
 * behind. */
static void
unpack(const uint8_t *stream, size_t stream_bytes, uint8_t *rows, size_t rows_bytes)
{
    size_t at = 2, used = 0;
    uint32_t low = 1, high = 0, last = 0;

    assert_int_equal((stream[0] << 8 | stream[1]) % 31, 0);
    assert_int_equal(stream[0] & 15, 8);
    while (!last) {
        uint32_t bytes = (uint32_t)stream[at + 1] | (uint32_t)stream[at + 2] << 8;

        last = stream[at];
        assert_true(last <= 1);
        assert_int_equal(bytes ^ 0xffff, (uint32_t)stream[at + 3] | (uint32_t)stream[at + 4] << 8);
        assert_true(used + bytes <= rows_bytes);
        memcpy(rows + used, stream + at + 5, bytes);
        used += bytes;
        at += 5 + bytes;
    }
    assert_int_equal(used, rows_bytes);
    for (size_t i = 0; i < used; i++) {
        low = (low + rows[i]) % 65521;
        high = (high + low) % 65521;
    }
    assert_int_equal(get_u32(stream + at), high << 16 | low);
    assert_int_equal(at + 4, stream_bytes);
}

static void
test_picture(void **state)
{
    static const char *const types[] = {"IHDR", "PLTE", "IDAT", "IEND"};
    const uint8_t colours[2][3] = {{1, 2, 3}, {250, 251, 252}};
    size_t rows_bytes = (size_t)HEIGHT * (WIDTH + 1), file_bytes, at = 8;
    uint8_t *pixels = malloc((size_t)WIDTH * HEIGHT), *rows = malloc(rows_bytes), *file;
    char path[] = "/tmp/cairn-png-XXXXXX";
    int fd = mkstemp(path);
    FILE *stream;

    assert_true(fd >= 0 && pixels && rows);
    close(fd);
    for (size_t i = 0; i < (size_t)WIDTH * HEIGHT; i++)
        pixels[i] = (uint8_t)(i * 2654435761u >> 20 & 1);
    assert_int_equal(cairn_png_write(path, pixels, WIDTH, HEIGHT, colours, 2), CAIRN_OK);
    stream = fopen(path, "r");
    file = malloc(rows_bytes + 4096);
    assert_non_null(stream);
    assert_non_null(file);
    file_bytes = fread(file, 1, rows_bytes + 4096, stream);
    fclose(stream);
    unlink(path);
    assert_memory_equal(file, "\x89PNG\r\n\x1a\n", 8);
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = get_u32(file + at);
        const uint8_t *data = file + at + 8;

        assert_memory_equal(file + at + 4, types[i], 4);
        assert_int_equal(get_u32(data + bytes), cairn_crc32(0, file + at + 4, bytes + 4));
        if (i == 0) {
            assert_int_equal(get_u32(data), WIDTH);
            assert_int_equal(get_u32(data + 4), HEIGHT);
            assert_memory_equal(data + 8, "\x08\x03\x00\x00\x00", 5);
        } else if (i == 1) {
            assert_int_equal(bytes, 6);
            assert_memory_equal(data, colours, 6);
        } else if (i == 2) {
            unpack(data, bytes, rows, rows_bytes);
        }
        at += 12 + bytes;
    }
    assert_int_equal(at, file_bytes);
    for (uint32_t y = 0; y < HEIGHT; y++) {
        assert_int_equal(rows[(size_t)y * (WIDTH + 1)], 0);
        assert_memory_equal(rows + (size_t)y * (WIDTH + 1) + 1, pixels + (size_t)y * WIDTH, WIDTH);
    }
    free(file);
    free(rows);
    free(pixels);
}

static void
test_no_place(void **state)
{
    const uint8_t colours[1][3] = {{0, 0, 0}}, pixel = 0;

    assert_int_equal(cairn_png_write("/nonexistent/folder/heat.png", &pixel, 1, 1, colours, 1),
                     CAIRN_IO);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_picture),
                                       cmocka_unit_test(test_no_place)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
