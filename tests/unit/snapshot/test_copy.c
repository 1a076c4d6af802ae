/* tests/unit/snapshot/test_copy.c - all kernels copy exactly and agree with the plain checksum. */
#include "snapshot/copy.h"

#include "base/crc.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 160 * 1024, GUARD = 0xa5 };

static uint8_t source[BUFFER_BYTES];
static uint8_t dest[BUFFER_BYTES];

static int
fill(void **state)
{
    uint64_t seed = 88172645463325252u;

    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (uint8_t)xorshift(&seed);
    return 0;
}

/* With one kernel, NULL: the portable one. */
static void
check_with(const struct cairn_copy_kernel *kernel, uint64_t seed, size_t to, size_t from,
           size_t bytes)
{
    uint64_t expected = cairn_crc64(seed, source + from, bytes);
    size_t before = to < 128 ? to : 128;
    uint64_t crc;

    memset(dest + to - before, GUARD, bytes + before + 128);
    if (kernel)
        crc = cairn_copy_crc_with(kernel, seed, dest + to, source + from, bytes, NULL);
    else
        crc = cairn_copy_crc_portable(seed, dest + to, source + from, bytes, NULL);
    assert_int_equal(crc, expected);
    assert_memory_equal(dest + to, source + from, bytes);
    for (size_t i = 1; i <= before; i++)
        assert_int_equal(dest[to - i], GUARD);
    for (size_t i = 0; i < 128; i++)
        assert_int_equal(dest[to + bytes + i], GUARD);
}

static void
check(uint64_t seed, size_t to, size_t from, size_t bytes)
{
    check_with(NULL, seed, to, from, bytes);
    for (const struct cairn_copy_kernel *kernel = cairn_copy_kernels(); kernel->name; kernel++)
        check_with(kernel, seed, to, from, bytes);
}

/* The fastest is used, after any other, and it copies. */
static void
test_the_fastest_is_used(void **state)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    double bytes_per_s[CAIRN_COPY_KERNELS_MAX];
    size_t fastest = 0;

    assert_true(cairn_copy_use("portable"));
    assert_int_equal(cairn_copy_choose(bytes_per_s), CAIRN_OK);
    for (size_t i = 0; kernels[i].name; i++) {
        assert_in_range(i, 0, CAIRN_COPY_KERNELS_MAX - 1);
        assert_true(bytes_per_s[i] > 0);
        print_message("%s %.1f GB/s\n", kernels[i].name, bytes_per_s[i] / 1e9);
        if (bytes_per_s[i] > bytes_per_s[fastest])
            fastest = i;
    }
    assert_int_equal(cairn_copy_number() == 0, kernels[0].name == NULL);
    if (kernels[0].name)
        assert_true(bytes_per_s[cairn_copy_number() - 1] >= 0.95 * bytes_per_s[fastest]);
    assert_int_equal(cairn_copy_crc(7, dest, source, 70000, NULL), cairn_crc64(7, source, 70000));
    assert_memory_equal(dest, source, 70000);
}

/* Agents tell trainers a number, and people write names. */
static void
test_a_kernel_is_named(void **state)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    uint32_t count = 0;

    for (; kernels[count].name; count++) {
        assert_true(cairn_copy_use(kernels[count].name));
        assert_string_equal(cairn_copy_name(), kernels[count].name);
        assert_int_equal(cairn_copy_number(), count + 1);
    }
    assert_true(cairn_copy_use("portable"));
    assert_int_equal(cairn_copy_number(), 0);
    for (uint32_t i = 0; i <= count; i++) {
        cairn_copy_use_number(i);
        assert_int_equal(cairn_copy_number(), i);
        assert_int_equal(cairn_copy_crc(7, dest, source, 70000, NULL),
                         cairn_crc64(7, source, 70000));
    }
    cairn_copy_use_number(count + 1);
    cairn_copy_use_number(255);
    assert_false(cairn_copy_use("abacus"));
    assert_int_equal(cairn_copy_number(), count);
}

