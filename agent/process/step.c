/* agent/process/step.c - takes one event at a time through the protocol core; see step.h. */
#include "agent/process/step.h"

#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "agent/process/recorder.h"
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
    recorder_stopped(agent, what);
    agent->stopping = true;
    agent->exit_code = exit_code;
    cairn_loop_stop(agent->loop);
}

/* Copies what an event points to, one after the other; without memory only measures it. */
struct copier {
    uint8_t *memory;
    size_t used;
};

static const void *
keep(struct copier *copier, const void *bytes, size_t len)
{
    size_t at = copier->used;

    if (!bytes)
        return NULL;
    copier->used += (len + 7) / 8 * 8;
    if (!copier->memory)
        return bytes;
    memcpy(copier->memory + at, bytes, len);
    return copier->memory + at;
}

static void
keep_answer(struct copier *copier, struct cairn_event_answer *answer)
{
    answer->bytes = keep(copier, answer->bytes, answer->bytes_len);
    answer->crcs = keep(copier, answer->crcs, answer->count * sizeof *answer->crcs);
    answer->bad = keep(copier, answer->bad, answer->count * sizeof *answer->bad);
}

/* Points an event other than a message to copies of what it points to. */
static void
keep_all(struct copier *copier, struct cairn_event *event)
{
    switch (event->type) {
    case CAIRN_EVENT_RANKS:
        event->as.ranks.manifest =
            keep(copier, event->as.ranks.manifest, event->as.ranks.manifest_len);
        break;
    case CAIRN_EVENT_BLOCKS:
        event->as.blocks.crcs = keep(copier, event->as.blocks.crcs,
                                     event->as.blocks.count * sizeof *event->as.blocks.crcs);
        break;
    case CAIRN_EVENT_SEALED:
    case CAIRN_EVENT_FINISHED:
    case CAIRN_EVENT_VERIFIED:
    case CAIRN_EVENT_OPENED:
        keep_answer(copier, &event->as.answer);
        break;
    case CAIRN_EVENT_OPERATOR:
        event->as.op.fleet = keep(copier, event->as.op.fleet, event->as.op.fleet_len);
        break;
    default:
        break;
    }
}

/* Copies an event that must wait, with everything it points to. */
static void
queue_event(struct cairn_agent *agent, const struct cairn_event *event)
{
    struct stepping *stepping = &agent->stepping;
    struct cairn_event copy = *event;
    struct copier copier = {0};
    struct queued_event *queued;

    if (event->type == CAIRN_EVENT_MESSAGE) {
        agent_abort(agent, 1, "a message came in the middle of another event");
        return;
    }
    keep_all(&copier, &copy);
    queued = calloc(1, sizeof *queued + copier.used);
    if (!queued) {
        agent_abort(agent, 1, "out of memory for an event");
        return;
    }
    copier = (struct copier){.memory = (uint8_t *)queued->data};
    queued->event = *event;
    keep_all(&copier, &queued->event);
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
    recorder_stepped(agent);
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
