/*
 * tests/support/fakecuda/memory.c - the memory of the fake devices, pinned host memory, and copies.
 *
 * Device memory is a memfd mapped twice: the device pointer is a PROT_NONE mapping, so that a CPU
 * access faults as on hardware, and the driver's own copies go through the other one. Blocks lie
 * side by side, as PyTorch's do on hardware, where no copy may go over the end of one. A copy out
 * to pinned memory fills its target with FAKE_POISON until it has run, so that a reader who is too
 * early reads that. Host memory that is neither registered nor allocated here is copied
 * synchronously, as the real driver does with pageable memory.
 */
#include "tests/support/fakecuda/fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct range {
    uint8_t *base; /* NULL: free */
    size_t bytes;
    uint8_t *view;                /* of a device block */
    struct fake_context *context; /* of a device block */
};

static const size_t AREA_BYTES = (size_t)64 << 30;
static uint8_t *area_next, *area_end; /* addresses for device memory, each given once */
static struct range blocks[FAKE_HANDLES_MAX];
static struct range pinned[FAKE_HANDLES_MAX];

struct fake_copy_attributes {
    int source_access_order;
    int hints[4];
    unsigned flags;
};

#define DRIVER(symbol, ...)                                                                        \
    EXPORT int symbol(__VA_ARGS__);                                                                \
    int symbol(__VA_ARGS__)

EXPORT int fakecuda_alloc(int device, uint64_t *region, size_t bytes);
EXPORT int fakecuda_free(uint64_t region);

/* The lock is held. */
static struct range *
find_range(struct range *ranges, const void *address, size_t bytes)
{
    const uint8_t *at = address;

    for (int i = 0; i < FAKE_HANDLES_MAX; i++)
        if (ranges[i].base && at >= ranges[i].base && bytes <= ranges[i].bytes &&
            (size_t)(at - ranges[i].base) <= ranges[i].bytes - bytes)
            return &ranges[i];
    return NULL;
}

/* Keeps a range; the lock is held. */
static int
add_range(struct range *ranges, struct range range)
{
    for (int i = 0; i < FAKE_HANDLES_MAX; i++)
        if (!ranges[i].base) {
            ranges[i] = range;
            return 0;
        }
    return OUT_OF_MEMORY;
}

/* ---- device memory ---- */

uint8_t *
fake_view_of(uint64_t region, size_t bytes, struct fake_context **owner)
{
    const void *address = (const void *)(uintptr_t)region;
    struct range *block;
    uint8_t *view = NULL;

    pthread_mutex_lock(&fake_lock);
    block = find_range(blocks, address, bytes);
    if (block) {
        view = block->view + ((const uint8_t *)address - block->base);
        if (owner)
            *owner = block->context;
    }
    pthread_mutex_unlock(&fake_lock);
    return view;
}

