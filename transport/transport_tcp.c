/*
 * transport/transport_tcp.c - the backend over plain TCP: who is let in, and which connection
 * belongs to which node. stream.h specifies what travels over a connection.
 *
 * A node has one connection at a time, made by either side; both sides send over it. If both call
 * at once the lower node's call counts. A proved peer that connects again has lost its connection
 * or its process: the old one is reported as lost, and the new one is held until the old one is
 * closed.
 *
 * Strangers. A connection that is not proved costs a descriptor and 3 KiB until its handshake's
 * deadline, two seconds; crowd.h bounds their number. Strangers take at most WORK_NS of each
 * TICK_MS, a quarter of a core, with ACCEPTS_PER_TURN connections between two looks at proved
 * peers. A hello without the job's number is refused before OpenSSL sees it. An address whose
 * connections cost much and prove nothing is ignored for some seconds (guard.h).
 */
#include "transport/backend.h"

#include "transport/address.h"
#include "transport/buffers.h"
#include "transport/crowd.h"
#include "transport/frame.h"
#include "transport/guard.h"
#include "transport/names.h"
#include "transport/socket.h"
#include "transport/stream.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    ACCEPTS_PER_TURN = 16,
    BACKLOG = 1024,
    EVENTS_PER_TURN = 64,
    TICK_MS = 100,
    WORK_NS = 25000000, /* for strangers, of processor time in a tick */
    HANDSHAKE_MS = 2000,
    CONNECT_PAUSE_MS = 20, /* after a connection that was refused */
    CONNECT_AGAIN_MS = 200 /* without an answer: a flood may have filled the peer's queue */
};

static const uint64_t millisecond_ns = 1000000;

struct place {
    struct stream *stream; /* over which we send */
    struct stream *later;  /* takes its place once it is closed */
    uint64_t connect_after_ns;
};

struct tcp {
    struct cairn_backend backend;
    struct cairn_backend_events events;
    struct stream_owner owner;
    struct cairn_names *names;
    uint32_t node, node_count;
    struct place *places; /* [node_count] */
    struct cairn_buffers *buffers;
    uint32_t buffer_count;
    int listener, timer;
    bool listening; /* the listener is watched */
    bool ticking;
    struct cairn_crowd crowd;
    struct stream *dead;  /* freed at the end of the turn */
    struct stream *dirty; /* streams that something was queued for since the last flush */
    bool unread;          /* a stream may have more than its turn's share */
    int64_t work_left_ns; /* for strangers, until the next tick; below 0: a debt */
    uint64_t work_ns;     /* when the tick began */
    uint64_t cost_ns;     /* of a stranger's record: the most of late */
    uint32_t port_place;  /* from which the next call tries */
    struct cairn_guard *guard;
};

static struct tcp *
tcp_of(struct cairn_backend *backend)
{
    return (struct tcp *)(void *)backend;
}

static uint64_t
clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Processor time of this thread. */
static uint64_t
work_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- watching ---- */

static void
watch(struct tcp *tcp, struct stream *stream, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = stream};
    int how = stream->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;

    if (stream->fd < 0 || stream->events == events)
        return;
    if (epoll_ctl(tcp->owner.epoll_fd, events ? how : EPOLL_CTL_DEL, stream->fd, &event) != 0)
        stream_fail(stream, "it cannot be watched");
    stream->events = events;
}

static void
listener_watch(struct tcp *tcp, bool on)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &tcp->listener};

    if (tcp->listening != on && epoll_ctl(tcp->owner.epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL,
                                          tcp->listener, &event) == 0)
        tcp->listening = on;
}

/* The timer runs while something has a deadline. */
static void
tick_start(struct tcp *tcp, bool on)
{
    struct itimerspec spec = {.it_interval.tv_nsec = on ? TICK_MS * 1000000 : 0,
                              .it_value.tv_nsec = on ? TICK_MS * 1000000 : 0};

    if (tcp->ticking != on && timerfd_settime(tcp->timer, 0, &spec, NULL) == 0)
        tcp->ticking = on;
}

/* ---- the life of a connection ---- */

static void
bury(struct tcp *tcp, struct stream *stream, const char *why)
{
    stream_fail(stream, why);
    stream->buried = true;
    stream->next = tcp->dead;
    tcp->dead = stream;
}

