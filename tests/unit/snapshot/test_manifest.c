/*
 * tests/unit/snapshot/test_manifest.c - round trips, and every damage and lie that must be found.
 */
#include "snapshot/manifest.h"

#include "base/crc.h"
#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { ENTRIES = 5, RANKS = 2, BLOCKS = 4 };

/* Places in the packed form of the sample; manifest.c has the table. */
enum {
    AT_VERSION = 8,
    AT_CONTAINER = 12,
    AT_RANK_COUNT = 20,
    AT_TENSOR_COUNT = 24,
    AT_ENTRY_COUNT = 28,
    AT_CONTAINER_BYTES = 56,
    AT_BLOCK_COUNT = 64,
    AT_RANKS = 72,
    AT_TENSORS = 72 + 2 * 24
};

struct sample {
    struct cairn_manifest manifest;
    struct cairn_manifest_rank ranks[RANKS];
    struct cairn_manifest_entry entries[ENTRIES];
    uint64_t block_crcs[BLOCKS];
};

/*
 * Two ranks: [0, 2 blocks) with "w" and "step", [2, 4 blocks) with a range of "w", an empty
 * share, and a blob.
 */
static void
sample_init(struct sample *sample)
{
    struct cairn_slice w = {.name = "w",
                            .dtype = CAIRN_F32,
                            .kind = CAIRN_PARAM,
                            .dims = 2,
                            .shape = {100, 64},
                            .extent = {50, 64}};
    struct cairn_slice step = {.name = "step", .dtype = CAIRN_I64, .kind = CAIRN_BUFFER};
    struct cairn_slice blob = {.name = "rng",
                               .dtype = CAIRN_U8,
                               .kind = CAIRN_OPAQUE,
                               .dims = 1,
                               .shape = {2500},
                               .extent = {2500}};

    memset(sample, 0, sizeof *sample);
    sample->entries[0].slice = w;
    sample->entries[1].slice = step;
    sample->entries[1].offset_bytes = 12800;
    sample->entries[2].slice = w;
    sample->entries[2].slice.offset[0] = 50;
    sample->entries[2].slice.flat_begin = 7;
    sample->entries[2].slice.flat_end = 3200;
    sample->entries[2].offset_bytes = 2 * CAIRN_BLOCK_BYTES;
    sample->entries[2].rank = 9;
    sample->entries[3].slice = step;
    sample->entries[3].slice.flat_begin = sample->entries[3].slice.flat_end = 1;
    sample->entries[1].slice.replica_count = sample->entries[3].slice.replica_count = 2;
    sample->entries[3].slice.replica_index = 1;
    sample->entries[3].offset_bytes = 2 * CAIRN_BLOCK_BYTES + 12800;
    sample->entries[3].rank = 9;
    sample->entries[4].slice = blob;
    sample->entries[4].offset_bytes = 2 * CAIRN_BLOCK_BYTES + 12800;
    sample->entries[4].rank = 9;
    sample->ranks[0] = (struct cairn_manifest_rank){0, 12, 0, 2 * CAIRN_BLOCK_BYTES};
    sample->ranks[1] =
        (struct cairn_manifest_rank){9, 12, 2 * CAIRN_BLOCK_BYTES, 2 * CAIRN_BLOCK_BYTES};
    for (uint64_t i = 0; i < BLOCKS; i++)
        sample->block_crcs[i] = i * 0x0123456789abcdefu + 1;
    sample->manifest = (struct cairn_manifest){.job_id = 0x1122334455667788u,
                                               .generation = {3, 41},
                                               .container = 2,
                                               .container_count = 6,
                                               .container_bytes = BLOCKS * CAIRN_BLOCK_BYTES,
                                               .ranks = sample->ranks,
                                               .rank_count = RANKS,
                                               .entries = sample->entries,
                                               .entry_count = ENTRIES,
                                               .block_crcs = sample->block_crcs,
                                               .block_count = BLOCKS};
}

static uint8_t *
pack(const struct cairn_manifest *manifest, size_t *bytes_len)
{
    uint8_t *bytes = NULL;

    assert_int_equal(cairn_manifest_pack(manifest, &bytes, bytes_len), CAIRN_OK);
    return bytes;
}

