/*
 * tests/fuzz/fuzz_message.c - everything that one agent reads from another, from its disk and from
 * adopted memory.
 *
 * The first byte chooses: 0 a message, 1 a roster, 2 an epoch record, 3 an inventory, 4 a seal, 5 a
 * part's record, 8 pieces of tensors, 9 a manifest whose tensors are added up, 10 a repair's plan,
 * 11 a stored epoch; 6 and the others: messages and events given to a core of four agents (odd: to
 * the first of them, the leader) one after the other, with numbers that mean something to it; it
 * has one complete part, and captures the next.
 * Nothing may break an assertion, and what is taken must pack to the same bytes.
 */
#include "agent/core/core.h"
#include "agent/core/restore/inventory.h"
#include "agent/core/epoch/record.h"
#include "agent/core/repair/repair.h"
#include "base/log.h"
#include "snapshot/tiling.h"
#include "tests/support/quiet_log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

enum { AGENTS = 4, EPOCH = 0x10001, RUN = 7, STEP = 3, BLOCKS = 5, PACKED_MAX = 8192 };

static uint32_t self = 1;
static uint64_t current_run = RUN; /* the leader issues its own */
static uint64_t now_ns;

static struct cairn_core *
new_core(struct cairn_bytes epoch, struct cairn_bytes record)
{
    static const bool spares[AGENTS];
    const struct cairn_core_options options = {.self = self,
                                               .agent_count = AGENTS,
                                               .spares = spares,
                                               .parity = 1,
                                               .group_size = 4,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .parity_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = UINT64_C(1) << 20,
                                               .heartbeat_interval_ns = 1000,
                                               .dead_after_ns = 10000,
                                               .repair_after_ns = 10000,
                                               .claim_timeout_ns = 10000,
                                               .rebuild_timeout_ns = 20000};
    struct cairn_bytes records[CAIRN_PARTS_MAX] = {record};
    struct cairn_core *core = NULL;
    uint32_t dropped;

    return cairn_core_create(&options, 1, epoch, records, &dropped, &core) == CAIRN_OK ? core
                                                                                       : NULL;
}

/* ---- a core that answers itself ---- */

static void take(struct cairn_core *core, struct cairn_event event, int depth);

static void
take_message(struct cairn_core *core, const struct cairn_message *message, bool payload_ok,
             int depth)
{
    static const uint8_t empty;
    struct cairn_message copy = *message;
    struct cairn_event event = {.type = CAIRN_EVENT_MESSAGE,
                                .as.message = {.message = &copy, .payload_ok = payload_ok}};

    if (!copy.bytes)
        copy.bytes = &empty; /* as unpacked */
    take(core, event, depth);
}

/* Answers at once what the core asks its driver for. */
static void
answer(struct cairn_core *core, const struct cairn_action *action, int depth)
{
    static const uint8_t zeros[8 * CAIRN_MESSAGE_BLOCKS_MAX];
    static const uint64_t crcs[1024];
    struct cairn_part_view view;
    struct cairn_event event = {.as.answer = {.part = action->as.part.part,
                                              .request = action->as.part.request,
                                              .generation = action->as.part.generation}};
    struct cairn_message message = action->as.send.message;

    switch (action->type) {
    case CAIRN_ACTION_SEND:
        if (message.to != self)
            return;
        if (message.kind == CAIRN_MSG_WRITE) { /* the process fills these in */
            message.bytes = zeros;
            message.bytes_len = 8 * message.as.write.count;
        }
        take_message(core, &message, true, depth);
        return;
    case CAIRN_ACTION_SEAL:
        event.type = CAIRN_EVENT_SEALED;
        break;
    case CAIRN_ACTION_VERIFY:
        event.type = CAIRN_EVENT_VERIFIED;
        break;
    case CAIRN_ACTION_OPEN:
        event.type = CAIRN_EVENT_OPENED;
        break;
    case CAIRN_ACTION_DECODE:
        event = (struct cairn_event){
            .type = CAIRN_EVENT_DECODED,
            .as.decoded = {.item = action->as.decode.item, .request = action->as.decode.request}};
        break;
    case CAIRN_ACTION_FINISH:
        event.type = CAIRN_EVENT_FINISHED;
        if (cairn_core_look_part(core, action->as.part.part, &view) && view.stripes)
            event.as.answer.count =
                cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY);
        event.as.answer.crcs = crcs;
        if (event.as.answer.count > 1024)
            return;
        break;
    default:
        return;
    }
    take(core, event, depth);
}

