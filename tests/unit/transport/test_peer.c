/*
 * Which peers are let in, over every backend; when a peer is up, down or denied, and when it is
 * tried again.
 */
#include "ends.h"

static uint8_t payload[CAIRN_BULK_BYTES_MAX];

static void
test_both_call_at_once(void **state)
{
    for (int i = 0; i < 10; i++) {
        two_open();
        cairn_transport_connect(ends[0].transport, 1);
        cairn_transport_connect(ends[1].transport, 0);
        TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP && state_of(1, 0) == CAIRN_PEER_UP, 10);
        end_send_soon(0, 1, 1, NULL, 0);
        end_send_soon(1, 0, 1, NULL, 0);
        TURN_UNTIL(ends[0].messages == 1 && ends[1].messages == 1, 10);
        ends_close(NULL);
    }
}

static void
test_right_key(void **state)
{
    ends_prepare(2);
    for (uint32_t i = 0; i < 2; i++) {
        ends[i].options.key = "a key of more than sixteen bytes";
        ends[i].options.key_len = 32;
        end_open(i);
    }
    ends_connect(1, 0);
    payload_fill(payload, 70000, 9);
    end_send_soon(0, 1, 9, payload, 70000);
    TURN_UNTIL(ends[1].payloads == 1, 10);
    assert_true(ends[1].intact);
}

/* Each of these ends in its state on both sides, with one line that says why, and nothing
 * delivered. */
static void
refused_pair(enum cairn_peer_state expected, cairn_err send_err, const char *line)
{
    end_open(0);
    end_open(1);
    cairn_transport_connect(ends[0].transport, 1);
    TURN_UNTIL(state_of(0, 1) == expected, 10);
    ends_turn_for(0.3);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), send_err);
    assert_int_equal(ends[0].ups + ends[1].ups, 0);
    assert_int_equal(ends[0].messages + ends[1].messages, 0);
    assert_true(log_has(line) >= 1 && log_has(line) <= 2); /* once per end */
    assert_true(stats_of(0).refused_handshakes + stats_of(1).refused_handshakes > 0);
}

static void
test_wrong_key(void **state)
{
    ends_prepare(2);
    ends[0].options.key = "a key of more than sixteen bytes";
    ends[1].options.key = "A key of more than sixteen bytes";
    ends[0].options.key_len = ends[1].options.key_len = 32;
    refused_pair(CAIRN_PEER_DENIED, CAIRN_DENIED, "does not hold this job's key");
}

static void
test_key_on_one_side(void **state)
{
    ends_prepare(2);
    ends[0].options.key = "a key of more than sixteen bytes";
    ends[0].options.key_len = 32;
    ends[1].options.key = NULL;
    ends[1].options.key_len = 0;
    refused_pair(CAIRN_PEER_DENIED, CAIRN_DENIED, "does not hold this job's key");
}

/* What opens memory to a fabric travels in TLS. */
static void
test_fabrics_need_a_key(void **state)
{
    struct cairn_transport *untouched = NULL;

    ends_prepare(2);
    ends[0].options.key = NULL;
    ends[0].options.key_len = 0;
    assert_int_equal(cairn_transport_open(&ends[0].options, &untouched), CAIRN_CONFIG);
    assert_null(untouched);
    assert_int_equal(log_has("needs a key or certificates"), 1);
}

static void
test_another_protection(void **state)
{
    ends_prepare(2);
    ends[1].options.protection = CAIRN_PROTECTION_ENCRYPT;
    refused_pair(CAIRN_PEER_DENIED, CAIRN_DENIED, "has another protection");
}

static void
test_wrong_version(void **state)
{
    ends_prepare(2);
    ends[1].options.version = 9;
    refused_pair(CAIRN_PEER_VERSION, CAIRN_VERSION, "speaks versions");
    assert_int_equal(log_has("speaks versions 9 to 9 and this agent speaks versions 1 to 1"), 1);
    assert_int_equal(log_has("speaks versions 1 to 1 and this agent speaks versions 9 to 9"), 1);
}

/* A session has the newest version that both sides speak, no matter which calls. */
static void
test_versions_of_both(void **state)
{
    static const uint16_t ranges[][5] = {
        {7, 7, 7, 8, 7}, {6, 8, 7, 9, 8}, {3, 9, 5, 5, 5}, {1, 2, 2, 2, 2}};

    for (uint32_t round = 0; round < 2 * sizeof ranges / sizeof ranges[0]; round++) {
        const uint16_t *range = ranges[round / 2];
        uint32_t caller = round % 2;
        struct cairn_transport_peer peer;

        ends_prepare(2);
        ends[0].options.version_oldest = range[0];
        ends[0].options.version = range[1];
        ends[1].options.version_oldest = range[2];
        ends[1].options.version = range[3];
        end_open(0);
        end_open(1);
        ends_connect(caller, !caller);
        end_send_soon(0, 1, 1, NULL, 0);
        end_send_soon(1, 0, 1, NULL, 0);
        TURN_UNTIL(ends[0].messages == 1 && ends[1].messages == 1, 10);
        cairn_transport_peer_read(ends[0].transport, 1, &peer);
        assert_int_equal(peer.version, range[4]);
        cairn_transport_peer_read(ends[1].transport, 0, &peer);
        assert_int_equal(peer.version, range[4]);
        ends_close(NULL);
    }
}

