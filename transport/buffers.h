/*
 * transport/buffers.h - the receive buffers of the backend `tcp`: which are open, and what the last
 * payload has left in them.
 *
 * A buffer is open under a key that its peer alone was told, and nobody can guess. Its payload goes
 * into the buffer itself, or into a place: memory of the caller's that the payload names.
 *
 * Thread: the loop's.
 */
#ifndef CAIRN_TRANSPORT_BUFFERS_H
#define CAIRN_TRANSPORT_BUFFERS_H

#include "transport/backend.h"

struct cairn_buffers;

/* Where a payload went, and goes from now on. */
struct cairn_buffers_move {
    uint64_t address; /* of its buffer */
    const uint8_t *from;
    uint8_t *to;
};

/* pool[count] of CAIRN_BULK_BYTES_MAX each stays the caller's. All are closed. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_buffers_create(uint8_t *pool, uint32_t count,
                                                struct cairn_buffers **out);
void cairn_buffers_destroy(struct cairn_buffers *buffers); /* NULL is allowed */

/* Opens a buffer, which is empty then, under a fresh key. CAIRN_IO: there are no random numbers,
 * and it is closed. */
CAIRN_MUST_CHECK cairn_err cairn_buffers_open(struct cairn_buffers *buffers, uint32_t index,
                                              struct cairn_backend_remote *out);
void cairn_buffers_close(struct cairn_buffers *buffers, uint32_t index);

/* The open buffer whose address and key a peer names. False: there is none. */
bool cairn_buffers_find(const struct cairn_buffers *buffers,
                        const struct cairn_backend_remote *remote, uint32_t *index);

/* A payload begins for an open buffer; placed is its place, NULL: the buffer. Returns where it
 * goes. */
uint8_t *cairn_buffers_begin(struct cairn_buffers *buffers, uint32_t index, uint32_t bytes_len,
                             uint8_t *placed);

/* The payload that has begun at a buffer's address is torn (backend.h). */
void cairn_buffers_tear(struct cairn_buffers *buffers, uint64_t address);

/* As filled and placed of struct cairn_transport_ops. */
enum cairn_backend_fill cairn_buffers_filled(const struct cairn_buffers *buffers, uint32_t index,
                                             size_t bytes_len);
uint8_t *cairn_buffers_placed(const struct cairn_buffers *buffers, uint32_t index);

/* If the buffer's payload was placed in memory[bytes_len], moves what has come into the buffer.
 * False: it was not. */
bool cairn_buffers_unplace(struct cairn_buffers *buffers, uint32_t index, const uint8_t *memory,
                           size_t bytes_len, struct cairn_buffers_move *out);

#endif
