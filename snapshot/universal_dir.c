/*
 * snapshot/universal_dir.c - a universal checkpoint in its directory: commit, open, verify; and
 * what an index gives to others.
 *
 * COMMIT is one line: "cairn-universal 1 index.json bytes=<decimal> crc64=<16 hex>\n".
 */
#include "snapshot/universal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/spill.h"
#include "snapshot/universal_index.h"

enum { COMMIT_BYTES_MAX = 128, VERIFY_BYTES = 16 * CAIRN_BLOCK_BYTES };

cairn_err
cairn_universal_layout(const struct cairn_universal *universal, struct cairn_layout **out)
{
    struct cairn_layout *layout = NULL;
    cairn_err err = cairn_layout_create(&layout);

    for (uint32_t t = 0; err == CAIRN_OK && t < universal->tensor_count; t++) {
        const struct cairn_universal_tensor *tensor = &universal->tensors[t];
        struct cairn_slice slice = cairn_universal_slice(&tensor->tensor, tensor->tensor.name);

        err = cairn_layout_add(layout, tensor->file, &slice, 0, 0, tensor->offset_bytes, NULL);
    }
    if (err) {
        cairn_layout_destroy(layout);
        return err;
    }
    *out = layout;
    return CAIRN_OK;
}

cairn_err
cairn_universal_crcs_set(struct cairn_universal *universal, uint32_t file, uint64_t *block_crcs,
                         uint64_t block_count)
{
    if (file >= universal->file_count || universal->files[file].block_count != block_count ||
        (block_count > 0) != (block_crcs != NULL))
        return CAIRN_INVAL;
    free(universal->files[file].block_crcs);
    universal->files[file].block_crcs = block_crcs;
    return CAIRN_OK;
}

cairn_err
cairn_universal_manifest(const struct cairn_universal *universal, uint32_t file,
                         struct cairn_manifest *out)
{
    struct cairn_manifest manifest = {0};
    const struct cairn_universal_file *described;
    cairn_err err = CAIRN_NOMEM;

    if (file >= universal->file_count)
        return CAIRN_INVAL;
    described = &universal->files[file];
    if (described->block_count > 0 && !described->block_crcs)
        return CAIRN_INVAL;
    manifest.job_id = universal->job_id;
    manifest.generation = universal->generation;
    manifest.container = file;
    manifest.container_count = universal->file_count;
    manifest.container_bytes = described->data_bytes;
    manifest.block_count = described->block_count;
    manifest.entry_count = described->tensor_count;
    manifest.block_crcs = malloc((size_t)described->block_count * sizeof(uint64_t) + 1);
    manifest.entries = calloc(described->tensor_count + 1, sizeof(*manifest.entries));
    manifest.names = malloc((size_t)described->tensor_count * CAIRN_NAME_BYTES_MAX + 1);
    if (!manifest.block_crcs || !manifest.entries || !manifest.names)
        goto done;
    if (described->block_count > 0)
        memcpy(manifest.block_crcs, described->block_crcs,
               (size_t)described->block_count * sizeof(uint64_t));
    for (uint32_t i = 0; i < described->tensor_count; i++) {
        const struct cairn_universal_tensor *tensor =
            &universal->tensors[described->tensor_first + i];
        char *name = manifest.names + (size_t)i * CAIRN_NAME_BYTES_MAX;

        memcpy(name, tensor->tensor.name, CAIRN_NAME_BYTES_MAX);
        manifest.entries[i].slice = cairn_universal_slice(&tensor->tensor, name);
        manifest.entries[i].offset_bytes = tensor->offset_bytes;
    }
    *out = manifest;
    memset(&manifest, 0, sizeof(manifest));
    err = CAIRN_OK;
done:
    cairn_manifest_fini(&manifest);
    return err;
}

/* ---- the directory ---- */

static int
commit_line(const char *index, size_t index_bytes, char line[COMMIT_BYTES_MAX])
{
    return snprintf(line, COMMIT_BYTES_MAX,
                    "cairn-universal 1 index.json bytes=%zu crc64=%016" PRIx64 "\n", index_bytes,
                    cairn_crc64(0, index, index_bytes));
}

cairn_err
cairn_universal_commit_pack(const char *index, size_t index_bytes, char **text)
{
    char line[COMMIT_BYTES_MAX];

    (void)commit_line(index, index_bytes, line);
    *text = strdup(line);
    return *text ? CAIRN_OK : CAIRN_NOMEM;
}

cairn_err
cairn_universal_dir_commit(int dir_fd, const struct cairn_universal *universal)
{
    char *index = NULL, *weight_map = NULL, line[COMMIT_BYTES_MAX];
    size_t index_bytes = 0, weight_map_bytes = 0;
    cairn_err err;
    int line_bytes;

    err = cairn_universal_weight_map_pack(universal, &weight_map, &weight_map_bytes);
    if (err)
        goto done;
    err = cairn_universal_index_pack(universal, &index, &index_bytes);
    if (err)
        goto done;
    err = cairn_file_save(dir_fd, "model.safetensors.index.json", weight_map, weight_map_bytes);
    if (err)
        goto done;
    err = cairn_file_save(dir_fd, "index.json", index, index_bytes);
    if (err)
        goto done;
    line_bytes = commit_line(index, index_bytes, line);
    err = cairn_file_save(dir_fd, "COMMIT", line, (size_t)line_bytes); /* the commit point */
done:
    free(index);
    free(weight_map);
    return err;
}

