/* tests/unit/tools/convert/deepspeed/test_deepspeed.c - checkpoints that DeepSpeed saved (by
 * tests/fixtures/make_deepspeed.py), whose elements say where they belong: read, converted to other
 * numbers of ranks and to the universal form, broken. */
#include "tools/convert/formats.h"
#include "tools/convert/engine/conversion.h"
#include "tools/convert/deepspeed/cuts.h"
#include "tools/convert/deepspeed/groups.h"
#include "tools/convert/engine/select.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"

#include "base/file.h"
#include "base/log.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/cmocka.h"
#include "tests/support/quiet_log.h"
#include "tests/support/random.h"
#include "tests/support/folder.h"
#include "tests/unit/tools/convert/deepspeed/markers.h"

#define FIXTURES "tests/fixtures/deepspeed/"

enum { PATH_BYTES = 512, LIMIT_BYTES = 1 << 30, FLIPS = 400, ARITHMETIC_SEEDS = 2000 };

static int
set_up(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("deepspeed"))
        return -1;
    return 0;
}

static cairn_err
convert(const char *source, const char *target, const char *format, uint32_t dp,
        struct cairn_complaint *complaint)
{
    bool file = strcmp(format, "torch") == 0 || strcmp(format, "safetensors") == 0;

    return convert_to((struct cairn_conversion_options){.source = source,
                                                        .target = target,
                                                        .output.parallelism.dp = dp,
                                                        .output.single_file = file},
                      format, complaint);
}

static void
reads_what_deepspeed_saved(void **state)
{
    check_markers(FIXTURES "zero2", "deepspeed");
    check_markers(FIXTURES "zero3", "deepspeed");
    check_markers(FIXTURES "zero3/global_step2", "deepspeed"); /* the folder alone */
}

static void
writes_any_number_of_ranks(void **state)
{
    static const char *const fixtures[] = {"zero2", "zero3"};
    static const uint32_t ranks[] = {1, 2, 3, 5, 103};
    struct cairn_complaint complaint = {""};
    char source[PATH_BYTES], target[PATH_BYTES], universal[PATH_BYTES], other[PATH_BYTES],
        file[PATH_BYTES];
    const char *const ways[] = {source, universal, other, file};

    for (size_t f = 0; f < 2; f++) {
        (void)snprintf(source, sizeof(source), FIXTURES "%s", fixtures[f]);
        (void)snprintf(universal, sizeof(universal), "%s/universal-%s", root, fixtures[f]);
        if (convert(source, universal, "deepspeed-universal", 0, &complaint))
            fail_msg("%s", complaint.text);
        check_markers(universal, "deepspeed-universal");
        (void)snprintf(other, sizeof(other), "%s/dcp-%s", root, fixtures[f]);
        if (convert(source, other, "dcp", 0, &complaint)) /* which has a step for each parameter */
            fail_msg("%s", complaint.text);
        (void)snprintf(file, sizeof(file), "%s/%s.pt", root, fixtures[f]);
        if (convert(source, file, "torch", 0, &complaint)) /* which has parameters by number */
            fail_msg("%s", complaint.text);
        for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++)
            for (int by_way = 0; by_way < 4; by_way++) {
                (void)snprintf(target, sizeof(target), "%s/%s-%u-%d", root, fixtures[f], ranks[r],
                               by_way);
                if (convert(ways[by_way], target, "deepspeed", ranks[r], &complaint))
                    fail_msg("%s", complaint.text);
                check_markers(target, "deepspeed");
            }
    }
}

/* What ZeRO 3's buffers are split by is read back from a note, whose place no one guards: a note
 * that is not a number is refused, with file and note. */
