/* transport/frame.c - packs and parses frames: see frame.h for the layout. Pure. */
#include "transport/frame.h"

#include "base/crc.h"
#include "base/wire.h"

#include <string.h>

enum { CHECKSUM_AT = 56, KNOWN_FLAGS = CAIRN_FRAME_PAYLOAD_CHECKED };

static const uint32_t magic = 0xa74e5243u; /* 'C' 'R' 'N' 0xa7 */

_Static_assert(CHECKSUM_AT + 8 == CAIRN_FRAME_HEADER_BYTES, "the checksum ends the header");
_Static_assert(16 + 3 * 32 == CAIRN_FRAME_HANDSHAKE_BYTES, "the handshake's body");
_Static_assert((int)CAIRN_FRAME_FLOW_BYTES_MAX <= (int)CAIRN_TRANSPORT_BODY_BYTES_MAX,
               "a flow frame is a frame");

static uint64_t
checksum(const uint8_t *frame, size_t body_len, const void *payload, size_t payload_len)
{
    uint64_t sum = cairn_crc64(0, frame, CHECKSUM_AT);

    sum = cairn_crc64(sum, frame + CAIRN_FRAME_HEADER_BYTES, body_len);
    return payload_len ? cairn_crc64(sum, payload, payload_len) : sum;
}

void
cairn_frame_pack(const struct cairn_frame *frame, const void *payload, uint8_t *out)
{
    struct cairn_writer writer;
    bool checked = (frame->flags & CAIRN_FRAME_PAYLOAD_CHECKED) != 0;

    cairn_writer_init(&writer, out, CAIRN_FRAME_HEADER_BYTES);
    cairn_write_u32(&writer, magic);
    cairn_write_u16(&writer, frame->version);
    cairn_write_u8(&writer, frame->kind);
    cairn_write_u8(&writer, frame->flags);
    cairn_write_u64(&writer, frame->job_id);
    cairn_write_u32(&writer, frame->from);
    cairn_write_u32(&writer, frame->to);
    cairn_write_u64(&writer, frame->token);
    cairn_write_u64(&writer, frame->sequence);
    cairn_write_u32(&writer, frame->body_len);
    cairn_write_u32(&writer, frame->payload_len);
    cairn_write_u32(&writer, frame->buffer_index);
    cairn_write_u32(&writer, 0);
    cairn_write_u64(&writer,
                    checksum(out, frame->body_len, payload, checked ? frame->payload_len : 0));
}

static bool
kind_is_handshake(uint8_t kind)
{
    return kind >= CAIRN_FRAME_HELLO && kind <= CAIRN_FRAME_REFUSE;
}

/* What must hold of a header with undamaged bytes, so that nobody above has to check again. */
static bool
header_is_sane(const struct cairn_frame *frame, uint32_t reserved)
{
    if (reserved != 0 || (frame->flags & ~KNOWN_FLAGS) != 0)
        return false;
    if (frame->kind != CAIRN_FRAME_BULK &&
        (frame->payload_len || frame->buffer_index || frame->flags))
        return false;
    if (kind_is_handshake(frame->kind))
        return frame->token == 0 && frame->sequence == 0 &&
               frame->body_len == CAIRN_FRAME_HANDSHAKE_BYTES;
    if (frame->token == 0 || frame->sequence == 0)
        return false;
    switch (frame->kind) {
    case CAIRN_FRAME_MESSAGE:
        return true;
    case CAIRN_FRAME_BULK:
        return frame->payload_len > 0 && frame->payload_len <= CAIRN_BULK_BYTES_MAX;
    case CAIRN_FRAME_FLOW:
        return frame->body_len <= CAIRN_FRAME_FLOW_BYTES_MAX;
    default:
        return false;
    }
}

cairn_err
cairn_frame_parse(const uint8_t *bytes, size_t bytes_len, struct cairn_frame *out)
{
    struct cairn_reader reader;
    struct cairn_frame frame = {0};
    uint32_t reserved;

    if (bytes_len < CAIRN_FRAME_HEADER_BYTES || bytes_len > CAIRN_FRAME_BYTES_MAX)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, bytes, bytes_len);
    if (cairn_read_u32(&reader) != magic)
        return CAIRN_CORRUPT;
    frame.version = cairn_read_u16(&reader);
    frame.kind = cairn_read_u8(&reader);
    frame.flags = cairn_read_u8(&reader);
    frame.job_id = cairn_read_u64(&reader);
    frame.from = cairn_read_u32(&reader);
    frame.to = cairn_read_u32(&reader);
    frame.token = cairn_read_u64(&reader);
    frame.sequence = cairn_read_u64(&reader);
    frame.body_len = cairn_read_u32(&reader);
    frame.payload_len = cairn_read_u32(&reader);
    frame.buffer_index = cairn_read_u32(&reader);
    reserved = cairn_read_u32(&reader);
    frame.checksum = cairn_read_u64(&reader);
    frame.body = cairn_read_borrow(&reader, frame.body_len);
    if (cairn_reader_done(&reader) != CAIRN_OK || !header_is_sane(&frame, reserved))
        return CAIRN_CORRUPT;
    if (!(frame.flags & CAIRN_FRAME_PAYLOAD_CHECKED) &&
        frame.checksum != checksum(bytes, frame.body_len, NULL, 0))
        return CAIRN_CORRUPT;
    *out = frame;
    return CAIRN_OK;
}

