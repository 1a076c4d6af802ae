/* client/session.c - frames in and out of a byte stream with descriptors; see session.h. */
#include "client/session.h"

#include "base/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    RECEIVE_BYTES = 64 << 10, /* room made before each receive */
    KEEP_BYTES = 1 << 20      /* a buffer larger than this is freed when it is empty */
};

/* ---- the buffer that reader and writer share: bytes[begin, used) of room ---- */

/* Makes room for `more` bytes behind `used`: moves what is left to the front, or doubles. */
static cairn_err
buffer_reserve(uint8_t **bytes, size_t *begin, size_t *used, size_t *room, size_t more)
{
    size_t left = *used - *begin;
    size_t larger;
    uint8_t *grown;

    if (*room - *used >= more)
        return CAIRN_OK;
    if (*room >= left + more && *begin >= left) { /* moving costs no more than what was consumed */
        memmove(*bytes, *bytes + *begin, left);
        *begin = 0;
        *used = left;
        return CAIRN_OK;
    }
    if (left > SIZE_MAX / 4 || more > SIZE_MAX / 4)
        return CAIRN_NOMEM;
    larger = left + more > 2 * left ? left + more : 2 * left;
    grown = malloc(larger);
    if (!grown)
        return CAIRN_NOMEM;
    if (left)
        memcpy(grown, *bytes + *begin, left);
    free(*bytes);
    *bytes = grown;
    *begin = 0;
    *used = left;
    *room = larger;
    return CAIRN_OK;
}

static void
buffer_release(uint8_t **bytes, size_t *begin, size_t *used, size_t *room)
{
    if (*begin != *used)
        return;
    *begin = 0;
    *used = 0;
    if (*room > KEEP_BYTES) {
        free(*bytes);
        *bytes = NULL;
        *room = 0;
    }
}

static void
close_all(const int *fds, uint32_t fd_count)
{
    for (uint32_t i = 0; i < fd_count; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static size_t
payload_limit(enum cairn_session_type type)
{
    return type == CAIRN_SESSION_REGISTER || type == CAIRN_SESSION_RESTORE_INFO
               ? (size_t)CAIRN_SESSION_BULK_BYTES_MAX
               : (size_t)CAIRN_SESSION_PAYLOAD_BYTES_MAX;
}

static uint32_t
fd_limit(enum cairn_session_type type)
{
    if (type == CAIRN_SESSION_REGISTERED)
        return CAIRN_SESSION_FDS_MAX;
    return type == CAIRN_SESSION_RESTORE_INFO || type == CAIRN_SESSION_TIMING ? 1 : 0;
}

/* ---- reader ---- */

void
cairn_session_reader_init(struct cairn_session_reader *reader, enum cairn_session_side from)
{
    memset(reader, 0, sizeof *reader);
    reader->from = from;
}

void
cairn_session_reader_fini(struct cairn_session_reader *reader)
{
    close_all(reader->fds, reader->fd_count);
    free(reader->bytes);
    memset(reader, 0, sizeof *reader);
}

static cairn_err
take_over_fds(struct cairn_session_reader *reader, const int *fds, uint32_t fd_count)
{
    if (fd_count > 2 * CAIRN_SESSION_FDS_MAX - reader->fd_count) {
        close_all(fds, fd_count);
        reader->failed = CAIRN_CORRUPT;
        return CAIRN_CORRUPT;
    }
    for (uint32_t i = 0; i < fd_count; i++)
        reader->fds[reader->fd_count++] = fds[i];
    return CAIRN_OK;
}

cairn_err
cairn_session_reader_feed(struct cairn_session_reader *reader, const void *bytes, size_t bytes_len,
                          const int *fds, uint32_t fd_count)
{
    cairn_err err = take_over_fds(reader, fds, fd_count);

    if (err)
        return err;
    err = buffer_reserve(&reader->bytes, &reader->begin, &reader->used, &reader->room, bytes_len);
    if (err)
        return err;
    if (bytes_len)
        memcpy(reader->bytes + reader->used, bytes, bytes_len);
    reader->used += bytes_len;
    return CAIRN_OK;
}

/* Takes over the descriptors of a received message. The kernel has closed those that did not fit or
 * exceeded this process's limit. */
static cairn_err
take_control(struct cairn_session_reader *reader, struct msghdr *message)
{
    int fds[CAIRN_SESSION_FDS_MAX];
    size_t room_bytes = sizeof fds;
    cairn_err err;

    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
        size_t fds_bytes = at->cmsg_len - CMSG_LEN(0);

        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS || fds_bytes > sizeof fds)
            continue;
        room_bytes -= fds_bytes;
        memcpy(fds, CMSG_DATA(at), fds_bytes);
        err = take_over_fds(reader, fds, (uint32_t)(fds_bytes / sizeof *fds));
        if (err)
            return err;
    }
    /* Cut off although there was room: this process may open no more. */
    if (message->msg_flags & MSG_CTRUNC)
        reader->failed = room_bytes ? CAIRN_NOMEM : CAIRN_CORRUPT;
    return reader->failed;
}

