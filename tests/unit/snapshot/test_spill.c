/* tests/unit/snapshot/test_spill.c - the writer of a spilled file, its checked reader, and the
 * directory of generations. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/spill.h"
#include "tests/support/cmocka.h"
#include "tests/support/kept_lines.h"

enum { HEADER_BYTES = 8192, WAIT_MS = 20000 };

static char root[64];
static int root_fd = -1;

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_INFO, keep_line, NULL);
    /* On a disk where there is one, so that direct I/O is used; other tests see to tmpfs. */
    (void)snprintf(root, sizeof(root), "/var/tmp/cairn-spill-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root_fd < 0;
}

static int
teardown(void **state)
{
    char command[128];

    (void)close(root_fd);
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static uint8_t
byte_at(uint64_t at)
{
    return (uint8_t)((at * 2654435761u) >> 13);
}

static void
wait_for(int event_fd)
{
    struct pollfd poll_fd = {.fd = event_fd, .events = POLLIN};

    assert_int_equal(poll(&poll_fd, 1, WAIT_MS), 1);
}

/* Writes a file of data_bytes; gives the first error. */
static cairn_err
write_file(int dir_fd, const char *name, uint64_t data_bytes, uint64_t **crcs, uint64_t *count)
{
    uint8_t *header = malloc(HEADER_BYTES);
    struct cairn_spill *spill = NULL;
    cairn_err err;

    memset(header, 'h', HEADER_BYTES);
    err = cairn_spill_open(dir_fd, name, header, HEADER_BYTES, data_bytes, &spill);
    free(header);
    while (err == CAIRN_OK) {
        uint8_t *buffer;
        uint64_t offset;
        size_t bytes;

        err = cairn_spill_acquire(spill, &buffer, &offset, &bytes);
        if (err == CAIRN_AGAIN) {
            wait_for(cairn_spill_event_fd(spill));
            err = CAIRN_OK;
            continue;
        }
        if (err)
            break;
        for (size_t i = 0; i < bytes; i++)
            buffer[i] = byte_at(offset + i);
        err = cairn_spill_commit(spill);
    }
    if (err == CAIRN_NOT_FOUND)
        err = CAIRN_OK;
    while (err == CAIRN_OK) {
        err = cairn_spill_finish(spill, crcs, count);
        if (err != CAIRN_AGAIN)
            break;
        wait_for(cairn_spill_event_fd(spill));
        err = CAIRN_OK;
    }
    cairn_spill_close(spill);
    return err;
}

static bool
is_there(int dir_fd, const char *name)
{
    struct stat stat_of;

    return fstatat(dir_fd, name, &stat_of, AT_SYMLINK_NOFOLLOW) == 0;
}

static void
wait_until_gone(int dir_fd, const char *name)
{
    for (int ms = 0; ms < WAIT_MS && is_there(dir_fd, name); ms++)
        (void)usleep(1000);
    assert_false(is_there(dir_fd, name));
}

static void
round_trip(int dir_fd, uint64_t data_bytes)
{
    struct cairn_universal_file file = {
        .name = "a.safetensors", .data_offset = HEADER_BYTES, .data_bytes = data_bytes};
    uint8_t *data = malloc(data_bytes + 1);
    uint64_t bytes = 0;
    int fd;

    assert_int_equal(write_file(dir_fd, file.name, data_bytes, &file.block_crcs, &file.block_count),
                     CAIRN_OK);
    assert_false(is_there(dir_fd, "a.safetensors.part"));
    assert_int_equal(cairn_file_open(dir_fd, file.name, CAIRN_FILE_READ, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_size(fd, &bytes), CAIRN_OK);
    assert_int_equal(bytes, HEADER_BYTES + data_bytes);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(file.block_count, (data_bytes + CAIRN_BLOCK_BYTES - 1) / CAIRN_BLOCK_BYTES);
    assert_int_equal(cairn_spill_read(dir_fd, &file, 0, data, data_bytes), CAIRN_OK);
    for (uint64_t i = 0; i < data_bytes; i++)
        if (data[i] != byte_at(i))
            fail_msg("byte %llu differs", (unsigned long long)i);
    /* Every cut of a read around block edges. */
    for (uint64_t from = 0; from < data_bytes; from += data_bytes / 7 + 1)
        for (uint64_t bytes_len = 0; from + bytes_len <= data_bytes;
             bytes_len += data_bytes / 5 + 1) {
            memset(data, 0xee, data_bytes + 1);
            assert_int_equal(cairn_spill_read(dir_fd, &file, from, data, bytes_len), CAIRN_OK);
            for (uint64_t i = 0; i < bytes_len; i++)
                if (data[i] != byte_at(from + i))
                    fail_msg("byte %llu differs", (unsigned long long)(from + i));
            assert_int_equal(data[bytes_len], 0xee);
        }
    assert_int_equal(cairn_spill_read(dir_fd, &file, data_bytes, data, 1), CAIRN_INVAL);
    assert_int_equal(cairn_spill_read(dir_fd, &file, UINT64_MAX, data, 2), CAIRN_INVAL);
    free(data);
    free(file.block_crcs);
}

static const uint64_t sizes[] = {0,
                                 1,
                                 4095,
                                 4096,
                                 CAIRN_BLOCK_BYTES,
                                 CAIRN_BLOCK_BYTES + 1,
                                 CAIRN_SPILL_BUFFER_BYTES,
                                 2 * CAIRN_SPILL_BUFFER_BYTES - 5,
                                 5 * CAIRN_SPILL_BUFFER_BYTES + 12345};

static void
test_round_trip(void **state)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        round_trip(root_fd, sizes[i]);
}

static int
no_direct_open(int dir_fd, const char *name, int flags, mode_t mode)
{
    if (flags & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return openat(dir_fd, name, flags, mode);
}

static atomic_int direct_writes;

static ssize_t
no_direct_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT) {
        direct_writes++;
        errno = EINVAL;
        return -1;
    }
    return pwrite(fd, bytes, bytes_len, at);
}

