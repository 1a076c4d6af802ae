/*
 * agent/process/keeper.c - the keeper's process: keeper_table.h behind one Unix socket.
 *
 * Invariants:
 * 1. The process that holds the flock on "<socket>.lock" is the keeper of that socket; it alone
 *    unlinks and binds the path. The lock goes with the process, so a killed keeper's path is free.
 * 2. A connection counts as an agent (`known`) from its first well-formed request on. Those that
 *    have not sent one are the first to go when there are CLIENTS_MAX.
 * 3. The linger timer runs exactly while no connection is known.
 * 4. Nothing waits for a client: a reply that does not fit into its socket ends the connection.
 */
#include "agent/process/keeper.h"

#include "agent/process/keeper_packet.h"
#include "agent/process/keeper_table.h"
#include "base/log.h"
#include "base/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { CLIENTS_MAX = 16, BACKLOG = 16, FDS_WANTED = CAIRN_KEEPER_ITEMS_MAX + 128 };

struct keeper;

struct client {
    struct keeper *keeper;
    int fd; /* -1: a free place */
    bool known;
    uint64_t order; /* of arrival */
};

struct keeper {
    struct sockaddr_un address;
    char lock_path[sizeof((struct sockaddr_un *)0)->sun_path];
    int lock_fd;
    int listen_fd;
    bool bound;
    uint64_t linger_ns; /* 0: for ever */
    struct cairn_loop *loop;
    struct cairn_timer linger;
    struct client clients[CLIENTS_MAX];
    uint64_t arrivals;
    struct cairn_keeper_table table;
    struct cairn_keeper_packet request, reply;
};

/* ---- requests ---- */

/* On success the request's descriptor is the table's. */
static cairn_err
put_item(struct keeper *keeper, const char *name, uint64_t bytes)
{
    struct cairn_keeper_packet *request = &keeper->request;
    cairn_err err;

    if (request->fds_cut)
        return CAIRN_FULL; /* we may open no more descriptors */
    if (request->fd_count != 1)
        return CAIRN_INVAL;
    err = cairn_keeper_table_put(&keeper->table, name, request->fds[0], bytes);
    if (!err)
        request->fds[0] = -1;
    return err;
}

/* Writes the items behind `after` into the reply, as many as one packet takes. */
static void
list_items(struct keeper *keeper, const char *after, bool with_fds, struct cairn_writer *writer)
{
    struct cairn_keeper_packet *reply = &keeper->reply;
    const struct cairn_keeper_table *table = &keeper->table;
    uint32_t first = cairn_keeper_table_behind(table, after), count = table->count - first;

    if (count > CAIRN_KEEPER_BATCH_MAX)
        count = CAIRN_KEEPER_BATCH_MAX;
    cairn_write_u8(writer, first + count < table->count);
    cairn_write_u32(writer, count);
    for (uint32_t i = first; i < first + count; i++) {
        cairn_write_string(writer, table->items[i].name);
        cairn_write_u64(writer, table->items[i].bytes);
        if (with_fds)
            reply->fds[reply->fd_count++] = table->items[i].fd;
    }
}

static void
start_reply(struct keeper *keeper, uint16_t type, cairn_err err, struct cairn_writer *writer)
{
    struct cairn_keeper_packet *reply = &keeper->reply;

    reply->fd_count = 0;
    cairn_writer_init(writer, reply->bytes, sizeof reply->bytes);
    cairn_write_u32(writer, CAIRN_KEEPER_MAGIC);
    cairn_write_u16(writer, CAIRN_KEEPER_VERSION);
    cairn_write_u16(writer, type | CAIRN_KEEPER_REPLY);
    cairn_write_u32(writer, err);
}

static cairn_err
send_reply(struct keeper *keeper, int fd, const struct cairn_writer *writer)
{
    cairn_err err = cairn_writer_done(writer);

    keeper->reply.bytes_len = writer->used_bytes;
    return err ? err : cairn_keeper_packet_send(fd, &keeper->reply);
}