static void
refuses_a_size_that_is_no_number(void **state)
{
    static const char size[] = "1000000000";
    static const char *const wrong[] = {"-100000000", "+100000000",  "1e9       ", "0100000000",
                                        " 100000000", "100000000\n", "1000000x00"};
    struct cairn_complaint complaint = {""};
    char file[PATH_BYTES], target[PATH_BYTES];
    uint8_t *bytes = NULL, *at;
    size_t bytes_len = 0;
    int fd = -1;

    (void)snprintf(file, sizeof(file), "%s/noted.safetensors", root);
    (void)snprintf(target, sizeof(target), "%s/noted", root);
    if (convert(FIXTURES "zero3", file, "safetensors", 0, &complaint))
        fail_msg("%s", complaint.text);
    assert_int_equal(cairn_file_load(AT_FDCWD, file, 1 << 20, &bytes, &bytes_len), CAIRN_OK);
    at = memmem(bytes, bytes_len, size, strlen(size));
    assert_non_null(at);
    assert_null(memmem(at + 1, bytes_len - (size_t)(at + 1 - bytes), size, strlen(size)));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        fd = open(file, O_WRONLY);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, wrong[i], strlen(size), at - bytes), strlen(size));
        assert_int_equal(close(fd), 0);
        assert_int_equal(convert(file, target, "deepspeed", 3, &complaint), CAIRN_CORRUPT);
        assert_non_null(strstr(complaint.text, file));
        assert_non_null(strstr(complaint.text, "deepspeed/sub_group_size"));
        assert_int_equal(access(target, F_OK), -1);
    }
    free(bytes);
}

/* Every conversion proves that both sides have the same elements; here that what was tied in two
 * stages can be written for any number of ranks. */
static void
writes_pipelines(void **state)
{
    static const uint32_t ranks[] = {1, 2, 3, 7};
    struct cairn_complaint complaint = {""};
    char source[PATH_BYTES] = FIXTURES "pipe", target[PATH_BYTES];

    for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
        (void)snprintf(target, sizeof(target), "%s/pipe-%u", root, ranks[r]);
        if (convert(source, target, "deepspeed", ranks[r], &complaint))
            fail_msg("%s", complaint.text);
        (void)snprintf(source, sizeof(source), "%s", target);
    }
    (void)snprintf(target, sizeof(target), "%s/pipe-universal", root);
    assert_int_equal(convert(source, target, "deepspeed-universal", 0, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "pipeline"));
}

/* DeepSpeed saves a layer that shares its weights in each of its places: copies of one
 * parameter. */
static void
takes_all_files_of_a_tied_layer(void **state)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    char source[PATH_BYTES], target[PATH_BYTES], command[4 * PATH_BYTES];

    (void)snprintf(source, sizeof(source), "%s/tied", root);
    (void)snprintf(target, sizeof(target), "%s/tied-three", root);
    (void)snprintf(command, sizeof(command),
                   "cp -r " FIXTURES "pipe %s && cp %s/global_step2/layer_00-model_states.pt "
                   "%s/global_step2/layer_04-model_states.pt",
                   source, source, source);
    assert_int_equal(system(command), 0);
    if (convert(source, target, "deepspeed", 3, &complaint) ||
        cairn_checkpoint_detect(target, cairn_formats, 0, &checkpoint, &complaint))
        fail_msg("%s", complaint.text);
    assert_int_not_equal(cairn_layout_tensor_find(checkpoint.layout, "tied_modules.embed.weight"),
                         UINT32_MAX);
    assert_int_equal(cairn_layout_tensor_find(checkpoint.layout, "4.weight"), UINT32_MAX);
    cairn_checkpoint_close(&checkpoint);
    (void)snprintf(command, sizeof(command), "test -f %s/global_step2/layer_04-model_states.pt",
                   target);
    assert_int_equal(system(command), 0);
}

/* What is carried may come from any file: a layer that would be written elsewhere is refused. */
static void
refuses_names_outside(void **state)
{
    static const char empty_dict[] = {'\x80', 2, '}', '.'};
    const struct cairn_output_options options = {.dtype = 0};
    const struct cairn_format *format = cairn_format_find("deepspeed");
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_output output = {.format = format};
    struct cairn_complaint complaint = {""};

    assert_int_equal(cairn_checkpoint_open(FIXTURES "pipe", format, 0, &checkpoint, &complaint), 0);
    assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint,
                                                 "deepspeed/layer_0/../../../out.pickle",
                                                 empty_dict, sizeof(empty_dict)),
                     0);
    assert_int_equal(format->plan(&checkpoint, &options, &output), CAIRN_INVAL);
    if (!strstr(complaint.text, "layer_0/../../../out.pt\""))
        fail_msg("%s", complaint.text);
    cairn_output_fini(&output);
    cairn_checkpoint_close(&checkpoint);
}

