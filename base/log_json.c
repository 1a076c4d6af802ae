/*
 * base/log_json.c - walks a format with its arguments, as printf does, and collects the named
 * values.
 *
 * A value ends at a space, or at one of : ; , ) . before another of them, a space or the end. It
 * may have several pieces, as in file=%s/%s.
 */
#include "base/log_json.h"

#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    NAME_BYTES = 32,
    VALUE_BYTES = 1024, /* as a line */
    FIELDS_MAX = 16,
    TAIL_BYTES = 3, /* }} and NUL */
};

/* A number after one of these words is a field. */
static const char *const nouns[] = {"node", "rank", "step", "slot", "epoch", "member"};

struct text {
    char *bytes;
    size_t used;
    size_t room; /* NUL included */
};

struct fields {
    struct text *out;
    char names[FIELDS_MAX][NAME_BYTES];
    uint32_t count;
    /* the one that is being read */
    char name[NAME_BYTES]; /* "": none */
    char value_bytes[VALUE_BYTES];
    struct text value;
    uint32_t pieces;
    bool is_number; /* of its only piece */
};

static bool
is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Appends what fits. */
static void
append(struct text *text, const char *bytes, size_t count)
{
    if (count > text->room - 1 - text->used)
        count = text->room - 1 - text->used;
    memcpy(text->bytes + text->used, bytes, count);
    text->used += count;
    text->bytes[text->used] = '\0';
}

/* Appends a JSON string. Returns false, and appends nothing, if it has no room. */
static bool
append_string(struct text *text, const char *bytes)
{
    size_t begin = text->used, left = strlen(bytes);

    append(text, "\"", 1);
    for (size_t count; left > 0; bytes += count, left -= count) {
        char escaped[2] = {'\\', *bytes};

        if (text->room - text->used < 8) { /* an escape or a character, the quote and the NUL */
            text->used = begin;
            text->bytes[begin] = '\0';
            return false;
        }
        count = cairn_utf8_bytes(bytes, left);
        if (count == 0 || !cairn_text_plain(bytes, count)) {
            count = 1;
            append(text, "?", 1);
        } else if (*bytes == '"' || *bytes == '\\') {
            append(text, escaped, 2);
        } else {
            append(text, bytes, count);
        }
    }
    append(text, "\"", 1);
    return true;
}

/* Appends ,"key":"value" */
static void
append_member(struct text *text, const char *key, const char *value)
{
    append(text, text->used > 1 ? "," : "", text->used > 1 ? 1 : 0);
    append_string(text, key);
    append(text, ":", 1);
    if (!append_string(text, value))
        append(text, "\"\"", 2);
}

void
cairn_log_event(const char *format, char out[CAIRN_LOG_EVENT_BYTES])
{
    struct text event = {.bytes = out, .room = CAIRN_LOG_EVENT_BYTES};
    size_t subsystem = strspn(format, "abcdefghijklmnopqrstuvwxyz_");
    const char *first_name = NULL;
    char separator = '.';

    out[0] = '\0';
    if (subsystem == 0 || strncmp(format + subsystem, ": ", 2) != 0) {
        append(&event, "log", 3);
    } else {
        append(&event, format, subsystem);
        format += subsystem + 2;
    }
    while (*format) {
        size_t token = strcspn(format, " "), words = strcspn(format, " :;,(");
        const char *equals = memchr(format, '=', token);
        bool has_value = equals || memchr(format, '%', token);

        if (equals && separator == '_')
            break;
        if (equals && !first_name)
            first_name = format;
        if (!has_value && event.used + 1 + words >= event.room)
            break;
        if (!has_value && words > 0) {
            append(&event, &separator, 1);
            separator = '_';
            for (size_t i = 0; i < words; i++)
                append(&event, format + i, is_word(format[i]) ? 1 : 0);
        }
        if (words < token && separator == '_')
            break;
        format += token;
        format += *format == ' ';
    }
    if (separator == '.' && first_name) {
        append(&event, ".", 1);
        append(&event, first_name, strcspn(first_name, "="));
    }
}

/* Ends the field being read: adds it to the object if it is new and has room. */
static void
end_field(struct fields *fields)
{
    struct text *out = fields->out;
    size_t before = out->used;
    bool fits = fields->count < FIELDS_MAX && fields->pieces > 0;

    for (uint32_t i = 0; i < fields->count; i++)
        fits = fits && strcmp(fields->names[i], fields->name) != 0;
    if (fields->name[0] && fits && out->room - out->used > NAME_BYTES + 8) {
        append(out, ",", fields->count > 0 ? 1 : 0);
        append_string(out, fields->name);
        append(out, ":", 1);
        if (!fields->is_number)
            fits = append_string(out, fields->value_bytes);
        else if (fields->value.used < out->room - out->used)
            append(out, fields->value_bytes, fields->value.used);
        else
            fits = false;
        if (fits)
            snprintf(fields->names[fields->count++], NAME_BYTES, "%s", fields->name);
        else
            out->bytes[out->used = before] = '\0';
    }
    fields->name[0] = '\0';
    fields->value.used = fields->pieces = 0;
    fields->value_bytes[0] = '\0';
    fields->is_number = false;
}

