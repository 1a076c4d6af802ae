/* agent/history/event.c - an event: packed, unpacked, described; see event.h. */
#include "agent/history/event.h"

#include "base/assert.h"
#include "base/limits.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { VERSION = 1 };

/* Of times, steps and counts: so that sums and products of a few stay within 64 bits. */
static const uint64_t value_max = UINT64_C(1) << 62;

static const struct {
    const char *name;
    uint32_t weight;
    bool is_shared;
} kinds[HISTORY_KIND_END] = {
#define HISTORY_KIND_ROW(symbol, value, name, weight, shared) [value] = {name, weight, shared},
    HISTORY_KIND_LIST(HISTORY_KIND_ROW)
#undef HISTORY_KIND_ROW
};

const char *
history_kind_name(enum history_kind kind)
{
    return (unsigned)kind < HISTORY_KIND_END && kinds[kind].name ? kinds[kind].name : "unknown";
}

uint32_t
history_kind_weight(enum history_kind kind)
{
    return kinds[kind].weight;
}

bool
history_kind_is_shared(enum history_kind kind)
{
    return kinds[kind].is_shared;
}

struct history_event
history_event_of(enum history_kind kind)
{
    return (struct history_event){.kind = kind,
                                  .node = HISTORY_NONE,
                                  .other = HISTORY_NONE,
                                  .rank = HISTORY_NONE,
                                  .text = ""};
}

/* ---- packing ---- */

static void
write_generation(struct cairn_writer *writer, struct cairn_generation_id generation)
{
    cairn_write_u64(writer, generation.epoch);
    cairn_write_u64(writer, generation.step);
    cairn_write_u64(writer, generation.run);
}

static struct cairn_generation_id
read_generation(struct cairn_reader *reader)
{
    struct cairn_generation_id generation;

    generation.epoch = cairn_read_u64(reader);
    generation.step = cairn_read_u64(reader);
    generation.run = cairn_read_u64(reader);
    return generation;
}

size_t
history_event_pack(const struct history_event *event, uint8_t *out)
{
    struct cairn_writer writer;
    uint64_t rate;

    if (strlen(event->text) >= HISTORY_TEXT_BYTES)
        return 0;
    memcpy(&rate, &event->rate, sizeof rate);
    cairn_writer_init(&writer, out, HISTORY_PACKED_BYTES_MAX);
    cairn_write_u8(&writer, VERSION);
    cairn_write_u8(&writer, (uint8_t)event->kind);
    cairn_write_u64(&writer, event->number);
    cairn_write_u64(&writer, event->wall_ns);
    cairn_write_u64(&writer, event->until_wall_ns);
    write_generation(&writer, event->at);
    write_generation(&writer, event->generation);
    cairn_write_u64(&writer, event->last_step);
    cairn_write_u64(&writer, event->count);
    cairn_write_u64(&writer, event->captures);
    cairn_write_u64(&writer, event->subject);
    cairn_write_u64(&writer, event->bytes);
    cairn_write_u64(&writer, event->took_ns);
    cairn_write_u64(&writer, rate);
    cairn_write_u32(&writer, event->change);
    cairn_write_u32(&writer, event->node);
    cairn_write_u32(&writer, event->other);
    cairn_write_u32(&writer, event->rank);
    cairn_write_u32(&writer, event->err);
    cairn_write_string(&writer, event->text);
    return cairn_writer_done(&writer) == CAIRN_OK ? writer.used_bytes : 0;
}