static ssize_t
short_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    static atomic_int calls;

    if (calls++ % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    return pwrite(fd, bytes, bytes_len > 1536 ? bytes_len / 1024 * 512 : bytes_len, at);
}

static int
no_reserve(int fd, off_t bytes, bool reserve)
{
    if (reserve) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return ftruncate(fd, bytes);
}

static void
test_poor_file_systems(void **state)
{
    static struct cairn_file_ops poor, late, shorter;
    int fd = openat(root_fd, "probe", O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    bool has_direct = fd >= 0;

    (void)close(fd);
    poor = late = shorter = cairn_file_ops_os;
    poor.open = no_direct_open;
    poor.resize = no_reserve;
    late.write = no_direct_write;
    shorter.write = short_write;
    cairn_file_setup(&poor);
    round_trip(root_fd, 3 * CAIRN_SPILL_BUFFER_BYTES + 77);
    cairn_file_setup(&late);
    round_trip(root_fd, 3 * CAIRN_SPILL_BUFFER_BYTES + 77);
    if (has_direct)
        assert_int_equal(direct_writes, 1); /* refused once, then never tried again */
    cairn_file_setup(&shorter);
    round_trip(root_fd, 2 * CAIRN_SPILL_BUFFER_BYTES + 77);
    cairn_file_setup(NULL);
}

static void
test_damage_is_found(void **state)
{
    struct cairn_universal_file file = {.name = "d.safetensors",
                                        .data_offset = HEADER_BYTES,
                                        .data_bytes = 3 * CAIRN_BLOCK_BYTES + 100};
    uint8_t *data = malloc(file.data_bytes);
    uint32_t bad_blocks;
    int fd;

    assert_int_equal(
        write_file(root_fd, file.name, file.data_bytes, &file.block_crcs, &file.block_count),
        CAIRN_OK);
    assert_int_equal(cairn_file_open(root_fd, file.name, CAIRN_FILE_UPDATE, &fd), CAIRN_OK);
    for (uint64_t at = 0; at < file.data_bytes; at += 4999) {
        uint8_t good = byte_at(at), bad = good ^ 1;

        assert_int_equal(cairn_file_write_at(fd, HEADER_BYTES + at, &bad, 1), CAIRN_OK);
        assert_int_equal(cairn_spill_read(root_fd, &file, 0, data, file.data_bytes), CAIRN_CORRUPT);
        /* Also where the read wants only another byte of the block. */
        assert_int_equal(
            cairn_spill_read(root_fd, &file, at / CAIRN_BLOCK_BYTES * CAIRN_BLOCK_BYTES, data, 1),
            CAIRN_CORRUPT);
        assert_non_null(strstr(last_line, "d.safetensors"));
        assert_int_equal(cairn_spill_check(root_fd, &file, 0, 4, &bad_blocks), CAIRN_OK);
        assert_int_equal(bad_blocks, 1u << at / CAIRN_BLOCK_BYTES);
        assert_int_equal(cairn_file_write_at(fd, HEADER_BYTES + at, &good, 1), CAIRN_OK);
    }
    assert_int_equal(cairn_spill_check(root_fd, &file, 1, 3, &bad_blocks), CAIRN_OK);
    assert_int_equal(bad_blocks, 0);
    assert_int_equal(cairn_spill_check(root_fd, &file, 1, 4, &bad_blocks), CAIRN_INVAL);
    assert_int_equal(cairn_spill_read(root_fd, &file, 0, data, file.data_bytes), CAIRN_OK);
    assert_int_equal(cairn_file_resize(fd, HEADER_BYTES + file.data_bytes - 1), CAIRN_OK);
    assert_int_equal(cairn_spill_read(root_fd, &file, 0, data, file.data_bytes), CAIRN_CORRUPT);
    assert_int_equal(cairn_spill_check(root_fd, &file, 2, 2, &bad_blocks), CAIRN_OK);
    assert_int_equal(bad_blocks, 2); /* the last block is cut off */
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    free(data);
    free(file.block_crcs);
}

static void
test_misuse_and_giving_up(void **state)
{
    uint8_t *header = calloc(1, HEADER_BYTES), *buffer, *again;
    struct cairn_spill *spill = NULL;
    uint64_t *crcs = NULL, count = 0, offset;
    size_t bytes;

    assert_int_equal(cairn_spill_open(root_fd, "x", header, 100, 1, &spill), CAIRN_INVAL);
    assert_int_equal(cairn_spill_open(root_fd, "x/y", header, 4096, 1, &spill), CAIRN_INVAL);
    assert_int_equal(cairn_spill_open(root_fd, "", header, 4096, 1, &spill), CAIRN_INVAL);
    assert_int_equal(cairn_spill_open(root_fd, "x", header, HEADER_BYTES, 10 << 20, &spill),
                     CAIRN_OK);
    assert_int_equal(cairn_spill_commit(spill), CAIRN_INVAL);
    assert_int_equal(cairn_spill_finish(spill, &crcs, &count), CAIRN_INVAL);
    assert_int_equal(cairn_spill_acquire(spill, &buffer, &offset, &bytes), CAIRN_OK);
    assert_int_equal(cairn_spill_acquire(spill, &again, &offset, &bytes), CAIRN_OK);
    assert_ptr_equal(buffer, again); /* the same until it is committed */
    assert_true(is_there(root_fd, "x.part"));
    cairn_spill_close(spill); /* in the middle */
    wait_until_gone(root_fd, "x.part");
    assert_false(is_there(root_fd, "x"));
    cairn_spill_close(NULL);
    free(header);
}

/* ---- a disk that fails ---- */

static ssize_t
full_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    (void)fd, (void)bytes, (void)bytes_len, (void)at;
    errno = EDQUOT;
    return -1;
}

