/*
 * tests/unit/snapshot/test_layout.c - slices, the lowering of flat ranges, tiling, replica shares
 * and the capture plan.
 */
#include "snapshot/manifest.h"

#include "base/limits.h"
#include "tests/support/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct cairn_layout *
new_layout(void)
{
    struct cairn_layout *layout = NULL;

    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    return layout;
}

static struct cairn_slice
matrix(const char *name, uint64_t rows, uint64_t columns)
{
    return (struct cairn_slice){.name = name,
                                .dtype = CAIRN_F32,
                                .kind = CAIRN_PARAM,
                                .dims = 2,
                                .shape = {rows, columns},
                                .extent = {rows, columns}};
}

static void
wrong(struct cairn_slice slice)
{
    const char *why = NULL;
    struct cairn_manifest_entry entry;
    uint64_t region_bytes = 77;

    assert_int_equal(cairn_slice_check(&slice, &why), CAIRN_INVAL);
    assert_non_null(why);
    assert_int_equal(cairn_slice_check(&slice, NULL), CAIRN_INVAL);
    assert_int_equal(cairn_capture_plan(&slice, 1, &entry, &region_bytes, &why), CAIRN_INVAL);
    assert_int_equal(region_bytes, 77);
}

static void
test_slice_check(void **state)
{
    struct cairn_slice good = matrix("w", 4, 6), bad;
    char name[CAIRN_NAME_BYTES_MAX + 1];
    static const char *const texts[] = {"",
                                        "a\nb",
                                        "\x7f",
                                        "\xff",
                                        "\xc0\x80",
                                        "\xe2\x82",
                                        "\xed\xa0\x80",
                                        "\xf4\x90\x80\x80",
                                        "\xe0\x80\x80",
                                        "\xf0\x80\x80\x80",
                                        "a\x80"};
    static const char *const good_texts[] = {"w",
                                             "model.layers.0.weight",
                                             "\xc3\xa9",
                                             "\xe2\x82\xac",
                                             "\xf0\x9f\xa6\x89",
                                             "\xed\x9f\xbf",
                                             "a b",
                                             "\xf4\x8f\xbf\xbf"};

    assert_int_equal(cairn_slice_check(&good, NULL), CAIRN_OK);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bad = good;
        bad.name = texts[i];
        wrong(bad);
    }
    for (size_t i = 0; i < sizeof good_texts / sizeof good_texts[0]; i++) {
        bad = good;
        bad.name = good_texts[i];
        assert_int_equal(cairn_slice_check(&bad, NULL), CAIRN_OK);
    }
    memset(name, 'n', sizeof name);
    name[CAIRN_NAME_BYTES_MAX - 1] = '\0';
    bad = good;
    bad.name = name;
    assert_int_equal(cairn_slice_check(&bad, NULL), CAIRN_OK);
    name[CAIRN_NAME_BYTES_MAX - 1] = 'n';
    name[CAIRN_NAME_BYTES_MAX] = '\0';
    wrong(bad);
    bad.name = NULL;
    wrong(bad);
#define WRONG(change)                                                                              \
    do {                                                                                           \
        bad = good;                                                                                \
        change;                                                                                    \
        wrong(bad);                                                                                \
    } while (0)
    WRONG(bad.dtype = (enum cairn_dtype)0);
    WRONG(bad.dtype = (enum cairn_dtype)17);
    WRONG(bad.kind = (enum cairn_kind)0);
    WRONG(bad.kind = (enum cairn_kind)5);
    WRONG(bad.kind = CAIRN_OPAQUE);
    WRONG(bad.dims = CAIRN_DIMS_MAX + 1);
    WRONG(bad.dims = UINT32_MAX);
    WRONG(bad.extent[0] = 5);
    WRONG(bad.offset[1] = 1);
    WRONG(bad.offset[1] = 7; bad.extent[1] = 0);
    WRONG(bad.offset[0] = UINT64_MAX; bad.extent[0] = 2);
    WRONG(bad.shape[0] = bad.extent[0] = UINT64_C(1) << 62);
    WRONG(bad.shape[0] = 0; bad.extent[0] = 0; bad.shape[1] = UINT64_C(1) << 62; bad.extent[1] = 1);
    WRONG(bad.flat_begin = 3; bad.flat_end = 2);
    WRONG(bad.flat_end = 25);
    WRONG(bad.replica_index = 1);
    WRONG(bad.replica_index = 2; bad.replica_count = 2);