cairn_err
history_event_unpack(const void *bytes, size_t bytes_len, char *text, struct history_event *out)
{
    struct history_event event = history_event_of(HISTORY_START);
    struct cairn_reader reader;
    uint64_t rate;
    uint8_t version;

    cairn_reader_init(&reader, bytes, bytes_len);
    version = cairn_read_u8(&reader);
    if (!reader.failed && version != VERSION)
        return CAIRN_VERSION;
    event.kind = (enum history_kind)cairn_read_u8(&reader);
    event.number = cairn_read_u64(&reader);
    event.wall_ns = cairn_read_u64(&reader);
    event.until_wall_ns = cairn_read_u64(&reader);
    event.at = read_generation(&reader);
    event.generation = read_generation(&reader);
    event.last_step = cairn_read_u64(&reader);
    event.count = cairn_read_u64(&reader);
    event.captures = cairn_read_u64(&reader);
    event.subject = cairn_read_u64(&reader);
    event.bytes = cairn_read_u64(&reader);
    event.took_ns = cairn_read_u64(&reader);
    rate = cairn_read_u64(&reader);
    memcpy(&event.rate, &rate, sizeof event.rate);
    event.change = cairn_read_u32(&reader);
    event.node = cairn_read_u32(&reader);
    event.other = cairn_read_u32(&reader);
    event.rank = cairn_read_u32(&reader);
    event.err = cairn_read_u32(&reader);
    cairn_read_string(&reader, text, HISTORY_TEXT_BYTES);
    if (cairn_reader_done(&reader) != CAIRN_OK || (unsigned)event.kind >= HISTORY_KIND_END ||
        !kinds[event.kind].name || event.number == 0 || event.until_wall_ns < event.wall_ns ||
        event.until_wall_ns > value_max || event.last_step > value_max ||
        event.generation.step > value_max || event.count > value_max ||
        event.captures > value_max || event.took_ns > value_max || event.err > CAIRN_INTERNAL ||
        !isfinite(event.rate) || event.rate < 0 || !cairn_text_plain(text, strlen(text)))
        return CAIRN_CORRUPT;
    event.text = text;
    *out = event;
    return CAIRN_OK;
}

/* ---- for people ---- */

/*
 * One line per kind. `%` and a letter is a field (add_field); text in brackets is left out if its
 * field is absent. An event with an error gets `failed`, if its kind has that.
 */
static const struct {
    const char *done, *failed;
    const char *changes[HISTORY_DENIED + 1]; /* %c, by `change`; unknown: the first */
} lines[HISTORY_KIND_END] = {
    [HISTORY_START] = {.done = "agent started, memory %c", .changes = {"empty", "adopted"}},
    [HISTORY_STOP] = {.done = "agent stopped"},
    [HISTORY_DEATH] = {.done = "node %n is silent: taken for dead"},
    [HISTORY_RETURN] = {.done = "node %n is back"},
    [HISTORY_EPOCH] = {.done = "epoch %e began with %g%c",
                       .changes = {"", "; trainers start again"}},
    [HISTORY_REPAIR] = {.done = "repair of %g[, %l][, %b bytes rebuilt]", "repair failed: %E"},
    [HISTORY_RESTORE] = {.done = "restore of %g[, %l][, %b bytes rebuilt]", "restore failed: %E"},
    [HISTORY_VERIFY] = {.done = "verify of %g[, %l][, %b bytes rebuilt]", "verify failed: %E"},
    [HISTORY_COMMIT] = {.done = "committed %s[ (%k generations)]"},
    [HISTORY_SKIP] = {.done = "skipped %s[ (%k generations)][; node %n was not done]"
                              "[, it waited for node %o]"},
    [HISTORY_TRAINING] = {.done = "trained %s%c",
                          .changes = {[HISTORY_RUNS] = "",
                                      [HISTORY_LEFT] = "; the trainers ended in good order",
                                      [HISTORY_ENDED] = "; the trainers died or were evicted",
                                      [HISTORY_GONE] = "; the agent ended"}},
    [HISTORY_TRAINER] = {.done = "trainer of rank %r died (pid %i)"},
    [HISTORY_RESUME] = {.done = "trainers resumed from %g",
                        "trainers could not read the generation: %E"},
    [HISTORY_VERDICT] = {.done = "verdict %i %c",
                         .changes = {"changed", [HISTORY_OPENED] = "opened",
                                     [HISTORY_RETURNED] = "is back", [HISTORY_CLOSED] = "closed"}},
    [HISTORY_PLACEMENT] =
        {"placement %i %c",
         .changes =
             {"changed", [HISTORY_PROPOSED] = "waits for approval",
              [HISTORY_OFFERED] = "offered to the trainers", [HISTORY_TAKEN] = "taken by all ranks",
              [HISTORY_KEPT] = "kept", [HISTORY_TAKEN_BACK] = "taken back",
              [HISTORY_FAILED] = "failed", [HISTORY_DENIED] = "over"}},
    [HISTORY_OPERATOR] = {.done = "operator (user %o, pid %i)"},
    [HISTORY_CONFIG] = {.done = "configuration"},
    [HISTORY_POISON] = {.done = "%s is poisoned, found by rank %r"},
    [HISTORY_SPILL] = {.done = "spill of %g failed"},
    [HISTORY_CAUSE] = {.done = "cause of verdict %i[, for rank %r]"},
};

