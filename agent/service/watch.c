/* agent/service/watch.c - who analyses, and the reports' way there; see watch.h. */
#include "agent/service/watch.h"

#include "base/assert.h"

#include <stdlib.h>
#include <string.h>

#define BEGIN_ANEW UINT64_MAX

struct part {
    uint8_t *bytes;
    uint32_t bytes_len;
    uint64_t sent_ns; /* 0: not yet */
};

/* What the analyst has of another agent's stream. */
struct source {
    uint64_t stream; /* 0: none */
    uint64_t taken;
};

struct cairn_watch {
    struct cairn_watch_options options;
    uint32_t analyst;
    uint64_t now_ns;

    /* to the analyst */
    uint64_t stream, streams, dropped, overflows;
    uint64_t acked, next;                     /* parts acked … next - 1 are in `parts` */
    struct part parts[CAIRN_WATCH_PARTS_MAX]; /* by number modulo the size */
    uint8_t *gathered;                        /* [CAIRN_WATCH_PART_BYTES] */
    size_t gathered_bytes;
    bool broken;       /* a part is missing: a new stream must begin */
    uint64_t began_ns; /* the stream */

    struct source *sources; /* [agent_count] of the analyst */
};

cairn_err
cairn_watch_create(const struct cairn_watch_options *options, struct cairn_watch **out)
{
    struct cairn_watch *watch = calloc(1, sizeof *watch);

    CAIRN_ASSERT(options->self < options->agent_count);
    if (!watch)
        return CAIRN_NOMEM;
    watch->options = *options;
    watch->analyst = CAIRN_WATCH_NOBODY;
    watch->gathered = malloc(CAIRN_WATCH_PART_BYTES);
    watch->sources = calloc(options->agent_count, sizeof *watch->sources);
    if (!watch->gathered || !watch->sources) {
        cairn_watch_destroy(watch);
        return CAIRN_NOMEM;
    }
    *out = watch;
    return CAIRN_OK;
}

static void
forget_parts(struct cairn_watch *watch)
{
    for (; watch->acked < watch->next; watch->acked++) {
        struct part *part = &watch->parts[watch->acked % CAIRN_WATCH_PARTS_MAX];

        free(part->bytes);
        *part = (struct part){NULL, 0, 0};
    }
}

void
cairn_watch_destroy(struct cairn_watch *watch)
{
    if (!watch)
        return;
    forget_parts(watch);
    free(watch->gathered);
    free(watch->sources);
    free(watch);
}

/* ---- the stream to the analyst ---- */

static void
send_part(struct cairn_watch *watch, uint64_t number)
{
    struct part *part = &watch->parts[number % CAIRN_WATCH_PARTS_MAX];
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_TIMING,
                                            .from = watch->options.self,
                                            .to = watch->analyst,
                                            .request = watch->stream,
                                            .offset = number,
                                            .bytes = part->bytes,
                                            .bytes_len = part->bytes_len};

    part->sent_ns = watch->now_ns;
    watch->options.send(watch->options.context, &message);
}

/* Sends what may fly now; and all that flies again, if the first was sent too long ago. */
static void
pump(struct cairn_watch *watch)
{
    const struct part *first = &watch->parts[watch->acked % CAIRN_WATCH_PARTS_MAX];
    bool again = watch->acked < watch->next && first->sent_ns != 0 &&
                 watch->now_ns >= first->sent_ns + watch->options.resend_after_ns;

    for (uint64_t number = watch->acked;
         number < watch->next && number < watch->acked + CAIRN_WATCH_FLYING_MAX; number++)
        if (again || watch->parts[number % CAIRN_WATCH_PARTS_MAX].sent_ns == 0)
            send_part(watch, number);
}

static void
begin_stream(struct cairn_watch *watch)
{
    watch->dropped += watch->next - watch->acked;
    forget_parts(watch);
    watch->stream = watch->options.incarnation + ++watch->streams;
    watch->acked = watch->next = 0;
    watch->gathered_bytes = 0;
    watch->broken = false;
    watch->began_ns = watch->now_ns;
    if (watch->analyst != CAIRN_WATCH_NOBODY)
        watch->options.announce(watch->options.context);
}

/* Makes a part of the gathered reports; sends to itself at once. */
static void
close_part(struct cairn_watch *watch)
{
    struct part *part = &watch->parts[watch->next % CAIRN_WATCH_PARTS_MAX];
    size_t bytes_len = watch->gathered_bytes;
    uint8_t *bytes;

    if (bytes_len == 0)
        return;
    watch->gathered_bytes = 0;
    if (watch->analyst == CAIRN_WATCH_NOBODY || watch->broken)
        return;
    if (watch->analyst == watch->options.self) {
        watch->options.deliver(watch->options.context, watch->options.self, watch->gathered,
                               bytes_len);
        return;
    }
    bytes = watch->next - watch->acked < CAIRN_WATCH_PARTS_MAX ? malloc(bytes_len) : NULL;
    if (!bytes) {
        watch->broken = true;
        watch->dropped++;
        watch->overflows++;
        return;
    }
    memcpy(bytes, watch->gathered, bytes_len);
    *part = (struct part){bytes, (uint32_t)bytes_len, 0};
    watch->next++;
}

