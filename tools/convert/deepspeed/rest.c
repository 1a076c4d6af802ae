/*
 * tools/convert/deepspeed/rest.c - what DeepSpeed's files keep once and other formats for each
 * parameter.
 *
 * A group has one step, and with ZeRO 3 a parameter is nowhere but in its fp32 master, and a tied
 * one only under one of its names. What comes back from a format that knows no ties has them apart:
 * they are left out as equal to what is written. And what DeepSpeed has no place for, in the first
 * rank's model_states: put there when files are written, and found there when they are read.
 */
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/deepspeed/make.h"
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
    uint32_t *order = cairn_checkpoint_sorted(checkpoint->layout);

    if (!order)
        return CAIRN_NOMEM;
    keep_carried(checkpoint, tree, known, &carried);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, order[i]);

        if (tensor->kind == CAIRN_OPAQUE && !cairn_deepspeed_is_own(tensor->name))
            cairn_torch_carried_put(tree, &carried, tensor);
    }
    free(order);
    cairn_torch_carry_replace(root, CAIRN_DEEPSPEED_CARRIED, NULL);
    if (carried)
        cairn_pickle_set(tree, root, CAIRN_DEEPSPEED_CARRIED, carried);
    return cairn_pickle_done(tree);
}

/* Leaves `name` out as equal to `of`, where it is there, apart, and not written, and `of` is. */
static cairn_err
leave_out(struct cairn_deepspeed_target *target, const char *name, const char *of)
{
    uint32_t tensor = cairn_deepspeed_target_find(target, name);
    uint32_t written = cairn_deepspeed_target_find(target, of);

    if (tensor == UINT32_MAX || written == UINT32_MAX || tensor == written ||
        cairn_deepspeed_target_writes(target, tensor) ||
        !cairn_deepspeed_target_writes(target, written) || target->left_out[tensor])
        return CAIRN_OK;
    target->left_out[tensor] = true;
    return cairn_output_add_equal(target->output, tensor, written);
}

static cairn_err
leave_out_scalars(struct cairn_deepspeed_target *target, const struct cairn_deepspeed_keys *keys,
                  const struct cairn_deepspeed_group *group)
{
    const struct cairn_deepspeed_parameter *parameters = &target->groups.parameters[group->first];
    char name[CAIRN_NAME_BYTES_MAX], first[CAIRN_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t k = 0; k < keys->count && group->count > 0 && !err; k++) {
        if (cairn_deepspeed_state_name(keys->keys[k], parameters, 0, first) != CAIRN_OK)
            continue; /* no tensor is called so */
        for (uint64_t i = 1; i < (uint64_t)group->count * group->spread && !err; i++)
            if (cairn_deepspeed_state_name(keys->keys[k], &parameters[i % group->count],
                                           (uint32_t)(i / group->count), name) == CAIRN_OK)
                err = leave_out(target, name, first);
    }
    return err;
}

/* Under its own name, or that of the parameter that it is tied to. */
static cairn_err
leave_out_tied(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *shared)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(shared);
    char alias[CAIRN_NAME_BYTES_MAX], stored[CAIRN_NAME_BYTES_MAX];
    char master[CAIRN_NAME_BYTES_MAX + 8];
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        if (!cairn_pickle_copy_text(pairs->items[2 * i], alias, sizeof(alias)) ||
            !cairn_pickle_copy_text(pairs->items[2 * i + 1], stored, sizeof(stored)))
            continue; /* the reader let none of these through */
        (void)snprintf(master, sizeof(master), "fp32.%s", cairn_deepspeed_canonical(stored));
        err = leave_out(target, cairn_deepspeed_canonical(alias),
                        target->stage3 ? master : cairn_deepspeed_canonical(stored));
    }
    return err;
}

static bool
is_carried(const struct cairn_output *output, uint32_t tensor)
{
    for (uint32_t i = 0; i < output->carried_count; i++)
        if (output->carried[i] == tensor)
            return true;
    return false;
}

/* Whether a name is of a part that is not written: there are fewer tensor-parallel ranks now. */
static bool
is_of_no_part(const struct cairn_deepspeed_target *target, const char *name)
{
    char *end = NULL;

    if (strncmp(name, "part", 4) != 0 || name[4] < '0' || name[4] > '9')
        return false;
    return strtoul(name + 4, &end, 10) >= target->part_count && *end == '/';
}

/* An object of a rank's own that no file was made of: there are fewer ranks now. */
static cairn_err
refuse_own_objects(const struct cairn_deepspeed_target *target)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    char scope[32] = "rank";

    if (target->part > 0)
        (void)snprintf(scope, sizeof(scope), "part%" PRIu32 "/rank", target->part);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const char *name = cairn_layout_tensor(layout, i)->name;

        if ((strncmp(name, scope, strlen(scope)) == 0 || is_of_no_part(target, name)) &&
            (strstr(name, "/" CAIRN_DEEPSPEED_MODEL) || strstr(name, "/" CAIRN_DEEPSPEED_OPTIM)) &&
            !is_carried(target->output, i))
            return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                                "%s is of a rank's own, which no file has for %" PRIu32
                                " ranks; leave it out with --drop '%.*s/*'",
                                name, target->ranks,
                                (int)(strstr(name, "/" CAIRN_DEEPSPEED_SCOPE) - name), name);
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_plan_rest(struct cairn_deepspeed_target *target)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    struct cairn_opaque_tree object;
    struct cairn_deepspeed_keys keys = {.count = 0};
    char master[CAIRN_NAME_BYTES_MAX + 8];
    cairn_err err = cairn_deepspeed_object_load(target, 0, 0, &object);

    if (!err)
        err = refuse_own_objects(target);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        size_t bytes = strcspn(tensor->name, ".");

        if (tensor->kind == CAIRN_OPTIMIZER && tensor->dims == 0 && tensor->name[bytes])
            (void)cairn_deepspeed_keys_index(&keys, tensor->name, bytes, true);
    }
    for (uint32_t g = 0; g < target->groups.group_count && !err; g++)
        err = leave_out_scalars(target, &keys, &target->groups.groups[g]);
    for (uint32_t i = 0; target->stage3 && i < target->groups.parameter_count && !err; i++) {
        const char *name = target->groups.parameters[i].name;

        (void)snprintf(master, sizeof(master), "fp32.%s", name);
        err = leave_out(target, name, master);
    }
    if (!err)
        err = leave_out_tied(target, cairn_pickle_get(object.root, "shared_params"));
    cairn_opaque_tree_close(&object);
    return err;
}
