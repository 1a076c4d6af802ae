/* tools/convert/deepspeed/optim_object.c - the object of optim_states for a checkpoint that did not
 * come from DeepSpeed: keys in the order in which DeepSpeed writes them; and what both objects are
 * made with. */
#include "tools/convert/deepspeed/objects.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/pickle/write.h"

cairn_err
cairn_deepspeed_objects_copy(struct cairn_deepspeed_objects *objects,
                             const struct cairn_pickle *from, const struct cairn_pickle_node *node,
                             struct cairn_pickle_node **out)
{
    uint8_t *bytes = NULL, *kept;
    size_t bytes_len = 0;
    cairn_err err = cairn_pickle_write(from, node, &bytes, &bytes_len, NULL);

    kept = err ? NULL : cairn_pickle_alloc(&objects->tree, bytes_len);
    if (kept)
        memcpy(kept, bytes, bytes_len);
    free(bytes);
    if (err || !kept)
        return err ? err : CAIRN_NOMEM;
    return cairn_pickle_read(&objects->tree, "param_groups", kept, bytes_len, out, NULL);
}

/* An enum's member by value, which every version of Python reads. */
static struct cairn_pickle_node *
build_stage(struct cairn_deepspeed_objects *objects)
{
    struct cairn_pickle_node *args[1];

    args[0] = cairn_pickle_int(&objects->tree, objects->make->stage);
    return cairn_pickle_object(
        &objects->tree, CAIRN_PICKLE_REDUCE,
        cairn_pickle_global(&objects->tree, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
        cairn_pickle_sequence(&objects->tree, CAIRN_PICKLE_TUPLE, args, 1));
}

/* What does nothing: training in bfloat16 and float32 scales no losses. */
static struct cairn_pickle_node *
build_scaler(struct cairn_deepspeed_objects *objects)
{
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *state = cairn_pickle_dict(tree);
    struct cairn_pickle_node *scaler = cairn_pickle_object(
        tree, CAIRN_PICKLE_NEWOBJ,
        cairn_pickle_global(tree, "deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
        cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, NULL, 0));

    cairn_pickle_set(tree, state, "cur_scale", cairn_pickle_float(tree, 1.0));
    cairn_pickle_set(tree, state, "dynamic", cairn_pickle_bool(tree, false));
    cairn_pickle_build(tree, scaler, state);
    return scaler;
}

/* {number of a buffer: {key: its state}} */
static struct cairn_pickle_node *
build_state(struct cairn_deepspeed_objects *objects)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *state = cairn_pickle_dict(tree);

    for (uint32_t s = 0; s < make->slab_count; s++) {
        struct cairn_pickle_node *entry = cairn_pickle_dict(tree);

        if (!make->has_step)
            cairn_pickle_set(tree, entry, "step", cairn_pickle_int(tree, (int64_t)make->step));
        for (uint32_t k = 0; k < make->key_count; k++) {
            char name[CAIRN_DEEPSPEED_KEY_BYTES_MAX + 16];

            (void)snprintf(name, sizeof(name), "%s/%" PRIu32, make->keys[k].name, s);
            cairn_pickle_set(
                tree, entry, make->keys[k].name,
                cairn_pickle_named(tree, make->keys[k].scalar ? "scalar" : "flat", name));
        }
        cairn_pickle_put(tree, state, cairn_pickle_int(tree, s), entry);
    }
    return state;
}