/*
 * Unpacks an exactly sized copy, so that a step past the end is seen by the sanitizer, and
 * expects this result.
 */
static void
unpack_is(const uint8_t *bytes, size_t bytes_len, cairn_err expected)
{
    struct cairn_manifest manifest = {0};
    uint8_t *copy = malloc(bytes_len ? bytes_len : 1);
    static const struct cairn_manifest empty;

    assert_non_null(copy);
    if (bytes_len)
        memcpy(copy, bytes, bytes_len);
    assert_int_equal(cairn_manifest_unpack(copy, bytes_len, &manifest), expected);
    if (expected)
        assert_memory_equal(&manifest, &empty, sizeof empty);
    free(copy);
    cairn_manifest_fini(&manifest);
}

static void
seal(uint8_t *bytes, size_t bytes_len)
{
    uint64_t crc = cairn_crc64(0, bytes, bytes_len - 8);

    for (size_t i = 0; i < 8; i++)
        bytes[bytes_len - 8 + i] = (uint8_t)(crc >> (8 * i));
}

static void
put(uint8_t *bytes, size_t at, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        bytes[at + i] = (uint8_t)(value >> (8 * i));
}

static void
test_round_trip(void **state)
{
    struct sample sample;
    struct cairn_manifest back = {0};
    uint8_t *bytes, *again;
    size_t bytes_len = 0, again_len = 0;

    sample_init(&sample);
    bytes = pack(&sample.manifest, &bytes_len);
    assert_int_equal(cairn_manifest_unpack(bytes, bytes_len, &back), CAIRN_OK);
    assert_int_equal(back.job_id, 0x1122334455667788u);
    assert_int_equal(back.generation.epoch, 3);
    assert_int_equal(back.generation.step, 41);
    assert_int_equal(back.container, 2);
    assert_int_equal(back.container_count, 6);
    assert_int_equal(back.container_bytes, BLOCKS * CAIRN_BLOCK_BYTES);
    assert_int_equal(back.rank_count, RANKS);
    assert_memory_equal(back.ranks, sample.ranks, sizeof sample.ranks);
    assert_int_equal(back.block_count, BLOCKS);
    assert_memory_equal(back.block_crcs, sample.block_crcs, sizeof sample.block_crcs);
    assert_int_equal(back.entry_count, ENTRIES);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        const struct cairn_slice *a = &sample.entries[i].slice, *b = &back.entries[i].slice;

        assert_string_equal(a->name, b->name);
        assert_true(a->name != b->name);
        assert_true(a->dtype == b->dtype && a->kind == b->kind && a->dims == b->dims);
        assert_memory_equal(a->shape, b->shape, sizeof a->shape);
        assert_memory_equal(a->offset, b->offset, sizeof a->offset);
        assert_memory_equal(a->extent, b->extent, sizeof a->extent);
        assert_true(a->flat_begin == b->flat_begin && a->flat_end == b->flat_end);
        assert_true(b->address == NULL && b->device == -1);
        assert_true(a->replica_index == b->replica_index && a->replica_count == b->replica_count);
        assert_int_equal(sample.entries[i].offset_bytes, back.entries[i].offset_bytes);
        assert_int_equal(sample.entries[i].rank, back.entries[i].rank);
    }
    again = pack(&back, &again_len);
    assert_int_equal(again_len, bytes_len);
    assert_memory_equal(again, bytes, bytes_len);
    cairn_manifest_fini(&back);
    cairn_manifest_fini(&back); /* twice is once */
    free(bytes);
    free(again);
}

/*
 * The least there can be, and a container of a file, whose last block is short and which has no
 * ranks.
 */
