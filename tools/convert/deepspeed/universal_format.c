/*
 * tools/convert/deepspeed/universal_format.c - DeepSpeed's universal checkpoint.
 *
 *     latest_universal             the name of the folder
 *     zero/<parameter>/<key>.pt    fp32, exp_avg, …: {cat_dim, param: the whole tensor}, or, as
 *                                  DeepSpeed has it for ZeRO 3, the tensor without its shape
 *     zero/<parameter>/step.pt     a number or a tensor of one element; not for ZeRO 3
 *     zero/optimizer_state.pt      what all parameters share
 *     …model_states.pt             copies of what the ranks had
 *
 * The place is the directory with `latest_universal`, or the folder. Shapes come from param_shapes
 * in the model_states. Read into the same canonical names and carried objects as DeepSpeed's own
 * checkpoints (deepspeed/state.h), so that either can be made of the other.
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "snapshot/box.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/deepspeed/files.h"
#include "tools/convert/deepspeed/make.h"
#include "tools/convert/deepspeed/target.h"
#include "tools/convert/state/param_groups.h"

/* DeepSpeed before this read ZeRO 3's tensors without shapes only. */
enum { DICT_MAJOR = 0, DICT_MINOR = 19, DICT_PATCH = 4 };

struct writing {
    struct cairn_deepspeed_target target;
    struct cairn_opaque_tree optim;      /* the carried object */
    struct cairn_pickle_node *optimizer; /* the dict in it */
    const struct cairn_pickle_node *states;
    char folder[64];
    bool bare; /* tensors without shapes */
};

/* Whether the DeepSpeed that wrote the source takes tensors with their shapes. */
static bool
takes_dicts(const struct writing *writing)
{
    char text[32];
    unsigned major = 0, minor = 0, patch = 0;

    if (!writing->target.stage3 ||
        !cairn_pickle_copy_text(cairn_pickle_get(writing->optim.root, "ds_version"), text,
                                sizeof(text)) ||
        sscanf(text, "%u.%u.%u", &major, &minor, &patch) != 3)
        return true;
    if (major != DICT_MAJOR)
        return major > DICT_MAJOR;
    return minor != DICT_MINOR ? minor > DICT_MINOR : patch >= DICT_PATCH;
}

/* ---- a parameter ---- */

/* One file of a parameter, whose object is made by `root` or is the tensor of that name. */
static cairn_err
plan_file(struct writing *writing, const char *parameter, const char *key, const char *tensor,
          const struct cairn_pickle_node *number)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    struct cairn_pickle_node *root, *value;
    struct cairn_pickle tree;
    cairn_err err;

    (void)snprintf(path, sizeof(path), "%s/zero/%s/%s.pt", writing->folder, parameter, key);
    if (!cairn_place_name_check(path))
        return cairn_complain(writing->target.checkpoint->complaint, CAIRN_INVAL,
                              "%s: is not a name that a directory may have", path);
    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    if (number) {
        root = cairn_pickle_int(&tree, number->integer);
    } else {
        root = value = cairn_pickle_named(&tree, writing->bare ? "line" : "tensor", tensor);
        if (!writing->bare && strcmp(key, "step") != 0) {
            root = cairn_pickle_dict(&tree);
            cairn_pickle_set(&tree, root, "cat_dim", cairn_pickle_int(&tree, 0));
            cairn_pickle_set(&tree, root, "param", value);
        }
    }
    err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_deepspeed_target_add(&writing->target, path, &tree, root);
    cairn_pickle_fini(&tree);
    return err;
}

static const struct cairn_pickle_node *
group_state(const struct writing *writing, uint32_t group)
{
    if (cairn_pickle_is_list(writing->states))
        return group < writing->states->count ? writing->states->items[group] : NULL;
    return cairn_pickle_at(writing->states, group);
}

static bool
is_word(const struct cairn_pickle_node *node, const char *word)
{
    char found[CAIRN_PICKLE_WORD_BYTES_MAX];

    return cairn_pickle_read_named(node, found, NULL) && strcmp(found, word) == 0;
}

