/* agent/process/session_claim.c - which process holds which rank of this node; see session.h. */
#include "agent/process/session.h"

#include "agent/process/agent_state.h"
#include "agent/process/session_region.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 17 };

/* True if a trainer's process has ended, or has closed its end: the loop has not come to that
 * yet. */
static bool
has_ended(const struct session *session)
{
    struct pollfd polled[] = {{.fd = session->fd, .events = POLLRDHUP},
                              {.fd = session->pid_fd, .events = POLLIN}};

    if (poll(polled, 2, 0) > 0)
        return (polled[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) || polled[1].revents;
    return session->pid_fd < 0 && session->pid > 0 && kill(session->pid, 0) != 0 && errno == ESRCH;
}

/* What /proc calls a process; "?" if it cannot be read. */
static void
read_name(int pid, char name[NAME_BYTES])
{
    char path[32];
    ssize_t len = -1;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        len = read(fd, name, NAME_BYTES - 1);
        close(fd);
    }
    if (len <= 1) { /* a name and a newline */
        name[0] = '?';
        len = 2;
    }
    name[len - 1] = '\0';
}

cairn_err
session_claim_rank(struct cairn_agent *agent, struct session *fresh, char *text, size_t text_bytes)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];
        bool same_rank = session->hello.rank == fresh->hello.rank;
        bool other_launch = session_is_rank(session) && session->slices.launch &&
                            fresh->slices.launch && session->slices.launch != fresh->slices.launch;
        time_t since = (time_t)(session->since_wall_ns / CAIRN_NS_PER_S);
        char when[32] = "", holder[NAME_BYTES], claimant[NAME_BYTES];
        struct tm calendar;

        if (session == fresh || !session->used || !session->holds_rank || session->stale ||
            (!same_rank && !other_launch) || (session->pid && session->pid == fresh->pid))
            continue;
        if (has_ended(session)) {
            session_show_out(agent, session);
            continue;
        }
        if (gmtime_r(&since, &calendar))
            strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &calendar);
        read_name(session->pid, holder);
        read_name(fresh->pid, claimant);
        snprintf(text, text_bytes,
                 "job \"%s\" already runs on this node: process %d (%s) has held rank %u since %s, "
                 "and process %d (%s) claims rank %u. End one of them, or give the new launch "
                 "another job name and its own agents",
                 agent->config.job, session->pid, holder, session->hello.rank, when, fresh->pid,
                 claimant, fresh->hello.rank);
        return CAIRN_AGAIN;
    }
    fresh->holds_rank = true;
    return CAIRN_OK;
}