#undef WRONG
    good.flat_begin = good.flat_end = 24; /* an empty range at the end */
    assert_int_equal(cairn_slice_check(&good, NULL), CAIRN_OK);
    assert_int_equal(cairn_slice_elements(&good), 0);
}

/*
 * Marks what the pieces hold of a tensor, by their container bytes: element `flat` of the box
 * lies at 100 + flat - begin.
 */
static void
check_range(const struct cairn_slice *slice, uint64_t begin, uint64_t end)
{
    struct cairn_layout *layout = new_layout();
    uint64_t elements = 1, held = 0;
    uint8_t *seen;

    for (uint32_t d = 0; d < slice->dims; d++)
        elements *= slice->extent[d];
    seen = calloc(elements + 1, 1);
    assert_non_null(seen);
    assert_int_equal(cairn_layout_add(layout, 9, slice, begin, end, 100, NULL), CAIRN_OK);
    assert_true(cairn_layout_piece_count(layout) <= (slice->dims ? 2 * slice->dims - 1 : 1));
    for (size_t i = 0; i < cairn_layout_piece_count(layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(layout, i);
        uint64_t index[CAIRN_DIMS_MAX] = {0};
        uint32_t d;

        assert_int_equal(piece->container, 9);
        do {
            uint64_t flat = 0, at = piece->offset_bytes;

            for (d = 0; d < slice->dims; d++) {
                assert_in_range(piece->start[d] + index[d], slice->offset[d],
                                slice->offset[d] + slice->extent[d] - 1);
                flat = flat * slice->extent[d] + piece->start[d] + index[d] - slice->offset[d];
                at += index[d] * piece->stride_bytes[d];
            }
            assert_int_equal(at, 100 + (flat - begin) * 4);
            assert_int_equal(seen[flat]++, 0);
            held++;
            for (d = slice->dims; d-- > 0;) {
                if (++index[d] < piece->extent[d])
                    break;
                index[d] = 0;
            }
        } while (d < slice->dims);
    }
    assert_int_equal(held, end - begin);
    for (uint64_t flat = begin; flat < end; flat++)
        assert_int_equal(seen[flat], 1);
    free(seen);
    cairn_layout_destroy(layout);
}

/* Every range of boxes of every shape with up to 5 dimensions of 1 to 3, inside a larger tensor. */
static void
test_flat_ranges(void **state)
{
    for (uint32_t dims = 0; dims <= 5; dims++) {
        uint32_t shapes = 1;

        for (uint32_t d = 0; d < dims; d++)
            shapes *= 3;
        for (uint32_t shape = 0; shape < shapes; shape += dims == 5 ? 17 : 1) {
            struct cairn_slice slice = {
                .name = "t", .dtype = CAIRN_F32, .kind = CAIRN_PARAM, .dims = dims};
            uint64_t elements = 1;

            for (uint32_t d = 0, rest = shape; d < dims; d++, rest /= 3) {
                slice.extent[d] = 1 + rest % 3;
                slice.offset[d] = d % 2;
                slice.shape[d] = slice.extent[d] + 2;
                elements *= slice.extent[d];
            }
            for (uint64_t begin = 0; begin < elements; begin += 1 + elements / 40)
                for (uint64_t end = begin + 1; end <= elements; end += 1 + elements / 40)
                    check_range(&slice, begin, end);
        }
    }
}

static void
test_add(void **state)
{
    struct cairn_layout *layout = new_layout();
    struct cairn_slice slice = matrix("w", 4, 6), other;
    struct cairn_piece piece = {.tensor = 0, .extent = {4, 6}, .stride_bytes = {24, 4}}, bad;
    const char *why = NULL;

    assert_int_equal(cairn_layout_tensor_find(layout, "w"), UINT32_MAX);
    assert_int_equal(cairn_layout_add(layout, 0, &slice, 5, 5, 0, NULL),
                     CAIRN_OK); /* only the tensor */
    assert_int_equal(cairn_layout_tensor_count(layout), 1);
    assert_int_equal(cairn_layout_piece_count(layout), 0);
    assert_null(cairn_layout_only_piece(layout, 0)); /* of none */
    assert_string_equal(cairn_layout_tensor(layout, 0)->name, "w");
    other = slice;
    other.dtype = CAIRN_I32;
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 0, 0, &why), CAIRN_INVAL);
    assert_string_equal(why, "the tensor is known with another dtype");
    other = slice;
    other.kind = CAIRN_BUFFER;
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 0, 0, &why), CAIRN_INVAL);
    assert_string_equal(why, "the tensor is known with another kind");
    other = slice;
    other.shape[0] = 5;
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 0, 0, &why), CAIRN_INVAL);
    assert_string_equal(why, "the tensor is known with another shape");
    other = slice;
    other.name = "new";
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 25, 0, &why), CAIRN_INVAL);
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 24, INT64_MAX - 95, &why), CAIRN_INVAL);
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 0, UINT64_MAX, &why), CAIRN_INVAL);
    assert_int_equal(cairn_layout_tensor_count(layout), 1); /* nothing was added */
    assert_int_equal(cairn_layout_piece_count(layout), 0);
    assert_int_equal(cairn_layout_add(layout, 0, &other, 0, 24, INT64_MAX - 96, &why), CAIRN_OK);

    assert_int_equal(cairn_layout_add_piece(layout, &piece), CAIRN_OK);
    bad = piece;
    bad.tensor = 2;
    assert_int_equal(cairn_layout_add_piece(layout, &bad), CAIRN_INVAL);
    bad = piece;
    bad.extent[1] = 0;
    assert_int_equal(cairn_layout_add_piece(layout, &bad), CAIRN_INVAL);
    bad = piece;
    bad.start[1] = 1;
    assert_int_equal(cairn_layout_add_piece(layout, &bad), CAIRN_INVAL);
    bad = piece;
    bad.offset_bytes = INT64_MAX - 95;
    assert_int_equal(cairn_layout_add_piece(layout, &bad), CAIRN_INVAL);
    bad = piece;
    bad.stride_bytes[0] = UINT64_MAX / 2;
    assert_int_equal(cairn_layout_add_piece(layout, &bad), CAIRN_INVAL);
    assert_int_equal(cairn_layout_piece_count(layout), 2);
    assert_ptr_equal(cairn_layout_only_piece(layout, 0), cairn_layout_piece(layout, 1));
    assert_ptr_equal(cairn_layout_only_piece(layout, 1), cairn_layout_piece(layout, 0));
    assert_int_equal(cairn_layout_add_piece(layout, &piece), CAIRN_OK);
    assert_null(cairn_layout_only_piece(layout, 0)); /* of two */

    for (uint32_t i = 0; i < 3000; i++) { /* the table of names grows */
        char name[32];

        (void)snprintf(name, sizeof name, "layers.%u.weight", i);
        other.name = name;
        assert_int_equal(cairn_layout_add(layout, i, &other, 0, 0, 0, NULL), CAIRN_OK);
    }
    for (uint32_t i = 0; i < 3000; i++) {
        char name[32];

        (void)snprintf(name, sizeof name, "layers.%u.weight", i);
        assert_int_equal(cairn_layout_tensor_find(layout, name), i + 2);
    }
    assert_int_equal(cairn_layout_tensor_find(layout, "layers.3000.weight"), UINT32_MAX);
    cairn_layout_destroy(layout);
    cairn_layout_destroy(NULL);
}

