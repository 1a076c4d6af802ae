/*
 * snapshot/mem_cuda.c - device memory, through the CUDA driver opened at run time.
 *
 * No CUDA header is needed and none is linked: the prototypes below are declared from the driver's
 * stable ABI, with the versioned symbol names (dlsym of a plain name gives the ABI of CUDA 2).
 *
 * A batch of copies is issued on one stream and followed by one event; it is a `flight`. Flights
 * form a queue of CAIRN_MEM_BATCHES_MAX places and land in order. When the host side is pinned the
 * device writes it directly. When pinning was refused the flight goes through its place's part of a
 * small ring of memory that the driver allocated pinned, and the CPU moves the bytes between ring
 * and host: on landing for copy_out, before issuing for copy_in.
 *
 * Invariants:
 *   1. landed <= issued <= landed + CAIRN_MEM_BATCHES_MAX; flight t has place t % BATCHES_MAX.
 *   2. Every entry pushes the primary context and pops it again: the trainer's thread keeps its own.
 *   3. The first driver error makes the object broken; every later call fails with CAIRN_DEVICE
 *      without touching the driver, but for close, which waits for the stream and gives all back.
 *
 * A flight whose event is not seen although the stream is idle has landed: a lost event must not
 * stop the trainer.
 */
#include "snapshot/mem.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int cu_result; /* CUresult: 0 success, 600 not ready */
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef uint64_t cu_pointer; /* CUdeviceptr: unsigned long long */

enum {
    SUCCESS = 0,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    STREAM_NON_BLOCKING = 1,
    EVENT_DISABLE_TIMING = 2,
    HOST_PORTABLE = 1, /* of cuMemHostRegister and cuMemHostAlloc: pinned for every context */
    IDLE_CHECK_POLLS = 256
};

