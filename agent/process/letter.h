/*
 * agent/process/letter.h - a message on its way, and what mail_door.c needs of mail.c.
 *
 * The first byte of a transport's body is the kind; the bytes of agent/core/env/message.c,
 * service_message.c or agree.c follow. Blocks are the payload. A message longer than a body (a part
 * of a seal, an inventory) is sent as the payload itself.
 */
#ifndef CAIRN_AGENT_PROCESS_LETTER_H
#define CAIRN_AGENT_PROCESS_LETTER_H

#include "agent/core/env/types.h"
#include "agent/process/mail.h"

enum letter_kind {
    KIND_CORE = 1,
    KIND_CORE_LONG = 2,
    KIND_SERVICE = 3,
    KIND_SERVICE_LONG = 4,
    KIND_OPTIONS = 5, /* the first of each session */
    KIND_LEAVE = 6    /* the sender has no use for the session any more */
};

/* Messages with blocks, heartbeats and decisions are never sent as payload: they must not wait
 * behind bulk, and blocks are the payload. */
enum { LETTER_BODY_BYTES = 576 };
_Static_assert(1 + CAIRN_MESSAGE_HEAD_BYTES_MAX + 8 * CAIRN_MESSAGE_BLOCKS_MAX <= LETTER_BODY_BYTES,
               "a message with blocks fits a body");
_Static_assert(1 + CAIRN_MESSAGE_HEAD_BYTES_MAX + CAIRN_REFUSAL_BYTES - 1 <= LETTER_BODY_BYTES,
               "a decision fits a body");

/* Queued, or flying (with the transport) until it is reported as sent. */
struct letter {
    struct letter *next;
    struct letter **link; /* what points to it in the list of flying letters */
    uint32_t to;
    uint32_t part;       /* whose memory the payload borrows, UINT32_MAX: none */
    uint8_t *owned;      /* payload that is freed with the letter, or NULL */
    struct space *space; /* decoding space that the payload lies in, or NULL */
    const uint8_t *payload;
    size_t payload_len;
    uint64_t place; /* that the receiver has for the payload, 0: none */
    size_t body_len;
    bool service;
    uint8_t body[LETTER_BODY_BYTES];
};

void letter_free(struct cairn_agent *agent, struct letter *letter);
/* True if the session with a peer is of no use here. */
bool mail_is_idle(const struct cairn_agent *agent, uint32_t node);
/* Sends what waits for a peer, as far as its session allows. */
void mail_flush(struct cairn_agent *agent, uint32_t node);
/* Frees what waits for a peer. */
void mail_empty(struct cairn_agent *agent, struct mailbox *box);

#endif
