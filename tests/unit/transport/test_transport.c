/*
 * What transport.h promises, over every backend: `loop`, and between ends of one process `tcp`,
 * `tcp` over TLS with a key or with certificates, and libfabric's.
 */
#include "ends.h"

static uint8_t payloads[4][CAIRN_BULK_BYTES_MAX];

static void
test_messages_both_ways(void **state)
{
    two_open();
    assert_int_equal(state_of(0, 1), CAIRN_PEER_IDLE);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_AGAIN); /* the first send connects */
    assert_int_equal(state_of(0, 1), CAIRN_PEER_CONNECTING);
    TURN_UNTIL(ends[0].ups == 1 && ends[1].ups == 1, 10);
    assert_int_equal(ends[0].incarnation_up, 101);
    assert_int_equal(ends[1].incarnation_up, 100);
    assert_int_equal(end_send(0, 1, 7, NULL, 0), CAIRN_OK);
    assert_int_equal(end_send(1, 0, 8, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[0].messages == 1 && ends[1].messages == 1 && ends[0].sent_ok == 1 &&
                   ends[1].sent_ok == 1,
               10);
    assert_int_equal(ends[0].last_ticket, 7);
    assert_int_equal(ends[1].last_body_len, 8);
    assert_int_equal(ends[1].last_body[0], 7);
    assert_int_equal(ends[0].last_body[0], 8);
}

static void
test_bodies_of_every_length(void **state)
{
    static uint8_t body[CAIRN_TRANSPORT_BODY_BYTES_MAX + 1];
    static const size_t lengths[] = {0, 1, 63, 64, 65, 4095, 4096};

    two_open();
    ends_connect(0, 1);
    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (uint8_t)(i * 31 + 5);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint64_t before = ends[1].messages;

        assert_int_equal(cairn_transport_send(ends[0].transport, 1, body, lengths[i], NULL, 0, i),
                         CAIRN_OK);
        TURN_UNTIL(ends[1].messages == before + 1, 10);
        assert_int_equal(ends[1].last_body_len, lengths[i]);
        assert_memory_equal(ends[1].last_body, body, lengths[i]);
    }
    assert_int_equal(cairn_transport_send(ends[0].transport, 1, body, sizeof body, NULL, 0, 0),
                     CAIRN_INVAL);
    assert_int_equal(cairn_transport_send(ends[0].transport, 2, body, 1, NULL, 0, 0), CAIRN_INVAL);
    assert_int_equal(cairn_transport_send(ends[0].transport, 0, body, 1, NULL, 0, 0), CAIRN_INVAL);
    assert_int_equal(cairn_transport_send(ends[0].transport, 1, body, 1, NULL, 5, 0), CAIRN_INVAL);
    assert_int_equal(
        cairn_transport_send(ends[0].transport, 1, body, 1, body, CAIRN_BULK_BYTES_MAX + 1, 0),
        CAIRN_INVAL);
}

static void
test_payloads_arrive_whole(void **state)
{
    static const size_t lengths[] = {1, 4096, 65536, 65537, 1000000, CAIRN_BULK_BYTES_MAX};

    two_open();
    ends_connect(0, 1);
    ends[1].check = true;
    for (uint64_t i = 0; i < 60; i++) {
        size_t payload_len = lengths[i % 6];
        uint8_t *payload = payloads[i % 4];

        /* A payload's memory is used again only when its send has ended. */
        TURN_UNTIL(ends[0].sent_ok + 4 > i, 10);
        payload_fill(payload, payload_len, i);
        end_send_soon(0, 1, i, payload, payload_len);
    }
    TURN_UNTIL(ends[1].payloads == 60 && ends[0].sent_ok == 60, 10);
    assert_true(ends[1].intact);
    assert_true(ends[1].in_order);
    assert_int_equal(stats_of(1).received_payload_bytes, ends[1].payload_bytes);
    assert_int_equal(stats_of(0).sent_payload_bytes, ends[1].payload_bytes);
}

/* Memory for payloads that are placed, from place 1 on. */
enum { PLACES = 8, PLACE_REFUSED = PLACES + 1 };
static uint8_t places[PLACES][CAIRN_BULK_BYTES_MAX] __attribute__((aligned(4096)));
static uint32_t placed_count;

