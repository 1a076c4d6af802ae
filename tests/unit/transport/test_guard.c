/*
 * tests/unit/transport/test_guard.c - whose connections this node, node 0 of three, ignores. The
 * kernel drops none here: the listener does not listen.
 */
#include "transport/guard.h"
#include "transport/address.h"
#include "transport/strangers.h"

#include "base/log.h"
#include "tests/support/certificates.h"
#include "tests/support/cmocka.h"
#include "tests/support/loopback.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { NODES = 3, IGNORED_S = CAIRN_STRANGERS_IGNORED_S };

static const uint64_t second_ns = 1000000000;
static const char key[] = "a key of more than sixteen bytes";
static const char stranger[] = "127.99.0.1:7", elsewhere[] = "127.98.0.1:7";
static char addresses[NODES][LOOPBACK_TEXT_BYTES];
static const char *const address_list[NODES] = {addresses[0], addresses[1], addresses[2]};

static struct cairn_names *names;
static struct cairn_tls *tls;
static struct cairn_guard *guard;
static int listener;
static uint64_t now_ns;
static uint32_t logged_ignored, logged_heard;

static void
log_count(void *context, enum cairn_log_level level, const char *line)
{
    logged_ignored += strstr(line, "are ignored") != NULL;
    logged_heard += strstr(line, "the agent there is heard all the same") != NULL;
}

static struct sockaddr_storage
address_of(const char *text)
{
    struct sockaddr_storage out;

    assert_int_equal(cairn_address_parse(text, &out), CAIRN_OK);
    return out;
}

/* The certificate of this node. */
static const struct cairn_transport_certificate *
certificate(void)
{
    static struct cairn_transport_certificate out;
    static struct authority authority;
    static struct leaf leaf;

    if (!authority.key) {
        authority_make("authority", NULL, &authority);
        leaf_of_node(&authority, 0, &leaf);
        out = leaf_use(&leaf, authority.pem, TEST_IDENTITY);
    }
    return &out;
}

static void
guard_begin(const char *job_key)
{
    struct cairn_transport_options options = {.bind_address = addresses[0],
                                              .node_count = NODES,
                                              .addresses = address_list,
                                              .job_id = 77,
                                              .key = job_key,
                                              .key_len = job_key ? strlen(job_key) : 0};
    struct sockaddr_storage own;

    for (uint32_t i = 0; i < NODES; i++) /* the others at addresses of their own */
        snprintf(addresses[i], sizeof addresses[i], "127.0.%u.1:2000", i);
    loopback_address(addresses[0]);
    own = address_of(addresses[0]);
    now_ns = 5 * second_ns;
    logged_ignored = logged_heard = 0;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&own, cairn_address_len(&own)), 0);
    assert_int_equal(cairn_names_create(&options, &names), CAIRN_OK);
    if (job_key)
        assert_int_equal(cairn_tls_create(&options, &tls), CAIRN_OK);
    assert_int_equal(cairn_guard_create(names, 0, NODES, tls, listener, &guard), CAIRN_OK);
}

static int
guard_end(void **state)
{
    cairn_guard_destroy(guard);
    cairn_tls_destroy(tls);
    cairn_names_destroy(names);
    close(listener);
    guard = NULL;
    tls = NULL;
    names = NULL;
    return 0;
}

/* A connection from this address ends unproved, after it has cost so much. */
static void
refuse(const char *from, uint64_t cost_ns)
{
    struct sockaddr_storage address = address_of(from);
    struct in6_addr source;

    cairn_address_ip(&address, &source);
    cairn_guard_refused(guard, &source, "it is not an agent", cost_ns, now_ns);
}

static void
proved(uint32_t node, const char *from)
{
    struct sockaddr_storage address = address_of(from);
    struct in6_addr source;

    cairn_address_ip(&address, &source);
    cairn_guard_proved(guard, node, &source);
}

static bool
ignores(const char *from)
{
    struct sockaddr_storage address = address_of(from);

    return cairn_guard_ignores(guard, &address);
}

/* Whether a call from this host is ignored that comes from a port of this key's holders. */
static bool
ignores_keyed(const char *from)
{
    struct sockaddr_storage address = address_of(from);
    struct cairn_ports ports;

    assert_true(cairn_tls_ports(tls, 0, 0, &ports));
    cairn_address_set_port(&address, cairn_ports_at(&ports, 3));
    return cairn_guard_ignores(guard, &address);
}

static struct cairn_transport_stats
count(void)
{
    struct cairn_transport_stats out = {0};

    cairn_guard_count(guard, &out);
    return out;
}

/* Enough cost within a second, then silence; what is closed meanwhile is counted. */
static void
test_a_stranger_is_ignored_for_a_while(void **state)
{
    guard_begin(NULL);
    refuse(stranger, CAIRN_STRANGERS_COST_NS - 1);
    assert_false(ignores(stranger));
    assert_false(cairn_guard_turn(guard, now_ns));
    refuse(stranger, 1);
    assert_true(ignores(stranger) && ignores("127.99.0.1:8"));
    assert_false(ignores("127.99.0.2:7"));
    assert_int_equal(logged_ignored, 1);
    assert_int_equal(logged_heard, 0);
    assert_int_equal(count().refused_connections, 2);
    assert_int_equal(count().ignored_connections, 2);
    assert_int_equal(count().ignored_addresses, 1);
    assert_true(cairn_guard_turn(guard, now_ns + IGNORED_S * second_ns - 1));
    assert_false(cairn_guard_turn(guard, now_ns + IGNORED_S * second_ns));
    assert_false(ignores(stranger));
}

