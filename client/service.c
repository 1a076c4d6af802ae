/*
 * client/service.c - the thread that owns the socket: connects, greets, registers, dispatches.
 *
 *   WAITING  --connect, HELLO-->  GREETING  --WELCOME-->  ATTACHED
 *      ^                             |                       |
 *      +--- no agent, refused, gone, damaged frames ---------+     (refused as stale: CLOSED)
 *
 * Slow work (stopping a copy, mapping and pinning slots, log callbacks) is done without the lock,
 * so that the trainer's calls return.
 */
#include "client/state.h"

#include "base/clock.h"
#include "snapshot/copy.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_NS_MIN (50 * CAIRN_NS_PER_MS)
#define RETRY_NS_MAX (2 * CAIRN_NS_PER_S)
#define STATS_NS CAIRN_NS_PER_S
#define REGISTER_AGAIN_NS CAIRN_NS_PER_S
#define FAREWELL_NS CAIRN_NS_PER_S /* longest wait of close for the last frames to be sent */

/* Spreads the ranks of a node that lost their agent together. */
static void
retry_later(struct cairn_client *client, uint64_t now_ns)
{
    client->retry_ns = client->retry_ns ? 2 * client->retry_ns : RETRY_NS_MIN;
    if (client->retry_ns > RETRY_NS_MAX)
        client->retry_ns = RETRY_NS_MAX;
    client->retry_at_ns = now_ns + client->retry_ns + client->rank % 16 * (client->retry_ns / 32);
}

/* Drops the connection and everything that came over it. Lock not held. */
static void
detach(struct cairn_client *client, const char *why)
{
    bool was_attached;

    cairn_capture_cancel(client->capture);
    client_slots_unmap(client);
    client_rings_forget(client);
    pthread_mutex_lock(&client->lock);
    was_attached = client->link == CLIENT_LINK_ATTACHED;
    if (client->socket >= 0)
        close(client->socket);
    client->socket = -1;
    client->broken = false;
    cairn_session_writer_fini(&client->writer);
    cairn_session_writer_init(&client->writer, CLIENT_QUEUE_BYTES);
    if (client->link != CLIENT_LINK_CLOSED)
        client->link = CLIENT_LINK_WAITING;
    client->register_at_ns = 0;
    client->registration = client->tensors ? CLIENT_REGISTER_WANTED : CLIENT_REGISTER_NONE;
    client_snapshot_detach(client);
    client_placement_detach(&client->placement);
    client->takes_offers = client->shares_wanted = false;
    client->takes_moves = client->moved_wanted = false;
    client->takes_poison = client->unwatched_wanted = false;
    if (client->mail.wanted && !client->mail.err)
        client->mail.err = CAIRN_PEER;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    cairn_session_reader_fini(&client->reader);
    cairn_session_reader_init(&client->reader, CAIRN_SESSION_AGENT);
    retry_later(client, client_now_ns());
    if (was_attached && why) {
        client->said_detached = true;
        client_say(
            client, CAIRN_LOG_WARN,
            "client: %s: training goes on unprotected, and attaches by itself when an agent comes",
            why);
    }
}

/* The agent, or the path to it, refuses us. Lock held. */
static void
refuse(struct cairn_client *client, cairn_err err)
{
    client->refusal = err;
    if (client_refusal_is_final(err)) /* unless another agent takes its place */
        client->retry_ns = RETRY_NS_MAX;
    if (err == CAIRN_STALE)
        client->link = CLIENT_LINK_CLOSED;
    pthread_cond_broadcast(&client->changed);
}

static int
try_connect(const struct cairn_client *client, cairn_err *refusal)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *refusal = CAIRN_OK;
    if (fd < 0)
        return -1;
    memcpy(address.sun_path, client->path, strlen(client->path));
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) {
        *refusal = cairn_session_server_check(fd);
        if (!*refusal)
            return fd;
    } else if (errno == EACCES || errno == EPERM) {
        *refusal = CAIRN_DENIED;
    }
    if (*refusal && client->refusal != CAIRN_DENIED)
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the agent's socket %s belongs to another user; name one of an agent of "
                   "this user or of root",
                   client->path);
    close(fd); /* anything else: no agent there, or it is too busy now */
    return -1;
}

