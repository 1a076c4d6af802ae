/*
 * tests/support/stranger/stranger.c - an agent that makes claims which no agent makes. It has the
 * place, the key and the protocol of a node whose agent does not run.
 *
 *   stranger CONFIG CLAIM
 *
 * CONFIG is that node's file. CLAIM: `right` (a claim as a coordinator makes it), `other` (of an
 * epoch whose claimant is another agent), `nobody` (whose claimant does not exist), `absurd` (of an
 * epoch that is absurdly far ahead), `old` (of the active epoch), `stale` (for agents as they were
 * before), `damaged` (the record has a wrong byte).
 *
 * It asks all agents what they hold, makes the claim to each, and prints per answer "AGENT ERR".
 * Exit: 0 every agent with a session answered, 75 not all did, 64 wrong usage.
 *
 * With the CLAIM `verdict` it sends each agent a ledger with a verdict on rank 2 instead, as if
 * that agent's own detector had opened it, and exits 0.
 */
#include "agent/core/restore/inventory.h"
#include "agent/core/epoch/record.h"
#include "agent/process/agree.h"
#include "agent/process/config.h"
#include "agent/process/letter.h"
#include "agent/process/protocol.h"
#include "agent/process/service_message.h"
#include "base/crc.h"
#include "base/log.h"
#include "replan/live/ledger.h"
#include "transport/transport.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { AGENTS_MAX = 16, ATTEMPT = 1, BUFFERS = 32 };
enum { EXIT_USAGE = 64, EXIT_AGAIN = 75 };

static const uint64_t second_ns = 1000000000;

struct agent {
    bool up, answered;
    uint64_t incarnation;
    struct inventory inventory;
    uint64_t active; /* epoch */
};

static struct stranger {
    struct cairn_config config;
    struct cairn_transport *transport;
    uint64_t incarnation;
    struct agent agents[AGENTS_MAX];
    struct record record; /* of the active epoch */
    uint8_t *claim;       /* packed, kept until it is sent */
} self;

static uint64_t
now_ns(void)
{
    struct timespec time;

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * second_ns + (uint64_t)time.tv_nsec;
}

static void
turn(void)
{
    struct pollfd ready = {.fd = cairn_transport_fd(self.transport), .events = POLLIN};

    if (cairn_transport_due(self.transport, now_ns()) > now_ns())
        (void)poll(&ready, 1, 10);
    cairn_transport_poll(self.transport, now_ns());
}

static struct cairn_message
message_to(uint32_t to, enum cairn_message_kind kind, uint64_t epoch)
{
    return (struct cairn_message){.kind = kind, .from = self.config.node, .to = to, .epoch = epoch};
}

/* Sends, turning while the transport has no room. */
static void
send_body(uint32_t to, const uint8_t *body, size_t body_len, const uint8_t *payload,
          size_t payload_len)
{
    uint64_t until_ns = now_ns() + 10 * second_ns;

    while (cairn_transport_send(self.transport, to, body, body_len, payload, payload_len, 0) ==
               CAIRN_AGAIN &&
           now_ns() < until_ns)
        turn();
}

/* Long messages are payloads, as in mail.c. */
static void
send_message(const struct cairn_message *message)
{
    static uint8_t payloads[AGENTS_MAX][CAIRN_BULK_BYTES_MAX] __attribute__((aligned(4096)));
    uint8_t body[CAIRN_TRANSPORT_BODY_BYTES_MAX] = {KIND_CORE};
    uint8_t *payload = payloads[message->to];
    size_t used = 0, payload_len = 0, body_len;

    if (cairn_message_pack(message, body + 1, sizeof body - 1, &used) == CAIRN_OK) {
        body_len = used + 1;
        payload = NULL;
    } else {
        if (cairn_message_pack(message, payload, CAIRN_BULK_BYTES_MAX, &payload_len) != CAIRN_OK)
            abort();
        body[0] = KIND_CORE_LONG;
        body_len = 1;
    }
    send_body(message->to, body, body_len, payload, payload_len);
}

/* The first message of a session. */
static void
send_options(uint32_t to)
{
    uint8_t body[1 + AGREE_BYTES_MAX] = {KIND_OPTIONS};
    char options[AGREE_BYTES_MAX];
    size_t len = agree_pack(&self.config, options);

    memcpy(body + 1, options, len);
    (void)!cairn_transport_send(self.transport, to, body, 1 + len, NULL, 0, 0);
}

/* ---- what arrives ---- */

static void
take_inventory(const struct cairn_message *message)
{
    struct agent *agent = &self.agents[message->from];

    inventory_fini(&agent->inventory);
    if (inventory_read(message->bytes, message->bytes_len, &agent->inventory) != CAIRN_OK)
        memset(&agent->inventory, 0, sizeof agent->inventory);
}