static void
test_wrong_job(void **state)
{
    ends_prepare(2);
    ends[1].options.job_id = 78;
    refused_pair(CAIRN_PEER_DENIED, CAIRN_DENIED, "belongs to another job");
}

/* Two addresses are exchanged in node 0's list, and it calls the first of those nodes. */
static void
connect_in_wrong_order(void)
{
    const char *second;

    ends_prepare(3);
    end_open(1);
    end_open(2);
    second = address_list[1];
    address_list[1] = address_list[2];
    address_list[2] = second;
    end_open(0);
    cairn_transport_connect(ends[0].transport, 1);
}

/* That node and the one it reaches report it. */
static void
test_wrong_order(void **state)
{
    connect_in_wrong_order();
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_DENIED && state_of(2, 0) == CAIRN_PEER_DENIED, 10);
    assert_int_equal(log_has("node=1 is not at its address: node 2 is there"), 1);
    assert_int_equal(log_has("node=0 takes this node for node 1"), 1);
}

/* The key is another one for each pair, so who is there cannot say more than that. */
static void
test_wrong_order_with_a_key(void **state)
{
    connect_in_wrong_order();
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_DENIED, 10);
    assert_int_equal(log_has("node=1 does not hold this job's key, or not the same job, nodes"), 1);
    assert_int_equal(ends[0].ups + ends[1].ups + ends[2].ups, 0);
}

/*
 * The process restarts at its address: down, then up with the new incarnation, and messages pass. A
 * heartbeat is what notices: over tcp a message into a dead connection may be reported as sent.
 */
static void
test_restart(void **state)
{
    two_open();
    ends_connect(0, 1);
    end_send_soon(0, 1, 1, NULL, 0);
    TURN_UNTIL(ends[1].messages == 1, 10);
    for (uint64_t life = 1; life <= 3; life++) {
        uint64_t before;
        uint64_t reopened_ns;

        if (hub)
            cairn_transport_hub_kill(hub, 1);
        end_close(1);
        ends[1].options.incarnation = 200 + life;
        end_open(1);
        reopened_ns = clock_now_ns();
        while (ends[0].incarnation_up != 200 + life &&
               clock_now_ns() - reopened_ns < PATIENCE * 2500000000u) {
            cairn_err err = end_send(0, 1, 2, NULL, 0);

            assert_true(err == CAIRN_OK || err == CAIRN_PEER || err == CAIRN_AGAIN);
            ends_turn_for(0.05);
        }
        assert_int_equal(ends[0].incarnation_up, 200 + life);
        assert_int_equal(state_of(0, 1), CAIRN_PEER_UP);
        assert_int_equal(ends[0].downs, life);
        assert_int_equal(ends[0].incarnation_down, life == 1 ? 101 : 199 + life);
        TURN_UNTIL(state_of(1, 0) == CAIRN_PEER_UP, 4);
        before = ends[1].messages;
        end_send_soon(0, 1, 3, NULL, 0);
        TURN_UNTIL(ends[1].messages == before + 1, 4);
    }
}

/* The peer forgets its session alone (declared dead): both sides come together again. */
static void
test_declared_dead(void **state)
{
    two_open();
    ends_connect(0, 1);
    payload_fill(payload, 4096, 0);
    end_send_soon(0, 1, 0, payload, 4096);
    TURN_UNTIL(ends[1].payloads == 1, 10);
    cairn_transport_disconnect(ends[1].transport, 0);
    TURN_UNTIL(ends[1].downs == 1, 10);
    TURN_UNTIL(ends[1].ups == 2 && state_of(0, 1) == CAIRN_PEER_UP, 10);
    TURN_UNTIL(ends[0].ups == 2, 10);
    assert_int_equal(ends[0].downs, 1);
    end_send_soon(0, 1, 0, payload, 4096);
    end_send_soon(1, 0, 0, payload, 4096);
    TURN_UNTIL(ends[1].payloads == 2 && ends[0].payloads == 1, 10);
}

/* Both sides leave: the session ends for good, without a warning, until there is something to
 * send. One side alone only says what it would do. */
