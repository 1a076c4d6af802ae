/*
 * tools/convert/torch/tree.c - the calls with which torch.save writes tensors:
 *
 *   _rebuild_tensor(storage, offset, size, stride)
 *       before 0.4
 *   _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks[, {'conj': …,
 *                      'neg': …}])
 *   _rebuild_tensor_v3(…, requires_grad, hooks, dtype[, {…}])
 *       over untyped storages
 *   _rebuild_parameter(tensor, requires_grad, hooks)
 *   _rebuild_parameter_with_state(…, state)
 *   _rebuild_from_type_v2(function, type, arguments of the type, attributes)
 *       with attributes
 *
 * The last is in torch._tensor, all others in torch._utils.
 */
#include "tools/convert/torch/tree.h"

#include <string.h>

#include "snapshot/box.h"

enum { REBUILD_NONE, REBUILD_V1, REBUILD_V2, REBUILD_V3, REBUILD_PARAMETER };

static int
rebuild_kind(const struct cairn_pickle_node *callable)
{
    static const struct {
        const char *name;
        int kind;
    } rebuilds[] = {{"_rebuild_tensor_v2", REBUILD_V2},
                    {"_rebuild_tensor_v3", REBUILD_V3},
                    {"_rebuild_tensor", REBUILD_V1},
                    {"_rebuild_parameter", REBUILD_PARAMETER},
                    {"_rebuild_parameter_with_state", REBUILD_PARAMETER}};

    for (size_t i = 0; i < sizeof(rebuilds) / sizeof(rebuilds[0]); i++)
        if (cairn_pickle_is_global(callable, "torch._utils", rebuilds[i].name))
            return rebuilds[i].kind;
    return REBUILD_NONE;
}

/* What is called with what, past _rebuild_from_type_v2. */
static int
unwrap(const struct cairn_pickle_node *node, const struct cairn_pickle_node **args)
{
    const struct cairn_pickle_node *callable;

    if (!node || node->kind != CAIRN_PICKLE_OBJECT || node->object->call != CAIRN_PICKLE_REDUCE)
        return REBUILD_NONE;
    callable = node->object->callable;
    *args = node->object->args;
    if (cairn_pickle_is_global(callable, "torch._tensor", "_rebuild_from_type_v2")) {
        callable = cairn_pickle_arg(node, 0);
        *args = cairn_pickle_arg(node, 2);
    }
    if (!*args || (*args)->kind != CAIRN_PICKLE_TUPLE)
        return REBUILD_NONE;
    return rebuild_kind(callable);
}

bool
cairn_torch_is_tensor(const struct cairn_pickle_node *node)
{
    const struct cairn_pickle_node *args;
    int kind = unwrap(node, &args);

    if (kind == REBUILD_PARAMETER)
        return args->count > 0 && unwrap(args->items[0], &args) != REBUILD_NONE;
    return kind != REBUILD_NONE;
}

const struct cairn_pickle_node *
cairn_torch_attributes(const struct cairn_pickle_node *node)
{
    if (cairn_pickle_is_call(node, "torch._tensor", "_rebuild_from_type_v2"))
        return cairn_pickle_arg(node, 3);
    if (cairn_pickle_is_call(node, "torch._utils", "_rebuild_parameter_with_state"))
        return cairn_pickle_arg(node, 3);
    return NULL;
}

const struct cairn_torch_dtype *
cairn_torch_read_dtype(const struct cairn_pickle_node *node)
{
    if (!node || node->kind != CAIRN_PICKLE_GLOBAL || strcmp(node->global->module, "torch") != 0)
        return NULL;
    return cairn_torch_dtype_named(node->global->name);
}

bool
cairn_torch_read_size(const struct cairn_pickle_node *node, uint64_t extents[CAIRN_DIMS_MAX],
                      uint32_t *dims)
{
    if (cairn_pickle_is_call(node, "torch", "Size"))
        node = cairn_pickle_arg(node, 0);
    if (!node || (node->kind != CAIRN_PICKLE_TUPLE && node->kind != CAIRN_PICKLE_LIST) ||
        node->count > CAIRN_DIMS_MAX)
        return false;
    for (uint32_t d = 0; d < node->count; d++)
        if (!cairn_pickle_u64(node->items[d], &extents[d]))
            return false;
    *dims = node->count;
    return true;
}

