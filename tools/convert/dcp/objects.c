/* tools/convert/dcp/objects.c - the objects of a distributed checkpoint that is written:
 * archives of torch.save without tensors, or with tensors that have no item of their own. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/dcp/frames.h"
#include "tools/convert/pickle/read.h"

cairn_err
cairn_dcp_output_literal(struct cairn_dcp_output *dcp, const char *name,
                         const struct cairn_state_path *path, const struct cairn_pickle *tree,
                         const struct cairn_pickle_node *root)
{
    struct cairn_torch_plan plan = {0};
    struct cairn_dcp_frame frame = {0};
    struct cairn_dcp_spot spot;
    struct cairn_zip_planned end;
    uint32_t file;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0, dcp->complaint);
    if (err)
        return err;
    end = (struct cairn_zip_planned){.at = cairn_torch_plan_bytes(&plan)};
    err = cairn_dcp_take_place(dcp, 0, end.at, &spot, &file);
    if (!err)
        err = cairn_dcp_frame_make(&plan, &end, &frame);
    if (!err) {
        err = cairn_output_add_literal(dcp->output, file, spot.offset_bytes, frame.head,
                                       (size_t)end.at);
        frame.head = NULL;
    }
    if (!err)
        cairn_dcp_index_add_object(&dcp->index, name, path, &spot);
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* An object whose pickle is the opaque state itself, copied from the source to where it belongs. */
static cairn_err
add_plain_object(struct cairn_dcp_output *dcp, uint32_t tensor, const struct cairn_pickle *tree,
                 const struct cairn_pickle_node *root, const uint8_t *bytes, size_t bytes_len,
                 const char *name, const struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_torch_plan plan = {0};
    struct cairn_dcp_frame frame = {0};
    struct cairn_dcp_spot spot;
    struct cairn_zip_planned pickle;
    uint32_t file, target;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0, dcp->complaint);
    if (err)
        return err;
    pickle = plan.zip.entries[0];
    if (pickle.bytes != bytes_len || memcmp(plan.pickle_bytes, bytes, bytes_len) != 0) {
        /* Not as it would be written here: the values are the same, the bytes are not. */
        cairn_torch_plan_fini(&plan);
        err = cairn_dcp_output_literal(dcp, name, path, tree, root);
        return err ? err : cairn_output_add_carried(dcp->output, tensor);
    }
    err = cairn_dcp_take_place(dcp, 0, cairn_torch_plan_bytes(&plan), &spot, &file);
    if (!err)
        err = cairn_dcp_frame_make(&plan, &pickle, &frame);
    if (!err) {
        err = cairn_output_add_literal(dcp->output, file, spot.offset_bytes, frame.head,
                                       (size_t)frame.hole_begin);
        frame.head = NULL;
    }
    if (!err) {
        err = cairn_output_add_literal(dcp->output, file, spot.offset_bytes + frame.hole_end,
                                       frame.tail, (size_t)(spot.bytes - frame.hole_end));
        frame.tail = NULL;
    }
    if (!err)
        err = cairn_output_add_tensor(dcp->output, dcp->options, known, &target);
    if (!err)
        err = cairn_output_add_box(dcp->output, target, file, NULL, NULL,
                                   spot.offset_bytes + frame.hole_begin, NULL);
    if (!err)
        cairn_dcp_index_add_object(&dcp->index, name, path, &spot);
    free(frame.head);
    free(frame.tail);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* The boxes and checksums of the tensors within an object. */
static cairn_err
place_storages(struct cairn_dcp_output *dcp, const struct cairn_torch_refs *refs,
               struct cairn_dcp_mixed *mixed)
{
    cairn_err err = CAIRN_OK;

    mixed->sums = calloc((size_t)refs->count + 1, sizeof(*mixed->sums));
    if (!mixed->sums)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < refs->count && !err; i++) {
        const struct cairn_tensor *known =
            cairn_layout_tensor(dcp->source->layout, refs->tensors[i]);
        const struct cairn_zip_planned *entry = cairn_torch_plan_storage_at(&mixed->plan, i);
        uint32_t target;

        mixed->sums[i] = UINT32_MAX;
        err = cairn_output_add_tensor(dcp->output, dcp->options, known, &target);
        if (!err)
            err = cairn_output_add_box(dcp->output, target, mixed->file, NULL, NULL,
                                       mixed->begin + entry->at, NULL);
        if (!err && entry->bytes > 0)
            err = cairn_output_add_sum(dcp->output, mixed->file, CAIRN_SUM_CRC32,
                                       mixed->begin + entry->at, entry->bytes, entry->bytes,
                                       &mixed->sums[i]);
    }
    return err;
}

static cairn_err
add_mixed_object(struct cairn_dcp_output *dcp, const struct cairn_torch_refs *refs,
                 struct cairn_pickle *tree, const struct cairn_pickle_node *root, const char *name,
                 const struct cairn_state_path *path)
{
    struct cairn_dcp_kept *state = dcp->kept;
    struct cairn_torch_builder builder;
    struct cairn_dcp_mixed *mixed;
    struct cairn_dcp_spot spot;
    cairn_err err;

    if (!cairn_array_grow(&state->mixed, state->mixed_count, sizeof(*state->mixed)))
        return CAIRN_NOMEM;
    mixed = &state->mixed[state->mixed_count++];
    memset(mixed, 0, sizeof(*mixed));
    cairn_torch_builder_init(&builder, tree);
    err = cairn_torch_refs_plan(dcp->source->layout, dcp->options, refs, &builder, root, "archive",
                                &mixed->plan, dcp->complaint);
    if (!err)
        err =
            cairn_dcp_take_place(dcp, 0, cairn_torch_plan_bytes(&mixed->plan), &spot, &mixed->file);
    if (err)
        return err;
    mixed->begin = spot.offset_bytes;
    err = place_storages(dcp, refs, mixed);
    if (!err)
        cairn_dcp_index_add_object(&dcp->index, name, path, &spot);
    return err;
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

static bool
is_pickle_name(const char *name)
{
    size_t bytes = strlen(name);

    return bytes > 7 && strcmp(name + bytes - 7, ".pickle") == 0;
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

    if (!is_pickle_name(known->name))
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
        err = add_mixed_object(dcp, &refs, &tree, root, name, path);
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
    if (!err && refs.count == 0)
        err = cairn_dcp_output_literal(dcp, name, path, &tree, root);
    else if (!err)
        err = add_mixed_object(dcp, &refs, &tree, root, name, path);
    for (uint32_t i = 0; i < refs.count && !err; i++)
        dcp->inside[refs.tensors[i]] = true;
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}
