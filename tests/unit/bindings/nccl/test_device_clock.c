/* tests/unit/bindings/nccl/test_device_clock.c - the device's clock on the host's: distance,
 * delays, drift, and no end of the numbers. */
#include "bindings/nccl/device_clock.h"
#include "tests/support/cmocka.h"

#define SECOND UINT64_C(1000000000)

/* Polls come 1 to 50 us late, the device's clock gains 20 us a second: within what is gained in two
 * windows, plus the delay. */
static void
follow(uint64_t device_epoch_ns)
{
    struct cairn_device_clock clock = {0};
    uint32_t random = 1;

    for (uint64_t event_ns = SECOND; event_ns < 60 * SECOND; event_ns += SECOND / 200) {
        uint64_t device_ns = device_epoch_ns + event_ns + event_ns / 50000, late_ns, estimate_ns;

        random = random * 1664525u + 1013904223u;
        late_ns = 1000 + (random >> 8) % 49000;
        cairn_device_clock_observe(&clock, device_ns, event_ns + late_ns);
        estimate_ns = cairn_device_clock_host_ns(&clock, device_ns);
        if (event_ns > 2 * SECOND) {
            assert_true(estimate_ns + 100000 >= event_ns);
            assert_true(estimate_ns <= event_ns + 100000);
        }
        /* distances between the device's times stay */
        assert_int_equal(cairn_device_clock_host_ns(&clock, device_ns + 12345),
                         estimate_ns + 12345);
    }
}

static void
test_follows(void **state)
{
    follow(0);
    follow(UINT64_C(1790000000) * SECOND); /* it may count from 1970 */
    follow(UINT64_MAX - 10 * SECOND);      /* or end */
}

static void
test_begins_anew(void **state)
{
    struct cairn_device_clock clock = {0};

    cairn_device_clock_observe(&clock, 5, SECOND);
    assert_int_equal(cairn_device_clock_host_ns(&clock, 6), SECOND + 1);
    cairn_device_clock_reset(&clock);
    cairn_device_clock_observe(&clock, 5, 9 * SECOND);
    assert_int_equal(cairn_device_clock_host_ns(&clock, 6), 9 * SECOND + 1);
}

/* An hour without an operation, in which the device's clock loses 72 ms. */
static void
test_forgets(void **state)
{
    struct cairn_device_clock clock = {0};
    uint64_t lost_ns = 72000000, later_ns = 3600 * SECOND;

    cairn_device_clock_observe(&clock, SECOND, SECOND);
    cairn_device_clock_observe(&clock, later_ns - lost_ns, later_ns);
    assert_int_equal(cairn_device_clock_host_ns(&clock, later_ns - lost_ns), later_ns);
    /* and the window after it takes the one before into account, as always */
    cairn_device_clock_observe(&clock, later_ns + 3 * SECOND - lost_ns, later_ns + 3 * SECOND + 5);
    assert_int_equal(cairn_device_clock_host_ns(&clock, later_ns + 3 * SECOND - lost_ns),
                     later_ns + 3 * SECOND);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_begins_anew),
        cmocka_unit_test(test_forgets),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
