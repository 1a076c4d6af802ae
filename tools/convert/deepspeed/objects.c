/* tools/convert/deepspeed/objects.c - the objects of model_states and optim_states for a checkpoint
 * that did not come from DeepSpeed. Keys are in the order in which DeepSpeed writes them. */

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "tools/convert/deepspeed/target.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/deepspeed/make.h"

/* Whose files these are in form; DeepSpeed refuses what says no version. */
#define CAIRN_DEEPSPEED_FORM_VERSION "0.19.8"

/* An enum's member by value, which every version of Python reads. */
static struct cairn_pickle_node *
build_stage(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *args[1];

    args[0] = cairn_pickle_int(&make->job.tree, make->stage);
    return cairn_pickle_object(
        &make->job.tree, CAIRN_PICKLE_REDUCE,
        cairn_pickle_global(&make->job.tree, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
        cairn_pickle_sequence(&make->job.tree, CAIRN_PICKLE_TUPLE, args, 1));
}

/* What does nothing: training in bfloat16 and float32 scales no losses. */
static struct cairn_pickle_node *
build_scaler(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle *tree = &make->job.tree;
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
build_state(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle *tree = &make->job.tree;
    struct cairn_pickle_node *state = cairn_pickle_dict(tree);

    for (uint32_t g = 0; g < make->groups.group_count; g++) {
        struct cairn_pickle_node *entry = cairn_pickle_dict(tree);

        if (!make->has_step)
            cairn_pickle_set(tree, entry, "step", cairn_pickle_int(tree, (int64_t)make->step));
        for (uint32_t k = 0; k < make->key_count; k++)
            cairn_pickle_set(tree, entry, make->keys[k].name,
                             cairn_deepspeed_mark(tree, make->keys[k].scalar ? "scalar" : "flat",
                                                  make->keys[k].name, g));
        cairn_pickle_put(tree, state, cairn_pickle_int(tree, g), entry);
    }
    return state;
}

/* Hyperparameters as they are, with the numbers of the group's buffers for its parameters. */
static struct cairn_pickle_node *
build_groups(struct cairn_deepspeed_make *make)
{
    static const char *const own[] = {"params", "param_names", NULL};
    const struct cairn_pickle_node *groups = make->job.groups;
    struct cairn_pickle *tree = &make->job.tree;
    struct cairn_pickle_node *list = cairn_pickle_list(tree);

    for (uint32_t s = 0; s < groups->count; s++) {
        struct cairn_pickle_node *made = cairn_pickle_dict(tree),
                                 *numbers = cairn_pickle_list(tree);

        cairn_pickle_put_all(tree, made, groups->items[s], own);
        for (uint32_t g = 0; g < make->groups.group_count; g++)
            if (make->setting_of[g] == s)
                cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, g));
        cairn_pickle_set(tree, made, "params", numbers);
        cairn_pickle_append(tree, list, made);
    }
    return list;
}

static struct cairn_pickle_node *
build_counts(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *list = cairn_pickle_list(&make->job.tree);

    for (uint32_t g = 0; g < make->groups.group_count; g++)
        cairn_pickle_append(&make->job.tree, list, cairn_pickle_int(&make->job.tree, 1));
    return list;
}

