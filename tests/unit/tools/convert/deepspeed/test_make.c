/* tests/unit/tools/convert/deepspeed/test_make.c - files of DeepSpeed made of what has forgotten
 * that it came from there: every element is looked up by what it says; the job's settings, and
 * how tensor parallelism cut parameters. */
#include "tools/convert/core/output.h"
#include "tools/convert/engine/conversion.h"
#include "tools/convert/deepspeed/cuts.h"
#include "tools/convert/pickle/json_tree.h"
#include "tools/convert/state/steps.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/folder.h"
#include "tests/support/quiet_log.h"
#include "tests/unit/tools/convert/deepspeed/markers.h"

#define FIXTURES "tests/fixtures/deepspeed/"

enum { PATH_BYTES = 512, LIMIT_BYTES = 1 << 30 };

static const char job[] =
    "{\"param_groups\": [{\"params\": [\"embed.weight\", \"up.weight\", \"conv.weight\", "
    "\"down.weight\"],\n"
    "  \"lr\": 0.01, \"betas\": [0.9, 0.999], \"amsgrad\": false, \"foreach\": null, "
    "\"weight_decay\": 1e-1},\n"
    "  {\"params\": [\"scale\", \"up.bias\", \"conv.bias\", \"norm.weight\", \"norm.bias\"], "
    "\"lr\": 3E-3}],\n"
    " \"frozen\": [\"frozen\"], \"buffers\": [\"running\", \"seen\"],\n"
    " \"shared\": {\"head.weight\": \"embed.weight\"}, \"global_steps\": 2}\n";

static int
set_up(void **state)
{
    char path[PATH_BYTES];
    FILE *file;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("deepspeed-make"))
        return -1;
    (void)snprintf(path, sizeof(path), "%s/job.json", root);
    file = fopen(path, "w");
    if (!file || fputs(job, file) < 0 || fclose(file) != 0)
        return -1;
    return 0;
}

static cairn_err
convert(const char *source, const char *target, const char *format, enum cairn_zero zero,
        uint32_t dp, struct cairn_complaint *complaint)
{
    static const char *const drops[] = {"deepspeed/*"};
    char said[PATH_BYTES];

    (void)snprintf(said, sizeof(said), "%s/job.json", root);
    return convert_to((struct cairn_conversion_options){.source = source,
                                                        .target = target,
                                                        .output.parallelism.dp = dp,
                                                        .output.zero = zero,
                                                        .output.job = zero ? said : NULL,
                                                        .drops = drops,
                                                        .drop_count = zero ? 0 : 1},
                      format, complaint);
}

static void
makes_every_stage_for_any_number_of_ranks(void **state)
{
    static const uint32_t ranks[] = {1, 3, 103};
    static const char *const ways[] = {"universal", "dcp"};
    struct cairn_complaint complaint;
    char source[PATH_BYTES], target[PATH_BYTES];

    for (enum cairn_zero zero = CAIRN_ZERO_1; zero <= CAIRN_ZERO_BF16; zero++) {
        for (size_t way = 0; way < 2; way++) {
            (void)snprintf(source, sizeof(source), "%s/%s-%u", root, ways[way], (unsigned)zero);
            if (convert(zero == CAIRN_ZERO_3 ? FIXTURES "zero3" : FIXTURES "zero2", source,
                        ways[way], 0, 0, &complaint))
                fail_msg("%s", complaint.text);
            for (size_t r = 0; r < sizeof(ranks) / sizeof(*ranks); r++) {
                (void)snprintf(target, sizeof(target), "%s/made-%u-%zu-%u", root, (unsigned)zero,
                               way, ranks[r]);
                if (convert(source, target, "deepspeed", zero, ranks[r], &complaint))
                    fail_msg("%s", complaint.text);
                check_markers(target, "deepspeed");
            }
        }
    }
}

/* In the fixture of ZeRO 2 parameters are not what their masters round to: ZeRO 3 would lose
 * them. */
