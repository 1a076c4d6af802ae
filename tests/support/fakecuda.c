/*
 * tests/support/fakecuda.c - a fake CUDA driver: the entry points that snapshot/mem_cuda.c uses.
 *
 * Device memory is a memfd mapped twice: the device pointer is a PROT_NONE mapping, so that a CPU
 * access faults as on hardware, and the driver's own copies go through the other one. A stream is a
 * thread that works off a queue with a modelled speed. Host memory that is neither registered nor
 * allocated here is copied synchronously, as the real driver does with pageable memory. Calls
 * without a current context are refused. Errors are injected by the functions of fakecuda.h.
 */
#include "tests/support/fakecuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    DEVICES = 2,
    BLOCKS_MAX = 256,
    RANGES_MAX = 64,
    DEPTH_MAX = 16,
    FAULTS_MAX = 16,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713
};

struct event {
    _Atomic uint64_t recorded, reached;
    atomic_bool lost;
    atomic_int users; /* its owner, and the operations that are queued */
};

enum op_kind { OP_COPY, OP_FILL, OP_RECORD, OP_WAIT, OP_STOP };

struct op {
    enum op_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    uint64_t delay_us;
    struct event *event;
    uint64_t number;
    struct op *next;
};

struct stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct op *first, **last;
    bool busy;
    struct context *context;
};

struct context {
    int users;
    atomic_int error; /* sticky */
    struct stream *default_stream;
};

struct range {
    uint8_t *base; /* NULL: free */
    size_t bytes;
    uint8_t *view; /* of a device block */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below but the atomics */
static bool initialized;
static struct context contexts[DEVICES];
static struct range blocks[BLOCKS_MAX];
static struct range pinned[RANGES_MAX];
static struct fault {
    char symbol[48];
    uint64_t nth;
    int code;
} faults[FAULTS_MAX];
static struct fakecuda_state state;
static uint64_t lose_nth, async_nth;
static int async_code;
static _Atomic uint64_t speed_bytes_per_s, speed_delay_us;
static _Thread_local struct context *stack[DEPTH_MAX];
static _Thread_local int depth;

/* The code injected for this call of `symbol`, 0 for none. */
static int
injected(const char *symbol)
{
    int code = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < FAULTS_MAX; i++)
        if (faults[i].nth && strcmp(faults[i].symbol, symbol) == 0 && --faults[i].nth == 0)
            code = faults[i].code;
    pthread_mutex_unlock(&lock);
    return code;
}

/* What every call that needs a context begins with. */
static int
enter(const char *symbol)
{
    int code = injected(symbol);

    if (code)
        return code;
    if (depth == 0 || !stack[depth - 1])
        return INVALID_CONTEXT;
    return atomic_load(&stack[depth - 1]->error);
}

static struct range *
find_range(struct range *ranges, int count, const void *address, size_t bytes)
{
    const uint8_t *at = address;

    for (int i = 0; i < count; i++)
        if (ranges[i].base && at >= ranges[i].base && bytes <= ranges[i].bytes &&
            (size_t)(at - ranges[i].base) <= ranges[i].bytes - bytes)
            return &ranges[i];
    return NULL;
}

static uint8_t *
view_of(uint64_t region, size_t bytes)
{
    const void *address = (const void *)(uintptr_t)region;
    struct range *block;
    uint8_t *view = NULL;

    pthread_mutex_lock(&lock);
    block = find_range(blocks, BLOCKS_MAX, address, bytes);
    if (block)
        view = block->view + ((const uint8_t *)address - block->base);
    pthread_mutex_unlock(&lock);
    return view;
}

static void
sleep_us(uint64_t us)
{
    struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    if (us)
        nanosleep(&pause, NULL);
}

static void
drop_event(struct event *event)
{
    if (event && atomic_fetch_sub(&event->users, 1) == 1)
        free(event);
}

