/*
 * tests/support/fakecuda/driver.c - a fake CUDA driver: initialisation, contexts, streams, events.
 *
 * Only the entry points that snapshot/mem_cuda.c and the tests use. Calls without a current context
 * are refused, and so are handles that do not live. While a stream is being captured into a graph
 * (fakecuda_capture) calls that would break that capture are refused to every thread that has not
 * said, with cuThreadExchangeStreamCaptureMode, that it has nothing to do with it.
 */
#include "tests/support/fakecuda/fake.h"

enum { CAPTURE_RELAXED = 2, CAPTURE_ACTIVE = 1 };

static atomic_bool initialized;
static _Thread_local struct fake_context *stack[FAKE_DEPTH_MAX];
static _Thread_local int depth;
static _Thread_local int capture_mode; /* 0: global */

#define DRIVER(symbol, ...)                                                                        \
    EXPORT int symbol(__VA_ARGS__);                                                                \
    int symbol(__VA_ARGS__)

EXPORT int fakecuda_depth(void);

struct fake_context *
fake_current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int
fake_enter(const char *symbol)
{
    int code = fake_injected(symbol);

    if (code)
        return code;
    if (!fake_current() || !fake_current()->users)
        return INVALID_CONTEXT;
    return atomic_load(&fake_current()->error);
}

int
fake_enter_unsafe(const char *symbol)
{
    if (atomic_load(&fake_captures) > 0 && capture_mode != CAPTURE_RELAXED) {
        fake_misuse("%s breaks the capture of a graph in another thread", symbol);
        return CAPTURE_UNSUPPORTED;
    }
    return fake_enter(symbol);
}

int
fakecuda_depth(void)
{
    return depth;
}

DRIVER(cuInit, unsigned flags)
{
    int code = fake_injected(__func__);

    if (code)
        return code;
    atomic_store(&initialized, true);
    return flags ? INVALID_VALUE : 0;
}

DRIVER(cuGetErrorName, int result, const char **text)
{
    *text = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return 0;
}

DRIVER(cuGetErrorString, int result, const char **text)
{
    (void)result;
    *text = "injected by the fake driver";
    return 0;
}

DRIVER(cuDeviceGet, int *device, int ordinal)
{
    int code = fake_injected(__func__);

    if (code)
        return code;
    if (!atomic_load(&initialized))
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= FAKE_DEVICES)
        return INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

/* ---- contexts ---- */

DRIVER(cuDevicePrimaryCtxRetain, struct fake_context **context, int device)
{
    int code = fake_injected(__func__);

    if (code)
        return code;
    if (!atomic_load(&initialized))
        return NOT_INITIALIZED;
    if (device < 0 || device >= FAKE_DEVICES)
        return INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    if (fake_contexts[device].users++ == 0) {
        fake_contexts[device].device = device;
        fake_state_now.contexts++;
        fake_state_now.context_creations++;
    }
    pthread_mutex_unlock(&fake_lock);
    *context = &fake_contexts[device];
    return 0;
}

