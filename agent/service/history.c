/* agent/service/history.c - records verdicts, placements and operators; see history.h. */
#include "agent/service/history.h"

#include "agent/process/agent_state.h"
#include "agent/process/recorder.h"
#include "agent/service/history_changes.h"
#include "agent/service/placing.h"
#include "agent/service/timing.h"

#include <stdlib.h>
#include <sys/socket.h>

struct history_state {
    struct history_verdicts verdicts;
    struct history_placements placements;
};

static void
record(void *context, const struct history_event *event)
{
    recorder_add(context, event);
}

cairn_err
history_open(struct cairn_agent *agent)
{
    agent->history = calloc(1, sizeof *agent->history);
    if (!agent->history)
        return CAIRN_NOMEM;
    /* what was stored is not a change */
    history_verdicts_look(&agent->history->verdicts, timing_ledger(agent), NULL, NULL);
    history_placements_look(&agent->history->placements, placing_book(agent), NULL, NULL);
    return CAIRN_OK;
}

void
history_close(struct cairn_agent *agent)
{
    free(agent->history);
    agent->history = NULL;
}

void
history_tick(struct cairn_agent *agent)
{
    history_verdicts_look(&agent->history->verdicts, timing_ledger(agent), record, agent);
    history_placements_look(&agent->history->placements, placing_book(agent), record, agent);
}

void
history_operator(struct cairn_agent *agent, const struct session *session, const char *text)
{
    struct history_event event = history_event_of(HISTORY_OPERATOR);
    struct ucred peer;
    socklen_t peer_len = sizeof peer;

    event.node = agent->config.node;
    if (getsockopt(session->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_len) == 0) {
        event.other = peer.uid;
        event.subject = peer.pid > 0 ? (uint64_t)peer.pid : 0;
    }
    event.text = text;
    recorder_add(agent, &event);
}
