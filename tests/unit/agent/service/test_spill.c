/*
 * tests/unit/agent/service/test_spill.c - the bytes of spilled files: every buffer of every target
 * is filled with the right bytes, for layouts that cut, stride, transpose and repeat, through a
 * window that is smaller than what a buffer needs.
 *
 * Every byte of a tensor is a function of its place in it, sources are made from that, and what is
 * not written stays poisoned.
 */
#include "agent/service/spill_fill.h"

#include "base/limits.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xee, SOURCES_MAX = 4 };

static uint64_t random_state;

static uint64_t
random_below(uint64_t limit)
{
    return xorshift(&random_state) % limit;
}

static uint8_t
byte_at(uint32_t tensor, uint64_t at)
{
    uint64_t x = (at + 1) * UINT64_C(0x9e3779b97f4a7c15) + tensor * UINT64_C(0xbf58476d1ce4e5b9);

    return (uint8_t)(x >> 56);
}

struct memory {
    uint8_t *bytes[SOURCES_MAX];
    uint64_t used[SOURCES_MAX];
    uint64_t room;
};

/* A box of a tensor of `rows` × `columns` bytes, stored row-major or, with `turned`, column after
 * column. */
static void
add_source(struct cairn_layout *layout, struct memory *memory, uint32_t container, uint32_t tensor,
           uint64_t rows, uint64_t columns, const uint64_t start[2], const uint64_t extent[2],
           bool turned)
{
    char name[16];
    struct cairn_slice slice = {.name = name, .dtype = CAIRN_U8, .kind = CAIRN_PARAM, .dims = 2};
    struct cairn_piece piece = {.container = container};
    uint64_t at = memory->used[container];

    snprintf(name, sizeof name, "t%u", tensor);
    slice.shape[0] = rows;
    slice.shape[1] = columns;
    assert_int_equal(cairn_layout_add(layout, container, &slice, 0, 0, at, NULL), CAIRN_OK);
    piece.tensor = cairn_layout_tensor_find(layout, name);
    piece.offset_bytes = at;
    for (int d = 0; d < 2; d++) {
        piece.start[d] = start[d];
        piece.extent[d] = extent[d];
    }
    piece.stride_bytes[0] = turned ? 1 : extent[1];
    piece.stride_bytes[1] = turned ? extent[0] : 1;
    assert_int_equal(cairn_layout_add_piece(layout, &piece), CAIRN_OK);
    assert_true(at + extent[0] * extent[1] <= memory->room);
    for (uint64_t r = 0; r < extent[0]; r++)
        for (uint64_t c = 0; c < extent[1]; c++)
            memory->bytes[container][at + r * piece.stride_bytes[0] + c * piece.stride_bytes[1]] =
                byte_at(tensor, (start[0] + r) * columns + start[1] + c);
    memory->used[container] = at + extent[0] * extent[1] + random_below(200);
}

/* Does what a fetcher does, and checks what it was asked for. */
static uint64_t
fetch(const struct memory *memory, const struct fetcher_run *runs, uint32_t count)
{
    uint64_t blocks = 0;

    assert_true(count <= FILL_WINDOW_BLOCKS);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = runs[i].first_block * CAIRN_BLOCK_BYTES;

        assert_true(runs[i].container < SOURCES_MAX);
        assert_true(at < memory->used[runs[i].container]);
        memcpy(runs[i].target, memory->bytes[runs[i].container] + at,
               (size_t)runs[i].count * CAIRN_BLOCK_BYTES);
        blocks += runs[i].count;
    }
    assert_true(blocks <= FILL_WINDOW_BLOCKS);
    return blocks;
}

struct filled {
    uint64_t blocks; /* fetched */
    uint32_t passes;
};

/* Fills the whole target in buffers of `buffer_bytes` and returns its bytes. */
static uint8_t *
fill_target(const struct memory *memory, const struct cairn_moves *moves, uint32_t target,
            uint64_t target_bytes, size_t buffer_bytes, struct filled *out)
{
    uint8_t *bytes = malloc(target_bytes + 1);
    struct fetcher_run runs[FILL_WINDOW_BLOCKS];
    struct fill *fill = NULL;
    uint32_t count;

    assert_non_null(bytes);
    memset(bytes, POISON, target_bytes + 1);
    assert_int_equal(fill_create(moves, target, &fill), CAIRN_OK);
    for (uint64_t at = 0; at < target_bytes; at += buffer_bytes) {
        size_t left = target_bytes - at < buffer_bytes ? target_bytes - at : buffer_bytes;

        fill_begin(fill, bytes + at, at, left);
        while (fill_next(fill, runs, &count)) {
            out->blocks += fetch(memory, runs, count);
            out->passes++;
            fill_copy(fill);
        }
        assert_true(fill_check(fill));
    }
    assert_int_equal(bytes[target_bytes], POISON);
    fill_destroy(fill);
    return bytes;
}

