/* tests/unit/tools/convert/megatron/test_megatron.c - checkpoints that megatron-core saved (by
 * tests/fixtures/make_megatron.py), whose elements say where they belong: read, converted to other
 * parallelisms, broken; and the arithmetic of parts and buffers against slow references. */
#include "tools/convert/formats.h"
#include "tools/convert/engine/conversion.h"
#include "tools/convert/megatron/parts.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/write.h"

#include "base/file.h"
#include "base/log.h"
#include "tests/support/cmocka.h"
#include "tests/unit/tools/convert/check_piece.h"
#include "tests/support/quiet_log.h"
#include "tests/support/random.h"
#include "tests/support/folder.h"
#include "tests/support/write_archive.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURES "tests/fixtures/megatron/"

enum { PATH_BYTES = 512, LIMIT_BYTES = 1 << 30, FLIPS = 300, ARITHMETIC_SEEDS = 2000 };

/* A copy of the dense fixture that may be broken. */
static void
copy_fixture(const char *name, char path[PATH_BYTES])
{
    char command[2 * PATH_BYTES];

    (void)snprintf(path, PATH_BYTES, "%s/%s", root, name);
    (void)snprintf(command, sizeof(command), "cp -r " FIXTURES "dense '%s'", path);
    assert_int_equal(system(command), 0);
}

static int
set_up(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("megatron"))
        return -1;
    return 0;
}

/* ---- markers ---- */

/* What element `index` of a tensor is, by its name alone. */
static bool
expected_value(const char *name, uint64_t index, float *value)
{
    static const char *const keys[] = {"fp32.", "exp_avg.", "exp_avg_sq."};
    uint32_t sum = 0;
    size_t key = 0;
    float mark;

    while (key < 3 && strncmp(name, keys[key], strlen(keys[key])) != 0)
        key++;
    if (key < 3)
        name += strlen(keys[key]);
    for (size_t i = 0; name[i]; i++)
        sum += (uint8_t)name[i];
    mark = (float)(sum % 64 * 4096 + index + 1);
    *value = key == 1 ? -mark : key == 2 ? mark + 0.5f : mark;
    return true;
}

/* Every tensor of the model and the optimizer is there, with each element. */
static void
check_markers(const char *path, uint32_t parameters)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    uint32_t counts[2] = {0, 0};

    if (cairn_checkpoint_open(path, cairn_format_find("megatron"), 0, &checkpoint, &complaint))
        fail_msg("%s", complaint.text);
    for (uint32_t t = 0; t < cairn_layout_tensor_count(checkpoint.layout); t++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint.layout, t);

        if (tensor->kind != CAIRN_OPTIMIZER && tensor->kind != CAIRN_PARAM)
            continue;
        counts[tensor->kind == CAIRN_OPTIMIZER]++;
        check_elements(&checkpoint, t, expected_value, false);
    }
    assert_int_equal(counts[0], parameters);
    assert_int_equal(counts[1], 3 * parameters);
    assert_int_equal(checkpoint.step, 3);
    cairn_checkpoint_close(&checkpoint);
}

enum { DENSE_PARAMETERS = 26, EXPERTS_PARAMETERS = 29 };

static cairn_err
convert_without(const char *source, const char *target, const char *format,
                const struct cairn_parallelism *parallelism, const char *const *drops,
                size_t drop_count, struct cairn_complaint *complaint)
{
    return convert_to((struct cairn_conversion_options){.source = source,
                                                        .target = target,
                                                        .output.parallelism = *parallelism,
                                                        .drops = drops,
                                                        .drop_count = drop_count},
                      format, complaint);
}

static cairn_err
convert(const char *source, const char *target, const char *format,
        const struct cairn_parallelism *parallelism, struct cairn_complaint *complaint)
{
    return convert_without(source, target, format, parallelism, NULL, 0, complaint);
}

