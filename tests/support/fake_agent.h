/*
 * tests/support/fake_agent.h - a stand-in for the agent: a real socket, real memfds, scripted
 * answers.
 *
 * It serves up to FAKE_CONNECTIONS clients from a thread, or from a forked process that can be
 * killed and stopped. The struct lies in memory that both processes share: switches are read at
 * every turn, and what was heard is counted. All in one header, because only the client's tests can
 * link it.
 */
#ifndef CAIRN_TESTS_FAKE_AGENT_H
#define CAIRN_TESTS_FAKE_AGENT_H

#include "base/limits.h"
#include "client/session.h"
#include "snapshot/manifest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    FAKE_CONNECTIONS = 4,
    FAKE_SLOTS = 2,
    FAKE_SLOT_BYTES = 32 << 20,
    FAKE_REGION_STRIDE = 8 << 20, /* one region per connection, by rank */
    FAKE_BLOCKS = FAKE_REGION_STRIDE / CAIRN_BLOCK_BYTES,
    FAKE_CONTAINERS = 4
};

#define FAKE __attribute__((unused)) static

struct fake_agent {
    char directory[64];
    char path[96];
    int slot_fds[FAKE_SLOTS];
    uint8_t *slots[FAKE_SLOTS];
    int window_fd;
    uint8_t *window;
    size_t window_bytes;
    pthread_t thread;
    pid_t process; /* 0: a thread */

    /* switches */
    atomic_int stop;
    atomic_int hold_welcome, hold_registered, hold_grants; /* 1: do not answer yet */
    atomic_int skip_reason; /* not 0: SKIP with it instead of GRANT */
    atomic_int hello_err, register_err, protocol, epoch;
    atomic_int welcome_flags;
    atomic_int unsealed, region_lie; /* wrong memory in REGISTERED */
    atomic_ullong region_at;         /* of all ranks; 0: a stride per rank */
    atomic_int drop_at_grant;        /* GRANT is followed by DROP at once */
    atomic_int poison_answer;        /* not 0: POISON is answered with DROP for this reason */
    atomic_int commits;              /* DONE is followed by COMMITTED at once */
    atomic_int close_at_grant;       /* the connection ends after GRANT */
    atomic_int close_at_fetch, hold_fetches, fetch_err;
    const uint8_t *raw; /* sent after WELCOME */
    size_t raw_bytes;

    /* heard */
    atomic_int connections, hellos, registers, begins, pieces, dones, cancels, restores, fetches,
        fetches_waiting_max, restoreds, stats, damaged;
    atomic_int cancel_reason, restored_err;
    atomic_uint last_slot; /* granted */
    atomic_uint done_slot; /* of the newest capture that ended well */
    atomic_int coverages;
    atomic_int rings;         /* of timing records, handed over */
    atomic_int leaves;        /* trainers that have said so */
    atomic_int lasts;         /* BEGIN of a last step */
    atomic_ullong ring_inode; /* of the last one */
    pthread_mutex_t coverage_lock;
    struct cairn_session_coverage coverage;   /* the last one */
    struct cairn_session_poison poison;       /* the last one, guarded likewise */
    struct cairn_session_unwatched unwatched; /* the same */
    atomic_int poisons;
    atomic_ullong hello_epoch, hello_pid, last_step, restored_bytes, stats_fences;
    atomic_ullong blocks[FAKE_CONNECTIONS];
    uint64_t crcs[FAKE_CONNECTIONS][FAKE_BLOCKS];

    /* what can be restored */
    cairn_err restore_err;
    atomic_int busy_restores; /* so many are answered with CAIRN_AGAIN before that */
    atomic_int mute_restores; /* 1: after these none is answered */
    struct cairn_generation_id generation;
    uint32_t source, container_count, own_container, own_slot;
    struct cairn_session_bytes manifests[FAKE_CONTAINERS];
    const uint8_t *containers[FAKE_CONTAINERS];
    uint64_t container_bytes[FAKE_CONTAINERS];
    uint32_t flip_container; /* a fetched block that comes damaged … */
    uint64_t flip_block;
    atomic_int flips; /* … this many times */
};

