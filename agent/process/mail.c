/*
 * agent/process/mail.c - messages between agents over the transport; see mail.h.
 *
 * A message is one byte of kind, then the bytes of agent/core/message.c, in the transport's body.
 * Blocks are its payload. A message that is longer than a body (a part of a seal, an inventory) is
 * sent as the payload itself.
 */
#include "agent/process/mail.h"

#include "agent/process/agent_state.h"
#include "agent/process/handlers.h"
#include "agent/process/memory.h"
#include "agent/process/scratch.h"
#include "agent/process/step.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/wire.h"
#include "transport/transport.h"

#include <stdlib.h>
#include <string.h>

enum { KIND_PLAIN = 1, KIND_LONG = 2 };

/* A message on its way to a peer: queued, or flying (with the transport) until on_sent. */
struct letter {
    struct letter *next;
    struct letter **link; /* what points to it in the list of flying letters */
    uint32_t to;
    uint32_t holding;    /* whose memory the payload borrows, UINT32_MAX: none */
    uint8_t *owned;      /* payload that is freed with the letter, or NULL */
    struct space *space; /* decoding space that the payload lies in, or NULL */
    const uint8_t *payload;
    size_t payload_len;
    size_t body_len;
    bool bulk;
    uint8_t body[512];
};

static const uint64_t warn_interval_ns = 10 * CAIRN_NS_PER_S;

static void
letter_free(struct cairn_agent *agent, struct letter *letter)
{
    if (letter->holding != UINT32_MAX)
        cairn_memory_unhold(agent->memory, letter->holding);
    if (letter->owned)
        agent->mail.owned_bytes -= letter->payload_len;
    free(letter->owned);
    space_drop(agent, letter->space);
    free(letter);
}

/* Lists the letters that the transport has, so that mail_close can free those that are never
 * reported as sent. */
static void
letter_fly(struct cairn_agent *agent, struct letter *letter)
{
    letter->next = agent->mail.flying;
    letter->link = &agent->mail.flying;
    if (letter->next)
        letter->next->link = &letter->next;
    agent->mail.flying = letter;
}

static void
letter_land(struct letter *letter)
{
    *letter->link = letter->next;
    if (letter->next)
        letter->next->link = letter->link;
}

bool
mail_payload_ok(const struct cairn_message *message, const uint8_t *payload, size_t payload_len)
{
    struct cairn_reader reader;

    if (payload_len != (size_t)message->block_count * CAIRN_BLOCK_BYTES ||
        message->bytes_len != 8 * message->block_count)
        return false;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < message->block_count; i++)
        if (cairn_read_u64(&reader) !=
            cairn_crc64(0, payload + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES))
            return false;
    return true;
}

/* False if no record here has room for the seal: its generation could not be stored with it. */
static bool
seal_fits(struct cairn_agent *agent, const struct cairn_message *message)
{
    uint64_t now_ns = agent_now_ns(agent);

    if (message->total <= agent->mail.seal_bytes_max)
        return true;
    if (agent->mail.seal_warned_ns == 0 || now_ns - agent->mail.seal_warned_ns > warn_interval_ns) {
        agent->mail.seal_warned_ns = now_ns;
        CAIRN_LOG_AT(ERROR,
                     "mail: node %u seals a generation with %llu bytes of checksums and names, "
                     "room here is for %llu: "
                     "no generation can be protected; give all nodes the same state_bytes",
                     message->from, (unsigned long long)message->total,
                     (unsigned long long)agent->mail.seal_bytes_max);
    }
    return false;
}

/* Hands an arrived message to the core or to a service. */
static void
deliver(struct cairn_agent *agent, const struct cairn_message *message, const uint8_t *payload,
        size_t payload_len)
{
    struct arrival arrival = {payload, payload_len};
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE, .message = message};

    switch (message->type) {
    case CAIRN_MSG_FETCH:
    case CAIRN_MSG_FETCHED:
    case CAIRN_MSG_SERVICE:
    case CAIRN_MSG_TIMING:
    case CAIRN_MSG_TIMING_ACK:
    case CAIRN_MSG_VERDICTS:
        agent->handlers->message(agent, message, payload, payload_len);
        break;
    case CAIRN_MSG_SEAL:
        if (seal_fits(agent, message))
            agent_step(agent, &event, &arrival);
        break;
    default:
        event.payload_ok = payload && mail_payload_ok(message, payload, payload_len);
        agent_step(agent, &event, &arrival);
        break;
    }
}

/* ---- sending ---- */

