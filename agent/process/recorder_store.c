/*
 * agent/process/recorder_store.c - the store of a node's history; see recorder_store.h.
 *
 * At most one job is pending, and owns the store meanwhile. After a failed write the store is
 * closed, since RocksDB refuses writes until it is opened again, and everything counts as not
 * stored.
 */
#include "agent/process/recorder_store.h"

#include "base/clock.h"
#include "base/crc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 8, CRC_BYTES = 8, PATH_BYTES = 1024 + 32 };

static const enum cairn_table events_table = CAIRN_TABLE_FACTS;

static const uint64_t pause_after_failure_ns = 60 * CAIRN_NS_PER_S;

struct change {
    uint8_t key[KEY_BYTES];
    size_t value_bytes; /* 0: it is removed */
    uint8_t value[RECORDER_VALUE_BYTES_MAX];
};

struct recorder_store {
    struct cairn_job job;
    struct cairn_workers *disk;
    struct cairn_store *store; /* NULL: closed */
    struct history_book *book;
    char path[PATH_BYTES];
    struct cairn_store_change *changes;
    struct change *storage; /* what they point to */
    size_t count;
    bool is_busy;
    bool failed;
    uint64_t not_before_ns;
    cairn_err err;
};

/* ---- records ---- */

static void
write_key(uint64_t number, uint8_t key[KEY_BYTES])
{
    for (int i = 0; i < KEY_BYTES; i++)
        key[i] = (uint8_t)(number >> (8 * (KEY_BYTES - 1 - i)));
}

static uint64_t
crc_of(const void *key, const void *event, size_t event_bytes)
{
    return cairn_crc64(cairn_crc64(0, key, KEY_BYTES), event, event_bytes);
}

size_t
recorder_record_pack(const struct history_event *event, uint8_t key[8],
                     uint8_t value[RECORDER_VALUE_BYTES_MAX])
{
    size_t bytes = history_event_pack(event, value);
    struct cairn_writer writer;

    if (bytes == 0)
        return 0;
    write_key(event->number, key);
    cairn_writer_init(&writer, value + bytes, CRC_BYTES);
    cairn_write_u64(&writer, crc_of(key, value, bytes));
    return bytes + CRC_BYTES;
}

cairn_err
recorder_record_unpack(const void *key, size_t key_bytes, const void *value, size_t value_bytes,
                       char *text, struct history_event *out)
{
    uint8_t expected[KEY_BYTES];
    struct cairn_reader reader;
    struct history_event event;
    cairn_err err;

    if (key_bytes != KEY_BYTES || value_bytes < CRC_BYTES)
        return CAIRN_CORRUPT;
    cairn_reader_init(&reader, (const uint8_t *)value + value_bytes - CRC_BYTES, CRC_BYTES);
    if (cairn_read_u64(&reader) != crc_of(key, value, value_bytes - CRC_BYTES))
        return CAIRN_CORRUPT;
    err = history_event_unpack(value, value_bytes - CRC_BYTES, text, &event);
    if (err)
        return err;
    write_key(event.number, expected);
    if (memcmp(key, expected, KEY_BYTES) != 0)
        return CAIRN_CORRUPT;
    *out = event;
    return CAIRN_OK;
}

/* ---- loading ---- */

struct loading {
    struct history_book *book;
    uint32_t damaged;
};

static cairn_err
load(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    struct loading *loading = context;
    char text[HISTORY_TEXT_BYTES];
    struct history_event event;
    cairn_err err = recorder_record_unpack(key, key_bytes, value, value_bytes, text, &event);

    if (!err)
        err = history_book_load(loading->book, &event);
    if (err == CAIRN_NOMEM)
        return err;
    loading->damaged += err != CAIRN_OK;
    return CAIRN_OK;
}

/* Moves an unreadable store out of the way, replacing an earlier one there. */
static void
set_aside(const char *path)
{
    char aside[PATH_BYTES + 16], **names = NULL;
    size_t count = 0;
    cairn_err err = CAIRN_OK;
    int fd = -1;

    snprintf(aside, sizeof aside, "%s.damaged", path);
    if (cairn_file_open(AT_FDCWD, aside, CAIRN_FILE_DIRECTORY, &fd) == CAIRN_OK &&
        cairn_dir_list(fd, &names, &count) == CAIRN_OK) {
        for (size_t i = 0; i < count && !err; i++)
            err = cairn_file_unlink(fd, names[i]);
        cairn_dir_list_free(names, count);
        if (!err)
            err = cairn_dir_remove(AT_FDCWD, aside);
    }
    (void)cairn_file_close(fd);
    if (!err && cairn_file_rename(AT_FDCWD, path, aside) == CAIRN_OK)
        CAIRN_LOG_AT(WARN, "history: %s is damaged; it is now %s, and the history begins again",
                     path, aside);
}

