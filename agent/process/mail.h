/*
 * agent/process/mail.h - messages between agents, over the transport.
 *
 * Invariants:
 *  1. Each peer has two queues: control messages never wait for bulk.
 *  2. Queues are bounded. A message that does not fit is dropped; whoever needs its answer sends it
 *     again.
 *  3. A message reaches a receiver only if it parses and names its sender and this node.
 *
 * A letter owns its copy of the message, and holds the memory or the space that its payload lies in
 * until it is sent.
 */
#ifndef CAIRN_AGENT_PROCESS_MAIL_H
#define CAIRN_AGENT_PROCESS_MAIL_H

#include "agent/core/message.h"
#include "base/loop.h"
#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_agent;
struct letter;
struct space;

enum {
    MAIL_BUFFERS = 32,     /* of the transport: payloads that arrive, or are in use here */
    MAIL_WINDOW = 8,       /* of these, the most that one peer may fill */
    MAIL_QUEUED_MAX = 512, /* messages waiting for one peer */
    MAIL_OWNED_BYTES_MAX =
        64 << 20 /* copied payloads that wait or are being sent, over all peers */
};

/* What waits for one peer. */
struct mailbox {
    struct letter *control_head, *control_tail;
    struct letter *bulk_head, *bulk_tail;
    uint32_t queued;
    bool alive; /* its heartbeats arrived, when we last looked */
};

struct mail {
    struct mailbox *boxes; /* [node_count] */
    struct letter *self_head, *self_tail;
    struct letter *flying; /* handed to the transport */
    uint64_t owned_bytes;  /* copied payloads of all letters */
    bool delivering_self;
    bool watched; /* the loop polls the transport */
    struct cairn_loop_source source;
    struct cairn_timer timer;
    uint64_t due_ns;         /* of the timer, 0: none */
    uint64_t seal_bytes_max; /* the longest seal that a record has room for */
    uint64_t seal_warned_ns;

    /* The message that is being delivered. */
    uint32_t arriving_from;
    uint64_t arriving_buffer;  /* its payload lies in this buffer; 0: in none, or it is kept */
    uint32_t arriving_holding; /* its payload lies in this node's own memory; UINT32_MAX: no */
};

/* Opens the transport. Logs what is wrong with the key file. */
CAIRN_MUST_CHECK cairn_err mail_open(struct cairn_agent *agent);
void mail_close(struct cairn_agent *agent);

/*
 * Sends a message. payload (NULL: none) is memory of `holding` (UINT32_MAX: of no holding) or lies
 * in `space` (NULL: in none); both are held until it is sent. Without room it is dropped.
 */
void mail_send(struct cairn_agent *agent, const struct cairn_message *message,
               const uint8_t *payload, size_t payload_len, uint32_t holding, struct space *space);

/* Delivers what this agent sent to itself. */
void mail_deliver_self(struct cairn_agent *agent);

/*
 * Ends the connections to agents whose heartbeats have stopped. TCP would keep a cut connection for
 * many minutes, and retry ever more rarely; a new one is made as soon as the peer can be reached.
 */
void mail_end_silent(struct cairn_agent *agent);

/* True if the checksums in the message match its payload. */
bool mail_payload_ok(const struct cairn_message *message, const uint8_t *payload,
                     size_t payload_len);

/* How many peers hold another key, belong to another job or are not who they should be. */
uint32_t mail_denied_peers(const struct cairn_agent *agent);

#endif