static cairn_err
try_send(struct cairn_agent *agent, struct letter *letter)
{
    return cairn_transport_send(agent->transport, letter->to, letter->body, letter->body_len,
                                letter->payload, letter->payload_len, (uint64_t)(uintptr_t)letter);
}

static void
flush_queue(struct cairn_agent *agent, struct mailbox *box, struct letter **head,
            struct letter **tail)
{
    while (*head) {
        struct letter *letter = *head;
        cairn_err err = try_send(agent, letter);

        if (err == CAIRN_AGAIN)
            return;
        *head = letter->next;
        if (!*head)
            *tail = NULL;
        box->queued--;
        if (err == CAIRN_OK)
            letter_fly(agent, letter);
        if (err != CAIRN_OK)
            letter_free(agent, letter); /* the peer is down: the core sends it again */
    }
}

static void
flush_mailbox(struct cairn_agent *agent, uint32_t node)
{
    struct mailbox *box = &agent->mail.boxes[node];

    flush_queue(agent, box, &box->control_head, &box->control_tail);
    flush_queue(agent, box, &box->bulk_head, &box->bulk_tail);
}

static void
enqueue(struct letter **head, struct letter **tail, struct letter *letter)
{
    letter->next = NULL;
    if (*tail)
        (*tail)->next = letter;
    else
        *head = letter;
    *tail = letter;
}

/* Packs the message into the letter's body, or into an owned payload if it is too long. */
static cairn_err
fill_letter(struct letter *letter, const struct cairn_message *message)
{
    size_t used = 0, room = CAIRN_MESSAGE_FIXED_BYTES + (size_t)message->bytes_len;
    cairn_err err;

    if (room + 1 <= sizeof letter->body) {
        letter->body[0] = KIND_PLAIN;
        err = cairn_message_pack(message, letter->body + 1, sizeof letter->body - 1, &used);
        letter->body_len = used + 1;
        return err;
    }
    if (letter->payload || room > CAIRN_BULK_BYTES_MAX)
        return CAIRN_INTERNAL;
    letter->owned = malloc(room);
    if (!letter->owned)
        return CAIRN_NOMEM;
    err = cairn_message_pack(message, letter->owned, room, &used);
    letter->body[0] = KIND_LONG;
    letter->body_len = 1;
    letter->payload = letter->owned;
    letter->payload_len = used;
    return err;
}

void
mail_send(struct cairn_agent *agent, const struct cairn_message *message, const uint8_t *payload,
          size_t payload_len, uint32_t holding, struct space *space)
{
    struct letter *letter = calloc(1, sizeof *letter);
    struct mailbox *box;
    cairn_err err;

    if (!letter)
        return;
    letter->to = message->to;
    letter->holding = holding;
    letter->space = space;
    if (space)
        space_hold(space);
    letter->payload = payload;
    letter->payload_len = payload_len;
    if (holding != UINT32_MAX)
        cairn_memory_hold(agent->memory, holding);
    err = message->to < agent->config.node_count ? fill_letter(letter, message) : CAIRN_INVAL;
    if (letter->owned)
        agent->mail.owned_bytes += letter->payload_len;
    letter->bulk = letter->payload != NULL;
    if (err) {
        CAIRN_LOG_AT(ERROR, "mail: cannot pack %s for node %u: %s",
                     cairn_message_name(message->type), message->to, cairn_err_text(err));
        letter_free(agent, letter);
        return;
    }
    if (message->to == agent->config.node) {
        enqueue(&agent->mail.self_head, &agent->mail.self_tail, letter);
        return;
    }
    box = &agent->mail.boxes[message->to];
    err =
        (letter->bulk ? box->bulk_head : box->control_head) ? CAIRN_AGAIN : try_send(agent, letter);
    if (err == CAIRN_OK) {
        letter_fly(agent, letter);
        return;
    }
    if (err == CAIRN_AGAIN && box->queued < MAIL_QUEUED_MAX &&
        (!letter->owned || agent->mail.owned_bytes <= MAIL_OWNED_BYTES_MAX)) {
        box->queued++;
        if (letter->bulk)
            enqueue(&box->bulk_head, &box->bulk_tail, letter);
        else
            enqueue(&box->control_head, &box->control_tail, letter);
        return;
    }
    letter_free(agent, letter); /* dropped: the core sends again what is not answered */
}

/* ---- arriving ---- */

