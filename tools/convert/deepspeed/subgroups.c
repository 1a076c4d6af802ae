/*
 * tools/convert/deepspeed/subgroups.c - where ZeRO 3 splits a group of the optimizer into buffers.
 * It goes by what one rank has of the group (sub_group_size), so another number of ranks has other
 * buffers. Notes the size with a checkpoint that is read, and splits again for another number of
 * ranks.
 */
#include "tools/convert/deepspeed/subgroups.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/deepspeed/target.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/files.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/carry.h"

cairn_err
cairn_deepspeed_splits_init(struct cairn_deepspeed_splits *splits, uint32_t parameter_count)
{
    *splits = (struct cairn_deepspeed_splits){
        .groups = calloc((size_t)parameter_count + 1, sizeof(*splits->groups)),
        .setting_of = calloc((size_t)parameter_count + 1, sizeof(*splits->setting_of))};
    return splits->groups && splits->setting_of ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_deepspeed_splits_fini(struct cairn_deepspeed_splits *splits)
{
    free(splits->groups);
    free(splits->setting_of);
    memset(splits, 0, sizeof(*splits));
}

void
cairn_deepspeed_splits_add(struct cairn_deepspeed_splits *splits,
                           const struct cairn_deepspeed_parameter *parameters, uint32_t first,
                           uint32_t end, uint32_t setting, uint64_t size, uint32_t ranks)
{
    uint64_t all = 0, held = 0; /* elements that a rank has; of them, in the buffer so far */
    bool begins = true;

    for (uint32_t i = first; i < end; i++)
        all += cairn_deepspeed_evenly(parameters[i].elements, ranks);
    for (uint32_t i = first; i < end; i++) {
        if (begins) {
            splits->groups[splits->count] = (struct cairn_deepspeed_group){.first = i, .spread = 1};
            splits->setting_of[splits->count++] = setting;
            held = 0;
        }
        splits->groups[splits->count - 1].count++;
        splits->groups[splits->count - 1].elements += parameters[i].elements;
        held += cairn_deepspeed_evenly(parameters[i].elements, ranks);
        begins = size < all && held >= size;
    }
}

/* The sub_group_size in a model_states object's configuration, else DeepSpeed's default. */
static uint64_t
subgroups_size(const struct cairn_pickle_node *model)
{
    const struct cairn_pickle_node *zero =
        cairn_pickle_get(cairn_pickle_get(model, "ds_config"), "zero_optimization");
    const struct cairn_pickle_node *said = cairn_pickle_get(zero, "sub_group_size");
    uint64_t size;

    if (said && said->kind == CAIRN_PICKLE_FLOAT && said->real >= 0 && said->real < 9e15) /* 1e9 */
        return (uint64_t)said->real;
    return cairn_pickle_u64(said, &size) ? size : CAIRN_DEEPSPEED_SUB_GROUP_ELEMENTS;
}

cairn_err
cairn_deepspeed_splits_find(const struct cairn_deepspeed_groups *groups,
                            const struct cairn_pickle_node *settings, uint64_t size, uint32_t ranks,
                            struct cairn_deepspeed_splits *out)
{
    uint32_t buffer = 0;
    bool alike = true;
    cairn_err err = cairn_deepspeed_splits_init(out, groups->parameter_count);

    if (err || !cairn_pickle_is_list(settings))
        return err;
    for (uint32_t s = 0; s < settings->count; s++) {
        const struct cairn_pickle_node *numbers = cairn_pickle_get(settings->items[s], "params");
        const struct cairn_deepspeed_group *had = &groups->groups[buffer], *last;
        uint32_t count = cairn_pickle_is_list(numbers) ? numbers->count : 0, before = out->count;

        if (count > groups->group_count - buffer)
            return CAIRN_OK;
        if (count == 0)
            continue;
        last = &had[count - 1];
        cairn_deepspeed_splits_add(out, groups->parameters, had->first, last->first + last->count,
                                   s, size, ranks);
        alike = alike && (out->count - before == count || (count == 1 && had->count == 0));
        for (uint32_t i = before; alike && i < out->count; i++)
            alike = out->groups[i].count == had[i - before].count;
        buffer += count;
    }
    out->known = buffer == groups->group_count;
    out->alike = alike && out->known;
    return CAIRN_OK;
}

/* The optimizer's groups in an object of optim_states; NULL if there are none. */
static const struct cairn_pickle_node *
subgroups_settings(const struct cairn_pickle_node *object)
{
    const struct cairn_pickle_node *optimizer = cairn_pickle_get(object, "optimizer_state_dict");

    return cairn_pickle_get(cairn_pickle_get(optimizer, "optimizer_state_dict"), "param_groups");
}

cairn_err
cairn_deepspeed_subgroups_note(struct cairn_checkpoint *checkpoint,
                               const struct cairn_deepspeed_state *state,
                               const struct cairn_pickle_node *model)
{
    struct cairn_opaque_tree optim;
    uint64_t size = subgroups_size(model),
             ranks[2] = {state->ranks, state->cut ? state->part_count : 1};
    struct cairn_deepspeed_splits splits = {0};
    cairn_err err;

    if (!state->stage3 || !state->has_groups)
        return CAIRN_OK;
    err = cairn_opaque_tree_open(checkpoint, CAIRN_DEEPSPEED_OPTIM, &optim);
    if (!err)
        err = cairn_deepspeed_splits_find(&state->groups, subgroups_settings(optim.root), size,
                                          state->ranks, &splits);
    if (!err && splits.alike)
        err = cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_SIZE, &size, 1);
    else if (!err)
        err = cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_RANKS, ranks, 2);
    cairn_deepspeed_splits_fini(&splits);
    cairn_opaque_tree_close(&optim);
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}

