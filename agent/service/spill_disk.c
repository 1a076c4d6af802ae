/* agent/service/spill_disk.c - the disk thread's work of spill and export on directories; see
 * spill_state.h. */
#include "agent/service/spill_disk.h"

#include "agent/process/agent_state.h"
#include "agent/service/spill_run.h"
#include "base/file.h"
#include "base/log.h"
#include "snapshot/spill.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cairn_err __attribute__((format(printf, 3, 4)))
fail(struct spill_disk_job *job, cairn_err err, const char *format, ...)
{
    va_list list;

    va_start(list, format);
    vsnprintf(job->text, sizeof job->text, format, list);
    va_end(list);
    return err;
}

/*
 * Removes unfinished earlier spills: they were given up, and this spill may need their space.
 * Refuses if a complete one is newer than this generation: it is of a previous run that the job did
 * not restore, and retention would keep it and remove this run's own.
 */
static cairn_err
clear_unfinished(struct spill_disk_job *job, int spill_fd)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    cairn_err err = cairn_spill_list(spill_fd, &list, &count);

    for (size_t i = 0; !err && i < count; i++) {
        bool newer = cairn_spill_compare(list[i].generation, job->generation) > 0;

        if (list[i].committed && newer)
            err = fail(job, CAIRN_CONFIG,
                       "%s holds epoch %" PRIu64 " step %" PRIu64
                       ", which is newer than this: it is of an "
                       "earlier run of the job; restore that (`cairn restore`), or name an empty "
                       "spill_dir",
                       job->dir, cairn_epoch_number(list[i].generation.epoch),
                       list[i].generation.step);
        if (list[i].committed || newer)
            continue;
        err = cairn_spill_remove(spill_fd, list[i].generation);
        if (err == CAIRN_AGAIN || err == CAIRN_NOT_FOUND)
            err = CAIRN_OK; /* a thread that was given up still removes its file there */
    }
    free(list);
    return err;
}

/* Checks that the spill directory belongs to this job: another job's retention and restores would
 * treat its generations as their own. */
static cairn_err
check_job(struct spill_disk_job *job, int spill_fd)
{
    const char *own = job->agent->config.job;
    uint8_t *found = NULL;
    size_t found_len = 0;
    cairn_err err =
        cairn_file_load(spill_fd, "cairn-job", CAIRN_CONFIG_JOB_BYTES_MAX, &found, &found_len);

    if (err == CAIRN_NOT_FOUND)
        err = cairn_file_save(spill_fd, "cairn-job", own, strlen(own));
    else if (!err && (found_len != strlen(own) || memcmp(found, own, found_len) != 0))
        err = fail(job, CAIRN_CONFIG,
                   "%s holds the generations of job \"%.*s\" (see its file cairn-job); give each "
                   "job its own spill_dir",
                   job->dir, (int)found_len, (const char *)found);
    free(found);
    return err;
}

static cairn_err
begin(struct spill_disk_job *job)
{
    char why[SPILL_ERRNO_BYTES];
    int spill_fd = -1, dir_fd = -1;
    cairn_err err = cairn_dir_make(AT_FDCWD, job->dir);

    if (!err)
        err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);
    if (err == CAIRN_NOT_FOUND)
        err =
            fail(job, CAIRN_IO, "the directory above %s is not there; make or mount it", job->dir);
    if (!err)
        err = check_job(job, spill_fd);
    if (!err)
        err = clear_unfinished(job, spill_fd);
    if (!err)
        err = cairn_spill_dir_begin(spill_fd, job->generation, &dir_fd);
    if (err && !job->text[0])
        err = fail(job, err, "%s cannot be written to: %s%s", job->dir, cairn_err_text(err),
                   spill_errno_text(cairn_file_errno_take(), why));
    (void)cairn_file_close(dir_fd);
    (void)cairn_file_close(spill_fd);
    return err;
}

/* Checks that every file of the plan exists with its size. This finds a node whose spill_dir is
 * another directory. */
