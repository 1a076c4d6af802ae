/* agent/service/operator_trace.c - the requests of `cairn trace --agent`; see operator_trace.h. */
#include "agent/service/operator_trace.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/service_message.h"
#include "agent/process/step.h"
#include "agent/service/operator_request.h"
#include "agent/service/timing.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    ASK =
        16, /* in an OPERATOR message's `verb`; operator_gather.c and operator_plan.c have others */
    PART = 17,
    PART_BYTES = 384 << 10,
    HEAD_BYTES = 20,
    AGAIN_MS = 500,
    ANSWER_MS = 3000,
    FORGET_MS = 10000
};

/* ---- the node whose recordings are asked for ---- */

/* A slot for a new parcel: a free one, or the least recently used. */
static struct operator_parcel *
choose_slot(struct operator_table *table)
{
    struct operator_parcel *oldest = &table->parcels[0];

    for (uint32_t i = 0; i < OPERATOR_PARCELS_MAX; i++) {
        if (table->parcels[i].token == 0)
            return &table->parcels[i];
        if (table->parcels[i].used_ns < oldest->used_ns)
            oldest = &table->parcels[i];
    }
    return oldest;
}

static void
forget(struct operator_parcel *parcel)
{
    free(parcel->bytes);
    *parcel = (struct operator_parcel){0};
}

void
request_trace_forget(struct cairn_agent *agent, uint64_t now_ns)
{
    for (uint32_t i = 0; agent->operators && i < OPERATOR_PARCELS_MAX; i++) {
        struct operator_parcel *parcel = &agent->operators->parcels[i];

        if (parcel->token != 0 && now_ns - parcel->used_ns > FORGET_MS * CAIRN_NS_PER_MS)
            forget(parcel);
    }
}

/* The parcel of a token, packed if this is its first part. NULL: unknown. */
static struct operator_parcel *
find_parcel(struct cairn_agent *agent, const struct operator_trace *trace)
{
    struct operator_table *table = request_table(agent);
    struct operator_parcel *parcel = NULL;

    if (!table || trace->token == 0)
        return NULL;
    for (uint32_t i = 0; !parcel && i < OPERATOR_PARCELS_MAX; i++)
        if (table->parcels[i].token == trace->token)
            parcel = &table->parcels[i];
    if (!parcel && trace->offset == 0) {
        parcel = choose_slot(table);
        forget(parcel);
        if (timing_pack_recordings(agent, trace->steps, trace->until, &parcel->bytes,
                                   &parcel->bytes_len) != CAIRN_OK)
            return NULL;
        parcel->token = trace->token;
    }
    if (parcel)
        parcel->used_ns = agent_now_ns(agent);
    return parcel;
}

/* Takes a part of this node's recordings; *trace names it. */
static void
take_part(struct cairn_agent *agent, struct operator_trace *trace, const uint8_t **part)
{
    const struct operator_parcel *parcel = find_parcel(agent, trace);

    trace->part_len = 0;
    trace->state =
        parcel && trace->offset <= parcel->bytes_len ? OPERATOR_TRACE_HERE : OPERATOR_TRACE_BUSY;
    if (trace->state != OPERATOR_TRACE_HERE)
        return;
    trace->total = parcel->bytes_len;
    trace->part_len = parcel->bytes_len - trace->offset < PART_BYTES
                          ? (uint32_t)(parcel->bytes_len - trace->offset)
                          : (uint32_t)PART_BYTES;
    *part = parcel->bytes + trace->offset;
}

static void
send_part(struct cairn_agent *agent, const struct cairn_service_message *ask)
{
    struct operator_trace trace = {.steps = ask->item,
                                   .until = (uint32_t)ask->generation.step,
                                   .token = ask->generation.run,
                                   .offset = ask->offset};
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_OPERATOR,
                                            .from = agent->config.node,
                                            .to = ask->from,
                                            .verb = PART,
                                            .request = ask->request,
                                            .offset = ask->offset};

    take_part(agent, &trace, &message.bytes);
    message.err = trace.state == OPERATOR_TRACE_HERE ? CAIRN_OK : CAIRN_AGAIN;
    message.total = trace.total;
    message.bytes_len = trace.part_len;
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* ---- the agent that was asked ---- */

