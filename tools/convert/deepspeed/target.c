/* tools/convert/deepspeed/target.c - see deepspeed/target.h. Settles what the files must be (ranks,
 * groups, experts and the order of parameters), by the options and what the source carries. */
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/files.h"

cairn_err
cairn_deepspeed_target_carried(struct cairn_deepspeed_target *target, const char *name)
{
    uint32_t tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);

    return tensor == UINT32_MAX ? CAIRN_OK : cairn_output_add_carried(target->output, tensor);
}

cairn_err
cairn_deepspeed_target_numbers(struct cairn_deepspeed_target *target, const char *name,
                               uint64_t max, uint64_t *numbers, size_t count, bool *said)
{
    cairn_err err = cairn_numbers_load(target->checkpoint, name, max, numbers, count);

    if (said)
        *said = err == CAIRN_OK;
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    return err ? err : cairn_deepspeed_target_carried(target, name);
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

cairn_err
cairn_deepspeed_object_named(struct cairn_deepspeed_target *target, const char *name,
                             struct cairn_opaque_tree *object)
{
    cairn_err err;

    memset(object, 0, sizeof(*object));
    cairn_pickle_init(&object->tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    err = cairn_opaque_read(target->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                            &object->tree, &object->root);
    if (!err)
        err = cairn_deepspeed_target_carried(target, name);
    if (!err && !cairn_pickle_pairs(object->root))
        err = cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "%s: expected a dict", name);
    return err;
}

static bool
has(const struct cairn_deepspeed_target *target, const char *name)
{
    return cairn_layout_tensor_find(target->checkpoint->layout, name) != UINT32_MAX;
}

cairn_err
cairn_deepspeed_object_load(struct cairn_deepspeed_target *target, int which, uint32_t rank,
                            struct cairn_opaque_tree *object)
{
    const char *what = which == 0 ? CAIRN_DEEPSPEED_MODEL : CAIRN_DEEPSPEED_OPTIM;
    char name[CAIRN_NAME_BYTES_MAX];

    cairn_deepspeed_scoped(target->part, rank, what, name);
    if (!has(target, name))
        cairn_deepspeed_scoped(target->part, 0, what, name);
    if (!has(target, name)) /* a tensor-parallel rank that says what the first says */
        cairn_deepspeed_scoped(0, 0, what, name);
    return cairn_deepspeed_object_named(target, name, object);
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
    free(target->left_out);
    memset(target, 0, sizeof(*target));
}

/* Whether a parameter and its master are one tensor of the source, and apart in the files: ZeRO 1
 * and 2 have both, and flat buffers cut a master at other places than the module. */
static bool
is_apart(const struct cairn_deepspeed_target *target, uint32_t tensor, uint32_t of)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    bool master = strncmp(cairn_layout_tensor(layout, tensor)->name, "fp32.", 5) == 0;
    bool of_master = strncmp(cairn_layout_tensor(layout, of)->name, "fp32.", 5) == 0;

    return master ? !of_master : !target->stage3 && of_master;
}

uint32_t
cairn_deepspeed_target_past_alias(const struct cairn_deepspeed_target *target, uint32_t tensor)
{
    uint32_t of = cairn_checkpoint_past_alias(target->checkpoint, tensor);

    return of == tensor || is_apart(target, tensor, of) ? tensor : of;
}

uint32_t
cairn_deepspeed_target_find(const struct cairn_deepspeed_target *target, const char *name)
{
    return cairn_deepspeed_target_past_alias(
        target, cairn_layout_tensor_find(target->checkpoint->layout, name));
}

static cairn_err
read_groups(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *shapes)
{
    const char *why = NULL;
    cairn_err err = cairn_deepspeed_groups_read(shapes, &target->groups, &why);

    return err == CAIRN_CORRUPT
               ? cairn_refuse(target->checkpoint, err, "carried from DeepSpeed: %s", why)
               : err;
}

static cairn_err
read_optimizer(struct cairn_deepspeed_target *target)
{
    const struct cairn_pickle_node *optimizer, *gaps, *base;
    struct cairn_opaque_tree object;
    uint32_t stage = 0;
    cairn_err err = cairn_deepspeed_object_load(target, 1, 0, &object);

    optimizer = err ? NULL : cairn_pickle_get(object.root, "optimizer_state_dict");
    target->stage_known = cairn_deepspeed_stage(cairn_pickle_get(optimizer, "zero_stage"), &stage);
    target->stage3 = stage == 3;
    base = cairn_pickle_get(optimizer, "base_optimizer_state");
    target->elastic = cairn_pickle_is_list(base);
    gaps = cairn_pickle_get(optimizer, "param_alignment_paddings");
    for (uint32_t i = 0; !err && cairn_pickle_is_list(gaps) && i < gaps->count; i++)
        if (i >= target->groups.group_count ||
            !cairn_deepspeed_groups_set_gaps(&target->groups, i, gaps->items[i]))
            err = cairn_refuse(
                target->checkpoint, CAIRN_CORRUPT,
                "carried from DeepSpeed: param_alignment_paddings does not fit param_shapes");
    cairn_opaque_tree_close(&object);
    return err;
}

