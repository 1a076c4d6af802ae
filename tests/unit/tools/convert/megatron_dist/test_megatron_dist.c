/*
 * tests/unit/tools/convert/megatron_dist/test_megatron_dist.c - checkpoints of Megatron-Core's
 * dist_checkpointing: what it saved is found element by element in each of its forms
 * (tests/fixtures/make_megatron_dist.py), laid out again, and broken; and what keys stand for.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tools/convert/engine/select.h"
#include "tools/convert/formats.h"
#include "tools/convert/megatron_dist/mdist.h"
#include "tools/convert/megatron_dist/megatron.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/write.h"
#include "tests/support/cmocka.h"
#include "tests/support/quiet_log.h"
#include "tests/support/write_archive.h"
#include "tests/unit/tools/convert/check_piece.h"

#define FIXTURES "tests/fixtures/megatron_dist/"

static void
open_fixture(const char *name, struct cairn_checkpoint *checkpoint)
{
    struct cairn_complaint complaint = {{0}};
    char path[128];
    cairn_err err;

    (void)snprintf(path, sizeof(path), FIXTURES "%s", name);
    err = cairn_checkpoint_detect(path, cairn_formats, 0, checkpoint, &complaint);
    if (err)
        fail_msg("%s", complaint.text);
    assert_ptr_equal(checkpoint->format, &cairn_format_megatron_dist);
    checkpoint->complaint = NULL;
}

static void
expect_names(const struct cairn_checkpoint *checkpoint, const char *prefix)
{
    static const char *const names[] = {
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
        "decoder.layers.0.self_attention.linear_proj.weight",
        "decoder.layers.1.mlp.linear_fc1.weight",
        "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight",
        "decoder.layers.1.mlp.experts.local_experts.0.linear_fc2.weight"};
    char name[CAIRN_NAME_BYTES_MAX];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(name, sizeof(name), "%s%s", prefix, names[i]);
        if (cairn_layout_tensor_find(checkpoint->layout, name) == UINT32_MAX)
            fail_msg("%s was not found", name);
    }
}

/* 7 x 3 words, 5, and two layers of 4 x 6, 8 x 3 and two experts of 3 x 4. */
enum { ELEMENTS = 21 + 5 + 2 * (24 + 24 + 2 * 12) };

static void
finds_every_element(const char *fixture, const char *state)
{
    struct cairn_checkpoint checkpoint;
    char report[512] = "";
    uint64_t elements = 0;

    open_fixture(fixture, &checkpoint);
    expect_names(&checkpoint, "");
    expect_names(&checkpoint, state);
    assert_int_equal(cairn_layout_check_tiling(checkpoint.layout, true, report, sizeof(report)), 0);
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint.layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint.layout, i);

        if (cairn_layout_tensor(checkpoint.layout, piece->tensor)->dtype == CAIRN_F32)
            elements += check_piece(&checkpoint, piece, NULL, NULL);
    }
    assert_int_equal(elements, 2 * ELEMENTS);
    assert_true(checkpoint.step_known && checkpoint.step == 3);
    assert_int_equal(checkpoint.parallelism.tp, 2);
    cairn_checkpoint_close(&checkpoint);
}

static void
finds_stacked(void **unused)
{
    finds_every_element("stacked", "exp_avg.");
}

static void
finds_apart(void **unused)
{
    finds_every_element("apart", "exp_avg.");
}

static void
finds_flat(void **unused)
{
    finds_every_element("flat", "fp32.");
}

