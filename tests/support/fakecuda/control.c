/* tests/support/fakecuda/control.c - what tests ask of the fake driver: faults, speed, counters. */
#include "tests/support/fakecuda/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS_MAX = 16 };

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_context fake_contexts[FAKE_DEVICES];
struct fakecuda_state fake_state_now;
atomic_int fake_captures;
static struct fault {
    char symbol[48];
    uint64_t nth;
    int code;
} faults[FAULTS_MAX];
static uint64_t lose_nth, async_nth;
static int async_code;

#define PROTOTYPE(name, result, arguments) EXPORT result fakecuda_##name arguments;
FAKECUDA_LIST(PROTOTYPE)

int
fake_injected(const char *symbol)
{
    int code = 0;

    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAULTS_MAX; i++)
        if (faults[i].nth && strcmp(faults[i].symbol, symbol) == 0 && --faults[i].nth == 0)
            code = faults[i].code;
    fake_state_now.failed_calls += code != 0;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

int
fake_injected_async(void)
{
    int code = 0;

    pthread_mutex_lock(&fake_lock);
    if (async_nth && --async_nth == 0)
        code = async_code;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

bool
fake_event_is_lost(void)
{
    bool lost;

    pthread_mutex_lock(&fake_lock);
    lost = lose_nth && --lose_nth == 0;
    pthread_mutex_unlock(&fake_lock);
    return lost;
}

void
fake_count(int64_t *live, int64_t change)
{
    pthread_mutex_lock(&fake_lock);
    *live += change;
    pthread_mutex_unlock(&fake_lock);
}

void
fake_misuse(const char *format, ...)
{
    va_list arguments;

    pthread_mutex_lock(&fake_lock);
    fake_state_now.misuses++;
    pthread_mutex_unlock(&fake_lock);
    (void)fputs("fake driver: misuse: ", stderr);
    va_start(arguments, format);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    (void)fputc('\n', stderr);
}

void
fakecuda_reset(void)
{
    pthread_mutex_lock(&fake_lock);
    memset(faults, 0, sizeof faults);
    lose_nth = async_nth = 0;
    fake_state_now.register_calls = fake_state_now.pageable_copies = 0;
    fake_state_now.async_copies = fake_state_now.copied_bytes = fake_state_now.batches = 0;
    fake_state_now.context_creations = fake_state_now.misuses = fake_state_now.failed_calls = 0;
    for (int i = 0; i < FAKE_DEVICES; i++)
        atomic_store(&fake_contexts[i].error, 0);
    pthread_mutex_unlock(&fake_lock);
    fake_speed_set(0, 0);
    fake_hold_set(false);
}

void
fakecuda_speed(uint64_t bytes_per_s, uint64_t delay_us)
{
    fake_speed_set(bytes_per_s, delay_us);
}

void
fakecuda_hold(int on)
{
    fake_hold_set(on != 0);
}

void
fakecuda_fail(const char *symbol, uint64_t nth, int code)
{
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAULTS_MAX; i++)
        if (faults[i].nth == 0) {
            (void)snprintf(faults[i].symbol, sizeof faults[i].symbol, "%s", symbol);
            faults[i].nth = nth;
            faults[i].code = code;
            break;
        }
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_fail_async(uint64_t nth, int code)
{
    pthread_mutex_lock(&fake_lock);
    async_nth = nth;
    async_code = code;
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_lose_event(uint64_t nth)
{
    pthread_mutex_lock(&fake_lock);
    lose_nth = nth;
    pthread_mutex_unlock(&fake_lock);
}

void
fakecuda_state(struct fakecuda_state *out)
{
    pthread_mutex_lock(&fake_lock);
    *out = fake_state_now;
    pthread_mutex_unlock(&fake_lock);
}

int
fakecuda_fill(void *handle, uint64_t region, uint8_t value, size_t bytes, uint64_t delay_us)
{
    struct fake_stream *stream = fake_stream_of(handle);
    uint8_t *view = fake_view_of(region, bytes, NULL);

    if (!view || !stream)
        return INVALID_VALUE;
    return fake_enqueue(
        stream,
        (struct fake_op){
            .kind = FAKE_FILL, .to = view, .bytes = bytes, .number = value, .delay_us = delay_us});
}

int
fakecuda_write(void *handle, uint64_t region, const void *from, size_t bytes, uint64_t delay_us)
{
    struct fake_stream *stream = fake_stream_of(handle);
    uint8_t *view = fake_view_of(region, bytes, NULL);
    void *copy = malloc(bytes);

    if (!view || !stream || !copy) {
        free(copy);
        return INVALID_VALUE;
    }
    memcpy(copy, from, bytes);
    /* cppcheck-suppress memleak ; the operation frees it, as .owned */
    return fake_enqueue(stream, (struct fake_op){.kind = FAKE_WRITE,
                                                 .to = view,
                                                 .from = copy,
                                                 .owned = copy,
                                                 .bytes = bytes,
                                                 .delay_us = delay_us});
}

int
fakecuda_capture(void *handle, int on)
{
    struct fake_stream *stream = fake_stream_of(handle);

    if (!stream || atomic_load(&stream->captured) == (on != 0))
        return INVALID_VALUE;
    atomic_store(&stream->captured, on != 0);
    atomic_fetch_add(&fake_captures, on ? 1 : -1);
    return 0;
}

uint8_t *
fakecuda_view(uint64_t region)
{
    return fake_view_of(region, 1, NULL);
}
