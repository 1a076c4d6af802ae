/* tools/convert/torch/output.c - files of torch.save in an output. */
#include "tools/convert/torch/output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"

/* What torch.save names the archive's folder: the file's name without its last ending. */
static void
folder_of(const char *path, char folder[CAIRN_FILE_PATH_BYTES_MAX])
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    size_t bytes = dot && dot != name ? (size_t)(dot - name) : strlen(name);

    if (bytes == 0 || bytes >= CAIRN_FILE_PATH_BYTES_MAX) {
        name = "archive";
        bytes = strlen(name);
    }
    memcpy(folder, name, bytes);
    folder[bytes] = '\0';
}

cairn_err
cairn_torch_output_plan(struct cairn_torch_output *out, const char *folder,
                        const struct cairn_torch_fill *fill)
{
    struct cairn_torch_plan_storage *storages;
    char(*keys)[16];
    cairn_err err;

    memset(out, 0, sizeof(*out));
    err = cairn_torch_carry_fill(fill, &out->storages, &out->storage_count);
    if (err)
        return err;
    err = CAIRN_NOMEM;
    storages = calloc((size_t)out->storage_count + 1, sizeof(*storages));
    keys = calloc((size_t)out->storage_count + 1, sizeof(*keys));
    if (storages && keys) {
        for (uint32_t i = 0; i < out->storage_count; i++) {
            (void)snprintf(keys[i], sizeof(keys[i]), "%" PRIu32, i);
            storages[i] = (struct cairn_torch_plan_storage){keys[i], out->storages[i].bytes};
        }
        err = cairn_torch_plan_init(&out->plan, folder, fill->tree, fill->root, storages,
                                    out->storage_count, fill->complaint);
    }
    free(storages);
    free(keys);
    return err;
}

uint64_t
cairn_torch_output_at(const struct cairn_torch_output *added, uint32_t storage)
{
    return added->begin + added->plan.zip.entries[added->plan.first_storage + storage].at;
}

/* ---- literals: what lies before, between and behind the storages ---- */

struct gap {
    uint64_t begin, end;
    uint8_t *bytes; /* [end - begin]; NULL: not wanted */
};

struct gaps {
    struct gap *gaps; /* [count], by place */
    uint32_t count;
};

static void
gaps_fini(struct gaps *gaps)
{
    for (uint32_t i = 0; i < gaps->count; i++)
        free(gaps->gaps[i].bytes);
    free(gaps->gaps);
}

static cairn_err
gaps_init(const struct cairn_torch_output *added, struct gaps *gaps)
{
    uint64_t cursor = 0;

    gaps->count = 0;
    gaps->gaps = calloc((size_t)added->storage_count + 1, sizeof(*gaps->gaps));
    if (!gaps->gaps)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < added->storage_count; i++) {
        uint64_t at = cairn_torch_output_at(added, i) - added->begin;

        if (added->storages[i].bytes == 0)
            continue;
        gaps->gaps[gaps->count++] = (struct gap){cursor, at, NULL};
        cursor = at + added->storages[i].bytes;
    }
    gaps->gaps[gaps->count++] = (struct gap){cursor, cairn_torch_plan_bytes(&added->plan), NULL};
    return CAIRN_OK;
}

static cairn_err
put_in_gap(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    const struct gaps *gaps = context;
    uint32_t low = 0, high = gaps->count - 1;

    /* The first that ends behind */
    CAIRN_BISECT(low, high, middle, gaps->gaps[middle].end <= at);
    if (at < gaps->gaps[low].begin || at > gaps->gaps[low].end ||
        bytes_len > gaps->gaps[low].end - at)
        return CAIRN_INTERNAL; /* over a storage */
    if (gaps->gaps[low].bytes && bytes_len > 0)
        memcpy(gaps->gaps[low].bytes + (at - gaps->gaps[low].begin), bytes, bytes_len);
    return CAIRN_OK;
}

/* Adds the first gap, or all others, as literals. */
static cairn_err
add_literals(struct cairn_output *output, struct cairn_torch_output *added, bool first)
{
    struct gaps gaps = {0};
    cairn_err err = gaps_init(added, &gaps);

    for (uint32_t i = 0; i < gaps.count && !err; i++) {
        struct gap *gap = &gaps.gaps[i];

        if ((i == 0) == first && gap->end > gap->begin &&
            !(gap->bytes = calloc(1, (size_t)(gap->end - gap->begin))))
            err = CAIRN_NOMEM;
    }
    if (!err)
        err = cairn_torch_plan_put(&added->plan, put_in_gap, &gaps);
    for (uint32_t i = 0; i < gaps.count && !err; i++) {
        struct gap *gap = &gaps.gaps[i];

        if (gap->bytes)
            err = cairn_output_add_literal(output, added->file, added->begin + gap->begin,
                                           gap->bytes, (size_t)(gap->end - gap->begin));
        gap->bytes = NULL; /* the output's, also on failure */
    }
    gaps_fini(&gaps);
    return err;
}

