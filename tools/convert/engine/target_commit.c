/*
 * tools/convert/engine/target_commit.c - makes what was written final: contents on the disk, then
 * names, then the small files, the marker last.
 */
#include <string.h>

#include "base/file.h"
#include "tools/convert/engine/target_inner.h"

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
                                 cairn_target_final_name(target, file));
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

/* Syncs the directories that a name goes through; those that `before` (NULL: none) goes through,
 * too, are left out. */
static cairn_err
sync_directories_of(const struct cairn_target *target, const char *name, const char *before)
{
    char path[CAIRN_TARGET_NAME_BYTES_MAX];
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

/* Gives all part files their names, and only then syncs directories: the first sync brings most of
 * the names to the disk. */
static cairn_err
rename_parts(struct cairn_target *target, struct cairn_complaint *complaint)
{
    char part[CAIRN_TARGET_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t f = 0; !err && f < target->output->file_count; f++) {
        const char *name = cairn_target_final_name(target, f);

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
        const char *name = cairn_target_final_name(target, f);

        err = sync_directories_of(target, name,
                                  f > 0 ? cairn_target_final_name(target, f - 1) : NULL);
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

        err = cairn_target_make_directories(target, small->path);
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
    char journal[CAIRN_TARGET_NAME_BYTES_MAX];
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
        err = cairn_target_journal_name(target, journal, sizeof(journal));
    if (!err)
        err = cairn_file_unlink(target->dir_fd, journal);
    return cairn_complain_failed(complaint, err, "%s: cannot be finished", target->directory);
}