/* The buffers are those of other ranks, and the size at which they were split is unknown. */
static cairn_err
keep_buffers(struct cairn_deepspeed_target *target, const uint64_t had[2], bool flat)
{
    uint32_t ranks = (uint32_t)had[0], tensor_ranks = (uint32_t)had[1];

    if (ranks == 0)
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "does not say its sub_group_size of ZeRO 3, and was not for %" PRIu32
                            " ranks; convert what DeepSpeed saved once more",
                            target->ranks);
    if (!flat) {
        target->ranks = ranks; /* any may load that form, and its objects say whose buffers they
                                * have */
        return CAIRN_OK;
    }
    if (ranks == target->ranks && tensor_ranks == target->tensor_ranks)
        return CAIRN_OK;
    return cairn_refuse(
        target->checkpoint, CAIRN_INVAL,
        "has other buffers of ZeRO 3 than its sub_group_size makes, so they hold for its %" PRIu32
        " data-parallel and %" PRIu32 " tensor-parallel ranks, not for %" PRIu32 " and %" PRIu32
        "; convert it to deepspeed-universal",
        ranks, tensor_ranks, target->ranks, target->tensor_ranks);
}

cairn_err
cairn_deepspeed_subgroups_plan(struct cairn_deepspeed_target *target,
                               const struct cairn_pickle_node *model, bool flat)
{
    struct cairn_opaque_tree object;
    uint64_t size = subgroups_size(model), said = 0, ranks[2] = {0, 0};
    struct cairn_deepspeed_splits splits = {0};
    bool has_size = false;
    cairn_err err = cairn_deepspeed_object_load(target, 1, 0, &object);

    if (!err)
        err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_SUB_GROUP_SIZE, INT64_MAX,
                                             &said, 1, &has_size);
    if (!err)
        err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_SUB_GROUP_RANKS,
                                             CAIRN_DEEPSPEED_RANKS_MAX, ranks, 2, NULL);
    if (!err)
        err = cairn_deepspeed_splits_find(&target->groups, subgroups_settings(object.root),
                                          has_size ? said : size, target->ranks, &splits);
    if (!err && !splits.alike && splits.known && has_size) {
        free(target->groups.groups); /* parameters keep their order, only ends of groups move */
        target->groups.groups = splits.groups;
        target->groups.group_count = splits.count;
        target->setting_of = splits.setting_of;
        splits = (struct cairn_deepspeed_splits){0};
    } else if (!err && !splits.alike) {
        err = keep_buffers(target, ranks, flat);
    }
    cairn_deepspeed_splits_fini(&splits);
    cairn_opaque_tree_close(&object);
    return err;
}

/* Copies a group's state of a buffer for buffer `number`, which the words in it name. */
static struct cairn_pickle_node *
copy_state(struct cairn_pickle *tree, const struct cairn_pickle_node *state, uint32_t number)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(state);
    struct cairn_pickle_node *made = cairn_pickle_dict(tree);

    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        struct cairn_pickle_node *value = pairs->items[2 * i + 1];
        char word[CAIRN_PICKLE_WORD_BYTES_MAX], key[CAIRN_DEEPSPEED_KEY_BYTES_MAX];

        if (cairn_pickle_read_named(value, word, NULL) &&
            (strcmp(word, "flat") == 0 || strcmp(word, "scalar") == 0) &&
            cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)))
            value = cairn_deepspeed_mark(tree, word, key, number);
        cairn_pickle_put(tree, made, pairs->items[2 * i], value);
    }
    return made;
}

void
cairn_deepspeed_subgroups_apply(const struct cairn_deepspeed_target *target,
                                struct cairn_pickle *tree, struct cairn_pickle_node *optimizer)
{
    struct cairn_pickle_node *base = cairn_pickle_get(optimizer, "optimizer_state_dict");
    const struct cairn_pickle_node *settings = cairn_pickle_get(base, "param_groups"),
                                   *states = cairn_pickle_get(base, "state");
    struct cairn_pickle_node *made = cairn_pickle_dict(tree);
    uint32_t number = 0;

    if (!target->setting_of || !cairn_pickle_is_list(settings))
        return;
    for (uint32_t s = 0; s < settings->count; s++) {
        const struct cairn_pickle_node *known = cairn_pickle_get(settings->items[s], "params");
        struct cairn_pickle_node *numbers = cairn_pickle_list(tree);
        uint64_t first = 0;

        if (!cairn_pickle_is_list(known) || known->count == 0 ||
            !cairn_pickle_u64(known->items[0], &first))
            continue; /* it had no buffer and has none */
        for (; number < target->groups.group_count && target->setting_of[number] == s; number++) {
            cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, number));
            cairn_pickle_put(tree, made, cairn_pickle_int(tree, number),
                             copy_state(tree, cairn_pickle_at(states, first), number));
        }
        cairn_torch_carry_replace(settings->items[s], "params", numbers);
    }
    cairn_torch_carry_replace(optimizer, "fp32_flat_groups",
                              cairn_deepspeed_masters(tree, target->groups.group_count));
    cairn_torch_carry_replace(base, "state", made);
}
