/*
 * snapshot/universal_index.c - index.json: the format, its writer and its bounded reader, and what
 * follows from an index.
 *
 *   {"cairn_universal": 1, "job": "gpt", "job_id": "<16 hex>", "epoch": 3, "step": 120,
 *    "files": [
 *     {"name": "param-00001-of-00006.safetensors", "class": "param", "writer": 0,
 *      "data_offset": 4096, "data_bytes": 65536,
 *      "block_crcs": "<16 hex digits per 64 KiB of the data section>"}, …],
 *    "tensors": [
 *     {"name": "wte", "kind": "param", "dtype": "F32", "shape": [256, 64],
 *      "file": 0, "offset": 0, "bytes": 65536}, …]}
 *
 * The order of keys means nothing; each must be there exactly once, and no other. The
 * tensors are sorted by (file, offset) and tile each data section exactly; names of tensors and of
 * files are distinct; a file's name has no '/' and does not start with '.'. A checksum is the
 * CRC-64 of the block's bytes (base/crc.h). What another version would add raises the number in
 * "cairn_universal".
 */
#include "snapshot/universal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/limits.h"
#include "base/log.h"
#include "snapshot/universal_index.h"

enum { INDEX_VERSION = 1, KEY_BYTES = 32, WORD_BYTES = 16 };

static const char *const kind_names[] = {[CAIRN_PARAM] = "param",
                                         [CAIRN_OPTIMIZER] = "optimizer",
                                         [CAIRN_BUFFER] = "buffer",
                                         [CAIRN_OPAQUE] = "opaque"};

/* ---- writing ---- */

static void
write_file(struct cairn_json_writer *writer, const struct cairn_universal_file *file)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "name", file->name);
    cairn_json_put_string(writer, "class", cairn_universal_class_name(file->kind));
    cairn_json_put_u64(writer, "writer", file->writer);
    cairn_json_put_u64(writer, "data_offset", file->data_offset);
    cairn_json_put_u64(writer, "data_bytes", file->data_bytes);
    cairn_json_write_key(writer, "block_crcs");
    cairn_json_write_hex64(writer, file->block_crcs, (size_t)file->block_count);
    cairn_json_write_object_end(writer);
}

static void
write_tensor(struct cairn_json_writer *writer, const struct cairn_universal_tensor *tensor)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "name", tensor->tensor.name);
    cairn_json_put_string(writer, "kind", kind_names[tensor->tensor.kind]);
    cairn_json_put_string(writer, "dtype", cairn_dtype_name(tensor->tensor.dtype));
    cairn_json_put_array(writer, "shape");
    for (uint32_t d = 0; d < tensor->tensor.dims; d++)
        cairn_json_write_u64(writer, tensor->tensor.shape[d]);
    cairn_json_write_array_end(writer);
    cairn_json_put_u64(writer, "file", tensor->file);
    cairn_json_put_u64(writer, "offset", tensor->offset_bytes);
    cairn_json_put_u64(writer, "bytes", tensor->bytes);
    cairn_json_write_object_end(writer);
}

cairn_err
cairn_universal_index_pack(const struct cairn_universal *universal, char **text, size_t *text_bytes)
{
    struct cairn_json_writer writer;

    for (uint32_t f = 0; f < universal->file_count; f++)
        if (universal->files[f].block_count > 0 && !universal->files[f].block_crcs)
            return CAIRN_INVAL;
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "cairn_universal", INDEX_VERSION);
    cairn_json_put_string(&writer, "job", universal->job);
    cairn_json_write_key(&writer, "job_id");
    cairn_json_write_hex64(&writer, &universal->job_id, 1);
    cairn_json_put_u64(&writer, "epoch", universal->generation.epoch);
    cairn_json_put_u64(&writer, "step", universal->generation.step);
    cairn_json_write_line(&writer);
    cairn_json_put_array(&writer, "files");
    for (uint32_t f = 0; f < universal->file_count; f++)
        write_file(&writer, &universal->files[f]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_line(&writer);
    cairn_json_put_array(&writer, "tensors");
    for (uint32_t t = 0; t < universal->tensor_count; t++)
        write_tensor(&writer, &universal->tensors[t]);
    cairn_json_write_array_end(&writer);
    cairn_json_write_object_end(&writer);
    cairn_json_write_line(&writer);
    return cairn_json_writer_done(&writer, text, text_bytes);
}

