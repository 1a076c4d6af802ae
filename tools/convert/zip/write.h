/*
 * tools/convert/zip/write.h - lays out a ZIP archive as PyTorch would write it, byte for byte, and
 * writes all of it but the data.
 *
 * Sizes are known beforehand and checksums are not. So first every entry is added, which says where
 * its bytes belong; then the owner of the bytes writes them, in any order and from any thread; then
 * the checksums are filled in and the records around the data are packed. Data starts at multiples
 * of 64 bytes of the archive, headers have no sizes, a descriptor follows the data.
 */
#ifndef CAIRN_TOOLS_CONVERT_ZIP_WRITE_H
#define CAIRN_TOOLS_CONVERT_ZIP_WRITE_H

#include "cairn/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CAIRN_ZIP_ALIGN_BYTES = 64 };

struct cairn_zip_planned {
    char *name;         /* owned; whole, the archive's folder included */
    uint64_t header_at; /* from the archive's start */
    uint64_t at;        /* of its first byte, from the archive's start */
    uint64_t bytes;
    uint32_t crc32;   /* the caller's to fill in before it is packed */
    const void *data; /* borrowed; NULL: a hole, which others fill, where there are bytes */
};

struct cairn_zip_plan {
    char *folder; /* owned; without '/' */
    struct cairn_zip_planned *entries;
    uint32_t entry_count;
    uint64_t end_at;          /* where the next local header, or the directory, begins */
    uint64_t directory_bytes; /* of the directory as it stands */
};

/* Begins a plan; all names get `folder` and a '/' before them. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_zip_plan_init(struct cairn_zip_plan *plan, const char *folder);
/* Frees; allowed twice and on zeroes. */
void cairn_zip_plan_fini(struct cairn_zip_plan *plan);

/* Adds an entry; *index is its number in plan->entries, whose `at` is final. The caller keeps names
 * distinct. CAIRN_INVAL for a name or size that is too long; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_zip_plan_add(struct cairn_zip_plan *plan, const char *name,
                                              uint64_t bytes, uint32_t *index);

/* Bytes of the whole archive as it stands. */
uint64_t cairn_zip_plan_bytes(const struct cairn_zip_plan *plan);

/* The first hole from entry `from` on; entry_count behind the last one. */
uint32_t cairn_zip_plan_hole(const struct cairn_zip_plan *plan, uint32_t from);

/* Packs what lies between two holes: behind the data of entry `from` - 1 (0: the archive's start)
 * up to the data of entry `hole`, or the archive's end. Only what is behind an entry's data holds
 * its checksum. *at counts from the archive's start; the caller frees *bytes. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_zip_plan_pack(const struct cairn_zip_plan *plan, uint32_t from,
                                               uint32_t hole, uint64_t *at, uint8_t **bytes,
                                               size_t *bytes_len);

#endif