static void
test_a_port_of_ours_is_heard_from_anywhere(void **state)
{
    guard_begin(key);
    refuse(stranger, CAIRN_STRANGERS_COST_NS);
    assert_true(ignores(stranger));
    assert_false(ignores_keyed(stranger));
}

/* All peers call from ports of ours: their addresses can be ignored. */
static void
test_addresses_of_peers_with_a_key(void **state)
{
    guard_begin(key);
    proved(2, elsewhere);
    refuse(addresses[1], CAIRN_STRANGERS_COST_NS);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    assert_true(ignores(addresses[1]) && ignores(elsewhere));
    assert_false(ignores_keyed(addresses[1]) || ignores_keyed(elsewhere));
    assert_int_equal(logged_heard, 2);
}

/* No peer can be told by its port. */
static void
test_addresses_of_peers_in_clear(void **state)
{
    guard_begin(NULL);
    proved(2, elsewhere);
    refuse(addresses[1], CAIRN_STRANGERS_COST_NS);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    assert_false(ignores(addresses[1]) || ignores(elsewhere));
    refuse(addresses[0], CAIRN_STRANGERS_COST_NS); /* nobody else calls from this node's own */
    assert_true(ignores(addresses[0]));
}

/* While a job goes from its key to certificates, or back, a peer may have a certificate alone: its
 * address is heard at once, and is not ignored again. A stranger's is; ports of the key count. */
static void
test_addresses_of_peers_with_certificates(void **state)
{
    const struct cairn_transport_key one[2] = {{key, sizeof key - 1}}, none[2] = {{0}};

    guard_begin(key);
    proved(2, elsewhere);
    refuse(addresses[1], CAIRN_STRANGERS_COST_NS);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    refuse(stranger, CAIRN_STRANGERS_COST_NS);
    assert_int_equal(count().ignored_addresses, 3);
    assert_int_equal(cairn_tls_rekey(tls, one, certificate()), CAIRN_OK);
    cairn_guard_rekeyed(guard);
    assert_false(ignores(addresses[1]) || ignores(elsewhere));
    assert_true(ignores(stranger));
    assert_false(ignores_keyed(stranger));
    refuse(addresses[1], CAIRN_STRANGERS_COST_NS);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    assert_int_equal(count().ignored_addresses, 1);
    assert_int_equal(cairn_tls_rekey(tls, none, certificate()), CAIRN_OK);
    cairn_guard_rekeyed(guard);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    assert_int_equal(count().ignored_addresses, 1);
    assert_int_equal(cairn_tls_rekey(tls, one, NULL), CAIRN_OK);
    cairn_guard_rekeyed(guard);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    assert_int_equal(count().ignored_addresses, 2);
}

/* An address that is ignored turns out to be a peer's: it has proved itself, or moved there. */
static void
test_an_address_that_becomes_a_peers(void **state)
{
    bool at_once = false;

    guard_begin(key);
    refuse(stranger, CAIRN_STRANGERS_COST_NS);
    refuse(elsewhere, CAIRN_STRANGERS_COST_NS);
    proved(1, elsewhere);
    assert_false(ignores(elsewhere));
    assert_int_equal(cairn_names_readdress(names, 2, stranger, &at_once), CAIRN_OK);
    assert_true(at_once);
    assert_true(ignores(stranger));
    cairn_guard_moved(guard, 2);
    assert_false(ignores(stranger));
    assert_int_equal(count().ignored_addresses, 0);
}

/* Ports of the new key count at once, and those of the old one while it is in the ring. */
static void
test_another_key(void **state)
{
    static const char fresh[] = "another key of more than sixteen bytes";
    const struct cairn_transport_key both[2] = {{fresh, sizeof fresh - 1}, {key, sizeof key - 1}};
    const struct cairn_transport_key one[2] = {{fresh, sizeof fresh - 1}};
    struct sockaddr_storage old = address_of(stranger);
    struct cairn_ports ports;

    guard_begin(key);
    assert_true(cairn_tls_ports(tls, 0, 0, &ports));
    cairn_address_set_port(&old, cairn_ports_at(&ports, 3));
    refuse(stranger, CAIRN_STRANGERS_COST_NS);
    assert_int_equal(cairn_tls_rekey(tls, both, NULL), CAIRN_OK);
    cairn_guard_rekeyed(guard);
    assert_false(ignores_keyed(stranger) || cairn_guard_ignores(guard, &old));
    assert_int_equal(cairn_tls_rekey(tls, one, NULL), CAIRN_OK);
    cairn_guard_rekeyed(guard);
    assert_false(ignores_keyed(stranger));
    assert_true(cairn_guard_ignores(guard, &old));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_a_stranger_is_ignored_for_a_while, guard_end),
        cmocka_unit_test_teardown(test_a_port_of_ours_is_heard_from_anywhere, guard_end),
        cmocka_unit_test_teardown(test_addresses_of_peers_with_a_key, guard_end),
        cmocka_unit_test_teardown(test_addresses_of_peers_in_clear, guard_end),
        cmocka_unit_test_teardown(test_addresses_of_peers_with_certificates, guard_end),
        cmocka_unit_test_teardown(test_an_address_that_becomes_a_peers, guard_end),
        cmocka_unit_test_teardown(test_another_key, guard_end),
    };

    cairn_log_setup(CAIRN_LOG_WARN, log_count, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
