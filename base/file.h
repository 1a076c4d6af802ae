/*
 * base/file.h - files and directories: every system call that touches a disk goes through one
 * table.
 *
 * The table is the test seam: tests replace it and fail the n-th call. Its functions behave as the
 * system calls do (result, or -1 with errno). file.c retries (EINTR, short writes), translates
 * errno into cairn_err, and logs one line with what failed, where, why and what to do; callers do
 * not log it again. ENOSPC and EDQUOT are CAIRN_FULL, ENOENT is CAIRN_NOT_FOUND (an answer, not
 * logged), EACCES, EPERM and EROFS are CAIRN_DENIED, all others CAIRN_IO.
 *
 * After a failed sync, rename, or close of a written file, the file cannot be trusted: the
 * operation has failed. Never retry a sync: the kernel drops the pages that it could not write, and
 * a second sync succeeds.
 *
 * Names are relative to a directory's descriptor, or AT_FDCWD. Others may write to that directory:
 * below a descriptor no symbolic link is followed, not in the middle of a name either. Relative to
 * AT_FDCWD only the last part of a name is not followed: the user chose the rest. Thread: any;
 * calls may block on the disk.
 */
#ifndef CAIRN_BASE_FILE_H
#define CAIRN_BASE_FILE_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { CAIRN_FILE_PATH_BYTES_MAX = 4096 };

struct cairn_file_ops {
    const char *name;                                                         /* "os" */
    int (*open)(int dir_fd, const char *name, int flags, mode_t mode);        /* as openat */
    ssize_t (*readv)(int fd, const struct iovec *parts, int count, off_t at); /* as preadv */
    ssize_t (*write)(int fd, const void *bytes, size_t bytes_len, off_t at);  /* as pwrite */
    int (*resize)(int fd, off_t bytes,
                  bool reserve); /* as ftruncate, or with reserve as fallocate */
    int (*sync)(int fd);         /* as fsync */
    int (*close)(int fd);
    int (*rename)(int dir_fd, const char *from, const char *to);
    int (*unlink)(int dir_fd, const char *name, bool directory);
};

extern const struct cairn_file_ops cairn_file_ops_os;

/* Sets the table of this process; NULL: the operating system. For tests, before threads start. */
void cairn_file_setup(const struct cairn_file_ops *ops);

/* False while a test has set a table of its own. */
bool cairn_file_is_os(void);

/* Returns the errno of the first failure that this thread has logged since the last call, or 0, and
 * forgets it. For texts that reach an operator without the log. */
int cairn_file_errno_take(void);

/* Puts "<why>; <what to do>" of this thread's last failure into text if that failure was `err`;
 * else returns false. Forgets it either way. For messages that reach a user without the log. */
bool cairn_file_failure_take(cairn_err err, char *text, size_t text_bytes);

enum cairn_file_mode {
    CAIRN_FILE_READ = 0,
    CAIRN_FILE_UPDATE = 1, /* read and write, created (0600) where it is not */
    CAIRN_FILE_CREATE = 2, /* write, created (0600), emptied where it is */
    CAIRN_FILE_CREATE_DIRECT =
        3, /* the same without the page cache; CAIRN_INVAL (not logged) if refused */
    CAIRN_FILE_DIRECTORY = 4,        /* a directory, for dir_fd and cairn_file_sync */
    CAIRN_FILE_READ_LINKED = 5,      /* read, and follow symbolic links */
    CAIRN_FILE_DIRECTORY_LINKED = 6, /* a directory, and follow symbolic links */
    /* read without the page cache; CAIRN_INVAL (not logged) if refused. A read whose place, length
     * or memory is not a multiple of 4096 bytes turns that off. */
    CAIRN_FILE_READ_DIRECT = 7
};

/*
 * Opens `name`. Only the two _LINKED modes follow symbolic links; they are for names that the user
 * chose. All but directories must be regular files: a FIFO, socket or device is CAIRN_CORRUPT, and
 * opening it never waits. A link as a directory's name is CAIRN_NOT_FOUND. The caller closes *fd.
 */
CAIRN_MUST_CHECK cairn_err cairn_file_open(int dir_fd, const char *name, enum cairn_file_mode mode,
                                           int *fd);

/* Reads bytes_len bytes at `at` into bytes; *got is less only at the end of the file. */
CAIRN_MUST_CHECK cairn_err cairn_file_read_at(int fd, uint64_t at, void *bytes, size_t bytes_len,
                                              size_t *got);

enum { CAIRN_FILE_PARTS_MAX = 1024 }; /* of one read: what Linux takes */

/* Reads what follows `at` into parts[count], one after the other (1 to CAIRN_FILE_PARTS_MAX, none
 * empty); *got is less than all only at the end of the file. Changes `parts`. */