/* Every length around the edges of the kernel, at every alignment of the destination. */
static void
test_every_short_length(void **state)
{
    for (size_t bytes = 0; bytes <= 1300; bytes++)
        check(bytes, 128 + bytes % 64, bytes * 7 % 61, bytes);
    for (size_t to = 128; to < 128 + 64; to++)
        for (size_t bytes = 500; bytes < 580; bytes += 3)
            check(0, to, to % 5, bytes);
}

static void
test_long_lengths(void **state)
{
    static const size_t lengths[] = {4095, 4096, 4097, 65535, 65536, 65537, 131072};

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t align = 0; align < 64; align += 9)
            check(~(uint64_t)i, 128 + align, 63 - align, lengths[i]);
}

static void
test_random(void **state)
{
    uint64_t seed = 42;

    for (int i = 0; i < 2000; i++) {
        size_t to = 128 + xorshift(&seed) % 512;
        size_t from = xorshift(&seed) % 512;
        size_t bytes = xorshift(&seed) % 20000;

        check(xorshift(&seed), to, from, bytes);
    }
}

/* A message cut anywhere has the checksum of the whole: blocks made of several runs rely on it. */
static void
test_continues_a_checksum(void **state)
{
    uint64_t whole = cairn_crc64(0, source, 65536);

    for (size_t cut = 0; cut <= 65536; cut += 997) {
        uint64_t crc = cairn_copy_crc(0, dest, source, cut, NULL);

        crc = cairn_copy_crc(crc, dest + cut, source + cut, 65536 - cut, NULL);
        assert_int_equal(crc, whole);
        assert_memory_equal(dest, source, 65536);
    }
}