static void
take(struct cairn_core *core, struct cairn_event event, int depth)
{
    struct cairn_actions actions = {0};

    event.now_ns = now_ns;
    cairn_core_step(core, &event, &actions);
    for (size_t i = 0; i < actions.count; i++) {
        const struct cairn_action *action = &actions.list[i];

        if (action->type == CAIRN_ACTION_SEND && action->as.send.message.to >= AGENTS)
            abort(); /* an agent that does not exist */
        if (depth < 6)
            answer(core, action, depth + 1);
    }
    cairn_actions_fini(&actions);
}

/* ---- values that mean something to it ---- */

struct source {
    const uint8_t *at;
    const uint8_t *end;
};

static uint8_t
byte(struct source *source)
{
    return source->at < source->end ? *source->at++ : 0;
}

static uint64_t
some_u64(struct source *source)
{
    uint8_t choice = byte(source);

    if (choice < 0xe0)
        return choice % 32;
    return choice < 0xf0 ? EPOCH + (uint64_t)(choice % 4) * 0x10000 : UINT64_C(1) << (choice % 64);
}

static struct cairn_generation_id
some_generation(struct source *source)
{
    uint8_t choice = byte(source);

    return (struct cairn_generation_id){.epoch = EPOCH + (choice >> 6) * UINT64_C(0x10000),
                                        .step = choice % 8,
                                        .run = choice & 32 ? current_run + 1 : current_run};
}

/* One per type of field. Unpacking refuses a value out of its bounds. */
#define SOME_BOOL(source) byte(source) % 2
#define SOME_U32(source) byte(source) % 6u
#define SOME_U64(source) some_u64(source)
#define SOME_AGENT(source) SOME_U32(source)
#define SOME_AGENT_OR_NONE(source) SOME_U32(source)
#define SOME_ERR(source) SOME_U32(source)
#define SOME_ABORT(source) SOME_U32(source)
#define SOME_WAIT(source) SOME_U32(source)
#define SOME_ASK(source) SOME_U32(source)
#define SOME_AUDIT(source) SOME_U32(source)
#define SOME_COUNT(source) SOME_U32(source)
#define SOME_GENERATION(source) some_generation(source)
#define SOME_DECISION(source)                                                                      \
    (struct cairn_decision)                                                                        \
    {                                                                                              \
        .serial = some_u64(source), .run = current_run, .next = byte(source) % 8,                  \
        .committed = some_generation(source)                                                       \
    }

