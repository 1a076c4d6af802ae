/* tests/unit/tools/convert/deepspeed/test_parts.c - parts that ranks of DeepSpeed have: of
 * parameters, with tensor parallelism, and of the experts of a layer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/deepspeed/cuts.h"
#include "tools/convert/deepspeed/experts.h"
#include "tools/convert/deepspeed/subgroups.h"
#include "tools/convert/deepspeed/target.h"
#include "tests/support/cmocka.h"

enum { MANY = 20000 };

static void
put_patterns(struct cairn_pickle *tree, struct cairn_pickle_node *info, const char *key,
             const char *const *patterns)
{
    struct cairn_pickle_node *list = cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, NULL, 0);

    for (; *patterns; patterns++)
        cairn_pickle_append(tree, list, cairn_pickle_text(tree, *patterns));
    cairn_pickle_put(tree, info, cairn_pickle_text(tree, key), list);
}

static void
read_some(struct cairn_deepspeed_cuts *cuts, struct cairn_pickle *tree)
{
    struct cairn_pickle_node *info = cairn_pickle_dict(tree);
    const char *why = NULL;

    put_patterns(tree, info, "tp_replicated_parameter_patterns",
                 (const char *const[]){"^norm$", NULL});
    put_patterns(tree, info, "parameter_with_row_parallelism_patterns",
                 (const char *const[]){"^down\\.weight$", NULL});
    put_patterns(tree, info, "vocabulary_parameter_patterns",
                 (const char *const[]){"embed.*", NULL});
    put_patterns(tree, info, "parameter_with_2_sub_params_cat_dim_0",
                 (const char *const[]){"gated", NULL});
    cairn_pickle_put(tree, info, cairn_pickle_text(tree, "original_vocab_size"),
                     cairn_pickle_int(tree, 13));
    assert_int_equal(cairn_deepspeed_cuts_read(info, cuts, &why), CAIRN_OK);
}

/* The parts of all ranks hold each element once, or all of them each, and a part read again is of
 * the same whole. */
static void
parts_are_of_the_whole(void **state)
{
    static const struct {
        const char *name;
        uint64_t whole[2], padded_rows, part[2];
        uint32_t ranks, times; /* how often each element is there */
    } cases[] = {
        {"up.weight", {12, 5}, 0, {3, 5}, 4, 1},     {"down.weight", {5, 12}, 0, {5, 4}, 3, 1},
        {"norm", {5, 3}, 0, {5, 3}, 4, 4},           {"embed.weight", {13, 3}, 16, {4, 3}, 4, 1},
        {"embed.weight", {13, 3}, 24, {3, 3}, 8, 1}, {"gated", {12, 3}, 0, {4, 3}, 3, 1},
    };
    struct cairn_deepspeed_cuts cuts;
    struct cairn_pickle tree;

    cairn_pickle_init(&tree, 1 << 20);
    read_some(&cuts, &tree);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint32_t seen[64] = {0};

        for (uint32_t rank = 0; rank < cases[i].ranks; rank++) {
            struct cairn_deepspeed_cut cut, again;
            uint64_t part[CAIRN_DIMS_MAX];

            assert_null(cairn_deepspeed_cut_whole(&cuts, cases[i].name, 2, cases[i].whole,
                                                  cases[i].padded_rows, cases[i].ranks, rank, part,
                                                  &cut));
            assert_memory_equal(part, cases[i].part, sizeof(cases[i].part));
            assert_null(
                cairn_deepspeed_cut(&cuts, cases[i].name, 2, part, cases[i].ranks, rank, &again));
            assert_memory_equal(&cut, &again, sizeof(cut));
            for (uint32_t b = 0; b < cut.box_count; b++)
                for (uint64_t r = 0; r < cut.boxes[b].extent[0]; r++)
                    for (uint64_t c = 0; c < cut.boxes[b].extent[1]; c++)
                        seen[(cut.boxes[b].start[0] + r) * cases[i].whole[1] +
                             cut.boxes[b].start[1] + c]++;
        }
        for (uint64_t e = 0; e < cases[i].whole[0] * cases[i].whole[1]; e++)
            assert_int_equal(seen[e], cases[i].times);
    }
    cairn_deepspeed_cuts_fini(&cuts);
    cairn_pickle_fini(&tree);
}

