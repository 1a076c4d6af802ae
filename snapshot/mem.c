/*
 * snapshot/mem.c - the callers' side of the backends: preconditions, and what is built from single
 * operations (waiting, copying any length).
 */
#include "snapshot/mem.h"

#include <time.h>

cairn_err
cairn_mem_open(int32_t device, const struct cairn_mem_options *options, struct cairn_mem **out)
{
    static const struct cairn_mem_options defaults;

    options = options ? options : &defaults;
    if (device < 0)
        return cairn_mem_host_ops.open(device, options, out);
    return cairn_mem_cuda_ops.open(device, options, out);
}

void
cairn_mem_close(struct cairn_mem *mem)
{
    if (mem)
        mem->ops->close(mem);
}

cairn_err
cairn_mem_pin(struct cairn_mem *mem, void *host, size_t bytes)
{
    if (!host || bytes == 0)
        return CAIRN_INVAL;
    return mem->ops->pin(mem, host, bytes);
}

void
cairn_mem_unpin(struct cairn_mem *mem, void *host)
{
    mem->ops->unpin(mem, host);
}

cairn_err
cairn_mem_after(struct cairn_mem *mem, void *stream)
{
    return mem->ops->after(mem, stream);
}

static bool
batch_is_valid(const struct cairn_mem_copy *copies, uint32_t count)
{
    size_t left = CAIRN_MEM_BATCH_BYTES_MAX;

    if (count == 0 || count > CAIRN_MEM_BATCH_COPIES_MAX)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        if (copies[i].bytes == 0 || copies[i].bytes > left)
            return false;
        left -= copies[i].bytes;
    }
    return true;
}

cairn_err
cairn_mem_copy_out(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
                   uint64_t *ticket)
{
    if (!batch_is_valid(copies, count))
        return CAIRN_INVAL;
    return mem->ops->copy_out(mem, copies, count, ticket);
}

cairn_err
cairn_mem_copy_in(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
                  uint64_t *ticket)
{
    if (!batch_is_valid(copies, count))
        return CAIRN_INVAL;
    return mem->ops->copy_in(mem, copies, count, ticket);
}

cairn_err
cairn_mem_poll(struct cairn_mem *mem, uint64_t ticket)
{
    return mem->ops->poll(mem, ticket);
}

static uint64_t
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A batch takes a few hundred microseconds; sleeping leaves the core to the trainer. */
static void
pause_shortly(void)
{
    struct timespec pause = {0, 20000};

    nanosleep(&pause, NULL);
}

cairn_err
cairn_mem_wait(struct cairn_mem *mem, uint64_t ticket, uint64_t deadline_ns)
{
    for (;;) {
        cairn_err err = mem->ops->poll(mem, ticket);

        if (err != CAIRN_AGAIN)
            return err;
        if (now_ns() >= deadline_ns)
            return CAIRN_TIMEOUT;
        pause_shortly();
    }
}

cairn_err
cairn_mem_put(struct cairn_mem *mem, uint64_t region, const void *host, uint64_t bytes,
              uint64_t deadline_ns)
{
    uint64_t ticket = 0;

    for (uint64_t at = 0; at < bytes;) {
        uint64_t left = bytes - at;
        /* The host side is only read: the struct serves both directions. */
        struct cairn_mem_copy copy = {
            .host = (void *)((uintptr_t)host + at),
            .region = region + at,
            .bytes = left < CAIRN_MEM_BATCH_BYTES_MAX ? left : CAIRN_MEM_BATCH_BYTES_MAX};
        cairn_err err = mem->ops->copy_in(mem, &copy, 1, &ticket);

        if (err == CAIRN_AGAIN) {
            if (now_ns() >= deadline_ns)
                return CAIRN_TIMEOUT;
            err = mem->ops->poll(mem, ticket); /* frees a place */
            if (err == CAIRN_AGAIN || !err)
                pause_shortly();
            if (err && err != CAIRN_AGAIN)
                return err;
            continue;
        }
        if (err)
            return err;
        at += copy.bytes;
    }
    return bytes ? cairn_mem_wait(mem, ticket, deadline_ns) : CAIRN_OK;
}
