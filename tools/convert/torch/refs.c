/* tools/convert/torch/refs.c - see torch/refs.h. */
#include "tools/convert/torch/refs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/parts.h"

/* One step of the walk down: a node, and which way down it is taken next. */
struct step {
    const struct cairn_pickle_node *node;
    uint64_t slot;
};

cairn_err
cairn_torch_visit_persistent(const struct cairn_pickle *tree, const struct cairn_pickle_node *root,
                             cairn_torch_visit_fn *visit, void *context)
{
    struct step *steps = calloc(CAIRN_PICKLE_DEPTH_MAX, sizeof(*steps));
    uint32_t node_count = tree->node_count; /* what a visit makes is not visited */
    uint8_t *seen = calloc((size_t)node_count + 1, 1);
    struct cairn_torch_child child;
    size_t depth = 0;
    cairn_err err = steps && seen ? CAIRN_OK : CAIRN_NOMEM;

    if (!err && root->kind == CAIRN_PICKLE_PERSISTENT)
        err = visit(context, root);
    else if (!err)
        steps[depth++] = (struct step){root, 0};
    while (depth > 0 && !err) {
        struct step *step = &steps[depth - 1];

        if (!cairn_torch_next_child(step->node, &step->slot, &child)) {
            depth--;
            continue;
        }
        step->slot++;
        if (!child.node || child.node->index >= node_count || seen[child.node->index])
            continue;
        seen[child.node->index] = 1;
        if (child.node->kind == CAIRN_PICKLE_PERSISTENT)
            err = visit(context, child.node);
        else if (depth == CAIRN_PICKLE_DEPTH_MAX)
            err = CAIRN_INVAL;
        else
            steps[depth++] = (struct step){child.node, 0};
    }
    free(steps);
    free(seen);
    return err;
}

/* ---- finding ---- */

/* ---- storages that are left ---- */

static cairn_err
note_storage(void *context, const struct cairn_pickle_node *node)
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

struct finding {
    const struct cairn_layout *layout;
    uint32_t *same_as; /* of a tensor: what it is an alias of and written as, or itself */
    uint32_t *numbers; /* of a tensor: 1 + its place in refs->tensors; 0: it is not there */
    struct cairn_torch_refs *refs;
};

static cairn_err
make_room(struct cairn_torch_refs *refs)
{
    return cairn_array_grow(&refs->nodes, refs->node_count, sizeof(*refs->nodes)) &&
                   cairn_array_grow(&refs->node_tensors, refs->node_count,
                                    sizeof(*refs->node_tensors)) &&
                   cairn_array_grow(&refs->tensors, refs->count, sizeof(*refs->tensors))
               ? CAIRN_OK
               : CAIRN_NOMEM;
}

static cairn_err
note(void *context, const struct cairn_pickle_node *node)
{
    struct finding *finding = context;
    struct cairn_torch_refs *refs = finding->refs;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor;
    cairn_err err;

    if (!cairn_pickle_copy_text(cairn_pickle_tensor_name(node), name, sizeof(name)))
        return CAIRN_NOT_FOUND;
    tensor = cairn_layout_tensor_find(finding->layout, name);
    if (tensor == UINT32_MAX || cairn_layout_tensor(finding->layout, tensor)->kind == CAIRN_OPAQUE)
        return CAIRN_NOT_FOUND;
    tensor = finding->same_as[tensor];
    err = make_room(refs);
    if (err)
        return err;
    if (finding->numbers[tensor] == 0) {
        refs->tensors[refs->count++] = tensor;
        finding->numbers[tensor] = refs->count;
    }
    refs->node_tensors[refs->node_count] = finding->numbers[tensor] - 1;
    refs->nodes[refs->node_count++] = node;
    return CAIRN_OK;
}

/* A parameter that is cast is no longer its master, which is not. */
static bool
is_written_alike(const struct cairn_checkpoint *source, const struct cairn_output_options *options,
                 const struct cairn_alias *alias)
{
    return cairn_output_dtype(options, cairn_layout_tensor(source->layout, alias->tensor)) ==
           cairn_output_dtype(options, cairn_layout_tensor(source->layout, alias->of));
}