/* The node's next connection takes the lost one's place. */
static void
promote(struct tcp *tcp, struct place *place)
{
    place->stream = place->later;
    place->later = NULL;
    if (!place->stream)
        return;
    place->stream->held = false;
    place->stream->resumed = true;
    watch(tcp, place->stream, EPOLLIN);
    tcp->unread = true;
}

/* A stream has failed: takes it out of its place and reports that. */
static void
stream_lost(struct tcp *tcp, struct stream *stream)
{
    uint32_t node = stream->node;
    struct place *place = node < tcp->node_count ? &tcp->places[node] : NULL;

    if (stream->buried)
        return;
    if (place && place->later == stream) {
        place->later = NULL;
    } else if (place && place->stream == stream) {
        bool refused = stream->refused && stream->outbound && !stream->heard;

        place->connect_after_ns = clock_ns() + CONNECT_PAUSE_MS * millisecond_ns;
        promote(tcp, place);
        if (refused)
            tcp->events.refused(tcp->events.context, node, stream->refuses ? stream->failed : NULL);
        else if (!place->stream)
            tcp->events.changed(tcp->events.context, node, stream->failed);
    } else {
        cairn_crowd_remove(&tcp->crowd, stream);
        if (!stream->outbound)
            cairn_guard_refused(tcp->guard, &stream->source, stream->failed, stream->work_ns,
                                clock_ns());
    }
    bury(tcp, stream, stream->failed);
}

