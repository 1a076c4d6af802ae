/*
 * snapshot/catalog.c - the catalog: records with checksums over a store, and the proof that none is
 * missing.
 *
 * A stored value is the caller's value, then a u64: the CRC-64 of (u32 table, u32 key_bytes, key,
 * value).
 *
 * catalog_state.c specifies the state record and the side file.
 *
 * Open accepts only: (a) nothing at all: a new catalog; (b) a state record with counter 0 and no
 * side file: a crash while it was made; (c) a state record with the side file's id and no lower
 * counter that agrees with the count and digest of every table, computed from every record. So if
 * RocksDB silently loses records, at the tail, in the middle or all of them, open returns
 * CAIRN_CORRUPT.
 */
#include "snapshot/catalog.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/file.h"
#include "base/log.h"
#include "snapshot/catalog_batch.h"
#include "snapshot/catalog_state.h"

static const char state_key[5] = {'s', 't', 'a', 't', 'e'};

struct cairn_catalog {
    const struct cairn_store_ops *ops;
    struct cairn_store *store;
    char *path;  /* for messages */
    int side_fd; /* -1 where the store is not durable */
    bool failed; /* a commit's end is unknown */
    struct cairn_catalog_state state;
};

/* Checks a stored value; its caller's part is then value_bytes - CAIRN_RECORD_CRC_BYTES long. */
static cairn_err
record_check(const struct cairn_catalog *catalog, enum cairn_table table, const void *key,
             size_t key_bytes, const uint8_t *value, size_t value_bytes)
{
    if (value_bytes >= CAIRN_RECORD_CRC_BYTES &&
        cairn_record_stored_crc(value, value_bytes) ==
            cairn_record_crc(table, key, key_bytes, value, value_bytes - CAIRN_RECORD_CRC_BYTES))
        return CAIRN_OK;
    CAIRN_LOG_AT(ERROR, "catalog: a record is damaged path=%s table=%s key_bytes=%zu: %s",
                 catalog->path, cairn_table_name(table), key_bytes, CAIRN_CATALOG_CURE);
    return CAIRN_CORRUPT;
}

/* ---- open ---- */

struct tally {
    const struct cairn_catalog *catalog;
    enum cairn_table table;
    uint64_t records;
    uint64_t digest;
};

static cairn_err
tally_record(void *context, const void *key, size_t key_bytes, const void *value,
             size_t value_bytes)
{
    struct tally *tally = context;
    cairn_err err = record_check(tally->catalog, tally->table, key, key_bytes, value, value_bytes);

    if (err)
        return err;
    tally->records++;
    tally->digest += cairn_record_stored_crc(value, value_bytes);
    return CAIRN_OK;
}

/* Reads every record and compares with the state. */
static cairn_err
check_tables(struct cairn_catalog *catalog)
{
    for (int t = 1; t < CAIRN_TABLE_COUNT; t++) {
        struct tally tally = {.catalog = catalog, .table = (enum cairn_table)t};
        cairn_err err =
            catalog->ops->scan(catalog->store, tally.table, NULL, 0, tally_record, &tally);

        if (err)
            return err;
        if (tally.records == catalog->state.records[t] && tally.digest == catalog->state.digest[t])
            continue;
        CAIRN_LOG_AT(ERROR,
                     "catalog: incomplete path=%s table=%s records=%" PRIu64 " expected=%" PRIu64
                     ": %s",
                     catalog->path, cairn_table_name(tally.table), tally.records,
                     catalog->state.records[t], CAIRN_CATALOG_CURE);
        return CAIRN_CORRUPT;
    }
    return CAIRN_OK;
}

/* Reads the state record of the store. */
static cairn_err
load_state(struct cairn_catalog *catalog, bool *known)
{
    uint8_t *value = NULL;
    size_t value_bytes = 0;
    cairn_err err = catalog->ops->get(catalog->store, CAIRN_TABLE_STATE, state_key,
                                      sizeof(state_key), &value, &value_bytes);

    if (err == CAIRN_NOT_FOUND) {
        *known = false;
        return CAIRN_OK;
    }
    if (err)
        return err;
    err = cairn_catalog_state_unpack(value, value_bytes, &catalog->state);
    free(value);
    if (err)
        CAIRN_LOG_AT(ERROR, "catalog: the state record is %s path=%s: %s",
                     err == CAIRN_VERSION ? "of another version" : "damaged", catalog->path,
                     CAIRN_CATALOG_CURE);
    *known = err == CAIRN_OK;
    return err;
}