static void
ask_node(struct cairn_agent *agent, struct request *request)
{
    const struct operator_trace *trace = &request->trace;
    struct cairn_service_message message = {
        .kind = CAIRN_SERVICE_OPERATOR,
        .from = agent->config.node,
        .to = trace->node,
        .verb = ASK,
        .request = request->number,
        .item = trace->steps,
        .offset = trace->offset,
        .generation = {.step = trace->until, .run = trace->token}};

    request->trace.sent_ns = agent_now_ns(agent);
    mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
}

/* Copies a part that arrived. False: no memory. */
static bool
keep_part(struct operator_trace *trace, const uint8_t *part, uint32_t part_len)
{
    trace->part = malloc(part_len ? part_len : 1);
    if (!trace->part)
        return false;
    if (part_len > 0)
        memcpy(trace->part, part, part_len);
    trace->part_len = part_len;
    return true;
}

bool
request_trace_begin(struct cairn_agent *agent, struct request *request)
{
    struct operator_trace *trace = &request->trace;
    const uint8_t *part = NULL;

    if (trace->steps == 0 || trace->steps > OPERATOR_TRACE_STEPS_MAX || trace->token == 0 ||
        trace->node >= agent->config.node_count) {
        request_refuse(agent, request, 64,
                       "trace: the request names no steps, no token or no node of the job");
        return true;
    }
    if (trace->node == agent->config.node) {
        take_part(agent, trace, &part);
        if (!keep_part(trace, part, trace->part_len))
            return false;
        request_trace_answer(agent, request);
    } else if (!cairn_core_alive(agent->core, trace->node)) {
        trace->state = OPERATOR_TRACE_DEAD;
        request_trace_answer(agent, request);
    } else {
        request->waiting |= WAIT_TRACE;
        ask_node(agent, request);
    }
    return true;
}

void
request_trace_tick(struct cairn_agent *agent, struct request *request)
{
    uint64_t now_ns = agent_now_ns(agent);
    struct operator_trace *trace = &request->trace;

    if (!cairn_core_alive(agent->core, trace->node)) {
        trace->state = OPERATOR_TRACE_DEAD;
        request->waiting &= ~(uint32_t)WAIT_TRACE;
    } else if (now_ns >= request->started_ns + ANSWER_MS * CAIRN_NS_PER_MS) {
        trace->state = OPERATOR_TRACE_SILENT;
        request->waiting &= ~(uint32_t)WAIT_TRACE;
    } else if (now_ns >= trace->sent_ns + AGAIN_MS * CAIRN_NS_PER_MS) {
        ask_node(agent, request);
    }
}

static void
arrive(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct request *request = request_find(agent, message->request);

    if (!request || !(request->waiting & WAIT_TRACE) || message->from != request->trace.node ||
        message->offset != request->trace.offset || message->bytes_len > PART_BYTES)
        return;
    request->trace.state = message->err ? OPERATOR_TRACE_BUSY : OPERATOR_TRACE_HERE;
    request->trace.total = message->total;
    if (!keep_part(&request->trace, message->bytes, message->bytes_len))
        request->trace.state = OPERATOR_TRACE_BUSY;
    request->waiting &= ~(uint32_t)WAIT_TRACE;
    agent->operators->advance(agent, request);
}

bool
request_trace_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (message->verb == ASK)
        send_part(agent, message);
    else if (message->verb == PART)
        arrive(agent, message);
    else
        return false;
    return true;
}

void
request_trace_answer(struct cairn_agent *agent, struct request *request)
{
    const struct operator_trace *trace = &request->trace;
    uint32_t part_len = trace->part ? trace->part_len : 0;
    struct cairn_writer writer;
    uint8_t *bytes = malloc(HEAD_BYTES + (size_t)part_len);

    if (!bytes) {
        request_refuse(agent, request, 1, "the agent is out of memory");
        return;
    }
    cairn_writer_init(&writer, bytes, HEAD_BYTES + (size_t)part_len);
    cairn_write_u32(&writer, OPERATOR_TRACE_MAGIC);
    cairn_write_u32(&writer, agent->config.node_count);
    cairn_write_u32(&writer, (uint32_t)trace->state);
    cairn_write_u64(&writer, trace->total);
    if (part_len > 0)
        cairn_write_bytes(&writer, trace->part, part_len);
    request_answer_bytes(agent, request, bytes, writer.used_bytes);
    free(bytes);
}
