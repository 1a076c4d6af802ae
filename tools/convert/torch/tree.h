/*
 * tools/convert/torch/tree.h - how PyTorch says tensors, storages, sizes and dtypes in a pickle:
 * telling them from the nodes of an inert tree, and building the nodes that torch.load reads.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_TREE_H
#define CAIRN_TOOLS_CONVERT_TORCH_TREE_H

#include "tools/convert/pickle/pickle.h"
#include "tools/convert/torch/dtype.h"

enum { CAIRN_TORCH_KEY_BYTES_MAX = 64, CAIRN_TORCH_DTYPES_MAX = 32 };

/* ('storage', class, key, location, count[, view]) of a persistent id. */
struct cairn_torch_storage_id {
    const struct cairn_torch_dtype *dtype; /* NULL: untyped, count is in bytes */
    char key[CAIRN_TORCH_KEY_BYTES_MAX];
    uint64_t count; /* of elements */
    uint64_t bytes;
};

/* What the arguments of a tensor's rebuilding say; strides and offset count elements. */
struct cairn_torch_view {
    const struct cairn_pickle_node *storage; /* the persistent id's node */
    const struct cairn_torch_dtype *dtype;
    uint64_t offset;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
    uint64_t stride[CAIRN_DIMS_MAX];
    bool requires_grad;
    bool parameter; /* torch.nn.Parameter */
    bool conjugate; /* the values are the complex conjugates of what is stored */
    bool negate;    /* the values are the negatives of what is stored */
};

/* Whether this call rebuilds a tensor from a storage, or a parameter from such a tensor;
 * cairn_torch_read_view tells whether rightly. */
bool cairn_torch_is_tensor(const struct cairn_pickle_node *node);
/* The attributes that a tensor was given besides; NULL. */
const struct cairn_pickle_node *cairn_torch_attributes(const struct cairn_pickle_node *node);

/* NULL, or what is wrong with the node (static); fills *view or *id only if NULL. */
const char *cairn_torch_read_view(const struct cairn_pickle_node *node,
                                  struct cairn_torch_view *view);
/* Its strides in bytes. */
void cairn_torch_view_strides(const struct cairn_torch_view *view,
                              uint64_t strides[CAIRN_DIMS_MAX]);
const char *cairn_torch_read_storage(const struct cairn_pickle_node *node,
                                     struct cairn_torch_storage_id *id);
/* The dtype that a global stands for (torch.bfloat16); NULL. */
const struct cairn_torch_dtype *cairn_torch_read_dtype(const struct cairn_pickle_node *node);
/* The extents of a torch.Size, tuple or list of at most CAIRN_DIMS_MAX numbers; false for anything
 * else. */
bool cairn_torch_read_size(const struct cairn_pickle_node *node, uint64_t extents[CAIRN_DIMS_MAX],
                           uint32_t *dims);

/* ---- building; the globals and strings that all tensors of a file share are made once ---- */

struct cairn_torch_builder {
    struct cairn_pickle *pickle;
    struct cairn_pickle_node *rebuild_v2, *rebuild_v3, *ordered_dict, *storage_word, *cpu, *size;
    struct cairn_pickle_node *untyped;
    struct {
        const struct cairn_torch_dtype *of;
        struct cairn_pickle_node *class, *dtype; /* NULL: not made yet */
    } types[CAIRN_TORCH_DTYPES_MAX];
};

/* The arena outlives the builder; failures are the arena's. */
void cairn_torch_builder_init(struct cairn_torch_builder *builder, struct cairn_pickle *pickle);

/* OrderedDict(), to which cairn_pickle_put adds. */
struct cairn_pickle_node *cairn_torch_ordered_dict(struct cairn_torch_builder *builder);
/* torch.Size(extents). */
struct cairn_pickle_node *cairn_torch_size(struct cairn_torch_builder *builder,
                                           const uint64_t *extents, uint32_t dims);
/* torch.<dtype>, such as torch.bfloat16. */
struct cairn_pickle_node *cairn_torch_dtype_node(struct cairn_torch_builder *builder,
                                                 const struct cairn_torch_dtype *dtype);
/* A storage of `bytes` bytes under `key`, on the CPU; tensors that share bytes share its key. */
struct cairn_pickle_node *cairn_torch_storage(struct cairn_torch_builder *builder,
                                              const struct cairn_torch_dtype *dtype,
                                              const char *key, uint64_t bytes);
/* A tensor over a storage of its dtype; ignores view->storage, conjugate and negate;
 * view->parameter makes it a torch.nn.Parameter. */
struct cairn_pickle_node *cairn_torch_tensor_node(struct cairn_torch_builder *builder,
                                                  struct cairn_pickle_node *storage,
                                                  const struct cairn_torch_view *view);

#endif
