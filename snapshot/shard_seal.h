/*
 * snapshot/shard_seal.h - the seal of a shard: the checksums of all its blocks and its packed
 * manifest. Every member of a group keeps the seals of all, so an agent that holds parity for a
 * shard can also identify and check it when it is rebuilt. shard_seal.c has the format.
 */
#ifndef CAIRN_SNAPSHOT_SHARD_SEAL_H
#define CAIRN_SNAPSHOT_SHARD_SEAL_H

#include "snapshot/generation.h"

struct cairn_shard_seal {
    uint8_t *bytes; /* packed; NULL before its length is known */
    size_t len;
    size_t received;
    bool whole; /* received, parsed, checked */
    uint64_t shard_blocks;
    uint64_t *crcs;          /* [shard_blocks], owned */
    const uint8_t *manifest; /* inside bytes */
    size_t manifest_len;
};

void cairn_shard_seal_fini(struct cairn_shard_seal *seal);
/* Makes a whole seal. CAIRN_INVAL: too long; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_shard_seal_pack(struct cairn_generation_id generation,
                                                 uint32_t member, uint64_t shard_blocks,
                                                 const uint64_t *crcs, const uint8_t *manifest,
                                                 size_t manifest_len, struct cairn_shard_seal *out);
/* Parses seal->bytes once all are received; CAIRN_CORRUPT, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_shard_seal_parse(struct cairn_shard_seal *seal,
                                                  struct cairn_generation_id generation,
                                                  uint32_t member);
/* Takes bytes [offset, offset + len) of a seal of `total` bytes, in order. A seal that turns out
 * damaged starts again from its first byte. */
void cairn_shard_seal_take(struct cairn_shard_seal *seal, struct cairn_generation_id generation,
                           uint32_t member, uint64_t offset, uint64_t total, const uint8_t *bytes,
                           uint32_t len);

#endif
