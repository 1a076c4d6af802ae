/*
 * snapshot/store_rocksdb.c - the store on disk; the only file that includes RocksDB.
 *
 * Options and why: WAL recovery mode 0 (only a tail that was never acknowledged may be cut; the
 * default mode drops acknowledged keys without a word), paranoid checks, atomic flush over the
 * column families (so that no flush splits a batch), small buffers (the agent has 128 MiB in all),
 * and no info log but errors. Every error is a string from RocksDB, translated and logged in
 * take_error. RocksDB ends the process if it cannot start a thread, so rocks_open tries that first.
 * All column family handles are destroyed before the database is closed: builds with
 * assertions abort otherwise.
 */
#include "snapshot/store.h"

#include <errno.h>
#include <pthread.h>
#include <rocksdb/c.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

enum { RECOVERY_TOLERATE_TAIL = 0, LOG_LEVEL_FATAL = 4 };
enum {
    WRITE_BUFFER_BYTES = 2 << 20,
    WRITE_BUFFERS_BYTES = 6 << 20, /* of all column families */
    CACHE_BYTES = 1 << 20,
    WAL_BYTES_MAX = 32 << 20,
    MANIFEST_BYTES_MAX = 4 << 20,
    OPEN_FILES_MAX = 64
};

enum {
    THREADS = 4, /* RocksDB 7.8 starts 3 for an open database */
    GONE_TRIES_MAX = 1000,
    GONE_PAUSE_NS = 1000000
};

struct cairn_store {
    char *path;
    rocksdb_options_t *options;
    rocksdb_writeoptions_t *write_options;
    rocksdb_readoptions_t *read_options;
    rocksdb_t *db;
    rocksdb_column_family_handle_t *handles[CAIRN_TABLE_COUNT];
};

static bool
starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Translates, logs and frees RocksDB's error. */
static cairn_err
take_error(const char *verb, const char *path, char *text)
{
    const char *cure = "look at the disk and the kernel log";
    cairn_err err = CAIRN_IO;

    if (strstr(text, "lock hold by current process") ||
        (strstr(text, "LOCK: ") && strstr(text, "Resource temporarily unavailable"))) {
        err = CAIRN_AGAIN;
        cure =
            "another agent has this catalog open; stop it, or give this one a directory of its own";
    } else if (strstr(text, "No space left") || strstr(text, "quota exceeded")) {
        err = CAIRN_FULL;
        cure = "free space there";
    } else if (strstr(text, "Permission denied") || strstr(text, "Read-only file system")) {
        err = CAIRN_DENIED;
        cure = "check the owner and the mode of the path, and how it is mounted";
    } else if (starts(text, "Corruption") || starts(text, "Invalid argument") ||
               starts(text, "NotFound") || strstr(text, "No such file or directory")) {
        err = CAIRN_CORRUPT;
        cure = "move the catalog's directory away and start again: it is rebuilt";
    }
    CAIRN_LOG_AT(ERROR, "catalog: %s failed path=%s rocksdb=\"%s\": %s", verb, path, text, cure);
    rocksdb_free(text);
    return err;
}

static void
rocks_close(struct cairn_store *store)
{
    if (!store)
        return;
    for (int t = 0; t < CAIRN_TABLE_COUNT; t++)
        if (store->handles[t])
            rocksdb_column_family_handle_destroy(store->handles[t]);
    if (store->db)
        rocksdb_close(store->db);
    if (store->read_options)
        rocksdb_readoptions_destroy(store->read_options);
    if (store->write_options)
        rocksdb_writeoptions_destroy(store->write_options);
    if (store->options)
        rocksdb_options_destroy(store->options);
    free(store->path);
    free(store);
}