cairn_err
cairn_universal_weight_map_pack(const struct cairn_universal *universal, char **text,
                                size_t *text_bytes)
{
    struct cairn_json_writer writer;
    uint64_t total = 0;

    for (uint32_t f = 0; f < universal->file_count; f++)
        if (universal->files[f].kind == CAIRN_CLASS_PARAM)
            total += universal->files[f].data_bytes;
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_object(&writer, "metadata");
    cairn_json_put_u64(&writer, "total_size", total);
    cairn_json_write_object_end(&writer);
    cairn_json_put_object(&writer, "weight_map");
    for (uint32_t t = 0; t < universal->tensor_count; t++) {
        const struct cairn_universal_file *file = &universal->files[universal->tensors[t].file];

        if (file->kind != CAIRN_CLASS_PARAM)
            continue;
        cairn_json_write_line(&writer);
        cairn_json_put_string(&writer, universal->tensors[t].tensor.name, file->name);
    }
    cairn_json_write_object_end(&writer);
    cairn_json_write_object_end(&writer);
    cairn_json_write_line(&writer);
    return cairn_json_writer_done(&writer, text, text_bytes);
}

/* ---- reading ---- */

/* Which of names[count] the key is, each once; fails the reader and gives -1 otherwise. `seen` is a
 * set of bits. */
static int
known_key(struct cairn_json_reader *reader, const char *key, const char *const names[], int count,
          uint32_t *seen)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(key, names[i]) != 0)
            continue;
        if (*seen & 1u << i)
            break;
        *seen |= 1u << i;
        return i;
    }
    cairn_json_reader_fail(reader, "a key that is unknown or there twice");
    return -1;
}

static void
all_keys(struct cairn_json_reader *reader, int count, uint32_t seen)
{
    if (seen != (1u << count) - 1)
        cairn_json_reader_fail(reader, "a key is missing");
}

/* Makes room for one more in an array of `bytes`-sized zeroed elements; false (and err set) without
 * memory. */
static bool
grow(void **array, uint32_t count, size_t bytes, cairn_err *err)
{
    size_t room = count ? (size_t)count * 2 : 8;
    void *grown;

    if (count & (count - 1) || (count > 0 && count < 8))
        return true; /* room is the power of two above count, 8 at least */
    grown = realloc(*array, room * bytes);
    if (!grown) {
        *err = CAIRN_NOMEM;
        return false;
    }
    memset((uint8_t *)grown + (size_t)count * bytes, 0, (room - count) * bytes);
    *array = grown;
    return true;
}

/* True if a file's name is a plain name, which can name nothing outside its directory. */
static bool
plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/');
}

static void
read_file(struct cairn_json_reader *reader, struct cairn_universal_file *file, cairn_err *err)
{
    static const char *const names[] = {"name",        "class",      "writer",
                                        "data_offset", "data_bytes", "block_crcs"};
    char key[KEY_BYTES], word[WORD_BYTES];
    uint32_t seen = 0;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        switch (known_key(reader, key, names, 6, &seen)) {
        case 0:
            cairn_json_read_string(reader, file->name, sizeof(file->name));
            if (!plain_name(file->name))
                cairn_json_reader_fail(reader, "no plain file name");
            break;
        case 1:
            cairn_json_read_string(reader, word, sizeof(word));
            file->kind = CAIRN_CLASS_PARAM;
            while (file->kind <= CAIRN_CLASS_OPAQUE &&
                   strcmp(word, cairn_universal_class_name(file->kind)) != 0)
                file->kind++;
            if (file->kind > CAIRN_CLASS_OPAQUE)
                cairn_json_reader_fail(reader, "an unknown class");
            break;
        case 2:
            file->writer = (uint32_t)cairn_json_read_u64(reader, UINT32_MAX);
            break;
        case 3:
            file->data_offset = cairn_json_read_u64(reader, CAIRN_UNIVERSAL_HEADER_BYTES_MAX + 8);
            break;
        case 4:
            file->data_bytes = cairn_json_read_u64(reader, INT64_MAX - CAIRN_BLOCK_BYTES * 4096ll);
            break;
        case 5:
            /* As many as stand there; whether they fit data_bytes is checked when both are known.
             */
            file->block_count = cairn_json_peek_string_bytes(reader) / 16;
            if (file->block_count > 0)
                file->block_crcs = malloc((size_t)file->block_count * sizeof(uint64_t));
            if (file->block_count > 0 && !file->block_crcs) {
                *err = CAIRN_NOMEM;
                cairn_json_reader_fail(reader, "no memory");
                break;
            }
            cairn_json_read_hex64(reader, file->block_crcs, (size_t)file->block_count);
            break;
        default:
            break;
        }
    }
    all_keys(reader, 6, seen);
    if (file->block_count !=
        file->data_bytes / CAIRN_BLOCK_BYTES + (file->data_bytes % CAIRN_BLOCK_BYTES != 0))
        cairn_json_reader_fail(reader, "the checksums do not fit the bytes of a file");
    if (file->data_offset == 0 || file->data_offset % CAIRN_UNIVERSAL_ALIGN_BYTES != 0)
        cairn_json_reader_fail(reader, "a data section is not aligned");
}