static int
bad_unlink(int dir_fd, const char *name, bool directory)
{
    (void)unlinkat(dir_fd, name, directory ? AT_REMOVEDIR : 0);
    errno = EIO;
    return -1;
}

/* The writer keeps the errno of its thread, and not that of the clean-up. */
static void
test_failed_write_keeps_its_errno(void **state)
{
    static struct cairn_file_ops ops; /* a thread outlives this function */
    uint8_t *header = calloc(1, HEADER_BYTES), *buffer;
    struct cairn_spill *spill = NULL;
    uint64_t offset;
    size_t bytes;
    cairn_err err;

    ops = cairn_file_ops_os;
    ops.write = full_write;
    ops.unlink = bad_unlink;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_spill_open(root_fd, "quota", header, HEADER_BYTES,
                                      2 * CAIRN_SPILL_BUFFER_BYTES, &spill),
                     CAIRN_OK);
    do
        err = cairn_spill_acquire(spill, &buffer, &offset, &bytes);
    while (err == CAIRN_OK && usleep(1000) == 0);
    assert_int_equal(err, CAIRN_FULL);
    assert_int_equal(cairn_spill_os_error(spill), EDQUOT);
    cairn_spill_close(spill);
    cairn_file_setup(NULL);
    assert_false(is_there(root_fd, "quota"));
    free(header);
}