cairn_err
cairn_frame_check_payload(const uint8_t *bytes, size_t bytes_len, const void *payload,
                          size_t payload_len)
{
    struct cairn_reader reader;

    if (bytes_len < CAIRN_FRAME_HEADER_BYTES)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, bytes + CHECKSUM_AT, 8);
    if (cairn_read_u64(&reader) !=
        checksum(bytes, bytes_len - CAIRN_FRAME_HEADER_BYTES, payload, payload_len))
        return CAIRN_CORRUPT;
    return CAIRN_OK;
}

void
cairn_frame_handshake_pack(const struct cairn_frame_handshake *handshake,
                           uint8_t out[CAIRN_FRAME_HANDSHAKE_BYTES])
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, out, CAIRN_FRAME_HANDSHAKE_BYTES);
    cairn_write_u64(&writer, handshake->incarnation);
    cairn_write_u8(&writer, handshake->keyed);
    cairn_write_u8(&writer, handshake->refusal);
    cairn_write_u16(&writer, handshake->versions.oldest);
    cairn_write_u16(&writer, handshake->versions.newest);
    cairn_write_u16(&writer, 0);
    cairn_write_bytes(&writer, handshake->nonce_initiator, CAIRN_FRAME_NONCE_BYTES);
    cairn_write_bytes(&writer, handshake->nonce_responder, CAIRN_FRAME_NONCE_BYTES);
    cairn_write_bytes(&writer, handshake->proof, CAIRN_FRAME_PROOF_BYTES);
}

cairn_err
cairn_frame_handshake_parse(const uint8_t *body, size_t body_len, struct cairn_frame_handshake *out)
{
    struct cairn_reader reader;
    struct cairn_frame_handshake handshake;

    cairn_reader_init(&reader, body, body_len);
    handshake.incarnation = cairn_read_u64(&reader);
    handshake.keyed = cairn_read_u8(&reader);
    handshake.refusal = cairn_read_u8(&reader);
    handshake.versions.oldest = cairn_read_u16(&reader);
    handshake.versions.newest = cairn_read_u16(&reader);
    (void)cairn_read_u16(&reader);
    cairn_read_bytes(&reader, handshake.nonce_initiator, CAIRN_FRAME_NONCE_BYTES);
    cairn_read_bytes(&reader, handshake.nonce_responder, CAIRN_FRAME_NONCE_BYTES);
    cairn_read_bytes(&reader, handshake.proof, CAIRN_FRAME_PROOF_BYTES);
    if (cairn_reader_done(&reader) != CAIRN_OK || handshake.keyed > 1 ||
        handshake.versions.oldest > handshake.versions.newest)
        return CAIRN_CORRUPT;
    *out = handshake;
    return CAIRN_OK;
}

size_t
cairn_frame_flow_pack(const struct cairn_frame_flow *flow, uint8_t *out)
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, out, CAIRN_FRAME_FLOW_BYTES_MAX);
    cairn_write_u32(&writer, flow->wanted);
    cairn_write_u16(&writer, flow->urgent);
    cairn_write_u16(&writer, flow->revoked);
    cairn_write_u16(&writer, flow->grant_count);
    cairn_write_u16(&writer, flow->return_count);
    for (uint16_t i = 0; i < flow->grant_count; i++) {
        cairn_write_u32(&writer, flow->grants[i].buffer_index);
        cairn_write_u64(&writer, flow->grants[i].address);
        cairn_write_u64(&writer, flow->grants[i].key);
    }
    for (uint16_t i = 0; i < flow->return_count; i++)
        cairn_write_u32(&writer, flow->returns[i]);
    return writer.used_bytes;
}

cairn_err
cairn_frame_flow_parse(const uint8_t *body, size_t body_len, struct cairn_frame_flow *out)
{
    struct cairn_reader reader;
    struct cairn_frame_flow flow = {0};

    cairn_reader_init(&reader, body, body_len);
    flow.wanted = cairn_read_u32(&reader);
    flow.urgent = cairn_read_u16(&reader);
    flow.revoked = cairn_read_u16(&reader);
    flow.grant_count = cairn_read_u16(&reader);
    flow.return_count = cairn_read_u16(&reader);
    if (flow.urgent > 1 || flow.wanted > CAIRN_TRANSPORT_WINDOW_MAX ||
        flow.revoked > CAIRN_TRANSPORT_WINDOW_MAX ||
        flow.grant_count > CAIRN_TRANSPORT_WINDOW_MAX ||
        flow.return_count > CAIRN_TRANSPORT_WINDOW_MAX)
        return CAIRN_CORRUPT;
    for (uint16_t i = 0; i < flow.grant_count; i++) {
        flow.grants[i].buffer_index = cairn_read_u32(&reader);
        flow.grants[i].address = cairn_read_u64(&reader);
        flow.grants[i].key = cairn_read_u64(&reader);
    }
    for (uint16_t i = 0; i < flow.return_count; i++)
        flow.returns[i] = cairn_read_u32(&reader);
    if (cairn_reader_done(&reader) != CAIRN_OK)
        return CAIRN_CORRUPT;
    *out = flow;
    return CAIRN_OK;
}
