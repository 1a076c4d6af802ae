/*
 * agent/core/env/message.c - packing of messages.
 *
 * Packed (little-endian): u8 kind, u32 from, u32 to, u64 epoch, the fields of the kind in the order
 * of its list in message.h, u32 length of `bytes`, `bytes`. A generation is u64 epoch, step, run; a
 * decision is u64 serial, run, next and its committed generation.
 */
#include "agent/core/env/message.h"

#include "agent/core/env/generation.h"
#include "agent/core/env/types.h"

const char *
cairn_message_name(enum cairn_message_kind kind)
{
    switch (kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol:                                                                       \
        return #member;
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
    return "?";
}

uint32_t
cairn_message_block_count(const struct cairn_message *message)
{
    switch (message->kind) {
    case CAIRN_MSG_DATA:
        return message->as.data.count;
    case CAIRN_MSG_BLOCKS:
        return message->as.blocks.count;
    case CAIRN_MSG_WRITE:
        return message->as.write.count;
    default:
        return 0;
    }
}

/* ---- fields ---- */

static void
put_decision(struct cairn_writer *writer, struct cairn_decision decision)
{
    cairn_write_u64(writer, decision.serial);
    cairn_write_u64(writer, decision.run);
    cairn_write_u64(writer, decision.next);
    generation_write(writer, decision.committed);
}

static struct cairn_decision
get_decision(struct cairn_reader *reader)
{
    struct cairn_decision decision;

    decision.serial = cairn_read_u64(reader);
    decision.run = cairn_read_u64(reader);
    decision.next = cairn_read_u64(reader);
    decision.committed = generation_read(reader);
    return decision;
}

#define WRITE_FIELD(type, name) PUT_##type(writer, fields->name);
#define READ_FIELD(type, name) fields->name = GET_##type(reader);
#define PUT_U8 cairn_write_u8
#define PUT_U32 cairn_write_u32
#define PUT_U64 cairn_write_u64
#define PUT_GENERATION generation_write
#define PUT_DECISION put_decision
#define GET_U8 cairn_read_u8
#define GET_U32 cairn_read_u32
#define GET_U64 cairn_read_u64
#define GET_GENERATION generation_read
#define GET_DECISION get_decision
#define FUNCTIONS(symbol, value, member)                                                           \
    static void write_##member(struct cairn_writer *writer,                                        \
                               const struct cairn_message_##member *fields)                        \
    {                                                                                              \
        CAIRN_FIELDS_##symbol(WRITE_FIELD)                                                         \
    }                                                                                              \
    static void read_##member(struct cairn_reader *reader, struct cairn_message_##member *fields)  \
    {                                                                                              \
        CAIRN_FIELDS_##symbol(READ_FIELD)                                                          \
    }
CAIRN_MESSAGE_LIST(FUNCTIONS)
#undef FUNCTIONS

static void
write_fields(struct cairn_writer *writer, const struct cairn_message *message)
{
    switch (message->kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol:                                                                       \
        write_##member(writer, &message->as.member);                                               \
        break;
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
}

static bool
read_fields(struct cairn_reader *reader, struct cairn_message *message)
{
    switch (message->kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol:                                                                       \
        read_##member(reader, &message->as.member);                                                \
        return true;
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
    return false;
}

/* ---- bounds ---- */

static bool
agent_is_good(uint32_t agent)
{
    return agent < CAIRN_NODES_MAX;
}

static bool
err_is_good(uint32_t err)
{
    return err <= CAIRN_INTERNAL;
}

/* Of READ, BLOCKS and WRITE. */
static bool
blocks_are_good(uint32_t area, uint32_t position, uint32_t count)
{
    return area <= CAIRN_AREA_PARITY && position < CAIRN_SHARDS_MAX &&
           count <= CAIRN_MESSAGE_BLOCKS_MAX;
}

static bool
carries(const struct cairn_message *message, uint32_t count)
{
    return count <= CAIRN_MESSAGE_BLOCKS_MAX && message->bytes_len == 8 * count;
}

static bool
fields_are_good(const struct cairn_message *message)
{
    switch (message->kind) {
    case CAIRN_MSG_POSITION:
        return message->as.position.blank <= 1 && message->as.position.knows <= 1;
    case CAIRN_MSG_REPORT:
        return agent_is_good(message->as.report.agent);
    case CAIRN_MSG_HEARD:
        return agent_is_good(message->as.heard.agent);
    case CAIRN_MSG_AUDIT:
        return message->as.audit.answer <= 1 && agent_is_good(message->as.audit.agent);
    case CAIRN_MSG_DATA:
        return message->as.data.count > 0 && carries(message, message->as.data.count);
    case CAIRN_MSG_RECEIVED:
        return message->as.received.again <= 1;
    case CAIRN_MSG_ABORT:
        return agent_is_good(message->as.abort.agent) &&
               message->as.abort.reason >= CAIRN_ABORT_PASSED &&
               message->as.abort.reason <= CAIRN_ABORT_MEMORY;
    case CAIRN_MSG_WAITING:
        return agent_is_good(message->as.waiting.agent) &&
               message->as.waiting.cause >= CAIRN_WAIT_TRAINERS &&
               message->as.waiting.cause <= CAIRN_WAIT_SILENT &&
               (agent_is_good(message->as.waiting.for_agent) ||
                message->as.waiting.for_agent == UINT32_MAX);
    case CAIRN_MSG_SNAPSHOT:
        return agent_is_good(message->as.snapshot.agent);
    case CAIRN_MSG_ASK:
        return message->as.ask.mode <= CAIRN_ASK_RELEASE;
    case CAIRN_MSG_INVENTORY:
        return message->as.inventory.mode <= CAIRN_ASK_RELEASE;
    case CAIRN_MSG_REBUILT:
        return message->as.rebuilt.finished <= 1 && message->as.rebuilt.proved <= 1 &&
               err_is_good(message->as.rebuilt.err);
    case CAIRN_MSG_READ:
        return blocks_are_good(message->as.read.area, message->as.read.position,
                               message->as.read.count);
    case CAIRN_MSG_BLOCKS:
        return blocks_are_good(message->as.blocks.area, message->as.blocks.position,
                               message->as.blocks.count) &&
               carries(message, message->as.blocks.count) && err_is_good(message->as.blocks.err);
    case CAIRN_MSG_WRITE:
        return blocks_are_good(message->as.write.area, message->as.write.position,
                               message->as.write.count) &&
               message->as.write.count > 0 && carries(message, message->as.write.count);
    case CAIRN_MSG_WRITTEN:
        return message->as.written.position < CAIRN_SHARDS_MAX && message->as.written.again <= 1;
    case CAIRN_MSG_PROMISE:
        return err_is_good(message->as.promise.err);
    default:
        return true; /* any numbers: the handler compares them with its state */
    }
}

cairn_err
cairn_message_pack(const struct cairn_message *message, void *out, size_t out_bytes, size_t *used)
{
    struct cairn_writer writer;
    cairn_err err;

    cairn_writer_init(&writer, out, out_bytes);
    cairn_write_u8(&writer, (uint8_t)message->kind);
    cairn_write_u32(&writer, message->from);
    cairn_write_u32(&writer, message->to);
    cairn_write_u64(&writer, message->epoch);
    write_fields(&writer, message);
    cairn_write_u32(&writer, message->bytes_len);
    cairn_write_bytes(&writer, message->bytes, message->bytes_len);
    err = cairn_writer_done(&writer);
    if (!err)
        *used = writer.used_bytes;
    return err;
}

cairn_err
cairn_message_unpack(const void *bytes, size_t bytes_len, struct cairn_message *out)
{
    struct cairn_message message = {0};
    struct cairn_reader reader;
    cairn_err err;

    cairn_reader_init(&reader, bytes, bytes_len);
    message.kind = (enum cairn_message_kind)cairn_read_u8(&reader);
    message.from = cairn_read_u32(&reader);
    message.to = cairn_read_u32(&reader);
    message.epoch = cairn_read_u64(&reader);
    if (!read_fields(&reader, &message))
        return CAIRN_CORRUPT;
    message.bytes_len = cairn_read_u32(&reader);
    message.bytes = cairn_read_borrow(&reader, message.bytes_len);
    err = cairn_reader_done(&reader);
    if (err)
        return err;
    if (!agent_is_good(message.from) || !agent_is_good(message.to) || !fields_are_good(&message))
        return CAIRN_CORRUPT;
    *out = message;
    return CAIRN_OK;
}
