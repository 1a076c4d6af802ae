/*
 * tests/unit/snapshot/test_catalog.c - the catalog over both stores: batches, order, reopening, and
 * every kind of damage that RocksDB passes over in silence.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "snapshot/catalog.h"
#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"
#include "tests/support/folder.h"

enum { RECORDS = 200 };

static void shell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void
shell(const char *format, ...)
{
    char command[1024];
    va_list arguments;

    va_start(arguments, format);
    assert_in_range(vsnprintf(command, sizeof(command), format, arguments), 1, sizeof(command) - 1);
    va_end(arguments);
    assert_int_equal(system(command), 0);
}

static const char *
path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static void
expect(struct cairn_catalog *catalog, enum cairn_table table, const char *key, const char *value)
{
    uint8_t *got = NULL;
    size_t got_bytes = 0;
    cairn_err err = cairn_catalog_get(catalog, table, key, strlen(key), &got, &got_bytes);

    if (!value) {
        assert_int_equal(err, CAIRN_NOT_FOUND);
        return;
    }
    assert_int_equal(err, CAIRN_OK);
    assert_int_equal(got_bytes, strlen(value));
    assert_memory_equal(got, value, got_bytes);
    free(got);
}

static void
put(struct cairn_catalog *catalog, enum cairn_table table, const char *key, const char *value)
{
    assert_int_equal(cairn_catalog_put(catalog, table, key, strlen(key), value, strlen(value)),
                     CAIRN_OK);
}

static cairn_err
collect(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    char *text = context;

    (void)snprintf(text + strlen(text), 512 - strlen(text), "%.*s=%.*s ", (int)key_bytes,
                   (const char *)key, (int)value_bytes, (const char *)value);
    return CAIRN_OK;
}

static void
exercise(const struct cairn_store_ops *ops, const char *path)
{
    struct cairn_catalog *catalog = NULL;
    struct cairn_batch *batch = NULL;
    char text[512] = "";

    assert_int_equal(cairn_catalog_open(ops, path, &catalog), CAIRN_OK);
    put(catalog, CAIRN_TABLE_FACTS, "b", "two");
    put(catalog, CAIRN_TABLE_FACTS, "a", "one");
    put(catalog, CAIRN_TABLE_FACTS, "bb", "three");
    put(catalog, CAIRN_TABLE_FACTS, "b", "TWO");
    put(catalog, CAIRN_TABLE_EPOCHS, "b", "other table");
    put(catalog, CAIRN_TABLE_EPOCHS, "empty", "");
    expect(catalog, CAIRN_TABLE_FACTS, "b", "TWO");
    expect(catalog, CAIRN_TABLE_EPOCHS, "b", "other table");
    expect(catalog, CAIRN_TABLE_EPOCHS, "empty", "");
    expect(catalog, CAIRN_TABLE_FACTS, "c", NULL);
    assert_int_equal(cairn_catalog_scan(catalog, CAIRN_TABLE_FACTS, NULL, 0, collect, text),
                     CAIRN_OK);
    assert_string_equal(text, "a=one b=TWO bb=three ");
    text[0] = '\0';
    assert_int_equal(cairn_catalog_scan(catalog, CAIRN_TABLE_FACTS, "b", 1, collect, text),
                     CAIRN_OK);
    assert_string_equal(text, "b=TWO bb=three ");

    /* One batch: the later change of a key wins, in both directions, and deleting nothing is not an
     * error. */
    assert_int_equal(cairn_batch_create(&batch), CAIRN_OK);
    cairn_batch_put(batch, CAIRN_TABLE_PLANS, "x", 1, "1", 1);
    cairn_batch_put(batch, CAIRN_TABLE_PLANS, "x", 1, "2", 1);
    cairn_batch_put(batch, CAIRN_TABLE_PLANS, "y", 1, "1", 1);
    cairn_batch_delete(batch, CAIRN_TABLE_PLANS, "y", 1);
    cairn_batch_delete(batch, CAIRN_TABLE_FACTS, "a", 1);
    cairn_batch_delete(batch, CAIRN_TABLE_FACTS, "a", 1);
    cairn_batch_delete(batch, CAIRN_TABLE_FACTS, "never", 5);
    cairn_batch_delete(batch, CAIRN_TABLE_FACTS, "bb", 2);
    cairn_batch_put(batch, CAIRN_TABLE_FACTS, "bb", 2, "back", 4);
    assert_int_equal(cairn_catalog_commit(catalog, batch), CAIRN_OK);
    assert_int_equal(cairn_catalog_counter(catalog), 7);
    assert_int_equal(cairn_catalog_commit(catalog, batch), CAIRN_OK); /* it is empty now */
    assert_int_equal(cairn_catalog_counter(catalog), 7);
    expect(catalog, CAIRN_TABLE_PLANS, "x", "2");
    expect(catalog, CAIRN_TABLE_PLANS, "y", NULL);
    expect(catalog, CAIRN_TABLE_FACTS, "a", NULL);
    expect(catalog, CAIRN_TABLE_FACTS, "bb", "back");

    /* A wrong change spoils its whole batch. */
    cairn_batch_put(batch, CAIRN_TABLE_PLANS, "z", 1, "1", 1);
    cairn_batch_put(batch, CAIRN_TABLE_PLANS, "", 0, "1", 1);
    assert_int_equal(cairn_catalog_commit(catalog, batch), CAIRN_INVAL);
    expect(catalog, CAIRN_TABLE_PLANS, "z", NULL);
    assert_int_equal(cairn_catalog_put(catalog, CAIRN_TABLE_STATE, "s", 1, "1", 1), CAIRN_INVAL);
    cairn_batch_destroy(batch);
    cairn_catalog_close(catalog);
}