static cairn_err
create_state(struct cairn_catalog *catalog)
{
    uint8_t bytes[CAIRN_CATALOG_STATE_BYTES];
    struct cairn_store_change change = {.table = CAIRN_TABLE_STATE,
                                        .key = state_key,
                                        .key_bytes = sizeof(state_key),
                                        .value = bytes,
                                        .value_bytes = sizeof(bytes)};

    memset(&catalog->state, 0, sizeof(catalog->state));
    if (getrandom(&catalog->state.id, sizeof(catalog->state.id), 0) !=
        (ssize_t)sizeof(catalog->state.id))
        return CAIRN_IO;
    cairn_catalog_state_pack(&catalog->state, bytes);
    return catalog->ops->write(catalog->store, &change, 1);
}

/* Decides whether the store and the side file agree, and makes a new catalog if both are empty. */
static cairn_err
reconcile(struct cairn_catalog *catalog, const struct cairn_catalog_state *side, bool side_known)
{
    const char *why = NULL;
    bool known = false;
    cairn_err err = load_state(catalog, &known);

    if (err)
        return err;
    if (!known && !side_known) {
        err = check_tables(catalog); /* the state is all zero: no table may hold anything */
        if (err == CAIRN_OK)
            err = create_state(catalog);
        return err ? err : cairn_catalog_side_write(catalog->side_fd, &catalog->state);
    }
    if (!known)
        why = "the store has lost its records";
    else if (catalog->side_fd >= 0 && !side_known && catalog->state.counter > 0)
        why = "the side file is missing";
    else if (side_known && side->id != catalog->state.id)
        why = "the side file belongs to another catalog";
    else if (side_known && catalog->state.counter < side->counter)
        why = "the store has lost its newest batches";
    else if (side_known && catalog->state.counter == side->counter &&
             memcmp(side, &catalog->state, sizeof(*side)) != 0)
        why = "the store and the side file differ";
    if (why) {
        CAIRN_LOG_AT(ERROR,
                     "catalog: refused path=%s: %s (batches in the store=%" PRIu64
                     ", in the side file=%" PRIu64 "): %s",
                     catalog->path, why, known ? catalog->state.counter : 0,
                     side_known ? side->counter : 0, CAIRN_CATALOG_CURE);
        return CAIRN_CORRUPT;
    }
    err = check_tables(catalog);
    if (err == CAIRN_OK && (!side_known || side->counter != catalog->state.counter))
        err = cairn_catalog_side_write(catalog->side_fd, &catalog->state);
    return err;
}

/* Makes the directory and opens the side file. */
static cairn_err
open_side(struct cairn_catalog *catalog, struct cairn_catalog_state *side, bool *side_known)
{
    int dir_fd = -1;
    cairn_err err = cairn_dir_make(AT_FDCWD, catalog->path);

    if (err == CAIRN_NOT_FOUND)
        CAIRN_LOG_AT(ERROR, "catalog: open failed path=%s: the directory above it does not exist",
                     catalog->path);
    if (err)
        return err;
    err = cairn_file_open(AT_FDCWD, catalog->path, CAIRN_FILE_DIRECTORY_LINKED, &dir_fd);
    if (err)
        return err;
    err = cairn_file_open(dir_fd, CAIRN_CATALOG_SIDE_NAME, CAIRN_FILE_UPDATE, &catalog->side_fd);
    if (err)
        goto done;
    err = cairn_file_sync(dir_fd); /* the file's name, before anything counts on the file */
    if (err)
        goto done;
    err = cairn_catalog_side_read(catalog->side_fd, catalog->path, side, side_known);
done:
    (void)cairn_file_close(dir_fd);
    return err;
}

