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
cairn_torch_output_plan(struct cairn_torch_output *out, const char *path,
                        const struct cairn_torch_fill *fill)
{
    char folder[CAIRN_FILE_PATH_BYTES_MAX];
    cairn_err err;

    folder_of(path, folder);
    memset(out, 0, sizeof(*out));
    err = cairn_torch_carry_fill(fill, &out->storages, &out->storage_count);
    return err ? err
               : cairn_torch_plan_init(&out->plan, folder, fill->tree, fill->root, out->storages,
                                       out->storage_count, fill->complaint);
}

uint64_t
cairn_torch_output_at(const struct cairn_torch_output *added, uint32_t storage)
{
    return added->begin + added->plan.zip.entries[added->plan.first_storage + storage].at;
}

/* ---- literals: what lies before, between and behind the entries that others fill ---- */

struct gap {
    uint64_t begin, end;
    uint8_t *bytes; /* [end - begin]; NULL: not wanted */
};

struct gaps {
    struct gap *gaps; /* [count], by place */
    uint32_t count;
};

static cairn_err
add_gap(struct gaps *gaps, uint64_t begin, uint64_t end, unsigned parts)
{
    bool wanted = end > begin && (parts & (gaps->count == 0 ? CAIRN_TORCH_HEAD : CAIRN_TORCH_TAIL));
    uint8_t *bytes = wanted ? calloc(1, (size_t)(end - begin)) : NULL;

    gaps->gaps[gaps->count++] = (struct gap){begin, end, bytes};
    return bytes || !wanted ? CAIRN_OK : CAIRN_NOMEM;
}

static cairn_err
put_in_gap(void *context, uint64_t at, const void *bytes, size_t bytes_len)
{
    const struct gaps *gaps = context;
    uint32_t low = 0, high = gaps->count - 1;
    const struct gap *gap;

    /* The first that ends behind */
    CAIRN_BISECT(low, high, middle, gaps->gaps[middle].end <= at);
    gap = &gaps->gaps[low];
    if (at < gap->begin && bytes_len <= gap->begin - at)
        return CAIRN_OK; /* an entry that is left out */
    if (at < gap->begin || at > gap->end || bytes_len > gap->end - at)
        return CAIRN_INTERNAL; /* over such an entry */
    if (gap->bytes && bytes_len > 0)
        memcpy(gap->bytes + (at - gap->begin), bytes, bytes_len);
    return CAIRN_OK;
}

cairn_err
cairn_torch_plan_literals(struct cairn_torch_plan *plan, uint32_t hole, uint32_t hole_count,
                          unsigned parts, struct cairn_output *output, uint32_t file,
                          uint64_t begin)
{
    struct gaps gaps = {.gaps = calloc((size_t)hole_count + 1, sizeof(*gaps.gaps))};
    uint64_t cursor = 0;
    cairn_err err = gaps.gaps ? CAIRN_OK : CAIRN_NOMEM;

    for (uint32_t i = hole; i < hole + hole_count && !err; i++) {
        const struct cairn_zip_planned *entry = &plan->zip.entries[i];

        if (entry->bytes == 0)
            continue;
        err = add_gap(&gaps, cursor, entry->at, parts);
        cursor = entry->at + entry->bytes;
    }
    if (!err)
        err = add_gap(&gaps, cursor, cairn_torch_plan_bytes(plan), parts);
    if (!err)
        err = cairn_torch_plan_put(plan, put_in_gap, &gaps);
    for (uint32_t i = 0; i < gaps.count; i++) {
        const struct gap *gap = &gaps.gaps[i];

        if (!err && gap->bytes) /* the output's, also on failure */
            err = cairn_output_add_literal(output, file, begin + gap->begin, gap->bytes,
                                           (size_t)(gap->end - gap->begin));
        else
            free(gap->bytes);
    }
    free(gaps.gaps);
    return err;
}

static cairn_err
add_literals(struct cairn_output *output, struct cairn_torch_output *added, unsigned parts)
{
    return cairn_torch_plan_literals(&added->plan, added->plan.first_storage, added->storage_count,
                                     parts, output, added->file, added->begin);
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
    return err ? err : add_literals(output, added, CAIRN_TORCH_HEAD);
}

/* Adds a file with the filled tree as its object; cairn_torch_output_at tells where storages lie.
 * The tree may be ended afterwards. Errors: those of cairn_torch_carry_fill, of writing the pickle
 * and of cairn_output_add_file. The caller ends *out in any case. */
static cairn_err
output_add(struct cairn_output *output, const char *path, const struct cairn_torch_fill *fill,
           struct cairn_torch_output *out)
{
    uint32_t file;
    cairn_err err = cairn_torch_output_plan(out, path, fill);

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
    return add_literals(output, added, CAIRN_TORCH_TAIL);
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
        err = output_add(output, path, fill, added);
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