/* The object of optim_states. CAIRN_NOMEM. */
static cairn_err
objects_optim(struct cairn_deepspeed_make *make, struct cairn_pickle_node **root)
{
    struct cairn_pickle *tree = &make->job.tree;
    struct cairn_pickle_node *dict = cairn_pickle_dict(tree), *base = cairn_pickle_dict(tree),
                             *masters = cairn_deepspeed_masters(tree, make->groups.group_count);

    cairn_pickle_set(tree, base, "state", build_state(make));
    cairn_pickle_set(tree, base, "param_groups", build_groups(make));
    if (make->stage == 3)
        cairn_pickle_set(tree, dict, "zero_stage", build_stage(make));
    if (!make->bf16_optimizer && !make->scaled) { /* else the job's own scale stays what it is */
        cairn_pickle_set(tree, dict, "loss_scaler", build_scaler(make));
        cairn_pickle_set(tree, dict, "dynamic_loss_scale", cairn_pickle_bool(tree, false));
        cairn_pickle_set(tree, dict, "overflow", cairn_pickle_bool(tree, false));
    }
    if (make->stage == 3) {
        cairn_pickle_set(tree, dict, "partition_count", cairn_pickle_int(tree, 1));
        cairn_pickle_set(tree, dict, "optimizer_state_dict", base);
        cairn_pickle_set(tree, dict, "fp32_flat_groups", masters);
    } else {
        cairn_pickle_set(tree, dict, "base_optimizer_state", base);
        cairn_pickle_set(tree, dict, "single_partition_of_fp32_groups", masters);
        if (!make->bf16_optimizer)
            cairn_pickle_set(tree, dict, "zero_stage", build_stage(make));
        cairn_pickle_set(tree, dict, "group_paddings", cairn_pickle_none(tree));
        cairn_pickle_set(tree, dict, "partition_count", build_counts(make));
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

#define SCHEDULER "lr_scheduler."

static const struct cairn_tensor *
tensor_at(const struct cairn_deepspeed_make *make, uint32_t tensor)
{
    return cairn_layout_tensor(make->checkpoint->layout, tensor);
}

static struct cairn_pickle_node *
size_of(struct cairn_deepspeed_make *make, uint32_t tensor)
{
    const struct cairn_tensor *known = tensor_at(make, tensor);

    return cairn_torch_size(&make->builder, known->shape, known->dims);
}

/* ---- model_states ---- */

static struct cairn_pickle_node *
build_module(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *module = cairn_torch_ordered_dict(&make->builder);

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const struct cairn_tensor *tensor = tensor_at(make, i);
        enum cairn_dtype dtype = cairn_output_dtype(make->options, tensor);

        if (make->roles[i] == CAIRN_DEEPSPEED_BESIDE || make->roles[i] == CAIRN_DEEPSPEED_MOMENT)
            continue;
        if (make->stage == 3 && make->roles[i] != CAIRN_DEEPSPEED_BUFFER)
            cairn_pickle_set(
                &make->job.tree, module, tensor->name,
                cairn_pickle_named(&make->job.tree, "empty", cairn_torch_dtype_of(dtype)->name));
        else
            cairn_pickle_set(&make->job.tree, module, tensor->name,
                             cairn_pickle_tensor(&make->job.tree, tensor->name));
    }
    return module;
}

static struct cairn_pickle_node *
build_buffer_names(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *list = cairn_pickle_list(&make->job.tree);

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];

        if (make->roles[i] == CAIRN_DEEPSPEED_BUFFER)
            cairn_pickle_append(&make->job.tree, list,
                                cairn_pickle_text(&make->job.tree, tensor_at(make, i)->name));
    }
    return list;
}

/* Shapes of frozen parameters, or what is saved of them; None with ZeRO 1, which saves them in the
 * module alone. */
static struct cairn_pickle_node *
build_frozen(struct cairn_deepspeed_make *make, bool shapes)
{
    struct cairn_pickle_node *dict;

    if (make->stage == 1)
        return cairn_pickle_none(&make->job.tree);
    dict = cairn_torch_ordered_dict(&make->builder);
    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const char *name = tensor_at(make, i)->name;

        if (make->roles[i] == CAIRN_DEEPSPEED_FROZEN)
            cairn_pickle_set(&make->job.tree, dict, name,
                             shapes ? size_of(make, i)
                                    : cairn_pickle_named(&make->job.tree,
                                                         make->stage == 3 ? "fragment" : "tensor",
                                                         name));
    }
    return dict;
}

/* The parameter that is saved of those that are one tensor of the source; UINT32_MAX. */
static uint32_t
saved_of(const struct cairn_deepspeed_make *make, uint32_t of)
{
    const struct cairn_checkpoint *checkpoint = make->checkpoint;

    if (of < make->tensor_count &&
        (make->roles[of] == CAIRN_DEEPSPEED_TRAINED || make->roles[of] == CAIRN_DEEPSPEED_FROZEN))
        return of;
    for (uint32_t i = 0; i < checkpoint->alias_count; i++)
        if (checkpoint->aliases[i].of == of && checkpoint->aliases[i].tensor < make->tensor_count &&
            make->roles[checkpoint->aliases[i].tensor] == CAIRN_DEEPSPEED_TRAINED)
            return checkpoint->aliases[i].tensor;
    return UINT32_MAX;
}

