/* tools/convert/deepspeed_objects.c - the objects of model_states and optim_states for a checkpoint that did not
 * come from DeepSpeed: keys in the order in which DeepSpeed writes them. */
#include "tools/convert/deepspeed_make.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/deepspeed_plan.h"
#include "tools/convert/param_groups.h"
#include "tools/convert/pickle_read.h"
#include "tools/convert/pickle_write.h"

/* Whose files these are in form; DeepSpeed refuses what says no version. */
#define FORM_VERSION "0.19.8"
#define SCHEDULER "lr_scheduler."

struct objects {
    struct cairn_deepspeed_make *make;
    struct cairn_pickle tree;
    struct cairn_torch_builder builder;
};

static const struct cairn_tensor *
tensor_at(const struct objects *objects, uint32_t tensor)
{
    return cairn_layout_tensor(objects->make->checkpoint->layout, tensor);
}

static void
put(struct objects *objects, struct cairn_pickle_node *dict, const char *key,
    struct cairn_pickle_node *value)
{
    cairn_pickle_put(&objects->tree, dict, cairn_pickle_text(&objects->tree, key), value);
}

static struct cairn_pickle_node *
list_of(struct objects *objects)
{
    return cairn_pickle_sequence(&objects->tree, CAIRN_PICKLE_LIST, NULL, 0);
}

static struct cairn_pickle_node *
size_of(struct objects *objects, uint32_t tensor)
{
    const struct cairn_tensor *known = tensor_at(objects, tensor);

    return cairn_torch_size(&objects->builder, known->shape, known->dims);
}

/* ---- model_states ---- */

static struct cairn_pickle_node *
build_module(struct objects *objects)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle_node *module = cairn_torch_ordered_dict(&objects->builder);

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const struct cairn_tensor *tensor = tensor_at(objects, i);
        enum cairn_dtype dtype = cairn_output_dtype(make->options, tensor);

        if (make->roles[i] == CAIRN_DEEPSPEED_BESIDE || make->roles[i] == CAIRN_DEEPSPEED_MOMENT)
            continue;
        if (make->stage == 3 && make->roles[i] != CAIRN_DEEPSPEED_BUFFER)
            put(objects, module, tensor->name,
                cairn_pickle_named(&objects->tree, "empty", cairn_torch_dtype_of(dtype)->name));
        else
            put(objects, module, tensor->name, cairn_pickle_tensor(&objects->tree, tensor->name));
    }
    return module;
}

static struct cairn_pickle_node *
build_buffer_names(struct objects *objects)
{
    struct cairn_pickle_node *list = list_of(objects);

    for (uint32_t n = 0; n < objects->make->tensor_count; n++) {
        uint32_t i = objects->make->order[n];

        if (objects->make->roles[i] == CAIRN_DEEPSPEED_BUFFER)
            cairn_pickle_append(&objects->tree, list,
                                cairn_pickle_text(&objects->tree, tensor_at(objects, i)->name));
    }
    return list;
}

static struct cairn_pickle_node *
build_shapes(struct objects *objects)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle_node *list = list_of(objects);

    for (uint32_t s = 0; s < make->slab_count; s++) {
        struct cairn_pickle_node *shapes = cairn_torch_ordered_dict(&objects->builder);

        for (uint32_t i = 0; i < make->slabs[s].count; i++) {
            uint32_t member = make->members[make->slabs[s].first + i];

            put(objects, shapes, tensor_at(objects, member)->name, size_of(objects, member));
        }
        cairn_pickle_append(&objects->tree, list, shapes);
    }
    return list;
}

