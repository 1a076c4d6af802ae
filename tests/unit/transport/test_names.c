/*
 * tests/unit/transport/test_names.c - peers with names: that have no address at first, and that
 * come back under another one. The name service is ours: getaddrinfo is defined here, and asks the
 * real one for all but one name.
 */
#include "ends.h"

#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>

static const char *_Atomic known_as; /* what late.cairn.test is now, NULL: nothing */
static atomic_uint asked;
static char host[LOOPBACK_TEXT_BYTES]; /* where node 1 is */

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
            struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

    *(void **)(void *)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (node && strcmp(node, "late.cairn.test") == 0) {
        const char *address = atomic_load(&known_as);

        atomic_fetch_add(&asked, 1);
        if (!address)
            return EAI_NONAME;
        node = address;
    }
    return real(node, service, hints, found);
}

/* Node 0 knows node 1 by a name, node 1 node 0 by its number. */
static void
named_open(const char *now)
{
    static char name[LOOPBACK_TEXT_BYTES + 32];

    use_tcp(NULL);
    atomic_store(&known_as, now);
    atomic_store(&asked, 0);
    ends_prepare(2);
    end_open(1);
    snprintf(host, sizeof host, "%.*s", (int)strcspn(addresses[1], ":"), addresses[1]);
    snprintf(name, sizeof name, "late.cairn.test%s", strrchr(addresses[1], ':'));
    address_list[1] = name;
    end_open(0);
}

static void
test_a_name_that_is_known_later(void **state)
{
    named_open(NULL);
    assert_int_equal(log_has("cannot resolve \"late.cairn.test"), 1);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN);
    TURN_UNTIL(atomic_load(&asked) >= 3, 60);
    assert_int_equal(ends[0].ups, 0);
    atomic_store(&known_as, host);
    TURN_UNTIL(ends[0].ups == 1 && ends[1].ups == 1, 60);
    assert_int_equal(end_send(0, 1, 7, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].messages == 1, 10);
}

static void
test_a_name_that_moves(void **state)
{
    named_open("127.0.0.2"); /* nobody listens there at its port */
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN);
    TURN_UNTIL(atomic_load(&asked) >= 3, 60);
    assert_int_equal(ends[0].ups, 0);
    atomic_store(&known_as, host);
    TURN_UNTIL(ends[0].ups == 1 && ends[1].ups == 1, 60);
    assert_int_equal(log_has("has another address now"), 1);
    assert_int_equal(end_send(0, 1, 7, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].messages == 1, 10);
}

/* Nobody is at node 1's address; then we are told where it is. And again, when it moves. */
static void
test_a_peer_that_is_replaced(void **state)
{
    static char elsewhere[LOOPBACK_TEXT_BYTES];

    use_tcp(NULL);
    ends_prepare(3);
    memcpy(elsewhere, addresses[1], sizeof elsewhere);
    address_list[1] = addresses[2]; /* nobody listens there */
    end_open(0);
    address_list[1] = elsewhere;
    end_open(1);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_DOWN, 10);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 1, elsewhere), CAIRN_OK);
    TURN_UNTIL(ends[0].ups == 1 && ends[1].ups == 1, 10);
    assert_int_equal(end_send(0, 1, 7, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].messages == 1, 10);
    end_close(1);
    address_list[1] = addresses[2];
    ends[1].options.bind_address = addresses[2];
    ends[1].options.incarnation++;
    end_open(1);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 1, addresses[2]), CAIRN_OK);
    TURN_UNTIL(ends[0].ups == 2 && ends[1].ups >= 1 && state_of(0, 1) == CAIRN_PEER_UP, 10);
    end_send_soon(0, 1, 8, NULL, 0);
    TURN_UNTIL(ends[1].messages == 2, 10);
}

static void
test_wrong_addresses(void **state)
{
    use_tcp(NULL);
    ends_prepare(2);
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 1, "nonsense"), CAIRN_CONFIG);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 1, "[::1]:1"), CAIRN_CONFIG);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 0, addresses[1]), CAIRN_CONFIG);
    assert_int_equal(cairn_transport_readdress(ends[0].transport, 2, addresses[1]), CAIRN_CONFIG);
    ends_turn_for(0.05);
    assert_int_equal(state_of(0, 1), CAIRN_PEER_UP);
    assert_int_equal(end_send(0, 1, 7, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].messages == 1, 10);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_name_that_is_known_later, ends_close),
        cmocka_unit_test_teardown(test_a_name_that_moves, ends_close),
        cmocka_unit_test_teardown(test_a_peer_that_is_replaced, ends_close),
        cmocka_unit_test_teardown(test_wrong_addresses, ends_close)};

    cairn_log_setup(CAIRN_LOG_INFO, log_keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