static void
test_mem(void **state)
{
    exercise(&cairn_store_mem, NULL);
}

static void
test_rocksdb(void **state)
{
    struct cairn_catalog *catalog = NULL;

    exercise(&cairn_store_rocksdb, path_of("plain"));
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("plain"), &catalog),
                     CAIRN_OK);
    assert_int_equal(cairn_catalog_counter(catalog), 7);
    expect(catalog, CAIRN_TABLE_FACTS, "b", "TWO");
    expect(catalog, CAIRN_TABLE_FACTS, "a", NULL);
    cairn_catalog_close(catalog);
}

/* Forks before this process has used RocksDB, whose threads a fork would not copy. */
static void
test_second_process_is_refused(void **state)
{
    struct cairn_catalog *catalog = NULL;
    int status = 0, ready[2], done[2];
    char byte = 0;
    pid_t child;

    assert_int_equal(pipe(ready) | pipe(done), 0);
    child = fork();
    if (child == 0) {
        cairn_err err = cairn_catalog_open(&cairn_store_rocksdb, path_of("locked"), &catalog);

        if (err || write(ready[1], "r", 1) != 1 || read(done[0], &byte, 1) != 1)
            _exit(1);
        err = cairn_catalog_put(catalog, CAIRN_TABLE_FACTS, "still", 5, "fine", 4);
        cairn_catalog_close(catalog);
        _exit(err ? 2 : 0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("locked"), &catalog),
                     CAIRN_AGAIN);
    assert_non_null(strstr(last_line, "another agent"));
    assert_int_equal(write(done[1], "d", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("locked"), &catalog),
                     CAIRN_OK);
    expect(catalog, CAIRN_TABLE_FACTS, "still", "fine");
    cairn_catalog_close(catalog);
    for (int i = 0; i < 2; i++) {
        (void)close(ready[i]);
        (void)close(done[i]);
    }
}

/* Makes a catalog of RECORDS committed records in a child that is killed, so that the WAL holds
 * them. */
static void
make_killed(const char *name)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        struct cairn_catalog *catalog = NULL;

        if (cairn_catalog_open(&cairn_store_rocksdb, path_of(name), &catalog))
            _exit(1);
        for (int i = 0; i < RECORDS; i++) {
            char key[16], value[128];

            (void)snprintf(key, sizeof(key), "%05d", i);
            (void)snprintf(value, sizeof(value), "%0100d", i);
            if (cairn_catalog_put(catalog, CAIRN_TABLE_FACTS, key, 5, value, 100))
                _exit(2);
        }
        (void)kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_INFO, keep_line, NULL);
    if (root_make("catalog"))
        return -1;
    make_killed("killed");
    return 0;
}

static cairn_err
count(void *context, const void *key, size_t key_bytes, const void *value, size_t value_bytes)
{
    char expected_key[16], expected_value[128];
    int *seen = context;

    (void)snprintf(expected_key, sizeof(expected_key), "%05d", *seen);
    (void)snprintf(expected_value, sizeof(expected_value), "%0100d", *seen);
    if (key_bytes != 5 || value_bytes != 100 || memcmp(key, expected_key, 5) != 0 ||
        memcmp(value, expected_value, 100) != 0)
        return CAIRN_CORRUPT;
    ++*seen;
    return CAIRN_OK;
}

