/* snapshot/catalog_batch.h - what a batch is, for catalog.c and catalog_batch.c alone. */
#ifndef CAIRN_SNAPSHOT_CATALOG_BATCH_H
#define CAIRN_SNAPSHOT_CATALOG_BATCH_H

#include "snapshot/catalog.h"

enum { CAIRN_RECORD_CRC_BYTES = 8 };

struct cairn_batch {
    struct cairn_store_change *changes; /* keys and values as stored, checksum behind; owned */
    size_t count;
    size_t room;   /* one more than count at least, for the state record */
    cairn_err err; /* the first that a put or delete met */
};

/* The checksum that stands behind a stored value. */
uint64_t cairn_record_crc(enum cairn_table table, const void *key, size_t key_bytes,
                          const void *value, size_t value_bytes);

/* Reads it from a stored value of at least CAIRN_RECORD_CRC_BYTES bytes. */
uint64_t cairn_record_stored_crc(const uint8_t *value, size_t value_bytes);

/* True for a key that a caller may use in a table that a caller may use. */
bool cairn_record_key_fits(enum cairn_table table, const void *key, size_t key_bytes);

void cairn_batch_empty(struct cairn_batch *batch);

#endif