static void
loses_no_parameters(void **state)
{
    struct cairn_complaint complaint;
    char source[PATH_BYTES], target[PATH_BYTES];

    (void)snprintf(source, sizeof(source), "%s/apart", root);
    (void)snprintf(target, sizeof(target), "%s/apart-3", root);
    assert_int_equal(convert(FIXTURES "zero2", source, "universal", 0, 0, &complaint), CAIRN_OK);
    assert_int_equal(convert(source, target, "deepspeed", CAIRN_ZERO_3, 2, &complaint),
                     CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "when these are rounded"));
    assert_int_not_equal(access(target, F_OK), 0);
}

/* A count of steps is one number without a fraction. */
static void
counts_steps(void **state)
{
    static const struct {
        float values[2];
        uint64_t elements;
        cairn_err err;
    } cases[] = {{{7, 0}, 1, CAIRN_OK},
                 {{7, 7}, 2, CAIRN_CORRUPT},
                 {{2.5f, 0}, 1, CAIRN_CORRUPT},
                 {{-1, 0}, 1, CAIRN_CORRUPT}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint = {.place.dir_fd = -1, .complaint = &complaint};
        uint64_t count = 0;
        uint32_t tensor;
        bool known = false;

        checkpoint.place.path = strdup("imagined");
        assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint, "bytes", cases[i].values,
                                                     sizeof(cases[i].values)),
                         CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint, "step.up", CAIRN_F32,
                                                     CAIRN_OPTIMIZER, 1, &cases[i].elements,
                                                     &tensor),
                         CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_box(&checkpoint, tensor, 0, NULL, NULL, 0, NULL),
                         CAIRN_OK);
        assert_int_equal(cairn_steps_common(&checkpoint, &known, &count), cases[i].err);
        if (cases[i].err)
            assert_non_null(strstr(complaint.text, "step.up"));
        else
            assert_true(known && count == 7);
        cairn_checkpoint_close(&checkpoint);
    }
}

/* Of several optimizers the one counts whose moments are the checkpoint's. */
static void
counts_the_first_optimizers_steps(void **state)
{
    static const struct {
        const char *tensor; /* beside "exp_avg.up" */
        enum cairn_kind kind;
        const char *steps[3];
        bool known;
    } cases[] = {
        {"second.state.0.exp_avg",
         CAIRN_BUFFER,
         {"optimizer.state.0.step.pickle", "second.state.0.step.pickle"},
         true},
        {"second.state.0.exp_avg",
         CAIRN_BUFFER,
         {"optim.state.0.step.pickle", "second.state.0.step.pickle"},
         true},
        {"second.state.up.exp_avg",
         CAIRN_PARAM,
         {"optim.state.up.step.pickle", "second.state.up.step.pickle"},
         true},
        {"first.state.0.exp_avg",
         CAIRN_OPTIMIZER,
         {"first.state.0.step.pickle", "third.state.0.step.pickle"},
         true},
        {"state.0.exp_avg", CAIRN_OPTIMIZER, {"state.0.step.pickle"}, true},
        {"other",
         CAIRN_BUFFER,
         {"optimizer.state.0.step.pickle", "third.state.0.step.pickle"},
         true},
        {"second.state.0.exp_avg",
         CAIRN_BUFFER,
         {"second.state.0.step.pickle", "second.state.0.step.pickle"},
         false},
        /* which one, nobody can say */
        {"other", CAIRN_BUFFER, {"one.state.0.step.pickle", "two.state.0.step.pickle"}, false},
    };
    static const uint64_t three = 3;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint = {.place.dir_fd = -1, .complaint = &complaint};
        uint64_t count = 0;
        uint32_t tensor;
        bool known = false;
        cairn_err err;

        checkpoint.place.path = strdup("imagined");
        assert_int_equal(cairn_layout_create(&checkpoint.layout), CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint, "up", CAIRN_F32, CAIRN_PARAM, 1,
                                                     &three, &tensor),
                         CAIRN_OK);
        assert_int_equal(cairn_checkpoint_add_tensor(&checkpoint, cases[i].tensor, CAIRN_F32,
                                                     cases[i].kind, 1, &three, &tensor),
                         CAIRN_OK);
        for (uint8_t s = 0; s < 3 && cases[i].steps[s]; s++)
            if (s == 0 || strcmp(cases[i].steps[0], cases[i].steps[s]) != 0)
                assert_int_equal(
                    cairn_checkpoint_add_opaque(&checkpoint, cases[i].steps[s],
                                                (const uint8_t[]){'K', (uint8_t)(5 + s), '.'}, 3),
                    CAIRN_OK);
        err = cairn_steps_common(&checkpoint, &known, &count);
        if (i + 1 == sizeof(cases) / sizeof(*cases))
            assert_int_equal(err, CAIRN_INVAL);
        else
            assert_int_equal(err, CAIRN_OK);
        if (known != cases[i].known)
            fail_msg("case %zu: %s", i, complaint.text);
        assert_true(!known || count == 5);
        cairn_checkpoint_close(&checkpoint);
    }
}

