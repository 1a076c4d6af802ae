/* agent/process/step.c - takes one event at a time through the protocol core; see step.h. */
#include "agent/process/step.h"

#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

struct queued_event {
    struct queued_event *next;
    struct cairn_event event; /* its pointers lead into `data` */
    uint64_t data[];
};

uint64_t
agent_now_ns(const struct cairn_agent *agent)
{
    return cairn_clock_now_ns(&agent->clock);
}

void
agent_abort(struct cairn_agent *agent, int exit_code, const char *what)
{
    if (agent->stopping)
        return;
    CAIRN_LOG_AT(ERROR, "agent: stops: %s", what);
    agent->stopping = true;
    agent->exit_code = exit_code;
    cairn_loop_stop(agent->loop);
}

/* Copies an event that must wait, with everything it points to. */
static void
queue_event(struct cairn_agent *agent, const struct cairn_event *event)
{
    struct stepping *stepping = &agent->stepping;
    size_t crcs_bytes = event->crcs ? event->count * sizeof *event->crcs : 0;
    size_t bad_bytes = event->bad ? event->count * sizeof *event->bad : 0;
    struct queued_event *queued =
        calloc(1, sizeof *queued + crcs_bytes + bad_bytes + event->bytes_len);
    uint8_t *data;

    if (!queued || event->message) {
        free(queued);
        agent_abort(agent, 1,
                    event->message ? "a message came in the middle of another event"
                                   : "out of memory for an event");
        return;
    }
    data = (uint8_t *)queued->data;
    queued->event = *event;
    if (crcs_bytes) {
        queued->event.crcs = queued->data;
        memcpy(data, event->crcs, crcs_bytes);
    }
    if (bad_bytes) {
        queued->event.bad = (const struct cairn_bad_block *)(const void *)(data + crcs_bytes);
        memcpy(data + crcs_bytes, event->bad, bad_bytes);
    }
    if (event->bytes) {
        queued->event.bytes = data + crcs_bytes + bad_bytes;
        memcpy(data + crcs_bytes + bad_bytes, event->bytes, event->bytes_len);
    }
    if (stepping->tail)
        stepping->tail->next = queued;
    else
        stepping->head = queued;
    stepping->tail = queued;
}

static struct queued_event *
next_event(struct stepping *stepping)
{
    struct queued_event *queued = stepping->head;

    if (!queued)
        return NULL;
    stepping->head = queued->next;
    if (!stepping->head)
        stepping->tail = NULL;
    return queued;
}

static void
step_once(struct cairn_agent *agent, struct cairn_event *event, const struct arrival *arrival)
{
    struct cairn_actions actions = {0};

    event->now_ns = agent_now_ns(agent);
    cairn_core_step(agent->core, event, &actions);
    agent->handlers->carry_out(agent, arrival, &actions);
    cairn_actions_fini(&actions);
}

void
agent_step(struct cairn_agent *agent, struct cairn_event *event, const struct arrival *arrival)
{
    struct stepping *stepping = &agent->stepping;

    if (agent->stopping)
        return;
    if (stepping->running) {
        queue_event(agent, event);
        return;
    }
    stepping->running = true;
    step_once(agent, event, arrival);
    while (!agent->stopping) {
        struct queued_event *queued = next_event(stepping);

        if (!queued) {
            agent->handlers->settle(agent); /* may queue further events */
            queued = next_event(stepping);
        }
        if (!queued)
            break;
        step_once(agent, &queued->event, NULL);
        free(queued);
    }
    stepping->running = false;
}

void
step_close(struct cairn_agent *agent)
{
    for (struct queued_event *queued; (queued = next_event(&agent->stepping));)
        free(queued);
}
