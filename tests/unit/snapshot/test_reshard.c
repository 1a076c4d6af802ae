/*
 * tests/unit/snapshot/test_reshard.c - moves between random layouts against a reference that goes
 * element by element.
 *
 * Every element carries a marker made from its tensor and its own index; padding is poisoned.
 * After a plan is run, every byte of every target container must be what the reference puts
 * there, each byte of a piece written once and no other byte at all.
 */
#include "snapshot/reshard.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CONTAINERS = 6, TENSORS_MAX = 8, POISON = 0xee };

static uint64_t seed_state;

/* 0 to limit - 1 */
static uint64_t
below(uint64_t limit)
{
    return splitmix(&seed_state) % limit;
}

/* A layout with the memory it describes. */
struct model {
    struct cairn_layout *layout;
    uint64_t used[CONTAINERS];
    uint8_t *memory[CONTAINERS];
};

struct world {
    uint32_t count;
    struct cairn_slice tensors[TENSORS_MAX]; /* whole */
    char names[TENSORS_MAX][32];
};

static void
model_free(struct model *model)
{
    cairn_layout_destroy(model->layout);
    for (uint32_t c = 0; c < CONTAINERS; c++)
        free(model->memory[c]);
    memset(model, 0, sizeof *model);
}

static uint64_t
elements_of(const struct cairn_slice *slice)
{
    uint64_t elements = 1;

    for (uint32_t d = 0; d < slice->dims; d++)
        elements *= slice->extent[d];
    return elements;
}

static void
world_random(struct world *world)
{
    memset(world, 0, sizeof *world);
    world->count = 1 + (uint32_t)below(TENSORS_MAX);
    for (uint32_t t = 0; t < world->count; t++) {
        struct cairn_slice *slice = &world->tensors[t];

        (void)snprintf(world->names[t], sizeof world->names[t], "tensor.%u", t);
        slice->name = world->names[t];
        slice->dtype = (enum cairn_dtype)(1 + below(16));
        slice->kind = CAIRN_PARAM;
        slice->dims = (uint32_t)below(CAIRN_DIMS_MAX + 1);
        for (uint32_t d = 0; d < slice->dims; d++) {
            slice->shape[d] = below(40) == 0 ? 0 : 1 + below(slice->dims > 4 ? 3 : 9);
            slice->extent[d] = slice->shape[d];
        }
    }
}

/* Places the flat range of a slice somewhere, with padding before it. */
static void
place(struct model *model, const struct cairn_slice *slice, uint64_t begin, uint64_t end)
{
    uint32_t container = (uint32_t)below(CONTAINERS);
    uint64_t elements = end > 0 ? end - begin : elements_of(slice);
    uint64_t at = model->used[container] + below(5);

    assert_int_equal(cairn_layout_add(model->layout, container, slice, begin, end, at, NULL),
                     CAIRN_OK);
    model->used[container] = at + elements * cairn_dtype_bytes(slice->dtype);
}

/*
 * Places a box with its dimensions in random order and padding between rows: a transposed or
 * strided piece.
 */
static void
place_strided(struct model *model, const struct cairn_slice *slice)
{
    uint32_t order[CAIRN_DIMS_MAX], container = (uint32_t)below(CONTAINERS);
    uint64_t span = cairn_dtype_bytes(slice->dtype);
    struct cairn_piece piece = {.container = container};

    assert_int_equal(cairn_layout_add(model->layout, container, slice, 1, 1, 0, NULL), CAIRN_OK);
    if (elements_of(slice) == 0)
        return;
    piece.tensor = cairn_layout_tensor_find(model->layout, slice->name);
    for (uint32_t d = 0; d < slice->dims; d++) {
        uint32_t other = (uint32_t)below(d + 1);

        order[d] = order[other];
        order[other] = d;
    }
    for (uint32_t i = 0; i < slice->dims; i++) {
        uint32_t d = order[i];

        piece.start[d] = slice->offset[d];
        piece.extent[d] = slice->extent[d];
        piece.stride_bytes[d] = span + (below(3) == 0 ? below(4) : 0);
        span += piece.stride_bytes[d] * (slice->extent[d] - 1);
    }
    piece.offset_bytes = model->used[container] + below(5);
    assert_int_equal(cairn_layout_add_piece(model->layout, &piece), CAIRN_OK);
    model->used[container] = piece.offset_bytes + span;
}

/* Places a box whole, or as flat ranges cut anywhere, one of them perhaps empty. */
static void
place_box(struct model *model, const struct cairn_slice *slice)
{
    uint64_t elements = elements_of(slice), at = 0;
    uint32_t parts = 1 + (uint32_t)below(5);

    if (elements == 0) {
        place(model, slice, 0, 0);
        return;
    }
    switch (below(4)) {
    case 0:
        place(model, slice, 0, 0);
        break;
    case 1:
        place_strided(model, slice);
        break;
    default:
        for (uint32_t i = 0; i < parts; i++) {
            uint64_t end = i + 1 == parts ? elements : at + below(elements - at + 1);

            if (end > at)
                place(model, slice, at, end);
            at = end;
        }
    }
}