static cairn_err
plan_parameter(struct writing *writing, uint32_t group,
               const struct cairn_deepspeed_parameter *parameter)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(group_state(writing, group));
    char tensor[CAIRN_NAME_BYTES_MAX + CAIRN_DEEPSPEED_KEY_BYTES_MAX];
    cairn_err err;

    (void)snprintf(tensor, sizeof(tensor), "fp32.%s", parameter->name);
    err = plan_file(writing, parameter->path, "fp32", tensor, NULL);
    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        const struct cairn_pickle_node *value = pairs->items[2 * i + 1];
        char key[CAIRN_DEEPSPEED_KEY_BYTES_MAX];
        bool step;

        if (!cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)))
            continue; /* the reader let none of these through */
        (void)snprintf(tensor, sizeof(tensor), "%s.%s", key, parameter->name);
        step = strcmp(key, "step") == 0 && !writing->bare;
        if (is_word(value, "flat") || (step && is_word(value, "scalar")))
            err = plan_file(writing, parameter->path, key, tensor, NULL);
        else if (step && value->kind == CAIRN_PICKLE_INT)
            err = plan_file(writing, parameter->path, key, tensor, value);
    }
    return err;
}

/* ---- what all parameters share ---- */

/* zero/optimizer_state.pt: ZeRO 1 and 2 look for param_groups and ds_version in it, ZeRO 3 for step
 * and param_groups in an inner optimizer_state_dict. It gets both, so that either can load. */
static cairn_err
plan_optimizer_state(struct writing *writing)
{
    static const char *const left_out[] = {
        "base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups",
        "fp32_flat_groups",     "optimizer_state_dict", NULL};
    struct cairn_pickle *tree = &writing->optim.tree;
    struct cairn_pickle_node *root = cairn_pickle_dict(tree), *inner, *states, *state, *base;
    struct cairn_pickle_node *zero = cairn_pickle_int(tree, 0), *groups;
    const struct cairn_pickle_node *first;
    char path[CAIRN_NAME_BYTES_MAX];

    cairn_pickle_put_all(tree, root, writing->optimizer, left_out);
    base = cairn_pickle_get(writing->optimizer, writing->target.stage3 ? "optimizer_state_dict"
                                                                       : "base_optimizer_state");
    groups = cairn_pickle_get(base, "param_groups");
    if (!groups)
        groups = cairn_pickle_list(tree);
    if (!cairn_pickle_get(root, "ds_version") &&
        cairn_pickle_get(writing->optim.root, "ds_version"))
        cairn_pickle_set(tree, root, "ds_version",
                         cairn_pickle_get(writing->optim.root, "ds_version"));
    if (cairn_pickle_get(writing->optim.root, "ds_config"))
        cairn_pickle_set(tree, root, "ds_config",
                         cairn_pickle_get(writing->optim.root, "ds_config"));
    states = cairn_pickle_dict(tree);
    for (uint32_t g = 0; g < writing->target.groups.group_count; g++) {
        first = cairn_pickle_pairs(group_state(writing, g));
        state = cairn_pickle_dict(tree);
        for (uint32_t i = 0; first && i < first->count; i++)
            if (!is_word(first->items[2 * i + 1], "flat"))
                cairn_pickle_put(tree, state, first->items[2 * i], first->items[2 * i + 1]);
        cairn_pickle_put(tree, states, g == 0 ? zero : cairn_pickle_int(tree, g), state);
    }
    inner = cairn_pickle_dict(tree);
    cairn_pickle_set(tree, inner, "state", states);
    cairn_pickle_set(tree, inner, "param_groups", groups);
    cairn_pickle_set(tree, root, "optimizer_state_dict", inner);
    cairn_pickle_set(tree, root, "param_groups", groups);
    (void)snprintf(path, sizeof(path), "%s/zero/optimizer_state.pt", writing->folder);
    return cairn_deepspeed_target_add(&writing->target, path, tree, root);
}

static cairn_err
plan_all(struct writing *writing)
{
    struct cairn_deepspeed_target *target = &writing->target;
    cairn_err err = CAIRN_OK;

    for (uint32_t g = 0; g < target->groups.group_count && !err; g++)
        for (uint32_t i = 0; i < target->groups.groups[g].count && !err; i++)
            err = plan_parameter(writing, g,
                                 &target->groups.parameters[target->groups.groups[g].first + i]);
    if (!err)
        err = plan_optimizer_state(writing);
    for (uint32_t rank = 0; rank < (target->stage3 ? target->ranks : 1) && !err; rank++) {
        target->rank = rank;
        err = cairn_deepspeed_plan_model(target, writing->folder);
    }
    if (!err)
        err = cairn_deepspeed_plan_rest(target);
    return err ? err : cairn_deepspeed_target_tied(target);
}

