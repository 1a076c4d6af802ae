/*
 * tests/unit/snapshot/test_tiling.c - sums and keys of parts say the same as
 * cairn_layout_check_tiling of all pieces in one place: over random tilings, with each kind of
 * defect; and the tensors that are wrong are found, and named.
 */
#include "snapshot/tiling.h"

#include "base/limits.h"
#include "snapshot/manifest.h"
#include "tests/support/cmocka.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PARTS = 3, ENTRIES_MAX = 400, NAMES = 8, ROUNDS = 400 };

static const char *const names[NAMES] = {
    "a", "layers.0.weight", "layers.1.weight", "b", "scalar", "moment.a", "x", "y"};
static uint64_t seed;

/* What one node captured. */
struct part {
    struct cairn_manifest_entry entries[ENTRIES_MAX];
    uint32_t count;
    uint64_t used_bytes;
};

struct job {
    struct part parts[PARTS];
};

static struct cairn_slice
slice_of(const char *name, uint32_t dims, const uint64_t *shape)
{
    struct cairn_slice slice = {.name = name,
                                .dtype = CAIRN_U8,
                                .kind = CAIRN_PARAM,
                                .dims = dims,
                                .device = -1,
                                .replica_count = 1};

    memcpy(slice.shape, shape, dims * sizeof *shape);
    return slice;
}

static void
add(struct job *job, uint32_t p, const struct cairn_slice *slice)
{
    struct part *part = &job->parts[p];
    struct cairn_manifest_entry *entry = &part->entries[part->count];

    assert_true(part->count < ENTRIES_MAX);
    *entry =
        (struct cairn_manifest_entry){.slice = *slice, .offset_bytes = part->used_bytes, .rank = p};
    part->used_bytes +=
        (cairn_slice_elements(slice) * cairn_dtype_bytes(slice->dtype) + 63) / 64 * 64;
    part->count++;
}

/* Cuts a box into pieces, which go to any parts. */
static void
tile(struct job *job, struct cairn_slice slice, uint32_t depth)
{
    uint32_t dim = slice.dims ? (uint32_t)lcg_below(&seed, slice.dims) : 0;
    struct cairn_slice rest = slice;

    if (slice.dims == 0 || depth == 0 || slice.extent[dim] < 2) {
        add(job, (uint32_t)lcg_below(&seed, PARTS), &slice);
        return;
    }
    slice.extent[dim] = 1 + lcg_below(&seed, slice.extent[dim] - 1);
    rest.offset[dim] += slice.extent[dim];
    rest.extent[dim] -= slice.extent[dim];
    tile(job, slice, depth - 1);
    tile(job, rest, depth - 1);
}

/* Cuts the whole box into flat ranges, as sharded optimizers do. */
static void
tile_flat(struct job *job, struct cairn_slice slice)
{
    uint64_t elements = 1, at = 0;

    for (uint32_t d = 0; d < slice.dims; d++)
        elements *= slice.extent[d];
    while (at < elements) {
        slice.flat_begin = at;
        at += 1 + lcg_below(&seed, elements - at);
        slice.flat_end = at;
        add(job, (uint32_t)lcg_below(&seed, PARTS), &slice);
    }
}

static void
make_job(struct job *job)
{
    memset(job, 0, sizeof *job);
    for (uint32_t n = 0; n < NAMES; n++) {
        uint32_t dims = n == 4 ? 0 : 1 + (uint32_t)lcg_below(&seed, 3);
        uint64_t shape[3];
        struct cairn_slice slice;

        for (uint32_t d = 0; d < dims; d++)
            shape[d] = 1 + lcg_below(&seed, 17);
        slice = slice_of(names[n], dims, shape);
        memcpy(slice.extent, shape, dims * sizeof *shape);
        if (lcg_below(&seed, 3) == 0 && dims > 0)
            tile_flat(job, slice);
        else
            tile(job, slice, (uint32_t)lcg_below(&seed, 5));
    }
}