static void
refuses_uneven_parts(void **state)
{
    static const uint64_t whole[] = {12, 13};
    struct cairn_deepspeed_cuts cuts;
    struct cairn_deepspeed_cut cut;
    struct cairn_pickle tree;
    uint64_t part[CAIRN_DIMS_MAX];

    cairn_pickle_init(&tree, 1 << 20);
    read_some(&cuts, &tree);
    assert_non_null(cairn_deepspeed_cut_whole(&cuts, "up.weight", 2, whole, 0, 5, 0, part, &cut));
    assert_non_null(cairn_deepspeed_cut_whole(&cuts, "down.weight", 2, whole, 0, 2, 0, part, &cut));
    assert_non_null(cairn_deepspeed_cut_whole(&cuts, "down.weight", 1, whole, 0, 2, 0, part, &cut));
    assert_non_null(cairn_deepspeed_cut_whole(&cuts, "gated", 2, whole, 0, 4, 0, part, &cut));
    assert_non_null(cairn_deepspeed_cut_whole(&cuts, "embed", 2, whole, 14, 4, 0, part, &cut));
    assert_null(
        cairn_deepspeed_cut_whole(&cuts, "embed", 2, whole, UINT64_C(1) << 40, 4, 0, part, &cut));
    assert_non_null(
        cairn_deepspeed_cut_whole(&cuts, "embed", 2, whole, UINT64_C(1) << 62, 4, 0, part, &cut));
    cairn_deepspeed_cuts_fini(&cuts);
    cairn_pickle_fini(&tree);
}

static struct cairn_pickle_node *
list_of(struct cairn_pickle *tree, int64_t first, int64_t second)
{
    struct cairn_pickle_node *items[] = {cairn_pickle_int(tree, first),
                                         cairn_pickle_int(tree, second)};

    return cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, items, 2);
}

static struct cairn_pickle_node *
place_of(struct cairn_pickle *tree, int64_t offset)
{
    struct cairn_pickle_node *items[] = {cairn_pickle_int(tree, offset), list_of(tree, 3, 1)};

    return cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, items, 2);
}

static struct cairn_pickle_node *
dict_of(struct cairn_pickle *tree, struct cairn_pickle_node *key, struct cairn_pickle_node *value)
{
    struct cairn_pickle_node *dict = cairn_pickle_dict(tree);

    cairn_pickle_put(tree, dict, key, value);
    return dict;
}

/* What newer versions say of up.weight, whose the last two rows: scaled (0:
 * not), of a version. */
static struct cairn_pickle_node *
build_affine(struct cairn_pickle *tree, int64_t offset, double scale, int64_t version)
{
    struct cairn_pickle_node *piece = dict_of(tree, cairn_pickle_text(tree, "shape"),
                                              list_of(tree, 2, 3)),
                             *rank, *map;

    cairn_pickle_put(tree, piece, cairn_pickle_text(tree, "source"), place_of(tree, offset));
    cairn_pickle_put(tree, piece, cairn_pickle_text(tree, "dest"), place_of(tree, 0));
    if (scale > 0)
        cairn_pickle_put(tree, piece, cairn_pickle_text(tree, "scale"),
                         cairn_pickle_float(tree, scale));
    rank = dict_of(tree, cairn_pickle_text(tree, "shard_shape"), list_of(tree, 2, 3));
    cairn_pickle_put(tree, rank, cairn_pickle_text(tree, "pieces"),
                     cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, &piece, 1));
    map = dict_of(tree, cairn_pickle_text(tree, "ranks"),
                  dict_of(tree, cairn_pickle_int(tree, 1), rank));
    map = dict_of(tree, cairn_pickle_text(tree, "params"),
                  dict_of(tree, cairn_pickle_text(tree, "^up\\.weight$"), map));
    cairn_pickle_put(tree, map, cairn_pickle_text(tree, "version"),
                     cairn_pickle_int(tree, version));
    return dict_of(tree, cairn_pickle_text(tree, "affine_map"), map);
}