static cairn_err
check_files(struct spill_disk_job *job, int dir_fd)
{
    for (uint32_t f = 0; f < job->plan.file_count; f++) {
        const struct cairn_universal_file *file = &job->plan.files[f];
        uint64_t bytes = 0, expected = file->data_offset + file->data_bytes;
        char why[SPILL_ERRNO_BYTES];
        int fd = -1;
        cairn_err err = cairn_file_open(dir_fd, file->name, CAIRN_FILE_READ, &fd);

        if (!err)
            err = cairn_file_size(fd, &bytes);
        (void)cairn_file_close(fd);
        if (err == CAIRN_NOT_FOUND)
            return fail(job, CAIRN_CONFIG,
                        "%s, written by member %u, is not in the directory that node %u sees: "
                        "spill_dir must be one directory that all nodes share",
                        file->name, file->writer, job->agent->config.node);
        if (err)
            return fail(job, err, "cannot read %s: %s%s", file->name, cairn_err_text(err),
                        spill_errno_text(cairn_file_errno_take(), why));
        if (bytes != expected)
            return fail(job, CAIRN_CORRUPT, "%s has %" PRIu64 " bytes instead of %" PRIu64,
                        file->name, bytes, expected);
        job->bytes += bytes;
    }
    return CAIRN_OK;
}

static cairn_err
commit(struct spill_disk_job *job)
{
    struct cairn_universal again = {0};
    char name[CAIRN_SPILL_DIR_NAME_BYTES], path[SPILL_PATH_BYTES + CAIRN_SPILL_DIR_NAME_BYTES];
    char report[SPILL_TEXT_BYTES / 2] = "", why[SPILL_ERRNO_BYTES];
    uint32_t removed = 0;
    int dir_fd = -1, spill_fd = -1;
    cairn_err err;

    cairn_spill_dir_name(job->generation, name);
    snprintf(path, sizeof path, job->keep.last ? "%s/%s" : "%s", job->dir, name);
    err = cairn_file_open(AT_FDCWD, path, CAIRN_FILE_DIRECTORY, &dir_fd);
    if (!err)
        err = check_files(job, dir_fd);
    if (!err)
        err = cairn_universal_dir_commit(dir_fd, &job->plan);
    if (!err)
        err = cairn_universal_dir_open(dir_fd, &again, report, sizeof report);
    if (err && !job->text[0])
        err = fail(job, err == CAIRN_NOT_FOUND ? CAIRN_IO : err, "%s cannot be committed: %s%s%s%s",
                   path, cairn_err_text(err), spill_errno_text(cairn_file_errno_take(), why),
                   report[0] ? ": " : "", report);
    cairn_universal_fini(&again);
    (void)cairn_file_close(dir_fd);
    if (err || !job->keep.last)
        return err;
    err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);
    if (!err)
        err = cairn_spill_retain(spill_fd, &job->keep, &removed);
    (void)cairn_file_close(spill_fd);
    if (err) /* the new one is whole all the same */
        CAIRN_LOG_AT(WARN,
                     "spill: older generations in %s could not all be removed: %s; they "
                     "are looked at again after the next spill",
                     job->dir, cairn_err_text(err));
    return CAIRN_OK;
}

static cairn_err
remove_spilled(struct spill_disk_job *job)
{
    int spill_fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);

    if (!err)
        err = cairn_spill_remove(spill_fd, job->generation);
    (void)cairn_file_close(spill_fd);
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}

/* ---- exports ---- */

/* The directory of an export may not be a link: its owner could lead us elsewhere. */
static cairn_err
make_empty(struct spill_disk_job *job)
{
    char **names = NULL, why[SPILL_ERRNO_BYTES];
    size_t count = 0;
    int fd = -1;
    cairn_err err = cairn_dir_add(AT_FDCWD, job->dir, &job->made);

    if (err == CAIRN_NOT_FOUND)
        return fail(job, CAIRN_INVAL, "the directory above %s is not there; make it first",
                    job->dir);
    if (!err)
        err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY, &fd);
    if (err == CAIRN_NOT_FOUND)
        return fail(job, CAIRN_INVAL, "%s is a symbolic link; name the directory itself", job->dir);
    if (!err)
        err = cairn_dir_list(fd, &names, &count);
    if (!err) {
        cairn_dir_list_free(names, count);
        if (count > 0)
            err = fail(job, CAIRN_INVAL,
                       "%s is not empty; name an empty directory or one that is not there yet",
                       job->dir);
    }
    if (err && !job->text[0])
        err = fail(job, err, "%s cannot be made or opened as a directory: %s%s", job->dir,
                   cairn_err_text(err), spill_errno_text(cairn_file_errno_take(), why));
    (void)cairn_file_close(fd);
    return err;
}

static void
wipe_name(int fd, const char *name)
{
    (void)!cairn_file_unlink(fd, name); /* not there, or it has said why */
}