static void
pack(const struct part *part, uint32_t p, uint64_t step, uint8_t **bytes, size_t *len)
{
    uint64_t blocks = part->used_bytes / CAIRN_BLOCK_BYTES + 1;
    struct cairn_manifest_rank rank = {
        .rank = p, .world = PARTS, .region_bytes = blocks * CAIRN_BLOCK_BYTES};
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = {1, step},
                                      .container = p,
                                      .container_count = PARTS,
                                      .container_bytes = blocks * CAIRN_BLOCK_BYTES,
                                      .ranks = &rank,
                                      .rank_count = 1,
                                      .entry_count = part->count,
                                      .entries =
                                          (struct cairn_manifest_entry *)(uintptr_t)part->entries,
                                      .block_count = blocks};

    manifest.block_crcs = calloc(blocks, sizeof(uint64_t));
    assert_non_null(manifest.block_crcs);
    manifest.block_crcs[0] = step * 77;
    assert_int_equal(cairn_manifest_pack(&manifest, bytes, len), CAIRN_OK);
    free(manifest.block_crcs);
}

static void
open_tilings(const struct job *job, struct cairn_tiling *tilings[PARTS])
{
    for (uint32_t p = 0; p < PARTS; p++) {
        uint8_t *bytes = NULL;
        size_t len = 0;

        pack(&job->parts[p], p, 1, &bytes, &len);
        assert_int_equal(cairn_tiling_create(bytes, len, &tilings[p]), CAIRN_OK);
        free(bytes);
    }
}

static void
close_tilings(struct cairn_tiling *tilings[PARTS])
{
    for (uint32_t p = 0; p < PARTS; p++)
        cairn_tiling_destroy(tilings[p]);
}

static int
compare_keys(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;

    return (*a > *b) - (*a < *b);
}

/* The prefix of a tensor that is wrong, by the sums and keys alone; false where nothing is. */
static bool
find_wrong(struct cairn_tiling *const tilings[PARTS], uint64_t *prefix)
{
    uint64_t keys[PARTS * ENTRIES_MAX];
    uint64_t total[CAIRN_TILING_FAN] = {0}, sums[CAIRN_TILING_FAN];
    size_t count = 0;

    for (uint32_t p = 0; p < PARTS; p++) {
        cairn_tiling_sums(tilings[p], sums);
        for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
            total[i] = cairn_tiling_add(total[i], sums[i]);
    }
    for (*prefix = 0; *prefix < CAIRN_TILING_FAN; (*prefix)++)
        if (total[*prefix] != 0)
            return true;
    for (uint32_t p = 0; p < PARTS; p++) {
        size_t own;
        const uint64_t *origins = cairn_tiling_origins(tilings[p], &own);

        memcpy(keys + count, origins, own * sizeof *keys);
        count += own;
    }
    qsort(keys, count, sizeof *keys, compare_keys);
    for (size_t i = 1; i < count; i++)
        if (keys[i] == keys[i - 1]) {
            *prefix = cairn_tiling_prefix(keys[i]);
            return true;
        }
    return false;
}

/* What is wrong, in words. */
static void
explain(struct cairn_tiling *const tilings[PARTS], uint64_t prefix, char *text, size_t text_bytes)
{
    struct cairn_tiling_pieces pieces = {0};
    uint8_t bytes[60000];

    for (uint32_t p = 0; p < PARTS; p++) {
        size_t len = cairn_tiling_pack_pieces(tilings[p], prefix, bytes, sizeof bytes);

        assert_int_equal(cairn_tiling_add_pieces(&pieces, bytes, len), CAIRN_OK);
    }
    cairn_tiling_explain(&pieces, text, text_bytes);
    cairn_tiling_pieces_fini(&pieces);
}

/* True when all pieces in one place are found to be a tiling. */
static bool
is_tiled(const struct job *job)
{
    struct cairn_layout *layout = NULL;
    bool agree = true, tiled;

    assert_int_equal(cairn_layout_create(&layout), CAIRN_OK);
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < job->parts[p].count; i++) {
            const struct cairn_slice *slice = &job->parts[p].entries[i].slice;

            agree &= cairn_layout_add(layout, p, slice, slice->flat_begin, slice->flat_end, 0,
                                      NULL) == CAIRN_OK;
        }
    tiled = agree && cairn_layout_check_tiling(layout, true, NULL, 0) == CAIRN_OK;
    cairn_layout_destroy(layout);
    return tiled;
}

