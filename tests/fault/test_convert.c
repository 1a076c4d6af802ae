/*
 * tests/fault/test_convert.c - a conversion whose n-th allocation or file operation fails, for every
 * n until none does, once and for good: it says so, leaves nothing that looks complete, and the same
 * conversion afterwards comes out right.
 */
#include "tests/support/failing_calls.h"
#include "tests/support/marker_format.h"
#include "tools/convert/conversion.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static char base[256], source[300], target[300];
static struct marker marker;

static void
silent(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void
remove_path(const char *path)
{
    char command[400];

    (void)snprintf(command, sizeof(command), "rm -rf %s", path);
    assert_int_equal(system(command), 0);
}

static int
set_up(void **state)
{
    char made[] = "/tmp/cairn-convert-fault-XXXXXX";

    (void)state;
    cairn_log_setup(CAIRN_LOG_ERROR, silent, NULL);
    if (!mkdtemp(made))
        return -1;
    (void)snprintf(base, sizeof(base), "%s", made);
    (void)snprintf(source, sizeof(source), "%s/source", base);
    (void)snprintf(target, sizeof(target), "%s/target", base);
    marker_init(&marker, 17, 4, true);
    marker_now = &marker;
    marker_write(&marker, source);
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
convert(struct cairn_complaint *complaint)
{
    struct cairn_conversion_options options = {.source = source,
                                               .target = target,
                                               .from = &marker_format,
                                               .to = &marker_format,
                                               .thread_count = 1,
                                               .memory_limit_bytes = 256 << 20};
    struct cairn_conversion conversion;
    cairn_err err;

    complaint->text[0] = '\0';
    err = cairn_conversion_open(&options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    cairn_conversion_close(&conversion);
    return err;
}

static bool
is_complete(void)
{
    char path[400];
    struct stat found;

    (void)snprintf(path, sizeof(path), "%s/DONE", target);
    return stat(path, &found) == 0;
}

static void
fail_everywhere(enum kind kind, bool good, int code)
{
    struct cairn_complaint complaint = {""};
    int64_t n = 0;

    for (;; n++) {
        bool done;
        cairn_err err;

        remove_path(target);
        fail_at = n;
        for_good = good;
        file_errno = code;
        calls = 0;
        failing_kind = kind;
        err = convert(&complaint);
        failing_kind = NONE;
        done = calls <= n;
        if (err) {
            if (complaint.text[0] == '\0')
                fail_msg("call %lld: %s without a word", (long long)n, cairn_err_name(err));
            /* A marker that is there is true: only what comes after it may have failed. */
            if (is_complete() && marker_check(&marker, target) != 0)
                fail_msg("call %lld: looks complete and is not", (long long)n);
            if (is_complete())
                continue;
            err = convert(&complaint);
        }
        if (err || marker_check(&marker, target) != 0 || !is_complete())
            fail_msg("call %lld: afterwards %s: %s", (long long)n, cairn_err_name(err),
                     complaint.text);
        if (done)
            break;
    }
    assert_true(n > 50);
}

static void
allocations_fail(void **state)
{
    (void)state;
    fail_everywhere(MEMORY, false, 0);
    fail_everywhere(MEMORY, true, 0);
}

static void
files_fail(void **state)
{
    (void)state;
    fail_everywhere(FILES, false, EIO);
    fail_everywhere(FILES, true, EIO);
}

static void
a_disk_fills_up(void **state)
{
    (void)state;
    fail_everywhere(FILES, true, ENOSPC);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(files_fail),
        cmocka_unit_test(a_disk_fills_up),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
