/* base/wire.c - see wire.h. */
#include "base/wire.h"

#include <string.h>

void
cairn_reader_init(struct cairn_reader *reader, const void *bytes, size_t bytes_len)
{
    reader->at = bytes;
    reader->end = bytes_len ? reader->at + bytes_len : reader->at;
    reader->failed = false;
}

size_t
cairn_reader_left(const struct cairn_reader *reader)
{
    return reader->failed || !reader->at ? 0 : (size_t)(reader->end - reader->at);
}

const uint8_t *
cairn_read_borrow(struct cairn_reader *reader, size_t bytes_len)
{
    const uint8_t *bytes = reader->at;

    if (reader->failed || cairn_reader_left(reader) < bytes_len) {
        reader->failed = true;
        return NULL;
    }
    if (bytes_len)
        reader->at += bytes_len;
    return bytes;
}

void
cairn_read_bytes(struct cairn_reader *reader, void *out, size_t bytes_len)
{
    const uint8_t *bytes = cairn_read_borrow(reader, bytes_len);

    if (bytes_len == 0)
        return;
    if (bytes)
        memcpy(out, bytes, bytes_len);
    else
        memset(out, 0, bytes_len);
}

uint64_t
cairn_little_get(const uint8_t *bytes, size_t bytes_len)
{
    uint64_t value = 0;

    for (size_t i = bytes_len; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

void
cairn_little_put(uint8_t *bytes, size_t bytes_len, uint64_t value)
{
    for (size_t i = 0; i < bytes_len; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t
read_little(struct cairn_reader *reader, size_t bytes_len)
{
    const uint8_t *bytes = cairn_read_borrow(reader, bytes_len);

    return bytes ? cairn_little_get(bytes, bytes_len) : 0;
}

uint8_t
cairn_read_u8(struct cairn_reader *reader)
{
    return (uint8_t)read_little(reader, 1);
}

uint16_t
cairn_read_u16(struct cairn_reader *reader)
{
    return (uint16_t)read_little(reader, 2);
}

uint32_t
cairn_read_u32(struct cairn_reader *reader)
{
    return (uint32_t)read_little(reader, 4);
}

uint64_t
cairn_read_u64(struct cairn_reader *reader)
{
    return read_little(reader, 8);
}

void
cairn_read_string(struct cairn_reader *reader, char *out, size_t out_bytes)
{
    uint32_t text_len = cairn_read_u32(reader);
    const uint8_t *text = cairn_read_borrow(reader, text_len);

    out[0] = '\0';
    if (!text || text_len >= out_bytes || memchr(text, 0, text_len)) {
        reader->failed = true;
        return;
    }
    memcpy(out, text, text_len);
    out[text_len] = '\0';
}

cairn_err
cairn_reader_done(const struct cairn_reader *reader)
{
    return reader->failed || reader->at != reader->end ? CAIRN_CORRUPT : CAIRN_OK;
}

void
cairn_writer_init(struct cairn_writer *writer, void *bytes, size_t limit_bytes)
{
    writer->bytes = bytes;
    writer->used_bytes = 0;
    writer->limit_bytes = limit_bytes;
    writer->failed = false;
}

void
cairn_write_bytes(struct cairn_writer *writer, const void *bytes, size_t bytes_len)
{
    if (writer->failed || writer->limit_bytes - writer->used_bytes < bytes_len) {
        writer->failed = true;
        return;
    }
    if (writer->bytes && bytes_len)
        memcpy(writer->bytes + writer->used_bytes, bytes, bytes_len);
    writer->used_bytes += bytes_len;
}

static void
write_little(struct cairn_writer *writer, uint64_t value, size_t bytes_len)
{
    uint8_t bytes[8];

    cairn_little_put(bytes, bytes_len, value);
    cairn_write_bytes(writer, bytes, bytes_len);
}

void
cairn_write_u8(struct cairn_writer *writer, uint8_t value)
{
    write_little(writer, value, 1);
}

void
cairn_write_u16(struct cairn_writer *writer, uint16_t value)
{
    write_little(writer, value, 2);
}

void
cairn_write_u32(struct cairn_writer *writer, uint32_t value)
{
    write_little(writer, value, 4);
}

void
cairn_write_u64(struct cairn_writer *writer, uint64_t value)
{
    write_little(writer, value, 8);
}

void
cairn_write_string(struct cairn_writer *writer, const char *text)
{
    size_t text_len = strlen(text);

    if (text_len > UINT32_MAX) {
        writer->failed = true;
        return;
    }
    cairn_write_u32(writer, (uint32_t)text_len);
    cairn_write_bytes(writer, text, text_len);
}

cairn_err
cairn_writer_done(const struct cairn_writer *writer)
{
    return writer->failed ? CAIRN_FULL : CAIRN_OK;
}