/* Writes one byte of the data section wrong, and says that all is well. */
static ssize_t
lying_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    ssize_t done = pwrite(fd, bytes, bytes_len, at);
    const uint8_t wrong = 0xa5;

    if (at >= CAIRN_SPILL_BUFFER_BYTES) {
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT); /* it takes no single byte */
        assert_true(wrong != byte_at((uint64_t)at - HEADER_BYTES + 70001));
        assert_int_equal(pwrite(fd, &wrong, 1, at + 70001), 1);
    }
    return done;
}

/* What was written is read back: a file that differs never gets its name. */
static void
test_lying_disk_is_found_out(void **state)
{
    static struct cairn_file_ops ops;
    uint64_t *crcs = NULL, count = 0;

    ops = cairn_file_ops_os;
    ops.write = lying_write;
    cairn_file_setup(&ops);
    assert_int_equal(write_file(root_fd, "lie", 2 * CAIRN_SPILL_BUFFER_BYTES, &crcs, &count),
                     CAIRN_CORRUPT);
    cairn_file_setup(NULL);
    assert_false(is_there(root_fd, "lie"));
    wait_until_gone(root_fd, "lie.part");
    assert_int_equal(write_file(root_fd, "lie", CAIRN_SPILL_BUFFER_BYTES, &crcs, &count), CAIRN_OK);
    free(crcs);
    assert_int_equal(cairn_file_unlink(root_fd, "lie"), CAIRN_OK);
}

/* ---- a disk that hangs ---- */

static int gate[2];

static ssize_t
hanging_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    char byte;

    (void)!read(gate[0], &byte, 1);
    return pwrite(fd, bytes, bytes_len, at);
}

static void
test_hanging_disk_blocks_nobody(void **state)
{
    static struct cairn_file_ops ops; /* a thread outlives this function */
    uint8_t *header = calloc(1, HEADER_BYTES), *buffer;
    struct cairn_spill *spill = NULL;
    uint64_t *crcs = NULL, count = 0, offset;
    size_t bytes;

    assert_int_equal(pipe(gate), 0);
    ops = cairn_file_ops_os;
    ops.write = hanging_write;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_spill_open(root_fd, "hang", header, HEADER_BYTES,
                                      2 * CAIRN_SPILL_BUFFER_BYTES, &spill),
                     CAIRN_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_spill_acquire(spill, &buffer, &offset, &bytes), CAIRN_OK);
        memset(buffer, 0, bytes);
        assert_int_equal(cairn_spill_commit(spill), CAIRN_OK);
    }
    assert_int_equal(cairn_spill_finish(spill, &crcs, &count), CAIRN_AGAIN);
    cairn_spill_close(spill); /* returns though the thread hangs */
    assert_true(is_there(root_fd, "hang.part"));
    (void)close(gate[1]); /* and now it does not any more */
    wait_until_gone(root_fd, "hang.part");
    assert_false(is_there(root_fd, "hang"));
    cairn_file_setup(NULL);
    /* gate[0] stays open: the thread may still be about to leave its read. */
    free(header);
}

static void
test_full_disk(void **state)
{
    char path[128];
    uint64_t *crcs = NULL, count = 0;
    int dir_fd;

    (void)snprintf(path, sizeof(path), "%s/small", root);
    assert_int_equal(mkdir(path, 0700), 0);
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("small", path, "tmpfs", 0, "size=1m") != 0) {
        print_message("skipped: no right to mount (%s)\n", strerror(errno));
        skip();
    }
    dir_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(write_file(dir_fd, "big", 4 << 20, &crcs, &count), CAIRN_FULL);
    assert_non_null(strstr(last_line, "big.part"));
    assert_non_null(strstr(last_line, "bytes="));
    wait_until_gone(dir_fd, "big.part");
    round_trip(dir_fd, 300000); /* what fits still works, without direct I/O or with it */
    (void)close(dir_fd);
    assert_int_equal(umount(path), 0);
}

