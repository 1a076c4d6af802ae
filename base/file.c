/* base/file.c - files and directories over one table of system calls; the only place that
 * translates errno. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { DIR_NAMES_MAX = 1000000, INTERRUPTS_MAX = 1000 };

static int
os_open(int dir_fd, const char *name, int flags, mode_t mode)
{
    return openat(dir_fd, name, flags, mode);
}

static int
os_resize(int fd, off_t bytes, bool reserve)
{
    return reserve ? fallocate(fd, 0, 0, bytes) : ftruncate(fd, bytes);
}

static int
os_rename(int dir_fd, const char *from, const char *to)
{
    return renameat(dir_fd, from, dir_fd, to);
}

static int
os_unlink(int dir_fd, const char *name, bool directory)
{
    return unlinkat(dir_fd, name, directory ? AT_REMOVEDIR : 0);
}

const struct cairn_file_ops cairn_file_ops_os = {
    .name = "os",
    .open = os_open,
    .readv = preadv,
    .write = pwrite,
    .resize = os_resize,
    .sync = fsync,
    .close = close,
    .rename = os_rename,
    .unlink = os_unlink,
};

/* Atomic: a thread that was given up may still be in its last calls when a test changes it. */
static const struct cairn_file_ops *_Atomic file_ops = &cairn_file_ops_os;

void
cairn_file_setup(const struct cairn_file_ops *ops)
{
    file_ops = ops ? ops : &cairn_file_ops_os;
}

bool
cairn_file_is_os(void)
{
    return file_ops == &cairn_file_ops_os;
}

