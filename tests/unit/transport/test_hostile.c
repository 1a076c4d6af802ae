/*
 * What others do to a transport: frames lost, damaged and stuck on the loop backend, and strangers
 * that send anything, on the loop and over libfabric.
 */
#include "ends.h"

#include "transport/backend.h"
#include "transport/frame.h"
#include "transport/strangers.h"
#include "transport/tls.h"
#include "tests/support/random.h"

#include <errno.h>

static uint8_t payload[CAIRN_BULK_BYTES_MAX];
static uint64_t seed = 99;

static void
two_connected(uint64_t timeout_ns)
{
    ends_prepare(2);
    ends[0].options.timeout_ns = ends[1].options.timeout_ns = timeout_ns;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    ends_turn_for(0.05); /* the first grants */
}

/* A lost frame is noticed by the next of its class: the session ends, and a new one carries on. */
static void
test_lost_frame(void **state)
{
    two_connected(0);
    cairn_transport_hub_drop(hub, 0, 1, 1);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_OK);
    ends_turn_for(0.05);
    assert_int_equal(ends[1].messages, 0);
    assert_int_equal(end_send(0, 1, 2, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].downs == 1, 5);
    assert_int_equal(ends[1].messages, 0); /* what follows a gap is not delivered */
    assert_int_equal(log_has("a frame is missing or came twice"), 1);
    TURN_UNTIL(ends[0].ups == 2 && ends[1].ups == 2, 5);
    end_send_soon(0, 1, 3, NULL, 0);
    TURN_UNTIL(ends[1].messages == 1, 5);
}

/* A peer announces a payload that it has not written: what its buffer holds is another one's. */
static void
test_lost_payload(void **state)
{
    two_connected(0);
    payload_fill(payload, 65536, 1);
    cairn_transport_hub_drop_payloads(hub, 0, 1, 1);
    assert_int_equal(end_send(0, 1, 1, payload, 65536), CAIRN_OK);
    TURN_UNTIL(ends[1].downs == 1, 5);
    assert_int_equal(ends[1].payloads, 0);
    assert_int_equal(log_has("it announced a payload that has not come"), 1);
    TURN_UNTIL(ends[0].ups == 2 && ends[1].ups == 2, 5);
    end_send_soon(0, 1, 1, payload, 65536);
    TURN_UNTIL(ends[1].payloads == 1, 5);
    assert_true(ends[1].intact);
    TURN_UNTIL(stats_of(1).buffers_free + 8 >= 16, 5);
}

static void
test_damaged_frame(void **state)
{
    two_connected(0);
    cairn_transport_hub_corrupt(hub, 0, 1, 1);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_OK);
    TURN_UNTIL(stats_of(1).dropped_malformed == 1, 5);
    assert_int_equal(ends[1].messages, 0);
    assert_int_equal(end_send(0, 1, 2, NULL, 0), CAIRN_OK);
    TURN_UNTIL(ends[1].ups == 2, 5);
    assert_int_equal(ends[1].messages, 0);
}

/* A payload changed on its way is found by its checksum, and never delivered. */
static void
test_damaged_payload(void **state)
{
    ends_prepare(2);
    ends[0].options.checksum_payload = true;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
    ends_turn_for(0.05);
    payload_fill(payload, 65536, 1);
    cairn_transport_hub_cut(hub, 0, 1, true);
    assert_int_equal(end_send(0, 1, 1, payload, 65536), CAIRN_OK);
    payload[100] ^= 1; /* the checksum is made, the copy is not */
    cairn_transport_hub_cut(hub, 0, 1, false);
    TURN_UNTIL(ends[1].downs == 1, 5);
    assert_int_equal(ends[1].payloads, 0);
    assert_int_equal(log_has("a payload is damaged"), 1);
    TURN_UNTIL(ends[1].ups == 2 && ends[0].ups == 2, 5);
    payload[100] ^= 1;
    end_send_soon(0, 1, 1, payload, 65536);
    TURN_UNTIL(ends[1].payloads == 1, 5);
    assert_true(ends[1].intact);
    TURN_UNTIL(stats_of(1).buffers_free + 8 >= 16, 5);
}