static void
execute(struct stream *stream, const struct op *op)
{
    uint64_t speed = atomic_load(&speed_bytes_per_s);
    int code = 0;

    switch (op->kind) {
    case OP_COPY:
        pthread_mutex_lock(&lock);
        if (async_nth && --async_nth == 0)
            code = async_code;
        pthread_mutex_unlock(&lock);
        sleep_us(atomic_load(&speed_delay_us) + (speed ? op->bytes * 1000000 / speed : 0));
        if (code)
            atomic_store(&stream->context->error, code);
        if (!atomic_load(&stream->context->error))
            memcpy(op->to, op->from, op->bytes);
        break;
    case OP_FILL:
        sleep_us(op->delay_us);
        memset(op->to, (int)op->number, op->bytes);
        break;
    case OP_RECORD:
        atomic_store(&op->event->reached, op->number);
        break;
    case OP_WAIT:
        while (atomic_load(&op->event->reached) < op->number)
            sleep_us(20);
        break;
    case OP_STOP:
        break;
    }
}

static void *
run_stream(void *argument)
{
    struct stream *stream = argument;
    bool stop = false;

    while (!stop) {
        struct op *op;

        pthread_mutex_lock(&stream->lock);
        while (!stream->first) {
            stream->busy = false;
            pthread_cond_broadcast(&stream->changed);
            pthread_cond_wait(&stream->changed, &stream->lock);
        }
        op = stream->first;
        stream->first = op->next;
        if (!stream->first)
            stream->last = &stream->first;
        pthread_mutex_unlock(&stream->lock);
        execute(stream, op);
        stop = op->kind == OP_STOP;
        drop_event(op->event);
        free(op);
    }
    return NULL;
}

static int
enqueue(struct stream *stream, struct op op)
{
    struct op *copy = malloc(sizeof *copy);

    if (!copy)
        return OUT_OF_MEMORY;
    *copy = op;
    copy->next = NULL;
    if (op.event)
        atomic_fetch_add(&op.event->users, 1);
    pthread_mutex_lock(&stream->lock);
    *stream->last = copy;
    stream->last = &copy->next;
    stream->busy = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    return 0;
}

static struct stream *
make_stream(struct context *context)
{
    struct stream *stream = calloc(1, sizeof *stream);

    if (!stream)
        return NULL;
    stream->last = &stream->first;
    stream->context = context;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&stream->thread, NULL, run_stream, stream)) {
        free(stream);
        return NULL;
    }
    return stream;
}

static void
drop_stream(struct stream *stream)
{
    if (!stream || enqueue(stream, (struct op){.kind = OP_STOP}))
        return;
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->lock);
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

/* NULL is the default stream of the current context. */
static struct stream *
stream_of(void *handle)
{
    struct context *context = stack[depth - 1];

    if (handle)
        return handle;
    pthread_mutex_lock(&lock);
    if (!context->default_stream)
        context->default_stream = make_stream(context);
    pthread_mutex_unlock(&lock);
    return context->default_stream;
}

static void
finish(struct stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->first || stream->busy)
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static void
count(int64_t *live, int64_t change)
{
    pthread_mutex_lock(&lock);
    *live += change;
    pthread_mutex_unlock(&lock);
}

/* ---- control ---- */

#define FAKECUDA_PROTOTYPE(name, result, arguments) EXPORT result fakecuda_##name arguments;
FAKECUDA_LIST(FAKECUDA_PROTOTYPE)

void
fakecuda_reset(void)
{
    pthread_mutex_lock(&lock);
    memset(faults, 0, sizeof faults);
    lose_nth = async_nth = 0;
    state.register_calls = state.pageable_copies = state.async_copies = 0;
    state.copied_bytes = state.context_creations = 0;
    for (int i = 0; i < DEVICES; i++)
        atomic_store(&contexts[i].error, 0);
    pthread_mutex_unlock(&lock);
    fakecuda_speed(0, 0);
}

