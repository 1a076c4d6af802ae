/* agent/process/service_message.c - packing of services' messages: all fields in the struct's
 * order, little-endian, then `bytes`. */
#include "agent/process/service_message.h"

#include "base/limits.h"
#include "base/wire.h"

const char *
cairn_service_name(enum cairn_service_kind kind)
{
    switch (kind) {
#define CASE(symbol, value, name)                                                                  \
    case CAIRN_SERVICE_##symbol:                                                                   \
        return name;
        CAIRN_SERVICE_LIST(CASE)
#undef CASE
    }
    return "?";
}

cairn_err
cairn_service_pack(const struct cairn_service_message *message, void *out, size_t out_bytes,
                   size_t *used)
{
    struct cairn_writer writer;
    cairn_err err;

    cairn_writer_init(&writer, out, out_bytes);
    cairn_write_u8(&writer, (uint8_t)message->kind);
    cairn_write_u32(&writer, message->from);
    cairn_write_u32(&writer, message->to);
    cairn_write_u32(&writer, message->verb);
    cairn_write_u64(&writer, message->generation.epoch);
    cairn_write_u64(&writer, message->generation.step);
    cairn_write_u64(&writer, message->generation.run);
    cairn_write_u32(&writer, message->item);
    cairn_write_u32(&writer, message->block_count);
    cairn_write_u32(&writer, message->err);
    cairn_write_u64(&writer, message->request);
    cairn_write_u64(&writer, message->offset);
    cairn_write_u64(&writer, message->total);
    cairn_write_u32(&writer, message->bytes_len);
    cairn_write_bytes(&writer, message->bytes, message->bytes_len);
    err = cairn_writer_done(&writer);
    if (!err)
        *used = writer.used_bytes;
    return err;
}

cairn_err
cairn_service_unpack(const void *bytes, size_t bytes_len, struct cairn_service_message *out)
{
    struct cairn_service_message message = {0};
    struct cairn_reader reader;
    uint8_t kind;
    cairn_err err;

    cairn_reader_init(&reader, bytes, bytes_len);
    kind = cairn_read_u8(&reader);
    message.from = cairn_read_u32(&reader);
    message.to = cairn_read_u32(&reader);
    message.verb = cairn_read_u32(&reader);
    message.generation.epoch = cairn_read_u64(&reader);
    message.generation.step = cairn_read_u64(&reader);
    message.generation.run = cairn_read_u64(&reader);
    message.item = cairn_read_u32(&reader);
    message.block_count = cairn_read_u32(&reader);
    message.err = cairn_read_u32(&reader);
    message.request = cairn_read_u64(&reader);
    message.offset = cairn_read_u64(&reader);
    message.total = cairn_read_u64(&reader);
    message.bytes_len = cairn_read_u32(&reader);
    message.bytes = cairn_read_borrow(&reader, message.bytes_len);
    err = cairn_reader_done(&reader);
    if (err)
        return err;
    if (kind < CAIRN_SERVICE_FETCH || kind > CAIRN_SERVICE_KIND_LAST ||
        message.from >= CAIRN_NODES_MAX || message.to >= CAIRN_NODES_MAX ||
        message.block_count > CAIRN_MESSAGE_BLOCKS_MAX || message.err > CAIRN_INTERNAL)
        return CAIRN_CORRUPT;
    message.kind = (enum cairn_service_kind)kind;
    *out = message;
    return CAIRN_OK;
}