/* Carries a request out. CAIRN_OK: *writer holds the reply. Otherwise the bytes are malformed. */
static cairn_err
carry_out(struct keeper *keeper, uint16_t type, struct cairn_reader *reader,
          struct cairn_writer *writer)
{
    char name[CAIRN_KEEPER_NAME_BYTES_MAX] = "";
    uint64_t bytes = 0;
    cairn_err err, answer = CAIRN_OK;

    if (type < CAIRN_KEEPER_PING || type > CAIRN_KEEPER_SHUTDOWN)
        return CAIRN_CORRUPT;
    if (type != CAIRN_KEEPER_PING && type != CAIRN_KEEPER_SHUTDOWN)
        cairn_read_string(reader, name, sizeof name);
    if (type == CAIRN_KEEPER_PUT)
        bytes = cairn_read_u64(reader);
    err = cairn_reader_done(reader);
    if (err)
        return err;
    if (type == CAIRN_KEEPER_PUT)
        answer = put_item(keeper, name, bytes);
    else if (type == CAIRN_KEEPER_DROP)
        answer = cairn_keeper_table_drop(&keeper->table, name);
    else if (type == CAIRN_KEEPER_SHUTDOWN)
        cairn_loop_stop(keeper->loop); /* after this turn, so the reply goes out */
    start_reply(keeper, type, answer, writer);
    if (type == CAIRN_KEEPER_LIST || type == CAIRN_KEEPER_GET)
        list_items(keeper, name, type == CAIRN_KEEPER_GET, writer);
    return CAIRN_OK;
}

/* Serves keeper->request, of this client. Anything but CAIRN_OK ends the connection. */
static cairn_err
serve(struct client *client)
{
    struct keeper *keeper = client->keeper;
    struct cairn_reader reader;
    struct cairn_writer writer;
    uint16_t version, type;
    cairn_err err;

    cairn_reader_init(&reader, keeper->request.bytes, keeper->request.bytes_len);
    if (cairn_read_u32(&reader) != CAIRN_KEEPER_MAGIC)
        return CAIRN_CORRUPT;
    version = cairn_read_u16(&reader);
    type = cairn_read_u16(&reader);
    if (version != CAIRN_KEEPER_VERSION) {
        start_reply(keeper, type, CAIRN_VERSION, &writer);
        err = send_reply(keeper, client->fd, &writer);
        return err ? err : CAIRN_VERSION;
    }
    err = carry_out(keeper, type, &reader, &writer);
    if (err)
        return err;
    client->known = true;
    return send_reply(keeper, client->fd, &writer);
}

/* ---- connections ---- */

/* Starts or stops the linger timer as the connections have changed. */
static void
settle_linger(struct keeper *keeper)
{
    bool known = false;

    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        known |= keeper->clients[i].fd >= 0 && keeper->clients[i].known;
    if (known || keeper->linger_ns == 0)
        cairn_timer_stop(keeper->loop, &keeper->linger);
    else if (!cairn_timer_started(&keeper->linger))
        cairn_timer_start(keeper->loop, &keeper->linger,
                          cairn_loop_now_ns(keeper->loop) + keeper->linger_ns);
}

static void
close_client(struct client *client)
{
    if (client->fd < 0)
        return;
    cairn_loop_fd_remove(client->keeper->loop, client->fd);
    close(client->fd);
    client->fd = -1;
    settle_linger(client->keeper);
}

static void
on_client(void *context, int fd, uint32_t ready)
{
    struct client *client = context;
    struct cairn_keeper_packet *request = &client->keeper->request;
    cairn_err err = cairn_keeper_packet_receive(fd, request);

    (void)ready;
    if (err == CAIRN_AGAIN)
        return;
    if (!err) {
        err = serve(client);
        cairn_keeper_packet_close(request);
    }
    if (err)
        close_client(client);
    else
        settle_linger(client->keeper);
}

/* A free place, made by ending the oldest connection that has not proved to be an agent's. */
static struct client *
find_client_place(struct keeper *keeper)
{
    struct client *oldest = NULL;

    for (uint32_t i = 0; i < CLIENTS_MAX; i++) {
        struct client *client = &keeper->clients[i];

        if (client->fd < 0)
            return client;
        if (!client->known && (!oldest || client->order < oldest->order))
            oldest = client;
    }
    if (oldest)
        close_client(oldest);
    return oldest;
}