/* Cuts a tensor into boxes: whole, by rows, by columns, or both ways, with copies now and then. */
static void
scatter(struct cairn_layout *layout, struct memory *memory, uint32_t tensor, uint64_t rows,
        uint64_t columns)
{
    uint64_t row_cut = rows > 1 ? 1 + random_below(rows - 1) : 0;
    uint64_t column_cut = columns > 1 ? 1 + random_below(columns - 1) : 0;
    uint64_t how = random_below(4);
    uint64_t row_edge[3] = {0, how & 1 ? row_cut : 0, rows};
    uint64_t column_edge[3] = {0, how & 2 ? column_cut : 0, columns};

    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 2; c++) {
            uint64_t start[2] = {row_edge[r], column_edge[c]};
            uint64_t extent[2] = {row_edge[r + 1] - row_edge[r],
                                  column_edge[c + 1] - column_edge[c]};
            uint64_t copies = 1 + (random_below(4) == 0);

            for (uint64_t i = 0; extent[0] && extent[1] && i < copies; i++)
                add_source(layout, memory, (uint32_t)random_below(SOURCES_MAX), tensor, rows,
                           columns, start, extent, random_below(3) == 0);
        }
}

static void
memory_init(struct memory *memory, uint64_t room)
{
    memory->room = room;
    for (int s = 0; s < SOURCES_MAX; s++) {
        /* whole blocks, as containers are fetched in blocks */
        memory->bytes[s] = calloc(room / CAIRN_BLOCK_BYTES + 2, CAIRN_BLOCK_BYTES);
        assert_non_null(memory->bytes[s]);
        memory->used[s] = random_below(3000);
    }
}

static void
memory_fini(struct memory *memory)
{
    for (int s = 0; s < SOURCES_MAX; s++)
        free(memory->bytes[s]);
}

static void
any_layout_fills_every_byte(void **state)
{
    enum { TENSORS = 7 };

    for (uint32_t seed = 1; seed <= 60; seed++) {
        uint64_t rows[TENSORS], columns[TENSORS], offset[TENSORS], end[2] = {0, 0};
        struct cairn_layout *source = NULL, *target = NULL;
        struct memory memory = {{0}, {0}, 0};
        struct cairn_moves moves = {0};
        struct filled filled = {0, 0};
        char report[256] = "";

        random_state = seed * UINT64_C(0x2545f4914f6cdd1d);
        memory_init(&memory, 8 << 20);
        assert_int_equal(cairn_layout_create(&source), CAIRN_OK);
        assert_int_equal(cairn_layout_create(&target), CAIRN_OK);
        for (uint32_t t = 0; t < TENSORS; t++) {
            char name[16];
            struct cairn_slice whole = {
                .name = name, .dtype = CAIRN_U8, .kind = CAIRN_PARAM, .dims = 2};

            snprintf(name, sizeof name, "t%u", t);
            rows[t] = 1 + random_below(random_below(2) ? 700 : 4);
            columns[t] = 1 + random_below(random_below(2) ? 400 : 90);
            whole.shape[0] = whole.extent[0] = rows[t];
            whole.shape[1] = whole.extent[1] = columns[t];
            scatter(source, &memory, t, rows[t], columns[t]);
            offset[t] = end[t % 2];
            end[t % 2] += rows[t] * columns[t];
            assert_int_equal(cairn_layout_add(target, t % 2, &whole, 0, 0, offset[t], NULL),
                             CAIRN_OK);
        }
        assert_int_equal(cairn_reshard_plan(source, target, NULL, &moves, report, sizeof report),
                         CAIRN_OK);
        for (uint32_t c = 0; c < 2; c++) {
            size_t buffer_bytes = 1 + random_below(random_below(2) ? 3000 : 400000);
            uint8_t *bytes = fill_target(&memory, &moves, c, end[c], buffer_bytes, &filled);

            for (uint32_t t = c; t < TENSORS; t += 2)
                for (uint64_t i = 0; i < rows[t] * columns[t]; i++)
                    if (bytes[offset[t] + i] != byte_at(t, i))
                        fail_msg("seed %u tensor %u byte %llu", seed, t, (unsigned long long)i);
            free(bytes);
        }
        cairn_moves_fini(&moves);
        cairn_layout_destroy(source);
        cairn_layout_destroy(target);
        memory_fini(&memory);
    }
}