/* Places a tensor: cut along up to two dimensions into uneven boxes, replicas whole or partial. */
static void
place_tensor(struct model *model, const struct cairn_slice *tensor)
{
    uint32_t d0 = tensor->dims ? (uint32_t)below(tensor->dims) : 0;
    uint32_t d1 = tensor->dims ? (uint32_t)below(tensor->dims) : 0;
    uint64_t cut0, cut1;

    if (tensor->dims == 0 || elements_of(tensor) == 0 || below(3) == 0) {
        for (uint64_t replicas = 1 + (below(3) == 0 ? below(3) : 0); replicas > 0; replicas--)
            place_box(model, tensor);
    } else {
        cut0 = below(tensor->shape[d0] + 1);
        cut1 = below(tensor->shape[d1] + 1);
        for (uint32_t part = 0; part < (d0 == d1 ? 2u : 4u); part++) {
            struct cairn_slice box = *tensor;

            box.offset[d0] = part % 2 ? cut0 : 0;
            box.extent[d0] = part % 2 ? tensor->shape[d0] - cut0 : cut0;
            if (d0 != d1) {
                box.offset[d1] = part / 2 ? cut1 : 0;
                box.extent[d1] = part / 2 ? tensor->shape[d1] - cut1 : cut1;
            }
            place_box(model, &box);
        }
    }
    while (elements_of(tensor) > 0 &&
           below(4) == 0) { /* a part more, which overlaps what is there */
        struct cairn_slice box = *tensor;

        for (uint32_t d = 0; d < tensor->dims; d++) {
            box.offset[d] = below(tensor->shape[d]);
            box.extent[d] = 1 + below(tensor->shape[d] - box.offset[d]);
        }
        place_box(model, &box);
    }
}

static void
model_random(struct model *model, const struct world *world)
{
    uint32_t first = (uint32_t)below(world->count);

    memset(model, 0, sizeof *model);
    assert_int_equal(cairn_layout_create(&model->layout), CAIRN_OK);
    for (uint32_t t = 0; t < world->count; t++) /* numbered differently in each layout */
        place_tensor(model, &world->tensors[(first + t) % world->count]);
    for (uint32_t c = 0; c < CONTAINERS; c++) {
        model->memory[c] = malloc(model->used[c] + 1);
        assert_non_null(model->memory[c]);
        memset(model->memory[c], POISON, model->used[c] + 1);
    }
}

/*
 * The reference: calls `visit` with every element of every piece, its container byte, and its
 * marker.
 */
static void
each_element(const struct model *model, uint8_t *const memory[CONTAINERS],
             void (*visit)(uint8_t *at, uint64_t marker, size_t bytes))
{
    for (size_t i = 0; i < cairn_layout_piece_count(model->layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(model->layout, i);
        const struct cairn_tensor *tensor = cairn_layout_tensor(model->layout, piece->tensor);
        uint64_t index[CAIRN_DIMS_MAX] = {0};
        uint32_t d;

        do {
            uint64_t flat = 0, at = piece->offset_bytes;

            for (d = 0; d < tensor->dims; d++) {
                flat = flat * tensor->shape[d] + piece->start[d] + index[d];
                at += index[d] * piece->stride_bytes[d];
            }
            visit(memory[piece->container] + at,
                  (flat + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)tensor->name[7] << 56 ^ flat,
                  cairn_dtype_bytes(tensor->dtype));
            for (d = tensor->dims; d-- > 0;) {
                if (++index[d] < piece->extent[d])
                    break;
                index[d] = 0;
            }
        } while (d < tensor->dims);
    }
}

static void
visit_fill(uint8_t *at, uint64_t marker, size_t bytes)
{
    memcpy(at, &marker, bytes);
}

static void
visit_check(uint8_t *at, uint64_t marker, size_t bytes)
{
    assert_memory_equal(at, &marker, bytes);
}

static void
visit_clear(uint8_t *at, uint64_t marker, size_t bytes)
{
    for (size_t b = 0; b < bytes; b++) {
        assert_int_equal(at[b], 1); /* written once */
        at[b] = 0;
    }
}

/*
 * Counts the writes of a plan on each byte of the target, and lets the reference strike out what
 * it wants.
 */
static void
check_written_once(const struct cairn_moves *moves, const struct model *target)
{
    uint8_t *writes[CONTAINERS];
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < CONTAINERS; c++) {
        writes[c] = calloc(target->used[c] + 1, 1);
        assert_non_null(writes[c]);
    }
    for (size_t i = 0; i < moves->count; i++) {
        const struct cairn_move *move = &moves->moves[i];

        assert_true(move->run_count > 1 || (move->source_stride == 0 && move->target_stride == 0));
        for (uint64_t run = 0; run < move->run_count; run++) {
            uint64_t at = move->target_offset + run * move->target_stride;

            assert_true(at + move->run_bytes <= target->used[move->target_container]);
            for (uint64_t b = 0; b < move->run_bytes; b++)
                writes[move->target_container][at + b]++;
            bytes += move->run_bytes;
        }
    }
    assert_int_equal(bytes, moves->bytes);
    each_element(target, writes, visit_clear);
    for (uint32_t c = 0; c < CONTAINERS; c++) {
        for (uint64_t b = 0; b < target->used[c]; b++)
            assert_int_equal(writes[c][b], 0);
        free(writes[c]);
    }
}