static void
set_options(rocksdb_options_t *options, bool create)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_cache_t *cache = rocksdb_cache_create_lru(CACHE_BYTES);

    rocksdb_block_based_options_set_block_cache(table, cache);
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_cache_destroy(cache); /* the table options keep a reference */
    rocksdb_block_based_options_destroy(table);
    rocksdb_options_set_create_if_missing(options, create);
    rocksdb_options_set_create_missing_column_families(options, create);
    rocksdb_options_set_wal_recovery_mode(options, RECOVERY_TOLERATE_TAIL);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_atomic_flush(options, 1);
    rocksdb_options_set_use_fsync(options, 1);
    rocksdb_options_set_write_buffer_size(options, WRITE_BUFFER_BYTES);
    rocksdb_options_set_db_write_buffer_size(options, WRITE_BUFFERS_BYTES);
    rocksdb_options_set_max_total_wal_size(options, WAL_BYTES_MAX);
    rocksdb_options_set_max_manifest_file_size(options, MANIFEST_BYTES_MAX);
    rocksdb_options_set_manifest_preallocation_size(options, 64 << 10);
    rocksdb_options_set_max_open_files(options, OPEN_FILES_MAX);
    rocksdb_options_set_max_background_jobs(options, 2);
    rocksdb_options_set_max_file_opening_threads(options, 1); /* the caller, instead of 15 more */
    rocksdb_options_set_info_log_level(options, LOG_LEVEL_FATAL);
    rocksdb_options_set_keep_log_file_num(options, 1);
    rocksdb_options_set_max_log_file_size(options, 64 << 10);
    rocksdb_options_set_stats_dump_period_sec(options, 0);
    rocksdb_options_set_skip_stats_update_on_db_open(options, 1);
}

struct trial {
    pthread_mutex_t *gate; /* closed until all threads are started */
    pthread_t thread;
    pid_t tid;
};

static void *
try_thread(void *context)
{
    struct trial *trial = context;

    trial->tid = (pid_t)syscall(SYS_gettid);
    (void)pthread_mutex_lock(trial->gate);
    (void)pthread_mutex_unlock(trial->gate);
    return NULL;
}

/* Joins a thread, and waits until the kernel has ceased to count it against the limits. */
static void
end_trial(const struct trial *trial)
{
    const struct timespec pause = {.tv_nsec = GONE_PAUSE_NS};

    (void)pthread_join(trial->thread, NULL);
    for (int i = 0; i < GONE_TRIES_MAX; i++) {
        if (syscall(SYS_tgkill, getpid(), trial->tid, 0) != 0)
            return;
        (void)nanosleep(&pause, NULL);
    }
}

/* Starts and ends as many threads as RocksDB needs. CAIRN_AGAIN: a limit is reached. */
static cairn_err
try_threads(const char *path)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    struct trial trials[THREADS];
    sigset_t all, before;
    int count = 0, failed = 0;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_mutex_lock(&gate);
    while (count < THREADS && !failed) {
        trials[count].gate = &gate;
        failed = pthread_create(&trials[count].thread, NULL, try_thread, &trials[count]);
        count += !failed;
    }
    (void)pthread_mutex_unlock(&gate);
    while (count > 0)
        end_trial(&trials[--count]);
    (void)pthread_mutex_destroy(&gate);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return CAIRN_OK;
    CAIRN_LOG_AT(ERROR,
                 "catalog: cannot start a thread path=%s errno=%d (%s); raise the limit of "
                 "processes, or pids.max of the cgroup",
                 path, failed, strerror(failed));
    return CAIRN_AGAIN;
}