/* Each byte of a row lies in another block of the source: more blocks than the window holds. */
static void
a_buffer_may_need_more_blocks_than_the_window(void **state)
{
    const uint64_t rows = CAIRN_BLOCK_BYTES, columns = FILL_WINDOW_BLOCKS + 40;
    uint64_t start[2] = {0, 0}, extent[2] = {rows, columns};
    struct cairn_layout *source = NULL, *target = NULL;
    struct memory memory = {{0}, {0}, 0};
    struct cairn_moves moves = {0};
    struct filled filled = {0, 0};
    struct cairn_slice whole = {.name = "t3", .dtype = CAIRN_U8, .kind = CAIRN_PARAM, .dims = 2};
    uint8_t *bytes;

    random_state = 7;
    memory_init(&memory, 16 << 20);
    assert_int_equal(cairn_layout_create(&source), CAIRN_OK);
    assert_int_equal(cairn_layout_create(&target), CAIRN_OK);
    add_source(source, &memory, 1, 3, rows, columns, start, extent, true);
    memcpy(whole.shape, extent, sizeof extent);
    memcpy(whole.extent, extent, sizeof extent);
    assert_int_equal(cairn_layout_add(target, 0, &whole, 0, 0, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_reshard_plan(source, target, NULL, &moves, NULL, 0), CAIRN_OK);
    bytes = fill_target(&memory, &moves, 0, rows * columns, 4 << 20, &filled);
    for (uint64_t i = 0; i < rows * columns; i++)
        if (bytes[i] != byte_at(3, i))
            fail_msg("byte %llu", (unsigned long long)i);
    assert_true(filled.passes > rows * columns / (4 << 20) + 1);
    free(bytes);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
    memory_fini(&memory);
}

/* Where source and target run alike, no block is read twice, with any buffers. */
static void
neighbouring_buffers_share_their_blocks(void **state)
{
    struct cairn_move move = {.target_container = 0,
                              .source_container = 2,
                              .source_offset = 100,
                              .target_offset = 0,
                              .run_bytes = 40 * CAIRN_BLOCK_BYTES,
                              .run_count = 1};
    struct cairn_moves moves = {.moves = &move, .count = 1};
    struct memory memory = {{0}, {0}, 0};
    struct filled filled = {0, 0};

    random_state = 9;
    memory_init(&memory, 50 * CAIRN_BLOCK_BYTES);
    memory.used[2] = 41 * CAIRN_BLOCK_BYTES;
    free(fill_target(&memory, &moves, 0, move.run_bytes, 70001, &filled));
    assert_int_equal(filled.blocks, 41);
    memory_fini(&memory);
}

static void
moves_that_are_not_sound_are_refused(void **state)
{
    const struct cairn_move bad[] = {
        {.run_bytes = 8, .run_count = 2, .source_stride = 8, .target_stride = 7},
        {.run_bytes = 0, .run_count = 1},
        {.run_bytes = 1, .run_count = 0},
        {.run_bytes = 1, .run_count = 1, .target_offset = UINT64_MAX},
        {.run_bytes = 1, .run_count = UINT64_MAX, .source_stride = 1, .target_stride = 2},
        {.run_bytes = 1, .run_count = 3, .source_stride = UINT64_C(1) << 62, .target_stride = 2},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct cairn_move move = bad[i];
        struct cairn_moves moves = {.moves = &move, .count = 1};
        struct fill *fill = NULL;

        assert_int_equal(fill_create(&moves, 0, &fill), CAIRN_INVAL);
        assert_null(fill);
    }
}

/* What a plan leaves out is noticed. */
static void
a_gap_is_noticed(void **state)
{
    struct cairn_move move = {
        .run_bytes = 10, .run_count = 3, .source_stride = 10, .target_stride = 11};
    struct cairn_moves moves = {.moves = &move, .count = 1};
    struct memory memory = {{0}, {0}, 0};
    struct fetcher_run runs[FILL_WINDOW_BLOCKS];
    struct fill *fill = NULL;
    uint8_t buffer[33];
    uint32_t count;

    memory_init(&memory, 1000);
    memory.used[0] = 1000;
    assert_int_equal(fill_create(&moves, 0, &fill), CAIRN_OK);
    fill_begin(fill, buffer, 0, sizeof buffer);
    while (fill_next(fill, runs, &count)) {
        (void)fetch(&memory, runs, count);
        fill_copy(fill);
    }
    assert_false(fill_check(fill));
    fill_destroy(fill);
    memory_fini(&memory);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_fills_every_byte),
        cmocka_unit_test(a_buffer_may_need_more_blocks_than_the_window),
        cmocka_unit_test(neighbouring_buffers_share_their_blocks),
        cmocka_unit_test(moves_that_are_not_sound_are_refused),
        cmocka_unit_test(a_gap_is_noticed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
