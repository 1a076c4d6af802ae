/* replan/trace/read.c - one line of a trace at a time: what is not well formed or cannot be is
 * refused with the reason and the column. Lines are flat objects, scanned by hand since there are
 * many millions. */
#include "replan/trace/read.h"

#include "base/json.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUMBER_BYTES = 48,
    DIGITS_SAFE = 19,       /* of 64 bits, not interpreted */
    DECIMAL_DIGITS_MAX = 15 /* a double holds all of these */
};

static const char *const op_names[CAIRN_OPS] = {
#define OP_NAME(symbol, value, text) [value] = text,
    CAIRN_COLLECTIVE_LIST(OP_NAME)
#undef OP_NAME
};
static const size_t op_bytes[CAIRN_OPS] = {
#define OP_BYTES(symbol, value, text) [value] = sizeof text - 1,
    CAIRN_COLLECTIVE_LIST(OP_BYTES)
#undef OP_BYTES
};

struct scan {
    const char *line;
    size_t bytes, at;
    const char *why;
};

static void
fail(struct scan *scan, const char *why)
{
    if (!scan->why)
        scan->why = why;
}

/* What comes next, white space passed over; NUL at the end and after a failure. */
static char
peek(struct scan *scan)
{
    size_t at = scan->at;

    if (scan->why)
        return '\0';
    while (at < scan->bytes && scan->line[at] <= ' ' &&
           (scan->line[at] == ' ' || scan->line[at] == '\t' || scan->line[at] == '\r'))
        at++;
    scan->at = at;
    return at < scan->bytes ? scan->line[at] : '\0';
}

static bool
take(struct scan *scan, char wanted)
{
    if (peek(scan) != wanted)
        return false;
    scan->at++;
    return true;
}

/* A string without escapes, as a span of the line. Names and operations need none, and are short: a
 * loop is quicker here than memchr. */
static const char *
read_span(struct scan *scan, size_t *span_bytes)
{
    size_t begin, at;

    *span_bytes = 0;
    if (!take(scan, '"')) {
        fail(scan, "expected a string");
        return "";
    }
    begin = at = scan->at;
    while (at < scan->bytes && scan->line[at] != '"' && scan->line[at] != '\\')
        at++;
    if (at == scan->bytes || scan->line[at] != '"') {
        fail(scan, at == scan->bytes ? "unterminated string" : "strings must not have escapes");
        return "";
    }
    *span_bytes = at - begin;
    scan->at = at + 1;
    return scan->line + begin;
}

/* What makes a number another one than a whole one without a sign. */
static bool
goes_on(char next)
{
    return next == '.' || next == 'e' || next == 'E' || next == '+' || next == '-';
}

static uint64_t
read_number(struct scan *scan, uint64_t value_max)
{
    uint64_t value = 0;
    size_t begin, at;

    (void)peek(scan);
    begin = at = scan->at;
    while (at < scan->bytes && scan->line[at] >= '0' && scan->line[at] <= '9') {
        uint64_t digit = (uint64_t)(scan->line[at] - '0');

        if (at - begin >= DIGITS_SAFE && value > (UINT64_MAX - digit) / 10) {
            fail(scan, "a number is too large");
            return 0;
        }
        value = value * 10 + digit;
        at++;
    }
    scan->at = at;
    if (at == begin || (at < scan->bytes && goes_on(scan->line[at])))
        fail(scan, "expected a whole number");
    else if (value > value_max)
        fail(scan, "a number is out of range");
    return value;
}

/* A number of few digits with a point and no exponent, as nearly all are: the quotient of two
 * doubles that are exact is what strtod says, in a tenth of its time. False: it is another, and
 * nothing was read. */
static bool
read_decimal(struct scan *scan, double *out)
{
    uint64_t digits = 0;
    size_t at = scan->at, count = 0;
    double scale = 1;
    bool point = false;

    for (; at < scan->bytes; at++) {
        char next = scan->line[at];

        if (next == '.' && !point && count > 0) {
            point = true;
            continue;
        }
        if (next < '0' || next > '9')
            break;
        digits = digits * 10 + (uint64_t)(next - '0');
        scale *= point ? 10 : 1;
        if (++count > DECIMAL_DIGITS_MAX)
            return false;
    }
    if (count == 0 || scan->line[at - 1] == '.' || (at < scan->bytes && goes_on(scan->line[at])))
        return false;
    *out = (double)digits / scale;
    scan->at = at;
    return true;
}