static void
test_every_bit_counts(void **state)
{
    uint64_t whole = cairn_copy_crc(0, dest, source, 8192, NULL);

    for (size_t bit = 0; bit < 8192 * 8; bit += 37) {
        source[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(cairn_copy_crc(0, dest, source, 8192, NULL), whole);
        source[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Bit patterns of one type: the largest finite values, and what is not finite. */
struct patterns {
    enum cairn_dtype dtype;
    uint64_t finite[3];
    uint64_t failing[5];
};

static const struct patterns all_patterns[] = {
    {CAIRN_F8_E5M2, {0x7b, 0xfb, 0x01}, {0x7c, 0xfc, 0x7d, 0xff, 0x7f}},
    {CAIRN_F8_E4M3, {0x7e, 0xfe, 0x78}, {0x7f, 0xff, 0x7f, 0xff, 0x7f}},
    {CAIRN_F16, {0x7bff, 0xfbff, 0x83ff}, {0x7c00, 0xfc00, 0x7c01, 0xfe00, 0xffff}},
    {CAIRN_BF16, {0x7f7f, 0xff7f, 0x807f}, {0x7f80, 0xff80, 0x7f81, 0xffc0, 0xffff}},
    {CAIRN_F32,
     {0x7f7fffff, 0xff7fffff, 0x807fffff},
     {0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0xffffffff}},
    {CAIRN_F64,
     {0x7fefffffffffffff, 0xffefffffffffffff, 0x800fffffffffffff},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0xfff8000000000000, UINT64_MAX}},
    {CAIRN_C64,
     {0x7f7fffffff7fffff, 0xff7fffff7f7fffff, 0x7f7f},
     {0x7f80000000000000, 0x7f800000, 0xffc0000000000000, 0xff800001, UINT64_MAX}},
};

/* Whether a kernel (NULL: the portable one) finds something; the checksum must not suffer. */
static bool
finds(const struct cairn_copy_kernel *kernel, const struct cairn_finite *type, size_t to,
      size_t from, size_t bytes)
{
    struct cairn_copy_look look = {.type = type};
    uint64_t crc = kernel ? cairn_copy_crc_with(kernel, 5, dest + to, source + from, bytes, &look)
                          : cairn_copy_crc_portable(5, dest + to, source + from, bytes, &look);

    assert_int_equal(crc, cairn_crc64(5, source + from, bytes));
    return look.found;
}

static void
check_found(const struct cairn_finite *type, size_t to, size_t from, size_t bytes, bool expected)
{
    assert_int_equal(finds(NULL, type, to, from, bytes), expected);
    for (const struct cairn_copy_kernel *kernel = cairn_copy_kernels(); kernel->name; kernel++)
        assert_int_equal(finds(kernel, type, to, from, bytes), expected);
}

/* One value, at every place of what begins at `to` and `from`, and cut off behind the end. */
static void
check_places(const struct patterns *patterns, size_t to, size_t from, size_t elements)
{
    const struct cairn_finite *type = cairn_finite_of(patterns->dtype);
    size_t element_bytes = cairn_dtype_bytes(patterns->dtype), bytes = elements * element_bytes;

    for (size_t i = 0; i <= elements; i++)
        memcpy(source + from + i * element_bytes, &patterns->finite[i % 3], element_bytes);
    check_found(type, to, from, bytes, false);
    for (size_t at = 0; at <= elements; at++) {
        uint8_t *element = source + from + at * element_bytes;

        memcpy(element, &patterns->failing[at % 5], element_bytes);
        check_found(type, to, from, bytes, at < elements);
        if (at == elements)
            check_found(type, to, from, bytes + type->element_bytes - 1, false);
        memcpy(element, &patterns->finite[at % 3], element_bytes);
    }
}

/* Every value that is not finite is found, of each type, at any place and for any
 * head, rows and tail are; the largest finite values never are. */
static void
test_what_is_not_finite_is_found(void **state)
{
    static const size_t starts[] = {128, 129, 130, 132, 136, 160, 191};

    for (size_t p = 0; p < sizeof all_patterns / sizeof all_patterns[0]; p++)
        for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
            size_t element_bytes = cairn_dtype_bytes(all_patterns[p].dtype);

            check_places(&all_patterns[p], starts[s], s, 1 + s);
            check_places(&all_patterns[p], starts[s], 7 * s, (1024 + 130 + 8 * s) / element_bytes);
        }
    (void)fill(NULL);
}

/* All values of the small types, against their definitions. */
static void
test_small_types_by_definition(void **state)
{
    static const struct {
        enum cairn_dtype dtype;
        uint32_t bits, exponent_bits;
    } types[] = {{CAIRN_F8_E5M2, 8, 5}, {CAIRN_F16, 16, 5}, {CAIRN_BF16, 16, 8}};

    for (size_t t = 0; t < 3; t++)
        for (uint32_t value = 0; value < 1u << types[t].bits; value++) {
            uint32_t mantissa_bits = types[t].bits - 1 - types[t].exponent_bits;
            uint32_t largest = (1u << types[t].exponent_bits) - 1;

            assert_int_equal(
                cairn_finite_fails(cairn_finite_of(types[t].dtype), &value, types[t].bits / 8),
                (value >> mantissa_bits & largest) == largest);
        }
    for (uint32_t value = 0; value < 256; value++)
        assert_int_equal(cairn_finite_fails(cairn_finite_of(CAIRN_F8_E4M3), &value, 1),
                         (value & 0x7f) == 0x7f);
    assert_null(cairn_finite_of(CAIRN_I64));
    assert_null(cairn_finite_of(CAIRN_U8));
    assert_null(cairn_finite_of(CAIRN_BOOL));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_fastest_is_used),
                                       cmocka_unit_test(test_a_kernel_is_named),
                                       cmocka_unit_test(test_every_short_length),
                                       cmocka_unit_test(test_long_lengths),
                                       cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_continues_a_checksum),
                                       cmocka_unit_test(test_every_bit_counts),
                                       cmocka_unit_test(test_what_is_not_finite_is_found),
                                       cmocka_unit_test(test_small_types_by_definition)};

    return cmocka_run_group_tests(tests, fill, NULL);
}