cairn_err
cairn_session_reader_receive(struct cairn_session_reader *reader, int socket)
{
    union {
        char bytes[CMSG_SPACE(CAIRN_SESSION_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec vector;
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got;
    cairn_err err;

    if (reader->failed)
        return reader->failed;
    if (reader->used - reader->begin > CAIRN_SESSION_BULK_BYTES_MAX + RECEIVE_BYTES)
        return CAIRN_OK; /* more than any frame: the caller takes frames first */
    err =
        buffer_reserve(&reader->bytes, &reader->begin, &reader->used, &reader->room, RECEIVE_BYTES);
    if (err)
        return err;
    vector.iov_base = reader->bytes + reader->used;
    vector.iov_len = reader->room - reader->used;
    do
        got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return CAIRN_AGAIN;
    if (got <= 0) {
        reader->os_error = got < 0 ? errno : 0;
        return CAIRN_PEER;
    }
    reader->used += (size_t)got;
    return take_control(reader, &message);
}

static bool
type_is_from(enum cairn_session_type type, enum cairn_session_side from)
{
    return from == CAIRN_SESSION_CLIENT
               ? type >= CAIRN_SESSION_HELLO && type <= CAIRN_SESSION_UNWATCHED
               : type >= CAIRN_SESSION_WELCOME && type <= CAIRN_SESSION_OFFER;
}

cairn_err
cairn_session_reader_next(struct cairn_session_reader *reader, struct cairn_session_frame *out)
{
    struct cairn_reader header;
    size_t payload_bytes;
    enum cairn_session_type type;
    uint8_t framing, fd_count;

    if (reader->failed)
        return reader->failed;
    buffer_release(&reader->bytes, &reader->begin, &reader->used, &reader->room);
    if (reader->used - reader->begin < CAIRN_SESSION_HEADER_BYTES)
        return CAIRN_AGAIN;
    cairn_reader_init(&header, reader->bytes + reader->begin, CAIRN_SESSION_HEADER_BYTES);
    payload_bytes = cairn_read_u32(&header);
    type = (enum cairn_session_type)cairn_read_u16(&header);
    framing = cairn_read_u8(&header);
    fd_count = cairn_read_u8(&header);
    if (framing != CAIRN_SESSION_FRAMING)
        reader->failed = CAIRN_VERSION;
    else if (!type_is_from(type, reader->from) || payload_bytes > payload_limit(type) ||
             fd_count > fd_limit(type))
        reader->failed = CAIRN_CORRUPT;
    if (reader->failed)
        return reader->failed;
    if (reader->used - reader->begin - CAIRN_SESSION_HEADER_BYTES < payload_bytes)
        return CAIRN_AGAIN;
    if (reader->fd_count < fd_count) { /* they came with the first byte, if at all */
        reader->failed = CAIRN_CORRUPT;
        return CAIRN_CORRUPT;
    }
    memset(out, 0, sizeof *out);
    out->type = type;
    out->payload = reader->bytes + reader->begin + CAIRN_SESSION_HEADER_BYTES;
    out->payload_bytes = payload_bytes;
    out->fd_count = fd_count;
    memcpy(out->fds, reader->fds, fd_count * sizeof *reader->fds);
    reader->fd_count -= fd_count;
    memmove(reader->fds, reader->fds + fd_count, reader->fd_count * sizeof *reader->fds);
    reader->begin += CAIRN_SESSION_HEADER_BYTES + payload_bytes;
    return CAIRN_OK;
}

void
cairn_session_frame_fini(struct cairn_session_frame *frame)
{
    close_all(frame->fds, frame->fd_count);
    frame->fd_count = 0;
}

/* ---- writer ---- */

void
cairn_session_writer_init(struct cairn_session_writer *writer, size_t limit_bytes)
{
    memset(writer, 0, sizeof *writer);
    writer->limit_bytes = limit_bytes;
}

void
cairn_session_writer_fini(struct cairn_session_writer *writer)
{
    for (uint32_t i = 0; i < writer->pending_count; i++)
        close_all(writer->pending[i].fds, writer->pending[i].count);
    free(writer->bytes);
    memset(writer, 0, sizeof *writer);
}

size_t
cairn_session_writer_queued(const struct cairn_session_writer *writer)
{
    return writer->used - writer->begin;
}

static void
drop_first_pending(struct cairn_session_writer *writer)
{
    close_all(writer->pending[0].fds, writer->pending[0].count);
    writer->pending_count--;
    memmove(writer->pending, writer->pending + 1, writer->pending_count * sizeof *writer->pending);
}

/* Sends once, up to the next frame with descriptors, so that theirs are attached to its first byte.
 */
static ssize_t
send_once(struct cairn_session_writer *writer, int socket)
{
    union {
        char bytes[CMSG_SPACE(CAIRN_SESSION_FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec vector = {writer->bytes + writer->begin, writer->used - writer->begin};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    uint32_t next = 0;

    if (writer->pending_count && writer->pending[0].at == writer->sent_bytes) {
        size_t fds_bytes = writer->pending[0].count * sizeof(int);
        struct cmsghdr *rights;

        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fds_bytes);
        rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(fds_bytes);
        memcpy(CMSG_DATA(rights), writer->pending[0].fds, fds_bytes);
        next = 1;
    }
    if (next < writer->pending_count &&
        writer->pending[next].at - writer->sent_bytes < vector.iov_len)
        vector.iov_len = writer->pending[next].at - writer->sent_bytes;
    return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

cairn_err
cairn_session_writer_send(struct cairn_session_writer *writer, int socket)
{
    while (writer->begin != writer->used) {
        ssize_t sent = send_once(writer, socket);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return CAIRN_AGAIN;
        if (sent < 0) {
            writer->os_error = errno;
            return CAIRN_PEER;
        }
        if (writer->pending_count && writer->pending[0].at == writer->sent_bytes)
            drop_first_pending(writer);
        writer->begin += (size_t)sent;
        writer->sent_bytes += (uint64_t)sent;
    }
    buffer_release(&writer->bytes, &writer->begin, &writer->used, &writer->room);
    return CAIRN_OK;
}

/* Notes duplicates of the descriptors for a frame that starts at stream byte `at`. */
static cairn_err
attach_fds(struct cairn_session_writer *writer, uint64_t at, const int *fds, uint32_t fd_count)
{
    uint32_t slot = writer->pending_count;
    cairn_err err;

    if (fd_count == 0)
        return CAIRN_OK;
    if (slot == sizeof writer->pending / sizeof *writer->pending)
        return CAIRN_AGAIN;
    for (uint32_t i = 0; i < fd_count; i++) {
        int copy = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);

        if (copy < 0) {
            err = errno == EBADF ? CAIRN_INVAL : CAIRN_NOMEM;
            writer->os_error = errno;
            close_all(writer->pending[slot].fds, i);
            return err;
        }
        writer->pending[slot].fds[i] = copy;
    }
    writer->pending[slot].at = at;
    writer->pending[slot].count = fd_count;
    writer->pending_count++;
    return CAIRN_OK;
}

cairn_err
cairn_session_put_space(struct cairn_session_writer *writer, enum cairn_session_type type,
                        size_t payload_bytes, const int *fds, uint32_t fd_count, uint8_t **payload)
{
    size_t queued = writer->used - writer->begin;
    struct cairn_writer header;
    cairn_err err;

    if (fd_count > fd_limit(type))
        return CAIRN_INVAL;
    if (payload_bytes > payload_limit(type))
        return CAIRN_FULL;
    if (queued >= writer->limit_bytes)
        return CAIRN_AGAIN;
    err = buffer_reserve(&writer->bytes, &writer->begin, &writer->used, &writer->room,
                         CAIRN_SESSION_HEADER_BYTES + payload_bytes);
    if (err)
        return err;
    err = attach_fds(writer, writer->sent_bytes + queued, fds, fd_count);
    if (err)
        return err;
    cairn_writer_init(&header, writer->bytes + writer->used, CAIRN_SESSION_HEADER_BYTES);
    cairn_write_u32(&header, (uint32_t)payload_bytes);
    cairn_write_u16(&header, (uint16_t)type);
    cairn_write_u8(&header, CAIRN_SESSION_FRAMING);
    cairn_write_u8(&header, (uint8_t)fd_count);
    *payload = writer->bytes + writer->used + CAIRN_SESSION_HEADER_BYTES;
    writer->used += CAIRN_SESSION_HEADER_BYTES + payload_bytes;
    return CAIRN_OK;
}

cairn_err
cairn_session_put_frame(struct cairn_session_writer *writer, enum cairn_session_type type,
                        const void *payload, size_t payload_bytes, const int *fds,
                        uint32_t fd_count)
{
    uint8_t *space;
    cairn_err err = cairn_session_put_space(writer, type, payload_bytes, fds, fd_count, &space);

    if (err)
        return err;
    if (payload_bytes)
        memcpy(space, payload, payload_bytes);
    return CAIRN_OK;
}

cairn_err
cairn_session_server_check(int fd)
{
    struct ucred peer;
    socklen_t peer_len = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) != 0)
        return CAIRN_DENIED;
    return peer.uid == geteuid() || peer.uid == 0 || geteuid() == 0 ? CAIRN_OK : CAIRN_DENIED;
}

cairn_err
cairn_session_fd_check(int fd, uint64_t bytes_min, uint64_t *bytes)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat status;

    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return CAIRN_DENIED;
    if (fstat(fd, &status) != 0 || status.st_size < 0 || (uint64_t)status.st_size < bytes_min)
        return CAIRN_INVAL;
    *bytes = (uint64_t)status.st_size;
    return CAIRN_OK;
}