/* A link that is stuck: the deadline ends its operations, others go on, mended it comes back. */
static void
test_cut_link(void **state)
{
    uint64_t begin_ns;

    ends_prepare(3);
    ends[0].options.timeout_ns = 3000000000u;
    for (uint32_t i = 0; i < 3; i++)
        end_open(i);
    ends_connect(0, 1);
    ends_connect(0, 2);
    ends_turn_for(0.05);
    payload_fill(payload, 65536, 0);
    cairn_transport_hub_cut(hub, 0, 1, true);
    begin_ns = clock_now_ns();
    assert_int_equal(end_send(0, 1, 0, payload, 65536), CAIRN_OK);
    assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_OK);
    end_send_soon(0, 2, 0, payload, 65536);
    TURN_UNTIL(ends[2].payloads == 1 && ends[0].ended_of[2] == 1, 0.4);
    assert_int_equal(ends[0].ended_of[1], 0);
    TURN_UNTIL(ends[0].ended_of[1] == 2, 5);
    assert_true(clock_now_ns() - begin_ns >= 2990000000u);
    assert_int_equal(ends[0].sent_failed, 2);
    assert_int_equal(ends[0].downs, 1);
    assert_int_equal(stats_of(0).timeouts, 1);
    cairn_transport_hub_cut(hub, 0, 1, false);
    TURN_UNTIL(state_of(0, 1) == CAIRN_PEER_UP, 5);
    assert_int_equal(ends[1].payloads, 0); /* what was given up does not arrive late */
    end_send_soon(0, 1, 0, payload, 65536);
    TURN_UNTIL(ends[1].payloads == 1, 5);
}

/* Time passes between polls: a loop that was busy or asleep for long takes nobody down. */
static void
test_late_poll(void **state)
{
    two_connected(200000000);
    for (int i = 0; i < 3; i++) {
        struct timespec wait = {.tv_nsec = 300000000};

        nanosleep(&wait, NULL);
        assert_int_equal(end_send(0, 1, 1, NULL, 0), CAIRN_OK);
        ends_turn_for(0.05);
    }
    assert_int_equal(ends[1].messages, 3);
    assert_int_equal(ends[0].downs + ends[1].downs, 0);
}

static void
inject(const uint8_t *bytes, size_t bytes_len)
{
    assert_int_equal(cairn_transport_hub_inject(hub, 1, bytes, bytes_len), CAIRN_OK);
    ends_turn();
}

/* A frame as node 0 would send it, with a token and sequence of one's choice. */
static size_t
forge(uint8_t *bytes, uint8_t kind, uint64_t token, uint64_t sequence, uint32_t body_len)
{
    struct cairn_frame frame = {.version = 1,
                                .kind = kind,
                                .job_id = 77,
                                .from = 0,
                                .to = 1,
                                .token = token,
                                .sequence = sequence,
                                .body_len = body_len,
                                .payload_len = kind == CAIRN_FRAME_BULK ? 100 : 0};

    cairn_frame_pack(&frame, NULL, bytes);
    return CAIRN_FRAME_HEADER_BYTES + body_len;
}