/* X(field, symbol, arguments) */
#define DRIVER_LIST(X)                                                                             \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(error_name, "cuGetErrorName", (cu_result result, const char **text))                         \
    X(error_string, "cuGetErrorString", (cu_result result, const char **text))                     \
    X(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                                \
    X(retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))                \
    X(release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                                 \
    X(push, "cuCtxPushCurrent_v2", (cu_context context))                                           \
    X(pop, "cuCtxPopCurrent_v2", (cu_context * context))                                           \
    X(priority_range, "cuCtxGetStreamPriorityRange", (int *least, int *greatest))                  \
    X(stream_create, "cuStreamCreateWithPriority",                                                 \
      (cu_stream * stream, unsigned flags, int level))                                             \
    X(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                                    \
    X(stream_wait, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))        \
    X(stream_query, "cuStreamQuery", (cu_stream stream))                                           \
    X(stream_finish, "cuStreamSynchronize", (cu_stream stream))                                    \
    X(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                           \
    X(event_destroy, "cuEventDestroy_v2", (cu_event event))                                        \
    X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                           \
    X(event_query, "cuEventQuery", (cu_event event))                                               \
    X(host_register, "cuMemHostRegister_v2", (void *host, size_t bytes, unsigned flags))           \
    X(host_unregister, "cuMemHostUnregister", (void *host))                                        \
    X(host_alloc, "cuMemHostAlloc", (void **host, size_t bytes, unsigned flags))                   \
    X(host_free, "cuMemFreeHost", (void *host))                                                    \
    X(copy_out, "cuMemcpyDtoHAsync_v2",                                                            \
      (void *host, cu_pointer region, size_t bytes, cu_stream stream))                             \
    X(copy_in, "cuMemcpyHtoDAsync_v2",                                                             \
      (cu_pointer region, const void *host, size_t bytes, cu_stream stream))

struct driver {
    void *library;
#define DRIVER_FIELD(field, symbol, arguments) cu_result(*field) arguments;
    DRIVER_LIST(DRIVER_FIELD)
#undef DRIVER_FIELD
};

struct pin {
    uint8_t *host;
    size_t bytes;
    bool direct;     /* the device reaches it; false: refused, copies go through the ring */
    bool registered; /* by us: to be undone. Another device's pin of the same bytes serves all. */
};

struct flight {
    cu_event event;
    uint8_t *ring;     /* this place's part of the ring; NULL without one */
    bool through_ring; /* this flight moves bytes from ring to copies[] when it lands */
    uint32_t copy_count;
    struct cairn_mem_copy copies[CAIRN_MEM_BATCH_COPIES_MAX];
};

struct cuda_mem {
    struct cairn_mem mem; /* first */
    struct driver driver;
    cairn_log_fn *log;
    void *log_context;
    int device_index;
    cu_device device;
    cu_context context;
    cu_stream stream;
    cu_event order_event;
    uint8_t *ring;
    bool retained;
    bool broken;
    bool said_unpinned;
    uint64_t issued; /* tickets: flights 1 … issued */
    uint64_t landed;
    uint32_t idle_polls;
    uint32_t pin_count;
    struct pin pins[CAIRN_MEM_PINS_MAX];
    struct flight flights[CAIRN_MEM_BATCHES_MAX];
};

__attribute__((format(printf, 3, 4))) static void
say(const struct cuda_mem *cuda, enum cairn_log_level level, const char *format, ...)
{
    char line[512];
    va_list arguments;

    if (!cuda->log)
        return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    cuda->log(cuda->log_context, level, line);
}

/* Translates a driver's result; the first failure is said and makes the object broken. */
static cairn_err
check(struct cuda_mem *cuda, const char *call, cu_result result)
{
    const char *name = NULL, *text = NULL;

    if (result == SUCCESS)
        return CAIRN_OK;
    if (cuda->broken)
        return CAIRN_DEVICE;
    cuda->broken = true;
    if (cuda->driver.error_name(result, &name) || !name)
        name = "unknown";
    if (cuda->driver.error_string(result, &text) || !text)
        text = "no text";
    say(cuda, CAIRN_LOG_ERROR, "cuda: %s failed device=%d code=%d name=%s text=\"%s\"", call,
        cuda->device_index, result, name, text);
    return CAIRN_DEVICE;
}

static cairn_err
load_driver(struct cuda_mem *cuda, const char *path)
{
    struct driver *driver = &cuda->driver;

    path = path ? path : "libcuda.so.1";
    /* Not unloaded by dlclose: a driver has threads and thread-local state. */
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!driver->library) {
        say(cuda, CAIRN_LOG_ERROR, "cuda: no driver path=%s text=\"%s\"", path, dlerror());
        return CAIRN_DEVICE;
    }
#define DRIVER_LOAD(field, symbol, arguments)                                                      \
    *(void **)(void *)&driver->field = dlsym(driver->library, symbol);                             \
    if (!driver->field) {                                                                          \
        say(cuda, CAIRN_LOG_ERROR, "cuda: the driver is too old path=%s lacks=%s", path, symbol);  \
        return CAIRN_DEVICE;                                                                       \
    }
    DRIVER_LIST(DRIVER_LOAD)
#undef DRIVER_LOAD
    return CAIRN_OK;
}

static cairn_err
enter(struct cuda_mem *cuda)
{
    if (cuda->broken)
        return CAIRN_DEVICE;
    return check(cuda, "cuCtxPushCurrent", cuda->driver.push(cuda->context));
}

static void
leave(struct cuda_mem *cuda)
{
    cu_context popped;

    (void)check(cuda, "cuCtxPopCurrent", cuda->driver.pop(&popped));
}

/* Makes stream and events; the context is current. */
static cairn_err
make_stream(struct cuda_mem *cuda)
{
    struct driver *driver = &cuda->driver;
    int least = 0, greatest = 0;
    cairn_err err;

    err = check(cuda, "cuCtxGetStreamPriorityRange", driver->priority_range(&least, &greatest));
    if (!err)
        err = check(cuda, "cuStreamCreateWithPriority",
                    driver->stream_create(&cuda->stream, STREAM_NON_BLOCKING, least));
    if (!err)
        err = check(cuda, "cuEventCreate",
                    driver->event_create(&cuda->order_event, EVENT_DISABLE_TIMING));
    for (int i = 0; !err && i < CAIRN_MEM_BATCHES_MAX; i++)
        err = check(cuda, "cuEventCreate",
                    driver->event_create(&cuda->flights[i].event, EVENT_DISABLE_TIMING));
    return err;
}

static void
release_all(struct cuda_mem *cuda)
{
    struct driver *driver = &cuda->driver;
    cu_context popped;

    if (cuda->retained) {
        /* A context that cannot be entered any more: still give back what the driver will take. */
        bool pushed = driver->push(cuda->context) == SUCCESS;

        if (cuda->stream)
            (void)driver->stream_finish(cuda->stream);
        for (uint32_t i = 0; i < cuda->pin_count; i++)
            if (cuda->pins[i].registered)
                (void)driver->host_unregister(cuda->pins[i].host);
        if (cuda->ring)
            (void)driver->host_free(cuda->ring);
        for (int i = 0; i < CAIRN_MEM_BATCHES_MAX; i++)
            if (cuda->flights[i].event)
                (void)driver->event_destroy(cuda->flights[i].event);
        if (cuda->order_event)
            (void)driver->event_destroy(cuda->order_event);
        if (cuda->stream)
            (void)driver->stream_destroy(cuda->stream);
        if (pushed)
            (void)driver->pop(&popped);
        (void)driver->release(cuda->device);
    }
    if (driver->library)
        dlclose(driver->library);
    free(cuda);
}

static cairn_err
cuda_open(int device_index, const struct cairn_mem_options *options, struct cairn_mem **out)
{
    struct cuda_mem *cuda = calloc(1, sizeof *cuda);
    cairn_err err;

    if (!cuda)
        return CAIRN_NOMEM;
    cuda->mem.ops = &cairn_mem_cuda_ops;
    cuda->log = options->log;
    cuda->log_context = options->log_context;
    cuda->device_index = device_index;
    err = load_driver(cuda, options->driver_path);
    if (!err)
        err = check(cuda, "cuInit", cuda->driver.init(0));
    if (!err)
        err = check(cuda, "cuDeviceGet", cuda->driver.device_get(&cuda->device, device_index));
    if (!err)
        err = check(cuda, "cuDevicePrimaryCtxRetain",
                    cuda->driver.retain(&cuda->context, cuda->device));
    if (err)
        goto done;
    cuda->retained = true;
    err = enter(cuda);
    if (err)
        goto done;
    err = make_stream(cuda);
    leave(cuda);
    if (!err && cuda->broken)
        err = CAIRN_DEVICE;
done:
    if (err)
        release_all(cuda);
    else
        *out = &cuda->mem;
    return err;
}

/* Moves what the ring holds to where it was meant to go. */
static void
land(struct flight *flight)
{
    const uint8_t *from = flight->ring;

    if (!flight->through_ring)
        return;
    for (uint32_t i = 0; i < flight->copy_count; i++) {
        memcpy(flight->copies[i].host, from, flight->copies[i].bytes);
        from += flight->copies[i].bytes;
    }
    flight->through_ring = false;
}

/* Lands the flights whose events are seen; the context is current. */
static cairn_err
land_finished(struct cuda_mem *cuda)
{
    while (cuda->landed < cuda->issued) {
        struct flight *flight = &cuda->flights[(cuda->landed + 1) % CAIRN_MEM_BATCHES_MAX];
        cu_result result = cuda->driver.event_query(flight->event);

        if (result == NOT_READY && ++cuda->idle_polls >= IDLE_CHECK_POLLS) {
            cuda->idle_polls = 0;
            result = cuda->driver.stream_query(cuda->stream);
        }
        if (result == NOT_READY)
            return CAIRN_OK;
        cuda->idle_polls = 0;
        if (check(cuda, "waiting for a copy", result))
            return CAIRN_DEVICE;
        land(flight);
        cuda->landed++;
    }
    return CAIRN_OK;
}

static cairn_err
cuda_poll(struct cairn_mem *mem, uint64_t ticket)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    cairn_err err;

    if (ticket > cuda->issued)
        return CAIRN_INVAL;
    if (ticket <= cuda->landed && !cuda->broken)
        return CAIRN_OK;
    err = enter(cuda);
    if (err)
        return err;
    err = land_finished(cuda);
    leave(cuda);
    if (err)
        return err;
    if (cuda->broken)
        return CAIRN_DEVICE;
    return ticket <= cuda->landed ? CAIRN_OK : CAIRN_AGAIN;
}

