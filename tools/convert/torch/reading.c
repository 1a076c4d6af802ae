/* tools/convert/torch/reading.c - see torch/reading.h. */
#include "tools/convert/torch/reading.h"

const struct cairn_torch_tensor *
cairn_torch_reading_tensor(const struct cairn_torch_reading *reading,
                           const struct cairn_pickle_node *node, uint32_t *index)
{
    uint32_t found = reading->tensor_of[node->index];

    if (found == 0)
        return NULL;
    *index = found - 1;
    return &reading->file.tensors[found - 1];
}
