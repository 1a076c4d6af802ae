/*
 * base/codec.h - one description of a packed format, for both directions.
 *
 * A cairn_codec_fn names the fields of a value in wire order. A writing codec packs them; a reading
 * codec fills them in and keeps the first error. Fields are little-endian (base/wire.h). After an
 * error a reader gives zeros; cairn_codec_count bounds counts, so loops end.
 */
#ifndef CAIRN_BASE_CODEC_H
#define CAIRN_BASE_CODEC_H

#include "base/wire.h"

struct cairn_codec {
    bool reads;
    cairn_err err; /* of reading */
    struct cairn_writer writer;
    struct cairn_reader reader;
};

typedef void cairn_codec_fn(struct cairn_codec *codec, void *value);

/* Packs into new memory, which the caller frees; or into out[out_bytes], CAIRN_FULL if it does not
 * fit. */
CAIRN_MUST_CHECK cairn_err cairn_codec_pack(cairn_codec_fn *code, const void *value,
                                            uint8_t **bytes, size_t *len);
CAIRN_MUST_CHECK cairn_err cairn_codec_pack_into(cairn_codec_fn *code, const void *value, void *out,
                                                 size_t out_bytes, size_t *used);
/* Unpacks all of the bytes. CAIRN_CORRUPT, CAIRN_NOMEM; then the caller frees what *value has. */
CAIRN_MUST_CHECK cairn_err cairn_codec_unpack(cairn_codec_fn *code, void *value, const void *bytes,
                                              size_t len);

void cairn_codec_u8(struct cairn_codec *codec, uint8_t *value);
void cairn_codec_bool(struct cairn_codec *codec, bool *value); /* u8 */
void cairn_codec_u32(struct cairn_codec *codec, uint32_t *value);
void cairn_codec_u64(struct cairn_codec *codec, uint64_t *value);
/* u32: count of items of at least item_bytes each; at most `max`. */
void cairn_codec_count(struct cairn_codec *codec, uint32_t *count, uint32_t max, size_t item_bytes);
/* u32 length, bytes; reading: in new memory of the value. */
void cairn_codec_bytes(struct cairn_codec *codec, uint8_t **bytes, uint32_t *len);
/* Bytes of a known length. Reading: borrowed from the input. */
void cairn_codec_borrow(struct cairn_codec *codec, const uint8_t **bytes, size_t len);
/* Reading: zeroed memory for `count` items, NULL after an error. Writing: `array`. */
void *cairn_codec_array(struct cairn_codec *codec, void *array, size_t count, size_t size);
/* Reading: an error unless `good`. */
void cairn_codec_check(struct cairn_codec *codec, bool good);

#endif
