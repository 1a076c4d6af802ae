/*
 * tests/fault/test_layout.c - layout, reshard and manifest with the n-th allocation failing, once
 * and from there on.
 *
 * Every run must end in CAIRN_OK or CAIRN_NOMEM, with nothing allocated that was not before, and
 * a layout that could not grow must still be what it was. The linker wraps malloc, calloc and
 * realloc. The allocator counts freed blocks that it keeps for reuse as used, so each case runs a
 * few times until that has settled: what then still grows with each run is a leak.
 */
#include "snapshot/manifest.h"
#include "snapshot/reshard.h"

#include "base/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/failing_calls.h"

#include <stdio.h>
#include <stdlib.h>

static cairn_err
fill_layout(struct cairn_layout *layout, uint32_t cut_dim)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t t = 0; t < 20 && !err; t++) {
        for (uint32_t c = 0; c < 12 && !err; c++) {
            char name[16];
            struct cairn_slice slice = {.name = name,
                                        .dtype = CAIRN_F32,
                                        .kind = CAIRN_PARAM,
                                        .dims = 3,
                                        .shape = {12, 24, 2},
                                        .extent = {12, 24, 2}};

            (void)snprintf(name, sizeof name, "t%u", t);
            slice.extent[cut_dim] /= 12;
            slice.offset[cut_dim] = c * slice.extent[cut_dim];
            err = cairn_layout_add(layout, c, &slice, 0, 0, t * 192, NULL);
        }
    }
    return err;
}

/* Two layouts, tiling, a plan with overlapping sources, and a woven target. */
static cairn_err
run_reshard(void)
{
    struct cairn_layout *source = NULL, *target = NULL;
    struct cairn_moves moves = {0};
    struct cairn_slice extra = {.name = "t0",
                                .dtype = CAIRN_F32,
                                .kind = CAIRN_PARAM,
                                .dims = 3,
                                .shape = {12, 24, 2},
                                .offset = {1, 1, 0},
                                .extent = {9, 20, 2}};
    struct cairn_piece piece = {
        .extent = {3, 1, 1}, .stride_bytes = {64, 4, 4}, .offset_bytes = 1 << 20};
    cairn_err err;

    err = cairn_layout_create(&source);
    if (err)
        goto done;
    err = cairn_layout_create(&target);
    if (err)
        goto done;
    err = fill_layout(source, 0);
    if (err)
        goto done;
    err = cairn_layout_add(source, 3, &extra, 5, 300, 1 << 16, NULL);
    if (err)
        goto done;
    err = fill_layout(target, 1);
    if (err)
        goto done;
    err = cairn_layout_add_piece(target, &piece);
    if (err)
        goto done;
    piece.offset_bytes += 8;
    piece.stride_bytes[0] = 48;
    err = cairn_layout_add_piece(target, &piece);
    if (err)
        goto done;
    err = cairn_layout_check_tiling(source, false, NULL, 0);
    if (err)
        goto done;
    err = cairn_reshard_plan(source, target, NULL, &moves, NULL, 0);
    if (err)
        assert_true(moves.moves == NULL && moves.count == 0);
    else
        assert_int_equal(moves.bytes, 20 * 12 * 24 * 2 * 4 + 24);
done:
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
    return err;
}

