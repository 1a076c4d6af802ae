/*
 * agent/core/part/seal.h - a member's seal: the checksums of all blocks of its part and its packed
 * manifest. Every member of the group gets it, so an agent that holds parity for a member can also
 * identify and check a rebuilt part of it. seal.c has the format.
 */
#ifndef CAIRN_AGENT_CORE_PART_SEAL_H
#define CAIRN_AGENT_CORE_PART_SEAL_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdbool.h>

struct seal {
    uint8_t *bytes; /* packed; NULL before its length is known */
    size_t len;
    size_t received;
    bool whole; /* received, parsed, checked */
    uint64_t shard_blocks;
    uint64_t *crcs;          /* [shard_blocks], owned */
    const uint8_t *manifest; /* inside bytes */
    size_t manifest_len;
};

void seal_fini(struct seal *seal);
CAIRN_MUST_CHECK cairn_err seal_pack(struct cairn_generation_id generation, uint32_t member,
                                     uint64_t shard_blocks, const uint64_t *crcs,
                                     const uint8_t *manifest, size_t manifest_len,
                                     struct seal *out);
/* Parses seal->bytes once all are received; CAIRN_CORRUPT, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err seal_parse(struct seal *seal, struct cairn_generation_id generation,
                                      uint32_t member);
/* Takes bytes [offset, offset + len) of a seal of `total` bytes, in order. A seal that turns out
 * damaged starts again from its first byte. */
void seal_take(struct seal *seal, struct cairn_generation_id generation, uint32_t member,
               uint64_t offset, uint64_t total, const uint8_t *bytes, uint32_t len);
/* True if the packed checksums of `count` blocks are those. */
bool crcs_match(const uint64_t *crcs, uint32_t count, const uint8_t *packed);

#endif
