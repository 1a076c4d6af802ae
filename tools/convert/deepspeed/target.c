/* tools/convert/deepspeed/target.c - see deepspeed/target.h. What it must be: deepspeed/settle.c.
 */
#include "tools/convert/deepspeed/target.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"

cairn_err
cairn_deepspeed_target_carried(struct cairn_deepspeed_target *target, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);

    return tensor == UINT32_MAX ? CAIRN_OK : cairn_output_add_carried(target->output, tensor);
}

bool
cairn_deepspeed_target_writes(const struct cairn_deepspeed_target *target, uint32_t tensor)
{
    const char *name = cairn_layout_tensor(target->checkpoint->layout, tensor)->name;

    return target->output->layout &&
           cairn_layout_tensor_find(target->output->layout, name) != UINT32_MAX;
}

cairn_err
cairn_deepspeed_target_tied(struct cairn_deepspeed_target *target)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < target->checkpoint->alias_count && !err; i++) {
        const struct cairn_alias *alias = &target->checkpoint->aliases[i];

        if (!cairn_deepspeed_target_writes(target, alias->tensor) &&
            (cairn_deepspeed_target_writes(target, alias->of) || target->left_out[alias->of]))
            err = cairn_output_add_carried(target->output, alias->tensor);
    }
    return err;
}

static cairn_err
check_object(const struct cairn_deepspeed_target *target, const char *name,
             const struct cairn_deepspeed_object *object)
{
    return cairn_pickle_pairs(object->root)
               ? CAIRN_OK
               : cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "%s: expected a dict", name);
}

cairn_err
cairn_deepspeed_object_named(struct cairn_deepspeed_target *target, const char *name,
                             struct cairn_deepspeed_object *object)
{
    cairn_err err;

    memset(object, 0, sizeof(*object));
    cairn_pickle_init(&object->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_opaque_read(target->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                            &object->tree, &object->root);
    if (!err)
        err = cairn_deepspeed_target_carried(target, name);
    return err ? err : check_object(target, name, object);
}

cairn_err
cairn_deepspeed_object_load(struct cairn_deepspeed_target *target, int which, uint32_t rank,
                            struct cairn_deepspeed_object *object)
{
    const char *name = which == 0 ? CAIRN_DEEPSPEED_MODEL : CAIRN_DEEPSPEED_OPTIM;
    char own[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    cairn_deepspeed_scoped(target->part, rank, name, own);
    if (rank > 0 && cairn_layout_tensor_find(target->checkpoint->layout, own) != UINT32_MAX)
        return cairn_deepspeed_object_named(target, own, object);
    memset(object, 0, sizeof(*object));
    cairn_pickle_init(&object->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err =
        cairn_pickle_read(&object->tree, name, target->carried[which], target->carried_bytes[which],
                          &object->root, target->checkpoint->complaint);
    return err ? err : check_object(target, name, object);
}

void
cairn_deepspeed_object_fini(struct cairn_deepspeed_object *object)
{
    cairn_pickle_fini(&object->tree);
    memset(object, 0, sizeof(*object));
}

void
cairn_deepspeed_target_fini(struct cairn_deepspeed_target *target)
{
    cairn_deepspeed_groups_fini(&target->groups);
    cairn_deepspeed_layers_fini(&target->layers);
    cairn_deepspeed_cuts_fini(&target->cuts);
    free(target->setting_of);
    free(target->cut_of);
    free(target->cut_at);
    free(target->pieces);
    free(target->carried[0]);
    free(target->carried[1]);
    free(target->alias_of);
    free(target->left_out);
    memset(target, 0, sizeof(*target));
}

uint32_t
cairn_deepspeed_target_find(const struct cairn_deepspeed_target *target, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);

    return tensor != UINT32_MAX && target->alias_of[tensor] != UINT32_MAX ? target->alias_of[tensor]
                                                                          : tensor;
}

uint64_t
cairn_deepspeed_target_saved(const struct cairn_deepspeed_target *target, uint32_t group,
                             bool master, uint64_t *partition)
{
    bool padded = master ? !target->stage_known : !target->elastic;

    *partition = cairn_deepspeed_partition(&target->groups, group, target->stage3, target->ranks);
    return target->stage3 || padded
               ? *partition
               : cairn_deepspeed_unpadded(&target->groups, group, target->ranks, target->rank);
}
