/*
 * tools/convert/deepspeed/subgroups.c - where ZeRO 3 splits a group of the optimizer into buffers.
 * It goes by what one rank has of the group (sub_group_size), so another number of ranks has other
 * buffers. Notes the size with a checkpoint that is read, and splits again for another number of
 * ranks.
 */
#include "tools/convert/deepspeed/subgroups.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/deepspeed/target.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/files.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/carry.h"

bool
cairn_deepspeed_splits_after(struct cairn_deepspeed_splitting *splitting, uint64_t elements)
{
    splitting->held += elements;
    if (splitting->size >= splitting->all || splitting->held < splitting->size)
        return false;
    splitting->held = 0;
    return true;
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

/* Whether buffers [first, first + count) are what DeepSpeed makes of their parameters. */
static bool
fits(const struct cairn_deepspeed_groups *groups, uint32_t first, uint32_t count, uint64_t size,
     uint32_t ranks)
{
    struct cairn_deepspeed_splitting splitting = {.size = size};

    for (uint32_t g = first; g < first + count; g++)
        splitting.all += cairn_deepspeed_partition(groups, g, true, ranks);
    if (size >= splitting.all)
        return count <= 1;
    for (uint32_t g = first; g < first + count; g++) {
        const struct cairn_deepspeed_group *group = &groups->groups[g];

        for (uint32_t i = 0; i < group->count; i++) {
            uint64_t elements =
                cairn_deepspeed_evenly(groups->parameters[group->first + i].elements, ranks);
            bool ends = i + 1 == group->count, last = ends && g + 1 == first + count;

            if ((cairn_deepspeed_splits_after(&splitting, elements) || last) != ends)
                return false;
        }
    }
    return true;
}

bool
cairn_deepspeed_subgroups_fit(const struct cairn_deepspeed_groups *groups,
                              const struct cairn_pickle_node *settings, uint64_t size,
                              uint32_t ranks, bool *known)
{
    uint32_t first = 0;
    bool alike = true;

    *known = false;
    if (!cairn_pickle_is_list(settings))
        return false;
    for (uint32_t i = 0; i < settings->count; i++) {
        const struct cairn_pickle_node *buffers = cairn_pickle_get(settings->items[i], "params");
        uint32_t count = cairn_pickle_is_list(buffers) ? buffers->count : 0;

        if (count > groups->group_count - first)
            return false;
        alike = alike && fits(groups, first, count, size, ranks);
        first += count;
    }
    *known = first == groups->group_count;
    return alike && *known;
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
    bool known;
    cairn_err err;

    if (!state->stage3 || !state->has_groups)
        return CAIRN_OK;
    err = cairn_opaque_tree_open(checkpoint, CAIRN_DEEPSPEED_OPTIM, &optim);
    if (!err && cairn_deepspeed_subgroups_fit(&state->groups, subgroups_settings(optim.root), size,
                                              state->ranks, &known))
        err = cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_SIZE, &size, 1);
    else if (!err)
        err = cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_SUB_GROUP_RANKS, ranks, 2);
    cairn_opaque_tree_close(&optim);
    return err == CAIRN_NOT_FOUND ? CAIRN_OK : err;
}

/* Cuts one setting's parameters [first, end) into buffers behind the `count` that there are. */
static uint32_t
cut_setting(struct cairn_deepspeed_target *target, uint32_t setting, uint32_t first, uint32_t end,
            uint64_t size, struct cairn_deepspeed_group *made, uint32_t count)
{
    const struct cairn_deepspeed_parameter *parameters = target->groups.parameters;
    struct cairn_deepspeed_splitting splitting = {.size = size};
    bool begins = true;

    for (uint32_t i = first; i < end; i++)
        splitting.all += cairn_deepspeed_evenly(parameters[i].elements, target->ranks);
    for (uint32_t i = first; i < end; i++) {
        if (begins) {
            made[count] = (struct cairn_deepspeed_group){.first = i, .spread = 1};
            target->setting_of[count++] = setting;
        }
        made[count - 1].count++;
        made[count - 1].elements += parameters[i].elements;
        begins = cairn_deepspeed_splits_after(
            &splitting, cairn_deepspeed_evenly(parameters[i].elements, target->ranks));
    }
    return count;
}