struct fake_connection {
    int fd;
    uint32_t rank;
    struct cairn_session_reader reader;
    struct cairn_session_writer writer;
    bool greeted, welcome_due, registered_due, begin_due, closing;
    uint32_t register_request;
    uint64_t region_bytes, begin_step;
    struct cairn_session_fetch waiting[8];
    uint32_t waiting_count;
    uint32_t grants;
};

/* ---- answers ---- */

FAKE void
fake_check(cairn_err err)
{
    if (err) {
        fprintf(stderr, "fake agent: a frame could not be queued: %s\n", cairn_err_name(err));
        abort();
    }
}

FAKE void
fake_welcome(struct fake_agent *agent, struct fake_connection *connection)
{
    struct cairn_session_welcome welcome = {(uint32_t)agent->protocol, (uint64_t)agent->epoch, 3,
                                            (uint32_t)agent->welcome_flags};

    fake_check(cairn_session_put_welcome(&connection->writer, &welcome));
    connection->welcome_due = false;
    connection->greeted = true;
    if (agent->raw) { /* any frame, without the checks of the writer */
        if (cairn_session_writer_send(&connection->writer, connection->fd) == CAIRN_OK)
            (void)!send(connection->fd, agent->raw, agent->raw_bytes, MSG_NOSIGNAL);
    }
}