static void
greet(struct cairn_client *client, uint64_t now_ns)
{
    cairn_err refusal;
    int fd = try_connect(client, &refusal);

    if (fd < 0)
        retry_later(client, now_ns);
    pthread_mutex_lock(&client->lock);
    if (refusal)
        refuse(client, refusal);
    if (fd >= 0) {
        struct cairn_session_hello hello = {.protocol = CAIRN_SESSION_PROTOCOL,
                                            .role = CAIRN_ROLE_TRAINER,
                                            .rank = client->rank,
                                            .world = client->world,
                                            .local_ranks = client->local_ranks,
                                            .pid = (uint64_t)client->pid,
                                            .epoch = client->epoch};

        memcpy(hello.job, client->job, sizeof hello.job);
        client->socket = fd;
        client->link = CLIENT_LINK_GREETING;
        client->greet_until_ns = now_ns + client->connect_timeout_ns;
        if (cairn_session_put_hello(&client->writer, &hello))
            client->broken = true;
    }
    pthread_mutex_unlock(&client->lock);
}

/* ---- frames ---- */

static cairn_err
take_welcome(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_welcome welcome;
    cairn_err err = cairn_session_take_welcome(frame, &welcome);

    if (err)
        return err;
    if (welcome.protocol != CAIRN_SESSION_PROTOCOL)
        return CAIRN_VERSION;
    if (welcome.flags & CAIRN_WELCOME_COPIES)
        cairn_copy_use_number(welcome.flags >> CAIRN_WELCOME_COPY_SHIFT);
    pthread_mutex_lock(&client->lock);
    if (client->link != CLIENT_LINK_GREETING) {
        pthread_mutex_unlock(&client->lock);
        return CAIRN_CORRUPT;
    }
    client->link = CLIENT_LINK_ATTACHED;
    client->epoch = welcome.epoch;
    client->coverage_wanted = client->coverage != NULL;
    client->takes_offers = (welcome.flags & CAIRN_WELCOME_OFFERS) != 0;
    client->takes_moves = (welcome.flags & CAIRN_WELCOME_MOVES) != 0;
    client->takes_poison = (welcome.flags & CAIRN_WELCOME_POISON) != 0;
    client_placement_epoch(&client->placement, welcome.epoch);
    client->shares_wanted = client->takes_offers && client->placement.now.count > 0;
    client->refusal = CAIRN_OK;
    client->said_silent = false;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    client->stats_at_ns = client_now_ns() + STATS_NS;
    client_say(client, CAIRN_LOG_INFO, "client: %s node=%u epoch=%llu rank=%u",
               client->said_detached ? "attached again" : "attached", welcome.node,
               (unsigned long long)cairn_epoch_number(welcome.epoch), client->rank);
    return CAIRN_OK;
}