/* ---- settings of the job ---- */

static void
reads_json(void **state)
{
    static const char text[] = " {\"a\": [1, -2.5e1, \"x\\u00e9\", true, false, null, []], \"b\": "
                               "{\"c\": {}}, \"d\": 1e400 } ";
    static const char *const broken[] = {"",    "{",   "[1,]", "{\"a\" 1}", "{\"a\": 1, \"a\": 2}",
                                         "tru", "1 2", "[1",   "{1: 2}",    "nul",
                                         "--1", "\"x"};
    struct cairn_pickle tree;
    struct cairn_pickle_node *top = NULL;
    const struct cairn_pickle_node *list;
    const char *why = NULL;
    size_t at = 0;

    cairn_pickle_init(&tree, 1 << 20);
    assert_int_equal(cairn_json_tree_read(&tree, text, strlen(text), &top, &why, &at), CAIRN_OK);
    list = cairn_pickle_get(top, "a");
    assert_int_equal(list->count, 7);
    assert_int_equal(list->items[0]->integer, 1);
    assert_true(list->items[1]->kind == CAIRN_PICKLE_FLOAT && list->items[1]->real == -25.0);
    assert_true(cairn_pickle_is_text(list->items[2], "x\xc3\xa9"));
    assert_true(list->items[3]->truth && !list->items[4]->truth);
    assert_int_equal(list->items[5]->kind, CAIRN_PICKLE_NONE);
    assert_int_equal(list->items[6]->count, 0);
    assert_int_equal(cairn_pickle_get(cairn_pickle_get(top, "b"), "c")->kind, CAIRN_PICKLE_DICT);
    for (size_t i = 0; i < sizeof(broken) / sizeof(*broken); i++) {
        if (cairn_json_tree_read(&tree, broken[i], strlen(broken[i]), &top, &why, &at) !=
            CAIRN_CORRUPT)
            fail_msg("\"%s\" was read", broken[i]);
        assert_non_null(why);
    }
    cairn_pickle_fini(&tree);
}

/* ---- tensor parallelism ---- */

static void
put_pattern(struct cairn_pickle *tree, struct cairn_pickle_node *info, const char *key,
            const char *pattern)
{
    struct cairn_pickle_node *list = cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, NULL, 0);

    cairn_pickle_append(tree, list, cairn_pickle_text(tree, pattern));
    cairn_pickle_put(tree, info, cairn_pickle_text(tree, key), list);
}

/* All ranks' boxes hold every element of the whole once; the rows of rank 1's part are these of the
 * whole, where they are given. */
static void
check_cut(struct cairn_deepspeed_cuts *cuts, const char *path, const uint64_t part[2],
          uint32_t ranks, const uint64_t whole[2], const uint64_t *rows_of_second)
{
    uint8_t seen[64] = {0};

    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct cairn_deepspeed_cut cut;

        assert_null(cairn_deepspeed_cut(cuts, path, 2, part, ranks, rank, &cut));
        assert_memory_equal(cut.shape, whole, 2 * sizeof(*whole));
        for (uint32_t b = 0; b < cut.box_count; b++) {
            const struct cairn_deepspeed_cut_box *box = &cut.boxes[b];

            assert_true(box->row + box->extent[0] <= part[0]);
            for (uint64_t r = 0; r < box->extent[0]; r++) {
                if (rank == 1 && rows_of_second)
                    assert_int_equal(box->start[0] + r, rows_of_second[box->row + r]);
                for (uint64_t c = 0; c < box->extent[1]; c++)
                    seen[(box->start[0] + r) * whole[1] + box->start[1] + c]++;
            }
        }
    }
    for (uint64_t i = 0; i < whole[0] * whole[1]; i++)
        assert_int_equal(seen[i], 1);
}

