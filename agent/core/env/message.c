/*
 * agent/core/env/message.c - packing of messages.
 *
 * Packed (little-endian): u8 kind, u32 from, u32 to, u64 epoch, the fields of the kind in the order
 * of its list in message.h, u32 length of `bytes`, `bytes`. A generation is u64 epoch, step, run; a
 * decision is u64 serial, run, next and its committed generation.
 */
#include "agent/core/env/message.h"

#include "base/codec.h"
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

/* ---- places ---- */

/* From the lowest: line, stripe, member, and a bit that is always set. */
enum { PLACE_LINE_BITS = 40, PLACE_STRIPE_BITS = 7, PLACE_MEMBER_BITS = 16 };
static const uint64_t place_is_write = UINT64_C(1) << 63;

_Static_assert(CAIRN_SHARDS_MAX < 1 << PLACE_STRIPE_BITS &&
                   CAIRN_NODES_MAX < 1 << PLACE_MEMBER_BITS,
               "a place has room for every stripe and member");

uint64_t
cairn_message_place(const struct cairn_message *message)
{
    const struct cairn_message_write *write = &message->as.write;

    if (message->kind != CAIRN_MSG_WRITE || write->line >> PLACE_LINE_BITS)
        return 0;
    return place_is_write |
           ((uint64_t)write->member << PLACE_STRIPE_BITS | write->stripe) << PLACE_LINE_BITS |
           write->line;
}

bool
cairn_place_is_write(uint64_t place)
{
    return place & place_is_write;
}

void
cairn_place_read(uint64_t place, struct cairn_message_write *out)
{
    uint64_t above = (place & ~place_is_write) >> PLACE_LINE_BITS;

    out->line = place & ((UINT64_C(1) << PLACE_LINE_BITS) - 1);
    out->stripe = (uint32_t)above & ((1 << PLACE_STRIPE_BITS) - 1);
    out->member = (uint32_t)(above >> PLACE_STRIPE_BITS);
}

/* ---- fields ---- */

static void
code_decision(struct cairn_codec *codec, struct cairn_decision *decision)
{
    cairn_codec_u64(codec, &decision->serial);
    cairn_codec_u64(codec, &decision->run);
    cairn_codec_u64(codec, &decision->next);
    cairn_generation_code(codec, &decision->committed);
}

/* Codes a field of each type, and checks its bounds. */
#define TYPE_FUNCTION(name, type, form, bound)                                                     \
    static void field_##name(struct cairn_codec *codec, type *field)                               \
    {                                                                                              \
        type value;                                                                                \
                                                                                                   \
        form(codec, field);                                                                        \
        value = *field;                                                                            \
        (void)value;                                                                               \
        cairn_codec_check(codec, bound);                                                           \
    }
CAIRN_FIELD_TYPES(TYPE_FUNCTION)
#undef TYPE_FUNCTION

#define CODE(type, name) field_##type(codec, &fields->name);

static void
code_fields(struct cairn_codec *codec, struct cairn_message *message)
{
    switch (message->kind) {
#define CASE(symbol, value, member)                                                                \
    case CAIRN_MSG_##symbol: {                                                                     \
        struct cairn_message_##member *fields = &message->as.member;                               \
        CAIRN_FIELDS_##symbol(CODE) return;                                                        \
    }
        CAIRN_MESSAGE_LIST(CASE)
#undef CASE
    }
    cairn_codec_check(codec, false); /* an unknown kind */
}

/* A message with blocks has as many checksums; only BLOCKS may have none. */
static bool
has_its_checksums(const struct cairn_message *message)
{
    uint32_t count = cairn_message_block_count(message);

    return !cairn_message_has_blocks(message) ||
           (message->bytes_len == 8 * count && (count > 0 || message->kind == CAIRN_MSG_BLOCKS));
}

static void
code_message(struct cairn_codec *codec, void *value)
{
    struct cairn_message *message = value;
    uint8_t kind = (uint8_t)message->kind;

    cairn_codec_u8(codec, &kind);
    message->kind = (enum cairn_message_kind)kind;
    cairn_codec_u32(codec, &message->from);
    cairn_codec_u32(codec, &message->to);
    cairn_codec_check(codec, message->from < CAIRN_NODES_MAX && message->to < CAIRN_NODES_MAX);
    cairn_codec_u64(codec, &message->epoch);
    code_fields(codec, message);
    cairn_codec_u32(codec, &message->bytes_len);
    cairn_codec_borrow(codec, &message->bytes, message->bytes_len);
    cairn_codec_check(codec, has_its_checksums(message));
}

cairn_err
cairn_message_pack(const struct cairn_message *message, void *out, size_t out_bytes, size_t *used)
{
    struct cairn_message copy = *message;

    return cairn_codec_pack_into(code_message, &copy, out, out_bytes, used);
}

cairn_err
cairn_message_unpack(const void *bytes, size_t bytes_len, struct cairn_message *out)
{
    struct cairn_message message = {0};
    cairn_err err = cairn_codec_unpack(code_message, &message, bytes, bytes_len);

    if (!err)
        *out = message;
    return err;
}