cairn_err
cairn_torch_output_place(struct cairn_output *output, struct cairn_torch_output *added,
                         uint32_t file, uint64_t begin)
{
    cairn_err err = CAIRN_OK;

    added->file = file;
    added->begin = begin;
    added->sums = calloc((size_t)added->storage_count + 1, sizeof(*added->sums));
    if (!added->sums)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < added->storage_count && !err; i++) {
        uint64_t bytes = added->storages[i].bytes;

        added->sums[i] = UINT32_MAX;
        if (bytes > 0)
            err = cairn_output_add_sum(output, file, CAIRN_CRC_ZIP, cairn_torch_output_at(added, i),
                                       bytes, bytes, &added->sums[i]);
    }
    return err ? err : add_literals(output, added, true);
}

cairn_err
cairn_torch_output_add(struct cairn_output *output, const char *path,
                       const struct cairn_torch_fill *fill, struct cairn_torch_output *out)
{
    char folder[CAIRN_FILE_PATH_BYTES_MAX];
    uint32_t file;
    cairn_err err;

    folder_of(path, folder);
    err = cairn_torch_output_plan(out, folder, fill);
    if (!err)
        err = cairn_output_add_file(output, path, &file);
    if (err)
        return err;
    cairn_output_set_bytes(output, file, cairn_torch_plan_bytes(&out->plan));
    return cairn_torch_output_place(output, out, file, 0);
}

cairn_err
cairn_torch_output_finish(struct cairn_output *output, struct cairn_torch_output *added)
{
    for (uint32_t i = 0; i < added->storage_count; i++)
        if (added->sums[i] != UINT32_MAX)
            cairn_torch_plan_storage_at(&added->plan, i)->crc32 =
                (uint32_t)output->sums[added->sums[i]].values[0];
    return add_literals(output, added, false);
}

void
cairn_torch_output_fini(struct cairn_torch_output *added)
{
    cairn_torch_plan_fini(&added->plan);
    free(added->storages);
    free(added->sums);
    memset(added, 0, sizeof(*added));
}

/* ---- all files of an output ---- */

/* What output->state is. */
struct outputs {
    struct cairn_torch_output *files;
    uint32_t count;
};

cairn_err
cairn_torch_output_next(struct cairn_output *output, struct cairn_torch_output **next)
{
    struct outputs *outputs = output->state;

    if (!outputs)
        output->state = outputs = calloc(1, sizeof(*outputs));
    if (!outputs)
        return CAIRN_NOMEM;
    if (!cairn_array_grow(&outputs->files, outputs->count, sizeof(*outputs->files)))
        return CAIRN_NOMEM;
    *next = &outputs->files[outputs->count++];
    memset(*next, 0, sizeof(**next));
    return CAIRN_OK;
}

cairn_err
cairn_torch_output_fill(struct cairn_output *output, const char *path,
                        const struct cairn_torch_fill *fill,
                        cairn_err (*place)(void *context, uint32_t identity, uint32_t file,
                                           uint64_t at))
{
    struct cairn_torch_output *added = NULL;
    cairn_err err = cairn_torch_output_next(output, &added);

    if (!err)
        err = cairn_torch_output_add(output, path, fill, added);
    for (uint32_t i = 0; !err && i < added->storage_count; i++)
        err = place(fill->context, added->storages[i].identity, added->file,
                    cairn_torch_output_at(added, i));
    return cairn_complain_failed(fill->complaint, err, "%s: cannot be laid out", path);
}

cairn_err
cairn_torch_outputs_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output)
{
    struct outputs *outputs = output->state;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; outputs && i < outputs->count && !err; i++)
        err = cairn_torch_output_finish(output, &outputs->files[i]);
    return cairn_complain_failed(checkpoint->complaint, err,
                                 "%s: the records of files cannot be made", checkpoint->place.path);
}

void
cairn_torch_outputs_release(void *state)
{
    struct outputs *outputs = state;

    if (!outputs)
        return;
    for (uint32_t i = 0; i < outputs->count; i++)
        cairn_torch_output_fini(&outputs->files[i]);
    free(outputs->files);
    free(outputs);
}
