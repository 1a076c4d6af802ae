/*
 * tests/fuzz/streams.h - connections over a pair of sockets, for the fuzzers of what comes over
 * them: nodes 0 and 1 of one job, with one key, or with a certificate each.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "transport/stream.h"

#include "base/log.h"
#include "tests/fuzz/require.h"
#include "tests/support/certificates.h"
#include "tests/support/quiet_log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What TLS of a node needs; protection is part of what the two agree on. */
static inline struct cairn_tls *
streams_tls(uint32_t node, enum cairn_protection protection)
{
    struct cairn_transport_options options = {.node = node,
                                              .node_count = 2,
                                              .job_id = 1,
                                              .protection = protection,
                                              .key = "a key that a fuzzer may know",
                                              .key_len = 28};
    struct cairn_tls *tls = NULL;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    require(cairn_tls_create(&options, &tls) == CAIRN_OK);
    return tls;
}

/* The same with certificates in place of the key. */
static inline struct cairn_tls *
streams_tls_certified(uint32_t node)
{
    static struct authority authority;
    struct cairn_transport_certificate certificate;
    struct cairn_transport_options options = {
        .node = node, .node_count = 2, .job_id = 1, .certificate = &certificate};
    struct cairn_tls *tls = NULL;
    struct leaf leaf;

    if (!authority.key)
        authority_make("authority", NULL, &authority);
    leaf_of_node(&authority, node, &leaf);
    certificate = leaf_use(&leaf, authority.pem, TEST_IDENTITY);
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    require(cairn_tls_create(&options, &tls) == CAIRN_OK);
    return tls;
}

/* A socket to each side. */
static inline void
streams_sockets(int fds[2])
{
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
}

/* What has come over a socket, at most `room` bytes. */
static inline size_t
streams_take(int fd, uint8_t *bytes, size_t room)
{
    size_t len = 0;
    ssize_t got;

    while (len < room && (got = recv(fd, bytes + len, room - len, MSG_DONTWAIT)) > 0)
        len += (size_t)got;
    return len;
}

/* Hands bytes to a stream as its socket's other end, in pieces that fit between the two. */
static inline void
streams_feed(struct stream *stream, int fd, const uint8_t *bytes, size_t len, size_t piece)
{
    while (len && !stream->failed) {
        size_t count = len < piece ? len : piece;

        require(send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)count);
        while (stream_receive(stream))
            ;
        bytes += count;
        len -= count;
    }
}

#endif
