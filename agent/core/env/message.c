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
write_decision(struct cairn_writer *writer, struct cairn_decision decision)
{
    cairn_write_u64(writer, decision.serial);
    cairn_write_u64(writer, decision.run);
    cairn_write_u64(writer, decision.next);
    generation_write(writer, decision.committed);
}

static struct cairn_decision
read_decision(struct cairn_reader *reader)
{
    struct cairn_decision decision;

    decision.serial = cairn_read_u64(reader);
    decision.run = cairn_read_u64(reader);
    decision.next = cairn_read_u64(reader);
    decision.committed = generation_read(reader);
    return decision;
}

#define WRITE_u8 cairn_write_u8
#define WRITE_u32 cairn_write_u32
#define WRITE_u64 cairn_write_u64
#define WRITE_generation generation_write
#define WRITE_decision write_decision
#define READ_u8 cairn_read_u8
#define READ_u32 cairn_read_u32
#define READ_u64 cairn_read_u64
#define READ_generation generation_read
#define READ_decision read_decision

/* One writer per type of field, and one reader, which returns false for a value out of bounds. */
#define TYPE_FUNCTIONS(name, type, form, bound)                                                    \
    static void put_##name(struct cairn_writer *writer, type value)                                \
    {                                                                                              \
        WRITE_##form(writer, value);                                                               \
    }                                                                                              \
    static bool get_##name(struct cairn_reader *reader, type *out)                                 \
    {                                                                                              \
        type value = *out = READ_##form(reader);                                                   \
                                                                                                   \
        (void)value;                                                                               \
        return bound;                                                                              \
    }
CAIRN_FIELD_TYPES(TYPE_FUNCTIONS)
#undef TYPE_FUNCTIONS

#define PUT(type, name) put_##type(writer, fields->name);
#define GET(type, name) good &= get_##type(reader, &fields->name);

static void
write_fields(struct cairn_writer *writer, const struct cairn_message *message)
{
    switch (message->kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol: {                                                                     \
        const struct cairn_message_##member *fields = &message->as.member;                         \
        CAIRN_FIELDS_##symbol(PUT) break;                                                          \
    }
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
}

/* False for an unknown kind, and for a field out of its bounds. */
static bool
read_fields(struct cairn_reader *reader, struct cairn_message *message)
{
    bool good = true;

    switch (message->kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol: {                                                                     \
        struct cairn_message_##member *fields = &message->as.member;                               \
        CAIRN_FIELDS_##symbol(GET) return good;                                                    \
    }
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
    return false;
}

/* A message with blocks has as many checksums; only BLOCKS may have none. */
static bool
has_its_checksums(const struct cairn_message *message)
{
    uint32_t count = cairn_message_block_count(message);

    return !cairn_message_has_blocks(message) ||
           (message->bytes_len == 8 * count && (count > 0 || message->kind == CAIRN_MSG_BLOCKS));
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
    if (message.from >= CAIRN_NODES_MAX || message.to >= CAIRN_NODES_MAX ||
        !has_its_checksums(&message))
        return CAIRN_CORRUPT;
    *out = message;
    return CAIRN_OK;
}