static void
test_small(void **state)
{
    struct cairn_manifest empty = {.container_count = 1};
    struct sample sample;
    uint8_t *bytes;
    size_t bytes_len = 0;

    bytes = pack(&empty, &bytes_len);
    assert_int_equal(bytes_len, 80);
    unpack_is(bytes, bytes_len, CAIRN_OK);
    free(bytes);
    sample_init(&sample);
    sample.manifest.rank_count = 0;
    sample.manifest.container_bytes = 3 * CAIRN_BLOCK_BYTES + 1;
    bytes = pack(&sample.manifest, &bytes_len);
    unpack_is(bytes, bytes_len, CAIRN_OK);
    free(bytes);
}

static void
test_every_flip_and_cut(void **state)
{
    struct sample sample;
    uint8_t *longer, *bytes;
    size_t bytes_len = 0;

    sample_init(&sample);
    bytes = pack(&sample.manifest, &bytes_len);
    unpack_is(bytes, bytes_len, CAIRN_OK);
    for (size_t at = 0; at < bytes_len; at++) {
        for (uint32_t value = 1; value < 256; value++) { /* every other value of every byte */
            bytes[at] ^= (uint8_t)value;
            unpack_is(bytes, bytes_len, CAIRN_CORRUPT);
            bytes[at] ^= (uint8_t)value;
        }
    }
    for (size_t len = 0; len < bytes_len; len++)
        unpack_is(bytes, len, CAIRN_CORRUPT);
    for (size_t len = 80; len < bytes_len; len++) { /* cut, and sealed again */
        uint8_t *cut = malloc(len);

        assert_non_null(cut);
        memcpy(cut, bytes, len);
        seal(cut, len);
        unpack_is(cut, len, CAIRN_CORRUPT);
        free(cut);
    }
    longer = realloc(bytes, bytes_len + 8); /* sealed again */
    assert_non_null(longer);
    seal(longer, bytes_len + 8);
    unpack_is(longer, bytes_len + 8, CAIRN_CORRUPT);
    free(longer);
}

/*
 * Every byte flipped with the CRC made right: no crash, and what is accepted packs to the same
 * bytes.
 */
static void
test_sealed_flips(void **state)
{
    struct sample sample;
    uint8_t *bytes, *again;
    size_t bytes_len = 0, again_len = 0, accepted = 0, refused = 0;

    sample_init(&sample);
    bytes = pack(&sample.manifest, &bytes_len);
    for (size_t at = 0; at < bytes_len - 8; at++) {
        for (uint32_t value = 1; value < 256; value += value < 4 ? 1 : 25) {
            struct cairn_manifest manifest = {0};
            cairn_err err;

            bytes[at] ^= (uint8_t)value;
            seal(bytes, bytes_len);
            err = cairn_manifest_unpack(bytes, bytes_len, &manifest);
            if (err) {
                assert_true(err == CAIRN_CORRUPT || (err == CAIRN_VERSION && at >= 8 && at < 12));
                refused++;
            } else {
                again = pack(&manifest, &again_len);
                assert_int_equal(again_len, bytes_len);
                assert_memory_equal(again, bytes, bytes_len);
                free(again);
                accepted++;
            }
            cairn_manifest_fini(&manifest);
            bytes[at] ^= (uint8_t)value;
        }
    }
    assert_true(accepted > 0 &&
                refused > 0); /* job id, step, checksums may hold anything; counts may not */
    free(bytes);
}

/* A lie told in the packed bytes with a right CRC. */
static void
byte_lie(size_t at, uint64_t value, size_t width, cairn_err expected)
{
    struct sample sample;
    uint8_t *bytes;
    size_t bytes_len = 0;

    sample_init(&sample);
    bytes = pack(&sample.manifest, &bytes_len);
    put(bytes, at, value, width);
    seal(bytes, bytes_len);
    unpack_is(bytes, bytes_len, expected);
    free(bytes);
}