/* Removes the names that an export may have made, and no others. */
static cairn_err
wipe(struct spill_disk_job *job)
{
    static const char *const names[] = {"COMMIT", "index.json", "model.safetensors.index.json"};
    int fd = -1;
    cairn_err err = cairn_file_open(AT_FDCWD, job->dir, CAIRN_FILE_DIRECTORY, &fd);

    if (err)
        return err;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        wipe_name(fd, names[i]);
    for (uint32_t f = 0; f < job->plan.file_count; f++) {
        char part[CAIRN_UNIVERSAL_NAME_BYTES_MAX + 8];

        snprintf(part, sizeof part, "%s.part", job->plan.files[f].name);
        wipe_name(fd, part);
        wipe_name(fd, job->plan.files[f].name);
    }
    (void)cairn_file_close(fd);
    return job->made ? cairn_dir_remove(AT_FDCWD, job->dir) : CAIRN_OK;
}

/* ---- the thread's side, and back ---- */

static void
disk_run(struct cairn_job *base)
{
    struct spill_disk_job *job = (struct spill_disk_job *)base;

    (void)cairn_file_errno_take();
    switch (job->work) {
    case SPILL_DISK_BEGIN:
        job->err = begin(job);
        break;
    case SPILL_DISK_COMMIT:
        job->err = commit(job);
        break;
    case SPILL_DISK_REMOVE:
        job->err = remove_spilled(job);
        break;
    case SPILL_DISK_EMPTY:
        job->err = make_empty(job);
        break;
    case SPILL_DISK_WIPE:
        job->err = wipe(job);
        break;
    }
}

static void
disk_done(struct cairn_job *base)
{
    struct spill_disk_job *job = (struct spill_disk_job *)base;

    if (job->done)
        job->done(job);
    cairn_universal_fini(&job->plan);
    free(job);
}

cairn_err
spill_disk_submit(struct cairn_agent *agent, struct spill_disk_job *job)
{
    struct spill_disk_job *copy = malloc(sizeof *copy);
    cairn_err err = copy ? CAIRN_OK : CAIRN_NOMEM;

    if (!err) {
        *copy = *job;
        copy->job = (struct cairn_job){.run = disk_run, .done = disk_done};
        copy->agent = agent;
        err = cairn_workers_submit(agent->spill->disk, &copy->job);
    }
    if (err) {
        free(copy);
        cairn_universal_fini(&job->plan);
        return err;
    }
    memset(&job->plan, 0, sizeof job->plan);
    return CAIRN_OK;
}

struct cairn_generation_id
spill_disk_newest(const char *spill_dir, uint64_t job_id)
{
    struct cairn_generation_id newest = {0};
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    int spill_fd = -1;
    cairn_err err = cairn_dir_make(AT_FDCWD, spill_dir);

    if (!err)
        err = cairn_file_open(AT_FDCWD, spill_dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);
    if (!err)
        err = cairn_spill_list(spill_fd, &list, &count);
    if (err)
        CAIRN_LOG_AT(ERROR,
                     "spill: cannot use spill_dir=%s: %s: make or mount it, or give this "
                     "user the right to write there; nothing is spilled until then",
                     spill_dir, cairn_err_text(err));
    for (size_t i = 0; !err && i < count && newest.step == 0; i++) {
        struct cairn_universal universal = {0};
        char name[CAIRN_SPILL_DIR_NAME_BYTES], report[SPILL_TEXT_BYTES] = "";
        int dir_fd = -1;

        if (!list[i].committed)
            continue;
        cairn_spill_dir_name(list[i].generation, name);
        err = cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, &dir_fd);
        if (!err)
            err = cairn_universal_dir_open(dir_fd, &universal, report, sizeof report);
        if (!err && universal.job_id == job_id)
            newest = list[i].generation;
        else if (!err)
            CAIRN_LOG_AT(WARN,
                         "spill: skipped dir=%s/%s: it belongs to the job \"%s\"; give each job "
                         "its own spill_dir",
                         spill_dir, name, universal.job);
        else
            CAIRN_LOG_AT(WARN, "spill: skipped dir=%s/%s: %s", spill_dir, name,
                         report[0] ? report : cairn_err_text(err));
        err = CAIRN_OK; /* an older one may be whole */
        cairn_universal_fini(&universal);
        (void)cairn_file_close(dir_fd);
    }
    free(list);
    (void)cairn_file_close(spill_fd);
    return newest;
}
