/* tests/unit/base/test_file.c - files: atomic save with every call failing, loads, lists, and the
 * translation of errors. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "tests/support/cmocka.h"
#include "tests/support/folder.h"

static int root_fd = -1;
static char last_line[4096];
static int line_count;

static void
keep_line(void *context, enum cairn_log_level level, const char *line)
{
    line_count++;
    (void)snprintf(last_line, sizeof(last_line), "%s", line);
}

static int
setup(void **state)
{
    cairn_log_setup(CAIRN_LOG_INFO, keep_line, NULL);
    if (root_make("file"))
        return -1;
    root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root_fd < 0;
}

static int
teardown(void **state)
{
    (void)close(root_fd);
    return root_remove(state);
}

static void
expect_content(const char *name, const char *expected)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    assert_int_equal(cairn_file_load(root_fd, name, 100, &bytes, &bytes_len), CAIRN_OK);
    assert_int_equal(bytes_len, strlen(expected));
    assert_string_equal((char *)bytes, expected);
    free(bytes);
}

static void
test_save_and_load(void **state)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 7;

    assert_int_equal(cairn_file_save(root_fd, "a", "first", 5), CAIRN_OK);
    expect_content("a", "first");
    assert_int_equal(cairn_file_save(root_fd, "a", "", 0), CAIRN_OK);
    expect_content("a", "");
    assert_int_equal(cairn_file_save(root_fd, "a", "second", 6), CAIRN_OK);
    expect_content("a", "second");
    line_count = 0;
    assert_int_equal(cairn_file_load(root_fd, "none", 100, &bytes, &bytes_len), CAIRN_NOT_FOUND);
    assert_int_equal(line_count, 0); /* an answer, no failure */
    assert_int_equal(cairn_file_load(root_fd, "a", 5, &bytes, &bytes_len), CAIRN_CORRUPT);
    assert_non_null(strstr(last_line, root));
    assert_int_equal(cairn_file_load(root_fd, ".", 5, &bytes, &bytes_len), CAIRN_CORRUPT);
    assert_int_equal(symlinkat("a", root_fd, "link"), 0);
    assert_int_equal(cairn_file_load(root_fd, "link", 100, &bytes, &bytes_len), CAIRN_IO);
    assert_non_null(strstr(last_line, "symbolic link"));
    assert_null(bytes);
    assert_int_equal(bytes_len, 7); /* out-parameters only on success */
}

/* What is made in a directory for a group stays the group's, however it is shared. */
static void
test_shared(int fd)
{
    struct stat made, shared;

    assert_int_equal(fchmod(fd, 02770), 0);
    assert_int_equal(cairn_dir_make(fd, "deeper/group"), CAIRN_OK);
    cairn_file_share(fd, "deeper/group", true, 022);
    assert_int_equal(fstatat(fd, "deeper/group", &shared, 0), 0);
    assert_int_equal(shared.st_mode & 07777, 0755);
    assert_int_equal(cairn_dir_remove(fd, "deeper/group"), CAIRN_OK);
    assert_int_equal(cairn_dir_make(fd, "group"), CAIRN_OK);
    assert_int_equal(fstatat(fd, "group", &made, 0), 0);
    cairn_file_share(fd, "group", true, 07);
    assert_int_equal(fstatat(fd, "group", &shared, 0), 0);
    assert_int_equal(shared.st_mode & 07777, 0770 | (made.st_mode & S_ISGID));
    assert_int_equal(cairn_dir_remove(fd, "group"), CAIRN_OK);
    assert_int_equal(cairn_file_save(fd, "mine", "x", 1), CAIRN_OK);
    cairn_file_share(fd, "mine", false, 027);
    assert_int_equal(fstatat(fd, "mine", &shared, 0), 0);
    assert_int_equal(shared.st_mode & 07777, 0640);
    assert_int_equal(cairn_file_unlink(fd, "mine"), CAIRN_OK);
}

