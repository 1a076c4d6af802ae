/* agent/process/keeper_client.c - an agent's connection to a keeper. */
#include "agent/process/keeper.h"

#include "agent/process/keeper_packet.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct cairn_keeper {
    int fd;
    uint32_t timeout_ms;
    struct cairn_keeper_packet packet; /* the request, then its reply */
};

static uint64_t
now_ns(void)
{
    struct cairn_clock clock = cairn_clock_system();

    return cairn_clock_now_ns(&clock);
}

static uint64_t
deadline_after(uint32_t timeout_ms)
{
    return now_ns() + timeout_ms * CAIRN_NS_PER_MS;
}

/* Waits for a descriptor until a deadline. */
static cairn_err
await(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = events};
        uint64_t now = now_ns();
        uint64_t left_ms =
            now < deadline_ns ? (deadline_ns - now + CAIRN_NS_PER_MS - 1) / CAIRN_NS_PER_MS : 0;
        int ready = poll(&poll_fd, 1, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);

        if (ready > 0)
            return CAIRN_OK;
        if (ready < 0 && errno != EINTR)
            return CAIRN_IO;
        if (now >= deadline_ns)
            return CAIRN_TIMEOUT;
    }
}

/* ---- requests ---- */

static void
start_request(struct cairn_keeper *keeper, enum cairn_keeper_type type, struct cairn_writer *writer)
{
    keeper->packet.fd_count = 0;
    cairn_writer_init(writer, keeper->packet.bytes, sizeof keeper->packet.bytes);
    cairn_write_u32(writer, CAIRN_KEEPER_MAGIC);
    cairn_write_u16(writer, CAIRN_KEEPER_VERSION);
    cairn_write_u16(writer, (uint16_t)type);
}

/* Reads the head of the reply in keeper->packet; the keeper's own error is the result. */
static cairn_err
read_head(struct cairn_keeper *keeper, enum cairn_keeper_type type, struct cairn_reader *reader)
{
    uint32_t magic, answer;
    uint16_t version, reply_type;

    cairn_reader_init(reader, keeper->packet.bytes, keeper->packet.bytes_len);
    magic = cairn_read_u32(reader);
    version = cairn_read_u16(reader);
    reply_type = cairn_read_u16(reader);
    answer = cairn_read_u32(reader);
    if (reader->failed || magic != CAIRN_KEEPER_MAGIC || answer > CAIRN_INTERNAL)
        return CAIRN_CORRUPT;
    if (version != CAIRN_KEEPER_VERSION)
        return CAIRN_VERSION;
    if (answer)
        return (cairn_err)answer; /* also a refusal before we asked, which has no type */
    return reply_type == ((uint16_t)type | CAIRN_KEEPER_REPLY) ? CAIRN_OK : CAIRN_CORRUPT;
}

/*
 * Sends the request and receives its reply, until the deadline; on success *reader is at the
 * reply's body and keeper->packet holds its descriptors.
 */
static cairn_err
call(struct cairn_keeper *keeper, enum cairn_keeper_type type, const struct cairn_writer *writer,
     uint64_t deadline_ns, struct cairn_reader *reader)
{
    cairn_err err = cairn_writer_done(writer);

    keeper->packet.bytes_len = writer->used_bytes;
    if (err)
        return CAIRN_INVAL; /* a name that is too long */
    err = cairn_keeper_packet_send(keeper->fd, &keeper->packet);
    while (err == CAIRN_AGAIN) {
        err = await(keeper->fd, POLLOUT, deadline_ns);
        if (!err)
            err = cairn_keeper_packet_send(keeper->fd, &keeper->packet);
    }
    if (err && err != CAIRN_PEER) /* a peer that is gone may have left its reason */
        return err;
    do {
        err = await(keeper->fd, POLLIN, deadline_ns);
        if (!err)
            err = cairn_keeper_packet_receive(keeper->fd, &keeper->packet);
    } while (err == CAIRN_AGAIN);
    if (err)
        return err;
    err = read_head(keeper, type, reader);
    if (err)
        cairn_keeper_packet_close(&keeper->packet);
    return err;
}