void
fakecuda_speed(uint64_t bytes_per_s, uint64_t delay_us)
{
    atomic_store(&speed_bytes_per_s, bytes_per_s);
    atomic_store(&speed_delay_us, delay_us);
}

void
fakecuda_fail(const char *symbol, uint64_t nth, int code)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FAULTS_MAX; i++)
        if (faults[i].nth == 0) {
            strncpy(faults[i].symbol, symbol, sizeof faults[i].symbol - 1);
            faults[i].nth = nth;
            faults[i].code = code;
            break;
        }
    pthread_mutex_unlock(&lock);
}

void
fakecuda_fail_async(uint64_t nth, int code)
{
    pthread_mutex_lock(&lock);
    async_nth = nth;
    async_code = code;
    pthread_mutex_unlock(&lock);
}

void
fakecuda_lose_event(uint64_t nth)
{
    pthread_mutex_lock(&lock);
    lose_nth = nth;
    pthread_mutex_unlock(&lock);
}

void
fakecuda_state(struct fakecuda_state *out)
{
    pthread_mutex_lock(&lock);
    *out = state;
    pthread_mutex_unlock(&lock);
}

int
fakecuda_fill(void *stream, uint64_t region, uint8_t value, size_t bytes, uint64_t delay_us)
{
    uint8_t *view = view_of(region, bytes);

    if (!view || depth == 0)
        return INVALID_VALUE;
    return enqueue(
        stream_of(stream),
        (struct op){
            .kind = OP_FILL, .to = view, .bytes = bytes, .number = value, .delay_us = delay_us});
}

uint8_t *
fakecuda_view(uint64_t region)
{
    return view_of(region, 1);
}

int
fakecuda_depth(void)
{
    return depth;
}

/* ---- the driver ---- */

#define DRIVER(symbol, ...)                                                                        \
    EXPORT int symbol(__VA_ARGS__);                                                                \
    int symbol(__VA_ARGS__)

DRIVER(cuInit, unsigned flags)
{
    int code = injected(__func__);

    if (code)
        return code;
    initialized = true;
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
    int code = injected(__func__);

    if (code)
        return code;
    if (!initialized)
        return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= DEVICES)
        return INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

DRIVER(cuDevicePrimaryCtxRetain, struct context **context, int device)
{
    int code = injected(__func__);

    if (code)
        return code;
    pthread_mutex_lock(&lock);
    if (contexts[device].users++ == 0) {
        state.contexts++;
        state.context_creations++;
    }
    pthread_mutex_unlock(&lock);
    *context = &contexts[device];
    return 0;
}

DRIVER(cuDevicePrimaryCtxRelease_v2, int device)
{
    struct stream *dropped = NULL;

    pthread_mutex_lock(&lock);
    if (contexts[device].users == 0) {
        pthread_mutex_unlock(&lock);
        return INVALID_CONTEXT;
    }
    if (--contexts[device].users == 0) {
        state.contexts--;
        dropped = contexts[device].default_stream;
        contexts[device].default_stream = NULL;
    }
    pthread_mutex_unlock(&lock);
    drop_stream(dropped);
    return 0;
}

DRIVER(cuCtxPushCurrent_v2, struct context *context)
{
    int code = injected(__func__);

    if (code)
        return code;
    if (depth == DEPTH_MAX)
        return INVALID_VALUE;
    stack[depth++] = context;
    return 0;
}

DRIVER(cuCtxPopCurrent_v2, struct context **context)
{
    int code = injected(__func__);

    if (depth == 0)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return code;
}

DRIVER(cuCtxGetStreamPriorityRange, int *least, int *greatest)
{
    int code = enter(__func__);

    *least = 0;
    *greatest = -5;
    return code;
}

DRIVER(cuStreamCreateWithPriority, struct stream **stream, unsigned flags, int level)
{
    int code = enter(__func__);

    if (code)
        return code;
    if (flags != 1 || level != 0)
        return INVALID_VALUE; /* what mem_cuda promises: non-blocking, lowest priority */
    *stream = make_stream(stack[depth - 1]);
    if (!*stream)
        return OUT_OF_MEMORY;
    count(&state.streams, 1);
    return 0;
}

