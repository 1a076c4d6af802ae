/*
 * tools/convert/torch/refs.h - opaque state that names tensors, as objects of torch.save: the
 * persistent ids ("tensor", name) of a tree (core/checkpoint.h) become tensors over storages of
 * their own.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_REFS_H
#define CAIRN_TOOLS_CONVERT_TORCH_REFS_H

#include "tools/convert/torch/output.h"

/* The tensors that a tree names, each once, in the order in which torch.save visits them. An alias
 * counts as what it is an alias of: the two then share a storage. */
struct cairn_torch_refs {
    uint32_t *tensors; /* indexes in the source's layout */
    uint32_t count;
};

/* Finds them below `root`; aliases of one dtype (`options`) count as their original.
 * CAIRN_NOT_FOUND: a persistent id is of another kind, or names no tensor; CAIRN_CORRUPT: the tree
 * is too deep; CAIRN_NOMEM. The caller ends *refs in any case. */
CAIRN_MUST_CHECK cairn_err cairn_torch_refs_find(const struct cairn_checkpoint *source,
                                                 const struct cairn_output_options *options,
                                                 const struct cairn_pickle *tree,
                                                 const struct cairn_pickle_node *root,
                                                 struct cairn_torch_refs *refs);
void cairn_torch_refs_fini(struct cairn_torch_refs *refs);

/* The message for a storage that is left: the place, and what is there. */
#define CAIRN_TORCH_STORAGE_LEFT                                                                   \
    "%s: %.300s is, or holds, a tensor of a kind that is not converted (quantized, or of a class " \
    "of its own), or a bare storage; "                                                             \
    "save plain tensors, or leave it out"

/* Whether a storage is left below a node once tensors have names: of a tensor that is not read
 * (quantized, of a class of its own), or a bare one. As opaque state it would lose its bytes.
 * CAIRN_NOMEM, CAIRN_INVAL. */
CAIRN_MUST_CHECK cairn_err cairn_torch_has_storage(const struct cairn_pickle *tree,
                                                   const struct cairn_pickle_node *node,
                                                   bool *found);

/* Puts tensors in the place of the names, and lays the tree out as an archive of torch.save.
 * `builder`: NULL, or that of the tree. CAIRN_NOT_FOUND, complained about, as
 * cairn_torch_refs_find; errors of cairn_torch_output_plan. */
CAIRN_MUST_CHECK cairn_err cairn_torch_refs_plan(const struct cairn_checkpoint *source,
                                                 const struct cairn_output_options *options,
                                                 const struct cairn_torch_builder *builder,
                                                 struct cairn_pickle *tree,
                                                 struct cairn_pickle_node *root, const char *path,
                                                 struct cairn_torch_output *out);

/* The same as a file of its own, with its tensors. Errors also of cairn_output_add_file. */
CAIRN_MUST_CHECK cairn_err cairn_torch_refs_add(const struct cairn_checkpoint *source,
                                                const struct cairn_output_options *options,
                                                const struct cairn_torch_builder *builder,
                                                struct cairn_pickle *tree,
                                                struct cairn_pickle_node *root,
                                                struct cairn_output *output, const char *path,
                                                struct cairn_torch_output *out);

/* Gives such an archive its place, and with it the tensors that lie in it, whole. */
CAIRN_MUST_CHECK cairn_err cairn_torch_refs_place(const struct cairn_checkpoint *source,
                                                  const struct cairn_output_options *options,
                                                  struct cairn_output *output,
                                                  struct cairn_torch_output *added, uint32_t file,
                                                  uint64_t begin);

#endif
