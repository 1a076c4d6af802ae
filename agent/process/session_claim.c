/* agent/process/session_claim.c - which process holds which rank of this node; see session.h. */
#include "agent/process/session.h"

#include "agent/process/agent_state.h"
#include "agent/process/cutting.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/session_region.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    NAME_BYTES = 17,
    HOLDER_BYTES = 384,
    ASK = 48, /* in an OPERATOR message's `verb`; services have lower numbers */
    ANSWER = 49
};
static const uint64_t asked_max_ns = CAIRN_NS_PER_S;

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

/* How a refusal names the holder of a rank. */
static void
describe_holder(const struct cairn_agent *agent, const struct session *holder, const char *where,
                char *text, size_t text_bytes)
{
    time_t since = (time_t)(holder->since_wall_ns / CAIRN_NS_PER_S);
    char when[32] = "", name[NAME_BYTES];
    struct tm calendar;

    if (gmtime_r(&since, &calendar))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &calendar);
    read_name(holder->pid, name);
    snprintf(text, text_bytes,
             "job \"%s\" already runs on %s: process %d (%s) has held rank %u since %s",
             agent->config.job, where, holder->pid, name, holder->hello.rank, when);
}

cairn_err
session_claim_rank(struct cairn_agent *agent, struct session *fresh, char *text, size_t text_bytes)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];
        bool same_rank = session->hello.rank == fresh->hello.rank;
        bool other_launch = session_is_rank(session) && session->slices.launch &&
                            fresh->slices.launch && session->slices.launch != fresh->slices.launch;
        char holder[HOLDER_BYTES], claimant[NAME_BYTES];

        if (session == fresh || !session->used || !session->holds_rank || session->stale ||
            (!same_rank && !other_launch) || (session->pid && session->pid == fresh->pid))
            continue;
        if (has_ended(session)) {
            session_show_out(agent, session);
            continue;
        }
        describe_holder(agent, session, "this node", holder, sizeof holder);
        read_name(fresh->pid, claimant);
        snprintf(text, text_bytes,
                 "%s, and process %d (%s) claims rank %u; end one of them, or give the new launch "
                 "another job name and its own agents",
                 holder, fresh->pid, claimant, fresh->hello.rank);
        return CAIRN_AGAIN;
    }
    fresh->holds_rank = true;
    return CAIRN_OK;
}

/* ---- ranks that other nodes hold ---- */

static void
send(struct cairn_agent *agent, uint32_t to, uint32_t verb, uint64_t request, uint32_t rank,
     uint64_t launch, cairn_err err, const char *text)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OPERATOR,
                                            .from = agent->config.node,
                                            .to = to,
                                            .verb = verb,
                                            .item = rank,
                                            .err = err,
                                            .request = request,
                                            .offset = launch,
                                            .bytes = (const uint8_t *)text,
                                            .bytes_len = (uint32_t)strlen(text)};

    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

void
session_claim_elsewhere(struct cairn_agent *agent, struct session *session)
{
    struct cairn_core_view view;

    session->asked_agents = 0;
    cairn_core_look(agent->core, &view);
    if (!session->slices.launch || !view.roster || view.self_member != UINT32_MAX)
        return;
    for (uint32_t a = 0; a < agent->config.node_count; a++) {
        if (a == agent->config.node || !cairn_core_alive(agent->core, a))
            continue;
        session->asked_agents++;
        send(agent, a, ASK, session->serial, session->hello.rank, session->slices.launch, CAIRN_OK,
             "");
    }
    session->asked_until_ns = agent_now_ns(agent) + asked_max_ns;
}

bool
session_claim_is_open(const struct cairn_agent *agent, const struct session *session)
{
    return session->asked_agents > 0 && agent_now_ns(agent) < session->asked_until_ns;
}

/* Whether another launch has the rank here. */
static void
answer(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    char where[32], text[HOLDER_BYTES + 128], holder[HOLDER_BYTES];
    cairn_err err = CAIRN_OK;

    text[0] = '\0';
    for (uint32_t i = 0; !err && i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];

        if (!session->used || !session_is_rank(session) || session->stale ||
            session->hello.rank != message->item || !session->slices.launch ||
            session->slices.launch == message->offset || has_ended(session))
            continue;
        err = CAIRN_AGAIN;
        snprintf(where, sizeof where, "node %u", agent->config.node);
        describe_holder(agent, session, where, holder, sizeof holder);
        snprintf(
            text, sizeof text,
            "%s; end one of the launches, or give the new one another job name and its own agents",
            holder);
    }
    send(agent, message->from, ANSWER, message->request, message->item, 0, err, text);
}

static void
take_answer(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    char said[HOLDER_BYTES + 128], text[HOLDER_BYTES + 128];

    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *session = &agent->sessions[i];
        uint32_t request = session->slices.request;

        if (!session->used || session->serial != message->request || session->is_answered ||
            !session_is_rank(session) || session->asked_agents == 0)
            continue;
        session->asked_agents--;
        if (message->err != CAIRN_AGAIN)
            break;
        session->asked_agents = 0;
        session->holds_rank = false;
        cutting_forget(agent, session);
        session_forget_region(session);
        session_tell_ranks(agent);
        snprintf(said, sizeof said, "%.*s", (int)message->bytes_len, (const char *)message->bytes);
        cairn_text_clean(text, sizeof text, said);
        session_refuse(session, request, CAIRN_AGAIN, text);
        session_flush(agent, session);
        return;
    }
    sessions_answer(agent);
}

bool
session_claim_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (message->verb == ASK)
        answer(agent, message);
    else if (message->verb == ANSWER)
        take_answer(agent, message);
    return message->verb == ASK || message->verb == ANSWER;
}
