/* tools/convert/megatron/target.c - see megatron/target.h. What it must be: megatron/sizes.c. */
#include "tools/convert/megatron/target.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
cairn_err
cairn_megatron_target_refuse(const struct cairn_megatron_target *target, const char *why)
{
    return cairn_refuse(target->checkpoint, CAIRN_INVAL, "%s", why);
}

uint32_t
cairn_megatron_target_named(const struct cairn_megatron_target *target, const char *name)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    uint32_t tensor = cairn_layout_tensor_find(layout, name);
    char grouped[CAIRN_NAME_BYTES_MAX];

    if (tensor == UINT32_MAX && cairn_megatron_name_group(name, grouped))
        tensor = cairn_layout_tensor_find(layout, grouped);
    return tensor;
}

uint32_t
cairn_megatron_target_find(const struct cairn_megatron_target *target, const char *name)
{
    uint32_t tensor = cairn_megatron_target_named(target, name);

    return tensor != UINT32_MAX && target->alias_of[tensor] != UINT32_MAX ? target->alias_of[tensor]
                                                                          : tensor;
}

void
cairn_megatron_target_place(struct cairn_megatron_target *target, uint32_t tensor)
{
    target->placed[tensor] = true;
}

cairn_err
cairn_megatron_target_part(struct cairn_megatron_target *target, uint32_t tensor,
                           struct cairn_megatron_part **part)
{
    if (!cairn_array_grow(&target->parts, target->part_count, sizeof(*target->parts)) ||
        !cairn_array_grow(&target->part_tensor, target->part_count, sizeof(*target->part_tensor)))
        return CAIRN_NOMEM;
    target->part_tensor[target->part_count] = tensor;
    *part = &target->parts[target->part_count++];
    memset(*part, 0, sizeof(**part));
    return CAIRN_OK;
}

void
cairn_megatron_target_fini(struct cairn_megatron_target *target)
{
    free(target->common);
    free(target->keys);
    free(target->first_layer);
    free(target->placed);
    free(target->alias_of);
    free(target->parts);
    free(target->part_tensor);
    memset(target, 0, sizeof(*target));
}
