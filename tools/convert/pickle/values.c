/* tools/convert/pickle/values.c - see pickle/values.h. */
#include "tools/convert/pickle/values.h"

#include <stdlib.h>
#include <string.h>

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

static size_t
put_utf8(uint8_t *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xc0 | c >> 6);
        out[1] = (uint8_t)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xe0 | c >> 12);
        out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | c >> 18);
    out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (c & 0x3f));
    return 4;
}

/* UNICODE: Latin-1 with \uXXXX and \UXXXXXXXX; gives TEXT in UTF-8. */
static struct cairn_pickle_node *
read_unicode(struct cairn_pickle *pickle, const uint8_t *line, size_t line_bytes, const char **why)
{
    uint8_t *out = cairn_pickle_alloc(pickle, 2 * (uint64_t)line_bytes + 1);
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
        out_bytes += put_utf8(out + out_bytes, (uint32_t)c);
        at += escape ? 2 + digits : 1;
    }
    return cairn_pickle_borrow(pickle, CAIRN_PICKLE_TEXT, out, out_bytes);
}

/* Takes a line without its newline. NULL: *why is what is wrong (static), or the arena is full. */
typedef struct cairn_pickle_node *line_reader(struct cairn_pickle *, const uint8_t *, size_t,
                                              const char **);

void
cairn_pickle_op_line(struct cairn_pickle_machine *vm)
{
    static line_reader *const readers[] = {[CAIRN_PICKLE_LINE_INT] = read_int,
                                           [CAIRN_PICKLE_LINE_LONG] = read_long,
                                           [CAIRN_PICKLE_LINE_FLOAT] = read_float,
                                           [CAIRN_PICKLE_LINE_STRING] = read_string,
                                           [CAIRN_PICKLE_LINE_UNICODE] = read_unicode};
    size_t line_bytes;
    const uint8_t *line = cairn_pickle_machine_line(vm, &line_bytes);
    const char *why = NULL;
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = readers[vm->count](vm->pickle, line, line_bytes, &why);
    if (why) {
        cairn_pickle_machine_fail(vm, why);
        return;
    }
    if (node)
        node->memoized = false;
    cairn_pickle_machine_push(vm, node);
}

/* ---- scalars ---- */

void
cairn_pickle_op_none(struct cairn_pickle_machine *vm)
{
    if (!vm->none)
        vm->none = cairn_pickle_none(vm->pickle);
    cairn_pickle_machine_push(vm, vm->none);
}

void
cairn_pickle_op_bool(struct cairn_pickle_machine *vm)
{
    if (!vm->truths[vm->count])
        vm->truths[vm->count] = cairn_pickle_bool(vm->pickle, vm->count == 1);
    cairn_pickle_machine_push(vm, vm->truths[vm->count]);
}

void
cairn_pickle_op_binint(struct cairn_pickle_machine *vm)
{
    uint64_t value = cairn_pickle_machine_number(vm, vm->count);
    int64_t integer = vm->count == 4 ? (int32_t)(uint32_t)value : (int64_t)value;

    if (integer < 0 || integer >= CAIRN_PICKLE_SMALL_INTS) {
        cairn_pickle_machine_push(vm, cairn_pickle_int(vm->pickle, integer));
        return;
    }
    if (!vm->small[integer])
        vm->small[integer] = cairn_pickle_int(vm->pickle, integer);
    cairn_pickle_machine_push(vm, vm->small[integer]);
}

/* The length of LONG4 has a sign; a negative one is larger than any input. */
void
cairn_pickle_op_binlong(struct cairn_pickle_machine *vm)
{
    uint64_t bytes = cairn_pickle_machine_number(vm, vm->count);
    const uint8_t *value = cairn_pickle_machine_take(vm, bytes);

    if (value)
        cairn_pickle_machine_push(vm, cairn_pickle_big_int(vm->pickle, value, (size_t)bytes));
}

void
cairn_pickle_op_binfloat(struct cairn_pickle_machine *vm)
{
    const uint8_t *at = cairn_pickle_machine_take(vm, 8);
    uint64_t bits = 0;
    double real;

    for (size_t i = 0; at && i < 8; i++)
        bits = bits << 8 | at[i];
    memcpy(&real, &bits, sizeof(real));
    cairn_pickle_machine_push(vm, cairn_pickle_float(vm->pickle, real));
}