/* Some entry of some part. */
static struct cairn_manifest_entry *
some_entry(struct job *job, uint32_t *p)
{
    do
        *p = (uint32_t)lcg_below(&seed, PARTS);
    while (job->parts[*p].count == 0);
    return &job->parts[*p].entries[lcg_below(&seed, job->parts[*p].count)];
}

static void
take_out(struct job *job)
{
    uint32_t p;
    struct cairn_manifest_entry *entry = some_entry(job, &p);

    *entry = job->parts[p].entries[--job->parts[p].count];
}

static void
put_in_again(struct job *job)
{
    uint32_t p;
    struct cairn_slice slice = some_entry(job, &p)->slice;

    add(job, (uint32_t)lcg_below(&seed, PARTS), &slice);
}

/* A rank that registers another rank's box instead of its own, as large: no count of elements
 * tells. */
static void
take_out_and_put_in(struct job *job)
{
    uint64_t shape[1] = {2 * PARTS};
    struct cairn_slice slice = slice_of("misplaced", 1, shape);

    slice.extent[0] = 2;
    for (uint32_t p = 0; p < PARTS; p++) {
        slice.offset[0] = p == 1 ? 4 : 2 * p;
        add(job, p, &slice);
    }
}

/* Undeclared replicas. */
static void
double_tensor(struct job *job)
{
    const char *name = names[lcg_below(&seed, NAMES)];
    struct job before = *job;

    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < before.parts[p].count; i++)
            if (strcmp(before.parts[p].entries[i].slice.name, name) == 0)
                add(job, p, &before.parts[p].entries[i].slice);
}

/* One part says something else of all that it has of a tensor; where it has all there is, that
 * is not a defect. */
static void
disagree(struct job *job, bool shape)
{
    uint32_t p;
    const char *name;

    do
        name = some_entry(job, &p)->slice.name;
    while (strcmp(name, "scalar") == 0);
    for (uint32_t i = 0; i < job->parts[p].count; i++) {
        struct cairn_slice *slice = &job->parts[p].entries[i].slice;

        if (strcmp(slice->name, name) != 0)
            continue;
        if (shape && slice->flat_end == 0)
            slice->shape[0]++;
        else
            slice->dtype = CAIRN_BOOL;
    }
}

typedef void (*defect_fn)(struct job *job);

static void
disagree_on_shape(struct job *job)
{
    disagree(job, true);
}

static void
disagree_on_dtype(struct job *job)
{
    disagree(job, false);
}

static void
make_no_defect(struct job *job)
{
}

/* Both say the same, over many tilings; and how often there was a defect. */
static uint32_t
compare(defect_fn make_defect)
{
    struct job *job = calloc(1, sizeof *job);
    uint32_t defects = 0;

    assert_non_null(job);
    for (seed = 1; seed <= ROUNDS;) {
        uint64_t round = seed, prefix;
        struct cairn_tiling *tilings[PARTS];
        char text[400] = "";
        bool wrong;

        make_job(job);
        make_defect(job);
        open_tilings(job, tilings);
        wrong = find_wrong(tilings, &prefix);
        if (wrong == is_tiled(job))
            fail_msg("round %u: the sums say %s", (unsigned)round, wrong ? "wrong" : "right");
        defects += wrong;
        if (wrong) {
            explain(tilings, prefix, text, sizeof text);
            if (!strchr(text, ':') || strstr(text, "not every element"))
                fail_msg("round %u: it is not found: %s", (unsigned)round, text);
        }
        close_tilings(tilings);
        seed = round + 1;
    }
    free(job);
    return defects;
}

static void
tilings_are_good(void **state)
{
    assert_int_equal(compare(make_no_defect), 0);
}