/* Reports an error once, to the report and to the log. */
static cairn_err refuse(int dir_fd, const char *name, char *report, size_t report_bytes,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

static cairn_err
refuse(int dir_fd, const char *name, char *report, size_t report_bytes, const char *format, ...)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX], why[256];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    cairn_file_path(dir_fd, name, path);
    if (report && report_bytes > 0)
        (void)snprintf(report, report_bytes, "%s: %s", name, why);
    CAIRN_LOG_AT(ERROR, "spill: damaged path=%s: %s; use another generation", path, why);
    return CAIRN_CORRUPT;
}

/* Checks that one file exists, with its length and the header that follows from the index. */
static cairn_err
check_file(int dir_fd, const struct cairn_universal *universal, uint32_t f, char *report,
           size_t report_bytes)
{
    const struct cairn_universal_file *file = &universal->files[f];
    uint8_t *expected = NULL, *found = NULL;
    size_t expected_bytes = 0, got = 0, at = 0;
    uint64_t bytes = 0;
    int fd = -1;
    cairn_err err;

    err = cairn_universal_header_pack(universal, f, &expected, &expected_bytes);
    if (err == CAIRN_INVAL || (err == CAIRN_OK && expected_bytes != file->data_offset))
        err = refuse(dir_fd, "index.json", report, report_bytes,
                     "the header of %s does not fit its data_offset", file->name);
    if (err)
        goto done;
    err = cairn_file_open(dir_fd, file->name, CAIRN_FILE_READ, &fd);
    if (err == CAIRN_NOT_FOUND)
        err = refuse(dir_fd, file->name, report, report_bytes, "the file is missing");
    if (err)
        goto done;
    err = cairn_file_size(fd, &bytes);
    if (err == CAIRN_INVAL)
        err = refuse(dir_fd, file->name, report, report_bytes, "not a regular file");
    if (err)
        goto done;
    if (bytes != file->data_offset + file->data_bytes) {
        err = refuse(dir_fd, file->name, report, report_bytes,
                     "it has %" PRIu64 " bytes where the index says %" PRIu64, bytes,
                     file->data_offset + file->data_bytes);
        goto done;
    }
    found = malloc(expected_bytes);
    err = found ? cairn_file_read_at(fd, 0, found, expected_bytes, &got) : CAIRN_NOMEM;
    if (err)
        goto done;
    while (at < got && expected[at] == found[at])
        at++;
    if (at < expected_bytes)
        err = refuse(dir_fd, file->name, report, report_bytes,
                     "its header differs from the index at byte %zu", at);
done:
    (void)cairn_file_close(fd);
    free(expected);
    free(found);
    return err;
}

cairn_err
cairn_universal_dir_open(int dir_fd, struct cairn_universal *out, char *report, size_t report_bytes)
{
    struct cairn_universal universal = {0};
    uint8_t *commit = NULL, *index = NULL;
    size_t commit_bytes = 0, index_bytes = 0;
    char line[COMMIT_BYTES_MAX];
    cairn_err err;

    if (report && report_bytes > 0)
        report[0] = '\0';
    err = cairn_file_load(dir_fd, "COMMIT", COMMIT_BYTES_MAX, &commit, &commit_bytes);
    if (err)
        goto done;
    err = cairn_file_load(dir_fd, "index.json", CAIRN_UNIVERSAL_INDEX_BYTES_MAX, &index,
                          &index_bytes);
    if (err == CAIRN_NOT_FOUND)
        err = refuse(dir_fd, "index.json", report, report_bytes, "the file is missing");
    if (err)
        goto done;
    if (commit_line((const char *)index, index_bytes, line) != (int)commit_bytes ||
        memcmp(line, commit, commit_bytes) != 0) {
        bool other = commit_bytes > 18 && memcmp(commit, "cairn-universal ", 16) == 0 &&
                     memcmp(commit, "cairn-universal 1 ", 18) != 0;

        err = refuse(dir_fd, "COMMIT", report, report_bytes,
                     other ? "written by another version"
                           : "index.json is not the one that was committed");
        err = other ? CAIRN_VERSION : err;
        goto done;
    }
    err = cairn_universal_index_parse(index, index_bytes, &universal);
    if (err == CAIRN_CORRUPT)
        err = refuse(dir_fd, "index.json", report, report_bytes, "it is not sound");
    for (uint32_t f = 0; err == CAIRN_OK && f < universal.file_count; f++)
        err = check_file(dir_fd, &universal, f, report, report_bytes);
    if (err)
        goto done;
    *out = universal;
    memset(&universal, 0, sizeof(universal));
done:
    free(commit);
    free(index);
    cairn_universal_fini(&universal);
    return err;
}

cairn_err
cairn_universal_dir_verify(int dir_fd, const struct cairn_universal *universal, char *report,
                           size_t report_bytes)
{
    uint8_t *buffer = malloc(VERIFY_BYTES);
    cairn_err err = buffer ? CAIRN_OK : CAIRN_NOMEM;

    if (report && report_bytes > 0)
        report[0] = '\0';
    for (uint32_t f = 0; err == CAIRN_OK && f < universal->file_count; f++) {
        const struct cairn_universal_file *file = &universal->files[f];

        for (uint64_t at = 0; err == CAIRN_OK && at < file->data_bytes; at += VERIFY_BYTES) {
            uint64_t left = file->data_bytes - at;

            err = cairn_spill_read(dir_fd, file, at, buffer,
                                   left < VERIFY_BYTES ? (size_t)left : (size_t)VERIFY_BYTES);
            if (err && report && report_bytes > 0)
                (void)snprintf(report, report_bytes, "%s: near byte %" PRIu64 ": %s", file->name,
                               file->data_offset + at, cairn_err_text(err));
        }
    }
    free(buffer);
    return err;
}
