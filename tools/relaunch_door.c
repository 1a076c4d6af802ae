/* tools/relaunch_door.c - see relaunch_door.h. */
#include "tools/relaunch_door.h"

#include "base/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    ANSWER_MS = 1000,
    HEAR_MS = 100, /* for what the callers send; a silent one uses all of it */
    PORT_BYTES = 8,
    MESSAGE_BYTES = 16
};

/* A socket at a free port of all addresses, IPv6 and IPv4 if both exist; -1 without one. */
static int
bind_free(uint16_t *port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t six_bytes = sizeof six, four_bytes = sizeof four;
    const int yes = 1, no = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&six, sizeof six) == 0 &&
            getsockname(fd, (struct sockaddr *)&six, &six_bytes) == 0) {
            *port = ntohs(six.sin6_port);
            return fd;
        }
        close(fd);
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, (struct sockaddr *)&four, sizeof four) == 0 &&
        getsockname(fd, (struct sockaddr *)&four, &four_bytes) == 0) {
        *port = ntohs(four.sin_port);
        return fd;
    }
    close(fd);
    return -1;
}

cairn_err
cairn_relaunch_door_open(struct cairn_relaunch_door *out)
{
    uint16_t port;
    int fd = bind_free(&port);

    if (fd < 0)
        return CAIRN_IO;
    if (listen(fd, SOMAXCONN) != 0) {
        close(fd);
        return CAIRN_IO;
    }
    *out = (struct cairn_relaunch_door){.listener = fd, .reserved = -1, .port = port};
    return CAIRN_OK;
}

void
cairn_relaunch_door_close(struct cairn_relaunch_door *door)
{
    cairn_relaunch_door_release(door);
    if (door->listener >= 0)
        close(door->listener);
    door->listener = -1;
}

void
cairn_relaunch_door_clear(struct cairn_relaunch_door *door,
                          void (*heard)(void *context, uint64_t round, uint64_t node),
                          void *context)
{
    int wait_ms = HEAR_MS;

    for (;;) {
        struct pollfd caller = {.events = POLLIN};
        uint8_t message[MESSAGE_BYTES];

        caller.fd = accept4(door->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (caller.fd < 0)
            return;
        if (poll(&caller, 1, wait_ms) == 0)
            wait_ms = 0;
        if (recv(caller.fd, message, sizeof message, 0) == sizeof message)
            heard(context, cairn_little_get(message, 8), cairn_little_get(message + 8, 8));
        close(caller.fd);
    }
}

uint16_t
cairn_relaunch_door_reserve(struct cairn_relaunch_door *door)
{
    uint16_t port = 0;

    cairn_relaunch_door_release(door);
    door->reserved = bind_free(&port);
    return door->reserved < 0 ? 0 : port;
}

void
cairn_relaunch_door_release(struct cairn_relaunch_door *door)
{
    if (door->reserved >= 0)
        close(door->reserved);
    door->reserved = -1;
}

/* Sends message[message_bytes] if a host answers. */
static bool
answers_at(const struct addrinfo *address, const uint8_t *message, size_t message_bytes)
{
    struct pollfd ready = {.events = POLLOUT};
    socklen_t error_bytes = sizeof(int);
    bool answers = false;
    int error = 0, done;

    ready.fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (ready.fd < 0)
        return false;
    if (connect(ready.fd, address->ai_addr, address->ai_addrlen) == 0) {
        answers = true;
    } else if (errno == EINPROGRESS) {
        do
            done = poll(&ready, 1, ANSWER_MS);
        while (done < 0 && errno == EINTR);
        answers = done == 1 &&
                  getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) == 0 &&
                  error == 0;
    }
    if (answers && message_bytes)
        answers = send(ready.fd, message, message_bytes, MSG_NOSIGNAL) == (ssize_t)message_bytes;
    close(ready.fd);
    return answers;
}

static bool
call(const char *host, uint16_t port, const uint8_t *message, size_t message_bytes)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char service[PORT_BYTES];
    bool answers = false;

    snprintf(service, sizeof service, "%u", port);
    if (getaddrinfo(host, service, &hints, &found) != 0)
        return false;
    for (const struct addrinfo *each = found; each && !answers; each = each->ai_next)
        answers = answers_at(each, message, message_bytes);
    freeaddrinfo(found);
    return answers;
}

bool
cairn_relaunch_door_answers(const char *host, uint16_t port)
{
    return call(host, port, NULL, 0);
}

bool
cairn_relaunch_door_tell(const char *host, uint16_t port, uint64_t round, uint64_t node)
{
    uint8_t message[MESSAGE_BYTES];

    cairn_little_put(message, 8, round);
    cairn_little_put(message + 8, 8, node);
    return call(host, port, message, sizeof message);
}
