/* agent/process/keeper_packet.c - packets with descriptors over SOCK_SEQPACKET. */
#include "agent/process/keeper_packet.h"

#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(CAIRN_KEEPER_BATCH_MAX * sizeof(int))];
};

cairn_err
cairn_keeper_packet_send(int socket, const struct cairn_keeper_packet *packet)
{
    struct iovec part = {.iov_base = (void *)packet->bytes, .iov_len = packet->bytes_len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    size_t fds_bytes = packet->fd_count * sizeof(int);
    union control control;
    ssize_t sent;

    memset(&control, 0, sizeof control);
    if (fds_bytes) {
        struct cmsghdr *header;

        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fds_bytes);
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fds_bytes);
        memcpy(CMSG_DATA(header), packet->fds, fds_bytes);
    }
    do
        sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent == (ssize_t)packet->bytes_len)
        return CAIRN_OK;
    switch (sent < 0 ? errno : EIO) {
    case EAGAIN:
        return CAIRN_AGAIN;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
        return CAIRN_PEER;
    case ETOOMANYREFS:
    case ENOBUFS:
    case ENOMEM:
        CAIRN_LOG_AT(ERROR, "keeper: cannot send fds=%u: %m", packet->fd_count);
        return CAIRN_FULL;
    default:
        CAIRN_LOG_AT(ERROR, "keeper: cannot send bytes=%zu: %m", packet->bytes_len);
        return CAIRN_IO;
    }
}

/* Collects every descriptor that arrived, so that none can leak. */
static void
take_fds(struct msghdr *message, struct cairn_keeper_packet *packet)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        size_t count;

        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
            if (packet->fd_count < CAIRN_KEEPER_BATCH_MAX)
                packet->fds[packet->fd_count++] = fd;
            else
                close(fd);
        }
    }
}

cairn_err
cairn_keeper_packet_receive(int socket, struct cairn_keeper_packet *packet)
{
    struct iovec part = {.iov_base = packet->bytes, .iov_len = sizeof packet->bytes};
    union control control;
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof control.bytes,
    };
    ssize_t got;

    packet->bytes_len = 0;
    packet->fd_count = 0;
    packet->fds_cut = false;
    do
        got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == EAGAIN ? CAIRN_AGAIN : CAIRN_PEER;
    take_fds(&message, packet);
    packet->fds_cut = (message.msg_flags & MSG_CTRUNC) != 0;
    packet->bytes_len = (size_t)got;
    if (got == 0 || (message.msg_flags & MSG_TRUNC)) {
        cairn_keeper_packet_close(packet);
        return got == 0 ? CAIRN_PEER : CAIRN_CORRUPT;
    }
    return CAIRN_OK;
}

void
cairn_keeper_packet_close(struct cairn_keeper_packet *packet)
{
    for (uint32_t i = 0; i < packet->fd_count; i++)
        if (packet->fds[i] >= 0)
            close(packet->fds[i]);
    packet->fd_count = 0;
}