static void
read_tensor(struct cairn_json_reader *reader, struct cairn_universal_tensor *out)
{
    static const char *const names[] = {"name", "kind",   "dtype", "shape",
                                        "file", "offset", "bytes"};
    struct cairn_tensor *tensor = &out->tensor;
    char key[KEY_BYTES], word[WORD_BYTES];
    uint32_t seen = 0;
    struct cairn_slice slice;
    const char *why = NULL;
    uint64_t bytes;
    int kind;

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof(key))) {
        switch (known_key(reader, key, names, 7, &seen)) {
        case 0:
            cairn_json_read_string(reader, tensor->name, sizeof(tensor->name));
            break;
        case 1:
            cairn_json_read_string(reader, word, sizeof(word));
            for (kind = CAIRN_PARAM; kind <= CAIRN_OPAQUE; kind++)
                if (strcmp(word, kind_names[kind]) == 0)
                    tensor->kind = (enum cairn_kind)kind;
            if (tensor->kind == 0)
                cairn_json_reader_fail(reader, "an unknown kind");
            break;
        case 2:
            cairn_json_read_string(reader, word, sizeof(word));
            tensor->dtype = cairn_dtype_from_name(word);
            if (tensor->dtype == 0)
                cairn_json_reader_fail(reader, "an unknown dtype");
            break;
        case 3:
            cairn_json_array_begin(reader);
            while (cairn_json_array_next(reader)) {
                if (tensor->dims == CAIRN_DIMS_MAX) {
                    cairn_json_reader_fail(reader, "too many dimensions");
                    break;
                }
                tensor->shape[tensor->dims++] = cairn_json_read_u64(reader, INT64_MAX);
            }
            break;
        case 4:
            out->file = (uint32_t)cairn_json_read_u64(reader, UINT32_MAX);
            break;
        case 5:
            out->offset_bytes = cairn_json_read_u64(reader, INT64_MAX);
            break;
        case 6:
            out->bytes = cairn_json_read_u64(reader, INT64_MAX);
            break;
        default:
            break;
        }
    }
    all_keys(reader, 7, seen);
    if (cairn_json_reader_failed(reader))
        return;
    if (!cairn_universal_name_fits(tensor->name, sizeof(tensor->name)))
        cairn_json_reader_fail(reader, "a tensor's name is not allowed");
    slice = cairn_universal_slice(tensor, tensor->name);
    if (cairn_slice_check(&slice, &why))
        cairn_json_reader_fail(reader, why);
    else if (cairn_universal_tensor_bytes(tensor, &bytes) || bytes != out->bytes)
        cairn_json_reader_fail(reader, "a tensor's bytes do not fit its shape");
}

static int
by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorts names[count] and says whether all are distinct. */
static bool
distinct(const char **names, uint32_t count)
{
    qsort(names, count, sizeof(*names), by_text);
    for (uint32_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return false;
    return true;
}

/* Checks files against tensors: tiling, classes, distinct names. *why stays NULL if all is well. */
static cairn_err
check_whole(struct cairn_universal *universal, const char **why)
{
    uint32_t most = universal->tensor_count > universal->file_count ? universal->tensor_count
                                                                    : universal->file_count;
    const char **names;
    uint32_t t = 0;

    if (universal->file_count == 0 || universal->tensor_count == 0) {
        *why = "no files or no tensors";
        return CAIRN_OK;
    }
    for (uint32_t f = 0; f < universal->file_count; f++) {
        struct cairn_universal_file *file = &universal->files[f];
        uint64_t end = 0;

        file->tensor_first = t;
        for (; t < universal->tensor_count && universal->tensors[t].file == f; t++) {
            const struct cairn_universal_tensor *tensor = &universal->tensors[t];

            if (tensor->offset_bytes != end || tensor->bytes > file->data_bytes - end)
                *why = "tensors leave a gap or overlap";
            else
                end += tensor->bytes;
            if (cairn_universal_class_of(tensor->tensor.kind) != file->kind)
                *why = "a tensor's kind does not fit its file";
            if (*why)
                return CAIRN_OK;
        }
        file->tensor_count = t - file->tensor_first;
        if (end != file->data_bytes || file->tensor_count == 0)
            *why = "a file is not covered by its tensors";
    }
    if (t != universal->tensor_count)
        *why = "tensors are not sorted by file";
    if (*why)
        return CAIRN_OK;
    names = malloc(most * sizeof(*names));
    if (!names)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < universal->tensor_count; i++)
        names[i] = universal->tensors[i].tensor.name;
    if (!distinct(names, universal->tensor_count))
        *why = "two tensors have one name";
    for (uint32_t f = 0; f < universal->file_count; f++)
        names[f] = universal->files[f].name;
    if (!distinct(names, universal->file_count))
        *why = "two files have one name";
    free(names);
    return CAIRN_OK;
}

