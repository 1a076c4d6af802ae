/*
 * tools/convert/torch/say.c - the names of an optimizer's parameters in a file of torch.save that
 * is made, where a reader (torch/parameters.c) could not tell them from the model.
 *
 * PyTorch's own "param_names" in the groups would bind the optimizer that loads them to names from
 * then on; so they lie beside.
 */
#include "tools/convert/torch/building.h"

#include <stdlib.h>

/* Whether the model's parameters in their order are those of the optimizer. Of a tie the model may
 * have two names, and a buffer may look like a parameter: then this says no, and the names are
 * stored without need. */
static bool
is_order_of_model(const struct cairn_torch_building *building)
{
    const struct cairn_layout *layout = building->source->layout;
    uint32_t next = 0;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        bool integer = tensor->dtype == CAIRN_I64 || tensor->dtype == CAIRN_U8;

        if (tensor->kind == CAIRN_PARAM && building->numbers[i] != ++next)
            return false;
        if (tensor->kind == CAIRN_BUFFER && building->used[i] && !integer)
            return false;
    }
    return next == building->number_count;
}

cairn_err
cairn_torch_building_say(struct cairn_torch_building *building, uint32_t group_count,
                         struct cairn_pickle_node **list)
{
    const struct cairn_layout *layout = building->source->layout;
    struct cairn_pickle *tree = &building->tree;
    const char **names;
    uint32_t known = 0;

    *list = NULL;
    if (building->number_count == 0 || (group_count == 1 && is_order_of_model(building)))
        return CAIRN_OK;
    names = calloc(building->number_count, sizeof(*names));
    if (!names)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (building->numbers[i] > 0 && building->numbers[i] <= building->number_count) {
            known += names[building->numbers[i] - 1] == NULL;
            names[building->numbers[i] - 1] = cairn_layout_tensor(layout, i)->name;
        }
    if (known == building->number_count)
        *list = cairn_pickle_list(tree);
    for (uint32_t i = 0; *list && i < known; i++)
        cairn_pickle_append(tree, *list, cairn_pickle_text(tree, names[i]));
    free(names);
    return cairn_pickle_done(tree);
}