/* Opens: true with all records, false with an error that says what to do. Anything else fails the
 * test. */
static bool
complete_or_refused(const char *name)
{
    struct cairn_catalog *catalog = NULL;
    int seen = 0;
    cairn_err err;

    last_line[0] = '\0';
    err = cairn_catalog_open(&cairn_store_rocksdb, path_of(name), &catalog);
    if (err) {
        assert_true(err == CAIRN_CORRUPT || err == CAIRN_IO);
        assert_non_null(strstr(last_line, ": ")); /* and it was logged */
        return false;
    }
    assert_int_equal(cairn_catalog_scan(catalog, CAIRN_TABLE_FACTS, NULL, 0, count, &seen),
                     CAIRN_OK);
    assert_int_equal(seen, RECORDS);
    cairn_catalog_close(catalog);
    return true;
}

/* The path of the one file in db/ whose name ends (or starts) so. */
static void
find_file(const char *name, const char *part, char path[600])
{
    char folder[300];
    struct dirent *entry;
    off_t largest = -1;
    DIR *dir;

    (void)snprintf(folder, sizeof(folder), "%s/db", path_of(name));
    dir = opendir(folder);
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char candidate[600];
        struct stat stat_of;

        if (!strstr(entry->d_name, part))
            continue;
        (void)snprintf(candidate, sizeof(candidate), "%s/%s", folder, entry->d_name);
        assert_int_equal(stat(candidate, &stat_of), 0);
        if (stat_of.st_size > largest) {
            largest = stat_of.st_size;
            (void)snprintf(path, 600, "%s", candidate);
        }
    }
    closedir(dir);
    assert_true(largest >= 0);
}

static off_t
size_of(const char *path)
{
    struct stat stat_of;

    assert_int_equal(stat(path, &stat_of), 0);
    return stat_of.st_size;
}

static void
flip(const char *path, off_t at)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x41;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

static void
copy(const char *to)
{
    shell("rm -rf %s/%s && cp -a %s/killed %s/%s", root, to, root, root, to);
}

static void
test_killed_is_complete(void **state)
{
    copy("untouched");
    assert_true(complete_or_refused("untouched"));
    assert_true(complete_or_refused("untouched")); /* now from a table file */
}

static void
test_wal_damage(void **state)
{
    char path[600];

    for (int i = 0; i < 12; i++) {
        off_t bytes;

        copy("wal");
        find_file("wal", ".log", path);
        bytes = size_of(path);
        flip(path, bytes * i / 12 + 3);
        assert_false(complete_or_refused("wal"));
    }
    for (int i = 1; i < 12; i++) { /* every length but whole: some committed batch is gone */
        copy("wal");
        find_file("wal", ".log", path);
        assert_int_equal(truncate(path, i == 1 ? size_of(path) - 50 : size_of(path) * i / 12), 0);
        assert_false(complete_or_refused("wal"));
        assert_non_null(strstr(last_line, "lost"));
    }
    copy("wal");
    find_file("wal", ".log", path);
    assert_int_equal(unlink(path), 0);
    assert_false(complete_or_refused("wal"));
}

/* Cuts and flips a file at many places; `closed` first opens and closes it, so that the records lie
 * in table files. */
static void
damage_file(const char *part, bool closed)
{
    char path[600];

    for (int i = 0; i < 10; i++) {
        copy("damaged");
        if (closed)
            assert_true(complete_or_refused("damaged"));
        find_file("damaged", part, path);
        assert_int_equal(truncate(path, i == 0 ? 60 : size_of(path) * i / 10), 0);
        (void)complete_or_refused("damaged");
        copy("damaged");
        if (closed)
            assert_true(complete_or_refused("damaged"));
        find_file("damaged", part, path);
        flip(path, size_of(path) * i / 10);
        (void)complete_or_refused("damaged");
    }
    copy("damaged");
    if (closed)
        assert_true(complete_or_refused("damaged"));
    find_file("damaged", part, path);
    assert_int_equal(unlink(path), 0);
    assert_false(complete_or_refused("damaged"));
}