static void
take_body(struct cairn_agent *agent, uint32_t from, const uint8_t *body, size_t body_len,
          const uint8_t *payload, size_t payload_len)
{
    struct cairn_message message;
    cairn_err err = CAIRN_CORRUPT;

    if (body_len >= 1 && body[0] == KIND_PLAIN) {
        err = cairn_message_unpack(body + 1, body_len - 1, &message);
    } else if (body_len == 1 && body[0] == KIND_LONG && payload) {
        err = cairn_message_unpack(payload, payload_len, &message);
        payload = NULL;
        payload_len = 0;
    }
    /* cppcheck-suppress uninitStructMember ; an unpacked message is complete */
    if (err || message.from != from || message.to != agent->config.node) {
        CAIRN_LOG_AT(WARN, "mail: dropped a message of node %u that is malformed or not for us",
                     from);
        return;
    }
    deliver(agent, &message, payload, payload_len);
}

void
mail_deliver_self(struct cairn_agent *agent)
{
    if (agent->mail.delivering_self) /* what is delivered may send more: the outer call takes it */
        return;
    agent->mail.delivering_self = true;
    while (agent->mail.self_head) {
        struct letter *letter = agent->mail.self_head;

        agent->mail.self_head = letter->next;
        if (!agent->mail.self_head)
            agent->mail.self_tail = NULL;
        agent->mail.arriving_holding = letter->holding;
        take_body(agent, agent->config.node, letter->body, letter->body_len, letter->payload,
                  letter->payload_len);
        agent->mail.arriving_holding = UINT32_MAX;
        letter_free(agent, letter);
    }
    agent->mail.delivering_self = false;
}

static void
on_message(void *context, uint32_t from_node, const void *body, size_t body_len,
           const void *payload, size_t payload_len, uint64_t buffer)
{
    struct cairn_agent *agent = context;

    agent->mail.arriving_from = from_node;
    agent->mail.arriving_buffer = payload ? buffer : 0;
    take_body(agent, from_node, body, body_len, payload, payload_len);
    if (agent->mail.arriving_buffer != 0)
        cairn_transport_release(agent->transport, agent->mail.arriving_buffer);
    agent->mail.arriving_buffer = 0;
    mail_deliver_self(agent);
}

static void
on_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    struct cairn_agent *agent = context;
    struct letter *letter = (struct letter *)(uintptr_t)ticket;

    (void)err; /* lost or not: the core asks again for what it misses */
    letter_land(letter);
    letter_free(agent, letter);
    flush_mailbox(agent, node);
}

static void
on_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    struct cairn_agent *agent = context;

    CAIRN_LOG_AT(INFO, "peer: %s node=%u incarnation=%llu", up ? "up" : "down", node,
                 (unsigned long long)incarnation);
    flush_mailbox(agent, node);
    if (up)
        agent_step(agent, &(struct cairn_event){.type = CAIRN_EVENT_CONNECTED, .agent = node},
                   NULL);
}

void
mail_end_silent(struct cairn_agent *agent)
{
    for (uint32_t node = 0; node < agent->config.node_count; node++) {
        struct mailbox *box = &agent->mail.boxes[node];
        bool alive = cairn_core_alive(agent->core, node);

        if (box->alive && !alive) {
            CAIRN_LOG_AT(WARN,
                         "peer: silent node=%u: no heartbeat for %llu ms, its connection is ended "
                         "and made anew",
                         node, (unsigned long long)agent->config.dead_after_ms);
            cairn_transport_disconnect(agent->transport, node);
        }
        box->alive = alive;
    }
}

static void
on_writable(void *context, uint32_t node)
{
    flush_mailbox(context, node);
}

/* ---- the loop's side ---- */

static void
poll_transport(void *context)
{
    struct cairn_agent *agent = context;

    agent->mail.due_ns = 0;
    cairn_transport_poll(agent->transport, agent_now_ns(agent));
    mail_deliver_self(agent);
    agent->handlers->settle(agent);
}

static void
transport_ready(void *context, int fd, uint32_t ready)
{
    (void)fd;
    (void)ready;
    poll_transport(context);
}

static bool
transport_pending(void *context)
{
    struct cairn_agent *agent = context;
    uint64_t now_ns = agent_now_ns(agent);
    uint64_t due_ns = cairn_transport_due(agent->transport, now_ns);

    if (due_ns <= now_ns)
        return true;
    if (due_ns != agent->mail.due_ns) { /* its own timeouts, and all it does where it has no
                                         * descriptor */
        agent->mail.due_ns = due_ns;
        if (due_ns == UINT64_MAX)
            cairn_timer_stop(agent->loop, &agent->mail.timer);
        else
            cairn_timer_start(agent->loop, &agent->mail.timer, due_ns);
    }
    return false;
}

