/* tools/convert/deepspeed/plan.c - a rank's files of DeepSpeed for a new number of ranks. */
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/deepspeed/make.h"

/* Padding at the end of the rank's part; BF16_Optimizer counts it all at the last rank. */
static uint64_t
padding_of(const struct cairn_deepspeed_target *target, uint32_t group)
{
    uint64_t partition = cairn_deepspeed_partition(&target->groups, group, false, target->ranks);
    struct cairn_deepspeed_share share =
        cairn_deepspeed_share(&target->groups, group, target->ranks, target->rank);

    if (!target->stage_known)
        return share.rank + 1 == share.ranks
                   ? partition * share.ranks - target->groups.groups[group].elements
                   : 0;
    return partition -
           cairn_deepspeed_unpadded(&target->groups, group, target->ranks, target->rank);
}

static void
set_paddings(const struct cairn_deepspeed_target *target, struct cairn_pickle *tree,
             struct cairn_pickle_node *optimizer)
{
    struct cairn_pickle_node *list;

    if (target->stage3)
        return;
    list = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < target->groups.group_count; i++)
        cairn_pickle_append(tree, list, cairn_pickle_int(tree, (int64_t)padding_of(target, i)));
    cairn_torch_carry_replace(optimizer, "group_paddings", list);
}

/* {parameter: fragment_address(numel, start)} per group: what DeepSpeed's own converter goes by. */
static void
set_mappings(const struct cairn_deepspeed_target *target, struct cairn_pickle *tree,
             struct cairn_pickle_node *optimizer)
{
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *list, *class, *numel, *start;

    if (target->stage3)
        return;
    cairn_torch_builder_init(&builder, tree);
    list = cairn_pickle_list(tree);
    class = cairn_pickle_global(tree, "deepspeed.utils.tensor_fragment", "fragment_address");
    numel = cairn_pickle_text(tree, "numel");
    start = cairn_pickle_text(tree, "start");
    for (uint32_t g = 0; g < target->groups.group_count; g++) {
        const struct cairn_deepspeed_group *group = &target->groups.groups[g];
        uint64_t partition = cairn_deepspeed_partition(&target->groups, g, false, target->ranks);
        struct cairn_deepspeed_share share =
            cairn_deepspeed_share(&target->groups, g, target->ranks, target->rank);
        struct cairn_pickle_node *mapping = cairn_torch_ordered_dict(&builder);

        for (uint32_t i = 0; i < group->count; i++) {
            const struct cairn_deepspeed_parameter *parameter =
                &target->groups.parameters[group->first + i];
            struct cairn_pickle_node *address, *state;
            uint64_t begin, end, at;

            cairn_deepspeed_part(parameter, false, share.ranks, share.rank, partition, &begin, &end,
                                 &at);
            if (begin == end)
                continue;
            state = cairn_pickle_dict(tree);
            cairn_pickle_put(tree, state, numel, cairn_pickle_int(tree, (int64_t)(end - begin)));
            cairn_pickle_put(tree, state, start, cairn_pickle_int(tree, (int64_t)at));
            address = cairn_pickle_object(tree, CAIRN_PICKLE_NEWOBJ, class,
                                          cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, NULL, 0));
            cairn_pickle_build(tree, address, state);
            cairn_pickle_set(tree, mapping, parameter->path, address);
        }
        cairn_pickle_append(tree, list, mapping);
    }
    cairn_torch_carry_replace(optimizer, "param_slice_mappings", list);
}

/* The ranks that cut each group's buffer. */
static void
set_counts(const struct cairn_deepspeed_target *target, struct cairn_pickle *tree,
           struct cairn_pickle_node *optimizer)
{
    const struct cairn_pickle_node *known = cairn_pickle_get(optimizer, "partition_count");
    struct cairn_pickle_node *list;