static void
cuda_close(struct cairn_mem *mem)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;

    /* Ring flights that were issued are finished too: what was promised to host memory goes there. */
    if (!cuda->broken && enter(cuda) == CAIRN_OK) {
        if (check(cuda, "cuStreamSynchronize", cuda->driver.stream_finish(cuda->stream)) ==
            CAIRN_OK)
            for (; cuda->landed < cuda->issued; cuda->landed++)
                land(&cuda->flights[(cuda->landed + 1) % CAIRN_MEM_BATCHES_MAX]);
        leave(cuda);
    }
    release_all(cuda);
}

static cairn_err
make_ring(struct cuda_mem *cuda)
{
    void *ring = NULL;

    if (cuda->ring)
        return CAIRN_OK;
    if (cuda->driver.host_alloc(&ring, (size_t)CAIRN_MEM_BATCHES_MAX * CAIRN_MEM_BATCH_BYTES_MAX,
                                HOST_PORTABLE) != SUCCESS)
        return CAIRN_NOMEM;
    cuda->ring = ring;
    for (size_t i = 0; i < CAIRN_MEM_BATCHES_MAX; i++)
        cuda->flights[i].ring = cuda->ring + i * CAIRN_MEM_BATCH_BYTES_MAX;
    return CAIRN_OK;
}

