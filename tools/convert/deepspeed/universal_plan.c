/* tools/convert/deepspeed/universal_plan.c - lays a checkpoint out as DeepSpeed's universal one. */
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
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

/*
 * zero/optimizer_state.pt: ZeRO 1 and 2 look for param_groups and ds_version in it, ZeRO 3 for the
 * step and the param_groups in an optimizer_state_dict of its own. Both are given, so that either
 * can load.
 */
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

cairn_err
cairn_ds_universal_plan(const struct cairn_checkpoint *checkpoint,
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
    if (err)
        return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be laid out",
                                     checkpoint->place.path);
    return cairn_output_add_text(output, "latest_universal", writing.folder);
}
