/*
 * tests/fuzz/fuzz_message.c - everything that one agent reads from another, from its disk and from
 * adopted memory.
 *
 * The first byte chooses: 0 a message, 1 a roster, 2 an epoch record, 3 an inventory, 4 a seal, 5 a
 * holding's record, 8 pieces of tensors, 9 a manifest whose tensors are added up; 6 and the others:
 * messages and events given to a core of four agents (odd: to the first of them) one after the
 * other, REBUILD bodies, votes, layouts and activations among them, with numbers that mean
 * something to it. Nothing may break an assertion, and what is taken must pack to the same bytes.
 */
#include "agent/core/core_state.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

enum { AGENTS = 4 };

static uint32_t self = 1;

static struct cairn_core *
new_core(struct cairn_bytes epoch, struct cairn_bytes record)
{
    const struct cairn_core_options options = {.self = self,
                                               .agent_count = AGENTS,
                                               .parity = 1,
                                               .group_size = 4,
                                               .slots = 2,
                                               .slot_blocks = 64,
                                               .parity_blocks = 64,
                                               .every_steps = 1,
                                               .incarnation = 1,
                                               .heartbeat_interval_ns = 1000,
                                               .dead_after_ns = 10000,
                                               .repair_after_ns = 10000,
                                               .resend_after_ns = 1000,
                                               .claim_timeout_ns = 10000,
                                               .rebuild_timeout_ns = 20000};
    struct cairn_bytes records[CAIRN_HOLDINGS_MAX] = {record};
    struct cairn_core *core = NULL;
    uint32_t dropped;

    return cairn_core_create(&options, 1, epoch, records, &dropped, &core) == CAIRN_OK ? core
                                                                                       : NULL;
}

static void take(struct cairn_core *core, struct cairn_event event, uint64_t now_ns, int depth);

/* Answers at once what the core asks its driver for. */
static void
answer(struct cairn_core *core, const struct cairn_action *action, uint64_t now_ns, int depth)
{
    static const uint64_t crcs[1024];
    struct cairn_holding_view view;
    struct cairn_event event = {.holding = action->holding,
                                .generation = action->generation,
                                .item = action->item,
                                .request = action->request};

    switch (action->type) {
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
        event.type = CAIRN_EVENT_DECODED;
        break;
    case CAIRN_ACTION_FINISH:
        event.type = CAIRN_EVENT_FINISHED;
        if (cairn_core_look_holding(core, action->holding, &view) && view.stripes)
            event.count = cairn_stripes_area_blocks(view.stripes, view.position, CAIRN_AREA_PARITY);
        event.crcs = crcs;
        if (event.count > 1024)
            return;
        break;
    default:
        return;
    }
    take(core, event, now_ns, depth + 1);
}

static void
take(struct cairn_core *core, struct cairn_event event, uint64_t now_ns, int depth)
{
    struct cairn_actions actions = {0};

    event.now_ns = now_ns;
    cairn_core_step(core, &event, &actions);
    for (size_t i = 0; i < actions.count; i++)
        if (actions.list[i].type == CAIRN_ACTION_SEND && actions.list[i].message.to >= AGENTS)
            abort(); /* an agent that does not exist */
    for (size_t i = 0; i < actions.count && depth < 4; i++)
        answer(core, &actions.list[i], now_ns, depth);
    cairn_actions_fini(&actions);
}

/* An epoch that means something to the core, or any. */
static uint64_t
some_epoch(const struct cairn_core *core, uint8_t choice)
{
    struct cairn_core_view view;

    cairn_core_look(core, &view);
    if (choice < 0x60)
        return view.active;
    if (choice < 0xa0)
        return view.promised;
    return ((view.promised >> EPOCH_CLAIMANT_BITS) + choice % 3) << EPOCH_CLAIMANT_BITS |
           choice % 5;
}

/* 20 bytes of small numbers, and what follows them as the message's bytes. */
static struct cairn_message
some_message(const struct cairn_core *core, const uint8_t *b, const uint8_t *bytes, uint32_t len)
{
    return (struct cairn_message){
        .type = (enum cairn_message_type)(CAIRN_MSG_HEARTBEAT + b[0] % CAIRN_MESSAGE_TYPE_LAST),
        .from = b[1] % AGENTS,
        .to = self,
        .epoch = some_epoch(core, b[2]),
        .generation = {some_epoch(core, b[3]), b[4] % 8},
        .member = b[5] % 6,
        .area = b[6] % 3,
        .stripe = b[7] % 6,
        .row = b[8] % 6,
        .first_block = b[9],
        .block_count = b[10] % (CAIRN_MESSAGE_BLOCKS_MAX + 1),
        .err = b[11] % (CAIRN_INTERNAL + 1),
        .request = b[12] % 3 ? b[12] % 8 : (uint64_t)b[12] << 8 | b[13],
        .offset = b[14],
        .total = (uint64_t)(b[15] | b[16] << 8),
        .bytes = bytes,
        .bytes_len = len};
}