/* Reshards the memory of `source` into that of `target`, and checks everything. */
static void
reshard(const struct model *source, struct model *target)
{
    struct cairn_moves moves = {0};
    char report[512];
    cairn_err err =
        cairn_reshard_plan(source->layout, target->layout, NULL, &moves, report, sizeof report);

    if (err)
        print_error("%s: %s\n", cairn_err_name(err), report);
    assert_int_equal(err, CAIRN_OK);
    assert_string_equal(report, "");
    assert_int_equal(moves.in_place_bytes, 0);
    check_written_once(&moves, target);
    for (uint32_t c = 0; c < CONTAINERS; c++)
        memset(target->memory[c], POISON, target->used[c] + 1);
    for (size_t i = 0; i < moves.count; i++) {
        const struct cairn_move *move = &moves.moves[i];

        if (i > 0)
            assert_true(move[-1].source_container < move->source_container ||
                        (move[-1].source_container == move->source_container &&
                         move[-1].source_offset <= move->source_offset));
        cairn_move_copy(move, source->memory[move->source_container],
                        target->memory[move->target_container]);
    }
    each_element(target, target->memory, visit_check);
    cairn_moves_fini(&moves);
}

static void
test_random(void **state)
{
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct world world;
        struct model a, b, c, back, direct;

        seed_state = seed;
        world_random(&world);
        model_random(&a, &world);
        model_random(&b, &world);
        model_random(&c, &world);
        each_element(&a, a.memory, visit_fill);
        assert_int_equal(cairn_layout_check_tiling(a.layout, false, NULL, 0), CAIRN_OK);

        reshard(&a, &b); /* A to B, kept aside */
        direct = b;
        for (uint32_t k = 0; k < CONTAINERS; k++) {
            direct.memory[k] = malloc(b.used[k] + 1);
            assert_non_null(direct.memory[k]);
            memcpy(direct.memory[k], b.memory[k], b.used[k] + 1);
        }
        reshard(&a, &c); /* A to C to B is A to B */
        reshard(&c, &b);
        for (uint32_t k = 0; k < CONTAINERS; k++)
            assert_memory_equal(direct.memory[k], b.memory[k], b.used[k] + 1);
        back = a; /* and back to A, padding included */
        for (uint32_t k = 0; k < CONTAINERS; k++) {
            back.memory[k] = malloc(a.used[k] + 1);
            assert_non_null(back.memory[k]);
        }
        reshard(&b, &back);
        for (uint32_t k = 0; k < CONTAINERS; k++) {
            assert_memory_equal(back.memory[k], a.memory[k], a.used[k] + 1);
            free(back.memory[k]);
            free(direct.memory[k]);
        }
        model_free(&a);
        model_free(&b);
        model_free(&c);
    }
}

/*
 * In one memory for both sides, what stays and what moves make the target; what moves is read
 * before it is written.
 */
static void
test_same_containers(void **state)
{
    for (uint64_t seed = 1000; seed < 1200; seed++) {
        struct cairn_reshard_options options = {.same_containers = true};
        struct cairn_moves moves;
        struct world world;
        struct model a, b;
        uint64_t wanted = 0, layout_seed;

        seed_state = seed;
        world_random(&world);
        layout_seed = seed_state;
        model_random(&a, &world);
        if (seed % 4 == 0)
            seed_state = layout_seed; /* the same layout: nothing moves */
        model_random(&b, &world);
        each_element(&a, a.memory, visit_fill);
        assert_int_equal(cairn_reshard_plan(a.layout, b.layout, &options, &moves, NULL, 0),
                         CAIRN_OK);
        for (uint32_t c = 0; c < CONTAINERS; c++)
            memcpy(b.memory[c], a.memory[c], a.used[c] < b.used[c] ? a.used[c] : b.used[c]);
        for (size_t i = 0; i < moves.count; i++) {
            const struct cairn_move *move = &moves.moves[i];

            for (uint64_t run = 0; run < move->run_count; run++)
                assert_false(move->source_container == move->target_container &&
                             move->source_offset + run * move->source_stride ==
                                 move->target_offset + run * move->target_stride);
            cairn_move_copy(move, a.memory[move->source_container],
                            b.memory[move->target_container]);
        }
        each_element(&b, b.memory, visit_check);
        for (size_t i = 0; i < cairn_layout_piece_count(b.layout); i++) {
            const struct cairn_piece *piece = cairn_layout_piece(b.layout, i);
            const struct cairn_tensor *tensor = cairn_layout_tensor(b.layout, piece->tensor);
            uint64_t bytes = cairn_dtype_bytes(tensor->dtype);

            for (uint32_t d = 0; d < tensor->dims; d++)
                bytes *= piece->extent[d];
            wanted += bytes;
        }
        assert_int_equal(moves.bytes + moves.in_place_bytes, wanted);
        if (seed % 4 == 0)
            assert_int_equal(moves.count, 0);
        cairn_moves_fini(&moves);
        model_free(&a);
        model_free(&b);
    }
}

