/*
 * tests/unit/transport/ends.h - transports under test in one process, what their callbacks
 * reported, and a loop that turns them until a condition holds or a deadline passes.
 */
#ifndef ENDS_H
#define ENDS_H

#include "transport/transport.h"
#include "transport/transport_loop.h"

#include "base/log.h"
#include "tests/support/certificates.h"
#include "tests/support/cmocka.h"
#include "tests/support/loopback.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ENDS_MAX = 8, HELD_MAX = 64, LOG_LINES_MAX = 64 };

struct end {
    struct cairn_transport *transport;
    struct cairn_transport_options options;
    uint32_t ups, downs;
    uint64_t incarnation_up, incarnation_down;
    uint64_t messages, payloads, payload_bytes;
    const void *last_payload;
    uint64_t sent_ok, sent_failed, last_ticket;
    uint64_t ended_of[ENDS_MAX]; /* sends to each node that have ended */
    uint32_t writable;
    uint64_t next_message, next_payload; /* expected number in the body */
    bool in_order, intact, hold, check;
    uint64_t held[HELD_MAX];
    uint32_t held_count;
    uint8_t last_body[CAIRN_TRANSPORT_BODY_BYTES_MAX];
    size_t last_body_len;
};

static struct end ends[ENDS_MAX];
static char addresses[ENDS_MAX][LOOPBACK_TEXT_BYTES];
static const char *address_list[ENDS_MAX];
static struct cairn_transport_hub *hub;
static const char *provider;
static const char *ends_key; /* NULL: none */
static bool ends_certified;  /* each has its certificate */
static struct cairn_transport_certificate end_certificates[ENDS_MAX];
static enum cairn_protection ends_protection;
static char log_lines[LOG_LINES_MAX][1024];
static uint32_t log_count;

static inline uint64_t
clock_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void
log_keep(void *context, enum cairn_log_level level, const char *line)
{
    if (log_count < LOG_LINES_MAX)
        snprintf(log_lines[log_count++], sizeof log_lines[0], "%s", line);
}

/* How many log lines hold this text. */
static inline uint32_t
log_has(const char *text)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < log_count; i++)
        count += strstr(log_lines[i], text) != NULL;
    return count;
}

static inline void
payload_fill(uint8_t *payload, size_t payload_len, uint64_t number)
{
    for (size_t i = 0; i < payload_len; i++)
        payload[i] = (uint8_t)(number * 131 + i * 7 + (i >> 8));
}

static inline bool
payload_is(const uint8_t *payload, size_t payload_len, uint64_t number)
{
    for (size_t i = 0; i < payload_len; i++)
        if (payload[i] != (uint8_t)(number * 131 + i * 7 + (i >> 8)))
            return false;
    return true;
}

static inline void
end_message(void *context, uint32_t from, const void *body, size_t body_len, const void *payload,
            size_t payload_len, uint64_t buffer)
{
    struct end *end = context;
    uint64_t number = 0;

    if (body_len >= sizeof number)
        memcpy(&number, body, sizeof number);
    memcpy(end->last_body, body, body_len);
    end->last_body_len = body_len;
    if (payload_len == 0) {
        end->messages++;
        end->in_order &= !end->check || number == end->next_message;
        end->next_message = number + 1;
        assert_null(payload);
        assert_int_equal(buffer, 0);
        return;
    }
    end->payloads++;
    end->last_payload = payload;
    end->payload_bytes += payload_len;
    end->in_order &= !end->check || number == end->next_payload;
    end->next_payload = number + 1;
    end->intact &= payload_is(payload, payload_len, number);
    assert_int_equal((uintptr_t)payload % 4096, 0);
    if (end->hold) {
        assert_true(end->held_count < HELD_MAX);
        end->held[end->held_count++] = buffer;
    } else {
        cairn_transport_release(end->transport, buffer);
    }
}

static inline void
end_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    struct end *end = context;

    end->ended_of[node]++;
    end->last_ticket = ticket;
    if (err) {
        assert_int_equal(err, CAIRN_PEER);
        end->sent_failed++;
    } else {
        end->sent_ok++;
    }
}