static void
reads_what_megatron_saved(void **state)
{
    check_markers(FIXTURES "dense", DENSE_PARAMETERS);
    check_markers(FIXTURES "dense/iter_0000003", DENSE_PARAMETERS); /* the iteration alone */
    check_markers(FIXTURES "experts", EXPERTS_PARAMETERS);
}

static void
writes_any_parallelism(void **state)
{
    static const struct {
        const char *fixture;
        uint32_t parameters;
        struct cairn_parallelism to;
    } cases[] = {
        {"dense", DENSE_PARAMETERS, {.tp = 1, .pp = 1, .vpp = 1}},
        {"dense", DENSE_PARAMETERS, {.tp = 1, .pp = 4, .vpp = 1}},
        {"dense", DENSE_PARAMETERS, {.tp = 2, .pp = 2, .vpp = 2}},
        {"experts", EXPERTS_PARAMETERS, {.tp = 1, .pp = 1, .ep = 1}},
        {"experts", EXPERTS_PARAMETERS, {.tp = 2, .pp = 1, .ep = 4, .etp = 1}},
        {"experts", EXPERTS_PARAMETERS, {.tp = 2, .pp = 2, .ep = 2, .etp = 2}},
    };
    struct cairn_complaint complaint = {""};
    char source[PATH_BYTES], target[PATH_BYTES], back[PATH_BYTES], way[PATH_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_checkpoint original;
        struct cairn_parallelism home;

        (void)snprintf(source, sizeof(source), FIXTURES "%s", cases[i].fixture);
        (void)snprintf(target, sizeof(target), "%s/to-%zu", root, i);
        (void)snprintf(back, sizeof(back), "%s/back-%zu", root, i);
        (void)snprintf(way, sizeof(way), "%s/way-%zu", root, i);
        assert_int_equal(cairn_checkpoint_detect(source, cairn_formats, 0, &original, &complaint),
                         CAIRN_OK);
        assert_string_equal(original.format->name, "megatron");
        home = original.parallelism;
        cairn_checkpoint_close(&original);
        if (convert(source, target, "megatron", &cases[i].to, &complaint) ||
            convert(target, way, "universal", &(struct cairn_parallelism){0}, &complaint) ||
            convert(way, back, "megatron", &home, &complaint))
            fail_msg("case %zu: %s", i, complaint.text);
        check_markers(target, cases[i].parameters);
        check_markers(back, cases[i].parameters);
        (void)snprintf(back, sizeof(back), "%s/again-%zu", root, i);
        (void)snprintf(way, sizeof(way), "%s/sharded-%zu", root, i);
        if (convert(target, way, "megatron-dist", &(struct cairn_parallelism){.dp = 3},
                    &complaint) ||
            convert(way, back, "megatron", &home, &complaint))
            fail_msg("case %zu through megatron-dist: %s", i, complaint.text);
        check_markers(back, cases[i].parameters);
    }
}

/* Without args nothing but what the writer notes tells how experts are split. */
static void
keeps_parallelism_without_args(void **state)
{
    static const char *const drops[] = {"megatron/*", "rank*", "fp32.*", "exp_avg*"};
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint before, after;
    char bare[PATH_BYTES], target[PATH_BYTES];

    (void)snprintf(bare, sizeof(bare), "%s/bare", root);
    (void)snprintf(target, sizeof(target), "%s/bare-ranks", root);
    if (convert_without(FIXTURES "experts", bare, "universal", &(struct cairn_parallelism){0},
                        drops, 4, &complaint) ||
        convert(bare, target, "megatron", &(struct cairn_parallelism){.tp = 2, .ep = 2, .etp = 1},
                &complaint) ||
        cairn_checkpoint_detect(bare, cairn_formats, 0, &before, &complaint) ||
        cairn_checkpoint_detect(target, cairn_formats, 0, &after, &complaint))
        fail_msg("%s", complaint.text);
    assert_int_equal(after.parallelism.tp, 2);
    assert_int_equal(after.parallelism.etp, 1);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(before.layout); i++) {
        const struct cairn_tensor *had = cairn_layout_tensor(before.layout, i);
        uint32_t found = cairn_layout_tensor_find(after.layout, had->name);

        if (!strstr(had->name, ".local_experts."))
            continue;
        assert_int_not_equal(found, UINT32_MAX);
        assert_memory_equal(cairn_layout_tensor(after.layout, found)->shape, had->shape,
                            had->dims * sizeof(*had->shape));
    }
    cairn_checkpoint_close(&before);
    cairn_checkpoint_close(&after);
}

