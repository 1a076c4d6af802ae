/*
 * agent/process/mail.h - messages between agents, over the transport; the core's sessions.
 *
 * Invariants:
 *  1. A session begins with PEER_UP, after both sides have found that their options agree
 *     (agree.h), and ends with PEER_DOWN, which frees what is queued for the peer.
 *  2. Within a session no message of the core is dropped: if a queue is full, the session ends.
 *     Services' messages are dropped if their peer has no session, or half of the queue is used;
 *     services send again.
 *  3. Each peer has two queues: short messages never wait for bulk.
 *  4. A message reaches a receiver only if it parses and names its sender and this node. Others are
 *     counted, and logged once per 10 s and peer.
 *  5. A session that the core does not need and that was idle for IDLE_FACTOR times dead_after is
 *     left: it ends when the other side does not need it either. So answers to an operator, and
 *     restores, do not leave a mesh of connections behind.
 *
 * A letter owns its copy of the message, and holds the memory or the space of its payload until it
 * is sent.
 */
#ifndef CAIRN_AGENT_PROCESS_MAIL_H
#define CAIRN_AGENT_PROCESS_MAIL_H

#include "agent/core/env/message.h"
#include "agent/process/credentials.h"
#include "agent/process/service_message.h"
#include "base/loop.h"

#include <stdbool.h>

struct cairn_agent;
struct letter;
struct space;

enum {
    MAIL_BUFFERS = 32,      /* of the transport: payloads that arrive, or are in use here */
    MAIL_WINDOW = 8,        /* of these, the most that one peer may fill */
    MAIL_QUEUED_MAX = 1024, /* messages waiting for one peer */
    MAIL_OWNED_BYTES_MAX = 32 << 20, /* copied payloads that wait for one peer */
    IDLE_FACTOR = 10
};

/* What waits for one peer. */
struct mailbox {
    struct letter *control_head, *control_tail;
    struct letter *bulk_head, *bulk_tail;
    uint32_t queued;
    uint64_t owned_bytes; /* copied payloads among them */
    bool open;            /* the transport has a session */
    bool greeted;         /* own options are sent */
    bool up;              /* the options agree: the core knows of the session */
    bool refused;         /* they do not */
    char *mismatch;       /* which option the peer sets differently; NULL: none */
    uint64_t incarnation; /* of the session */
    bool leaving;         /* the peer was told that it is not needed here, and sent nothing since */
    uint64_t used_ns;     /* when something was last sent to the peer or arrived from it */
    uint64_t warned_ns;   /* when a message that was dropped was logged last */
};

struct mail {
    struct mailbox *boxes; /* [node_count] */
    struct letter *self_head, *self_tail;
    struct letter *flying; /* handed to the transport */
    bool delivering_self;
    bool watched; /* the loop polls the transport */
    struct cairn_loop_source source;
    struct cairn_timer timer;
    uint64_t due_ns;                      /* of the timer, 0: none */
    struct cairn_certificate_dates dates; /* of the certificate that is shown; 0: none is */
    uint64_t seal_bytes_max;              /* the longest seal that a record has room for */
    uint64_t seal_warned_ns;
    uint64_t dropped;                    /* messages that arrived malformed or not for this node */
    uint64_t sent_bytes, received_bytes; /* to and from other agents */
    uint64_t sent_messages, sent_block_bytes; /* all of them; of state and parity, in sent_bytes */

    /* The message that is being delivered. */
    uint32_t arriving_from;
    uint64_t arriving_buffer; /* its payload lies in this buffer; 0: in none, or it is kept */
    uint32_t arriving_part;   /* its payload lies in this node's own memory; UINT32_MAX: no */
};

/* Opens the transport. Logs errors of the key file. */
CAIRN_MUST_CHECK cairn_err mail_open(struct cairn_agent *agent);
void mail_close(struct cairn_agent *agent);

/*
 * Sends a message of the core. payload (NULL: none) is memory of `part` (UINT32_MAX: of no part) or
 * in `space` (NULL: in none); both are held until it is sent.
 */
void mail_send(struct cairn_agent *agent, const struct cairn_message *message,
               const uint8_t *payload, size_t payload_len, uint32_t part, struct space *space);

/* Sends a message of a service; payload is NULL or memory of `part`. Without a session to the peer,
 * begins to connect; the message may be lost. */
void mail_send_service(struct cairn_agent *agent, const struct cairn_service_message *message,
                       const uint8_t *payload, size_t payload_len, uint32_t part);

/* The same; the receiver's agent_handlers.place knows memory for the payload under `place`. */
void mail_send_placed(struct cairn_agent *agent, const struct cairn_service_message *message,
                      const uint8_t *payload, size_t payload_len, uint32_t part, uint64_t place);

/* Nothing more arrives in memory that agent_handlers.place gave. */
void mail_unplace(struct cairn_agent *agent, const uint8_t *memory, size_t bytes);

/* Keeps trying to have a session with a peer; ends the session with a peer (PEER_DOWN follows). */
void mail_connect(struct cairn_agent *agent, uint32_t node);
void mail_disconnect(struct cairn_agent *agent, uint32_t node);

/* Leaves sessions that nobody uses. */
void mail_tick(struct cairn_agent *agent);

/* Delivers what this agent sent to itself. */
void mail_deliver_self(struct cairn_agent *agent);

/* True if the checksums in the message match its payload. */
bool mail_payload_ok(const struct cairn_message *message, const uint8_t *payload,
                     size_t payload_len);

/* What came from outside since the start, and was not taken. */
struct mail_unwanted {
    uint64_t messages;            /* and payloads of other agents, dropped at the door */
    uint64_t refused_connections; /* that proved no key and no certificate */
    uint64_t ignored_connections; /* of addresses that are ignored; the kernel counts each try */
    uint32_t ignored_addresses;   /* now */
};

struct mail_unwanted mail_unwanted(const struct cairn_agent *agent);

/* Peers that hold another key, belong to another job or are at a wrong address; peers without a
 * common version of the protocol. */
uint32_t mail_denied_peers(const struct cairn_agent *agent);

/* The state of this node's certificate, and the seconds until it ends, 0 if it has ended or is
 * missing. */
enum cairn_certificate_state mail_certificate(const struct cairn_agent *agent, uint64_t *left_s);
uint32_t mail_version_peers(const struct cairn_agent *agent);

#endif