CAIRN_MUST_CHECK cairn_err cairn_file_read_parts_at(int fd, uint64_t at, struct iovec *parts,
                                                    int count, uint64_t *got);

/* Writes all of it; through the page cache if direct I/O is refused. On failure an unknown part is
 * written. */
CAIRN_MUST_CHECK cairn_err cairn_file_write_at(int fd, uint64_t at, const void *bytes,
                                               size_t bytes_len);

/* Reserves space for the first `bytes` bytes. A file system that cannot (old tmpfs, NFS) does
 * nothing, and this succeeds. */
CAIRN_MUST_CHECK cairn_err cairn_file_reserve(int fd, uint64_t bytes);
/* Cuts or extends to `bytes` bytes. */
CAIRN_MUST_CHECK cairn_err cairn_file_resize(int fd, uint64_t bytes);
/* Bytes of a regular file; CAIRN_INVAL for anything else. */
CAIRN_MUST_CHECK cairn_err cairn_file_size(int fd, uint64_t *bytes);
/* Waits until the file (or the directory's names) is on the disk. Never call it again after a
 * failure. */
CAIRN_MUST_CHECK cairn_err cairn_file_sync(int fd);
/* Has the disk begin to write, so that a later cairn_file_sync waits less. A hint: it does not
 * wait, and the sync reports its failure. */
void cairn_file_start_sync(int fd, uint64_t at, uint64_t bytes);
/* Closes; -1 is allowed. The descriptor is gone even on failure. For a written file the result
 * counts. */
cairn_err cairn_file_close(int fd);
/* Both names are in the same directory, or CAIRN_INVAL. CAIRN_AGAIN: `to` is a directory that is
 * not empty (not logged). */
CAIRN_MUST_CHECK cairn_err cairn_file_rename(int dir_fd, const char *from, const char *to);
CAIRN_MUST_CHECK cairn_err cairn_file_unlink(int dir_fd, const char *name);

/* What the process' umask takes away. Call it while no other thread makes files. */
mode_t cairn_file_mask(void);
/* Whether the file open as `fd` is this directory or lies below it. For use after an open that
 * followed links. `directory` comes from cairn_file_path. Needs /proc. */
bool cairn_file_is_below(int fd, const char *directory);
/* Gives a file or directory the permissions of a new one under that umask, since files are made
 * 0600. A directory keeps the setgid bit of its parent. Does nothing on a file system without
 * permissions. */
void cairn_file_share(int dir_fd, const char *name, bool directory, mode_t mask);
/* The same for an open file. Call it before the last sync, which makes permissions durable. */
void cairn_file_share_open(int fd, mode_t mask);

/*
 * Replaces a whole small file atomically and durably: "<name>.new" is written, synced, closed,
 * renamed, and the directory synced. On failure the old file is untouched, except that a failed
 * sync of the directory leaves either the old or the new one; the temporary is removed.
 */
CAIRN_MUST_CHECK cairn_err cairn_file_save(int dir_fd, const char *name, const void *bytes,
                                           size_t bytes_len);

/* The same, with the permissions of a new file under that umask. */
CAIRN_MUST_CHECK cairn_err cairn_file_save_shared(int dir_fd, const char *name, const void *bytes,
                                                  size_t bytes_len, mode_t mask);

/*
 * Reads a whole file of at most bytes_max bytes into a new buffer, with a NUL after its end (not
 * counted). The caller frees *bytes. CAIRN_NOT_FOUND; CAIRN_CORRUPT where it is longer;
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_file_load(int dir_fd, const char *name, size_t bytes_max,
                                           uint8_t **bytes, size_t *bytes_len);

/* Makes a directory (0700) and syncs its parent. Succeeds if it exists. */
CAIRN_MUST_CHECK cairn_err cairn_dir_make(int dir_fd, const char *name);
/* The same without the sync, for callers that make many and sync at the end. *made: it was new. */
CAIRN_MUST_CHECK cairn_err cairn_dir_add(int dir_fd, const char *name, bool *made);
/* Removes an empty directory. CAIRN_NOT_FOUND; CAIRN_AGAIN (not logged) if it is not empty. */
CAIRN_MUST_CHECK cairn_err cairn_dir_remove(int dir_fd, const char *name);

/*
 * The names in an open directory without "." and "..", sorted by bytes; (*names)[*count], freed by
 * cairn_dir_list_free. CAIRN_CORRUPT for more than 1,000,000 of them.
 */
CAIRN_MUST_CHECK cairn_err cairn_dir_list(int dir_fd, char ***names, size_t *count);
void cairn_dir_list_free(char **names, size_t count);

/* The path of dir_fd / name for a message; name NULL: of dir_fd itself. Never fails. */
void cairn_file_path(int dir_fd, const char *name, char path[CAIRN_FILE_PATH_BYTES_MAX]);

#endif