static cairn_err
run_manifest(void)
{
    struct cairn_slice slices[6];
    struct cairn_manifest_entry entries[6];
    uint64_t block_crcs[1] = {7}, region_bytes = 0;
    struct cairn_manifest_rank rank = {0, 1, 0, CAIRN_BLOCK_BYTES};
    struct cairn_manifest manifest = {.container_count = 1,
                                      .container_bytes = CAIRN_BLOCK_BYTES,
                                      .ranks = &rank,
                                      .rank_count = 1,
                                      .entries = entries,
                                      .entry_count = 6,
                                      .block_crcs = block_crcs,
                                      .block_count = 1};
    struct cairn_manifest back = {0};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    char names[6][8];
    cairn_err err;

    for (uint32_t i = 0; i < 6; i++) {
        (void)snprintf(names[i], sizeof names[i], "s%u", i / 2);
        slices[i] = (struct cairn_slice){.name = names[i],
                                         .dtype = CAIRN_F64,
                                         .kind = CAIRN_OPTIMIZER,
                                         .dims = 1,
                                         .shape = {20},
                                         .offset = {10 * (i % 2)},
                                         .extent = {10}};
    }
    err = cairn_capture_plan(slices, 6, entries, &region_bytes, NULL);
    if (err)
        goto done;
    err = cairn_manifest_pack(&manifest, &bytes, &bytes_len);
    if (err) {
        assert_null(bytes);
        goto done;
    }
    err = cairn_manifest_unpack(bytes, bytes_len, &back);
    if (err)
        assert_null(back.entries);
    else
        assert_int_equal(back.entry_count, 6);
done:
    free(bytes);
    cairn_manifest_fini(&back);
    return err;
}

/* One run with this allocation failing; whether one did. */
static bool
fail_one(cairn_err (*run)(void), int64_t number, bool ever)
{
    cairn_err err;

    arm(MEMORY, number, ever);
    err = run();
    disarm();
    assert_int_equal(err, failures ? CAIRN_NOMEM : CAIRN_OK);
    return failures > 0;
}

static void
fail_each(cairn_err (*run)(void), uint64_t failures_min)
{
    enum { SETTLING_RUNS = 16, LEAKING_RUNS = 16 };
    uint64_t failed = 0;

    for (int mode = 0; mode < 2; mode++) {
        bool any = true;

        for (int64_t number = 0; any; number++) {
            size_t before;

            for (int i = 0; i < SETTLING_RUNS; i++)
                any = fail_one(run, number, mode == 1);
            before = heap_bytes();
            for (int i = 0; i < LEAKING_RUNS; i++)
                any = fail_one(run, number, mode == 1);
            assert_int_equal(heap_bytes(), before);
            failed += any;
        }
    }
    assert_true(failed >= failures_min);
}

static void
test_reshard(void **state)
{
    fail_each(run_reshard, 2 * 20);
}

static void
test_manifest(void **state)
{
    fail_each(run_manifest, 2 * 10);
}

/* A layout that could not grow is as it was, and grows later. */
static void
test_layout_stays(void **state)
{
    struct cairn_layout *layout = NULL;
    uint32_t refusals = 0;

    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    for (uint32_t i = 0; i < 200; i++) {
        char name[16];
        struct cairn_slice slice = {.name = name,
                                    .dtype = CAIRN_U8,
                                    .kind = CAIRN_PARAM,
                                    .dims = 2,
                                    .shape = {5, 5},
                                    .extent = {5, 5}};
        size_t pieces = cairn_layout_piece_count(layout);

        (void)snprintf(name, sizeof name, "n%u", i);
        for (int64_t number = 0; number < 4; number++) {
            cairn_err err;

            arm(MEMORY, number, true);
            err = cairn_layout_add(layout, i, &slice, 1, 24, 0, NULL);
            disarm();
            if (!err)
                break;
            refusals++;
            assert_int_equal(err, CAIRN_NOMEM);
            assert_int_equal(cairn_layout_tensor_count(layout), i);
            assert_int_equal(cairn_layout_piece_count(layout), pieces);
            assert_int_equal(cairn_layout_tensor_find(layout, name), UINT32_MAX);
        }
        for (uint32_t k = 0; k <= i; k++) {
            (void)snprintf(name, sizeof name, "n%u", k);
            assert_int_equal(cairn_layout_tensor_find(layout, name), k);
        }
        assert_int_equal(cairn_layout_piece_count(layout), 3 * (i + 1));
    }
    assert_true(refusals >= 10);
    cairn_layout_destroy(layout);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reshard),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_layout_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
