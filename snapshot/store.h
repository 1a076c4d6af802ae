/*
 * snapshot/store.h - the table of key-value stores under the catalog: `mem` for tests and
 * simulation, `rocksdb` for disks.
 *
 * A store keeps keys and values in a few tables, and changes any number of them at once: after a
 * write that returned CAIRN_OK all changes are durable (where the store is), after a crash either
 * all or none are there. That what it hands out is complete and undamaged is not its word: the
 * catalog checks (snapshot/catalog.h).
 *
 * Errors: CAIRN_AGAIN another process has it open; CAIRN_CORRUPT it is damaged; CAIRN_FULL,
 * CAIRN_IO, CAIRN_DENIED, CAIRN_NOMEM; each is logged by the store, once. Thread: one at a time;
 * calls may block on the disk.
 */
#ifndef CAIRN_SNAPSHOT_STORE_H
#define CAIRN_SNAPSHOT_STORE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(symbol, value, name): one column family each. */
#define CAIRN_TABLE_LIST(X)                                                                        \
    X(CAIRN_TABLE_STATE, 0, "default") /* the catalog's own record */                              \
    X(CAIRN_TABLE_GENERATIONS, 1, "generations")                                                   \
    X(CAIRN_TABLE_MANIFESTS, 2, "manifests")                                                       \
    X(CAIRN_TABLE_FACTS, 3, "facts")                                                               \
    X(CAIRN_TABLE_EPOCHS, 4, "epochs")                                                             \
    X(CAIRN_TABLE_VERDICTS, 5, "verdicts")                                                         \
    X(CAIRN_TABLE_PLANS, 6, "plans")

enum cairn_table {
#define CAIRN_TABLE_ENUM(symbol, value, name) symbol = value,
    CAIRN_TABLE_LIST(CAIRN_TABLE_ENUM)
#undef CAIRN_TABLE_ENUM
        CAIRN_TABLE_COUNT = 7
};

enum { CAIRN_KEY_BYTES_MAX = 512 };

/* One change of a write; key and value are borrowed. value NULL deletes (a key that is not there,
 * too). */
struct cairn_store_change {
    enum cairn_table table;
    const void *key;
    size_t key_bytes; /* 1 … CAIRN_KEY_BYTES_MAX */
    const void *value;
    size_t value_bytes;
};

/* Sees one record, borrowed for the call; CAIRN_OK goes on, anything else ends the scan with that
 * error. */
typedef cairn_err cairn_store_visit(void *context, const void *key, size_t key_bytes,
                                    const void *value, size_t value_bytes);

struct cairn_store; /* each backend's own */

struct cairn_store_ops {
    const char *name; /* "mem", "rocksdb" */
    bool durable;     /* what is written outlives the process */
    /* `path` is a directory; with create it is made where it is not, without it a missing one is
     * CAIRN_CORRUPT. */
    cairn_err (*open)(const char *path, bool create, struct cairn_store **out);
    void (*close)(struct cairn_store *store); /* NULL is allowed */
    /* A copy of the value that the caller frees; CAIRN_NOT_FOUND. An empty value gives a buffer,
     * too. */
    cairn_err (*get)(struct cairn_store *store, enum cairn_table table, const void *key,
                     size_t key_bytes, uint8_t **value, size_t *value_bytes);
    cairn_err (*write)(struct cairn_store *store, const struct cairn_store_change *changes,
                       size_t count);
    /* All records of a table whose key starts with the prefix, in the order of the keys' bytes. */
    cairn_err (*scan)(struct cairn_store *store, enum cairn_table table, const void *prefix,
                      size_t prefix_bytes, cairn_store_visit *visit, void *context);
};

extern const struct cairn_store_ops cairn_store_mem;
extern const struct cairn_store_ops cairn_store_rocksdb;

/* The name of a table; static. */
const char *cairn_table_name(enum cairn_table table);

#endif
