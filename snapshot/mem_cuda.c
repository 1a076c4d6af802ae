/*
 * snapshot/mem_cuda.c - device memory, through the CUDA driver opened at run time.
 *
 * A batch of copies is issued on one stream and followed by one event; it is a `flight`. Several
 * copies are one call where the driver can (cuMemcpyBatchAsync): calls take a lock that the
 * trainer's launches need, and a call for each small tensor would hold those up. Flights
 * form a queue of CAIRN_MEM_BATCHES_MAX places and land in order. When the host side is pinned the
 * device writes it directly. When pinning was refused the flight goes through its place's part of a
 * small ring of memory that the driver allocated pinned, and the CPU moves the bytes between ring
 * and host: on landing for copy_out, before issuing for copy_in.
 *
 * Invariants:
 *   1. landed <= issued <= landed + CAIRN_MEM_BATCHES_MAX; flight t has place t % BATCHES_MAX.
 *   2. Every entry pushes the primary context and pops it again: the trainer's thread keeps its
 *      own. Inside, the thread's capture mode is relaxed: a trainer that captures a CUDA graph at
 *      this moment would otherwise see its capture broken by our queries and pins.
 *   3. The first driver error makes the object broken; every later call fails with CAIRN_DEVICE
 *      without touching the driver, but for poll, which looks until the stream is idle, and for
 *      unpin and close, which also give back.
 *
 * A flight whose event is not seen although the stream is idle has landed: a lost event must not
 * stop the trainer.
 */
#include "snapshot/cuda_driver.h"
#include "snapshot/mem.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE_CHECK_POLLS = 256 };

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
    bool pinned;       /* so is all host memory that the device reads or writes */
    uint32_t copy_count;
    struct cairn_mem_copy copies[CAIRN_MEM_BATCH_COPIES_MAX];
};

