/*
 * agent/process/service_message.h - what the services of two agents send each other.
 *
 * The protocol core has messages of its own (agent/core/env/message.h). Those of services may be
 * lost: one for a peer without a session is dropped, and a service that waits for an answer sends
 * again.
 *
 *   FETCH       send blocks or a manifest of a generation, for a trainer, a spill, an export or a
 *               drill
 *   FETCHED     the answer; blocks travel beside it, and `bytes` are their checksums
 *   SPILL       agent/service/spill_state.h
 *   OPERATOR    agent/service/operator_gather.c: a node's view of itself;
 *               agent/service/operator_plan.c: an operator's decision about the plan;
 *               agent/service/operator_drill.c: a rehearsal of a loss, and how far it is;
 *               agent/process/session_claim.c: who holds a rank
 *   TIMING      bytes: reports; request: their stream; offset: the number of this part
 *   TIMING_ACK  offset: parts received so far; UINT64_MAX: begin a new stream
 *   VERDICTS    bytes: the ledger of verdicts
 *   OFFER       bytes: the book of placements that are offered to trainers or wait for approval
 *               (agent/service/proposal.h); only between agents whose plan_policy is approve or
 *               enforce
 */
#ifndef CAIRN_AGENT_PROCESS_SERVICE_MESSAGE_H
#define CAIRN_AGENT_PROCESS_SERVICE_MESSAGE_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stddef.h>
#include <stdint.h>

/* X(symbol, value, name) */
#define CAIRN_SERVICE_LIST(X)                                                                      \
    X(FETCH, 1, "fetch")                                                                           \
    X(FETCHED, 2, "fetched")                                                                       \
    X(SPILL, 3, "spill")                                                                           \
    X(OPERATOR, 4, "operator")                                                                     \
    X(TIMING, 5, "timing")                                                                         \
    X(TIMING_ACK, 6, "timing_ack")                                                                 \
    X(VERDICTS, 7, "verdicts")                                                                     \
    X(OFFER, 8, "offer")

enum cairn_service_kind {
#define CAIRN_SERVICE_ENUM(symbol, value, name) CAIRN_SERVICE_##symbol = value,
    CAIRN_SERVICE_LIST(CAIRN_SERVICE_ENUM)
#undef CAIRN_SERVICE_ENUM
};

#define CAIRN_SERVICE_KIND_LAST CAIRN_SERVICE_OFFER

struct cairn_service_message {
    enum cairn_service_kind kind;
    uint32_t from; /* agent; the session's other side */
    uint32_t to;   /* agent */
    uint32_t verb; /* FETCH, SPILL and OPERATOR have several, in their own enumerations */
    struct cairn_generation_id generation;
    uint32_t item; /* FETCH: member; SPILL: file */
    uint32_t block_count;
    uint32_t err; /* cairn_err */
    uint64_t request;
    uint64_t offset; /* FETCH of blocks: the first one */
    uint64_t total;
    const uint8_t *bytes; /* borrowed */
    uint32_t bytes_len;
};

enum { CAIRN_SERVICE_HEAD_BYTES = 77 }; /* of a packed message without its `bytes` */

const char *cairn_service_name(enum cairn_service_kind kind);

/* Packs into out[out_bytes]; *used is the length. CAIRN_FULL when it does not fit. */
CAIRN_MUST_CHECK cairn_err cairn_service_pack(const struct cairn_service_message *message,
                                              void *out, size_t out_bytes, size_t *used);

/* Unpacks; message->bytes borrows from `bytes`. CAIRN_CORRUPT for anything that is not a
 * message. */
CAIRN_MUST_CHECK cairn_err cairn_service_unpack(const void *bytes, size_t bytes_len,
                                                struct cairn_service_message *out);

#endif
