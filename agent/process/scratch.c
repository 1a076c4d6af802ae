/*
 * agent/process/scratch.c - decoding space: where the shards of a repair item are gathered and
 * decoded; see scratch.h.
 *
 * A space has room for every shard of an item, and one checksum per block of what was decoded.
 * Shards take places in the order of their use: so those of an item share the first huge pages. If
 * an item is released while others still use its space, they keep the space, and the item gets
 * another one next time. A space without users waits in a list, so that its pages stay mapped. Only
 * pages of used places are touched.
 *
 * A shard is decoded from where it arrived, without a copy, if it can stay there. A peer's shard
 * lies in a buffer of the transport, which is kept; this node's own shard lies in its memory, which
 * is held. The core releases the item before it gives up that memory. At most half of the buffers
 * are kept, so no item waits for a payload that has no room because of other waiting items.
 */
#include "agent/process/scratch.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "base/assert.h"
#include "transport/transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    SHARD_BYTES = CAIRN_MESSAGE_BLOCKS_MAX * CAIRN_BLOCK_BYTES,
    SPACE_BYTES = CAIRN_SHARDS_MAX * SHARD_BYTES,
    KEPT_MAX = MAIL_BUFFERS / 2,
    KEPT_PER_PEER_MAX = MAIL_WINDOW / 2
};

struct space {
    struct space *next; /* in the list of unused spaces */
    uint32_t users;
    uint32_t placed;                 /* shards that have a place */
    uint8_t place[CAIRN_SHARDS_MAX]; /* of a shard, from 1; 0: it has none yet */
    uint8_t *bytes;                  /* [CAIRN_SHARDS_MAX] places of SHARD_BYTES */
    uint64_t crcs[CAIRN_SHARDS_MAX][CAIRN_MESSAGE_BLOCKS_MAX];
};

static struct space *
space_create(void)
{
    struct space *space = calloc(1, sizeof *space);
    void *bytes = MAP_FAILED;

    if (space)
        bytes = mmap(NULL, SPACE_BYTES, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        free(space);
        return NULL;
    }
    (void)madvise(bytes, SPACE_BYTES, MADV_HUGEPAGE);
    (void)madvise(bytes, SPACE_BYTES, MADV_DONTDUMP); /* the job's state stays out of core files */
    space->bytes = bytes;
    return space;
}

static void
forget_places(struct space *space)
{
    space->placed = 0;
    memset(space->place, 0, sizeof space->place);
}

void
scratch_open(struct cairn_agent *agent, uint32_t parity)
{
    for (uint32_t i = 0; i < SCRATCH_ITEMS_MAX; i++) {
        struct space *space = space_create();

        if (!space)
            return; /* the item that needs it asks again */
        (void)madvise(space->bytes, (size_t)parity * SHARD_BYTES, MADV_POPULATE_WRITE);
        space->next = agent->scratch.unused;
        agent->scratch.unused = space;
    }
}

/* Gives an item its space, if it has none. */
static bool
has_space(struct cairn_agent *agent, struct scratch_item *item)
{
    if (item->space)
        return true;
    item->space = agent->scratch.unused;
    if (item->space)
        agent->scratch.unused = item->space->next;
    else
        item->space = space_create();
    if (!item->space)
        return false;
    item->space->users = 1;
    forget_places(item->space);
    return true;
}

uint8_t *
scratch_stage(struct cairn_agent *agent, uint32_t item, uint32_t shard)
{
    struct scratch_item *scratch = &agent->scratch.items[item];

    CAIRN_ASSERT(item < SCRATCH_ITEMS_MAX && shard < CAIRN_SHARDS_MAX);
    if (!has_space(agent, scratch))
        return NULL;
    scratch->staged |= UINT64_C(1) << shard;
    return space_shard(scratch->space, shard);
}

