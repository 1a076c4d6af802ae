/* agent/process/session_socket.c - the Unix socket of the node; see session_socket.h. */
#include "agent/process/session_socket.h"

#include "agent/process/agent_state.h"
#include "agent/process/cutting.h"
#include "agent/process/served.h"
#include "agent/process/session.h"
#include "agent/process/session_frame.h"
#include "agent/process/step.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A process that connects must send HELLO within this time. */
static const uint64_t hello_deadline_ns = 10 * CAIRN_NS_PER_S;
/* A session that closes must read what is queued within this time. */
static const uint64_t closing_deadline_ns = 5 * CAIRN_NS_PER_S;

static void
accept_one(struct cairn_agent *agent, int fd)
{
    struct ucred peer;
    socklen_t peer_len = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) != 0 ||
        (peer.uid != geteuid() && peer.uid != 0)) {
        CAIRN_LOG_AT(WARN, "session: refused a process of another user uid=%u pid=%d", peer.uid,
                     peer.pid);
        close(fd);
        return;
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (session->used)
            continue;
        memset(session, 0, sizeof *session);
        session->index = i;
        session->fd = fd;
        session->serial = ++agent->socket.next_serial;
        session->pid_fd = -1;
        session->since_ns = agent_now_ns(agent);
        session->since_wall_ns = cairn_clock_wall_ns(&agent->clock);
        cairn_session_reader_init(&session->reader, CAIRN_SESSION_CLIENT);
        cairn_session_writer_init(&session->writer, SESSION_QUEUE_BYTES);
        if (cairn_loop_fd_add(agent->loop, fd, CAIRN_LOOP_READ, session_ready, session) != CAIRN_OK)
            break;
        session->used = true;
        if (i >= agent->sessions_end)
            agent->sessions_end = i + 1;
        return;
    }
    CAIRN_LOG_AT(WARN, "session: refused, %d sessions are open", SESSIONS_MAX);
    close(fd);
}

static void
listen_ready(void *context, int fd, uint32_t ready)
{
    struct cairn_agent *agent = context;

    (void)ready;
    for (;;) {
        int accepted = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (accepted >= 0) {
            accept_one(agent, accepted);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN) { /* out of descriptors: the backlog stays, so do not ask again at
                                * once */
            CAIRN_LOG_AT(WARN, "session: cannot accept: %m");
            agent->socket.paused = cairn_loop_fd_set(agent->loop, fd, 0) == CAIRN_OK;
        }
        return;
    }
}

void
sessions_tick(struct cairn_agent *agent)
{
    uint64_t now_ns = agent_now_ns(agent);

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session->used)
            continue;
        if ((session->state == SESSION_NEW && now_ns - session->since_ns > hello_deadline_ns) ||
            (session->closing_ns && now_ns - session->closing_ns > closing_deadline_ns))
            session->ending = session->state != SESSION_DRAINING;
    }
    cutting_advance(agent);
    sessions_answer(agent);
    sessions_reap(agent);
    if (agent->socket.paused)
        agent->socket.paused =
            cairn_loop_fd_set(agent->loop, agent->socket.listen_fd, CAIRN_LOOP_READ) != CAIRN_OK;
}

cairn_err
sessions_lock(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        agent->sessions[i].fd = agent->sessions[i].pid_fd = -1;
    return cairn_served_claim(&agent->config, &agent->socket.lock_fd);
}

cairn_err
sessions_open(struct cairn_agent *agent)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = agent->config.socket;
    struct stat status;
    mode_t mask;
    int fd;

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (lstat(path, &status) == 0 && !S_ISSOCK(status.st_mode)) {
        CAIRN_LOG_AT(ERROR, "session: %s exists and is not a socket; set `socket` to another path",
                     path);
        return CAIRN_CONFIG;
    }
    unlink(path); /* of an agent that died: the lock is free */
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mask = umask(0177);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(fd, SESSIONS_MAX) != 0) {
        CAIRN_LOG_AT(ERROR,
                     "session: cannot listen on %s: %s; check that its folder exists and is ours",
                     path, strerror(errno));
        umask(mask);
        if (fd >= 0)
            close(fd);
        return CAIRN_IO;
    }
    umask(mask);
    agent->socket.listen_fd = fd;
    return cairn_loop_fd_add(agent->loop, fd, CAIRN_LOOP_READ, listen_ready, agent);
}

void
sessions_close(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (agent->sessions[i].used)
            session_end(agent, &agent->sessions[i]);
    if (agent->socket.listen_fd < 0)
        return;
    cairn_loop_fd_remove(agent->loop, agent->socket.listen_fd);
    close(agent->socket.listen_fd);
    agent->socket.listen_fd = -1;
    unlink(agent->config.socket);
}

void
sessions_unlock(struct cairn_agent *agent)
{
    cairn_served_release(&agent->config, agent->socket.lock_fd);
    agent->socket.lock_fd = -1;
}
