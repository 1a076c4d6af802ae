/*
 * tests/fault/test_formats.c - conversions from and to every format of frameworks, and through a map,
 * whose n-th allocation or file operation fails: each says so, leaves nothing that reads as a
 * checkpoint and is none, and comes out byte for byte the same when it is run again.
 *
 * n goes on by the more the further it is, since each of these conversions has thousands of calls;
 * where it starts differs from case to case. test_convert.c fails every single call of the engine.
 */
#include "tests/support/failing_calls.h"
#include "tools/convert/conversion.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <ftw.h>

#define FIXTURES "tests/fixtures/"

enum { PATH_BYTES = 300, STEP_PART = 4 };

static const struct {
    const char *source;
    const struct cairn_format *to;
    struct cairn_parallelism parallelism;
    const char *map;
} cases[] = {
    {"megatron/dense", &cairn_format_megatron, {.tp = 1, .pp = 2}, NULL},
    {"megatron/experts", &cairn_format_megatron_dist, {0}, NULL},
    {"megatron_dist/flat", &cairn_format_megatron_dist, {.dp = 2}, NULL},
    {"megatron_dist/apart", &cairn_format_megatron, {.tp = 1}, NULL},
    {"deepspeed/zero2", &cairn_format_deepspeed, {.dp = 3}, NULL},
    {"deepspeed/zero3", &cairn_format_ds_universal, {0}, NULL},
    {"deepspeed/pipe", &cairn_format_dcp, {0}, NULL},
    {"dcp/mesh", &cairn_format_torch, {0}, NULL},
    {"megatron/dense", &cairn_format_dcp, {0}, "llama"},
};

static char base[64], target[PATH_BYTES], expected[PATH_BYTES];

static void
silent(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static int
remove_one(const char *path, const struct stat *found, int kind, struct FTW *walk)
{
    (void)found;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void
remove_path(const char *path)
{
    (void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS); /* it may not be there */
    assert_int_not_equal(access(path, F_OK), 0);
}

static int
set_up(void **state)
{
    char made[] = "/tmp/cairn-formats-fault-XXXXXX";

    (void)state;
    cairn_log_setup(CAIRN_LOG_ERROR, silent, NULL);
    if (!mkdtemp(made))
        return -1;
    (void)snprintf(base, sizeof(base), "%s", made);
    (void)snprintf(target, sizeof(target), "%s/target", base);
    (void)snprintf(expected, sizeof(expected), "%s/expected", base);
    cairn_file_setup(&fault_ops);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    cairn_file_setup(NULL);
    remove_path(base);
    return 0;
}

static cairn_err
convert(size_t index, const char *to, struct cairn_complaint *complaint)
{
    char source[PATH_BYTES];
    static const char *const unmapped[] = {"*rng_state*"};
    struct cairn_conversion_options options = {.source = source,
                                               .target = to,
                                               .to = cases[index].to,
                                               .map = cases[index].map,
                                               .drops = unmapped,
                                               .drop_count = cases[index].map != NULL,
                                               .thread_count = 1,
                                               .memory_limit_bytes = 256 << 20};
    struct cairn_conversion conversion;
    cairn_err err;

    (void)snprintf(source, sizeof(source), FIXTURES "%s", cases[index].source);
    options.output.parallelism = cases[index].parallelism;
    options.output.single_file = cases[index].to->target_is_file;
    complaint->text[0] = '\0';
    err = cairn_conversion_open(&options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    cairn_conversion_close(&conversion);
    return err;
}

/* Whether the target has all files that the conversion makes when nothing fails, as it makes them. Where
 * the last call of all failed a journal may lie beside them. */
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
    cairn_err err = cairn_checkpoint_open(target, cases[index].to, &checkpoint, &complaint);

    if (err)
        return false;
    err = cairn_whole_init(&checkpoint, &whole, &complaint);
    cairn_whole_fini(&whole);
    cairn_checkpoint_close(&checkpoint);
    return err == CAIRN_OK;
}

/* One conversion with a fault, and the same one after it. False: there were fewer calls than that. */
static bool
fail_once(size_t index, enum kind kind, int64_t n)
{
    struct cairn_complaint complaint = {""};
    cairn_err err;

    remove_path(target);
    fail_at = n;
    calls = 0;
    failing_kind = kind;
    err = convert(index, target, &complaint);
    failing_kind = NONE;
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
            for_good = times % 2;
            file_errno = for_good ? ENOSPC : EIO;
            n += 1 + n / STEP_PART;
            times++;
        } while (fail_once(i, kind, n));
        assert_true(times > 15);
    }
}

static void
allocations_fail(void **state)
{
    (void)state;
    fail_in_steps(MEMORY);
}

static void
files_fail(void **state)
{
    (void)state;
    fail_in_steps(FILES);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(files_fail),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