struct cuda_mem {
    struct cairn_mem mem; /* first */
    struct cairn_cuda_driver driver;
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
    bool rested; /* broken, and the stream was waited for */
    bool never_pin;
    bool said_unpinned;
    uint64_t issued; /* tickets: flights 1 … issued */
    uint64_t landed;
    uint32_t idle_polls;
    uint32_t pin_count;
    struct pin pins[CAIRN_MEM_PINS_MAX];
    /* The copies being issued, as cuMemcpyBatchAsync takes them. */
    cu_pointer targets[CAIRN_MEM_BATCH_COPIES_MAX], sources[CAIRN_MEM_BATCH_COPIES_MAX];
    size_t bytes[CAIRN_MEM_BATCH_COPIES_MAX];
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

/* Translates a driver's result; the first failure is logged and makes the object broken. */
static cairn_err
check(struct cuda_mem *cuda, const char *call, cu_result result)
{
    const char *name = NULL, *text = NULL;

    if (result == CU_SUCCESS)
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

/* The same for a copy, with the bytes that it was for: they explain the driver's refusal. */
static cairn_err
check_copy(struct cuda_mem *cuda, const char *call, const struct cairn_mem_copy *copy,
           cu_result result)
{
    char what[128];

    if (result == CU_SUCCESS)
        return CAIRN_OK;
    (void)snprintf(what, sizeof what, "%s of %zu bytes, device 0x%" PRIx64 ", host %p,", call,
                   copy->bytes, copy->region, copy->host);
    return check(cuda, what, result);
}

static cairn_err
load_driver(struct cuda_mem *cuda, const char *path)
{
    char why[384];
    cairn_err err = cairn_cuda_driver_open(path, &cuda->driver, why, sizeof why);

    if (err)
        say(cuda, CAIRN_LOG_ERROR, "cuda: %s", why);
    return err;
}

/* What the calling thread had before `push_context`. */
struct caller {
    int capture_mode;
};

/* Makes the context current and the capture mode relaxed; the driver's result. */
static cu_result
push_context(const struct cuda_mem *cuda, struct caller *caller)
{
    cu_result result = cuda->driver.push(cuda->context);

    caller->capture_mode = CU_CAPTURE_MODE_RELAXED;
    if (result == CU_SUCCESS)
        (void)cuda->driver.exchange_capture_mode(&caller->capture_mode);
    return result;
}

/* To give something back: tries again if refused, since nothing can be given back without it. */
static bool
push_to_release(const struct cuda_mem *cuda, struct caller *caller)
{
    return push_context(cuda, caller) == CU_SUCCESS || push_context(cuda, caller) == CU_SUCCESS;
}

static cu_result
pop_context(const struct cuda_mem *cuda, struct caller *caller)
{
    cu_context popped;

    (void)cuda->driver.exchange_capture_mode(&caller->capture_mode);
    return cuda->driver.pop(&popped);
}

static cairn_err
enter(struct cuda_mem *cuda, struct caller *caller)
{
    if (cuda->broken)
        return CAIRN_DEVICE;
    return check(cuda, "cuCtxPushCurrent", push_context(cuda, caller));
}

static void
leave(struct cuda_mem *cuda, struct caller *caller)
{
    (void)check(cuda, "cuCtxPopCurrent", pop_context(cuda, caller));
}

/* Makes stream and events; the context is current. */
static cairn_err
make_stream(struct cuda_mem *cuda)
{
    struct cairn_cuda_driver *driver = &cuda->driver;
    int least = 0, greatest = 0;
    cairn_err err;

    err = check(cuda, "cuCtxGetStreamPriorityRange", driver->priority_range(&least, &greatest));
    if (!err)
        err = check(cuda, "cuStreamCreateWithPriority",
                    driver->stream_create(&cuda->stream, CU_STREAM_NON_BLOCKING, least));
    if (!err)
        err = check(cuda, "cuEventCreate",
                    driver->event_create(&cuda->order_event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; !err && i < CAIRN_MEM_BATCHES_MAX; i++)
        err = check(cuda, "cuEventCreate",
                    driver->event_create(&cuda->flights[i].event, CU_EVENT_DISABLE_TIMING));
    return err;
}

/* True if copies may run. Even without any, the stream may wait for the trainer's work, for ever if
 * that hangs. */
static bool
in_flight(const struct cuda_mem *cuda)
{
    return cuda->landed < cuda->issued || (cuda->broken && !cuda->rested);
}

static void
release_all(struct cuda_mem *cuda)
{
    struct cairn_cuda_driver *driver = &cuda->driver;

    if (cuda->retained) {
        /* A context that cannot be entered any more: still give back what the driver accepts. */
        struct caller caller;
        bool pushed = push_to_release(cuda, &caller);

        if (cuda->stream && in_flight(cuda))
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
            (void)pop_context(cuda, &caller);
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
    struct caller caller;
    cairn_err err;

    if (!cuda)
        return CAIRN_NOMEM;
    cuda->mem.ops = &cairn_mem_cuda_ops;
    cuda->log = options->log;
    cuda->log_context = options->log_context;
    cuda->never_pin = options->never_pin;
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
    err = enter(cuda, &caller);
    if (err)
        goto done;
    err = make_stream(cuda);
    leave(cuda, &caller);
    if (!err && cuda->broken)
        err = CAIRN_DEVICE;
done:
    if (err)
        release_all(cuda);
    else
        *out = &cuda->mem;
    return err;
}

/* Moves the ring's bytes to their destination. */
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

        if (result == CU_NOT_READY && ++cuda->idle_polls >= IDLE_CHECK_POLLS) {
            cuda->idle_polls = 0;
            result = cuda->driver.stream_query(cuda->stream);
        }
        if (result == CU_NOT_READY)
            return CAIRN_OK;
        cuda->idle_polls = 0;
        if (check(cuda, "waiting for a copy", result))
            return CAIRN_DEVICE;
        land(flight);
        cuda->landed++;
    }
    return CAIRN_OK;
}

/*
 * What a broken object has issued may still run, through memory that another device has pinned.
 * False while it does: if the device also hangs, the caller must give up.
 */
static bool
rest(struct cuda_mem *cuda)
{
    struct caller caller;
    bool pushed;

    if (cuda->rested)
        return true;
    pushed = push_to_release(cuda, &caller);
    cuda->rested = cuda->driver.stream_query(cuda->stream) != CU_NOT_READY;
    if (cuda->rested) /* idle, or an error, which may concern something else */
        (void)cuda->driver.stream_finish(cuda->stream);
    if (pushed)
        (void)pop_context(cuda, &caller);
    return cuda->rested;
}

static cairn_err
cuda_poll(struct cairn_mem *mem, uint64_t ticket)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    struct caller caller;

    if (ticket > cuda->issued)
        return CAIRN_INVAL;
    if (ticket <= cuda->landed && !cuda->broken)
        return CAIRN_OK;
    if (enter(cuda, &caller) == CAIRN_OK) {
        (void)land_finished(cuda);
        leave(cuda, &caller);
    }
    if (cuda->broken)
        return rest(cuda) ? CAIRN_DEVICE : CAIRN_AGAIN;
    return ticket <= cuda->landed ? CAIRN_OK : CAIRN_AGAIN;
}

static void
cuda_close(struct cairn_mem *mem)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    struct caller caller;

