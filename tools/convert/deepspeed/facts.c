/* tools/convert/deepspeed/facts.c - what a rank's model_states say of the job: ranks, step, groups
 * of parameters, and how tensor parallelism cuts them. */
#include "tools/convert/deepspeed/facts.h"

#include <inttypes.h>
#include <stdlib.h>

cairn_err
cairn_deepspeed_reading_refuse(const struct cairn_deepspeed_reading *reading, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->where, CAIRN_CORRUPT, "%s", why);
}

static cairn_err
refuse_tensor(const struct cairn_deepspeed_reading *reading, const char *why)
{
    return cairn_refuse_file(
        reading->checkpoint, reading->where, CAIRN_VERSION,
        "is of a job with tensor parallelism, and %s; merge it with the framework "
        "that wrote it",
        why);
}

/* How tensor parallelism cut the parameters, where it alone made the parts. */
static cairn_err
read_cuts(struct cairn_deepspeed_reading *reading, const struct cairn_pickle_node *root,
          uint64_t tensor)
{
    const struct cairn_pickle_node *info = cairn_pickle_get(root, "universal_checkpoint_info");
    struct cairn_deepspeed_state *state = reading->state;
    char name[CAIRN_NAME_BYTES_MAX];
    const char *why = NULL;
    cairn_err err;

    if (!info || info->kind == CAIRN_PICKLE_NONE)
        return refuse_tensor(reading, "does not say how its parameters are cut (it has no "
                                      "universal_checkpoint_info)");
    if (state->layers.count > 0)
        return refuse_tensor(reading,
                             "with DeepSpeed's MoE layers too, which are not read together");
    if (tensor != state->part_count || state->has_layers)
        return refuse_tensor(reading, "with pipeline parallelism too, which is not read together");
    state->cut = true;
    err = cairn_deepspeed_cuts_read(info, &state->cuts, &why);
    if (err)
        return err == CAIRN_VERSION ? refuse_tensor(reading, why) : err;
    if (!cairn_deepspeed_cuts_agree(&state->cuts, info, state->part_count, state->part, name))
        return cairn_refuse_file(
            reading->checkpoint, reading->where, CAIRN_VERSION,
            "affine_map in universal_checkpoint_info says of %s that it "
            "is cut otherwise than in equal "
            "parts along one dimension, or scaled, which is not read; merge it "
            "with the framework that "
            "wrote it",
            name);
    return CAIRN_OK;
}

/* As many parts as the job had, and how they were made. */
static cairn_err
check_degrees(struct cairn_deepspeed_reading *reading, const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *dimensions =
        cairn_pickle_get(root, "checkpoint_parallel_dimensions");
    const struct cairn_deepspeed_state *state = reading->state;
    uint64_t degree, tensor;

    if (cairn_pickle_u64(cairn_pickle_get(root, "mp_world_size"), &degree) &&
        degree != state->part_count)
        return cairn_refuse_file(reading->checkpoint, reading->where, CAIRN_CORRUPT,
                                 "is of a job with model parallelism of %" PRIu64
                                 ", and there are model_states of %" PRIu32
                                 "; copy the others from the nodes that wrote them",
                                 degree, state->part_count);
    if (!cairn_pickle_u64(cairn_pickle_get(dimensions, "tp_degree"), &tensor))
        tensor = state->has_layers ? 1 : state->part_count;
    return tensor == 1 ? CAIRN_OK : read_cuts(reading, root, tensor);
}