static void *
place_payload(void *context, uint32_t from_node, uint64_t place, size_t payload_len)
{
    assert_ptr_equal(context, &ends[1]);
    assert_int_equal(from_node, 0);
    assert_int_not_equal(place, 0);
    assert_true(payload_len <= CAIRN_BULK_BYTES_MAX);
    placed_count++;
    return place == PLACE_REFUSED ? NULL : places[place - 1];
}

static void
two_open_with_places(void)
{
    ends_prepare(2);
    ends[1].options.on_place = place_payload;
    placed_count = 0;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
}

static void
send_placed_soon(uint64_t number, const uint8_t *payload, size_t payload_len, uint64_t place)
{
    bool sent = false;

    TURN_UNTIL(sent || (sent = cairn_transport_send_placed(ends[0].transport, 1, &number,
                                                           sizeof number, payload, payload_len,
                                                           place, number) == CAIRN_OK),
               10);
}

static void
test_payloads_in_their_place(void **state)
{
    static const size_t lengths[] = {1, 4096, 65537, 1000000, CAIRN_BULK_BYTES_MAX};
    bool places_them = strcmp(provider, "tcp") == 0;

    two_open_with_places();
    for (uint64_t i = 0; i < 40; i++) {
        size_t payload_len = lengths[i % 5];
        uint64_t place = i % (PLACE_REFUSED + 1);

        payload_fill(payloads[0], payload_len, i);
        send_placed_soon(i, payloads[0], payload_len, place);
        TURN_UNTIL(ends[1].payloads == i + 1 && ends[0].sent_ok == i + 1, 10);
        assert_int_equal(places_them && place > 0 && place<PLACE_REFUSED, place> 0 &&
                         ends[1].last_payload == places[place - 1]);
    }
    assert_true(ends[1].intact);
    assert_true(ends[1].in_order);
    assert_int_equal(placed_count > 0, places_them);
    assert_int_equal(ends[1].downs, 0);
}

/* A payload whose place goes while it comes arrives whole in a buffer, and nothing more is written
 * to its place. */
static void
test_payloads_that_lose_their_place(void **state)
{
    static uint8_t sent[PLACES][CAIRN_BULK_BYTES_MAX];
    uint32_t moved = 0;

    two_open_with_places();
    for (uint64_t done = 0; done < 100 * PLACES && moved < 5; done += PLACES) {
        bool is_moved[PLACES] = {false};

        for (uint32_t i = 0; i < PLACES; i++) {
            payload_fill(sent[i], CAIRN_BULK_BYTES_MAX, done + i);
            send_placed_soon(done + i, sent[i], CAIRN_BULK_BYTES_MAX, i + 1);
        }
        while (ends[1].payloads < done + PLACES) {
            uint64_t before = ends[1].payloads;
            uint32_t last;

            TURN_UNTIL(ends[1].payloads > before || placed_count > ends[1].payloads, 10);
            if (placed_count == ends[1].payloads)
                continue;
            last = (placed_count - 1) % PLACES;
            if (!is_moved[last]) {
                cairn_transport_unplace(ends[1].transport, places[last] + 5, 1);
                memset(places[last], 0xee, sizeof places[last]);
                is_moved[last] = true;
                moved++;
            }
            TURN_UNTIL(ends[1].payloads > before, 10);
        }
        for (uint32_t i = 0; i < PLACES; i++)
            for (size_t at = 0; is_moved[i] && at < sizeof places[i]; at++)
                assert_int_equal(places[i][at], 0xee);
        TURN_UNTIL(ends[0].sent_ok == done + PLACES, 10);
    }
    assert_true(moved > 0);
    assert_true(ends[1].intact);
    assert_int_equal(ends[1].downs, 0);
    assert_int_equal(stats_of(1).dropped_payloads, 0);
}

static void
test_checksummed_payloads(void **state)
{
    ends_prepare(2);
    ends[0].options.checksum_payload = true;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    payload_fill(payloads[0], CAIRN_BULK_BYTES_MAX, 3);
    end_send_soon(0, 1, 3, payloads[0], CAIRN_BULK_BYTES_MAX);
    TURN_UNTIL(ends[1].payloads == 1, 10);
    assert_true(ends[1].intact);
    assert_int_equal(ends[1].downs, 0);
}

