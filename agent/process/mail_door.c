/* agent/process/mail_door.c - the transport: what arrives from other agents, sessions, and the
 * check of each message; see mail.h. */
#include "agent/process/agent_state.h"
#include "agent/process/agree.h"
#include "agent/process/credentials.h"
#include "agent/process/handlers.h"
#include "agent/process/letter.h"
#include "agent/process/protocol.h"
#include "agent/process/step.h"
#include "base/crc.h"
#include "base/log.h"
#include "base/wire.h"
#include "transport/transport.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t warn_interval_ns = 10 * CAIRN_NS_PER_S;

bool
mail_payload_ok(const struct cairn_message *message, const uint8_t *payload, size_t payload_len)
{
    uint32_t count = cairn_message_block_count(message);
    struct cairn_reader reader;

    if (payload_len != (size_t)count * CAIRN_BLOCK_BYTES || message->bytes_len != 8 * count)
        return false;
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < count; i++)
        if (cairn_read_u64(&reader) !=
            cairn_crc64(0, payload + (size_t)i * CAIRN_BLOCK_BYTES, CAIRN_BLOCK_BYTES))
            return false;
    return true;
}

/* False if no record here has room for the seal: its generation could not be stored with it. */
static bool
seal_fits(struct cairn_agent *agent, const struct cairn_message *message)
{
    uint64_t now_ns = agent_now_ns(agent), total = message->as.seal.total;

    if (total <= agent->mail.seal_bytes_max)
        return true;
    if (agent->mail.seal_warned_ns == 0 || now_ns - agent->mail.seal_warned_ns > warn_interval_ns) {
        agent->mail.seal_warned_ns = now_ns;
        CAIRN_LOG_AT(ERROR,
                     "mail: node %u seals a generation with %" PRIu64 " bytes of checksums and "
                     "names, room here is for %" PRIu64 ": no generation can be protected; give "
                     "all nodes the same state_bytes",
                     message->from, total, agent->mail.seal_bytes_max);
    }
    return false;
}

/* Hands an arrived message to the core. */
static void
deliver(struct cairn_agent *agent, const struct cairn_message *message, const uint8_t *payload,
        size_t payload_len)
{
    struct arrival arrival = {payload, payload_len};
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE, .as.message = {.message = message}};

    if (message->kind == CAIRN_MSG_SEAL && !seal_fits(agent, message))
        return;
    event.as.message.payload_ok =
        cairn_message_block_count(message) == 0 || mail_payload_ok(message, payload, payload_len);
    agent_step(agent, &event, &arrival);
}

static void
drop_arrived(struct cairn_agent *agent, uint32_t from)
{
    struct mailbox *box = &agent->mail.boxes[from];
    uint64_t now_ns = agent_now_ns(agent);

    agent->mail.dropped++;
    if (box->warned_ns && now_ns - box->warned_ns < warn_interval_ns)
        return;
    box->warned_ns = now_ns;
    CAIRN_LOG_AT(WARN, "mail: dropped a message of node %u that is malformed or not for us", from);
}

static void
take_core(struct cairn_agent *agent, uint32_t from, const uint8_t *bytes, size_t bytes_len,
          const uint8_t *payload, size_t payload_len)
{
    struct cairn_message message;

    if (cairn_message_unpack(bytes, bytes_len, &message) != CAIRN_OK ||
        /* cppcheck-suppress uninitStructMember ; an unpacked message is complete */
        message.from != from || message.to != agent->config.node)
        drop_arrived(agent, from);
    else
        deliver(agent, &message, payload, payload_len);
}

static void
take_service(struct cairn_agent *agent, uint32_t from, const uint8_t *bytes, size_t bytes_len,
             const uint8_t *payload, size_t payload_len)
{
    struct cairn_service_message message;

    if (cairn_service_unpack(bytes, bytes_len, &message) != CAIRN_OK ||
        /* cppcheck-suppress uninitStructMember ; an unpacked message is complete */
        message.from != from || message.to != agent->config.node)
        drop_arrived(agent, from);
    else
        agent->handlers->message(agent, &message, payload, payload_len);
}

/* ---- sessions ---- */