/* A receiver may be sent anything: nothing is delivered, no session ends, memory stays. */
static void
test_hostile_frames(void **state)
{
    static uint8_t bytes[CAIRN_FRAME_BYTES_MAX + 100];
    uint64_t messages;

    ends_prepare(2);
    for (uint32_t i = 0; i < 2; i++) {
        ends[i].options.key = "a key of more than sixteen bytes";
        ends[i].options.key_len = 32;
        end_open(i);
    }
    ends_connect(0, 1);
    for (int i = 0; i < 2000; i++) {
        size_t bytes_len = xorshift(&seed) % sizeof bytes;

        for (size_t j = 0; j < bytes_len; j++)
            bytes[j] = (uint8_t)xorshift(&seed);
        inject(bytes, bytes_len);
    }
    for (int i = 0; i < 2000; i++) { /* right in form, but the token is guessed */
        uint8_t kind = (uint8_t)(CAIRN_FRAME_MESSAGE + xorshift(&seed) % 3);

        inject(bytes, forge(bytes, kind, xorshift(&seed) | 1, 1 + xorshift(&seed) % 3, 40));
    }
    for (int i = 0; i < 2000; i++) { /* handshakes without the key, with fields at random */
        struct cairn_frame_handshake handshake = {.incarnation = xorshift(&seed), .keyed = 1};
        struct cairn_frame frame = {.version = (uint16_t)(1 + (xorshift(&seed) % 8 == 0)),
                                    .kind = (uint8_t)(CAIRN_FRAME_HELLO + xorshift(&seed) % 4),
                                    .job_id = xorshift(&seed) % 4 ? 77 : xorshift(&seed),
                                    .from = xorshift(&seed) % 4 ? 0 : (uint32_t)xorshift(&seed),
                                    .to = xorshift(&seed) % 4 ? 1 : (uint32_t)xorshift(&seed),
                                    .body_len = CAIRN_FRAME_HANDSHAKE_BYTES};

        for (size_t j = 0; j < CAIRN_FRAME_NONCE_BYTES; j++)
            handshake.nonce_initiator[j] = (uint8_t)xorshift(&seed);
        handshake.refusal = (uint8_t)(xorshift(&seed) % 6);
        cairn_frame_handshake_pack(&handshake, bytes + CAIRN_FRAME_HEADER_BYTES);
        cairn_frame_pack(&frame, NULL, bytes);
        inject(bytes, CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_HANDSHAKE_BYTES);
    }
    assert_int_equal(ends[1].messages + ends[1].payloads, 0);
    assert_int_equal(ends[1].downs + ends[0].downs, 0);
    assert_int_equal(state_of(1, 0), CAIRN_PEER_UP);
    assert_true(stats_of(1).dropped_malformed >= 1900);
    assert_true(stats_of(1).dropped_unauthenticated >= 2000);
    messages = ends[1].messages;
    end_send_soon(0, 1, 5, NULL, 0);
    TURN_UNTIL(ends[1].messages == messages + 1, 5);
}

/* A whole handshake that is replayed brings no session up, and the messages after it nothing. */
static void
test_replayed_handshake(void **state)
{
    static uint8_t bytes[CAIRN_FRAME_BYTES_MAX];
    struct cairn_frame_handshake confirm = {.incarnation = 100, .keyed = 1};
    struct cairn_frame frame = {.version = 1,
                                .kind = CAIRN_FRAME_CONFIRM,
                                .job_id = 77,
                                .from = 0,
                                .to = 1,
                                .body_len = CAIRN_FRAME_HANDSHAKE_BYTES};

    ends_prepare(2);
    ends[1].options.key = "a key of more than sixteen bytes";
    ends[1].options.key_len = 32;
    end_open(1);
    for (int i = 0; i < 3; i++) {
        frame.kind = i == 0 ? CAIRN_FRAME_HELLO : CAIRN_FRAME_CONFIRM;
        cairn_frame_handshake_pack(&confirm, bytes + CAIRN_FRAME_HEADER_BYTES);
        cairn_frame_pack(&frame, NULL, bytes);
        inject(bytes, CAIRN_FRAME_HEADER_BYTES + CAIRN_FRAME_HANDSHAKE_BYTES);
    }
    inject(bytes, forge(bytes, CAIRN_FRAME_MESSAGE, 1, 1, 10));
    assert_int_equal(ends[1].ups, 0);
    assert_int_equal(ends[1].messages, 0);
    assert_int_not_equal(state_of(1, 0), CAIRN_PEER_UP);
}

static uint64_t stranger_done;

static void
stranger_part_done(void *context, struct cairn_backend_part *part, cairn_err err)
{
    stranger_done++;
}

static void
stranger_received(void *context, uint32_t node, const uint8_t *bytes, size_t bytes_len)
{
}

/* Turns both ends without letting time pass: after a silent second a strange frame makes an end
 * call its peer again, and a busy machine may need longer for all frames. */