/* Shapes of frozen parameters, or what is saved of them; None with ZeRO 1, which saves them in the module alone. */
static struct cairn_pickle_node *
build_frozen(struct objects *objects, bool shapes)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle_node *dict;

    if (make->stage == 1)
        return cairn_pickle_none(&objects->tree);
    dict = cairn_torch_ordered_dict(&objects->builder);
    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const char *name = tensor_at(objects, i)->name;

        if (make->roles[i] == CAIRN_DEEPSPEED_FROZEN)
            put(objects, dict, name,
                shapes ? size_of(objects, i)
                       : cairn_pickle_named(&objects->tree, make->stage == 3 ? "fragment" : "tensor",
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
build_shared(struct objects *objects)
{
    const struct cairn_deepspeed_make *make = objects->make;
    const struct cairn_checkpoint *checkpoint = make->checkpoint;
    struct cairn_pickle_node *dict = cairn_pickle_dict(&objects->tree);

    for (uint32_t i = 0; i < checkpoint->alias_count; i++) {
        const struct cairn_alias *alias = &checkpoint->aliases[i];

        uint32_t saved = saved_of(make, alias->of);

        if (alias->tensor < make->tensor_count && saved != UINT32_MAX &&
            make->roles[alias->tensor] == CAIRN_DEEPSPEED_SHARED)
            put(objects, dict, tensor_at(objects, alias->tensor)->name,
                cairn_pickle_text(&objects->tree, tensor_at(objects, saved)->name));
    }
    for (uint32_t i = 0; make->job.shared && i < make->job.shared->count; i++) {
        char name[CAIRN_NAME_BYTES_MAX], of[CAIRN_NAME_BYTES_MAX];

        if (cairn_pickle_copy_text(make->job.shared->items[2 * i], name, sizeof(name)) &&
            cairn_pickle_copy_text(make->job.shared->items[2 * i + 1], of, sizeof(of)) &&
            !cairn_pickle_get(dict, name))
            put(objects, dict, name, cairn_pickle_text(&objects->tree, of));
    }
    return dict;
}

/* A copy of what a tree of plain data holds: nodes of two trees are not mixed. */
static cairn_err
copy_node(struct objects *objects, const struct cairn_pickle *from, const struct cairn_pickle_node *node,
          struct cairn_pickle_node **out)
{
    uint8_t *bytes = NULL, *kept;
    size_t bytes_len = 0, taken = 0;
    cairn_err err = cairn_pickle_write(from, node, &bytes, &bytes_len);

    kept = err ? NULL : cairn_pickle_alloc(&objects->tree, bytes_len);
    if (kept)
        memcpy(kept, bytes, bytes_len);
    free(bytes);
    if (err || !kept)
        return err ? err : CAIRN_NOMEM;
    return cairn_pickle_read(&objects->tree, "param_groups", kept, bytes_len, out, &taken);
}

/* What the source's scheduler was, where it is plain data; *dict stays NULL where there is none. */
static cairn_err
read_scheduler(struct objects *objects, struct cairn_pickle_node **dict)
{
    const struct cairn_deepspeed_make *make = objects->make;
    static const char end[] = ".pickle";

    for (uint32_t n = 0; n < make->tensor_count; n++) {
        uint32_t i = make->order[n];
        const char *name = tensor_at(objects, i)->name;
        size_t name_bytes = strlen(name), bytes_len = 0, taken = 0;
        struct cairn_pickle_node *value = NULL;
        char key[CAIRN_NAME_BYTES_MAX];
        uint8_t *loaded = NULL, *kept;
        cairn_err err;

        if (tensor_at(objects, i)->kind != CAIRN_OPAQUE ||
            strncmp(name, SCHEDULER, strlen(SCHEDULER)) != 0 ||
            name_bytes <= strlen(SCHEDULER) + strlen(end) ||
            strcmp(name + name_bytes - strlen(end), end) != 0)
            continue;
        (void)snprintf(key, sizeof(key), "%.*s", (int)(name_bytes - strlen(SCHEDULER) - strlen(end)),
                       name + strlen(SCHEDULER));
        err = cairn_checkpoint_load_opaque(make->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                                           &loaded, &bytes_len, make->complaint);
        kept = err ? NULL : cairn_pickle_alloc(&objects->tree, bytes_len + 1);
        if (kept)
            memcpy(kept, loaded, bytes_len);
        free(loaded);
        if (!err)
            err = kept ? cairn_pickle_read(&objects->tree, name, kept, bytes_len, &value, &taken)
                       : CAIRN_NOMEM;
        if (err)
            return err;
        if (!*dict)
            *dict = cairn_pickle_dict(&objects->tree);
        put(objects, *dict, key, value);
    }
    return CAIRN_OK;
}

/* The scheduler's state: as said, or as the source has it, or what DeepSpeed's own schedulers and those of torch
 * go on by. */
static cairn_err
build_scheduler(struct objects *objects, struct cairn_pickle_node **dict)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle *tree = &objects->tree;
    int64_t step = (int64_t)make->job.step;
    cairn_err err;

    *dict = NULL;
    if (make->job.lr_scheduler)
        return copy_node(objects, &make->job.tree, make->job.lr_scheduler, dict);
    err = read_scheduler(objects, dict);
    if (err)
        return err;
    if (!*dict)
        *dict = cairn_pickle_dict(tree);
    if (!cairn_pickle_get(*dict, "last_batch_iteration") && !cairn_pickle_get(*dict, "last_epoch")) {
        put(objects, *dict, "last_epoch", cairn_pickle_int(tree, step));
        put(objects, *dict, "_step_count", cairn_pickle_int(tree, step + 1));
    }
    if (!cairn_pickle_get(*dict, "last_batch_iteration"))
        put(objects, *dict, "last_batch_iteration", cairn_pickle_int(tree, step - 1));
    return CAIRN_OK;
}

/* Tensors that are nothing to DeepSpeed. */
static struct cairn_pickle_node *
build_carried(struct objects *objects)
{
    static const struct {
        const char *key;
        enum cairn_kind kind;
    } kinds[] = {{"buffer", CAIRN_BUFFER}, {"optimizer", CAIRN_OPTIMIZER}, {"param", CAIRN_PARAM}};
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle_node *carried = NULL;

    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
        struct cairn_pickle_node *dict = NULL;

        for (uint32_t n = 0; n < make->tensor_count; n++) {
            uint32_t i = make->order[n];
            const struct cairn_tensor *tensor = tensor_at(objects, i);

            if (make->roles[i] != CAIRN_DEEPSPEED_BESIDE || tensor->kind != kinds[k].kind)
                continue;
            if (!dict)
                dict = cairn_pickle_dict(&objects->tree);
            put(objects, dict, tensor->name, cairn_pickle_tensor(&objects->tree, tensor->name));
        }
        if (dict && !carried)
            carried = cairn_pickle_dict(&objects->tree);
        if (dict)
            put(objects, carried, kinds[k].key, dict);
    }
    return carried;
}