/* A length of vm->count bytes, and as many bytes. */
void
cairn_pickle_op_bytes(struct cairn_pickle_machine *vm)
{
    uint64_t bytes = cairn_pickle_machine_number(vm, vm->count);
    const uint8_t *at = vm->why ? NULL : cairn_pickle_machine_take(vm, bytes);
    struct cairn_pickle_node *node;

    if (!at)
        return;
    node = cairn_pickle_borrow(vm->pickle, vm->kind, at, (size_t)bytes);
    if (node)
        node->memoized = false; /* until a PUT */
    cairn_pickle_machine_push(vm, node);
}

/* ---- containers ---- */

static void
push_sequence(struct cairn_pickle_machine *vm, struct cairn_pickle_node *const items[],
              size_t count)
{
    struct cairn_pickle_node *node;

    if (vm->why)
        return;
    node = cairn_pickle_sequence(vm->pickle, vm->kind, items, count);
    if (node)
        node->memoized = false;
    cairn_pickle_machine_push(vm, node);
}

/* Of the last vm->count values. */
void
cairn_pickle_op_sequence(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **items = NULL;

    if (vm->count > 0)
        items = cairn_pickle_machine_top(vm, vm->count);
    if (vm->why)
        return;
    if (vm->count == 0 && vm->kind == CAIRN_PICKLE_TUPLE) {
        if (!vm->empty)
            vm->empty = cairn_pickle_sequence(vm->pickle, CAIRN_PICKLE_TUPLE, NULL, 0);
        cairn_pickle_machine_push(vm, vm->empty);
        return;
    }
    vm->stack_count -= vm->count;
    push_sequence(vm, items, vm->count);
}

/* Of what is above the mark. */
void
cairn_pickle_op_marked_sequence(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    push_sequence(vm, items, count);
}

/* Whether the value on top may grow. The tree keeps in which order an object got items, pairs and
 * state; it cannot express another order. */
static struct cairn_pickle_node *
growing(struct cairn_pickle_machine *vm, enum cairn_pickle_kind kind)
{
    struct cairn_pickle_node **last = cairn_pickle_machine_top(vm, 1);
    const struct cairn_pickle_object *object;

    if (vm->why)
        return NULL;
    if ((*last)->kind == kind)
        return *last;
    if ((*last)->kind != CAIRN_PICKLE_OBJECT || kind == CAIRN_PICKLE_SET) {
        cairn_pickle_machine_fail(vm, "it adds to a value of another kind");
        return NULL;
    }
    object = (*last)->object;
    if (object->state || (kind == CAIRN_PICKLE_LIST && object->pairs)) {
        cairn_pickle_machine_fail(vm, "it adds to an object that was complete");
        return NULL;
    }
    return *last;
}

static void
append_all(struct cairn_pickle_machine *vm, struct cairn_pickle_node *const items[], size_t count)
{
    struct cairn_pickle_node *target = vm->why ? NULL : growing(vm, vm->kind);

    cairn_pickle_reserve(vm->pickle, target, count);
    for (size_t i = 0; target && i < count; i++)
        cairn_pickle_append(vm->pickle, target, items[i]);
}

static void
put_all(struct cairn_pickle_machine *vm, struct cairn_pickle_node *target,
        struct cairn_pickle_node *const items[], size_t count)
{
    if (count % 2 != 0)
        cairn_pickle_machine_fail(vm, "a key without a value");
    cairn_pickle_reserve(vm->pickle, target, count / 2);
    for (size_t i = 0; target && !vm->why && i < count; i += 2)
        cairn_pickle_put(vm->pickle, target, items[i], items[i + 1]);
}

void
cairn_pickle_op_append(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node *item = cairn_pickle_machine_pop(vm);

    append_all(vm, &item, 1);
}

void
cairn_pickle_op_appends(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    append_all(vm, items, count);
}

void
cairn_pickle_op_setitem(struct cairn_pickle_machine *vm)
{
    struct cairn_pickle_node **pair = cairn_pickle_machine_top(vm, 2);

    if (!pair)
        return;
    vm->stack_count -= 2;
    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), pair, 2);
}

void
cairn_pickle_op_setitems(struct cairn_pickle_machine *vm)
{
    size_t count;
    struct cairn_pickle_node **items = cairn_pickle_machine_pop_mark(vm, &count);

    put_all(vm, growing(vm, CAIRN_PICKLE_DICT), items, count);
}

void
cairn_pickle_op_dict(struct cairn_pickle_machine *vm)
{
    size_t count = 0;
    struct cairn_pickle_node **items = NULL;
    struct cairn_pickle_node *dict = cairn_pickle_dict(vm->pickle);

    if (vm->kind == CAIRN_PICKLE_DICT)
        items = cairn_pickle_machine_pop_mark(vm, &count);
    if (dict)
        dict->memoized = false;
    put_all(vm, dict, items, count);
    cairn_pickle_machine_push(vm, dict);
}