static void
turn_at(uint64_t now_ns)
{
    for (uint32_t i = 0; i < 2; i++)
        cairn_transport_poll(ends[i].transport, now_ns);
}

/* The port of node 1's endpoint in the fabric: of all sockets of this process that listen, the one
 * that is none of the two ends' own. The last one opened is node 1's. */
static struct sockaddr_in
fabric_address(void)
{
    struct sockaddr_in found = {0};

    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in address;
        socklen_t address_len = sizeof address, flag_len = sizeof(int);
        char port[8];
        int listens = 0;

        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_len) != 0 || !listens ||
            getsockname(fd, (struct sockaddr *)&address, &address_len) != 0)
            continue;
        snprintf(port, sizeof port, ":%u", ntohs(address.sin_port));
        if (!strstr(addresses[0], port) && !strstr(addresses[1], port))
            found = address;
    }
    assert_int_not_equal(found.sin_port, 0);
    return found;
}

/*
 * A stranger with an endpoint of its own that knows where ours is in the fabric: its frames are
 * dropped unread, its writes find no open buffer, and two that hold the key talk on.
 */
static void
test_stranger_over_libfabric(void **state)
{
    struct cairn_transport_options options;
    struct cairn_backend_options backend_options = {
        .buffer_count = 1,
        .operation_count = 64,
        .events = {.done = stranger_part_done, .received = stranger_received}};
    struct cairn_backend *stranger = NULL;
    struct cairn_backend_part part;
    static uint8_t bytes[CAIRN_FRAME_BYTES_MAX];
    struct sockaddr_in victim;
    uint64_t posted = 0, flood_ns;
    char own[LOOPBACK_TEXT_BYTES];

    ends_prepare(2);
    end_open(0);
    end_open(1);
    victim = fabric_address();
    ends_connect(0, 1);
    ends_turn_for(0.05);
    loopback_address(own);
    options = ends[0].options;
    options.bind_address = own;
    backend_options.transport = &options;
    backend_options.pool = payload;
    assert_int_equal(cairn_backend_ofi_open(&backend_options, &stranger), CAIRN_OK);
    assert_int_equal(
        stranger->ops->reach(stranger, 1, (const uint8_t *)(const void *)&victim, sizeof victim),
        CAIRN_OK);
    stranger_done = 0;
    flood_ns = clock_now_ns();
    while (stranger_done < 3000 && clock_now_ns() - flood_ns < PATIENCE * 20000000000u) {
        size_t bytes_len = 1 + xorshift(&seed) % sizeof bytes;

        for (size_t j = 0; j < 64; j++)
            bytes[j] = (uint8_t)xorshift(&seed);
        if (posted % 3 == 0)
            bytes_len = forge(bytes, (uint8_t)(CAIRN_FRAME_MESSAGE + xorshift(&seed) % 3),
                              xorshift(&seed) | 1, 1, 40);
        if (posted < 3000 && stranger->ops->send(stranger, 1, bytes, bytes_len, &part) == CAIRN_OK)
            posted++;
        while (stranger->ops->progress(stranger))
            ;
        turn_at(flood_ns);
    }
    assert_int_equal(posted, 3000);
    assert_int_equal(stranger_done, 3000);
    for (int i = 0; i < 20; i++) {
        struct cairn_backend_remote guess = {.address = 0, .key = xorshift(&seed)};

        (void)stranger->ops->write(stranger, 1, payload, 65536, guess, &part);
        for (int turn = 0; turn < 20; turn++) {
            (void)stranger->ops->progress(stranger);
            turn_at(flood_ns);
        }
    }
    stranger->ops->close(stranger);
    ends_turn_for(0.1);
    assert_int_equal(ends[1].messages + ends[1].payloads, 0);
    assert_int_equal(ends[0].downs + ends[1].downs, 0);
    payload_fill(payload, 65536, 4);
    end_send_soon(0, 1, 4, payload, 65536);
    TURN_UNTIL(ends[1].payloads == 1, 5);
    assert_true(ends[1].intact);
}