static bool
is_our_user(int fd)
{
    struct ucred peer;
    socklen_t peer_bytes = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_bytes) == 0 &&
           peer.uid == geteuid();
}

static void
on_connect(void *context, int listen_fd, uint32_t ready)
{
    struct keeper *keeper = context;
    int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct cairn_writer writer;
    struct client *client;
    cairn_err err;

    (void)ready;
    if (fd < 0)
        return;
    client = is_our_user(fd) ? find_client_place(keeper) : NULL;
    if (!client) {
        start_reply(keeper, 0, is_our_user(fd) ? CAIRN_AGAIN : CAIRN_DENIED, &writer);
        err = send_reply(keeper, fd, &writer);
        (void)err; /* it is closed either way */
        close(fd);
        return;
    }
    client->fd = fd;
    client->known = false;
    client->order = ++keeper->arrivals;
    err = cairn_loop_fd_add(keeper->loop, fd, CAIRN_LOOP_READ, on_client, client);
    if (err) {
        close(fd);
        client->fd = -1;
    }
}

static void
on_linger_over(void *context)
{
    struct keeper *keeper = context;

    cairn_loop_stop(keeper->loop);
}

static void
on_terminate(void *context, int signal_number)
{
    struct keeper *keeper = context;

    (void)signal_number;
    cairn_loop_stop(keeper->loop);
}

/* ---- life ---- */

/* Closes all that the parent process left open, but for stdin, stdout and stderr. */
static cairn_err
leave_parent(void)
{
    struct rlimit fds;

    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    umask(0177); /* the socket and the lock are 0600 from their first instant */
    prctl(PR_SET_NAME, "cairn-keeper");
    setsid(); /* fails where we lead a group already, which then is not the agent's */
    if (close_range(3, ~0u, 0) || chdir("/")) {
        CAIRN_LOG_AT(ERROR, "keeper: cannot let go of the parent's descriptors: %m");
        return CAIRN_IO;
    }
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0 && fds.rlim_cur < FDS_WANTED) {
        fds.rlim_cur = fds.rlim_max < FDS_WANTED ? fds.rlim_max : FDS_WANTED;
        setrlimit(RLIMIT_NOFILE, &fds);
    }
    return CAIRN_OK;
}

