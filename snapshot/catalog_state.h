/* snapshot/catalog_state.h - the catalog's own record and its copy in the side file, for catalog.c
 * alone. */
#ifndef CAIRN_SNAPSHOT_CATALOG_STATE_H
#define CAIRN_SNAPSHOT_CATALOG_STATE_H

#include "snapshot/catalog.h"

enum { CAIRN_CATALOG_STATE_BYTES = 8 + 4 + 8 + 8 + (CAIRN_TABLE_COUNT - 1) * 16 + 8 };

#define CAIRN_CATALOG_SIDE_NAME "SIDE"
#define CAIRN_CATALOG_CURE                                                                         \
    "move this directory away and start again: the catalog is rebuilt from the arenas, the peers " \
    "and the spilled generations"

struct cairn_catalog_state {
    uint64_t id;      /* random, made with the catalog */
    uint64_t counter; /* batches */
    uint64_t records[CAIRN_TABLE_COUNT];
    uint64_t digest[CAIRN_TABLE_COUNT]; /* sum of the records' checksums mod 2^64 */
};

void cairn_catalog_state_pack(const struct cairn_catalog_state *state,
                              uint8_t bytes[CAIRN_CATALOG_STATE_BYTES]);
/* CAIRN_CORRUPT, CAIRN_VERSION; not logged. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_state_unpack(const uint8_t *bytes, size_t bytes_len,
                                                      struct cairn_catalog_state *out);

/* Reads the newest state of a side file; *known is false if the file is empty. `path` is the
 * catalog's, for the log. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_side_read(int side_fd, const char *path,
                                                   struct cairn_catalog_state *out, bool *known);
/* Writes and syncs; does nothing if side_fd is -1. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_side_write(int side_fd,
                                                    const struct cairn_catalog_state *state);

#endif
