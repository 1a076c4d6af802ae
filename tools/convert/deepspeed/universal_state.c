/* tools/convert/deepspeed/universal_state.c - zero/optimizer_state.pt: what all parameters of a
 * universal checkpoint share, made into the object of a rank's optim_states again. */
#include "tools/convert/deepspeed/universal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/deepspeed/files.h"
#include "tools/convert/state/param_groups.h"

static void
put_mark(struct cairn_pickle *tree, struct cairn_pickle_node *dict, struct cairn_pickle_node *key,
         const char *word, const char *name, uint32_t group)
{
    struct cairn_pickle_node *value;
    char text[CAIRN_DEEPSPEED_KEY_BYTES_MAX + 16];

    (void)snprintf(text, sizeof(text), "%s/%" PRIu32, name, group);
    value = cairn_pickle_named(tree, word, text);
    if (cairn_pickle_is_list(dict))
        cairn_pickle_append(tree, dict, value);
    else
        cairn_pickle_put(tree, dict, key, value);
}

/* {group: {step, exp_avg, …}} as the optimizer of a rank would say it. */
static struct cairn_pickle_node *
make_states(struct cairn_ds_universal_reading *reading, struct cairn_pickle *tree,
            struct cairn_pickle_node *key_nodes[], const struct cairn_pickle_node *known)
{
    struct cairn_pickle_node *states = cairn_pickle_dict(tree);
    char name[CAIRN_NAME_BYTES_MAX + 8];

    for (uint32_t g = 0; g < reading->state.groups.group_count; g++) {
        struct cairn_pickle_node *state = cairn_pickle_dict(tree);
        const struct cairn_pickle_node *own = cairn_pickle_at(known, g);

        (void)snprintf(
            name, sizeof(name), "step.%s",
            reading->state.groups.groups[g].count
                ? reading->state.groups.parameters[reading->state.groups.groups[g].first].name
                : "");
        if (cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX)
            put_mark(tree, state, cairn_pickle_text(tree, "step"), "scalar", "step", g);
        else if (cairn_pickle_get(own, "step"))
            cairn_pickle_set(tree, state, "step", cairn_pickle_get(own, "step"));
        for (uint32_t k = 0; k < reading->keys.count; k++)
            if (strcmp(reading->keys.keys[k], "fp32") != 0 &&
                strcmp(reading->keys.keys[k], "step") != 0)
                put_mark(tree, state, key_nodes[k], "flat", reading->keys.keys[k], g);
        cairn_pickle_put(tree, states, cairn_pickle_int(tree, g), state);
    }
    return states;
}

/*
 * From optimizer_state.pt the object of a rank's optim_states: what the universal form has taken
 * apart stands in it again as words.
 */
