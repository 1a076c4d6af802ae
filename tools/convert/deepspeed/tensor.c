/* tools/convert/deepspeed/tensor.c - files of tensor-parallel ranks, cut as
 * universal_checkpoint_info says. */
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/state/job_file.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/deepspeed/state.h"
#include "tools/convert/torch/carry.h"

static cairn_err
refuse(const struct cairn_deepspeed_target *target, const char *path, const char *why)
{
    return cairn_refuse(target->checkpoint, CAIRN_INVAL, "%s for --tp %" PRIu32 ": %s", path,
                        target->tensor_ranks, why);
}

/* ---- what there shall be ---- */

/* The parameters of the groups become those of a rank. */
static cairn_err
cut_groups(struct cairn_deepspeed_target *target)
{
    struct cairn_deepspeed_groups *groups = &target->groups;

    target->cut_of = calloc((size_t)groups->parameter_count + 1, sizeof(*target->cut_of));
    if (!target->cut_of)
        return CAIRN_NOMEM;
    for (uint32_t g = 0; g < groups->group_count; g++) {
        uint64_t elements = 0, whole = 0;

        for (uint32_t i = 0; i < groups->groups[g].count; i++) {
            uint32_t index = groups->groups[g].first + i;
            struct cairn_deepspeed_parameter *parameter = &groups->parameters[index];
            uint64_t part[CAIRN_DIMS_MAX] = {0};
            const char *why = cairn_deepspeed_cut_whole(&target->cuts, parameter->path,
                                                        parameter->dims, parameter->shape,
                                                        target->padded_rows, target->tensor_ranks,
                                                        target->part, part, &target->cut_of[index]);

            if (why)
                return refuse(target, parameter->path, why);
            whole += parameter->elements;
            memcpy(parameter->shape, part, sizeof(part));
            parameter->elements = cairn_shape_elements(parameter->dims, part);
            parameter->begin = elements;
            elements += parameter->elements;
            if (elements > INT64_MAX / 16)
                return refuse(target, parameter->path, "the parts of its group are too large");
        }
        if (whole != groups->groups[g].elements)
            return refuse(target, "param_alignment_paddings",
                          "parameter_alignment is not written with tensor parallelism");
        groups->groups[g].elements = elements;
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_tensor_plan(struct cairn_deepspeed_target *target,
                            const struct cairn_pickle_node *model, uint32_t wanted, bool flat)
{
    const struct cairn_pickle_node *info = cairn_pickle_get(model, "universal_checkpoint_info");
    const char *why = NULL;
    uint32_t had = target->checkpoint->parallelism.tp;
    cairn_err err;

    if (!cairn_pickle_pairs(info))
        info = NULL;
    target->tensor_ranks = wanted ? wanted : info && had ? had : 1;
    if (!flat && info && (had > 1 || wanted > 1))
        return cairn_refuse(
            target->checkpoint, CAIRN_INVAL,
            "was saved with tensor parallelism, which the universal form cannot have; make "
            "DeepSpeed's own (--to deepspeed --tp 1), then convert those");
    if (target->tensor_ranks == 1)
        return CAIRN_OK;
    if (!info)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "does not say how tensor parallelism cuts its parameters (it has no "
                            "universal_checkpoint_info); leave out --tp, or make new files with "
                            "--job FILE that has \"universal_checkpoint_info\"");
    if (!flat || target->layers.count > 0)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "%s is not written with tensor parallelism; leave out --tp",
                            flat ? "what has experts" : "DeepSpeed's universal form");
    target->part_count = target->tensor_ranks;
    err = cairn_deepspeed_cuts_read(info, &target->cuts, &why);
    if (err)
        return err == CAIRN_VERSION ? refuse(target, "universal_checkpoint_info", why) : err;
    err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_VOCABULARY_ROWS, INT64_MAX,
                                         &target->padded_rows, 1, NULL);
    return !err && target->has_groups ? cut_groups(target) : err;
}

/* ---- objects ---- */