static const char *
read_arguments(const struct cairn_pickle_node *args, int kind, struct cairn_torch_view *view,
               struct cairn_torch_storage_id *id)
{
    uint32_t needed = kind == REBUILD_V1 ? 4 : kind == REBUILD_V2 ? 6 : 7;
    const struct cairn_pickle_node *metadata = NULL;
    const char *why;
    uint32_t stride_dims;

    if (args->count < needed)
        return "it has too few arguments";
    why = cairn_torch_read_storage(args->items[0], id);
    if (why)
        return why;
    view->storage = args->items[0];
    view->dtype = id->dtype ? id->dtype : cairn_torch_dtype_named("uint8");
    if (!cairn_pickle_u64(args->items[1], &view->offset))
        return "its offset is not a number";
    if (args->items[2]->kind == CAIRN_PICKLE_TUPLE && args->items[2]->count > CAIRN_DIMS_MAX)
        return "it has more than 8 dimensions";
    if (!cairn_torch_read_size(args->items[2], view->shape, &view->dims) ||
        !cairn_torch_read_size(args->items[3], view->stride, &stride_dims) ||
        view->dims != stride_dims)
        return "its size and strides have different lengths";
    if (kind != REBUILD_V1)
        view->requires_grad = cairn_pickle_is_true(args->items[4]);
    if (kind == REBUILD_V3)
        view->dtype = cairn_torch_read_dtype(args->items[6]);
    if (!view->dtype)
        return "its dtype is not known";
    if (kind != REBUILD_V1 && args->count > needed)
        metadata = args->items[needed];
    view->conjugate = cairn_pickle_is_true(cairn_pickle_get(metadata, "conj"));
    view->negate = cairn_pickle_is_true(cairn_pickle_get(metadata, "neg"));
    return NULL;
}

/* shape * stride reaches no further than the storage. */
static const char *
check_bounds(const struct cairn_torch_view *view, uint64_t storage_bytes)
{
    uint64_t room = storage_bytes / view->dtype->element_bytes, last = view->offset, span;
    uint64_t elements;

    for (uint32_t d = 0; d < view->dims; d++)
        if (view->shape[d] == 0)
            return NULL;
    if (!cairn_shape_bounded(view->dims, view->shape,
                             (uint64_t)INT64_MAX / view->dtype->element_bytes, &elements))
        return "it has too many elements";
    for (uint32_t d = 0; d < view->dims; d++)
        if (__builtin_mul_overflow(view->shape[d] - 1, view->stride[d], &span) ||
            __builtin_add_overflow(last, span, &last))
            return "it reaches past the end of its storage";
    return last < room ? NULL : "it reaches past the end of its storage";
}

const char *
cairn_torch_read_view(const struct cairn_pickle_node *node, struct cairn_torch_view *view)
{
    const struct cairn_pickle_node *args;
    struct cairn_torch_storage_id id = {0};
    struct cairn_torch_view found = {0};
    int kind = unwrap(node, &args);
    bool requires_grad = false;
    const char *why;

    if (kind == REBUILD_PARAMETER) {
        const struct cairn_pickle_node *outer = args;

        if (outer->count < 3)
            return "it has too few arguments";
        kind = unwrap(outer->items[0], &args);
        if (kind == REBUILD_PARAMETER)
            return "it is a parameter of a parameter";
        found.parameter = true;
        requires_grad = cairn_pickle_is_true(outer->items[1]);
    }
    if (kind == REBUILD_NONE)
        return "it is not a tensor";
    why = read_arguments(args, kind, &found, &id);
    if (found.parameter)
        found.requires_grad = requires_grad; /* its tensor's own says nothing */
    if (!why)
        why = check_bounds(&found, id.bytes);
    if (!why)
        *view = found;
    return why;
}