/* A trainer writes to a payload whose tags are made, and which waits for the network: what the
 * network has already arrives as it was, what comes later as it is, and what is in between without
 * its payload. No session ends. */
static void
test_a_payload_that_changes_while_it_is_sent(void **state)
{
    enum { PAYLOADS = CAIRN_TRANSPORT_WINDOW_MAX };
    uint64_t idle_ns;

    ends_prepare(2);
    ends[0].options.window = ends[1].options.window = PAYLOADS;
    ends[0].options.buffer_count = ends[1].options.buffer_count = 4 * PAYLOADS;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    end_send_soon(0, 1, 0, payloads[0], 1); /* so that credits come */
    TURN_UNTIL(ends[1].payloads == 1, 10);
    for (uint64_t i = 1; i < PAYLOADS; i++)
        if (end_send(0, 1, i, payloads[0], CAIRN_BULK_BYTES_MAX) != CAIRN_OK)
            break;
    idle_ns = clock_now_ns();
    for (uint64_t ok = 0;
         clock_now_ns() - idle_ns < 100000000u;) { /* the other end reads nothing */
        cairn_transport_poll(ends[0].transport, clock_now_ns());
        if (ends[0].sent_ok != ok)
            idle_ns = clock_now_ns();
        ok = ends[0].sent_ok;
    }
    assert_true(ends[0].sent_ok > 1 && state_operations(0, 1) > 1);
    for (size_t i = 0; i < CAIRN_BULK_BYTES_MAX; i++)
        payloads[0][i] ^= 0x55;
    TURN_UNTIL(state_operations(0, 1) == 0, 10);
    TURN_UNTIL(ends[1].payloads + ends[1].messages == ends[0].sent_ok, 10);
    assert_true(ends[1].messages >= 1);
    assert_int_equal(stats_of(1).dropped_payloads, ends[1].messages);
    assert_int_equal(log_has("dropped a payload of node 0"), 1);
    assert_int_equal(ends[0].downs + ends[1].downs, 0);
    payload_fill(payloads[0], CAIRN_BULK_BYTES_MAX, 99);
    ends[1].intact = true;
    end_send_soon(0, 1, 99, payloads[0], CAIRN_BULK_BYTES_MAX);
    TURN_UNTIL(ends[1].next_payload == 100, 10);
    assert_true(ends[1].intact);
}

/* 100,000 small messages while payloads travel the same way: each class in order, none lost. */
static void
test_many_messages_in_order(void **state)
{
    enum { MESSAGES = 100000, PAYLOADS = 64 };
    uint64_t sent = 0, bulk = 0;
    uint64_t give_up_ns = clock_now_ns() + 60000000000u;

    two_open();
    ends_connect(0, 1);
    ends[1].check = true;
    payload_fill(payloads[0], CAIRN_BULK_BYTES_MAX, 0);
    while ((ends[1].messages < MESSAGES || ends[1].payloads < PAYLOADS) &&
           clock_now_ns() < give_up_ns) {
        while (sent < MESSAGES && end_send(0, 1, sent, NULL, 0) == CAIRN_OK) {
            sent++;
            if (bulk < PAYLOADS && sent % 1000 == 0 && ends[0].sent_failed == 0 &&
                end_send(0, 1, bulk, payloads[0], 65536) == CAIRN_OK)
                bulk++;
        }
        if (sent == MESSAGES && bulk < PAYLOADS &&
            end_send(0, 1, bulk, payloads[0], 65536) == CAIRN_OK)
            bulk++;
        ends_turn();
    }
    assert_int_equal(ends[1].messages, MESSAGES);
    assert_int_equal(ends[1].payloads, PAYLOADS);
    assert_true(ends[1].in_order);
    assert_int_equal(ends[1].downs, 0);
    TURN_UNTIL(stats_of(0).operations_free == 1024, 10);
}

/*
 * A receiver that keeps its buffers stops payloads from that sender at its window, costs no memory,
 * and holds up neither messages nor other senders. Released, all goes on.
 */