/* A stage whose groups tell which state is whose, beside one whose do not. */
static void
refuses_state_that_is_half_named(void **state)
{
    struct cairn_complaint complaint = {""};
    struct cairn_output_options options = {.parallelism = {0}};
    struct cairn_output output = {.format = cairn_format_find("megatron")};
    struct cairn_checkpoint checkpoint;

    (void)state;
    assert_int_equal(
        cairn_checkpoint_detect(FIXTURES "dense", cairn_formats, 0, &checkpoint, &complaint),
        CAIRN_OK);
    assert_int_equal(cairn_checkpoint_add_opaque(
                         &checkpoint, "rank0_1_0/megatron/optimizer.state.0.exp_avg", "x", 1),
                     CAIRN_OK);
    assert_int_equal(output.format->plan(&checkpoint, &options, &output), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "some of its ranks"));
    cairn_output_fini(&output);
    cairn_checkpoint_close(&checkpoint);
}

/* ---- norms of the local layer spec ---- */

static void
expect_norms(const char *path, const char *format, bool fused)
{
    static const char *const names[][2] = {
        {"decoder.layers.0.input_layernorm.weight",
         "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"},
        {"decoder.layers.1.pre_mlp_layernorm.weight",
         "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"},
    };
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;

    if (cairn_checkpoint_open(path, cairn_format_find(format), 0, &checkpoint, &complaint))
        fail_msg("%s", complaint.text);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        for (int spelling = 0; spelling < 2; spelling++)
            assert_int_equal(cairn_layout_tensor_find(checkpoint.layout, names[i][spelling]) !=
                                 UINT32_MAX,
                             spelling == fused);
    cairn_checkpoint_close(&checkpoint);
}

/* Writes {"args": Namespace(transformer_impl="local")} as the common.pt of a distributed
 * checkpoint. */
static void
say_local(const char *folder)
{
    static const char said[] = "\x80\x04}\x8c\x04"
                               "argscargparse\nNamespace\n)\x81}\x8c\x10transformer_impl\x8c\x05"
                               "localsbs.";
    struct cairn_pickle_node *common = NULL;
    struct cairn_torch_plan plan;
    struct cairn_pickle tree;
    char path[2 * PATH_BYTES];
    int fd;

    (void)snprintf(path, sizeof(path), "%s/common.pt", folder);
    fd = open(path, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    cairn_pickle_init(&tree, 1 << 20);
    assert_int_equal(
        cairn_pickle_read(&tree, "test", (const uint8_t *)said, sizeof(said) - 1, &common, NULL),
        CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, "common", &tree, common, NULL, 0, NULL),
                     CAIRN_OK);
    assert_int_equal(write_torch_plan(&plan, fd), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
    cairn_pickle_fini(&tree);
    (void)close(fd);
}

/* A distributed checkpoint has norms where Megatron-Core looks for them, for every spec that the
 * model was of; and what comes from there has them where that spec does. */
static void
norms_are_where_each_spec_has_them(void **state)
{
    static const struct {
        const char *fixture;
        uint32_t parameters;
    } cases[] = {{"dense", DENSE_PARAMETERS}, {"experts", EXPERTS_PARAMETERS}};
    static const char *const rest[] = {"megatron/*", "fp32.*", "exp_avg*"};
    const struct cairn_parallelism one = {.tp = 1, .pp = 1, .vpp = 1, .ep = 1};
    struct cairn_complaint complaint = {""};
    char source[PATH_BYTES], dist[PATH_BYTES], back[PATH_BYTES], again[PATH_BYTES];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(source, sizeof(source), FIXTURES "%s", cases[i].fixture);
        (void)snprintf(dist, sizeof(dist), "%s/dist-%zu", root, i);
        (void)snprintf(back, sizeof(back), "%s/from-dist-%zu", root, i);
        if (convert(source, dist, "megatron-dist", &(struct cairn_parallelism){0}, &complaint) ||
            convert(dist, back, "megatron", &one, &complaint))
            fail_msg("case %zu: %s", i, complaint.text);
        expect_norms(dist, "megatron-dist", true);
        expect_norms(back, "megatron", false);
        check_markers(back, cases[i].parameters);
        for (int local = 0; local < 2; local++) {
            (void)snprintf(again, sizeof(again), "%s/spec-%zu-%d", root, i, local);
            if (local)
                say_local(dist);
            if (convert_without(dist, again, "megatron", &one, rest, 3, &complaint))
                fail_msg("case %zu: %s", i, complaint.text);
            expect_norms(again, "megatron", !local);
        }
    }
}

