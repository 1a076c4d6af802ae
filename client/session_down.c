/* client/session_down.c - the payloads of the frames from agent to client, packed and unpacked. */
#include "client/session.h"

#include "base/limits.h"
#include "client/session_part.h"

#include <stdlib.h>
#include <string.h>

enum { MANIFEST_BYTES_MIN = 4 }; /* its length alone */

static void
pack_welcome(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_welcome *welcome = value;

    cairn_write_u32(writer, welcome->protocol);
    cairn_write_u64(writer, welcome->epoch);
    cairn_write_u32(writer, welcome->node);
    cairn_write_u32(writer, welcome->flags);
}

static void
unpack_welcome(struct cairn_reader *reader, struct cairn_session_welcome *welcome)
{
    welcome->protocol = cairn_read_u32(reader);
    welcome->epoch = cairn_read_u64(reader);
    welcome->node = cairn_read_u32(reader);
    welcome->flags = cairn_read_u32(reader);
}

static void
pack_refused(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_refused *refused = value;

    cairn_write_u32(writer, refused->request);
    write_range(writer, refused->err, CAIRN_AGAIN, CAIRN_INTERNAL);
    write_text(writer, refused->text, sizeof refused->text);
}

static void
unpack_refused(struct cairn_reader *reader, struct cairn_session_refused *refused)
{
    refused->request = cairn_read_u32(reader);
    refused->err = read_err(reader, CAIRN_AGAIN);
    cairn_read_string(reader, refused->text, sizeof refused->text);
}

static void
pack_registered(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_registered *registered = value;

    cairn_write_u32(writer, registered->request);
    cairn_write_u64(writer, registered->region_offset);
    cairn_write_u64(writer, registered->region_bytes);
    write_range(writer, registered->slot_count, 1, CAIRN_SESSION_FDS_MAX);
    if (registered->region_offset % CAIRN_BLOCK_BYTES ||
        registered->region_bytes % CAIRN_BLOCK_BYTES)
        writer->failed = true;
}

cairn_err
cairn_session_put_registered(struct cairn_session_writer *writer,
                             const struct cairn_session_registered *value, const int *slot_fds)
{
    return put(writer, CAIRN_SESSION_REGISTERED, pack_registered, value, slot_fds,
               value->slot_count);
}

cairn_err
cairn_session_take_registered(const struct cairn_session_frame *frame,
                              struct cairn_session_registered *out)
{
    struct cairn_session_registered value = {0};
    struct cairn_reader reader;
    cairn_err err = open_payload(frame, CAIRN_SESSION_REGISTERED, &reader);

    if (err)
        return err;
    value.request = cairn_read_u32(&reader);
    value.region_offset = cairn_read_u64(&reader);
    value.region_bytes = cairn_read_u64(&reader);
    value.slot_count = read_range(&reader, 1, CAIRN_SESSION_FDS_MAX);
    err = cairn_reader_done(&reader);
    if (err)
        return err;
    if (value.slot_count != frame->fd_count || value.region_offset % CAIRN_BLOCK_BYTES ||
        value.region_bytes % CAIRN_BLOCK_BYTES ||
        value.region_offset > UINT64_MAX - value.region_bytes)
        return CAIRN_CORRUPT;
    *out = value;
    return CAIRN_OK;
}

static void
pack_grant(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_grant *grant = value;

    cairn_write_u64(writer, grant->step);
    write_generation(writer, &grant->generation);
    write_range(writer, grant->slot, 0, CAIRN_SESSION_FDS_MAX - 1);
    if (grant->generation.step != grant->step)
        writer->failed = true;
}

static void
unpack_grant(struct cairn_reader *reader, struct cairn_session_grant *grant)
{
    grant->step = cairn_read_u64(reader);
    read_generation(reader, &grant->generation);
    grant->slot = read_range(reader, 0, CAIRN_SESSION_FDS_MAX - 1);
    if (grant->generation.step != grant->step)
        reader->failed = true;
}

static void
pack_skip(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_skip *skip = value;

    cairn_write_u64(writer, skip->step);
    write_range(writer, skip->reason, CAIRN_REASON_NOT_DUE, CAIRN_REASON_OTHER);
    write_text(writer, skip->text, sizeof skip->text);
}

static void
unpack_skip(struct cairn_reader *reader, struct cairn_session_skip *skip)
{
    skip->step = cairn_read_u64(reader);
    skip->reason = read_range(reader, CAIRN_REASON_NOT_DUE, CAIRN_REASON_OTHER);
    cairn_read_string(reader, skip->text, sizeof skip->text);
}

