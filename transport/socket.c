/* transport/socket.c - see socket.h. */
#include "transport/socket.h"

#include "transport/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

enum {
    PORT_MIN = 32768, /* the system's own range for callers, by default */
    PORT_MAX = 60999
};

int
cairn_socket_make(const struct sockaddr_storage *address)
{
    int one = 1;
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* The same from one port; 0: any. -1 if that is taken, too. */
static int
call_from(const struct sockaddr_storage *own, uint16_t port, const struct sockaddr_storage *to)
{
    struct sockaddr_storage from = *own;
    int fd = cairn_socket_make(to), one = 1;

    if (fd < 0)
        return -1;
    cairn_address_set_port(&from, port);
    if (port) /* connections to other nodes may have it too */
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    else
        (void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(fd, (const struct sockaddr *)&from, cairn_address_len(&from)) != 0 ||
        (connect(fd, (const struct sockaddr *)to, cairn_address_len(to)) != 0 &&
         errno != EINPROGRESS)) {
        int code = errno;

        close(fd);
        errno = code;
        return -1;
    }
    return fd;
}

int
cairn_socket_call(const struct sockaddr_storage *own, const struct cairn_ports *ports,
                  uint32_t *place, const struct sockaddr_storage *to)
{
    for (uint32_t i = 0; ports && i < CAIRN_PORTS_COUNT; i++) {
        uint16_t port = cairn_ports_at(ports, (*place)++ % CAIRN_PORTS_COUNT);
        int fd;

        if (port < PORT_MIN || port > PORT_MAX)
            continue;
        fd = call_from(own, port, to);
        if (fd >= 0 || (errno != EADDRINUSE && errno != EADDRNOTAVAIL))
            return fd;
    }
    return call_from(own, 0, to);
}
