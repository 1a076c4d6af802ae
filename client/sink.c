/* client/sink.c - see sink.h. */
#include "client/sink.h"

#include "base/clock.h"
#include "client/state.h"
#include "snapshot/copy.h"
#include "snapshot/finite.h"
#include "snapshot/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE /* headers older than Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#define REST_NS CAIRN_NS_PER_S /* longest wait of close for a device, past the deadline */

enum { MAKE_PAGES_MIN = 4 }; /* fewer are left to the copy */

struct device {
    int32_t ordinal;
    struct cairn_mem *mem;
    uint64_t ticket;
    bool issued; /* ticket is that of a batch that may still run */
    uint32_t count;
    size_t bytes;
    struct cairn_mem_copy copies[CAIRN_MEM_BATCH_COPIES_MAX];
};

struct client_sink {
    const struct cairn_slice *slices;
    atomic_bool *failing;
    uint64_t deadline_ns;
    struct device *devices[CAIRN_RANKS_PER_NODE_MAX];
    uint32_t device_count;
};

static struct device *
find_device(const struct client_sink *sink, int32_t ordinal)
{
    for (uint32_t i = 0; i < sink->device_count; i++)
        if (sink->devices[i]->ordinal == ordinal)
            return sink->devices[i];
    return NULL;
}

static cairn_err
open_device(struct client_sink *sink, const struct cairn_client *client, int32_t ordinal)
{
    struct cairn_mem_options options = {.log = client->log, .log_context = client->log_context};
    struct device *device;
    cairn_err err;

    if (sink->device_count == CAIRN_RANKS_PER_NODE_MAX)
        return CAIRN_INVAL;
    device = calloc(1, sizeof *device);
    if (!device)
        return CAIRN_NOMEM;
    device->ordinal = ordinal;
    err = cairn_mem_open(ordinal, &options, &device->mem);
    if (!err) /* the trainer may have queued work that initialises this memory */
        err = cairn_mem_after(device->mem, client_stream_of(client, ordinal));
    if (err) {
        cairn_mem_close(device->mem);
        free(device);
        return err;
    }
    sink->devices[sink->device_count++] = device;
    return CAIRN_OK;
}

cairn_err
client_sink_open(const struct cairn_client *client, const struct cairn_slice *slices,
                 uint32_t count, atomic_bool *failing, uint64_t deadline_ns,
                 struct client_sink **out)
{
    struct client_sink *sink = calloc(1, sizeof *sink);

    if (!sink)
        return CAIRN_NOMEM;
    sink->slices = slices;
    sink->failing = failing;
    sink->deadline_ns = deadline_ns;
    for (uint32_t i = 0; i < count; i++) {
        cairn_err err = CAIRN_OK;

        if (slices[i].device >= 0 && !find_device(sink, slices[i].device))
            err = open_device(sink, client, slices[i].device);
        if (err) {
            (void)client_sink_close(sink); /* nothing was put yet */
            return err;
        }
    }
    *out = sink;
    return CAIRN_OK;
}

cairn_err
client_sink_pin(struct client_sink *sink, void *memory, uint64_t bytes)
{
    for (uint32_t i = 0; i < sink->device_count; i++) {
        cairn_err err = cairn_mem_pin(sink->devices[i]->mem, memory, bytes);

        if (err)
            return err;
    }
    return CAIRN_OK;
}

static cairn_err
issue(struct client_sink *sink, struct device *device)
{
    cairn_err err;

    if (device->count == 0)
        return CAIRN_OK;
    err = cairn_mem_copy_in(device->mem, device->copies, device->count, &device->ticket);
    if (err == CAIRN_AGAIN) {
        err = cairn_mem_wait(device->mem, device->ticket, sink->deadline_ns);
        if (!err)
            err = cairn_mem_copy_in(device->mem, device->copies, device->count, &device->ticket);
    }
    if (err)
        return err;
    device->issued = true;
    device->count = 0;
    device->bytes = 0;
    return CAIRN_OK;
}

/*
 * Has the kernel allocate untouched pages in one call, where the copy would fault on each. Tests
 * only the first whole page: where nothing is to do, the call costs half as much as the copy.
 */