static void
pack_drop(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_drop *drop = value;

    write_generation(writer, &drop->generation);
    write_range(writer, drop->reason, CAIRN_REASON_NOT_DUE, CAIRN_REASON_STOP);
}

static void
unpack_drop(struct cairn_reader *reader, struct cairn_session_drop *drop)
{
    read_generation(reader, &drop->generation);
    drop->reason = read_range(reader, CAIRN_REASON_NOT_DUE, CAIRN_REASON_STOP);
}

static void
pack_epoch(struct cairn_writer *writer, const void *value)
{
    cairn_write_u64(writer, ((const struct cairn_session_epoch *)value)->epoch);
}

static void
unpack_epoch(struct cairn_reader *reader, struct cairn_session_epoch *epoch)
{
    epoch->epoch = cairn_read_u64(reader);
}

static void
pack_committed(struct cairn_writer *writer, const void *value)
{
    write_generation(writer, &((const struct cairn_session_committed *)value)->generation);
}

static void
unpack_committed(struct cairn_reader *reader, struct cairn_session_committed *committed)
{
    read_generation(reader, &committed->generation);
}

static void
pack_restore_info(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_restore_info *info = value;

    cairn_write_u32(writer, info->request);
    write_range(writer, info->err, CAIRN_OK, CAIRN_INTERNAL);
    write_text(writer, info->text, sizeof info->text);
    if (info->err)
        return;
    write_generation(writer, &info->generation);
    write_range(writer, info->source, CAIRN_SOURCE_MEMORY, CAIRN_SOURCE_FILES);
    cairn_write_u64(writer, info->window_bytes);
    cairn_write_u32(writer, info->own_container);
    cairn_write_u32(writer, info->own_slot);
    cairn_write_u32(writer, info->count);
    for (uint32_t i = 0; i < info->count; i++) {
        if (info->manifests[i].bytes_len > CAIRN_SESSION_BULK_BYTES_MAX) {
            writer->failed = true;
            return;
        }
        cairn_write_u32(writer, (uint32_t)info->manifests[i].bytes_len);
        cairn_write_bytes(writer, info->manifests[i].bytes, info->manifests[i].bytes_len);
    }
}

cairn_err
cairn_session_put_restore_info(struct cairn_session_writer *writer,
                               const struct cairn_session_restore_info *value, int window_fd)
{
    if ((window_fd >= 0) != (value->err == CAIRN_OK))
        return CAIRN_INVAL;
    return put(writer, CAIRN_SESSION_RESTORE_INFO, pack_restore_info, value, &window_fd,
               window_fd >= 0 ? 1 : 0);
}

/* Where no container is in this node's memory. */
static bool
is_slot_of_region(uint32_t own_slot)
{
    return own_slot == 0 || (own_slot >= CAIRN_SLOT_OF_REGION &&
                             own_slot < CAIRN_SLOT_OF_REGION + CAIRN_SESSION_FDS_MAX);
}

/* The part that is there when something can be restored. */
static cairn_err
unpack_restorable(struct cairn_reader *reader, struct cairn_session_restore_info *info)
{
    read_generation(reader, &info->generation);
    info->source = read_range(reader, CAIRN_SOURCE_MEMORY, CAIRN_SOURCE_FILES);
    info->window_bytes = cairn_read_u64(reader);
    info->own_container = cairn_read_u32(reader);
    info->own_slot = cairn_read_u32(reader);
    info->count = cairn_read_u32(reader);
    if (reader->failed || info->count > cairn_reader_left(reader) / MANIFEST_BYTES_MIN)
        return CAIRN_CORRUPT;
    if (info->own_container != CAIRN_CONTAINER_NONE ? info->own_slot >= CAIRN_SESSION_FDS_MAX
                                                    : !is_slot_of_region(info->own_slot))
        return CAIRN_CORRUPT;
    info->manifests = calloc(info->count ? info->count : 1, sizeof *info->manifests);
    if (!info->manifests)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < info->count; i++) {
        info->manifests[i].bytes_len = cairn_read_u32(reader);
        info->manifests[i].bytes = cairn_read_borrow(reader, info->manifests[i].bytes_len);
    }
    return CAIRN_OK;
}

cairn_err
cairn_session_take_restore_info(const struct cairn_session_frame *frame,
                                struct cairn_session_restore_info *out)
{
    struct cairn_session_restore_info value = {0};
    struct cairn_reader reader;
    cairn_err err = open_payload(frame, CAIRN_SESSION_RESTORE_INFO, &reader);