void
cairn_file_path(int dir_fd, const char *name, char path[CAIRN_FILE_PATH_BYTES_MAX])
{
    char link[64];
    ssize_t used = 0;

    path[0] = '\0';
    if (dir_fd != AT_FDCWD && (name == NULL || name[0] != '/')) {
        (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", dir_fd);
        used = readlink(link, path, CAIRN_FILE_PATH_BYTES_MAX - 2);
        if (used < 0)
            used = snprintf(path, CAIRN_FILE_PATH_BYTES_MAX, "(descriptor %d)", dir_fd);
        path[used] = '\0';
        if (name)
            path[used++] = '/';
    }
    if (name)
        (void)snprintf(path + used, (size_t)(CAIRN_FILE_PATH_BYTES_MAX - used), "%s", name);
}

/* The first error that this thread has logged since cairn_file_errno_take, and the last one. */
static _Thread_local int logged_errno, last_errno;

int
cairn_file_errno_take(void)
{
    int code = logged_errno;

    logged_errno = 0;
    return code;
}

/* Our error for each errno, and what to do. The last row is for all others. */
static const struct {
    int code;
    cairn_err err;
    const char *cure;
} failures[] = {
    {ENOENT, CAIRN_NOT_FOUND, "check the path"},
    {ENOSPC, CAIRN_FULL, "free space there, or choose another directory"},
    {EDQUOT, CAIRN_FULL, "free space there, or choose another directory"},
    {EACCES, CAIRN_DENIED, "check the owner and the mode of the path, and how it is mounted"},
    {EPERM, CAIRN_DENIED, "check the owner and the mode of the path, and how it is mounted"},
    {EROFS, CAIRN_DENIED, "check the owner and the mode of the path, and how it is mounted"},
    {ELOOP, CAIRN_IO, "it is a symbolic link, which is not followed; remove it"},
    {ENXIO, CAIRN_CORRUPT, "it is a FIFO, a socket or a device; remove it"},
    {EMFILE, CAIRN_IO, "raise the limit of open files"},
    {ENFILE, CAIRN_IO, "raise the limit of open files"},
    {ENOMEM, CAIRN_NOMEM, "free memory"},
    {0, CAIRN_IO, "look at the disk and the kernel log"},
};

static size_t
failure_of(int code)
{
    size_t i = 0;

    while (failures[i].code != 0 && failures[i].code != code)
        i++;
    return i;
}

bool
cairn_file_failure_take(cairn_err err, char *text, size_t text_bytes)
{
    int code = last_errno;

    last_errno = 0;
    if (code == 0 || failures[failure_of(code)].err != err)
        return false;
    (void)snprintf(text, text_bytes, "%s; %s", strerror(code), failures[failure_of(code)].cure);
    return true;
}

/* Turns errno into our error and logs it once. `bytes`: the size of the request, 0 if it does not
 * matter. */
static cairn_err
report(const char *verb, int dir_fd, const char *name, uint64_t bytes)
{
    int code = errno;
    size_t failure = failure_of(code);
    char path[CAIRN_FILE_PATH_BYTES_MAX], count[32] = "";

    if (code == ENOENT)
        return CAIRN_NOT_FOUND;
    if (!logged_errno)
        logged_errno = code;
    last_errno = code;
    cairn_file_path(dir_fd, name, path);
    if (bytes > 0)
        (void)snprintf(count, sizeof(count), " bytes=%" PRIu64, bytes);
    CAIRN_LOG_AT(ERROR, "file: %s failed path=%s%s errno=%d (%s): %s", verb, path, count, code,
                 strerror(code), failures[failure].cure);
    return failures[failure].err;
}

static bool
has_flags(enum cairn_file_mode mode, int *flags)
{
    static const int known[] = {
        [CAIRN_FILE_READ] = O_RDONLY | O_NOFOLLOW,
        [CAIRN_FILE_UPDATE] = O_RDWR | O_CREAT | O_NOFOLLOW,
        [CAIRN_FILE_CREATE] = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW,
        [CAIRN_FILE_CREATE_DIRECT] = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_DIRECT,
        [CAIRN_FILE_DIRECTORY] = O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
        [CAIRN_FILE_READ_LINKED] = O_RDONLY,
        [CAIRN_FILE_DIRECTORY_LINKED] = O_RDONLY | O_DIRECTORY,
        [CAIRN_FILE_READ_DIRECT] = O_RDONLY | O_NOFOLLOW | O_DIRECT,
    };

    if ((unsigned)mode >= sizeof(known) / sizeof(known[0]))
        return false;
    *flags = known[mode] | O_CLOEXEC | O_NONBLOCK | O_NOCTTY; /* a FIFO or terminal must not hang */
    return true;
}

static int
open_retry(int dir_fd, const char *name, int flags)
{
    int opened = -1;

    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        opened = file_ops->open(dir_fd, name, flags, 0600);
        if (opened >= 0 || errno != EINTR)
            break;
    }
    return opened;
}

/*
 * Opens the directory that holds the last part of `name`, and follows no link on the way. *leaf is
 * that last part. A name without a slash, absolute, or relative to AT_FDCWD stays as it is, since
 * the user chose it: then *parent_fd is dir_fd. leave_parent closes *parent_fd. False with errno
 * set.
 */
