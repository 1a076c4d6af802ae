/*
 * agent/process/step.h - takes one event at a time through the protocol core.
 *
 * Invariants:
 *  1. An event that arises while the actions of another are carried out is copied and waits until
 *     all of them are done. So no action changes what the next action of its event is about.
 *  2. After the last waiting event, `settle` (handlers.h) ends the sessions that are marked.
 *  3. After agent_abort no event is taken and no action carried out.
 *
 * The queue owns its copies of events.
 */
#ifndef CAIRN_AGENT_PROCESS_STEP_H
#define CAIRN_AGENT_PROCESS_STEP_H

#include "agent/core/core.h"

struct cairn_agent;
struct queued_event;

/* The payload of the message that is the event of this step. Borrowed. */
struct arrival {
    const uint8_t *payload;
    size_t payload_len;
};

struct stepping {
    bool running; /* an event's actions are being carried out */
    struct queued_event *head, *tail;
};

uint64_t agent_now_ns(const struct cairn_agent *agent);

/*
 * Takes one event: steps the core and has its actions carried out. If another event is being taken,
 * copies this one, which must carry neither a message nor an arrival, and takes it later.
 */
void agent_step(struct cairn_agent *agent, struct cairn_event *event,
                const struct arrival *arrival);

/* Stops the agent at once, logs why and sets its exit code. Called after a failed store: the agent
 * must send nothing that relies on it. */
void agent_abort(struct cairn_agent *agent, int exit_code, const char *what);

/* Frees the events that wait. */
void step_close(struct cairn_agent *agent);

#endif
