/* agent/core/env/codec.c - see codec.h. */
#include "agent/core/env/codec.h"

#include <stdlib.h>
#include <string.h>

cairn_err
codec_pack_into(code_fn *code, const void *value, void *out, size_t out_bytes, size_t *used)
{
    struct codec codec = {.reads = false};
    cairn_err err;

    cairn_writer_init(&codec.writer, out, out_bytes);
    code(&codec, (void *)(uintptr_t)value); /* which is not changed */
    err = cairn_writer_done(&codec.writer);
    if (!err)
        *used = codec.writer.used_bytes;
    return err;
}

cairn_err
codec_pack(code_fn *code, const void *value, uint8_t **bytes, size_t *len)
{
    uint8_t *packed = NULL;
    cairn_err err = codec_pack_into(code, value, NULL, SIZE_MAX, len);

    if (!err)
        packed = malloc(*len + 1);
    if (!packed)
        return CAIRN_NOMEM;
    err = codec_pack_into(code, value, packed, *len, len);
    *bytes = packed;
    return err;
}

cairn_err
codec_unpack(code_fn *code, void *value, const void *bytes, size_t len)
{
    struct codec codec = {.reads = true};

    cairn_reader_init(&codec.reader, bytes, len);
    code(&codec, value);
    return codec.err ? codec.err : cairn_reader_done(&codec.reader);
}

void
code_check(struct codec *codec, bool good)
{
    if (codec->reads && !codec->err && (codec->reader.failed || !good))
        codec->err = CAIRN_CORRUPT;
}

void
code_u8(struct codec *codec, uint8_t *value)
{
    if (codec->reads)
        *value = cairn_read_u8(&codec->reader);
    else
        cairn_write_u8(&codec->writer, *value);
}

void
code_bool(struct codec *codec, bool *value)
{
    uint8_t byte = *value;

    code_u8(codec, &byte);
    code_check(codec, byte <= 1);
    *value = byte != 0;
}

void
code_u32(struct codec *codec, uint32_t *value)
{
    if (codec->reads)
        *value = cairn_read_u32(&codec->reader);
    else
        cairn_write_u32(&codec->writer, *value);
}

void
code_u64(struct codec *codec, uint64_t *value)
{
    if (codec->reads)
        *value = cairn_read_u64(&codec->reader);
    else
        cairn_write_u64(&codec->writer, *value);
}

void
code_generation(struct codec *codec, struct cairn_generation_id *value)
{
    code_u64(codec, &value->epoch);
    code_u64(codec, &value->step);
    code_u64(codec, &value->run);
}

void
code_count(struct codec *codec, uint32_t *count, uint32_t max, size_t item_bytes)
{
    code_u32(codec, count);
    code_check(codec, *count <= max && *count <= cairn_reader_left(&codec->reader) / item_bytes);
    if (codec->err)
        *count = 0;
}

void
code_roster(struct codec *codec, struct cairn_roster **roster)
{
    if (!codec->reads)
        cairn_roster_write(*roster, &codec->writer);
    else if (!codec->err)
        codec->err = cairn_roster_read(&codec->reader, roster);
}

void
code_optional_roster(struct codec *codec, struct cairn_roster **roster)
{
    bool has = *roster != NULL;

    code_bool(codec, &has);
    if (has)
        code_roster(codec, roster);
}

void *
code_array(struct codec *codec, void *array, size_t count, size_t size)
{
    if (!codec->reads)
        return array;
    array = codec->err ? NULL : calloc(count + 1, size);
    if (!array && !codec->err)
        codec->err = CAIRN_NOMEM;
    return array;
}

void
code_bytes(struct codec *codec, uint8_t **bytes, uint32_t *len)
{
    code_count(codec, len, UINT32_MAX, 1);
    *bytes = code_array(codec, *bytes, *len, 1);
    if (codec->reads && *bytes)
        cairn_read_bytes(&codec->reader, *bytes, *len);
    else if (!codec->reads)
        cairn_write_bytes(&codec->writer, *bytes, *len);
}
