/*
 * agent/process/scratch.h - decoding space: where the shards of a repair item are gathered and
 * decoded.
 *
 * Invariants:
 *  1. A space stays until its last user drops it: the item it was staged for, the job that decodes
 *     in it, each letter that sends from it.
 *  2. At most half of the transport's buffers, and half of one peer's window, are kept for
 *     decoding; further shards are copied. So other messages always find room.
 *  3. A payload in this node's own memory is held (cairn_memory_hold) while it is kept.
 */
#ifndef CAIRN_AGENT_PROCESS_SCRATCH_H
#define CAIRN_AGENT_PROCESS_SCRATCH_H

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct cairn_agent;
struct space; /* room for all shards of an item, and for the checksums of what was decoded */

enum { SCRATCH_ITEMS_MAX = 2 };

/* A shard that is decoded from where it arrived: a buffer of the transport, or own memory. */
struct kept_payload {
    uint8_t *bytes;
    uint64_t buffer; /* of the transport; 0: none */
    uint32_t part;   /* whose memory is held; UINT32_MAX: none */
};

/* What is gathered for one repair item. */
struct scratch_item {
    struct space *space; /* NULL before the first shard */
    uint64_t staged;     /* a bit for each shard that holds something */
    uint64_t kept;       /* of these, the shards that lie where they arrived */
    struct kept_payload payloads[CAIRN_SHARDS_MAX];
};

struct scratch {
    struct scratch_item items[SCRATCH_ITEMS_MAX];
    struct space *unused;  /* spaces without users */
    uint32_t kept_buffers; /* of the transport, over all items and jobs */
};

/* Makes the spaces of all items, and maps what decoding up to `parity` lost shards writes to: a
 * repair's first page faults would take longer than its decoding. */
void scratch_open(struct cairn_agent *agent, uint32_t parity);

/* The place of an item's shard, which counts as staged from now on. NULL without memory. */
uint8_t *scratch_stage(struct cairn_agent *agent, uint32_t item, uint32_t shard);

/*
 * Keeps the arriving payload as a shard of an item in place. False, without effect, if it cannot
 * stay there (invariant 2): the caller copies it.
 */
bool scratch_keep(struct cairn_agent *agent, uint32_t item, uint32_t shard, const uint8_t *payload);

/* Where a staged shard is. */
uint8_t *scratch_shard(struct cairn_agent *agent, uint32_t item, uint32_t shard);

/* Hands the kept payloads of an item over: payloads[CAIRN_SHARDS_MAX]. Returns how many. */
uint32_t scratch_take_kept(struct cairn_agent *agent, uint32_t item, struct kept_payload *payloads);

/* Returns buffers to the transport, and releases own memory. */
void scratch_give_back(struct cairn_agent *agent, const struct kept_payload *payloads,
                       uint32_t count);

/* The item is free again. */
void scratch_release(struct cairn_agent *agent, uint32_t item);

/* Frees all space; nobody uses any. */
void scratch_close(struct cairn_agent *agent);

uint8_t *space_shard(struct space *space, uint32_t shard);

/* [CAIRN_MESSAGE_BLOCKS_MAX] checksums of the blocks of a decoded shard. */
uint64_t *space_crcs(struct space *space, uint32_t shard);

/* Adds and removes a user of a space. NULL is allowed in space_drop. */
void space_hold(struct space *space);
void space_drop(struct cairn_agent *agent, struct space *space);

#endif
