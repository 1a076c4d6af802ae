/* tools/convert/megatron/plain.c - optimizers that are not distributed, read and written. */
#include "tools/convert/megatron/plain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"

#define MASTERS "fp32_from_fp16_params"

/* What torch keeps for a parameter, in its order. */
static const char *const state_keys[] = {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq",
                                         "momentum_buffer"};
enum { STATE_KEY_COUNT = sizeof(state_keys) / sizeof(state_keys[0]) };

/* The dict with "state" and "param_groups". */
static struct cairn_pickle_node *
inner_of(const struct cairn_pickle_node *optimizer)
{
    struct cairn_pickle_node *inner = cairn_pickle_get(optimizer, "optimizer");

    return inner ? inner : (struct cairn_pickle_node *)optimizer;
}

bool
cairn_megatron_plain(const struct cairn_pickle_node *optimizer)
{
    if (cairn_pickle_is_list(optimizer) && optimizer->count > 0)
        optimizer = optimizer->items[0];
    return cairn_pickle_pairs(optimizer) && cairn_pickle_pairs(inner_of(optimizer)) &&
           cairn_pickle_get(inner_of(optimizer), "state");
}

/* Whether a group is the one without weight decay; false: it does not say. */
static bool
without_decay(const struct cairn_pickle_node *group, bool *without)
{
    const struct cairn_pickle_node *times = cairn_pickle_get(group, "wd_mult");

    if (times && times->kind == CAIRN_PICKLE_FLOAT)
        *without = times->real == 0;
    else if (times && times->kind == CAIRN_PICKLE_INT)
        *without = times->integer == 0;
    else
        return false;
    return true;
}

static bool
is_member(const struct cairn_megatron_part *part, bool expert, bool without)
{
    return !part->buffer && part->expert == expert && (part->dims == 1) == without;
}

/* ---- reading ---- */

/* Where the state of one parameter is. */
struct member {
    uint32_t part;
    struct cairn_pickle_node *master; /* NULL: it is its own */
    struct cairn_pickle_node *states[STATE_KEY_COUNT];
};

static struct cairn_pickle_node *
at_number(const struct cairn_pickle_node *dict, const struct cairn_pickle_node *number)
{
    uint64_t wanted;

    return cairn_pickle_u64(number, &wanted) ? cairn_pickle_at(dict, wanted) : NULL;
}

static bool
fits(const struct cairn_torch_source *source, const struct cairn_pickle_node *node,
     const struct cairn_megatron_part *part)
{
    const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(source, node);

    return tensor && tensor->view.dtype->dtype != 0 &&
           cairn_shape_equal(tensor->view.dims, tensor->view.shape, part->dims, part->shape);
}

/* Sorts one parameter's state; false for what is not known here. */
static bool
take_states(const struct cairn_torch_source *source, const struct cairn_pickle_node *states,
            const struct cairn_megatron_part *part, struct member *member)
{
    states = cairn_pickle_pairs(states);
    for (uint32_t i = 0; states && i < states->count; i++) {
        struct cairn_pickle_node *node = states->items[2 * i + 1];
        const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(source, node);
        size_t key = 0;

        while (key < STATE_KEY_COUNT &&
               !cairn_pickle_is_text(states->items[2 * i], state_keys[key]))
            key++;
        if (key == STATE_KEY_COUNT || !tensor ||
            (!fits(source, node, part) && tensor->view.dims != 0))
            return false;
        member->states[key] = node;
    }
    return states != NULL;
}

/* Gives the state of every part, in members[part_count]; false if groups and parts disagree. */
static bool
match(const struct cairn_megatron_state *state, const struct cairn_torch_source *source,
      const struct cairn_pickle_node *optimizer, bool expert, struct member *members,
      uint32_t *count)
{
    const struct cairn_pickle_node *inner = inner_of(optimizer);
    const struct cairn_pickle_node *groups = cairn_pickle_get(inner, "param_groups");
    const struct cairn_pickle_node *masters = cairn_pickle_get(optimizer, MASTERS);
    bool seen[2] = {false, false};

    *count = 0;
    if (!cairn_pickle_is_list(groups) ||
        (masters && (masters->kind != CAIRN_PICKLE_LIST || masters->count != groups->count)))
        return false;
    for (uint32_t g = 0; g < groups->count; g++) {
        const struct cairn_pickle_node *numbers = cairn_pickle_get(groups->items[g], "params");
        const struct cairn_pickle_node *own = masters ? masters->items[g] : NULL;
        uint32_t next = 0;
        bool without;

        if (!cairn_pickle_is_list(numbers) || !without_decay(groups->items[g], &without) ||
            seen[without] ||
            (own && (own->kind != CAIRN_PICKLE_LIST || own->count != numbers->count)))
            return false;
        seen[without] = true;
        for (uint32_t i = 0; i < state->part_count; i++) {
            struct member *member = &members[*count];

            if (!is_member(&state->parts[i], expert, without))
                continue;
            memset(member, 0, sizeof(*member));
            member->part = i;
            if (next >= numbers->count ||
                !take_states(source,
                             at_number(cairn_pickle_get(inner, "state"), numbers->items[next]),
                             &state->parts[i], member) ||
                (own && !fits(source, own->items[next], &state->parts[i])))
                return false;
            member->master = own ? own->items[next] : NULL;
            next++;
            (*count)++;
        }
        if (next != numbers->count)
            return false;
    }
    return true;
}

