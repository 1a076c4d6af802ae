/*
 * agent/core/env/codec.h - one description of a packed format, for both directions.
 *
 * A code_fn names the fields of a value in wire order. A codec that writes packs them; one that
 * reads fills them in, and remembers the first error. Fields are little-endian (base/wire.h). A
 * reader that has failed gives zeros, so loops end by the counts that code_count has bounded.
 */
#ifndef CAIRN_AGENT_CORE_ENV_CODEC_H
#define CAIRN_AGENT_CORE_ENV_CODEC_H

#include "agent/core/env/roster.h"
#include "snapshot/generation.h"

struct codec {
    bool reads;
    cairn_err err; /* of reading */
    struct cairn_writer writer;
    struct cairn_reader reader;
};

typedef void code_fn(struct codec *codec, void *value);

/* Packs into new memory, which the caller frees; or into out[out_bytes], CAIRN_FULL if it does not
 * fit. */
CAIRN_MUST_CHECK cairn_err codec_pack(code_fn *code, const void *value, uint8_t **bytes,
                                      size_t *len);
CAIRN_MUST_CHECK cairn_err codec_pack_into(code_fn *code, const void *value, void *out,
                                           size_t out_bytes, size_t *used);
/* Unpacks all of the bytes. CAIRN_CORRUPT, CAIRN_NOMEM; then the caller frees what *value has. */
CAIRN_MUST_CHECK cairn_err codec_unpack(code_fn *code, void *value, const void *bytes, size_t len);

void code_u8(struct codec *codec, uint8_t *value);
void code_bool(struct codec *codec, bool *value); /* u8 */
void code_u32(struct codec *codec, uint32_t *value);
void code_u64(struct codec *codec, uint64_t *value);
void code_generation(struct codec *codec, struct cairn_generation_id *value);
/* u32: items of at least item_bytes each follow; at most `max`. */
void code_count(struct codec *codec, uint32_t *count, uint32_t max, size_t item_bytes);
/* The roster is held by the value. */
void code_roster(struct codec *codec, struct cairn_roster **roster);
void code_optional_roster(struct codec *codec, struct cairn_roster **roster); /* u8 before it */
/* u32 length, bytes; in memory of the value's own. */
void code_bytes(struct codec *codec, uint8_t **bytes, uint32_t *len);
/* Reading: zeroed memory for `count` items, NULL after an error. Writing: `array`. */
void *code_array(struct codec *codec, void *array, size_t count, size_t size);
/* Reading: an error, unless what was read is good. */
void code_check(struct codec *codec, bool good);

#endif
