/* snapshot/catalog_batch.c - batches: copies of the keys and values to put and delete, in the
 * store's form. */
#include "snapshot/catalog_batch.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/wire.h"

bool
cairn_record_key_fits(enum cairn_table table, const void *key, size_t key_bytes)
{
    return (int)table > CAIRN_TABLE_STATE && (int)table < CAIRN_TABLE_COUNT && key &&
           key_bytes > 0 && key_bytes <= CAIRN_KEY_BYTES_MAX;
}

uint64_t
cairn_record_crc(enum cairn_table table, const void *key, size_t key_bytes, const void *value,
                 size_t value_bytes)
{
    uint8_t head[8];
    struct cairn_writer writer;
    uint64_t crc;

    cairn_writer_init(&writer, head, sizeof(head));
    cairn_write_u32(&writer, (uint32_t)table);
    cairn_write_u32(&writer, (uint32_t)key_bytes);
    crc = cairn_crc64(0, head, sizeof(head));
    crc = cairn_crc64(crc, key, key_bytes);
    return value_bytes ? cairn_crc64(crc, value, value_bytes) : crc;
}

uint64_t
cairn_record_stored_crc(const uint8_t *value, size_t value_bytes)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, value + value_bytes - CAIRN_RECORD_CRC_BYTES,
                      CAIRN_RECORD_CRC_BYTES);
    return cairn_read_u64(&reader);
}

cairn_err
cairn_batch_create(struct cairn_batch **out)
{
    struct cairn_batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        return CAIRN_NOMEM;
    *out = batch;
    return CAIRN_OK;
}

void
cairn_batch_empty(struct cairn_batch *batch)
{
    for (size_t i = 0; i < batch->count; i++)
        free((void *)(uintptr_t)batch->changes[i].key); /* the value follows the key */
    batch->count = 0;
    batch->err = CAIRN_OK;
}

void
cairn_batch_destroy(struct cairn_batch *batch)
{
    if (!batch)
        return;
    cairn_batch_empty(batch);
    free(batch->changes);
    free(batch);
}

/* Adds a change with a copy of the key and, with `value`, of the value and its checksum. */
static cairn_err
add(struct cairn_batch *batch, enum cairn_table table, const void *key, size_t key_bytes,
    const void *value, size_t value_bytes)
{
    struct cairn_store_change change = {.table = table, .key_bytes = key_bytes};
    struct cairn_writer writer;
    uint8_t *bytes;

    if (!cairn_record_key_fits(table, key, key_bytes) || batch->count == CAIRN_BATCH_CHANGES_MAX ||
        value_bytes > SIZE_MAX / 2)
        return CAIRN_INVAL;
    if (batch->count + 2 > batch->room) {
        size_t room = batch->room ? batch->room * 2 : 16;
        struct cairn_store_change *grown = realloc(batch->changes, room * sizeof(*grown));

        if (!grown)
            return CAIRN_NOMEM;
        batch->changes = grown;
        batch->room = room;
    }
    bytes = malloc(key_bytes + value_bytes + CAIRN_RECORD_CRC_BYTES);
    if (!bytes)
        return CAIRN_NOMEM;
    memcpy(bytes, key, key_bytes);
    change.key = bytes;
    if (value) {
        if (value_bytes)
            memcpy(bytes + key_bytes, value, value_bytes);
        cairn_writer_init(&writer, bytes + key_bytes + value_bytes, CAIRN_RECORD_CRC_BYTES);
        cairn_write_u64(&writer, cairn_record_crc(table, key, key_bytes, value, value_bytes));
        change.value = bytes + key_bytes;
        change.value_bytes = value_bytes + CAIRN_RECORD_CRC_BYTES;
    }
    batch->changes[batch->count++] = change;
    return CAIRN_OK;
}

void
cairn_batch_put(struct cairn_batch *batch, enum cairn_table table, const void *key,
                size_t key_bytes, const void *value, size_t value_bytes)
{
    cairn_err err = add(batch, table, key, key_bytes, value ? value : "", value ? value_bytes : 0);

    if (batch->err == CAIRN_OK)
        batch->err = value || value_bytes == 0 ? err : CAIRN_INVAL;
}

void
cairn_batch_delete(struct cairn_batch *batch, enum cairn_table table, const void *key,
                   size_t key_bytes)
{
    cairn_err err = add(batch, table, key, key_bytes, NULL, 0);

    if (batch->err == CAIRN_OK)
        batch->err = err;
}
