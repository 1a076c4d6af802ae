/* base/json.c - the JSON writer; the reader is in json_reader.c. */
#include "base/json.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_BYTES_MIN = 256 };

bool
cairn_utf8_valid(const char *text, size_t bytes_len)
{
    size_t at = 0;

    while (at < bytes_len) {
        /* most characters are ASCII */
        size_t bytes = (uint8_t)text[at] < 0x80 ? 1 : cairn_utf8_bytes(text + at, bytes_len - at);

        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

void
cairn_json_writer_init(struct cairn_json_writer *writer)
{
    *writer = (struct cairn_json_writer){0};
}

void
cairn_json_writer_fini(struct cairn_json_writer *writer)
{
    free(writer->text);
    *writer = (struct cairn_json_writer){0};
}

/* Room for `bytes` more and a NUL; NULL after a failure. */
static char *
extend(struct cairn_json_writer *writer, size_t bytes)
{
    size_t room = writer->room_bytes ? writer->room_bytes : ROOM_BYTES_MIN;
    char *grown;

    if (writer->err)
        return NULL;
    if (bytes > SIZE_MAX / 4 || writer->used_bytes > SIZE_MAX / 4) {
        writer->err = CAIRN_NOMEM;
        return NULL;
    }
    while (room < writer->used_bytes + bytes + 1)
        room *= 2;
    if (room != writer->room_bytes) {
        grown = realloc(writer->text, room);
        if (!grown) {
            writer->err = CAIRN_NOMEM;
            return NULL;
        }
        writer->text = grown;
        writer->room_bytes = room;
    }
    grown = writer->text + writer->used_bytes;
    writer->used_bytes += bytes;
    return grown;
}

static void
append(struct cairn_json_writer *writer, const char *bytes, size_t bytes_len)
{
    char *at = extend(writer, bytes_len);

    if (at)
        memcpy(at, bytes, bytes_len);
}

/* Writes the separator between the last value or key and the next. */
static void
separate(struct cairn_json_writer *writer)
{
    if (writer->comma)
        append(writer, ",", 1);
    if (writer->broken_line)
        append(writer, "\n", 1);
    writer->comma = false;
    writer->broken_line = false;
}

static void
begin(struct cairn_json_writer *writer, const char *bracket)
{
    separate(writer);
    append(writer, bracket, 1);
    writer->depth++;
}

static void
end(struct cairn_json_writer *writer, const char *bracket)
{
    if (writer->depth == 0) {
        writer->err = writer->err ? writer->err : CAIRN_INTERNAL;
        return;
    }
    writer->comma = false;
    separate(writer);
    append(writer, bracket, 1);
    writer->depth--;
    writer->comma = true;
}

void
cairn_json_write_object_begin(struct cairn_json_writer *writer)
{
    begin(writer, "{");
}

void
cairn_json_write_object_end(struct cairn_json_writer *writer)
{
    end(writer, "}");
}

void
cairn_json_write_array_begin(struct cairn_json_writer *writer)
{
    begin(writer, "[");
}

void
cairn_json_write_array_end(struct cairn_json_writer *writer)
{
    end(writer, "]");
}

static void
quote(struct cairn_json_writer *writer, const char *text)
{
    size_t left = strlen(text);

    append(writer, "\"", 1);
    while (left > 0) {
        size_t bytes = cairn_utf8_bytes(text, left);
        unsigned char c = (unsigned char)text[0];
        char escape[8];

        if (bytes == 0) {
            append(writer, "\xef\xbf\xbd", 3);
            bytes = 1;
        } else if (c == '"' || c == '\\') {
            escape[0] = '\\';
            escape[1] = (char)c;
            append(writer, escape, 2);
        } else if (c < 0x20 || c == 0x7f) {
            (void)snprintf(escape, sizeof(escape), "\\u%04x", c);
            append(writer, escape, 6);
        } else {
            append(writer, text, bytes);
        }
        text += bytes;
        left -= bytes;
    }
    append(writer, "\"", 1);
}

void
cairn_json_write_key(struct cairn_json_writer *writer, const char *key)
{
    separate(writer);
    quote(writer, key);
    append(writer, ":", 1);
}

void
cairn_json_write_string(struct cairn_json_writer *writer, const char *text)
{
    separate(writer);
    quote(writer, text);
    writer->comma = true;
}

/* A value whose text is its JSON. */
static void
literal(struct cairn_json_writer *writer, const char *text)
{
    separate(writer);
    append(writer, text, strlen(text));
    writer->comma = true;
}

void
cairn_json_write_u64(struct cairn_json_writer *writer, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    literal(writer, text);
}

void
cairn_json_write_i64(struct cairn_json_writer *writer, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRId64, value);
    literal(writer, text);
}

void
cairn_json_write_double(struct cairn_json_writer *writer, double value)
{
    char text[40];

    if (!isfinite(value)) {
        literal(writer, "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        double back;

        (void)snprintf(text, sizeof(text), "%.*g", digits, value);
        back = strtod(text, NULL);
        if (back >= value && back <= value)
            break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') /* the decimal point of another locale */
            *c = '.';
    literal(writer, text);
}

void
cairn_json_write_bool(struct cairn_json_writer *writer, bool value)
{
    literal(writer, value ? "true" : "false");
}

void
cairn_json_write_null(struct cairn_json_writer *writer)
{
    literal(writer, "null");
}

void
cairn_json_put_string(struct cairn_json_writer *writer, const char *key, const char *text)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_string(writer, text);
}

void
cairn_json_put_u64(struct cairn_json_writer *writer, const char *key, uint64_t value)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_u64(writer, value);
}

void
cairn_json_put_double(struct cairn_json_writer *writer, const char *key, double value)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_double(writer, value);
}

void
cairn_json_put_bool(struct cairn_json_writer *writer, const char *key, bool value)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_bool(writer, value);
}

void
cairn_json_put_array(struct cairn_json_writer *writer, const char *key)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_array_begin(writer);
}

void
cairn_json_put_object(struct cairn_json_writer *writer, const char *key)
{
    cairn_json_write_key(writer, key);
    cairn_json_write_object_begin(writer);
}

void
cairn_json_write_hex64(struct cairn_json_writer *writer, const uint64_t *values, size_t count)
{
    static const char digits[] = "0123456789abcdef";
    char *at;

    separate(writer);
    append(writer, "\"", 1);
    at = count > SIZE_MAX / 64 ? NULL : extend(writer, count * 16);
    if (!at) {
        writer->err = writer->err ? writer->err : CAIRN_NOMEM;
        return;
    }
    for (size_t i = 0; i < count; i++)
        for (int shift = 60; shift >= 0; shift -= 4)
            *at++ = digits[values[i] >> shift & 15];
    append(writer, "\"", 1);
    writer->comma = true;
}

void
cairn_json_write_line(struct cairn_json_writer *writer)
{
    writer->broken_line = true;
}

cairn_err
cairn_json_writer_done(struct cairn_json_writer *writer, char **text, size_t *text_bytes)
{
    cairn_err err;

    if (writer->depth != 0 || writer->used_bytes == 0)
        writer->err = writer->err ? writer->err : CAIRN_INTERNAL;
    if (writer->broken_line)
        append(writer, "\n", 1);
    err = writer->err;
    if (err == CAIRN_OK) {
        writer->text[writer->used_bytes] = '\0'; /* extend kept room for it */
        *text = writer->text;
        *text_bytes = writer->used_bytes;
        writer->text = NULL;
    }
    cairn_json_writer_fini(writer);
    return err;
}