FAKE void
fake_registered(struct fake_agent *agent, struct fake_connection *connection)
{
    struct cairn_session_registered registered = {
        connection->register_request,
        agent->region_at ? agent->region_at : (uint64_t)connection->rank * FAKE_REGION_STRIDE,
        connection->region_bytes, FAKE_SLOTS};
    int fds[FAKE_SLOTS] = {agent->slot_fds[0], agent->slot_fds[1]};
    int bad = -1;

    if (agent->unsealed) {
        bad = memfd_create("bad", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        fake_check(ftruncate(bad, FAKE_SLOT_BYTES) ? CAIRN_IO : CAIRN_OK);
        fds[1] = bad;
    }
    if (agent->region_lie == 1)
        registered.region_bytes += CAIRN_BLOCK_BYTES;
    if (agent->region_lie == 2)
        registered.region_offset = FAKE_SLOT_BYTES;
    fake_check(cairn_session_put_registered(&connection->writer, &registered, fds));
    if (bad >= 0)
        close(bad);
    connection->registered_due = false;
}

FAKE void
fake_grant(struct fake_agent *agent, struct fake_connection *connection)
{
    struct cairn_generation_id generation = {.epoch = (uint64_t)agent->epoch,
                                             .step = connection->begin_step};

    if (agent->skip_reason) {
        struct cairn_session_skip skip = {connection->begin_step, (uint32_t)agent->skip_reason,
                                          "as told"};

        fake_check(cairn_session_put_skip(&connection->writer, &skip));
    } else {
        struct cairn_session_grant grant = {connection->begin_step, generation,
                                            connection->grants++ % FAKE_SLOTS};

        agent->blocks[connection->rank] = 0;
        agent->last_slot = grant.slot;
        fake_check(cairn_session_put_grant(&connection->writer, &grant));
        if (agent->drop_at_grant)
            fake_check(cairn_session_put_drop(
                &connection->writer, &(struct cairn_session_drop){generation, CAIRN_REASON_OTHER}));
        connection->closing = agent->close_at_grant;
    }
    connection->begin_due = false;
}

FAKE void
fake_restore_info(struct fake_agent *agent, struct fake_connection *connection, uint32_t request)
{
    struct cairn_session_restore_info info = {.request = request, .err = agent->restore_err};

    snprintf(info.text, sizeof info.text, "as told");
    if (agent->busy_restores > 0) {
        agent->busy_restores--;
        info.err = CAIRN_AGAIN;
    } else if (agent->mute_restores)
        return;
    if (!info.err) {
        info.generation = agent->generation;
        info.source = agent->source;
        info.window_bytes = agent->window_bytes;
        info.own_container = agent->own_container;
        info.own_slot = agent->own_slot;
        info.count = agent->container_count;
        info.manifests = agent->manifests;
    }
    fake_check(cairn_session_put_restore_info(&connection->writer, &info,
                                              info.err ? -1 : agent->window_fd));
}

FAKE void
fake_fetch(struct fake_agent *agent, struct fake_connection *connection,
           const struct cairn_session_fetch *fetch)
{
    struct cairn_session_fetched fetched = {.request = fetch->request,
                                            .err = (cairn_err)(int)agent->fetch_err};

    snprintf(fetched.text, sizeof fetched.text, "as told");
    for (uint32_t i = 0; i < fetch->count; i++) {
        const struct cairn_session_fetch_item *item = &fetch->items[i];

        for (uint32_t b = 0; b < item->block_count; b++) {
            uint64_t block = item->first_block + b, at = block * CAIRN_BLOCK_BYTES;
            uint64_t to = item->window_offset + (uint64_t)b * CAIRN_BLOCK_BYTES, bytes;

            if (item->container >= agent->container_count ||
                at >= agent->container_bytes[item->container] ||
                to + CAIRN_BLOCK_BYTES > agent->window_bytes) {
                agent->damaged++;
                return;
            }
            bytes = agent->container_bytes[item->container] - at;
            bytes = bytes < CAIRN_BLOCK_BYTES ? bytes : CAIRN_BLOCK_BYTES;
            memcpy(agent->window + to, agent->containers[item->container] + at, bytes);
            if (agent->flips > 0 && item->container == agent->flip_container &&
                block == agent->flip_block) {
                agent->window[to + bytes / 2] ^= 0x10;
                agent->flips--;
            }
        }
    }
    fake_check(cairn_session_put_fetched(&connection->writer, &fetched));
}

/* ---- frames ---- */

FAKE void
fake_take_register(struct fake_agent *agent, struct fake_connection *connection,
                   const struct cairn_session_frame *frame)
{
    struct cairn_session_register all = {0};
    struct cairn_manifest_entry *entries;

    if (cairn_session_take_register(frame, &all)) {
        agent->damaged++;
        return;
    }
    agent->registers++;
    connection->register_request = all.request;
    entries = calloc(all.count + 1, sizeof *entries);
    if (!entries ||
        cairn_capture_plan(all.slices, all.count, entries, &connection->region_bytes, NULL))
        agent->damaged++;
    free(entries);
    cairn_session_register_fini(&all);
    if (agent->register_err) {
        struct cairn_session_refused refused = {connection->register_request,
                                                (cairn_err)(int)agent->register_err,
                                                "needs 9 GiB, has 4 GiB"};

        fake_check(cairn_session_put_refused(&connection->writer, &refused));
    } else {
        connection->registered_due = true;
    }
}

FAKE void
fake_take_piece(struct fake_agent *agent, struct fake_connection *connection,
                const struct cairn_session_frame *frame)
{
    static _Thread_local struct cairn_session_piece piece;
    uint32_t rank = connection->rank;

    if (cairn_session_take_piece(frame, &piece) || piece.first_block != agent->blocks[rank] ||
        piece.first_block + piece.count > FAKE_BLOCKS ||
        piece.generation.step != connection->begin_step) {
        agent->damaged++;
        return;
    }
    memcpy(&agent->crcs[rank][piece.first_block], piece.crcs, piece.count * sizeof *piece.crcs);
    agent->blocks[rank] += piece.count;
    agent->pieces++;
}

FAKE void
fake_take_hello(struct fake_agent *agent, struct fake_connection *connection,
                const struct cairn_session_frame *frame)
{
    struct cairn_session_hello hello;

    if (cairn_session_take_hello(frame, &hello) || hello.rank >= FAKE_CONNECTIONS) {
        agent->damaged++;
        return;
    }
    agent->hello_epoch = hello.epoch;
    agent->hello_pid = hello.pid;
    agent->hellos++;
    connection->rank = hello.rank;
    if (agent->hello_err) {
        struct cairn_session_refused refused = {0, (cairn_err)(int)agent->hello_err, "as told"};

        fake_check(cairn_session_put_refused(&connection->writer, &refused));
        connection->closing = true;
    } else {
        connection->welcome_due = true;
    }
}

FAKE void
fake_take_restore_frame(struct fake_agent *agent, struct fake_connection *connection,
                        const struct cairn_session_frame *frame)
{
    struct cairn_session_restore restore;
    struct cairn_session_restored restored;
    struct cairn_session_fetch *fetch = &connection->waiting[connection->waiting_count];

    if (frame->type == CAIRN_SESSION_RESTORE && !cairn_session_take_restore(frame, &restore)) {
        agent->restores++;
        fake_restore_info(agent, connection, restore.request);
    } else if (frame->type == CAIRN_SESSION_FETCH && connection->waiting_count < 8 &&
               !cairn_session_take_fetch(frame, fetch)) {
        agent->fetches++;
        connection->closing = connection->closing || agent->close_at_fetch;
        connection->waiting_count++;
        if ((int)connection->waiting_count > agent->fetches_waiting_max)
            agent->fetches_waiting_max = (int)connection->waiting_count;
    } else if (frame->type == CAIRN_SESSION_RESTORED &&
               !cairn_session_take_restored(frame, &restored)) {
        agent->restored_err = (int)restored.err;
        agent->restored_bytes = restored.bytes;
        connection->waiting_count = 0;
        agent->restoreds++;
    } else {
        agent->damaged++;
    }
}

FAKE void
fake_take_poison(struct fake_agent *agent, struct fake_connection *connection,
                 const struct cairn_session_frame *frame)
{
    struct cairn_session_poison poison;
    struct cairn_session_drop drop = {.reason = (uint32_t)agent->poison_answer};

    if (cairn_session_take_poison(frame, &poison) ||
        agent->blocks[connection->rank] != connection->region_bytes / CAIRN_BLOCK_BYTES) {
        agent->damaged++;
        return;
    }
    pthread_mutex_lock(&agent->coverage_lock);
    agent->poison = poison;
    pthread_mutex_unlock(&agent->coverage_lock);
    agent->poisons++;
    drop.generation = poison.generation;
    if (drop.reason)
        fake_check(cairn_session_put_drop(&connection->writer, &drop));
}

FAKE void
fake_take(struct fake_agent *agent, struct fake_connection *connection,
          const struct cairn_session_frame *frame)
{
    struct cairn_session_begin begin;
    struct cairn_session_done done;
    struct cairn_session_cancel cancel;
    struct cairn_client_stats stats;
    struct cairn_session_coverage coverage;
    struct cairn_session_timing timing;

    if (frame->type == CAIRN_SESSION_HELLO) {
        fake_take_hello(agent, connection, frame);
    } else if (!connection->greeted) {
        agent->damaged++;
    } else if (frame->type == CAIRN_SESSION_REGISTER) {
        fake_take_register(agent, connection, frame);
    } else if (frame->type == CAIRN_SESSION_PIECE) {
        fake_take_piece(agent, connection, frame);
    } else if (frame->type == CAIRN_SESSION_BEGIN && !cairn_session_take_begin(frame, &begin)) {
        connection->begin_due = true;
        connection->begin_step = begin.step;
        agent->last_step = begin.step;
        agent->lasts += begin.last;
        agent->begins++;
    } else if (frame->type == CAIRN_SESSION_DONE && !cairn_session_take_done(frame, &done)) {
        if (agent->blocks[connection->rank] != connection->region_bytes / CAIRN_BLOCK_BYTES)
            agent->damaged++;
        agent->done_slot = agent->last_slot;
        agent->dones++;
        if (agent->commits)
            fake_check(cairn_session_put_committed(
                &connection->writer, &(struct cairn_session_committed){done.generation}));
    } else if (frame->type == CAIRN_SESSION_UNWATCHED) {
        pthread_mutex_lock(&agent->coverage_lock);
        fake_check(cairn_session_take_unwatched(frame, &agent->unwatched));
        pthread_mutex_unlock(&agent->coverage_lock);
    } else if (frame->type == CAIRN_SESSION_POISON) {
        fake_take_poison(agent, connection, frame);
    } else if (frame->type == CAIRN_SESSION_CANCEL && !cairn_session_take_cancel(frame, &cancel)) {
        connection->begin_due = false;
        agent->cancel_reason = (int)cancel.reason;
        agent->cancels++;
    } else if (frame->type == CAIRN_SESSION_STATS && !cairn_session_take_stats(frame, &stats)) {
        agent->stats_fences = stats.fence_count;
        agent->stats++;
    } else if (frame->type == CAIRN_SESSION_COVERAGE &&
               !cairn_session_take_coverage(frame, &coverage)) {
        pthread_mutex_lock(&agent->coverage_lock);
        agent->coverage = coverage;
        pthread_mutex_unlock(&agent->coverage_lock);
        agent->coverages++;
    } else if (frame->type == CAIRN_SESSION_TIMING && !cairn_session_take_timing(frame, &timing)) {
        struct stat status;

        fake_check(fstat(frame->fds[0], &status) ? CAIRN_IO : CAIRN_OK);
        agent->ring_inode = status.st_ino;
        agent->rings++;
    } else if (frame->type == CAIRN_SESSION_LEAVE) {
        fake_check(cairn_session_take_leave(frame));
        agent->leaves++;
    } else {
        fake_take_restore_frame(agent, connection, frame);
    }
}

/* ---- the loop ---- */

FAKE void
fake_close(struct fake_connection *connection)
{
    cairn_session_reader_fini(&connection->reader);
    cairn_session_writer_fini(&connection->writer);
    if (connection->fd >= 0)
        close(connection->fd);
    memset(connection, 0, sizeof *connection);
    connection->fd = -1;
}

/* One turn of one connection; false when it has ended. */
FAKE bool
fake_turn(struct fake_agent *agent, struct fake_connection *connection)
{
    struct cairn_session_frame frame;
    cairn_err got = cairn_session_reader_receive(&connection->reader, connection->fd);
    cairn_err err;

    while ((err = cairn_session_reader_next(&connection->reader, &frame)) == CAIRN_OK) {
        fake_take(agent, connection, &frame);
        cairn_session_frame_fini(&frame);
    }
    if (err != CAIRN_AGAIN)
        agent->damaged++;
    if (connection->welcome_due && !agent->hold_welcome)
        fake_welcome(agent, connection);
    if (connection->registered_due && !agent->hold_registered)
        fake_registered(agent, connection);
    if (connection->begin_due && !agent->hold_grants)
        fake_grant(agent, connection);
    if (!agent->hold_fetches && !connection->closing) {
        for (uint32_t i = 0; i < connection->waiting_count; i++)
            fake_fetch(agent, connection, &connection->waiting[i]);
        connection->waiting_count = 0;
    }
    err = cairn_session_writer_send(&connection->writer, connection->fd);
    return got != CAIRN_PEER && err != CAIRN_PEER && !(connection->closing && err == CAIRN_OK);
}

FAKE void *
fake_agent_serve(void *argument)
{
    struct fake_agent *agent = argument;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct fake_connection *connections = calloc(FAKE_CONNECTIONS, sizeof *connections);
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (!connections || listener < 0)
        abort();
    unlink(agent->path);
    memcpy(address.sun_path, agent->path, strlen(agent->path));
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8))
        abort();
    for (int i = 0; i < FAKE_CONNECTIONS; i++)
        connections[i].fd = -1;
    while (!agent->stop) {
        struct pollfd fds[1 + FAKE_CONNECTIONS] = {{.fd = listener, .events = POLLIN}};

        for (int i = 0; i < FAKE_CONNECTIONS; i++)
            fds[1 + i] = (struct pollfd){.fd = connections[i].fd, .events = POLLIN};
        poll(fds, 1 + FAKE_CONNECTIONS, 2); /* switches are looked at this often */
        for (int i = 0; i < FAKE_CONNECTIONS; i++) {
            struct fake_connection *connection = &connections[i];

            if (connection->fd < 0) {
                connection->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (connection->fd < 0)
                    continue;
                agent->connections++;
                cairn_session_reader_init(&connection->reader, CAIRN_SESSION_CLIENT);
                cairn_session_writer_init(&connection->writer, 64 << 20);
            }
            if (!fake_turn(agent, connection))
                fake_close(connection);
        }
    }
    for (int i = 0; i < FAKE_CONNECTIONS; i++)
        fake_close(&connections[i]);
    close(listener);
    unlink(agent->path);
    free(connections);
    return NULL;
}