static cairn_err
add(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
    const struct cairn_megatron_part *part, const char *key, struct cairn_pickle_node *node)
{
    const struct cairn_torch_tensor *tensor = cairn_torch_source_tensor(source, node);
    static const struct cairn_megatron_part scalar = {.split = CAIRN_MEGATRON_REPLICATED,
                                                      .count = 1};
    uint64_t strides[CAIRN_DIMS_MAX];
    char name[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (!tensor || snprintf(name, sizeof(name), "%s.%s", key, part->name) >= (int)sizeof(name))
        return cairn_refuse_file(checkpoint, source->path, CAIRN_VERSION,
                                 "the %s of %s has too long a name", key, part->name);
    cairn_torch_view_strides(&tensor->view, strides);
    err = cairn_megatron_add_part(checkpoint, tensor->view.dims == 0 ? &scalar : part, name,
                                  CAIRN_OPTIMIZER, tensor->view.dtype->dtype, source->container,
                                  tensor->at, strides);
    if (!err)
        cairn_torch_carry_out(&source->torch.tree, node, "tensor", name);
    return err;
}

/* A copy of a list of groups, each without its parameters. */
static struct cairn_pickle_node *
without_members(struct cairn_pickle *tree, const struct cairn_pickle_node *groups)
{
    static const char *const without[] = {"params", NULL};
    struct cairn_pickle_node *list = cairn_pickle_list(tree);

    for (uint32_t g = 0; g < groups->count; g++) {
        struct cairn_pickle_node *copy = cairn_pickle_dict(tree);

        cairn_pickle_put_all(tree, copy, groups->items[g], without);
        cairn_pickle_append(tree, list, copy);
    }
    return list;
}

static cairn_err
read_one(struct cairn_checkpoint *checkpoint, struct cairn_megatron_state *state,
         struct cairn_torch_source *source, struct cairn_pickle_node *optimizer, bool expert)
{
    struct cairn_pickle *tree = &source->torch.tree;
    struct cairn_pickle_node *inner = inner_of(optimizer);
    struct member *members = calloc((size_t)state->part_count + 1, sizeof(*members));
    uint32_t count = 0;
    cairn_err err = CAIRN_OK;

    if (!members)
        return CAIRN_NOMEM;
    if (!match(state, source, optimizer, expert, members, &count)) {
        free(members);
        return CAIRN_OK;
    }
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_megatron_part *part = &state->parts[members[i].part];

        if (members[i].master)
            err = add(checkpoint, source, part, "fp32", members[i].master);
        for (size_t k = 0; k < STATE_KEY_COUNT && !err; k++)
            if (members[i].states[k])
                err = add(checkpoint, source, part, state_keys[k], members[i].states[k]);
    }
    free(members);
    cairn_torch_carry_replace(inner, "state", cairn_pickle_dict(tree));
    cairn_torch_carry_replace(inner, "param_groups",
                              without_members(tree, cairn_pickle_get(inner, "param_groups")));
    cairn_torch_carry_replace(optimizer, MASTERS, cairn_pickle_list(tree));
    return err;
}

cairn_err
cairn_megatron_plain_read(struct cairn_checkpoint *checkpoint, struct cairn_megatron_state *state,
                          struct cairn_torch_source *source, struct cairn_pickle_node *optimizer)
{
    cairn_err err = CAIRN_OK;

    if (!cairn_megatron_plain(optimizer))
        return CAIRN_OK;
    if (optimizer->kind != CAIRN_PICKLE_LIST)
        return read_one(checkpoint, state, source, optimizer, false);
    for (uint32_t i = 0; i < optimizer->count && i < 2 && !err; i++)
        err = read_one(checkpoint, state, source, optimizer->items[i], i == 1);
    return err;
}

/* ---- writing ---- */