static void
test_leaving(void **state)
{
    two_open();
    ends_connect(0, 1);
    cairn_transport_leave(ends[0].transport, 1);
    ends_turn_for(0.05);
    assert_int_equal(state_of(0, 1), CAIRN_PEER_UP);
    cairn_transport_leave(ends[1].transport, 0);
    cairn_transport_disconnect(ends[1].transport, 0);
    if (hub) /* its connections have no end that the other side could see */
        cairn_transport_disconnect(ends[0].transport, 1);
    TURN_UNTIL(ends[0].downs == 1 && ends[1].downs == 1, 10);
    ends_turn_for(0.5); /* a lost peer is called again after 0.1 s */
    assert_int_equal(state_of(0, 1), CAIRN_PEER_IDLE);
    assert_int_equal(state_of(1, 0), CAIRN_PEER_IDLE);
    assert_int_equal(log_has("lost peer"), 0);
    end_send_soon(0, 1, 1, NULL, 0);
    TURN_UNTIL(ends[1].messages == 1, 10);

    cairn_transport_leave(ends[0].transport, 1);
    cairn_transport_connect(ends[0].transport, 1); /* there is a use for it again */
    cairn_transport_disconnect(ends[0].transport, 1);
    TURN_UNTIL(ends[0].ups == 3 && state_of(0, 1) == CAIRN_PEER_UP, 10);
}

/* A peer that cannot be reached and that nobody needs is not called any more. */
static void
test_leaving_a_dead_peer(void **state)
{
    two_open();
    ends_connect(0, 1);
    if (hub)
        cairn_transport_hub_kill(hub, 1);
    end_close(1);
    TURN_UNTIL(end_send(0, 1, 2, NULL, 0) == CAIRN_PEER && state_of(0, 1) == CAIRN_PEER_DOWN, 10);
    cairn_transport_leave(ends[0].transport, 1);
    ends_turn_for(0.3);
    assert_int_equal(state_of(0, 1), CAIRN_PEER_IDLE);
    end_open(1);
    end_send_soon(0, 1, 3, NULL, 0);
    TURN_UNTIL(ends[1].messages == 1, 10);
}

/* Nobody listens: down, said once, while others are not held up; up soon after its start. */
static void
test_peer_that_is_not_there(void **state)
{
    ends_prepare(3);
    end_open(0);
    end_open(2);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN);
    ends_connect(0, 2);
    end_send_soon(0, 2, 1, NULL, 0);
    TURN_UNTIL(ends[2].messages == 1, 2);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_DOWN, 10);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_PEER);
    ends_turn_for(1.0);
    assert_int_equal(log_has("cannot reach peer node=1"), 1);
    end_open(1);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP, 2.5);
    assert_int_equal(ends[0].downs, 0); /* it was never up */
}

/*
 * No way leads to the peer, so connecting fails at once instead of after a while; libfabric 1.17
 * then has an entry for it without a connection, which it cannot remove without reading address 0.
 * (From a loopback address the kernel refuses any address off loopback.)
 */
static void
test_no_way_to_peer(void **state)
{
    ends_prepare(3);
    snprintf(addresses[1], sizeof addresses[1], "240.0.0.1:7431");
    end_open(0);
    end_open(2);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN);
    ends_connect(0, 2);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_DOWN, 10);
    ends_turn_for(2.0); /* it is tried again and again */
    assert_int_equal(log_has("cannot reach peer node=1"), 1);
    end_send_soon(0, 2, 1, NULL, 0);
    TURN_UNTIL(ends[2].messages == 1, 2);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_both_call_at_once),
        OVER(certificates, test_both_call_at_once),
        EACH(test_right_key),
        EACH(test_wrong_key),
        OVER(loop, test_key_on_one_side),
        OVER(tcp, test_key_on_one_side),
        OVER(tls, test_key_on_one_side),
        OVER(libfabric, test_fabrics_need_a_key),
        OVER(tls, test_another_protection),
        OVER(certificates, test_another_protection),
        EACH(test_wrong_version),
        EACH(test_versions_of_both),
        OVER(certificates, test_versions_of_both),
        EACH(test_wrong_job),
        OVER(certificates, test_wrong_job),
        EACH(test_restart),
        OVER(certificates, test_restart),
        EACH(test_leaving),
        EACH(test_leaving_a_dead_peer),
        EACH(test_declared_dead),
        OVER(certificates, test_declared_dead),
        EACH(test_peer_that_is_not_there),
        OVER(tcp, test_wrong_order),
        OVER(tls, test_wrong_order_with_a_key),
        OVER(libfabric, test_wrong_order_with_a_key),
        OVER(tcp, test_no_way_to_peer),
        OVER(tls, test_no_way_to_peer),
        OVER(libfabric, test_no_way_to_peer),
        OVER(certificates, test_no_way_to_peer),
    };

    cairn_log_setup(CAIRN_LOG_WARN, log_keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