static struct cairn_pickle_node *
build_degrees(struct objects *objects)
{
    struct cairn_pickle_node *dict = cairn_pickle_dict(&objects->tree);

    put(objects, dict, "pp_degree", cairn_pickle_int(&objects->tree, 1));
    put(objects, dict, "tp_degree", cairn_pickle_int(&objects->tree, 1));
    return dict;
}

static cairn_err
build_model(struct objects *objects, struct cairn_pickle_node **root)
{
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *dict = *root = cairn_pickle_dict(tree), *scheduler, *carried, *cuts = NULL;
    cairn_err err = build_scheduler(objects, &scheduler);

    if (err)
        return err;
    put(objects, dict, "module", build_module(objects));
    put(objects, dict, "buffer_names", build_buffer_names(objects));
    put(objects, dict, "optimizer", cairn_pickle_none(tree));
    put(objects, dict, "param_shapes", build_shapes(objects));
    put(objects, dict, "frozen_param_shapes", build_frozen(objects, true));
    put(objects, dict, "shared_params", build_shared(objects));
    put(objects, dict, "frozen_param_fragments", build_frozen(objects, false));
    put(objects, dict, "lr_scheduler", scheduler);
    put(objects, dict, "data_sampler", cairn_pickle_none(tree));
    put(objects, dict, "random_ltd", cairn_pickle_none(tree));
    put(objects, dict, "skipped_steps", cairn_pickle_int(tree, 0));
    put(objects, dict, "global_steps", cairn_pickle_int(tree, (int64_t)objects->make->job.step));
    put(objects, dict, "dp_world_size", cairn_pickle_int(tree, 1));
    put(objects, dict, "mp_world_size", cairn_pickle_int(tree, 1));
    put(objects, dict, "checkpoint_parallel_dimensions", build_degrees(objects));
    put(objects, dict, "ds_config", cairn_pickle_dict(tree));
    put(objects, dict, "ds_version", cairn_pickle_text(tree, FORM_VERSION));
    if (objects->make->job.cuts) {
        err = copy_node(objects, &objects->make->job.tree, objects->make->job.cuts, &cuts);
        if (err)
            return err;
        cairn_deepspeed_remove(cuts, "affine_map"); /* of the job that it was taken from */
        put(objects, dict, "universal_checkpoint_info", cuts);
    }
    carried = build_carried(objects);
    if (carried)
        put(objects, dict, CAIRN_DEEPSPEED_CARRIED, carried);
    return cairn_pickle_done(tree);
}