/* ---- what moves look like, and what is refused ---- */

static struct cairn_layout *
new_layout(void)
{
    struct cairn_layout *layout = NULL;

    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    return layout;
}

/* Adds rows x columns of an F32 matrix of 64 x 48, from (row, column) on. */
static void
add_matrix(struct cairn_layout *layout, const char *name, uint32_t container, uint64_t row,
           uint64_t column, uint64_t rows, uint64_t columns, uint64_t begin, uint64_t end,
           uint64_t offset)
{
    struct cairn_slice slice = {.name = name,
                                .dtype = CAIRN_F32,
                                .kind = CAIRN_PARAM,
                                .dims = 2,
                                .shape = {64, 48},
                                .offset = {row, column},
                                .extent = {rows, columns}};

    assert_int_equal(cairn_layout_add(layout, container, &slice, begin, end, offset, NULL),
                     CAIRN_OK);
}

static struct cairn_moves
plan_ok(const struct cairn_layout *source, const struct cairn_layout *target,
        const struct cairn_reshard_options *options)
{
    struct cairn_moves moves = {0};

    assert_int_equal(cairn_reshard_plan(source, target, options, &moves, NULL, 0), CAIRN_OK);
    return moves;
}

static void
test_merged(void **state)
{
    struct cairn_layout *columns = new_layout(), *rows = new_layout(), *whole = new_layout();
    struct cairn_layout *flat = new_layout(), *flat_other = new_layout();
    struct cairn_moves moves;

    add_matrix(columns, "w", 0, 0, 0, 64, 16, 0, 0, 128);
    add_matrix(columns, "w", 1, 0, 16, 64, 32, 0, 0, 0);
    add_matrix(rows, "w", 0, 0, 0, 32, 48, 0, 0, 0);
    add_matrix(rows, "w", 1, 32, 0, 32, 48, 0, 0, 64);
    add_matrix(whole, "w", 0, 0, 0, 64, 48, 0, 0, 1000);
    add_matrix(flat, "w", 0, 0, 0, 64, 48, 0, 1001, 0);
    add_matrix(flat, "w", 0, 0, 0, 64, 48, 1001, 3000, 4004);
    add_matrix(flat, "w", 1, 0, 0, 64, 48, 3000, 3072, 0);
    add_matrix(flat_other, "w", 5, 0, 0, 64, 48, 500, 2900, 0);

    moves = plan_ok(columns, whole, NULL); /* a column merge: one move of rows for each rank */
    assert_int_equal(moves.count, 2);
    assert_int_equal(moves.moves[0].run_bytes, 64);
    assert_int_equal(moves.moves[0].run_count, 64);
    assert_int_equal(moves.moves[0].source_offset, 128);
    assert_int_equal(moves.moves[0].target_offset, 1000);
    assert_int_equal(moves.moves[0].target_stride, 192);
    assert_int_equal(moves.moves[1].run_bytes, 128);
    assert_int_equal(moves.moves[1].target_offset, 1064);
    cairn_moves_fini(&moves);

    moves = plan_ok(rows, whole, NULL); /* rows are contiguous */
    assert_int_equal(moves.count, 2);
    assert_int_equal(moves.moves[1].run_count, 1);
    assert_int_equal(moves.moves[1].run_bytes, 32 * 192);
    cairn_moves_fini(&moves);

    moves = plan_ok(flat, flat_other,
                    NULL); /* heads, blocks and tails join, across source pieces too */
    assert_int_equal(moves.count, 1);
    assert_int_equal(moves.moves[0].run_count, 1);
    assert_int_equal(moves.moves[0].run_bytes, 2400 * 4);
    assert_int_equal(moves.moves[0].source_offset, 2000);
    cairn_moves_fini(&moves);

    moves = plan_ok(flat, whole, NULL);
    assert_int_equal(moves.count, 2);
    assert_int_equal(moves.bytes, 64 * 48 * 4);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(columns);
    cairn_layout_destroy(rows);
    cairn_layout_destroy(whole);
    cairn_layout_destroy(flat);
    cairn_layout_destroy(flat_other);
}