/* CAIRN_PEER: the connection has no purpose any more. Logged before the waiting call returns. */
static cairn_err
take_refused(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_refused refused;
    bool mine, news;
    cairn_err err = cairn_session_take_refused(frame, &refused);

    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    if (refused.request == CAIRN_SESSION_RINGS_REQUEST)
        client_rings_refused(client, client_now_ns());
    mine = refused.request == 0 || (refused.request == client->register_request &&
                                    client->registration == CLIENT_REGISTER_SENT);
    news = mine && (refused.request ? client->register_at_ns == 0 : client->refusal != refused.err);
    pthread_mutex_unlock(&client->lock);
    if (news)
        client_say(client, CAIRN_LOG_ERROR, "client: the agent refuses %s: %s (%s)",
                   refused.request ? "the tensors" : "this trainer", cairn_err_text(refused.err),
                   refused.text);
    pthread_mutex_lock(&client->lock);
    if (refused.request == 0) {
        refuse(client, refused.err);
        err = CAIRN_PEER;
    } else if (mine && client->registration == CLIENT_REGISTER_SENT) {
        client->registration_err = refused.err;
        if (refused.err == CAIRN_AGAIN) { /* the process that has the rank may be ending */
            client->registration = CLIENT_REGISTER_WANTED;
            client->register_at_ns = client_now_ns() + REGISTER_AGAIN_NS;
        } else {
            client->registration = CLIENT_REGISTER_FAILED;
        }
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
    return err;
}

static cairn_err
take_registered(struct cairn_client *client, struct cairn_session_frame *frame)
{
    struct cairn_session_registered registered;
    bool mine, were_silent;
    cairn_err err = cairn_session_take_registered(frame, &registered);

    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    mine = client->registration == CLIENT_REGISTER_SENT &&
           registered.request == client->register_request;
    pthread_mutex_unlock(&client->lock);
    if (!mine) /* of tensors that were replaced meanwhile */
        return CAIRN_OK;
    client_slots_leave(client);
    /* A trainer that registers again gets the reason of a failing device again. */
    were_silent = atomic_exchange(&client->devices_are_silent, false);
    err = client_slots_map(client, &registered, frame);
    if (!err && were_silent)
        atomic_store(&client->devices_are_silent, true); /* until a snapshot is copied */
    pthread_mutex_lock(&client->lock);
    if (!err)
        client->device_failed = false;
    if (client->registration == CLIENT_REGISTER_SENT) {
        client->registration = err ? CLIENT_REGISTER_FAILED : CLIENT_REGISTER_DONE;
        client->register_at_ns = 0;
        client->registration_err = err;
        client->said_refused = false;
        pthread_cond_broadcast(&client->changed);
    }
    pthread_mutex_unlock(&client->lock);
    return CAIRN_OK;
}

static cairn_err
take_epoch(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_epoch epoch;
    cairn_err err = cairn_session_take_epoch(frame, &epoch);

    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    client->epoch = epoch.epoch;
    client_placement_epoch(&client->placement, epoch.epoch);
    client->shares_wanted = client->takes_offers && client->placement.now.count > 0;
    pthread_mutex_unlock(&client->lock);
    return CAIRN_OK;
}

static cairn_err
take_committed(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_committed committed;
    cairn_err err = cairn_session_take_committed(frame, &committed);

    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    client->snapshot.committed |=
        client->snapshot.last && client->snapshot.step == committed.generation.step;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    client_slots_map_next(client); /* the agent makes the pages of the next slot by then */
    return CAIRN_OK;
}

/* Ignores an offer that cannot be one: the agents' mistake, or a late one. */
static cairn_err
take_offer(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_shares offer;
    cairn_err err = cairn_session_take_offer(frame, &offer);

    if (err)
        return err;
    pthread_mutex_lock(&client->lock);
    (void)client_placement_offer(&client->placement, &offer);
    pthread_mutex_unlock(&client->lock);
    return CAIRN_OK;
}

static cairn_err
take_snapshot_frame(struct cairn_client *client, const struct cairn_session_frame *frame)
{
    struct cairn_session_grant grant;
    struct cairn_session_skip skip;
    struct cairn_session_drop drop;
    cairn_err err;

    if (frame->type == CAIRN_SESSION_GRANT) {
        err = cairn_session_take_grant(frame, &grant);
        return err ? err : client_take_grant(client, &grant);
    }
    if (frame->type == CAIRN_SESSION_SKIP) {
        err = cairn_session_take_skip(frame, &skip);
        if (!err)
            client_take_skip(client, &skip);
        return err;
    }
    err = cairn_session_take_drop(frame, &drop);
    if (!err)
        client_take_drop(client, &drop);
    return err;
}

static cairn_err
take_frame(struct cairn_client *client, struct cairn_session_frame *frame)
{
    struct cairn_session_fetched fetched;
    cairn_err err;

    if (frame->type == CAIRN_SESSION_WELCOME)
        return take_welcome(client, frame);
    if (frame->type == CAIRN_SESSION_REFUSED)
        return take_refused(client, frame);
    if (client->link != CLIENT_LINK_ATTACHED) /* only this thread changes it */
        return CAIRN_CORRUPT;
    switch (frame->type) {
    case CAIRN_SESSION_REGISTERED:
        return take_registered(client, frame);
    case CAIRN_SESSION_GRANT:
    case CAIRN_SESSION_SKIP:
    case CAIRN_SESSION_DROP:
        return take_snapshot_frame(client, frame);
    case CAIRN_SESSION_EPOCH:
        return take_epoch(client, frame);
    case CAIRN_SESSION_COMMITTED:
        return take_committed(client, frame);
    case CAIRN_SESSION_OFFER:
        return take_offer(client, frame);
    case CAIRN_SESSION_RESTORE_INFO:
        return client_take_restore_info(client, frame);
    case CAIRN_SESSION_FETCHED:
        err = cairn_session_take_fetched(frame, &fetched);
        if (!err)
            client_take_fetched(client, &fetched);
        return err;
    default:
        return CAIRN_CORRUPT; /* the answer to an operator */
    }
}

static const char *
why_it_ends(cairn_err err)
{
    if (err == CAIRN_CORRUPT)
        return "the agent sends damaged frames";
    if (err == CAIRN_NOMEM)
        return "this process is out of memory, or of descriptors (ulimit -n)";
    return "the agent refuses this trainer";
}

/* Reads what came. Any error is the end of the connection. */
static void
receive(struct cairn_client *client)
{
    struct cairn_session_frame frame;
    cairn_err got = cairn_session_reader_receive(&client->reader, client->socket);
    cairn_err err;

    if (got == CAIRN_AGAIN)
        return;
    while ((err = cairn_session_reader_next(&client->reader, &frame)) == CAIRN_OK) {
        err = take_frame(client, &frame);
        cairn_session_frame_fini(&frame);
        if (err)
            break;
    }
    if (err == CAIRN_VERSION) {
        if (client->refusal != CAIRN_VERSION)
            client_say(client, CAIRN_LOG_ERROR,
                       "client: the agent speaks another version; upgrade one of them");
        pthread_mutex_lock(&client->lock);
        refuse(client, CAIRN_VERSION);
        pthread_mutex_unlock(&client->lock);
    }
    if (err && err != CAIRN_AGAIN)
        detach(client, why_it_ends(err));
    else if (got)
        detach(client, got == CAIRN_NOMEM ? why_it_ends(got) : "the agent is gone");
}

/* ---- the loop ---- */

static void
put_register(struct cairn_client *client)
{
    struct cairn_session_register all = {.request = client->next_request,
                                         .count = client->tensors->count,
                                         .launch = client->launch,
                                         .slices = client->tensors->slices};
    cairn_err err = cairn_session_put_register(&client->writer, &all);

    if (err == CAIRN_AGAIN)
        return;
    if (err) { /* FULL: more names than a frame holds; NOMEM */
        client->registration = CLIENT_REGISTER_FAILED;
        client->registration_err = err == CAIRN_FULL ? CAIRN_INVAL : err;
        pthread_cond_broadcast(&client->changed);
        return;
    }
    client->register_request = client->next_request;
    client->next_request =
        client->next_request == CAIRN_SESSION_RINGS_REQUEST - 1 ? 1 : client->next_request + 1;
    client->registration = CLIENT_REGISTER_SENT;
    client->unwatched_wanted = client->takes_poison; /* what is known of them was carried over */
}

/* Lock held. */
static void
put_coverage(struct cairn_client *client)
{
    cairn_err err = cairn_session_put_coverage(&client->writer, client->coverage);

    client->coverage_wanted = err == CAIRN_AGAIN;
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
}

/* If this message is lost, the agent records a crash, and reports it where others wait for this
 * rank. Lock held. */
static void
put_leave(struct cairn_client *client)
{
    cairn_err err = cairn_session_put_leave(&client->writer);

    client->leave_wanted = err == CAIRN_AGAIN; /* a large frame is on its way */
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
}

/* Lock held. */
static void
put_shares(struct cairn_client *client)
{
    cairn_err err = cairn_session_put_shares(&client->writer, &client->placement.now);

    client->shares_wanted = err == CAIRN_AGAIN;
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
}

/* Lock held. */
static void
put_moved(struct cairn_client *client)
{
    cairn_err err = cairn_session_put_moved(&client->writer, &client->moved);

    client->moved_wanted = err == CAIRN_AGAIN;
    if (err && err != CAIRN_AGAIN)
        client->broken = true;
}

/* Queues everything that is due and sends what the socket takes. Lock held. */
static cairn_err
serve(struct cairn_client *client, bool stats_due, const struct cairn_client_stats *stats)
{
    if (client->link == CLIENT_LINK_ATTACHED) {
        client_report_pump(client);
        if (client->registration == CLIENT_REGISTER_WANTED && client->tensors &&
            !client->report.active && client_now_ns() >= client->register_at_ns)
            put_register(client);
        client_put_unwatched(client);
        if (client->coverage_wanted)
            put_coverage(client);
        if (client->moved_wanted)
            put_moved(client);
        if (client->shares_wanted)
            put_shares(client);
        if (client->leave_wanted)
            put_leave(client);
        /* What does not fit now is sent a second later. */
        if (stats_due && cairn_session_put_stats(&client->writer, stats) == CAIRN_NOMEM)
            client->broken = true;
    }
    if (client->broken)
        return CAIRN_PEER;
    return client->socket >= 0 ? cairn_session_writer_send(&client->writer, client->socket)
                               : CAIRN_OK;
}

/* Until the next timer. Lock held: other threads register. */
static int
poll_ms(const struct cairn_client *client, uint64_t now_ns)
{
    uint64_t at_ns = client->link == CLIENT_LINK_WAITING    ? client->retry_at_ns
                     : client->link == CLIENT_LINK_GREETING ? client->greet_until_ns
                     : client->link == CLIENT_LINK_ATTACHED ? client->stats_at_ns
                                                            : now_ns + STATS_NS;

    if (client->link == CLIENT_LINK_ATTACHED && client->registration == CLIENT_REGISTER_WANTED &&
        client->register_at_ns && client->register_at_ns < at_ns)
        at_ns = client->register_at_ns;
    if (at_ns <= now_ns)
        return 0;
    return (int)((at_ns - now_ns) / CAIRN_NS_PER_MS) + 1;
}

/* Nothing is left to send, or nobody is there to receive it. Lock held. */
static bool
may_stop(const struct cairn_client *client, uint64_t now_ns, uint64_t *stop_until_ns)
{
    if (!client->stop)
        return false;
    if (*stop_until_ns == 0)
        *stop_until_ns = now_ns + FAREWELL_NS;
    return client->link != CLIENT_LINK_ATTACHED || now_ns >= *stop_until_ns ||
           (!client->report.active && !client->leave_wanted &&
            cairn_session_writer_queued(&client->writer) == 0);
}

static void
drain_wake(struct cairn_client *client)
{
    uint64_t count;

    if (read(client->wake, &count, sizeof count) == (ssize_t)sizeof count || errno == EAGAIN)
        client->wake_sent = false;
}

/* One turn: timers, frames out, poll, frames in. False when it is time to stop. */
static bool
turn(struct cairn_client *client, uint64_t *stop_until_ns)
{
    uint64_t now_ns = client_now_ns();
    bool stats_due = client->link == CLIENT_LINK_ATTACHED && now_ns >= client->stats_at_ns;
    struct cairn_client_stats stats = {0};
    struct pollfd fds[2] = {{.fd = client->wake, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    bool stop_copy, has_begun;
    cairn_err sent;
    int wait_ms;

    if (client->link == CLIENT_LINK_WAITING && now_ns >= client->retry_at_ns)
        greet(client, now_ns);
    client_devices_retry(client);
    if (stats_due) {
        client->retry_ns = 0; /* a connection that lasted: earlier failures do not delay the next
                               * one */
        client_stats_copy(client, &stats);
        client->stats_at_ns = now_ns + STATS_NS;
    }
    if (client->link == CLIENT_LINK_ATTACHED)
        client_rings_look(client, now_ns);
    pthread_mutex_lock(&client->lock);
    drain_wake(client);
    stop_copy = client->engine_busy && client->snapshot.stop_err;
    has_begun = client->snapshot.state != CLIENT_SNAPSHOT_NONE; /* a step, with these tensors */
    sent = serve(client, stats_due, &stats);
    if (!stop_copy && may_stop(client, now_ns, stop_until_ns)) {
        pthread_mutex_unlock(&client->lock);
        return false;
    }
    wait_ms = *stop_until_ns ? 10 : poll_ms(client, now_ns);
    pthread_mutex_unlock(&client->lock);
    if (stop_copy) {
        cairn_capture_cancel(client->capture);
        return true;
    }
    if (has_begun)
        client_slots_unmap_left(client);
    if (sent == CAIRN_PEER ||
        (client->link == CLIENT_LINK_GREETING && now_ns >= client->greet_until_ns)) {
        detach(client, "the agent is gone");
        return true;
    }
    fds[1].fd = client->socket;
    if (sent == CAIRN_AGAIN)
        fds[1].events |= POLLOUT;
    if (poll(fds, 2, wait_ms) > 0 && fds[1].revents)
        receive(client);
    return true;
}

void *
client_service(void *argument)
{
    struct cairn_client *client = argument;
    uint64_t stop_until_ns = 0;

    (void)pthread_setname_np(pthread_self(), "cairn-client");
    cairn_session_reader_init(&client->reader, CAIRN_SESSION_AGENT);
    while (turn(client, &stop_until_ns))
        ;
    detach(client, NULL);
    cairn_session_reader_fini(&client->reader);
    return NULL;
}
