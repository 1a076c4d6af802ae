/* tools/convert/engine/target.c - see target.h. */
#include "tools/convert/core/format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/file.h"
#include "tools/convert/engine/target.h"

enum { NAME_BYTES_MAX = 1280 };

struct cairn_target {
    const struct cairn_output *output;
    char *directory;
    char *name; /* of the single file in the directory, NULL: the output's own paths */
    int dir_fd;
    mode_t mask;  /* of the process, which the output's permissions follow */
    bool made;    /* the directory was made here */
    bool created; /* part files may be there */
    bool resumed;
    bool *named; /* [file_count]: a run that was killed while it finished gave the file its final
                   * name */
    bool *sized; /* [file_count]: the part file has its length; under the lock of `handles` */
    struct cairn_journal *journal;
    struct cairn_handles *handles;
};

enum {
    /* Of one pwrite: longer writes make the page cache take large folios, which a virtual machine
     * has to fetch from its host; 8 MiB at a time is 4 to 10 times slower (measured on ext4). */
    WRITE_BYTES = 256 * 1024
};

/* The final name of a file below dir_fd. */
static const char *
final_name(const struct cairn_target *target, uint32_t file)
{
    return target->name ? target->name : target->output->files[file].path;
}

cairn_err
cairn_target_part_name(const struct cairn_target *target, uint32_t file, char *name,
                       size_t name_bytes)
{
    int used = snprintf(name, name_bytes, "%s%s", final_name(target, file),
                        target->named[file] ? "" : ".cairn-part");

    return used > 0 && (size_t)used < name_bytes ? CAIRN_OK : CAIRN_INVAL;
}

/* The journal's name below dir_fd. CAIRN_INVAL: it is too long. */
static cairn_err
journal_name(const struct cairn_target *target, char *name, size_t name_bytes)
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
    char journal[NAME_BYTES_MAX];

    if (journal_name(target, journal, sizeof(journal)) == CAIRN_OK)
        (void)!cairn_file_unlink(target->dir_fd, journal);
    if (target->made)
        (void)!rmdir(target->directory);
}

void
cairn_target_discard(struct cairn_target *target)
{
    char name[NAME_BYTES_MAX], *slash;

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

/* Makes the directories that a name goes through. They are durable with the commit. */
static cairn_err
make_directories(const struct cairn_target *target, const char *name)
{
    char path[NAME_BYTES_MAX];
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
                                 target->directory, final_name(target, file), bytes);
}

/* Opens a part file. Who does so first makes it: while one thread makes a file, another writes, so
 * that the disk is at work from the first tile on. */
static cairn_err
open_part(void *context, uint32_t file, int *fd, struct cairn_complaint *complaint)
{
    struct cairn_target *target = context;
    char name[NAME_BYTES_MAX];
    cairn_err err;

    target->created = true;
    err = cairn_target_part_name(target, file, name, sizeof(name));
    if (!err && !target->sized[file])
        err = make_directories(target, name);
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

static bool
is_there(const struct cairn_target *target, const char *name, struct stat *found)
{
    return fstatat(target->dir_fd, name, found, AT_SYMLINK_NOFOLLOW) == 0;
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

    if (is_there(target, journal, &found))
        return CAIRN_OK; /* the journal says whether it is ours */
    if (target->name) {
        if (!is_there(target, target->name, &found))
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
    char part[NAME_BYTES_MAX];
    struct stat found;

    if (!is_there(target, journal, &found))
        return;
    for (uint32_t f = 0; f < target->output->file_count; f++)
        target->named[f] = cairn_target_part_name(target, f, part, sizeof(part)) == CAIRN_OK &&
                           !is_there(target, part, &found) && errno == ENOENT &&
                           is_there(target, final_name(target, f), &found) &&
                           S_ISREG(found.st_mode) &&
                           (uint64_t)found.st_size == target->output->files[f].bytes;
}

/* Whether the disk has room for what is not there yet. */
static cairn_err
check_room(const struct cairn_target *target, struct cairn_complaint *complaint)
{
    uint64_t wanted = target->output->small_bytes, there = 0, room;
    struct statvfs disk;
    struct stat part;
    char name[NAME_BYTES_MAX];

    for (uint32_t f = 0; f < target->output->file_count; f++) {
        if (target->named[f]) /* it is whole, and not written again */
            continue;
        wanted += target->output->files[f].bytes;
        if (cairn_target_part_name(target, f, name, sizeof(name)) == CAIRN_OK &&
            is_there(target, name, &part))
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
    char journal[NAME_BYTES_MAX];
    cairn_err err;

    if (!target)
        return CAIRN_NOMEM;
    target->dir_fd = -1;
    target->mask = cairn_file_mask();
    target->output = output;
    target->named = calloc((size_t)output->file_count + 1, sizeof(bool));
    target->sized = calloc((size_t)output->file_count + 1, sizeof(bool));
    if (single_file)
        err = cairn_place_split(path, &target->directory, &target->name);
    else
        err = (target->directory = strdup(path)) ? CAIRN_OK : CAIRN_NOMEM;
    if (!target->named || !target->sized)
        err = CAIRN_NOMEM;
    if (!err && !single_file && output->file_count > 0 && output->files[0].path[0] == '\0')
        err = cairn_complain(
            complaint, CAIRN_INVAL,
            "%s: is a directory, and %s is one file; give its name, %s/model for example", path,
            output->format->name, path);
    if (!err)
        err = open_directory(target, complaint);
    if (!err && journal_name(target, journal, sizeof(journal)) != CAIRN_OK)
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
                                 target->directory, final_name(target, file), at);
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
                                       target->directory, final_name(target, file), at)
               : CAIRN_OK;
}

/* ---- what was written becomes final: contents on the disk, then names, then the small files, the
 * marker last ---- */

/* The last that is done to the contents of a part file, permissions with them. */
static cairn_err
end_part(struct cairn_target *target, uint32_t file, bool wait, struct cairn_complaint *complaint)
{
    cairn_err err;
    int fd = -1;

    err = cairn_handles_acquire(target->handles, file, &fd, complaint);
    if (err)
        return err;
    if (wait) {
        err = cairn_file_sync(fd);
    } else {
        cairn_file_share_open(fd, target->mask);
        cairn_file_start_sync(fd, 0, target->output->files[file].bytes);
    }
    cairn_handles_release(target->handles, file);
    return cairn_complain_failed(complaint, err, "%s/%s: cannot be made durable", target->directory,
                                 final_name(target, file));
}

/* The disk gets all that is left to be written at once, before we wait for any. */
static cairn_err
end_parts(struct cairn_target *target, struct cairn_complaint *complaint)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < target->output->file_count; f++)
        err = end_part(target, f, false, complaint);
    for (uint32_t f = 0; !err && f < target->output->file_count; f++)
        err = end_part(target, f, true, complaint);
    return err;
}