/* Addresses of device memory beside those given before; NULL when all are spent. */
static uint8_t *
take_addresses(size_t bytes)
{
    uint8_t *base = NULL;

    pthread_mutex_lock(&fake_lock);
    if (!area_end) {
        void *area =
            mmap(NULL, AREA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (area != MAP_FAILED) {
            area_next = area;
            area_end = area_next + AREA_BYTES;
        }
    }
    if (bytes <= (size_t)(area_end - area_next)) {
        base = area_next;
        area_next += bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return base;
}

int
fakecuda_alloc(int device, uint64_t *region, size_t bytes)
{
    int fd = memfd_create("fakecuda", MFD_CLOEXEC);
    struct range block = {.bytes = (bytes + 4095) / 4096 * 4096};
    int code;

    if (device < 0 || device >= FAKE_DEVICES)
        return INVALID_DEVICE;
    if (fd < 0 || ftruncate(fd, (off_t)block.bytes))
        return OUT_OF_MEMORY;
    block.context = &fake_contexts[device];
    block.view = mmap(NULL, block.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    block.base = take_addresses(block.bytes);
    if (block.base &&
        mmap(block.base, block.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        block.base = NULL;
    close(fd);
    if (block.view == MAP_FAILED || !block.base)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    code = add_range(blocks, block);
    fake_state_now.device_allocated += code == 0;
    pthread_mutex_unlock(&fake_lock);
    *region = (uint64_t)(uintptr_t)block.base;
    return code;
}

int
fakecuda_free(uint64_t region)
{
    struct range found = {0};
    struct range *block;

    pthread_mutex_lock(&fake_lock);
    block = find_range(blocks, (const void *)(uintptr_t)region, 1);
    if (block) {
        found = *block;
        block->base = NULL;
        fake_state_now.device_allocated--;
    }
    pthread_mutex_unlock(&fake_lock);
    if (!block)
        return INVALID_VALUE;
    if (fake_memory_is_in_use(found.view, found.bytes))
        fake_misuse("device memory is freed that a copy still uses");
    fake_context_finish(found.context);
    munmap(found.base, found.bytes);
    munmap(found.view, found.bytes);
    return 0;
}

DRIVER(cuMemAlloc_v2, uint64_t *region, size_t bytes)
{
    int code = fake_enter_unsafe(__func__);

    return code ? code : fakecuda_alloc((int)(fake_current() - fake_contexts), region, bytes);
}

DRIVER(cuMemFree_v2, uint64_t region)
{
    int code = fake_enter_unsafe(__func__);

    return code ? code : fakecuda_free(region);
}

/* ---- pinned host memory ---- */

DRIVER(cuMemHostRegister_v2, void *host, size_t bytes, unsigned flags)
{
    int code;

    pthread_mutex_lock(&fake_lock);
    fake_state_now.register_calls++;
    pthread_mutex_unlock(&fake_lock);
    code = fake_enter_unsafe(__func__);
    if (code || flags != 1)
        return code ? code : INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    code = find_range(pinned, host, 1)
               ? ALREADY_REGISTERED
               : add_range(pinned, (struct range){.base = host, .bytes = bytes});
    fake_state_now.registered += code == 0;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

/* Forgets a pinned range that begins at `host`; false where there is none. */
static bool
remove_pinned(const char *symbol, const uint8_t *host)
{
    size_t bytes = 0;

    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < FAKE_HANDLES_MAX && !bytes; i++)
        if (pinned[i].base == host) {
            bytes = pinned[i].bytes;
            pinned[i].base = NULL;
        }
    pthread_mutex_unlock(&fake_lock);
    if (bytes && fake_memory_is_in_use(host, bytes))
        fake_misuse("%s of memory that a copy still uses", symbol);
    return bytes != 0;
}

DRIVER(cuMemHostUnregister, void *host)
{
    int code = fake_enter_unsafe(__func__);

    /* A context with a sticky error still lets go of memory. */
    if (code == INVALID_CONTEXT || code == CAPTURE_UNSUPPORTED)
        return code;
    if (!remove_pinned(__func__, host))
        return NOT_REGISTERED;
    fake_count(&fake_state_now.registered, -1);
    return 0;
}

DRIVER(cuMemHostAlloc, void **host, size_t bytes, unsigned flags)
{
    int code = fake_enter_unsafe(__func__);

    if (code || flags != 1)
        return code ? code : INVALID_VALUE;
    *host = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*host)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    code = add_range(pinned, (struct range){.base = *host, .bytes = bytes});
    fake_state_now.host_allocated += code == 0;
    pthread_mutex_unlock(&fake_lock);
    return code;
}

DRIVER(cuMemFreeHost, void *host)
{
    int code = fake_enter_unsafe(__func__);

    if (code == INVALID_CONTEXT || code == CAPTURE_UNSUPPORTED)
        return code;
    if (!remove_pinned(__func__, host))
        return INVALID_VALUE;
    fake_count(&fake_state_now.host_allocated, -1);
    free(host);
    return 0;
}

/* ---- copies ---- */

static int
copy(const char *symbol, void *host, uint64_t region, size_t bytes, void *handle, bool out)
{
    struct fake_context *owner = NULL;
    uint8_t *view = fake_view_of(region, bytes, &owner);
    int code = fake_enter(symbol);
    struct fake_stream *stream;
    bool pageable;

    if (code)
        return code;
    stream = fake_stream_of(handle);
    if (!stream || stream->context != fake_current())
        return INVALID_HANDLE;
    if (!view || owner != fake_current()) /* freed, never there, or of the other device */
        return INVALID_VALUE;
    if (atomic_load(&stream->captured))
        fake_misuse("%s on a stream that is being captured", symbol);
    pthread_mutex_lock(&fake_lock);
    pageable = !find_range(pinned, host, bytes);
    fake_state_now.pageable_copies += pageable;
    fake_state_now.async_copies += !pageable;
    fake_state_now.copied_bytes += bytes;
    pthread_mutex_unlock(&fake_lock);
    if (out && !pageable)
        memset(host, FAKE_POISON, bytes);
    code = fake_enqueue(stream, (struct fake_op){.kind = FAKE_COPY,
                                                 .to = out ? (void *)host : view,
                                                 .from = out ? view : host,
                                                 .bytes = bytes});
    if (pageable)
        fake_stream_finish(stream);
    return code;
}

DRIVER(cuMemcpyDtoHAsync_v2, void *host, uint64_t region, size_t bytes, void *stream)
{
    return copy(__func__, host, region, bytes, stream, true);
}

DRIVER(cuMemcpyHtoDAsync_v2, uint64_t region, const void *host, size_t bytes, void *stream)
{
    return copy(__func__, (void *)(uintptr_t)host, region, bytes, stream, false);
}

/* Of pinned memory and in stream order alone, which is what Cairn asks for. */
DRIVER(cuMemcpyBatchAsync, uint64_t *targets, uint64_t *sources, size_t *bytes, size_t count,
       const struct fake_copy_attributes *attributes, const size_t *firsts, size_t attribute_count,
       size_t *failed, void *stream)
{
    int code = fake_enter(__func__);

    *failed = SIZE_MAX;
    if (code || !stream || !count || attribute_count != 1 || firsts[0] != 0 ||
        attributes->source_access_order != 1)
        return code ? code : INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    fake_state_now.batches++;
    pthread_mutex_unlock(&fake_lock);
    for (size_t i = 0; i < count && !code; i++) {
        bool out = fake_view_of(sources[i], bytes[i], NULL) != NULL;

        code =
            copy("a copy of cuMemcpyBatchAsync", (void *)(uintptr_t)(out ? targets[i] : sources[i]),
                 out ? sources[i] : targets[i], bytes[i], stream, out);
        if (code)
            *failed = i;
    }
    return code;
}

DRIVER(cuMemsetD8Async, uint64_t region, uint8_t value, size_t bytes, void *handle)
{
    uint8_t *view = fake_view_of(region, bytes, NULL);
    int code = fake_enter(__func__);
    struct fake_stream *stream;

    if (code || !view)
        return code ? code : INVALID_VALUE;
    stream = fake_stream_of(handle);
    return !stream
               ? INVALID_HANDLE
               : fake_enqueue(stream,
                              (struct fake_op){
                                  .kind = FAKE_FILL, .to = view, .bytes = bytes, .number = value});
}