/* What one rank alone has goes with its number; where there is no such rank, the user decides. */
static void
refuses_objects_without_a_rank(void **state)
{
    static const char own[] = "rank1/deepspeed/model_states.pickle";
    const struct cairn_format *format = cairn_format_find("deepspeed");
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_complaint complaint = {""};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    assert_int_equal(cairn_checkpoint_open(FIXTURES "zero3", format, 0, &checkpoint, &complaint),
                     0);
    assert_int_equal(cairn_checkpoint_load_opaque(&checkpoint, own + strlen("rank1/"), 1 << 20,
                                                  &bytes, &bytes_len),
                     0);
    assert_int_equal(cairn_checkpoint_add_opaque(&checkpoint, own, bytes, bytes_len), 0);
    free(bytes);
    for (uint32_t ranks = 1; ranks <= 3; ranks++) {
        const struct cairn_output_options options = {.parallelism.dp = ranks};
        struct cairn_output output = {.format = format};

        assert_int_equal(format->plan(&checkpoint, &options, &output),
                         ranks == 1 ? CAIRN_INVAL : CAIRN_OK);
        if (ranks == 1 && !strstr(complaint.text, "--drop 'rank1/*'"))
            fail_msg("%s", complaint.text);
        cairn_output_fini(&output);
    }
    cairn_checkpoint_close(&checkpoint);
}

/* Files that are made again have nothing of a rank's own of the files before. */
static void
refuses_objects_that_are_left(void **state)
{
    static const char *const left[][2] = {
        {"rank1/deepspeed/model_states.pickle", "'rank*/deepspeed/*'"},
        {"part1/rank2/deepspeed/optim_states.pickle", "'part*/deepspeed/*'"}};
    static const char empty_dict[] = {'\x80', 2, '}', '.'};
    const struct cairn_format *format = cairn_format_find("deepspeed");
    const struct cairn_output_options options = {.zero = CAIRN_ZERO_3};
    const char *const pattern = "deepspeed/*";

    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
        struct cairn_complaint complaint = {""};
        uint32_t dropped = 0;

        assert_int_equal(
            cairn_checkpoint_open(FIXTURES "zero3", format, 0, &checkpoint, &complaint), 0);
        assert_int_equal(
            cairn_checkpoint_add_opaque(&checkpoint, left[i][0], empty_dict, sizeof(empty_dict)),
            0);
        assert_int_equal(cairn_checkpoint_drop(&checkpoint, &pattern, 1, &dropped), 0);
        assert_int_equal(format->prepare(&checkpoint, &options), CAIRN_INVAL);
        if (!strstr(complaint.text, left[i][0]) || !strstr(complaint.text, left[i][1]))
            fail_msg("%s", complaint.text);
        cairn_checkpoint_close(&checkpoint);
    }
}

static struct cairn_pickle_node *
group_of_one(struct cairn_pickle *tree, int64_t number)
{
    struct cairn_pickle_node *group = cairn_pickle_dict(tree),
                             *member = cairn_pickle_int(tree, number);

    cairn_pickle_put(tree, group, cairn_pickle_text(tree, "params"),
                     cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, &member, 1));
    cairn_pickle_put(tree, group, cairn_pickle_text(tree, "lr"), cairn_pickle_float(tree, 0.5));
    return group;
}