static void
tiling_is(const struct cairn_layout *layout, bool exactly_once, cairn_err expected,
          const char *text)
{
    char report[512];

    assert_int_equal(cairn_layout_check_tiling(layout, exactly_once, report, sizeof report),
                     expected);
    if (strcmp(text, "") == 0 ? report[0] != '\0' : !strstr(report, text))
        fail_msg("\"%s\" lacks \"%s\"", report, text);
    assert_int_equal(cairn_layout_check_tiling(layout, exactly_once, NULL, 0), expected);
}

static void
test_tiling(void **state)
{
    struct cairn_layout *layout = new_layout();
    struct cairn_slice w = matrix("w", 8, 8), part = w, v = matrix("v", 0, 9),
                       gap = matrix("gap", 10, 10);
    struct cairn_slice scalar = {.name = "step", .dtype = CAIRN_I64, .kind = CAIRN_BUFFER};

    tiling_is(layout, true, CAIRN_OK, "");
    assert_int_equal(cairn_layout_add(layout, 0, &v, 0, 0, 0, NULL),
                     CAIRN_OK); /* nothing to hold */
    assert_int_equal(cairn_layout_add(layout, 0, &scalar, 1, 1, 0, NULL), CAIRN_OK);
    tiling_is(layout, true, CAIRN_CORRUPT, "step: 1 of 1 elements are in no piece");
    assert_int_equal(cairn_layout_add(layout, 0, &scalar, 0, 0, 0, NULL), CAIRN_OK);
    tiling_is(layout, true, CAIRN_OK, "");
    part.extent[1] = 5;
    assert_int_equal(cairn_layout_add(layout, 0, &part, 0, 0, 0, NULL), CAIRN_OK);
    part.offset[1] = 5;
    part.extent[1] = 3;
    assert_int_equal(cairn_layout_add(layout, 1, &part, 0, 11, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add(layout, 2, &part, 12, 24, 0, NULL), CAIRN_OK);
    tiling_is(layout, true, CAIRN_CORRUPT,
              "w: 1 of 64 elements are in no piece, such as [3:4, 7:8]");
    tiling_is(layout, false, CAIRN_CORRUPT,
              "w: 1 of 64 elements are in no piece, such as [3:4, 7:8]");
    assert_int_equal(cairn_layout_add(layout, 3, &part, 9, 13, 0, NULL),
                     CAIRN_OK); /* covers, but doubly */
    tiling_is(layout, false, CAIRN_OK, "");
    tiling_is(layout, true, CAIRN_CORRUPT, "w: pieces in containers");
    cairn_layout_destroy(layout);

    layout = new_layout();
    assert_int_equal(cairn_layout_add(layout, 4, &w, 0, 0, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add(layout, 7, &w, 0, 0, 0, NULL), CAIRN_OK); /* a replica */
    tiling_is(layout, false, CAIRN_OK, "");
    tiling_is(layout, true, CAIRN_CORRUPT, "w: pieces in containers 4 and 7 both hold [0:8, 0:8]");
    for (uint32_t i = 0; i < 6; i++) {
        char name[8];

        (void)snprintf(name, sizeof name, "gap%u", i);
        gap.name = name;
        assert_int_equal(cairn_layout_add(layout, 0, &gap, 0, 99, 0, NULL), CAIRN_OK);
    }
    tiling_is(layout, false, CAIRN_CORRUPT, "gap3: 1 of 100 elements");
    tiling_is(layout, false, CAIRN_CORRUPT, "; and 2 more"); /* a few names are enough */
    cairn_layout_destroy(layout);
}

/* Pieces that overlap by as many elements as they leave open: their volumes add up all the same. */
static void
test_tiling_sum(void **state)
{
    struct cairn_layout *layout = new_layout();
    struct cairn_slice part = {.name = "v",
                               .dtype = CAIRN_U8,
                               .kind = CAIRN_PARAM,
                               .dims = 1,
                               .shape = {10},
                               .extent = {6}};

    assert_int_equal(cairn_layout_add(layout, 0, &part, 0, 0, 0, NULL), CAIRN_OK);
    part.offset[0] = 3;
    part.extent[0] = 4;
    assert_int_equal(cairn_layout_add(layout, 1, &part, 0, 0, 0, NULL), CAIRN_OK);
    tiling_is(layout, false, CAIRN_CORRUPT, "v: no piece holds [7:10]");
    tiling_is(layout, true, CAIRN_CORRUPT, "both hold [3:6]");
    cairn_layout_destroy(layout);
}

/*
 * One element less or one more in a grid of boxes that no sort by a single dimension takes apart.
 */
static void
test_tiling_grid(void **state)
{
    for (uint32_t flaw = 0; flaw < 3; flaw++) {
        struct cairn_layout *layout = new_layout();

        for (uint64_t i = 0; i < 20; i++) {
            for (uint64_t k = 0; k < 30; k++) {
                struct cairn_slice box = {.name = "grid",
                                          .dtype = CAIRN_U8,
                                          .kind = CAIRN_PARAM,
                                          .dims = 3,
                                          .shape = {40, 90, 4},
                                          .offset = {2 * i, 3 * k, 0},
                                          .extent = {2, 3, 4}};
                uint64_t begin = 0;

                if (flaw == 1 && i == 13 && k == 17)
                    begin = 1;
                if (flaw == 2 && i == 13 && k == 17)
                    box.extent[1] = 4;
                assert_int_equal(cairn_layout_add(layout, 0, &box, begin, begin ? 24 : 0, 0, NULL),
                                 CAIRN_OK);
            }
        }
        tiling_is(layout, true, flaw ? CAIRN_CORRUPT : CAIRN_OK,
                  flaw == 0   ? ""
                  : flaw == 1 ? "[26:27, 51:52, 0:1]"
                              : "both hold [26:28, 54:55, 0:4]");
        tiling_is(layout, false, flaw == 1 ? CAIRN_CORRUPT : CAIRN_OK,
                  flaw == 1 ? "grid: 1 of" : "");
        cairn_layout_destroy(layout);
    }
}

static void
test_share(void **state)
{
    static const uint64_t lengths[] = {0,  1,  2,  7,  8,   15,   16,   17,
                                       31, 63, 64, 65, 127, 1000, 4096, 4097};

    for (uint32_t dtype = 1; dtype <= 16; dtype++) {
        uint64_t unit = 64 / cairn_dtype_bytes((enum cairn_dtype)dtype);

        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            for (uint32_t count = 0; count <= 70; count += count < 10 ? 1 : 13) {
                for (uint64_t base = 0; base <= 5; base += 5) {
                    struct cairn_slice slice = {.name = "s",
                                                .dtype = (enum cairn_dtype)dtype,
                                                .kind = CAIRN_OPTIMIZER,
                                                .dims = 1,
                                                .shape = {lengths[l] + base},
                                                .extent = {lengths[l] + base},
                                                .replica_count = count};
                    uint64_t at = base, least = UINT64_MAX, most = 0;

                    if (base > 0) {
                        slice.flat_begin = base;
                        slice.flat_end = base + lengths[l];
                    }
                    for (uint32_t i = 0; i < (count ? count : 1); i++) {
                        uint64_t begin, end;

                        slice.replica_index = i;
                        cairn_slice_share(&slice, &begin, &end);
                        assert_int_equal(
                            begin,
                            at); /* disjoint and complete: each begins where the last ended */
                        assert_true(end >= begin);
                        assert_true((begin - base) % unit == 0 || begin == base + lengths[l]);
                        assert_true(end > 0 ||
                                    lengths[l] == 0); /* an empty share is not the whole box */
                        at = end;
                        least = end - begin < least ? end - begin : least;
                        most = end - begin > most ? end - begin : most;
                    }
                    assert_int_equal(at, base + lengths[l]);
                    assert_true(most - least <= unit);
                }
            }
        }
    }
}

static void
test_capture_plan(void **state)
{
    uint8_t memory[6000];
    struct cairn_slice slices[5] = {matrix("a", 10, 10), matrix("b", 3, 1), matrix("c", 0, 5),
                                    matrix("d", 30, 30), matrix("e", 1, 1)};
    struct cairn_manifest_entry entries[5];
    uint64_t region_bytes = 0;
    const char *why = NULL;

    slices[0].address = memory;
    slices[0].replica_count = 2;
    slices[0].replica_index = 1;
    slices[1].replica_count = 2;
    slices[1].replica_index = 1; /* fits one unit, which replica 0 takes */
    slices[3].flat_begin = 450;
    slices[3].flat_end = 900;
    slices[3].address = memory + 1000;
    slices[3].replica_count = 2;
    slices[3].replica_index = 1;
    assert_int_equal(cairn_capture_plan(slices, 5, entries, &region_bytes, &why), CAIRN_OK);
    assert_int_equal(region_bytes, CAIRN_BLOCK_BYTES);
    assert_int_equal(entries[0].slice.flat_begin,
                     48); /* 7 units of 16 elements: 3, and 4 with a short one */
    assert_int_equal(entries[0].slice.flat_end, 100);
    assert_ptr_equal(entries[0].slice.address, memory + 192);
    assert_int_equal(entries[0].offset_bytes, 0);
    assert_int_equal(cairn_capture_bytes(&entries[0]), 208);
    assert_int_equal(entries[1].offset_bytes, 256);
    assert_int_equal(cairn_capture_bytes(&entries[1]), 0);
    assert_true(entries[1].slice.flat_begin == 3 && entries[1].slice.flat_end == 3);
    assert_null(entries[1].slice.address);
    assert_int_equal(cairn_capture_bytes(&entries[2]), 0);
    assert_int_equal(entries[3].slice.flat_begin, 450 + 224); /* 29 units: 14 and 15 */
    assert_int_equal(entries[3].slice.flat_end, 900);
    assert_ptr_equal(entries[3].slice.address, memory + 1000 + 896);
    assert_int_equal(entries[3].offset_bytes, 256);
    assert_int_equal(entries[4].offset_bytes, 256 + 904 + 56);
    assert_int_equal(entries[4].slice.flat_end, 1);

    assert_int_equal(cairn_capture_plan(slices, 0, entries, &region_bytes, &why), CAIRN_OK);
    assert_int_equal(region_bytes, 0);
    slices[0] = matrix("a", UINT64_C(1) << 40, UINT64_C(1) << 20);
    slices[1] = matrix("b", UINT64_C(1) << 40, UINT64_C(1) << 20);
    region_bytes = 5;
    assert_int_equal(cairn_capture_plan(slices, 2, entries, &region_bytes, &why), CAIRN_INVAL);
    assert_string_equal(why, "the sum of the slices is too large");
    assert_int_equal(region_bytes, 5);
    slices[0] = matrix("a", 128, 128); /* exactly one block, then one byte range more */
    slices[1] = matrix("b", 1, 1);
    assert_int_equal(cairn_capture_plan(slices, 1, entries, &region_bytes, &why), CAIRN_OK);
    assert_int_equal(region_bytes, CAIRN_BLOCK_BYTES);
    assert_int_equal(cairn_capture_plan(slices, 2, entries, &region_bytes, &why), CAIRN_OK);
    assert_int_equal(region_bytes, 2 * CAIRN_BLOCK_BYTES);
}

/* The shares of all replicas of all parts make the tensor, each element once. */
static void
test_shares_tile(void **state)
{
    struct cairn_layout *layout = new_layout();
    uint32_t container = 0;

    for (uint32_t part = 0; part < 3; part++) {
        for (uint32_t replica = 0; replica < 4; replica++, container++) {
            struct cairn_slice slice = matrix("w", 30, 21);
            struct cairn_manifest_entry entry;
            uint64_t region_bytes;

            slice.offset[1] = part * 7;
            slice.extent[1] = 7;
            slice.replica_count = 4;
            slice.replica_index = replica;
            assert_int_equal(cairn_capture_plan(&slice, 1, &entry, &region_bytes, NULL), CAIRN_OK);
            assert_int_equal(cairn_layout_add(layout, container, &entry.slice,
                                              entry.slice.flat_begin, entry.slice.flat_end,
                                              entry.offset_bytes, NULL),
                             CAIRN_OK);
        }
    }
    tiling_is(layout, true, CAIRN_OK, "");
    cairn_layout_destroy(layout);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slice_check), cmocka_unit_test(test_flat_ranges),
        cmocka_unit_test(test_add),         cmocka_unit_test(test_tiling),
        cmocka_unit_test(test_tiling_sum),  cmocka_unit_test(test_tiling_grid),
        cmocka_unit_test(test_share),       cmocka_unit_test(test_capture_plan),
        cmocka_unit_test(test_shares_tile),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