static void
take_record(const struct cairn_message *message)
{
    struct record record = {0};

    if (record_read(message->bytes, message->bytes_len, &record) != CAIRN_OK)
        return;
    record_fini(&self.record);
    self.record = record;
}

static void
on_message(void *context, uint32_t from, const void *body, size_t body_len, const void *payload,
           size_t payload_len, uint64_t buffer)
{
    const uint8_t *bytes = body;
    struct cairn_message message;
    cairn_err err = CAIRN_CORRUPT;

    if (body_len > 1 && bytes[0] == KIND_CORE)
        err = cairn_message_unpack(bytes + 1, body_len - 1, &message);
    else if (body_len == 1 && bytes[0] == KIND_CORE_LONG && payload)
        err = cairn_message_unpack(payload, payload_len, &message);
    if (!err && message.kind == CAIRN_MSG_INVENTORY)
        take_inventory(&message);
    if (!err && message.kind == CAIRN_MSG_ACTIVATE)
        take_record(&message);
    if (!err && message.kind == CAIRN_MSG_PROMISE && !self.agents[from].answered) {
        self.agents[from].answered = true;
        printf("%u %s\n", from, cairn_err_name((cairn_err)message.as.promise.err));
    }
    if (buffer)
        cairn_transport_release(self.transport, buffer);
}

static void
on_sent(void *context, uint32_t node, uint64_t ticket, cairn_err err)
{
}

static void
on_peer(void *context, uint32_t node, bool up, uint64_t incarnation)
{
    self.agents[node].up = up;
    self.agents[node].incarnation = incarnation;
}

/* ---- messages ---- */

static void
open_transport(void)
{
    static const char *addresses[AGENTS_MAX];
    const struct cairn_config *config = &self.config;
    struct cairn_transport_options options = {.provider = config->provider,
                                              .bind_address = config->nodes[config->node].address,
                                              .node = config->node,
                                              .node_count = config->node_count,
                                              .addresses = addresses,
                                              .job_id =
                                                  cairn_crc64(0, config->job, strlen(config->job)),
                                              .incarnation = self.incarnation,
                                              .version = CAIRN_PROTOCOL_NEWEST,
                                              .version_oldest = CAIRN_PROTOCOL_OLDEST,
                                              .buffer_count = BUFFERS,
                                              .on_message = on_message,
                                              .on_sent = on_sent,
                                              .on_peer = on_peer};

    for (uint32_t i = 0; i < config->node_count; i++)
        addresses[i] = config->nodes[i].address;
    if (cairn_transport_open(&options, &self.transport) != CAIRN_OK)
        exit(EXIT_AGAIN);
}

/* Until all others have sessions and have answered LIST; a few seconds at most. */
static void
ask_everyone(void)
{
    uint64_t until_ns = now_ns() + 20 * second_ns;
    bool greeted[AGENTS_MAX] = {false}, waits = true;

    for (uint32_t i = 0; i < self.config.node_count; i++)
        cairn_transport_connect(self.transport, i);
    while (waits && now_ns() < until_ns) {
        waits = false;
        turn();
        for (uint32_t i = 0; i < self.config.node_count; i++) {
            struct cairn_message position = message_to(i, CAIRN_MSG_POSITION, 0);
            struct cairn_message ask = message_to(i, CAIRN_MSG_ASK, 0);

            if (i == self.config.node)
                continue;
            waits |= !self.agents[i].inventory.known;
            if (!self.agents[i].up || greeted[i])
                continue;
            greeted[i] = true;
            send_options(i);
            send_message(&position);
            ask.as.ask.attempt = ATTEMPT;
            ask.as.ask.mode = CAIRN_ASK_LIST;
            send_message(&ask);
        }
    }
}

static uint64_t
claimed_epoch(const char *claim)
{
    uint64_t highest = self.record.epoch, round;
    uint32_t claimant = self.config.node;

    for (uint32_t i = 0; i < self.config.node_count; i++)
        if (self.agents[i].inventory.self.promised > highest)
            highest = self.agents[i].inventory.self.promised;
    round = (highest >> EPOCH_CLAIMANT_BITS) + 1;
    if (strcmp(claim, "old") == 0)
        return self.record.epoch;
    if (strcmp(claim, "other") == 0)
        claimant = (claimant + 1) % self.config.node_count;
    if (strcmp(claim, "nobody") == 0)
        claimant = 60000;
    if (strcmp(claim, "absurd") == 0)
        round += UINT64_C(1) << 44;
    return round << EPOCH_CLAIMANT_BITS | claimant;
}

