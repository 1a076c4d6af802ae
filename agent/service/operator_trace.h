/*
 * agent/service/operator_trace.h - the requests of `cairn trace --agent`: the recordings of one
 * node's ranks (replan/live/recording.h), part by part.
 *
 * The command asks any agent for each node in turn, and that agent passes the question on. The node
 * packs its recordings at offset 0, and keeps the parcel until its last part was asked for or for
 * ten idle seconds. So all parts are of one moment. The command names the parcel by a random token.
 *
 * The answer is not JSON. Packed by base/wire.h: u32 OPERATOR_TRACE_MAGIC, u32 nodes of the job,
 * u32 enum operator_trace_state, u64 bytes of the whole parcel, then those from `offset` on.
 */
#ifndef CAIRN_AGENT_SERVICE_OPERATOR_TRACE_H
#define CAIRN_AGENT_SERVICE_OPERATOR_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct cairn_service_message;
struct request;

enum { OPERATOR_PARCELS_MAX = 4, OPERATOR_TRACE_STEPS_MAX = 1000 };
#define OPERATOR_TRACE_MAGIC UINT32_C(0x52544e43) /* "CNTR" */

enum operator_trace_state {
    OPERATOR_TRACE_HERE = 0,
    OPERATOR_TRACE_DEAD = 1,   /* its agent is dead */
    OPERATOR_TRACE_SILENT = 2, /* its agent lives but does not answer: busy, or too old */
    OPERATOR_TRACE_BUSY = 3,   /* it has no memory, or packs for others */
    OPERATOR_TRACE_STATES
};

/* What is asked for, and what came. */
struct operator_trace {
    uint32_t node;
    uint32_t steps, until; /* as in timing_pack_recordings */
    uint64_t token, offset;
    uint64_t sent_ns; /* when the node was asked last */
    enum operator_trace_state state;
    uint64_t total;
    uint8_t *part; /* owned */
    uint32_t part_len;
};

/* Packed recordings that are handed out part by part. */
struct operator_parcel {
    uint64_t token; /* 0: unused */
    uint64_t used_ns;
    uint8_t *bytes; /* owned */
    size_t bytes_len;
};

/* False: no memory. */
bool request_trace_begin(struct cairn_agent *agent, struct request *request);

/* Asks again, or gives the node up. */
void request_trace_tick(struct cairn_agent *agent, struct request *request);
void request_trace_answer(struct cairn_agent *agent, struct request *request);

/* Takes another agent's question or answer; false: the message is neither. */
bool request_trace_message(struct cairn_agent *agent, const struct cairn_service_message *message);

/* Frees the parcels that were not asked for lately. */
void request_trace_forget(struct cairn_agent *agent, uint64_t now_ns);

#endif