static void
test_directories(void **state)
{
    char **names = NULL, path[128];
    size_t count = 0;
    int fd;

    assert_int_equal(cairn_dir_make(root_fd, "d"), CAIRN_OK);
    assert_int_equal(cairn_dir_make(root_fd, "d"), CAIRN_OK);
    (void)snprintf(path, sizeof(path), "%s/d/deeper", root);
    assert_int_equal(cairn_dir_make(AT_FDCWD, path), CAIRN_OK);
    assert_int_equal(cairn_dir_make(root_fd, "none/d"), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_save(root_fd, "d/file", "x", 1), CAIRN_OK);
    assert_int_equal(cairn_dir_make(root_fd, "d/file"), CAIRN_IO);
    assert_int_equal(cairn_file_open(root_fd, "d", CAIRN_FILE_DIRECTORY, &fd), CAIRN_OK);
    for (int i = 0; i < 100; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "n%02d", 99 - i);
        assert_int_equal(cairn_file_save(fd, name, name, 3), CAIRN_OK);
    }
    for (int twice = 0; twice < 2; twice++) { /* the descriptor's own position plays no part */
        assert_int_equal(cairn_dir_list(fd, &names, &count), CAIRN_OK);
        assert_int_equal(count, 102);
        assert_string_equal(names[0], "deeper");
        assert_string_equal(names[1], "file");
        assert_string_equal(names[101], "n99");
        cairn_dir_list_free(names, count);
    }
    line_count = 0;
    test_shared(fd);
    assert_int_equal(cairn_dir_remove(root_fd, "d"), CAIRN_AGAIN);
    assert_int_equal(cairn_dir_remove(root_fd, "none"), CAIRN_NOT_FOUND);
    assert_int_equal(line_count, 0);
    assert_int_equal(cairn_dir_remove(fd, "deeper"), CAIRN_OK);
    assert_int_equal(cairn_file_open(fd, "deeper", CAIRN_FILE_DIRECTORY, &(int){0}),
                     CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_open(fd, "file/x", CAIRN_FILE_READ, &(int){0}), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(-1), CAIRN_OK);
}

/* ---- what others planted ---- */

/* "made" is a link to "outside": nothing below root_fd goes through it, in any call. */
static void
test_planted_links(void **state)
{
    struct stat found;
    bool made = false;
    int fd = -1;

    assert_int_equal(cairn_dir_make(root_fd, "outside"), CAIRN_OK);
    assert_int_equal(cairn_file_save(root_fd, "outside/file", "x", 1), CAIRN_OK);
    assert_int_equal(symlinkat("outside", root_fd, "made"), 0);
    assert_int_equal(cairn_file_open(root_fd, "made", CAIRN_FILE_DIRECTORY, &fd), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_open(root_fd, "made/file", CAIRN_FILE_READ, &fd), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_open(root_fd, "made/new", CAIRN_FILE_CREATE, &fd), CAIRN_NOT_FOUND);
    assert_int_not_equal(cairn_dir_add(root_fd, "made", &made), CAIRN_OK);
    assert_int_not_equal(cairn_dir_add(root_fd, "made/deeper", &made), CAIRN_OK);
    assert_int_not_equal(cairn_file_rename(root_fd, "made/file", "made/other"), CAIRN_OK);
    assert_int_not_equal(cairn_file_unlink(root_fd, "made/file"), CAIRN_OK);
    assert_int_not_equal(cairn_file_save(root_fd, "made/file", "y", 1), CAIRN_OK);
    cairn_file_share(root_fd, "made", true, 0);
    cairn_file_share(root_fd, "made/file", false, 0);
    assert_int_equal(fstatat(root_fd, "outside", &found, 0), 0);
    assert_int_equal(found.st_mode & 07777, 0700);
    assert_int_equal(fstatat(root_fd, "outside/file", &found, 0), 0);
    assert_int_equal(found.st_mode & 07777, 0600);
    assert_int_equal(fstatat(root_fd, "outside/new", &found, 0), -1);
    expect_content("outside/file", "x");
    /* what the user named is followed */
    assert_int_equal(cairn_file_open(root_fd, "made", CAIRN_FILE_DIRECTORY_LINKED, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(cairn_file_unlink(root_fd, "made"), CAIRN_OK);
    assert_int_equal(cairn_file_rename(root_fd, "outside/file", "outside/other"), CAIRN_OK);
    assert_int_equal(cairn_file_rename(root_fd, "outside/other", "other"), CAIRN_INVAL);
    assert_int_equal(cairn_file_unlink(root_fd, "outside/other"), CAIRN_OK);
    assert_int_equal(cairn_dir_remove(root_fd, "outside"), CAIRN_OK);
}

static void
test_special_files(void **state)
{
    int fd = -1;

    alarm(20); /* an open that waits for the FIFO's other end */
    assert_int_equal(mkfifoat(root_fd, "fifo", 0600), 0);
    for (enum cairn_file_mode mode = CAIRN_FILE_READ; mode <= CAIRN_FILE_READ_LINKED; mode++)
        if (mode != CAIRN_FILE_DIRECTORY && mode != CAIRN_FILE_CREATE_DIRECT)
            assert_int_equal(cairn_file_open(root_fd, "fifo", mode, &fd), CAIRN_CORRUPT);
    assert_int_equal(cairn_file_open(AT_FDCWD, "/dev/zero", CAIRN_FILE_READ, &fd), CAIRN_CORRUPT);
    assert_int_equal(cairn_file_open(root_fd, ".", CAIRN_FILE_READ, &fd), CAIRN_CORRUPT);
    assert_int_equal(fd, -1);
    assert_int_equal(cairn_file_unlink(root_fd, "fifo"), CAIRN_OK);
    alarm(0);
}

static void
test_below(void **state)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    int fd = -1;

    assert_int_equal(cairn_file_save(root_fd, "b", "x", 1), CAIRN_OK);
    assert_int_equal(cairn_file_open(root_fd, "b", CAIRN_FILE_READ, &fd), CAIRN_OK);
    cairn_file_path(root_fd, NULL, path);
    assert_true(cairn_file_is_below(fd, path));
    assert_true(cairn_file_is_below(root_fd, path));
    assert_true(cairn_file_is_below(fd, "/"));
    path[strlen(path) - 1] = '\0'; /* a name that only begins like it */
    assert_false(cairn_file_is_below(fd, path));
    assert_false(cairn_file_is_below(fd, "/usr"));
    assert_false(cairn_file_is_below(fd, ""));
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
}

/* ---- failures ---- */

static int fail_at, calls, fail_errno, short_writes;

static bool
failing(void)
{
    if (calls++ != fail_at)
        return false;
    errno = fail_errno;
    return true;
}

static int
bad_open(int dir_fd, const char *name, int flags, mode_t mode)
{
    return failing() ? -1 : openat(dir_fd, name, flags, mode);
}

static ssize_t
bad_read(int fd, const struct iovec *parts, int count, off_t at)
{
    if (failing())
        return -1;
    if (short_writes)
        return pread(fd, parts[0].iov_base, 1, at);
    return preadv(fd, parts, count, at);
}

static ssize_t
bad_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    return failing() ? -1 : pwrite(fd, bytes, bytes_len > 1 && short_writes ? 1 : bytes_len, at);
}