static cairn_err
cuda_pin(struct cairn_mem *mem, void *host, size_t bytes)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    struct pin pin = {.host = host, .bytes = bytes};
    const char *name = NULL;
    cu_result result;
    cairn_err err;

    if (cuda->pin_count == CAIRN_MEM_PINS_MAX)
        return CAIRN_FULL;
    err = enter(cuda);
    if (err)
        return err;
    result = cuda->driver.host_register(host, bytes, HOST_PORTABLE);
    pin.registered = result == SUCCESS;
    pin.direct = pin.registered || result == ALREADY_REGISTERED;
    if (!pin.direct)
        err = make_ring(cuda);
    if (!err)
        cuda->pins[cuda->pin_count++] = pin;
    if (!pin.direct && !cuda->said_unpinned) {
        cuda->said_unpinned = true;
        if (cuda->driver.error_name(result, &name) || !name)
            name = "unknown";
        say(cuda, CAIRN_LOG_WARN,
            "cuda: memory cannot be pinned device=%d bytes=%zu code=%d name=%s effect=\"%s\" "
            "fix=\"raise memlock (ulimit -l)\"",
            cuda->device_index, bytes, result, name,
            err ? "no pinned buffer either: this device is not protected"
                : "copies go through a small pinned buffer");
    }
    leave(cuda);
    return err;
}

static void
cuda_unpin(struct cairn_mem *mem, void *host)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    cu_context popped;

    for (uint32_t i = 0; i < cuda->pin_count; i++) {
        bool pushed;

        if (cuda->pins[i].host != host)
            continue;
        /* Also when broken: the driver must let go of memory that is about to be unmapped. */
        pushed = cuda->driver.push(cuda->context) == SUCCESS;
        (void)cuda->driver.stream_finish(cuda->stream);
        if (pushed && !cuda->broken)
            (void)land_finished(cuda);
        if (cuda->pins[i].registered)
            (void)check(cuda, "cuMemHostUnregister", cuda->driver.host_unregister(host));
        if (pushed)
            (void)cuda->driver.pop(&popped);
        cuda->pins[i] = cuda->pins[--cuda->pin_count];
        return;
    }
}

