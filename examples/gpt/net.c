/*
 * examples/gpt/net.c - messages between neighbours, each wait with a deadline.
 */
#include "net_part.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

static const uint32_t magic = 0x54504743; /* "CGPT" on a little-endian machine */

uint64_t
gpt_now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct gpt_header
gpt_header_make(const struct gpt_net *net, enum gpt_kind kind, uint64_t step, uint32_t index,
                size_t bytes)
{
    return (struct gpt_header){
        .magic = magic,
        .kind = (uint32_t)kind,
        .step = step,
        .index = index,
        .sender = net->rank,
        .bytes = bytes,
        .job = net->job,
    };
}

static cairn_err
lost(const struct gpt_connection *connection, const char *why)
{
    gpt_say("lost rank %u (%s): %s; this rank ends too, so that all can restart", connection->rank,
            connection->address, why);
    return CAIRN_PEER;
}

/*
 * Waits until the link can be read (POLLIN) or written (POLLOUT). All links are watched for their
 * end: a rank that waits for one neighbour may be the first to see another die.
 */
static cairn_err
wait_for(struct gpt_net *net, enum gpt_link link, short events, uint64_t deadline_ms)
{
    struct pollfd fds[GPT_LINKS];
    const short gone = POLLRDHUP | POLLHUP | POLLERR;

    for (;;) {
        uint64_t now_ms = gpt_now_ms();
        int ready;

        if (now_ms >= deadline_ms) {
            gpt_say("rank %u (%s) did nothing for %u s (--peer-timeout-s); this rank ends too, so "
                    "that all can restart",
                    net->links[link].rank, net->links[link].address, net->timeout_ms / 1000);
            return CAIRN_TIMEOUT;
        }
        for (int i = 0; i < GPT_LINKS; i++)
            fds[i] = (struct pollfd){.fd = net->links[i].fd, .events = POLLRDHUP};
        fds[link].events = (short)(events | (events == POLLOUT ? POLLRDHUP : 0));
        ready = poll(fds, GPT_LINKS, (int)(deadline_ms - now_ms));
        if (ready < 0 && errno != EINTR) {
            gpt_say("poll failed: %s", strerror(errno));
            return CAIRN_IO;
        }
        if (ready <= 0)
            continue;
        if (fds[link].revents & events)
            return CAIRN_OK;
        for (int i = 0; i < GPT_LINKS; i++) {
            if (fds[i].revents & gone && (i == (int)link || !net->leaving))
                return lost(&net->links[i], "its process died or left");
            if (fds[i].revents & POLLNVAL)
                return CAIRN_INTERNAL;
        }
    }
}

cairn_err
gpt_bytes_send(struct gpt_net *net, enum gpt_link link, const void *data, size_t bytes)
{
    uint64_t deadline_ms = gpt_now_ms() + net->timeout_ms;
    const uint8_t *at = data;
    cairn_err err;

    while (bytes) {
        ssize_t sent = send(net->links[link].fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
            deadline_ms = gpt_now_ms() + net->timeout_ms;
        } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            err = wait_for(net, link, POLLOUT, deadline_ms);
            if (err)
                return err;
        } else if (sent < 0 && errno != EINTR) {
            return lost(&net->links[link], strerror(errno));
        }
    }
    return CAIRN_OK;
}

cairn_err
gpt_bytes_receive(struct gpt_net *net, enum gpt_link link, void *data, size_t bytes)
{
    uint64_t deadline_ms = gpt_now_ms() + net->timeout_ms;
    uint8_t *at = data;
    cairn_err err;

    while (bytes) {
        ssize_t got = recv(net->links[link].fd, at, bytes, MSG_DONTWAIT);

        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            deadline_ms = gpt_now_ms() + net->timeout_ms;
        } else if (got == 0) {
            return lost(&net->links[link], "its process died or left");
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            err = wait_for(net, link, POLLIN, deadline_ms);
            if (err)
                return err;
        } else if (errno != EINTR) {
            return lost(&net->links[link], strerror(errno));
        }
    }
    return CAIRN_OK;
}

bool
gpt_net_has(const struct gpt_net *net, enum gpt_link link)
{
    return net->links[link].fd >= 0;
}

cairn_err
gpt_net_send(struct gpt_net *net, enum gpt_link link, enum gpt_kind kind, uint64_t step,
             uint32_t index, const void *data, size_t bytes)
{
    struct gpt_header header = gpt_header_make(net, kind, step, index, bytes);
    cairn_err err;

    err = gpt_bytes_send(net, link, &header, sizeof header);
    if (err)
        return err;
    return gpt_bytes_send(net, link, data, bytes);
}

cairn_err
gpt_net_receive(struct gpt_net *net, enum gpt_link link, enum gpt_kind kind, uint64_t step,
                uint32_t index, void *data, size_t bytes)
{
    struct gpt_header want = gpt_header_make(net, kind, step, index, bytes);
    struct gpt_header got;
    cairn_err err;

    err = gpt_bytes_receive(net, link, &got, sizeof got);
    if (err)
        return err;
    want.sender = net->links[link].rank;
    if (memcmp(&got, &want, sizeof got) != 0) {
        gpt_say("rank %u is out of step: it sent kind %u of step %llu, index %u, %llu bytes, and "
                "kind %u of step %llu, index %u, %zu bytes was due",
                net->links[link].rank, got.kind, (unsigned long long)got.step, got.index,
                (unsigned long long)got.bytes, want.kind, (unsigned long long)step, index, bytes);
        return CAIRN_INTERNAL;
    }
    return gpt_bytes_receive(net, link, data, bytes);
}

void
gpt_net_set_timeout(struct gpt_net *net, uint32_t timeout_ms)
{
    net->timeout_ms = timeout_ms ? timeout_ms : net->timeout_ms_default;
}

/* "All behind this link are done", towards rank 0, then "all are done" back. */
cairn_err
gpt_net_finish(struct gpt_net *net)
{
    static const enum gpt_link inward[] = {GPT_LINK_STAGE_BEFORE, GPT_LINK_REPLICA_BEFORE};
    static const enum gpt_link outward[] = {GPT_LINK_STAGE_AFTER, GPT_LINK_REPLICA_AFTER};
    /* Stages report along their pipeline; the first stages along the replicas. */
    bool first_stage = !gpt_net_has(net, GPT_LINK_STAGE_BEFORE);
    size_t directions = first_stage ? 2 : 1;
    cairn_err err;

    for (size_t i = 0; i < directions; i++) {
        if (!gpt_net_has(net, outward[i]))
            continue;
        err = gpt_net_receive(net, outward[i], GPT_KIND_END, 0, 0, NULL, 0);
        if (err)
            return err;
    }
    if (gpt_net_has(net, inward[directions - 1])) {
        err = gpt_net_send(net, inward[directions - 1], GPT_KIND_END, 0, 0, NULL, 0);
        if (err)
            return err;
        net->leaving = true;
        err = gpt_net_receive(net, inward[directions - 1], GPT_KIND_END, 0, 1, NULL, 0);
        if (err)
            return err;
    }
    net->leaving = true;
    for (size_t i = 0; i < directions; i++) {
        if (!gpt_net_has(net, outward[i]))
            continue;
        err = gpt_net_send(net, outward[i], GPT_KIND_END, 0, 1, NULL, 0);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

void
gpt_net_close(struct gpt_net *net)
{
    if (!net)
        return;
    for (int i = 0; i < GPT_LINKS; i++) {
        if (net->links[i].fd >= 0)
            (void)close(net->links[i].fd);
    }
    free(net);
}