/* The host of a node, as "127.1.2.3". */
static void
host_of(uint32_t node, char out[LOOPBACK_TEXT_BYTES])
{
    snprintf(out, LOOPBACK_TEXT_BYTES, "%.*s", (int)strcspn(addresses[node], ":"), addresses[node]);
}

/* A socket that is connected to node 1 from an address, by somebody who holds no key. */
static int
stranger_connect_from(const char *from)
{
    struct sockaddr_in own = {.sin_family = AF_INET}, address = own;
    char host[LOOPBACK_TEXT_BYTES];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    host_of(1, host);
    address.sin_port = htons((uint16_t)strtoul(strchr(addresses[1], ':') + 1, NULL, 10));
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&own, sizeof own), 0);
    (void)!connect(fd, (const struct sockaddr *)&address, sizeof address);
    return fd;
}

/* The same from one of a few addresses by turns: none costs so much that it is ignored. */
static int
stranger_connect(void)
{
    static uint32_t calls;
    char host[LOOPBACK_TEXT_BYTES];

    snprintf(host, sizeof host, "127.97.0.%u", 1 + calls++ % 8);
    return stranger_connect_from(host);
}

/* The other side has closed the connection, orderly or not. */
static bool
is_closed(int fd)
{
    uint8_t bytes[256];
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN && errno != ENOTCONN);
}

static void
session_lives(uint64_t number)
{
    uint64_t before = ends[1].payloads;

    payload_fill(payload, 65536, number);
    end_send_soon(0, 1, number, payload, 65536);
    TURN_UNTIL(ends[1].payloads == before + 1, 5);
    assert_true(ends[1].intact);
    assert_int_equal(ends[0].downs + ends[1].downs, 0);
}

/*
 * Strangers at the port: bytes at random, beginnings of what may stand there, frames in clear. Each
 * connection is closed, nothing is delivered, and the session goes on.
 */