/* The same of the universal form. */
static cairn_err
universal_plan(const struct cairn_checkpoint *checkpoint,
               const struct cairn_output_options *options, struct cairn_output *output)
{
    struct writing writing = {0};
    cairn_err err;

    err = cairn_deepspeed_target_init(&writing.target, checkpoint, options, false, 0, output);
    (void)snprintf(writing.folder, sizeof(writing.folder), "global_step%" PRIu64 "_universal",
                   writing.target.step);
    if (!err && writing.target.part_count > 1)
        err = cairn_refuse(checkpoint, CAIRN_INVAL,
                           "is of a pipeline, whose stages a universal checkpoint is not made of "
                           "here; convert it to deepspeed, or to another format");
    if (!err && !writing.target.has_groups)
        err = cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "has no ZeRO optimizer, and a universal checkpoint is made of one's state");
    if (!err)
        err = cairn_deepspeed_target_carried(&writing.target, CAIRN_DEEPSPEED_PREFIX);
    if (!err)
        err = cairn_deepspeed_object_load(&writing.target, 1, 0, &writing.optim);
    if (!err) {
        const struct cairn_pickle_node *base;

        writing.optimizer = cairn_pickle_get(writing.optim.root, "optimizer_state_dict");
        cairn_deepspeed_subgroups_apply(&writing.target, &writing.optim.tree, writing.optimizer);
        base = cairn_pickle_get(writing.optimizer, writing.target.stage3 ? "optimizer_state_dict"
                                                                         : "base_optimizer_state");
        writing.states = cairn_pickle_is_list(base) ? base : cairn_pickle_get(base, "state");
        writing.bare = !takes_dicts(&writing);
        err = cairn_pickle_pairs(writing.optimizer) ? plan_all(&writing) : CAIRN_CORRUPT;
    }
    cairn_opaque_tree_close(&writing.optim);
    cairn_deepspeed_target_fini(&writing.target);
    return err ? err : cairn_output_add_text(output, "latest_universal", writing.folder);
}

/* A folder that is being read. */
struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_deepspeed_state state;
    char folder[CAIRN_NAME_BYTES_MAX];
    struct cairn_deepspeed_keys keys; /* of all parameters */
    bool keys_known;
};

/* {group: {step, exp_avg, …}} as the optimizer of a rank would say it. */
static struct cairn_pickle_node *
make_states(struct reading *reading, struct cairn_pickle *tree,
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
            cairn_pickle_set(tree, state, "step", cairn_deepspeed_mark(tree, "scalar", "step", g));
        else if (cairn_pickle_get(own, "step"))
            cairn_pickle_set(tree, state, "step", cairn_pickle_get(own, "step"));
        for (uint32_t k = 0; k < reading->keys.count; k++)
            if (strcmp(reading->keys.keys[k], "fp32") != 0 &&
                strcmp(reading->keys.keys[k], "step") != 0)
                cairn_pickle_put(tree, state, key_nodes[k],
                                 cairn_deepspeed_mark(tree, "flat", reading->keys.keys[k], g));
        cairn_pickle_put(tree, states, cairn_pickle_int(tree, g), state);
    }
    return states;
}

/* Makes a rank's object of optim_states from optimizer_state.pt, with words for what is apart here.
 * */