static cairn_err
open_and_load(struct recorder_store *store, struct history_book *book)
{
    struct loading loading = {.book = book};
    cairn_err err = cairn_store_rocksdb.open(store->path, true, &store->store);

    if (!err)
        err = cairn_store_rocksdb.scan(store->store, events_table, NULL, 0, load, &loading);
    if (loading.damaged)
        CAIRN_LOG_AT(WARN,
                     "history: %u records are damaged or of another version; they are left out",
                     loading.damaged);
    if (err && store->store) {
        cairn_store_rocksdb.close(store->store);
        store->store = NULL;
    }
    return err;
}

/* ---- writing ---- */

static void
write_all(struct recorder_store *store)
{
    store->err = CAIRN_OK;
    if (!store->store)
        store->err = cairn_store_rocksdb.open(store->path, true, &store->store);
    if (!store->err)
        store->err = cairn_store_rocksdb.write(store->store, store->changes, store->count);
    if (store->err && store->store) {
        cairn_store_rocksdb.close(store->store);
        store->store = NULL;
    }
}

static void
run(struct cairn_job *job)
{
    write_all((struct recorder_store *)job);
}

static void
forget_changes(struct recorder_store *store)
{
    free(store->changes);
    free(store->storage);
    store->changes = NULL;
    store->storage = NULL;
    store->count = 0;
}

static void
done(struct cairn_job *job)
{
    struct recorder_store *store = (struct recorder_store *)job;

    store->is_busy = false;
    forget_changes(store);
    if (store->err && !store->failed)
        CAIRN_LOG_AT(WARN,
                     "history: %s cannot be written: %s; the history stays in memory, and the job "
                     "is not affected",
                     store->path, cairn_err_text(store->err));
    store->failed = store->err != CAIRN_OK;
    if (store->failed)
        history_book_unstored(store->book);
}

/* Copies what has changed. False: out of memory. */
static bool
copy_changes(struct recorder_store *store, const struct history_book *book)
{
    size_t count = book->removed_count, used = 0;

    for (uint32_t i = 0; i < book->count; i++)
        count += book->changed[i];
    store->changes = calloc(count + 1, sizeof *store->changes);
    store->storage = calloc(count + 1, sizeof *store->storage);
    if (!store->changes || !store->storage) {
        forget_changes(store);
        return false;
    }
    for (uint32_t i = 0; i < book->removed_count; i++)
        write_key(book->removed[i], store->storage[used++].key);
    for (uint32_t i = 0; i < book->count; i++)
        if (book->changed[i]) {
            struct change *change = &store->storage[used];

            change->value_bytes =
                recorder_record_pack(&book->events[i], change->key, change->value);
            used += change->value_bytes > 0;
        }
    for (size_t i = 0; i < used; i++)
        store->changes[i] = (struct cairn_store_change){
            .table = events_table,
            .key = store->storage[i].key,
            .key_bytes = KEY_BYTES,
            .value = store->storage[i].value_bytes ? store->storage[i].value : NULL,
            .value_bytes = store->storage[i].value_bytes};
    store->count = used;
    return true;
}

bool
recorder_store_write(struct recorder_store *store, struct history_book *book, uint64_t now_ns)
{
    if (!history_book_has_changes(book))
        return true;
    if (store->is_busy || (store->failed && now_ns < store->not_before_ns) ||
        !copy_changes(store, book))
        return false;
    store->not_before_ns = now_ns + pause_after_failure_ns;
    store->job = (struct cairn_job){.run = run, .done = done};
    if (cairn_workers_submit(store->disk, &store->job) != CAIRN_OK) {
        forget_changes(store);
        return false;
    }
    store->is_busy = true;
    history_book_stored(book);
    return true;
}

/* ---- opening and closing ---- */

cairn_err
recorder_store_open(struct cairn_loop *loop, const char *dir, struct history_book *book,
                    struct recorder_store **out)
{
    struct recorder_store *store = calloc(1, sizeof *store);
    cairn_err err;

    if (!store)
        return CAIRN_NOMEM;
    store->book = book;
    snprintf(store->path, sizeof store->path, "%s/history", dir);
    err = open_and_load(store, book);
    if (err == CAIRN_CORRUPT) {
        set_aside(store->path);
        history_book_fini(book);
        history_book_init(book);
        err = open_and_load(store, book);
    }
    store->failed = err != CAIRN_OK;
    err = cairn_workers_start(loop, 1, 1, &store->disk);
    if (err) {
        recorder_store_close(store, NULL);
        return err;
    }
    *out = store;
    return CAIRN_OK;
}

void
recorder_store_close(struct recorder_store *store, struct history_book *book)
{
    if (!store)
        return;
    cairn_workers_stop(store->disk);
    if (book && !store->failed && history_book_has_changes(book) && copy_changes(store, book))
        write_all(store);
    forget_changes(store);
    if (store->store)
        cairn_store_rocksdb.close(store->store);
    free(store);
}
