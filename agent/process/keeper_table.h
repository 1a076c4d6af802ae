/*
 * agent/process/keeper_table.h - a keeper's descriptors by name.
 *
 * Invariant: items[] is sorted by name, bytewise, without duplicates; each fd is open and the
 * table's.
 */
#ifndef CAIRN_AGENT_PROCESS_KEEPER_TABLE_H
#define CAIRN_AGENT_PROCESS_KEEPER_TABLE_H

#include "agent/process/keeper.h"

#include <sys/types.h>

struct cairn_keeper_held {
    char name[CAIRN_KEEPER_NAME_BYTES_MAX];
    uint64_t bytes;
    dev_t device; /* with inode: which file it is */
    ino_t inode;
    int fd;
};

/* Empty when zeroed. */
struct cairn_keeper_table {
    struct cairn_keeper_held *items;
    uint32_t count;
};

/* Closes everything. */
void cairn_keeper_table_fini(struct cairn_keeper_table *table);

/*
 * Takes fd over under a name of less than CAIRN_KEEPER_NAME_BYTES_MAX bytes; on failure the caller
 * keeps it. The same file under the same name: CAIRN_OK, and only fd is closed. CAIRN_INVAL for an
 * empty name, one that another file has, or an fd that is not a plain file of `bytes` bytes;
 * CAIRN_FULL at CAIRN_KEEPER_ITEMS_MAX; CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_keeper_table_put(struct cairn_keeper_table *table,
                                                  const char *name, int fd, uint64_t bytes);

/* Closes and forgets one. CAIRN_NOT_FOUND. */
CAIRN_MUST_CHECK cairn_err cairn_keeper_table_drop(struct cairn_keeper_table *table,
                                                   const char *name);

/* The index of the first name after `after`; `count` without one. */
uint32_t cairn_keeper_table_behind(const struct cairn_keeper_table *table, const char *after);

#endif