/* A rank may hold a parameter divided by a number, which the patterns do not say. */
static void
places_must_be_what_patterns_say(void **state)
{
    static const struct {
        int64_t offset, version;
        double scale;
        bool agrees;
    } cases[] = {
        {6, 1, 0, true}, {6, 1, 1, true}, {6, 1, 0.5, false}, {6, 2, 0, false}, {0, 1, 0, false}};
    struct cairn_deepspeed_cuts cuts;
    struct cairn_pickle tree;
    char name[CAIRN_NAME_BYTES_MAX];

    cairn_pickle_init(&tree, 1 << 20);
    read_some(&cuts, &tree);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct cairn_pickle_node *info =
            build_affine(&tree, cases[i].offset, cases[i].scale, cases[i].version);

        assert_int_equal(cairn_deepspeed_cuts_agree(&cuts, info, 2, 1, name), cases[i].agrees);
        if (!cases[i].agrees && cases[i].version == 1)
            assert_string_equal(name, "up.weight");
    }
    cairn_deepspeed_cuts_fini(&cuts);
    cairn_pickle_fini(&tree);
}

/* As many patterns as parameters, as AutoTP has them: trying each for each would take minutes. */
static void
many_patterns_are_looked_up(void **state)
{
    struct cairn_deepspeed_patterns patterns = {0};
    char text[64];

    for (uint32_t i = 0; i < MANY; i++) {
        (void)snprintf(text, sizeof(text), "^layers\\.%u\\.weight$", i);
        assert_int_equal(cairn_deepspeed_patterns_add(&patterns, i % 5, text), CAIRN_OK);
    }
    assert_int_equal(cairn_deepspeed_patterns_add(&patterns, 5, "layers\\.1\\d?\\.w"), CAIRN_OK);
    assert_int_equal(cairn_deepspeed_patterns_add(&patterns, 6, "b|layers.17.weight"), CAIRN_OK);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t also = (i == 1 || (i >= 10 && i < 20) ? 1u << 5 : 0) | (i == 17 ? 1u << 6 : 0);

        if (i == MANY - 1)
            assert_string_equal(cairn_deepspeed_patterns_unmet(&patterns), text);
        (void)snprintf(text, sizeof(text), "layers.%u.weight", i);
        assert_int_equal(cairn_deepspeed_patterns_match(&patterns, text), 1u << i % 5 | also);
        (void)snprintf(text, sizeof(text), "^layers\\.%u\\.weight$", MANY - 1u);
    }
    assert_int_equal(cairn_deepspeed_patterns_match(&patterns, "layers.3.weights"), 0);
    assert_int_equal(cairn_deepspeed_patterns_match(&patterns, "layersx3.weight"), 0);
    assert_null(cairn_deepspeed_patterns_unmet(&patterns));
    cairn_deepspeed_patterns_fini(&patterns);
    for (uint32_t i = 0; i < CAIRN_DEEPSPEED_EXPRESSIONS_MAX; i++)
        assert_int_equal(cairn_deepspeed_patterns_add(&patterns, 0, "a.*"), CAIRN_OK);
    assert_int_equal(cairn_deepspeed_patterns_add(&patterns, 0, "a.*"), CAIRN_VERSION);
    cairn_deepspeed_patterns_fini(&patterns);
}

/* ---- buffers of ZeRO 3 ---- */

/* One group of the optimizer with the buffers [first, first + count). */
static void
put_setting(struct cairn_pickle *tree, struct cairn_pickle_node *settings, uint32_t first,
            uint32_t count)
{
    struct cairn_pickle_node *list = cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, NULL, 0);
    struct cairn_pickle_node *setting = cairn_pickle_dict(tree);

    for (uint32_t i = 0; i < count; i++)
        cairn_pickle_append(tree, list, cairn_pickle_int(tree, first + i));
    cairn_pickle_put(tree, setting, cairn_pickle_text(tree, "params"), list);
    cairn_pickle_append(tree, settings, setting);
}

/* Four parameters of a group in two buffers, and one of another group in the third: where the first
 * ends follows from what a rank has. */