static void
test_killed_writer_leaves_no_name(void **state)
{
    for (int round = 0; round < 8; round++) {
        pid_t child = fork();
        int status;

        if (child == 0) {
            uint64_t *crcs = NULL, count = 0;

            for (int i = 0;; i++) {
                char name[32];

                (void)snprintf(name, sizeof(name), "k%d.safetensors", i);
                if (write_file(root_fd, name, 9 << 20, &crcs, &count))
                    _exit(1);
                free(crcs);
            }
        }
        (void)usleep((useconds_t)(7000 + 9000 * round));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        for (int i = 0; i < 1000; i++) { /* what has its name is whole */
            char name[32];
            struct stat stat_of;

            (void)snprintf(name, sizeof(name), "k%d.safetensors", i);
            if (fstatat(root_fd, name, &stat_of, 0) != 0)
                break;
            assert_int_equal(stat_of.st_size, HEADER_BYTES + (9 << 20));
            assert_int_equal(unlinkat(root_fd, name, 0), 0);
        }
    }
}

/* ---- the directory of generations ---- */

static void
test_names(void **state)
{
    static const char *const wrong[] = {"e1",     "e-s",    "e1-s",  "e01-s1",
                                        "e1-s2x", "e1-s-2", "s1-e1", "e18446744073709551616-s0",
                                        "",       "e1-s1/"};
    struct cairn_generation_id generation;
    char name[CAIRN_SPILL_DIR_NAME_BYTES];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(cairn_spill_dir_parse(wrong[i], &generation));
    cairn_spill_dir_name((struct cairn_generation_id){.epoch = UINT64_MAX, .step = UINT64_MAX},
                         name);
    assert_true(cairn_spill_dir_parse(name, &generation));
    assert_int_equal(generation.step, UINT64_MAX);
    assert_true(cairn_spill_dir_parse("e0-s0", &generation));
}

static void
make_generation(int spill_fd, uint64_t epoch, uint64_t step, bool committed)
{
    int dir_fd;

    assert_int_equal(
        cairn_spill_dir_begin(spill_fd, (struct cairn_generation_id){.epoch = epoch, .step = step},
                              &dir_fd),
        CAIRN_OK);
    assert_int_equal(cairn_file_save(dir_fd, "param.safetensors", "data", 4), CAIRN_OK);
    if (committed) {
        static const char line[] = "cairn-universal 1 index.json bytes=2 crc64=0000000000000000\n";

        assert_int_equal(cairn_file_save(dir_fd, "index.json", "{}", 2), CAIRN_OK);
        assert_int_equal(cairn_file_save(dir_fd, "COMMIT", line, sizeof(line) - 1), CAIRN_OK);
    }
    assert_int_equal(cairn_file_close(dir_fd), CAIRN_OK);
}

/* The list as text, such as "2/40 2/30- 1/90", newest first, with '-' behind an incomplete one. */
static void
expect_list(int spill_fd, const char *expected)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    char text[256] = "";

    assert_int_equal(cairn_spill_list(spill_fd, &list, &count), CAIRN_OK);
    for (size_t i = 0; i < count; i++)
        (void)snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%llu/%llu%s",
                       i ? " " : "", (unsigned long long)list[i].generation.epoch,
                       (unsigned long long)list[i].generation.step, list[i].committed ? "" : "-");
    free(list);
    assert_string_equal(text, expected);
}

static cairn_err
keep_last(int spill_fd, uint32_t last, uint32_t *removed)
{
    const struct cairn_spill_keep keep = {.last = last};

    return cairn_spill_retain(spill_fd, &keep, removed);
}

/* Sets when the COMMIT of epoch 1 was written: seconds after the beginning of a day. */
static void
commit_at(int spill_fd, uint64_t step, uint64_t seconds)
{
    const struct timespec when = {.tv_sec = 100 * 86400 + (time_t)seconds};
    const struct timespec times[2] = {when, when};
    char name[64];

    (void)snprintf(name, sizeof(name), "e1-s%llu/COMMIT", (unsigned long long)step);
    assert_int_equal(utimensat(spill_fd, name, times, 0), 0);
}

