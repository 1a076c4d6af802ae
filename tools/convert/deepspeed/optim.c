/* tools/convert/deepspeed/optim.c - a rank's optim_states: its parts of flat buffers, cut into the
 * parameters that they are of. */
#include "tools/convert/deepspeed/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "snapshot/box.h"

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_deepspeed_state *state;
    struct cairn_torch_source source;
    uint32_t rank;
    struct cairn_pickle_node *optimizer; /* the dict in the file */
};

static cairn_err
refuse(const struct reading *reading, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT, "%s", why);
}

static struct cairn_deepspeed_share
share_of(const struct reading *reading, uint32_t group)
{
    return cairn_deepspeed_share(&reading->state->groups, group, reading->state->ranks,
                                 reading->rank);
}

/* The name of a parameter's state. */
static cairn_err
name_state(const struct reading *reading, const char *key,
           const struct cairn_deepspeed_parameter *parameter, uint32_t expert_rank,
           char name[CAIRN_NAME_BYTES_MAX])
{
    if (cairn_deepspeed_state_name(key, parameter, expert_rank, name) != CAIRN_OK)
        return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_VERSION,
                                 "the name %s of parameter %s is longer than %d bytes", key,
                                 parameter->name, CAIRN_NAME_BYTES_MAX - 1);
    return CAIRN_OK;
}

/* Tied parameters are in several stages, cut at other places in each: the first's are read. */
static bool
is_of_another_part(const struct reading *reading, const char *name)
{
    return !reading->state->cut && cairn_layout_tensor_find(reading->checkpoint->layout, name) <
                                       reading->state->first_tensor;
}

/* A tied parameter of this part is the one that the first part has. */
static cairn_err
check_tied(const struct reading *reading, const char *name, enum cairn_dtype dtype,
           const struct cairn_deepspeed_parameter *parameter)
{
    const struct cairn_layout *layout = reading->checkpoint->layout;
    const struct cairn_tensor *known =
        cairn_layout_tensor(layout, cairn_layout_tensor_find(layout, name));

    if (known->dtype == dtype &&
        cairn_shape_equal(known->dims, known->shape, parameter->dims, parameter->shape))
        return CAIRN_OK;
    return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
                             "%s has another type or shape here than in an earlier stage, so the "
                             "files are of different checkpoints; take all of one",
                             name);
}

/* One buffer: a piece for each parameter that the rank has some of. */
static cairn_err
cut_buffer(struct reading *reading, const char *key, uint32_t group,
           const struct cairn_torch_tensor *buffer, uint64_t partition)
{
    const struct cairn_deepspeed_group *known = &reading->state->groups.groups[group];
    size_t element_bytes = buffer->view.dtype->element_bytes;
    struct cairn_deepspeed_share share = share_of(reading, group);
    bool stage3 = reading->state->stage3;
    uint64_t walked = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < known->count && !err; i++) {
        const struct cairn_deepspeed_parameter *parameter =
            &reading->state->groups.parameters[known->first + i];
        uint64_t begin, end, at;
        char name[CAIRN_NAME_BYTES_MAX];
        uint32_t index = 0;

        cairn_deepspeed_part(parameter, stage3, share.ranks, share.rank, partition, &begin, &end,
                             &at);
        if (stage3)
            at = walked;
        walked += cairn_deepspeed_evenly(parameter->elements, share.ranks);
        if (begin == end && share.rank > 0)
            continue;
        err = name_state(reading, key, parameter, share.expert_rank, name);
        if (!err && is_of_another_part(reading, name)) {
            err = check_tied(reading, name, buffer->view.dtype->dtype, parameter);
            continue;
        }
        if (!err)
            err = cairn_checkpoint_add_tensor(reading->checkpoint, name, buffer->view.dtype->dtype,
                                              CAIRN_OPTIMIZER, parameter->dims,
                                              reading->state->cut
                                                  ? reading->state->cut_of[known->first + i].shape
                                                  : parameter->shape,
                                              &index);
        if (!err && reading->state->cut)
            err =
                cairn_deepspeed_cut_add(reading->checkpoint, NULL, index, reading->source.container,
                                        &reading->state->cut_of[known->first + i], parameter, begin,
                                        end, buffer->at + at * element_bytes, element_bytes);
        else if (!err)
            err =
                cairn_checkpoint_add_flat(reading->checkpoint, index, reading->source.container,
                                          NULL, NULL, begin, end, buffer->at + at * element_bytes);
    }
    return err;
}

