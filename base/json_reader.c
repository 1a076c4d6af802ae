/* base/json_reader.c - the bounded JSON reader: one pass, no allocation, no recursion, the first
 * failure stays. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBER_BYTES_MAX = 64 }; /* of a number with a fraction: twice what any writer needs */

void
cairn_json_reader_init(struct cairn_json_reader *reader, const void *text, size_t bytes_len)
{
    *reader = (struct cairn_json_reader){.text = text, .bytes_len = bytes_len};
}

void
cairn_json_reader_fail(struct cairn_json_reader *reader, const char *why)
{
    if (!reader->why)
        reader->why = why;
}

bool
cairn_json_reader_failed(const struct cairn_json_reader *reader)
{
    return reader->why != NULL;
}

char
cairn_json_peek(struct cairn_json_reader *reader)
{
    if (reader->why)
        return '\0';
    while (reader->at < reader->bytes_len) {
        char c = reader->text[reader->at];

        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
        reader->at++;
    }
    return '\0';
}

static bool
take(struct cairn_json_reader *reader, char wanted, const char *why)
{
    if (cairn_json_peek(reader) != wanted || reader->why) {
        cairn_json_reader_fail(reader, why);
        return false;
    }
    reader->at++;
    return true;
}

static void
enter(struct cairn_json_reader *reader, char bracket, const char *why)
{
    if (!take(reader, bracket, why))
        return;
    if (reader->depth == CAIRN_JSON_DEPTH_MAX) {
        cairn_json_reader_fail(reader, "nested too deep");
        return;
    }
    reader->depth++;
    reader->first = true;
}

/* Steps to the next element of the innermost object or array: true where there is one. */
static bool
step(struct cairn_json_reader *reader, char bracket)
{
    char c = cairn_json_peek(reader);

    if (reader->why)
        return false;
    if (reader->depth == 0) {
        cairn_json_reader_fail(reader, "nothing is open");
        return false;
    }
    if (c == bracket) {
        reader->at++;
        reader->depth--;
        reader->first = false; /* the outer one has had an element: this one */
        return false;
    }
    if (!reader->first && !take(reader, ',', "expected a comma or the end"))
        return false;
    reader->first = false;
    return true;
}

void
cairn_json_object_begin(struct cairn_json_reader *reader)
{
    enter(reader, '{', "expected an object");
}

bool
cairn_json_object_next(struct cairn_json_reader *reader, char *key, size_t key_bytes)
{
    if (!step(reader, '}'))
        return false;
    cairn_json_read_string(reader, key, key_bytes);
    return take(reader, ':', "expected a colon");
}

void
cairn_json_array_begin(struct cairn_json_reader *reader)
{
    enter(reader, '[', "expected an array");
}

bool
cairn_json_array_next(struct cairn_json_reader *reader)
{
    return step(reader, ']');
}

/* Four hex digits at the present place. */
static uint32_t
read_hex4(struct cairn_json_reader *reader)
{
    uint32_t value = 0;

    for (int i = 0; i < 4; i++) {
        char c = reader->at < reader->bytes_len ? reader->text[reader->at] : '\0';

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value << 4 | ((uint32_t)(c | 0x20) - 'a' + 10);
        else {
            cairn_json_reader_fail(reader, "a bad \\u escape");
            return 0;
        }
        reader->at++;
    }
    return value;
}

size_t
cairn_utf8_put(char out[4], uint32_t value)
{
    if (value < 0x80) {
        out[0] = (char)value;
        return 1;
    }
    if (value < 0x800) {
        out[0] = (char)(0xc0 | value >> 6);
        out[1] = (char)(0x80 | (value & 63));
        return 2;
    }
    if (value < 0x10000) {
        out[0] = (char)(0xe0 | value >> 12);
        out[1] = (char)(0x80 | (value >> 6 & 63));
        out[2] = (char)(0x80 | (value & 63));
        return 3;
    }
    out[0] = (char)(0xf0 | value >> 18);
    out[1] = (char)(0x80 | (value >> 12 & 63));
    out[2] = (char)(0x80 | (value >> 6 & 63));
    out[3] = (char)(0x80 | (value & 63));
    return 4;
}

