/*
 * tools/convert/state/param_groups.h - the parameter groups of a torch optimizer, in one form for
 * all formats.
 *
 * The form is the opaque state "optimizer.param_groups.pickle": a list of dicts, one per group,
 * with the group's hyperparameters as they are and under "params" the names of its parameters (or
 * their numbers, where the names are not known). Each value is pickled for itself first, so nothing
 * is shared between two of them and every format arrives at the same bytes. A value that is a
 * tensor is the persistent id ("tensor", name).
 */
#ifndef CAIRN_TOOLS_CONVERT_STATE_PARAM_GROUPS_H
#define CAIRN_TOOLS_CONVERT_STATE_PARAM_GROUPS_H

#include "cairn/types.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"
#include "tools/convert/state/opaque_tree.h"

#define CAIRN_PARAM_GROUPS_NAME "optimizer.param_groups.pickle"

enum { CAIRN_PARAM_GROUPS_BYTES_MAX = 1 << 28 };

/* One hyperparameter; strings and bytes are borrowed. */
struct cairn_group_value {
    uint32_t group;
    const char *parameter; /* NULL, or where groups are told by parameter: whose it is */
    const char *key;
    const uint8_t *bytes; /* one pickle; NULL: a tensor */
    size_t bytes_len;
    const char *tensor; /* its canonical name where bytes is NULL */
};

/* Puts groups together from values in their order: all of group 0, then of group 1, …; or all of a
 * parameter, and then parameters with equal values become one group. names[name_count] (may be
 * NULL) replace numbers in "params", without what wrappers added. *added stays false if the values
 * are in another order or not pickles. CAIRN_NOMEM, errors of cairn_checkpoint_add_opaque. */
CAIRN_MUST_CHECK cairn_err cairn_param_groups_add(struct cairn_checkpoint *checkpoint,
                                                  const struct cairn_group_value *values,
                                                  size_t count, const char *const names[],
                                                  uint32_t name_count, bool *added);

/* Reads the groups of a checkpoint again: out->root is a list of dicts, each of text keys.
 * CAIRN_NOT_FOUND; CAIRN_CORRUPT, not complained about, where they are anything else; CAIRN_NOMEM,
 * errors of loading. The caller ends *out with cairn_opaque_tree_close in any case. */
CAIRN_MUST_CHECK cairn_err cairn_param_groups_open(const struct cairn_checkpoint *checkpoint,
                                                   struct cairn_opaque_tree *out);

enum { CAIRN_PICKLE_WORD_BYTES_MAX = 16 };

/* Reads a persistent id (word, name); name[CAIRN_NAME_BYTES_MAX] may be NULL. False for any other
 * node. */
bool cairn_pickle_read_named(const struct cairn_pickle_node *node,
                             char word[CAIRN_PICKLE_WORD_BYTES_MAX], char *name);
/* The same where the word is "tensor". */
bool cairn_pickle_tensor_name(const struct cairn_pickle_node *node, char *name);
/* Makes such a node; or one of another word than "tensor". */
struct cairn_pickle_node *cairn_pickle_tensor(struct cairn_pickle *pickle, const char *name);
struct cairn_pickle_node *cairn_pickle_named(struct cairn_pickle *pickle, const char *word,
                                             const char *name);
/* Everything that holds `node` holds what `by`, a new node of the same tree, says from now on.
 * Errors of the builder. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_replace(struct cairn_pickle *pickle,
                                                const struct cairn_pickle_node *node,
                                                const struct cairn_pickle_node *by);

#endif