static void
test_back_pressure(void **state)
{
    uint64_t accepted = 0, messages;
    uint32_t released;

    ends_prepare(3);
    for (uint32_t i = 0; i < 3; i++)
        end_open(i);
    ends_connect(0, 1);
    ends_connect(2, 1);
    ends[1].hold = true;
    payload_fill(payloads[0], 65536, 0);
    for (int i = 0; i < 2000; i++) {
        if (end_send(0, 1, 0, payloads[0], 65536) == CAIRN_OK)
            accepted++;
        if (i % 100 == 0)
            ends_turn();
    }
    TURN_UNTIL(ends[1].payloads == accepted, 10);
    assert_true(accepted >= 4 && accepted <= 8); /* its share of 16 buffers, at most its window */
    assert_int_equal(end_send(0, 1, 0, payloads[0], 65536), CAIRN_AGAIN);
    messages = ends[1].messages;
    for (uint64_t i = 0; i < 100; i++)
        end_send_soon(0, 1, i, NULL, 0);
    TURN_UNTIL(ends[1].messages == messages + 100, 10);
    assert_int_equal(ends[1].payloads, accepted);
    end_send_soon(2, 1, 0, payloads[0], 65536); /* another sender has its own share */
    TURN_UNTIL(ends[1].payloads == accepted + 1, 10);
    assert_int_equal(end_send(0, 1, 0, payloads[0], 65536), CAIRN_AGAIN);

    ends[0].writable = 0;
    released = ends[1].held_count;
    for (uint32_t i = 0; i < released; i++) {
        cairn_transport_release(ends[1].transport, ends[1].held[i]);
        cairn_transport_release(ends[1].transport, ends[1].held[i]); /* stale: ignored */
    }
    ends[1].held_count = 0;
    ends[1].hold = false;
    TURN_UNTIL(ends[0].writable > 0, 10);
    for (uint64_t i = 0; i < 100; i++)
        end_send_soon(0, 1, 0, payloads[0], 65536);
    TURN_UNTIL(ends[1].payloads == accepted + 101, 10);
    assert_true(ends[1].intact);
}

/* With fewer buffers than senders each of them still gets its turn: unused grants are asked
 * back. */
static void
test_few_buffers_many_senders(void **state)
{
    enum { NODES = 6 };
    uint64_t sent[NODES] = {0};

    ends_prepare(NODES);
    ends[0].options.buffer_count = 2;
    for (uint32_t i = 0; i < NODES; i++)
        end_open(i);
    for (uint32_t i = 1; i < NODES; i++)
        ends_connect(i, 0);
    payload_fill(payloads[0], 4096, 0);
    for (uint64_t round = 0; round < 5; round++)
        for (uint32_t i = 1; i < NODES; i++) {
            end_send_soon(i, 0, 0, payloads[0], 4096);
            sent[i]++;
        }
    TURN_UNTIL(ends[0].payloads == (uint64_t)5 * (NODES - 1), 10);
    assert_true(ends[0].intact);
}

/* Every peer asks for buffers when its session begins. A peer that has a payload to send gets one
 * before those that have none, so one exchange with an idle peer is enough. */
static void
test_idle_peers_hold_no_buffers(void **state)
{
    enum { TURNS_MAX = 15 };

    ends_prepare(ENDS_MAX);
    ends[0].options.buffer_count = 2;
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        end_open(i);
    for (uint32_t i = 1; i < ENDS_MAX; i++)
        ends_connect(i, 0);
    ends_turn_for(0.1);
    payload_fill(payloads[0], 4096, 0);
    for (uint32_t i = ENDS_MAX - 1; i > 0; i--) {
        uint32_t turns = 0;

        while (end_send(i, 0, 0, payloads[0], 4096) == CAIRN_AGAIN && turns++ < 1000)
            ends_turn();
        assert_in_range(turns, 0, TURNS_MAX);
        TURN_UNTIL(ends[0].payloads == ENDS_MAX - i, 5);
    }
    assert_true(ends[0].intact);
}

/* All want the one buffer there is, all the time: a grant that is asked back before it is used is
 * neither lost nor passed round for ever. */