cairn_err
cairn_catalog_open(const struct cairn_store_ops *ops, const char *path, struct cairn_catalog **out)
{
    struct cairn_catalog *catalog = calloc(1, sizeof(*catalog));
    char *store_path = NULL;
    struct cairn_catalog_state side = {0};
    bool side_known = false;
    cairn_err err = CAIRN_NOMEM;
    size_t path_bytes = path ? strlen(path) : 0;

    if (!catalog)
        return CAIRN_NOMEM;
    catalog->ops = ops;
    catalog->side_fd = -1;
    catalog->path = strdup(path ? path : "(memory)");
    store_path = malloc(path_bytes + sizeof("/db"));
    if (!catalog->path || !store_path)
        goto done;
    if (ops->durable) {
        err = path_bytes ? open_side(catalog, &side, &side_known) : CAIRN_INVAL;
        if (err)
            goto done;
    }
    (void)snprintf(store_path, path_bytes + sizeof("/db"), "%s/db", path ? path : "");
    err = ops->open(store_path, !side_known, &catalog->store);
    if (err)
        goto done;
    err = reconcile(catalog, &side, side_known);
    if (err)
        goto done;
    *out = catalog;
    catalog = NULL;
done:
    free(store_path);
    cairn_catalog_close(catalog);
    return err;
}

void
cairn_catalog_close(struct cairn_catalog *catalog)
{
    if (!catalog)
        return;
    catalog->ops->close(catalog->store);
    (void)cairn_file_close(catalog->side_fd); /* every write to it was synced */
    free(catalog->path);
    free(catalog);
}

/* ---- reading ---- */

cairn_err
cairn_catalog_get(struct cairn_catalog *catalog, enum cairn_table table, const void *key,
                  size_t key_bytes, uint8_t **value, size_t *value_bytes)
{
    uint8_t *stored = NULL;
    size_t stored_bytes = 0;
    cairn_err err;

    if (!cairn_record_key_fits(table, key, key_bytes))
        return CAIRN_INVAL;
    err = catalog->ops->get(catalog->store, table, key, key_bytes, &stored, &stored_bytes);
    if (err)
        return err;
    err = record_check(catalog, table, key, key_bytes, stored, stored_bytes);
    if (err) {
        free(stored);
        return err;
    }
    *value = stored;
    *value_bytes = stored_bytes - CAIRN_RECORD_CRC_BYTES;
    return CAIRN_OK;
}

struct scan {
    const struct cairn_catalog *catalog;
    enum cairn_table table;
    cairn_store_visit *visit;
    void *context;
};

static cairn_err
scan_record(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    struct scan *scan = context;
    cairn_err err = record_check(scan->catalog, scan->table, key, key_bytes, value, value_bytes);

    if (err)
        return err;
    return scan->visit(scan->context, key, key_bytes, value, value_bytes - CAIRN_RECORD_CRC_BYTES);
}

cairn_err
cairn_catalog_scan(struct cairn_catalog *catalog, enum cairn_table table, const void *prefix,
                   size_t prefix_bytes, cairn_store_visit *visit, void *context)
{
    struct scan scan = {.catalog = catalog, .table = table, .visit = visit, .context = context};

    if ((int)table <= CAIRN_TABLE_STATE || (int)table >= CAIRN_TABLE_COUNT ||
        prefix_bytes > CAIRN_KEY_BYTES_MAX)
        return CAIRN_INVAL;
    return catalog->ops->scan(catalog->store, table, prefix, prefix_bytes, scan_record, &scan);
}

/* ---- commit ---- */

