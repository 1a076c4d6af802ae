/*
 * snapshot/manifest.h - what one container of one generation holds, and the checksum of every
 * block.
 *
 * A container is one node's shard (the regions of its ranks, one after the other, each region a
 * multiple of CAIRN_BLOCK_BYTES) or one file of a spilled generation (data from byte data_offset of
 * the file on). The manifests of all containers describe a generation; each can be read alone.
 *
 * Packed form: little-endian by base/wire.h, magic "CAIRNMAN", version, body, and a CRC-64 of all
 * before it at the end; manifest.c has the full specification. Unpack is bounded and total: hostile
 * bytes give CAIRN_CORRUPT (or CAIRN_VERSION), never a crash or an allocation larger than a small
 * multiple of the input.
 *
 * Invariants of every packed manifest, checked by pack and by unpack:
 *   1. container < container_count; block_count = ceil(container_bytes / CAIRN_BLOCK_BYTES);
 *   2. ranks are distinct, below their world, their regions aligned to blocks, ascending, disjoint,
 *      inside the container;
 *   3. every entry's slice passes cairn_slice_check, entries of one name agree on dtype, kind and
 *      shape;
 *   4. no two entries share a byte, all are inside the container and, if the manifest has ranks,
 *      inside the region of their rank. With rank_count = 0 (a spilled file) `rank` is free.
 */
#ifndef CAIRN_SNAPSHOT_MANIFEST_H
#define CAIRN_SNAPSHOT_MANIFEST_H

#include "snapshot/generation.h"
#include "snapshot/layout.h"

struct cairn_manifest_rank {
    uint32_t rank;
    uint32_t world;
    uint64_t region_offset; /* in the container; a multiple of CAIRN_BLOCK_BYTES */
    uint64_t region_bytes;  /* a multiple of CAIRN_BLOCK_BYTES */
};

/*
 * One captured range: elements [flat_begin, flat_end) of the slice's row-major box at
 * offset_bytes of the container (flat_begin = flat_end = 0: the whole box; flat_begin = flat_end
 * > 0: nothing. So a replica that captures none of a tensor still names it).
 */
struct cairn_manifest_entry {
    /*
     * name points into the manifest; the flat range is the held part, the replica numbers are those
     * of the registered slice; after unpack address is NULL, device -1
     */
    struct cairn_slice slice;
    uint64_t offset_bytes;
    uint32_t rank; /* its global number */
    uint32_t reserved;
};

struct cairn_manifest {
    uint64_t job_id;
    struct cairn_generation_id generation;
    uint32_t container;                /* this one's number */
    uint32_t container_count;          /* of the generation */
    uint64_t container_bytes;          /* a multiple of CAIRN_BLOCK_BYTES for a shard */
    struct cairn_manifest_rank *ranks; /* by ascending region_offset; none for a spilled file */
    uint32_t rank_count;
    uint32_t entry_count;
    struct cairn_manifest_entry *entries;
    uint64_t *block_crcs; /* one per CAIRN_BLOCK_BYTES; the last block may be short */
    uint64_t block_count; /* = ceil(container_bytes / CAIRN_BLOCK_BYTES) */
    char *names;          /* owned storage of the entries' names */
};

/* All zero is the empty manifest. Frees what it owns and zeroes it. */
void cairn_manifest_fini(struct cairn_manifest *manifest);

/*
 * Packs into a new buffer of *bytes_len bytes; the caller frees *bytes. CAIRN_INVAL for a
 * manifest that unpack would refuse (so that nothing unreadable is ever kept), CAIRN_NOMEM.
 * Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_manifest_pack(const struct cairn_manifest *manifest,
                                               uint8_t **bytes, size_t *bytes_len);
/*
 * Unpacks and checks everything that can be checked; *out must be empty, is ended by
 * cairn_manifest_fini, and is untouched on failure: CAIRN_CORRUPT, CAIRN_VERSION, CAIRN_NOMEM.
 * `bytes` is borrowed for the call. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_manifest_unpack(const void *bytes, size_t bytes_len,
                                                 struct cairn_manifest *out);

/*
 * Adds all entries of a manifest to a layout under the manifest's container number. CAIRN_INVAL if
 * a tensor disagrees with the layout's tensor of that name, CAIRN_NOMEM; the layout may then hold a
 * part of the entries.
 */
CAIRN_MUST_CHECK cairn_err cairn_manifest_add_to_layout(const struct cairn_manifest *manifest,
                                                        struct cairn_layout *layout,
                                                        const char **why);

/*
 * The capture plan of one rank: what it captures of each registered slice (its replica share),
 * laid out in registered order from region offset 0, each start aligned to
 * CAIRN_CAPTURE_ALIGN_BYTES, the region rounded up to CAIRN_BLOCK_BYTES. entries[count] is the
 * caller's; entries[i].slice is slices[i] with its flat range set to the share, address pointing
 * at the share's first byte, and name still the caller's; offset_bytes is relative to the region.
 * A share may be empty (flat_begin == flat_end > 0, or both 0 with no elements: it then
 * has 0 bytes, see cairn_capture_bytes). Both the client and the agent compute it. CAIRN_INVAL when
 * a slice is wrong or the sum overflows.
 */
CAIRN_MUST_CHECK cairn_err cairn_capture_plan(const struct cairn_slice *slices, uint32_t count,
                                              struct cairn_manifest_entry *entries,
                                              uint64_t *region_bytes, const char **why);

/* Bytes of a planned entry. */
uint64_t cairn_capture_bytes(const struct cairn_manifest_entry *entry);

#endif
