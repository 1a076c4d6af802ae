/*
 * tools/convert/torch/state.h - a state dict of torch.save, flattened: its leaves with the keys
 * that lead to them, and the places in the tree where they hang.
 *
 * As torch.distributed.checkpoint does it: dicts are followed by their keys; a list is followed by
 * index where it holds, at any depth, a tensor or a dict; all else is a leaf.
 *
 * The tree without its leaves is kept as the opaque state "torch/tree.pickle", in which a tensor is
 * the persistent id ("tensor", name) and other leaves are ("opaque", name), or ("carried", name)
 * for opaque state that the file holds as bytes: so the file can be written again with the same
 * containers, keys and order.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_STATE_H
#define CAIRN_TOOLS_CONVERT_TORCH_STATE_H

#include "tools/convert/core/output.h"
#include "tools/convert/state/names.h"
#include "tools/convert/state/reserved.h"
#include "tools/convert/torch/file.h"

/* In the dict CAIRN_CARRIED_KEY of a file made for another format's checkpoint: the names of the
 * optimizer's parameters by number, if the model and the groups do not tell them. */
#define CAIRN_TORCH_PARAMETERS "parameters"

enum {
    CAIRN_TORCH_OBJECT_BYTES_MAX = 1 << 28, /* of the pickle of one leaf */
    CAIRN_TORCH_LEAVES_MAX = 1 << 24
};

struct cairn_torch_leaf {
    const struct cairn_state_key *keys; /* [key_count]; in the file's own arena */
    uint32_t key_count;
    bool groups;        /* no leaf: the list called "param_groups" */
    uint32_t group_end; /* of such a list: its leaves follow it, up to here */
    struct cairn_pickle_node *node;
    struct cairn_pickle_node **slot; /* what holds it */
};

struct cairn_torch_leaves {
    struct cairn_torch_leaf *leaves;
    uint32_t count;
    struct cairn_state_path refused; /* of CAIRN_INVAL: what holds the key */
};

/* Lists the leaves of an open file in their order. CAIRN_CORRUPT: too many; CAIRN_INVAL: a key is
 * not UTF-8 or holds a NUL, in leaves->refused; CAIRN_NOMEM. The caller ends *leaves with
 * cairn_torch_leaves_fini, also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_torch_leaves_list(struct cairn_torch_file *file,
                                                   struct cairn_torch_leaves *leaves);
/* The same of a kept tree ("torch/tree.pickle"): the leaves are persistent ids. `bytes` outlive
 * *file, which the caller ends with cairn_torch_close. The errors of cairn_pickle_read too. */
CAIRN_MUST_CHECK cairn_err cairn_torch_leaves_of_kept(const uint8_t *bytes, size_t bytes_len,
                                                      struct cairn_torch_file *file,
                                                      struct cairn_torch_leaves *leaves);
void cairn_torch_leaves_fini(struct cairn_torch_leaves *leaves);

struct cairn_state_path cairn_torch_leaf_path(const struct cairn_torch_leaf *leaf);

/* ---- writing: torch/plan.c ---- */

cairn_err cairn_torch_format_prepare(struct cairn_checkpoint *checkpoint,
                                     const struct cairn_output_options *options);
cairn_err cairn_torch_format_plan(const struct cairn_checkpoint *checkpoint,
                                  const struct cairn_output_options *options,
                                  struct cairn_output *output);

#endif