struct line {
    char *out;
    size_t bytes, used;
};

static void __attribute__((format(printf, 2, 3))) add(struct line *line, const char *format, ...)
{
    va_list arguments;
    int added;

    if (line->used + 1 >= line->bytes)
        return;
    va_start(arguments, format);
    added = vsnprintf(line->out + line->used, line->bytes - line->used, format, arguments);
    va_end(arguments);
    if (added > 0)
        line->used += (size_t)added;
    if (line->used >= line->bytes)
        line->used = line->bytes - 1;
}

static void
add_generation(struct line *line, struct cairn_generation_id generation)
{
    if (generation.step)
        add(line, "epoch %" PRIu64 " step %" PRIu64, cairn_epoch_number(generation.epoch),
            generation.step);
    else
        add(line, "nothing");
}

/* "step 20", "steps 20 to 60" */
static void
add_steps(struct line *line, const struct history_event *event)
{
    if (event->last_step > event->generation.step)
        add(line, "steps %" PRIu64 " to %" PRIu64, event->generation.step, event->last_step);
    else
        add(line, "step %" PRIu64, event->generation.step);
}

static const char *
change_of(const struct history_event *event)
{
    const char *change =
        event->change <= HISTORY_DENIED ? lines[event->kind].changes[event->change] : NULL;

    return change ? change : lines[event->kind].changes[0];
}

/* Whether the event has the field: an absent one takes the text in its brackets with it. */
static bool
add_field(struct line *line, const struct history_event *event, char field)
{
    switch (field) {
    case 'b':
        add(line, "%" PRIu64, event->bytes);
        return event->bytes > 0;
    case 'c':
        add(line, "%s", change_of(event));
        return true;
    case 'e':
        add(line, "%" PRIu64, cairn_epoch_number(event->at.epoch));
        return true;
    case 'E':
        add(line, "%s", cairn_err_text((cairn_err)event->err));
        return true;
    case 'g':
        add_generation(line, event->generation);
        return true;
    case 'i':
        add(line, "%" PRIu64, event->subject);
        return true;
    case 'k': /* of a single generation the number is left out */
        add(line, "%" PRIu64, event->count);
        return event->count > 1;
    case 'l':
        add(line, "%" PRIu64 " lost part%s", event->count, event->count == 1 ? "" : "s");
        return event->count > 0;
    case 'n':
        add(line, "%u", event->node);
        return event->node != HISTORY_NONE;
    case 'o':
        add(line, "%u", event->other);
        return event->other != HISTORY_NONE;
    case 'r':
        add(line, "%u", event->rank);
        return event->rank != HISTORY_NONE;
    case 's':
        add_steps(line, event);
        return true;
    default:
        CAIRN_ASSERT(false);
        return false;
    }
}

const char *
history_event_describe(const struct history_event *event, char *out, size_t out_bytes)
{
    struct line line = {.out = out, .bytes = out_bytes};
    const char *failed = lines[event->kind].failed,
               *text = event->err && failed ? failed : lines[event->kind].done;
    size_t bracket = 0;
    bool absent = false;

    CAIRN_ASSERT(text);
    out[0] = '\0';
    for (; *text; text++) {
        if (*text == '[') {
            bracket = line.used;
            absent = false;
        } else if (*text == '%') {
            absent |= !add_field(&line, event, *++text);
        } else if (*text != ']') {
            add(&line, "%c", *text);
        } else if (absent) {
            line.used = bracket;
            out[bracket] = '\0';
        }
    }
    if (event->text[0])
        add(&line, ": %s", event->text);
    return out;
}