/* Hyperparameters as they are, with the numbers of the group's buffers for its parameters. */
static cairn_err
build_groups(struct cairn_deepspeed_objects *objects, struct cairn_pickle_node **list)
{
    const struct cairn_deepspeed_make *make = objects->make;
    const struct cairn_pickle_node *groups = make->job.groups;
    struct cairn_pickle *tree = &objects->tree;
    cairn_err err = CAIRN_OK;

    *list = cairn_pickle_list(tree);
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct cairn_pickle_node *group = groups->items[g];
        struct cairn_pickle_node *made = cairn_pickle_dict(tree),
                                 *numbers = cairn_pickle_list(tree);

        for (uint32_t k = 0; k < group->count && !err; k++) {
            const struct cairn_pickle_node *key = group->items[2 * k];
            struct cairn_pickle_node *value = NULL;
            char text[CAIRN_NAME_BYTES_MAX];

            if (cairn_pickle_is_text(key, "params") || cairn_pickle_is_text(key, "param_names") ||
                !cairn_pickle_copy_text(key, text, sizeof(text)))
                continue;
            err = cairn_deepspeed_objects_copy(objects, &make->job.tree, group->items[2 * k + 1],
                                               &value);
            if (!err)
                cairn_pickle_set(tree, made, text, value);
        }
        if (err)
            return err;
        for (uint32_t s = 0; s < make->slab_count; s++)
            if (make->slabs[s].group == g)
                cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, s));
        cairn_pickle_set(tree, made, "params", numbers);
        cairn_pickle_append(tree, *list, made);
    }
    return CAIRN_OK;
}

static struct cairn_pickle_node *
build_masters(struct cairn_deepspeed_objects *objects)
{
    struct cairn_pickle_node *list = cairn_pickle_list(&objects->tree);

    for (uint32_t s = 0; s < objects->make->slab_count; s++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "fp32/%" PRIu32, s);
        cairn_pickle_append(&objects->tree, list, cairn_pickle_named(&objects->tree, "flat", name));
    }
    return list;
}

static struct cairn_pickle_node *
build_counts(struct cairn_deepspeed_objects *objects)
{
    struct cairn_pickle_node *list = cairn_pickle_list(&objects->tree);

    for (uint32_t s = 0; s < objects->make->slab_count; s++)
        cairn_pickle_append(&objects->tree, list, cairn_pickle_int(&objects->tree, 1));
    return list;
}

cairn_err
cairn_deepspeed_objects_optim(struct cairn_deepspeed_objects *objects,
                              struct cairn_pickle_node **root)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *dict = cairn_pickle_dict(tree), *base = cairn_pickle_dict(tree),
                             *groups;
    cairn_err err = build_groups(objects, &groups);

    if (err)
        return err;
    cairn_pickle_set(tree, base, "state", build_state(objects));
    cairn_pickle_set(tree, base, "param_groups", groups);
    if (make->stage == 3)
        cairn_pickle_set(tree, dict, "zero_stage", build_stage(objects));
    if (!make->bf16_optimizer && !make->scaled) { /* else the job's own scale stays what it is */
        cairn_pickle_set(tree, dict, "loss_scaler", build_scaler(objects));
        cairn_pickle_set(tree, dict, "dynamic_loss_scale", cairn_pickle_bool(tree, false));
        cairn_pickle_set(tree, dict, "overflow", cairn_pickle_bool(tree, false));
    }
    if (make->stage == 3) {
        cairn_pickle_set(tree, dict, "partition_count", cairn_pickle_int(tree, 1));
        cairn_pickle_set(tree, dict, "optimizer_state_dict", base);
        cairn_pickle_set(tree, dict, "fp32_flat_groups", build_masters(objects));
    } else {
        cairn_pickle_set(tree, dict, "base_optimizer_state", base);
        cairn_pickle_set(tree, dict, "single_partition_of_fp32_groups", build_masters(objects));
        if (!make->bf16_optimizer)
            cairn_pickle_set(tree, dict, "zero_stage", build_stage(objects));
        cairn_pickle_set(tree, dict, "group_paddings", cairn_pickle_none(tree));
        cairn_pickle_set(tree, dict, "partition_count", build_counts(objects));
        cairn_pickle_set(tree, dict, "ds_version",
                         cairn_pickle_text(tree, CAIRN_DEEPSPEED_FORM_VERSION));
        cairn_pickle_set(tree, dict, "param_slice_mappings", cairn_pickle_none(tree));
    }
    *root = cairn_pickle_dict(tree);
    cairn_pickle_set(tree, *root, "optimizer_state_dict", dict);
    cairn_pickle_set(tree, *root, "ds_config", cairn_pickle_dict(tree));
    cairn_pickle_set(tree, *root, "ds_version",
                     cairn_pickle_text(tree, CAIRN_DEEPSPEED_FORM_VERSION));
    return cairn_pickle_done(tree);
}