DRIVER(cuStreamDestroy_v2, struct stream *stream)
{
    drop_stream(stream);
    count(&state.streams, -1);
    return 0;
}

DRIVER(cuStreamWaitEvent, void *stream, struct event *event, unsigned flags)
{
    int code = enter(__func__);

    if (code || flags)
        return code ? code : INVALID_VALUE;
    return enqueue(
        stream_of(stream),
        (struct op){.kind = OP_WAIT, .event = event, .number = atomic_load(&event->recorded)});
}

DRIVER(cuStreamQuery, void *handle)
{
    struct stream *stream;
    int code = enter(__func__);
    bool idle;

    if (code)
        return code;
    stream = stream_of(handle);
    pthread_mutex_lock(&stream->lock);
    idle = !stream->first && !stream->busy;
    pthread_mutex_unlock(&stream->lock);
    return idle ? 0 : NOT_READY;
}

DRIVER(cuStreamSynchronize, void *stream)
{
    int code = enter(__func__);

    if (depth > 0)
        finish(stream_of(stream));
    return code ? code : atomic_load(&stack[depth - 1]->error);
}

DRIVER(cuEventCreate, struct event **event, unsigned flags)
{
    int code = enter(__func__);

    if (code || flags != 2)
        return code ? code : INVALID_VALUE;
    *event = calloc(1, sizeof **event);
    if (!*event)
        return OUT_OF_MEMORY;
    atomic_store(&(*event)->users, 1);
    count(&state.events, 1);
    return 0;
}

DRIVER(cuEventDestroy_v2, struct event *event)
{
    drop_event(event);
    count(&state.events, -1);
    return 0;
}

DRIVER(cuEventRecord, struct event *event, void *handle)
{
    int code = enter(__func__);
    struct stream *stream;

    if (code)
        return code;
    stream = stream_of(handle);
    if (stream->context != stack[depth - 1])
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    atomic_store(&event->lost, lose_nth && --lose_nth == 0);
    pthread_mutex_unlock(&lock);
    return enqueue(stream, (struct op){.kind = OP_RECORD,
                                       .event = event,
                                       .number = atomic_fetch_add(&event->recorded, 1) + 1});
}

DRIVER(cuEventQuery, struct event *event)
{
    int code = enter(__func__);

    if (code)
        return code;
    if (atomic_load(&event->lost) || atomic_load(&event->reached) < atomic_load(&event->recorded))
        return NOT_READY;
    return atomic_load(&stack[depth - 1]->error);
}

/* Adds a range to pinned[]; the lock is held. */
static int
add_pinned(uint8_t *host, size_t bytes)
{
    for (int i = 0; i < RANGES_MAX; i++)
        if (!pinned[i].base) {
            pinned[i] = (struct range){host, bytes, NULL};
            return 0;
        }
    return OUT_OF_MEMORY;
}

static bool
remove_pinned(uint8_t *host)
{
    for (int i = 0; i < RANGES_MAX; i++)
        if (pinned[i].base == host) {
            pinned[i].base = NULL;
            return true;
        }
    return false;
}

DRIVER(cuMemHostRegister_v2, void *host, size_t bytes, unsigned flags)
{
    int code;

    pthread_mutex_lock(&lock);
    state.register_calls++;
    pthread_mutex_unlock(&lock);
    code = enter(__func__);
    if (code || flags != 1)
        return code ? code : INVALID_VALUE;
    pthread_mutex_lock(&lock);
    code = find_range(pinned, RANGES_MAX, host, 1) ? ALREADY_REGISTERED : add_pinned(host, bytes);
    state.registered += code == 0;
    pthread_mutex_unlock(&lock);
    return code;
}

