/* Of all ports, CAIRN_PORTS_COUNT are in a set, and they are those that can be listed. */
#include "transport/ports.h"
#include "tests/support/cmocka.h"

static void
test_listed_ports_are_the_set(void **state)
{
    static const uint32_t numbers[] = {0, 1, UINT32_MAX, 0x12345678, 0x80008000, 0xfffe0002};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct cairn_ports ports = cairn_ports_make(numbers[i]);
        bool listed[UINT16_MAX + 1] = {false};

        for (uint32_t place = 0; place < CAIRN_PORTS_COUNT; place++) {
            uint16_t port = cairn_ports_at(&ports, place);

            assert_false(listed[port]);
            listed[port] = true;
        }
        for (uint32_t port = 0; port <= UINT16_MAX; port++)
            assert_int_equal(cairn_ports_has(&ports, (uint16_t)port), listed[port]);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_listed_ports_are_the_set)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