/* ---- optim_states ---- */

/* An enum's member by value, which every version of Python reads. */
static struct cairn_pickle_node *
build_stage(struct objects *objects)
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
build_scaler(struct objects *objects)
{
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *state = cairn_pickle_dict(tree);
    struct cairn_pickle_node *scaler = cairn_pickle_object(
        tree, CAIRN_PICKLE_NEWOBJ,
        cairn_pickle_global(tree, "deepspeed.runtime.fp16.loss_scaler", "LossScaler"),
        cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, NULL, 0));

    put(objects, state, "cur_scale", cairn_pickle_float(tree, 1.0));
    put(objects, state, "dynamic", cairn_pickle_bool(tree, false));
    cairn_pickle_build(tree, scaler, state);
    return scaler;
}

/* {number of a buffer: {key: its state}} */
static struct cairn_pickle_node *
build_state(struct objects *objects)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *state = cairn_pickle_dict(tree);

    for (uint32_t s = 0; s < make->slab_count; s++) {
        struct cairn_pickle_node *entry = cairn_pickle_dict(tree);

        if (!make->has_step)
            put(objects, entry, "step", cairn_pickle_int(tree, (int64_t)make->job.step));
        for (uint32_t k = 0; k < make->key_count; k++) {
            char name[CAIRN_DEEPSPEED_KEY_BYTES_MAX + 16];

            (void)snprintf(name, sizeof(name), "%s/%" PRIu32, make->keys[k].name, s);
            put(objects, entry, make->keys[k].name,
                cairn_pickle_named(tree, make->keys[k].scalar ? "scalar" : "flat", name));
        }
        cairn_pickle_put(tree, state, cairn_pickle_int(tree, s), entry);
    }
    return state;
}

/* Hyperparameters as they are, with the numbers of the group's buffers for its parameters. */
static cairn_err
build_groups(struct objects *objects, struct cairn_pickle_node **list)
{
    const struct cairn_deepspeed_make *make = objects->make;
    const struct cairn_pickle_node *groups = make->job.groups;
    struct cairn_pickle *tree = &objects->tree;
    cairn_err err = CAIRN_OK;

    *list = list_of(objects);
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct cairn_pickle_node *group = groups->items[g];
        struct cairn_pickle_node *made = cairn_pickle_dict(tree), *numbers = list_of(objects);

        for (uint32_t k = 0; k < group->count && !err; k++) {
            const struct cairn_pickle_node *key = group->items[2 * k];
            struct cairn_pickle_node *value = NULL;
            char text[CAIRN_NAME_BYTES_MAX];

            if (cairn_pickle_is_text(key, "params") || cairn_pickle_is_text(key, "param_names") ||
                !cairn_pickle_copy_text(key, text, sizeof(text)))
                continue;
            err = copy_node(objects, &make->job.tree, group->items[2 * k + 1], &value);
            if (!err)
                put(objects, made, text, value);
        }
        if (err)
            return err;
        for (uint32_t s = 0; s < make->slab_count; s++)
            if (make->slabs[s].group == g)
                cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, s));
        put(objects, made, "params", numbers);
        cairn_pickle_append(tree, *list, made);
    }
    return CAIRN_OK;
}

static struct cairn_pickle_node *
build_masters(struct objects *objects)
{
    struct cairn_pickle_node *list = list_of(objects);

    for (uint32_t s = 0; s < objects->make->slab_count; s++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "fp32/%" PRIu32, s);
        cairn_pickle_append(&objects->tree, list, cairn_pickle_named(&objects->tree, "flat", name));
    }
    return list;
}

static struct cairn_pickle_node *
build_counts(struct objects *objects)
{
    struct cairn_pickle_node *list = list_of(objects);

    for (uint32_t s = 0; s < objects->make->slab_count; s++)
        cairn_pickle_append(&objects->tree, list, cairn_pickle_int(&objects->tree, 1));
    return list;
}