const char *
cairn_torch_read_storage(const struct cairn_pickle_node *node, struct cairn_torch_storage_id *id)
{
    struct cairn_torch_storage_id found = {0};
    const struct cairn_pickle_node *tuple, *class;
    size_t element_bytes = 1;

    if (!node || node->kind != CAIRN_PICKLE_PERSISTENT)
        return "it has no storage";
    tuple = node->items[0];
    if (tuple->kind != CAIRN_PICKLE_TUPLE || tuple->count < 5 || tuple->count > 6 ||
        !cairn_pickle_is_text(tuple->items[0], "storage"))
        return "its storage is of a kind that torch.save does not write";
    class = tuple->items[1];
    if (class->kind != CAIRN_PICKLE_GLOBAL)
        return "the class of its storage has no name";
    if (strcmp(class->global->name, "UntypedStorage") != 0) {
        found.dtype = cairn_torch_dtype_of_storage(class->global->name);
        if (!found.dtype)
            return "the class of its storage is not known";
        element_bytes = found.dtype->element_bytes;
    }
    if (!cairn_pickle_copy_text(tuple->items[2], found.key, sizeof(found.key)) || !found.key[0])
        return "its storage has no key";
    if (!cairn_pickle_u64(tuple->items[4], &found.count) ||
        __builtin_mul_overflow(found.count, element_bytes, &found.bytes) || found.bytes > INT64_MAX)
        return "its storage has no size";
    if (tuple->count == 6 && tuple->items[5]->kind != CAIRN_PICKLE_NONE)
        return "its storage is a view of another one, which only PyTorch before 0.4 wrote; load "
               "and save it with PyTorch";
    *id = found;
    return NULL;
}

/* ---- building ---- */

void
cairn_torch_builder_init(struct cairn_torch_builder *builder, struct cairn_pickle *pickle)
{
    memset(builder, 0, sizeof(*builder));
    builder->pickle = pickle;
}

static struct cairn_pickle_node *
global_once(struct cairn_torch_builder *builder, struct cairn_pickle_node **slot,
            const char *module, const char *name)
{
    if (!*slot)
        *slot = cairn_pickle_global(builder->pickle, module, name);
    return *slot;
}

static struct cairn_pickle_node *
text_once(struct cairn_torch_builder *builder, struct cairn_pickle_node **slot, const char *text)
{
    if (!*slot)
        *slot = cairn_pickle_text(builder->pickle, text);
    return *slot;
}

static struct cairn_pickle_node *
tuple_of(struct cairn_torch_builder *builder, struct cairn_pickle_node *const items[], size_t count)
{
    return cairn_pickle_sequence(builder->pickle, CAIRN_PICKLE_TUPLE, items, count);
}

struct cairn_pickle_node *
cairn_torch_ordered_dict(struct cairn_torch_builder *builder)
{
    struct cairn_pickle_node *class =
        global_once(builder, &builder->ordered_dict, "collections", "OrderedDict");

    return cairn_pickle_object(builder->pickle, CAIRN_PICKLE_REDUCE, class,
                               tuple_of(builder, NULL, 0));
}

static struct cairn_pickle_node *
extents_tuple(struct cairn_torch_builder *builder, const uint64_t *extents, uint32_t dims)
{
    struct cairn_pickle_node *items[CAIRN_DIMS_MAX];

    for (uint32_t d = 0; d < dims && d < CAIRN_DIMS_MAX; d++)
        items[d] = cairn_pickle_int(builder->pickle, (int64_t)extents[d]);
    return tuple_of(builder, items, dims < CAIRN_DIMS_MAX ? dims : CAIRN_DIMS_MAX);
}

struct cairn_pickle_node *
cairn_torch_size(struct cairn_torch_builder *builder, const uint64_t *extents, uint32_t dims)
{
    struct cairn_pickle_node *class = global_once(builder, &builder->size, "torch", "Size");
    struct cairn_pickle_node *tuple = extents_tuple(builder, extents, dims);

    return cairn_pickle_object(builder->pickle, CAIRN_PICKLE_REDUCE, class,
                               tuple_of(builder, &tuple, 1));
}