static void
make_optimizer(struct reading *reading, struct cairn_torch_source *source)
{
    static const char *const taken_apart[] = {"param_groups", "optimizer_state_dict",
                                              "fp32_flat_groups", "ds_config", NULL};
    bool stage3 = reading->state.stage3;
    struct cairn_pickle *tree = &source->torch.tree;
    struct cairn_pickle_node *key_nodes[CAIRN_DEEPSPEED_KEYS_MAX] = {0};
    struct cairn_pickle_node *optimizer = cairn_pickle_dict(tree), *base = cairn_pickle_dict(tree);
    struct cairn_pickle_node *masters =
        cairn_deepspeed_masters(tree, reading->state.groups.group_count);
    struct cairn_pickle_node *root = cairn_pickle_dict(tree), *groups;
    const struct cairn_pickle_node *inner =
        cairn_pickle_get(source->torch.root, "optimizer_state_dict");

    groups = cairn_pickle_get(source->torch.root, "param_groups");
    for (uint32_t k = 0; k < reading->keys.count; k++)
        key_nodes[k] = cairn_pickle_text(tree, reading->keys.keys[k]);
    cairn_pickle_set(tree, base, "state",
                     make_states(reading, tree, key_nodes, cairn_pickle_get(inner, "state")));
    if (groups)
        cairn_pickle_set(tree, base, "param_groups", groups);
    cairn_pickle_put_all(tree, optimizer, source->torch.root, taken_apart);
    if (stage3) /* which itself has no version there */
        cairn_torch_carry_replace(optimizer, "ds_version", NULL);
    cairn_pickle_set(tree, optimizer, stage3 ? "optimizer_state_dict" : "base_optimizer_state",
                     base);
    cairn_pickle_set(tree, optimizer,
                     stage3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups", masters);
    if (!stage3)
        cairn_pickle_set(tree, optimizer, "param_slice_mappings", cairn_pickle_none(tree));
    cairn_torch_carry_replace(optimizer, "group_paddings", cairn_pickle_none(tree));
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
read_inner_steps(struct reading *reading, struct cairn_torch_source *source)
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

/* Reads zero/optimizer_state.pt, after the parameters: the optimizer's object as it is carried, and
 * the steps where they are nowhere else. Complained about. */
static cairn_err
read_state(struct reading *reading)
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

static bool
probe(const struct cairn_place *place)
{
    return cairn_deepspeed_probe(place, "latest_universal", true);
}

/* ---- a parameter ---- */

/* The file's tensor: the object itself, or what its dict has as `param`; NULL: neither. */
static const struct cairn_torch_tensor *
tensor_of(const struct cairn_torch_source *source)
{
    const struct cairn_pickle_node *root = source->torch.root;
    const struct cairn_pickle_node *param = cairn_pickle_get(root, "param");

    return cairn_torch_source_tensor(source, param ? param : root);
}

static cairn_err
read_tensor(struct reading *reading, const struct cairn_torch_source *source, const char *key,
            const struct cairn_deepspeed_parameter *parameter)
{
    const struct cairn_torch_tensor *tensor = tensor_of(source);
    char name[CAIRN_NAME_BYTES_MAX + CAIRN_DEEPSPEED_KEY_BYTES_MAX];
    uint32_t index = 0;
    bool shaped;
    cairn_err err;

    if (!tensor || !tensor->contiguous || tensor->view.dtype->dtype == 0)
        return cairn_refuse_file(reading->checkpoint, source->path, CAIRN_CORRUPT,
                                 "holds no plain tensor, by itself or as `param`");
    shaped =
        cairn_shape_equal(tensor->view.dims, tensor->view.shape, parameter->dims, parameter->shape);
    if (!shaped && (tensor->view.dims != 1 || tensor->view.shape[0] != parameter->elements))
        return cairn_refuse_file(reading->checkpoint, source->path, CAIRN_CORRUPT,
                                 "has another shape than param_shapes gives %s; the files are of "
                                 "different checkpoints, or of a job with tensor parallelism",
                                 parameter->path);
    (void)snprintf(name, sizeof(name), "%s.%s", key, parameter->name);
    err = cairn_checkpoint_add_tensor(reading->checkpoint, name, tensor->view.dtype->dtype,
                                      CAIRN_OPTIMIZER, parameter->dims, parameter->shape, &index);
    return err ? err
               : cairn_checkpoint_add_box(reading->checkpoint, index, source->container, NULL, NULL,
                                          tensor->at, NULL);
}

/* A step that is a tensor: the first parameter's is the group's, the others must be equal. */
static cairn_err
read_step(struct reading *reading, const struct cairn_torch_source *source, uint32_t group,
          const struct cairn_deepspeed_parameter *parameter)
{
    const struct cairn_deepspeed_parameter *first =
        &reading->state.groups.parameters[reading->state.groups.groups[group].first];
    const struct cairn_torch_tensor *tensor = tensor_of(source);
    struct cairn_deepspeed_scalar scalar = {.key = "step", .group = group};
    char name[CAIRN_NAME_BYTES_MAX + 8];
    uint32_t index;
    uint64_t number = 0;
    cairn_err err = CAIRN_OK;

    if (!tensor && !cairn_pickle_u64(source->torch.root, &number))
        return cairn_refuse_file(reading->checkpoint, source->path, CAIRN_CORRUPT,
                                 "is neither a number nor a tensor of one element");
    if (tensor && (tensor->view.dims != 0 || tensor->view.dtype->dtype == 0))
        return cairn_refuse_file(reading->checkpoint, source->path, CAIRN_CORRUPT,
                                 "is not a tensor of one element");
    if (tensor)
        err = cairn_torch_source_load(reading->checkpoint, source, tensor, scalar.value,
                                      sizeof(scalar.value));
    else
        memcpy(scalar.value, &number, sizeof(number));
    if (!err)
        err = cairn_deepspeed_agree(&reading->state, source->path, parameter == first ? 0 : 1,
                                    &scalar, reading->checkpoint->complaint);
    if (err || !tensor)
        return err;
    (void)snprintf(name, sizeof(name), "step.%s", first->name);
    index = cairn_layout_tensor_find(reading->checkpoint->layout, name);
    (void)snprintf(name, sizeof(name), "step.%s", parameter->name);
    return cairn_deepspeed_add_scalar(reading->checkpoint, source, tensor, name, &index);
}

static cairn_err
read_key(struct reading *reading, uint32_t group, const struct cairn_deepspeed_parameter *parameter,
         const char *key)
{
    char within[CAIRN_FILE_PATH_BYTES_MAX], path[CAIRN_FILE_PATH_BYTES_MAX];
    struct cairn_torch_source source = {0};
    cairn_err err;

    (void)snprintf(within, sizeof(within), "zero/%s/%s.pt", parameter->path, key);
    err = cairn_deepspeed_path(reading->folder, within, path, sizeof(path));
    if (!err)
        err = cairn_torch_source_open(reading->checkpoint, path, &source);
    if (!err)
        err = strcmp(key, "step") == 0 ? read_step(reading, &source, group, parameter)
                                       : read_tensor(reading, &source, key, parameter);
    cairn_torch_source_close(&source);
    return err;
}

/* A file of state in a parameter's folder. The keys are those of the first parameter; what another
 * one lacks is complained about when it is read, what only another one has is here. */
static cairn_err
see_key(struct reading *reading, const char *directory, const char *name)
{
    size_t bytes = strlen(name);

    if (bytes <= 3 || strcmp(name + bytes - 3, ".pt") != 0)
        return CAIRN_OK;
    bytes -= 3;
    if (!memchr(name, '.', bytes) && bytes < CAIRN_DEEPSPEED_KEY_BYTES_MAX &&
        cairn_deepspeed_keys_index(&reading->keys, name, bytes, !reading->keys_known) != UINT32_MAX)
        return CAIRN_OK;
    if (!reading->keys_known || memchr(name, '.', bytes) || bytes >= CAIRN_DEEPSPEED_KEY_BYTES_MAX)
        return cairn_refuse_file(reading->checkpoint, directory, CAIRN_CORRUPT,
                                 "unknown name of optimizer state, or too many: %s", name);
    return cairn_refuse_file(reading->checkpoint, directory, CAIRN_CORRUPT,
                             "%s is there, and %s has no such file; take another copy of that "
                             "folder",
                             name, reading->state.groups.parameters[0].path);
}

static cairn_err
see_keys(struct reading *reading, const char *directory)
{
    char **names = NULL;
    size_t count = 0;
    cairn_err err = cairn_place_list(&reading->checkpoint->place, directory, &names, &count,
                                     reading->checkpoint->complaint);

    for (size_t i = 0; i < count && !err; i++)
        err = see_key(reading, directory, names[i]);
    reading->keys_known = true;
    if (names)
        cairn_dir_list_free(names, count);
    return err;
}

static cairn_err
read_parameters(struct reading *reading)
{
    const struct cairn_deepspeed_groups *groups = &reading->state.groups;
    char within[CAIRN_NAME_BYTES_MAX + 8], directory[CAIRN_FILE_PATH_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    for (uint32_t g = 0; g < groups->group_count; g++) {
        for (uint32_t i = 0; i < groups->groups[g].count; i++) {
            const struct cairn_deepspeed_parameter *parameter =
                &groups->parameters[groups->groups[g].first + i];

            (void)snprintf(within, sizeof(within), "zero/%s", parameter->path);
            if (!cairn_place_name_check(within))
                return cairn_refuse(reading->checkpoint, CAIRN_CORRUPT,
                                    "%s is not a name that a directory may have", within);
            err = cairn_deepspeed_path(reading->folder, within, directory, sizeof(directory));
            if (!err)
                err = see_keys(reading, directory);
            for (uint32_t k = 0; k < reading->keys.count && !err; k++)
                err = read_key(reading, g, parameter, reading->keys.keys[k]);
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}

/* DeepSpeed's converter writes buffers and frozen parameters there too, as copies in fp32. */
static cairn_err
warn_of_others(struct reading *reading)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    char **names = NULL;
    size_t count = 0;
    cairn_err err = cairn_deepspeed_path(reading->folder, "zero", path, sizeof(path));

    if (!err)
        err = cairn_place_list(&reading->checkpoint->place, path, &names, &count,
                               reading->checkpoint->complaint);
    if (!err && count > (size_t)reading->state.groups.parameter_count + 1)
        err = cairn_checkpoint_warn(reading->checkpoint,
                                    "%zu tensors in %s belong to no trained parameter: they are "
                                    "copies of what model_states has, which is read instead",
                                    count - reading->state.groups.parameter_count - 1, path);
    if (names)
        cairn_dir_list_free(names, count);
    return err;
}

/* DeepSpeed looks for files with the prefix first where the job trains in bf16. */
static cairn_err
note_prefix(struct reading *reading)
{
    const struct cairn_pickle_node *config, *bf16, *enabled;
    struct cairn_opaque_tree model;
    cairn_err err = cairn_opaque_tree_open(reading->checkpoint, CAIRN_DEEPSPEED_MODEL, &model);

    config = err ? NULL : cairn_pickle_get(model.root, "ds_config");
    bf16 = cairn_pickle_get(config, "bf16");
    enabled = cairn_pickle_get(bf16 ? bf16 : cairn_pickle_get(config, "bfloat16"), "enabled");
    if (cairn_pickle_is_true(enabled))
        err = cairn_checkpoint_add_opaque(reading->checkpoint, CAIRN_DEEPSPEED_PREFIX, "bf16_", 5);
    cairn_opaque_tree_close(&model);
    return err;
}

static cairn_err
read_all(struct cairn_checkpoint *checkpoint)
{
    struct reading reading = {.checkpoint = checkpoint};
    struct cairn_deepspeed_files files = {0};
    cairn_err err;

    err = cairn_deepspeed_folder(&checkpoint->place, "latest_universal", reading.folder,
                                 checkpoint->complaint);
    if (!err)
        err = cairn_deepspeed_files_list(checkpoint, reading.folder, &files);
    if (!err && (files.part_count > 1 || files.layer_count > 0))
        err = cairn_refuse(checkpoint, CAIRN_VERSION,
                           "is of a job with model parallelism, which is not read in this form; "
                           "convert the checkpoint that it was made of");
    reading.state.stage3 = files.model_by_rank;
    reading.state.part_count = files.part_count;
    for (uint32_t i = 0; i < files.model_count && !err; i++)
        err = cairn_deepspeed_model_read(checkpoint, &reading.state, files.models[i].path, i);
    if (!err && !reading.state.has_groups)
        err = cairn_refuse(checkpoint, CAIRN_CORRUPT,
                           "%s has no param_shapes, so the parameters are unknown",
                           files.models[0].path);
    if (!err)
        err = read_parameters(&reading);
    if (!err)
        err = warn_of_others(&reading);
    if (!err)
        err = read_state(&reading);
    if (!err)
        err = cairn_deepspeed_state_end(checkpoint, &reading.state);
    if (!err)
        err = note_prefix(&reading);
    cairn_deepspeed_files_fini(&files);
    cairn_deepspeed_state_fini(&reading.state);
    return err;
}

/* What is made for another framework's checkpoint is what its own files are made of. */
static cairn_err
prepare(struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options)
{
    cairn_err err = cairn_deepspeed_prepare(checkpoint, options);

    if (!err && options->zero == CAIRN_ZERO_3)
        err = cairn_checkpoint_warn(
            checkpoint,
            "with ZeRO 3 DeepSpeed gives all groups the hyperparameters of the first when it loads "
            "a universal checkpoint; where they differ, set them after loading");
    return err;
}

const struct cairn_format cairn_format_ds_universal = {
    .name = "deepspeed-universal",
    .about = "DeepSpeed's universal checkpoint: a folder per parameter, for any number of ranks",
    .probe = probe,
    .read = read_all,
    .prepare = prepare,
    .plan = universal_plan,
    .finish = cairn_torch_outputs_finish,
    .release = cairn_torch_outputs_release,
};