/* ("part", …) of a state of a parameter; NULL where the source has no such state. */
static cairn_err
state_part(struct cairn_megatron_target *target, struct cairn_pickle *tree, uint32_t of,
           const char *key, struct cairn_pickle_node **node)
{
    const struct cairn_tensor *tensor;
    struct cairn_megatron_part copy = target->parts[of];
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t index = UINT32_MAX;

    *node = NULL;
    if (snprintf(name, sizeof(name), "%s.%s", key, copy.name) < (int)sizeof(name))
        index = cairn_megatron_target_find(target, name);
    if (index == UINT32_MAX)
        return CAIRN_OK;
    tensor = cairn_layout_tensor(target->checkpoint->layout, index);
    if (tensor->dims == 0)
        copy = (struct cairn_megatron_part){.split = CAIRN_MEGATRON_REPLICATED, .count = 1};
    else if (!cairn_shape_equal(tensor->dims, tensor->shape, copy.dims, copy.whole_shape))
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "%s has another shape than its parameter", name);
    copy.dtype = cairn_output_dtype(target->options, tensor);
    copy.buffer = true; /* it is not a parameter itself */
    return cairn_megatron_target_part(target, index, &copy, tree, node);
}

/* One group: its numbers, the states and the masters of its parameters. */
static cairn_err
make_group(struct cairn_megatron_target *target, struct cairn_pickle *tree, bool expert,
           bool without, uint32_t part_count, struct cairn_pickle_node *numbers,
           struct cairn_pickle_node *states, struct cairn_pickle_node *masters, uint32_t *next)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < part_count && !err; i++) {
        struct cairn_pickle_node *state, *node;

        if (!is_member(&target->parts[i], expert, without))
            continue;
        state = cairn_pickle_dict(tree);
        for (size_t k = 0; k < STATE_KEY_COUNT && !err; k++) {
            err = state_part(target, tree, i, state_keys[k], &node);
            if (!err && node)
                cairn_pickle_set(tree, state, state_keys[k], node);
        }
        if (!err && masters) {
            err = state_part(target, tree, i, "fp32", &node);
            if (!err && !node)
                return cairn_refuse(
                    target->checkpoint, CAIRN_INVAL,
                    "the optimizer needs fp32.%s, which is missing; was it dropped?",
                    target->parts[i].name);
            if (!err)
                cairn_pickle_append(tree, masters, node);
        }
        cairn_pickle_put(tree, states, cairn_pickle_int(tree, *next), state);
        cairn_pickle_append(tree, numbers, cairn_pickle_int(tree, *next));
        (*next)++;
    }
    return err;
}

static cairn_err
make_one(struct cairn_megatron_target *target, struct cairn_pickle *tree,
         struct cairn_pickle_node *optimizer, bool expert, uint32_t part_count)
{
    struct cairn_pickle_node *inner = inner_of(optimizer);
    struct cairn_pickle_node *groups, *states = cairn_pickle_dict(tree);
    struct cairn_pickle_node *masters = cairn_pickle_list(tree);
    bool has_masters = cairn_pickle_get(optimizer, MASTERS) != NULL;
    uint32_t next = 0;
    cairn_err err = CAIRN_OK;

    groups = cairn_pickle_get(inner, "param_groups");
    if (!cairn_pickle_is_list(groups))
        return CAIRN_OK;
    groups = without_members(tree, groups);
    for (uint32_t g = 0; groups && g < groups->count && !err; g++) {
        struct cairn_pickle_node *numbers = cairn_pickle_list(tree);
        struct cairn_pickle_node *own = has_masters ? cairn_pickle_list(tree) : NULL;
        bool without = false;

        if (!without_decay(groups->items[g], &without))
            return cairn_refuse(target->checkpoint, CAIRN_CORRUPT,
                                "a carried group of the optimizer does not say its wd_mult");
        err = make_group(target, tree, expert, without, part_count, numbers, states, own, &next);
        cairn_pickle_set(tree, groups->items[g], "params", numbers);
        if (own)
            cairn_pickle_append(tree, masters, own);
    }
    cairn_torch_carry_replace(inner, "state", states);
    cairn_torch_carry_replace(inner, "param_groups", groups);
    cairn_torch_carry_replace(optimizer, MASTERS, masters);
    return err;
}

cairn_err
cairn_megatron_plain_make(struct cairn_megatron_target *target, struct cairn_pickle *tree,
                          struct cairn_pickle_node *optimizer)
{
    uint32_t part_count = target->part_count;
    cairn_err err = CAIRN_OK;

    if (optimizer->kind != CAIRN_PICKLE_LIST)
        return make_one(target, tree, optimizer, false, part_count);
    for (uint32_t i = 0; i < optimizer->count && i < 2 && !err; i++)
        err = make_one(target, tree, optimizer->items[i], i == 1, part_count);
    return err;
}