static void
every_defect_is_found(void **state)
{
    assert_true(compare(take_out) > ROUNDS / 2); /* with its only piece a tensor is gone for
                                                  * everyone */
    assert_int_equal(compare(put_in_again), ROUNDS);
    assert_int_equal(compare(take_out_and_put_in), ROUNDS);
    assert_int_equal(compare(double_tensor), ROUNDS);
    assert_true(compare(disagree_on_shape) > ROUNDS / 2);
    assert_true(compare(disagree_on_dtype) > ROUNDS / 4);
}

static void
names_and_ranks_are_said(void **state)
{
    struct job *job = calloc(1, sizeof *job);
    struct cairn_tiling *tilings[PARTS];
    uint64_t prefix;
    char text[256];

    assert_non_null(job);
    seed = 5;
    make_job(job);
    take_out_and_put_in(job);
    open_tilings(job, tilings);
    assert_true(find_wrong(tilings, &prefix));
    explain(tilings, prefix, text, sizeof text);
    assert_string_equal(text, "misplaced: pieces in ranks 1 and 2 both hold [4:6]; misplaced: 2 of "
                              "6 elements are in no piece, such as [2:4]");
    close_tilings(tilings);
    free(job);
}

/* Every rank says that it is one of as many replicas as there are; of few bytes one number captures
 * all. */
static void
replicate(struct job *job, const char *name, uint64_t elements, const uint32_t numbers[PARTS],
          uint32_t count)
{
    for (uint32_t p = 0; p < PARTS; p++) {
        struct cairn_slice slice = slice_of(name, 1, &elements);
        uint64_t begin, end;

        slice.extent[0] = elements;
        slice.replica_index = numbers[p];
        slice.replica_count = count;
        cairn_slice_share(&slice, &begin, &end);
        slice.flat_begin = begin;
        slice.flat_end = end;
        add(job, p, &slice);
    }
}

static void
replicas_are_numbered_once_each(void **state)
{
    static const uint64_t sizes[] = {1, 64, 65, 1000};
    struct job *job = calloc(1, sizeof *job);
    struct cairn_tiling *tilings[PARTS];
    uint64_t prefix;
    char text[256];

    assert_non_null(job);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t combination = 0; combination < PARTS * PARTS * PARTS; combination++) {
            const uint32_t numbers[PARTS] = {combination / 9, combination / 3 % 3, combination % 3};
            bool good =
                numbers[0] != numbers[1] && numbers[1] != numbers[2] && numbers[0] != numbers[2];

            memset(job, 0, sizeof *job);
            replicate(job, "bias", sizes[s], numbers, PARTS);
            open_tilings(job, tilings);
            assert_int_equal(find_wrong(tilings, &prefix), !good);
            if (!good) {
                explain(tilings, prefix, text, sizeof text);
                assert_non_null(strstr(text, "bias: of its 3 replicas none is number"));
            }
            close_tilings(tilings);
        }
    free(job);
}

/* Replicas in words: a number that is missing, one that is there twice, and a count that not all
 * agree on. */
static void
replicas_are_said(void **state)
{
    static const struct {
        uint32_t numbers[PARTS], count;
        const char *text;
    } cases[] = {
        {{1, 1, 2},
         3,
         "bias: of its 3 replicas none is number 0, and ranks 0 and 1 both are number 1"},
        {{1, 1, 1},
         2,
         "bias: of its 2 replicas none is number 0, and ranks 0 and 1 both are number 1"},
        {{0, 1, 1}, 2, "bias: of its 2 replicas ranks 1 and 2 both are number 1"},
        {{0, 1, 3}, 4, "bias: of its 4 replicas none is number 2"},
    };
    struct job *job = calloc(1, sizeof *job);
    struct cairn_tiling *tilings[PARTS];
    uint64_t prefix;
    char text[256];

    assert_non_null(job);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(job, 0, sizeof *job);
        replicate(job, "bias", 8, cases[i].numbers, cases[i].count);
        open_tilings(job, tilings);
        assert_true(find_wrong(tilings, &prefix));
        explain(tilings, prefix, text, sizeof text);
        assert_string_equal(text, cases[i].text);
        close_tilings(tilings);
    }
    free(job);
}