static uint32_t
distance_cost(void *context, uint32_t source, uint32_t target)
{
    (*(uint32_t *)context)++;
    return source > target ? source - target : target - source;
}

static void
test_replicas(void **state)
{
    struct cairn_layout *source = new_layout(), *target = new_layout();
    uint32_t calls = 0, read[4] = {0};
    struct cairn_reshard_options near = {.cost = distance_cost, .cost_context = &calls};
    struct cairn_reshard_options same = {.same_containers = true};
    struct cairn_moves moves;

    for (uint32_t t = 0; t < 8; t++) {
        char name[8];

        (void)snprintf(name, sizeof name, "w%u", t);
        for (uint32_t c = 0; c < 4; c++)
            add_matrix(source, name, c, 0, 0, 64, 48, 0, 0, t * 12288);
        add_matrix(target, name, t % 5, 0, 0, 64, 48, 0, 0, t * 12288);
    }
    moves = plan_ok(source, target, NULL);
    assert_int_equal(moves.count, 8);
    for (size_t i = 0; i < moves.count; i++)
        read[moves.moves[i].source_container]++;
    for (uint32_t c = 0; c < 4; c++)
        assert_int_equal(read[c], 2); /* equal holders share the load */
    cairn_moves_fini(&moves);

    moves = plan_ok(source, target, &near);
    assert_true(calls > 0);
    for (size_t i = 0; i < moves.count; i++)
        assert_int_equal(moves.moves[i].source_container, moves.moves[i].target_container == 4
                                                              ? 3
                                                              : moves.moves[i].target_container);
    cairn_moves_fini(&moves);

    moves = plan_ok(source, target,
                    &same); /* all but the tensor of container 4 stands where it should */
    assert_int_equal(moves.count, 1);
    assert_int_equal(moves.bytes, 12288);
    assert_int_equal(moves.in_place_bytes, 7 * 12288);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
}

/*
 * More equal holders than are looked at for each piece: the load is spread, and the target's own
 * copy is found.
 */
static void
test_many_replicas(void **state)
{
    struct cairn_layout *source = new_layout(), *target = new_layout();
    struct cairn_reshard_options same = {.same_containers = true};
    uint64_t read[200] = {0};
    struct cairn_moves moves;

    for (uint32_t c = 0; c < 200; c++) {
        add_matrix(source, "norm", c, 0, 0, 64, 48, 0, 0, 0);
        add_matrix(target, "norm", c + 200, 0, 0, 64, 48, 0, 0, 0);
    }
    moves = plan_ok(source, target, NULL);
    assert_int_equal(moves.count, 200);
    for (size_t i = 0; i < moves.count; i++)
        assert_true(++read[moves.moves[i].source_container] <= 2);
    cairn_moves_fini(&moves);
    moves = plan_ok(source, source, &same);
    assert_int_equal(moves.count, 0);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
}

