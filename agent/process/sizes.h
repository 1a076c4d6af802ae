/*
 * agent/process/sizes.h - the memory that a configuration needs: for state, parity and records, per
 * slot. The agent reserves it; `cairn doctor` reports beforehand whether it fits.
 */
#ifndef CAIRN_AGENT_PROCESS_SIZES_H
#define CAIRN_AGENT_PROCESS_SIZES_H

#include "agent/process/config.h"

enum {
    CAIRN_LAYOUT_SHARE =
        2048 /* room for names and shapes is this part of state_bytes, 256 KiB at least */
};

struct cairn_sizes {
    uint64_t slot_blocks;   /* of one generation's state */
    uint64_t parity_blocks; /* of all parity slots of one generation, in the smallest group, which
                             * has the largest share */
    uint64_t ring_lines;    /* of each row in the ring (ring.h) */
    uint64_t ring_bytes;    /* of all its rows */
    uint32_t data_count;    /* k of that group */
    uint32_t parity_count;  /* m of that group */
    uint64_t layout_bytes_max; /* of names and shapes in one member's manifest */
    uint64_t seal_bytes_max;   /* the longest seal that a record has room for */
    uint64_t record_bytes;     /* of one generation's record */
};

/* Members of a group that is full: the configured number or 10, at least one more than the parity,
 * at most all active nodes. */
uint32_t cairn_sizes_group(const struct cairn_config *config);

/* CAIRN_NOMEM, or the error of cairn_roster_build if the nodes cannot form groups. Pure. Thread:
 * any. */
CAIRN_MUST_CHECK cairn_err cairn_sizes_of(const struct cairn_config *config,
                                          struct cairn_sizes *out);

#endif
