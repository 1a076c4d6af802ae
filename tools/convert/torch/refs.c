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
    uint32_t *same_as; /* of a tensor: what it is an alias of and written as, or itself; NULL until
                        * the tree names a tensor, since most objects name none */
    bool *seen;        /* [tensors], as same_as */
    struct cairn_torch_refs *refs;
};

/* A parameter that is cast is no longer its master, which is not. */
static bool
is_written_alike(const struct cairn_checkpoint *source, const struct cairn_output_options *options,
                 const struct cairn_alias *alias)
{
    return cairn_output_dtype(options, cairn_layout_tensor(source->layout, alias->tensor)) ==
           cairn_output_dtype(options, cairn_layout_tensor(source->layout, alias->of));
}

/* Makes the tables, once. CAIRN_NOMEM. */
static cairn_err
make_tables(struct finding *finding)
{
    const struct cairn_checkpoint *source = finding->source;
    uint32_t count = cairn_layout_tensor_count(source->layout);

    if (finding->seen)
        return CAIRN_OK;
    free(finding->same_as);
    finding->same_as = calloc((size_t)count + 1, sizeof(*finding->same_as));
    finding->seen = calloc((size_t)count + 1, sizeof(*finding->seen));
    if (!finding->same_as || !finding->seen)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < count; i++)
        finding->same_as[i] = i;
    for (uint32_t i = 0; i < source->alias_count; i++)
        if (is_written_alike(source, finding->options, &source->aliases[i]))
            finding->same_as[source->aliases[i].tensor] = source->aliases[i].of;
    return CAIRN_OK;
}

static void
finding_fini(struct finding *finding)
{
    free(finding->same_as);
    free(finding->seen);
}

/* The tensor of a name. CAIRN_NOT_FOUND, CAIRN_NOMEM. */
static cairn_err
find(struct finding *finding, const char *name, uint32_t *tensor)
{
    uint32_t found = cairn_layout_tensor_find(finding->source->layout, name);
    cairn_err err;

    if (found == UINT32_MAX ||
        cairn_layout_tensor(finding->source->layout, found)->kind == CAIRN_OPAQUE)
        return CAIRN_NOT_FOUND;
    err = make_tables(finding);
    if (!err)
        *tensor = finding->same_as[found];
    return err;
}

static cairn_err
note(void *context, struct cairn_pickle_node *node)
{
    struct finding *finding = context;
    struct cairn_torch_refs *refs = finding->refs;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor;
    cairn_err err = CAIRN_NOT_FOUND;

    if (cairn_pickle_tensor_name(node, name))
        err = find(finding, name, &tensor);
    if (err)
        return err;
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
    finding_fini(&finding);
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
    uint32_t tensor;
    const struct cairn_tensor *known;
    cairn_err err = strcmp(word, "tensor") == 0 ? find(finding, name, &tensor) : CAIRN_NOT_FOUND;

    if (err == CAIRN_NOT_FOUND)
        return cairn_refuse(finding->source, CAIRN_NOT_FOUND,
                            "its state names %s %s, which is missing; was it dropped?", word, name);
    if (err)
        return err;
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
                      struct cairn_pickle_node *root, const char *folder,
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
    cairn_err err = cairn_torch_output_plan(out, folder, &fill);

    finding_fini(&finding);
    return err;
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