/* ---- names ---- */

static void
names_come_back(void **state)
{
    static const struct {
        const char *stored, *canonical;
    } names[] = {
        {"embedding.word_embeddings.weight", NULL},
        {"decoder.layers.12.self_attention.linear_qkv.weight", NULL},
        {"decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight", NULL},
        {"decoder.layers.7.mlp.experts.linear_fc2.weight31",
         "decoder.layers.7.mlp.experts.local_experts.31.linear_fc2.weight"},
        {"decoder.layers.7.mlp.experts.linear_fc1._extra_state", NULL},
        {"decoder.layers.7.mlp.shared_experts.linear_fc1.weight", NULL},
    };
    struct cairn_megatron_name name;
    char text[CAIRN_NAME_BYTES_MAX];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_true(cairn_megatron_name_parse(names[i].stored, &name));
        assert_true(cairn_megatron_name_print(&name, true, text));
        assert_string_equal(text, names[i].stored);
        assert_true(cairn_megatron_name_print(&name, false, text));
        assert_string_equal(text, names[i].canonical ? names[i].canonical : names[i].stored);
    }
    assert_true(cairn_megatron_norm_rename("exp_avg.decoder.layers.7.input_layernorm.bias", true,
                                           text, sizeof(text)));
    assert_string_equal(text, "exp_avg.decoder.layers.7.self_attention.linear_qkv.layer_norm_bias");
    assert_false(cairn_megatron_norm_rename("decoder.layers.7.mlp.shared_experts.linear_fc1."
                                            "layer_norm_weight",
                                            false, text, sizeof(text)));
    assert_false(
        cairn_megatron_norm_rename("decoder.layers.7.input_layernorm.weight", true, text, 40));
    assert_false(cairn_megatron_name_parse("decoder.layers.01.mlp.router.weight", &name));
    assert_false(cairn_megatron_name_parse("decoder.layers.x.mlp.router.weight", &name));
    assert_false(cairn_megatron_name_parse("decoder.layers.99999999999.mlp.router.weight", &name));
    assert_int_equal(
        cairn_megatron_rule_of("decoder.layers.7.mlp.shared_experts.linear_fc1.weight")->split,
        CAIRN_MEGATRON_ROWS);
    assert_int_equal(
        cairn_megatron_rule_of("decoder.layers.7.self_attention.linear_proj.bias")->split,
        CAIRN_MEGATRON_REPLICATED);
    assert_null(cairn_megatron_rule_of("decoder.layers.7.odd.weight"));
    assert_null(cairn_megatron_rule_of("decoder.layers.7.another_linear_fc1.weight"));
}

/* ---- arithmetic ---- */

/* Each element of a matrix is in one rank's part, at the place that cutting it row by row gives it.
 */