static double
read_positive(struct scan *scan)
{
    char text[NUMBER_BYTES];
    size_t used = 0;
    double value;
    char *end;

    (void)peek(scan);
    if (read_decimal(scan, &value))
        return value;
    while (used + 1 < sizeof text && scan->at + used < scan->bytes &&
           memchr("+-.0123456789eE", scan->line[scan->at + used], 15)) {
        text[used] = scan->line[scan->at + used];
        used++;
    }
    text[used] = '\0';
    value = strtod(text, &end);
    if (used == 0 || *end != '\0' || !isfinite(value) || value < 0)
        fail(scan, "expected a number that is not negative");
    scan->at += used;
    return value;
}

static void
skip_value(struct scan *scan)
{
    struct cairn_json_reader reader;

    if (scan->why)
        return;
    cairn_json_reader_init(&reader, scan->line + scan->at, scan->bytes - scan->at);
    cairn_json_skip(&reader);
    scan->at += reader.at;
    if (reader.why)
        fail(scan, reader.why);
}

static bool
same_op(const char *name, const char *text, size_t text_bytes)
{
    size_t i = 0;

    for (; *name; name++) {
        if (*name == '_')
            continue;
        while (i < text_bytes && text[i] == '_')
            i++;
        if (i == text_bytes || tolower((unsigned char)text[i]) != *name)
            return false;
        i++;
    }
    return i == text_bytes;
}

static uint8_t
op_of(const char *text, size_t text_bytes)
{
    for (int op = 1; op < CAIRN_OPS; op++)
        if (op_bytes[op] == text_bytes && memcmp(op_names[op], text, text_bytes) == 0)
            return (uint8_t)op;
    if (text_bytes > 4 && memcmp(text, "nccl", 4) == 0) {
        text += 4;
        text_bytes -= 4;
    }
    for (int op = 1; op < CAIRN_OPS; op++)
        if (same_op(op_names[op], text, text_bytes))
            return (uint8_t)op;
    return 0;
}

struct fields {
    uint64_t enter_ns, start_ns, end_ns, now_ns;
    bool has_rank, has_enter, has_start, has_end, has_now, has_op, has_memory;
};

static bool
is(const char *key, size_t key_bytes, const char *wanted)
{
    return strlen(wanted) == key_bytes && memcmp(key, wanted, key_bytes) == 0;
}

static void
read_time(struct scan *scan, uint64_t *time_ns, bool *has)
{
    *time_ns = read_number(scan, CAIRN_TRACE_NS_MAX);
    *has = true;
}

/* A number, or null where the step's computation cannot be known. */
static void
read_compute(struct scan *scan, struct cairn_record *record)
{
    static const char null[] = "null";

    record->has_compute = true;
    record->compute_ns = (double)NAN;
    if (peek(scan) != 'n')
        record->compute_ns = (double)read_number(scan, CAIRN_TRACE_NS_MAX);
    else if (scan->bytes - scan->at >= sizeof null - 1 &&
             memcmp(scan->line + scan->at, null, sizeof null - 1) == 0)
        scan->at += sizeof null - 1;
    else
        fail(scan, "expected a whole number or null");
}

static void
read_names(struct scan *scan, const struct cairn_topology *topology, bool op,
           struct cairn_record *record)
{
    size_t text_bytes;
    const char *text = read_span(scan, &text_bytes);

    if (scan->why)
        return;
    if (op) {
        record->op = op_of(text, text_bytes);
        if (record->op == 0)
            fail(scan, "an unknown operation; known are all_reduce, broadcast, reduce, all_gather, "
                       "reduce_scatter, all_to_all, gather, scatter, barrier, send, recv");
    } else {
        record->comm = text_bytes < CAIRN_TOPOLOGY_NAME_BYTES
                           ? cairn_topology_find(topology, text, text_bytes)
                           : CAIRN_COMM_NONE;
        if (record->comm == CAIRN_COMM_NONE)
            fail(scan, "the header names no such communicator");
    }
}