static int syncs;

static int
bad_sync(int fd)
{
    syncs++;
    return failing() ? -1 : fsync(fd);
}

static int
bad_close(int fd)
{
    int result = close(fd);

    return failing() ? -1 : result;
}

static int
bad_rename(int dir_fd, const char *from, const char *to)
{
    return failing() ? -1 : renameat(dir_fd, from, dir_fd, to);
}

static void
use_bad(int at, int code)
{
    static struct cairn_file_ops ops;

    ops = cairn_file_ops_os;
    ops.open = bad_open;
    ops.readv = bad_read;
    ops.write = bad_write;
    ops.sync = bad_sync;
    ops.close = bad_close;
    ops.rename = bad_rename;
    fail_at = at;
    fail_errno = code;
    calls = 0;
    syncs = 0;
    cairn_file_setup(&ops);
}

static void
test_the_first_errno_is_kept(void **state)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    (void)cairn_file_errno_take();
    use_bad(0, EROFS);
    assert_int_equal(cairn_file_save(root_fd, "first", "x", 1), CAIRN_DENIED);
    use_bad(0, EIO); /* as a clean-up that fails too */
    assert_int_equal(cairn_file_save(root_fd, "first", "x", 1), CAIRN_IO);
    cairn_file_setup(NULL);
    assert_int_equal(cairn_file_load(root_fd, "none", 9, &bytes, &bytes_len), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_errno_take(), EROFS);
    assert_int_equal(cairn_file_load(root_fd, "none", 9, &bytes, &bytes_len), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_errno_take(), 0); /* an answer is not a failure */
}

static void
test_save_fails_at_every_call(void **state)
{
    static const struct {
        int code;
        cairn_err err;
    } codes[] = {{EIO, CAIRN_IO},        {ENOSPC, CAIRN_FULL},  {EDQUOT, CAIRN_FULL},
                 {EACCES, CAIRN_DENIED}, {EROFS, CAIRN_DENIED}, {ENOMEM, CAIRN_NOMEM}};

    for (size_t c = 0; c < sizeof(codes) / sizeof(codes[0]); c++) {
        int at;

        assert_int_equal(cairn_file_save(root_fd, "s", "old", 3), CAIRN_OK);
        for (at = 0; at < 20; at++) {
            bool last = false;
            cairn_err err;

            use_bad(at, codes[c].code);
            line_count = 0;
            err = cairn_file_save(root_fd, "s", "new", 3);
            cairn_file_setup(NULL);
            if (calls <= at) { /* nothing failed */
                assert_int_equal(err, CAIRN_OK);
                break;
            }
            assert_int_equal(err, codes[c].err);
            assert_int_equal(line_count, 1);
            assert_int_equal(cairn_file_errno_take(), codes[c].code);
            assert_int_equal(cairn_file_errno_take(), 0);
            assert_non_null(strstr(last_line, "path="));
            assert_non_null(strstr(last_line, root));
            assert_in_range(syncs, 0, 2); /* never a second try */
            last = calls == at + 1 && syncs == 2;
            expect_content(
                "s", last ? "new" : "old"); /* only the directory's sync comes after the rename */
            assert_int_equal(faccessat(root_fd, "s.new", F_OK, 0), -1);
            assert_int_equal(cairn_file_save(root_fd, "s", "old", 3), CAIRN_OK);
        }
        assert_int_equal(at, 6); /* open, write, sync, close, rename, sync */
        expect_content("s", "new");
    }
}