/* Tied parameters, as the source ties them and as the job says it. */
static struct cairn_pickle_node *
build_shared(struct cairn_deepspeed_make *make)
{
    const struct cairn_checkpoint *checkpoint = make->checkpoint;
    struct cairn_pickle_node *dict = cairn_pickle_dict(&make->job.tree);

    for (uint32_t i = 0; i < checkpoint->alias_count; i++) {
        const struct cairn_alias *alias = &checkpoint->aliases[i];

        uint32_t saved = saved_of(make, alias->of);

        if (alias->tensor < make->tensor_count && saved != UINT32_MAX &&
            make->roles[alias->tensor] == CAIRN_DEEPSPEED_SHARED)
            cairn_pickle_set(&make->job.tree, dict, tensor_at(make, alias->tensor)->name,
                             cairn_pickle_text(&make->job.tree, tensor_at(make, saved)->name));
    }
    for (uint32_t i = 0; make->job.shared && i < make->job.shared->count; i++) {
        char name[CAIRN_NAME_BYTES_MAX], of[CAIRN_NAME_BYTES_MAX];

        if (cairn_pickle_copy_text(make->job.shared->items[2 * i], name, sizeof(name)) &&
            cairn_pickle_copy_text(make->job.shared->items[2 * i + 1], of, sizeof(of)) &&
            !cairn_pickle_get(dict, name))
            cairn_pickle_set(&make->job.tree, dict, name, cairn_pickle_text(&make->job.tree, of));
    }
    return dict;
}

/* What the source's scheduler was, where it is plain data; *dict stays NULL where there is none. */
static cairn_err
read_scheduler(struct cairn_deepspeed_make *make, struct cairn_pickle_node **dict)
{
    static const char end[] = ".pickle";

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const char *name = tensor_at(make, i)->name;
        size_t name_bytes = strlen(name);
        struct cairn_pickle_node *value = NULL;
        char key[CAIRN_NAME_BYTES_MAX];
        cairn_err err;

        if (tensor_at(make, i)->kind != CAIRN_OPAQUE ||
            strncmp(name, SCHEDULER, strlen(SCHEDULER)) != 0 ||
            name_bytes <= strlen(SCHEDULER) + strlen(end) || !cairn_text_ends(name, end))
            continue;
        (void)snprintf(key, sizeof(key), "%.*s",
                       (int)(name_bytes - strlen(SCHEDULER) - strlen(end)),
                       name + strlen(SCHEDULER));
        err = cairn_opaque_read(make->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                                &make->job.tree, &value);
        if (err)
            return err;
        if (!*dict)
            *dict = cairn_pickle_dict(&make->job.tree);
        cairn_pickle_set(&make->job.tree, *dict, key, value);
    }
    return CAIRN_OK;
}

/* The scheduler's state: as said, as the source has it, or what DeepSpeed's and torch's need. */
static cairn_err
build_scheduler(struct cairn_deepspeed_make *make, struct cairn_pickle_node **dict)
{
    struct cairn_pickle *tree = &make->job.tree;
    int64_t step = (int64_t)make->job.step;
    cairn_err err;

    /* the tree is the job's own to share nodes of, only its readers see it as constant */
    *dict = (struct cairn_pickle_node *)(uintptr_t)make->job.lr_scheduler;
    if (*dict)
        return CAIRN_OK;
    err = read_scheduler(make, dict);
    if (err)
        return err;
    if (!*dict)
        *dict = cairn_pickle_dict(tree);
    if (!cairn_pickle_get(*dict, "last_batch_iteration") &&
        !cairn_pickle_get(*dict, "last_epoch")) {
        cairn_pickle_set(tree, *dict, "last_epoch", cairn_pickle_int(tree, step));
        cairn_pickle_set(tree, *dict, "_step_count", cairn_pickle_int(tree, step + 1));
    }
    if (!cairn_pickle_get(*dict, "last_batch_iteration"))
        cairn_pickle_set(tree, *dict, "last_batch_iteration", cairn_pickle_int(tree, step - 1));
    return CAIRN_OK;
}

/* Tensors that are nothing to DeepSpeed. */
static struct cairn_pickle_node *
build_carried(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *carried = NULL;

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        const struct cairn_tensor *tensor = tensor_at(make, make->order[n]);

        if (make->roles[make->order[n]] == CAIRN_DEEPSPEED_BESIDE && tensor->kind != CAIRN_OPAQUE)
            cairn_torch_carried_put(&make->job.tree, &carried, tensor);
    }
    return carried;
}

static struct cairn_pickle_node *
build_degrees(struct cairn_deepspeed_make *make)
{
    struct cairn_pickle_node *dict = cairn_pickle_dict(&make->job.tree);

    cairn_pickle_set(&make->job.tree, dict, "pp_degree", cairn_pickle_int(&make->job.tree, 1));
    cairn_pickle_set(&make->job.tree, dict, "tp_degree", cairn_pickle_int(&make->job.tree, 1));
    return dict;
}