static void
test_retention_by_hour_and_day(void **state)
{
    const struct cairn_spill_keep keep = {.last = 2, .hourly = 3, .daily = 2};
    static const uint64_t seconds[] = {10,            /* 1: day 0 */
                                       86400,         /* 2: day 1, hour 0 */
                                       86400 + 3599,  /* 3: the same hour */
                                       86400 + 7200,  /* 4: hour 2; hour 1 has none */
                                       86400 + 7300,  /* 5 */
                                       86400 + 10800, /* 6: hour 3 */
                                       86400 + 10900,
                                       86400 + 11000};
    char path[128];
    uint32_t removed = 0;
    int spill_fd;

    (void)snprintf(path, sizeof(path), "%s/spill-rule", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &spill_fd), CAIRN_OK);
    for (uint64_t step = 1; step <= 8; step++) {
        make_generation(spill_fd, 1, step, true);
        commit_at(spill_fd, step, seconds[step - 1]);
    }
    assert_int_equal(cairn_spill_retain(spill_fd, &keep, &removed), CAIRN_OK);
    /* 8 and 7 are the last two; 8, 5 and 3 the newest of three hours; 8 and 1 of two days */
    expect_list(spill_fd, "1/8 1/7 1/5 1/3 1/1");
    assert_int_equal(removed, 3);
    assert_int_equal(keep_last(spill_fd, 1, &removed), CAIRN_OK);
    expect_list(spill_fd, "1/8");
    assert_int_equal(cairn_file_close(spill_fd), CAIRN_OK);
}

static void
test_rules_of_retention(void **state)
{
    static const char *const wrong[] = {"",
                                        "0",
                                        "last=0",
                                        "1001",
                                        "last=",
                                        "2,",
                                        "last=2,last=3",
                                        "2,hourly",
                                        "weekly=2",
                                        "last=2 ",
                                        "hourly=1,2",
                                        "last=-1",
                                        "last=99999999999999999999"};
    struct cairn_spill_keep keep = {7, 7, 7};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_int_equal(cairn_spill_keep_parse(wrong[i], &keep), CAIRN_INVAL);
    assert_int_equal(keep.last + keep.hourly + keep.daily, 21);
    assert_int_equal(cairn_spill_keep_parse("5", &keep), CAIRN_OK);
    assert_true(keep.last == 5 && keep.hourly == 0 && keep.daily == 0);
    assert_int_equal(cairn_spill_keep_parse("daily=7,last=1000,hourly=24", &keep), CAIRN_OK);
    assert_true(keep.last == 1000 && keep.hourly == 24 && keep.daily == 7);
    assert_int_equal(cairn_spill_keep_parse("hourly=0", &keep), CAIRN_OK);
    assert_true(keep.last == 1 && keep.hourly == 0 && keep.daily == 0);
}

static void
test_retention(void **state)
{
    char path[128];
    uint32_t removed = 0;
    int spill_fd, dir_fd;

    (void)snprintf(path, sizeof(path), "%s/spill", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &spill_fd), CAIRN_OK);
    expect_list(spill_fd, "");
    assert_int_equal(keep_last(spill_fd, 2, &removed), CAIRN_OK);
    make_generation(spill_fd, 1, 90, true);
    make_generation(spill_fd, 1, 100, false);
    make_generation(spill_fd, 2, 20, true);
    make_generation(spill_fd, 2, 30, false);
    make_generation(spill_fd, 2, 9, true);
    make_generation(spill_fd, 2, 40, true);
    make_generation(spill_fd, 2, 50, false);
    assert_int_equal(cairn_file_save(spill_fd, "e9-s9", "a file", 6), CAIRN_OK);
    assert_int_equal(cairn_file_save(spill_fd, "notes", "a file", 6), CAIRN_OK);
    expect_list(spill_fd, "2/50- 2/40 2/30- 2/20 2/9 1/100- 1/90");
    assert_int_equal(keep_last(spill_fd, 2, &removed), CAIRN_OK);
    assert_int_equal(removed, 4);
    expect_list(spill_fd, "2/50- 2/40 2/20");
    assert_int_equal(keep_last(spill_fd, 0, &removed), CAIRN_OK); /* never the newest */
    expect_list(spill_fd, "2/50- 2/40");
    assert_int_equal(keep_last(spill_fd, 1, &removed), CAIRN_OK);
    assert_int_equal(removed, 0);
    /* Beginning a generation that is there uncommits it. */
    assert_int_equal(cairn_spill_dir_begin(
                         spill_fd, (struct cairn_generation_id){.epoch = 2, .step = 40}, &dir_fd),
                     CAIRN_OK);
    assert_int_equal(cairn_file_close(dir_fd), CAIRN_OK);
    expect_list(spill_fd, "2/50- 2/40-");
    assert_int_equal(keep_last(spill_fd, 1, &removed), CAIRN_OK);
    assert_int_equal(removed, 0); /* nothing is committed: nothing is known to be older than it */
    assert_int_equal(
        cairn_spill_remove(spill_fd, (struct cairn_generation_id){.epoch = 7, .step = 7}),
        CAIRN_NOT_FOUND);
    assert_true(is_there(spill_fd, "notes"));
    assert_int_equal(cairn_file_close(spill_fd), CAIRN_OK);
}

