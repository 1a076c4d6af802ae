/* tools/convert/dcp/objects.c - the objects of a distributed checkpoint that is written:
 * archives of torch.save without tensors, or with tensors that have no item of their own. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/text.h"
#include "tools/convert/dcp/frames.h"
#include "tools/convert/pickle/read.h"

/* One more archive that `finish` closes. */
static cairn_err
next_archive(struct cairn_dcp_output *dcp, struct cairn_torch_output **archive)
{
    struct cairn_dcp_kept *kept = dcp->kept;

    if (!cairn_array_grow(&kept->archives, kept->archive_count, sizeof(*kept->archives)))
        return CAIRN_NOMEM;
    *archive = &kept->archives[kept->archive_count++];
    memset(*archive, 0, sizeof(**archive));
    return CAIRN_OK;
}

static cairn_err
place_archive(struct cairn_dcp_output *dcp, struct cairn_torch_output *archive, const char *name,
              const struct cairn_state_path *path)
{
    struct cairn_dcp_spot spot;
    uint32_t file;
    cairn_err err =
        cairn_dcp_take_place(dcp, 0, cairn_torch_plan_bytes(&archive->plan), &spot, &file);

    if (!err)
        err = cairn_torch_refs_place(dcp->source, dcp->options, dcp->output, archive, file,
                                     spot.offset_bytes);
    if (!err)
        cairn_dcp_index_add_object(&dcp->index, name, path, &spot);
    return err;
}

cairn_err
cairn_dcp_output_literal(struct cairn_dcp_output *dcp, const char *name,
                         const struct cairn_state_path *path, const struct cairn_pickle *tree,
                         const struct cairn_pickle_node *root)
{
    struct cairn_torch_output *archive;
    cairn_err err = next_archive(dcp, &archive);

    if (!err)
        err = cairn_torch_plan_init(&archive->plan, "archive", tree, root, NULL, 0,
                                    dcp->source->complaint);
    return err ? err : place_archive(dcp, archive, name, path);
}

/* An object whose pickle is the opaque state itself, copied from the source to where it belongs. */
static cairn_err
add_plain_object(struct cairn_dcp_output *dcp, uint32_t tensor, const struct cairn_pickle *tree,
                 const struct cairn_pickle_node *root, const uint8_t *bytes, size_t bytes_len,
                 const char *name, const struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_torch_plan plan = {0};
    struct cairn_dcp_spot spot;
    uint64_t at;
    uint32_t file;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0, dcp->source->complaint);
    if (err)
        return err;
    at = plan.zip.entries[0].at;
    if (plan.zip.entries[0].bytes != bytes_len ||
        memcmp(plan.pickle_bytes, bytes, bytes_len) != 0) {
        /* Not as it would be written here: the values are the same, the bytes are not. */
        cairn_torch_plan_fini(&plan);
        err = cairn_dcp_output_literal(dcp, name, path, tree, root);
        return err ? err : cairn_output_add_carried(dcp->output, tensor);
    }
    err = cairn_dcp_take_place(dcp, 0, cairn_torch_plan_bytes(&plan), &spot, &file);
    if (!err)
        err = cairn_torch_plan_literals(&plan, 0, 1, CAIRN_TORCH_HEAD | CAIRN_TORCH_TAIL,
                                        dcp->output, file, spot.offset_bytes);
    if (!err)
        err =
            cairn_output_add_whole(dcp->output, dcp->options, known, file, spot.offset_bytes + at);
    if (!err)
        cairn_dcp_index_add_object(&dcp->index, name, path, &spot);
    cairn_torch_plan_fini(&plan);
    return err;
}

static cairn_err
add_mixed_object(struct cairn_dcp_output *dcp, struct cairn_pickle *tree,
                 struct cairn_pickle_node *root, const char *name,
                 const struct cairn_state_path *path)
{
    struct cairn_torch_output *archive;
    cairn_err err = next_archive(dcp, &archive);

    if (!err)
        err =
            cairn_torch_refs_plan(dcp->source, dcp->options, NULL, tree, root, "archive", archive);
    return err ? err : place_archive(dcp, archive, name, path);
}

/* Whether an object may take its tensors into itself: they are named below it, and free. */
static bool
may_hold(const struct cairn_dcp_output *dcp, const char *name, const struct cairn_torch_refs *refs)
{
    size_t base_bytes = strlen(name) - strlen(".pickle");

    for (uint32_t i = 0; i < refs->count; i++) {
        const char *held = cairn_layout_tensor(dcp->source->layout, refs->tensors[i])->name;

        if (dcp->inside[refs->tensors[i]] || strncmp(held, name, base_bytes) != 0 ||
            (held[base_bytes] != '.' && held[base_bytes] != '\0'))
            return false;
    }
    return true;
}

cairn_err
cairn_dcp_output_object(struct cairn_dcp_output *dcp, uint32_t tensor, const uint8_t *bytes,
                        size_t bytes_len, const char *name, const struct cairn_state_path *path,
                        bool *done)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_torch_refs refs = {0};
    struct cairn_pickle_node *root = NULL;
    struct cairn_pickle tree;
    cairn_err err;

    if (!cairn_text_ends(known->name, ".pickle"))
        return CAIRN_OK;
    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = cairn_pickle_read(&tree, known->name, bytes, bytes_len, &root, NULL);
    if (!err)
        err = cairn_torch_refs_find(dcp->source, dcp->options, &tree, root, &refs);
    if (err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_INVAL) {
        err = CAIRN_OK; /* carried as bytes */
    } else if (!err && refs.count == 0) {
        *done = true;
        err = add_plain_object(dcp, tensor, &tree, root, bytes, bytes_len, name, path);
    } else if (!err && may_hold(dcp, known->name, &refs)) {
        *done = true;
        for (uint32_t i = 0; i < refs.count; i++)
            dcp->inside[refs.tensors[i]] = true;
        err = add_mixed_object(dcp, &tree, root, name, path);
        if (!err)
            err = cairn_output_add_carried(dcp->output, tensor);
    }
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}

cairn_err
cairn_dcp_output_made(struct cairn_dcp_output *dcp, const uint8_t *bytes, size_t bytes_len,
                      const char *name, const struct cairn_state_path *path)
{
    struct cairn_torch_refs refs = {0};
    struct cairn_pickle_node *root = NULL;
    struct cairn_pickle tree;
    cairn_err err;

    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = cairn_pickle_read(&tree, name, bytes, bytes_len, &root, NULL);
    if (!err)
        err = cairn_torch_refs_find(dcp->source, dcp->options, &tree, root, &refs);
    if (!err)
        err = add_mixed_object(dcp, &tree, root, name, path);
    for (uint32_t i = 0; i < refs.count && !err; i++)
        dcp->inside[refs.tensors[i]] = true;
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}