/* Parameters of one shape, whose state is counted through two groups. */
static void
imagine_numbers(struct cairn_checkpoint *checkpoint)
{
    static const char *const parameters[] = {"a", "b"};
    static const uint64_t shape[] = {4};
    struct cairn_pickle tree;
    struct cairn_pickle_node *list;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    char name[32];
    uint32_t tensor;

    checkpoint->place.path = strdup("imagined");
    assert_int_equal(cairn_layout_create(&checkpoint->layout), CAIRN_OK);
    cairn_pickle_init(&tree, 1 << 20);
    list = cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, NULL, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_checkpoint_add_tensor(checkpoint, parameters[i], CAIRN_F32,
                                                     CAIRN_PARAM, 1, shape, &tensor),
                         0);
        (void)snprintf(name, sizeof(name), "optimizer.state.%d.exp_avg", i);
        assert_int_equal(cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_F32, CAIRN_OPTIMIZER,
                                                     1, shape, &tensor),
                         0);
        cairn_pickle_append(&tree, list, group_of_one(&tree, i));
    }
    assert_int_equal(cairn_pickle_write(&tree, list, &bytes, &bytes_len, NULL), 0);
    assert_int_equal(
        cairn_checkpoint_add_opaque(checkpoint, CAIRN_PARAM_GROUPS_NAME, bytes, bytes_len), 0);
    free(bytes);
    cairn_pickle_fini(&tree);
}

/* A number stands for the parameter that is counted so; groups that are others count others. */
static void
names_what_is_counted(void **state)
{
    static const struct {
        const char *job;
        cairn_err err;
        const char *said;
    } cases[] = {
        {"{\"global_steps\": 2, \"param_groups\": [{\"params\": [\"b\"], \"lr\": 1}, "
         "{\"params\": [\"a\"], \"lr\": 1}]}",
         CAIRN_OK, ""},
        {"{\"global_steps\": 2, \"param_groups\": [{\"params\": [\"a\", \"b\"], \"lr\": 1}]}",
         CAIRN_INVAL, "are of other sizes"},
        {"{\"global_steps\": 2, \"shared\": {\"c\": \"B\"}, \"param_groups\": [{\"params\": "
         "[\"b\"], \"lr\": 1}, "
         "{\"params\": [\"a\"], \"lr\": 1}]}",
         CAIRN_INVAL, "\"c\" is tied to \"B\""}};
    char path[PATH_BYTES];

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/job.json", root);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
        struct cairn_complaint complaint = {""};
        const struct cairn_output_options options = {.zero = CAIRN_ZERO_2, .job = path};
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, cases[i].job, strlen(cases[i].job)), strlen(cases[i].job));
        assert_int_equal(close(fd), 0);
        imagine_numbers(&checkpoint);
        checkpoint.complaint = &complaint;
        if (cairn_format_find("deepspeed")->prepare(&checkpoint, &options) != cases[i].err)
            fail_msg("%zu: %s", i, complaint.text);
        if (cases[i].err) {
            assert_non_null(strstr(complaint.text, cases[i].said));
        } else {
            uint32_t first = cairn_layout_tensor_find(checkpoint.layout, "exp_avg.b");

            assert_true(checkpoint.alias_count > 0 && checkpoint.aliases[0].tensor == first);
            assert_int_equal(
                checkpoint.aliases[0].of,
                cairn_layout_tensor_find(checkpoint.layout, "optimizer.state.0.exp_avg"));
        }
        cairn_checkpoint_close(&checkpoint);
    }
}

/* One parameter's step is changed where each has its own: DeepSpeed's groups have one step, so it
 * is refused. */
static void
refuses_steps_that_differ(void **state)
{
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    struct cairn_complaint complaint = {""};
    char source[PATH_BYTES], target[PATH_BYTES], path[2 * PATH_BYTES];
    const float other = 77;
    uint32_t tensor;

    (void)snprintf(source, sizeof(source), "%s/steps", root);
    (void)snprintf(target, sizeof(target), "%s/steps-out", root);
    assert_int_equal(convert(FIXTURES "zero2", source, "dcp", 0, &complaint), CAIRN_OK);
    assert_int_equal(cairn_checkpoint_detect(source, cairn_formats, 0, &checkpoint, &complaint),
                     CAIRN_OK);
    tensor = cairn_layout_tensor_find(checkpoint.layout, "step.down.weight");
    assert_int_not_equal(tensor, UINT32_MAX);
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint.layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint.layout, i);
        int fd = -1;

        if (piece->tensor != tensor)
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", source,
                       checkpoint.containers[piece->container].path);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, &other, sizeof(other), (off_t)piece->offset_bytes),
                         sizeof(other));
        assert_int_equal(close(fd), 0);
    }
    cairn_checkpoint_close(&checkpoint);
    assert_int_equal(convert(source, target, "deepspeed", 2, &complaint), CAIRN_INVAL);
    assert_non_null(strstr(complaint.text, "step.down.weight"));
    assert_int_not_equal(access(target, F_OK), 0);
}