/* Over how many ranks experts shall be spread: as said, or as the source had it. */
static cairn_err
choose_spread(struct cairn_deepspeed_target *target, uint32_t wanted)
{
    uint64_t bound = 0;
    bool bounded;
    cairn_err err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_EXPERT_RANKS,
                                                   CAIRN_DEEPSPEED_RANKS_MAX, &bound, 1, &bounded);

    if (err)
        return err;
    target->spread = wanted ? wanted : target->checkpoint->parallelism.ep;
    target->spread = target->spread ? target->spread : 1;
    if (!bounded)
        return CAIRN_OK;
    if (bound == 0)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "has layers whose experts were spread over different numbers of ranks, "
                            "which are read and not written");
    target->spread = wanted ? wanted : (uint32_t)bound;
    if (target->spread != bound)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "has groups of experts so large that DeepSpeed splits them by the "
                            "number of ranks that they are spread over, which was %" PRIu64
                            " and stays; use --ep %" PRIu64,
                            bound, bound);
    return CAIRN_OK;
}

/* Whether any stage of the pipeline has experts. */
static bool
has_experts(const struct cairn_layout *layout)
{
    struct cairn_deepspeed_expert expert;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (cairn_deepspeed_expert_in(cairn_layout_tensor(layout, i)->name, &expert))
            return true;
    return false;
}

/* The groups as a rank of the target has them. */
static cairn_err
spread_experts(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *model,
               uint32_t wanted, bool flat)
{
    const struct cairn_pickle_node *first = cairn_pickle_get(cairn_pickle_get(model, "ds_config"),
                                                             "use_data_before_expert_parallelism");
    struct cairn_deepspeed_groups local = {0};
    const char *why = NULL;
    cairn_err err = cairn_deepspeed_layers_of(&target->groups, &target->layers);

    target->spread = 1;
    if (!err && target->layers.count == 0)
        return wanted <= 1 || has_experts(target->checkpoint->layout)
                   ? CAIRN_OK
                   : cairn_refuse(target->checkpoint, CAIRN_INVAL,
                                  "has no layers of experts that DeepSpeed spread over ranks; "
                                  "leave out --ep");
    if (!err && !flat)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "has experts, which DeepSpeed does not load from its universal form; "
                            "write deepspeed, with the --dp and --ep of the job that will load it");
    if (!err)
        err = choose_spread(target, wanted);
    if (!err && target->ranks % target->spread != 0)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "experts cannot be spread over %" PRIu32 " of %" PRIu32
                            " ranks; use a --dp that is a multiple of --ep",
                            target->spread, target->ranks);
    target->groups.data_first = cairn_pickle_is_true(first);
    if (!err)
        err = cairn_deepspeed_experts_spread(&target->groups, &target->layers, target->spread,
                                             &local, &why);
    if (err == CAIRN_VERSION)
        err = cairn_refuse(target->checkpoint, CAIRN_INVAL, "for --ep %" PRIu32 ": %s",
                           target->spread, why);
    if (!err) {
        struct cairn_deepspeed_groups whole = target->groups;

        target->groups = local;
        local = whole;
    }
    cairn_deepspeed_groups_fini(&local);
    return err;
}

/* With round_robin_gradients the order in the buffers of ZeRO 1 and 2 depends on the number of
 * ranks, and DeepSpeed's loader ignores the order in the files. `parallelism` is of those who wrote
 * the files that are read; the number is the job's, also with other formats in between. */
static cairn_err
check_order(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *model, bool flat)
{
    uint64_t ranks = 0;
    char had[32] = "a number of";
    cairn_err err;

    if (target->stage3 || !cairn_deepspeed_takes_turns(model))
        return CAIRN_OK;
    err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_ORDER_RANKS,
                                         CAIRN_DEEPSPEED_RANKS_MAX, &ranks, 1, NULL);
    if (err)
        return err;
    if (!flat && ranks > 0)
        target->ranks = (uint32_t)ranks; /* any may load that form, and its object says whose order
                                          * it has */
    if (!flat || (target->ranks == ranks && (target->layers.count == 0 ||
                                             target->spread == target->checkpoint->parallelism.ep)))
        return CAIRN_OK;
    if (ranks > 0)
        (void)snprintf(had, sizeof(had), "its %" PRIu64, ranks);
    return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                        "was saved with round_robin_gradients, so the order of its parameters "
                        "holds for %s ranks%s and not for %" PRIu32
                        "; convert it to deepspeed-universal",
                        had, ranks > 0 ? "" : " that it does not say", target->ranks);
}

