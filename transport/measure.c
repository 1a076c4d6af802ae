/*
 * transport/measure.c - see measure.h. Both kinds warm up with as many bytes as the receive pool
 * has, then time the round: from the first timed message to the receiver's report of the last.
 */
#include "transport/measure.h"

#include "transport/transport.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 64,
    PINGS = 1000,
    WARM_BYTES = 64 * 1048576,
    LOST_S = 60 /* a round that takes longer is given up */
};

/* The receiver's report at the end of a round, over a pipe. */
struct receiver_report {
    uint64_t cpu_ns;
};

struct round {
    size_t message_bytes;
    uint64_t warm_count;
    uint64_t count;
    double seconds;
    double sender_cpu_s;
    double receiver_cpu_s;
    double half_round_trip_ns;
};

static uint64_t
clock_ns(clockid_t id)
{
    struct timespec now;

    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int
double_compare(const void *a, const void *b)
{
    double x, y;

    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static double
median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, double_compare);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* A loopback listener on a free port; its port in *port. */
static int
listener_open(struct sockaddr_in *address)
{
    socklen_t address_len = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && bind(fd, (struct sockaddr *)address, sizeof *address) == 0 &&
        listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)address, &address_len) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- bare TCP ---- */

static bool
bare_receive(int fd, uint8_t *buffer, uint64_t bytes)
{
    size_t at = 0;

    while (bytes) {
        size_t want = bytes < CAIRN_BULK_BYTES_MAX ? (size_t)bytes : CAIRN_BULK_BYTES_MAX;
        ssize_t got = recv(fd, buffer + at, want, 0);

        if (got <= 0)
            return false;
        bytes -= (uint64_t)got;
        at = (at + (size_t)got) % (WARM_BYTES - CAIRN_BULK_BYTES_MAX);
    }
    return true;
}

static bool
bare_send(int fd, const uint8_t *buffer, size_t message_bytes, uint64_t count)
{
    size_t slots = WARM_BYTES / message_bytes;

    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *at = buffer + (i % slots) * message_bytes;

        for (size_t sent = 0; sent < message_bytes;) {
            ssize_t got = send(fd, at + sent, message_bytes - sent, MSG_NOSIGNAL);

            if (got <= 0)
                return false;
            sent += (size_t)got;
        }
    }
    return true;
}

static void
bare_receiver(int listener, const struct round *round, uint8_t *buffer)
{
    struct receiver_report report;
    uint8_t mark = 1;
    uint64_t cpu_ns;
    int fd = accept(listener, NULL, NULL);

    if (fd < 0 || !bare_receive(fd, buffer, round->warm_count * round->message_bytes) ||
        send(fd, &mark, 1, MSG_NOSIGNAL) != 1)
        _exit(1);
    cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (!bare_receive(fd, buffer, round->count * round->message_bytes))
        _exit(1);
    report.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    _exit(send(fd, &report, sizeof report, MSG_NOSIGNAL) == sizeof report ? 0 : 1);
}

static cairn_err
bare_round(struct round *round, uint8_t *buffer)
{
    struct sockaddr_in address;
    struct receiver_report report;
    uint64_t begin_ns, cpu_ns;
    uint8_t mark;
    cairn_err err = CAIRN_IO;
    int fd = -1;
    int listener = listener_open(&address);
    pid_t child = listener < 0 ? -1 : fork();

    if (child == 0)
        bare_receiver(listener, round, buffer);
    if (child < 0)
        goto done;
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        !bare_send(fd, buffer, round->message_bytes, round->warm_count) ||
        recv(fd, &mark, 1, MSG_WAITALL) != 1)
        goto done;
    begin_ns = clock_ns(CLOCK_MONOTONIC);
    cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    if (!bare_send(fd, buffer, round->message_bytes, round->count) ||
        recv(fd, &report, sizeof report, MSG_WAITALL) != sizeof report)
        goto done;
    round->seconds = (double)(clock_ns(CLOCK_MONOTONIC) - begin_ns) / 1e9;
    round->sender_cpu_s = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) / 1e9;
    round->receiver_cpu_s = (double)report.cpu_ns / 1e9;
    err = CAIRN_OK;