DRIVER(cuMemHostUnregister, void *host)
{
    int code = 0;

    pthread_mutex_lock(&lock);
    if (remove_pinned(host))
        state.registered--;
    else
        code = NOT_REGISTERED;
    pthread_mutex_unlock(&lock);
    return code;
}

DRIVER(cuMemHostAlloc, void **host, size_t bytes, unsigned flags)
{
    int code = enter(__func__);

    if (code || flags != 1)
        return code ? code : INVALID_VALUE;
    *host = aligned_alloc(4096, bytes);
    if (!*host)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    code = add_pinned(*host, bytes);
    state.host_allocated++;
    pthread_mutex_unlock(&lock);
    return code;
}

DRIVER(cuMemFreeHost, void *host)
{
    pthread_mutex_lock(&lock);
    remove_pinned(host);
    state.host_allocated--;
    pthread_mutex_unlock(&lock);
    free(host);
    return 0;
}

DRIVER(cuMemAlloc_v2, uint64_t *region, size_t bytes)
{
    int fd = memfd_create("fakecuda", MFD_CLOEXEC);
    struct range block = {.bytes = (bytes + 4095) / 4096 * 4096};
    int code = OUT_OF_MEMORY;

    if (fd < 0 || ftruncate(fd, (off_t)block.bytes))
        return OUT_OF_MEMORY;
    block.view = mmap(NULL, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    block.base = mmap(NULL, block.bytes, PROT_NONE, MAP_SHARED, fd, 0);
    close(fd);
    if (block.view == MAP_FAILED || block.base == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS_MAX && code; i++)
        if (!blocks[i].base) {
            blocks[i] = block;
            state.device_allocated++;
            code = 0;
        }
    pthread_mutex_unlock(&lock);
    *region = (uint64_t)(uintptr_t)block.base;
    return code;
}

DRIVER(cuMemFree_v2, uint64_t region)
{
    struct range *block;

    pthread_mutex_lock(&lock);
    block = find_range(blocks, BLOCKS_MAX, (const void *)(uintptr_t)region, 1);
    if (block) {
        munmap(block->base, block->bytes);
        munmap(block->view, block->bytes);
        block->base = NULL;
        state.device_allocated--;
    }
    pthread_mutex_unlock(&lock);
    return block ? 0 : INVALID_VALUE;
}

static int
copy(void *to, const void *from, const void *host, size_t bytes, void *handle)
{
    struct stream *stream = stream_of(handle);
    bool pageable;
    int code;

    pthread_mutex_lock(&lock);
    pageable = !find_range(pinned, RANGES_MAX, host, bytes);
    state.pageable_copies += pageable;
    state.async_copies += !pageable;
    state.copied_bytes += bytes;
    pthread_mutex_unlock(&lock);
    code = enqueue(stream, (struct op){.kind = OP_COPY, .to = to, .from = from, .bytes = bytes});
    if (pageable)
        finish(stream);
    return code;
}

DRIVER(cuMemcpyDtoHAsync_v2, void *host, uint64_t region, size_t bytes, void *stream)
{
    uint8_t *view = view_of(region, bytes);
    int code = enter(__func__);

    if (code || !view)
        return code ? code : INVALID_VALUE;
    return copy(host, view, host, bytes, stream);
}

DRIVER(cuMemcpyHtoDAsync_v2, uint64_t region, const void *host, size_t bytes, void *stream)
{
    uint8_t *view = view_of(region, bytes);
    int code = enter(__func__);

    if (code || !view)
        return code ? code : INVALID_VALUE;
    return copy(view, host, host, bytes, stream);
}

DRIVER(cuMemsetD8Async, uint64_t region, uint8_t value, size_t bytes, void *stream)
{
    uint8_t *view = view_of(region, bytes);
    int code = enter(__func__);

    if (code || !view)
        return code ? code : INVALID_VALUE;
    return enqueue(stream_of(stream),
                   (struct op){.kind = OP_FILL, .to = view, .bytes = bytes, .number = value});
}