static void
test_one_buffer_for_all(void **state)
{
    enum { EACH = 30 };
    uint64_t sent[ENDS_MAX] = {0}, give_up_ns;

    ends_prepare(ENDS_MAX);
    ends[0].options.buffer_count = 1;
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        end_open(i);
    for (uint32_t i = 1; i < ENDS_MAX; i++)
        ends_connect(i, 0);
    payload_fill(payloads[0], 4096, 0);
    give_up_ns = clock_now_ns() + PATIENCE * 10000000000u;
    for (uint32_t i = 1; i < ENDS_MAX; i++)
        ends[i].writable = 1;
    while (ends[0].payloads < EACH * (ENDS_MAX - 1) && clock_now_ns() < give_up_ns) {
        for (uint32_t i = 1; i < ENDS_MAX; i++) {
            if (ends[i].writable == 0)
                continue; /* it was told CAIRN_AGAIN, and waits for on_writable */
            ends[i].writable = 0;
            while (sent[i] < EACH && end_send(i, 0, 0, payloads[0], 4096) == CAIRN_OK)
                sent[i]++;
        }
        ends_turn();
    }
    assert_int_equal(ends[0].payloads, EACH * (ENDS_MAX - 1));
    assert_true(ends[0].intact);
}

/* Senders that rarely send and ends that are rarely polled, as on a busy machine: unused credits
 * are asked back all the time, and no sender is forgotten. */
static void
test_few_buffers_and_rare_polls(void **state)
{
    enum { EACH = 40, TURNS_MAX = 200000 };
    bool told_again[ENDS_MAX] = {false};
    uint64_t sent[ENDS_MAX] = {0}, now_ns;
    uint32_t random = 1;

    ends_prepare(ENDS_MAX);
    ends[0].options.buffer_count = 3;
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        end_open(i);
    for (uint32_t i = 1; i < ENDS_MAX; i++)
        ends_connect(i, 0);
    payload_fill(payloads[0], 4096, 0);
    now_ns = clock_now_ns();
    for (uint32_t turn = 0; ends[0].payloads < EACH * (ENDS_MAX - 1) && turn < TURNS_MAX; turn++) {
        uint32_t i;

        random = random * 1664525 + 1013904223;
        i = (random >> 8) % ENDS_MAX;
        now_ns += (random >> 16) % 8 * 1000000;
        if (told_again[i] && ends[i].writable > 0)
            told_again[i] = false;
        if (i != 0 && !told_again[i] && sent[i] < EACH && (random >> 24) % 4 == 0) {
            ends[i].writable = 0;
            told_again[i] = end_send(i, 0, 0, payloads[0], 4096) == CAIRN_AGAIN;
            sent[i] += !told_again[i];
        }
        cairn_transport_poll(ends[i].transport, now_ns);
    }
    assert_int_equal(ends[0].payloads, EACH * (ENDS_MAX - 1));
    assert_true(ends[0].intact);
}

static void
test_operations_are_bounded(void **state)
{
    uint64_t accepted = 0;

    ends_prepare(2);
    ends[0].options.operation_count = 32;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    while (end_send(0, 1, accepted, NULL, 0) == CAIRN_OK)
        accepted++;
    assert_true(accepted > 1 && accepted < 32); /* one peer never gets all of them */
    TURN_UNTIL(ends[0].writable == 1, 10);
    assert_int_equal(end_send(0, 1, accepted, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].messages == accepted + 1, 10);
}

static uint64_t sent_messages[2], sent_payloads[2]; /* of the session */

/* A session begins or ends: both sides count its messages from 0. */
static void
count_anew(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    struct end *end = context;
    uint32_t self = (uint32_t)(end - ends);

    end_peer(context, node, up, incarnation);
    assert_int_equal(end->ups, end->downs + up); /* they alternate */
    sent_messages[self] = sent_payloads[self] = 0;
    end->next_message = end->next_payload = 0;
}

/*
 * Sessions that end at any moment under load, on either side: in each, what arrives is what was
 * sent from its first message on, in order and without a gap, and both sides hear of the end.
 */