static void
parts_are_what_a_walk_gives(void **state)
{
    for (uint64_t s = 1; s <= ARITHMETIC_SEEDS; s++) {
        uint64_t seed = s * 0x9e3779b97f4a7c15u;
        struct cairn_megatron_part part = {.count = (uint32_t)(xorshift(&seed) % 5 + 1), .dims = 2};
        uint64_t unit = xorshift(&seed) % 4 + 1, multiple = xorshift(&seed) % 3 + 1;

        part.split = (enum cairn_megatron_split)(CAIRN_MEGATRON_ROWS + xorshift(&seed) % 4);
        part.whole_shape[0] = part.split == CAIRN_MEGATRON_VOCABULARY ? xorshift(&seed) % 30 + 1
                                                                      : unit * part.count * 2;
        part.whole_shape[1] = unit * part.count;
        for (part.index = 0; part.index < part.count; part.index++) {
            struct cairn_megatron_part joined;
            struct cairn_megatron_box boxes[2];
            uint32_t count;
            uint8_t mine[64][32] = {{0}};

            assert_true(cairn_megatron_part_cut(&part, multiple));
            joined = part;
            assert_true(cairn_megatron_part_join(&joined, part.whole_shape[0]));
            assert_memory_equal(joined.whole_shape, part.whole_shape, 2 * sizeof(uint64_t));
            count = cairn_megatron_part_boxes(&part, boxes);
            for (uint32_t b = 0; b < count; b++)
                for (uint64_t i = 0; i < boxes[b].extent[0]; i++)
                    for (uint64_t k = 0; k < boxes[b].extent[1]; k++)
                        mine[boxes[b].start[0] + i][boxes[b].start[1] + k] =
                            (uint8_t)(1 + boxes[b].row + i);
            for (uint64_t row = 0; row < part.whole_shape[0]; row++)
                for (uint64_t column = 0; column < part.whole_shape[1]; column++) {
                    uint64_t half = part.whole_shape[0] / 2, owner, local = row;

                    if (part.split == CAIRN_MEGATRON_COLUMNS) {
                        owner = column / part.shape[1];
                    } else if (part.split == CAIRN_MEGATRON_HALVES) {
                        owner = row % half / (half / part.count);
                        local =
                            row % half % (half / part.count) + (row >= half) * (half / part.count);
                    } else {
                        owner = row / part.shape[0];
                        local = row % part.shape[0];
                    }
                    assert_int_equal(mine[row][column], owner == part.index ? local + 1 : 0);
                }
        }
        if (part.split == CAIRN_MEGATRON_VOCABULARY)
            assert_true(part.shape[0] * part.count % (multiple * part.count) == 0 &&
                        part.shape[0] * part.count - part.whole_shape[0] < multiple * part.count);
    }
}

/* A buffer as it is in memory, with buckets padded for equal parts, walked element by element. */
static void
buffers_are_what_a_walk_gives(void **state)
{
    for (uint64_t s = 1; s <= ARITHMETIC_SEEDS; s++) {
        uint64_t seed = s * 0x9e3779b97f4a7c15u,
                 bucket = xorshift(&seed) % 2 ? xorshift(&seed) % 600 + 1 : 0;
        uint64_t divisor = 128 * (xorshift(&seed) % 3 + 1), position = 0, begin = 0, removed = 0;
        uint32_t count = (uint32_t)(xorshift(&seed) % 8 + 1), order[8], in_bucket = 0;
        struct cairn_megatron_part parts[8];
        uint64_t begins[8], wanted[8], all;

        memset(parts, 0, sizeof(parts));
        for (uint32_t i = 0; i < count; i++) {
            order[i] = i;
            parts[i].dims = 1;
            parts[i].shape[0] = xorshift(&seed) % 300 + 1;
            parts[i].shared_bucket = xorshift(&seed) % 8 == 0;
        }
        for (uint32_t i = count; i-- > 0;) {
            bool closes = false;

            while (position % 64 != 0)
                position++;
            if (parts[i].shared_bucket && in_bucket > 0) {
                for (; position % divisor != 0; position++)
                    removed++;
                begin = position;
                in_bucket = 0;
            }
            wanted[i] = position - removed;
            position += parts[i].shape[0];
            in_bucket++;
            closes = parts[i].shared_bucket || (bucket > 0 && position - begin >= bucket);
            if (!closes)
                continue;
            for (; i > 0 && position % divisor != 0; position++)
                removed++;
            begin = position;
            in_bucket = 0;
        }
        all = cairn_megatron_buffer(parts, order, count, bucket, begins);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(begins[i], wanted[i]);
        assert_int_equal(all, wanted[0] + parts[0].shape[0]);
    }
}