static void
cuts_as_the_patterns_say(void **state)
{
    static const uint64_t part[] = {4, 3}, rows[] = {8, 3}, columns[] = {4, 6},
                          vocabulary[] = {5, 3};
    static const uint64_t second[] = {2, 3, 6, 7};
    static const char *const beyond[] = {
        "(?!norm).*", "a*?", "x{9999}{9999}", "[\\w.]+", "(a)\\1", "\\bup", "a\\", "(", "[a"};
    struct cairn_deepspeed_cuts cuts;
    struct cairn_deepspeed_cut cut;
    struct cairn_pickle tree;
    struct cairn_pickle_node *info;
    const char *why = NULL;

    cairn_pickle_init(&tree, 1 << 20);
    info = cairn_pickle_dict(&tree);
    put_pattern(&tree, info, "tp_replicated_parameter_patterns", "\\d+\\.norm\\.weight");
    put_pattern(&tree, info, "parameter_with_row_parallelism_patterns",
                "^layers\\.\\d+\\.down\\.weight$");
    put_pattern(&tree, info, "vocabulary_parameter_patterns",
                "tied_modules.embed.word_embeddings.weight");
    put_pattern(&tree, info, "parameter_with_2_sub_params_cat_dim_0",
                "\\d+.mlp.dense_h_to_4h.weight");
    cairn_pickle_put(&tree, info, cairn_pickle_text(&tree, "original_vocab_size"),
                     cairn_pickle_int(&tree, 5));
    assert_int_equal(cairn_deepspeed_cuts_read(info, &cuts, &why), CAIRN_OK);
    check_cut(&cuts, "layers.0.up.weight", part, 2, rows, (const uint64_t[]){4, 5, 6, 7});
    check_cut(&cuts, "layers.10.down.weight", part, 2, columns, NULL);
    /* Python's match begins at the beginning */
    check_cut(&cuts, "x.layers.10.down.weight", part, 2, rows, NULL);
    check_cut(&cuts, "layers.10.down.weight_scale", part, 2, rows, NULL);
    check_cut(&cuts, "3.mlp.dense_h_to_4h.weight", part, 2, rows, second);
    check_cut(&cuts, "tied_modules.embed.word_embeddings.weight", part, 2, vocabulary,
              (const uint64_t[]){4});
    check_cut(&cuts, "tied_modules.embed.word_embeddings.weight", part, 3, vocabulary,
              (const uint64_t[]){4});
    assert_null(cairn_deepspeed_cut(&cuts, "12.norm.weight", 1, part, 2, 1, &cut));
    assert_int_equal(cut.shape[0], 4);
    assert_int_equal(cut.boxes[0].start[0], 0);
    assert_non_null(cairn_deepspeed_cut(&cuts, "layers.0.down.weight", 1, part, 2, 1, &cut));
    cairn_deepspeed_cuts_fini(&cuts);
    for (size_t i = 0; i < sizeof(beyond) / sizeof(*beyond); i++) {
        info = cairn_pickle_dict(&tree);
        put_pattern(&tree, info, "parameter_to_average_patterns", beyond[i]);
        assert_int_equal(cairn_deepspeed_cuts_read(info, &cuts, &why), CAIRN_VERSION);
        cairn_deepspeed_cuts_fini(&cuts);
    }
    cairn_pickle_fini(&tree);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_every_stage_for_any_number_of_ranks),
        cmocka_unit_test(loses_no_parameters),
        cmocka_unit_test(counts_steps),
        cmocka_unit_test(counts_the_first_optimizers_steps),
        cmocka_unit_test(reads_json),
        cmocka_unit_test(cuts_as_the_patterns_say),
    };

    return cmocka_run_group_tests(tests, set_up, root_remove);
}
