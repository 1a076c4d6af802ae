/*
 * tools/ras.c - the text protocol of NCCL's RAS: one line asks, one line answers, and the report
 * runs to the end of the connection.
 *
 * Any program may listen on the port: its answer is bounded in time and size, and not parsed here.
 */
#include "tools/ras.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HOST_BYTES = 256, LINE_BYTES = 128, READ_BYTES = 1 << 16, TEXT_BYTES_MAX = 1 << 30 };
static const int64_t ask_ms = 15000;

struct link {
    int fd;
    int64_t deadline_ms;
};

static int64_t
now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static cairn_err
wait_for(const struct link *link, short events)
{
    struct pollfd poll_fd = {.fd = link->fd, .events = events};

    for (;;) {
        int64_t left_ms = link->deadline_ms - now_ms();
        int ready = left_ms > 0 ? poll(&poll_fd, 1, (int)left_ms) : 0;

        if (ready > 0)
            return CAIRN_OK;
        if (ready == 0)
            return CAIRN_TIMEOUT;
        if (errno != EINTR)
            return CAIRN_PEER;
    }
}

static cairn_err
connect_to(struct link *link, const struct addrinfo *at)
{
    int error = 0;
    socklen_t error_bytes = sizeof error;
    cairn_err err;

    link->fd =
        socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol);
    if (link->fd < 0)
        return CAIRN_PEER;
    if (connect(link->fd, at->ai_addr, at->ai_addrlen) != 0 && errno != EINPROGRESS) {
        error = errno;
    } else {
        err = wait_for(link, POLLOUT);
        if (err)
            return err;
        if (getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0)
            error = errno;
    }
    return error ? CAIRN_PEER : CAIRN_OK;
}

static cairn_err
open_link(const char *address, struct link *link)
{
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *port = strrchr(address, ':');
    struct addrinfo *found;
    char host[HOST_BYTES];
    size_t host_bytes;
    cairn_err err = CAIRN_PEER;

    if (!port || port == address || port[1] == '\0')
        return CAIRN_INVAL;
    host_bytes = (size_t)(port - address);
    if (address[0] == '[' && address[host_bytes - 1] == ']') {
        address++;
        host_bytes -= 2;
    }
    if (host_bytes == 0 || host_bytes >= sizeof host)
        return CAIRN_INVAL;
    memcpy(host, address, host_bytes);
    host[host_bytes] = '\0';
    if (getaddrinfo(host, port + 1, &wanted, &found) != 0)
        return CAIRN_INVAL;
    for (const struct addrinfo *at = found; at && err && err != CAIRN_TIMEOUT; at = at->ai_next) {
        if (link->fd >= 0)
            close(link->fd);
        err = connect_to(link, at);
    }
    freeaddrinfo(found);
    return err;
}

static cairn_err
send_line(const struct link *link, const char *line)
{
    size_t bytes = strlen(line), sent = 0;

    while (sent < bytes) {
        ssize_t now = send(link->fd, line + sent, bytes - sent, MSG_NOSIGNAL);

        if (now >= 0) {
            sent += (size_t)now;
        } else if (errno == EAGAIN) {
            cairn_err err = wait_for(link, POLLOUT);

            if (err)
                return err;
        } else if (errno != EINTR) {
            return CAIRN_PEER;
        }
    }
    return CAIRN_OK;
}

/* At most bytes_max; *bytes 0: the other side has ended. */
static cairn_err
receive(const struct link *link, char *out, size_t bytes_max, size_t *bytes)
{
    for (;;) {
        ssize_t now = recv(link->fd, out, bytes_max, 0);
        cairn_err err;

        if (now >= 0) {
            *bytes = (size_t)now;
            return CAIRN_OK;
        }
        if (errno != EAGAIN && errno != EINTR)
            return CAIRN_PEER;
        err = errno == EAGAIN ? wait_for(link, POLLIN) : CAIRN_OK;
        if (err)
            return err;
    }
}

/* A line without its end; byte by byte, since what follows is not ours to read yet. */
static cairn_err
receive_line(const struct link *link, char line[LINE_BYTES])
{
    for (size_t used = 0; used < LINE_BYTES; used++) {
        size_t bytes;
        cairn_err err = receive(link, &line[used], 1, &bytes);

        if (err || bytes == 0)
            return err ? err : CAIRN_PEER;
        if (line[used] == '\n') {
            line[used] = '\0';
            return CAIRN_OK;
        }
    }
    return CAIRN_CORRUPT;
}

static cairn_err
receive_all(const struct link *link, char **text, size_t *text_bytes)
{
    size_t used = 0, room = READ_BYTES, bytes;
    char *out = malloc(room);
    cairn_err err = out ? CAIRN_OK : CAIRN_NOMEM;

    while (!err) {
        if (used == room) {
            char *more = room < TEXT_BYTES_MAX ? realloc(out, 2 * room) : NULL;

            if (!more) {
                err = room < TEXT_BYTES_MAX ? CAIRN_NOMEM : CAIRN_CORRUPT;
                break;
            }
            out = more;
            room *= 2;
        }
        err = receive(link, out + used, room - used, &bytes);
        if (err || bytes == 0)
            break;
        used += bytes;
    }
    if (err) {
        free(out);
        return err;
    }
    *text = out;
    *text_bytes = used;
    return CAIRN_OK;
}

cairn_err
cairn_ras_ask(const char *address, char **text, size_t *text_bytes)
{
    struct link link = {.fd = -1, .deadline_ms = now_ms() + ask_ms};
    char line[LINE_BYTES];
    cairn_err err = open_link(address, &link);

    if (!err)
        err = send_line(&link, "CLIENT PROTOCOL 2\n");
    if (!err)
        err = receive_line(&link, line);
    if (!err && strncmp(line, "SERVER PROTOCOL ", 16) != 0)
        err = CAIRN_CORRUPT;
    if (!err)
        err = send_line(&link, "SET FORMAT json\n");
    if (!err)
        err = receive_line(&link, line);
    if (!err && strcmp(line, "OK") != 0)
        err = CAIRN_VERSION;
    if (!err)
        err = send_line(&link, "VERBOSE STATUS\n");
    if (!err)
        err = receive_all(&link, text, text_bytes);
    if (link.fd >= 0)
        close(link.fd);
    return err;
}