static void
buffers_follow_from_ranks(void **state)
{
    static const struct {
        uint32_t counts[3];
        uint64_t size;
        uint32_t ranks;
        bool fit;
    } cases[] = {{{2, 2, 1}, 5, 2, true},   {{2, 2, 1}, 6, 2, true},  {{2, 2, 1}, 5, 1, false},
                 {{2, 2, 1}, 5, 3, false},  {{3, 1, 1}, 5, 3, true},  {{2, 2, 1}, 12, 2, false},
                 {{4, 0, 1}, 12, 2, false}, {{1, 3, 1}, 12, 1, false}};
    struct cairn_pickle tree;
    struct cairn_pickle_node *settings, *fewer;
    struct cairn_deepspeed_splits splits;

    cairn_pickle_init(&tree, 1 << 20);
    settings = cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, NULL, 0);
    fewer = cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, NULL, 0);
    put_setting(&tree, settings, 0, 2);
    put_setting(&tree, settings, 2, 1);
    put_setting(&tree, fewer, 0, 2);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct cairn_deepspeed_parameter parameters[5] = {
            {.elements = 6}, {.elements = 6}, {.elements = 6}, {.elements = 6}, {.elements = 6}};
        struct cairn_deepspeed_group buffers[3] = {{.spread = 1}, {.spread = 1}, {.spread = 1}};
        struct cairn_deepspeed_groups groups = {
            .parameters = parameters, .parameter_count = 5, .groups = buffers, .group_count = 3};

        for (uint32_t g = 0, first = 0; g < 3; first += cases[i].counts[g++]) {
            buffers[g].first = first;
            buffers[g].count = cases[i].counts[g];
        }
        assert_int_equal(
            cairn_deepspeed_splits_find(&groups, settings, cases[i].size, cases[i].ranks, &splits),
            CAIRN_OK);
        assert_int_equal(splits.alike, cases[i].fit);
        assert_true(splits.known);
        cairn_deepspeed_splits_fini(&splits);
        assert_int_equal(
            cairn_deepspeed_splits_find(&groups, fewer, cases[i].size, cases[i].ranks, &splits),
            CAIRN_OK);
        assert_false(splits.alike || splits.known);
        cairn_deepspeed_splits_fini(&splits);
    }
    cairn_pickle_fini(&tree);
}

/* ---- experts ---- */

#define EXPERTS ".deepspeed_moe.experts.deepspeed_experts."

/* Two groups: one parameter, and `own` experts of two layers with two parameters each; in another
 * order where asked for. */
static struct cairn_pickle_node *
build_shapes(struct cairn_pickle *tree, uint32_t own, bool disordered)
{
    struct cairn_pickle_node *list = cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, NULL, 0);
    struct cairn_pickle_node *dense, *experts;
    struct cairn_torch_builder builder;
    char name[128];

    cairn_torch_builder_init(&builder, tree);
    dense = cairn_torch_ordered_dict(&builder);
    experts = cairn_torch_ordered_dict(&builder);
    cairn_pickle_put(tree, dense, cairn_pickle_text(tree, "up"),
                     cairn_torch_size(&builder, (const uint64_t[]){7}, 1));
    for (uint32_t layer = 0; layer < 2; layer++)
        for (uint32_t i = 0; i < 2 * own; i++) {
            uint32_t number = disordered ? i % own : i / 2, kind = disordered ? i / own : i % 2;

            (void)snprintf(name, sizeof(name), "module.l%u" EXPERTS "%u.%s", layer, number,
                           kind ? "b" : "w");
            cairn_pickle_put(tree, experts, cairn_pickle_text(tree, name),
                             cairn_torch_size(&builder, (const uint64_t[]){3 + kind, 2}, 2));
        }
    cairn_pickle_append(tree, list, dense);
    cairn_pickle_append(tree, list, experts);
    return list;
}

