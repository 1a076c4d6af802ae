/* base/codec.c - see codec.h. */
#include "base/codec.h"

#include <stdlib.h>
#include <string.h>

cairn_err
cairn_codec_pack_into(cairn_codec_fn *code, const void *value, void *out, size_t out_bytes,
                      size_t *used)
{
    struct cairn_codec codec = {.reads = false};
    cairn_err err;

    cairn_writer_init(&codec.writer, out, out_bytes);
    code(&codec, (void *)(uintptr_t)value); /* which is not changed */
    err = cairn_writer_done(&codec.writer);
    if (!err)
        *used = codec.writer.used_bytes;
    return err;
}

cairn_err
cairn_codec_pack(cairn_codec_fn *code, const void *value, uint8_t **bytes, size_t *len)
{
    uint8_t *packed = NULL;
    cairn_err err = cairn_codec_pack_into(code, value, NULL, SIZE_MAX, len);

    if (!err)
        packed = malloc(*len + 1);
    if (!packed)
        return CAIRN_NOMEM;
    err = cairn_codec_pack_into(code, value, packed, *len, len);
    *bytes = packed;
    return err;
}

cairn_err
cairn_codec_unpack(cairn_codec_fn *code, void *value, const void *bytes, size_t len)
{
    struct cairn_codec codec = {.reads = true};

    cairn_reader_init(&codec.reader, bytes, len);
    code(&codec, value);
    return codec.err ? codec.err : cairn_reader_done(&codec.reader);
}

void
cairn_codec_check(struct cairn_codec *codec, bool good)
{
    if (codec->reads && !codec->err && (codec->reader.failed || !good))
        codec->err = CAIRN_CORRUPT;
}

void
cairn_codec_u8(struct cairn_codec *codec, uint8_t *value)
{
    if (codec->reads)
        *value = cairn_read_u8(&codec->reader);
    else
        cairn_write_u8(&codec->writer, *value);
}

void
cairn_codec_bool(struct cairn_codec *codec, bool *value)
{
    uint8_t byte = *value;

    cairn_codec_u8(codec, &byte);
    cairn_codec_check(codec, byte <= 1);
    *value = byte != 0;
}

void
cairn_codec_u32(struct cairn_codec *codec, uint32_t *value)
{
    if (codec->reads)
        *value = cairn_read_u32(&codec->reader);
    else
        cairn_write_u32(&codec->writer, *value);
}

void
cairn_codec_u64(struct cairn_codec *codec, uint64_t *value)
{
    if (codec->reads)
        *value = cairn_read_u64(&codec->reader);
    else
        cairn_write_u64(&codec->writer, *value);
}

void
cairn_codec_count(struct cairn_codec *codec, uint32_t *count, uint32_t max, size_t item_bytes)
{
    cairn_codec_u32(codec, count);
    cairn_codec_check(codec,
                      *count <= max && *count <= cairn_reader_left(&codec->reader) / item_bytes);
    if (codec->err)
        *count = 0;
}

void *
cairn_codec_array(struct cairn_codec *codec, void *array, size_t count, size_t size)
{
    if (!codec->reads)
        return array;
    array = codec->err ? NULL : calloc(count + 1, size);
    if (!array && !codec->err)
        codec->err = CAIRN_NOMEM;
    return array;
}

void
cairn_codec_bytes(struct cairn_codec *codec, uint8_t **bytes, uint32_t *len)
{
    cairn_codec_count(codec, len, UINT32_MAX, 1);
    *bytes = cairn_codec_array(codec, *bytes, *len, 1);
    if (codec->reads && *bytes)
        cairn_read_bytes(&codec->reader, *bytes, *len);
    else if (!codec->reads)
        cairn_write_bytes(&codec->writer, *bytes, *len);
}

void
cairn_codec_borrow(struct cairn_codec *codec, const uint8_t **bytes, size_t len)
{
    if (codec->reads)
        *bytes = cairn_read_borrow(&codec->reader, len);
    else
        cairn_write_bytes(&codec->writer, *bytes, len);
}
