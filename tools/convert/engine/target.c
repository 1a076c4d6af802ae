/* tools/convert/engine/target.c - see target.h. */
#include "tools/convert/core/format.h"
#include "tools/convert/engine/target_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"

enum {
    /* Of one pwrite: longer writes make the page cache take large folios, which a virtual machine
     * has to fetch from its host; 8 MiB at a time is 4 to 10 times slower (measured on ext4). */
    WRITE_BYTES = 256 * 1024
};

const char *
cairn_target_final_name(const struct cairn_target *target, uint32_t file)
{
    return target->name ? target->name : target->output->files[file].path;
}

cairn_err
cairn_target_part_name(const struct cairn_target *target, uint32_t file, char *name,
                       size_t name_bytes)
{
    int used = snprintf(name, name_bytes, "%s%s", cairn_target_final_name(target, file),
                        target->named[file] ? "" : ".cairn-part");

    return used > 0 && (size_t)used < name_bytes ? CAIRN_OK : CAIRN_INVAL;
}

cairn_err
cairn_target_journal_name(const struct cairn_target *target, char *name, size_t name_bytes)
{
    int used = snprintf(name, name_bytes, "%s.cairn-journal", target->name ? target->name : "");

    return used > 0 && (size_t)used < name_bytes ? CAIRN_OK : CAIRN_INVAL;
}

const char *
cairn_target_directory(const struct cairn_target *target)
{
    return target->directory;
}

bool
cairn_target_resumed(const struct cairn_target *target)
{
    return target->resumed;
}

struct cairn_journal *
cairn_target_journal(struct cairn_target *target)
{
    return target->journal;
}

/* Nothing is written, so nothing stays. What cannot be removed does no harm. */
static void
forget(struct cairn_target *target)
{
    char journal[CAIRN_TARGET_NAME_BYTES_MAX];

    if (cairn_target_journal_name(target, journal, sizeof(journal)) == CAIRN_OK)
        (void)!cairn_file_unlink(target->dir_fd, journal);
    if (target->made)
        (void)!rmdir(target->directory);
}

void
cairn_target_discard(struct cairn_target *target)
{
    char name[CAIRN_TARGET_NAME_BYTES_MAX], *slash;

    for (uint32_t f = 0; f < target->output->file_count; f++)
        if (target->named[f])
            return; /* a run that had come as far as that: with an empty journal, all is made again
                     * in place */
    for (uint32_t f = 0; f < target->output->file_count; f++) {
        if (cairn_target_part_name(target, f, name, sizeof(name)) != CAIRN_OK)
            continue;
        (void)!cairn_file_unlink(target->dir_fd, name);
        while ((slash = strrchr(name, '/'))) { /* those with another file in them stay until that is
                                                * gone */
            *slash = '\0';
            (void)!cairn_dir_remove(target->dir_fd, name);
        }
    }
    forget(target);
}

void
cairn_target_close(struct cairn_target *target)
{
    if (!target)
        return;
    if (target->journal && !target->created && !target->resumed)
        forget(target);
    (void)cairn_handles_destroy(target->handles); /* what counts was synced before it was renamed */
    cairn_journal_close(target->journal);
    (void)cairn_file_close(target->dir_fd); /* -1 is allowed; a directory has nothing to lose */
    free(target->directory);
    free(target->name);
    free(target->named);
    free(target->sized);
    free(target);
}

/* ---- part files ---- */

cairn_err
cairn_target_make_directories(const struct cairn_target *target, const char *name)
{
    char path[CAIRN_TARGET_NAME_BYTES_MAX];
    bool made;
    cairn_err err = CAIRN_OK;

    for (const char *slash = strchr(name, '/'); slash && !err; slash = strchr(slash + 1, '/')) {
        if ((size_t)(slash - name) >= sizeof(path))
            return CAIRN_INVAL;
        memcpy(path, name, (size_t)(slash - name));
        path[slash - name] = '\0';
        err = cairn_dir_add(target->dir_fd, path, &made);
        if (!err && made)
            cairn_file_share(target->dir_fd, path, true, target->mask);
    }
    return err;
}

static cairn_err
size_part(const struct cairn_target *target, uint32_t file, int fd,
          struct cairn_complaint *complaint)
{
    uint64_t bytes = target->output->files[file].bytes;
    cairn_err err = cairn_file_reserve(fd, bytes);

    if (!err)
        err = cairn_file_resize(fd, bytes);
    return cairn_complain_failed(complaint, err, "%s/%s: cannot be made %" PRIu64 " bytes long",
                                 target->directory, cairn_target_final_name(target, file), bytes);
}

/* Opens a part file. Who does so first makes it: while one thread makes a file, another writes, so
 * that the disk is at work from the first tile on. */