/* Experts that DeepSpeed itself spread over ranks: their parameters have the same names on each. */
static cairn_err
check_experts(const struct cairn_deepspeed_reading *reading, const struct cairn_pickle_node *root)
{
    static const char *const keys[] = {"ds_autoep_layers", "autoep_layers", "folding"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
        const struct cairn_pickle_node *said = cairn_pickle_get(root, keys[i]);

        if (said && said->kind != CAIRN_PICKLE_NONE &&
            !(said->kind == CAIRN_PICKLE_LIST && said->count == 0))
            return cairn_refuse_file(
                reading->checkpoint, reading->where, CAIRN_VERSION,
                "is of a job with expert parallelism (%s), which is not read; merge "
                "it with the framework that wrote it",
                keys[i]);
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_reading_refuse_cut(const struct cairn_deepspeed_reading *reading, const char *path,
                                   const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->where, CAIRN_VERSION,
                             "how %s is cut by tensor parallelism: %s", path, why);
}

static cairn_err
cut_parameters(struct cairn_deepspeed_reading *reading)
{
    struct cairn_deepspeed_state *state = reading->state;

    state->cut_of = calloc((size_t)state->groups.parameter_count + 1, sizeof(*state->cut_of));
    if (!state->cut_of)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < state->groups.parameter_count; i++) {
        const struct cairn_deepspeed_parameter *parameter = &state->groups.parameters[i];
        const char *why =
            cairn_deepspeed_cut(&state->cuts, parameter->path, parameter->dims, parameter->shape,
                                state->part_count, state->part, &state->cut_of[i]);

        if (why)
            return cairn_deepspeed_reading_refuse_cut(reading, parameter->path, why);
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_facts_read(struct cairn_deepspeed_reading *reading,
                           const struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *shapes = cairn_pickle_get(root, "param_shapes");
    struct cairn_deepspeed_state *state = reading->state;
    const char *why = NULL;
    uint64_t ranks, step;
    cairn_err err;

    if (!cairn_pickle_pairs(root))
        return cairn_deepspeed_reading_refuse(reading,
                                              "it is not a dict, as DeepSpeed's model_states are");
    if (!cairn_pickle_u64(cairn_pickle_get(root, "dp_world_size"), &ranks) || ranks == 0 ||
        ranks > UINT32_MAX)
        return cairn_deepspeed_reading_refuse(reading, "it has no dp_world_size");
    err = check_degrees(reading, root);
    if (!err)
        err = check_experts(reading, root);
    if (err)
        return err;
    state->ranks = (uint32_t)ranks;
    step = reading->checkpoint->step;
    reading->checkpoint->step_known =
        cairn_pickle_u64(cairn_pickle_get(root, "global_steps"), &reading->checkpoint->step);
    if (state->part > 0 && step != reading->checkpoint->step)
        return cairn_deepspeed_reading_refuse(
            reading, "its global_steps is not that of mp_rank_00's file, so they are of "
                     "different checkpoints; take all of one");
    (void)cairn_pickle_copy_text(cairn_pickle_get(root, "ds_version"), state->version,
                                 sizeof(state->version));
    state->has_groups = shapes && shapes->kind != CAIRN_PICKLE_NONE;
    if (!state->has_groups)
        return CAIRN_OK;
    err = cairn_deepspeed_groups_read(shapes, &state->groups, &why);
    if (err)
        return err == CAIRN_CORRUPT ? cairn_deepspeed_reading_refuse(reading, why) : err;
    err = cairn_deepspeed_experts_in_model(reading->checkpoint, state, root, reading->where);
    return !err && state->cut ? cut_parameters(reading) : err;
}

cairn_err
cairn_deepspeed_facts_compare(const struct cairn_deepspeed_reading *reading,
                              const struct cairn_pickle_node *root)
{
    uint64_t ranks, step;

    if (!cairn_pickle_u64(cairn_pickle_get(root, "dp_world_size"), &ranks) ||
        ranks != reading->state->ranks)
        return cairn_deepspeed_reading_refuse(reading,
                                              "its dp_world_size is not that of rank 0's file");
    if (reading->checkpoint->step_known &&
        (!cairn_pickle_u64(cairn_pickle_get(root, "global_steps"), &step) ||
         step != reading->checkpoint->step))
        return cairn_deepspeed_reading_refuse(
            reading, "its global_steps is not that of rank 0's file, so they are of "
                     "different checkpoints; take all of one");
    return CAIRN_OK;
}
