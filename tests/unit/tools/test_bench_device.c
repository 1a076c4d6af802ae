/* tests/unit/tools/test_bench_device.c - `cairn bench device` without a device, and with the fake
 * driver's. */
#include "tools/bench.h"
#include "tests/support/cmocka.h"
#include "tests/support/fakecuda_load.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct cairn_bench_report report;

/* First, while the process knows no driver: measured where there is a device, else the reason. */
static void
test_without_a_device(void **state)
{
    struct cairn_bench_options options = {.bytes = 4 << 20, .rounds = 1};

    assert_int_equal(cairn_bench_device(&options, &report), CAIRN_OK);
    if (report.skipped)
        assert_true(strstr(report.skipped, "CUDA") && report.case_count == 0);
    else
        assert_true(report.case_count > 0);
}

/* Every case is there, with figures of both sides. */
static void
test_with_the_fake_driver(void **state)
{
    static const char *const names[] = {"copy arena", "copy ring",  "copy small",  "step arena",
                                        "step ring",  "step small", "step driver", "step idle"};
    struct cairn_bench_options options = {.bytes = 8 << 20, .rounds = 2};

    assert_non_null(load_fakecuda());
    memset(&report, 0, sizeof report);
    assert_int_equal(cairn_bench_device(&options, &report), CAIRN_OK);
    assert_null(report.skipped);
    assert_int_equal(report.case_count, sizeof names / sizeof *names);
    for (uint32_t i = 0; i < report.case_count; i++) {
        assert_string_equal(report.cases[i].name, names[i]);
        assert_true(report.cases[i].value > 0 && report.cases[i].floor > 0);
        assert_int_equal(report.cases[i].bytes, 8 << 20);
    }
    assert_true(report.cases[0].bound == 0.90 && report.cases[3].bound == 1.01);
    assert_true(report.detail_count == 2 && report.details[0].value > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_a_device),
                                       cmocka_unit_test(test_with_the_fake_driver)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