static void
test_byte_lies(void **state)
{
    /*
     * "w" is 1 byte, 2 dims: 4 + 1 + 4 + 16; "step" 4 bytes, no dims: 4 + 4 + 4; "rng" 3 bytes, 1
     * dim: 4 + 3 + 4 + 8
     */
    size_t w = AT_TENSORS, step = w + 25, rng = step + 12, entries = rng + 19;
    size_t second = entries + 40 + 32, third = second + 40;

    byte_lie(AT_VERSION, 2, 4, CAIRN_OK); /* the places are right */
    byte_lie(w + 4, 'w', 1, CAIRN_OK);
    byte_lie(step + 4, 's', 1, CAIRN_OK);
    byte_lie(rng + 4, 'r', 1, CAIRN_OK);
    byte_lie(second, 1, 4, CAIRN_OK);
    byte_lie(third, 0, 4, CAIRN_OK);

    byte_lie(AT_VERSION, 1, 4, CAIRN_VERSION);
    byte_lie(AT_VERSION, 3, 4, CAIRN_VERSION);
    byte_lie(AT_VERSION, 0, 4, CAIRN_VERSION);
    byte_lie(AT_CONTAINER, 6, 4, CAIRN_CORRUPT);
    byte_lie(AT_CONTAINER + 4, 0, 4, CAIRN_CORRUPT);
    for (size_t count = AT_RANK_COUNT; count <= AT_ENTRY_COUNT; count += 4) {
        byte_lie(count, 0, 4, CAIRN_CORRUPT);
        byte_lie(count, 1, 4, CAIRN_CORRUPT);
        byte_lie(count, 6, 4, CAIRN_CORRUPT);
        byte_lie(count, UINT32_MAX, 4, CAIRN_CORRUPT);
    }
    byte_lie(AT_BLOCK_COUNT, 3, 8, CAIRN_CORRUPT);
    byte_lie(AT_BLOCK_COUNT, 5, 8, CAIRN_CORRUPT);
    byte_lie(AT_BLOCK_COUNT, UINT64_MAX, 8, CAIRN_CORRUPT);
    byte_lie(AT_BLOCK_COUNT, UINT64_C(1) << 61, 8, CAIRN_CORRUPT);
    byte_lie(AT_CONTAINER_BYTES, 5 * CAIRN_BLOCK_BYTES, 8, CAIRN_CORRUPT);
    byte_lie(AT_CONTAINER_BYTES, 4 * CAIRN_BLOCK_BYTES - 1, 8,
             CAIRN_CORRUPT); /* the second region leaves it */
    byte_lie(AT_CONTAINER_BYTES, UINT64_MAX, 8, CAIRN_CORRUPT);
    byte_lie(AT_RANKS, 12, 4, CAIRN_CORRUPT); /* rank not below its world */
    byte_lie(AT_RANKS, 9, 4, CAIRN_CORRUPT);  /* a rank twice */
    byte_lie(AT_RANKS, 5, 4, CAIRN_CORRUPT);  /* entries of a rank that is not there */
    byte_lie(AT_RANKS + 16, CAIRN_BLOCK_BYTES + 1, 8, CAIRN_CORRUPT); /* not whole blocks */
    byte_lie(AT_RANKS + 16, 3 * CAIRN_BLOCK_BYTES, 8, CAIRN_CORRUPT); /* regions overlap */
    byte_lie(AT_RANKS + 24 + 8, CAIRN_BLOCK_BYTES, 8, CAIRN_CORRUPT);
    byte_lie(AT_RANKS + 24 + 16, UINT64_MAX - 65535, 8, CAIRN_CORRUPT);

    byte_lie(w, UINT32_MAX, 4, CAIRN_CORRUPT); /* a name without end */
    byte_lie(w, 0, 4, CAIRN_CORRUPT);
    byte_lie(w, 300, 4, CAIRN_CORRUPT);
    byte_lie(step + 5, 0, 1, CAIRN_CORRUPT); /* a NUL inside */
    byte_lie(step + 5, 0xff, 1, CAIRN_CORRUPT);
    byte_lie(w + 5, 0, 1, CAIRN_CORRUPT); /* dtype, kind, dims, zero */
    byte_lie(w + 5, 17, 1, CAIRN_CORRUPT);
    byte_lie(w + 6, 9, 1, CAIRN_CORRUPT);
    byte_lie(w + 6, CAIRN_OPAQUE, 1, CAIRN_CORRUPT);
    byte_lie(w + 7, 9, 1, CAIRN_CORRUPT);
    byte_lie(w + 7, 3, 1, CAIRN_CORRUPT);
    byte_lie(w + 8, 1, 1, CAIRN_CORRUPT);
    byte_lie(w + 9, 99, 8, CAIRN_CORRUPT); /* the shape: the box of entry 2 leaves it */
    byte_lie(w + 9, UINT64_MAX, 8, CAIRN_CORRUPT);

    byte_lie(entries, 1, 4, CAIRN_CORRUPT); /* tensors are not in the order of first use */
    byte_lie(second, 2, 4, CAIRN_CORRUPT);
    byte_lie(second, 3, 4, CAIRN_CORRUPT);
    byte_lie(second, 0, 4, CAIRN_CORRUPT);
    byte_lie(entries + 4, 9, 4, CAIRN_CORRUPT);    /* in the region of another rank */
    byte_lie(second + 8, 12799, 8, CAIRN_CORRUPT); /* overlapping entries */
    byte_lie(second + 8, 2 * CAIRN_BLOCK_BYTES - 8, 8, CAIRN_OK);
    byte_lie(second + 8, 2 * CAIRN_BLOCK_BYTES - 7, 8, CAIRN_CORRUPT); /* leaves its region */
    byte_lie(second + 8, UINT64_MAX, 8, CAIRN_CORRUPT);
    byte_lie(third + 8, 4 * CAIRN_BLOCK_BYTES - 12771, 8, CAIRN_CORRUPT); /* leaves the container */
    /* a replica's number, and their count */
    byte_lie(second + 16, 1, 4, CAIRN_OK);
    byte_lie(second + 16, 2, 4, CAIRN_CORRUPT);
    byte_lie(second + 20, UINT32_MAX, 4, CAIRN_OK);
    byte_lie(third + 24, 3201, 8, CAIRN_CORRUPT); /* the flat range */
    byte_lie(third + 32, 3201, 8, CAIRN_CORRUPT);
    byte_lie(third + 40, 51, 8, CAIRN_CORRUPT); /* the box */
}

