/*
 * agent/process/handlers.h - the functions through which the process reports to the services above
 * it.
 *
 * The files of agent/process know no service. They report frames, messages, commits and ends of
 * sessions through this table, which agent/dispatch.c fills in. Two more slots lead from the steps
 * of the core to the files that carry them out, which take steps themselves, and one from the
 * memory of regions to the sessions that wait for it.
 *
 * All functions run in the loop's thread. None may be NULL.
 */
#ifndef CAIRN_AGENT_PROCESS_HANDLERS_H
#define CAIRN_AGENT_PROCESS_HANDLERS_H

#include "agent/core/core.h"

struct arrival;
struct cairn_agent;
struct cairn_service_message;
struct cairn_session_frame;
struct session;

struct agent_handlers {
    /* Carries out the actions of one event, in their order. `arrival` is NULL unless the event is a
     * message. */
    void (*carry_out)(struct cairn_agent *agent, const struct arrival *arrival,
                      const struct cairn_actions *actions);

    /* No function is using a session: marked sessions may end. */
    void (*settle)(struct cairn_agent *agent);

    /* A region of a slot has its memory: trainers may wait for it. */
    void (*region_cut)(struct cairn_agent *agent);

    /* A session sent a frame of a service: RESTORE, FETCH, RESTORED, TIMING, OPERATOR, SHARES or
     * MOVED. Returns false if the frame is malformed or not allowed; the session is closed then.
     * May take over the frame's descriptors by setting them to -1. */
    bool (*frame)(struct cairn_agent *agent, struct session *session,
                  struct cairn_session_frame *frame);

    /* A session gets no more answers. Called once or twice before it ends. */
    void (*session_leaves)(struct cairn_agent *agent, struct session *session);

    /* A trainer's connection has ended; the session is freed after the call. */
    void (*trainer_ended)(struct cairn_agent *agent, const struct session *session);

    /* A message of a service arrived. `payload` may be NULL; both are borrowed. */
    void (*message)(struct cairn_agent *agent, const struct cairn_service_message *message,
                    const uint8_t *payload, size_t payload_len);

    /* Memory for a payload that begins to arrive, until mail_unplace; NULL: none. */
    uint8_t *(*place)(struct cairn_agent *agent, uint32_t from, uint64_t place, size_t payload_len);

    /* The job committed a generation. */
    void (*committed)(struct cairn_agent *agent, struct cairn_generation_id generation);

    /* The core answers an operation that an operator's request started. */
    void (*reply)(struct cairn_agent *agent, const struct cairn_action_reply *reply);
};

#endif