static void
test_nothing_is_lost_within_a_session(void **state)
{
    enum { ENDS = 25 };
    uint64_t seed = 7, since_ns = 0;

    ends_prepare(2);
    for (uint32_t i = 0; i < 2; i++) {
        ends[i].options.on_peer = count_anew;
        ends[i].check = true;
        end_open(i);
    }
    cairn_transport_connect(ends[0].transport, 1);
    for (uint32_t ended = 0; ended < ENDS;) {
        for (uint32_t i = 0; i < 2; i++) {
            if (state_of(i, !i) != CAIRN_PEER_UP)
                continue;
            if (end_send(i, !i, sent_messages[i], NULL, 0) == CAIRN_OK)
                sent_messages[i]++;
            if (end_send(i, !i, sent_payloads[i], payloads[i], 4096) == CAIRN_OK)
                sent_payloads[i]++;
        }
        ends_turn();
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        if (state_of(0, 1) != CAIRN_PEER_UP || state_of(1, 0) != CAIRN_PEER_UP ||
            ends[0].messages + ends[1].messages < since_ns + 20 || (seed >> 60) != 0)
            continue;
        since_ns = ends[0].messages + ends[1].messages;
        cairn_transport_disconnect(ends[(seed >> 40) & 1].transport, !((seed >> 40) & 1));
        ended++;
    }
    TURN_UNTIL(ends[0].downs >= ENDS && ends[1].downs >= ENDS && state_of(0, 1) == CAIRN_PEER_UP &&
                   state_of(1, 0) == CAIRN_PEER_UP,
               10);
    assert_true(ends[0].in_order && ends[1].in_order);
}

static void
test_options_are_checked(void **state)
{
    struct cairn_transport_options *options;
    struct cairn_transport *untouched = NULL;

    ends_prepare(2);
    options = &ends[0].options;
    options->node = 2;
    assert_int_equal(cairn_transport_open(options, &untouched), CAIRN_CONFIG);
    options->node = 0;
    options->key = "short";
    options->key_len = 5;
    assert_int_equal(cairn_transport_open(options, &untouched), CAIRN_CONFIG);
    assert_int_equal(log_has("the key has 5 bytes"), 1);
    options->key = NULL;
    options->key_len = 0;
    options->window = CAIRN_TRANSPORT_WINDOW_MAX + 1;
    assert_int_equal(cairn_transport_open(options, &untouched), CAIRN_CONFIG);
    options->window = 0;
    options->on_sent = NULL;
    assert_int_equal(cairn_transport_open(options, &untouched), CAIRN_INVAL);
    assert_null(untouched);
    cairn_transport_close(NULL);
}

static void
open_fails(cairn_err expected, const char *line)
{
    struct cairn_transport *untouched = NULL;

    log_count = 0;
    assert_int_equal(cairn_transport_open(&ends[0].options, &untouched), expected);
    assert_null(untouched);
    assert_true(log_has(line) >= 1);
}

static void
test_what_cannot_be_opened(void **state)
{
    static const char *const malformed[] = {
        "",          "host",   "127.0.0.1:", ":80",   "1.2.3.4:0",  "1.2.3.4:65536",
        "1.2.3.4:x", "::1:80", "[::1]80",    "[]:80", "1.2.3.4:1x", "1.2.3.4:-1"};

    ends_prepare(2);
    end_open(1);
    ends[0].options.bind_address = addresses[1];
    open_fails(CAIRN_IO, "cannot listen on"); /* the port is in use */
    ends[0].options.bind_address = "0.0.0.0:7000";
    ends[0].options.key = NULL;
    ends[0].options.key_len = 0;
    open_fails(CAIRN_DENIED, "refusing to listen on 0.0.0.0:7000 without a key");
    ends[0].options.bind_address = "192.0.2.1:7000"; /* of no interface here */
    ends[0].options.key = "a key of more than sixteen bytes";
    ends[0].options.key_len = 32;
    {
        struct cairn_transport *untouched = NULL;
        cairn_err err = cairn_transport_open(&ends[0].options, &untouched);

        assert_true(err == CAIRN_IO || err == CAIRN_CONFIG);
        assert_true(log_has("cannot listen on") + log_has("cannot listen") >= 1);
    }
    ends[0].options.bind_address = addresses[0];
    ends[0].options.provider = "nosuch";
    open_fails(CAIRN_CONFIG, "there is no provider \"nosuch\"; libfabric offers \"tcp;ofi_rxm\"");
    ends[0].options.provider = provider;
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        ends[0].options.bind_address = malformed[i];
        open_fails(CAIRN_CONFIG, "is not an address");
    }
    ends[0].options.bind_address = "no-such-host.invalid:7000";
    open_fails(CAIRN_CONFIG, "cannot resolve");
}