/* Two tensors of one name, told in the bytes: "step" is renamed to the name of the blob. */
static void
test_name_twice(void **state)
{
    struct sample sample;
    uint8_t *bytes;
    size_t bytes_len = 0;

    sample_init(&sample);
    sample.entries[1].slice.name = sample.entries[3].slice.name = "rnh";
    bytes = pack(&sample.manifest, &bytes_len);
    assert_memory_equal(bytes + AT_TENSORS + 25 + 4, "rnh", 3);
    bytes[AT_TENSORS + 25 + 6] = 'g';
    seal(bytes, bytes_len);
    unpack_is(bytes, bytes_len, CAIRN_CORRUPT);
    free(bytes);
}

static void
not_packed(const struct sample *sample)
{
    uint8_t *bytes = (uint8_t *)-1;
    size_t bytes_len = 7;

    assert_int_equal(cairn_manifest_pack(&sample->manifest, &bytes, &bytes_len), CAIRN_INVAL);
    assert_true(bytes == (uint8_t *)-1 && bytes_len == 7);
}

/* A table with a tensor that no entry names, or in another order than the entries name them. */
static void
test_table_order(void **state)
{
    static const struct {
        uint32_t tensor[3];
        cairn_err expected;
    } cases[] = {{{0, 1, 1}, CAIRN_OK},      {{0, 0, 1}, CAIRN_OK},      {{0, 1, 0}, CAIRN_OK},
                 {{0, 0, 0}, CAIRN_CORRUPT}, {{1, 0, 1}, CAIRN_CORRUPT}, {{1, 1, 1}, CAIRN_CORRUPT},
                 {{0, 2, 1}, CAIRN_CORRUPT}};
    struct cairn_manifest_entry entries[3];
    struct cairn_manifest manifest = {.container_count = 1,
                                      .container_bytes = 24,
                                      .entries = entries,
                                      .entry_count = 3,
                                      .block_crcs = (uint64_t[1]){5},
                                      .block_count = 1};
    uint8_t *bytes;
    size_t bytes_len = 0, at = AT_RANKS + 2 * 9;

    memset(entries, 0, sizeof entries);
    for (uint32_t i = 0; i < 3; i++) {
        entries[i].slice = (struct cairn_slice){
            .name = i == 0 ? "a" : "b", .dtype = CAIRN_F64, .kind = CAIRN_PARAM};
        entries[i].offset_bytes = 8 * i;
    }
    bytes = pack(&manifest, &bytes_len);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (uint32_t i = 0; i < 3; i++)
            put(bytes, at + 40 * i, cases[c].tensor[i], 4);
        seal(bytes, bytes_len);
        unpack_is(bytes, bytes_len, cases[c].expected);
    }
    free(bytes);
}

