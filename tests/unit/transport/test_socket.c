/* From which address and port a node calls another. */
#include "transport/socket.h"
#include "transport/address.h"
#include "tests/support/cmocka.h"
#include "tests/support/loopback.h"

#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

static struct sockaddr_storage own, other;
static int listener = -1;

static struct sockaddr_storage
address_of(const char *text)
{
    struct sockaddr_storage out;

    assert_int_equal(cairn_address_parse(text, &out), CAIRN_OK);
    return out;
}

static int
begin(void **state)
{
    char text[LOOPBACK_TEXT_BYTES];

    loopback_address(text);
    own = address_of(text);
    loopback_address(text);
    other = address_of(text);
    listener = cairn_socket_make(&other);
    assert_int_equal(bind(listener, (const struct sockaddr *)&other, cairn_address_len(&other)), 0);
    assert_int_equal(listen(listener, 256), 0);
    return 0;
}

static int
end(void **state)
{
    close(listener);
    return 0;
}

/* Where a socket calls from; the host must be this node's. */
static uint16_t
port_of(int fd)
{
    struct sockaddr_storage from;
    socklen_t from_len = sizeof from;
    struct in6_addr ip, own_ip;

    assert_true(fd >= 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&from, &from_len), 0);
    cairn_address_ip(&from, &ip);
    cairn_address_ip(&own, &own_ip);
    assert_memory_equal(&ip, &own_ip, sizeof ip);
    return cairn_address_port(&from);
}

static void
test_any_port(void **state)
{
    uint32_t place = 7;
    int fd = cairn_socket_call(&own, NULL, &place, &other);

    assert_int_not_equal(port_of(fd), cairn_address_port(&own));
    assert_int_equal(place, 7);
    close(fd);
}

/* Calls side by side come from different ports of the set that are within the range for callers.
 * When none of them is free, the next call comes from another port. */
static void
test_ports_of_a_set(void **state)
{
    const struct cairn_ports ports = cairn_ports_make(0x12345679);
    int fds[CAIRN_PORTS_COUNT + 1];
    uint32_t place = 100, keyed = 0, in_range = 0;

    for (uint32_t i = 0; i < CAIRN_PORTS_COUNT; i++) {
        uint16_t port = cairn_ports_at(&ports, i);

        in_range += port >= 32768 && port <= 60999;
    }
    assert_true(in_range > 0 && in_range < CAIRN_PORTS_COUNT);
    for (uint32_t i = 0; i <= in_range; i++) {
        uint16_t port;

        fds[i] = cairn_socket_call(&own, &ports, &place, &other);
        port = port_of(fds[i]);
        keyed += cairn_ports_has(&ports, port) && port >= 32768 && port <= 60999;
    }
    assert_int_equal(keyed, in_range);
    for (uint32_t i = 0; i <= in_range; i++)
        close(fds[i]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_any_port, begin, end),
        cmocka_unit_test_setup_teardown(test_ports_of_a_set, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