static void
make_optimizer(struct cairn_ds_universal_reading *reading, struct cairn_torch_source *source)
{
    static const char *const taken_apart[] = {"param_groups", "optimizer_state_dict",
                                              "fp32_flat_groups", "ds_config", NULL};
    bool stage3 = reading->state.stage3;
    struct cairn_pickle *tree = &source->torch.tree;
    struct cairn_pickle_node *key_nodes[CAIRN_DEEPSPEED_KEYS_MAX] = {0};
    struct cairn_pickle_node *optimizer = cairn_pickle_dict(tree), *base = cairn_pickle_dict(tree);
    struct cairn_pickle_node *masters = cairn_pickle_list(tree);
    struct cairn_pickle_node *root = cairn_pickle_dict(tree), *groups;
    const struct cairn_pickle_node *inner =
        cairn_pickle_get(source->torch.root, "optimizer_state_dict");

    groups = cairn_pickle_get(source->torch.root, "param_groups");
    for (uint32_t k = 0; k < reading->keys.count; k++)
        key_nodes[k] = cairn_pickle_text(tree, reading->keys.keys[k]);
    for (uint32_t g = 0; g < reading->state.groups.group_count; g++)
        put_mark(tree, masters, NULL, "flat", "fp32", g);
    cairn_pickle_set(tree, base, "state",
                     make_states(reading, tree, key_nodes, cairn_pickle_get(inner, "state")));
    if (groups)
        cairn_pickle_set(tree, base, "param_groups", groups);
    cairn_pickle_put_all(tree, optimizer, source->torch.root, taken_apart);
    if (stage3) /* which itself has no version there */
        cairn_torch_carry_remove(optimizer, "ds_version");
    cairn_pickle_set(tree, optimizer, stage3 ? "optimizer_state_dict" : "base_optimizer_state",
                     base);
    cairn_pickle_set(tree, optimizer,
                     stage3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", masters);
    if (!stage3)
        cairn_pickle_set(tree, optimizer, "param_slice_mappings", cairn_pickle_none(tree));
    cairn_deepspeed_forget(tree, optimizer, "group_paddings");
    cairn_deepspeed_set_ranks(tree, optimizer, "partition_count", 1);
    cairn_pickle_set(tree, root, "optimizer_state_dict", optimizer);
    if (cairn_pickle_get(source->torch.root, "ds_config"))
        cairn_pickle_set(tree, root, "ds_config",
                         cairn_pickle_get(source->torch.root, "ds_config"));
    if (reading->state.version[0])
        cairn_pickle_set(tree, root, "ds_version", cairn_pickle_text(tree, reading->state.version));
    source->torch.root = root;
}

/* Rank 0's own buffers are in the file for ZeRO 3: they are parts of what the folder has whole. */
static void
leave_out_buffers(struct cairn_torch_source *source)
{
    static const char *const paths[] = {"fp32_flat_groups.", "optimizer_state_dict.state."};

    for (uint32_t i = 0; i < source->torch.tensor_count; i++)
        for (size_t p = 0; p < sizeof(paths) / sizeof(paths[0]); p++)
            if (strncmp(source->torch.tensors[i].name, paths[p], strlen(paths[p])) == 0 &&
                source->torch.tensors[i].view.dims == 1)
                cairn_torch_carry_out(&source->torch.tree, source->torch.tensors[i].node, "part",
                                      "");
}

/* Without step.pt the steps are where ZeRO 3 has them. */
static cairn_err
read_inner_steps(struct cairn_ds_universal_reading *reading, struct cairn_torch_source *source)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(
        cairn_pickle_get(cairn_pickle_get(source->torch.root, "optimizer_state_dict"), "state"));
    struct cairn_deepspeed_groups *groups = &reading->state.groups;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        struct cairn_pickle_node *node = cairn_pickle_get(pairs->items[2 * i + 1], "step");
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(source, node);
        char name[CAIRN_NAME_BYTES_MAX + 8];
        uint32_t index = UINT32_MAX;
        uint64_t group;

        if (!tensor || tensor->view.dims != 0 || tensor->view.dtype->dtype == 0 ||
            !cairn_pickle_u64(pairs->items[2 * i], &group) || group >= groups->group_count ||
            groups->groups[group].count == 0)
            continue;
        for (uint32_t p = 0; p < groups->groups[group].count && !err; p++) {
            (void)snprintf(name, sizeof(name), "step.%s",
                           groups->parameters[groups->groups[group].first + p].name);
            if (cairn_layout_tensor_find(reading->checkpoint->layout, name) != UINT32_MAX)
                break; /* it has a step.pt */
            err = cairn_deepspeed_add_scalar(reading->checkpoint, source, tensor, name, &index);
        }
        if (!err)
            cairn_torch_carry_out(&source->torch.tree, node, "part", "");
    }
    return err;
}

cairn_err
cairn_ds_universal_read_state(struct cairn_ds_universal_reading *reading)
{
    struct cairn_torch_source source = {0};
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    cairn_err err =
        cairn_deepspeed_path(reading->folder, "zero/optimizer_state.pt", path, sizeof(path));

    if (!err)
        err = cairn_torch_source_open(reading->checkpoint, path, &source);
    if (!err && !cairn_pickle_pairs(source.torch.root))
        err = cairn_refuse_file(reading->checkpoint, path, CAIRN_CORRUPT, "is not a dict");
    if (!err) {
        reading->state.stage_known = cairn_deepspeed_stage(
            cairn_pickle_get(source.torch.root, "zero_stage"), &reading->state.stage);
        leave_out_buffers(&source);
        err = read_inner_steps(reading, &source);
    }
    if (!err) {
        make_optimizer(reading, &source);
        err = cairn_deepspeed_carry(reading->checkpoint, &reading->state, &source, 1, 0);
    }
    cairn_torch_source_close(&source);
    return err;
}