static cairn_err
read_buffer(struct reading *reading, const char *key, uint32_t group,
            struct cairn_pickle_node *node, const struct cairn_torch_tensor *buffer)
{
    uint64_t partition = cairn_deepspeed_partition(&reading->state->groups, group,
                                                   reading->state->stage3, reading->state->ranks);
    uint64_t lean = reading->state->stage3
                        ? partition
                        : cairn_deepspeed_unpadded(&reading->state->groups, group,
                                                   reading->state->ranks, reading->rank);
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (buffer->view.dims != 1 || !buffer->contiguous || buffer->view.dtype->dtype == 0)
        return refuse(reading, "a flat buffer of the optimizer is not flat");
    if (buffer->view.shape[0] != partition && buffer->view.shape[0] != lean)
        return cairn_refuse_file(
            reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
            "the %s of group %" PRIu32 " has %" PRIu64 " elements, and param_shapes in %" PRIu32
            " ranks makes %" PRIu64 " (%" PRIu64
            " without padding); the file is of another checkpoint",
            key, group, buffer->view.shape[0], reading->state->ranks, partition, lean);
    err = cut_buffer(reading, key, group, buffer, partition);
    (void)snprintf(name, sizeof(name), "%s/%" PRIu32, key, group);
    if (!err)
        cairn_torch_carry_out(&reading->source.torch.tree, node, "flat", name);
    return err;
}

/* ---- what a group has once ---- */

static cairn_err
read_scalar(struct reading *reading, const char *key, uint32_t group,
            struct cairn_pickle_node *node, const struct cairn_torch_tensor *tensor)
{
    const struct cairn_deepspeed_group *known = &reading->state->groups.groups[group];
    struct cairn_deepspeed_scalar scalar = {.group = group};
    struct cairn_deepspeed_share share = share_of(reading, group);
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t first = UINT32_MAX;
    cairn_err err;

    if (known->count == 0 || tensor->view.dtype->dtype == 0)
        return CAIRN_OK; /* carried under its path */
    (void)snprintf(scalar.key, sizeof(scalar.key), "%s", key);
    err = cairn_torch_source_load(reading->checkpoint, &reading->source, tensor, scalar.value,
                                  sizeof(scalar.value));
    if (!err)
        err = cairn_deepspeed_agree(reading->state, reading->source.path, reading->rank, &scalar,
                                    reading->checkpoint->complaint);
    if (!err && share.expert_rank > 0 && share.rank == 0) { /* the first experts' is there */
        err = name_state(reading, key, &reading->state->groups.parameters[known->first], 0, name);
        first = err ? UINT32_MAX : cairn_layout_tensor_find(reading->checkpoint->layout, name);
    }
    for (uint32_t i = 0; i < known->count && !err && share.rank == 0; i++) {
        err = name_state(reading, key, &reading->state->groups.parameters[known->first + i],
                         share.expert_rank, name);
        if (err)
            break;
        if (is_of_another_part(reading, name))
            continue;
        if (first != UINT32_MAX && reading->state->cut && reading->state->part > 0)
            break; /* the first part has said it */
        err =
            cairn_deepspeed_add_scalar(reading->checkpoint, &reading->source, tensor, name, &first);
    }
    (void)snprintf(name, sizeof(name), "%s/%" PRIu32, key, group);
    if (!err)
        cairn_torch_carry_out(&reading->source.torch.tree, node, "scalar", name);
    return err;
}

/* ---- the groups ---- */

