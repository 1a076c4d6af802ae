/* tools/convert/torch/building.h - the tree of a file of torch.save while it is made; for
 * torch/build.c, torch/parameters.c and torch/plan.c. */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_BUILDING_H
#define CAIRN_TOOLS_CONVERT_TORCH_BUILDING_H

#include "tools/convert/state/kept_names.h"
#include "tools/convert/torch/state.h"
#include "tools/convert/torch/tree.h"

struct cairn_torch_building {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    struct cairn_pickle tree;
    struct cairn_torch_builder builder;
    struct cairn_kept_names names; /* where a distributed checkpoint had things */
    bool *used;                    /* [tensors]: the tree has it */
    uint32_t *numbers;             /* [tensors]: 1 + a parameter's number in the optimizer */
    uint32_t number_count;
};

/* Opaque state of the source as a node of the tree. The errors of loading it and of
 * cairn_pickle_read. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_read(struct cairn_torch_building *building,
                                                     const char *name,
                                                     struct cairn_pickle_node **node);

/* Its bytes as a node. The errors of loading it, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_bytes(struct cairn_torch_building *building,
                                                      const char *name,
                                                      struct cairn_pickle_node **node);

/* The list of parameter groups with numbers where it has names, counted as torch does: through all
 * groups. CAIRN_CORRUPT: it is none; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_number_groups(struct cairn_torch_building *building,
                                                              struct cairn_pickle_node *list);

/* The names of the optimizer's parameters by number, once they are numbered and the model is made:
 * a list in the tree, NULL where a reader can tell them without, or not all are known.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_say(struct cairn_torch_building *building,
                                                    uint32_t group_count,
                                                    struct cairn_pickle_node **list);

/* A tree of its own. The errors of cairn_torch_building_read, CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_make(struct cairn_torch_building *building,
                                                     struct cairn_pickle_node **root);

#endif
