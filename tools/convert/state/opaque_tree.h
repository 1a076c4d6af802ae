/*
 * tools/convert/state/opaque_tree.h - opaque state of a checkpoint that is a pickle, as a tree.
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_OPAQUE_TREE_H
#define CAIRN_TOOLS_CONVERT_STATE_OPAQUE_TREE_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"

struct cairn_opaque_tree {
    struct cairn_pickle tree;
    struct cairn_pickle_node *root; /* NULL where it was not opened */
    uint8_t *bytes;                 /* owned: what the tree borrows from */
    bool whole;                     /* nothing stands behind the pickle, which would not be in the
                                     * tree */
};

/*
 * Loads and parses the state called `name`. CAIRN_NOT_FOUND, not complained about, where there is
 * none; errors of loading, complained about; CAIRN_CORRUPT and CAIRN_VERSION for bytes that are no
 * pickle, which the caller may complain about. The caller ends *out in any case.
 */
CAIRN_MUST_CHECK cairn_err cairn_opaque_tree_open(const struct cairn_checkpoint *checkpoint,
                                                  const char *name, struct cairn_opaque_tree *out,
                                                  struct cairn_complaint *complaint);
void cairn_opaque_tree_close(struct cairn_opaque_tree *tree);

#endif
