/*
 * tests/fuzz/folder.h - a folder of files made of one input, for checkpoints that are folders.
 *
 *     byte 0   which format it is laid out as again, of those that are written; bit 7: through a
 *              map
 *     byte 1   what it is laid out for: bit 0: two tensor-parallel ranks, bit 1: two stages, bits
 *              2, 3: data-parallel ranks less 1, bits 4 to 6: enum cairn_zero, bit 7: two
 *              expert-parallel ranks, else as it was
 *     then     files: "\n=== <path>\n", and what is in it up to the next of these lines
 *
 * Lines and not lengths, so that a longer file moves what follows and breaks nothing. A
 * file whose name ends in ".pt" and that is not an archive is the pickle of one (archive.h), and
 * "job.json" is what the user says of the job (--job). Where TMPDIR is set
 * the folder is in there: the setter removes it, also when a fuzzer ends without cleaning up.
 */
#ifndef CAIRN_TESTS_FUZZ_FOLDER_H
#define CAIRN_TESTS_FUZZ_FOLDER_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/fuzz/archive.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"
#include "tools/convert/formats.h"
#include "tools/convert/maps/map.h"

enum {
    STORAGE_BYTES = 5120,
    FUZZ_FILES_MAX = 64,
    FUZZ_PATH_BYTES_MAX = 128,
    FUZZ_INPUT_BYTES_MAX = 1 << 18
};

#define FUZZ_JOB "job.json"

static char fuzz_folder[128];
static int fuzz_folder_fd = -1;

static inline void
fuzz_folder_remove(void)
{
    (void)rmdir(fuzz_folder);
}