/* ---- its life ---- */

FAKE int
fake_memfd(size_t bytes)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) || fallocate(fd, 0, 0, (off_t)bytes) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        abort();
    return fd;
}

FAKE uint8_t *
fake_map(int fd, size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (map == MAP_FAILED)
        abort();
    return map;
}

/* Makes an agent that does not run yet. */
FAKE struct fake_agent *
fake_agent_create(size_t window_bytes)
{
    struct fake_agent *agent =
        mmap(NULL, sizeof *agent, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (agent == MAP_FAILED)
        abort();
    snprintf(agent->directory, sizeof agent->directory, "%s/cairn-fake-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(agent->directory))
        abort();
    snprintf(agent->path, sizeof agent->path, "%s/agent", agent->directory);
    for (int i = 0; i < FAKE_SLOTS; i++) {
        agent->slot_fds[i] = fake_memfd(FAKE_SLOT_BYTES);
        agent->slots[i] = fake_map(agent->slot_fds[i], FAKE_SLOT_BYTES);
    }
    agent->window_bytes = window_bytes;
    agent->window_fd = fake_memfd(window_bytes);
    agent->window = fake_map(agent->window_fd, window_bytes);
    agent->protocol = CAIRN_SESSION_PROTOCOL;
    agent->epoch = 1;
    agent->source = CAIRN_SOURCE_MEMORY;
    agent->own_container = CAIRN_CONTAINER_NONE;
    return agent;
}

FAKE void
fake_agent_start(struct fake_agent *agent)
{
    agent->stop = 0;
    agent->process = 0;
    if (pthread_create(&agent->thread, NULL, fake_agent_serve, agent))
        abort();
}

/* Ends the thread, and with it every connection, as if the agent had died. */
FAKE void
fake_agent_stop(struct fake_agent *agent)
{
    agent->stop = 1;
    pthread_join(agent->thread, NULL);
}

/* Runs the agent in a process, which can be stopped and killed. No thread may run at this moment.
 */
FAKE void
fake_agent_fork(struct fake_agent *agent)
{
    pid_t process;

    agent->stop = 0;
    process = fork();
    if (process < 0)
        abort();
    if (process == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* with a test that fails */
        fake_agent_serve(agent);
        _exit(0);
    }
    agent->process = process; /* by the parent alone: the struct is shared */
}

FAKE void
fake_agent_kill(struct fake_agent *agent, int signal_number)
{
    if (agent->process <= 0)
        abort();
    kill(agent->process, signal_number);
    if (signal_number == SIGKILL)
        waitpid(agent->process, NULL, 0);
}

FAKE void
fake_agent_destroy(struct fake_agent *agent)
{
    for (int i = 0; i < FAKE_SLOTS; i++) {
        munmap(agent->slots[i], FAKE_SLOT_BYTES);
        close(agent->slot_fds[i]);
    }
    munmap(agent->window, agent->window_bytes);
    close(agent->window_fd);
    unlink(agent->path);
    rmdir(agent->directory);
    munmap(agent, sizeof *agent);
}

FAKE uint64_t
fake_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Waits until a counter has reached `value`; false after ten seconds. */
FAKE bool
fake_reaches(const atomic_int *counter, int value)
{
    uint64_t until_ms = fake_now_ms() + 60000;

    while (*counter < value) {
        if (fake_now_ms() > until_ms)
            return false;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return true;
}

#undef FAKE
#endif