/* Becomes the keeper of the path, or finds the one that is. */
static cairn_err
take_lock(struct keeper *keeper)
{
    struct stat ours, named;

    for (int tries = 0; tries < 16; tries++) {
        keeper->lock_fd = open(keeper->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (keeper->lock_fd < 0) {
            CAIRN_LOG_AT(ERROR,
                         "keeper: cannot open path=%s: %m; make its directory, owned by "
                         "this user",
                         keeper->lock_path);
            return errno == EACCES || errno == EPERM ? CAIRN_DENIED : CAIRN_IO;
        }
        if (flock(keeper->lock_fd, LOCK_EX | LOCK_NB))
            return errno == EWOULDBLOCK ? CAIRN_AGAIN : CAIRN_IO;
        /* A keeper that ends removes the name before it releases the lock: is it still ours? */
        if (fstat(keeper->lock_fd, &ours) == 0 && stat(keeper->lock_path, &named) == 0 &&
            ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) {
            (void)!ftruncate(keeper->lock_fd, 0);
            /* for who wants to end it */
            (void)!dprintf(keeper->lock_fd, "pid %ld\n", (long)getpid());
            return CAIRN_OK;
        }
        close(keeper->lock_fd);
        keeper->lock_fd = -1;
    }
    return CAIRN_AGAIN;
}

static cairn_err
start_listening(struct keeper *keeper)
{
    const char *path = keeper->address.sun_path;
    struct stat status;

    if (lstat(path, &status) == 0) {
        if (!S_ISSOCK(status.st_mode)) {
            CAIRN_LOG_AT(ERROR, "keeper: path=%s exists and is not a socket; remove it", path);
            return CAIRN_INVAL;
        }
        unlink(path); /* a dead keeper's: a live one has the lock */
    }
    keeper->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (keeper->listen_fd >= 0 &&
        bind(keeper->listen_fd, (struct sockaddr *)&keeper->address, sizeof keeper->address) == 0) {
        keeper->bound = true;
        if (listen(keeper->listen_fd, BACKLOG) == 0)
            return cairn_loop_fd_add(keeper->loop, keeper->listen_fd, CAIRN_LOOP_READ, on_connect,
                                     keeper);
    }
    CAIRN_LOG_AT(ERROR, "keeper: cannot listen on path=%s: %m", path);
    return errno == EACCES || errno == EPERM ? CAIRN_DENIED : CAIRN_IO;
}

static cairn_err
start(struct keeper *keeper, const char *socket_path, uint32_t linger_s)
{
    struct cairn_loop_options options = {.posts_max = 1, .fds_max = 2 * FDS_WANTED};
    cairn_err err;

    if (socket_path[0] != '/' ||
        strlen(socket_path) + sizeof ".lock" > sizeof keeper->address.sun_path) {
        CAIRN_LOG_AT(ERROR, "keeper: path=%s is not absolute or too long for a socket",
                     socket_path);
        return CAIRN_INVAL;
    }
    keeper->address.sun_family = AF_UNIX;
    snprintf(keeper->address.sun_path, sizeof keeper->address.sun_path, "%s", socket_path);
    snprintf(keeper->lock_path, sizeof keeper->lock_path, "%s.lock", socket_path);
    keeper->linger_ns = linger_s * CAIRN_NS_PER_S;
    err = leave_parent();
    if (err)
        return err;
    err = take_lock(keeper);
    if (err)
        return err;
    err = cairn_loop_create(&options, &keeper->loop);
    if (err)
        return err;
    err = cairn_loop_signal_add(keeper->loop, SIGTERM, on_terminate, keeper);
    if (err)
        return err;
    cairn_timer_init(&keeper->linger, on_linger_over, keeper);
    settle_linger(keeper);
    return start_listening(keeper);
}

/* Puts /dev/null in the place of stdin, stdout and stderr. */
static void
leave_terminal(void)
{
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd <= 2; fd++)
        if (null_fd < 0 || dup2(null_fd, fd) < 0)
            close(fd);
    if (null_fd > 2)
        close(null_fd);
}

/* Closes the terminal or pipe, unless the start failed, then tells the process that reads our old
 * stdout: a reader of "ready" finds a keeper that is wholly detached. */
static void
report_start(cairn_err err)
{
    int report_fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    char line[32];
    int length = err ? snprintf(line, sizeof line, "failed %d\n", (int)err)
                     : snprintf(line, sizeof line, "ready\n");
    ssize_t put;

    if (!err)
        leave_terminal();
    put = write(report_fd, line, (size_t)length);
    (void)put; /* nobody may be waiting */
    if (report_fd >= 0)
        close(report_fd);
}

static void
finish(struct keeper *keeper)
{
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        if (keeper->clients[i].fd >= 0)
            close(keeper->clients[i].fd);
    cairn_keeper_table_fini(&keeper->table);
    if (keeper->listen_fd >= 0)
        close(keeper->listen_fd);
    if (keeper->bound) { /* so the lock is ours: the names go before it does */
        unlink(keeper->address.sun_path);
        unlink(keeper->lock_path);
    }
    if (keeper->lock_fd >= 0)
        close(keeper->lock_fd);
    cairn_loop_destroy(keeper->loop);
    free(keeper);
}

cairn_err
cairn_keeper_run(const char *socket_path, uint32_t linger_s)
{
    struct keeper *keeper = calloc(1, sizeof *keeper);
    cairn_err err;

    if (!keeper) {
        report_start(CAIRN_NOMEM);
        return CAIRN_NOMEM;
    }
    keeper->lock_fd = keeper->listen_fd = -1;
    for (uint32_t i = 0; i < CLIENTS_MAX; i++)
        keeper->clients[i] = (struct client){.keeper = keeper, .fd = -1};
    err = start(keeper, socket_path, linger_s);
    report_start(err);
    if (!err)
        err = cairn_loop_run(keeper->loop);
    finish(keeper);
    return err;
}