    /* Ring flights that were issued are finished too: their bytes are promised to host memory. */
    if (!cuda->broken && in_flight(cuda) && enter(cuda, &caller) == CAIRN_OK) {
        if (check(cuda, "cuStreamSynchronize", cuda->driver.stream_finish(cuda->stream)) ==
            CAIRN_OK)
            for (; cuda->landed < cuda->issued; cuda->landed++)
                land(&cuda->flights[(cuda->landed + 1) % CAIRN_MEM_BATCHES_MAX]);
        leave(cuda, &caller);
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
                                CU_HOST_PORTABLE) != CU_SUCCESS)
        return CAIRN_NOMEM;
    cuda->ring = ring;
    for (size_t i = 0; i < CAIRN_MEM_BATCHES_MAX; i++)
        cuda->flights[i].ring = cuda->ring + i * CAIRN_MEM_BATCH_BYTES_MAX;
    return CAIRN_OK;
}

/* What an operator can change about memory that the driver did not pin. */
static const char *
advice_on_pinning(cu_result result)
{
    switch (result) {
    case CU_OUT_OF_MEMORY:
        return "raise memlock (ulimit -l), or free memory on this node";
    case CU_NOT_PERMITTED:
    case CU_NOT_SUPPORTED:
        return "let the container lock memory (memlock without limit, CAP_IPC_LOCK)";
    default:
        return "look up the driver's code: the device or its driver failed, not the limit on "
               "locked memory";
    }
}

static cairn_err
cuda_pin(struct cairn_mem *mem, void *host, size_t bytes)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    struct pin pin = {.host = host, .bytes = bytes};
    const char *name = NULL;
    struct caller caller;
    cu_result result;
    cairn_err err;

    if (cuda->pin_count == CAIRN_MEM_PINS_MAX)
        return CAIRN_FULL;
    err = enter(cuda, &caller);
    if (err)
        return err;
    result = cuda->never_pin ? CU_NOT_PERMITTED
                             : cuda->driver.host_register(host, bytes, CU_HOST_PORTABLE);
    pin.registered = result == CU_SUCCESS;
    pin.direct = pin.registered || result == CU_ALREADY_REGISTERED;
    if (!pin.direct)
        err = make_ring(cuda);
    if (!err)
        cuda->pins[cuda->pin_count++] = pin;
    if (!pin.direct && !cuda->said_unpinned && !cuda->never_pin) {
        cuda->said_unpinned = true;
        if (cuda->driver.error_name(result, &name) || !name)
            name = "unknown";
        say(cuda, CAIRN_LOG_WARN,
            "cuda: memory cannot be pinned device=%d bytes=%zu code=%d name=%s effect=\"%s\" "
            "fix=\"%s\"",
            cuda->device_index, bytes, result, name,
            err ? "no pinned buffer either: this device is not protected"
                : "copies go through a small pinned buffer",
            advice_on_pinning(result));
    }
    leave(cuda, &caller);
    return err;
}

static void
cuda_unpin(struct cairn_mem *mem, void *host)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;

    for (uint32_t i = 0; i < cuda->pin_count; i++) {
        struct caller caller;
        bool pushed;

        if (cuda->pins[i].host != host)
            continue;
        /* Also when broken: the driver must let go of memory that is about to be unmapped. */
        pushed = push_to_release(cuda, &caller);
        if (in_flight(cuda))
            (void)cuda->driver.stream_finish(cuda->stream);
        if (pushed && !cuda->broken)
            (void)land_finished(cuda);
        if (cuda->pins[i].registered)
            (void)check(cuda, "cuMemHostUnregister", cuda->driver.host_unregister(host));
        if (pushed)
            (void)pop_context(cuda, &caller);
        cuda->pins[i] = cuda->pins[--cuda->pin_count];
        return;
    }
}

/* A graph that the trainer captures must not hold our event, nor its capture spread to our
 * stream. */
static cairn_err
refuse_captured(struct cuda_mem *cuda, void *stream)
{
    int status = CU_CAPTURE_NONE;
    cu_result result = cuda->driver.stream_is_capturing(stream, &status);

    if (result == CU_CAPTURE_IMPLICIT || (result == CU_SUCCESS && status != CU_CAPTURE_NONE))
        return CAIRN_AGAIN;
    return check(cuda, "cuStreamIsCapturing", result);
}

static cairn_err
cuda_after(struct cairn_mem *mem, void *stream)
{
    struct cuda_mem *cuda = (struct cuda_mem *)mem;
    struct caller caller;
    cairn_err err = enter(cuda, &caller);

    if (err)
        return err;
    err = refuse_captured(cuda, stream);
    if (!err)
        err = check(cuda, "cuEventRecord", cuda->driver.event_record(cuda->order_event, stream));
    if (!err)
        err = check(cuda, "cuStreamWaitEvent",
                    cuda->driver.stream_wait(cuda->stream, cuda->order_event, 0));
    leave(cuda, &caller);
    return cuda->broken ? CAIRN_DEVICE : err;
}

