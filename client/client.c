/*
 * client/client.c - open and close of the trainer's side.
 *
 * A forked child (a data loader's worker) inherits the client's memory and descriptors but not its
 * threads: every call there sees another pid and does nothing.
 */
#include "cairn/client.h"

#include "client/abi.h"
#include "client/state.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CLOSE_DEVICES_NS CAIRN_NS_PER_S /* longest wait of close for what a device still copies */

/* Copies a text into out[out_bytes]; CAIRN_INVAL if it is too long. */
static cairn_err
copy_text(char *out, size_t out_bytes, const char *text)
{
    if (strlen(text) >= out_bytes)
        return CAIRN_INVAL;
    memcpy(out, text, strlen(text) + 1);
    return CAIRN_OK;
}

static uint64_t
timeout_ns(uint32_t given_ms, uint32_t default_ms)
{
    return (given_ms ? given_ms : default_ms) * CAIRN_NS_PER_MS;
}

static cairn_err
take_options(struct cairn_client *client, const struct cairn_client_options *given)
{
    struct cairn_client_options taken;
    const struct cairn_client_options *options = &taken;
    const char *path, *job;
    cairn_err err;

    client->pid = getpid();
    client->log = given->log; /* before its size is checked: every version has it at this place */
    client->log_context = given->log_context;
    err = client_abi_take_options(client, given, &taken);
    if (err)
        return err;
    path = options->agent_socket ? options->agent_socket : getenv("CAIRN_AGENT");
    job = options->job ? options->job : getenv("CAIRN_JOB");
    client->rank = options->rank;
    client->world = options->world;
    client->local_ranks = options->local_ranks ? options->local_ranks : 1;
    client->fence_timeout_ns = timeout_ns(options->fence_timeout_ms, 60000);
    client->connect_timeout_ns = timeout_ns(options->connect_timeout_ms, 5000);
    client->launch = options->launch;
    client->keeps_poisoned = options->keeps_poisoned != 0;
    client->restore_timeout_ns = timeout_ns(options->restore_timeout_ms, 600000);
    if (options->rank >= options->world) {
        client_say(client, CAIRN_LOG_ERROR, "client: rank=%u is not below world=%u", options->rank,
                   options->world);
        return CAIRN_INVAL;
    }
    if (copy_text(client->path, sizeof client->path, path ? path : "")) {
        client_say(client, CAIRN_LOG_ERROR,
                   "client: the path of the agent's socket is longer than %zu bytes: %s",
                   sizeof client->path - 1, path);
        return CAIRN_INVAL;
    }
    if (copy_text(client->job, sizeof client->job, job && *job ? job : "default")) {
        client_say(client, CAIRN_LOG_ERROR, "client: the name of the job is longer than %zu bytes",
                   sizeof client->job - 1);
        return CAIRN_INVAL;
    }
    client->link = client->path[0] ? CLIENT_LINK_WAITING : CLIENT_LINK_NONE;
    return CAIRN_OK;
}

static cairn_err
init_locks(struct cairn_client *client)
{
    pthread_condattr_t attributes;
    cairn_err err = CAIRN_NOMEM;

    if (pthread_condattr_init(&attributes) != 0)
        return CAIRN_NOMEM;
    if (pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
        pthread_cond_init(&client->changed, &attributes) == 0) {
        if (pthread_mutex_init(&client->lock, NULL) == 0)
            err = CAIRN_OK;
        else
            pthread_cond_destroy(&client->changed);
    }
    pthread_condattr_destroy(&attributes);
    return err;
}

/* The trainer's signal handlers never run on our threads. */
static cairn_err
start_service(struct cairn_client *client)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0)
        return CAIRN_NOMEM;
    rc = pthread_create(&client->service, NULL, client_service, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        client_say(client, CAIRN_LOG_ERROR, "client: a thread could not be started errno=%d (%s)",
                   rc, strerror(rc));
        return CAIRN_NOMEM;
    }
    return CAIRN_OK;
}

/* Waits for the first attachment; only a final refusal is an error. */
static cairn_err
wait_attached(struct cairn_client *client)
{
    uint64_t deadline_ns = client_now_ns() + client->connect_timeout_ns;
    bool attached;
    cairn_err err;

    pthread_mutex_lock(&client->lock);
    while (client->link != CLIENT_LINK_ATTACHED && !client_refusal_is_final(client->refusal))
        if (!client_wait(client, deadline_ns))
            break;
    attached = client->link == CLIENT_LINK_ATTACHED;
    err = !attached && client_refusal_is_final(client->refusal) ? client->refusal : CAIRN_OK;
    pthread_mutex_unlock(&client->lock);
    if (!attached && !err)
        client_say(client, CAIRN_LOG_WARN,
                   "client: no agent answers at %s: training goes on unprotected, "
                   "and attaches by itself when one comes",
                   client->path);
    return err;
}

/* Ends the service thread, then everything it owned. */
static void
destroy(struct cairn_client *client, bool has_locks, bool has_service)
{
    if (has_service) {
        pthread_mutex_lock(&client->lock);
        client->stop = true;
        client_wake(client);
        pthread_mutex_unlock(&client->lock);
        pthread_join(client->service, NULL);
    }
    cairn_capture_destroy(client->capture);
    cairn_session_writer_fini(&client->writer);
    client_tensors_free(client->tensors);
    free(client->coverage);
    if (client->wake >= 0)
        close(client->wake);
    if (has_locks) {
        pthread_cond_destroy(&client->changed);
        pthread_mutex_destroy(&client->lock);
    }
    free(client);
}