static cairn_err
open_part(void *context, uint32_t file, int *fd, struct cairn_complaint *complaint)
{
    struct cairn_target *target = context;
    char name[CAIRN_TARGET_NAME_BYTES_MAX];
    cairn_err err;

    target->created = true;
    err = cairn_target_part_name(target, file, name, sizeof(name));
    if (!err && !target->sized[file])
        err = cairn_target_make_directories(target, name);
    if (!err)
        err = cairn_file_open(target->dir_fd, name, CAIRN_FILE_UPDATE, fd);
    if (err)
        return cairn_complain_failed(complaint, err, "%s/%s: cannot be opened", target->directory,
                                     name);
    if (target->sized[file])
        return CAIRN_OK;
    err = size_part(target, file, *fd, complaint);
    target->sized[file] = !err;
    if (err) {
        (void)cairn_file_close(*fd); /* nothing was written to it */
        *fd = -1;
    }
    return err;
}

/* ---- opening ---- */

/* Splits "a/b" into "a" and "b"; "a/b/" is a directory. */
static cairn_err
split_path(struct cairn_target *target, const char *path, bool single_file)
{
    const char *slash = strrchr(path, '/');

    if (!single_file) {
        target->directory = strdup(path);
        return target->directory ? CAIRN_OK : CAIRN_NOMEM;
    }
    target->directory =
        slash ? strndup(path, (size_t)(slash == path ? 1 : slash - path)) : strdup(".");
    target->name = strdup(slash ? slash + 1 : path);
    return target->directory && target->name ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
open_directory(struct cairn_target *target, struct cairn_complaint *complaint)
{
    cairn_err err = CAIRN_OK;

    if (!target->name && access(target->directory, F_OK) != 0) {
        err = cairn_dir_make(AT_FDCWD, target->directory);
        target->made = !err;
        if (target->made)
            cairn_file_share(AT_FDCWD, target->directory, true, target->mask);
    }
    if (!err)
        err = cairn_file_open(AT_FDCWD, target->directory, CAIRN_FILE_DIRECTORY_LINKED,
                              &target->dir_fd);
    if (err == CAIRN_NOT_FOUND)
        return cairn_complain(
            complaint, err, "%s: is not a directory, or the one above it is missing; make it first",
            target->directory);
    return cairn_complain_failed(complaint, err, "%s: cannot be written to", target->directory);
}

/* Refuses a target that holds something, unless it is our own unfinished work. */
static cairn_err
check_free(const struct cairn_target *target, const char *journal,
           struct cairn_complaint *complaint)
{
    struct stat found;
    char **names = NULL;
    size_t count = 0;
    cairn_err err;

    if (fstatat(target->dir_fd, journal, &found, AT_SYMLINK_NOFOLLOW) == 0)
        return CAIRN_OK; /* the journal says whether it is ours */
    if (target->name) {
        if (fstatat(target->dir_fd, target->name, &found, AT_SYMLINK_NOFOLLOW) != 0)
            return CAIRN_OK;
        return cairn_complain(complaint, CAIRN_INVAL,
                              "%s/%s: exists; remove it, or name another target", target->directory,
                              target->name);
    }
    err = cairn_dir_list(target->dir_fd, &names, &count);
    cairn_dir_list_free(names, err ? 0 : count);
    if (!err && count > 0)
        err =
            cairn_complain(complaint, CAIRN_INVAL,
                           "%s: is not empty; empty it, or name another target", target->directory);
    return err;
}

/* Finds the files that have their final names already. What is in them is verified as that of part
 * files is; to make them again would take the room for all of them a second time. */
static void
find_named(struct cairn_target *target, const char *journal)
{
    char part[CAIRN_TARGET_NAME_BYTES_MAX];
    struct stat found;

    if (fstatat(target->dir_fd, journal, &found, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    for (uint32_t f = 0; f < target->output->file_count; f++)
        target->named[f] =
            cairn_target_part_name(target, f, part, sizeof(part)) == CAIRN_OK &&
            fstatat(target->dir_fd, part, &found, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT &&
            fstatat(target->dir_fd, cairn_target_final_name(target, f), &found,
                    AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(found.st_mode) && (uint64_t)found.st_size == target->output->files[f].bytes;
}

/* Whether the disk has room for what is not there yet. */
static cairn_err
check_room(const struct cairn_target *target, struct cairn_complaint *complaint)
{
    uint64_t wanted = target->output->small_bytes, there = 0, room;
    struct statvfs disk;
    struct stat part;
    char name[CAIRN_TARGET_NAME_BYTES_MAX];

    for (uint32_t f = 0; f < target->output->file_count; f++) {
        if (target->named[f]) /* it is whole, and not written again */
            continue;
        wanted += target->output->files[f].bytes;
        if (cairn_target_part_name(target, f, name, sizeof(name)) == CAIRN_OK &&
            fstatat(target->dir_fd, name, &part, AT_SYMLINK_NOFOLLOW) == 0)
            there += (uint64_t)part.st_blocks * 512;
    }
    for (uint32_t i = 0; i < target->output->small_count; i++)
        wanted += target->output->smalls[i].bytes_len;
    if (fstatvfs(target->dir_fd, &disk) != 0)
        return CAIRN_OK; /* then the writes will tell */
    room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (wanted <= there || wanted - there <= room)
        return CAIRN_OK;
    return cairn_complain(complaint, CAIRN_FULL,
                          "%s: has room for %" PRIu64 " bytes and needs %" PRIu64
                          " more; free %" PRIu64 " bytes, or name another disk",
                          target->directory, room, wanted - there, wanted - there - room);
}

cairn_err
cairn_target_open(const char *path, const struct cairn_output *output, bool single_file,
                  const uint8_t digest[CAIRN_SHA256_BYTES], struct cairn_target **out,
                  struct cairn_complaint *complaint)
{
    struct cairn_target *target = calloc(1, sizeof(*target));
    char journal[CAIRN_TARGET_NAME_BYTES_MAX];
    cairn_err err;

    if (!target)
        return CAIRN_NOMEM;
    target->dir_fd = -1;
    target->mask = cairn_file_mask();
    target->output = output;
    target->named = calloc((size_t)output->file_count + 1, sizeof(bool));
    target->sized = calloc((size_t)output->file_count + 1, sizeof(bool));
    err = target->named && target->sized ? split_path(target, path, single_file) : CAIRN_NOMEM;
    if (!err && !single_file && output->file_count > 0 && output->files[0].path[0] == '\0')
        err = cairn_complain(
            complaint, CAIRN_INVAL,
            "%s: is a directory, and %s is one file; give its name, %s/model for example", path,
            output->format->name, path);
    if (!err)
        err = open_directory(target, complaint);
    if (!err && cairn_target_journal_name(target, journal, sizeof(journal)) != CAIRN_OK)
        err = cairn_complain(complaint, CAIRN_INVAL, "the name of %s is too long", path);
    if (!err)
        err = check_free(target, journal, complaint);
    if (!err)
        find_named(target, journal);
    if (!err)
        err = check_room(target, complaint);
    if (!err)
        err = cairn_journal_open(target->dir_fd, journal, digest, &target->journal,
                                 &target->resumed, complaint);
    if (!err && !target->resumed) /* files with those names are not ours */
        memset(target->named, 0, (size_t)output->file_count * sizeof(bool));
    if (!err)
        err = cairn_handles_create(output->file_count, open_part, target, &target->handles);
    if (err) {
        cairn_target_close(target);
        return cairn_complain_failed(complaint, err, "%s", path);
    }
    *out = target;
    return CAIRN_OK;
}

/* ---- writing ---- */

cairn_err
cairn_target_create(struct cairn_target *target, struct cairn_complaint *complaint)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < target->output->file_count; f++) {
        int fd = -1;

        if (target->sized[f])
            continue;
        err = cairn_handles_acquire(target->handles, f, &fd, complaint);
        if (!err)
            cairn_handles_release(target->handles, f);
    }
    return cairn_complain_failed(complaint, err, "%s", target->directory);
}

cairn_err
cairn_target_read(struct cairn_target *target, uint32_t file, uint64_t at, void *bytes,
                  size_t bytes_len, size_t *got, struct cairn_complaint *complaint)
{
    cairn_err err;
    int fd = -1;

    err = cairn_handles_acquire(target->handles, file, &fd, complaint);
    if (err)
        return err;
    err = cairn_file_read_at(fd, at, bytes, bytes_len, got);
    cairn_handles_release(target->handles, file);
    return cairn_complain_failed(complaint, err, "%s/%s: cannot be read at byte %" PRIu64 "",
                                 target->directory, cairn_target_final_name(target, file), at);
}

cairn_err
cairn_target_write(struct cairn_target *target, uint32_t file, uint64_t at, const void *bytes,
                   size_t bytes_len, struct cairn_complaint *complaint)
{
    cairn_err err;
    int fd = -1;

    err = cairn_handles_acquire(target->handles, file, &fd, complaint);
    if (err)
        return err;
    for (size_t done = 0; !err && done < bytes_len; done += WRITE_BYTES)
        err = cairn_file_write_at(fd, at + done, (const uint8_t *)bytes + done,
                                  bytes_len - done < WRITE_BYTES ? bytes_len - done : WRITE_BYTES);
    if (bytes_len >= WRITE_BYTES)
        cairn_file_start_sync(fd, at, bytes_len); /* or all waits for the commit */
    cairn_handles_release(target->handles, file);
    return err ? cairn_complain_failed(complaint, err,
                                       "%s/%s: cannot be written at byte %" PRIu64
                                       " (the same command continues from there)",
                                       target->directory, cairn_target_final_name(target, file), at)
               : CAIRN_OK;
}
