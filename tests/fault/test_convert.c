/*
 * tests/fault/test_convert.c - a conversion whose n-th allocation or file operation fails, for
 * every n until none does, once and for good: it reports that, leaves nothing that looks complete,
 * and the same conversion afterwards comes out right. Under a sanitizer each call fails in one of
 * these ways.
 */
#include <setjmp.h>

#include "tests/support/cases.h"
#include "tests/support/failing_calls.h"
#include "tests/support/marker_conversion.h"

static struct marker marker;

static int
set_up(void **state)
{
    if (make_places(state) != 0)
        return -1;
    marker_init(&marker, 17, 4, true);
    marker_now = &marker;
    marker_write(&marker, source);
    cairn_file_setup(&fault_ops);
    return 0;
}

static cairn_err
convert(struct cairn_complaint *complaint)
{
    struct cairn_conversion_options options = options_of(1);

    return convert_by(&options, NULL, complaint);
}

static void
fail_everywhere(enum kind kind, bool good, int code, int way, int ways)
{
    struct cairn_complaint complaint = {""};
    int64_t step = CASE_STEP(ways), n = way % step;

    for (;; n += step) {
        bool done;
        cairn_err err;

        remove_path(target);
        file_errno = code;
        arm(kind, n, good);
        err = convert(&complaint);
        disarm();
        done = calls <= n;
        if (err) {
            if (complaint.text[0] == '\0')
                fail_msg("call %lld: %s without a word", (long long)n, cairn_err_name(err));
            /* A marker that is there is true: only what comes after it may have failed. */
            if (is_there("DONE") && marker_check(&marker, target) != 0)
                fail_msg("call %lld: looks complete and is not", (long long)n);
            if (is_there("DONE"))
                continue;
            err = convert(&complaint);
        }
        if (err || marker_check(&marker, target) != 0 || !is_there("DONE"))
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
    fail_everywhere(MEMORY, false, 0, 0, 2);
    fail_everywhere(MEMORY, true, 0, 1, 2);
}

static void
files_fail(void **state)
{
    fail_everywhere(FILES, false, EIO, 0, 3);
    fail_everywhere(FILES, true, EIO, 1, 3);
}

static void
a_disk_fills_up(void **state)
{
    fail_everywhere(FILES, true, ENOSPC, 2, 3);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(files_fail),
        cmocka_unit_test(a_disk_fills_up),
    };

    return cmocka_run_group_tests(tests, set_up, remove_places);
}