static inline void
end_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    struct end *end = context;

    if (up) {
        end->ups++;
        end->incarnation_up = incarnation;
    } else {
        end->downs++;
        end->incarnation_down = incarnation;
    }
}

static inline void
end_writable(void *context, uint32_t node)
{
    ((struct end *)context)->writable++;
}

/* The authority of this program, and a certificate for each end. */
static inline void
certificates_prepare(void)
{
    static struct authority authority;
    static struct leaf leaves[ENDS_MAX];

    if (authority.key)
        return;
    authority_make("authority", NULL, &authority);
    for (uint32_t i = 0; i < ENDS_MAX; i++) {
        leaf_of_node(&authority, i, &leaves[i]);
        end_certificates[i] = leaf_use(&leaves[i], authority.pem, TEST_IDENTITY);
    }
}

/* Prepares options of `count` nodes; a test changes them before end_open. */
static inline void
ends_prepare(uint32_t count)
{
    memset(ends, 0, sizeof ends);
    log_count = 0;
    if (strcmp(provider, "loop") == 0)
        assert_int_equal(cairn_transport_hub_create(count, &hub), CAIRN_OK);
    if (ends_certified)
        certificates_prepare();
    for (uint32_t i = 0; i < count; i++) {
        loopback_address(addresses[i]);
        address_list[i] = addresses[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        ends[i].in_order = ends[i].intact = true;
        ends[i].options = (struct cairn_transport_options){
            .provider = provider,
            .bind_address = addresses[i],
            .node = i,
            .node_count = count,
            .addresses = address_list,
            .job_id = 77,
            .incarnation = 100 + i,
            .buffer_count = 16,
            .hub = hub,
            .key = ends_key,
            .protection = ends_protection,
            .key_len = ends_key ? strlen(ends_key) : 0,
            .certificate = ends_certified ? &end_certificates[i] : NULL,
            .on_message = end_message,
            .on_sent = end_sent,
            .on_peer = end_peer,
            .on_writable = end_writable,
            .context = &ends[i],
        };
    }
}

static inline int
use(const char *name, const char *key)
{
    provider = name;
    ends_key = key;
    ends_certified = false;
    ends_protection = CAIRN_PROTECTION_NONE;
    return 0;
}

static inline int
use_loop(void **state)
{
    return use("loop", NULL);
}

static inline int
use_tcp(void **state)
{
    return use("tcp", NULL);
}

static inline int
use_tls(void **state)
{
    return use("tcp", "a key of more than sixteen bytes");
}

static inline int
use_authenticate(void **state)
{
    use_tls(state);
    ends_protection = CAIRN_PROTECTION_AUTHENTICATE;
    return 0;
}

static inline int
use_encrypt(void **state)
{
    use_tls(state);
    ends_protection = CAIRN_PROTECTION_ENCRYPT;
    return 0;
}

static inline int
use_certificates(void **state)
{
    use("tcp", NULL);
    ends_certified = true;
    ends_protection = CAIRN_PROTECTION_AUTHENTICATE;
    return 0;
}

static inline int
use_rdma(void **state)
{
    use("libfabric-tcp", "a key of more than sixteen bytes");
    ends_protection = CAIRN_PROTECTION_AUTHENTICATE;
    return 0;
}

static inline int
use_rdma_certificates(void **state)
{
    use_certificates(state);
    provider = "libfabric-tcp";
    return 0;
}

static inline int
use_shm(void **state)
{
    use_rdma(state);
    provider = "shm";
    return 0;
}

static inline int
use_libfabric(void **state)
{
    return use("libfabric-tcp", "a key of more than sixteen bytes");
}

static inline void
end_open(uint32_t node)
{
    assert_int_equal(cairn_transport_open(&ends[node].options, &ends[node].transport), CAIRN_OK);
}

static inline void
end_close(uint32_t node)
{
    cairn_transport_close(ends[node].transport);
    ends[node].transport = NULL;
}

static inline int
ends_close(void **state)
{
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        end_close(i);
    cairn_transport_hub_destroy(hub);
    hub = NULL;
    return 0;
}

/* Turns every open end once, sleeping at most until the first is due. */
static inline void
ends_turn(void)
{
    struct pollfd fds[ENDS_MAX];
    nfds_t count = 0;
    uint64_t now_ns = clock_now_ns();
    uint64_t due_ns = now_ns + 20000000;
    struct timespec wait = {0};

    for (uint32_t i = 0; i < ENDS_MAX; i++) {
        uint64_t due_of_end_ns;

        if (!ends[i].transport)
            continue;
        due_of_end_ns = cairn_transport_due(ends[i].transport, now_ns);
        due_ns = due_of_end_ns < due_ns ? due_of_end_ns : due_ns;
        fds[count++] =
            (struct pollfd){.fd = cairn_transport_fd(ends[i].transport), .events = POLLIN};
    }
    if (due_ns > now_ns)
        wait.tv_nsec = (long)(due_ns - now_ns);
    (void)ppoll(fds, count, &wait, NULL);
    for (uint32_t i = 0; i < ENDS_MAX; i++)
        if (ends[i].transport)
            cairn_transport_poll(ends[i].transport, clock_now_ns());
}

/* Times what an idle machine takes at most: tests run on machines that have other things to do. */
enum { PATIENCE = 5 };

/* Turns until the condition holds, for PATIENCE times as many seconds at most. */
#define TURN_UNTIL(condition, seconds)                                                             \
    do {                                                                                           \
        uint64_t until_ns = clock_now_ns() + (uint64_t)((seconds)*PATIENCE * 1e9);                 \
        while (!(condition) && clock_now_ns() < until_ns)                                          \
            ends_turn();                                                                           \
        assert_true(condition);                                                                    \
    } while (0)

/* Turns for a time in which something must not happen. */
static inline void
ends_turn_for(double seconds)
{
    uint64_t end_ns = clock_now_ns() + (uint64_t)(seconds * 1e9);

    while (clock_now_ns() < end_ns)
        ends_turn();
}

static inline enum cairn_peer_state
state_of(uint32_t node, uint32_t peer)
{
    struct cairn_transport_peer out;

    cairn_transport_peer_read(ends[node].transport, peer, &out);
    return out.state;
}

/* Sends that have not ended. */
static inline uint32_t
state_operations(uint32_t node, uint32_t peer)
{
    struct cairn_transport_peer out;

    cairn_transport_peer_read(ends[node].transport, peer, &out);
    return out.operations;
}

static inline struct cairn_transport_stats
stats_of(uint32_t node)
{
    struct cairn_transport_stats out;

    cairn_transport_stats_read(ends[node].transport, &out);
    return out;
}

static inline void
ends_connect(uint32_t a, uint32_t b)
{
    cairn_transport_connect(ends[a].transport, b);
    TURN_UNTIL(state_of(a, b) == CAIRN_PEER_UP && state_of(b, a) == CAIRN_PEER_UP, 10);
}

static inline cairn_err
end_send(uint32_t from, uint32_t to, uint64_t number, const void *payload, size_t payload_len)
{
    return cairn_transport_send(ends[from].transport, to, &number, sizeof number, payload,
                                payload_len, number);
}

/* Sends, turning while the transport says CAIRN_AGAIN. */
static inline void
end_send_soon(uint32_t from, uint32_t to, uint64_t number, const void *payload, size_t payload_len)
{
    uint64_t give_up_ns = clock_now_ns() + PATIENCE * 10000000000u;
    cairn_err err;

    while ((err = end_send(from, to, number, payload, payload_len)) == CAIRN_AGAIN &&
           clock_now_ns() < give_up_ns)
        ends_turn();
    assert_int_equal(err, CAIRN_OK);
}

static inline void
two_open(void)
{
    ends_prepare(2);
    end_open(0);
    end_open(1);
}

/* A test over one backend, and over each. */
#define OVER(backend, function)                                                                    \
    {                                                                                              \
#backend ": " #function, function, use_##backend, ends_close, NULL                         \
    }
#define EACH(function)                                                                             \
    OVER(loop, function), OVER(tcp, function), OVER(tls, function), OVER(libfabric, function),     \
        OVER(rdma, function)

#endif