static cairn_err
cuda_after(struct cairn_mem *mem, void *stream)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    cairn_err err = enter(cuda);

    if (err)
        return err;
    err = check(cuda, "cuEventRecord", cuda->driver.event_record(cuda->order_event, stream));
    if (!err)
        err = check(cuda, "cuStreamWaitEvent",
                    cuda->driver.stream_wait(cuda->stream, cuda->order_event, 0));
    leave(cuda);
    return cuda->broken ? CAIRN_DEVICE : err;
}

/* Does the device reach these bytes itself? Memory that was never pinned it does, slowly. */
static bool
needs_ring(const struct cuda_mem *cuda, const struct cairn_mem_copy *copy)
{
    const uint8_t *host = copy->host;

    for (uint32_t i = 0; i < cuda->pin_count; i++)
        if (host >= cuda->pins[i].host && host < cuda->pins[i].host + cuda->pins[i].bytes)
            return !cuda->pins[i].direct;
    return cuda->ring != NULL;
}

/* Takes a place for a batch and says whether it goes through the ring. */
static cairn_err
begin_flight(struct cuda_mem *cuda, const struct cairn_mem_copy *copies, uint32_t count,
             struct flight **out)
{
    struct flight *flight = &cuda->flights[(cuda->issued + 1) % CAIRN_MEM_BATCHES_MAX];
    cairn_err err = land_finished(cuda);

    if (err)
        return err;
    if (cuda->issued - cuda->landed == CAIRN_MEM_BATCHES_MAX)
        return CAIRN_AGAIN;
    flight->through_ring = false;
    for (uint32_t i = 0; i < count; i++)
        flight->through_ring = flight->through_ring || needs_ring(cuda, &copies[i]);
    flight->copy_count = count;
    memcpy(flight->copies, copies, count * sizeof copies[0]);
    *out = flight;
    return CAIRN_OK;
}

static cairn_err
copy_batch(struct cuda_mem *cuda, const struct cairn_mem_copy *copies, uint32_t count, bool out,
           uint64_t *ticket)
{
    struct driver *driver = &cuda->driver;
    struct flight *flight = NULL;
    uint8_t *ring;
    cairn_err err = enter(cuda);

    if (err)
        return err;
    err = begin_flight(cuda, copies, count, &flight);
    if (err)
        goto done;
    ring = flight->through_ring ? flight->ring : NULL;
    for (uint32_t i = 0; !err && i < count; i++) {
        uint8_t *host = ring ? ring : copies[i].host;
        size_t bytes = copies[i].bytes;

        if (ring && !out)
            memcpy(ring, copies[i].host, bytes);
        ring += ring ? bytes : 0;
        if (out)
            err = check(cuda, "cuMemcpyDtoHAsync",
                        driver->copy_out(host, copies[i].region, bytes, cuda->stream));
        else
            err = check(cuda, "cuMemcpyHtoDAsync",
                        driver->copy_in(copies[i].region, host, bytes, cuda->stream));
    }
    if (!err)
        err = check(cuda, "cuEventRecord", driver->event_record(flight->event, cuda->stream));
    if (err)
        goto done;
    flight->through_ring = flight->through_ring && out;
    cuda->issued++;
done:
    leave(cuda);
    if (cuda->broken)
        return CAIRN_DEVICE;
    if (!err)
        *ticket = cuda->issued;
    return err;
}

static cairn_err
cuda_copy_out(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
              uint64_t *ticket)
{
    return copy_batch((struct cuda_mem *)mem, copies, count, true, ticket);
}

static cairn_err
cuda_copy_in(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
             uint64_t *ticket)
{
    return copy_batch((struct cuda_mem *)mem, copies, count, false, ticket);
}

const struct cairn_mem_ops cairn_mem_cuda_ops = {.name = "cuda",
                                                 .open = cuda_open,
                                                 .close = cuda_close,
                                                 .pin = cuda_pin,
                                                 .unpin = cuda_unpin,
                                                 .after = cuda_after,
                                                 .copy_out = cuda_copy_out,
                                                 .copy_in = cuda_copy_in,
                                                 .poll = cuda_poll};
