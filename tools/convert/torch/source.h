/*
 * tools/convert/torch/source.h - a file of torch.save among the containers of a checkpoint: its
 * tensors are given names in the layout, and what is left of its object is carried along.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_SOURCE_H
#define CAIRN_TOOLS_CONVERT_TORCH_SOURCE_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/torch/file.h"

/* All zero is the empty value. */
struct cairn_torch_source {
    const char *path; /* borrowed */
    uint32_t container;
    struct cairn_torch_file torch;
    uint32_t *tensor_of; /* [node_count when it was read], by the node's index: which tensor + 1 */
    uint32_t node_count;
};

/* Adds a tensor of an archive in a container, as it is stored. Errors of adding a piece. */
CAIRN_MUST_CHECK cairn_err cairn_torch_add_view(struct cairn_checkpoint *checkpoint,
                                                uint32_t container,
                                                const struct cairn_torch_tensor *tensor,
                                                const char *name, enum cairn_kind kind,
                                                uint32_t *index);

/* Complains, CAIRN_INVAL, where a tensor's elements are not what is stored, or of no dtype here. */
CAIRN_MUST_CHECK cairn_err cairn_torch_check_view(const struct cairn_checkpoint *checkpoint,
                                                  const struct cairn_torch_tensor *tensor,
                                                  const char *name);

/* Opens an archive at [begin, begin + bytes) of an open file, which is container out->container.
 * `where` names it in messages. Errors of cairn_torch_open, complained about; *out is for the
 * caller to end in any case. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_read(struct cairn_checkpoint *checkpoint, int fd,
                                                   const char *where, uint64_t begin,
                                                   uint64_t bytes, struct cairn_torch_source *out);

/* Opens a file of the place ("": the place itself). Errors of cairn_checkpoint_add_file and
 * cairn_torch_open, complained about; the caller ends *out in any case. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_open(struct cairn_checkpoint *checkpoint,
                                                   const char *path,
                                                   struct cairn_torch_source *out);
void cairn_torch_source_close(struct cairn_torch_source *source);

/* The tensor that a node of the tree is; NULL if it is none, or was carried out. */
const struct cairn_torch_tensor *cairn_torch_source_tensor(const struct cairn_torch_source *source,
                                                           const struct cairn_pickle_node *node);

/* The tensor under a name of the layout, whole, and ("tensor", name) in its place in the tree.
 * The errors of cairn_torch_check_view and of adding a piece. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_add(struct cairn_checkpoint *checkpoint,
                                                  struct cairn_torch_source *source,
                                                  const struct cairn_torch_tensor *tensor,
                                                  const char *name, enum cairn_kind kind);

/* Reads all of a contiguous tensor's bytes, at most `room`. CAIRN_INVAL where it has more,
 * CAIRN_CORRUPT where the file has fewer; errors of reading. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_load(const struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_torch_source *source,
                                                   const struct cairn_torch_tensor *tensor,
                                                   void *bytes, size_t room);

/* Adds the tensors that are still in the tree as `scope` and their paths, and gives the pickle of
 * the rest; the caller frees *bytes. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_carry(struct cairn_checkpoint *checkpoint,
                                                    struct cairn_torch_source *source,
                                                    const char *scope, uint8_t **bytes,
                                                    size_t *bytes_len);
/* The same with the rest as the opaque state `name`. */
CAIRN_MUST_CHECK cairn_err cairn_torch_source_carry_as(struct cairn_checkpoint *checkpoint,
                                                       struct cairn_torch_source *source,
                                                       const char *scope, const char *name);

#endif