DRIVER(cuDevicePrimaryCtxRelease_v2, int device)
{
    struct fake_stream *dropped = NULL;
    bool released = false;

    pthread_mutex_lock(&fake_lock);
    if (device >= 0 && device < FAKE_DEVICES && fake_contexts[device].users > 0) {
        released = true;
        if (--fake_contexts[device].users == 0) {
            fake_state_now.contexts--;
            dropped = fake_contexts[device].default_stream;
            fake_contexts[device].default_stream = NULL;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    fake_stream_drop(dropped);
    return released ? 0 : INVALID_CONTEXT;
}

DRIVER(cuCtxPushCurrent_v2, struct fake_context *context)
{
    int code = fake_injected(__func__);

    if (code)
        return code;
    if (depth == FAKE_DEPTH_MAX)
        return INVALID_VALUE;
    if (!context || !context->users)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return 0;
}

DRIVER(cuCtxPopCurrent_v2, struct fake_context **context)
{
    int code = fake_injected(__func__);

    if (depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return code;
}

/* ---- streams ---- */

DRIVER(cuCtxGetStreamPriorityRange, int *least, int *greatest)
{
    int code = fake_enter(__func__);

    *least = 0;
    *greatest = -5;
    return code;
}

DRIVER(cuStreamCreateWithPriority, struct fake_stream **stream, unsigned flags, int level)
{
    int code = fake_enter(__func__);

    if (code)
        return code;
    if (flags != 1 || level != 0)
        return INVALID_VALUE; /* what mem_cuda promises: non-blocking, lowest priority */
    *stream = fake_stream_make(fake_current());
    if (!*stream)
        return OUT_OF_MEMORY;
    fake_count(&fake_state_now.streams, 1);
    return 0;
}

DRIVER(cuStreamDestroy_v2, void *handle)
{
    struct fake_stream *stream = handle ? fake_stream_of(handle) : NULL;

    if (!stream)
        return INVALID_HANDLE;
    fake_stream_drop(stream);
    fake_count(&fake_state_now.streams, -1);
    return 0;
}

DRIVER(cuStreamWaitEvent, void *handle, struct fake_event *event, unsigned flags)
{
    int code = fake_enter(__func__);
    struct fake_stream *stream;

    if (code || flags)
        return code ? code : INVALID_VALUE;
    stream = fake_stream_of(handle);
    if (!stream || !fake_event_is_known(event))
        return INVALID_HANDLE;
    return fake_enqueue(stream, (struct fake_op){.kind = FAKE_WAIT,
                                                 .event = event,
                                                 .number = atomic_load(&event->recorded)});
}

DRIVER(cuStreamQuery, void *handle)
{
    int code = fake_enter_unsafe(__func__);
    struct fake_stream *stream;

    if (code)
        return code;
    stream = fake_stream_of(handle);
    if (!stream)
        return INVALID_HANDLE;
    return fake_stream_is_idle(stream) ? 0 : NOT_READY;
}

DRIVER(cuStreamSynchronize, void *handle)
{
    int code = fake_enter_unsafe(__func__);
    struct fake_stream *stream = fake_stream_of(handle);

    if (code == INVALID_CONTEXT || code == CAPTURE_UNSUPPORTED)
        return code;
    if (!stream)
        return INVALID_HANDLE;
    fake_stream_finish(stream);
    return code ? code : atomic_load(&fake_current()->error);
}

DRIVER(cuStreamIsCapturing, void *handle, int *status)
{
    int code = fake_enter(__func__);
    struct fake_stream *stream;

    if (code)
        return code;
    stream = fake_stream_of(handle);
    if (!stream)
        return INVALID_HANDLE;
    *status = atomic_load(&stream->captured) ? CAPTURE_ACTIVE : 0;
    return 0;
}

DRIVER(cuThreadExchangeStreamCaptureMode, int *mode)
{
    int code = fake_injected(__func__);
    int old = capture_mode;

    if (code)
        return code;
    if (*mode < 0 || *mode > CAPTURE_RELAXED)
        return INVALID_VALUE;
    capture_mode = *mode;
    *mode = old;
    return 0;
}

/* ---- events ---- */

DRIVER(cuEventCreate, struct fake_event **event, unsigned flags)
{
    int code = fake_enter(__func__);

    if (code || (flags != 2 && flags != 0))
        return code ? code : INVALID_VALUE;
    *event = fake_event_make(fake_current());
    if (!*event)
        return OUT_OF_MEMORY;
    fake_count(&fake_state_now.events, 1);
    return 0;
}

DRIVER(cuEventDestroy_v2, struct fake_event *event)
{
    if (!fake_event_is_known(event))
        return INVALID_HANDLE;
    fake_event_drop(event);
    fake_count(&fake_state_now.events, -1);
    return 0;
}

DRIVER(cuEventRecord, struct fake_event *event, void *handle)
{
    int code = fake_enter(__func__);
    struct fake_stream *stream;

    if (code)
        return code;
    stream = fake_stream_of(handle);
    if (!stream || !fake_event_is_known(event) || stream->context != event->context)
        return INVALID_HANDLE;
    if (atomic_load(&stream->captured))
        fake_misuse("an event is recorded into the graph that a stream is captured into");
    atomic_store(&event->lost, fake_event_is_lost());
    return fake_enqueue(stream,
                        (struct fake_op){.kind = FAKE_RECORD,
                                         .event = event,
                                         .number = atomic_fetch_add(&event->recorded, 1) + 1});
}

DRIVER(cuEventQuery, struct fake_event *event)
{
    int code = fake_enter_unsafe(__func__);

    if (code)
        return code;
    if (!fake_event_is_known(event))
        return INVALID_HANDLE;
    if (atomic_load(&event->lost) || atomic_load(&event->reached) < atomic_load(&event->recorded))
        return NOT_READY;
    return atomic_load(&fake_current()->error);
}