/* The checksum of a key's value before change `index` of the batch; *held false if it has none. */
static cairn_err
previous_crc(struct cairn_catalog *catalog, const struct cairn_batch *batch, size_t index,
             bool *held, uint64_t *crc)
{
    const struct cairn_store_change *change = &batch->changes[index];
    uint8_t *value = NULL;
    size_t value_bytes = 0;
    cairn_err err;

    for (size_t i = index; i-- > 0;) {
        const struct cairn_store_change *earlier = &batch->changes[i];

        if (earlier->table != change->table || earlier->key_bytes != change->key_bytes ||
            memcmp(earlier->key, change->key, change->key_bytes) != 0)
            continue;
        *held = earlier->value != NULL;
        *crc = *held ? cairn_record_stored_crc(earlier->value, earlier->value_bytes) : 0;
        return CAIRN_OK;
    }
    err = catalog->ops->get(catalog->store, change->table, change->key, change->key_bytes, &value,
                            &value_bytes);
    *held = err == CAIRN_OK;
    *crc = 0;
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    if (err)
        return err;
    err = record_check(catalog, change->table, change->key, change->key_bytes, value, value_bytes);
    if (err == CAIRN_OK)
        *crc = cairn_record_stored_crc(value, value_bytes);
    free(value);
    return err;
}

/* The state after the batch. */
static cairn_err
next_state(struct cairn_catalog *catalog, const struct cairn_batch *batch,
           struct cairn_catalog_state *out)
{
    struct cairn_catalog_state next = catalog->state;

    next.counter++;
    for (size_t i = 0; i < batch->count; i++) {
        const struct cairn_store_change *change = &batch->changes[i];
        bool held;
        uint64_t crc;
        cairn_err err = previous_crc(catalog, batch, i, &held, &crc);

        if (err)
            return err;
        next.records[change->table] += (change->value != NULL) - (uint64_t)held;
        next.digest[change->table] -= crc;
        if (change->value)
            next.digest[change->table] +=
                cairn_record_stored_crc(change->value, change->value_bytes);
    }
    *out = next;
    return CAIRN_OK;
}

cairn_err
cairn_catalog_commit(struct cairn_catalog *catalog, struct cairn_batch *batch)
{
    uint8_t bytes[CAIRN_CATALOG_STATE_BYTES];
    struct cairn_catalog_state next;
    cairn_err err = batch->err;

    if (err)
        return err;
    if (catalog->failed) {
        CAIRN_LOG_AT(ERROR, "catalog: commit refused path=%s: an earlier one failed",
                     catalog->path);
        return CAIRN_IO;
    }
    if (batch->count == 0)
        return CAIRN_OK;
    err = next_state(catalog, batch, &next);
    if (err)
        return err;
    cairn_catalog_state_pack(&next, bytes);
    batch->changes[batch->count] = (struct cairn_store_change){
        .table = CAIRN_TABLE_STATE, /* beyond count, in the room that add() left */
        .key = state_key,
        .key_bytes = sizeof(state_key),
        .value = bytes,
        .value_bytes = sizeof(bytes)};
    err = catalog->ops->write(catalog->store, batch->changes, batch->count + 1);
    if (err == CAIRN_NOMEM)
        return err; /* before anything was written */
    if (err == CAIRN_OK)
        err = cairn_catalog_side_write(catalog->side_fd, &next);
    if (err) {
        catalog->failed = true;
        return err;
    }
    catalog->state = next;
    cairn_batch_empty(batch);
    return CAIRN_OK;
}

cairn_err
cairn_catalog_put(struct cairn_catalog *catalog, enum cairn_table table, const void *key,
                  size_t key_bytes, const void *value, size_t value_bytes)
{
    struct cairn_batch *batch = NULL;
    cairn_err err = cairn_batch_create(&batch);

    if (err)
        return err;
    cairn_batch_put(batch, table, key, key_bytes, value, value_bytes);
    err = cairn_catalog_commit(catalog, batch);
    cairn_batch_destroy(batch);
    return err;
}

cairn_err
cairn_catalog_delete(struct cairn_catalog *catalog, enum cairn_table table, const void *key,
                     size_t key_bytes)
{
    struct cairn_batch *batch = NULL;
    cairn_err err = cairn_batch_create(&batch);

    if (err)
        return err;
    cairn_batch_delete(batch, table, key, key_bytes);
    err = cairn_catalog_commit(catalog, batch);
    cairn_batch_destroy(batch);
    return err;
}

uint64_t
cairn_catalog_counter(const struct cairn_catalog *catalog)
{
    return catalog->state.counter;
}
