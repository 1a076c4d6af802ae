/* snapshot/mem_host.c - host memory: copies happen at once, nothing needs pinning or ordering. */
#include "snapshot/mem.h"

#include <stdlib.h>
#include <string.h>

struct host_mem {
    struct cairn_mem mem; /* first */
    uint64_t ticket;
};

static cairn_err
host_open(int device_index, const struct cairn_mem_options *options, struct cairn_mem **out)
{
    struct host_mem *host = calloc(1, sizeof *host);

    (void)device_index;
    (void)options;
    if (!host)
        return CAIRN_NOMEM;
    host->mem.ops = &cairn_mem_host_ops;
    *out = &host->mem;
    return CAIRN_OK;
}

static void
host_close(struct cairn_mem *mem)
{
    free(mem);
}

static cairn_err
host_pin(struct cairn_mem *mem, void *host, size_t bytes)
{
    (void)mem;
    (void)host;
    (void)bytes;
    return CAIRN_OK;
}

static void
host_unpin(struct cairn_mem *mem, void *host)
{
    (void)mem;
    (void)host;
}

static cairn_err
host_after(struct cairn_mem *mem, void *stream)
{
    (void)mem;
    (void)stream;
    return CAIRN_OK; /* host code that ran before the call is before it */
}

static cairn_err
host_copy_out(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
              uint64_t *ticket)
{
    for (uint32_t i = 0; i < count; i++)
        memcpy(copies[i].host, (const void *)(uintptr_t)copies[i].region, copies[i].bytes);
    *ticket = ++((struct host_mem *)mem)->ticket;
    return CAIRN_OK;
}

static cairn_err
host_copy_in(struct cairn_mem *mem, const struct cairn_mem_copy *copies, uint32_t count,
             uint64_t *ticket)
{
    for (uint32_t i = 0; i < count; i++)
        memcpy((void *)(uintptr_t)copies[i].region, copies[i].host, copies[i].bytes);
    *ticket = ++((struct host_mem *)mem)->ticket;
    return CAIRN_OK;
}

static cairn_err
host_poll(struct cairn_mem *mem, uint64_t ticket)
{
    return ticket <= ((struct host_mem *)mem)->ticket ? CAIRN_OK : CAIRN_INVAL;
}

const struct cairn_mem_ops cairn_mem_host_ops = {.name = "host",
                                                 .open = host_open,
                                                 .close = host_close,
                                                 .pin = host_pin,
                                                 .unpin = host_unpin,
                                                 .after = host_after,
                                                 .copy_out = host_copy_out,
                                                 .copy_in = host_copy_in,
                                                 .poll = host_poll};
