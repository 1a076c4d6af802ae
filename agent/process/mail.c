/* agent/process/mail.c - sends messages to other agents, and their queues; see mail.h and letter.h.
 * mail_door.c opens the transport and takes what arrives. */
#include "agent/process/mail.h"

#include "agent/process/agent_state.h"
#include "agent/process/agree.h"
#include "agent/process/letter.h"
#include "agent/process/memory.h"
#include "agent/process/scratch.h"
#include "base/assert.h"
#include "base/log.h"
#include "transport/transport.h"
#include "transport/certificate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void
letter_free(struct cairn_agent *agent, struct letter *letter)
{
    if (letter->part != UINT32_MAX)
        cairn_memory_unhold(agent->memory, letter->part);
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

/* ---- sending ---- */

static cairn_err
try_send(struct cairn_agent *agent, struct letter *letter)
{
    return cairn_transport_send_placed(agent->transport, letter->to, letter->body, letter->body_len,
                                       letter->payload, letter->payload_len, letter->place,
                                       (uint64_t)(uintptr_t)letter);
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

static struct letter *
dequeue(struct mailbox *box, struct letter **head, struct letter **tail)
{
    struct letter *letter = *head;

    *head = letter->next;
    if (!*head)
        *tail = NULL;
    box->queued--;
    if (letter->owned)
        box->owned_bytes -= letter->payload_len;
    return letter;
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
        dequeue(box, head, tail);
        if (err == CAIRN_OK)
            letter_fly(agent, letter);
        else
            letter_free(agent, letter); /* the session has ended, or PEER_DOWN is due */
    }
}

static struct letter *
make_letter(struct cairn_agent *agent, uint32_t to, const uint8_t *payload, size_t payload_len,
            uint32_t part, struct space *space)
{
    struct letter *letter = calloc(1, sizeof *letter);

    if (!letter)
        return NULL;
    letter->to = to;
    letter->part = part;
    letter->space = space;
    letter->payload = payload;
    letter->payload_len = payload_len;
    if (space)
        space_hold(space);
    if (part != UINT32_MAX)
        cairn_memory_hold(agent->memory, part);
    return letter;
}

/* Sends a message of the mail's own at once. */
static bool
post_own(struct cairn_agent *agent, uint32_t node, enum letter_kind kind, const char *bytes,
         size_t bytes_len)
{
    struct letter *letter = make_letter(agent, node, NULL, 0, UINT32_MAX, NULL);
    bool sent;

    if (!letter)
        return false;
    CAIRN_ASSERT(bytes_len < sizeof letter->body);
    letter->body[0] = (uint8_t)kind;
    if (bytes_len > 0)
        memcpy(letter->body + 1, bytes, bytes_len);
    letter->body_len = 1 + bytes_len;
    sent = try_send(agent, letter) == CAIRN_OK;
    if (sent)
        letter_fly(agent, letter);
    else
        letter_free(agent, letter);
    return sent;
}

/* The first message of a session: the options that must agree. */
static bool
greet(struct cairn_agent *agent, uint32_t node)
{
    struct mailbox *box = &agent->mail.boxes[node];
    char options[AGREE_BYTES_MAX];

    if (box->open && !box->greeted)
        box->greeted =
            post_own(agent, node, KIND_OPTIONS, options, agree_pack(&agent->config, options));
    return !box->open || box->greeted;
}

void
mail_flush(struct cairn_agent *agent, uint32_t node)
{
    struct mailbox *box = &agent->mail.boxes[node];

    if (!greet(agent, node) || !box->up)
        return;
    flush_queue(agent, box, &box->control_head, &box->control_tail);
    flush_queue(agent, box, &box->bulk_head, &box->bulk_tail);
}

void
mail_empty(struct cairn_agent *agent, struct mailbox *box)
{
    while (box->control_head)
        letter_free(agent, dequeue(box, &box->control_head, &box->control_tail));
    while (box->bulk_head)
        letter_free(agent, dequeue(box, &box->bulk_head, &box->bulk_tail));
}

static cairn_err
pack(const struct letter *letter, const void *message, void *out, size_t out_bytes, size_t *used)
{
    return letter->service ? cairn_service_pack(message, out, out_bytes, used)
                           : cairn_message_pack(message, out, out_bytes, used);
}

/* Packs the message into the letter's body, or into an owned payload if it is too long. */
static cairn_err
fill_letter(struct letter *letter, const void *message, size_t bytes_max)
{
    size_t used = 0;
    cairn_err err;

    if (bytes_max + 1 <= sizeof letter->body) {
        letter->body[0] = letter->service ? KIND_SERVICE : KIND_CORE;
        err = pack(letter, message, letter->body + 1, sizeof letter->body - 1, &used);
        letter->body_len = used + 1;
        return err;
    }
    if (letter->payload || bytes_max > CAIRN_BULK_BYTES_MAX)
        return CAIRN_INTERNAL;
    letter->owned = malloc(bytes_max);
    if (!letter->owned)
        return CAIRN_NOMEM;
    err = pack(letter, message, letter->owned, bytes_max, &used);
    letter->body[0] = letter->service ? KIND_SERVICE_LONG : KIND_CORE_LONG;
    letter->body_len = 1;
    letter->payload = letter->owned;
    letter->payload_len = used;
    return err;
}

/* True if the letter may wait. Services get half of a queue, so that they never end a session. */
static bool
has_room(const struct mailbox *box, const struct letter *letter)
{
    uint32_t share = letter->service ? 2 : 1;

    return box->queued < MAIL_QUEUED_MAX / share &&
           (!letter->owned ||
            box->owned_bytes + letter->payload_len <= MAIL_OWNED_BYTES_MAX / share);
}

/* True if a session to the peer is being made; begins one if necessary. */
static bool
is_coming_up(struct cairn_agent *agent, uint32_t node)
{
    const struct mailbox *box = &agent->mail.boxes[node];
    struct cairn_transport_peer peer;

    cairn_transport_connect(agent->transport, node);
    cairn_transport_peer_read(agent->transport, node, &peer);
    return peer.state == CAIRN_PEER_CONNECTING || (box->open && !box->refused);
}

/* Sends or queues a letter, or frees it. */
static void
post(struct cairn_agent *agent, struct letter *letter)
{
    struct mailbox *box = &agent->mail.boxes[letter->to];
    bool bulk = letter->payload != NULL;
    cairn_err err = CAIRN_PEER;

    box->used_ns = agent_now_ns(agent);
    box->leaving = false;
    if (box->up)
        err = (bulk ? box->bulk_head : box->control_head) ? CAIRN_AGAIN : try_send(agent, letter);
    else if (letter->service && is_coming_up(agent, letter->to))
        err = CAIRN_AGAIN;
    if (err == CAIRN_OK) {
        letter_fly(agent, letter);
    } else if (err == CAIRN_AGAIN && has_room(box, letter)) {
        box->queued++;
        if (letter->owned)
            box->owned_bytes += letter->payload_len;
        if (bulk)
            enqueue(&box->bulk_head, &box->bulk_tail, letter);
        else
            enqueue(&box->control_head, &box->control_tail, letter);
    } else {
        if (err == CAIRN_AGAIN && !letter->service) {
            CAIRN_LOG_AT(WARN,
                         "mail: node %u takes messages too slowly: %u wait, %" PRIu64
                         " bytes: its session is ended and made again",
                         letter->to, box->queued, box->owned_bytes);
            cairn_transport_disconnect(agent->transport, letter->to);
        }
        letter_free(agent, letter);
    }
}

static void
send_letter(struct cairn_agent *agent, struct letter *letter, const void *message, size_t bytes_max,
            const char *name)
{
    cairn_err err = letter->to < agent->config.node_count ? fill_letter(letter, message, bytes_max)
                                                          : CAIRN_INVAL;

    if (err) {
        CAIRN_LOG_AT(ERROR, "mail: cannot pack %s for node %u: %s", name, letter->to,
                     cairn_err_text(err));
        letter_free(agent, letter);
    } else if (letter->to == agent->config.node) {
        enqueue(&agent->mail.self_head, &agent->mail.self_tail, letter);
    } else {
        post(agent, letter);
    }
}

void
mail_send(struct cairn_agent *agent, const struct cairn_message *message, const uint8_t *payload,
          size_t payload_len, uint32_t part, struct space *space)
{
    struct letter *letter = make_letter(agent, message->to, payload, payload_len, part, space);

    if (!letter) {
        agent_abort(agent, 1, "out of memory for a message");
        return;
    }
    letter->place = cairn_message_place(message);
    send_letter(agent, letter, message, CAIRN_MESSAGE_HEAD_BYTES_MAX + (size_t)message->bytes_len,
                cairn_message_name(message->kind));
}

void
mail_send_service(struct cairn_agent *agent, const struct cairn_service_message *message,
                  const uint8_t *payload, size_t payload_len, uint32_t part)
{
    mail_send_placed(agent, message, payload, payload_len, part, 0);
}

void
mail_send_placed(struct cairn_agent *agent, const struct cairn_service_message *message,
                 const uint8_t *payload, size_t payload_len, uint32_t part, uint64_t place)
{
    struct letter *letter = make_letter(agent, message->to, payload, payload_len, part, NULL);

    if (!letter)
        return;
    letter->service = true;
    letter->place = place;
    send_letter(agent, letter, message, CAIRN_SERVICE_HEAD_BYTES + (size_t)message->bytes_len,
                cairn_service_name(message->kind));
}

void
mail_unplace(struct cairn_agent *agent, const uint8_t *memory, size_t bytes)
{
    if (agent->transport) /* else it is closed, and nothing arrives */
        cairn_transport_unplace(agent->transport, memory, bytes);
}

void
mail_connect(struct cairn_agent *agent, uint32_t node)
{
    cairn_transport_connect(agent->transport, node);
}

void
mail_disconnect(struct cairn_agent *agent, uint32_t node)
{
    CAIRN_LOG_AT(
        WARN, "peer: silent node=%u: no heartbeat for %u ms, its session is ended and made again",
        node, agent->config.dead_after_ms);
    cairn_transport_disconnect(agent->transport, node);
}

bool
mail_is_idle(const struct cairn_agent *agent, uint32_t node)
{
    const struct mailbox *box = &agent->mail.boxes[node];
    uint64_t idle_ns = IDLE_FACTOR * (uint64_t)agent->config.dead_after_ms * CAIRN_NS_PER_MS;

    return box->queued == 0 && agent_now_ns(agent) - box->used_ns >= idle_ns &&
           !cairn_core_needs_session(agent->core, node);
}

void
mail_tick(struct cairn_agent *agent)
{
    for (uint32_t node = 0; node < agent->config.node_count; node++) {
        struct mailbox *box = &agent->mail.boxes[node];
        struct cairn_transport_peer peer;

        cairn_transport_peer_read(agent->transport, node, &peer);
        if ((peer.state != CAIRN_PEER_UP && peer.state != CAIRN_PEER_DOWN) || box->leaving ||
            !mail_is_idle(agent, node))
            continue;
        box->leaving = box->up && post_own(agent, node, KIND_LEAVE, NULL, 0);
        if (box->leaving || !box->open)
            cairn_transport_leave(agent->transport, node);
    }
}

static uint32_t
peers_in(const struct cairn_agent *agent, enum cairn_peer_state state)
{
    uint32_t count = 0;

    for (uint32_t node = 0; node < agent->config.node_count; node++) {
        struct cairn_transport_peer peer;

        cairn_transport_peer_read(agent->transport, node, &peer);
        count += peer.state == state;
    }
    return count;
}

struct mail_unwanted
mail_unwanted(const struct cairn_agent *agent)
{
    struct cairn_transport_stats stats;

    cairn_transport_stats_read(agent->transport, &stats);
    return (struct mail_unwanted){.messages = agent->mail.dropped + stats.dropped_payloads,
                                  .refused_connections = stats.refused_connections,
                                  .ignored_connections = stats.ignored_connections,
                                  .ignored_addresses = stats.ignored_addresses};
}

enum cairn_certificate_state
mail_certificate(const struct cairn_agent *agent, uint64_t *left_s)
{
    const struct cairn_certificate_dates *dates = &agent->mail.dates;
    int64_t now_s = (int64_t)(cairn_clock_wall_ns(&agent->clock) / UINT64_C(1000000000));

    *left_s = dates->ends_s > now_s ? (uint64_t)(dates->ends_s - now_s) : 0;
    return cairn_certificate_state(dates, now_s);
}

uint32_t
mail_denied_peers(const struct cairn_agent *agent)
{
    return peers_in(agent, CAIRN_PEER_DENIED);
}

uint32_t
mail_version_peers(const struct cairn_agent *agent)
{
    return peers_in(agent, CAIRN_PEER_VERSION);
}
