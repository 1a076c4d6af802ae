/* agent/service/operator_request.c - an operator's request: found, handed to the core, answered. */
#include "agent/service/operator_request.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
#include "agent/service/operator_health.h"
#include "agent/service/operator_histories.h"
#include "agent/service/operator_node.h"
#include "agent/service/placing.h"
#include "agent/service/timing.h"

#include <stdlib.h>
#include <string.h>

enum { REPLY_PART_BYTES = 512 << 10 };

struct request *
request_find(struct cairn_agent *agent, uint64_t number)
{
    for (uint32_t i = 0; agent->operators && i < REQUESTS_MAX; i++)
        if (agent->operators->requests[i].used && agent->operators->requests[i].number == number)
            return &agent->operators->requests[i];
    return NULL;
}

void
request_end(struct request *request)
{
    for (uint32_t i = 0; i < request->node_count; i++)
        operator_node_fini(&request->nodes[i]);
    free(request->nodes);
    free(request->files);
    histories_free(request->histories);
    free(request->trace.part);
    memset(request, 0, sizeof *request);
}

/* ---- answers ---- */

static struct session *
find_session(struct cairn_agent *agent, uint64_t serial)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (agent->sessions[i].used && serial != 0 && agent->sessions[i].serial == serial)
            return &agent->sessions[i];
    return NULL;
}

static void
send_text(struct cairn_agent *agent, uint64_t serial, int exit_code, const char *text, size_t len)
{
    struct session *session = find_session(agent, serial);
    size_t at = 0;

    if (!session)
        return;
    do {
        size_t part = len - at < REPLY_PART_BYTES ? len - at : REPLY_PART_BYTES;
        struct cairn_session_operator_reply reply = {.exit_code = exit_code,
                                                     .final = at + part == len,
                                                     .text = text + at,
                                                     .text_bytes = part};

        if (cairn_session_put_operator_reply(&session->writer, &reply) != CAIRN_OK) {
            session->state = SESSION_CLOSING;
            break;
        }
        at += part;
    } while (at < len);
    session_flush(agent, session);
}

void
request_answer(struct cairn_agent *agent, struct request *request, int exit_code,
               struct cairn_json_writer *writer)
{
    static const char no_memory[] =
        "{\"schema\":1,\"error\":\"the agent has no memory for the answer\"}";
    char *text = NULL;
    size_t len = 0;

    if (cairn_json_writer_done(writer, &text, &len) == CAIRN_OK)
        send_text(agent, request->serial, exit_code, text, len);
    else
        send_text(agent, request->serial, 1, no_memory, sizeof no_memory - 1);
    free(text);
    cairn_json_writer_fini(writer);
    request_end(request);
}

void
request_answer_bytes(struct cairn_agent *agent, struct request *request, const void *bytes,
                     size_t bytes_len)
{
    send_text(agent, request->serial, 0, bytes, bytes_len);
    request_end(request);
}

struct operator_table *
request_table(struct cairn_agent *agent)
{
    if (!agent->operators)
        agent->operators = calloc(1, sizeof *agent->operators);
    return agent->operators;
}

void
request_refuse(struct cairn_agent *agent, struct request *request, int exit_code, const char *error)
{
    struct cairn_json_writer writer;

    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_string(&writer, "error", error);
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, exit_code, &writer);
}

int
request_exit_code(cairn_err err)
{
    switch (err) {
    case CAIRN_OK:
        return 0;
    case CAIRN_LOST:
        return 4;
    case CAIRN_AGAIN:
    case CAIRN_STALE:
        return 75;
    case CAIRN_PEER:
    case CAIRN_TIMEOUT:
        return 69;
    case CAIRN_IO:
    case CAIRN_FULL:
        return 74;
    case CAIRN_DENIED:
        return 77;
    default:
        return 1;
    }
}

/* ---- the core ---- */

void
request_run_core(struct cairn_agent *agent, struct request *request, enum cairn_operation operation)
{
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR,
                                .as.op = {.operation = operation,
                                          .request = request->number,
                                          .wanted = request->wanted,
                                          .wanted_spilled = request->spilled}};

    request->waiting |= WAIT_CORE;
    agent_step(agent, &event, NULL);
}

void
request_fill_job(struct cairn_agent *agent, const struct request *request, struct operator_job *job)
{
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    *job = (struct operator_job){.config = &agent->config,
                                 .nodes = request->nodes,
                                 .roster = view.roster,
                                 .files = request->files,
                                 .ledger = timing_ledger(agent),
                                 .book = placing_book(agent)};
    job->newest =
        operator_newest(request->nodes, agent->config.node_count, &job->newest_from_files);
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view part;

        if (cairn_core_look_part(agent->core, i, &part) && part.state == CAIRN_PART_COMPLETE &&
            part.roster && cairn_generation_id_compare(part.generation, job->newest) == 0)
            job->roster = part.roster;
    }
}

void
request_send_json(struct cairn_agent *agent, uint32_t to, uint32_t verb, uint64_t number,
                  struct cairn_json_writer *writer)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OPERATOR,
                                            .from = agent->config.node,
                                            .to = to,
                                            .verb = verb,
                                            .request = number};
    char *text = NULL;
    size_t len = 0;

    if (cairn_json_writer_done(writer, &text, &len) == CAIRN_OK) {
        message.bytes = (const uint8_t *)text;
        message.bytes_len = (uint32_t)len;
        mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
    }
    free(text);
    cairn_json_writer_fini(writer);
}