static cairn_err
build_optim(struct objects *objects, struct cairn_pickle_node **root)
{
    const struct cairn_deepspeed_make *make = objects->make;
    struct cairn_pickle *tree = &objects->tree;
    struct cairn_pickle_node *dict = cairn_pickle_dict(tree), *base = cairn_pickle_dict(tree), *groups;
    cairn_err err = build_groups(objects, &groups);

    if (err)
        return err;
    put(objects, base, "state", build_state(objects));
    put(objects, base, "param_groups", groups);
    if (make->stage == 3)
        put(objects, dict, "zero_stage", build_stage(objects));
    if (!make->bf16_optimizer && !make->scaled) { /* else the job's own scale stays what it is */
        put(objects, dict, "loss_scaler", build_scaler(objects));
        put(objects, dict, "dynamic_loss_scale", cairn_pickle_bool(tree, false));
        put(objects, dict, "overflow", cairn_pickle_bool(tree, false));
    }
    if (make->stage == 3) {
        put(objects, dict, "partition_count", cairn_pickle_int(tree, 1));
        put(objects, dict, "optimizer_state_dict", base);
        put(objects, dict, "fp32_flat_groups", build_masters(objects));
    } else {
        put(objects, dict, "base_optimizer_state", base);
        put(objects, dict, "single_partition_of_fp32_groups", build_masters(objects));
        if (!make->bf16_optimizer)
            put(objects, dict, "zero_stage", build_stage(objects));
        put(objects, dict, "group_paddings", cairn_pickle_none(tree));
        put(objects, dict, "partition_count", build_counts(objects));
        put(objects, dict, "ds_version", cairn_pickle_text(tree, FORM_VERSION));
        put(objects, dict, "param_slice_mappings", cairn_pickle_none(tree));
    }
    *root = cairn_pickle_dict(tree);
    put(objects, *root, "optimizer_state_dict", dict);
    put(objects, *root, "ds_config", cairn_pickle_dict(tree));
    put(objects, *root, "ds_version", cairn_pickle_text(tree, FORM_VERSION));
    return cairn_pickle_done(tree);
}

/* ---- both ---- */

static cairn_err
add_object(struct cairn_deepspeed_make *make, const char *name,
           cairn_err (*build)(struct objects *objects, struct cairn_pickle_node **root))
{
    struct objects objects = {.make = make};
    struct cairn_pickle_node *root = NULL;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    cairn_pickle_init(&objects.tree, 4 * (uint64_t)CAIRN_CONVERT_METADATA_BYTES_MAX);
    cairn_torch_builder_init(&objects.builder, &objects.tree);
    err = build(&objects, &root);
    if (!err)
        err = cairn_pickle_write(&objects.tree, root, &bytes, &bytes_len);
    if (!err)
        err = cairn_checkpoint_add_opaque(make->checkpoint, name, bytes, bytes_len, make->complaint);
    free(bytes);
    cairn_pickle_fini(&objects.tree);
    return err ? cairn_complain(make->complaint, err, "%s: %s cannot be made: %s",
                                make->checkpoint->place.path, name, cairn_err_text(err))
               : CAIRN_OK;
}

cairn_err
cairn_deepspeed_make_objects(struct cairn_deepspeed_make *make)
{
    const struct cairn_tensor *parameter =
        cairn_layout_tensor(make->checkpoint->layout, make->members[0]);
    bool bf16 = cairn_output_dtype(make->options, parameter) == CAIRN_BF16;
    cairn_err err;

    make->scaled = cairn_output_dtype(make->options, parameter) == CAIRN_F16;
    if (make->scaled && make->stage == 3)
        return cairn_complain(make->complaint, CAIRN_INVAL,
                              "%s: ZeRO 3 with float16 needs the state of a loss scale, which only "
                              "DeepSpeed's own checkpoints have; write BF16 or F32 with --dtype, or ZeRO 2",
                              make->checkpoint->place.path);
    err = add_object(make, CAIRN_DEEPSPEED_MODEL, build_model);
    if (!err)
        err = add_object(make, CAIRN_DEEPSPEED_OPTIM, build_optim);
    if (!err && bf16) /* what the loader looks for first, where the job trains in bf16 */
        err = cairn_checkpoint_add_opaque(make->checkpoint, CAIRN_DEEPSPEED_PREFIX, "bf16_", 5,
                                          make->complaint);
    return err;
}
