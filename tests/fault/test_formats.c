/*
 * tests/fault/test_formats.c - conversions from and to every format of frameworks, and through a
 * map, whose n-th allocation or file operation fails: each reports that, leaves nothing that reads
 * as a checkpoint and is none, and comes out byte for byte the same when it is run again. And with
 * a bit of a tensor turned in what they read, and turned back.
 *
 * n goes on by the more the further it is, since each of these conversions has thousands of calls;
 * under a sanitizer it takes larger steps. Where it starts differs from case to case.
 * test_convert.c fails every single call of the engine.
 */
#include "tests/support/cmocka.h"
#include "tests/support/failing_calls.h"

#include <string.h>

#include "tools/convert/formats.h"
#include "tools/convert/engine/conversion.h"

#include "base/log.h"

#include "tests/support/cases.h"
#include "tests/support/quiet_log.h"
#include "tests/support/folder.h"

#define FIXTURES "tests/fixtures/"

enum { PATH_BYTES = 300, STEP_PART = CASE_STRIDE == 1 ? 4 : 2 };

static const struct {
    const char *source;
    const struct cairn_format *to;
    struct cairn_parallelism parallelism;
    const char *map;
    const char *drop; /* what the target has no place for */
    enum cairn_dtype dtype;
} cases[] = {
    {"megatron/dense", &cairn_format_megatron, {.tp = 1, .pp = 2}, NULL, NULL, 0},
    {"megatron/experts", &cairn_format_megatron_dist, {0}, NULL, NULL, 0},
    {"megatron_dist/flat", &cairn_format_megatron_dist, {.dp = 2}, NULL, NULL, 0},
    {"megatron_dist/apart", &cairn_format_megatron, {.tp = 1}, NULL, "exp_avg.*", 0},
    {"deepspeed/zero2", &cairn_format_deepspeed, {.dp = 3}, NULL, NULL, 0},
    {"deepspeed/zero2", &cairn_format_torch, {0}, NULL, "*deepspeed/*", CAIRN_F32},
    {"deepspeed/zero3", &cairn_format_ds_universal, {0}, NULL, NULL, 0},
    {"deepspeed/pipe", &cairn_format_dcp, {0}, NULL, NULL, 0},
    {"deepspeed/tensor", &cairn_format_deepspeed, {.tp = 1, .dp = 2}, NULL, NULL, 0},
    {"deepspeed/experts", &cairn_format_deepspeed, {.dp = 1, .ep = 1}, NULL, NULL, 0},
    {"dcp/mesh", &cairn_format_torch, {0}, NULL, NULL, 0},
    {"megatron/dense", &cairn_format_dcp, {0}, "llama", "*rng_state*", 0},
};

static char target[PATH_BYTES], expected[PATH_BYTES];

/* The target, and what an unfinished conversion into one file leaves beside it. */
static void
remove_target(void)
{
    char beside[PATH_BYTES + 32];

    remove_path(target);
    (void)snprintf(beside, sizeof(beside), "%s.cairn-journal", target);
    remove_path(beside);
    (void)snprintf(beside, sizeof(beside), "%s.cairn-part", target);
    remove_path(beside);
}

static int
set_up(void **state)
{
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (root_make("formats-fault"))
        return -1;
    (void)snprintf(target, sizeof(target), "%s/target", root);
    (void)snprintf(expected, sizeof(expected), "%s/expected", root);
    cairn_file_setup(&fault_ops);
    return 0;
}

static int
tear_down(void **state)
{
    cairn_file_setup(NULL);
    return root_remove(state);
}

static cairn_err
convert_from(size_t index, const char *source, const char *to, struct cairn_complaint *complaint)
{
    struct cairn_conversion_options options = {.source = source,
                                               .formats = cairn_formats,
                                               .target = to,
                                               .to = cases[index].to,
                                               .map = cases[index].map,
                                               .drops = &cases[index].drop,
                                               .drop_count = cases[index].drop != NULL,
                                               .thread_count = 1,
                                               .memory_limit_bytes = 1 << 30};
    struct cairn_conversion conversion;
    cairn_err err;

    options.output.parallelism = cases[index].parallelism;
    options.output.dtype = cases[index].dtype;
    options.output.single_file = cases[index].to->target_is_file;
    complaint->text[0] = '\0';
    err = cairn_conversion_open(&options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    cairn_conversion_close(&conversion);
    return err;
}

static cairn_err
convert(size_t index, const char *to, struct cairn_complaint *complaint)
{
    char source[PATH_BYTES];

    (void)snprintf(source, sizeof(source), FIXTURES "%s", cases[index].source);
    return convert_from(index, source, to, complaint);
}

/* Whether the target has all files that the conversion makes when nothing fails, as it makes them.
 * Where the last call of all failed a journal may lie beside them. */
static bool
is_right(void)
{
    char command[4 * PATH_BYTES];

    (void)snprintf(command, sizeof(command),
                   "diff -rq '%s' '%s' 2>&1 | grep -qv '^Only in %s'; test $? = 1", expected,
                   target, target);
    return system(command) == 0;
}

static bool
reads_as_checkpoint(size_t index)
{
    struct cairn_complaint complaint = {""};
    struct cairn_checkpoint checkpoint;
    struct cairn_whole whole;
    cairn_err err = cairn_checkpoint_open(target, cases[index].to, 0, &checkpoint, &complaint);

    if (err)
        return false;
    err = cairn_whole_init(&checkpoint, &whole);
    cairn_whole_fini(&whole);
    cairn_checkpoint_close(&checkpoint);
    return err == CAIRN_OK;
}

/* One conversion with a fault, and the same one after it. False: there were fewer calls than
 * that. */
static bool
fail_once(size_t index, enum kind kind, int64_t n, bool ever)
{
    struct cairn_complaint complaint = {""};
    cairn_err err;

    remove_target();
    arm(kind, n, ever);
    err = convert(index, target, &complaint);
    disarm();
    if (calls <= n)
        return false;
    if (err && complaint.text[0] == '\0')
        fail_msg("%s, call %lld: %s without a word", cases[index].source, (long long)n,
                 cairn_err_name(err));
    if (err == CAIRN_INTERNAL)
        fail_msg("%s, call %lld: %s", cases[index].source, (long long)n, complaint.text);
    if (!err || reads_as_checkpoint(index)) {
        if (!is_right())
            fail_msg("%s, call %lld: looks complete and is not: %s", cases[index].source,
                     (long long)n, complaint.text);
        return true;
    }
    err = convert(index, target, &complaint);
    if (err || !is_right())
        fail_msg("%s, after call %lld failed: %s: %s", cases[index].source, (long long)n,
                 cairn_err_name(err), complaint.text);
    return true;
}

/* Once and for good, in turn; a file operation that fails for good is on a disk that is full. */
static void
fail_in_steps(enum kind kind)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_complaint complaint = {""};
        int64_t n = (int64_t)i % 3 - 1;
        int times = 0;

        remove_path(expected);
        if (convert(i, expected, &complaint))
            fail_msg("%s: %s", cases[i].source, complaint.text);
        do {
            file_errno = times % 2 ? ENOSPC : EIO;
            n += 1 + n / STEP_PART;
        } while (fail_once(i, kind, n, times++ % 2));
        assert_true(times > 4 * STEP_PART - 1);
    }
}

