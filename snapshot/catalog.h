/*
 * snapshot/catalog.h - the catalog: what an agent must still know after it died.
 *
 * Opaque values under keys in the tables of snapshot/store.h. Each transition is one batch: after a
 * crash all of it or nothing is there, and CAIRN_OK means that it is on the disk.
 *
 * A catalog is complete or it is refused. Stores lose committed keys silently (RocksDB opens with
 * none if its MANIFEST is cut), so the catalog proves completeness at open: every value carries a
 * CRC-64 over table, key and value; a state record in each batch counts the batches and holds, per
 * table, the number of records and the sum of their checksums; and a side file, synced after the
 * batch, repeats that record, which detects a store that went back in time. catalog.c has the
 * formats.
 *
 * Layout of the directory: <path>/db (the store) and <path>/SIDE. Thread: one at a time. Calls may
 * block on the disk: about 0.3 ms for a commit on an SSD.
 */
#ifndef CAIRN_SNAPSHOT_CATALOG_H
#define CAIRN_SNAPSHOT_CATALOG_H

#include "snapshot/store.h"

enum { CAIRN_BATCH_CHANGES_MAX = 4096 };

struct cairn_catalog;
struct cairn_batch;

/*
 * Opens (or makes) the catalog in directory `path`; a store that is not durable takes no path
 * (NULL). Reads and checks every record. CAIRN_AGAIN: another process has it open. CAIRN_CORRUPT:
 * damaged or incomplete; the log says what, and what to do (move the directory away and start
 * again: the agent rebuilds the catalog from the arenas, its peers and the spilled generations).
 * The caller ends *out with cairn_catalog_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_catalog_open(const struct cairn_store_ops *ops, const char *path,
                                              struct cairn_catalog **out);
void cairn_catalog_close(struct cairn_catalog *catalog); /* NULL is allowed */

/* A copy of the value, freed by the caller. CAIRN_NOT_FOUND; CAIRN_CORRUPT. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_get(struct cairn_catalog *catalog, enum cairn_table table,
                                             const void *key, size_t key_bytes, uint8_t **value,
                                             size_t *value_bytes);

/* Shows every record with the prefix (NULL, 0: all), in the order of the keys' bytes. Do not commit
 * inside `visit`. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_scan(struct cairn_catalog *catalog, enum cairn_table table,
                                              const void *prefix, size_t prefix_bytes,
                                              cairn_store_visit *visit, void *context);

/* One put or delete as a batch of its own. */
CAIRN_MUST_CHECK cairn_err cairn_catalog_put(struct cairn_catalog *catalog, enum cairn_table table,
                                             const void *key, size_t key_bytes, const void *value,
                                             size_t value_bytes);
CAIRN_MUST_CHECK cairn_err cairn_catalog_delete(struct cairn_catalog *catalog,
                                                enum cairn_table table, const void *key,
                                                size_t key_bytes);

/* A batch copies its keys and values. The commit returns the errors of its calls (CAIRN_NOMEM,
 * CAIRN_INVAL). */
CAIRN_MUST_CHECK cairn_err cairn_batch_create(struct cairn_batch **out);
void cairn_batch_destroy(struct cairn_batch *batch); /* NULL is allowed */
void cairn_batch_put(struct cairn_batch *batch, enum cairn_table table, const void *key,
                     size_t key_bytes, const void *value, size_t value_bytes);
void cairn_batch_delete(struct cairn_batch *batch, enum cairn_table table, const void *key,
                        size_t key_bytes);

/*
 * Makes the batch durable, and empties it. The last change of a key wins. CAIRN_INVAL and
 * CAIRN_NOMEM: nothing happened. After any other error the state of the batch is unknown: the
 * catalog then refuses every further commit with CAIRN_IO until it is opened again, and still
 * reads.
 */
CAIRN_MUST_CHECK cairn_err cairn_catalog_commit(struct cairn_catalog *catalog,
                                                struct cairn_batch *batch);

/* Batches committed since the catalog was made. */
uint64_t cairn_catalog_counter(const struct cairn_catalog *catalog);

#endif