/* Encodes the character of an escape, whose backslash was read; returns its bytes, 0 on failure. */
static size_t
read_escape(struct cairn_json_reader *reader, char out[4])
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = reader->at < reader->bytes_len ? reader->text[reader->at++] : '\0';
    const char *known = c != '\0' ? strchr(from, c) : NULL;
    uint32_t value, low;

    if (known) {
        out[0] = to[known - from];
        return 1;
    }
    if (c != 'u') {
        cairn_json_reader_fail(reader, "an unknown escape");
        return 0;
    }
    value = read_hex4(reader);
    if (value >= 0xd800 && value <= 0xdbff && reader->bytes_len - reader->at >= 6 &&
        reader->text[reader->at] == '\\' && reader->text[reader->at + 1] == 'u') {
        reader->at += 2;
        low = read_hex4(reader);
        if (low < 0xdc00 || low > 0xdfff)
            cairn_json_reader_fail(reader, "half a surrogate pair");
        value = 0x10000 + ((value - 0xd800) << 10) + (low - 0xdc00);
    } else if (value >= 0xd800 && value <= 0xdfff) {
        cairn_json_reader_fail(reader, "half a surrogate pair");
    } else if (value == 0) {
        cairn_json_reader_fail(reader, "a NUL in a string");
    }
    if (reader->why)
        return 0;
    return cairn_utf8_put(out, value);
}

void
cairn_json_read_string(struct cairn_json_reader *reader, char *out, size_t out_bytes)
{
    size_t used = 0;

    out[0] = '\0';
    if (!take(reader, '"', "expected a string"))
        return;
    for (;;) {
        char piece[4];
        size_t bytes = 1;

        if (reader->at == reader->bytes_len) {
            cairn_json_reader_fail(reader, "unterminated string");
            break;
        }
        piece[0] = reader->text[reader->at++];
        if (piece[0] == '"')
            break;
        if ((unsigned char)piece[0] < 0x20)
            cairn_json_reader_fail(reader, "a control character in a string");
        else if (piece[0] == '\\')
            bytes = read_escape(reader, piece);
        if (reader->why == NULL && used + bytes >= out_bytes)
            cairn_json_reader_fail(reader, "a string is too long");
        if (reader->why)
            break;
        memcpy(out + used, piece, bytes);
        used += bytes;
    }
    if (reader->why == NULL && !cairn_utf8_valid(out, used))
        cairn_json_reader_fail(reader, "a string is not UTF-8");
    out[reader->why ? 0 : used] = '\0';
}

uint64_t
cairn_json_read_u64(struct cairn_json_reader *reader, uint64_t value_max)
{
    uint64_t value = 0;
    size_t start;

    (void)cairn_json_peek(reader);
    if (reader->why)
        return 0;
    start = reader->at;
    while (reader->at < reader->bytes_len && reader->text[reader->at] >= '0' &&
           reader->text[reader->at] <= '9') {
        uint64_t digit = (uint64_t)(reader->text[reader->at] - '0');

        if (value > (UINT64_MAX - digit) / 10) {
            cairn_json_reader_fail(reader, "a number is too large");
            return 0;
        }
        value = value * 10 + digit;
        reader->at++;
    }
    if (reader->at == start || (reader->at - start > 1 && reader->text[start] == '0'))
        cairn_json_reader_fail(reader, "expected a whole number");
    else if (reader->at < reader->bytes_len && strchr(".eE", reader->text[reader->at]) &&
             reader->text[reader->at] != '\0')
        cairn_json_reader_fail(reader, "expected a whole number");
    else if (value > value_max)
        cairn_json_reader_fail(reader, "a number is too large");
    return reader->why ? 0 : value;
}

/* Passes over decimal digits; gives how many there were. */
static size_t
take_digits(struct cairn_json_reader *reader)
{
    size_t start = reader->at;

    while (reader->at < reader->bytes_len && reader->text[reader->at] >= '0' &&
           reader->text[reader->at] <= '9')
        reader->at++;
    return reader->at - start;
}

/* Skips one of two characters if it comes next. */
static bool
take_either(struct cairn_json_reader *reader, char one, char other)
{
    if (reader->at == reader->bytes_len ||
        (reader->text[reader->at] != one && reader->text[reader->at] != other))
        return false;
    reader->at++;
    return true;
}

double
cairn_json_read_double(struct cairn_json_reader *reader)
{
    char text[NUMBER_BYTES_MAX];
    size_t start, digits;
    bool well_formed;
    double value;

    (void)cairn_json_peek(reader);
    if (reader->why)
        return 0;
    start = reader->at;
    (void)take_either(reader, '-', '-');
    digits = take_digits(reader);
    well_formed = digits == 1 || (digits > 1 && reader->text[reader->at - digits] != '0');
    if (take_either(reader, '.', '.'))
        well_formed = take_digits(reader) > 0 && well_formed;
    if (take_either(reader, 'e', 'E')) {
        (void)take_either(reader, '+', '-');
        well_formed = take_digits(reader) > 0 && well_formed;
    }
    if (!well_formed || reader->at - start >= sizeof(text)) {
        cairn_json_reader_fail(reader, "expected a number");
        return 0;
    }
    memcpy(text, reader->text + start, reader->at - start);
    text[reader->at - start] = '\0';
    value = strtod(text, NULL);
    if (!isfinite(value)) {
        cairn_json_reader_fail(reader, "a number is too large");
        return 0;
    }
    return value;
}

