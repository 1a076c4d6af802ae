/*
 * agent/core/part/seal.c - packing and checking of seals; see seal.h.
 *
 * Packed (little-endian): u64 epoch, u64 step, u64 run, u32 member, u64 blocks, u32 manifest bytes,
 * the manifest, one u64 CRC-64 per block, and a CRC-64 of all before it. A member without ranks has
 * no blocks and a manifest of length 0.
 */
#include "agent/core/part/seal.h"

#include "base/crc.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum { SEAL_FIXED_BYTES = 8 + 8 + 8 + 4 + 8 + 4 + 8 };
static const uint64_t seal_bytes_max = UINT64_C(1) << 30;

void
seal_fini(struct seal *seal)
{
    free(seal->bytes);
    free(seal->crcs);
    memset(seal, 0, sizeof *seal);
}

cairn_err
seal_pack(struct cairn_generation_id generation, uint32_t member, uint64_t shard_blocks,
          const uint64_t *crcs, const uint8_t *manifest, size_t manifest_len, struct seal *out)
{
    struct seal seal = {0};
    struct cairn_writer writer;
    cairn_err err;

    if (manifest_len > seal_bytes_max / 2 || shard_blocks > seal_bytes_max / 16)
        return CAIRN_INVAL;
    seal.len = SEAL_FIXED_BYTES + manifest_len + 8 * shard_blocks;
    seal.bytes = malloc(seal.len);
    if (!seal.bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, seal.bytes, seal.len);
    cairn_write_u64(&writer, generation.epoch);
    cairn_write_u64(&writer, generation.step);
    cairn_write_u64(&writer, generation.run);
    cairn_write_u32(&writer, member);
    cairn_write_u64(&writer, shard_blocks);
    cairn_write_u32(&writer, (uint32_t)manifest_len);
    cairn_write_bytes(&writer, manifest, manifest_len);
    for (uint64_t i = 0; i < shard_blocks; i++)
        cairn_write_u64(&writer, crcs[i]);
    cairn_write_u64(&writer, cairn_crc64(0, seal.bytes, seal.len - 8));
    err = cairn_writer_done(&writer);
    if (!err) {
        seal.received = seal.len;
        err = seal_parse(&seal, generation, member);
    }
    if (err) {
        seal_fini(&seal);
        return err;
    }
    *out = seal;
    return CAIRN_OK;
}

cairn_err
seal_parse(struct seal *seal, struct cairn_generation_id generation, uint32_t member)
{
    struct cairn_reader reader;
    uint32_t manifest_len;
    uint64_t blocks;
    const uint8_t *manifest;
    uint64_t *crcs;

    if (seal->len < SEAL_FIXED_BYTES)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, seal->bytes, seal->len);
    if (cairn_read_u64(&reader) != generation.epoch || cairn_read_u64(&reader) != generation.step ||
        cairn_read_u64(&reader) != generation.run || cairn_read_u32(&reader) != member)
        return CAIRN_CORRUPT;
    blocks = cairn_read_u64(&reader);
    manifest_len = cairn_read_u32(&reader);
    manifest = cairn_read_borrow(&reader, manifest_len);
    if (!manifest || blocks > cairn_reader_left(&reader) / 8 ||
        cairn_reader_left(&reader) != 8 * blocks + 8)
        return CAIRN_CORRUPT;
    crcs = malloc(blocks ? 8 * blocks : 8);
    if (!crcs)
        return CAIRN_NOMEM;
    for (uint64_t i = 0; i < blocks; i++)
        crcs[i] = cairn_read_u64(&reader);
    if (cairn_read_u64(&reader) != cairn_crc64(0, seal->bytes, seal->len - 8)) {
        free(crcs);
        return CAIRN_CORRUPT;
    }
    free(seal->crcs);
    seal->crcs = crcs;
    seal->shard_blocks = blocks;
    seal->manifest = manifest;
    seal->manifest_len = manifest_len;
    seal->whole = true;
    return CAIRN_OK;
}

void
seal_take(struct seal *seal, struct cairn_generation_id generation, uint32_t member,
          uint64_t offset, uint64_t total, const uint8_t *bytes, uint32_t len)
{
    if (seal->whole || total < SEAL_FIXED_BYTES || total > seal_bytes_max)
        return;
    if (!seal->bytes) {
        seal->bytes = malloc(total);
        seal->len = seal->bytes ? total : 0;
        seal->received = 0;
    }
    if (!seal->bytes || seal->len != total || seal->received != offset ||
        len > seal->len - seal->received)
        return;
    if (len)
        memcpy(seal->bytes + seal->received, bytes, len);
    seal->received += len;
    if (seal->received == seal->len && seal_parse(seal, generation, member) != CAIRN_OK) {
        free(seal->bytes); /* damaged on the way: its length may be too */
        seal->bytes = NULL;
        seal->len = seal->received = 0;
    }
}

bool
crcs_match(const uint64_t *crcs, uint32_t count, const uint8_t *packed)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, packed, 8 * (size_t)count);
    for (uint32_t i = 0; i < count; i++)
        if (cairn_read_u64(&reader) != crcs[i])
            return false;
    return true;
}