static bool
is_closed(const struct stream *stream)
{
    char byte;

    return recv(stream->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* An inbound stream is proved: which of the node's connections counts. True: read on. */
static bool
adopt(struct tcp *tcp, struct stream *stream)
{
    struct place *place = &tcp->places[stream->node];
    struct stream *current = place->stream;
    bool ours_counts = current && current->outbound && tcp->node < stream->node &&
                       (!current->proved || !current->heard);

    cairn_crowd_remove(&tcp->crowd, stream);
    stream->proved = true;
    cairn_guard_proved(tcp->guard, stream->node, &stream->source);
    if (ours_counts || (current && is_closed(stream))) {
        bury(tcp, stream, "replaced by another connection");
        return false;
    }
    if (!current) {
        place->stream = stream;
    } else if (!current->proved) {
        bury(tcp, current, "replaced by another connection");
        place->stream = stream;
    } else {
        if (place->later)
            bury(tcp, place->later, "replaced by another connection");
        place->later = stream;
        stream->held = true;
        watch(tcp, stream, 0);
        tcp->events.changed(tcp->events.context, stream->node, "it connected again");
        return !stream->held && !stream->failed;
    }
    tcp->events.changed(tcp->events.context, stream->node, NULL);
    return true;
}

static bool
stream_proved(void *context, struct stream *stream)
{
    struct tcp *tcp = context;

    if (!stream->outbound)
        return adopt(tcp, stream);
    stream->proved = true;
    tcp->events.changed(tcp->events.context, stream->node, NULL);
    return true;
}

static bool
stream_received(void *context, struct stream *stream, const uint8_t *bytes, size_t bytes_len)
{
    struct tcp *tcp = context;
    struct cairn_frame frame;

    if (!stream->proved) { /* in clear, and nobody has to prove anything */
        if (cairn_frame_parse(bytes, bytes_len, &frame) != CAIRN_OK ||
            frame.kind != CAIRN_FRAME_HELLO || frame.from >= tcp->node_count ||
            frame.from == tcp->node) {
            stream_fail(stream, "it is not an agent");
            return false;
        }
        stream->node = frame.from;
        if (!adopt(tcp, stream))
            return false;
    }
    tcp->events.received(tcp->events.context, stream->clear ? CAIRN_BACKEND_ALL : stream->node,
                         bytes, bytes_len);
    return !stream->failed;
}

static uint8_t *
payload_begin(void *context, const struct stream *stream, const struct cairn_backend_remote *remote,
              uint32_t bytes_len)
{
    struct tcp *tcp = context;
    uint8_t *placed = NULL;
    uint32_t index;

    if (!cairn_buffers_find(tcp->buffers, remote, &index))
        return NULL;
    if (remote->place)
        placed = tcp->events.place(tcp->events.context, stream->node, remote->place, bytes_len);
    return cairn_buffers_begin(tcp->buffers, index, bytes_len, placed);
}

static void
payload_torn(void *context, uint64_t address)
{
    cairn_buffers_tear(((struct tcp *)context)->buffers, address);
}

/* ---- connecting and accepting ---- */

/* A socket that connects to a node, from a keyed port if this node has a key. -1: none can be
 * had. */
static int
socket_call(struct tcp *tcp, uint32_t node, const struct sockaddr_storage *address)
{
    struct cairn_ports ports;
    bool keyed = tcp->owner.tls && cairn_tls_ports(tcp->owner.tls, 0, node, &ports);

    return cairn_socket_call(cairn_names_address(tcp->names, tcp->node), keyed ? &ports : NULL,
                             &tcp->port_place, address);
}

static void
call_begin(struct tcp *tcp, uint32_t node)
{
    struct place *place = &tcp->places[node];
    const struct sockaddr_storage *address = cairn_names_address(tcp->names, node);
    uint64_t now_ns = clock_ns();
    struct stream *stream;
    int fd;

    if (address->ss_family == AF_UNSPEC || now_ns < place->connect_after_ns)
        return;
    place->connect_after_ns = now_ns + CONNECT_PAUSE_MS * millisecond_ns;
    fd = socket_call(tcp, node, address);
    if (fd < 0 || stream_create(&tcp->owner, fd, true, node, &stream) != CAIRN_OK)
        return;
    stream->address = *address;
    stream->deadline_ns = now_ns + HANDSHAKE_MS * millisecond_ns;
    stream->patience_ns = CONNECT_AGAIN_MS * millisecond_ns;
    stream->again_ns = now_ns + stream->patience_ns;
    place->stream = stream;
    watch(tcp, stream, EPOLLIN | EPOLLOUT);
    tick_start(tcp, true);
}

/* Calls once more, with another socket: the kernel would wait for a second. Waits twice as long for
 * this answer. */
static void
call_again(struct tcp *tcp, struct stream *stream, uint64_t now_ns)
{
    int fd = socket_call(tcp, stream->node, &stream->address);

    stream->patience_ns *= 2;
    stream->again_ns = now_ns + stream->patience_ns;
    if (fd < 0)
        return;
    watch(tcp, stream, 0);
    close(stream->fd);
    stream->fd = fd;
    watch(tcp, stream, EPOLLIN | EPOLLOUT);
}

/* Makes room for a connection from this address. */
static void
room_make(struct tcp *tcp, const struct in6_addr *source)
{
    struct stream *worst = cairn_crowd_worst(&tcp->crowd, source);

    if (!worst)
        return;
    stream_fail(worst, "too many connections that are not proved");
    stream_lost(tcp, worst);
}

/* Counts processor time that strangers have cost since *at_ns, which becomes now. Returns it. */
static uint64_t
work_count(struct tcp *tcp, uint64_t *at_ns)
{
    uint64_t now_ns = work_ns(), spent_ns = now_ns - *at_ns;

    *at_ns = now_ns;
    tcp->work_left_ns -= (int64_t)spent_ns;
    if (tcp->work_left_ns <= 0)
        listener_watch(tcp, false);
    tick_start(tcp, true);
    return spent_ns;
}

/* How many connections to accept now: as many as may be answered in this tick. */
static int64_t
accepts_of_turn(const struct tcp *tcp)
{
    int64_t count = tcp->work_left_ns / (int64_t)(tcp->cost_ns + 1) + 1;

    return count < ACCEPTS_PER_TURN ? count : ACCEPTS_PER_TURN;
}

/* Makes a stream of a connection, which is not watched yet; NULL: it is closed. */
static struct stream *
accept_stream(struct tcp *tcp, int fd, const struct sockaddr_storage *address)
{
    struct in6_addr source;
    struct stream *stream;

    if (cairn_guard_ignores(tcp->guard, address)) {
        close(fd);
        return NULL;
    }
    cairn_address_ip(address, &source);
    room_make(tcp, &source);
    if (stream_create(&tcp->owner, fd, false, CAIRN_BACKEND_ALL, &stream) != CAIRN_OK)
        return NULL;
    stream->source = source;
    stream->deadline_ns = clock_ns() + HANDSHAKE_MS * millisecond_ns;
    cairn_crowd_add(&tcp->crowd, stream);
    return stream;
}

/* Reads from a connection that is not proved. Counts what it has cost since *at_ns. */
static void
stranger_read(struct tcp *tcp, struct stream *stream, uint64_t *at_ns)
{
    uint64_t spent_ns;

    tcp->unread |= stream_receive(stream);
    spent_ns = work_count(tcp, at_ns);
    stream->work_ns += spent_ns;
    tcp->cost_ns -= tcp->cost_ns / 8;
    if (tcp->cost_ns < spent_ns)
        tcp->cost_ns = spent_ns;
}

/* Most callers have sent something by now: it is read at once, and a stranger that is refused need
 * not be watched. */
static void
accept_all(struct tcp *tcp)
{
    uint64_t at_ns = work_ns();

    for (int64_t left = accepts_of_turn(tcp); left > 0 && tcp->work_left_ns > 0; left--) {
        struct sockaddr_storage address;
        socklen_t address_len = sizeof address;
        struct stream *stream;
        int fd = accept4(tcp->listener, (struct sockaddr *)&address, &address_len,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
            tcp->work_left_ns = 0; /* the next tick tries again */
        if (fd < 0)
            break;
        stream = accept_stream(tcp, fd, &address);
        if (!stream)
            continue;
        stranger_read(tcp, stream, &at_ns);
        if (stream->failed)
            stream_lost(tcp, stream);
        else if (!stream->held)
            watch(tcp, stream, EPOLLIN);
    }
    (void)work_count(tcp, &at_ns);
}

/* Deadlines, and a fresh share of work for strangers. */
static void
tick(struct tcp *tcp)
{
    uint64_t now_ns = clock_ns(), count;
    bool busy = tcp->crowd.newest != NULL;
    struct stream *overdue;

    (void)!read(tcp->timer, &count, sizeof count);
    if (now_ns - tcp->work_ns >= TICK_MS * millisecond_ns / 2) {
        tcp->work_ns = now_ns;
        tcp->work_left_ns = tcp->work_left_ns < 0 ? tcp->work_left_ns + WORK_NS : WORK_NS;
    }
    while ((overdue = cairn_crowd_overdue(&tcp->crowd, now_ns)) != NULL) {
        stream_fail(overdue, "it did not prove its key in time");
        stream_lost(tcp, overdue);
    }
    for (uint32_t i = 0; i < tcp->node_count; i++) {
        struct stream *stream = tcp->places[i].stream;

        if (!stream || stream->proved)
            continue;
        busy = true;
        if (now_ns < stream->deadline_ns) {
            if (stream->connecting && !stream->failed && now_ns >= stream->again_ns)
                call_again(tcp, stream, now_ns);
            continue;
        }
        stream_fail(stream, "no answer");
        stream_lost(tcp, stream);
    }
    busy |= cairn_guard_turn(tcp->guard, now_ns);
    if (tcp->work_left_ns > 0)
        listener_watch(tcp, true);
    tick_start(tcp, busy || !tcp->listening);
}

/* ---- the table ---- */

static void
listen_close(struct tcp *tcp)
{
    int fds[] = {tcp->listener, tcp->timer, tcp->owner.epoll_fd};

    cairn_guard_destroy(tcp->guard);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void
dead_free(struct tcp *tcp)
{
    while (tcp->dead) {
        struct stream *stream = tcp->dead;

        tcp->dead = stream->next;
        stream_destroy(stream);
    }
}

static void
streams_close(struct tcp *tcp)
{
    while (tcp->crowd.newest) {
        struct stream *stream = tcp->crowd.newest;

        cairn_crowd_remove(&tcp->crowd, stream);
        bury(tcp, stream, "closed");
    }
    for (uint32_t i = 0; tcp->places && i < tcp->node_count; i++) {
        if (tcp->places[i].stream)
            bury(tcp, tcp->places[i].stream, "closed");
        if (tcp->places[i].later)
            bury(tcp, tcp->places[i].later, "closed");
        tcp->places[i].stream = tcp->places[i].later = NULL;
    }
}

static void
tcp_close(struct cairn_backend *backend)
{
    struct tcp *tcp = tcp_of(backend);

    streams_close(tcp);
    dead_free(tcp);
    listen_close(tcp);
    cairn_tls_destroy(tcp->owner.tls);
    cairn_sealer_destroy(tcp->owner.sealer);
    cairn_cipher_close(tcp->owner.cipher);
    cairn_names_destroy(tcp->names);
    cairn_buffers_destroy(tcp->buffers);
    free(tcp->places);
    free(tcp);
}

static int
tcp_fd(const struct cairn_backend *backend)
{
    return ((const struct tcp *)(const void *)backend)->owner.epoll_fd;
}

static bool
tcp_may_sleep(struct cairn_backend *backend)
{
    const struct tcp *tcp = tcp_of(backend);

    return !tcp->dirty && !tcp->unread && !tcp->owner.done.head;
}

/* Sends what is queued for a node. */
static void
flush(struct tcp *tcp, struct stream *stream)
{
    bool waits = stream->proved && !stream->failed && stream_flush(stream);

    if (stream->failed)
        stream_lost(tcp, stream);
    else if (stream->proved && !stream->held) /* a held one is not watched */
        watch(tcp, stream, EPOLLIN | (waits ? EPOLLOUT : 0));
}

static void
stream_event(struct tcp *tcp, struct stream *stream, uint32_t ready)
{
    int code = 0;
    socklen_t code_len = sizeof code;

    if (stream->connecting && (ready & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
        if (getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &code, &code_len) != 0 || code) {
            stream_fail(stream,
                        code == ECONNREFUSED ? "nobody listens there" : "it cannot be reached");
        } else {
            watch(tcp, stream, EPOLLIN);
            stream_connected(stream);
        }
    } else if (ready & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        if (!stream->outbound && !stream->proved) {
            uint64_t at_ns = work_ns();

            stranger_read(tcp, stream, &at_ns);
        } else {
            tcp->unread |= stream_receive(stream);
        }
    }
    if (stream->failed)
        stream_lost(tcp, stream);
}

static void
flush_all(struct tcp *tcp)
{
    while (tcp->dirty) {
        struct stream *stream = tcp->dirty;

        tcp->dirty = stream->dirty;
        stream->queued = false;
        flush(tcp, stream);
    }
}

static void
done_report(struct tcp *tcp)
{
    struct stream_part *part;

    while ((part = stream_parts_pop(&tcp->owner.done)) != NULL) {
        cairn_err err = part->failed ? CAIRN_PEER : CAIRN_OK;

        tcp->events.done(tcp->events.context, (struct cairn_backend_part *)(void *)part, err);
    }
}

static bool
tcp_progress(struct cairn_backend *backend)
{
    struct tcp *tcp = tcp_of(backend);
    struct epoll_event events[EVENTS_PER_TURN];
    bool unread = tcp->unread;
    uint32_t moved;
    int count;

    if (cairn_names_turn(tcp->names, &moved)) /* the next call goes to the address of then */
        cairn_guard_moved(tcp->guard, moved);
    tcp->unread = false;
    flush_all(tcp);
    for (uint32_t i = 0; unread && i < tcp->node_count; i++)
        if (tcp->places[i].stream && tcp->places[i].stream->resumed) {
            tcp->places[i].stream->resumed = false;
            stream_event(tcp, tcp->places[i].stream, EPOLLIN);
        }
    count = epoll_wait(tcp->owner.epoll_fd, events, EVENTS_PER_TURN, 0);
    for (int i = 0; i < count; i++) {
        struct stream *stream = events[i].data.ptr;

        if (events[i].data.ptr == &tcp->listener) {
            accept_all(tcp);
        } else if (events[i].data.ptr == &tcp->timer) {
            tick(tcp);
        } else if (!stream->failed) {
            stream_event(tcp, stream, events[i].events);
            if (!stream->failed && (events[i].events & EPOLLOUT))
                flush(tcp, stream);
        }
    }
    done_report(tcp);
    flush_all(tcp);
    dead_free(tcp);
    return count == EVENTS_PER_TURN || !tcp_may_sleep(backend);
}

static cairn_err
part_send(struct tcp *tcp, uint32_t node, const struct stream_part *what,
          struct cairn_backend_part *backend_part)
{
    struct stream_part *part = (struct stream_part *)(void *)backend_part;
    struct stream *stream = tcp->places[node].stream;

    if (!stream)
        call_begin(tcp, node);
    if (!stream || !stream->proved)
        return CAIRN_AGAIN;
    if (stream->failed)
        return CAIRN_PEER;
    *part = *what;
    stream_send(stream, part);
    if (!stream->queued) {
        stream->queued = true;
        stream->dirty = tcp->dirty;
        tcp->dirty = stream;
    }
    return CAIRN_OK;
}

static cairn_err
tcp_send(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
         struct cairn_backend_part *part)
{
    struct stream_part frame = {.bytes = bytes, .bytes_len = (uint32_t)bytes_len};

    return part_send(tcp_of(backend), node, &frame, part);
}

static cairn_err
tcp_write(struct cairn_backend *backend, uint32_t node, const void *bytes, size_t bytes_len,
          struct cairn_backend_remote remote, struct cairn_backend_part *part)
{
    struct stream_part payload = {
        .bytes = bytes, .bytes_len = (uint32_t)bytes_len, .remote = remote, .payload = true};

    return part_send(tcp_of(backend), node, &payload, part);
}

static cairn_err
tcp_disconnect(struct cairn_backend *backend, uint32_t node)
{
    struct tcp *tcp = tcp_of(backend);

    if (node == CAIRN_BACKEND_ALL) { /* never needed: one connection can always be closed */
        streams_close(tcp);
        stream_parts_init(&tcp->owner.done);
        return CAIRN_OK;
    }
    cairn_names_ask(tcp->names, node);
    if (tcp->places[node].stream)
        bury(tcp, tcp->places[node].stream, "closed");
    promote(tcp, &tcp->places[node]);
    return CAIRN_OK;
}

static cairn_err
tcp_region(struct cairn_backend *backend, uint32_t index, struct cairn_backend_remote *out)
{
    struct tcp *tcp = tcp_of(backend);

    if (out)
        return cairn_buffers_open(tcp->buffers, index, out);
    cairn_buffers_close(tcp->buffers, index);
    return CAIRN_OK;
}

static enum cairn_backend_fill
tcp_filled(const struct cairn_backend *backend, uint32_t index, size_t bytes_len)
{
    const struct tcp *tcp = (const struct tcp *)(const void *)backend;

    return cairn_buffers_filled(tcp->buffers, index, bytes_len);
}

static uint8_t *
tcp_placed(const struct cairn_backend *backend, uint32_t index)
{
    const struct tcp *tcp = (const struct tcp *)(const void *)backend;

    return cairn_buffers_placed(tcp->buffers, index);
}

static void
tcp_unplace(struct cairn_backend *backend, const uint8_t *memory, size_t bytes_len)
{
    struct tcp *tcp = tcp_of(backend);
    struct cairn_buffers_move move;

    for (uint32_t i = 0; i < tcp->buffer_count; i++) {
        if (!cairn_buffers_unplace(tcp->buffers, i, memory, bytes_len, &move))
            continue;
        for (uint32_t node = 0; node < tcp->node_count; node++)
            if (tcp->places[node].stream)
                stream_move(tcp->places[node].stream, move.address, move.from, move.to);
    }
}

static cairn_err
tcp_readdress(struct cairn_backend *backend, uint32_t node, const char *address)
{
    struct tcp *tcp = tcp_of(backend);
    bool at_once;
    cairn_err err = cairn_names_readdress(tcp->names, node, address, &at_once);

    if (!err && at_once)
        cairn_guard_moved(tcp->guard, node);
    return err;
}

static cairn_err
tcp_rekey(struct cairn_backend *backend, const struct cairn_transport_key keys[2],
          const struct cairn_transport_certificate *certificate)
{
    struct tcp *tcp = tcp_of(backend);

    cairn_err err =
        tcp->owner.tls ? cairn_tls_rekey(tcp->owner.tls, keys, certificate) : CAIRN_INVAL;

    if (!err)
        cairn_guard_rekeyed(tcp->guard);
    return err;
}

static void
tcp_strangers(const struct cairn_backend *backend, struct cairn_transport_stats *out)
{
    cairn_guard_count(((const struct tcp *)(const void *)backend)->guard, out);
}

static const struct cairn_transport_ops tcp_ops = {
    .name = "tcp",
    .close = tcp_close,
    .fd = tcp_fd,
    .may_sleep = tcp_may_sleep,
    .progress = tcp_progress,
    .send = tcp_send,
    .write = tcp_write,
    .disconnect = tcp_disconnect,
    .region = tcp_region,
    .filled = tcp_filled,
    .placed = tcp_placed,
    .unplace = tcp_unplace,
    .readdress = tcp_readdress,
    .rekey = tcp_rekey,
    .strangers = tcp_strangers,
};

static cairn_err
listen_open(struct tcp *tcp, const char *bind_address)
{
    const struct sockaddr_storage *address = cairn_names_address(tcp->names, tcp->node);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &tcp->timer};
    int one = 1;

    tcp->owner.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    tcp->listener = cairn_socket_make(address);
    if (tcp->owner.epoll_fd >= 0 && tcp->timer >= 0 && tcp->listener >= 0 &&
        setsockopt(tcp->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(tcp->listener, (const struct sockaddr *)address, cairn_address_len(address)) == 0) {
        cairn_err err = cairn_guard_create(tcp->names, tcp->node, tcp->node_count, tcp->owner.tls,
                                           tcp->listener, &tcp->guard);

        if (err)
            return err;
        if (listen(tcp->listener, BACKLOG) == 0 &&
            epoll_ctl(tcp->owner.epoll_fd, EPOLL_CTL_ADD, tcp->timer, &event) == 0) {
            listener_watch(tcp, true);
            return CAIRN_OK;
        }
    }
    CAIRN_LOG_AT(ERROR, "transport: cannot listen on %s: %s", bind_address, strerror(errno));
    return CAIRN_IO;
}

cairn_err
cairn_backend_tcp_open(const struct cairn_backend_options *options, struct cairn_backend **out)
{
    const struct cairn_transport_options *transport = options->transport;
    bool has_tls = transport->key || transport->certificate;
    struct tcp *tcp = calloc(1, sizeof *tcp);
    cairn_err err = CAIRN_NOMEM;

    if (!tcp)
        return err;
    tcp->backend = (struct cairn_backend){.ops = &tcp_ops, .ordered = true, .isolates = true};
    tcp->events = options->events;
    tcp->node = transport->node;
    tcp->node_count = transport->node_count;
    tcp->buffer_count = options->buffer_count;
    tcp->listener = tcp->timer = -1;
    tcp->work_left_ns = WORK_NS;
    tcp->work_ns = clock_ns();
    tcp->owner = (struct stream_owner){.buffer = payload_begin,
                                       .torn = payload_torn,
                                       .received = stream_received,
                                       .proved = stream_proved,
                                       .context = tcp,
                                       .epoll_fd = -1,
                                       .protection =
                                           has_tls ? transport->protection : CAIRN_PROTECTION_NONE};
    stream_parts_init(&tcp->owner.done);
    tcp->places = calloc(tcp->node_count, sizeof *tcp->places);
    if (!tcp->places)
        goto done;
    err = cairn_buffers_create(options->pool, tcp->buffer_count, &tcp->buffers);
    if (!err)
        err = cairn_names_create(transport, &tcp->names);
    if (!err && has_tls)
        err = cairn_tls_create(transport, &tcp->owner.tls);
    if (!err && tcp->owner.protection != CAIRN_PROTECTION_NONE)
        err = cairn_cipher_choose(tcp->owner.protection == CAIRN_PROTECTION_ENCRYPT,
                                  &tcp->owner.cipher, NULL);
    if (!err && tcp->owner.cipher && sysconf(_SC_NPROCESSORS_ONLN) > 1)
        err = cairn_sealer_create(&tcp->owner.sealer);
    if (!err)
        err = listen_open(tcp, transport->bind_address);
    if (err)
        goto done;
    *out = &tcp->backend;
    tcp = NULL;
done:
    if (tcp)
        tcp_close(&tcp->backend);
    return err;
}