static cairn_err
read_group_state(struct reading *reading, uint32_t group, const struct cairn_pickle_node *state)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(state);
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        struct cairn_pickle_node *node = pairs->items[2 * i + 1];
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(&reading->source, node);
        char key[CAIRN_DEEPSPEED_KEY_BYTES_MAX];
        uint64_t number;

        if (!cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)) || !key[0] ||
            strchr(key, '.') || strchr(key, '/'))
            return refuse(reading, "a key of the optimizer's state is not a plain name");
        if (tensor && tensor->view.dims == 0)
            err = read_scalar(reading, key, group, node, tensor);
        else if (tensor)
            err = read_buffer(reading, key, group, node, tensor);
        else if (cairn_pickle_u64(node, &number)) {
            struct cairn_deepspeed_scalar scalar = {.group = group};

            (void)snprintf(scalar.key, sizeof(scalar.key), "%s", key);
            memcpy(scalar.value, &number, sizeof(number));
            err = cairn_deepspeed_agree(reading->state, reading->source.path, reading->rank,
                                        &scalar, reading->checkpoint->complaint);
        }
    }
    return err;
}

/* partition_count: a number, or one per group. */
static bool
counts_ranks(const struct reading *reading, const struct cairn_pickle_node *count)
{
    const struct cairn_deepspeed_groups *groups = &reading->state->groups;
    uint32_t ranks = reading->state->ranks;
    uint64_t number;

    if (!count)
        return true;
    for (uint32_t i = 0; count->kind == CAIRN_PICKLE_LIST && i < count->count; i++)
        if (!cairn_pickle_u64(count->items[i], &number) ||
            number != (i < groups->group_count ? share_of(reading, i).ranks : ranks))
            return false;
    return count->kind == CAIRN_PICKLE_LIST ||
           (cairn_pickle_u64(count, &number) && number == ranks);
}

/* What the file says of its own padding must be what the shapes make it. BF16_Optimizer (without a
 * zero_stage) counts all of it at the last rank. */
static cairn_err
check_paddings(const struct reading *reading)
{
    const struct cairn_pickle_node *paddings =
        cairn_pickle_get(reading->optimizer, "group_paddings");

    if (reading->state->stage3 || !reading->state->stage_known || !paddings ||
        paddings->kind != CAIRN_PICKLE_LIST)
        return CAIRN_OK;
    for (uint32_t i = 0; i < paddings->count && i < reading->state->groups.group_count; i++) {
        uint64_t partition =
            cairn_deepspeed_partition(&reading->state->groups, i, false, reading->state->ranks);
        uint64_t padding =
                     partition - cairn_deepspeed_unpadded(&reading->state->groups, i,
                                                          reading->state->ranks, reading->rank),
                 said;

        if (!cairn_pickle_u64(paddings->items[i], &said) || said != padding)
            return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
                                     "group_paddings of group %" PRIu32 " is not the %" PRIu64
                                     " that param_shapes in %" PRIu32 " ranks makes it",
                                     i, padding, reading->state->ranks);
    }
    return CAIRN_OK;
}