void
cairn_watch_report(struct cairn_watch *watch, const void *bytes, size_t bytes_len)
{
    CAIRN_ASSERT(bytes_len <= CAIRN_WATCH_REPORT_BYTES_MAX);
    if (watch->analyst == CAIRN_WATCH_NOBODY)
        return;
    if (watch->gathered_bytes + bytes_len > CAIRN_WATCH_PART_BYTES)
        close_part(watch);
    memcpy(watch->gathered + watch->gathered_bytes, bytes, bytes_len);
    watch->gathered_bytes += bytes_len;
}

/* ---- who ---- */

static void
change_analyst(struct cairn_watch *watch, uint32_t analyst)
{
    uint32_t self = watch->options.self;
    bool was = watch->analyst == self;

    watch->analyst = analyst;
    if (was)
        watch->options.end(watch->options.context);
    if (analyst == self) {
        memset(watch->sources, 0, watch->options.agent_count * sizeof *watch->sources);
        watch->options.begin(watch->options.context);
    }
    begin_stream(watch);
}

void
cairn_watch_tick(struct cairn_watch *watch, const bool *eligible, uint64_t now_ns)
{
    uint32_t analyst = 0;

    watch->now_ns = now_ns;
    while (analyst < watch->options.agent_count && !eligible[analyst])
        analyst++;
    if (analyst == watch->options.agent_count)
        analyst = CAIRN_WATCH_NOBODY;
    if (analyst != watch->analyst)
        change_analyst(watch, analyst);
    close_part(watch);
    if (watch->broken && now_ns >= watch->began_ns + watch->options.resend_after_ns) {
        begin_stream(watch);
        close_part(watch);
    }
    if (watch->analyst != CAIRN_WATCH_NOBODY && watch->analyst != watch->options.self)
        pump(watch);
}

void
cairn_watch_ask_anew(struct cairn_watch *watch)
{
    memset(watch->sources, 0, watch->options.agent_count * sizeof *watch->sources);
    watch->broken = true; /* its own, with the next tick */
}

/* ---- messages ---- */

static void
answer(struct cairn_watch *watch, uint32_t to, uint64_t stream, uint64_t taken)
{
    struct cairn_service_message message = {.kind = CAIRN_SERVICE_TIMING_ACK,
                                            .from = watch->options.self,
                                            .to = to,
                                            .request = stream,
                                            .offset = taken};

    watch->options.send(watch->options.context, &message);
}

static void
take_part(struct cairn_watch *watch, const struct cairn_service_message *message)
{
    struct source *source = &watch->sources[message->from];

    if (message->request < source->stream) /* late, of a stream that is over */
        return;
    if (source->stream != message->request) {
        if (message->offset != 0) { /* its beginning went to another agent, or was forgotten */
            answer(watch, message->from, message->request, BEGIN_ANEW);
            return;
        }
        *source = (struct source){.stream = message->request};
    }
    if (message->offset == source->taken) {
        source->taken++;
        watch->options.deliver(watch->options.context, message->from, message->bytes,
                               message->bytes_len);
    }
    answer(watch, message->from, message->request, source->taken);
}

static void
take_ack(struct cairn_watch *watch, const struct cairn_service_message *message)
{
    if (message->from != watch->analyst || message->request != watch->stream)
        return;
    if (message->offset == BEGIN_ANEW) {
        watch->broken = true; /* with the next tick */
        return;
    }
    for (; watch->acked < message->offset && watch->acked < watch->next; watch->acked++) {
        struct part *part = &watch->parts[watch->acked % CAIRN_WATCH_PARTS_MAX];

        free(part->bytes);
        *part = (struct part){NULL, 0, 0};
    }
    pump(watch);
}

void
cairn_watch_message(struct cairn_watch *watch, const struct cairn_service_message *message,
                    uint64_t now_ns)
{
    watch->now_ns = now_ns;
    if (message->from >= watch->options.agent_count || message->from == watch->options.self)
        return;
    if (message->kind == CAIRN_SERVICE_TIMING && watch->analyst == watch->options.self)
        take_part(watch, message);
    else if (message->kind == CAIRN_SERVICE_TIMING_ACK)
        take_ack(watch, message);
}

struct cairn_watch_view
cairn_watch_look(const struct cairn_watch *watch)
{
    return (struct cairn_watch_view){watch->analyst, watch->streams, watch->dropped,
                                     watch->overflows};
}