static void
make_claim(const char *claim)
{
    struct record *record = &self.record;
    size_t len = 0;

    record->epoch = claimed_epoch(claim);
    for (uint32_t i = 0; i < record->agent_count && i < AGENTS_MAX; i++) {
        const struct inventory *inventory = &self.agents[i].inventory;

        record->seen[i].incarnation = inventory->self.incarnation;
        record->seen[i].version = inventory->version - (strcmp(claim, "stale") == 0);
    }
    if (record_pack(record, &self.claim, &len) != CAIRN_OK)
        exit(EXIT_AGAIN);
    if (strcmp(claim, "damaged") == 0)
        self.claim[len / 2] ^= 0xff;
    for (uint32_t i = 0; i < self.config.node_count; i++) {
        struct cairn_message message = message_to(i, CAIRN_MSG_CLAIM, record->epoch);

        if (!self.agents[i].up)
            continue;
        message.as.claim.attempt = ATTEMPT;
        message.bytes = self.claim;
        message.bytes_len = (uint32_t)len;
        send_message(&message);
    }
}

/* The verdict is of a run that the agent's own detector has, or will soon have. */
static void
send_verdict(uint32_t to)
{
    static uint8_t bytes[CAIRN_LEDGER_BYTES_MAX];
    static struct cairn_ledger ledger;
    const uint64_t wall_ns = self.incarnation; /* the time of the start */
    uint8_t body[CAIRN_TRANSPORT_BODY_BYTES_MAX] = {KIND_SERVICE};
    struct cairn_service_message message = {
        .kind = CAIRN_SERVICE_VERDICTS, .from = self.config.node, .to = to, .bytes = bytes};
    struct cairn_writer writer;
    size_t len = 0;

    cairn_ledger_init(&ledger);
    ledger.version = UINT64_C(1) << 32;
    ledger.next_number = 8;
    ledger.count = 1;
    ledger.entries[0] = (struct cairn_ledger_entry){.number = 7,
                                                    .run = self.agents[to].incarnation,
                                                    .kind = CAIRN_CRASH,
                                                    .rank_count = 1,
                                                    .ranks = {2},
                                                    .until_step = CAIRN_STEP_NONE,
                                                    .confidence = 1,
                                                    .evidence_kinds = CAIRN_EVIDENCE_PROGRESS |
                                                                      CAIRN_EVIDENCE_PROCESS,
                                                    .opened_wall_ns = wall_ns,
                                                    .lost_until_wall_ns = wall_ns,
                                                    .evidence = "forged"};
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_ledger_pack(&ledger, &writer);
    message.bytes_len = (uint32_t)writer.used_bytes;
    if (cairn_writer_done(&writer) != CAIRN_OK ||
        cairn_service_pack(&message, body + 1, sizeof body - 1, &len) != CAIRN_OK)
        abort();
    send_body(to, body, 1 + len, NULL, 0);
}

static void
send_verdicts(void)
{
    uint64_t until_ns = now_ns() + second_ns;

    for (uint32_t i = 0; i < self.config.node_count; i++)
        if (self.agents[i].up)
            send_verdict(i);
    while (now_ns() < until_ns)
        turn();
}

static bool
await_answers(void)
{
    uint64_t until_ns = now_ns() + 5 * second_ns;
    bool waits = true;

    while (waits && now_ns() < until_ns) {
        waits = false;
        turn();
        for (uint32_t i = 0; i < self.config.node_count; i++)
            waits |= self.agents[i].up && !self.agents[i].answered;
    }
    return !waits;
}

int
main(int argc, char **argv)
{
    char error[CAIRN_CONFIG_ERROR_BYTES];
    struct timespec wall;
    bool answered;

    if (argc != 3 || cairn_config_load(argv[1], &self.config, error, sizeof error) != CAIRN_OK ||
        self.config.node_count > AGENTS_MAX)
        return EXIT_USAGE;
    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)clock_gettime(CLOCK_REALTIME, &wall);
    self.incarnation = (uint64_t)wall.tv_sec * second_ns + (uint64_t)wall.tv_nsec;
    open_transport();
    ask_everyone();
    if (strcmp(argv[2], "verdict") == 0) {
        send_verdicts();
        answered = true;
    } else if (self.record.epoch == 0) {
        answered = false; /* nobody has told us of an epoch */
    } else {
        make_claim(argv[2]);
        answered = await_answers();
    }
    cairn_transport_close(self.transport);
    for (uint32_t i = 0; i < AGENTS_MAX; i++)
        inventory_fini(&self.agents[i].inventory);
    record_fini(&self.record);
    free(self.claim);
    cairn_config_fini(&self.config);
    return answered ? 0 : EXIT_AGAIN;
}