static cairn_err
read_groups(struct reading *reading)
{
    bool stage3 = reading->state->stage3;
    const struct cairn_pickle_node *masters = cairn_pickle_get(
        reading->optimizer, stage3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    const struct cairn_pickle_node *base = cairn_pickle_get(
        reading->optimizer, stage3 ? "optimizer_state_dict" : "base_optimizer_state");
    const struct cairn_pickle_node *states =
        cairn_pickle_is_list(base) ? base : cairn_pickle_get(base, "state");
    cairn_err err = CAIRN_OK;

    if (!cairn_pickle_is_list(masters) || !states)
        return refuse(reading, "it holds no flat fp32 groups, or no state of the optimizer");
    if (masters->count != reading->state->groups.group_count)
        return refuse(reading, "it has another number of groups than param_shapes");
    for (uint32_t i = 0; i < masters->count && !err; i++) {
        const struct cairn_torch_tensor *master =
            cairn_torch_source_tensor(&reading->source, masters->items[i]);

        if (!master)
            return refuse(reading, "a flat fp32 group is not a tensor: state that was offloaded to "
                                   "disk is not in the checkpoint");
        err = read_buffer(reading, "fp32", i, masters->items[i], master);
        if (!err)
            err = read_group_state(reading, i,
                                   states->kind == CAIRN_PICKLE_LIST
                                       ? (i < states->count ? states->items[i] : NULL)
                                       : cairn_pickle_at(states, i));
    }
    return err;
}

/* Rank 0's file has what the groups need beside param_shapes. */
static cairn_err
read_layout(struct reading *reading)
{
    const struct cairn_pickle_node *gaps =
        cairn_pickle_get(reading->optimizer, "param_alignment_paddings");
    struct cairn_deepspeed_groups *groups = &reading->state->groups;
    uint32_t stage = 0;
    bool known;

    known = cairn_deepspeed_stage(cairn_pickle_get(reading->optimizer, "zero_stage"), &stage);
    if (reading->rank > 0) {
        if (known != reading->state->stage_known || (known && stage != reading->state->stage))
            return refuse(reading, "its ZeRO stage is not that of rank 0's file");
        return CAIRN_OK;
    }
    reading->state->stage_known = known;
    reading->state->stage = stage;
    if (reading->state->stage3 != (stage == 3))
        return refuse(reading, "its ZeRO stage is not the one in the names of the files");
    if (cairn_pickle_get(reading->optimizer, "ds_zero_partition_groups"))
        return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_VERSION,
                                 "partitions experts over groups of ranks, which is not supported");
    if (!cairn_pickle_is_list(gaps))
        return CAIRN_OK;
    if (gaps->count != groups->group_count)
        return refuse(reading, "param_alignment_paddings does not fit param_shapes");
    for (uint32_t i = 0; i < gaps->count; i++) {
        uint64_t lean = groups->groups[i].elements;

        if (!cairn_deepspeed_groups_set_gaps(groups, i, gaps->items[i]))
            return refuse(reading, "param_alignment_paddings does not fit param_shapes");
        if (groups->groups[i].count > 0 &&
            groups->parameters[groups->groups[i].first].own_experts > 0 &&
            groups->groups[i].elements != lean)
            return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_VERSION,
                                     "was saved with parameter_alignment, which is not read of "
                                     "experts; load it with DeepSpeed and save it without");
    }
    return CAIRN_OK;
}

/* The object as that of a job whose experts are not spread. */
static cairn_err
gather_experts(struct reading *reading)
{
    struct cairn_deepspeed_groups whole = {0};
    const char *why = NULL;
    cairn_err err = cairn_deepspeed_experts_spread(&reading->state->groups, &reading->state->layers,
                                                   1, &whole, &why);

    if (!err)
        cairn_deepspeed_optim_spread(&reading->source.torch.tree, reading->optimizer, &whole);
    cairn_deepspeed_groups_fini(&whole);
    return err;
}

cairn_err
cairn_deepspeed_optim_read(struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_state *state,
                           const char *path, uint32_t rank)
{
    struct reading reading = {.checkpoint = checkpoint, .state = state, .rank = rank};
    cairn_err err = cairn_torch_source_open(checkpoint, path, &reading.source);

    reading.optimizer = cairn_pickle_get(reading.source.torch.root, "optimizer_state_dict");
    if (!err && !cairn_pickle_pairs(reading.optimizer))
        err = refuse(&reading, "it holds no optimizer_state_dict");
    if (!err)
        err = read_layout(&reading);
    if (!err && !counts_ranks(&reading, cairn_pickle_get(reading.optimizer, "partition_count")))
        err = refuse(&reading, "its partition_count is not the ranks that have the same "
                               "parameters: the file is of another job");
    if (!err)
        err = check_paddings(&reading);
    if (!err)
        err = read_groups(&reading);
    if (!err) {
        struct cairn_pickle *tree = &reading.source.torch.tree;

        cairn_torch_carry_replace(reading.optimizer, "group_paddings", cairn_pickle_none(tree));
        cairn_torch_carry_replace(reading.optimizer, "param_slice_mappings",
                                  cairn_pickle_none(tree));
        cairn_deepspeed_set_ranks(tree, reading.optimizer, "partition_count", 1);
        cairn_torch_carry_replace(cairn_pickle_get(reading.optimizer, "universal_checkpoint_info"),
                                  "affine_map", NULL);
        if (state->layers.count > 0)
            err = gather_experts(&reading);
    }
    if (!err)
        err = cairn_deepspeed_carry(checkpoint, state, &reading.source, 1, rank);
    cairn_torch_source_close(&reading.source);
    return err;
}