static void
fill(struct cairn_message *message, struct source *source)
{
    switch (message->kind) {
#define FILL_FIELD(type, name) fields->name = SOME_##type(source);
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol: {                                                                     \
        struct cairn_message_##member *fields = &message->as.member;                               \
        CAIRN_FIELDS_##symbol(FILL_FIELD)                                                          \
    } break;
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
}

static struct cairn_roster *
new_roster(void)
{
    static const uint32_t agents[AGENTS] = {0, 1, 2, 3};
    struct cairn_roster *roster = NULL;

    return cairn_roster_build(agents, NULL, AGENTS, 1, AGENTS, &roster) == CAIRN_OK ? roster : NULL;
}

/* Packs the record of an epoch, whose generation to restore is of step `ready`, if not 0. */
static uint32_t
some_record(uint64_t epoch, uint8_t ready, uint8_t *out)
{
    uint32_t holders[AGENTS] = {0, 1, 2, 3};
    struct record_seen seen[AGENTS] = {{0}};
    struct cairn_roster *roster = new_roster();
    struct record record = {.epoch = epoch, .roster = roster, .agent_count = AGENTS, .seen = seen};
    size_t used;

    if (!roster)
        return 0;
    if (ready % 8 != 0) {
        record.ready = (struct cairn_generation_id){.epoch = EPOCH, .step = ready % 8, .run = RUN};
        record.ready_roster = roster;
        record.holders = holders;
        holders[ready / 64] = ready / 8 % 4;
    }
    for (uint32_t a = 0; a < AGENTS; a++)
        seen[a].incarnation = UINT64_C(1) << 20;
    if (cairn_codec_pack_into(record_code, &record, out, PACKED_MAX, &used) != CAIRN_OK)
        abort();
    cairn_roster_drop(roster);
    return (uint32_t)used;
}

/* Packs a plan by which two members are rebuilt somewhere. */
static uint32_t
some_plan(uint8_t choice, uint8_t *out)
{
    uint32_t holders[AGENTS] = {0, 1, 2, 3};
    uint32_t targets[AGENTS] = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    struct cairn_bad_block bad = {.position = choice % 4, .block = choice / 16};
    struct plan plan = {.roster = new_roster(),
                        .holders = holders,
                        .targets = targets,
                        .bad = &bad,
                        .bad_count = choice & 1};
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (!plan.roster)
        return 0;
    targets[choice % 4] = choice / 4 % 4;
    if (!plan.bad_count)
        holders[choice % 4] = UINT32_MAX;
    if (plan_pack(&plan, &bytes, &len) != CAIRN_OK || len > PACKED_MAX)
        abort();
    memcpy(out, bytes, len);
    free(bytes);
    cairn_roster_drop(plan.roster);
    return (uint32_t)len;
}

/* A message from another agent, with bytes that it may have; false: it would not be taken. */
static bool
some_message(struct source *source, const uint8_t *bytes, uint32_t len, uint8_t *packed,
             struct cairn_message *out)
{
    struct cairn_message message;
    uint8_t body[PACKED_MAX];
    uint8_t choice;
    size_t used;

    memset(&message, 0, sizeof message);
    message.kind = (enum cairn_message_kind)(1 + byte(source) % CAIRN_MESSAGE_KIND_LAST);
    choice = byte(source);
    message.from = choice % AGENTS;
    message.to = self;
    message.epoch = EPOCH + (choice >> 6) * UINT64_C(0x10000);
    fill(&message, source);
    message.bytes = bytes;
    message.bytes_len = len;
    if (cairn_message_has_blocks(&message)) {
        message.bytes_len = 8 * cairn_message_block_count(&message);
        memset(body, 0, 64);
        message.bytes = body; /* at most 5 checksums */
    } else if ((message.kind == CAIRN_MSG_ACTIVATE || message.kind == CAIRN_MSG_CLAIM) &&
               choice & 4) {
        message.bytes_len = some_record(message.epoch, byte(source), body);
        message.bytes = body;
    } else if (message.kind == CAIRN_MSG_REBUILD && choice & 4) {
        message.bytes_len = some_plan(byte(source), body);
        message.bytes = body;
    }
    return cairn_message_pack(&message, packed, PACKED_MAX + CAIRN_MESSAGE_HEAD_BYTES_MAX, &used) ==
               CAIRN_OK &&
           cairn_message_unpack(packed, used, out) == CAIRN_OK;
}

/* An event of the trainers or of an operator, or a session. */
static struct cairn_event
some_event(struct source *source)
{
    static const uint64_t crcs[BLOCKS] = {1, 2, 3, 4, 5};
    uint8_t choice = byte(source);
    struct cairn_event event = {0};

    switch (choice % 8) {
    case 0:
        event.type = CAIRN_EVENT_RANKS;
        event.as.ranks = (struct cairn_event_ranks){.ranks = choice / 8 % 3, .blocks = BLOCKS};
        break;
    case 1:
    case 2:
        event.type = choice % 8 == 1 ? CAIRN_EVENT_BEGIN : CAIRN_EVENT_CANCEL;
        event.as.step = (struct cairn_event_step){.step = choice / 8};
        break;
    case 3:
        event.type = CAIRN_EVENT_BLOCKS;
        event.as.blocks = (struct cairn_event_blocks){
            .generation = some_generation(source), .count = BLOCKS, .crcs = crcs};
        break;
    case 4:
        event.type = CAIRN_EVENT_CAPTURED;
        event.as.captured = (struct cairn_event_captured){some_generation(source), 0};
        break;
    case 5:
        event.type = CAIRN_EVENT_OPERATOR;
        event.as.op.operation = (enum cairn_operation)(choice / 8 % (CAIRN_OP_VERIFY + 1));
        event.as.op.request = choice;
        break;
    case 6:
        event.type = CAIRN_EVENT_PIN;
        event.as.pin = (struct cairn_event_pin){some_generation(source), choice & 8};
        break;
    default:
        event.type = choice & 64 ? CAIRN_EVENT_PEER_UP : CAIRN_EVENT_PEER_DOWN;
        event.as.peer =
            (struct cairn_event_peer){choice / 8 % AGENTS, (UINT64_C(1) << 20) + choice % 2};
        break;
    }
    return event;
}

/* The record of this agent's complete part of the step before STEP; empty: no memory. */
static struct cairn_bytes
complete_part(struct cairn_actions *actions)
{
    static const uint64_t crcs[CAIRN_SHARDS_MAX * BLOCKS] = {1, 2, 3, 4, 5};
    struct cairn_generation_id generation = {.epoch = EPOCH, .step = STEP - 1, .run = RUN};
    struct cairn_roster *roster = new_roster();
    static struct parts parts;
    struct part *part = &parts.list[0];
    struct cairn_core_options options = {.self = self, .agent_count = AGENTS};
    struct env env = {.options = &options, .parts = &parts, .actions = actions};
    cairn_err err =
        roster ? part_init(part, generation, self, roster, CAIRN_PART_FINISHING) : CAIRN_NOMEM;

    for (uint32_t p = 0; !err && p < part->geometry.n; p++)
        err = cairn_shard_seal_pack(generation, roster->groups[0].members[p], BLOCKS, crcs, NULL, 0,
                                    &part->seals[p]);
    if (!err && part_lengths(part))
        err = part_keep_parity_crcs(part, crcs, part_slot_blocks(part, 0));
    if (!err)
        err = part_complete(&env, part);
    part_fini(part);
    cairn_roster_drop(roster);
    if (err || actions->count == 0)
        return (struct cairn_bytes){0};
    return (struct cairn_bytes){actions->list[0].as.store.bytes,
                                actions->list[0].as.store.bytes_len};
}

/* A run is assembled that has the generation of the complete part: by the decision of the leader,
 * or by the reports of all members to it. */
static void
begin_run(struct cairn_core *core)
{
    const struct cairn_generation_id complete = {.epoch = EPOCH, .step = STEP - 1, .run = RUN};
    struct cairn_message message = {.to = self, .epoch = EPOCH};

    for (uint32_t a = 1; self == 0 && a < AGENTS; a++) {
        message.kind = CAIRN_MSG_REPORT;
        message.from = a;
        message.as.report = (struct cairn_message_report){.agent = a,
                                                          .ranks = 1,
                                                          .incarnation = UINT64_C(1) << 20,
                                                          .registration = 1,
                                                          .complete0 = complete};
        take_message(core, &message, true, 0);
    }
    message.kind = CAIRN_MSG_AUDIT;
    for (uint32_t a = 0; self == 0 && a < AGENTS; a++) {
        message.from = a;
        message.as.audit = (struct cairn_message_audit){
            .answer = 1, .agent = a, .run = current_run, .question = 1};
        take_message(core, &message, true, 0);
    }
    if (self == 0)
        return;
    for (uint64_t registration = 1; registration < 4; registration++) {
        message.as.audit = (struct cairn_message_audit){.agent = self,
                                                        .run = RUN,
                                                        .incarnation = UINT64_C(1) << 20,
                                                        .registration = registration};
        take_message(core, &message, true, 0);
    }
    message.kind = CAIRN_MSG_DECISION;
    message.as.decision.decision =
        (struct cairn_decision){.serial = 1, .run = RUN, .next = STEP, .committed = complete};
    take_message(core, &message, true, 0);
}

/* Brings the core into epoch EPOCH, with sessions to all, in which step STEP is being captured. */
static void
enter_epoch(struct cairn_core *core)
{
    uint8_t record[PACKED_MAX];
    struct cairn_part_view part;
    struct cairn_message message = {.kind = CAIRN_MSG_POSITION, .to = self, .epoch = EPOCH};
    struct cairn_event event = {.type = CAIRN_EVENT_PEER_UP};

    for (uint32_t a = 0; a < AGENTS; a++) {
        event.as.peer = (struct cairn_event_peer){a, UINT64_C(1) << 20};
        take(core, event, 0);
    }
    message.as.position = (struct cairn_message_position){EPOCH};
    for (uint32_t a = 0; a < AGENTS; a++) {
        message.from = a;
        if (a != self)
            take_message(core, &message, true, 0);
    }
    message = (struct cairn_message){
        .kind = CAIRN_MSG_ACTIVATE, .from = 2, .to = self, .epoch = EPOCH, .bytes = record};
    message.bytes_len = some_record(EPOCH, 0, record);
    message.as.activate.promised = EPOCH;
    take_message(core, &message, true, 0);
    event =
        (struct cairn_event){.type = CAIRN_EVENT_RANKS, .as.ranks = {.ranks = 1, .blocks = BLOCKS}};
    take(core, event, 0);
    begin_run(core);
    event = (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .as.step = {.step = STEP}};
    take(core, event, 0);
    if (!cairn_core_look_part(core, 0, &part) || part.state != CAIRN_PART_COMPLETE ||
        !cairn_core_look_part(core, 1, &part) || part.state != CAIRN_PART_OPEN)
        abort(); /* most messages would be dropped at the door */
}

static void
some_messages(const uint8_t *bytes, size_t bytes_len)
{
    enum { HEAD = 26 };
    static uint8_t packed[PACKED_MAX + CAIRN_MESSAGE_HEAD_BYTES_MAX];
    struct cairn_actions stored = {0};
    struct cairn_bytes none = {0};
    struct cairn_core *core;

    now_ns = 1;
    core = new_core(none, complete_part(&stored));
    cairn_actions_fini(&stored);
    if (!core)
        return;
    enter_epoch(core);
    while (bytes_len >= HEAD) {
        struct source source = {bytes + 2, bytes + HEAD};
        uint32_t len = (uint32_t)(bytes[0] | (bytes[1] & 3) << 8);
        uint8_t what = bytes[1] >> 2;
        struct cairn_message message;

        len = len < bytes_len - HEAD ? len : (uint32_t)(bytes_len - HEAD);
        if (what > 44)
            take(core, some_event(&source), 0);
        else if (some_message(&source, bytes + HEAD, len, packed, &message))
            take_message(core, &message, what % 4 != 0, 0);
        now_ns += 700;
        take(core, (struct cairn_event){.type = CAIRN_EVENT_TICK}, 0);
        bytes += HEAD + len;
        bytes_len -= HEAD + len;
    }
    cairn_core_destroy(core);
}

/* ---- packed values ---- */

static void
one_message(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_message message;
    uint8_t *again = malloc(bytes_len + 1);
    size_t used = 0;

    if (again && cairn_message_unpack(bytes, bytes_len, &message) == CAIRN_OK &&
        (cairn_message_pack(&message, again, bytes_len, &used) != CAIRN_OK || used != bytes_len ||
         memcmp(again, bytes, bytes_len) != 0))
        abort();
    free(again);
}

/* What was read packs to the same bytes. */
static void
must_be(uint8_t *again, size_t len, const uint8_t *bytes, size_t bytes_len)
{
    if (len != bytes_len || memcmp(again, bytes, len) != 0)
        abort();
    free(again);
}

static void
code_roster(struct cairn_codec *codec, void *roster)
{
    cairn_roster_code(codec, roster);
}

static void
one_roster(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_roster *roster = NULL;
    uint8_t *again = NULL;
    size_t len = 0;

    if (cairn_codec_unpack(code_roster, &roster, bytes, bytes_len) == CAIRN_OK &&
        cairn_codec_pack(code_roster, &roster, &again, &len) == CAIRN_OK)
        must_be(again, len, bytes, bytes_len);
    cairn_roster_drop(roster);
}

static void
one_record(const uint8_t *bytes, size_t bytes_len)
{
    struct record record = {0};
    uint8_t *again = NULL;
    size_t len = 0;

    if (record_read(bytes, bytes_len, &record) == CAIRN_OK &&
        record_pack(&record, &again, &len) == CAIRN_OK)
        must_be(again, len, bytes, bytes_len);
    record_fini(&record);
}

static void
one_plan(const uint8_t *bytes, size_t bytes_len)
{
    struct plan plan = {0};
    uint8_t *again = NULL;
    size_t len = 0;

    if (plan_read(bytes, bytes_len, AGENTS, &plan) == CAIRN_OK &&
        plan_pack(&plan, &again, &len) == CAIRN_OK)
        must_be(again, len, bytes, bytes_len);
    plan_fini(&plan);
}

static void
one_inventory(const uint8_t *bytes, size_t bytes_len)
{
    struct inventory inventory = {0};

    if (inventory_read(bytes, bytes_len, &inventory) == CAIRN_OK)
        inventory_fini(&inventory);
}

static void
one_seal(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_generation_id generation = {.epoch = 1, .step = 1, .run = 1};
    struct cairn_shard_seal seal = {0};

    for (size_t at = 0; at < bytes_len;) { /* in pieces, as it comes */
        uint32_t len = (uint32_t)min_u64(bytes_len - at, 50);

        cairn_shard_seal_take(&seal, generation, 0, at, bytes_len, bytes + at, len);
        at += len;
    }
    if (seal.whole && seal.shard_blocks > bytes_len / 8)
        abort();
    cairn_shard_seal_fini(&seal);
}

static void
some_pieces(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_tiling_pieces pieces = {0};
    char text[CAIRN_REFUSAL_BYTES];

    (void)!cairn_tiling_add_pieces(&pieces, bytes, bytes_len);
    cairn_tiling_explain(&pieces, text, sizeof text);
    cairn_tiling_pieces_fini(&pieces);
}

static void
one_tiling(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_tiling *tiling = NULL;
    uint64_t sums[CAIRN_TILING_FAN], sum = 0;

    if (cairn_tiling_create(bytes, bytes_len, &tiling) != CAIRN_OK)
        return;
    cairn_tiling_sums(tiling, sums);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        sum = cairn_tiling_add(sum, sums[i]);
    if (sum != cairn_tiling_sum(tiling))
        abort();
    cairn_tiling_destroy(tiling);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_bytes none = {0};

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (bytes_len == 0)
        return 0;
    struct cairn_bytes rest = {bytes + 1, bytes_len - 1};
    switch (bytes[0]) {
    case 0:
        one_message(rest.bytes, rest.len);
        break;
    case 1:
        one_roster(rest.bytes, rest.len);
        break;
    case 2:
        one_record(rest.bytes, rest.len);
        break;
    case 3:
        one_inventory(rest.bytes, rest.len);
        break;
    case 4:
        one_seal(rest.bytes, rest.len);
        break;
    case 5:
        cairn_core_destroy(new_core(none, rest));
        break;
    case 8:
        some_pieces(rest.bytes, rest.len);
        break;
    case 9:
        one_tiling(rest.bytes, rest.len);
        break;
    case 10:
        one_plan(rest.bytes, rest.len);
        break;
    case 11:
        cairn_core_destroy(new_core(rest, none));
        break;
    default:
        self = bytes[0] % 2 ? 0 : 1;
        current_run = self == 0 ? (UINT64_C(1) << 20) + 1 : RUN;
        some_messages(rest.bytes, rest.len);
        self = 1;
        break;
    }
    return 0;
}