static bool
enter_parent(int dir_fd, const char *name, int *parent_fd, const char **leaf)
{
    char part[NAME_MAX + 1];
    const char *slash;
    int fd = dir_fd;

    *leaf = name;
    *parent_fd = dir_fd;
    if (dir_fd == AT_FDCWD || name[0] == '/')
        return true;
    while ((slash = strchr(*leaf, '/')) != NULL) {
        size_t bytes = (size_t)(slash - *leaf);
        int next = -1, code;

        if (bytes == 0 || bytes >= sizeof(part)) {
            errno = bytes ? ENAMETOOLONG : EINVAL;
        } else {
            memcpy(part, *leaf, bytes);
            part[bytes] = '\0';
            next = open_retry(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        code = errno;
        if (fd != dir_fd)
            (void)file_ops->close(fd);
        errno = code;
        if (next < 0)
            return false;
        fd = next;
        *leaf = slash + 1;
    }
    *parent_fd = fd;
    return true;
}

static void
leave_parent(int dir_fd, int parent_fd)
{
    int saved = errno;

    if (parent_fd != dir_fd)
        (void)file_ops->close(parent_fd); /* a directory that was only looked up in */
    errno = saved;
}

/* Refuses all but regular files. Asks the descriptor: a name can change between two calls. */
static cairn_err
check_regular(int dir_fd, const char *name, int fd)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    struct stat found;

    if (fstat(fd, &found) != 0)
        return report("stat", dir_fd, name, 0);
    if (S_ISREG(found.st_mode))
        return CAIRN_OK;
    cairn_file_path(dir_fd, name, path);
    CAIRN_LOG_AT(ERROR, "file: open refused path=%s: not a regular file; remove it", path);
    return CAIRN_CORRUPT;
}

cairn_err
cairn_file_open(int dir_fd, const char *name, enum cairn_file_mode mode, int *fd)
{
    int flags, parent_fd, opened = -1;
    const char *leaf;
    cairn_err err;

    if (!has_flags(mode, &flags))
        return CAIRN_INVAL;
    if (enter_parent(dir_fd, name, &parent_fd, &leaf)) {
        opened = open_retry(parent_fd, leaf, flags);
        leave_parent(dir_fd, parent_fd);
    }
    if (opened < 0 && (flags & O_DIRECT) && errno == EINVAL)
        return CAIRN_INVAL; /* the file system has no direct I/O: the caller tries without */
    if (opened < 0 && errno == ENOTDIR)
        return CAIRN_NOT_FOUND; /* no directory has that name; a link does not count */
    if (opened < 0)
        return report("open", dir_fd, name, 0);
    err = flags & O_DIRECTORY ? CAIRN_OK : check_regular(dir_fd, name, opened);
    if (err) {
        (void)file_ops->close(opened);
        return err;
    }
    *fd = opened;
    return CAIRN_OK;
}

/* Turns direct I/O off; true if it was on. */
static bool
clear_direct(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && (flags & O_DIRECT) && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

cairn_err
cairn_file_read_parts_at(int fd, uint64_t at, struct iovec *parts, int count, uint64_t *got)
{
    uint64_t done = 0;
    int interrupts = 0;

    while (count > 0) {
        ssize_t n = file_ops->readv(fd, parts, count, (off_t)(at + done));

        if (n < 0 && errno == EINTR && interrupts++ < INTERRUPTS_MAX)
            continue;
        if (n < 0 && errno == EINVAL && clear_direct(fd))
            continue; /* at the file's end, which need not be a whole sector */
        if (n < 0)
            return report("read", fd, NULL, parts[0].iov_len);
        if (n == 0)
            break;
        done += (uint64_t)n;
        for (size_t left = (size_t)n; count > 0 && left > 0;) {
            size_t taken = left < parts->iov_len ? left : parts->iov_len;

            parts->iov_base = (uint8_t *)parts->iov_base + taken;
            parts->iov_len -= taken;
            left -= taken;
            if (parts->iov_len == 0) {
                parts++;
                count--;
            }
        }
    }
    *got = done;
    return CAIRN_OK;
}

cairn_err
cairn_file_read_at(int fd, uint64_t at, void *bytes, size_t bytes_len, size_t *got)
{
    struct iovec part = {bytes, bytes_len};
    uint64_t read_bytes = 0;
    cairn_err err;

    err = cairn_file_read_parts_at(fd, at, &part, bytes_len > 0, &read_bytes);
    if (err)
        return err;
    *got = (size_t)read_bytes;
    return CAIRN_OK;
}

cairn_err
cairn_file_write_at(int fd, uint64_t at, const void *bytes, size_t bytes_len)
{
    size_t done = 0;
    int interrupts = 0;

    while (done < bytes_len) {
        ssize_t n = file_ops->write(fd, (const uint8_t *)bytes + done, bytes_len - done,
                                    (off_t)(at + done));

        if (n < 0 && errno == EINTR && interrupts++ < INTERRUPTS_MAX)
            continue;
        /* Some file systems refuse direct I/O only here; all do after a short write. */
        if (n < 0 && errno == EINVAL && clear_direct(fd))
            continue;
        if (n == 0)
            errno = EIO; /* nothing written and no reason: a retry could go on for ever */
        if (n <= 0)
            return report("write", fd, NULL, bytes_len - done);
        done += (size_t)n;
    }
    return CAIRN_OK;
}

cairn_err
cairn_file_reserve(int fd, uint64_t bytes)
{
    if (bytes == 0)
        return CAIRN_OK;
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (file_ops->resize(fd, (off_t)bytes, true) == 0)
            return CAIRN_OK;
        if (errno != EINTR)
            break;
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS)
        return CAIRN_OK; /* the writes will find out whether there is room */
    return report("reserve", fd, NULL, bytes);
}

cairn_err
cairn_file_resize(int fd, uint64_t bytes)
{
    for (int i = 0; i < INTERRUPTS_MAX; i++) {
        if (file_ops->resize(fd, (off_t)bytes, false) == 0)
            return CAIRN_OK;
        if (errno != EINTR)
            break;
    }
    return report("resize", fd, NULL, bytes);
}

cairn_err
cairn_file_size(int fd, uint64_t *bytes)
{
    struct stat stat;

    if (fstat(fd, &stat) != 0)
        return report("stat", fd, NULL, 0);
    if (!S_ISREG(stat.st_mode))
        return CAIRN_INVAL;
    *bytes = (uint64_t)stat.st_size;
    return CAIRN_OK;
}

cairn_err
cairn_file_sync(int fd)
{
    return file_ops->sync(fd) == 0 ? CAIRN_OK : report("sync", fd, NULL, 0);
}

void
cairn_file_start_sync(int fd, uint64_t at, uint64_t bytes)
{
    int saved = errno;

    (void)sync_file_range(fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    errno = saved;
}

cairn_err
cairn_file_close(int fd)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    cairn_err err;

    if (fd < 0)
        return CAIRN_OK;
    cairn_file_path(fd, NULL, path); /* nothing reports it after the close */
    if (file_ops->close(fd) == 0)
        return CAIRN_OK;
    err = report("close", AT_FDCWD, path, 0);
    return err == CAIRN_NOT_FOUND ? CAIRN_IO : err;
}

mode_t
cairn_file_mask(void)
{
    mode_t mask = umask(0);

    (void)umask(mask);
    return mask;
}

void
cairn_file_share(int dir_fd, const char *name, bool directory, mode_t mask)
{
    int saved = errno, fd = -1;
    struct stat found;

    if (cairn_file_open(dir_fd, name, directory ? CAIRN_FILE_DIRECTORY : CAIRN_FILE_READ, &fd) ==
            CAIRN_OK &&
        fstat(fd, &found) == 0) /* keeps the group that a shared directory passes on */
        (void)!fchmod(fd, (directory ? (found.st_mode & 07000) | 0777 : 0666) & ~mask);
    (void)cairn_file_close(fd);
    errno = saved;
}

void
cairn_file_share_open(int fd, mode_t mask)
{
    int saved = errno;

    (void)!fchmod(fd, 0666 & ~mask);
    errno = saved;
}

cairn_err
cairn_file_rename(int dir_fd, const char *from, const char *to)
{
    const char *slash = strrchr(from, '/'), *leaf;
    size_t shared = slash ? (size_t)(slash - from) + 1 : 0;
    int parent_fd, result = -1;

    if (strncmp(from, to, shared) != 0)
        return CAIRN_INVAL;
    if (enter_parent(dir_fd, from, &parent_fd, &leaf)) {
        result = file_ops->rename(parent_fd, leaf, parent_fd == dir_fd ? to : to + shared);
        leave_parent(dir_fd, parent_fd);
    }
    if (result != 0 && (errno == ENOTEMPTY || errno == EEXIST))
        return CAIRN_AGAIN;
    return result == 0 ? CAIRN_OK : report("rename", dir_fd, from, 0);
}

static int
remove_name(int dir_fd, const char *name, bool directory)
{
    const char *leaf;
    int parent_fd, result;

    if (!enter_parent(dir_fd, name, &parent_fd, &leaf))
        return -1;
    result = file_ops->unlink(parent_fd, leaf, directory);
    leave_parent(dir_fd, parent_fd);
    return result;
}

cairn_err
cairn_file_unlink(int dir_fd, const char *name)
{
    return remove_name(dir_fd, name, false) == 0 ? CAIRN_OK : report("unlink", dir_fd, name, 0);
}

/* mask NULL: for the owner alone. */
static cairn_err
save(int dir_fd, const char *name, const void *bytes, size_t bytes_len, const mode_t *mask)
{
    char temporary[CAIRN_FILE_PATH_BYTES_MAX];
    bool there = false;
    int fd = -1;
    cairn_err err, close_err;

    if (snprintf(temporary, sizeof(temporary), "%s.new", name) >= (int)sizeof(temporary))
        return CAIRN_INVAL;
    err = cairn_file_open(dir_fd, temporary, CAIRN_FILE_CREATE, &fd);
    if (err)
        goto done;
    there = true;
    err = cairn_file_write_at(fd, 0, bytes, bytes_len);
    if (err)
        goto done;
    if (mask)
        cairn_file_share_open(fd, *mask);
    err = cairn_file_sync(fd); /* contents before the name: a crash here leaves the old file */
    if (err)
        goto done;
    err = cairn_file_close(fd);
    fd = -1;
    if (err)
        goto done;
    err = cairn_file_rename(dir_fd, temporary, name);
    if (err)
        goto done;
    there = false;
    err = cairn_file_sync(dir_fd);
done:
    close_err = cairn_file_close(fd);
    if (there)
        (void)remove_name(dir_fd, temporary, false); /* the failure that counts is logged already */
    return err ? err : close_err;
}

cairn_err
cairn_file_save(int dir_fd, const char *name, const void *bytes, size_t bytes_len)
{
    return save(dir_fd, name, bytes, bytes_len, NULL);
}

cairn_err
cairn_file_save_shared(int dir_fd, const char *name, const void *bytes, size_t bytes_len,
                       mode_t mask)
{
    return save(dir_fd, name, bytes, bytes_len, &mask);
}

cairn_err
cairn_file_load(int dir_fd, const char *name, size_t bytes_max, uint8_t **bytes, size_t *bytes_len)
{
    uint8_t *buffer = NULL;
    uint64_t size = 0;
    size_t got = 0;
    int fd = -1;
    cairn_err err;

    err = cairn_file_open(dir_fd, name, CAIRN_FILE_READ, &fd);
    if (err)
        goto done;
    err = cairn_file_size(fd, &size);
    if (err == CAIRN_OK && size > bytes_max)
        err = CAIRN_CORRUPT;
    if (err == CAIRN_INVAL || err == CAIRN_CORRUPT) {
        char path[CAIRN_FILE_PATH_BYTES_MAX];

        cairn_file_path(dir_fd, name, path);
        CAIRN_LOG_AT(ERROR, "file: load refused path=%s bytes=%" PRIu64 " bytes_max=%zu: %s", path,
                     size, bytes_max, err == CAIRN_INVAL ? "not a regular file" : "too long");
        err = CAIRN_CORRUPT;
    }
    if (err)
        goto done;
    buffer = malloc((size_t)size + 1);
    if (!buffer) {
        err = CAIRN_NOMEM;
        goto done;
    }
    err = cairn_file_read_at(fd, 0, buffer, (size_t)size, &got);
    if (err)
        goto done;
    buffer[got] = 0;
    *bytes = buffer;
    *bytes_len = got;
    buffer = NULL;
done:
    (void)cairn_file_close(fd); /* only read */
    free(buffer);
    return err;
}

cairn_err
cairn_dir_add(int dir_fd, const char *name, bool *made)
{
    const int link_flags = dir_fd == AT_FDCWD ? 0 : AT_SYMLINK_NOFOLLOW;
    struct stat found;
    const char *leaf;
    int parent_fd;

    *made = false;
    if (!enter_parent(dir_fd, name, &parent_fd, &leaf))
        return report("make directory", dir_fd, name, 0);
    *made = mkdirat(parent_fd, leaf, 0700) == 0;
    if (!*made && errno == EEXIST && fstatat(parent_fd, leaf, &found, link_flags) == 0)
        errno = S_ISDIR(found.st_mode) ? 0 : S_ISLNK(found.st_mode) ? ELOOP : ENOTDIR;
    leave_parent(dir_fd, parent_fd);
    return *made || errno == 0 ? CAIRN_OK : report("make directory", dir_fd, name, 0);
}

cairn_err
cairn_dir_make(int dir_fd, const char *name)
{
    char parent[CAIRN_FILE_PATH_BYTES_MAX];
    bool made = false;
    cairn_err err;
    int fd = -1;

    err = cairn_dir_add(dir_fd, name, &made);
    if (err || !made)
        return err;
    /* Finds the parent through the new directory: name may hold slashes, and dir_fd may be
     * AT_FDCWD. */
    if (snprintf(parent, sizeof(parent), "%s/..", name) >= (int)sizeof(parent))
        return CAIRN_INVAL;
    err = cairn_file_open(dir_fd, parent, CAIRN_FILE_DIRECTORY, &fd);
    if (err)
        return err;
    err = cairn_file_sync(fd);
    (void)cairn_file_close(fd);
    return err;
}

cairn_err
cairn_dir_remove(int dir_fd, const char *name)
{
    if (remove_name(dir_fd, name, true) == 0)
        return CAIRN_OK;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return CAIRN_AGAIN;
    return report("remove directory", dir_fd, name, 0);
}

bool
cairn_file_is_below(int fd, const char *directory)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    size_t bytes = strlen(directory);

    cairn_file_path(fd, NULL, path);
    if (bytes < 1 || directory[0] != '/' || strncmp(path, directory, bytes) != 0)
        return false;
    return directory[bytes - 1] == '/' || path[bytes] == '/' || path[bytes] == '\0';
}