static void
read_field(struct scan *scan, const struct cairn_topology *topology, const char *key,
           size_t key_bytes, struct fields *fields, struct cairn_record *record)
{
    if (is(key, key_bytes, "rank")) {
        record->rank = (uint32_t)read_number(scan, topology->world - 1);
        fields->has_rank = true;
    } else if (is(key, key_bytes, "comm")) {
        read_names(scan, topology, false, record);
    } else if (is(key, key_bytes, "op")) {
        read_names(scan, topology, true, record);
        fields->has_op = true;
    } else if (is(key, key_bytes, "seq")) {
        record->seq = read_number(scan, UINT64_MAX);
        record->has_seq = true;
    } else if (is(key, key_bytes, "bytes")) {
        record->bytes = read_number(scan, UINT64_MAX);
    } else if (is(key, key_bytes, "step")) {
        record->step = (uint32_t)read_number(scan, UINT32_MAX - 1);
        record->has_step = true;
    } else if (is(key, key_bytes, "enter_ns")) {
        read_time(scan, &fields->enter_ns, &fields->has_enter);
    } else if (is(key, key_bytes, "start_ns")) {
        read_time(scan, &fields->start_ns, &fields->has_start);
    } else if (is(key, key_bytes, "end_ns")) {
        read_time(scan, &fields->end_ns, &fields->has_end);
    } else if (is(key, key_bytes, "now_ns")) {
        read_time(scan, &fields->now_ns, &fields->has_now);
    } else if (is(key, key_bytes, "work")) {
        record->work = read_positive(scan);
    } else if (is(key, key_bytes, "compute_ns")) {
        read_compute(scan, record);
    } else if (is(key, key_bytes, "memory_bytes")) {
        record->memory_bytes = read_number(scan, CAIRN_TRACE_MEMORY_BYTES_MAX);
        fields->has_memory = true;
        if (record->memory_bytes == 0)
            fail(scan, "memory_bytes must be above 0: what the rank's device held at most");
    } else if (is(key, key_bytes, "peer")) {
        record->peer = (uint32_t)read_number(scan, topology->world - 1);
    } else {
        skip_value(scan);
    }
}

/* What each line must have, and what cannot be. */
static void
check(struct scan *scan, const struct cairn_topology *topology, const struct fields *fields,
      struct cairn_record *record)
{
    bool pair = record->op == CAIRN_SEND || record->op == CAIRN_RECV;

    if (!fields->has_rank)
        fail(scan, "the line lacks \"rank\"");
    else if (fields->has_memory && (fields->has_op || fields->has_now))
        fail(scan, "\"memory_bytes\" needs a line of its own, without \"op\" and \"now_ns\"");
    else if (!fields->has_op && !fields->has_now && !fields->has_memory)
        fail(scan, "the line has neither \"op\" nor \"now_ns\"");
    if (scan->why || !fields->has_op) {
        record->start_ns = fields->now_ns;
        record->op = 0;
        return;
    }
    record->start_ns = fields->has_start ? fields->start_ns : fields->enter_ns;
    record->end_ns = fields->end_ns;
    if (!fields->has_start && !fields->has_enter)
        fail(scan, "the operation has neither \"start_ns\" nor \"enter_ns\"");
    else if (pair && record->peer == CAIRN_PEER_NONE)
        fail(scan, "send and recv need \"peer\"");
    else if (pair && record->peer == record->rank)
        fail(scan, "a rank cannot be its own peer");
    else if (!pair && record->comm == CAIRN_COMM_NONE)
        fail(scan, "the operation lacks \"comm\"");
    else if (record->comm != CAIRN_COMM_NONE &&
             !cairn_topology_member(topology, record->rank, record->comm))
        fail(scan, "the rank is not a member of that communicator");
    record->is_backward = fields->has_end && record->end_ns < record->start_ns;
    if (fields->has_end && record->end_ns == 0)
        record->end_ns = 1; /* 0 means open */
    if (!pair)
        record->peer = CAIRN_PEER_NONE;
}

cairn_err
cairn_trace_read_line(const struct cairn_topology *topology, const char *line, size_t line_bytes,
                      struct cairn_record *out, struct cairn_trace_fault *fault)
{
    struct scan scan = {.line = line, .bytes = line_bytes};
    struct cairn_record record = {.comm = CAIRN_COMM_NONE, .peer = CAIRN_PEER_NONE};
    struct fields fields = {0};
    bool closed = false;

    if (line_bytes > CAIRN_TRACE_LINE_BYTES_MAX)
        fail(&scan, "the line is too long");
    else if (!take(&scan, '{'))
        fail(&scan, "expected an object");
    else if (!(closed = take(&scan, '}')))
        do {
            size_t key_bytes;
            const char *key = read_span(&scan, &key_bytes);

            if (!take(&scan, ':'))
                fail(&scan, "expected a colon");
            else
                read_field(&scan, topology, key, key_bytes, &fields, &record);
        } while (take(&scan, ','));
    if (!scan.why && !closed && !take(&scan, '}'))
        fail(&scan, "expected a comma or the end of the object; is the line cut?");
    (void)peek(&scan);
    if (!scan.why && scan.at != scan.bytes)
        fail(&scan, "unexpected text after the object");
    if (!scan.why)
        check(&scan, topology, &fields, &record);
    if (scan.why) {
        *fault = (struct cairn_trace_fault){scan.why, scan.at};
        return CAIRN_CORRUPT;
    }
    *out = record;
    return CAIRN_OK;
}
