/*
 * tests/support/fakecuda/stream.c - streams and events: a stream is a thread that works off a queue
 * with a modelled speed, so that what is asynchronous on a device happens later here too.
 */
#include "tests/support/fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic uint64_t speed_bytes_per_s, speed_delay_us;
static atomic_bool held;
static struct fake_stream *streams[FAKE_HANDLES_MAX]; /* all that live, default streams too */
static struct fake_event *events[FAKE_HANDLES_MAX];

static void
sleep_us(uint64_t us)
{
    struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    if (us)
        nanosleep(&pause, NULL);
}

void
fake_speed_set(uint64_t bytes_per_s, uint64_t delay_us)
{
    atomic_store(&speed_bytes_per_s, bytes_per_s);
    atomic_store(&speed_delay_us, delay_us);
}

void
fake_hold_set(bool on)
{
    atomic_store(&held, on);
}

/* ---- events ---- */

static void
drop_user(struct fake_event *event)
{
    if (event && atomic_fetch_sub(&event->users, 1) == 1)
        free(event);
}

struct fake_event *
fake_event_make(struct fake_context *context)
{
    struct fake_event *event = calloc(1, sizeof *event);
    bool kept = false;

    if (!event)
        return NULL;
    event->context = context;
    atomic_store(&event->users, 1);
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX && !kept; i++)
        if (!events[i]) {
            events[i] = event;
            kept = true;
        }
    pthread_mutex_unlock(&fake_lock);
    if (kept)
        return event;
    free(event);
    return NULL;
}

bool
fake_event_is_known(const struct fake_event *event)
{
    bool known = false;

    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX && event; i++)
        known = known || events[i] == event;
    pthread_mutex_unlock(&fake_lock);
    return known;
}

void
fake_event_drop(struct fake_event *event)
{
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX; i++)
        if (events[i] == event)
            events[i] = NULL;
    pthread_mutex_unlock(&fake_lock);
    drop_user(event);
}

/* ---- the thread ---- */

static void
execute(struct fake_stream *stream, const struct fake_op *op)
{
    uint64_t speed = atomic_load(&speed_bytes_per_s);
    int code;

    switch (op->kind) {
    case FAKE_COPY:
        code = fake_injected_async();
        sleep_us(atomic_load(&speed_delay_us) + (speed ? op->bytes * 1000000 / speed : 0));
        if (code)
            atomic_store(&stream->context->error, code);
        if (!atomic_load(&stream->context->error))
            memcpy(op->to, op->from, op->bytes);
        break;
    case FAKE_FILL:
        sleep_us(op->delay_us);
        memset(op->to, (int)op->number, op->bytes);
        break;
    case FAKE_WRITE:
        sleep_us(op->delay_us);
        memcpy(op->to, op->from, op->bytes);
        break;
    case FAKE_RECORD:
        atomic_store(&op->event->reached, op->number);
        break;
    case FAKE_WAIT:
        while (atomic_load(&op->event->reached) < op->number)
            sleep_us(20);
        break;
    case FAKE_STOP:
        break;
    }
}

static void *
run_stream(void *argument)
{
    struct fake_stream *stream = argument;
    bool stop = false;

    while (!stop) {
        struct fake_op *op;

        pthread_mutex_lock(&stream->lock);
        while (!stream->first) {
            stream->running = NULL;
            pthread_cond_broadcast(&stream->changed);
            pthread_cond_wait(&stream->changed, &stream->lock);
        }
        op = stream->running = stream->first;
        stream->first = op->next;
        if (!stream->first)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        while (op->kind != FAKE_STOP && atomic_load(&held))
            sleep_us(50);
        execute(stream, op);
        stop = op->kind == FAKE_STOP;
        pthread_mutex_lock(&stream->lock);
        stream->running = NULL;
        pthread_cond_broadcast(&stream->changed);
        pthread_mutex_unlock(&stream->lock);
        drop_user(op->event);
        free(op->owned);
        free(op);
    }
    return NULL;
}