/* Shapes as large as can be are added up too. */
static void
large_shapes(void **state)
{
    uint64_t shape[2] = {UINT64_C(1) << 31, UINT64_C(1) << 31};
    struct cairn_slice left = slice_of("large", 2, shape), right;

    left.extent[0] = shape[0];
    left.extent[1] = 12345;
    right = left;
    right.offset[1] = 12345;
    right.extent[1] = shape[1] - 12345;
    for (uint64_t off = 0; off < 2; off++) {
        struct cairn_tiling_pieces pieces = {0};
        char text[256];

        assert_int_equal(cairn_layout_create(&pieces.layout), CAIRN_OK);
        right.offset[1] = 12345 + off;
        right.extent[1] = shape[1] - 12345 - off;
        assert_int_equal(cairn_layout_add(pieces.layout, 0, &left, 0, 0, 0, NULL), CAIRN_OK);
        assert_int_equal(cairn_layout_add(pieces.layout, 1, &right, 0, 0, 0, NULL), CAIRN_OK);
        cairn_tiling_explain(&pieces, text, sizeof text);
        assert_non_null(strstr(text, off ? "are in no piece, such as [0:2147483648, 12345:12346]"
                                         : "not every element"));
        cairn_tiling_pieces_fini(&pieces);
    }
}

/* Of more pieces than can be brought together nobody knows which tensor it is: none is blamed
 * alone. */
static void
pieces_that_are_cut_off(void **state)
{
    uint64_t shape[1] = {4};
    struct cairn_slice whole = slice_of("whole", 1, shape), half = slice_of("half", 1, shape);
    struct cairn_tiling_pieces pieces = {.cut = true};
    char text[256];

    whole.extent[0] = 4;
    half.extent[0] = 2;
    assert_int_equal(cairn_layout_create(&pieces.layout), CAIRN_OK);
    assert_int_equal(cairn_layout_add(pieces.layout, 0, &whole, 0, 0, 0, NULL), CAIRN_OK);
    cairn_tiling_explain(&pieces, text, sizeof text);
    assert_string_equal(text, "whole: not every element is registered by exactly one rank");
    assert_int_equal(cairn_layout_add(pieces.layout, 0, &half, 0, 0, 0, NULL), CAIRN_OK);
    cairn_tiling_explain(&pieces, text, sizeof text);
    assert_string_equal(
        text, "whole, or one of 1 others: not every element is registered by exactly one rank");
    cairn_tiling_pieces_fini(&pieces);
}

static double
processor_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

/* The node with the most ranks there can be, of a job of 10,000 ranks that divide 1,000 tensors:
 * what a new layout costs there. */