/* ---- arithmetic ---- */

/* Each element of each parameter is in one rank's part, at the place that walking all elements one
 * by one gives it. */
static void
parts_are_what_a_walk_gives(void **state)
{
    for (uint64_t s = 1; s <= ARITHMETIC_SEEDS; s++) {
        uint64_t seed = s * 0x9e3779b97f4a7c15u, total = 0;
        uint32_t ranks = (uint32_t)(xorshift(&seed) % 12 + 1),
                 count = (uint32_t)(xorshift(&seed) % 6 + 1);
        struct cairn_deepspeed_parameter parameters[6] = {{0}};
        struct cairn_deepspeed_group group = {.count = count, .spread = 1};
        struct cairn_deepspeed_groups groups = {
            .parameters = parameters, .parameter_count = count, .groups = &group, .group_count = 1};
        bool stage3 = xorshift(&seed) % 2;
        uint64_t partition, walked = 0;

        for (uint32_t i = 0; i < count; i++) {
            parameters[i].elements = xorshift(&seed) % 40;
            parameters[i].begin = total;
            total += parameters[i].elements;
        }
        group.elements = total;
        partition = cairn_deepspeed_partition(&groups, 0, stage3, ranks);
        if (!stage3) {
            assert_true(partition % 2 == 0 && partition * ranks >= total);
            assert_true(partition * ranks - total < 2 * (uint64_t)ranks);
        }
        for (uint32_t i = 0; i < count; i++) {
            uint64_t part = (parameters[i].elements + ranks - 1) / ranks;

            for (uint64_t e = 0; e < parameters[i].elements; e++, walked++)
                for (uint32_t r = 0; r < ranks; r++) {
                    uint64_t begin, end, at;
                    bool mine = stage3 ? e / part == r : walked / partition == r;

                    cairn_deepspeed_part(&parameters[i], stage3, ranks, r, partition, &begin, &end,
                                         &at);
                    assert_true(mine == (e >= begin && e < end));
                    if (mine && !stage3)
                        assert_true(at + (e - begin) == walked % partition);
                }
        }
    }
}

/* ---- tensor parallelism ---- */

/* What universal_checkpoint_info has under one key: a list of this pattern. */
static cairn_err
read_cuts(const char *key, const char *pattern, uint64_t vocabulary,
          struct cairn_deepspeed_cuts *cuts)
{
    struct cairn_pickle tree;
    struct cairn_pickle_node *info, *list;
    const char *why = NULL;
    cairn_err err;

    cairn_pickle_init(&tree, 1 << 20);
    info = cairn_pickle_dict(&tree);
    list = cairn_pickle_sequence(&tree, CAIRN_PICKLE_LIST, NULL, 0);
    cairn_pickle_append(&tree, list, cairn_pickle_text(&tree, pattern));
    cairn_pickle_put(&tree, info, cairn_pickle_text(&tree, key), list);
    cairn_pickle_put(&tree, info, cairn_pickle_text(&tree, "original_vocab_size"),
                     cairn_pickle_int(&tree, (int64_t)vocabulary));
    assert_int_equal(cairn_pickle_done(&tree), CAIRN_OK);
    err = cairn_deepspeed_cuts_read(info, cuts, &why);
    cairn_pickle_fini(&tree);
    return err;
}