    if (target->layers.count == 0 || !cairn_pickle_is_list(known)) {
        cairn_deepspeed_set_ranks(tree, optimizer, "partition_count", target->ranks);
        return;
    }
    list = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < target->groups.group_count; i++)
        cairn_pickle_append(
            tree, list,
            cairn_pickle_int(
                tree,
                cairn_deepspeed_share(&target->groups, i, target->ranks, target->rank).ranks));
    cairn_torch_carry_replace(optimizer, "partition_count", list);
}

/* What the object says of experts, for a rank that has its own alone. */
static cairn_err
set_experts(const struct cairn_deepspeed_target *target, struct cairn_opaque_tree *object)
{
    const char *why = NULL;
    cairn_err err;

    if (target->layers.count == 0)
        return CAIRN_OK;
    cairn_torch_carry_replace(object->root, "param_shapes",
                              cairn_deepspeed_shapes_node(&target->groups, &object->tree));
    err = cairn_deepspeed_names_spread(&object->tree, object->root, "buffer_names", &target->layers,
                                       target->spread, &why);
    return err == CAIRN_VERSION
               ? cairn_refuse(target->checkpoint, CAIRN_INVAL, "buffer_names: %s", why)
               : err;
}

cairn_err
cairn_deepspeed_plan_model(struct cairn_deepspeed_target *target, const char *folder)
{
    struct cairn_opaque_tree object;
    char path[CAIRN_NAME_BYTES_MAX];
    cairn_err err = cairn_deepspeed_object_load(target, 0, target->rank, &object);

    if (target->stage3)
        (void)snprintf(path, sizeof(path),
                       "%s/zero_pp_rank_%" PRIu32 "_mp_rank_%02" PRIu32 "_model_states.pt", folder,
                       target->rank, target->part);
    else
        (void)snprintf(path, sizeof(path), "%s/mp_rank_%02" PRIu32 "_model_states.pt", folder,
                       target->part);
    if (!err) {
        cairn_deepspeed_set_ranks(&object.tree, object.root, "dp_world_size", target->ranks);
        if (target->setting_of)
            cairn_torch_carry_replace(object.root, "param_shapes",
                                      cairn_deepspeed_shapes_node(&target->groups, &object.tree));
        err = target->tensor_ranks > 1 ? cairn_deepspeed_tensor_object(target, &object)
                                       : set_experts(target, &object);
    }
    if (!err) {
        if (target->rank == 0 && target->part == 0)
            err = cairn_deepspeed_carried_put(target->checkpoint, &object.tree, object.root);
        else
            cairn_torch_carry_replace(object.root, CAIRN_DEEPSPEED_CARRIED, NULL);
    }
    if (!err)
        err = cairn_deepspeed_target_add(target, path, &object.tree, object.root);
    cairn_opaque_tree_close(&object);
    return err;
}

static cairn_err
plan_optim(struct cairn_deepspeed_target *target, const char *folder, const char *prefix)
{
    struct cairn_opaque_tree object;
    struct cairn_pickle_node *optimizer;
    char path[CAIRN_NAME_BYTES_MAX];
    cairn_err err = cairn_deepspeed_object_load(target, 1, target->rank, &object);

    (void)snprintf(path, sizeof(path),
                   "%s/%szero_pp_rank_%" PRIu32 "_mp_rank_%02" PRIu32 "_optim_states.pt", folder,
                   prefix, target->rank, target->part);
    if (!err) {
        optimizer = cairn_pickle_get(object.root, "optimizer_state_dict");
        set_counts(target, &object.tree, optimizer);
        if (target->layers.count > 0)
            cairn_deepspeed_optim_spread(&object.tree, optimizer, &target->groups);
        cairn_deepspeed_subgroups_apply(target, &object.tree, optimizer);
        set_paddings(target, &object.tree, optimizer);
        set_mappings(target, &object.tree, optimizer);
        err = cairn_deepspeed_target_add(target, path, &object.tree, object.root);
    }
    cairn_opaque_tree_close(&object);
    return err;
}