/* What unpack would refuse is not packed. */
static void
test_not_packed(void **state)
{
    struct sample sample;

    sample_init(&sample);
    sample.manifest.block_count--;
    not_packed(&sample);
    sample_init(&sample);
    sample.manifest.container = 6;
    not_packed(&sample);
    sample_init(&sample);
    sample.entries[3].slice.kind = CAIRN_PARAM; /* differs from entry 1 of the same name */
    not_packed(&sample);
    sample_init(&sample);
    sample.entries[2].slice.shape[0] = 101;
    not_packed(&sample);
    sample_init(&sample);
    sample.entries[1].offset_bytes = 100;
    not_packed(&sample);
    sample_init(&sample);
    sample.entries[1].slice.name = NULL;
    not_packed(&sample);
    sample_init(&sample);
    sample.ranks[1].region_offset = CAIRN_BLOCK_BYTES;
    not_packed(&sample);
    sample_init(&sample);
    sample.manifest.container_bytes -= CAIRN_BLOCK_BYTES; /* a checksum too many */
    sample.ranks[1].region_bytes -= CAIRN_BLOCK_BYTES;
    not_packed(&sample);
    sample_init(&sample);
    sample.manifest.entry_count = 0;
    sample.ranks[1].rank = 0; /* a rank twice */
    not_packed(&sample);
    sample.ranks[1].rank = 12; /* not below its world */
    not_packed(&sample);
}

static void
test_to_layout(void **state)
{
    struct cairn_layout *layout = NULL;
    struct sample sample;
    const char *why = NULL;
    char report[256];

    sample_init(&sample);
    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    assert_int_equal(cairn_manifest_add_to_layout(&sample.manifest, layout, &why), CAIRN_OK);
    assert_int_equal(cairn_layout_tensor_count(layout), 3);
    assert_int_equal(cairn_layout_piece(layout, 0)->container, 2);
    assert_int_equal(cairn_layout_check_tiling(layout, true, report, sizeof report), CAIRN_CORRUPT);
    assert_string_equal(report, "w: 7 of 6400 elements are in no piece, such as [50:51, 0:7]");
    sample.entries[0].slice.dtype = CAIRN_I32;
    assert_int_equal(cairn_manifest_add_to_layout(&sample.manifest, layout, &why), CAIRN_INVAL);
    assert_string_equal(why, "the tensor is known with another dtype");
    cairn_layout_destroy(layout);
}

static void
generations_are_ordered_by_epoch_run_and_step(void **state)
{
    struct cairn_generation_id a = {.epoch = 1, .step = 9}, b = {.epoch = 1, .run = 1, .step = 3};

    assert_int_equal(cairn_generation_id_compare(a, b), -1);
    assert_int_equal(cairn_generation_id_compare(b, a), 1);
    a.run = 1;
    assert_int_equal(cairn_generation_id_compare(a, b), 1);
    a.step = 3;
    assert_int_equal(cairn_generation_id_compare(a, b), 0);
    b.epoch = 2;
    b.run = 0;
    assert_int_equal(cairn_generation_id_compare(a, b), -1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generations_are_ordered_by_epoch_run_and_step),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_every_flip_and_cut),
        cmocka_unit_test(test_sealed_flips),
        cmocka_unit_test(test_byte_lies),
        cmocka_unit_test(test_name_twice),
        cmocka_unit_test(test_table_order),
        cmocka_unit_test(test_not_packed),
        cmocka_unit_test(test_to_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