static void
allocations_fail(void **state)
{
    fail_in_steps(MEMORY);
}

static void
files_fail(void **state)
{
    fail_in_steps(FILES);
}

/* ---- damage ---- */

/* Turns one bit of the first element of a tensor, in place; the file keeps its time. */
static void
flip(const struct cairn_checkpoint *checkpoint, const struct cairn_piece *piece)
{
    char path[2 * PATH_BYTES];
    struct timespec times[2];
    struct stat found;
    uint8_t byte;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/%s", checkpoint->place.path,
                   checkpoint->containers[piece->container].path);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && pread(fd, &byte, 1, (off_t)piece->offset_bytes) == 1);
    byte ^= 0x10;
    assert_int_equal(fstat(fd, &found), 0);
    times[0] = found.st_atim;
    times[1] = found.st_mtim;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)piece->offset_bytes), 1);
    assert_true(futimens(fd, times) == 0 && close(fd) == 0);
}

/* The first tensor that lies in a file and is read. */
static const struct cairn_piece *
first_read(const struct cairn_checkpoint *checkpoint, bool from_masters)
{
    for (size_t i = 0; i < cairn_layout_piece_count(checkpoint->layout); i++) {
        const struct cairn_piece *piece = cairn_layout_piece(checkpoint->layout, i);
        const char *name = cairn_layout_tensor(checkpoint->layout, piece->tensor)->name;

        if (checkpoint->containers[piece->container].path &&
            (!from_masters || strncmp(name, "fp32.", 5) == 0))
            return piece;
    }
    fail_msg("%s has no tensor", checkpoint->place.path);
    return NULL;
}

/* A tensor of each format's fixture: refused with its name and the file's, and nothing that looks
 * complete is left; nor anything that another copy of the file would go on with, or be refused
 * for. */
static void
flipped_bits_are_refused(void **state)
{
    char source[PATH_BYTES], command[2 * PATH_BYTES];

    (void)snprintf(source, sizeof(source), "%s/damaged", root);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_complaint complaint = {""};
        struct cairn_checkpoint checkpoint;
        const struct cairn_piece *piece;
        const char *file, *name;

        remove_path(source);
        remove_target();
        (void)snprintf(command, sizeof(command), "cp -r '" FIXTURES "%s' '%s'", cases[i].source,
                       source);
        assert_int_equal(system(command), 0);
        assert_int_equal(cairn_checkpoint_detect(source, cairn_formats, 0, &checkpoint, &complaint),
                         CAIRN_OK);
        piece = first_read(&checkpoint, cases[i].dtype == CAIRN_F32);
        name = cairn_layout_tensor(checkpoint.layout, piece->tensor)->name;
        flip(&checkpoint, piece);
        file = strrchr(checkpoint.containers[piece->container].path, '/');
        file = file ? file + 1 : checkpoint.containers[piece->container].path;
        if (convert_from(i, source, target, &complaint) != CAIRN_CORRUPT ||
            !strstr(complaint.text, file) || (!cases[i].map && !strstr(complaint.text, name)))
            fail_msg("%s, %s in %s: %s", cases[i].source, name, file, complaint.text);
        assert_int_not_equal(access(target, F_OK), 0);
        flip(&checkpoint, piece);
        if (i % 2) { /* whether or not the other copy has a time of its own */
            (void)snprintf(command, sizeof(command), "find '%s' -type f -exec touch {} +", source);
            assert_int_equal(system(command), 0);
        }
        remove_path(expected);
        if (convert(i, expected, &complaint) || convert_from(i, source, target, &complaint) ||
            !is_right())
            fail_msg("%s, with another copy: %s", cases[i].source, complaint.text);
        cairn_checkpoint_close(&checkpoint);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_bits_are_refused),
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(files_fail),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
