/*
 * snapshot/shard_seal.c - packing and checking of seals; see shard_seal.h.
 *
 * Packed (little-endian): the generation (u64 epoch, step, run), u32 member, u64 blocks, u32
 * manifest bytes, the manifest, one u64 CRC-64 per block, and a CRC-64 of all before it. A member
 * without ranks has no blocks and a manifest of length 0.
 */
#include "snapshot/shard_seal.h"

#include "base/crc.h"

#include <stdlib.h>
#include <string.h>

enum { SEAL_FIXED_BYTES = 8 + 8 + 8 + 4 + 8 + 4 + 8, CRC_BYTES = 8 };
static const uint64_t seal_bytes_max = UINT64_C(1) << 30;

/* All but the checksum at the end. */
struct content {
    struct cairn_generation_id generation;
    uint32_t member;
    uint64_t blocks;
    const uint8_t *manifest; /* borrowed */
    uint32_t manifest_len;
    uint64_t *crcs;
};

void
cairn_shard_seal_fini(struct cairn_shard_seal *seal)
{
    free(seal->bytes);
    free(seal->crcs);
    memset(seal, 0, sizeof *seal);
}

static void
code_content(struct cairn_codec *codec, void *value)
{
    struct content *content = value;

    cairn_generation_code(codec, &content->generation);
    cairn_codec_u32(codec, &content->member);
    cairn_codec_u64(codec, &content->blocks);
    cairn_codec_u32(codec, &content->manifest_len);
    cairn_codec_borrow(codec, &content->manifest, content->manifest_len);
    cairn_codec_check(codec, cairn_reader_left(&codec->reader) / 8 == content->blocks);
    content->crcs = cairn_codec_array(codec, content->crcs, content->blocks, sizeof(uint64_t));
    for (uint64_t i = 0; !codec->err && i < content->blocks; i++)
        cairn_codec_u64(codec, &content->crcs[i]);
}

cairn_err
cairn_shard_seal_pack(struct cairn_generation_id generation, uint32_t member, uint64_t shard_blocks,
                      const uint64_t *crcs, const uint8_t *manifest, size_t manifest_len,
                      struct cairn_shard_seal *out)
{
    struct cairn_shard_seal seal = {0};
    struct content content = {.generation = generation,
                              .member = member,
                              .blocks = shard_blocks,
                              .manifest = manifest,
                              .manifest_len = (uint32_t)manifest_len,
                              .crcs = (uint64_t *)(uintptr_t)crcs}; /* which are not changed */
    size_t used = 0;
    cairn_err err;

    if (manifest_len > seal_bytes_max / 2 || shard_blocks > seal_bytes_max / 16)
        return CAIRN_INVAL;
    seal.len = seal.received = SEAL_FIXED_BYTES + manifest_len + 8 * shard_blocks;
    seal.bytes = malloc(seal.len);
    if (!seal.bytes)
        return CAIRN_NOMEM;
    err = cairn_codec_pack_into(code_content, &content, seal.bytes, seal.len - CRC_BYTES, &used);
    if (!err) {
        cairn_little_put(seal.bytes + used, CRC_BYTES, cairn_crc64(0, seal.bytes, used));
        err = cairn_shard_seal_parse(&seal, generation, member);
    }
    if (err)
        cairn_shard_seal_fini(&seal);
    else
        *out = seal;
    return err;
}

cairn_err
cairn_shard_seal_parse(struct cairn_shard_seal *seal, struct cairn_generation_id generation,
                       uint32_t member)
{
    struct content content = {0};
    size_t used = seal->len - CRC_BYTES;
    cairn_err err;

    if (seal->len < SEAL_FIXED_BYTES ||
        cairn_little_get(seal->bytes + used, CRC_BYTES) != cairn_crc64(0, seal->bytes, used))
        return CAIRN_CORRUPT;
    err = cairn_codec_unpack(code_content, &content, seal->bytes, used);
    if (!err && (content.member != member || !cairn_generation_is(content.generation, generation)))
        err = CAIRN_CORRUPT;
    if (err) {
        free(content.crcs);
        return err;
    }
    free(seal->crcs);
    seal->crcs = content.crcs;
    seal->shard_blocks = content.blocks;
    seal->manifest = content.manifest;
    seal->manifest_len = content.manifest_len;
    seal->whole = true;
    return CAIRN_OK;
}

void
cairn_shard_seal_take(struct cairn_shard_seal *seal, struct cairn_generation_id generation,
                      uint32_t member, uint64_t offset, uint64_t total, const uint8_t *bytes,
                      uint32_t len)
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
    if (seal->received == seal->len &&
        cairn_shard_seal_parse(seal, generation, member) != CAIRN_OK) {
        free(seal->bytes); /* damaged on the way: its length may be too */
        seal->bytes = NULL;
        seal->len = seal->received = 0;
    }
}