/* Syncs the directories on a name's way, except those on the way of `before` (NULL: none). */
static cairn_err
sync_directories_of(const struct cairn_target *target, const char *name, const char *before)
{
    char path[NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (const char *slash = strchr(name, '/'); slash && !err; slash = strchr(slash + 1, '/')) {
        size_t bytes = (size_t)(slash - name);
        cairn_err close_err;
        int fd = -1;

        if (before && strncmp(name, before, bytes + 1) == 0)
            continue;
        if (bytes >= sizeof(path))
            return CAIRN_INVAL;
        memcpy(path, name, bytes);
        path[bytes] = '\0';
        err = cairn_file_open(target->dir_fd, path, CAIRN_FILE_DIRECTORY, &fd);
        if (!err)
            err = cairn_file_sync(fd);
        close_err = cairn_file_close(fd);
        err = err ? err : close_err;
    }
    return err;
}

/* Renames all part files, then syncs directories: the first sync brings most names to the disk. */
static cairn_err
rename_parts(struct cairn_target *target, struct cairn_complaint *complaint)
{
    char part[NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < target->output->file_count; f++) {
        const char *name = final_name(target, f);

        if (target->named[f])
            continue;
        err = cairn_target_part_name(target, f, part, sizeof(part));
        if (!err)
            err = cairn_file_rename(target->dir_fd, part, name);
        if (err)
            (void)cairn_complain_failed(complaint, err, "%s/%s: cannot be renamed to it",
                                        target->directory, name);
    }
    for (uint32_t f = 0; !err && f < target->output->file_count; f++) {
        const char *name = final_name(target, f);

        err = sync_directories_of(target, name, f > 0 ? final_name(target, f - 1) : NULL);
        if (err)
            (void)cairn_complain_failed(complaint, err, "the name of %s/%s cannot be made durable",
                                        target->directory, name);
    }
    if (!err && (err = cairn_file_sync(target->dir_fd)))
        (void)cairn_complain_failed(complaint, err, "the names in %s cannot be made durable",
                                    target->directory);
    return err;
}

static cairn_err
save_smalls(struct cairn_target *target, struct cairn_complaint *complaint)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < target->output->small_count; i++) {
        const struct cairn_output_small *small = &target->output->smalls[i];

        err = make_directories(target, small->path);
        if (!err)
            err = cairn_file_save_shared(target->dir_fd, small->path, small->bytes,
                                         small->bytes_len, target->mask);
        if (!err) /* cairn_file_save_shared syncs dir_fd alone */
            err = sync_directories_of(target, small->path, NULL);
        if (err)
            (void)cairn_complain_failed(complaint, err, "%s/%s: cannot be written",
                                        target->directory, small->path);
    }
    return err;
}

cairn_err
cairn_target_commit(struct cairn_target *target, struct cairn_complaint *complaint)
{
    char journal[NAME_BYTES_MAX];
    cairn_err err;

    err = end_parts(target, complaint);
    if (!err) { /* contents before names, names before the marker */
        err = cairn_handles_destroy(target->handles);
        target->handles = NULL;
        if (err)
            (void)cairn_complain_failed(complaint, err, "%s: a file cannot be closed",
                                        target->directory);
    }
    if (!err)
        err = rename_parts(target, complaint);
    if (!err)
        err = save_smalls(target, complaint);
    if (!err)
        err = journal_name(target, journal, sizeof(journal));
    if (!err)
        err = cairn_file_unlink(target->dir_fd, journal);
    return cairn_complain_failed(complaint, err, "%s: cannot be finished", target->directory);
}