static void
experts_are_spread_and_gathered(void **state)
{
    struct cairn_deepspeed_groups local, whole, again, other;
    struct cairn_deepspeed_layers layers = {0};
    struct cairn_deepspeed_share share;
    struct cairn_pickle tree;
    const char *why = NULL;
    char name[CAIRN_NAME_BYTES_MAX];
    bool mixed;

    cairn_pickle_init(&tree, 1 << 20);
    assert_int_equal(cairn_deepspeed_groups_read(build_shapes(&tree, 2, false), &local, &why),
                     CAIRN_OK);
    assert_int_equal(cairn_deepspeed_layer_add(&layers, "l0" EXPERTS, strlen("l0" EXPERTS), 6),
                     CAIRN_OK);
    /* no files of l1 */
    assert_int_equal(cairn_deepspeed_experts_place(&local, &layers, 12, &why), CAIRN_CORRUPT);
    assert_int_equal(cairn_deepspeed_layer_add(&layers, "l1" EXPERTS, strlen("l1" EXPERTS), 6),
                     CAIRN_OK);
    /* by 3 */
    assert_int_equal(cairn_deepspeed_experts_place(&local, &layers, 8, &why), CAIRN_CORRUPT);
    assert_int_equal(cairn_deepspeed_experts_place(&local, &layers, 12, &why), CAIRN_OK);
    assert_int_equal(cairn_deepspeed_spread(&local, &mixed), 3);
    assert_false(mixed);
    share = cairn_deepspeed_share(&local, 1, 12, 7);
    assert_true(share.ranks == 4 && share.rank == 2 && share.expert_rank == 1);
    local.data_first = true;
    share = cairn_deepspeed_share(&local, 1, 12, 7);
    assert_true(share.ranks == 4 && share.rank == 3 && share.expert_rank == 1);
    share = cairn_deepspeed_share(&local, 0, 12, 7);
    assert_true(share.ranks == 12 && share.rank == 7 && share.expert_rank == 0);
    assert_int_equal(cairn_deepspeed_state_name("fp32", &local.parameters[4], 2, name), CAIRN_OK);
    assert_string_equal(name, "fp32.l0" EXPERTS "5.b");
    assert_int_equal(cairn_deepspeed_experts_spread(&local, &layers, 1, &whole, &why), CAIRN_OK);
    assert_int_equal(whole.parameter_count, 1 + 2 * 6 * 2);
    assert_string_equal(whole.parameters[12].path, "module.l0" EXPERTS "5.b");
    assert_int_equal(whole.parameters[13].begin, 6 * (6 + 8));
    assert_int_equal(whole.groups[1].elements, 2 * 6 * (6 + 8));
    assert_int_equal(cairn_deepspeed_experts_spread(&whole, &layers, 3, &again, &why), CAIRN_OK);
    assert_int_equal(again.parameter_count, local.parameter_count);
    for (uint32_t i = 0; i < local.parameter_count; i++) {
        assert_string_equal(again.parameters[i].path, local.parameters[i].path);
        assert_int_equal(again.parameters[i].begin, local.parameters[i].begin);
        assert_int_equal(again.parameters[i].own_experts, local.parameters[i].own_experts);
    }
    assert_int_equal(again.groups[1].spread, 3);
    assert_int_equal(cairn_deepspeed_experts_spread(&whole, &layers, 4, &other, &why),
                     CAIRN_VERSION);
    cairn_deepspeed_groups_fini(&local);
    cairn_deepspeed_groups_fini(&whole);
    cairn_deepspeed_groups_fini(&again);
    cairn_deepspeed_groups_fini(&other);
    assert_int_equal(cairn_deepspeed_groups_read(build_shapes(&tree, 3, true), &local, &why),
                     CAIRN_OK);
    assert_int_equal(cairn_deepspeed_experts_spread(&local, &layers, 1, &whole, &why),
                     CAIRN_VERSION);
    cairn_deepspeed_groups_fini(&local);
    cairn_deepspeed_groups_fini(&whole);
    cairn_deepspeed_layers_fini(&layers);
    cairn_pickle_fini(&tree);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_of_the_whole),
        cmocka_unit_test(refuses_uneven_parts),
        cmocka_unit_test(places_must_be_what_patterns_say),
        cmocka_unit_test(many_patterns_are_looked_up),
        cmocka_unit_test(buffers_follow_from_ranks),
        cmocka_unit_test(experts_are_spread_and_gathered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
