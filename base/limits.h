/* base/limits.h - the sizes that more than one folder must agree on. */
#ifndef CAIRN_BASE_LIMITS_H
#define CAIRN_BASE_LIMITS_H

enum {
    CAIRN_BLOCK_BYTES = 65536,         /* one checksum each; chunks and regions are
                                             * multiples */
    CAIRN_MESSAGE_BLOCKS_MAX = 16,     /* blocks in one bulk message between agents */
    CAIRN_BULK_BYTES_MAX = 16 * 65536, /* payload of one bulk message */
    CAIRN_NODES_MAX = 16384,           /* agents of one job */
    CAIRN_RANKS_PER_NODE_MAX = 64,
    CAIRN_SHARDS_MAX = 64,         /* k + m of an erasure group, so that a set fits a
                                             * uint64_t */
    CAIRN_CAPTURE_ALIGN_BYTES = 64 /* of every captured slice in its rank's region */
};

#endif