/* The second of three ranks, which has 4 x 6 elements of "a.weight". */
static void
finds_parts_of_tensor_parallelism(void **state)
{
    static const uint64_t shape[] = {4, 6};
    static const struct {
        const char *key;
        uint64_t vocabulary;
        uint64_t whole[2];
        uint32_t boxes;
        uint64_t starts[2][2], extents[2][2], rows[2];
    } cases[] = {
        {"parameter_with_row_parallelism_patterns", 0, {4, 18}, 1, {{0, 6}}, {{4, 6}}, {0}},
        {"tp_replicated_parameter_patterns", 0, {4, 6}, 1, {{0, 0}}, {{4, 6}}, {0}},
        {"vocabulary_parameter_patterns", 7, {7, 6}, 1, {{4, 0}}, {{3, 6}}, {0}},
        {"vocabulary_parameter_patterns", 4, {4, 6}, 0, {{0}}, {{0}}, {0}},
        {"parameter_with_2_sub_params_cat_dim_0",
         0,
         {12, 6},
         2,
         {{2, 0}, {8, 0}},
         {{2, 6}, {2, 6}},
         {0, 2}},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_deepspeed_cuts cuts;
        struct cairn_deepspeed_cut cut;

        assert_int_equal(read_cuts(cases[i].key, "^a\\.w\\w+$", cases[i].vocabulary, &cuts),
                         CAIRN_OK);
        assert_null(cairn_deepspeed_cut(&cuts, "b.weight", 2, shape, 3, 1, &cut));
        assert_true(cut.shape[0] == 12 && cut.shape[1] == 6 && cut.box_count == 1);
        assert_true(cut.boxes[0].start[0] == 4 && cut.boxes[0].start[1] == 0);
        assert_string_equal(cairn_deepspeed_patterns_unmet(&cuts.patterns), "^a\\.w\\w+$");
        assert_null(cairn_deepspeed_cut(&cuts, "a.weight", 2, shape, 3, 1, &cut));
        assert_null(cairn_deepspeed_patterns_unmet(&cuts.patterns));
        assert_memory_equal(cut.shape, cases[i].whole, sizeof(cases[i].whole));
        assert_int_equal(cut.box_count, cases[i].boxes);
        for (uint32_t b = 0; b < cut.box_count; b++) {
            assert_memory_equal(cut.boxes[b].start, cases[i].starts[b], sizeof(cases[i].starts[b]));
            assert_memory_equal(cut.boxes[b].extent, cases[i].extents[b],
                                sizeof(cases[i].extents[b]));
            assert_int_equal(cut.boxes[b].row, cases[i].rows[b]);
        }
        cairn_deepspeed_cuts_fini(&cuts);
    }
}

/* Patterns that mean something else to POSIX, or grow out of bounds when they are compiled. */
static void
refuses_patterns(void **state)
{
    static const char *const refused[] = {
        "a(?:b)",  "a.*?",  "a++",    "a\\x41",  "a\\b",           "[\\d]", "[]a]",
        "[[:x:]]", "a{20}", "(a){2}", "a{1}{2}", "((((a+)+)+)+)+", "[^]a]", "a\\1"};
    static const char *const understood[] = {"a\\.b-\\d+\\.(c|d)", "layers\\.\\d{1,2}\\.w",
                                             "[a-z]+", "(a+)+", "\\-\\_"};
    struct cairn_deepspeed_cuts cuts;

    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (read_cuts("tp_replicated_parameter_patterns", refused[i], 0, &cuts) != CAIRN_VERSION)
            fail_msg("%s is understood", refused[i]);
        cairn_deepspeed_cuts_fini(&cuts);
    }
    for (size_t i = 0; i < sizeof(understood) / sizeof(understood[0]); i++) {
        if (read_cuts("tp_replicated_parameter_patterns", understood[i], 0, &cuts) != CAIRN_OK)
            fail_msg("%s is not understood", understood[i]);
        cairn_deepspeed_cuts_fini(&cuts);
    }
    assert_int_equal(read_cuts("parameter_with_sub_params", "a", 0, &cuts), CAIRN_VERSION);
    cairn_deepspeed_cuts_fini(&cuts);
    assert_int_equal(read_cuts("autotp_unsupported_parameter_patterns", "a", 0, &cuts),
                     CAIRN_VERSION);
    cairn_deepspeed_cuts_fini(&cuts);
}

