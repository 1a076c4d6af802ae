/*
 * tools/convert/state/opaque_tree.h - opaque state of a checkpoint that is a pickle, as a tree.
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_OPAQUE_TREE_H
#define CAIRN_TOOLS_CONVERT_STATE_OPAQUE_TREE_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"

/* Loads the opaque state `name`, at most bytes_max bytes, into the arena of `tree`, and a NUL (not
 * counted). CAIRN_NOT_FOUND, not complained about; errors of cairn_checkpoint_load_opaque,
 * complained about; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_opaque_load(const struct cairn_checkpoint *checkpoint,
                                             const char *name, size_t bytes_max,
                                             struct cairn_pickle *tree, uint8_t **bytes,
                                             size_t *bytes_len);

/* The same, and parses them. Errors also of cairn_pickle_read, complained about. */
CAIRN_MUST_CHECK cairn_err cairn_opaque_read(const struct cairn_checkpoint *checkpoint,
                                             const char *name, size_t bytes_max,
                                             struct cairn_pickle *tree,
                                             struct cairn_pickle_node **root);

/* Adds a tree that is built as the opaque state `name`. Errors of its builder, of
 * cairn_pickle_write and of cairn_checkpoint_add_opaque; complained about but for the first. */
CAIRN_MUST_CHECK cairn_err cairn_opaque_add(struct cairn_checkpoint *checkpoint, const char *name,
                                            const struct cairn_pickle *tree,
                                            const struct cairn_pickle_node *root);

struct cairn_opaque_tree {
    struct cairn_pickle tree;
    struct cairn_pickle_node *root; /* NULL if it was not opened */
    bool loaded;                    /* the state is there, if it is not a pickle too */
};

/* The same in a tree of its own, which the caller ends in any case. A pickle that cannot be read is
 * not complained about: the caller may do without it. */
CAIRN_MUST_CHECK cairn_err cairn_opaque_tree_open(const struct cairn_checkpoint *checkpoint,
                                                  const char *name, struct cairn_opaque_tree *out);
void cairn_opaque_tree_close(struct cairn_opaque_tree *tree);

#endif