/* The name before the conversion at `at`: "step=%u", or "step %u" for a number. */
static void
begin_field(struct fields *fields, const char *format, const char *at, bool is_number)
{
    const char *end = at, *begin;
    bool named = at > format && at[-1] == '=', known = named;

    if (!named && !(is_number && at > format && at[-1] == ' '))
        return;
    begin = --end;
    while (begin > format && is_word(begin[-1]))
        begin--;
    for (size_t i = 0; i < sizeof nouns / sizeof *nouns && !named; i++)
        known = known || ((size_t)(end - begin) == strlen(nouns[i]) &&
                          memcmp(begin, nouns[i], (size_t)(end - begin)) == 0);
    if (!known || begin == end || end - begin >= NAME_BYTES ||
        (begin > format && !strchr(" (,", begin[-1])))
        return;
    memcpy(fields->name, begin, (size_t)(end - begin));
    fields->name[end - begin] = '\0';
}

/* The argument of a signed conversion, by its length modifier. */
static intmax_t
take_signed(va_list *arguments, const char *length)
{
    switch (*length) {
    case 'l':
        return length[1] == 'l' ? va_arg(*arguments, long long) : va_arg(*arguments, long);
    case 'z':
    case 't':
        return va_arg(*arguments, ptrdiff_t);
    case 'j':
        return va_arg(*arguments, intmax_t);
    default:
        return va_arg(*arguments, int);
    }
}

static uintmax_t
take_unsigned(va_list *arguments, const char *length)
{
    switch (*length) {
    case 'l':
        return length[1] == 'l' ? va_arg(*arguments, unsigned long long)
                                : va_arg(*arguments, unsigned long);
    case 'z':
    case 't':
        return va_arg(*arguments, size_t);
    case 'j':
        return va_arg(*arguments, uintmax_t);
    default:
        return va_arg(*arguments, unsigned);
    }
}

/*
 * Takes the argument of the conversion at `at`, appends it to the value, and returns the
 * conversion's end. NULL for an unknown conversion, after which no argument can be found.
 */
static const char *
take_value(struct fields *fields, const char *at, va_list *arguments)
{
    char *out = fields->value.bytes + fields->value.used;
    size_t room = fields->value.room - fields->value.used;
    int precision = -1, put = 0;
    const char *length, *text;
    double real;

    at += strspn(at, "-+ #0123456789");
    if (*at == '*') {
        (void)va_arg(*arguments, int);
        at++;
    }
    if (*at == '.' && at[1] == '*') {
        precision = va_arg(*arguments, int);
        at += 2;
    } else if (*at == '.') {
        for (precision = 0, at++; *at >= '0' && *at <= '9'; at++)
            precision = precision * 10 + (*at - '0');
    }
    length = at;
    at += strspn(at, "hlzjt");
    fields->is_number = fields->pieces == 0;
    switch (*at) {
    case 'd':
    case 'i':
        put = snprintf(out, room, "%" PRIdMAX, take_signed(arguments, length));
        break;
    case 'u':
        put = snprintf(out, room, "%" PRIuMAX, take_unsigned(arguments, length));
        break;
    case 'x':
        put = snprintf(out, room, "%" PRIxMAX, take_unsigned(arguments, length));
        fields->is_number = false;
        break;
    case 'c':
        put = snprintf(out, room, "%c", va_arg(*arguments, int));
        fields->is_number = false;
        break;
    case 'f':
    case 'g':
    case 'e':
        real = va_arg(*arguments, double);
        put = snprintf(out, room, "%.15g", real);
        fields->is_number = fields->is_number && isfinite(real);
        break;
    case 's':
        text = va_arg(*arguments, const char *);
        put = snprintf(out, room, "%.*s", precision, text ? text : "(null)");
        fields->is_number = false;
        break;
    case 'm':
        put = snprintf(out, room, "%m");
        fields->is_number = false;
        break;
    default:
        return NULL;
    }
    fields->value.used += put < 0 ? 0 : (size_t)put < room ? (size_t)put : room - 1;
    fields->pieces++;
    return at + 1;
}

/* Whether a value ends before `at`. */
static bool
ends_value(const char *at)
{
    return *at == ' ' || (*at && strchr(":;,).", *at) && strchr(" :;,).", at[1])); /* or the end */
}

static void
write_fields(struct text *out, const char *format, va_list *arguments)
{
    struct fields fields = {.out = out};
    const char *at = format;

    fields.value = (struct text){.bytes = fields.value_bytes, .room = VALUE_BYTES};
    while (at && *at) {
        if (*at == '%' && at[1] != '%') {
            if (!fields.name[0]) {
                const char *kind = at + 1 + strspn(at + 1, "-+ #0123456789.*hlzjt");

                end_field(&fields); /* what no name stood before */
                begin_field(&fields, format, at, strchr("diu", *kind) != NULL);
            }
            at = take_value(&fields, at + 1, arguments);
            continue;
        }
        if (ends_value(at)) {
            end_field(&fields);
        } else if (fields.name[0]) {
            append(&fields.value, at, 1);
            fields.is_number = false;
        }
        at += *at == '%' ? 2 : 1;
    }
    if (at)
        end_field(&fields);
}

size_t
cairn_log_json_write(const struct cairn_log_json *line, const char *format, va_list arguments,
                     char out[CAIRN_LOG_JSON_BYTES])
{
    struct text text = {.bytes = out, .room = CAIRN_LOG_JSON_BYTES - TAIL_BYTES};
    char event[CAIRN_LOG_EVENT_BYTES];
    va_list copy;

    cairn_log_event(format, event);
    append(&text, "{", 1);
    append_member(&text, "time", line->time);
    append_member(&text, "level", line->level);
    if (line->source[0])
        append_member(&text, "source", line->source);
    append_member(&text, "event", event);
    append_member(&text, "message", line->message);
    append(&text, ",\"fields\":{", 11);
    va_copy(copy, arguments);
    write_fields(&text, format, &copy);
    va_end(copy);
    text.room = CAIRN_LOG_JSON_BYTES;
    append(&text, "}}", 2);
    return text.used;
}
