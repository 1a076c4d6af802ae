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

cairn_err
cairn_torch_plan_literals(struct cairn_torch_plan *plan, unsigned parts,
                          struct cairn_output *output, uint32_t file, uint64_t begin)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    uint64_t at = 0;
    cairn_err err = CAIRN_OK;

    cairn_torch_plan_seal(plan);
    for (uint32_t from = 0, hole; !err && from <= plan->zip.entry_count; from = hole + 1) {
        hole = cairn_zip_plan_hole(&plan->zip, from);
        if (!(parts & (from == 0 ? CAIRN_TORCH_HEAD : CAIRN_TORCH_TAIL)))
            continue;
        err = cairn_zip_plan_pack(&plan->zip, from, hole, &at, &bytes, &bytes_len);
        if (!err)
            err = cairn_output_add_literal(output, file, begin + at, bytes, bytes_len);
    }
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
    return err ? err
               : cairn_torch_plan_literals(&added->plan, CAIRN_TORCH_HEAD, output, file, begin);
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
    cairn_output_set_bytes(output, file, cairn_zip_plan_bytes(&out->plan.zip));
    return cairn_torch_output_place(output, out, file, 0);
}

cairn_err
cairn_torch_output_finish(struct cairn_output *output, struct cairn_torch_output *added)
{
    for (uint32_t i = 0; i < added->storage_count; i++)
        if (added->sums[i] != UINT32_MAX)
            cairn_torch_plan_storage_at(&added->plan, i)->crc32 =
                (uint32_t)output->sums[added->sums[i]].values[0];
    return cairn_torch_plan_literals(&added->plan, CAIRN_TORCH_TAIL, output, added->file,
                                     added->begin);
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