static cairn_err
build_model(struct cairn_deepspeed_make *make, struct cairn_pickle_node **root)
{
    struct cairn_pickle *tree = &make->job.tree;
    static const char *const of_the_job[] = {"affine_map", NULL}; /* that it was taken from */
    struct cairn_pickle_node *dict = *root = cairn_pickle_dict(tree), *scheduler, *carried, *cuts;
    cairn_err err = build_scheduler(make, &scheduler);

    if (err)
        return err;
    cairn_pickle_set(tree, dict, "module", build_module(make));
    cairn_pickle_set(tree, dict, "buffer_names", build_buffer_names(make));
    cairn_pickle_set(tree, dict, "optimizer", cairn_pickle_none(tree));
    cairn_pickle_set(tree, dict, "param_shapes", cairn_deepspeed_shapes_node(&make->groups, tree));
    cairn_pickle_set(tree, dict, "frozen_param_shapes", build_frozen(make, true));
    cairn_pickle_set(tree, dict, "shared_params", build_shared(make));
    cairn_pickle_set(tree, dict, "frozen_param_fragments", build_frozen(make, false));
    cairn_pickle_set(tree, dict, "lr_scheduler", scheduler);
    cairn_pickle_set(tree, dict, "data_sampler", cairn_pickle_none(tree));
    cairn_pickle_set(tree, dict, "random_ltd", cairn_pickle_none(tree));
    cairn_pickle_set(tree, dict, "skipped_steps", cairn_pickle_int(tree, 0));
    cairn_pickle_set(tree, dict, "global_steps", cairn_pickle_int(tree, (int64_t)make->job.step));
    cairn_pickle_set(tree, dict, "dp_world_size", cairn_pickle_int(tree, 1));
    cairn_pickle_set(tree, dict, "mp_world_size", cairn_pickle_int(tree, 1));
    cairn_pickle_set(tree, dict, "checkpoint_parallel_dimensions", build_degrees(make));
    cairn_pickle_set(tree, dict, "ds_config", cairn_pickle_dict(tree));
    cairn_pickle_set(tree, dict, "ds_version",
                     cairn_pickle_text(tree, CAIRN_DEEPSPEED_FORM_VERSION));
    if (make->job.cuts) {
        cuts = cairn_pickle_dict(tree);
        cairn_pickle_put_all(tree, cuts, make->job.cuts, of_the_job);
        cairn_pickle_set(tree, dict, "universal_checkpoint_info", cuts);
    }
    carried = build_carried(make);
    if (carried)
        cairn_pickle_set(tree, dict, CAIRN_DEEPSPEED_CARRIED, carried);
    return cairn_pickle_done(tree);
}

/* ---- both ---- */

static cairn_err
add_object(struct cairn_deepspeed_make *make, const char *name,
           cairn_err (*build)(struct cairn_deepspeed_make *make, struct cairn_pickle_node **root))
{
    struct cairn_pickle_node *root = NULL;
    cairn_err err = build(make, &root);

    if (!err)
        err = cairn_opaque_add(make->checkpoint, name, &make->job.tree, root);
    return cairn_complain_failed(make->checkpoint->complaint, err, "%s: %s cannot be made",
                                 make->checkpoint->place.path, name);
}

cairn_err
cairn_deepspeed_make_objects(struct cairn_deepspeed_make *make)
{
    const struct cairn_tensor *parameter =
        cairn_layout_tensor(make->checkpoint->layout, make->members[0]);
    bool bf16 = cairn_output_dtype(make->options, parameter) == CAIRN_BF16;
    cairn_err err;

    cairn_torch_builder_init(&make->builder, &make->job.tree);
    make->scaled = cairn_output_dtype(make->options, parameter) == CAIRN_F16;
    if (make->scaled && make->stage == 3)
        return cairn_refuse(
            make->checkpoint, CAIRN_INVAL,
            "ZeRO 3 with float16 needs the state of a loss scale, which only DeepSpeed's own "
            "checkpoints have; write BF16 or F32 with --dtype, or ZeRO 2");
    err = add_object(make, CAIRN_DEEPSPEED_MODEL, build_model);
    if (!err)
        err = add_object(make, CAIRN_DEEPSPEED_OPTIM, objects_optim);
    if (!err && bf16) /* what the loader looks for first, where the job trains in bf16 */
        err = cairn_checkpoint_add_opaque(make->checkpoint, CAIRN_DEEPSPEED_PREFIX, "bf16_", 5);
    return err;
}