/* Takes the peer's options: the session begins for the core if those that must agree do. */
static void
take_options(struct cairn_agent *agent, uint32_t from, const char *bytes, size_t bytes_len)
{
    struct mailbox *box = &agent->mail.boxes[from];
    char text[AGREE_TEXT_BYTES] = "";
    enum agreement agreement = agree_compare(&agent->config, from, bytes, bytes_len, text);
    bool said = box->mismatch && strcmp(box->mismatch, text) == 0;
    struct cairn_event event = {.type = CAIRN_EVENT_PEER_UP,
                                .as.peer = {.agent = from, .incarnation = box->incarnation}};

    if (box->up || box->refused) {
        drop_arrived(agent, from);
        return;
    }
    free(box->mismatch);
    box->mismatch = agreement == AGREE_SAME ? NULL : strdup(text);
    if (agreement == AGREE_DIFFERENT && !said)
        CAIRN_LOG_AT(WARN, "peer: options differ: %s; give all nodes the same options", text);
    box->refused = agreement == AGREE_REFUSED;
    if (box->refused) {
        if (!said)
            CAIRN_LOG_AT(ERROR,
                         "peer: refused node=%u: options differ: %s; give all nodes the same "
                         "options, and restart the agents that differ",
                         from, text);
        mail_empty(agent, box);
        return;
    }
    box->up = true;
    CAIRN_LOG_AT(INFO, "peer: up node=%u incarnation=%" PRIu64, from, box->incarnation);
    agent_step(agent, &event, NULL);
    mail_flush(agent, from); /* what services queued meanwhile */
}

static void
mail_peer_changed(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    struct cairn_agent *agent = context;
    struct mailbox *box = &agent->mail.boxes[node];
    struct cairn_event event = {.type = CAIRN_EVENT_PEER_DOWN,
                                .as.peer = {.agent = node, .incarnation = incarnation}};
    bool was_up = box->up;

    box->open = up;
    box->greeted = box->up = box->refused = box->leaving = false;
    box->incarnation = incarnation;
    if (up) {
        mail_flush(agent, node);
        return;
    }
    mail_empty(agent, box);
    if (!was_up)
        return;
    CAIRN_LOG_AT(INFO, "peer: down node=%u incarnation=%" PRIu64, node, incarnation);
    agent_step(agent, &event, NULL);
}

/* The other side has no use for the session: it ends unless this side has. */
static void
take_leave(struct cairn_agent *agent, uint32_t from)
{
    if (from == agent->config.node || !mail_is_idle(agent, from))
        return;
    cairn_transport_leave(agent->transport, from);
    cairn_transport_disconnect(agent->transport, from);
}

/* ---- arriving ---- */

static void
take_body(struct cairn_agent *agent, uint32_t from, const uint8_t *body, size_t body_len,
          const uint8_t *payload, size_t payload_len)
{
    struct mailbox *box = &agent->mail.boxes[from];
    uint8_t kind = body_len ? body[0] : 0;

    if (kind != KIND_LEAVE) {
        box->used_ns = agent_now_ns(agent);
        box->leaving = false;
    }
    if (kind == KIND_OPTIONS) {
        take_options(agent, from, (const char *)body + 1, body_len - 1);
    } else if (from != agent->config.node && !box->up) {
        drop_arrived(agent, from);
        if (!box->refused) /* it overtook the options: nothing may be dropped within a session */
            cairn_transport_disconnect(agent->transport, from);
    } else if (kind == KIND_LEAVE) {
        take_leave(agent, from);
    } else if (kind == KIND_CORE) {
        take_core(agent, from, body + 1, body_len - 1, payload, payload_len);
    } else if (kind == KIND_SERVICE) {
        take_service(agent, from, body + 1, body_len - 1, payload, payload_len);
    } else if (kind == KIND_CORE_LONG && body_len == 1 && payload) {
        take_core(agent, from, payload, payload_len, NULL, 0);
    } else if (kind == KIND_SERVICE_LONG && body_len == 1 && payload) {
        take_service(agent, from, payload, payload_len, NULL, 0);
    } else {
        drop_arrived(agent, from);
        if (kind == KIND_CORE_LONG || kind == KIND_SERVICE_LONG) /* it changed on its way */
            cairn_transport_disconnect(agent->transport, from);
    }
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
        agent->mail.arriving_part = letter->part;
        take_body(agent, agent->config.node, letter->body, letter->body_len, letter->payload,
                  letter->payload_len);
        agent->mail.arriving_part = UINT32_MAX;
        letter_free(agent, letter);
    }
    agent->mail.delivering_self = false;
}

static void
mail_arrived(void *context, uint32_t from_node, const void *body, size_t body_len,
             const void *payload, size_t payload_len, uint64_t buffer)
{
    struct cairn_agent *agent = context;

    agent->mail.received_bytes += body_len + payload_len;
    agent->mail.arriving_from = from_node;
    agent->mail.arriving_buffer = payload ? buffer : 0;
    take_body(agent, from_node, body, body_len, payload, payload_len);
    if (agent->mail.arriving_buffer != 0)
        cairn_transport_release(agent->transport, agent->mail.arriving_buffer);
    agent->mail.arriving_buffer = 0;
    mail_deliver_self(agent);
}

