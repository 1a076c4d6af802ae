/* tools/bench_operator.c - see bench_operator.h. */
#include "tools/bench_operator.h"

#include "client/session.h"
#include "tools/bench_measure.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct connection {
    int fd;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    double give_up_s;
};

static cairn_err
connect_to(const char *socket_path, struct connection *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (out->fd < 0 || connect(out->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return CAIRN_PEER;
    cairn_session_reader_init(&out->reader, CAIRN_SESSION_AGENT);
    cairn_session_writer_init(&out->writer, 1 << 20);
    return CAIRN_OK;
}

/* Sends what is queued and waits for the next frame. */
static cairn_err
next_frame(struct connection *connection, struct cairn_session_frame *frame)
{
    for (;;) {
        struct pollfd poll_fd = {.fd = connection->fd, .events = POLLIN};
        cairn_err err = cairn_session_writer_send(&connection->writer, connection->fd);

        if (err == CAIRN_AGAIN)
            poll_fd.events = POLLIN | POLLOUT;
        else if (err)
            return err;
        err = cairn_session_reader_next(&connection->reader, frame);
        if (err != CAIRN_AGAIN)
            return err;
        if (cairn_bench_now_s() > connection->give_up_s)
            return CAIRN_TIMEOUT;
        (void)poll(&poll_fd, 1, 100);
        err = cairn_session_reader_receive(&connection->reader, connection->fd);
        if (err && err != CAIRN_AGAIN)
            return err;
    }
}

/* Waits for a frame of one type; others are passed over. */
static cairn_err
await_frame(struct connection *connection, enum cairn_session_type type,
            struct cairn_session_frame *frame)
{
    cairn_err err = next_frame(connection, frame);

    while (!err && frame->type != type) {
        cairn_session_frame_fini(frame);
        err = next_frame(connection, frame);
    }
    return err;
}

/* The number after "rebuilt_bytes": in the answer; the rest is for people. */
static bool
read_rebuilt(const char *text, uint64_t *out)
{
    static const char key[] = "\"rebuilt_bytes\":";
    const char *at = strstr(text, key);

    return at && sscanf(at + sizeof key - 1, " %" SCNu64, out) == 1;
}

cairn_err
cairn_bench_operator_restore(const char *socket_path, double limit_s, uint64_t *rebuilt_bytes,
                             char *text, size_t text_bytes)
{
    static const char request[] = "{\"verb\": \"restore\"}";
    struct cairn_session_hello hello = {.protocol = CAIRN_SESSION_PROTOCOL,
                                        .role = CAIRN_ROLE_OPERATOR};
    struct cairn_session_operator ask = {.text = request, .text_bytes = sizeof request - 1};
    struct connection connection = {.fd = -1, .give_up_s = cairn_bench_now_s() + limit_s};
    struct cairn_session_operator_reply reply = {.exit_code = 1};
    struct cairn_session_frame frame;
    size_t used = 0;
    cairn_err err = connect_to(socket_path, &connection);

    text[0] = '\0';
    if (!err)
        err = cairn_session_put_hello(&connection.writer, &hello);
    if (!err)
        err = await_frame(&connection, CAIRN_SESSION_WELCOME, &frame);
    if (!err) {
        cairn_session_frame_fini(&frame);
        err = cairn_session_put_operator(&connection.writer, &ask);
    }
    while (!err && !reply.final) {
        err = await_frame(&connection, CAIRN_SESSION_OPERATOR_REPLY, &frame);
        if (err)
            break;
        err = cairn_session_take_operator_reply(&frame, &reply);
        if (!err && used + reply.text_bytes < text_bytes) {
            memcpy(text + used, reply.text, reply.text_bytes);
            used += reply.text_bytes;
            text[used] = '\0';
        }
        cairn_session_frame_fini(&frame);
    }
    if (!err && (reply.exit_code != 0 || !read_rebuilt(text, rebuilt_bytes)))
        err = CAIRN_LOST;
    cairn_session_reader_fini(&connection.reader);
    cairn_session_writer_fini(&connection.writer);
    if (connection.fd >= 0)
        (void)close(connection.fd);
    return err;
}
