/* tools/convert/torch/source.c - files of torch.save in a checkpoint that is read. */
#include "tools/convert/torch/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/torch/refs.h"
#include "base/text.h"

/* The checksums that an archive in a container has of its storages, to be held against what is read
 * of them. Errors of cairn_checkpoint_add_sums. */
static cairn_err
source_add_sums(struct cairn_checkpoint *checkpoint, uint32_t container,
                const struct cairn_torch_file *file)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < file->storage_count && !err; i++) {
        const struct cairn_torch_stored *stored = &file->storages[i];

        if (stored->viewed)
            err = cairn_checkpoint_add_storage_sum(checkpoint, container, stored->at, stored->bytes,
                                                   stored->crc32);
    }
    return err;
}

cairn_err
cairn_torch_check_view(const struct cairn_checkpoint *checkpoint,
                       const struct cairn_torch_tensor *tensor, const char *name)
{
    const struct cairn_torch_view *view = &tensor->view;
    bool lazy = view->conjugate || view->negate;

    return view->dtype->dtype && !lazy
               ? CAIRN_OK
               : cairn_refuse(
                     checkpoint, CAIRN_INVAL,
                     "tensor %.300s is of torch.%s%s, which is not converted; save it with "
                     "another dtype, or leave it out",
                     name, view->dtype->name, lazy ? " with a conjugate or negative bit" : "");
}

cairn_err
cairn_torch_source_read(struct cairn_checkpoint *checkpoint, int fd, const char *where,
                        uint64_t begin, uint64_t bytes, struct cairn_torch_source *out)
{
    cairn_err err = cairn_torch_open(fd, where, begin, bytes, CAIRN_CONVERT_METADATA_BYTES_MAX,
                                     &out->torch, checkpoint->complaint);

    if (err)
        return cairn_complain_failed(checkpoint->complaint, err,
                                     "%s: cannot be read as a file of torch.save", where);
    out->node_count = out->torch.tree.node_count;
    out->tensor_of = calloc((size_t)out->node_count + 1, sizeof(*out->tensor_of));
    if (!out->tensor_of)
        return CAIRN_NOMEM;
    for (uint32_t i = out->torch.tensor_count; i-- > 0;)
        out->tensor_of[out->torch.tensors[i].node->index] = i + 1;
    return source_add_sums(checkpoint, out->container, &out->torch);
}

cairn_err
cairn_torch_source_open(struct cairn_checkpoint *checkpoint, const char *path,
                        struct cairn_torch_source *out)
{
    char where[CAIRN_FILE_PATH_BYTES_MAX];
    int fd = -1;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    out->path = path;
    err = cairn_checkpoint_add_file(checkpoint, path, &out->container);
    if (!err)
        err = cairn_place_open_file(&checkpoint->place, path, &fd, checkpoint->complaint);
    (void)snprintf(where, sizeof(where), "%s%s%s", checkpoint->place.path, path[0] ? "/" : "",
                   path);
    if (!err)
        err = cairn_torch_source_read(checkpoint, fd, where, 0,
                                      checkpoint->containers[out->container].bytes, out);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    return err;
}

void
cairn_torch_source_close(struct cairn_torch_source *source)
{
    cairn_torch_close(&source->torch);
    free(source->tensor_of);
    memset(source, 0, sizeof(*source));
}

const struct cairn_torch_tensor *
cairn_torch_source_tensor(const struct cairn_torch_source *source,
                          const struct cairn_pickle_node *node)
{
    if (!node || node->index >= source->node_count || node->kind != CAIRN_PICKLE_OBJECT ||
        source->tensor_of[node->index] == 0)
        return NULL;
    return &source->torch.tensors[source->tensor_of[node->index] - 1];
}

cairn_err
cairn_torch_add_view(struct cairn_checkpoint *checkpoint, uint32_t container,
                     const struct cairn_torch_tensor *tensor, const char *name,
                     enum cairn_kind kind, uint32_t *index)
{
    const struct cairn_torch_view *view = &tensor->view;
    uint64_t stride_bytes[CAIRN_DIMS_MAX];
    cairn_err err;

    cairn_torch_view_strides(view, stride_bytes);
    err = cairn_checkpoint_add_tensor(checkpoint, name, view->dtype->dtype, kind, view->dims,
                                      view->shape, index);
    return err ? err
               : cairn_checkpoint_add_box(checkpoint, *index, container, NULL, NULL, tensor->at,
                                          stride_bytes);
}

cairn_err
cairn_torch_source_add(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
                       const struct cairn_torch_tensor *tensor, const char *name,
                       enum cairn_kind kind)
{
    uint32_t index = 0;
    cairn_err err = cairn_torch_check_view(checkpoint, tensor, name);

    if (!err)
        err = cairn_torch_add_view(checkpoint, source->container, tensor, name, kind, &index);
    if (!err)
        cairn_torch_carry_out(&source->torch.tree, tensor->node, "tensor", name);
    return err;
}

cairn_err
cairn_torch_source_load(const struct cairn_checkpoint *checkpoint,
                        const struct cairn_torch_source *source,
                        const struct cairn_torch_tensor *tensor, void *bytes, size_t room)
{
    size_t got = 0;
    int fd = -1;
    cairn_err err;

    if (tensor->bytes > room)
        return CAIRN_INVAL;
    err = cairn_place_open_file(&checkpoint->place, source->path, &fd, checkpoint->complaint);
    if (!err)
        err = cairn_file_read_at(fd, tensor->at, bytes, (size_t)tensor->bytes, &got);
    (void)cairn_file_close(fd); /* only read; -1 is allowed */
    return !err && got != tensor->bytes ? CAIRN_CORRUPT : err;
}

cairn_err
cairn_torch_source_carry(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
                         const char *scope, uint8_t **bytes, size_t *bytes_len)
{
    char name[CAIRN_TORCH_NAME_BYTES_MAX + CAIRN_NAME_BYTES_MAX];
    bool storage = false;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < source->torch.tensor_count && !err; i++) {
        const struct cairn_torch_tensor *tensor = &source->torch.tensors[i];

        if (tensor->node->kind != CAIRN_PICKLE_OBJECT)
            continue;
        (void)snprintf(name, sizeof(name), "%s%s", scope, tensor->name);
        if (!tensor->name[0] && cairn_text_ends(name, "."))
            name[strlen(name) - 1] = '\0';
        err = cairn_torch_source_add(checkpoint, source, tensor, name, CAIRN_BUFFER);
    }
    if (!err)
        err = cairn_pickle_done(&source->torch.tree);
    if (!err)
        err = cairn_torch_has_storage(&source->torch.tree, source->torch.root, &storage);
    if (!err && storage)
        return cairn_complain(checkpoint->complaint, CAIRN_INVAL, CAIRN_TORCH_STORAGE_LEFT,
                              checkpoint->place.path, source->path);
    if (!err)
        err = cairn_pickle_write(&source->torch.tree, source->torch.root, bytes, bytes_len,
                                 checkpoint->complaint);
    if (err)
        return cairn_complain_failed(checkpoint->complaint, err,
                                     "%s/%s: what is not a tensor in it cannot be carried",
                                     checkpoint->place.path, source->path);
    return CAIRN_OK;
}

cairn_err
cairn_torch_source_carry_as(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
                            const char *scope, const char *name)
{
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err = cairn_torch_source_carry(checkpoint, source, scope, &bytes, &bytes_len);

    if (!err)
        err = cairn_checkpoint_add_opaque(checkpoint, name, bytes, bytes_len);
    free(bytes);
    return err;
}