done:
    if (err)
        CAIRN_LOG_AT(ERROR, "transport: cannot measure bare TCP: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    if (listener >= 0)
        close(listener);
    if (child > 0) {
        if (err)
            kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return err;
}

/* ---- the transport ---- */

/* One end of a round. The receiver answers the warm-up's and the round's last payload, and
 * pings. */
struct end {
    struct cairn_transport *transport;
    const struct round *round;
    bool up;
    uint64_t sent;
    uint64_t acknowledged; /* by on_sent */
    uint64_t received;
    uint64_t cpu_ns;  /* receiver: at the end of the warm-up */
    uint32_t answers; /* sender: of the receiver */
    uint8_t answer[64];
    uint32_t unanswered; /* receiver: answers that the transport would not take yet */
    size_t answer_len;
    bool finished;
};

static void
end_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    struct end *end = context;

    (void)node;
    (void)incarnation;
    end->up = up;
}

static void
end_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    struct end *end = context;

    (void)node;
    (void)ticket;
    if (!err)
        end->acknowledged++;
}

static void
receiver_message(void *context, uint32_t from, const void *body, size_t body_len,
                 const void *payload, size_t payload_len, uint64_t buffer)
{
    struct end *end = context;
    struct receiver_report report;

    (void)from;
    (void)body;
    (void)payload;
    cairn_transport_release(end->transport, buffer);
    end->answer_len = 0;
    if (payload_len == 0) { /* a ping, or the word that it is over */
        end->finished = body_len == 1;
        end->answer_len = body_len;
        memset(end->answer, 0, sizeof end->answer);
    } else {
        end->received++;
        if (end->received == end->round->warm_count)
            end->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        if (end->received == end->round->warm_count ||
            end->received == end->round->warm_count + end->round->count) {
            report.cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - end->cpu_ns;
            memcpy(end->answer, &report, sizeof report);
            end->answer_len = sizeof report;
        }
    }
    if (end->answer_len && cairn_transport_send(end->transport, 0, end->answer, end->answer_len,
                                                NULL, 0, 0) != CAIRN_OK)
        end->unanswered++;
}

static void
sender_message(void *context, uint32_t from, const void *body, size_t body_len, const void *payload,
               size_t payload_len, uint64_t buffer)
{
    struct end *end = context;

    (void)from;
    (void)payload;
    (void)payload_len;
    (void)buffer;
    end->answers++;
    if (body_len <= sizeof end->answer)
        memcpy(end->answer, body, body_len);
}

/* Sleeps on the descriptor and polls, as an event loop would. */
static void
end_turn(struct end *end)
{
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    uint64_t due_ns = cairn_transport_due(end->transport, now_ns);
    struct pollfd fd = {.fd = cairn_transport_fd(end->transport), .events = POLLIN};
    uint64_t wait_ns = due_ns <= now_ns ? 0 : due_ns - now_ns;
    struct timespec wait = {.tv_sec = wait_ns > 1000000000u ? 1 : 0,
                            .tv_nsec = wait_ns > 1000000000u ? 0 : (long)wait_ns};

    if (wait_ns)
        (void)ppoll(&fd, 1, &wait, NULL);
    cairn_transport_poll(end->transport, clock_ns(CLOCK_MONOTONIC));
}

static cairn_err
end_open(struct end *end, const struct cairn_measure_options *how, const char *const addresses[2],
         uint32_t node)
{
    static const char key[] = "a key that everybody knows";
    struct cairn_transport_options options = {
        .provider = how->provider,
        .key = how->keyed ? key : NULL,
        .key_len = how->keyed ? sizeof key : 0,
        .protection = how->protection,
        .bind_address = addresses[node],
        .node = node,
        .node_count = 2,
        .addresses = addresses,
        .job_id = 1,
        .incarnation = 1,
        .on_message = node ? receiver_message : sender_message,
        .on_sent = end_sent,
        .on_peer = end_peer,
        .context = end,
    };

    return cairn_transport_open(&options, &end->transport);
}