/* ---- broken ---- */

static void
write_file(const char *path, const void *bytes, size_t bytes_len)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, bytes_len), bytes_len);
    assert_int_equal(close(fd), 0);
}

static void
copy_file(const char *from, const char *to)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    assert_int_equal(cairn_file_load(AT_FDCWD, from, 1 << 20, &bytes, &bytes_len), CAIRN_OK);
    write_file(to, bytes, bytes_len);
    free(bytes);
}

#define TAG "/global_step2/"
static const char *const files2[] = {"latest", TAG "mp_rank_00_model_states.pt",
                                     TAG "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                     TAG "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"};

/* A copy of the zero2 fixture without one of its files (4: with all). */
static void
copy_fixture(const char *name, size_t without, char path[PATH_BYTES])
{
    char from[2 * PATH_BYTES], to[2 * PATH_BYTES];

    (void)snprintf(path, PATH_BYTES, "%s/%s", root, name);
    (void)snprintf(to, sizeof(to), "%s%s", path, TAG);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(mkdir(to, 0700), 0);
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(from, sizeof(from), FIXTURES "zero2/%s", files2[i]);
        (void)snprintf(to, sizeof(to), "%s/%s", path, files2[i]);
        if (i != without)
            copy_file(from, to);
    }
}

static void
refuses_what_does_not_fit_together(void **state)
{
    char path[PATH_BYTES], from[2 * PATH_BYTES], to[2 * PATH_BYTES];

    copy_fixture("no-first", 2, path);
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT, "rank 0's optim_states file is missing");
    copy_fixture("no-last", 3, path);
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT,
                   "2 ranks wrote the checkpoint, and there are 1");
    copy_fixture("no-model", 1, path);
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT, "has no model_states file");

    copy_fixture("swapped", 3, path);
    (void)snprintf(from, sizeof(from), "%s/%s", path, files2[2]);
    (void)snprintf(to, sizeof(to), "%s/%s", path, files2[3]);
    copy_file(from, to); /* rank 0's file under rank 1's name */
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT, "group_paddings of group 0");

    copy_fixture("tensor-parallel", 4, path);
    (void)snprintf(to, sizeof(to), "%s" TAG "mp_rank_01_model_states.pt", path);
    copy_file(from, to);
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT,
                   "model parallelism of 1, and there are model_states of 2");

    copy_fixture("elsewhere", 0, path);
    (void)snprintf(to, sizeof(to), "%s/latest", path);
    write_file(to, "../..", 5);
    expect_refusal(path, "deepspeed", CAIRN_CORRUPT, "latest: expected");
}

/* Any changed bytes give an error, or a checkpoint; never anything else. */
static void
survives_changed_bytes(void **state)
{
    char path[PATH_BYTES];

    copy_fixture("flipped", 4, path);
    check_changed_bytes(path, &files2[1], 3, "deepspeed", FLIPS);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_deepspeed_saved),
        cmocka_unit_test(writes_any_number_of_ranks),
        cmocka_unit_test(refuses_a_size_that_is_no_number),
        cmocka_unit_test(writes_pipelines),
        cmocka_unit_test(takes_all_files_of_a_tied_layer),
        cmocka_unit_test(refuses_names_outside),
        cmocka_unit_test(refuses_objects_without_a_rank),
        cmocka_unit_test(refuses_objects_that_are_left),
        cmocka_unit_test(names_what_is_counted),
        cmocka_unit_test(refuses_steps_that_differ),
        cmocka_unit_test(parts_are_what_a_walk_gives),
        cmocka_unit_test(finds_parts_of_tensor_parallelism),
        cmocka_unit_test(refuses_patterns),
        cmocka_unit_test(refuses_what_does_not_fit_together),
        cmocka_unit_test(survives_changed_bytes),
    };

    return cmocka_run_group_tests(tests, set_up, root_remove);
}