static int
name_compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

cairn_err
cairn_dir_list(int dir_fd, char ***names, size_t *count)
{
    char **list = NULL;
    size_t used = 0, room = 0;
    struct dirent *entry;
    cairn_err err = CAIRN_OK;
    DIR *dir = NULL;
    int fd;

    err = cairn_file_open(dir_fd, ".", CAIRN_FILE_DIRECTORY, &fd); /* an offset of its own */
    if (err)
        return err;
    dir = fdopendir(fd);
    if (!dir) {
        err = report("list", dir_fd, NULL, 0);
        (void)cairn_file_close(fd);
        return err;
    }
    for (errno = 0; (entry = readdir(dir)) != NULL; errno = 0) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (used == DIR_NAMES_MAX) {
            err = CAIRN_CORRUPT;
            goto done;
        }
        if (used == room) {
            char **grown = realloc(list, (room ? room * 2 : 16) * sizeof(*list));

            if (!grown) {
                err = CAIRN_NOMEM;
                goto done;
            }
            list = grown;
            room = room ? room * 2 : 16;
        }
        list[used] = strdup(entry->d_name);
        if (!list[used]) {
            err = CAIRN_NOMEM;
            goto done;
        }
        used++;
    }
    if (errno != 0) {
        err = report("list", dir_fd, NULL, 0);
        goto done;
    }
    if (used > 1)
        qsort(list, used, sizeof(*list), name_compare);
    *names = list;
    *count = used;
    list = NULL;
    used = 0;
done:
    (void)closedir(dir);
    cairn_dir_list_free(list, used);
    return err;
}

void
cairn_dir_list_free(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}
