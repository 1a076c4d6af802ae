/*
 * client/session_part.h - packs and unpacks the fields of session frames.
 *
 * Private to session_up.c and session_down.c. Each frame has a pack_ and an unpack_ there, field
 * after field in the order of its struct. A value out of range sets the sticky error of the writer
 * or reader, which is checked once, at the end.
 */
#ifndef CAIRN_CLIENT_SESSION_PART_H
#define CAIRN_CLIENT_SESSION_PART_H

#include "client/session.h"

#include "base/wire.h"

#include <string.h>

static inline void
write_text(struct cairn_writer *writer, const char *text, size_t text_bytes)
{
    if (strnlen(text, text_bytes) == text_bytes)
        writer->failed = true;
    else
        cairn_write_string(writer, text);
}

static inline void
write_range(struct cairn_writer *writer, uint32_t value, uint32_t first, uint32_t last)
{
    if (value < first || value > last)
        writer->failed = true;
    cairn_write_u32(writer, value);
}

static inline uint32_t
read_range(struct cairn_reader *reader, uint32_t first, uint32_t last)
{
    uint32_t value = cairn_read_u32(reader);

    if (value < first || value > last)
        reader->failed = true;
    return value;
}

static inline cairn_err
read_err(struct cairn_reader *reader, cairn_err first)
{
    return (cairn_err)read_range(reader, first, CAIRN_INTERNAL);
}

static inline void
write_generation(struct cairn_writer *writer, const struct cairn_generation_id *generation)
{
    cairn_write_u64(writer, generation->epoch);
    cairn_write_u64(writer, generation->step);
    cairn_write_u64(writer, generation->run);
}

static inline void
read_generation(struct cairn_reader *reader, struct cairn_generation_id *generation)
{
    generation->epoch = cairn_read_u64(reader);
    generation->step = cairn_read_u64(reader);
    generation->run = cairn_read_u64(reader);
}

/* Measures, makes room, packs. */
static inline cairn_err
put(struct cairn_session_writer *writer, enum cairn_session_type type,
    void (*pack)(struct cairn_writer *, const void *), const void *value, const int *fds,
    uint32_t fd_count)
{
    struct cairn_writer packer;
    uint8_t *payload;
    size_t payload_bytes;
    cairn_err err;

    cairn_writer_init(&packer, NULL, SIZE_MAX);
    pack(&packer, value);
    if (packer.failed)
        return CAIRN_INVAL;
    payload_bytes = packer.used_bytes;
    err = cairn_session_put_space(writer, type, payload_bytes, fds, fd_count, &payload);
    if (err)
        return err;
    cairn_writer_init(&packer, payload, payload_bytes);
    pack(&packer, value);
    return cairn_writer_done(&packer);
}

static inline cairn_err
open_payload(const struct cairn_session_frame *frame, enum cairn_session_type type,
             struct cairn_reader *reader)
{
    if (frame->type != type)
        return CAIRN_CORRUPT;
    cairn_reader_init(reader, frame->payload, frame->payload_bytes);
    return CAIRN_OK;
}

/* The public put and take of a frame of fixed form, out of its pack_ and unpack_. */
#define DEFINE_PUT(name, constant, type)                                                           \
    cairn_err cairn_session_put_##name(struct cairn_session_writer *writer, const type *value)     \
    {                                                                                              \
        return put(writer, constant, pack_##name, value, NULL, 0);                                 \
    }
#define DEFINE_TAKE(name, constant, type)                                                          \
    cairn_err cairn_session_take_##name(const struct cairn_session_frame *frame, type *out)        \
    {                                                                                              \
        struct cairn_reader reader;                                                                \
        type value;                                                                                \
        cairn_err err = open_payload(frame, constant, &reader);                                    \
                                                                                                   \
        if (err)                                                                                   \
            return err;                                                                            \
        memset(&value, 0, sizeof value);                                                           \
        unpack_##name(&reader, &value);                                                            \
        err = cairn_reader_done(&reader);                                                          \
        if (err)                                                                                   \
            return err;                                                                            \
        *out = value;                                                                              \
        return CAIRN_OK;                                                                           \
    }

#endif