/* Nothing but the log's lines is printed, even if the environment asks libfabric for. */
static void
test_nothing_is_printed(void **state)
{
    struct cairn_transport *untouched = NULL;
    FILE *file = tmpfile();
    int kept = dup(2);
    long printed;

    assert_non_null(file);
    assert_true(kept >= 0);
    assert_int_equal(dup2(fileno(file), 2), 2);
    two_open();
    ends_connect(0, 1);
    if (cairn_transport_open(&ends[0].options, &untouched) == CAIRN_OK) /* the port is in use */
        cairn_transport_close(untouched);
    ends_turn_for(0.1);
    fflush(stderr);
    printed = (long)lseek(2, 0, SEEK_END);
    assert_int_equal(dup2(kept, 2), 2);
    close(kept);
    fclose(file);
    assert_null(untouched);
    assert_int_equal(printed, 0);
}

/* IPv6 and names resolve, and the ends meet. */
static void
test_addresses_of_other_kinds(void **state)
{
    ends_prepare(2);
    for (uint32_t i = 0; i < 2; i++) {
        /* no other program listens at ::1 */
        unsigned port = (unsigned)strtoul(strchr(addresses[i], ':') + 1, NULL, 10);

        snprintf(addresses[i], sizeof addresses[i], "[::1]:%u", port);
    }
    if (cairn_transport_open(&ends[0].options, &ends[0].transport) != CAIRN_OK)
        skip(); /* no IPv6 loopback on this machine */
    end_open(1);
    ends_connect(0, 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(test_messages_both_ways),
        OVER(certificates, test_messages_both_ways),
        OVER(rdma_certificates, test_messages_both_ways),
        EACH(test_bodies_of_every_length),
        OVER(certificates, test_bodies_of_every_length),
        EACH(test_payloads_arrive_whole),
        OVER(authenticate, test_payloads_arrive_whole),
        OVER(encrypt, test_payloads_arrive_whole),
        OVER(authenticate, test_a_payload_that_changes_while_it_is_sent),
        OVER(certificates, test_payloads_arrive_whole),
        OVER(rdma_certificates, test_payloads_arrive_whole),
        EACH(test_payloads_in_their_place),
        OVER(authenticate, test_payloads_in_their_place),
        OVER(encrypt, test_payloads_in_their_place),
        OVER(tcp, test_payloads_that_lose_their_place),
        OVER(tls, test_payloads_that_lose_their_place),
        OVER(authenticate, test_payloads_that_lose_their_place),
        OVER(encrypt, test_payloads_that_lose_their_place),
        EACH(test_checksummed_payloads),
        EACH(test_many_messages_in_order),
        OVER(authenticate, test_many_messages_in_order),
        OVER(encrypt, test_many_messages_in_order),
        OVER(certificates, test_many_messages_in_order),
        EACH(test_back_pressure),
        EACH(test_few_buffers_many_senders),
        EACH(test_idle_peers_hold_no_buffers),
        EACH(test_one_buffer_for_all),
        cmocka_unit_test_setup_teardown(test_few_buffers_and_rare_polls, use_loop, ends_close),
        EACH(test_operations_are_bounded),
        EACH(test_nothing_is_lost_within_a_session),
        OVER(authenticate, test_nothing_is_lost_within_a_session),
        OVER(encrypt, test_nothing_is_lost_within_a_session),
        OVER(certificates, test_nothing_is_lost_within_a_session),
        OVER(rdma_certificates, test_nothing_is_lost_within_a_session),
        OVER(shm, test_messages_both_ways),
        EACH(test_options_are_checked),
        OVER(tcp, test_what_cannot_be_opened),
        OVER(libfabric, test_what_cannot_be_opened),
        OVER(libfabric, test_nothing_is_printed),
        OVER(tcp, test_addresses_of_other_kinds),
        OVER(tls, test_addresses_of_other_kinds),
        OVER(libfabric, test_addresses_of_other_kinds),
    };

    setenv("FI_LOG_LEVEL", "info", 1); /* test_nothing_is_printed */
    setenv("FI_PROVIDER", "sockets", 1);
    cairn_log_setup(CAIRN_LOG_WARN, log_keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