static cairn_err
rocks_open(const char *path, bool create, struct cairn_store **out)
{
    const rocksdb_options_t *options[CAIRN_TABLE_COUNT];
    const char *names[CAIRN_TABLE_COUNT];
    struct cairn_store *store = calloc(1, sizeof(*store));
    char *error = NULL;
    cairn_err err;

    if (!store)
        return CAIRN_NOMEM;
    err = try_threads(path);
    if (err)
        goto done;
    err = CAIRN_NOMEM;
    store->path = strdup(path);
    if (!store->path)
        goto done;
    store->options = rocksdb_options_create();
    store->write_options = rocksdb_writeoptions_create();
    store->read_options = rocksdb_readoptions_create();
    set_options(store->options, create);
    rocksdb_writeoptions_set_sync(store->write_options, 1);
    rocksdb_readoptions_set_verify_checksums(store->read_options, 1);
    for (int t = 0; t < CAIRN_TABLE_COUNT; t++) {
        options[t] = store->options;
        names[t] = cairn_table_name((enum cairn_table)t);
    }
    store->db = rocksdb_open_column_families(store->options, path, CAIRN_TABLE_COUNT, names,
                                             options, store->handles, &error);
    if (error) {
        err = take_error("open", path, error);
        goto done;
    }
    *out = store;
    store = NULL;
    err = CAIRN_OK;
done:
    rocks_close(store);
    return err;
}

static cairn_err
rocks_get(struct cairn_store *store, enum cairn_table table, const void *key, size_t key_bytes,
          uint8_t **value, size_t *value_bytes)
{
    size_t bytes = 0;
    char *error = NULL;
    char *found = rocksdb_get_cf(store->db, store->read_options, store->handles[table], key,
                                 key_bytes, &bytes, &error);
    uint8_t *copy;

    if (error)
        return take_error("get", store->path, error);
    if (!found)
        return CAIRN_NOT_FOUND;
    copy = malloc(bytes + 1);
    if (copy) {
        memcpy(copy, found, bytes);
        *value = copy;
        *value_bytes = bytes;
    }
    rocksdb_free(found);
    return copy ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
rocks_write(struct cairn_store *store, const struct cairn_store_change *changes, size_t count)
{
    rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
    char *error = NULL;

    for (size_t i = 0; i < count; i++) {
        const struct cairn_store_change *change = &changes[i];
        rocksdb_column_family_handle_t *handle = store->handles[change->table];

        if (change->value)
            rocksdb_writebatch_put_cf(batch, handle, change->key, change->key_bytes, change->value,
                                      change->value_bytes);
        else
            rocksdb_writebatch_delete_cf(batch, handle, change->key, change->key_bytes);
    }
    rocksdb_write(store->db, store->write_options, batch, &error);
    rocksdb_writebatch_destroy(batch);
    return error ? take_error("write", store->path, error) : CAIRN_OK;
}

static cairn_err
rocks_scan(struct cairn_store *store, enum cairn_table table, const void *prefix,
           size_t prefix_bytes, cairn_store_visit *visit, void *context)
{
    rocksdb_iterator_t *iterator =
        rocksdb_create_iterator_cf(store->db, store->read_options, store->handles[table]);
    cairn_err err = CAIRN_OK;
    char *error = NULL;

    if (prefix_bytes)
        rocksdb_iter_seek(iterator, prefix, prefix_bytes);
    else
        rocksdb_iter_seek_to_first(iterator);
    for (; err == CAIRN_OK && rocksdb_iter_valid(iterator); rocksdb_iter_next(iterator)) {
        size_t key_bytes, value_bytes;
        const char *key = rocksdb_iter_key(iterator, &key_bytes);
        const char *value = rocksdb_iter_value(iterator, &value_bytes);

        if (key_bytes < prefix_bytes || (prefix_bytes && memcmp(key, prefix, prefix_bytes) != 0))
            break;
        err = visit(context, key, key_bytes, value, value_bytes);
    }
    rocksdb_iter_get_error(iterator, &error); /* an iterator ends at damage as it ends at the end */
    rocksdb_iter_destroy(iterator);
    if (error) {
        cairn_err damage = take_error("scan", store->path, error);

        err = err ? err : damage;
    }
    return err;
}

const struct cairn_store_ops cairn_store_rocksdb = {
    .name = "rocksdb",
    .durable = true,
    .open = rocks_open,
    .close = rocks_close,
    .get = rocks_get,
    .write = rocks_write,
    .scan = rocks_scan,
};