/* The layers of a pipeline, or the experts, from what is carried of them. */
static cairn_err
plan_layers(struct cairn_deepspeed_target *target, const char *folder)
{
    static const char scope[] = CAIRN_DEEPSPEED_SCOPE "layer_", end[] = ".pickle";
    const struct cairn_layout *layout = target->checkpoint->layout;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);
        const char *name = tensor->name + strlen(CAIRN_DEEPSPEED_SCOPE);
        struct cairn_opaque_tree object;
        char path[CAIRN_NAME_BYTES_MAX + 64];

        if (tensor->kind != CAIRN_OPAQUE || strncmp(tensor->name, scope, strlen(scope)) != 0 ||
            strlen(tensor->name) <= strlen(scope) + strlen(end))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%.*s.pt", folder, (int)(strlen(name) - strlen(end)),
                       name);
        err = cairn_deepspeed_object_named(target, tensor->name, &object);
        if (!err)
            err = cairn_deepspeed_target_add(target, path, &object.tree, object.root);
        cairn_opaque_tree_close(&object);
    }
    return err;
}

/* All files of one part; after those of the last one, what the parts share. */
static cairn_err
plan_part(struct cairn_deepspeed_target *target, const char *folder)
{
    bool prefixed =
        cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_DEEPSPEED_PREFIX) != UINT32_MAX;
    cairn_err err = cairn_deepspeed_target_carried(target, CAIRN_DEEPSPEED_PREFIX);

    for (uint32_t rank = 0; rank < target->ranks && !err; rank++) {
        target->rank = rank;
        if (rank == 0 || target->stage3)
            err = cairn_deepspeed_plan_model(target, folder);
        if (!err && target->has_groups)
            err = plan_optim(target, folder, prefixed ? "bf16_" : "");
    }
    if (!err)
        err = cairn_deepspeed_plan_rest(target);
    if (err || target->part + 1 < target->part_count)
        return err;
    err = plan_layers(target, folder);
    return err ? err : cairn_deepspeed_target_tied(target);
}

/* The targets of all parts, which refer to one another. */
static cairn_err
init_parts(const struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options,
           struct cairn_output *output, struct cairn_deepspeed_target **out, uint32_t *part_count)
{
    struct cairn_deepspeed_target *parts = calloc(1, sizeof(*parts)), *grown;
    cairn_err err = parts ? CAIRN_OK : CAIRN_NOMEM;

    *part_count = 0;
    *out = parts;
    for (uint32_t part = 0; !err && (part == 0 || part < parts->part_count); part++) {
        if (part == 1) {
            grown = realloc(parts, parts->part_count * sizeof(*parts));
            if (!grown)
                return CAIRN_NOMEM;
            *out = parts = grown;
        }
        *part_count = part + 1;
        err = cairn_deepspeed_target_init(&parts[part], checkpoint, options, true, part, output);
    }
    for (uint32_t part = 0; !err && *part_count > 1 && part < *part_count; part++)
        parts[part].parts = parts;
    return err;
}

cairn_err
cairn_deepspeed_plan(const struct cairn_checkpoint *checkpoint,
                     const struct cairn_output_options *options, struct cairn_output *output)
{
    struct cairn_deepspeed_target *parts = NULL;
    uint32_t part_count = 0;
    char folder[64] = "";
    cairn_err err = init_parts(checkpoint, options, output, &parts, &part_count);

    if (!err)
        (void)snprintf(folder, sizeof(folder), "global_step%" PRIu64, parts->step);
    for (uint32_t part = 0; part < part_count && !err; part++)
        err = plan_part(&parts[part], folder);
    for (uint32_t part = 0; part < part_count; part++)
        cairn_deepspeed_target_fini(&parts[part]);
    free(parts);
    return err ? err : cairn_output_add_text(output, "latest", folder);
}