/* Makes the buffers for so many ranks: parameters keep their order, only ends of groups move. */
static cairn_err
split_anew(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *settings,
           uint64_t size)
{
    struct cairn_deepspeed_groups *groups = &target->groups;
    struct cairn_deepspeed_group *made = calloc((size_t)groups->parameter_count + 1, sizeof(*made));
    uint32_t count = 0, buffer = 0;

    target->setting_of = calloc((size_t)groups->parameter_count + 1, sizeof(*target->setting_of));
    if (!made || !target->setting_of) {
        free(made);
        return CAIRN_NOMEM;
    }
    for (uint32_t s = 0; s < settings->count; s++) {
        uint32_t buffers = cairn_pickle_get(settings->items[s], "params")->count;
        const struct cairn_deepspeed_group *last =
            &groups->groups[buffer + buffers - (buffers > 0)];

        if (buffers > 0)
            count = cut_setting(target, s, groups->groups[buffer].first, last->first + last->count,
                                size, made, count);
        buffer += buffers;
    }
    free(groups->groups);
    groups->groups = made;
    groups->group_count = count;
    return CAIRN_OK;
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
    const struct cairn_pickle_node *settings;
    struct cairn_opaque_tree object;
    uint64_t size = subgroups_size(model), said = 0, ranks[2] = {0, 0};
    bool known = false, has_size = false;
    cairn_err err = cairn_deepspeed_object_load(target, 1, 0, &object);

    if (!err)
        err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_SUB_GROUP_SIZE, INT64_MAX,
                                             &said, 1, &has_size);
    if (!err)
        err = cairn_deepspeed_target_numbers(target, CAIRN_DEEPSPEED_SUB_GROUP_RANKS,
                                             CAIRN_DEEPSPEED_RANKS_MAX, ranks, 2, NULL);
    settings = err ? NULL : subgroups_settings(object.root);
    if (!err && has_size)
        size = said;
    if (!err &&
        !cairn_deepspeed_subgroups_fit(&target->groups, settings, size, target->ranks, &known))
        err = known && has_size ? split_anew(target, settings, size)
                                : keep_buffers(target, ranks, flat);
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
        char word[CAIRN_PICKLE_WORD_BYTES_MAX], key[CAIRN_DEEPSPEED_KEY_BYTES_MAX],
            name[CAIRN_DEEPSPEED_KEY_BYTES_MAX + 16];

        if (cairn_pickle_read_named(value, word, NULL) &&
            (strcmp(word, "flat") == 0 || strcmp(word, "scalar") == 0) &&
            cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key))) {
            (void)snprintf(name, sizeof(name), "%s/%" PRIu32, key, number);
            value = cairn_pickle_named(tree, word, name);
        }
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
    struct cairn_pickle_node *masters = cairn_pickle_list(tree);
    struct cairn_pickle_node *made = cairn_pickle_dict(tree);
    uint32_t number = 0;
    char name[32];

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
            (void)snprintf(name, sizeof(name), "fp32/%" PRIu32, number);
            cairn_pickle_append(tree, masters, cairn_pickle_named(tree, "flat", name));
            cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, number));
            cairn_pickle_put(tree, made, cairn_pickle_int(tree, number),
                             copy_state(tree, cairn_pickle_at(states, first), number));
        }
        cairn_torch_carry_replace(settings->items[s], "params", numbers);
    }
    cairn_torch_carry_replace(optimizer, "fp32_flat_groups", masters);
    cairn_torch_carry_replace(base, "state", made);
}