/* Where the nodes of a dtype are kept, or NULL: there are more dtypes than are known. */
static struct cairn_pickle_node **
type_slot(struct cairn_torch_builder *builder, const struct cairn_torch_dtype *dtype, bool class)
{
    for (size_t i = 0; i < CAIRN_TORCH_DTYPES_MAX; i++) {
        if (!builder->types[i].of)
            builder->types[i].of = dtype;
        if (builder->types[i].of == dtype)
            return class ? &builder->types[i].class : &builder->types[i].dtype;
    }
    return NULL;
}

struct cairn_pickle_node *
cairn_torch_dtype_node(struct cairn_torch_builder *builder, const struct cairn_torch_dtype *dtype)
{
    struct cairn_pickle_node **slot = type_slot(builder, dtype, false);

    return slot ? global_once(builder, slot, "torch", dtype->name)
                : cairn_pickle_global(builder->pickle, "torch", dtype->name);
}

struct cairn_pickle_node *
cairn_torch_storage(struct cairn_torch_builder *builder, const struct cairn_torch_dtype *dtype,
                    const char *key, uint64_t bytes)
{
    struct cairn_pickle_node *items[5];

    items[0] = text_once(builder, &builder->storage_word, "storage");
    if (!dtype->storage_class) {
        items[1] = global_once(builder, &builder->untyped, "torch.storage", "UntypedStorage");
    } else {
        struct cairn_pickle_node **slot = type_slot(builder, dtype, true);

        items[1] = slot ? global_once(builder, slot, "torch", dtype->storage_class)
                        : cairn_pickle_global(builder->pickle, "torch", dtype->storage_class);
        bytes /= dtype->element_bytes;
    }
    items[2] = cairn_pickle_text(builder->pickle, key);
    items[3] = text_once(builder, &builder->cpu, "cpu");
    items[4] = cairn_pickle_int(builder->pickle, (int64_t)bytes);
    return cairn_pickle_persistent(builder->pickle, tuple_of(builder, items, 5));
}

static struct cairn_pickle_node *
parameter_of(struct cairn_torch_builder *builder, struct cairn_pickle_node *tensor,
             bool requires_grad)
{
    struct cairn_pickle_node *items[3];

    items[0] = tensor;
    items[1] = cairn_pickle_bool(builder->pickle, requires_grad);
    items[2] = cairn_torch_ordered_dict(builder);
    return cairn_pickle_object(
        builder->pickle, CAIRN_PICKLE_REDUCE,
        cairn_pickle_global(builder->pickle, "torch._utils", "_rebuild_parameter"),
        tuple_of(builder, items, 3));
}

struct cairn_pickle_node *
cairn_torch_tensor_node(struct cairn_torch_builder *builder, struct cairn_pickle_node *storage,
                        const struct cairn_torch_view *view)
{
    bool typed = view->dtype->storage_class != NULL;
    struct cairn_pickle_node *items[7], *callable, *tensor;

    callable =
        typed ? global_once(builder, &builder->rebuild_v2, "torch._utils", "_rebuild_tensor_v2")
              : global_once(builder, &builder->rebuild_v3, "torch._utils", "_rebuild_tensor_v3");
    items[0] = storage;
    items[1] = cairn_pickle_int(builder->pickle, (int64_t)view->offset);
    items[2] = extents_tuple(builder, view->shape, view->dims);
    items[3] = extents_tuple(builder, view->stride, view->dims);
    items[4] = cairn_pickle_bool(builder->pickle, view->requires_grad && !view->parameter);
    items[5] = cairn_torch_ordered_dict(builder);
    items[6] = typed ? NULL : cairn_torch_dtype_node(builder, view->dtype);
    tensor = cairn_pickle_object(builder->pickle, CAIRN_PICKLE_REDUCE, callable,
                                 tuple_of(builder, items, typed ? 6 : 7));
    return view->parameter ? parameter_of(builder, tensor, view->requires_grad) : tensor;
}

void
cairn_torch_view_strides(const struct cairn_torch_view *view, uint64_t strides[CAIRN_DIMS_MAX])
{
    for (uint32_t d = 0; d < view->dims; d++)
        strides[d] = view->stride[d] * view->dtype->element_bytes;
}