int
fake_enqueue(struct fake_stream *stream, struct fake_op op)
{
    struct fake_op *copy = malloc(sizeof *copy);

    if (!copy)
        return OUT_OF_MEMORY;
    *copy = op;
    copy->next = NULL;
    if (op.event)
        atomic_fetch_add(&op.event->users, 1);
    pthread_mutex_lock(&stream->lock);
    *stream->last = copy;
    stream->last = &copy->next;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return 0;
}

/* ---- streams ---- */

struct fake_stream *
fake_stream_make(struct fake_context *context)
{
    struct fake_stream *stream = calloc(1, sizeof *stream);
    int place = 0;

    if (!stream)
        return NULL;
    stream->last = &stream->first;
    stream->context = context;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    pthread_mutex_lock(&fake_lock);
    while (place < FAKE_HANDLES_MAX && streams[place])
        place++;
    if (place < FAKE_HANDLES_MAX && pthread_create(&stream->thread, NULL, run_stream, stream) == 0)
        streams[place] = stream;
    else
        place = FAKE_HANDLES_MAX;
    pthread_mutex_unlock(&fake_lock);
    if (place < FAKE_HANDLES_MAX)
        return stream;
    free(stream);
    return NULL;
}

void
fake_stream_drop(struct fake_stream *stream)
{
    if (!stream || fake_enqueue(stream, (struct fake_op){.kind = FAKE_STOP}))
        return;
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX; i++)
        if (streams[i] == stream)
            streams[i] = NULL;
    pthread_mutex_unlock(&fake_lock);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

struct fake_stream *
fake_stream_of(void *handle)
{
    struct fake_context *context = fake_current();
    struct fake_stream *found = NULL, *made = NULL;

    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX && handle; i++)
        if (streams[i] == handle)
            found = handle;
    if (!handle && context)
        found = context->default_stream;
    pthread_mutex_unlock(&fake_lock);
    if (found || handle || !context)
        return found;
    made = fake_stream_make(context);
    pthread_mutex_lock(&fake_lock);
    if (!context->default_stream) {
        context->default_stream = made;
        made = NULL;
    }
    found = context->default_stream;
    pthread_mutex_unlock(&fake_lock);
    fake_stream_drop(made);
    return found;
}

bool
fake_stream_is_idle(struct fake_stream *stream)
{
    bool idle;

    pthread_mutex_lock(&stream->lock);
    idle = !stream->first && !stream->running;
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

void
fake_stream_finish(struct fake_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first || stream->running)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

void
fake_context_finish(struct fake_context *context)
{
    for (int i = 0; i < FAKE_HANDLES_MAX; i++) {
        struct fake_stream *stream;

        pthread_mutex_lock(&fake_lock);
        stream = streams[i] && streams[i]->context == context ? streams[i] : NULL;
        pthread_mutex_unlock(&fake_lock);
        if (stream)
            fake_stream_finish(stream);
    }
}

static bool
overlaps(const struct fake_op *op, const uint8_t *begin, const uint8_t *end)
{
    const uint8_t *to = op->to, *from = op->from;

    return op->bytes && ((to && to < end && to + op->bytes > begin) ||
                         (from && from < end && from + op->bytes > begin));
}

bool
fake_memory_is_in_use(const void *memory, size_t bytes)
{
    const uint8_t *begin = memory, *end = begin + bytes;
    bool used = false;

    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX; i++) {
        if (!streams[i])
            continue;
        pthread_mutex_lock(&streams[i]->lock);
        used = used || (streams[i]->running && overlaps(streams[i]->running, begin, end));
        for (const struct fake_op *op = streams[i]->first; op && !used; op = op->next)
            used = overlaps(op, begin, end);
        pthread_mutex_unlock(&streams[i]->lock);
    }
    pthread_mutex_unlock(&fake_lock);
    return used;
}