static void
test_manifest_damage(void **state)
{
    char path[600];

    damage_file("MANIFEST-", false);
    damage_file("MANIFEST-", true);
    /* The case that RocksDB opens with no keys and no error. */
    copy("damaged");
    assert_true(complete_or_refused("damaged"));
    find_file("damaged", "MANIFEST-", path);
    assert_int_equal(truncate(path, 60), 0);
    assert_false(complete_or_refused("damaged"));
}

static void
test_current_and_tables(void **state)
{
    damage_file("CURRENT", false);
    damage_file("CURRENT", true);
    damage_file(".sst", true);
}

static void
test_store_goes_back(void **state)
{
    struct cairn_catalog *catalog = NULL;

    /* An older copy of the store under a newer side file: lost batches. */
    copy("back");
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("back"), &catalog), CAIRN_OK);
    put(catalog, CAIRN_TABLE_EPOCHS, "promised", "7");
    cairn_catalog_close(catalog);
    shell("cd %s && rm -rf back/db && cp -a killed/db back/db", root);
    assert_false(complete_or_refused("back"));
    assert_non_null(strstr(last_line, "newest batches"));
    /* The whole store gone, or the side file. */
    copy("back");
    shell("rm -rf %s/back/db", root);
    assert_false(complete_or_refused("back"));
    copy("back");
    shell("rm %s/back/SIDE", root);
    assert_false(complete_or_refused("back"));
    assert_non_null(strstr(last_line, "side file is missing"));
    /* The side file of another catalog. */
    copy("back");
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("other"), &catalog),
                     CAIRN_OK);
    cairn_catalog_close(catalog);
    shell("cd %s && cp other/SIDE back/SIDE", root);
    assert_false(complete_or_refused("back"));
    assert_non_null(strstr(last_line, "another catalog"));
}

static void
test_side_damage(void **state)
{
    char path[600];
    int fine = 0;

    (void)snprintf(path, sizeof(path), "%s/side/SIDE", root);
    for (off_t at = 0; at < 1024;
         at += 37) { /* one slot is damaged at most: the other one still counts */
        copy("side");
        flip(path, at);
        fine += complete_or_refused("side");
    }
    assert_int_equal(fine, 28);
    copy("side");
    flip(path, 20);
    flip(path, 512 + 20);
    assert_false(complete_or_refused("side"));
    copy("side");
    assert_int_equal(truncate(path, 0), 0);
    assert_false(complete_or_refused("side"));
}

/* ---- a side file that cannot be written ---- */

static int syncs_left;

static int
failing_sync(int fd)
{
    if (syncs_left-- > 0)
        return fsync(fd);
    errno = EIO;
    return -1;
}

static void
test_failed_commit_closes_the_catalog(void **state)
{
    struct cairn_file_ops ops = cairn_file_ops_os;
    struct cairn_catalog *catalog = NULL;

    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("failed"), &catalog),
                     CAIRN_OK);
    put(catalog, CAIRN_TABLE_FACTS, "a", "1");
    ops.sync = failing_sync;
    syncs_left = 0;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_catalog_put(catalog, CAIRN_TABLE_FACTS, "b", 1, "2", 1), CAIRN_IO);
    cairn_file_setup(NULL);
    assert_int_equal(cairn_catalog_put(catalog, CAIRN_TABLE_FACTS, "c", 1, "3", 1), CAIRN_IO);
    expect(catalog, CAIRN_TABLE_FACTS, "a", "1");
    cairn_catalog_close(catalog);
    assert_int_equal(cairn_catalog_open(&cairn_store_rocksdb, path_of("failed"), &catalog),
                     CAIRN_OK);
    expect(catalog, CAIRN_TABLE_FACTS, "a", "1");
    expect(catalog, CAIRN_TABLE_FACTS, "b",
           "2"); /* it was in the store when the side file failed */
    expect(catalog, CAIRN_TABLE_FACTS, "c", NULL);
    put(catalog, CAIRN_TABLE_FACTS, "c", "3");
    cairn_catalog_close(catalog);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mem),
        cmocka_unit_test(test_second_process_is_refused), /* first: see there */
        cmocka_unit_test(test_killed_is_complete),
        cmocka_unit_test(test_rocksdb),
        cmocka_unit_test(test_wal_damage),
        cmocka_unit_test(test_manifest_damage),
        cmocka_unit_test(test_current_and_tables),
        cmocka_unit_test(test_store_goes_back),
        cmocka_unit_test(test_side_damage),
        cmocka_unit_test(test_failed_commit_closes_the_catalog),
    };

    return cmocka_run_group_tests(tests, setup, root_remove);
}