static void
a_large_node(void **state)
{
    enum {
        RANKS = 64,
        TENSORS = 1000,
        WORLD = 10000,
        SHARE = 4096,
        REGION = (TENSORS * SHARE / CAIRN_BLOCK_BYTES + 1) * CAIRN_BLOCK_BYTES
    };
    struct cairn_manifest_entry *entries = calloc((size_t)RANKS * TENSORS, sizeof *entries);
    struct cairn_manifest_rank ranks[RANKS];
    struct cairn_manifest manifest = {.job_id = 1,
                                      .generation = {1, 1},
                                      .container_count = 157,
                                      .container_bytes = (uint64_t)RANKS * REGION,
                                      .ranks = ranks,
                                      .rank_count = RANKS,
                                      .entry_count = RANKS * TENSORS,
                                      .entries = entries,
                                      .block_count = (uint64_t)RANKS * REGION / CAIRN_BLOCK_BYTES};
    static char labels[TENSORS][32];
    struct cairn_tiling *tiling = NULL;
    uint8_t *bytes = NULL;
    size_t len = 0, origins;
    double begin, added;

    assert_non_null(entries);
    manifest.block_crcs = calloc(manifest.block_count, sizeof(uint64_t));
    assert_non_null(manifest.block_crcs);
    for (uint32_t i = 0; i < RANKS * TENSORS; i++) {
        uint32_t rank = i / TENSORS, t = i % TENSORS;

        snprintf(labels[t], sizeof labels[t], "model.layers.%u.weight", t);
        ranks[rank] = (struct cairn_manifest_rank){.rank = rank,
                                                   .world = WORLD,
                                                   .region_offset = (uint64_t)rank * REGION,
                                                   .region_bytes = REGION};
        entries[i] = (struct cairn_manifest_entry){
            .slice = slice_of(labels[t], 2, (uint64_t[]){SHARE, WORLD}),
            .offset_bytes = (uint64_t)rank * REGION + t * SHARE,
            .rank = rank};
        memcpy(entries[i].slice.extent, entries[i].slice.shape, sizeof entries[i].slice.extent);
        entries[i].slice.flat_begin = (uint64_t)rank * SHARE;
        entries[i].slice.flat_end = (rank + UINT64_C(1)) * SHARE;
    }
    assert_int_equal(cairn_manifest_pack(&manifest, &bytes, &len), CAIRN_OK);
    begin = processor_ms();
    assert_int_equal(cairn_tiling_create(bytes, len, &tiling), CAIRN_OK);
    added = processor_ms();
    (void)cairn_tiling_origins(tiling, &origins);
    assert_int_equal(origins, TENSORS);
    print_message("%d ranks of %d tensors: %.1f ms of processor time to add the layout up\n", RANKS,
                  TENSORS, added - begin);
    cairn_tiling_destroy(tiling);
    free(bytes);
    free(manifest.block_crcs);
    free(entries);
}

/* Packed pieces that are cut off, or have any byte changed, are taken or refused, and nothing
 * else. */
static void
hostile_pieces(void **state)
{
    struct job *job = calloc(1, sizeof *job);
    struct cairn_tiling *tilings[PARTS];
    uint8_t bytes[4096], small[40];
    uint64_t prefix;
    size_t len;
    char text[256];

    assert_non_null(job);
    seed = 5;
    make_job(job);
    take_out_and_put_in(job);
    open_tilings(job, tilings);
    assert_true(find_wrong(tilings, &prefix));
    len = cairn_tiling_pack_pieces(tilings[0], prefix, bytes, sizeof bytes);
    for (size_t cut = 0; cut < len; cut++) {
        struct cairn_tiling_pieces pieces = {0};

        (void)!cairn_tiling_add_pieces(&pieces, bytes, cut);
        cairn_tiling_explain(&pieces, text, sizeof text);
        cairn_tiling_pieces_fini(&pieces);
    }
    for (size_t at = 0; at < 8 * len; at++) {
        struct cairn_tiling_pieces pieces = {0};

        bytes[at / 8] ^= (uint8_t)(1u << at % 8);
        (void)!cairn_tiling_add_pieces(&pieces, bytes, len);
        cairn_tiling_explain(&pieces, text, sizeof text);
        cairn_tiling_pieces_fini(&pieces);
        bytes[at / 8] ^= (uint8_t)(1u << at % 8);
    }
    /* What has no room is reported as missing. */
    struct cairn_tiling_pieces pieces = {0};

    len = cairn_tiling_pack_pieces(tilings[0], prefix, small, sizeof small);
    assert_true(len <= sizeof small);
    assert_int_equal(cairn_tiling_add_pieces(&pieces, small, len), CAIRN_OK);
    assert_true(pieces.cut);
    cairn_tiling_pieces_fini(&pieces);
    close_tilings(tilings);
    free(job);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tilings_are_good),
        cmocka_unit_test(every_defect_is_found),
        cmocka_unit_test(names_and_ranks_are_said),
        cmocka_unit_test(large_shapes),
        cmocka_unit_test(hostile_pieces),
        cmocka_unit_test(a_large_node),
        cmocka_unit_test(pieces_that_are_cut_off),
        cmocka_unit_test(replicas_are_numbered_once_each),
        cmocka_unit_test(replicas_are_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
