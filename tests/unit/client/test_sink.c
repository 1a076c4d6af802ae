/* What is put into a tensor lies there and nowhere else, whether its memory was touched before or
 * not. */
#include "client/sink.h"

#include "base/crc.h"
#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEMORY_BYTES = 1 << 20 };

static size_t
pages_there(uint8_t *memory)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), count = 0;
    unsigned char there[MEMORY_BYTES / 1024];

    assert_int_equal(mincore(memory, MEMORY_BYTES, there), 0);
    for (size_t i = 0; i < MEMORY_BYTES / page_bytes; i++)
        count += there[i] & 1;
    return count;
}

/* Puts bytes[bytes_len] at `offset` into memory whose first `touched` bytes were touched. */
static void
put(uint64_t offset, uint64_t bytes_len, size_t touched)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *memory =
        mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *bytes = malloc(bytes_len);
    struct cairn_slice slice = {CAIRN_SLICE_INIT, .address = memory, .device = -1};
    struct client_sink *sink = NULL;
    atomic_bool failing = false;
    size_t expected;

    assert_true(memory != MAP_FAILED);
    assert_non_null(bytes);
    memset(memory, 0, touched);
    memset(bytes, 0xa5, bytes_len);
    assert_int_equal(client_sink_open(NULL, &slice, 1, &failing, UINT64_MAX, &sink), CAIRN_OK);
    assert_int_equal(client_sink_put(sink, 0, offset, bytes, bytes_len), CAIRN_OK);
    assert_int_equal(client_sink_flush(sink), CAIRN_OK);
    client_sink_close(sink);
    /* No page is made that the bytes do not reach. */
    expected = (offset + bytes_len + page_bytes - 1) / page_bytes;
    if (touched == 0)
        expected -= offset / page_bytes;
    assert_int_equal(pages_there(memory), expected);
    for (size_t i = 0; i < MEMORY_BYTES; i++)
        assert_int_equal(memory[i], i >= offset && i < offset + bytes_len ? 0xa5 : 0);
    free(bytes);
    munmap(memory, MEMORY_BYTES);
}

static void
test_untouched(void **state)
{
    put(0, CAIRN_BLOCK_BYTES, 0);
    put(64, CAIRN_BLOCK_BYTES, 0);
    put(5 * 4096 - 1, CAIRN_BLOCK_BYTES - 7, 0);
    put(4096, 4 * 4096, 0);
    put(8000, 100, 0); /* too little to ask for pages */
    put(0, MEMORY_BYTES, 0);
}

static void
test_touched(void **state)
{
    put(64, CAIRN_BLOCK_BYTES, 4096);
    put(64, CAIRN_BLOCK_BYTES, 3 * 4096);
}

/* Bytes are compared on their way; bad bytes say nothing about values. */
static void
test_checked(void **state)
{
    enum { COUNT = 512, AT = 3 };
    static float memory[COUNT + AT], bytes[COUNT];
    struct cairn_slice slice = {CAIRN_SLICE_INIT, .dtype = CAIRN_F32, .address = memory,
                                .device = -1};
    struct client_sink *sink = NULL;
    atomic_bool failing = false;
    uint64_t crc;
    bool is_good;

    for (int i = 0; i < COUNT; i++)
        bytes[i] = (float)i;
    assert_int_equal(client_sink_open(NULL, &slice, 1, &failing, UINT64_MAX, &sink), CAIRN_OK);
    for (int bad = 0; bad < 2; bad++) {
        bytes[COUNT - 1] = bad ? INFINITY : 1;
        crc = cairn_crc64(0, bytes, sizeof bytes);
        memset(memory, 0, sizeof memory);
        assert_true(client_sink_put_checked(sink, 0, AT * sizeof *memory, (const uint8_t *)bytes,
                                            sizeof bytes, crc + 1, &is_good));
        assert_false(is_good || atomic_load(&failing));
        assert_true(client_sink_put_checked(sink, 0, AT * sizeof *memory, (const uint8_t *)bytes,
                                            sizeof bytes, crc, &is_good));
        assert_true(is_good);
        assert_int_equal(atomic_load(&failing), bad);
        assert_memory_equal(memory + AT, bytes, sizeof bytes);
        for (int i = 0; i < AT; i++)
            assert_true(memory[i] == 0);
    }
    memset(memory, 0, sizeof memory);
    assert_false(client_sink_put_checked(sink, 0, 2, (const uint8_t *)bytes, 8, crc, &is_good));
    assert_false(client_sink_put_checked(sink, 0, 4, (const uint8_t *)bytes, 6, crc, &is_good));
    slice.device = 0;
    assert_false(client_sink_put_checked(sink, 0, 4, (const uint8_t *)bytes, 8, crc, &is_good));
    for (int i = 0; i < COUNT + AT; i++)
        assert_true(memory[i] == 0);
    client_sink_close(sink);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_untouched),
        cmocka_unit_test(test_touched),
        cmocka_unit_test(test_checked),
    };

    return cmocka_run_group_tests_name("sink", tests, NULL, NULL);
}