/* ---- from the transport ---- */

static void *
place_payload(void *context, uint32_t from_node, uint64_t place, size_t payload_len)
{
    struct cairn_agent *agent = context;

    return agent->mail.boxes[from_node].up
               ? agent->handlers->place(agent, from_node, place, payload_len)
               : NULL;
}

static void
letter_land(struct letter *letter)
{
    *letter->link = letter->next;
    if (letter->next)
        letter->next->link = letter->link;
}

static void
on_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
    struct cairn_agent *agent = context;
    struct letter *letter = (struct letter *)(uintptr_t)ticket;

    if (!err) { /* if it is lost, the session has ended */
        agent->mail.sent_bytes += letter->body_len + letter->payload_len;
        agent->mail.sent_messages++;
        if (!letter->owned) /* else the payload is a long message */
            agent->mail.sent_block_bytes += letter->payload_len;
    }
    letter_land(letter);
    letter_free(agent, letter);
    mail_flush(agent, node);
}

static void
on_writable(void *context, uint32_t node)
{
    mail_flush(context, node);
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

cairn_err
mail_open(struct cairn_agent *agent)
{
    const struct cairn_config *config = &agent->config;
    const char **addresses = calloc(config->node_count, sizeof *addresses);
    struct cairn_credentials *credentials = NULL;
    struct cairn_transport_certificate certificate;
    struct cairn_transport_key keys[2];
    char error[CAIRN_CONFIG_ERROR_BYTES], when[64];
    struct cairn_transport_options options = {.provider = config->provider,
                                              .bind_address = config->nodes[config->node].address,
                                              .node = config->node,
                                              .node_count = config->node_count,
                                              .job_id = agent->job_id,
                                              .incarnation = agent->incarnation,
                                              .version = CAIRN_PROTOCOL_NEWEST,
                                              .version_oldest = CAIRN_PROTOCOL_OLDEST,
                                              .buffer_count = MAIL_BUFFERS,
                                              .window = MAIL_WINDOW,
                                              .on_message = mail_arrived,
                                              .on_sent = on_sent,
                                              .on_peer = mail_peer_changed,
                                              .on_writable = on_writable,
                                              .on_place = place_payload,
                                              .context = agent};
    cairn_err err = CAIRN_NOMEM;

    agent->mail.arriving_part = UINT32_MAX;
    agent->mail.boxes = calloc(config->node_count, sizeof *agent->mail.boxes);
    if (!addresses || !agent->mail.boxes)
        goto done;
    for (uint32_t i = 0; i < config->node_count; i++)
        addresses[i] = config->nodes[i].address;
    if (cairn_config_protection(config) == CAIRN_CONFIG_PROTECTION_AUTHENTICATE)
        options.protection = CAIRN_PROTECTION_AUTHENTICATE;
    else if (cairn_config_protection(config) == CAIRN_CONFIG_PROTECTION_ENCRYPT)
        options.protection = CAIRN_PROTECTION_ENCRYPT;
    err = cairn_credentials_read(config, &credentials, error, sizeof error);
    if (err) {
        CAIRN_LOG_AT(ERROR, "credentials: refused: %s", error);
        goto done;
    }
    agent->mail.dates = credentials->dates;
    if (cairn_credentials_not_valid(
            &credentials->dates,
            (int64_t)(cairn_clock_wall_ns(&agent->clock) / UINT64_C(1000000000)), when,
            sizeof when))
        CAIRN_LOG_AT(
            ERROR,
            "credentials: the certificate in %s %s, and other nodes refuse it; renew it, and send "
            "SIGHUP",
            config->certificate_file, when);
    cairn_credentials_keys(credentials, keys);
    options.addresses = addresses;
    options.key = keys[0].bytes;
    options.key_len = keys[0].len;
    options.second_key = keys[1];
    options.certificate = cairn_credentials_certificate(credentials, config, &certificate);
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
    cairn_credentials_free(credentials);
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
        mail_empty(agent, &agent->mail.boxes[i]);
        free(agent->mail.boxes[i].mismatch);
    }
    free_letters(agent, agent->mail.flying);
    free_letters(agent, agent->mail.self_head);
    agent->mail.flying = agent->mail.self_head = agent->mail.self_tail = NULL;
    free(agent->mail.boxes);
    agent->mail.boxes = NULL;
}