static void
make_pages(uint8_t *begin, uint64_t bytes)
{
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t before = -(uintptr_t)begin % page_bytes; /* of the page that it begins in */
    unsigned char is_there = 1;
    uint64_t whole_bytes;

    if (bytes < before + MAKE_PAGES_MIN * page_bytes)
        return;
    begin += before;
    whole_bytes = bytes - before - (bytes - before) % page_bytes;
    if (mincore(begin, page_bytes, &is_there) == 0 && !(is_there & 1))
        /* Linux before 5.14: the copy faults */
        (void)madvise(begin, whole_bytes, MADV_POPULATE_WRITE);
}

/* Notes values that are not finite. A range of a file may begin or end inside an element. */
static void
look_at(struct client_sink *sink, uint32_t slice, uint64_t offset, const uint8_t *bytes,
        uint64_t bytes_len)
{
    const struct cairn_finite *type = cairn_finite_of(sink->slices[slice].dtype);
    uint64_t before = type ? -offset % type->element_bytes : 0;

    if (type && bytes_len > before && cairn_finite_fails(type, bytes + before, bytes_len - before))
        atomic_store_explicit(&sink->failing[slice], true, memory_order_relaxed);
}

cairn_err
client_sink_put(struct client_sink *sink, uint32_t slice, uint64_t offset, const uint8_t *bytes,
                uint64_t bytes_len)
{
    const struct cairn_slice *target = &sink->slices[slice];
    struct device *device;
    cairn_err err = CAIRN_OK;

    look_at(sink, slice, offset, bytes, bytes_len);
    if (target->device < 0) {
        if ((uint8_t *)target->address + offset == bytes)
            return CAIRN_OK; /* a tensor that stays where it is */
        make_pages((uint8_t *)target->address + offset, bytes_len);
        memcpy((uint8_t *)target->address + offset, bytes, bytes_len);
        return CAIRN_OK;
    }
    device = find_device(sink, target->device);
    if (!device || bytes_len > CAIRN_MEM_BATCH_BYTES_MAX)
        return CAIRN_INTERNAL;
    if (device->count == CAIRN_MEM_BATCH_COPIES_MAX ||
        device->bytes + bytes_len > CAIRN_MEM_BATCH_BYTES_MAX)
        err = issue(sink, device);
    if (err)
        return err;
    /* The host side is only read: the struct serves both directions. */
    device->copies[device->count++] = (struct cairn_mem_copy){
        (void *)(uintptr_t)bytes, (uint64_t)(uintptr_t)target->address + offset, bytes_len};
    device->bytes += bytes_len;
    return CAIRN_OK;
}

bool
client_sink_put_checked(struct client_sink *sink, uint32_t slice, uint64_t offset,
                        const uint8_t *bytes, uint64_t bytes_len, uint64_t crc, bool *is_good)
{
    const struct cairn_slice *target = &sink->slices[slice];
    struct cairn_copy_look look = {.type = cairn_finite_of(target->dtype)};
    uint8_t *address = (uint8_t *)target->address + offset;

    if (target->device >= 0 ||
        (look.type && (offset % look.type->element_bytes || bytes_len % look.type->element_bytes)))
        return false;
    make_pages(address, bytes_len);
    *is_good = cairn_copy_crc(0, address, bytes, bytes_len, look.type ? &look : NULL) == crc;
    if (*is_good && look.found)
        atomic_store_explicit(&sink->failing[slice], true, memory_order_relaxed);
    return true;
}

cairn_err
client_sink_flush(struct client_sink *sink)
{
    for (uint32_t i = 0; i < sink->device_count; i++) {
        struct device *device = sink->devices[i];
        cairn_err err = issue(sink, device);

        if (!err && device->issued)
            err = cairn_mem_wait(device->mem, device->ticket, sink->deadline_ns);
        if (err)
            return err;
        device->issued = false;
    }
    return CAIRN_OK;
}

bool
client_sink_close(struct client_sink *sink)
{
    uint64_t until_ns = client_now_ns() + REST_NS;

    if (!sink)
        return true;
    if (until_ns < sink->deadline_ns)
        until_ns = sink->deadline_ns;
    /* All before the first is closed: copies of the others use memory that it has pinned. A failed
     * one is at rest too. */
    for (uint32_t i = 0; i < sink->device_count; i++)
        if (cairn_mem_wait(sink->devices[i]->mem, sink->devices[i]->ticket, until_ns) ==
            CAIRN_TIMEOUT)
            return false;
    for (uint32_t i = 0; i < sink->device_count; i++) {
        cairn_mem_close(sink->devices[i]->mem);
        free(sink->devices[i]);
    }
    free(sink);
    return true;
}