/* A request whose reply has no body. */
static cairn_err
call_plain(struct cairn_keeper *keeper, enum cairn_keeper_type type,
           const struct cairn_writer *writer)
{
    struct cairn_reader reader;
    cairn_err err = call(keeper, type, writer, deadline_after(keeper->timeout_ms), &reader);

    if (err)
        return err;
    cairn_keeper_packet_close(&keeper->packet);
    return cairn_reader_done(&reader);
}

static cairn_err
check_name(const char *name)
{
    size_t name_len = strnlen(name, CAIRN_KEEPER_NAME_BYTES_MAX);

    return name_len == 0 || name_len == CAIRN_KEEPER_NAME_BYTES_MAX ? CAIRN_INVAL : CAIRN_OK;
}

cairn_err
cairn_keeper_put(struct cairn_keeper *keeper, const char *name, int fd, uint64_t bytes)
{
    struct cairn_writer writer;
    cairn_err err = check_name(name);

    if (err)
        return err;
    start_request(keeper, CAIRN_KEEPER_PUT, &writer);
    cairn_write_string(&writer, name);
    cairn_write_u64(&writer, bytes);
    keeper->packet.fds[0] = fd;
    keeper->packet.fd_count = 1;
    return call_plain(keeper, CAIRN_KEEPER_PUT, &writer);
}

cairn_err
cairn_keeper_drop(struct cairn_keeper *keeper, const char *name)
{
    struct cairn_writer writer;
    cairn_err err = check_name(name);

    if (err)
        return err;
    start_request(keeper, CAIRN_KEEPER_DROP, &writer);
    cairn_write_string(&writer, name);
    return call_plain(keeper, CAIRN_KEEPER_DROP, &writer);
}

cairn_err
cairn_keeper_ping(struct cairn_keeper *keeper)
{
    struct cairn_writer writer;

    start_request(keeper, CAIRN_KEEPER_PING, &writer);
    return call_plain(keeper, CAIRN_KEEPER_PING, &writer);
}

cairn_err
cairn_keeper_shutdown(struct cairn_keeper *keeper)
{
    struct cairn_writer writer;

    start_request(keeper, CAIRN_KEEPER_SHUTDOWN, &writer);
    return call_plain(keeper, CAIRN_KEEPER_SHUTDOWN, &writer);
}

/* ---- lists ---- */

struct list {
    struct cairn_keeper_item *items;
    uint32_t count;
    bool more;
};

void
cairn_keeper_items_free(struct cairn_keeper_item *items, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (items[i].fd >= 0)
            close(items[i].fd);
    free(items);
}

/* Appends the items of one reply, and takes their descriptors out of the packet. */
static cairn_err
take_batch(struct cairn_keeper *keeper, struct cairn_reader *reader, bool with_fds,
           struct list *list)
{
    struct cairn_keeper_packet *packet = &keeper->packet;
    uint8_t more = cairn_read_u8(reader);
    uint32_t count = cairn_read_u32(reader);
    struct cairn_keeper_item *items;

    if (more > 1 || count > CAIRN_KEEPER_BATCH_MAX || (more && count == 0) ||
        list->count + count > CAIRN_KEEPER_ITEMS_MAX)
        return CAIRN_CORRUPT;
    if (packet->fds_cut)
        return CAIRN_FULL;
    if (packet->fd_count != (with_fds ? count : 0))
        return CAIRN_CORRUPT;
    if (count) {
        items = realloc(list->items, (list->count + count) * sizeof *items);
        if (!items)
            return CAIRN_NOMEM;
        list->items = items;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct cairn_keeper_item *item = &list->items[list->count];

        memset(item, 0, sizeof *item);
        item->fd = -1;
        cairn_read_string(reader, item->name, sizeof item->name);
        item->bytes = cairn_read_u64(reader);
        if (reader->failed || (list->count && strcmp(item[-1].name, item->name) >= 0))
            return CAIRN_CORRUPT; /* sorted, so that the next request goes on behind them */
        if (with_fds) {
            item->fd = packet->fds[i];
            packet->fds[i] = -1;
        }
        list->count++;
    }
    list->more = more;
    return cairn_reader_done(reader);
}