static void
init_empty(struct cairn_client *client)
{
    client->wake = -1;
    client->socket = -1;
    client->mail.window_fd = -1;
    client->mail.own_slot_fd = -1;
    client->next_request = 1;
    for (size_t i = 0; i < CAIRN_SESSION_FDS_MAX; i++)
        client->slots[i].fd = -1;
    cairn_session_writer_init(&client->writer, CLIENT_QUEUE_BYTES);
}

/* Returns the engine's error, but nothing more about a device that has failed already. */
static void
say_of_engine(void *context, enum cairn_log_level level, const char *line)
{
    const struct cairn_client *client = context;

    if (!atomic_load(&client->devices_are_silent))
        client_say(client, level, "%s", line);
}

cairn_err
cairn_client_open(const struct cairn_client_options *options, struct cairn_client **out)
{
    struct cairn_capture_options capture_options = {0};
    struct cairn_client *client = NULL;
    bool has_locks = false, has_service = false;
    cairn_err err;

    if (!options || !out)
        return CAIRN_INVAL;
    client = calloc(1, sizeof *client);
    if (!client)
        return CAIRN_NOMEM;
    init_empty(client);
    err = take_options(client, options);
    if (err)
        goto done;
    err = init_locks(client);
    if (err)
        goto done;
    has_locks = true;
    client->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (client->wake < 0) {
        client_say(client, CAIRN_LOG_ERROR,
                   "client: cannot open an eventfd errno=%d (%s); raise the limit of open files",
                   errno, strerror(errno));
        err = CAIRN_NOMEM;
        goto done;
    }
    capture_options.log = say_of_engine;
    capture_options.log_context = client;
    if (client->link == CLIENT_LINK_NONE) {
        client_say(client, CAIRN_LOG_WARN,
                   "client: no agent is configured (CAIRN_AGENT is not set): training goes on "
                   "unprotected");
    } else {
        err = cairn_capture_create(&capture_options, &client->capture);
        if (err)
            goto done;
        err = start_service(client);
        if (err)
            goto done;
        has_service = true;
        err = wait_attached(client);
        if (err)
            goto done;
    }
    *out = client;
    client = NULL;
done:
    if (client)
        destroy(client, has_locks, has_service);
    return err;
}

static void
end(struct cairn_client *client, bool leaves)
{
    if (!client_usable(client))
        return;
    (void)cairn_snapshot_confirm(client, false); /* what was held and never confirmed */
    pthread_mutex_lock(&client->lock);
    if (client->snapshot.state == CLIENT_SNAPSHOT_ASKED)
        client_give_up(client, CAIRN_AGAIN, CAIRN_REASON_CLOSING);
    if (!client_wait_idle(client, client_now_ns() + client->fence_timeout_ns))
        client_give_up(client, CAIRN_TIMEOUT, CAIRN_REASON_CLOSING);
    client->leave_wanted = leaves;
    pthread_mutex_unlock(&client->lock);
    /* a process that ends does not wait for a hung device */
    cairn_capture_give_up(client->capture, CLOSE_DEVICES_NS);
    destroy(client, true, client->path[0] != '\0');
}

void
cairn_client_close(struct cairn_client *client)
{
    end(client, true);
}

void
cairn_client_abandon(struct cairn_client *client)
{
    end(client, false);
}

/* What is left of a session whose client has closed: the socket, which tells the agent how the
 * process ends. */
struct farewell {
    pid_t pid;
    int socket;
};

/* Called by exit(3). */
static void
say_farewell(int status, void *context)
{
    struct farewell *farewell = context;
    struct cairn_session_writer writer;
    cairn_err err;

    /* a forked child's end is not the trainer's */
    if (farewell->pid == getpid() && (status & 0xff) == 0) {
        cairn_session_writer_init(&writer, CLIENT_QUEUE_BYTES);
        err = cairn_session_put_leave(&writer);
        if (!err)
            err = cairn_session_writer_send(&writer, farewell->socket);
        (void)err; /* if this is lost, the agent records a crash; nobody is left to report the error
                    * to */
        cairn_session_writer_fini(&writer);
    }
    close(farewell->socket);
    free(farewell);
}

/* False if it cannot be kept: without an agent, memory or descriptors. */
static bool
keep_farewell(struct cairn_client *client)
{
    struct farewell *farewell = malloc(sizeof *farewell);

    if (!farewell)
        return false;
    farewell->pid = client->pid;
    pthread_mutex_lock(&client->lock);
    farewell->socket =
        client->link == CLIENT_LINK_ATTACHED ? fcntl(client->socket, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&client->lock);
    if (farewell->socket >= 0 && on_exit(say_farewell, farewell) == 0)
        return true;
    if (farewell->socket >= 0)
        close(farewell->socket);
    free(farewell);
    return false;
}

void
cairn_client_close_at_exit(struct cairn_client *client)
{
    if (client_usable(client))
        end(client, !keep_farewell(client));
}

cairn_err
cairn_client_stats_read(const struct cairn_client *client, struct cairn_client_stats *out)
{
    struct cairn_client_stats stats;
    cairn_err err;

    if (!client_usable(client) || !out)
        return CAIRN_INVAL;
    err = client_abi_check_stats(client, out);
    if (err)
        return err;
    /* const is a promise about the counters: the lock changes */
    client_stats_copy((struct cairn_client *)client, &stats);
    client_abi_put_stats(out, &stats);
    return CAIRN_OK;
}

const char *
cairn_library_version(void)
{
    return CAIRN_LIBRARY_VERSION;
}