bool
cairn_json_read_null(struct cairn_json_reader *reader)
{
    if (cairn_json_peek(reader) != 'n' || reader->bytes_len - reader->at < 4 ||
        memcmp(reader->text + reader->at, "null", 4) != 0)
        return false;
    reader->at += 4;
    return true;
}

size_t
cairn_json_peek_string_bytes(struct cairn_json_reader *reader)
{
    const char *end;
    size_t start;

    if (cairn_json_peek(reader) != '"')
        return 0;
    start = reader->at + 1;
    end = memchr(reader->text + start, '"', reader->bytes_len - start);
    return end ? (size_t)(end - reader->text) - start : 0;
}

void
cairn_json_read_hex64(struct cairn_json_reader *reader, uint64_t *values, size_t count)
{
    if (!take(reader, '"', "expected a string"))
        return;
    if (count > (reader->bytes_len - reader->at) / 16) {
        cairn_json_reader_fail(reader, "too few hex digits");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 0;

        for (int digit = 0; digit < 16; digit++) {
            char c = reader->text[reader->at++];

            if (c >= '0' && c <= '9')
                value = value << 4 | (uint64_t)(c - '0');
            else if (c >= 'a' && c <= 'f')
                value = value << 4 | (uint64_t)(c - 'a' + 10);
            else {
                cairn_json_reader_fail(reader, "no hex digit");
                return;
            }
        }
        values[i] = value;
    }
    if (reader->at == reader->bytes_len || reader->text[reader->at] != '"')
        cairn_json_reader_fail(reader, "too many hex digits");
    else
        reader->at++;
}

static void
skip_string(struct cairn_json_reader *reader)
{
    if (!take(reader, '"', "expected a string"))
        return;
    while (reader->at < reader->bytes_len) {
        unsigned char c = (unsigned char)reader->text[reader->at++];

        if (c == '"')
            return;
        if (c < 0x20) {
            cairn_json_reader_fail(reader, "a control character in a string");
            return;
        }
        if (c == '\\' && reader->at < reader->bytes_len)
            reader->at++;
    }
    cairn_json_reader_fail(reader, "unterminated string");
}

/* A number, true, false or null. */
static void
skip_word(struct cairn_json_reader *reader)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t start = reader->at;

    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        size_t bytes = strlen(words[i]);

        if (reader->bytes_len - start >= bytes &&
            memcmp(reader->text + start, words[i], bytes) == 0) {
            reader->at += bytes;
            return;
        }
    }
    while (reader->at < reader->bytes_len && reader->text[reader->at] != '\0' &&
           strchr("+-.0123456789eE", reader->text[reader->at]))
        reader->at++;
    if (reader->at == start)
        cairn_json_reader_fail(reader, "expected a value");
}

void
cairn_json_skip(struct cairn_json_reader *reader)
{
    uint32_t base = reader->depth, objects = 0; /* bit d: what is open at depth d is an object */

    do {
        char c = cairn_json_peek(reader);

        if (c == '{' || c == '[') {
            enter(reader, c, "");
            objects = (objects & ~(1u << reader->depth)) | (uint32_t)(c == '{') << reader->depth;
        } else if (c == '"') {
            skip_string(reader);
        } else {
            skip_word(reader);
        }
        while (!reader->why && reader->depth > base) { /* to the next value, or out */
            bool object = objects >> reader->depth & 1;

            if (!step(reader, object ? '}' : ']'))
                continue;
            if (object) {
                skip_string(reader);
                (void)take(reader, ':', "expected a colon");
            }
            break;
        }
    } while (!reader->why && reader->depth > base);
}

cairn_err
cairn_json_reader_done(struct cairn_json_reader *reader)
{
    (void)cairn_json_peek(reader);
    if (!reader->why && reader->depth != 0)
        cairn_json_reader_fail(reader, "an object or array is still open");
    if (!reader->why && reader->at != reader->bytes_len)
        cairn_json_reader_fail(reader, "unexpected text after the end");
    return reader->why ? CAIRN_CORRUPT : CAIRN_OK;
}
