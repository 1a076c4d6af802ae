/* tools/convert/torch/refs.c - see torch/refs.h. */
#include "tools/convert/torch/refs.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/state/param_groups.h"

static cairn_err
note_storage(void *context, struct cairn_pickle_node *node)
{
    const struct cairn_pickle_node *id = node->items[0];
    bool *found = context;

    *found = *found || (id->kind == CAIRN_PICKLE_TUPLE && id->count > 0 &&
                        cairn_pickle_is_text(id->items[0], "storage"));
    return CAIRN_OK;
}

cairn_err
cairn_torch_has_storage(const struct cairn_pickle *tree, const struct cairn_pickle_node *node,
                        bool *found)
{
    *found = false;
    return cairn_torch_visit_persistent(tree, node, note_storage, found);
}

/* ---- tensors of the source ---- */

struct finding {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    bool *seen; /* [tensors]; NULL until the tree names one, since most objects name none */
    struct cairn_torch_refs *refs;
};

/* The tensor that a name is written as; UINT32_MAX where there is none, or it is opaque state. */
static uint32_t
find(const struct finding *finding, const char *name)
{
    const struct cairn_layout *layout = finding->source->layout;
    uint32_t found = cairn_layout_tensor_find(layout, name);

    return found == UINT32_MAX || cairn_layout_tensor(layout, found)->kind == CAIRN_OPAQUE
               ? UINT32_MAX
               : cairn_output_past_alias(finding->source, finding->options, found);
}

static cairn_err
note(void *context, struct cairn_pickle_node *node)
{
    struct finding *finding = context;
    struct cairn_torch_refs *refs = finding->refs;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor = cairn_pickle_tensor_name(node, name) ? find(finding, name) : UINT32_MAX;

    if (tensor == UINT32_MAX)
        return CAIRN_NOT_FOUND;
    if (!finding->seen)
        finding->seen =
            calloc(cairn_layout_tensor_count(finding->source->layout), sizeof(*finding->seen));
    if (!finding->seen)
        return CAIRN_NOMEM;
    if (finding->seen[tensor])
        return CAIRN_OK;
    finding->seen[tensor] = true;
    if (!cairn_array_grow(&refs->tensors, refs->count, sizeof(*refs->tensors)))
        return CAIRN_NOMEM;
    refs->tensors[refs->count++] = tensor;
    return CAIRN_OK;
}

cairn_err
cairn_torch_refs_find(const struct cairn_checkpoint *source,
                      const struct cairn_output_options *options, const struct cairn_pickle *tree,
                      const struct cairn_pickle_node *root, struct cairn_torch_refs *refs)
{
    struct finding finding = {.source = source, .options = options, .refs = refs};
    cairn_err err;

    memset(refs, 0, sizeof(*refs));
    err = cairn_torch_visit_persistent(tree, root, note, &finding);
    free(finding.seen);
    return err;
}

void
cairn_torch_refs_fini(struct cairn_torch_refs *refs)
{
    free(refs->tensors);
    memset(refs, 0, sizeof(*refs));
}

static cairn_err
resolve(void *context, const char *word, const char *name, struct cairn_torch_filling *out)
{
    struct finding *finding = context;
    uint32_t tensor = strcmp(word, "tensor") == 0 ? find(finding, name) : UINT32_MAX;
    const struct cairn_tensor *known;

    if (tensor == UINT32_MAX)
        return cairn_refuse(finding->source, CAIRN_NOT_FOUND,
                            "its state names %s %s, which is missing; was it dropped?", word, name);
    known = cairn_layout_tensor(finding->source->layout, tensor);
    out->dtype = cairn_torch_dtype_of(cairn_output_dtype(finding->options, known));
    out->dims = known->dims;
    memcpy(out->shape, known->shape, sizeof(out->shape));
    out->identity = tensor;
    return CAIRN_OK;
}

cairn_err
cairn_torch_refs_plan(const struct cairn_checkpoint *source,
                      const struct cairn_output_options *options,
                      const struct cairn_torch_builder *builder, struct cairn_pickle *tree,
                      struct cairn_pickle_node *root, const char *path,
                      struct cairn_torch_output *out)
{
    struct finding finding = {.source = source, .options = options};
    struct cairn_torch_fill fill = {.tree = tree,
                                    .root = root,
                                    .identity_count = cairn_layout_tensor_count(source->layout),
                                    .resolve = resolve,
                                    .context = &finding,
                                    .complaint = source->complaint,
                                    .builder = builder};

    return cairn_torch_output_plan(out, path, &fill);
}

cairn_err
cairn_torch_refs_place(const struct cairn_checkpoint *source,
                       const struct cairn_output_options *options, struct cairn_output *output,
                       struct cairn_torch_output *added, uint32_t file, uint64_t begin)
{
    cairn_err err = cairn_torch_output_place(output, added, file, begin);

    for (uint32_t i = 0; i < added->storage_count && !err; i++) {
        const struct cairn_tensor *tensor =
            cairn_layout_tensor(source->layout, added->storages[i].identity);

        err =
            cairn_output_add_whole(output, options, tensor, file, cairn_torch_output_at(added, i));
    }
    return err;
}

cairn_err
cairn_torch_refs_add(const struct cairn_checkpoint *source,
                     const struct cairn_output_options *options,
                     const struct cairn_torch_builder *builder, struct cairn_pickle *tree,
                     struct cairn_pickle_node *root, struct cairn_output *output, const char *path,
                     struct cairn_torch_output *out)
{
    uint32_t file = 0;
    cairn_err err = cairn_torch_refs_plan(source, options, builder, tree, root, path, out);

    if (!err)
        err = cairn_output_add_file(output, path, &file);
    if (err)
        return err;
    cairn_output_set_bytes(output, file, cairn_zip_plan_bytes(&out->plan.zip));
    return cairn_torch_refs_place(source, options, output, out, file, 0);
}