/* A damaged generation leaves all lists; its files stay until retention runs. */
static void
test_marked_as_bad(void **state)
{
    const struct cairn_generation_id damaged = {.epoch = 1, .step = 2};
    char path[128];
    uint32_t removed = 0;
    int spill_fd;

    (void)snprintf(path, sizeof(path), "%s/bad", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &spill_fd), CAIRN_OK);
    assert_int_equal(cairn_spill_mark_bad(spill_fd, damaged), CAIRN_NOT_FOUND);
    for (uint64_t step = 1; step <= 3; step++)
        make_generation(spill_fd, 1, step, true);
    for (int times = 0; times < 2; times++) { /* written and damaged again */
        make_generation(spill_fd, 1, 2, true);
        assert_int_equal(cairn_spill_mark_bad(spill_fd, damaged), CAIRN_OK);
        expect_list(spill_fd, "1/3 1/1");
        assert_true(is_there(spill_fd, "e1-s2.bad/COMMIT"));
    }
    /* Two agents found it damaged: what the first has marked stays. */
    assert_int_equal(cairn_spill_mark_bad(spill_fd, damaged), CAIRN_NOT_FOUND);
    assert_true(is_there(spill_fd, "e1-s2.bad/COMMIT"));
    assert_int_equal(cairn_dir_make(spill_fd, "own.bad"), CAIRN_OK);
    assert_int_equal(keep_last(spill_fd, 3, &removed), CAIRN_OK);
    assert_false(is_there(spill_fd, "e1-s2.bad"));
    assert_true(is_there(spill_fd, "own.bad"));
    expect_list(spill_fd, "1/3 1/1");
    assert_int_equal(cairn_file_close(spill_fd), CAIRN_OK);
}

/* Somebody who may write to the directory of generations plants a link with an old generation's
 * name, to a folder of someone else: retention, removal and the next spill leave that alone. */
static void
test_planted_generation(void **state)
{
    char path[128];
    uint32_t removed = 0;
    int spill_fd, victim_fd, fd = -1;

    (void)snprintf(path, sizeof(path), "%s/planted", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &spill_fd), CAIRN_OK);
    (void)snprintf(path, sizeof(path), "%s/victim", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &victim_fd), CAIRN_OK);
    assert_int_equal(cairn_file_save(victim_fd, "COMMIT", "mine", 4), CAIRN_OK);
    assert_int_equal(cairn_file_save(victim_fd, "thesis", "mine", 4), CAIRN_OK);
    assert_int_equal(symlinkat(path, spill_fd, "e1-s90"), 0);
    make_generation(spill_fd, 2, 20, true);
    make_generation(spill_fd, 2, 40, true);
    expect_list(spill_fd, "2/40 2/20");
    assert_int_equal(keep_last(spill_fd, 1, &removed), CAIRN_OK);
    assert_int_equal(removed, 1);
    assert_int_not_equal(
        cairn_spill_remove(spill_fd, (struct cairn_generation_id){.epoch = 1, .step = 90}),
        CAIRN_OK);
    assert_int_not_equal(
        cairn_spill_dir_begin(spill_fd, (struct cairn_generation_id){.epoch = 1, .step = 90}, &fd),
        CAIRN_OK);
    assert_true(is_there(victim_fd, "COMMIT"));
    assert_true(is_there(victim_fd, "thesis"));
    assert_int_equal(cairn_file_close(victim_fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(spill_fd), CAIRN_OK);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_writer_leaves_no_name), /* first: it forks before any thread */
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_poor_file_systems),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_misuse_and_giving_up),
        cmocka_unit_test(test_failed_write_keeps_its_errno),
        cmocka_unit_test(test_lying_disk_is_found_out),
        cmocka_unit_test(test_hanging_disk_blocks_nobody),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_retention),
        cmocka_unit_test(test_marked_as_bad),
        cmocka_unit_test(test_retention_by_hour_and_day),
        cmocka_unit_test(test_rules_of_retention),
        cmocka_unit_test(test_planted_generation),
        cmocka_unit_test(test_full_disk), /* last: it takes a mount namespace of its own */
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
