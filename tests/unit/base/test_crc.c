/* tests/unit/base/test_crc.c - the checksum against the polynomial, bit by bit. */
#include "base/crc.h"
#include "base/crc_x86.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>

enum { BYTES = 5000 };

/* Reflected. */
#define ECMA UINT64_C(0xc96c5795d7870f42)
#define JONES UINT64_C(0x95ac9329ac4bc9b5)

/* A reflected CRC-64 by the definition: inverted before and after, as in .xz files. */
static uint64_t
by_definition(uint64_t polynomial, uint64_t seed, const uint8_t *bytes, size_t bytes_len)
{
    uint64_t crc = ~seed;

    for (size_t i = 0; i < bytes_len; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    return ~crc;
}

static void
fill(uint8_t *bytes, size_t bytes_len)
{
    uint32_t word = 1;

    for (size_t i = 0; i < bytes_len; i++) {
        word = word * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(word >> 24);
    }
}

static void
known_value_is_met(void **state)
{
    /* the check value of CRC-64/XZ in Greg Cook's catalogue */
    assert_true(cairn_crc64(0, "123456789", 9) == UINT64_C(0x995dc9bbdf1939fa));
    assert_true(cairn_crc64(0, "", 0) == 0);
    assert_true(cairn_crc64(77, "", 0) == 77);
}

static void
every_length_and_alignment_agrees_with_the_definition(void **state)
{
    uint8_t bytes[BYTES + 16];

    fill(bytes, sizeof bytes);
    for (size_t start = 0; start < 16; start++)
        for (size_t length = 0; length <= BYTES; length += length < 300 ? 1 : 197)
            if (cairn_crc64(start, bytes + start, length) !=
                    by_definition(ECMA, start, bytes + start, length) ||
                cairn_crc64_jones(start, bytes + start, length) !=
                    by_definition(JONES, start, bytes + start, length))
                fail_msg("start %zu length %zu", start, length);
}

/* Every kernel that this processor has, not only the one that is chosen. */
static void
every_kernel_agrees_with_the_definition(void **state)
{
    uint8_t bytes[BYTES + 16];

    fill(bytes, sizeof bytes);
    print_message("this processor's kernels:");
    for (const struct cairn_crc_kernel *kernel = cairn_crc_kernels(); kernel->name; kernel++) {
        print_message(" %s", kernel->name);
        for (size_t start = 0; start < 16; start += 5)
            for (size_t rows = 1; rows * kernel->row_bytes <= BYTES; rows++)
                if (kernel->fold_rows(~start, bytes + start, rows * kernel->row_bytes) !=
                        by_definition(ECMA, ~start, bytes + start, rows * kernel->row_bytes) ||
                    kernel->fold_rows_jones(~start, bytes + start, rows * kernel->row_bytes) !=
                        by_definition(JONES, ~start, bytes + start, rows * kernel->row_bytes))
                    fail_msg("%s: start %zu rows %zu", kernel->name, start, rows);
    }
    print_message(" isa-l\n");
}

static void
parts_add_up_to_the_whole(void **state)
{
    uint8_t bytes[BYTES];
    uint64_t whole;

    fill(bytes, sizeof bytes);
    whole = cairn_crc64(0, bytes, sizeof bytes);
    for (size_t cut = 0; cut <= BYTES; cut++)
        assert_true(cairn_crc64(cairn_crc64(0, bytes, cut), bytes + cut, BYTES - cut) == whole);
}

static void
every_flipped_bit_and_swap_shows(void **state)
{
    uint8_t bytes[BYTES];
    uint64_t whole;

    fill(bytes, sizeof bytes);
    whole = cairn_crc64(0, bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * (size_t)BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(cairn_crc64(0, bytes, sizeof bytes) != whole);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(cairn_crc64(0, bytes, sizeof bytes - 1) != whole);
}

static uint32_t
crc32_by_definition(uint32_t seed, const uint8_t *bytes, size_t length)
{
    uint32_t crc = ~seed;

    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
    }
    return ~crc;
}

static void
crc32_agrees_with_its_definition(void **state)
{
    uint8_t bytes[BYTES];
    uint32_t whole;

    assert_true(cairn_crc32(0, "123456789", 9) == 0xcbf43926); /* the catalogue's check value */
    fill(bytes, sizeof bytes);
    whole = cairn_crc32(0, bytes, sizeof bytes);
    assert_true(whole == crc32_by_definition(0, bytes, sizeof bytes));
    for (size_t cut = 0; cut <= BYTES; cut++) {
        uint32_t first = cairn_crc32(0, bytes, cut);

        assert_true(first == crc32_by_definition(0, bytes, cut));
        assert_true(cairn_crc32(first, bytes + cut, BYTES - cut) == whole);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_value_is_met),
        cmocka_unit_test(every_length_and_alignment_agrees_with_the_definition),
        cmocka_unit_test(every_kernel_agrees_with_the_definition),
        cmocka_unit_test(crc32_agrees_with_its_definition),
        cmocka_unit_test(parts_add_up_to_the_whole),
        cmocka_unit_test(every_flipped_bit_and_swap_shows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
