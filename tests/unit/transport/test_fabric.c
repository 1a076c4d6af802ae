/* libfabric is loaded when a transport is opened and not before, and a failure is
 * logged. */
#include "transport/fabric.h"

#include "base/log.h"
#include "tests/support/cmocka.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static char said[1024];

static void
keep_line(void *context, enum cairn_log_level level, const char *line)
{
    snprintf(said, sizeof said, "%s", line);
}

static bool
is_mapped(const char *library)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        found = found || strstr(line, library);
    fclose(maps);
    return found;
}

static void
on_crash(int number)
{
}

static void
test_missing(void **state)
{
    struct cairn_fabric fabric = {0};

    assert_int_equal(cairn_fabric_open("/nowhere/libfabric.so.1", &fabric), CAIRN_NOT_FOUND);
    assert_non_null(strstr(said, "libfabric cannot be loaded: /nowhere/libfabric.so.1"));
    assert_non_null(strstr(said, "install the package libfabric1"));
    assert_null(fabric.getinfo);
}

static void
test_another_version(void **state)
{
    struct cairn_fabric fabric = {0};

    assert_int_equal(cairn_fabric_open("libm.so.6", &fabric), CAIRN_NOT_FOUND);
    assert_non_null(strstr(said, "libfabric is too old"));
    assert_non_null(strstr(said, "fi_getinfo"));
    assert_null(fabric.getinfo);
}

/* The libraries that come with it would catch crashes. */
static void
test_loads_and_leaves_crashes_alone(void **state)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction ours = {.sa_handler = on_crash}, before[5], after;
    struct cairn_fabric fabric = {0};

    for (size_t i = 0; i < 5; i++)
        assert_int_equal(sigaction(numbers[i], i == 0 ? &ours : NULL, &before[i]), 0);
    assert_false(is_mapped("libfabric"));
    assert_int_equal(cairn_fabric_open(NULL, &fabric), CAIRN_OK);
    assert_true(is_mapped("libfabric"));
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(sigaction(numbers[i], NULL, &after), 0);
        assert_true(after.sa_handler == (i == 0 ? on_crash : before[i].sa_handler));
    }
    assert_int_equal(sigaction(SIGSEGV, &before[0], NULL), 0);
    assert_string_equal(fabric.strerror(0), "Success");
    fabric.freeinfo(fabric.dupinfo(NULL));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_another_version),
        cmocka_unit_test(test_loads_and_leaves_crashes_alone),
    };

    cairn_log_setup(CAIRN_LOG_WARN, keep_line, NULL);
    return cmocka_run_group_tests_name("fabric", tests, NULL, NULL);
}
