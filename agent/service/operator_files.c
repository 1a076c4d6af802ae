/* agent/service/operator_files.c - reading the directory of spilled generations for status,
 * snapshots and verify. Runs in a worker. */
#include "agent/service/operator_files.h"

#include "base/file.h"
#include "snapshot/spill.h"
#include "snapshot/universal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Bytes of the files of a generation, and when its COMMIT was written. What cannot be read counts
 * as nothing: this is for display. */
static void
measure(int dir_fd, uint64_t wall_ns, struct operator_spilled *out)
{
    char **names = NULL;
    size_t count = 0;
    struct stat status;

    out->age_ns = OPERATOR_UNKNOWN;
    if (cairn_dir_list(dir_fd, &names, &count) != CAIRN_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        uint64_t written_ns;

        if (fstatat(dir_fd, names[i], &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        out->bytes += (uint64_t)status.st_size;
        written_ns = (uint64_t)status.st_mtim.tv_sec * UINT64_C(1000000000) +
                     (uint64_t)status.st_mtim.tv_nsec;
        if (strcmp(names[i], "COMMIT") == 0)
            out->age_ns = wall_ns > written_ns ? wall_ns - written_ns : 0;
    }
    cairn_dir_list_free(names, count);
}

static cairn_err
open_generation(int spill_fd, struct cairn_generation_id generation, int *dir_fd)
{
    char name[CAIRN_SPILL_DIR_NAME_BYTES];

    cairn_spill_dir_name(generation, name);
    return cairn_file_open(spill_fd, name, CAIRN_FILE_DIRECTORY, dir_fd);
}

static void
look_closely(int spill_fd, uint64_t job_id, enum operator_look look,
             struct cairn_generation_id generation, struct operator_files *out)
{
    struct cairn_universal universal = {0};
    int dir_fd = -1;

    out->verified = true;
    out->verified_generation = generation;
    out->verify_err = open_generation(spill_fd, generation, &dir_fd);
    if (!out->verify_err)
        out->verify_err =
            cairn_universal_dir_open(dir_fd, &universal, out->report, sizeof out->report);
    if (!out->verify_err && universal.job_id != job_id) {
        out->verify_err = CAIRN_CONFIG;
        snprintf(out->report, sizeof out->report,
                 "it is of the job \"%s\"; give each job its own spill_dir", universal.job);
    }
    if (!out->verify_err && look == OPERATOR_LOOK_VERIFY)
        out->verify_err =
            cairn_universal_dir_verify(dir_fd, &universal, out->report, sizeof out->report);
    for (uint32_t i = 0; i < universal.file_count; i++)
        out->verified_bytes += universal.files[i].data_bytes;
    if (out->verify_err && !out->report[0])
        snprintf(out->report, sizeof out->report, "%s", cairn_err_text(out->verify_err));
    cairn_universal_fini(&universal);
    cairn_file_close(dir_fd);
}

static void
list_generations(int spill_fd, uint64_t wall_ns, const struct cairn_spilled *list, size_t count,
                 struct operator_files *out)
{
    for (size_t i = 0; i < count && out->count < OPERATOR_SPILLED_MAX; i++) {
        struct operator_spilled *spilled = &out->spilled[out->count++];
        int dir_fd = -1;

        *spilled = (struct operator_spilled){.generation = list[i].generation,
                                             .committed = list[i].committed,
                                             .age_ns = OPERATOR_UNKNOWN};
        if (open_generation(spill_fd, list[i].generation, &dir_fd) == CAIRN_OK)
            measure(dir_fd, wall_ns, spilled);
        cairn_file_close(dir_fd);
    }
}

void
operator_files_read(const char *spill_dir, uint64_t job_id, enum operator_look look,
                    struct cairn_generation_id wanted, uint64_t wall_ns, struct operator_files *out)
{
    struct cairn_spilled *list = NULL;
    size_t count = 0;
    int spill_fd = -1;

    memset(out, 0, sizeof *out);
    out->configured = spill_dir[0] != '\0';
    if (!out->configured)
        return;
    out->err = cairn_file_open(AT_FDCWD, spill_dir, CAIRN_FILE_DIRECTORY_LINKED, &spill_fd);
    if (out->err == CAIRN_NOT_FOUND) {
        out->err = CAIRN_OK; /* it is made by the first spill */
        goto done;
    }
    if (!out->err)
        out->err = cairn_spill_list(spill_fd, &list, &count);
    if (out->err) {
        snprintf(out->report, sizeof out->report, "%s: %s", spill_dir, cairn_err_text(out->err));
        goto done;
    }
    list_generations(spill_fd, wall_ns, list, count, out);
    for (size_t i = 0; look != OPERATOR_LOOK_LIST && !out->verified && i < count; i++)
        if (list[i].committed &&
            (wanted.step == 0 || ((cairn_epoch_number(list[i].generation.epoch)) == wanted.epoch &&
                                  list[i].generation.step == wanted.step)))
            look_closely(spill_fd, job_id, look, list[i].generation, out);
done:
    free(list);
    cairn_file_close(spill_fd);
}