static void
test_interrupted_and_short(void **state)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    short_writes = 1;
    for (int at = 0; at < 12; at++) {
        use_bad(at, EINTR);
        if (at == 0 || (at >= 1 && at <= 6)) { /* open and write go on after an interrupt */
            assert_int_equal(cairn_file_save(root_fd, "i", "sixby!", 6), CAIRN_OK);
            cairn_file_setup(NULL);
            expect_content("i", "sixby!");
        }
        use_bad(at, EINTR);
        if (at < 6) {
            assert_int_equal(cairn_file_load(root_fd, "i", 10, &bytes, &bytes_len), CAIRN_OK);
            assert_int_equal(bytes_len, 6);
            assert_memory_equal(bytes, "sixby!", 6);
            free(bytes);
        }
    }
    short_writes = 0;
    cairn_file_setup(NULL);
}

static ssize_t
no_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    (void)fd, (void)bytes, (void)bytes_len, (void)at;
    return 0;
}

static ssize_t
interrupted_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    (void)fd, (void)bytes, (void)bytes_len, (void)at;
    errno = EINTR;
    return -1;
}

static void
test_no_endless_loops(void **state)
{
    struct cairn_file_ops ops = cairn_file_ops_os;

    ops.write = no_write;
    cairn_file_setup(&ops);
    assert_int_equal(cairn_file_save(root_fd, "z", "abc", 3), CAIRN_IO);
    ops.write = interrupted_write;
    assert_int_equal(cairn_file_save(root_fd, "z", "abc", 3), CAIRN_IO);
    cairn_file_setup(NULL);
}

static void
test_sizes_and_messages(void **state)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX], expected[128];
    uint64_t bytes = 0;
    size_t got = 0;
    cairn_err err;
    int fd;

    assert_int_equal(cairn_file_open(root_fd, "size", CAIRN_FILE_UPDATE, &fd), CAIRN_OK);
    assert_int_equal(cairn_file_reserve(fd, 1000), CAIRN_OK);
    assert_int_equal(cairn_file_reserve(fd, 0), CAIRN_OK);
    assert_int_equal(cairn_file_size(fd, &bytes), CAIRN_OK);
    assert_int_equal(bytes, 1000);
    assert_int_equal(cairn_file_resize(fd, 3), CAIRN_OK);
    assert_int_equal(cairn_file_read_at(fd, 1, path, 100, &got), CAIRN_OK);
    assert_int_equal(got, 2);
    err = cairn_file_reserve(fd, UINT64_MAX / 4);
    /* EFBIG, or ENOSPC of a file system in memory */
    assert_true(err == CAIRN_IO || err == CAIRN_FULL);
    assert_int_equal(cairn_file_size(root_fd, &bytes), CAIRN_INVAL);
    cairn_file_path(root_fd, "x", path);
    (void)snprintf(expected, sizeof(expected), "%s/x", root);
    assert_string_equal(path, expected);
    cairn_file_path(AT_FDCWD, "rel", path);
    assert_string_equal(path, "rel");
    cairn_file_path(root_fd, "/abs", path);
    assert_string_equal(path, "/abs");
    assert_int_equal(cairn_file_close(fd), CAIRN_OK);
    assert_int_equal(cairn_file_rename(root_fd, "none", "x"), CAIRN_NOT_FOUND);
    assert_int_equal(cairn_file_unlink(root_fd, "none"), CAIRN_NOT_FOUND);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_load),
        cmocka_unit_test(test_directories),
        cmocka_unit_test(test_planted_links),
        cmocka_unit_test(test_special_files),
        cmocka_unit_test(test_below),
        cmocka_unit_test(test_the_first_errno_is_kept),
        cmocka_unit_test(test_save_fails_at_every_call),
        cmocka_unit_test(test_interrupted_and_short),
        cmocka_unit_test(test_no_endless_loops),
        cmocka_unit_test(test_sizes_and_messages),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