static cairn_err
list_all(struct cairn_keeper *keeper, enum cairn_keeper_type type, struct cairn_keeper_item **items,
         uint32_t *count)
{
    uint64_t deadline_ns = deadline_after(keeper->timeout_ms);
    struct list list = {0};
    cairn_err err;

    do {
        struct cairn_writer writer;
        struct cairn_reader reader;

        start_request(keeper, type, &writer);
        cairn_write_string(&writer, list.count ? list.items[list.count - 1].name : "");
        err = call(keeper, type, &writer, deadline_ns, &reader);
        if (err)
            break;
        err = take_batch(keeper, &reader, type == CAIRN_KEEPER_GET, &list);
        cairn_keeper_packet_close(&keeper->packet);
    } while (!err && list.more);
    if (err) {
        cairn_keeper_items_free(list.items, list.count);
        return err;
    }
    *items = list.items;
    *count = list.count;
    return CAIRN_OK;
}

cairn_err
cairn_keeper_list(struct cairn_keeper *keeper, struct cairn_keeper_item **items, uint32_t *count)
{
    return list_all(keeper, CAIRN_KEEPER_LIST, items, count);
}

cairn_err
cairn_keeper_get(struct cairn_keeper *keeper, struct cairn_keeper_item **items, uint32_t *count)
{
    return list_all(keeper, CAIRN_KEEPER_GET, items, count);
}

/* ---- connections ---- */

static cairn_err
connect_socket(int fd, const char *socket_path, uint32_t timeout_ms)
{
    struct timeval timeout = {.tv_sec = timeout_ms / 1000,
                              .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;

    if (strlen(socket_path) >= sizeof address.sun_path)
        return CAIRN_INVAL;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout); /* bounds connect */
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) {
        switch (errno) {
        case ENOENT:
        case ECONNREFUSED:
            return CAIRN_PEER; /* an answer, not a fault */
        case EAGAIN:
            return CAIRN_TIMEOUT;
        case EACCES:
        case EPERM:
            CAIRN_LOG_AT(ERROR, "keeper: may not connect to path=%s: %m", socket_path);
            return CAIRN_DENIED;
        default:
            CAIRN_LOG_AT(ERROR, "keeper: cannot connect to path=%s: %m", socket_path);
            return CAIRN_PEER;
        }
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) || peer.uid != geteuid()) {
        CAIRN_LOG_AT(ERROR, "keeper: path=%s is served by user=%u, not by ours; remove it",
                     socket_path, peer.uid);
        return CAIRN_DENIED;
    }
    return CAIRN_OK;
}

cairn_err
cairn_keeper_connect(const char *socket_path, uint32_t timeout_ms, struct cairn_keeper **out)
{
    struct cairn_keeper *keeper = calloc(1, sizeof *keeper);
    cairn_err err;

    if (!keeper)
        return CAIRN_NOMEM;
    keeper->timeout_ms = timeout_ms;
    keeper->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (keeper->fd < 0) {
        CAIRN_LOG_AT(ERROR, "keeper: cannot open a socket: %m");
        err = CAIRN_IO;
        goto done;
    }
    err = connect_socket(keeper->fd, socket_path, timeout_ms);
    if (err)
        goto done;
    err = cairn_keeper_ping(keeper); /* proves that we are an agent, and that it is a keeper */
    if (err)
        goto done;
    *out = keeper;
    keeper = NULL;
done:
    cairn_keeper_close(keeper);
    return err;
}

void
cairn_keeper_set_timeout(struct cairn_keeper *keeper, uint32_t timeout_ms)
{
    keeper->timeout_ms = timeout_ms;
}

void
cairn_keeper_close(struct cairn_keeper *keeper)
{
    if (!keeper)
        return;
    if (keeper->fd >= 0)
        close(keeper->fd);
    free(keeper);
}
