/*
 * examples/gpt/rendezvous.c - how the neighbours find each other.
 *
 * Each rank listens on its entry of --peers, connects to its neighbours of lower rank and greets
 * them, accepts those of higher rank and answers their greeting, then reads the answers to its own.
 * Waits only point from higher ranks to lower ranks and back once, so there is no circle.
 * A connection without a greeting is closed; a neighbour that connects again replaces its earlier
 * connection. The listening socket is closed before training starts.
 */
#include "net_part.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "say.h"

enum { RETRY_MS = 50, GREETING_MS = 2000, OWN_PORT_MS = 5000 };

/* Copies entry `rank` of "host:port,host:port" to out. */
static cairn_err
peer_address(const char *peers, uint32_t rank, char out[GPT_ADDRESS_BYTES])
{
    for (uint32_t i = 0; peers; i++) {
        const char *comma = strchr(peers, ',');
        size_t length = comma ? (size_t)(comma - peers) : strlen(peers);

        if (i == rank && length > 0 && length < GPT_ADDRESS_BYTES) {
            memcpy(out, peers, length);
            out[length] = 0;
            return CAIRN_OK;
        }
        peers = comma ? comma + 1 : NULL;
    }
    gpt_say("--peers has no usable entry for rank %u: one host:port per rank, with commas", rank);
    return CAIRN_INVAL;
}

/* Resolves "host:port" or "[v6]:port". Returns 0 or a code of getaddrinfo. */
static int
resolve(const char *address, int flags, struct addrinfo **out)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    char host[GPT_ADDRESS_BYTES];
    char *colon;
    char *begin = host;

    (void)snprintf(host, sizeof host, "%s", address);
    colon = strrchr(host, ':');
    if (!colon || colon == host || !colon[1])
        return EAI_NONAME;
    *colon = 0;
    if (host[0] == '[' && colon[-1] == ']') {
        begin++;
        colon[-1] = 0;
    }
    return getaddrinfo(begin, colon + 1, &hints, out);
}

static cairn_err
listen_on(const char *address, int *out)
{
    uint64_t deadline_ms = gpt_now_ms() + OWN_PORT_MS; /* a killed predecessor may still hold it */
    struct addrinfo *found = NULL;
    int failed = resolve(address, AI_PASSIVE, &found);
    int fd = -1;

    if (failed) {
        gpt_say("cannot listen on %s: %s; mend this rank's entry of --peers", address,
                gai_strerror(failed));
        return CAIRN_INVAL;
    }
    for (;;) {
        int one = 1;

        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
            bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, GPT_LINKS) == 0)
            break;
        if (errno != EADDRINUSE || gpt_now_ms() >= deadline_ms) {
            gpt_say(
                "cannot listen on %s: %s; free the port, or change this rank's entry of --peers "
                "on all ranks",
                address, strerror(errno));
            if (fd >= 0)
                (void)close(fd);
            freeaddrinfo(found);
            return CAIRN_IO;
        }
        if (fd >= 0)
            (void)close(fd);
        (void)poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(found);
    *out = fd;
    return CAIRN_OK;
}

