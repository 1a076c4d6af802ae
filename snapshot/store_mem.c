/* snapshot/store_mem.c - the store in memory: sorted arrays, one per table; for tests and
 * simulation. */
#include "snapshot/store.h"
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

struct record {
    uint8_t *bytes; /* the key, then the value */
    size_t key_bytes;
    size_t value_bytes;
};

struct table {
    struct record *records; /* by key */
    size_t count;
    size_t room;
};

struct cairn_store {
    struct table tables[CAIRN_TABLE_COUNT];
};

const char *
cairn_table_name(enum cairn_table table)
{
    static const char *const names[] = {
#define TABLE_NAME(symbol, value, name) [value] = name,
        CAIRN_TABLE_LIST(TABLE_NAME)
#undef TABLE_NAME
    };

    return (unsigned)table < CAIRN_TABLE_COUNT ? names[table] : "?";
}

static int
key_compare(const struct record *record, const void *key, size_t key_bytes)
{
    size_t common = record->key_bytes < key_bytes ? record->key_bytes : key_bytes;
    int order = common ? memcmp(record->bytes, key, common) : 0;

    if (order != 0)
        return order;
    return record->key_bytes < key_bytes ? -1 : record->key_bytes > key_bytes;
}

/* Index of the first record whose key is not less; *equal says whether it is that key. */
static size_t
find(const struct table *table, const void *key, size_t key_bytes, bool *equal)
{
    size_t low = 0, high = table->count;

    CAIRN_BISECT(low, high, middle, key_compare(&table->records[middle], key, key_bytes) < 0);
    *equal = low < table->count && key_compare(&table->records[low], key, key_bytes) == 0;
    return low;
}

static cairn_err
mem_open(const char *path, bool create, struct cairn_store **out)
{
    struct cairn_store *store = calloc(1, sizeof(*store));

    (void)path;
    (void)create;
    if (!store)
        return CAIRN_NOMEM;
    *out = store;
    return CAIRN_OK;
}

static void
mem_close(struct cairn_store *store)
{
    if (!store)
        return;
    for (int t = 0; t < CAIRN_TABLE_COUNT; t++) {
        for (size_t i = 0; i < store->tables[t].count; i++)
            free(store->tables[t].records[i].bytes);
        free(store->tables[t].records);
    }
    free(store);
}

static cairn_err
mem_get(struct cairn_store *store, enum cairn_table table, const void *key, size_t key_bytes,
        uint8_t **value, size_t *value_bytes)
{
    const struct record *record;
    uint8_t *copy;
    bool equal;
    size_t at = find(&store->tables[table], key, key_bytes, &equal);

    if (!equal)
        return CAIRN_NOT_FOUND;
    record = &store->tables[table].records[at];
    copy = malloc(record->value_bytes + 1);
    if (!copy)
        return CAIRN_NOMEM;
    memcpy(copy, record->bytes + record->key_bytes, record->value_bytes);
    *value = copy;
    *value_bytes = record->value_bytes;
    return CAIRN_OK;
}

/* Everything that can fail: the copies of the records, and room in the tables for all of them. */
static cairn_err
prepare(struct cairn_store *store, const struct cairn_store_change *changes, size_t count,
        struct record *records)
{
    size_t added[CAIRN_TABLE_COUNT] = {0};

    for (size_t i = 0; i < count; i++) {
        const struct cairn_store_change *change = &changes[i];

        if (!change->value)
            continue;
        records[i].key_bytes = change->key_bytes;
        records[i].value_bytes = change->value_bytes;
        records[i].bytes = malloc(change->key_bytes + change->value_bytes);
        if (!records[i].bytes)
            return CAIRN_NOMEM;
        memcpy(records[i].bytes, change->key, change->key_bytes);
        memcpy(records[i].bytes + change->key_bytes, change->value, change->value_bytes);
        added[change->table]++;
    }
    for (int t = 0; t < CAIRN_TABLE_COUNT; t++) {
        struct table *table = &store->tables[t];
        size_t need = table->count + added[t];
        size_t room = table->room * 2 > need ? table->room * 2 : need;
        struct record *grown;

        if (need <= table->room)
            continue;
        grown = realloc(table->records, room * sizeof(*grown));
        if (!grown)
            return CAIRN_NOMEM;
        table->records = grown;
        table->room = room;
    }
    return CAIRN_OK;
}

static cairn_err
mem_write(struct cairn_store *store, const struct cairn_store_change *changes, size_t count)
{
    struct record *records = calloc(count + 1, sizeof(*records));
    cairn_err err = records ? prepare(store, changes, count, records) : CAIRN_NOMEM;

    if (err)
        goto done;
    for (size_t i = 0; i < count; i++) {
        struct table *table = &store->tables[changes[i].table];
        bool equal;
        size_t at = find(table, changes[i].key, changes[i].key_bytes, &equal);
        size_t after = table->count - at;

        if (equal)
            free(table->records[at].bytes);
        if (!changes[i].value && equal) {
            memmove(&table->records[at], &table->records[at + 1], (after - 1) * sizeof(*records));
            table->count--;
        } else if (changes[i].value) {
            if (!equal) {
                memmove(&table->records[at + 1], &table->records[at], after * sizeof(*records));
                table->count++;
            }
            table->records[at] = records[i];
            records[i].bytes = NULL;
        }
    }
done:
    for (size_t i = 0; records && i < count; i++)
        free(records[i].bytes);
    free(records);
    return err;
}

static cairn_err
mem_scan(struct cairn_store *store, enum cairn_table table, const void *prefix, size_t prefix_bytes,
         cairn_store_visit *visit, void *context)
{
    const struct table *scanned = &store->tables[table];
    bool equal;

    for (size_t i = prefix_bytes ? find(scanned, prefix, prefix_bytes, &equal) : 0;
         i < scanned->count; i++) {
        const struct record *record = &scanned->records[i];
        cairn_err err;

        if (record->key_bytes < prefix_bytes ||
            (prefix_bytes && memcmp(record->bytes, prefix, prefix_bytes) != 0))
            break;
        err = visit(context, record->bytes, record->key_bytes, record->bytes + record->key_bytes,
                    record->value_bytes);
        if (err)
            return err;
    }
    return CAIRN_OK;
}

const struct cairn_store_ops cairn_store_mem = {
    .name = "mem",
    .durable = false,
    .open = mem_open,
    .close = mem_close,
    .get = mem_get,
    .write = mem_write,
    .scan = mem_scan,
};