/* ---- broken ---- */

static const char *const files[] = {"iter_0000003/mp_rank_00_000/model_optim_rng.pt",
                                    "iter_0000003/mp_rank_01_000/model_optim_rng.pt",
                                    "iter_0000003/mp_rank_00_001/distrib_optim.pt",
                                    "iter_0000003/mp_rank_01_001/model_optim_rng.pt"};

static void
refuses_what_does_not_fit_together(void **state)
{
    struct cairn_parallelism three = {.tp = 1, .pp = 3, .vpp = 1};
    struct cairn_complaint complaint = {""};
    char path[PATH_BYTES], from[2 * PATH_BYTES], to[2 * PATH_BYTES];

    copy_fixture("missing", path);
    (void)snprintf(to, sizeof(to), "%s/%s", path, files[3]);
    assert_int_equal(unlink(to), 0);
    expect_refusal(path, "megatron", CAIRN_CORRUPT, "mp_rank_01_001/model_optim_rng.pt is missing");

    copy_fixture("swapped", path); /* one stage's optimizer beside another's model */
    (void)snprintf(from, sizeof(from), "%s/%s", path, files[2]);
    (void)snprintf(to, sizeof(to), "%s/iter_0000003/mp_rank_00_000/distrib_optim.pt", path);
    assert_int_equal(rename(from, to), 0);
    expect_refusal(path, "megatron", CAIRN_CORRUPT, "elements");

    copy_fixture("stranger", path);
    (void)snprintf(from, sizeof(from), "%s/iter_0000003/mp_rank_01_000", path);
    (void)snprintf(to, sizeof(to), "%s/iter_0000003/mp_rank_02_000", path);
    assert_int_equal(rename(from, to), 0);
    expect_refusal(path, "megatron", CAIRN_CORRUPT, "mp_rank_01_000/model_optim_rng.pt is missing");

    copy_fixture("truncated", path);
    (void)snprintf(to, sizeof(to), "%s/%s", path, files[2]);
    assert_int_equal(truncate(to, 1000), 0);
    expect_refusal(path, "megatron", CAIRN_CORRUPT, "mp_rank_00_001/distrib_optim.pt");

    (void)snprintf(path, sizeof(path), "%s/layers", root);
    assert_int_equal(convert(FIXTURES "dense", path, "megatron", &three, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "4 layers cannot be split evenly over --pp 3"));
}

/* Any changed bytes give an error, or a checkpoint; never anything else. */
static void
survives_changed_bytes(void **state)
{
    char path[PATH_BYTES];

    copy_fixture("flipped", path);
    check_changed_bytes(path, files, 4, "megatron", FLIPS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_megatron_saved),
        cmocka_unit_test(writes_any_parallelism),
        cmocka_unit_test(keeps_parallelism_without_args),
        cmocka_unit_test(refuses_state_that_is_half_named),
        cmocka_unit_test(norms_are_where_each_spec_has_them),
        cmocka_unit_test(names_come_back),
        cmocka_unit_test(parts_are_what_a_walk_gives),
        cmocka_unit_test(buffers_are_what_a_walk_gives),
        cmocka_unit_test(refuses_what_does_not_fit_together),
        cmocka_unit_test(survives_changed_bytes),
    };

    return cmocka_run_group_tests(tests, set_up, root_remove);
}