static void
transport_receiver(const struct round *round, const struct cairn_measure_options *how,
                   const char *const addresses[2])
{
    struct end end = {.round = round};
    uint64_t give_up_ns = clock_ns(CLOCK_MONOTONIC) + LOST_S * (uint64_t)1000000000;

    if (end_open(&end, how, addresses, 1) != CAIRN_OK)
        _exit(1);
    while (!end.finished && clock_ns(CLOCK_MONOTONIC) < give_up_ns)
        end_turn(&end);
    cairn_transport_close(end.transport);
    _exit(end.finished && !end.unanswered ? 0 : 1);
}

/* Sends `count` payloads and waits for the receiver's answer to the last. */
static cairn_err
payloads_send(struct end *end, const uint8_t *buffer, uint64_t count)
{
    size_t slots = WARM_BYTES / end->round->message_bytes;
    uint64_t give_up_ns = clock_ns(CLOCK_MONOTONIC) + LOST_S * (uint64_t)1000000000;
    uint32_t answers = end->answers;
    uint64_t sent = 0;

    while (end->answers == answers) {
        while (sent < count) {
            cairn_err err =
                cairn_transport_send(end->transport, 1, &sent, sizeof sent,
                                     buffer + (sent % slots) * end->round->message_bytes,
                                     end->round->message_bytes, sent);

            if (err == CAIRN_AGAIN)
                break;
            if (err && end->sent)
                return err;
            if (err)
                break;
            sent++;
            end->sent++;
        }
        end_turn(end);
        if (clock_ns(CLOCK_MONOTONIC) > give_up_ns)
            return CAIRN_TIMEOUT;
    }
    return CAIRN_OK;
}

static cairn_err
pings_send(struct end *end, double *half_round_trip_ns)
{
    static double times[PINGS];
    uint8_t body[64] = {0};

    for (int i = 0; i < PINGS; i++) {
        uint32_t answers = end->answers;
        uint64_t begin_ns = clock_ns(CLOCK_MONOTONIC);
        cairn_err err = cairn_transport_send(end->transport, 1, body, sizeof body, NULL, 0, 0);

        if (err)
            return err;
        while (end->answers == answers) {
            end_turn(end);
            if (clock_ns(CLOCK_MONOTONIC) - begin_ns > (uint64_t)LOST_S * 1000000000)
                return CAIRN_TIMEOUT;
        }
        times[i] = (double)(clock_ns(CLOCK_MONOTONIC) - begin_ns) / 2;
    }
    *half_round_trip_ns = median(times, PINGS);
    return CAIRN_OK;
}

static cairn_err
transport_sender(struct end *end, struct round *round, const uint8_t *buffer)
{
    struct receiver_report report;
    uint8_t over = 0;
    uint64_t begin_ns, cpu_ns;
    cairn_err err;

    cairn_transport_connect(end->transport, 1);
    err = payloads_send(end, buffer, round->warm_count);
    if (err)
        return err;
    begin_ns = clock_ns(CLOCK_MONOTONIC);
    cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    err = payloads_send(end, buffer, round->count);
    if (err)
        return err;
    round->seconds = (double)(clock_ns(CLOCK_MONOTONIC) - begin_ns) / 1e9;
    round->sender_cpu_s = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns) / 1e9;
    memcpy(&report, end->answer, sizeof report);
    round->receiver_cpu_s = (double)report.cpu_ns / 1e9;
    err = pings_send(end, &round->half_round_trip_ns);
    if (err)
        return err;
    err = cairn_transport_send(end->transport, 1, &over, 1, NULL, 0, 0);
    for (uint32_t answers = end->answers; !err && end->up && end->answers == answers;)
        end_turn(end);
    return err;
}