/* Replaces a key that is too long for the transport by its digest, so that all of it counts. */
static cairn_err
shorten_key(uint8_t *key, size_t *key_len)
{
    struct cairn_sha256 *sha = NULL;
    cairn_err err;

    if (*key_len <= CAIRN_TRANSPORT_KEY_BYTES_MAX)
        return CAIRN_OK;
    err = cairn_sha256_create(&sha);
    if (err)
        return err;
    cairn_sha256_update(sha, key, *key_len);
    err = cairn_sha256_final(sha, key);
    *key_len = CAIRN_SHA256_BYTES;
    cairn_sha256_destroy(sha);
    return err;
}

cairn_err
mail_open(struct cairn_agent *agent)
{
    const struct cairn_config *config = &agent->config;
    const char **addresses = calloc(config->node_count, sizeof *addresses);
    uint8_t key[CAIRN_CONFIG_KEY_BYTES_MAX];
    char error[CAIRN_CONFIG_ERROR_BYTES];
    size_t key_len = 0;
    struct cairn_transport_options options = {.provider = config->provider,
                                              .bind_address = config->nodes[config->node].address,
                                              .node = config->node,
                                              .node_count = config->node_count,
                                              .job_id = agent->job_id,
                                              .incarnation = agent->incarnation,
                                              .version = CAIRN_MESSAGE_VERSION,
                                              .buffer_count = MAIL_BUFFERS,
                                              .window = MAIL_WINDOW,
                                              .on_message = on_message,
                                              .on_sent = on_sent,
                                              .on_peer = on_peer,
                                              .on_writable = on_writable,
                                              .context = agent};
    cairn_err err = CAIRN_NOMEM;

    agent->mail.arriving_holding = UINT32_MAX;
    agent->mail.boxes = calloc(config->node_count, sizeof *agent->mail.boxes);
    if (!addresses || !agent->mail.boxes)
        goto done;
    for (uint32_t i = 0; i < config->node_count; i++)
        addresses[i] = config->nodes[i].address;
    err = cairn_config_key_read(config, key, &key_len, error, sizeof error);
    if (err) {
        CAIRN_LOG_AT(ERROR, "%s", error);
        goto done;
    }
    err = shorten_key(key, &key_len);
    if (err)
        goto done;
    options.addresses = addresses;
    options.key = key_len ? key : NULL;
    options.key_len = key_len;
    err = cairn_transport_open(&options, &agent->transport);
    if (err)
        goto done;
    agent->mail.source = (struct cairn_loop_source){transport_pending, poll_transport, agent};
    cairn_timer_init(&agent->mail.timer, poll_transport, agent);
    err = cairn_loop_source_add(agent->loop, &agent->mail.source);
    agent->mail.watched = !err;
    if (!err && cairn_transport_fd(agent->transport) >= 0)
        err = cairn_loop_fd_add(agent->loop, cairn_transport_fd(agent->transport), CAIRN_LOOP_READ,
                                transport_ready, agent);
done:
    explicit_bzero(key, sizeof key);
    free(addresses);
    return err;
}

static void
free_letters(struct cairn_agent *agent, struct letter *letter)
{
    while (letter) {
        struct letter *next = letter->next;

        letter_free(agent, letter);
        letter = next;
    }
}

void
mail_close(struct cairn_agent *agent)
{
    if (agent->mail.watched) {
        cairn_loop_source_remove(agent->loop, &agent->mail.source);
        cairn_timer_stop(agent->loop, &agent->mail.timer);
        cairn_loop_fd_remove(agent->loop, cairn_transport_fd(agent->transport));
    }
    cairn_transport_close(agent->transport);
    agent->transport = NULL;
    for (uint32_t i = 0; agent->mail.boxes && i < agent->config.node_count; i++) {
        free_letters(agent, agent->mail.boxes[i].control_head);
        free_letters(agent, agent->mail.boxes[i].bulk_head);
    }
    free_letters(agent, agent->mail.flying);
    free_letters(agent, agent->mail.self_head);
    agent->mail.flying = agent->mail.self_head = agent->mail.self_tail = NULL;
    free(agent->mail.boxes);
    agent->mail.boxes = NULL;
}

uint32_t
mail_denied_peers(const struct cairn_agent *agent)
{
    uint32_t count = 0;

    for (uint32_t node = 0; node < agent->config.node_count; node++) {
        struct cairn_transport_peer peer;

        cairn_transport_peer_read(agent->transport, node, &peer);
        count += peer.state == CAIRN_PEER_DENIED;
    }
    return count;
}