bool
scratch_keep(struct cairn_agent *agent, uint32_t item, uint32_t shard, const uint8_t *payload)
{
    struct scratch_item *scratch = &agent->scratch.items[item];
    struct cairn_transport_peer peer;

    if (agent->mail.arriving_part != UINT32_MAX) {
        if (!has_space(agent, scratch))
            return false;
        cairn_memory_hold(agent->memory, agent->mail.arriving_part);
    } else {
        if (agent->mail.arriving_buffer == 0 || agent->scratch.kept_buffers >= KEPT_MAX)
            return false;
        cairn_transport_peer_read(agent->transport, agent->mail.arriving_from, &peer);
        if (peer.buffers_held > KEPT_PER_PEER_MAX || !has_space(agent, scratch))
            return false;
        agent->scratch.kept_buffers++;
    }
    scratch->staged |= UINT64_C(1) << shard;
    scratch->kept |= UINT64_C(1) << shard;
    scratch->payloads[shard] = (struct kept_payload){
        (uint8_t *)(uintptr_t)payload, agent->mail.arriving_buffer, agent->mail.arriving_part};
    agent->mail.arriving_buffer = 0;
    return true;
}

uint8_t *
scratch_shard(struct cairn_agent *agent, uint32_t item, uint32_t shard)
{
    const struct scratch_item *scratch = &agent->scratch.items[item];

    return (scratch->kept >> shard) & 1 ? scratch->payloads[shard].bytes
                                        : space_shard(scratch->space, shard);
}

uint32_t
scratch_take_kept(struct cairn_agent *agent, uint32_t item, struct kept_payload *payloads)
{
    struct scratch_item *scratch = &agent->scratch.items[item];
    uint32_t count = 0;

    for (uint32_t s = 0; s < CAIRN_SHARDS_MAX; s++)
        if ((scratch->kept >> s) & 1)
            payloads[count++] = scratch->payloads[s];
    scratch->kept = 0;
    return count;
}

void
scratch_give_back(struct cairn_agent *agent, const struct kept_payload *payloads, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        /* cppcheck-suppress uninitvar ; the caller filled `count` of them */
        if (payloads[i].part != UINT32_MAX) {
            cairn_memory_unhold(agent->memory, payloads[i].part);
            continue;
        }
        CAIRN_ASSERT(agent->scratch.kept_buffers > 0);
        cairn_transport_release(agent->transport, payloads[i].buffer);
        agent->scratch.kept_buffers--;
    }
}

void
scratch_release(struct cairn_agent *agent, uint32_t item)
{
    struct scratch_item *scratch = &agent->scratch.items[item];
    struct kept_payload payloads[CAIRN_SHARDS_MAX];

    CAIRN_ASSERT(item < SCRATCH_ITEMS_MAX);
    scratch_give_back(agent, payloads, scratch_take_kept(agent, item, payloads));
    scratch->staged = 0;
    if (scratch->space && scratch->space->users > 1) {
        space_drop(agent, scratch->space);
        scratch->space = NULL;
    } else if (scratch->space) {
        forget_places(scratch->space);
    }
}

uint8_t *
space_shard(struct space *space, uint32_t shard)
{
    if (space->place[shard] == 0)
        space->place[shard] = (uint8_t)++space->placed;
    return space->bytes + (space->place[shard] - (size_t)1) * SHARD_BYTES;
}

uint64_t *
space_crcs(struct space *space, uint32_t shard)
{
    return space->crcs[shard];
}

void
space_hold(struct space *space)
{
    space->users++;
}

void
space_drop(struct cairn_agent *agent, struct space *space)
{
    if (!space || --space->users > 0)
        return;
    space->next = agent->scratch.unused;
    agent->scratch.unused = space;
}

void
scratch_close(struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < SCRATCH_ITEMS_MAX; i++) {
        space_drop(agent, agent->scratch.items[i].space);
        agent->scratch.items[i].space = NULL;
    }
    while (agent->scratch.unused) {
        struct space *space = agent->scratch.unused;

        agent->scratch.unused = space->next;
        (void)munmap(space->bytes, SPACE_BYTES);
        free(space);
    }
}