/* Notes the module's parameters and their parts. A tied parameter counts as its original. */
static cairn_err
note_module(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(cairn_pickle_get(root, "module"));
    const struct cairn_pickle_node *buffers = cairn_pickle_get(root, "buffer_names");
    uint32_t tensors = cairn_layout_tensor_count(target->checkpoint->layout), count = 0;

    free(target->cut_at);
    free(target->pieces);
    target->cut_at = calloc((size_t)tensors + 1, sizeof(*target->cut_at));
    target->pieces = calloc((size_t)(pairs ? pairs->count : 0) + 1, sizeof(*target->pieces));
    if (!target->cut_at || !target->pieces)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        uint32_t index = UINT32_MAX;
        struct cairn_deepspeed_piece *piece = &target->pieces[count];
        const struct cairn_tensor *tensor;
        char path[CAIRN_NAME_BYTES_MAX], name[CAIRN_NAME_BYTES_MAX];
        const char *why;

        if (cairn_pickle_tensor_name(pairs->items[2 * i + 1], name))
            index = cairn_layout_tensor_find(target->checkpoint->layout, name);
        if (index == UINT32_MAX || cairn_deepspeed_target_past_alias(target, index) != index ||
            target->cut_at[index] > 0 ||
            !cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) ||
            (cairn_pickle_is_list(buffers) && cairn_job_file_lists(buffers, path)))
            continue;
        tensor = cairn_layout_tensor(target->checkpoint->layout, index);
        why = cairn_deepspeed_cut_whole(&target->cuts, path, tensor->dims, tensor->shape,
                                        target->padded_rows, target->tensor_ranks, target->part,
                                        piece->shape, &piece->cut);
        if (why)
            return refuse(target, path, why);
        target->cut_at[index] = ++count;
    }
    return CAIRN_OK;
}

/* Shapes of frozen parameters for those of a rank. With ZeRO 3 ranks have parts of them by element,
 * which do not go together with parts by dimension here. */
static cairn_err
cut_frozen(struct cairn_deepspeed_target *target, struct cairn_pickle *tree,
           struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *pairs =
        cairn_pickle_pairs(cairn_pickle_get(root, "frozen_param_shapes"));
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *made;

    cairn_torch_builder_init(&builder, tree);
    made = cairn_torch_ordered_dict(&builder);
    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        uint64_t whole[CAIRN_DIMS_MAX], part[CAIRN_DIMS_MAX] = {0};
        struct cairn_deepspeed_cut cut;
        char path[CAIRN_NAME_BYTES_MAX] = "frozen_param_shapes";
        uint32_t dims = 0;
        const char *why = "its shape is none";

        if (cairn_pickle_copy_text(pairs->items[2 * i], path, sizeof(path)) &&
            cairn_torch_read_size(pairs->items[2 * i + 1], whole, &dims))
            why = cairn_deepspeed_cut_whole(&target->cuts, path, dims, whole, target->padded_rows,
                                            target->tensor_ranks, target->part, part, &cut);
        if (!why && target->stage3 && memcmp(whole, part, dims * sizeof(*whole)) != 0)
            why = "it is frozen, which is not written with ZeRO 3";
        if (why)
            return refuse(target, path, why);
        cairn_pickle_put(tree, made, pairs->items[2 * i], cairn_torch_size(&builder, part, dims));
    }
    if (pairs)
        cairn_torch_carry_replace(root, "frozen_param_shapes", made);
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_tensor_object(struct cairn_deepspeed_target *target,
                              struct cairn_opaque_tree *object)
{
    struct cairn_pickle_node *ranks = cairn_pickle_int(&object->tree, target->tensor_ranks);
    cairn_err err = note_module(target, object->root);

    if (!err)
        err = cut_frozen(target, &object->tree, object->root);
    if (target->has_groups)
        cairn_torch_carry_replace(object->root, "param_shapes",
                                  cairn_deepspeed_shapes_node(&target->groups, &object->tree));
    cairn_torch_carry_replace(object->root, "mp_world_size", ranks);
    cairn_torch_carry_replace(cairn_pickle_get(object->root, "checkpoint_parallel_dimensions"),
                              "tp_degree", ranks);
    return err;
}
