/* tests/unit/base/test_clock.c - time of the calling thread alone. */
#include <time.h>

#include "base/clock.h"
#include "tests/support/cmocka.h"

/* Waiting takes no processor time, work does; and no more than passes. */
static void
test_thread_cpu(void **state)
{
    const struct timespec nap = {0, 50 * 1000 * 1000};
    struct cairn_clock clock = cairn_clock_system();
    uint64_t began_ns = cairn_clock_now_ns(&clock), began_cpu_ns = cairn_clock_thread_cpu_ns();

    (void)nanosleep(&nap, NULL);
    assert_true(cairn_clock_thread_cpu_ns() - began_cpu_ns <
                (cairn_clock_now_ns(&clock) - began_ns) / 2);
    while (cairn_clock_thread_cpu_ns() - began_cpu_ns < 5 * CAIRN_NS_PER_MS)
        continue;
    assert_true(cairn_clock_now_ns(&clock) - began_ns >=
                cairn_clock_thread_cpu_ns() - began_cpu_ns);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_thread_cpu)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
