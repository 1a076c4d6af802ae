/* agent/dispatch.c - passes the process's reports on to the services. */
#include "agent/dispatch.h"

#include "agent/process/carry.h"
#include "agent/process/service_message.h"
#include "agent/process/session.h"
#include "agent/service/drill.h"
#include "agent/service/fetch.h"
#include "agent/service/local.h"
#include "agent/service/operator.h"
#include "agent/service/placing.h"
#include "agent/service/probe.h"
#include "agent/service/spill.h"
#include "agent/service/timing.h"

static bool
take_frame(struct cairn_agent *agent, struct session *session, struct cairn_session_frame *frame)
{
    switch (frame->type) {
    case CAIRN_SESSION_RESTORE:
    case CAIRN_SESSION_FETCH:
    case CAIRN_SESSION_RESTORED:
        return fetch_frame(agent, session, frame);
    case CAIRN_SESSION_TIMING:
        return timing_frame(agent, session, frame);
    case CAIRN_SESSION_OPERATOR:
        return operator_frame(agent, session, frame);
    case CAIRN_SESSION_SHARES:
        return placing_frame(agent, session, frame);
    default:
        return false;
    }
}

static void
session_leaves(struct cairn_agent *agent, struct session *session)
{
    fetch_forget(agent, session);
    operator_forget(agent, session->serial);
}

static void
take_message(struct cairn_agent *agent, const struct cairn_service_message *message,
             const uint8_t *payload, size_t payload_len)
{
    switch (message->kind) {
    case CAIRN_SERVICE_FETCH:
    case CAIRN_SERVICE_FETCHED:
        if (!drill_message(agent, message, payload, payload_len) &&
            !probe_message(agent, message, payload_len))
            fetch_message(agent, message, payload, payload_len);
        break;
    case CAIRN_SERVICE_SPILL:
        spill_message(agent, message);
        break;
    case CAIRN_SERVICE_OPERATOR:
        if (!session_claim_message(agent, message))
            operator_message(agent, message);
        break;
    case CAIRN_SERVICE_TIMING:
    case CAIRN_SERVICE_TIMING_ACK:
    case CAIRN_SERVICE_VERDICTS:
        timing_message(agent, message);
        break;
    case CAIRN_SERVICE_OFFER:
        placing_message(agent, message);
        break;
    }
}

static uint8_t *
place_payload(struct cairn_agent *agent, uint32_t from, uint64_t place, size_t payload_len)
{
    return cairn_place_is_write(place) ? carry_place(agent, from, place, payload_len)
                                       : fetch_place(agent, from, place, payload_len);
}

static void
take_commit(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    spill_committed(agent, generation);
    local_committed(agent);
}

const struct agent_handlers cairn_agent_handlers = {.carry_out = carry_out,
                                                    .settle = sessions_reap,
                                                    .region_cut = sessions_answer,
                                                    .frame = take_frame,
                                                    .session_leaves = session_leaves,
                                                    .trainer_ended = timing_session_ended,
                                                    .message = take_message,
                                                    .place = place_payload,
                                                    .committed = take_commit,
                                                    .reply = operator_reply};