/* The settings of the optimizer are in the same place, in every encoding. */
static void
joins_settings(void **unused)
{
    uint8_t *bytes[2] = {NULL, NULL};
    size_t bytes_len[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        struct cairn_checkpoint checkpoint;

        open_fixture(i ? "flat" : "stacked", &checkpoint);
        assert_int_equal(cairn_checkpoint_load_opaque(&checkpoint, "optimizer.pickle", 1 << 20,
                                                      &bytes[i], &bytes_len[i]),
                         CAIRN_OK);
        cairn_checkpoint_close(&checkpoint);
    }
    assert_int_equal(bytes_len[0], bytes_len[1]);
    assert_memory_equal(bytes[0], bytes[1], bytes_len[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* A copy of a fixture whose common.pt is another: the pickle of a dict. */
static void
change_common(const char *fixture, const char *path, const char *pickle, size_t pickle_len)
{
    struct cairn_pickle_node *root = NULL;
    struct cairn_torch_plan plan;
    struct cairn_pickle tree;
    char command[256];
    int fd;

    (void)snprintf(command, sizeof(command), "cp -r " FIXTURES "%s '%s'", fixture, path);
    assert_int_equal(system(command), 0);
    (void)snprintf(command, sizeof(command), "%s/" CAIRN_MDIST_COMMON, path);
    fd = open(command, O_WRONLY | O_TRUNC);
    assert_true(fd >= 0);
    cairn_pickle_init(&tree, 1 << 20);
    assert_int_equal(
        cairn_pickle_read(&tree, "test", (const uint8_t *)pickle, pickle_len, &root, NULL),
        CAIRN_OK);
    assert_int_equal(cairn_torch_plan_init(&plan, "common", &tree, root, NULL, 0, NULL), CAIRN_OK);
    assert_int_equal(write_torch_plan(&plan, fd), CAIRN_OK);
    cairn_torch_plan_fini(&plan);
    cairn_pickle_fini(&tree);
    close(fd);
}

/* Rows are only left out where the tokenizer goes by vocab_size: 7 of 8 words, and 8 are padded. */
static void
keeps_words_of_other_tokenizers(void **unused)
{
#define ARGS                                                                                       \
    "\x80\x04}\x8c\x04"                                                                            \
    "argscargparse\nNamespace\n)\x81}(\x8c\x0avocab_sizeK\x07\x8c\x11padded_vocab_sizeK\x08"
    static const struct {
        const char *pickle;
        size_t bytes;
        uint64_t rows;
    } cases[] = {
#define CASE(text, rows) {text, sizeof(text) - 1, rows}
        CASE(ARGS "ubs.", 7),
        CASE(ARGS "\x8c\x0etokenizer_type\x8c\x0dNullTokenizerubs.", 8),
        CASE(ARGS "\x8c\x0etokenizer_type\x8c\x14HuggingFaceTokenizerubs.", 8),
    };
    char folder[] = "/tmp/cairn-mdist-XXXXXX", path[64], command[64];

    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_complaint complaint = {{0}};
        struct cairn_checkpoint checkpoint;
        uint32_t tensor;

        (void)snprintf(path, sizeof(path), "%s/%zu", folder, i);
        change_common("stacked", path, cases[i].pickle, cases[i].bytes);
        if (cairn_checkpoint_detect(path, cairn_formats, 0, &checkpoint, &complaint))
            fail_msg("%s", complaint.text);
        tensor = cairn_layout_tensor_find(checkpoint.layout, "embedding.word_embeddings.weight");
        assert_int_equal(cairn_layout_tensor(checkpoint.layout, tensor)->shape[0], cases[i].rows);
        cairn_checkpoint_close(&checkpoint);
    }
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

/* The keys of what is written: how many there are, and whether one of them is there. */
static void
expect_index(const struct cairn_output *output, uint32_t count, const char *key, uint32_t dims)
{
    struct cairn_dcp_metadata metadata;
    uint8_t *copy = malloc(output->smalls[0].bytes_len);
    bool found = false;

    assert_non_null(copy);
    memcpy(copy, output->smalls[0].bytes, output->smalls[0].bytes_len);
    assert_int_equal(
        cairn_dcp_metadata_parse(copy, output->smalls[0].bytes_len, "out", &metadata, NULL),
        CAIRN_OK);
    assert_int_equal(metadata.entry_count, count);
    for (uint32_t i = 0; i < metadata.entry_count; i++)
        if (strcmp(metadata.entries[i].name, key) == 0)
            found = metadata.entries[i].dims == dims;
    assert_true(found);
    cairn_dcp_metadata_fini(&metadata);
}

static void
lays_out(void **unused)
{
    static const struct {
        const char *fixture, *key;
        uint32_t entries, dims;
    } cases[] = {
        {"stacked", "optimizer.state.exp_avg.decoder.layers.mlp.experts.experts.linear_fc2.weight",
         2 * 5 + 2, 4},
        {"apart", "decoder.layers.1.mlp.linear_fc1.weight_v", 2 * (2 + 2 * 5) + 2, 2},
        {"flat", "optimizer.state.param.decoder.layers.mlp.linear_fc1.weight", 2 * 5 + 2, 3}};
    char report[512] = "";

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (uint32_t ranks = 1; ranks <= 5; ranks += 2) {
            struct cairn_checkpoint checkpoint;
            struct cairn_output_options options = {.parallelism = {1, 1, 0, ranks, 0, 0}};
            struct cairn_output output = {.format = &cairn_format_megatron_dist};

            open_fixture(cases[i].fixture, &checkpoint);
            assert_int_equal(cairn_mdist_plan(&checkpoint, &options, &output), CAIRN_OK);
            assert_int_equal(cairn_layout_check_tiling(output.layout, true, report, sizeof(report)),
                             0);
            assert_int_equal(cairn_layout_tensor_count(output.layout) + output.carried_count,
                             cairn_layout_tensor_count(checkpoint.layout));
            assert_int_equal(cairn_mdist_finish(&checkpoint, &output), CAIRN_OK);
            assert_int_equal(output.small_count, 2);
            assert_string_equal(output.smalls[1].path, CAIRN_MDIST_MARKER);
            expect_index(&output, cases[i].entries, cases[i].key, cases[i].dims);
            cairn_output_fini(&output);
            cairn_checkpoint_close(&checkpoint);
        }
}

/* Arguments without expert tensor parallelism mean that of the other layers. */
static void
cuts_experts_as_the_rest(void **unused)
{
    struct cairn_complaint complaint = {{0}};
    struct cairn_output output = {.format = &cairn_format_megatron};
    struct cairn_output_options options = {.parallelism = {0}};
    struct cairn_checkpoint checkpoint;
    const char *const state = "exp_avg.*"; /* too little for an optimizer */
    uint32_t halves = 0, dropped = 0;

    open_fixture("stacked", &checkpoint);
    checkpoint.complaint = &complaint;
    assert_int_equal(cairn_checkpoint_drop(&checkpoint, &state, 1, &dropped), CAIRN_OK);
    assert_int_equal(checkpoint.parallelism.tp, 2);
    assert_int_equal(checkpoint.parallelism.etp, 0);
    if (cairn_format_megatron.plan(&checkpoint, &options, &output))
        fail_msg("%s", complaint.text);
    for (size_t i = 0; i < cairn_layout_piece_count(output.layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(output.layout, i);
        const char *name = cairn_layout_tensor(output.layout, piece->tensor)->name;

        if (strcmp(name, "decoder.layers.0.mlp.experts.local_experts.1.linear_fc2.weight") == 0)
            halves += piece->extent[1] == 2; /* of 4 columns */
    }
    assert_int_equal(halves, 2);
    cairn_output_fini(&output);
    cairn_checkpoint_close(&checkpoint);
}

/* What is small is one chunk, for any count of ranks: a thousand make no more work than
 * one. */
static void
cuts_by_bytes_and_not_by_ranks(void **unused)
{
    static const uint32_t ranks[] = {1, 1024, 65536};
    size_t pieces[3];

    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        struct cairn_complaint complaint = {{0}};
        struct cairn_output output = {.format = &cairn_format_megatron_dist};
        struct cairn_output_options options = {.parallelism = {.tp = 1, .pp = 1, .dp = ranks[i]}};
        struct cairn_checkpoint checkpoint;

        open_fixture("stacked", &checkpoint);
        checkpoint.complaint = &complaint;
        if (cairn_format_megatron_dist.plan(&checkpoint, &options, &output))
            fail_msg("%s", complaint.text);
        pieces[i] = cairn_layout_piece_count(output.layout);
        assert_true(output.file_count <= pieces[0] + 2);
        cairn_output_fini(&output);
        cairn_checkpoint_close(&checkpoint);
    }
    assert_int_equal(pieces[1], pieces[0]);
    assert_int_equal(pieces[2], pieces[0]);
}

/* A model of one layer with a distributed optimizer, without bytes; `other` is a parameter more. */
static void
imagine_model(const char *implementation, const char *other, struct cairn_checkpoint *checkpoint)
{
    static const char *const states[] = {"", "fp32.", "exp_avg.", "exp_avg_sq."};
    const struct {
        const char *name;
        uint64_t rows, columns; /* 0: of one dimension */
    } parameters[] = {{"embedding.word_embeddings.weight", 4, 4},
                      {"decoder.layers.0.self_attention.linear_proj.weight", 4, 4},
                      {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", 4, 0},
                      {"decoder.layers.0.self_attention.linear_qkv.weight", 12, 4},
                      {"decoder.layers.0.mlp.linear_fc1.layer_norm_weight", 4, 0},
                      {"decoder.layers.0.mlp.linear_fc1.weight", 8, 4},
                      {"decoder.layers.0.mlp.linear_fc2.weight", 4, 8},
                      {"decoder.final_layernorm.weight", 4, 0},
                      {other, 4, 0}};
    static const char optimizer[] = "\x80\x04}(\x8c\x09optimizer}\x8c\x0cparam_groups]s"
                                    "\x8c\x19param_state_sharding_type\x8c\x11"
                                    "fully_reshardableu.";
    char args[128];
    int args_bytes =
        snprintf(args, sizeof(args), "\x80\x04%s\x8c\x10transformer_impl\x8c%c%ssb.",
                 "cargparse\nNamespace\n)\x81}", (int)strlen(implementation), implementation);

    memset(checkpoint, 0, sizeof(*checkpoint));
    checkpoint->format = &cairn_format_megatron_dist;
    checkpoint->place.dir_fd = -1;
    checkpoint->place.path = strdup("imagined");
    assert_int_equal(cairn_layout_create(&checkpoint->layout), CAIRN_OK);
    for (size_t i = 0; i < sizeof(parameters) / sizeof(parameters[0]); i++)
        for (size_t s = 0; s < sizeof(states) / sizeof(states[0]) && parameters[i].name; s++) {
            uint64_t shape[] = {parameters[i].rows, parameters[i].columns};
            char name[CAIRN_NAME_BYTES_MAX];
            uint32_t tensor;

            (void)snprintf(name, sizeof(name), "%s%s", states[s], parameters[i].name);
            assert_int_equal(cairn_checkpoint_add_tensor(checkpoint, name,
                                                         s ? CAIRN_F32 : CAIRN_BF16,
                                                         s ? CAIRN_OPTIMIZER : CAIRN_PARAM,
                                                         shape[1] ? 2 : 1, shape, &tensor),
                             CAIRN_OK);
        }
    assert_int_equal(
        cairn_checkpoint_add_opaque(checkpoint, "args.pickle", args, (size_t)args_bytes), CAIRN_OK);
    assert_int_equal(cairn_checkpoint_add_opaque(checkpoint, "optimizer.pickle", optimizer,
                                                 sizeof(optimizer) - 1),
                     CAIRN_OK);
}

static uint64_t
offset_of(const struct cairn_output *output, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(output->layout, name);

    for (size_t i = 0; i < cairn_layout_piece_count(output->layout); i++)
        if (cairn_layout_piece(output->layout, i)->tensor == tensor)
            return cairn_layout_piece(output->layout, i)->offset_bytes;
    fail_msg("%s was not written", name);
    return 0;
}

/* Buffers go from the parameter that registers last to the first. The local spec has the norm
 * before the attention, as a module of its own; Transformer Engine's has it in the attention's
 * second layer. */
static void
orders_buffers_by_spec(void **unused)
{
#define ATTENTION "exp_avg.decoder.layers.0.self_attention."
    static const char *const orders[2][3] = {
        {ATTENTION "linear_qkv.weight", ATTENTION "linear_qkv.layer_norm_weight",
         ATTENTION "linear_proj.weight"},
        {ATTENTION "linear_qkv.weight", ATTENTION "linear_proj.weight",
         ATTENTION "linear_qkv.layer_norm_weight"}};

    for (int local = 0; local < 2; local++) {
        struct cairn_complaint complaint = {{0}};
        struct cairn_output output = {.format = &cairn_format_megatron};
        struct cairn_output_options options = {.parallelism = {1, 1, 0, 1, 0, 0}};
        struct cairn_checkpoint checkpoint;
        const char *const *order = orders[local];

        imagine_model(local ? "local" : "transformer_engine", NULL, &checkpoint);
        checkpoint.complaint = &complaint;
        if (cairn_format_megatron.plan(&checkpoint, &options, &output))
            fail_msg("%s", complaint.text);
        assert_true(offset_of(&output, order[0]) < offset_of(&output, order[1]));
        assert_true(offset_of(&output, order[1]) < offset_of(&output, order[2]));
        cairn_output_fini(&output);
        cairn_checkpoint_close(&checkpoint);
    }
}

/* Where nobody knows when a parameter registers, the buffers would be those of others. */
static void
refuses_unknown_order(void **unused)
{
    static const char *const others[] = {"decoder.layers.0.mixer.A_log",
                                         "mtp.layers.0.final_layernorm.weight"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct cairn_complaint complaint = {{0}};
        struct cairn_output output = {.format = &cairn_format_megatron};
        struct cairn_output_options options = {.parallelism = {1, 1, 0, 1, 0, 0}};
        struct cairn_checkpoint checkpoint;

        imagine_model("transformer_engine", others[i], &checkpoint);
        checkpoint.complaint = &complaint;
        assert_int_equal(cairn_format_megatron.plan(&checkpoint, &options, &output), CAIRN_INVAL);
        assert_non_null(strstr(complaint.text, others[i]));
        assert_non_null(strstr(complaint.text, "order is not known"));
        cairn_output_fini(&output);
        cairn_checkpoint_close(&checkpoint);
    }
}

/* Experts that a map gave the names of grouped modules: as keys of a distributed checkpoint no job
 * would look for them. */
static void
refuses_names_of_grouped_experts(void **unused)
{
    static const char *const other = "decoder.layers.0.mlp.experts.linear_fc1.weight0";
    struct cairn_complaint complaint = {{0}};
    struct cairn_output output = {.format = &cairn_format_megatron_dist};
    struct cairn_output_options options = {.parallelism = {.tp = 1, .pp = 1}};
    struct cairn_checkpoint checkpoint;

    imagine_model("transformer_engine", other, &checkpoint);
    checkpoint.format = &cairn_format_universal;
    checkpoint.complaint = &complaint;
    assert_int_equal(cairn_format_megatron_dist.plan(&checkpoint, &options, &output), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, other));
    assert_non_null(strstr(complaint.text, "expert_modules=local"));
    cairn_output_fini(&output);
    cairn_checkpoint_close(&checkpoint);
}

/* Expert parallelism changes the settings of state by parameter alone. */
static void
settles_what_it_knows(void **unused)
{
    static const struct {
        const char *pickle;
        size_t bytes;
        uint32_t made;
    } cases[] = {
#define SETTLE(text, made) {text, sizeof(text) - 1, made}
        SETTLE("\x80\x04}(\x8c\x09optimizer}\x8c\x19param_state_sharding_type\x8c\x11"
               "fully_reshardableu.",
               1),
        SETTLE("\x80\x04}(\x8c\x09optimizer}\x8c\x19param_state_sharding_type\x8c\x16"
               "dp_zero_gather_scatteru.",
               0),
        SETTLE("\x80\x04}\x8c\x09optimizer}\x8c\x05state}ss.", 0),
        SETTLE("\x80\x04}.", 0),
    };
    const struct cairn_output_options options = {.parallelism = {.ep = 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_checkpoint checkpoint = {.format = &cairn_format_megatron_dist,
                                              .place.dir_fd = -1};
        struct cairn_complaint complaint = {{0}};
        struct cairn_mdist_megatron made;

        checkpoint.place.path = strdup("imagined");
        assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint, "optimizer.pickle",
                                                     cases[i].pickle, cases[i].bytes),
                         CAIRN_OK);
        if (cairn_mdist_megatron_take(&checkpoint, &options, &made))
            fail_msg("%zu: %s", i, complaint.text);
        assert_int_equal(made.value_count, cases[i].made);
        assert_int_equal(made.dissolved[0], cases[i].made);
        cairn_mdist_megatron_fini(&made);
        cairn_checkpoint_close(&checkpoint);
    }
}

static void
knows_keys(void **unused)
{
    static const struct {
        const char *key, *state, *pattern;
        uint32_t stars;
        bool back; /* it is the key by default */
    } cases[] = {
        {"output_layer.weight", "", "output_layer.weight", 0, true},
        {"decoder.layers.mlp.linear_fc2.weight", "", "decoder.layers.*.mlp.linear_fc2.weight", 1,
         true},
        {"decoder.layers.12.mlp.linear_fc2.weight", "", "decoder.layers.12.mlp.linear_fc2.weight",
         0, true},
        {"decoder.layers.mlp.experts.experts.linear_fc1.weight", "",
         "decoder.layers.*.mlp.experts.local_experts.*.linear_fc1.weight", 2, true},
        {"decoder.layers.3.mlp.experts.experts.7.linear_fc1.weight", "",
         "decoder.layers.3.mlp.experts.local_experts.7.linear_fc1.weight", 0, true},
        {"optimizer.state.param.decoder.layers.mlp.linear_fc2.weight", "fp32",
         "decoder.layers.*.mlp.linear_fc2.weight", 1, true},
        {"optimizer.state.fp32_param.decoder.layers.mlp.linear_fc2.weight", "fp32",
         "decoder.layers.*.mlp.linear_fc2.weight", 1, false},
        {"chained_1.optimizer.state.exp_avg.output_layer.weight", "exp_avg", "output_layer.weight",
         0, false},
        {"module.decoder.final_layernorm.weight", "", "decoder.final_layernorm.weight", 0, false},
    };
    struct cairn_mdist_name name, fixed;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX] = {0};
    char key[CAIRN_MDIST_NAME_BYTES_MAX];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_true(cairn_mdist_name_of_key(cases[i].key, &name));
        assert_string_equal(name.state, cases[i].state);
        assert_string_equal(name.pattern, cases[i].pattern);
        assert_int_equal(name.stars, cases[i].stars);
        assert_true(cairn_mdist_key_of(&name, key));
        assert_int_equal(strcmp(key, cases[i].key) == 0, cases[i].back);
    }
    memset(key, 'x', sizeof(key));
    key[sizeof(key) - 1] = '\0';
    assert_false(cairn_mdist_name_of_key("", &name));
    assert_false(cairn_mdist_name_of_key("*.*.*.*.*.*.weight", &name));
    assert_false(cairn_mdist_pattern_of("*.*.*.*.*.*.weight", 0, &name, numbers));
    assert_true(cairn_mdist_name_of_key("layers.1.layers.2.layers.3.layers.4.layers.w", &name));
    assert_false(cairn_mdist_pattern_of("layers.1.layers.2.layers.3.layers.4.layers.*.w", 0, &name,
                                        numbers));
    (void)snprintf(name.pattern, sizeof(name.pattern), "*.*.*.*.*.w");
    assert_false(cairn_mdist_fix(&name, numbers, 0, &fixed));
    assert_true(cairn_mdist_name_of_key(key, &name));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_stacked),
        cmocka_unit_test(finds_apart),
        cmocka_unit_test(finds_flat),
        cmocka_unit_test(joins_settings),
        cmocka_unit_test(lays_out),
        cmocka_unit_test(knows_keys),
        cmocka_unit_test(keeps_words_of_other_tokenizers),
        cmocka_unit_test(cuts_experts_as_the_rest),
        cmocka_unit_test(cuts_by_bytes_and_not_by_ranks),
        cmocka_unit_test(orders_buffers_by_spec),
        cmocka_unit_test(refuses_unknown_order),
        cmocka_unit_test(refuses_names_of_grouped_experts),
        cmocka_unit_test(settles_what_it_knows),
    };

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