static uint32_t
count_parts(const struct cairn_checkpoint *checkpoint)
{
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t count = 0;

    do {
        cairn_deepspeed_scoped(++count, 0, CAIRN_DEEPSPEED_MODEL, name);
    } while (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX);
    return count;
}

/* A pipeline's parts; later tensor-parallel ranks only have objects that differ. */
static uint32_t
count_stages(const struct cairn_deepspeed_target *target, const struct cairn_pickle_node *model)
{
    static const char layer[] = CAIRN_DEEPSPEED_SCOPE "layer_";
    const struct cairn_layout *layout = target->checkpoint->layout;
    uint64_t degree;

    if (cairn_pickle_u64(cairn_pickle_get(cairn_pickle_get(model, "checkpoint_parallel_dimensions"),
                                          "pp_degree"),
                         &degree))
        return degree > 1 ? target->part_count : 1;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (strncmp(cairn_layout_tensor(layout, i)->name, layer, strlen(layer)) == 0)
            return target->part_count;
    return 1;
}

/* Whether shapes in the object are those of parts. */
static bool
is_old(const struct cairn_pickle_node *model)
{
    const struct cairn_pickle_node *degrees =
        cairn_pickle_get(model, "checkpoint_parallel_dimensions");
    uint64_t degree;

    return cairn_pickle_u64(cairn_pickle_get(degrees, "tp_degree"), &degree) && degree > 1;
}

cairn_err
cairn_deepspeed_target_init(struct cairn_deepspeed_target *target,
                            const struct cairn_checkpoint *checkpoint,
                            const struct cairn_output_options *options, bool flat, uint32_t part,
                            struct cairn_output *output)
{
    const struct cairn_parallelism *wanted = &options->parallelism;
    struct cairn_opaque_tree object = {0};
    const struct cairn_pickle_node *shapes;
    char optim[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    memset(target, 0, sizeof(*target));
    target->checkpoint = checkpoint;
    target->options = options;
    target->output = output;
    target->part = part;
    target->part_count = count_parts(checkpoint);
    target->ranks = wanted->dp ? wanted->dp : checkpoint->parallelism.dp;
    if (target->ranks == 0)
        target->ranks = 1;
    if (!has(target, CAIRN_DEEPSPEED_MODEL))
        return cairn_refuse(checkpoint, CAIRN_INVAL,
                            "did not come from DeepSpeed: the groups of its optimizer are "
                            "unknown; convert a checkpoint that DeepSpeed saved");
    cairn_deepspeed_scoped(part, 0, CAIRN_DEEPSPEED_OPTIM, optim);
    target->has_groups = has(target, optim) || has(target, CAIRN_DEEPSPEED_OPTIM);
    err = cairn_deepspeed_object_load(target, 0, 0, &object);
    if (!err)
        target->part_count = count_stages(target, object.root);
    if (!err && wanted->pp > 0 && wanted->pp != target->part_count)
        err = cairn_complain(
            checkpoint->complaint, CAIRN_INVAL,
            "DeepSpeed's files are written with the pipeline that they had, here of %" PRIu32
            "; leave out --pp",
            target->part_count);
    if (!err && target->part_count > 1 && wanted->tp > 1)
        err = cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "has a pipeline, which is not written with tensor parallelism; leave out --tp");
    if (!err && is_old(object.root))
        err = cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "has data about tensor parallelism that cannot be used; convert what DeepSpeed saved "
            "once more, or make new files: --drop '*deepspeed/*' with --zero and --job");
    shapes = err ? NULL : cairn_pickle_get(object.root, "param_shapes");
    /* a form that always has one has 0 where it was not known */
    if ((checkpoint->step_known && checkpoint->step > 0) ||
        !cairn_pickle_u64(cairn_pickle_get(object.root, "global_steps"), &target->step))
        target->step = checkpoint->step;
    if (!err && target->has_groups)
        err = read_groups(target, shapes);
    if (!err && target->has_groups)
        err = read_optimizer(target);
    if (!err)
        err = spread_experts(target, object.root, wanted->ep, flat);
    if (!err)
        err = cairn_deepspeed_tensor_plan(target, object.root,
                                          target->part_count > 1 ? 1 : wanted->tp, flat);
    target->left_out = calloc((size_t)cairn_layout_tensor_count(checkpoint->layout) + 1,
                              sizeof(*target->left_out));
    if (!target->left_out)
        err = CAIRN_NOMEM;
    if (!err)
        err = check_order(target, object.root, flat);
    if (!err && target->stage3)
        err = cairn_deepspeed_subgroups_plan(target, object.root, flat);
    cairn_opaque_tree_close(&object);
    return err;
}