/* Strides that meet in the middle: run 2 of 5 is in place, the others move. */
static void
test_one_run_in_place(void **state)
{
    struct cairn_layout *source = new_layout(), *target = new_layout();
    struct cairn_reshard_options same = {.same_containers = true};
    struct cairn_slice slice = {.name = "s",
                                .dtype = CAIRN_U8,
                                .kind = CAIRN_BUFFER,
                                .dims = 2,
                                .shape = {5, 4},
                                .extent = {5, 4}};
    struct cairn_piece piece = {
        .tensor = 0, .extent = {5, 4}, .offset_bytes = 20, .stride_bytes = {10, 1}};
    struct cairn_moves moves;

    assert_int_equal(cairn_layout_add(source, 0, &slice, 1, 1, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add(target, 0, &slice, 1, 1, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add_piece(source, &piece), CAIRN_OK);
    piece.offset_bytes = 30;
    piece.stride_bytes[0] = 5;
    assert_int_equal(cairn_layout_add_piece(target, &piece), CAIRN_OK);
    moves = plan_ok(source, target, &same);
    assert_int_equal(moves.in_place_bytes, 4);
    assert_int_equal(moves.bytes, 16);
    assert_int_equal(moves.count, 2);
    assert_int_equal(moves.moves[0].run_count, 2);
    assert_int_equal(moves.moves[1].run_count, 2);
    assert_int_equal(moves.moves[1].source_offset, 50);
    assert_int_equal(moves.moves[1].target_offset, 45);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
}

/* Expects the error, the text in the report, and an untouched out-parameter. */
static void
refused(const struct cairn_layout *source, const struct cairn_layout *target, cairn_err expected,
        const char *text)
{
    struct cairn_moves moves, untouched;
    char report[256], small[9];

    memset(&moves, 0x5a, sizeof moves);
    memset(&untouched, 0x5a, sizeof untouched);
    assert_int_equal(cairn_reshard_plan(source, target, NULL, &moves, report, sizeof report),
                     expected);
    if (!strstr(report, text))
        fail_msg("\"%s\" lacks \"%s\"", report, text);
    assert_memory_equal(&moves, &untouched, sizeof moves);
    memset(small, 'x', sizeof small);
    assert_int_equal(cairn_reshard_plan(source, target, NULL, &moves, small, 8), expected);
    assert_int_equal(small[7], 0); /* cut, ended, and not one byte more */
    assert_int_equal(small[8], 'x');
}

static void
test_refused(void **state)
{
    struct cairn_layout *whole = new_layout(), *holed = new_layout(), *other = new_layout();
    struct cairn_layout *doubled = new_layout(), *interleaved = new_layout(), *bent = new_layout();
    struct cairn_layout *short_of_one = new_layout();
    struct cairn_slice slice = {.name = "w",
                                .dtype = CAIRN_BF16,
                                .kind = CAIRN_PARAM,
                                .dims = 2,
                                .shape = {64, 48},
                                .extent = {64, 48}};
    struct cairn_piece piece = {.extent = {64, 48}, .stride_bytes = {4, 256}};

    add_matrix(whole, "w", 0, 0, 0, 64, 48, 0, 0, 0);
    add_matrix(holed, "w", 0, 0, 0, 64, 24, 0, 0, 0);
    add_matrix(holed, "w", 1, 0, 24, 63, 24, 0, 0, 0);
    refused(holed, whole, CAIRN_CORRUPT, "w: the source lacks [63:64, 24:48]");
    add_matrix(holed, "w", 1, 0, 20, 60, 24, 0, 0, 0); /* overlapping, and still short of a row */
    refused(holed, whole, CAIRN_CORRUPT, "w: the source lacks [63:64, 24:48]");
    add_matrix(short_of_one, "w", 0, 0, 0, 64, 48, 1, 3072, 0);
    refused(short_of_one, whole, CAIRN_CORRUPT, "w: the source lacks [0:1, 0:1]");

    add_matrix(other, "v", 0, 0, 0, 64, 48, 0, 0, 0);
    refused(other, whole, CAIRN_NOT_FOUND, "w: not in the source");
    slice.shape[1] = slice.extent[1] = 48;
    assert_int_equal(cairn_layout_add(other, 0, &slice, 0, 0, 12288, NULL), CAIRN_OK);
    refused(other, whole, CAIRN_INVAL, "w: BF16 in the source, F32 in the target");
    cairn_layout_destroy(other);
    other = new_layout();
    slice.dtype = CAIRN_F32;
    slice.shape[1] = slice.extent[1] = 47;
    assert_int_equal(cairn_layout_add(other, 0, &slice, 0, 0, 0, NULL), CAIRN_OK);
    refused(other, whole, CAIRN_INVAL,
            "w: shape [0:64, 0:47] in the source, [0:64, 0:48] in the target");

    add_matrix(doubled, "w", 3, 0, 0, 32, 48, 0, 0, 0);
    add_matrix(doubled, "w", 3, 32, 0, 32, 48, 0, 0, 6143);
    refused(whole, doubled, CAIRN_CORRUPT, "w and w share byte 6143 of container 3");

    /*
     * Two column blocks in one matrix of 192-byte rows, then a third that meets the second in one
     * byte.
     */
    add_matrix(interleaved, "w", 0, 0, 0, 1, 1, 1, 1, 0);
    piece = (struct cairn_piece){.extent = {64, 24}, .stride_bytes = {192, 4}, .offset_bytes = 7};
    assert_int_equal(cairn_layout_add_piece(interleaved, &piece), CAIRN_OK);
    piece.start[1] = 24;
    piece.extent[1] = 12;
    piece.offset_bytes = 7 + 96;
    assert_int_equal(cairn_layout_add_piece(interleaved, &piece), CAIRN_OK);
    {
        struct cairn_moves moves = plan_ok(whole, interleaved, NULL);

        assert_int_equal(moves.bytes, 64 * 36 * 4);
        cairn_moves_fini(&moves);
    }
    piece.start[1] = 36;
    piece.offset_bytes = 7 + 96 + 47;
    assert_int_equal(cairn_layout_add_piece(interleaved, &piece), CAIRN_OK);
    refused(whole, interleaved, CAIRN_CORRUPT, "w and w share byte 150 of container 0");

    add_matrix(bent, "w", 0, 0, 0, 1, 1, 1, 1, 0);
    piece = (struct cairn_piece){.extent = {64, 48}, .stride_bytes = {191, 4}};
    assert_int_equal(cairn_layout_add_piece(bent, &piece), CAIRN_OK);
    refused(whole, bent, CAIRN_CORRUPT, "w: the strides of a piece in container 0 do not nest");
    cairn_layout_destroy(whole);
    cairn_layout_destroy(holed);
    cairn_layout_destroy(other);
    cairn_layout_destroy(doubled);
    cairn_layout_destroy(interleaved);
    cairn_layout_destroy(bent);
    cairn_layout_destroy(short_of_one);
}

/*
 * Pieces whose hulls meet and whose rows are not rectangles, so that only their runs show that
 * they share nothing.
 */
static void
test_woven_target(void **state)
{
    struct cairn_layout *source = new_layout(), *target = new_layout();
    struct cairn_slice slice = {.name = "b",
                                .dtype = CAIRN_U8,
                                .kind = CAIRN_BUFFER,
                                .dims = 1,
                                .shape = {9},
                                .extent = {9}};
    struct cairn_piece piece = {.extent = {3}, .stride_bytes = {10}};
    struct cairn_moves moves;

    assert_int_equal(cairn_layout_add(source, 0, &slice, 0, 0, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add(target, 0, &slice, 1, 1, 0, NULL), CAIRN_OK);
    assert_int_equal(cairn_layout_add_piece(target, &piece), CAIRN_OK); /* 0 10 20 */
    piece.start[0] = 3;
    piece.offset_bytes = 3;
    piece.stride_bytes[0] = 8;
    assert_int_equal(cairn_layout_add_piece(target, &piece), CAIRN_OK); /* 3 11 19 */
    moves = plan_ok(source, target, NULL);
    assert_int_equal(moves.bytes, 6);
    cairn_moves_fini(&moves);
    piece.start[0] = 6;
    piece.offset_bytes = 1;
    piece.stride_bytes[0] = 9;
    assert_int_equal(cairn_layout_add_piece(target, &piece), CAIRN_OK); /* 1 10 19 */
    refused(source, target, CAIRN_CORRUPT, "b and b share byte 10 of container 0");
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
}

/* A tensor of 3 x 4 bytes, contiguous at byte 0 of container 0, as the source of what follows. */
static struct cairn_layout *
new_bytes(bool with_piece)
{
    struct cairn_layout *layout = new_layout();
    struct cairn_slice slice = {.name = "b",
                                .dtype = CAIRN_U8,
                                .kind = CAIRN_BUFFER,
                                .dims = 2,
                                .shape = {3, 4},
                                .extent = {3, 4}};

    assert_int_equal(
        cairn_layout_add(layout, 0, &slice, with_piece ? 0 : 1, with_piece ? 0 : 1, 0, NULL),
        CAIRN_OK);
    return layout;
}

/* Adds `rows` x 2 bytes, from column `column` on, to container 0. */
static void
add_columns(struct cairn_layout *layout, uint64_t column, uint64_t rows, uint64_t offset,
            uint64_t stride)
{
    struct cairn_piece piece = {.start = {0, column},
                                .extent = {rows, 2},
                                .offset_bytes = offset,
                                .stride_bytes = {stride, 1}};

    assert_int_equal(cairn_layout_add_piece(layout, &piece), CAIRN_OK);
}

/* Neighbouring columns become one move only where they stay neighbours in every row. */
static void
test_columns_joined(void **state)
{
    static const struct {
        uint64_t rows, stride; /* of the right half; the left has 3 rows at a stride of 10 */
        size_t moves;
    } cases[] = {{3, 10, 1}, {3, 20, 2}, {2, 10, 2}, {1, 10, 2}};
    struct cairn_layout *source = new_bytes(true);

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cairn_layout *target = new_bytes(false);
        struct cairn_moves moves;
        uint8_t from[12], to[64];

        add_columns(target, 0, 3, 0, 10);
        add_columns(target, 2, cases[i].rows, 2, cases[i].stride);
        moves = plan_ok(source, target, NULL);
        assert_int_equal(moves.count, cases[i].moves);
        assert_int_equal(moves.bytes, 6 + 2 * cases[i].rows);
        for (uint8_t b = 0; b < 12; b++)
            from[b] = b;
        memset(to, POISON, sizeof to);
        for (size_t m = 0; m < moves.count; m++)
            cairn_move_copy(&moves.moves[m], from, to);
        for (uint64_t row = 0; row < 3; row++) {
            assert_memory_equal(to + row * 10, from + row * 4, 2);
            if (row < cases[i].rows)
                assert_memory_equal(to + 2 + row * cases[i].stride, from + row * 4 + 2, 2);
        }
        cairn_moves_fini(&moves);
        cairn_layout_destroy(target);
    }
    cairn_layout_destroy(source);
}

/*
 * A column block that begins at the end of one row and ends in the next meets the block that
 * begins there.
 */
static void
test_columns_wrapped(void **state)
{
    struct cairn_layout *source = new_bytes(true), *target = new_bytes(false);
    struct cairn_moves moves;

    add_columns(target, 0, 3, 0, 10);
    add_columns(target, 2, 3, 8, 10); /* 8 9, 18 19, 28 29 */
    moves = plan_ok(source, target, NULL);
    cairn_moves_fini(&moves);
    cairn_layout_destroy(target);
    target = new_bytes(false);
    add_columns(target, 0, 3, 0, 10);
    add_columns(target, 2, 3, 9, 10); /* 9 10, 19 20, 29 30 */
    refused(source, target, CAIRN_CORRUPT, "b and b share byte 10 of container 0");
    cairn_layout_destroy(source);
    cairn_layout_destroy(target);
}

/* 1,000 tensors, 256 ranks to 192, flat ranges of column blocks: quadratic work would not end. */
static void
test_large(void **state)
{
    enum { TENSORS = 1000, FROM = 256, TO = 192 };
    struct cairn_layout *layouts[2] = {new_layout(), new_layout()};
    uint64_t elements = 1024 * 512, offsets[FROM] = {0};
    struct cairn_moves moves;
    struct timespec begin, end;

    for (uint32_t side = 0; side < 2; side++) {
        uint32_t ranks = side ? TO : FROM, columns = side ? 4 : 8, per_column = ranks / columns;

        memset(offsets, 0, sizeof offsets);
        for (uint32_t t = 0; t < TENSORS; t++) {
            for (uint32_t r = 0; r < ranks; r++) {
                char name[32];
                uint64_t width = 512 / columns, block = 1024 * width, part = r / columns;
                struct cairn_slice slice = {.name = name,
                                            .dtype = CAIRN_BF16,
                                            .kind = CAIRN_PARAM,
                                            .dims = 2,
                                            .shape = {1024, 512},
                                            .offset = {0, r % columns * width},
                                            .extent = {1024, width}};
                uint64_t first = block * part / per_column, last = block * (part + 1) / per_column;

                (void)snprintf(name, sizeof name, "layers.%u.weight", t);
                assert_int_equal(
                    cairn_layout_add(layouts[side], r, &slice, first, last, offsets[r], NULL),
                    CAIRN_OK);
                offsets[r] += (last - first) * 2;
            }
        }
    }
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &begin), 0);
    assert_int_equal(cairn_layout_check_tiling(layouts[0], true, NULL, 0), CAIRN_OK);
    moves = plan_ok(layouts[0], layouts[1], NULL);
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &end), 0);
    assert_int_equal(moves.bytes, TENSORS * elements * 2);
    print_message("planned %zu moves from %zu to %zu pieces in %.2f s\n", moves.count,
                  cairn_layout_piece_count(layouts[0]), cairn_layout_piece_count(layouts[1]),
                  (double)(end.tv_sec - begin.tv_sec) +
                      (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
    assert_true(end.tv_sec - begin.tv_sec <
                60); /* far above what a loaded machine needs, far below S x T */
    cairn_moves_fini(&moves);
    cairn_layout_destroy(layouts[0]);
    cairn_layout_destroy(layouts[1]);
}

/*
 * Every run length near the borders of the copy's regimes, at odd addresses, and one move larger
 * than caches.
 */
static void
test_copy(void **state)
{
    static const uint64_t lengths[] = {1,   2,   3,   4,   7,    8,    12,   16,   17,
                                       32,  48,  63,  64,  65,   96,   128,  200,  255,
                                       256, 257, 511, 512, 1000, 1024, 2047, 4096, 5000};
    enum { BYTES = 24 << 20 };
    uint8_t *source = malloc(BYTES), *target = malloc(BYTES), *expected = malloc(BYTES);

    assert_non_null(source);
    assert_non_null(target);
    assert_non_null(expected);
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (uint8_t)(i * 167 + (i >> 8));
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        for (uint64_t large = 0; large < 2; large++) {
            struct cairn_move move = {.source_offset = 3 + l,
                                      .target_offset = 5,
                                      .run_bytes = lengths[l],
                                      .source_stride = lengths[l] + 1,
                                      .target_stride = lengths[l] + (l % 3)};

            move.run_count = large && lengths[l] >= 64 ? (20u << 20) / (lengths[l] + 2) : 37;
            memset(target, POISON, BYTES);
            memset(expected, POISON, BYTES);
            for (uint64_t run = 0; run < move.run_count; run++)
                memcpy(expected + move.target_offset + run * move.target_stride,
                       source + move.source_offset + run * move.source_stride, move.run_bytes);
            cairn_move_copy(&move, source, target);
            assert_int_equal(memcmp(target, expected, BYTES), 0);
        }
    }
    free(source);
    free(target);
    free(expected);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_same_containers),
        cmocka_unit_test(test_merged),         cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_many_replicas),  cmocka_unit_test(test_one_run_in_place),
        cmocka_unit_test(test_refused),        cmocka_unit_test(test_woven_target),
        cmocka_unit_test(test_columns_joined), cmocka_unit_test(test_columns_wrapped),
        cmocka_unit_test(test_large),          cmocka_unit_test(test_copy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
