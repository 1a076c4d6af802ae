/* transport/buffers.c - see buffers.h. */
#include "transport/buffers.h"

#include "transport/frame.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_COUNT = 64 }; /* drawn at a time */

struct buffer {
    uint64_t key;          /* 0: closed */
    uint32_t filled_bytes; /* by the last payload that has begun: frames come behind its end */
    uint8_t *placed;       /* where that payload goes, NULL: into the buffer */
    bool torn;             /* that payload */
};

struct cairn_buffers {
    uint8_t *pool;
    uint32_t count;
    struct buffer *list; /* [count] */
    uint64_t keys[KEY_COUNT];
    uint32_t keys_left;
};

cairn_err
cairn_buffers_create(uint8_t *pool, uint32_t count, struct cairn_buffers **out)
{
    struct cairn_buffers *buffers = calloc(1, sizeof *buffers);
    struct buffer *list = calloc(count, sizeof *list);

    if (!buffers || !list) {
        free(buffers);
        free(list);
        return CAIRN_NOMEM;
    }
    buffers->pool = pool;
    buffers->count = count;
    buffers->list = list;
    *out = buffers;
    return CAIRN_OK;
}

void
cairn_buffers_destroy(struct cairn_buffers *buffers)
{
    if (!buffers)
        return;
    free(buffers->list);
    free(buffers);
}

void
cairn_buffers_close(struct cairn_buffers *buffers, uint32_t index)
{
    buffers->list[index] = (struct buffer){0};
}

cairn_err
cairn_buffers_open(struct cairn_buffers *buffers, uint32_t index, struct cairn_backend_remote *out)
{
    struct buffer *buffer = &buffers->list[index];

    cairn_buffers_close(buffers, index);
    if (buffers->keys_left == 0) {
        if (cairn_proof_random(buffers->keys, sizeof buffers->keys) != CAIRN_OK)
            return CAIRN_IO;
        buffers->keys_left = KEY_COUNT;
    }
    buffer->key = buffers->keys[--buffers->keys_left] | 1;
    out->key = buffer->key;
    out->address = (uint64_t)index * CAIRN_BULK_BYTES_MAX;
    return CAIRN_OK;
}

bool
cairn_buffers_find(const struct cairn_buffers *buffers, const struct cairn_backend_remote *remote,
                   uint32_t *index)
{
    uint64_t found = remote->address / CAIRN_BULK_BYTES_MAX;

    if (remote->address % CAIRN_BULK_BYTES_MAX || found >= buffers->count || remote->key == 0 ||
        buffers->list[found].key != remote->key)
        return false;
    *index = (uint32_t)found;
    return true;
}

uint8_t *
cairn_buffers_begin(struct cairn_buffers *buffers, uint32_t index, uint32_t bytes_len,
                    uint8_t *placed)
{
    struct buffer *buffer = &buffers->list[index];

    buffer->filled_bytes = bytes_len;
    buffer->torn = false;
    buffer->placed = placed;
    return placed ? placed : buffers->pool + (size_t)index * CAIRN_BULK_BYTES_MAX;
}

void
cairn_buffers_tear(struct cairn_buffers *buffers, uint64_t address)
{
    buffers->list[address / CAIRN_BULK_BYTES_MAX].torn = true;
}

enum cairn_backend_fill
cairn_buffers_filled(const struct cairn_buffers *buffers, uint32_t index, size_t bytes_len)
{
    const struct buffer *buffer = &buffers->list[index];

    return buffer->filled_bytes != bytes_len ? CAIRN_BACKEND_EMPTY
           : buffer->torn                    ? CAIRN_BACKEND_TORN
                                             : CAIRN_BACKEND_WHOLE;
}

uint8_t *
cairn_buffers_placed(const struct cairn_buffers *buffers, uint32_t index)
{
    return buffers->list[index].placed;
}

bool
cairn_buffers_unplace(struct cairn_buffers *buffers, uint32_t index, const uint8_t *memory,
                      size_t bytes_len, struct cairn_buffers_move *out)
{
    struct buffer *buffer = &buffers->list[index];
    uint64_t address = (uint64_t)index * CAIRN_BULK_BYTES_MAX;

    if (!buffer->placed || buffer->placed >= memory + bytes_len ||
        buffer->placed + buffer->filled_bytes <= memory)
        return false;
    *out = (struct cairn_buffers_move){
        .address = address, .from = buffer->placed, .to = buffers->pool + address};
    memcpy(out->to, out->from, buffer->filled_bytes);
    buffer->placed = NULL;
    return true;
}