static void
some_messages(const uint8_t *bytes, size_t bytes_len)
{
    enum { HEAD = 22 };
    static const uint64_t crcs[5] = {1, 2, 3, 4, 5};
    struct cairn_bytes none = {0};
    struct cairn_core *core = new_core(none, none);
    struct cairn_event event = {.type = CAIRN_EVENT_RANKS, .count = 1, .blocks = 5};
    uint64_t now_ns = 1;

    if (!core)
        return;
    take(core, event, now_ns, 0);
    take(core, (struct cairn_event){.type = CAIRN_EVENT_BEGIN, .step = 3}, now_ns, 0);
    while (bytes_len >= HEAD) {
        uint32_t len = (uint32_t)(bytes[0] | (bytes[1] & 3) << 8);
        uint8_t what = bytes[1] >> 2;
        struct cairn_message message;

        len = len < bytes_len - HEAD ? len : (uint32_t)(bytes_len - HEAD);
        message = some_message(core, bytes + 2, bytes + HEAD, len);
        event = (struct cairn_event){.type = CAIRN_EVENT_MESSAGE,
                                     .message = &message,
                                     .payload_ok = what % 2,
                                     .step = message.generation.step,
                                     .generation = message.generation,
                                     .first_block = 0,
                                     .count = 5,
                                     .crcs = crcs,
                                     .operation = (enum cairn_operation)(message.err % 5)};
        if (what > 56)
            event.type = CAIRN_EVENT_OPERATOR;
        else if (what > 50)
            event.type = CAIRN_EVENT_BLOCKS;
        else if (what > 44)
            event.type = CAIRN_EVENT_DONE;
        else if (what > 40)
            event.type = CAIRN_EVENT_BEGIN;
        take(core, event, now_ns, 0);
        now_ns += 700;
        take(core, (struct cairn_event){.type = CAIRN_EVENT_TICK}, now_ns, 0);
        bytes += HEAD + len;
        bytes_len -= HEAD + len;
    }
    cairn_core_destroy(core);
}

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

static void
one_roster(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_roster *table = NULL;
    struct cairn_reader reader;
    struct cairn_writer writer;
    uint8_t *again = malloc(bytes_len + 1);

    cairn_reader_init(&reader, bytes, bytes_len);
    if (again && cairn_roster_read(&reader, &table) == CAIRN_OK &&
        cairn_reader_done(&reader) == CAIRN_OK) {
        cairn_writer_init(&writer, again, bytes_len);
        cairn_roster_write(table, &writer);
        if (cairn_writer_done(&writer) != CAIRN_OK || writer.used_bytes != bytes_len ||
            memcmp(again, bytes, bytes_len) != 0)
            abort();
    }
    cairn_roster_drop(table);
    free(again);
}

static void
one_seal(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_generation generation = {.epoch = 1, .step = 1};
    struct seal seal = {.bytes = malloc(bytes_len + 1), .len = bytes_len, .received = bytes_len};

    if (!seal.bytes)
        return;
    memcpy(seal.bytes, bytes, bytes_len);
    if (seal_parse(&seal, generation, 0) == CAIRN_OK && seal.shard_blocks > bytes_len / 8)
        abort();
    seal_fini(&seal);
}

static void
some_pieces(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_tiling_pieces pieces = {0};
    char text[TILING_TEXT_BYTES];

    (void)!cairn_tiling_add_pieces(&pieces, bytes, bytes_len);
    cairn_tiling_explain(&pieces, text, sizeof text);
    cairn_tiling_pieces_fini(&pieces);
}

static void
one_tiling(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_tiling *tiling = NULL;
    uint64_t sums[CAIRN_TILING_FAN], sum = 0;

    if (cairn_tiling_digest(bytes, bytes_len) == 0)
        abort();
    if (cairn_tiling_create(bytes, bytes_len, &tiling) != CAIRN_OK)
        return;
    cairn_tiling_sums(tiling, 0, 0, sums);
    for (uint32_t i = 0; i < CAIRN_TILING_FAN; i++)
        sum = cairn_tiling_add(sum, sums[i]);
    if (sum != cairn_tiling_sum(tiling))
        abort();
    cairn_tiling_destroy(tiling);
}

static void
no_log(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_bytes none = {0};
    struct inventory inventory = {0};
    struct cairn_reader reader;

    cairn_log_setup(CAIRN_LOG_ERROR, no_log, NULL);
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
        cairn_core_destroy(new_core(rest, none));
        break;
    case 3:
        cairn_reader_init(&reader, rest.bytes, rest.len);
        if (inventory_read(&reader, &inventory) == CAIRN_OK)
            inventory_fini(&inventory);
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
    default:
        self = bytes[0] % 2 ? 0 : 1;
        some_messages(rest.bytes, rest.len);
        self = 1;
        break;
    }
    return 0;
}
