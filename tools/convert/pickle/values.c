/* tools/convert/pickle/values.c - see pickle/values.h. */
#include "tools/convert/pickle/values.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { DIGITS_MAX = 640, DIGITS_AT_ONCE = 9, FLOAT_BYTES_MAX = 64 };

static int
hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The value of `digits` hexadecimal digits, -1 where there are fewer or others. */
static int64_t
hex_value(const uint8_t *text, size_t left, size_t digits)
{
    int64_t value = 0;

    if (left < digits)
        return -1;
    for (size_t i = 0; i < digits; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* value = value * factor + digits, least byte first; there is room for the carry. */
static void
push_digits(uint8_t *value, size_t value_bytes, uint64_t factor, uint64_t digits)
{
    uint64_t carry = digits;

    for (size_t i = 0; i < value_bytes; i++) {
        carry += value[i] * factor;
        value[i] = (uint8_t)carry;
        carry >>= 8;
    }
}

/* LONG: decimal of at most 640 digits, an L after it allowed. */
static struct cairn_pickle_node *
read_long(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    bool negative = line_bytes > 0 && line[0] == '-';
    size_t at = line_bytes > 0 && (line[0] == '-' || line[0] == '+') ? 1 : 0;
    size_t end = line_bytes > 0 && line[line_bytes - 1] == 'L' ? line_bytes - 1 : line_bytes;
    size_t value_bytes;
    uint8_t *value;
    unsigned carry = 1;

    if (at >= end || end - at > DIGITS_MAX) {
        *why = at >= end ? "a number without digits" : "a number of more than 640 digits";
        return NULL;
    }
    value_bytes = (end - at) / 2 + 2; /* a digit needs less than half a byte, the sign a bit */
    value = cairn_pickle_alloc(pickle, value_bytes);
    if (!value)
        return NULL;
    memset(value, 0, value_bytes);
    while (at < end) {
        uint64_t factor = 1, digits = 0;

        for (int i = 0; i < DIGITS_AT_ONCE && at < end; i++, at++) {
            if (line[at] < '0' || line[at] > '9') {
                *why = "a number with other characters than digits";
                return NULL;
            }
            factor *= 10;
            digits = digits * 10 + (line[at] - '0');
        }
        push_digits(value, value_bytes, factor, digits);
    }
    for (size_t i = 0; negative && i < value_bytes; i++) {
        carry += (uint8_t)~value[i];
        value[i] = (uint8_t)carry;
        carry >>= 8;
    }
    return cairn_pickle_big_int(pickle, value, value_bytes);
}

/* INT: decimal, or 00 and 01 for False and True. */
static struct cairn_pickle_node *
read_int(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    if (line_bytes == 2 && line[0] == '0' && (line[1] == '0' || line[1] == '1'))
        return cairn_pickle_bool(pickle, line[1] == '1');
    return read_long(pickle, line, line_bytes, why);
}

/* FLOAT: as Python prints it. */
static struct cairn_pickle_node *
read_float(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    char text[FLOAT_BYTES_MAX];
    char *end = NULL;
    double real = 0;

    *why = "this is not a number";
    if (line_bytes == 0 || line_bytes >= sizeof(text))
        return NULL;
    memcpy(text, line, line_bytes);
    text[line_bytes] = '\0';
    /* strtod also reads hexadecimal and skips white space; Python writes neither */
    if (strspn(text, "+-.0123456789eEinfa") != line_bytes)
        return NULL;
    real = strtod(text, &end);
    if (end != text + line_bytes)
        return NULL;
    *why = NULL;
    return cairn_pickle_float(pickle, real);
}

/* One escape of a str literal at text[0] = '\\'; puts its bytes and gives how many of the text it
 * took, 0 where it is wrong. */
static size_t
unescape(const uint8_t *text, size_t left, uint8_t *out, size_t *out_bytes)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple;

    if (left < 2)
        return 0;
    simple = text[1] ? strchr(from, text[1]) : NULL;
    if (simple) {
        out[(*out_bytes)++] = (uint8_t)to[simple - from];
        return 2;
    }
    if (text[1] == 'x') {
        int64_t value = hex_value(text + 2, left - 2, 2);

        if (value < 0)
            return 0;
        out[(*out_bytes)++] = (uint8_t)value;
        return 4;
    }
    if (text[1] >= '0' && text[1] <= '7') {
        unsigned value = 0;
        size_t digits = 0;

        while (digits < 3 && 1 + digits < left && text[1 + digits] >= '0' &&
               text[1 + digits] <= '7')
            value = value * 8 + (text[1 + digits++] - '0');
        out[(*out_bytes)++] = (uint8_t)value;
        return 1 + digits;
    }
    out[(*out_bytes)++] = '\\'; /* an unknown escape stands for itself */
    return 1;
}

/* STRING: a quoted str of Python 2 with escapes. */
static struct cairn_pickle_node *
read_string(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    uint8_t *out;
    size_t out_bytes = 0;

    if (line_bytes < 2 || (line[0] != '\'' && line[0] != '"') || line[line_bytes - 1] != line[0]) {
        *why = "a string without its quotes";
        return NULL;
    }
    out = cairn_pickle_alloc(pickle, line_bytes);
    if (!out)
        return NULL;
    for (size_t at = 1; at < line_bytes - 1;) {
        size_t took = 1;

        if (line[at] == '\\')
            took = unescape(line + at, line_bytes - 1 - at, out, &out_bytes);
        else
            out[out_bytes++] = line[at];
        if (took == 0) {
            *why = "a string with a broken escape";
            return NULL;
        }
        at += took;
    }
    return cairn_pickle_borrow(pickle, CAIRN_PICKLE_TEXT8, out, out_bytes);
}

/* UNICODE: Latin-1 with \uXXXX and \UXXXXXXXX; gives TEXT in UTF-8. */
static struct cairn_pickle_node *
read_unicode(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    char *out = cairn_pickle_alloc(pickle, 2 * (uint64_t)line_bytes + 1);
    size_t out_bytes = 0;

    if (!out)
        return NULL;
    for (size_t at = 0; at < line_bytes;) {
        bool escape =
            line[at] == '\\' && at + 1 < line_bytes && (line[at + 1] == 'u' || line[at + 1] == 'U');
        size_t digits = escape && line[at + 1] == 'U' ? 8 : 4;
        int64_t c = line[at];

        if (escape)
            c = hex_value(line + at + 2, line_bytes - at - 2, digits);
        if (c < 0 || c > 0x10ffff) {
            *why = "a string with a broken escape";
            return NULL;
        }
        out_bytes += cairn_utf8_put(out + out_bytes, (uint32_t)c);
        at += escape ? 2 + digits : 1;
    }
    return cairn_pickle_borrow(pickle, CAIRN_PICKLE_TEXT, out, out_bytes);
}

typedef struct cairn_pickle_node *line_reader(struct cairn_pickle *, const uint8_t *, size_t,
                                              const char **);

struct cairn_pickle_node *
cairn_pickle_read_line(struct cairn_pickle *pickle, enum cairn_pickle_line kind,
                       const uint8_t *line, size_t line_bytes, const char **why)
{
    static line_reader *const readers[] = {[CAIRN_PICKLE_LINE_INT] = read_int,
                                           [CAIRN_PICKLE_LINE_LONG] = read_long,
                                           [CAIRN_PICKLE_LINE_FLOAT] = read_float,
                                           [CAIRN_PICKLE_LINE_STRING] = read_string,
                                           [CAIRN_PICKLE_LINE_UNICODE] = read_unicode};

    return readers[kind](pickle, line, line_bytes, why);
}
