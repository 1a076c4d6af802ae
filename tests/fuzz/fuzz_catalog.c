/*
 * tests/fuzz/fuzz_catalog.c - a store and a side file with any records in them: the catalog is
 * refused, or opens with every record readable and takes a new one.
 *
 *     byte 0   bit 0: records get their checksums; bit 1: the store has the state record that fits
 *              them; bit 2: the rest is a side file
 *     then     records: table, key's length, value's length, key, value
 */
#include "base/crc.h"
#include "base/log.h"
#include "snapshot/catalog.h"
#include "snapshot/catalog_batch.h"
#include "snapshot/catalog_state.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RECORD_BYTES_MAX = 255 + CAIRN_RECORD_CRC_BYTES, SLOT_BYTES = 512 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t *input;
static size_t input_len;

static void
put_u64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

static void
write_record(struct cairn_store *store, uint8_t table, const uint8_t *key, size_t key_bytes,
             const uint8_t *value, size_t value_bytes, bool sealed)
{
    uint8_t stored[RECORD_BYTES_MAX];
    struct cairn_store_change change = {.table = (enum cairn_table)(table % CAIRN_TABLE_COUNT),
                                        .key = key,
                                        .key_bytes = key_bytes,
                                        .value = stored,
                                        .value_bytes = value_bytes};

    memcpy(stored, value, value_bytes);
    if (sealed) {
        put_u64(stored + value_bytes,
                cairn_record_crc(change.table, key, key_bytes, value, value_bytes));
        change.value_bytes += CAIRN_RECORD_CRC_BYTES;
    }
    require(cairn_store_mem.write(store, &change, 1) == CAIRN_OK);
}

static cairn_err
count_record(void *context, const void *key, size_t key_bytes, const void *value,
             size_t value_bytes)
{
    uint64_t *sums = context;

    sums[0]++;
    if (value_bytes >= CAIRN_RECORD_CRC_BYTES)
        sums[1] += cairn_record_stored_crc(value, value_bytes);
    return CAIRN_OK;
}

/* Opens a store that holds the records of the input. */
static cairn_err
open_filled(const char *path, bool create, struct cairn_store **out)
{
    struct cairn_catalog_state state = {.id = 1, .counter = 9};
    const uint8_t *at = input + 1, *end = input + input_len;
    uint8_t packed[CAIRN_CATALOG_STATE_BYTES];
    struct cairn_store_change change = {CAIRN_TABLE_STATE, "state", 5, packed, sizeof packed};
    struct cairn_store *store = NULL;

    require(cairn_store_mem.open(path, create, &store) == CAIRN_OK);
    while (end - at > 3 && (size_t)(end - at) >= 3u + at[1] + at[2]) {
        if (at[1] > 0)
            write_record(store, at[0], at + 3, at[1], at + 3 + at[1], at[2], input[0] & 1);
        at += 3 + at[1] + at[2];
    }
    if (input[0] & 2) {
        for (int t = 1; t < CAIRN_TABLE_COUNT; t++) {
            uint64_t sums[2] = {0, 0};

            require(cairn_store_mem.scan(store, (enum cairn_table)t, NULL, 0, count_record, sums) ==
                    CAIRN_OK);
            state.records[t] = sums[0];
            state.digest[t] = sums[1];
        }
        cairn_catalog_state_pack(&state, packed);
        require(cairn_store_mem.write(store, &change, 1) == CAIRN_OK);
    }
    *out = store;
    return CAIRN_OK;
}

struct visit {
    struct cairn_catalog *catalog;
    enum cairn_table table;
};

static cairn_err
get_again(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    const struct visit *visit = context;
    uint8_t *again = NULL;
    size_t again_bytes = 0;

    require(cairn_catalog_get(visit->catalog, visit->table, key, key_bytes, &again, &again_bytes) ==
            CAIRN_OK);
    require(again_bytes == value_bytes &&
            (value_bytes == 0 || memcmp(again, value, value_bytes) == 0));
    free(again);
    return CAIRN_OK;
}

static void
try_catalog(void)
{
    struct cairn_store_ops ops = cairn_store_mem;
    struct visit visit = {0};
    uint8_t *value = NULL;
    size_t value_bytes = 0;
    cairn_err err;

    ops.open = open_filled;
    err = cairn_catalog_open(&ops, NULL, &visit.catalog);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_VERSION);
    if (err)
        return;
    for (int t = 1; t < CAIRN_TABLE_COUNT; t++) {
        visit.table = (enum cairn_table)t;
        require(cairn_catalog_scan(visit.catalog, visit.table, NULL, 0, get_again, &visit) ==
                CAIRN_OK);
    }
    require(cairn_catalog_put(visit.catalog, CAIRN_TABLE_FACTS, "k", 1, "new", 3) == CAIRN_OK);
    require(cairn_catalog_get(visit.catalog, CAIRN_TABLE_FACTS, "k", 1, &value, &value_bytes) ==
            CAIRN_OK);
    require(value_bytes == 3 && memcmp(value, "new", 3) == 0);
    free(value);
    cairn_catalog_close(visit.catalog);
}

static void
try_side(void)
{
    static uint8_t bytes[2 * SLOT_BYTES];
    struct cairn_catalog_state state;
    size_t bytes_len = input_len - 1 < sizeof bytes ? input_len - 1 : sizeof bytes;
    bool known = false;
    int fd = memfd_create("side", MFD_CLOEXEC);
    cairn_err err;

    require(fd >= 0);
    memcpy(bytes, input + 1, bytes_len);
    for (size_t at = 0; input[0] & 1 && at + CAIRN_CATALOG_STATE_BYTES <= bytes_len;
         at += SLOT_BYTES)
        put_u64(bytes + at + CAIRN_CATALOG_STATE_BYTES - 8,
                cairn_crc64(0, bytes + at, CAIRN_CATALOG_STATE_BYTES - 8));
    require(write(fd, bytes, bytes_len) == (ssize_t)bytes_len);
    err = cairn_catalog_side_read(fd, "fuzz", &state, &known);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT || err == CAIRN_VERSION);
    if (!err && known) {
        state.counter++;
        require(cairn_catalog_side_write(fd, &state) == CAIRN_OK);
        require(cairn_catalog_side_read(fd, "fuzz", &state, &known) == CAIRN_OK && known);
    }
    close(fd);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    input = data;
    input_len = size;
    if (data[0] & 4)
        try_side();
    else
        try_catalog();
    return 0;
}