    if (err)
        return err;
    value.request = cairn_read_u32(&reader);
    value.err = read_err(&reader, CAIRN_OK);
    cairn_read_string(&reader, value.text, sizeof value.text);
    if (reader.failed || frame->fd_count != (value.err == CAIRN_OK ? 1 : 0))
        return CAIRN_CORRUPT;
    if (!value.err)
        err = unpack_restorable(&reader, &value);
    if (!err)
        err = cairn_reader_done(&reader);
    if (!err)
        *out = value;
    else
        cairn_session_restore_info_fini(&value);
    return err;
}

void
cairn_session_restore_info_fini(struct cairn_session_restore_info *value)
{
    free(value->manifests);
    memset(value, 0, sizeof *value);
}

static void
pack_fetched(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_fetched *fetched = value;

    cairn_write_u32(writer, fetched->request);
    write_range(writer, fetched->err, CAIRN_OK, CAIRN_INTERNAL);
    write_text(writer, fetched->text, sizeof fetched->text);
}

static void
unpack_fetched(struct cairn_reader *reader, struct cairn_session_fetched *fetched)
{
    fetched->request = cairn_read_u32(reader);
    fetched->err = read_err(reader, CAIRN_OK);
    cairn_read_string(reader, fetched->text, sizeof fetched->text);
}

static void
pack_operator_reply(struct cairn_writer *writer, const void *value)
{
    const struct cairn_session_operator_reply *reply = value;

    cairn_write_u32(writer, (uint32_t)reply->exit_code);
    write_range(writer, reply->final, 0, 1);
    cairn_write_bytes(writer, reply->text, reply->text_bytes);
}

static void
unpack_operator_reply(struct cairn_reader *reader, struct cairn_session_operator_reply *reply)
{
    reply->exit_code = (int32_t)cairn_read_u32(reader);
    reply->final = read_range(reader, 0, 1);
    reply->text_bytes = cairn_reader_left(reader);
    reply->text = (const char *)cairn_read_borrow(reader, reply->text_bytes);
}

DEFINE_PUT(welcome, CAIRN_SESSION_WELCOME, struct cairn_session_welcome)
DEFINE_TAKE(welcome, CAIRN_SESSION_WELCOME, struct cairn_session_welcome)
DEFINE_PUT(refused, CAIRN_SESSION_REFUSED, struct cairn_session_refused)
DEFINE_TAKE(refused, CAIRN_SESSION_REFUSED, struct cairn_session_refused)
DEFINE_PUT(grant, CAIRN_SESSION_GRANT, struct cairn_session_grant)
DEFINE_TAKE(grant, CAIRN_SESSION_GRANT, struct cairn_session_grant)
DEFINE_PUT(skip, CAIRN_SESSION_SKIP, struct cairn_session_skip)
DEFINE_TAKE(skip, CAIRN_SESSION_SKIP, struct cairn_session_skip)
DEFINE_PUT(drop, CAIRN_SESSION_DROP, struct cairn_session_drop)
DEFINE_TAKE(drop, CAIRN_SESSION_DROP, struct cairn_session_drop)
DEFINE_PUT(epoch, CAIRN_SESSION_EPOCH, struct cairn_session_epoch)
DEFINE_TAKE(epoch, CAIRN_SESSION_EPOCH, struct cairn_session_epoch)
static void
pack_offer(struct cairn_writer *writer, const void *value)
{
    cairn_session_shares_pack(value, writer);
}

static void
unpack_offer(struct cairn_reader *reader, struct cairn_session_shares *shares)
{
    cairn_session_shares_unpack(reader, shares);
}

DEFINE_PUT(offer, CAIRN_SESSION_OFFER, struct cairn_session_shares)
DEFINE_TAKE(offer, CAIRN_SESSION_OFFER, struct cairn_session_shares)
DEFINE_PUT(committed, CAIRN_SESSION_COMMITTED, struct cairn_session_committed)
DEFINE_TAKE(committed, CAIRN_SESSION_COMMITTED, struct cairn_session_committed)
DEFINE_PUT(fetched, CAIRN_SESSION_FETCHED, struct cairn_session_fetched)
DEFINE_TAKE(fetched, CAIRN_SESSION_FETCHED, struct cairn_session_fetched)
DEFINE_PUT(operator_reply, CAIRN_SESSION_OPERATOR_REPLY, struct cairn_session_operator_reply)
DEFINE_TAKE(operator_reply, CAIRN_SESSION_OPERATOR_REPLY, struct cairn_session_operator_reply)
