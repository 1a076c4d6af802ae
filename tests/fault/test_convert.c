/*
 * tests/fault/test_convert.c - a conversion whose n-th allocation or file operation fails, for every
 * n until none does, once and for good: it says so, leaves nothing that looks complete, and the same
 * conversion afterwards comes out right.
 */
#include "tests/support/marker_format.h"
#include "tools/convert/conversion.h"

#include "base/file.h"
#include "base/log.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

enum kind { NONE, MEMORY, FILES };

/* Workers count, too. */
static enum kind failing_kind;
static int64_t fail_at, calls;
static bool for_good;
static int file_errno;

static bool
fails(enum kind kind)
{
    int64_t call;

    if (kind != failing_kind)
        return false;
    call = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return call == fail_at || (for_good && call > fail_at);
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *
__wrap_malloc(size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_malloc(bytes);
}

void *
__wrap_calloc(size_t count, size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_calloc(count, bytes);
}

void *
__wrap_realloc(void *old, size_t bytes)
{
    return fails(MEMORY) ? NULL : __real_realloc(old, bytes);
}

static bool
file_fails(void)
{
    bool failing = fails(FILES);

    if (failing)
        errno = file_errno;
    return failing;
}

static int
fault_open(int dir_fd, const char *name, int flags, mode_t mode)
{
    return file_fails() ? -1 : openat(dir_fd, name, flags, mode);
}

static ssize_t
fault_readv(int fd, const struct iovec *parts, int count, off_t at)
{
    return file_fails() ? -1 : preadv(fd, parts, count, at);
}

static ssize_t
fault_write(int fd, const void *bytes, size_t bytes_len, off_t at)
{
    if (file_fails()) { /* half of it is there all the same */
        (void)!pwrite(fd, bytes, bytes_len / 2, at);
        errno = file_errno;
        return -1;
    }
    return pwrite(fd, bytes, bytes_len, at);
}

static int
fault_resize(int fd, off_t bytes, bool reserve)
{
    return file_fails() ? -1 : cairn_file_ops_os.resize(fd, bytes, reserve);
}

static int
fault_sync(int fd)
{
    (void)fd;
    return file_fails() ? -1 : 0;
}

static int
fault_close(int fd)
{
    int result = close(fd); /* the descriptor is gone either way */

    return file_fails() ? -1 : result;
}

static int
fault_rename(int dir_fd, const char *from, const char *to)
{
    return file_fails() ? -1 : renameat(dir_fd, from, dir_fd, to);
}

static int
fault_unlink(int dir_fd, const char *name, bool directory)
{
    return file_fails() ? -1 : unlinkat(dir_fd, name, directory ? AT_REMOVEDIR : 0);
}

static const struct cairn_file_ops fault_ops = {
    .name = "fault",
    .open = fault_open,
    .readv = fault_readv,
    .write = fault_write,
    .resize = fault_resize,
    .sync = fault_sync,
    .close = fault_close,
    .rename = fault_rename,
    .unlink = fault_unlink,
};

static char base[256], source[300], target[300];
static struct marker marker;

static void
silent(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void
remove_path(const char *path)
{
    char command[400];

    (void)snprintf(command, sizeof(command), "rm -rf %s", path);
    assert_int_equal(system(command), 0);
}

static int
set_up(void **state)
{
    char made[] = "/tmp/cairn-convert-fault-XXXXXX";

    (void)state;
    cairn_log_setup(CAIRN_LOG_ERROR, silent, NULL);
    if (!mkdtemp(made))
        return -1;
    (void)snprintf(base, sizeof(base), "%s", made);
    (void)snprintf(source, sizeof(source), "%s/source", base);
    (void)snprintf(target, sizeof(target), "%s/target", base);
    marker_init(&marker, 17, 4, true);
    marker_now = &marker;
    marker_write(&marker, source);
    cairn_file_setup(&fault_ops);
    return 0;
}

static int
tear_down(void **state)
{
    (void)state;
    cairn_file_setup(NULL);
    remove_path(base);
    return 0;
}

static cairn_err
convert(struct cairn_complaint *complaint)
{
    struct cairn_conversion_options options = {.source = source,
                                               .target = target,
                                               .from = &marker_format,
                                               .to = &marker_format,
                                               .thread_count = 1,
                                               .memory_limit_bytes = 256 << 20};
    struct cairn_conversion conversion;
    cairn_err err;

    complaint->text[0] = '\0';
    err = cairn_conversion_open(&options, &conversion, complaint);
    if (!err)
        err = cairn_conversion_run(&conversion, complaint);
    cairn_conversion_close(&conversion);
    return err;
}

static bool
is_complete(void)
{
    char path[400];
    struct stat found;

    (void)snprintf(path, sizeof(path), "%s/DONE", target);
    return stat(path, &found) == 0;
}

static void
fail_everywhere(enum kind kind, bool good, int code)
{
    struct cairn_complaint complaint = {""};
    int64_t n = 0;

    for (;; n++) {
        bool done;
        cairn_err err;

        remove_path(target);
        fail_at = n;
        for_good = good;
        file_errno = code;
        calls = 0;
        failing_kind = kind;
        err = convert(&complaint);
        failing_kind = NONE;
        done = calls <= n;
        if (err) {
            if (complaint.text[0] == '\0')
                fail_msg("call %lld: %s without a word", (long long)n, cairn_err_name(err));
            /* A marker that is there is true: only what comes after it may have failed. */
            if (is_complete() && marker_check(&marker, target) != 0)
                fail_msg("call %lld: looks complete and is not", (long long)n);
            if (is_complete())
                continue;
            err = convert(&complaint);
        }
        if (err || marker_check(&marker, target) != 0 || !is_complete())
            fail_msg("call %lld: afterwards %s: %s", (long long)n, cairn_err_name(err),
                     complaint.text);
        if (done)
            break;
    }
    assert_true(n > 50);
}

static void
allocations_fail(void **state)
{
    (void)state;
    fail_everywhere(MEMORY, false, 0);
    fail_everywhere(MEMORY, true, 0);
}

static void
files_fail(void **state)
{
    (void)state;
    fail_everywhere(FILES, false, EIO);
    fail_everywhere(FILES, true, EIO);
}

static void
a_disk_fills_up(void **state)
{
    (void)state;
    fail_everywhere(FILES, true, ENOSPC);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_fail),
        cmocka_unit_test(files_fail),
        cmocka_unit_test(a_disk_fills_up),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
