/* tools/convert/torch/parameters.h - the names of an optimizer's parameters by number, while a file
 * of torch.save is read (torch/format.c) and while one is made (torch/plan.c). */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_PARAMETERS_H
#define CAIRN_TOOLS_CONVERT_TORCH_PARAMETERS_H

#include "tools/convert/state/names.h"
#include "tools/convert/torch/source.h"
#include "tools/convert/torch/state.h"
#include "tools/convert/state/kept_names.h"
#include "tools/convert/torch/tree.h"

struct cairn_torch_reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_torch_source source;
    struct cairn_torch_leaves leaves;
    struct cairn_state_roots roots;
    struct cairn_name_set whole;

    uint32_t *layout_of; /* [file's tensors]: 1 + index in the layout, once it has one */
    uint32_t *last_in;   /* [file's storages]: 1 + the last tensor in it that is in the layout */
    uint32_t *before;    /* [file's tensors]: 1 + the one before it in its storage */
    char **parameters;   /* [parameter_count]: names by number, NULL: not known */
    uint32_t parameter_count;
};

/* Finds the names of the parameters by number, once the model's tensors are in the layout. Where
 * they cannot be told there are none, and a warning tells. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_reading_name_parameters(
    struct cairn_torch_reading *reading, const struct cairn_pickle_node *groups);
void cairn_torch_reading_forget_parameters(struct cairn_torch_reading *reading);

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

/* The parameters' names by number, once they are numbered and the model is made: a list in the
 * tree; NULL if readers can tell them without, or not all are known. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_building_say(struct cairn_torch_building *building,
                                                    uint32_t group_count,
                                                    struct cairn_pickle_node **list);

#endif
