/* tools/convert/torch/reading.h - a file of torch.save while it is read into a checkpoint; for
 * torch/format.c and torch/parameters.c. */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_READING_H
#define CAIRN_TOOLS_CONVERT_TORCH_READING_H

#include "tools/convert/state/names.h"
#include "tools/convert/torch/source.h"
#include "tools/convert/torch/state.h"

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

#endif