static void
hurry(int fd)
{
    int one = 1;

    /* Without it small messages wait; no harm when it fails. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* One attempt to connect. Returns the socket, or -1 with *why. */
static int
connect_once(const char *address, uint64_t deadline_ms, const char **why)
{
    struct addrinfo *found = NULL;
    int failed = resolve(address, 0, &found);
    int fd = -1;

    if (failed) {
        *why = gai_strerror(failed);
        return -1;
    }
    for (const struct addrinfo *a = found; a; a = a->ai_next) {
        uint64_t now_ms = gpt_now_ms();
        struct pollfd poll_fd;
        socklen_t length = sizeof failed;

        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            break;
        failed = errno;
        poll_fd = (struct pollfd){.fd = fd, .events = POLLOUT};
        if (failed == EINPROGRESS) {
            failed = ETIMEDOUT;
            if (now_ms < deadline_ms && poll(&poll_fd, 1, (int)(deadline_ms - now_ms)) == 1)
                (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &length);
        }
        if (failed == 0)
            break;
        *why = strerror(failed);
        (void)close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static cairn_err
greet(struct gpt_net *net, enum gpt_link link)
{
    struct gpt_header hello = gpt_header_make(net, GPT_KIND_HELLO, 0, GPT_NET_VERSION, 0);

    return gpt_bytes_send(net, link, &hello, sizeof hello);
}

static cairn_err
connect_link(struct gpt_net *net, enum gpt_link link, uint64_t deadline_ms)
{
    struct gpt_connection *connection = &net->links[link];
    const char *why = "no answer";

    for (;;) {
        connection->fd = connect_once(connection->address, deadline_ms, &why);
        if (connection->fd >= 0)
            break;
        if (gpt_now_ms() >= deadline_ms) {
            gpt_say("rank %u (%s) cannot be reached: %s, tried for %u s (--peer-timeout-s)",
                    connection->rank, connection->address, why, net->timeout_ms / 1000);
            return CAIRN_PEER;
        }
        (void)poll(NULL, 0, RETRY_MS);
    }
    hurry(connection->fd);
    return greet(net, link);
}

/* Compares a greeting with ours, but for the sender. */
static cairn_err
check_greeting(const struct gpt_net *net, const struct gpt_header *got)
{
    struct gpt_header own = gpt_header_make(net, GPT_KIND_HELLO, 0, GPT_NET_VERSION, 0);

    if (got->magic != own.magic || got->kind != own.kind || got->bytes != 0 || got->step != 0)
        return CAIRN_INVAL; /* not a rank of any job */
    if (got->index == own.index && got->job == own.job)
        return CAIRN_OK;
    gpt_say(
        "rank %u was started with other settings than this rank: model, batch, seed, steps, text, "
        "--dp, --pp, --stage-layers and --micro-batches must be the same on all",
        got->sender);
    return CAIRN_CONFIG;
}

/* Reads the greeting of a new connection: 0 on success. Waits only briefly, as for a stranger. */
static int
read_greeting(int fd, struct gpt_header *out)
{
    uint64_t deadline_ms = gpt_now_ms() + GREETING_MS;
    uint8_t *at = (uint8_t *)out;
    size_t left = sizeof *out;

    while (left) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        uint64_t now_ms = gpt_now_ms();
        ssize_t got;

        if (now_ms >= deadline_ms || poll(&poll_fd, 1, (int)(deadline_ms - now_ms)) != 1)
            return -1;
        got = recv(fd, at, left, MSG_DONTWAIT);
        if (got <= 0)
            return -1;
        at += got;
        left -= (size_t)got;
    }
    return 0;
}

/* Accepts one connection and finds the link it belongs to. CAIRN_OK also when it was sent away. */
static cairn_err
accept_one(struct gpt_net *net, int listener)
{
    struct gpt_header hello;
    cairn_err err = CAIRN_INVAL;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return CAIRN_OK;
    if (read_greeting(fd, &hello) == 0)
        err = check_greeting(net, &hello);
    for (int i = 0; err == CAIRN_OK && i < GPT_LINKS; i++) {
        struct gpt_connection *connection = &net->links[i];

        if (connection->rank != hello.sender || !connection->address[0] ||
            connection->rank < net->rank)
            continue;
        if (connection->fd >= 0)
            (void)close(connection->fd);
        connection->fd = fd;
        hurry(fd);
        return greet(net, (enum gpt_link)i);
    }
    (void)close(fd);
    return err == CAIRN_CONFIG ? err : CAIRN_OK;
}

/* The first neighbour of higher rank that has not come yet, NULL for none. */
static const struct gpt_connection *
missing(const struct gpt_net *net)
{
    for (int i = 0; i < GPT_LINKS; i++) {
        if (net->links[i].address[0] && net->links[i].rank > net->rank && net->links[i].fd < 0)
            return &net->links[i];
    }
    return NULL;
}

static cairn_err
accept_links(struct gpt_net *net, int listener, uint64_t deadline_ms)
{
    const struct gpt_connection *absent;

    while ((absent = missing(net)) != NULL) {
        struct pollfd poll_fd = {.fd = listener, .events = POLLIN};
        uint64_t now_ms = gpt_now_ms();
        cairn_err err;

        if (now_ms >= deadline_ms) {
            gpt_say("rank %u (%s) did not come, waited %u s (--peer-timeout-s)", absent->rank,
                    absent->address, net->timeout_ms / 1000);
            return CAIRN_PEER;
        }
        if (poll(&poll_fd, 1, (int)(deadline_ms - now_ms)) != 1)
            continue;
        err = accept_one(net, listener);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

static cairn_err
set_link(struct gpt_net *net, enum gpt_link link, const char *peers, uint32_t rank)
{
    net->links[link].rank = rank;
    return peer_address(peers, rank, net->links[link].address);
}

static cairn_err
set_links(struct gpt_net *net, const struct gpt_plan *plan, const char *peers)
{
    uint32_t first = plan->rank - plan->stage; /* of the replica */
    cairn_err err = CAIRN_OK;

    if (plan->stage > 0)
        err = set_link(net, GPT_LINK_STAGE_BEFORE, peers, plan->rank - 1);
    if (!err && plan->stage + 1 < plan->pp)
        err = set_link(net, GPT_LINK_STAGE_AFTER, peers, plan->rank + 1);
    for (uint32_t s = 0; s < plan->pp; s++) {
        if (!err && plan->replica > 0)
            err =
                set_link(net, gpt_link_of(GPT_LINK_REPLICA_BEFORE, s), peers, first - plan->pp + s);
        if (!err && plan->replica + 1 < plan->dp)
            err =
                set_link(net, gpt_link_of(GPT_LINK_REPLICA_AFTER, s), peers, first + plan->pp + s);
    }
    return err;
}

/* The neighbours whom this rank connects to. */
static bool
is_lower(const struct gpt_net *net, int link)
{
    return net->links[link].address[0] && net->links[link].rank < net->rank;
}

/* Connects and greets in the order that the head of this file describes. */
static cairn_err
meet(struct gpt_net *net, int listener)
{
    uint64_t deadline_ms = gpt_now_ms() + net->timeout_ms;
    struct gpt_header answer;
    cairn_err err;

    for (int i = 0; i < GPT_LINKS; i++) {
        if (!is_lower(net, i))
            continue;
        err = connect_link(net, (enum gpt_link)i, deadline_ms);
        if (err)
            return err;
    }
    err = accept_links(net, listener, deadline_ms);
    if (err)
        return err;
    for (int i = 0; i < GPT_LINKS; i++) {
        if (!is_lower(net, i))
            continue;
        err = gpt_bytes_receive(net, (enum gpt_link)i, &answer, sizeof answer);
        if (err)
            return err;
        err = check_greeting(net, &answer);
        if (!err && answer.sender != net->links[i].rank)
            err = CAIRN_INVAL;
        if (err == CAIRN_INVAL) {
            gpt_say("%s is not rank %u of this job: mend --peers, which must be the same on all",
                    net->links[i].address, net->links[i].rank);
            err = CAIRN_CONFIG;
        }
        if (err)
            return err;
    }
    return CAIRN_OK;
}

cairn_err
gpt_net_open(const struct gpt_net_options *options, const struct gpt_plan *plan,
             struct gpt_net **out)
{
    struct gpt_net *net = calloc(1, sizeof *net);
    char own[GPT_ADDRESS_BYTES];
    int listener = -1;
    cairn_err err = CAIRN_NOMEM;

    if (!net) {
        gpt_say("no memory for the connections");
        goto done;
    }
    net->rank = plan->rank;
    net->timeout_ms = options->timeout_ms;
    net->timeout_ms_default = options->timeout_ms;
    net->job = options->job;
    for (int i = 0; i < GPT_LINKS; i++)
        net->links[i].fd = -1;
    err = CAIRN_OK;
    if (plan->world > 1) {
        err = set_links(net, plan, options->peers);
        if (!err)
            err = peer_address(options->peers, plan->rank, own);
        if (!err)
            err = listen_on(own, &listener);
        if (!err)
            err = meet(net, listener);
    }
    if (err)
        goto done;
    *out = net;
    net = NULL;
done:
    if (listener >= 0)
        (void)close(listener);
    gpt_net_close(net);
    return err;
}
