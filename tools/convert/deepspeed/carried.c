/*
 * tools/convert/deepspeed/carried.c - what DeepSpeed has no place for, in the first rank's
 * model_states: put there when files are written, and found there when they are read.
 */
#include "tools/convert/deepspeed/make.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/torch/carry.h"

bool
cairn_deepspeed_is_own(const char *name)
{
    while (strncmp(name, "part", 4) == 0 || strncmp(name, "rank", 4) == 0) {
        const char *slash = strchr(name, '/');

        if (!slash || strspn(name + 4, "0123456789") != (size_t)(slash - name - 4))
            break;
        name = slash + 1;
    }
    return strncmp(name, CAIRN_DEEPSPEED_SCOPE, strlen(CAIRN_DEEPSPEED_SCOPE)) == 0;
}

uint32_t *
cairn_deepspeed_sorted(const struct cairn_checkpoint *checkpoint)
{
    uint32_t count = cairn_layout_tensor_count(checkpoint->layout);
    uint32_t *order = calloc((size_t)count + 1, sizeof(*order));

    for (uint32_t i = 0; order && i < count; i++)
        order[i] = i;
    if (order)
        cairn_checkpoint_sort(checkpoint, order, count);
    return order;
}

void
cairn_deepspeed_carried_remove(struct cairn_pickle_node *root)
{
    cairn_torch_carry_remove(root, CAIRN_DEEPSPEED_CARRIED);
}

/* What was carried already, other than opaque state, as far as it is still there. */
static void
keep_carried(const struct cairn_checkpoint *checkpoint, struct cairn_pickle *tree,
             const struct cairn_pickle_node *known, struct cairn_pickle_node **carried)
{
    const struct cairn_pickle_node *kinds = cairn_pickle_pairs(known);

    for (uint32_t k = 0; kinds && k < kinds->count; k++) {
        const struct cairn_pickle_node *pairs = cairn_pickle_pairs(kinds->items[2 * k + 1]);

        for (uint32_t i = 0; pairs && i < pairs->count; i++) {
            char name[CAIRN_NAME_BYTES_MAX];
            uint32_t tensor = UINT32_MAX;

            if (cairn_pickle_copy_text(pairs->items[2 * i], name, sizeof(name)))
                tensor = cairn_layout_tensor_find(checkpoint->layout, name);
            if (tensor != UINT32_MAX &&
                cairn_layout_tensor(checkpoint->layout, tensor)->kind != CAIRN_OPAQUE)
                cairn_torch_carried_put(tree, carried,
                                        cairn_layout_tensor(checkpoint->layout, tensor));
        }
    }
}

cairn_err
cairn_deepspeed_carried_put(const struct cairn_checkpoint *checkpoint, struct cairn_pickle *tree,
                            struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *known = cairn_pickle_get(root, CAIRN_DEEPSPEED_CARRIED);
    struct cairn_pickle_node *carried = NULL;
    uint32_t *order = cairn_deepspeed_sorted(checkpoint);

    if (!order)
        return CAIRN_NOMEM;
    keep_carried(checkpoint, tree, known, &carried);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, order[i]);

        if (tensor->kind == CAIRN_OPAQUE && !cairn_deepspeed_is_own(tensor->name))
            cairn_torch_carried_put(tree, &carried, tensor);
    }
    free(order);
    cairn_deepspeed_carried_remove(root);
    if (carried)
        cairn_pickle_set(tree, root, CAIRN_DEEPSPEED_CARRIED, carried);
    return cairn_pickle_done(tree);
}

cairn_err
cairn_deepspeed_carried_take(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source)
{
    struct cairn_pickle_node *carried =
        cairn_pickle_get(source->torch.root, CAIRN_DEEPSPEED_CARRIED);
    cairn_err err = cairn_torch_carried_take(checkpoint, source, CAIRN_DEEPSPEED_CARRIED,
                                             cairn_deepspeed_is_own);

    cairn_torch_carry_remove(carried, "opaque"); /* found again by what it is */
    if (carried && (!cairn_pickle_pairs(carried) || cairn_pickle_pairs(carried)->count == 0))
        cairn_deepspeed_carried_remove(source->torch.root);
    return err;
}