static void
read_index(struct cairn_json_reader *reader, struct cairn_universal *out, uint64_t *version,
           cairn_err *err)
{
    static const char *const names[] = {"cairn_universal", "job",    "job_id", "epoch", "step",
                                        "files",           "tensors"};
    char key[KEY_BYTES];
    uint32_t seen = 0;
    uint64_t found;

    cairn_json_object_begin(reader);
    while (*err == CAIRN_OK && cairn_json_object_next(reader, key, sizeof(key))) {
        switch (known_key(reader, key, names, 7, &seen)) {
        case 0:
            found = cairn_json_read_u64(reader, UINT64_MAX);
            if (!cairn_json_reader_failed(reader) && found != INDEX_VERSION) {
                *version = found;
                cairn_json_reader_fail(reader, "another version");
            }
            break;
        case 1:
            cairn_json_read_string(reader, out->job, sizeof(out->job));
            break;
        case 2:
            cairn_json_read_hex64(reader, &out->job_id, 1);
            break;
        case 3:
            out->generation.epoch = cairn_json_read_u64(reader, UINT64_MAX);
            break;
        case 4:
            out->generation.step = cairn_json_read_u64(reader, UINT64_MAX);
            break;
        case 5:
            cairn_json_array_begin(reader);
            while (*err == CAIRN_OK && cairn_json_array_next(reader)) {
                if (out->file_count == CAIRN_UNIVERSAL_FILES_MAX)
                    cairn_json_reader_fail(reader, "too many files");
                else if (grow((void **)&out->files, out->file_count, sizeof(*out->files), err))
                    read_file(reader, &out->files[out->file_count++], err);
            }
            break;
        case 6:
            cairn_json_array_begin(reader);
            while (*err == CAIRN_OK && cairn_json_array_next(reader)) {
                if (out->tensor_count == UINT32_MAX / 2)
                    cairn_json_reader_fail(reader, "too many tensors");
                else if (grow((void **)&out->tensors, out->tensor_count, sizeof(*out->tensors),
                              err))
                    read_tensor(reader, &out->tensors[out->tensor_count++]);
            }
            break;
        default:
            break;
        }
    }
    all_keys(reader, 7, seen);
    if (!cairn_universal_name_fits(out->job, sizeof(out->job)))
        cairn_json_reader_fail(reader, "the job's name is not allowed");
}

cairn_err
cairn_universal_index_parse(const void *text, size_t text_bytes, struct cairn_universal *out)
{
    struct cairn_universal universal = {0};
    struct cairn_json_reader reader;
    uint64_t version = INDEX_VERSION;
    const char *why = NULL;
    cairn_err err = CAIRN_OK, read_err;

    cairn_json_reader_init(&reader, text, text_bytes);
    read_index(&reader, &universal, &version, &err);
    if (err)
        goto done;
    read_err = cairn_json_reader_done(&reader);
    why = reader.why;
    if (read_err == CAIRN_OK)
        err = check_whole(&universal, &why);
    if (err)
        goto done;
    if (why) {
        err = version == INDEX_VERSION ? CAIRN_CORRUPT : CAIRN_VERSION;
        CAIRN_LOG_AT(ERROR, "spill: index.json is refused: %s (at byte %zu, version %" PRIu64 ")",
                     why, reader.at, version);
        goto done;
    }
    *out = universal;
    memset(&universal, 0, sizeof(universal));
done:
    cairn_universal_fini(&universal);
    return err;
}