static cairn_err
transport_round(struct round *round, const struct cairn_measure_options *how, const uint8_t *buffer)
{
    char texts[2][32];
    const char *const addresses[2] = {texts[0], texts[1]};
    struct end end = {.round = round};
    struct sockaddr_in ports[2];
    int listeners[2];
    pid_t child;
    cairn_err err;

    for (int i = 0; i < 2; i++)
        listeners[i] = listener_open(&ports[i]);
    for (int i = 0; i < 2; i++) {
        snprintf(texts[i], sizeof texts[i], "127.0.0.1:%u", (unsigned)ntohs(ports[i].sin_port));
        if (listeners[i] >= 0)
            close(listeners[i]);
    }
    if (listeners[0] < 0 || listeners[1] < 0)
        return CAIRN_IO;
    child = fork();
    if (child == 0)
        transport_receiver(round, how, addresses);
    if (child < 0)
        return CAIRN_IO;
    err = end_open(&end, how, addresses, 0);
    if (!err)
        err = transport_sender(&end, round, buffer);
    cairn_transport_close(end.transport);
    if (err) {
        CAIRN_LOG_AT(ERROR, "transport: cannot measure: %s", cairn_err_text(err));
        kill(child, SIGKILL);
    }
    waitpid(child, NULL, 0);
    return err;
}

/* ---- both ---- */

static void
side_fill(struct cairn_measure_side *side, const struct round *rounds, uint32_t count)
{
    double speed[ROUNDS_MAX] = {0}, sender[ROUNDS_MAX] = {0}, receiver[ROUNDS_MAX] = {0};

    for (uint32_t i = 0; i < count; i++) {
        double bytes = (double)rounds[i].count * (double)rounds[i].message_bytes;

        speed[i] = bytes / rounds[i].seconds;
        sender[i] = rounds[i].sender_cpu_s / (bytes / 1073741824.0);
        receiver[i] = rounds[i].receiver_cpu_s / (bytes / 1073741824.0);
    }
    side->bytes_per_s = median(speed, count);
    side->sender_cpu_s_per_gib = median(sender, count);
    side->receiver_cpu_s_per_gib = median(receiver, count);
}

cairn_err
cairn_transport_measure(const struct cairn_measure_options *options, struct cairn_measure *out)
{
    struct round transport[ROUNDS_MAX] = {{0}}, bare[ROUNDS_MAX] = {{0}};
    double ratio[ROUNDS_MAX], trip[ROUNDS_MAX];
    uint32_t rounds = options->rounds ? options->rounds : 5;
    size_t message_bytes = options->message_bytes ? options->message_bytes : CAIRN_BULK_BYTES_MAX;
    uint64_t round_bytes = options->round_bytes ? options->round_bytes : (uint64_t)2 << 30;
    struct cairn_measure_options unprotected = *options;
    uint8_t *buffer;
    cairn_err err = CAIRN_OK;

    unprotected.protection = CAIRN_PROTECTION_NONE;
    if (rounds > ROUNDS_MAX || message_bytes > CAIRN_BULK_BYTES_MAX || round_bytes < message_bytes)
        return CAIRN_INVAL;
    buffer = aligned_alloc(4096, WARM_BYTES);
    if (!buffer)
        return CAIRN_NOMEM;
    memset(buffer, 0x5a, WARM_BYTES);
    for (uint32_t i = 0; i < rounds && !err; i++) {
        transport[i].message_bytes = message_bytes;
        transport[i].warm_count = WARM_BYTES / message_bytes;
        transport[i].count = round_bytes / message_bytes;
        bare[i] = transport[i];
        err = options->beside_unprotected ? transport_round(&bare[i], &unprotected, buffer)
                                          : bare_round(&bare[i], buffer);
        if (!err)
            err = transport_round(&transport[i], options, buffer);
        if (err)
            break;
        ratio[i] = bare[i].seconds / transport[i].seconds;
        trip[i] = transport[i].half_round_trip_ns;
    }
    free(buffer);
    if (err)
        return err;
    side_fill(&out->transport, transport, rounds);
    side_fill(&out->bare, bare, rounds);
    out->ratio = median(ratio, rounds);
    out->ratio_min = ratio[0];
    out->ratio_max = ratio[rounds - 1];
    out->half_round_trip_ns = median(trip, rounds);
    return CAIRN_OK;
}