cairn_err
cairn_torch_refs_find(const struct cairn_checkpoint *source,
                      const struct cairn_output_options *options, const struct cairn_pickle *tree,
                      const struct cairn_pickle_node *root, struct cairn_torch_refs *refs)
{
    uint32_t count = cairn_layout_tensor_count(source->layout);
    struct finding finding = {.layout = source->layout, .refs = refs};
    cairn_err err = CAIRN_NOMEM;

    memset(refs, 0, sizeof(*refs));
    finding.same_as = calloc((size_t)count + 1, sizeof(*finding.same_as));
    finding.numbers = calloc((size_t)count + 1, sizeof(*finding.numbers));
    if (finding.same_as && finding.numbers) {
        for (uint32_t i = 0; i < count; i++)
            finding.same_as[i] = i;
        for (uint32_t i = 0; i < source->alias_count; i++)
            if (is_written_alike(source, options, &source->aliases[i]))
                finding.same_as[source->aliases[i].tensor] = source->aliases[i].of;
        err = cairn_torch_visit_persistent(tree, root, note, &finding);
    }
    free(finding.same_as);
    free(finding.numbers);
    return err;
}

void
cairn_torch_refs_fini(struct cairn_torch_refs *refs)
{
    free(refs->tensors);
    free(refs->nodes);
    free(refs->node_tensors);
    memset(refs, 0, sizeof(*refs));
}

static uint64_t
tensor_bytes(const struct cairn_tensor *tensor, enum cairn_dtype dtype)
{
    uint64_t bytes = cairn_dtype_bytes(dtype);

    for (uint32_t d = 0; d < tensor->dims; d++)
        bytes *= tensor->shape[d];
    return bytes;
}

static struct cairn_torch_view
whole_view(const struct cairn_tensor *tensor, enum cairn_dtype dtype)
{
    struct cairn_torch_view view = {.dtype = cairn_torch_dtype_of(dtype), .dims = tensor->dims};
    uint64_t stride = 1;

    for (uint32_t d = tensor->dims; d-- > 0;) {
        view.shape[d] = tensor->shape[d];
        view.stride[d] = stride;
        stride *= tensor->shape[d] > 0 ? tensor->shape[d] : 1;
    }
    return view;
}

/* A tensor over a storage of its own; `key` is the text node of the storage's key, once there is
 * one. */
static struct cairn_pickle_node *
make_tensor(struct cairn_torch_builder *builder, const struct cairn_torch_view *view,
            const struct cairn_torch_plan_storage *storage, struct cairn_pickle_node **key)
{
    struct cairn_pickle_node *id =
        cairn_torch_storage(builder, view->dtype, storage->key, storage->bytes);

    if (!id)
        return NULL;
    if (*key) /* torch.save has one text for a key, however many tensors share it */
        id->items[0]->items[2] = *key;
    *key = id->items[0]->items[2];
    return cairn_torch_tensor_node(builder, id, view);
}

cairn_err
cairn_torch_refs_plan(const struct cairn_layout *layout, const struct cairn_output_options *options,
                      const struct cairn_torch_refs *refs, struct cairn_torch_builder *builder,
                      const struct cairn_pickle_node *root, const char *folder,
                      struct cairn_torch_plan *plan, struct cairn_complaint *complaint)
{
    struct cairn_torch_plan_storage *storages;
    struct cairn_pickle_node **key_nodes;
    char(*keys)[16];
    cairn_err err = CAIRN_OK;

    storages = calloc((size_t)refs->count + 1, sizeof(*storages));
    key_nodes = calloc((size_t)refs->count + 1, sizeof(*key_nodes));
    keys = calloc((size_t)refs->count + 1, sizeof(*keys));
    if (!storages || !key_nodes || !keys)
        err = CAIRN_NOMEM;
    for (uint32_t i = 0; i < refs->count && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, refs->tensors[i]);

        (void)snprintf(keys[i], sizeof(keys[i]), "%u", (unsigned)i);
        storages[i] = (struct cairn_torch_plan_storage){
            keys[i], tensor_bytes(tensor, cairn_output_dtype(options, tensor))};
    }
    for (uint32_t i = 0; i < refs->node_count && !err; i++) {
        uint32_t place = refs->node_tensors[i];
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, refs->tensors[place]);
        struct cairn_torch_view view = whole_view(tensor, cairn_output_dtype(options, tensor));

        err =
            cairn_pickle_replace(builder->pickle, refs->nodes[i],
                                 make_tensor(builder, &view, &storages[place], &key_nodes[place]));
    }
    if (!err)
        err = cairn_pickle_done(builder->pickle);
    if (!err)
        err = cairn_torch_plan_init(plan, folder, builder->pickle, root, storages, refs->count,
                                    complaint);
    free(storages);
    free(key_nodes);
    free(keys);
    return err;
}
