/*
 * tools/convert/engine/fingerprint.h - what a tensor's elements are, in 128 bits, independent of
 * layout and format.
 *
 * The fingerprint of a tensor is two CRC-64 (ECMA-182 and Jones) of its canonical bytes: all its
 * elements in row-major order, little-endian, no padding. CRCs can be put together from parts in
 * any order (crc_join.h), so shards and tiles are taken as they pass by. It detects accidents, not
 * attacks: two tensors with one fingerprint can be constructed.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_FINGERPRINT_H
#define CAIRN_TOOLS_CONVERT_ENGINE_FINGERPRINT_H

#include "snapshot/layout.h"

enum { CAIRN_FINGERPRINT_TEXT_BYTES = 33 }; /* 32 hex digits and a NUL */

struct cairn_fingerprint {
    uint64_t ecma;
    uint64_t jones;
};

/* Of bytes that are all there. Thread: any, as everything here. */
struct cairn_fingerprint cairn_fingerprint_of(const void *bytes, size_t bytes_len);

bool cairn_fingerprint_equal(struct cairn_fingerprint a, struct cairn_fingerprint b);
void cairn_fingerprint_text(struct cairn_fingerprint fingerprint,
                            char text[CAIRN_FINGERPRINT_TEXT_BYTES]);

/* A walk over parts of one tensor. Parts at growing, equally distant positions are cheapest (one
 * multiplication each); a part before the last one is allowed. */
struct cairn_fingerprint_walk {
    uint64_t total_bytes;            /* of the tensor */
    uint64_t end;                    /* of the last part */
    struct cairn_fingerprint open;   /* of the parts since the last step back, shifted to `end` */
    struct cairn_fingerprint closed; /* of the earlier tiles, shifted to the tensor's end */
    uint64_t distance;               /* whose `factor` is known */
    struct cairn_fingerprint factor;
};

void cairn_fingerprint_walk_init(struct cairn_fingerprint_walk *walk, uint64_t total_bytes);
/* Adds a part: its fingerprint, where it begins in the canonical bytes, and its length (> 0). */
void cairn_fingerprint_walk_add(struct cairn_fingerprint_walk *walk, struct cairn_fingerprint part,
                                uint64_t begin, uint64_t bytes);
/* What the parts add, to be combined with other walks' by exclusive or. */
struct cairn_fingerprint cairn_fingerprint_walk_end(struct cairn_fingerprint_walk *walk);

#endif
