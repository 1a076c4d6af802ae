/*
 * tools/convert/torch/carry.h - what torch.save wrote beside tensors, carried as inert data.
 *
 * A tree is carried as one pickle in which each tensor stands as the persistent id (word, name):
 * ("tensor", name) is the tensor of that name in the layout. A format has words of its own for what
 * it makes itself, such as a rank's flat buffers. Filling turns the ids of a carried tree into
 * tensors over new storages, so that torch.load reads it.
 *
 * What a format has no place for lies under a key of its own in such an object: {"opaque": {name:
 * bytes as a tensor}, "buffer": {name: tensor}, "optimizer": …, "param": …}.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_CARRY_H
#define CAIRN_TOOLS_CONVERT_TORCH_CARRY_H

#include "base/complaint.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/torch/tree.h"
#include "tools/convert/torch/write.h"

struct cairn_torch_source;

/* Called for each persistent id below a root once; may change the node. */
typedef cairn_err cairn_torch_visit_fn(void *context, struct cairn_pickle_node *node);

/* CAIRN_CORRUPT: the tree is too deep; CAIRN_NOMEM; the errors of `visit`. What a visit puts in the
 * place of a node is not visited. */
CAIRN_MUST_CHECK cairn_err cairn_torch_visit_persistent(const struct cairn_pickle *tree,
                                                        const struct cairn_pickle_node *root,
                                                        cairn_torch_visit_fn *visit, void *context);

/* Puts `made` in the place of what a dict has under a text key, and removes the key where that is
 * NULL; does nothing where it has none. */
void cairn_torch_carry_replace(struct cairn_pickle_node *dict, const char *key,
                               struct cairn_pickle_node *made);

/* Turns a node into (word, name) wherever the tree holds it. Failures are the arena's. */
void cairn_torch_carry_out(struct cairn_pickle *tree, const struct cairn_pickle_node *node,
                           const char *word, const char *name);

/* What a word and a name stand for in the file that is being written. */
struct cairn_torch_filling {
    const struct cairn_torch_dtype *dtype;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
    uint32_t identity; /* tensors with equal numbers share a storage; below the caller's
                        * identity_count */
};

struct cairn_torch_fill {
    struct cairn_pickle *tree;
    struct cairn_pickle_node *root;
    uint32_t identity_count;
    /* Complains about what it does not know. */
    cairn_err (*resolve)(void *context, const char *word, const char *name,
                         struct cairn_torch_filling *out);
    void *context;
    const struct cairn_torch_builder *builder; /* of the tree; NULL: a new one */
    struct cairn_complaint *complaint;
};

/* Fills the tree; the caller frees *storages. CAIRN_CORRUPT for an id of another kind, CAIRN_NOMEM,
 * the errors of resolve; the tree is of no use then. */
CAIRN_MUST_CHECK cairn_err cairn_torch_carry_fill(const struct cairn_torch_fill *fill,
                                                  struct cairn_torch_filled **storages,
                                                  uint32_t *storage_count);

/* Adds a tensor of the source to *carried, which is NULL at first. Failures are the tree's. */
void cairn_torch_carried_put(struct cairn_pickle *tree, struct cairn_pickle_node **carried,
                             const struct cairn_tensor *tensor);

/* Adds what lies under `key` in a file to the checkpoint. CAIRN_CORRUPT, also for opaque state for
 * which `is_own` (NULL: none) is true; errors of cairn_torch_source_add; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_torch_carried_take(struct cairn_checkpoint *checkpoint,
                                                    struct cairn_torch_source *source,
                                                    const char *key,
                                                    bool (*is_own)(const char *name));

#endif
