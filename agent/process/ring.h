/*
 * agent/process/ring.h - parity of the own stripe on its way to other members: some blocks of each
 * row but the first (agent/core/part/encode.h).
 *
 * Reserved at the start. It does not belong to a generation: a complete part never needs it, so it
 * ends with the process, and the keeper does not hold it.
 */
#ifndef CAIRN_AGENT_PROCESS_RING_H
#define CAIRN_AGENT_PROCESS_RING_H

#include "cairn/err.h"

#include <stdint.h>

struct ring {
    uint8_t *bytes;
    uint64_t bytes_len;
    uint64_t lines; /* of each row */
};

/* Reserves bytes_len for rows of `lines` blocks; 0: nothing to forward. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err ring_open(struct ring *ring, uint64_t lines, uint64_t bytes_len);
void ring_close(struct ring *ring);
/* The address of `count` blocks of a row, from `line` on; NULL if they do not exist, or cross the
 * ring's end. */
uint8_t *ring_blocks(const struct ring *ring, uint32_t row, uint64_t line, uint32_t count);

#endif