/* The pin that has these bytes; NULL: never pinned, and the device reaches them slowly. */
static const struct pin *
find_pin(const struct cuda_mem *cuda, const uint8_t *host)
{
    for (uint32_t i = 0; i < cuda->pin_count; i++)
        if (host >= cuda->pins[i].host && host < cuda->pins[i].host + cuda->pins[i].bytes)
            return &cuda->pins[i];
    return NULL;
}

/* Takes a place for a batch; tells whether it goes through the ring. */
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
    flight->pinned = true;
    for (uint32_t i = 0; i < count; i++) {
        const struct pin *pin = find_pin(cuda, copies[i].host);

        flight->through_ring = flight->through_ring || (pin ? !pin->direct : cuda->ring != NULL);
        flight->pinned = flight->pinned && pin;
    }
    flight->pinned = flight->pinned || flight->through_ring;
    flight->copy_count = count;
    memcpy(flight->copies, copies, count * sizeof copies[0]);
    *out = flight;
    return CAIRN_OK;
}

/* Lists the device's copies; for copy_in, also fills the ring's part. */
static void
list_copies(struct cuda_mem *cuda, const struct flight *flight, bool out)
{
    uint8_t *ring = flight->through_ring ? flight->ring : NULL;

    for (uint32_t i = 0; i < flight->copy_count; i++) {
        const struct cairn_mem_copy *copy = &flight->copies[i];
        cu_pointer host = (cu_pointer)(uintptr_t)(ring ? ring : copy->host);

        if (ring && !out)
            memcpy(ring, copy->host, copy->bytes);
        ring += ring ? copy->bytes : 0;
        cuda->targets[i] = out ? host : copy->region;
        cuda->sources[i] = out ? copy->region : host;
        cuda->bytes[i] = copy->bytes;
    }
}

/* Issues the listed copies by one call; CAIRN_NOT_FOUND, with nothing issued, if the driver
 * cannot. */
static cairn_err
issue_together(struct cuda_mem *cuda, const struct flight *flight)
{
    struct cu_copy_attributes attributes = {.source_access_order = CU_ACCESS_IN_STREAM_ORDER};
    size_t first = 0, failed = SIZE_MAX;
    cu_result result;

    if (!cuda->driver.copy_batch || flight->copy_count < 2 || !flight->pinned)
        return CAIRN_NOT_FOUND;
    result = cuda->driver.copy_batch(cuda->targets, cuda->sources, cuda->bytes, flight->copy_count,
                                     &attributes, &first, 1, &failed, cuda->stream);
    if (result == CU_NOT_SUPPORTED) {
        cuda->driver.copy_batch = NULL;
        return CAIRN_NOT_FOUND;
    }
    if (failed >= flight->copy_count)
        return check(cuda, "cuMemcpyBatchAsync", result);
    return check_copy(cuda, "cuMemcpyBatchAsync", &flight->copies[failed], result);
}

static cairn_err
issue_one_by_one(struct cuda_mem *cuda, const struct flight *flight, bool out)
{
    struct cairn_cuda_driver *driver = &cuda->driver;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < flight->copy_count; i++)
        if (out)
            err = check_copy(cuda, "cuMemcpyDtoHAsync", &flight->copies[i],
                             driver->copy_out((void *)(uintptr_t)cuda->targets[i], cuda->sources[i],
                                              cuda->bytes[i], cuda->stream));
        else
            err = check_copy(cuda, "cuMemcpyHtoDAsync", &flight->copies[i],
                             driver->copy_in(cuda->targets[i],
                                             (const void *)(uintptr_t)cuda->sources[i],
                                             cuda->bytes[i], cuda->stream));
    return err;
}

static cairn_err
copy_batch(struct cuda_mem *cuda, const struct cairn_mem_copy *copies, uint32_t count, bool out,
           uint64_t *ticket)
{
    struct flight *flight = NULL;
    struct caller caller;
    cairn_err err = enter(cuda, &caller);

    if (err)
        return err;
    err = begin_flight(cuda, copies, count, &flight);
    if (err)
        goto done;
    list_copies(cuda, flight, out);
    err = issue_together(cuda, flight);
    if (err == CAIRN_NOT_FOUND)
        err = issue_one_by_one(cuda, flight, out);
    if (!err)
        err = check(cuda, "cuEventRecord", cuda->driver.event_record(flight->event, cuda->stream));
    if (err)
        goto done;
    flight->through_ring = flight->through_ring && out;
    cuda->issued++;
done:
    leave(cuda, &caller);
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