/* Makes the folder, once. */
static inline void
fuzz_folder_init(void)
{
    const char *base = getenv("TMPDIR");

    if (fuzz_folder_fd >= 0)
        return;
    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    (void)snprintf(fuzz_folder, sizeof(fuzz_folder), "%s/cairn-fuzz-XXXXXX",
                   base ? base : "/dev/shm");
    require(mkdtemp(fuzz_folder) != NULL);
    fuzz_folder_fd = open(fuzz_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    require(fuzz_folder_fd >= 0 && atexit(fuzz_folder_remove) == 0);
}

/* A file of the folder, with the pickle in an archive where `archived`. False where a folder or a
 * file is in its way. */
static inline bool
fuzz_folder_write(const char *path, const uint8_t *bytes, size_t bytes_len, bool archived)
{
    static struct fuzz_archive archive;
    int fd = openat(fuzz_folder_fd, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (fd < 0)
        return false;
    if (archived) {
        fuzz_archive_make(&archive, bytes, bytes_len, STORAGE_BYTES);
        bytes = archive.bytes;
        bytes_len = archive.used;
    }
    require(write(fd, bytes, bytes_len) == (ssize_t)bytes_len && close(fd) == 0);
    return true;
}

/* Calls `each` for the path of every folder that a file lies in, inner folders first or last. */
static inline void
fuzz_each_parent(const char *path, bool inner_first, void (*each)(const char *folder))
{
    char folder[FUZZ_PATH_BYTES_MAX];
    size_t bytes = strlen(path);

    for (size_t i = 0; i < bytes; i++) {
        size_t at = inner_first ? bytes - 1 - i : i;

        if (path[at] != '/')
            continue;
        memcpy(folder, path, at);
        folder[at] = '\0';
        each(folder);
    }
}

static inline void
fuzz_make_folder(const char *folder)
{
    (void)mkdirat(fuzz_folder_fd, folder, 0700); /* what is there already is seen by the open that
                                                  * follows */
}

static inline void
fuzz_remove_folder(const char *folder)
{
    (void)unlinkat(fuzz_folder_fd, folder, AT_REMOVEDIR);
}

struct fuzz_file {
    char path[FUZZ_PATH_BYTES_MAX];
    const uint8_t *bytes;
    size_t bytes_len;
};

/* The files of an input; the number of them. */
static inline size_t
fuzz_folder_parse(const uint8_t *bytes, size_t bytes_len, struct fuzz_file *files)
{
    static const char mark[] = "\n=== ";
    const size_t mark_bytes = sizeof(mark) - 1;
    const uint8_t *end = bytes + bytes_len, *at = memmem(bytes, bytes_len, mark, mark_bytes);
    size_t count = 0;

    while (at && count < FUZZ_FILES_MAX) {
        const uint8_t *name = at + mark_bytes, *line_end = memchr(name, '\n', (size_t)(end - name));
        const uint8_t *next;
        struct fuzz_file *file = &files[count];

        if (!line_end)
            break;
        next = memmem(line_end, (size_t)(end - line_end), mark, mark_bytes);
        file->bytes = line_end + 1;
        if (next == line_end) /* an empty file, whose line ends with the next one's begin */
            file->bytes = line_end;
        file->bytes_len = (size_t)((next ? next : end) - file->bytes);
        if ((size_t)(line_end - name) < sizeof(file->path) && line_end > name) {
            memcpy(file->path, name, (size_t)(line_end - name));
            file->path[line_end - name] = '\0';
            count += cairn_place_name_check(file->path);
        }
        at = next;
    }
    return count;
}

/* Lays a checkpoint out as another format: refused with a complaint, or literals inside of their
 * files. */
static inline void
fuzz_lay_out(struct cairn_checkpoint *checkpoint, const struct cairn_format *format, uint32_t ranks)
{
    struct cairn_output_options options = {.parallelism = {.tp = 1 + ranks % 2,
                                                           .pp = 1 + ranks / 2 % 2,
                                                           .dp = 1 + ranks / 4 % 4,
                                                           .ep = ranks / 128 % 2 * 2},
                                           .zero = (enum cairn_zero)(ranks / 16 % 8)};
    struct cairn_output output = {.format = format};
    char job[sizeof(fuzz_folder) + sizeof(FUZZ_JOB)];
    cairn_err err = CAIRN_OK;

    checkpoint->complaint->text[0] = '\0';
    if (options.zero > CAIRN_ZERO_BF16)
        options.zero = 0;
    (void)snprintf(job, sizeof(job), "%s/" FUZZ_JOB, fuzz_folder);
    if (faccessat(fuzz_folder_fd, FUZZ_JOB, F_OK, 0) == 0)
        options.job = job;
    if (format->prepare)
        err = format->prepare(checkpoint, &options);
    if (!err)
        err = format->plan(checkpoint, &options, &output);
    if (err && getenv("CAIRN_FUZZ_SAY"))
        fprintf(stderr, "laid out: %s\n", checkpoint->complaint->text);
    require(err != CAIRN_INTERNAL && (err == CAIRN_OK || checkpoint->complaint->text[0] != '\0'));
    for (uint32_t i = 0; !err && i < output.literal_count; i++)
        require(output.literals[i].offset_bytes + output.literals[i].bytes_len <=
                output.files[output.literals[i].file].bytes);
    cairn_output_fini(&output);
}

/* The folder is refused with a complaint, or read (as `format`, or NULL: as what it looks like),
 * and laid out again or refused then. */
static inline void
fuzz_folder_try(const struct cairn_format *format, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_checkpoint checkpoint = {.place.dir_fd = -1};
    static struct fuzz_file files[FUZZ_FILES_MAX];
    struct cairn_complaint complaint = {""};
    struct cairn_map_report report;
    size_t count, targets = 0;
    cairn_err err;

    if (bytes_len < 2 || bytes_len > FUZZ_INPUT_BYTES_MAX)
        return;
    fuzz_folder_init();
    count = fuzz_folder_parse(bytes + 2, bytes_len - 2, files);
    for (size_t i = 0; i < count; i++) {
        const struct fuzz_file *file = &files[i];
        size_t path_bytes = strlen(file->path);
        bool archived = path_bytes > 3 && strcmp(file->path + path_bytes - 3, ".pt") == 0 &&
                        (file->bytes_len < 2 || memcmp(file->bytes, "PK", 2) != 0) &&
                        file->bytes_len <= FUZZ_PICKLE_BYTES_MAX;

        fuzz_each_parent(file->path, false, fuzz_make_folder);
        (void)fuzz_folder_write(file->path, file->bytes, file->bytes_len, archived);
    }
    err = format ? cairn_checkpoint_open(fuzz_folder, format, 0, &checkpoint, &complaint)
                 : cairn_checkpoint_detect(fuzz_folder, cairn_formats, 0, &checkpoint, &complaint);
    require(err != CAIRN_INTERNAL && (err == CAIRN_OK || complaint.text[0] != '\0'));
    if (err && getenv("CAIRN_FUZZ_SAY"))
        fprintf(stderr, "%s\n", complaint.text);
    if (!err && bytes[0] & 0x80) {
        err = cairn_checkpoint_map(&checkpoint, "llama", NULL, 0, &report);
        require(err != CAIRN_INTERNAL && (err == CAIRN_OK || complaint.text[0] != '\0'));
    }
    while (cairn_formats[targets])
        targets++;
    if (!err)
        fuzz_lay_out(&checkpoint, cairn_formats[(bytes[0] & 0x7f) % targets], bytes[1]);
    cairn_checkpoint_close(&checkpoint);
    for (size_t i = 0; i < count; i++)
        (void)unlinkat(fuzz_folder_fd, files[i].path, 0);
    for (size_t i = 0; i < count; i++)
        fuzz_each_parent(files[i].path, true, fuzz_remove_folder);
}

#endif