static void
test_strangers_over_tcp(void **state)
{
    static const uint8_t firsts[] = {0x14, 0x15, 0x16, 0x17, 'C', 0xb0, 0, 0xff};
    static uint8_t bytes[3000];

    two_connected(0);
    for (uint32_t i = 0; i < 400; i++) {
        size_t bytes_len = 1 + xorshift(&seed) % sizeof bytes;
        int fd = stranger_connect();
        uint64_t sent_ns;

        for (size_t j = 0; j < bytes_len; j++)
            bytes[j] = (uint8_t)xorshift(&seed);
        bytes[0] = firsts[i % sizeof firsts];
        if (i % 3 == 0) { /* a record of a believable length */
            bytes[1] = bytes[2] = 3;
            bytes[3] = 0;
        }
        if (i % 5 == 0)
            bytes_len = forge(bytes, CAIRN_FRAME_MESSAGE, xorshift(&seed) | 1, 1, 40);
        ends_turn();
        (void)!send(fd, bytes, bytes_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        shutdown(fd, SHUT_WR);
        sent_ns = clock_now_ns();
        while (!is_closed(fd) && clock_now_ns() - sent_ns < PATIENCE * 2000000000u)
            ends_turn();
        close(fd);
    }
    assert_int_equal(ends[1].messages + ends[1].payloads, 0);
    session_lives(1);
}

/* More idle connections than are let in: the oldest are closed at once, the others after their two
 * seconds, and a peer comes in between them. */
static void
test_idle_strangers_over_tcp(void **state)
{
    enum { IDLE = 300 };
    int fds[IDLE];
    uint32_t closed = 0;

    two_connected(0);
    for (uint32_t i = 0; i < IDLE; i++) {
        fds[i] = stranger_connect();
        ends_turn();
    }
    TURN_UNTIL(is_closed(fds[0]), 5);
    cairn_transport_disconnect(ends[0].transport, 1);
    TURN_UNTIL(ends[0].ups == 2 && ends[1].ups == 2, 3);
    ends[0].downs = ends[1].downs = 0;
    session_lives(1);
    for (uint32_t i = 0; i < IDLE; i++) {
        TURN_UNTIL(is_closed(fds[i]), 5);
        close(fds[i]);
        closed++;
    }
    assert_int_equal(closed, IDLE);
    session_lives(2);
}

/* A caller that has shown the key keeps its place beside idle strangers from its own address. */
static void
test_known_caller_goes_last(void **state)
{
    enum { IDLE = 100, HELLO_BYTES = 4096 };
    static uint8_t hello[HELLO_BYTES];
    struct cairn_tls *tls = NULL;
    struct cairn_tls_link *link = NULL;
    char host[LOOPBACK_TEXT_BYTES];
    uint64_t begun_ns;
    int known, fds[IDLE];
    size_t len;

    two_connected(0);
    assert_int_equal(cairn_tls_create(&ends[0].options, &tls), CAIRN_OK);
    assert_int_equal(cairn_tls_link_create(tls, true, 1, &link), CAIRN_OK);
    assert_int_equal(cairn_tls_link_handshake(link, NULL, 0), CAIRN_AGAIN);
    len = cairn_tls_link_output(link, hello, sizeof hello);
    begun_ns = clock_now_ns();
    host_of(0, host);
    known = stranger_connect_from(host);
    ends_turn();
    assert_int_equal(send(known, hello, len, MSG_NOSIGNAL | MSG_DONTWAIT), len);
    TURN_UNTIL(recv(known, hello, sizeof hello, MSG_DONTWAIT | MSG_PEEK) > 0, 5);
    assert_true(recv(known, hello, sizeof hello, MSG_DONTWAIT) > 0);
    for (uint32_t i = 0; i < IDLE; i++) {
        fds[i] = stranger_connect_from(host);
        ends_turn();
    }
    TURN_UNTIL(is_closed(fds[0]), 5);
    if (clock_now_ns() - begun_ns < 1500000000u) /* later its own deadline may be over */
        assert_false(is_closed(known));
    close(known);
    for (uint32_t i = 0; i < IDLE; i++)
        close(fds[i]);
    cairn_tls_link_destroy(link);
    cairn_tls_destroy(tls);
    session_lives(1);
}

/* Connections of an address that say what no agent says, until one more is ignored, or so many. */
static void
strangers_flood(const char *from, uint32_t most)
{
    static const uint8_t bytes[600];
    uint32_t before = stats_of(1).ignored_addresses;

    for (uint32_t i = 0; i < most && stats_of(1).ignored_addresses <= before; i++) {
        int fd = stranger_connect_from(from);

        ends_turn();
        (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        ends_turn();
        close(fd);
    }
}

/* A stranger's address is ignored for its time: nothing is accepted from it, and counted; a peer
 * comes in. Then it is heard again, and an address that becomes a peer's is heard at once. */
static void
test_stranger_is_ignored(void **state)
{
    enum { CALLS = 40, QUEUED_MAX = 16, UNDER_WAY_MAX = 8 }; /* of the flood */
    static const char stranger[] = "127.99.0.1", neighbour[] = "127.99.0.2";
    char moved[LOOPBACK_TEXT_BYTES];
    int fds[CALLS], other;
    uint64_t refused;

    two_connected(0);
    strangers_flood(stranger, 100000);
    assert_int_equal(stats_of(1).ignored_addresses, 1);
    assert_int_equal(log_has("connections from 127.99.0.1 are ignored"), 1);
    refused = stats_of(1).refused_connections;
    for (uint32_t i = 0; i < CALLS; i++) {
        fds[i] = stranger_connect_from(stranger);
        ends_turn();
        (void)!send(fds[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    ends_turn_for(0.05);
    for (uint32_t i = 0; i < CALLS; i++)
        close(fds[i]);
    assert_true(stats_of(1).refused_connections <= refused + UNDER_WAY_MAX);
    assert_true(stats_of(1).ignored_connections >= CALLS - QUEUED_MAX);
    other = stranger_connect_from(neighbour);
    TURN_UNTIL(send(other, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1, 5);
    TURN_UNTIL(is_closed(other), 5);
    close(other);
    cairn_transport_disconnect(ends[0].transport, 1);
    TURN_UNTIL(ends[0].ups == 2 && ends[1].ups == 2, 5);
    ends[0].downs = ends[1].downs = 0;
    session_lives(1);

    TURN_UNTIL(stats_of(1).ignored_addresses == 0, CAIRN_STRANGERS_IGNORED_S + 1);
    other = stranger_connect_from(stranger);
    TURN_UNTIL(send(other, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1, 5);
    TURN_UNTIL(is_closed(other), 5);
    close(other);
    strangers_flood(stranger, 100000);
    assert_int_equal(stats_of(1).ignored_addresses, 1);
    assert_int_equal(log_has("connections from 127.99.0.1 are ignored"), 1); /* once per address */
    snprintf(moved, sizeof moved, "%s%s", stranger, strchr(addresses[0], ':'));
    assert_int_equal(cairn_transport_readdress(ends[1].transport, 0, moved), CAIRN_OK);
    assert_int_equal(stats_of(1).ignored_addresses, 0);
}

/* Two nodes that are connected, node 0 from an address that is not in node 1's table. */
static void
two_connected_from(const char *host)
{
    static char elsewhere[LOOPBACK_TEXT_BYTES];

    ends_prepare(2);
    snprintf(elsewhere, sizeof elsewhere, "%s%s", host, strchr(addresses[0], ':'));
    ends[0].options.bind_address = elsewhere;
    end_open(0);
    end_open(1);
    ends_connect(0, 1);
}

/* After a flood from a peer's address, its configured one or another, all from there are ignored
 * but the peer, which comes in at once by the port that it calls from. */
static void
test_peer_is_heard_by_its_port(void **state)
{
    static const char other[] = "127.98.0.1";
    static const uint64_t ignored_ns = 1000000000ull * CAIRN_STRANGERS_IGNORED_S;
    char host[LOOPBACK_TEXT_BYTES];

    two_connected_from(other);
    host_of(0, host);
    strangers_flood(host, 100000);
    assert_int_equal(stats_of(1).ignored_addresses, 1);
    for (uint64_t i = 1; i <= 5; i++) {
        uint64_t begun_ns = clock_now_ns();

        strangers_flood(other, 100000);
        ends[0].ups = ends[1].ups = 0;
        cairn_transport_disconnect(ends[0].transport, 1);
        TURN_UNTIL(ends[0].ups == 1 && ends[1].ups == 1, 5);
        assert_true(clock_now_ns() - begun_ns < ignored_ns); /* not because that is over */
        ends[0].downs = ends[1].downs = 0;
        session_lives(i);
    }
}

/* Without a key nobody has ports of their own: no address of a peer is ignored. */
static void
test_peers_address_without_key(void **state)
{
    char host[LOOPBACK_TEXT_BYTES];

    two_connected_from("127.98.0.1");
    host_of(0, host);
    strangers_flood(host, 3000);
    strangers_flood("127.98.0.1", 3000);
    assert_int_equal(stats_of(1).ignored_addresses, 0);
    assert_true(stats_of(1).refused_connections >= 5000);
    strangers_flood("127.99.0.3", 3000);
    assert_int_equal(stats_of(1).ignored_addresses, 1); /* as many are enough */
    session_lives(1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        OVER(loop, test_lost_frame),
        OVER(loop, test_lost_payload),
        OVER(loop, test_damaged_frame),
        OVER(loop, test_damaged_payload),
        OVER(loop, test_cut_link),
        OVER(loop, test_late_poll),
        OVER(tcp, test_late_poll),
        OVER(loop, test_hostile_frames),
        OVER(loop, test_replayed_handshake),
        OVER(libfabric, test_stranger_over_libfabric),
        OVER(rdma, test_stranger_over_libfabric),
        OVER(tls, test_strangers_over_tcp),
        OVER(authenticate, test_strangers_over_tcp),
        OVER(tls, test_idle_strangers_over_tcp),
        OVER(tls, test_known_caller_goes_last),
        OVER(tls, test_stranger_is_ignored),
        OVER(tls, test_peer_is_heard_by_its_port),
        OVER(tcp, test_peers_address_without_key),
    };

    cairn_log_setup(CAIRN_LOG_WARN, log_keep, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
