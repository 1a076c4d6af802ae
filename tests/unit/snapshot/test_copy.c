/* tests/unit/snapshot/test_copy.c - all kernels copy exactly and agree with the plain checksum. */
#include "snapshot/copy.h"

#include "base/crc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BUFFER_BYTES = 160 * 1024, GUARD = 0xa5 };

static uint8_t source[BUFFER_BYTES];
static uint8_t dest[BUFFER_BYTES];

static uint64_t
next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int
fill(void **state)
{
    uint64_t seed = 88172645463325252u;

    (void)state;
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = (uint8_t)next_random(&seed);
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
        crc = cairn_copy_crc_with(kernel, seed, dest + to, source + from, bytes);
    else
        crc = cairn_copy_crc_portable(seed, dest + to, source + from, bytes);
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

/* The fastest is used, whatever was used before, and it copies. */
static void
test_the_fastest_is_used(void **state)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    double bytes_per_s[CAIRN_COPY_KERNELS_MAX];
    size_t fastest = 0;

    (void)state;
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
    assert_int_equal(cairn_copy_crc(7, dest, source, 70000), cairn_crc64(7, source, 70000));
    assert_memory_equal(dest, source, 70000);
}

/* Agents tell trainers a number, and people write names. */
static void
test_a_kernel_is_named(void **state)
{
    const struct cairn_copy_kernel *kernels = cairn_copy_kernels();
    uint32_t count = 0;

    (void)state;
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
        assert_int_equal(cairn_copy_crc(7, dest, source, 70000), cairn_crc64(7, source, 70000));
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
    (void)state;
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

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        for (size_t align = 0; align < 64; align += 9)
            check(~(uint64_t)i, 128 + align, 63 - align, lengths[i]);
}

static void
test_random(void **state)
{
    uint64_t seed = 42;

    (void)state;
    for (int i = 0; i < 2000; i++) {
        size_t to = 128 + next_random(&seed) % 512;
        size_t from = next_random(&seed) % 512;
        size_t bytes = next_random(&seed) % 20000;

        check(next_random(&seed), to, from, bytes);
    }
}

/* A message cut anywhere has the checksum of the whole: blocks made of several runs rely on it. */
static void
test_continues_a_checksum(void **state)
{
    uint64_t whole = cairn_crc64(0, source, 65536);

    (void)state;
    for (size_t cut = 0; cut <= 65536; cut += 997) {
        uint64_t crc = cairn_copy_crc(0, dest, source, cut);

        crc = cairn_copy_crc(crc, dest + cut, source + cut, 65536 - cut);
        assert_int_equal(crc, whole);
        assert_memory_equal(dest, source, 65536);
    }
}

static void
test_every_bit_counts(void **state)
{
    uint64_t whole = cairn_copy_crc(0, dest, source, 8192);

    (void)state;
    for (size_t bit = 0; bit < 8192 * 8; bit += 37) {
        source[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_not_equal(cairn_copy_crc(0, dest, source, 8192), whole);
        source[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
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
                                       cmocka_unit_test(test_every_bit_counts)};

    return cmocka_run_group_tests(tests, fill, NULL);
}
