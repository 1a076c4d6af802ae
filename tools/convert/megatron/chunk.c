/* tools/convert/megatron/chunk.c - the state dict of one chunk of one rank: its keys in order, and
 * its parts. */
#include "tools/convert/core/format.h"
#include "tools/convert/megatron/target.h"

#include <stdio.h>
#include <string.h>

#include "tools/convert/state/param_groups.h"
#include "tools/convert/state/opaque_tree.h"

struct making {
    struct cairn_megatron_target *target;
    const struct cairn_megatron_rank *rank;
    uint32_t chunk, place; /* place: among all chunks */
    uint32_t local_experts;
    struct cairn_pickle *tree;
    struct cairn_pickle_node *dict;
};

static cairn_err
refuse(const struct making *making, const char *name, const char *why)
{
    return cairn_refuse(making->target->checkpoint, CAIRN_INVAL, "%s %s", name, why);
}

/* ---- a tensor ---- */

/* Whether linear_fc1 has a gate: twice the rows that linear_fc2 has columns. */
static bool
is_gated(const struct cairn_megatron_target *target, const char *name,
         const struct cairn_tensor *first)
{
    char other[CAIRN_NAME_BYTES_MAX], *at;
    uint32_t tensor;

    (void)snprintf(other, sizeof(other), "%s", name);
    at = strstr(other, ".linear_fc1.");
    if (!at)
        return false;
    (void)snprintf(at, sizeof(other) - (size_t)(at - other), ".linear_fc2.weight");
    tensor = cairn_megatron_target_find(target, other);
    return tensor != UINT32_MAX && first->dims > 0 &&
           cairn_layout_tensor(target->checkpoint->layout, tensor)->dims == 2 &&
           first->shape[0] == 2 * cairn_layout_tensor(target->checkpoint->layout, tensor)->shape[1];
}

static cairn_err
split_of(const struct making *making, const struct cairn_tensor *tensor,
         struct cairn_megatron_part *part, bool of_expert)
{
    const struct cairn_megatron_target *target = making->target;
    const struct cairn_megatron_rule *rule = cairn_megatron_rule_of(part->name);
    const struct cairn_parallelism *had = &target->checkpoint->parallelism;

    part->split = rule ? rule->split : CAIRN_MEGATRON_REPLICATED;
    part->buffer = rule ? rule->buffer : tensor->kind == CAIRN_BUFFER;
    part->expert = of_expert && target->sizes.ep > 1;
    part->count = of_expert ? target->sizes.etp : target->sizes.tp;
    part->index = making->rank->tp % part->count;
    if (!rule && part->count > 1 &&
        !(target->checkpoint->format && had->tp > 1 &&
          strcmp(target->checkpoint->format->name, "megatron") == 0))
        return refuse(making, part->name,
                      "is not known to be split or replicated by tensor parallelism; write it with "
                      "--tp 1, or leave it out with --drop");
    if (part->split == CAIRN_MEGATRON_ROWS && is_gated(target, part->name, tensor))
        part->split = CAIRN_MEGATRON_HALVES;
    part->dims = tensor->dims;
    memcpy(part->whole_shape, tensor->shape, sizeof(part->whole_shape));
    if (!cairn_megatron_part_cut(part, target->args.vocabulary_multiple))
        return refuse(making, part->name,
                      of_expert ? "cannot be split over --etp ranks: its extent is not a multiple"
                                : "cannot be split over --tp ranks: its extent is not a multiple");
    return CAIRN_OK;
}

/* `canonical` is what the source has, `stored` the key in the dict. */
static cairn_err
add_tensor(struct making *making, const char *canonical, const char *stored, bool of_expert,
           bool shared_bucket)
{
    struct cairn_megatron_target *target = making->target;
    uint32_t index = cairn_megatron_target_find(target, canonical);
    struct cairn_megatron_part part = {.chunk = making->chunk, .shared_bucket = shared_bucket};
    struct cairn_pickle_node *node = NULL;
    const struct cairn_tensor *tensor;
    cairn_err err;

    if (index == UINT32_MAX && !cairn_megatron_rule_of(canonical))
        return CAIRN_OK; /* what is unknown may have been dropped by its name */
    if (index == UINT32_MAX)
        return refuse(making, canonical, "is missing in a model of Megatron-LM; was it dropped?");
    tensor = cairn_layout_tensor(target->checkpoint->layout, index);
    (void)snprintf(part.name, sizeof(part.name), "%s", canonical);
    part.dtype = cairn_output_dtype(target->options, tensor);
    err = split_of(making, tensor, &part, of_expert);
    if (!err)
        err = cairn_megatron_target_part(target, index, &part, making->tree, &node);
    if (err)
        return err;
    cairn_pickle_set(making->tree, making->dict, stored, node);
    index = cairn_megatron_target_named(target, canonical);
    return cairn_megatron_target_carry(target, index); /* an alias: its elements are its target's */
}

/* ---- other entries ---- */

/* An _extra_state: the carried value, else None. */
static cairn_err
add_extra(struct making *making, const char *canonical, const char *stored)
{
    struct cairn_megatron_target *target = making->target;
    struct cairn_pickle_node *value = NULL;
    char name[CAIRN_NAME_BYTES_MAX + 32];
    uint32_t tensor;
    cairn_err err = CAIRN_OK;

    (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s", canonical);
    tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);
    if (tensor != UINT32_MAX) {
        value = cairn_pickle_tensor(making->tree, name);
        target->placed[tensor] = true;
    } else {
        (void)snprintf(name, sizeof(name), CAIRN_MEGATRON_EXTRA "%s.pickle", canonical);
        tensor = cairn_layout_tensor_find(target->checkpoint->layout, name);
    }
    if (tensor == UINT32_MAX) {
        err = cairn_megatron_join_extra(target, canonical, making->tree, &value);
    } else if (!value) {
        err = cairn_opaque_read(target->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX,
                                making->tree, &value);
        if (!err)
            err = cairn_megatron_target_carry(target, tensor);
    }
    if (!err)
        cairn_pickle_set(making->tree, making->dict, stored,
                         value ? value : cairn_pickle_none(making->tree));
    return err;
}

/* The key of a layer and an expert of this chunk. */
static cairn_err
add_key(struct making *making, const struct cairn_megatron_key *key, uint32_t layer,
        uint32_t local_expert)
{
    struct cairn_megatron_target *target = making->target;
    struct cairn_megatron_name global = key->name, local = key->name;
    char canonical[CAIRN_NAME_BYTES_MAX], stored[CAIRN_NAME_BYTES_MAX];
    char fused[CAIRN_NAME_BYTES_MAX];
    bool embedding, output, shared;

    local.layer = layer;
    local.expert = local_expert;
    global.expert = making->rank->ep * making->local_experts + local_expert;
    if (!cairn_megatron_name_print(&global, false, canonical) ||
        !cairn_megatron_name_print(&local, true, stored))
        return refuse(making, key->name.rest, "is a name too long");
    if (cairn_megatron_is_extra(stored))
        return add_extra(making, canonical, stored);
    if (cairn_megatron_target_find(target, canonical) == UINT32_MAX &&
        cairn_megatron_norm_rename(canonical, true, fused, sizeof(fused)) &&
        cairn_megatron_target_find(target, fused) != UINT32_MAX)
        memcpy(canonical, fused, sizeof(canonical));
    embedding = strcmp(canonical, CAIRN_MEGATRON_EMBEDDING) == 0;
    output = strcmp(canonical, CAIRN_MEGATRON_OUTPUT) == 0;
    shared = target->tied && target->sizes.pp > 1 && (embedding || output);
    if (output && target->tied)
        return shared ? add_tensor(making, CAIRN_MEGATRON_EMBEDDING, stored, false, true)
                      : CAIRN_OK;
    return add_tensor(making, canonical, stored, key->name.has_expert, shared);
}

/* Keys of experts from `first` on: sequential experts follow one another expert by expert, grouped
 * experts kind by kind. Gives where the run ends. */
static cairn_err
add_experts(struct making *making, uint32_t first, uint32_t layer, uint32_t *end)
{
    const struct cairn_megatron_target *target = making->target;
    const struct cairn_megatron_key *keys = target->keys;
    cairn_err err = CAIRN_OK;

    *end = first + 1;
    while (!keys[first].name.grouped && *end < target->key_count && keys[*end].class == 'L' &&
           keys[*end].name.layer == keys[first].name.layer && keys[*end].name.has_expert &&
           !keys[*end].name.grouped)
        (*end)++;
    for (uint32_t expert = 0; expert < making->local_experts && !err; expert++)
        for (uint32_t k = first; k < *end && !err; k++)
            err = add_key(making, &keys[k], layer, expert);
    return err;
}

static cairn_err
add_layer(struct making *making, uint32_t layer)
{
    const struct cairn_megatron_target *target = making->target;
    uint32_t local = layer - target->first_layer[making->place], k = 0;
    cairn_err err = CAIRN_OK;

    while (k < target->key_count && !err) {
        const struct cairn_megatron_key *key = &target->keys[k];

        if (key->class != 'L' || key->name.layer != layer)
            k++;
        else if (key->name.has_expert)
            err = add_experts(making, k, local, &k);
        else
            err = add_key(making, &target->keys[k++], local, 0);
    }
    return err;
}

/* A tied output layer on a stage of its own has a copy of the embedding, before its extra state. */
static bool
needs_output(const struct cairn_megatron_target *target, const struct cairn_megatron_key *key)
{
    if (!target->tied || target->sizes.pp == 1)
        return false;
    for (uint32_t i = 0; i < target->key_count; i++)
        if (strcmp(target->keys[i].name.rest, CAIRN_MEGATRON_OUTPUT) == 0)
            return false; /* it is among the keys */
    return !key || strncmp(key->name.rest, "output_layer.", strlen("output_layer.")) == 0;
}

static cairn_err
add_class(struct making *making, char class)
{
    struct cairn_megatron_target *target = making->target;
    struct cairn_megatron_key output = {.class = 'A'};
    bool added = class != 'A';
    cairn_err err = CAIRN_OK;

    (void)cairn_megatron_name_parse(CAIRN_MEGATRON_OUTPUT, &output.name); /* fits */
    for (uint32_t k = 0; k < target->key_count && !err; k++) {
        if (target->keys[k].class != class)
            continue;
        if (!added && needs_output(target, &target->keys[k])) {
            err = add_key(making, &output, 0, 0);
            added = true;
        }
        if (!err)
            err = add_key(making, &target->keys[k], 0, 0);
    }
    if (!err && !added && needs_output(target, NULL))
        err = add_key(making, &output, 0, 0);
    return err;
}

cairn_err
cairn_megatron_target_chunk(struct cairn_megatron_target *target,
                            const struct cairn_megatron_rank *rank, uint32_t chunk,
                            struct cairn_pickle *tree, struct cairn_pickle_node **dict)
{
    struct cairn_torch_builder builder;
    struct making making = {.target = target,
                            .rank = rank,
                            .chunk = chunk,
                            .place = chunk * target->sizes.pp + rank->pp,
                            .local_experts = target->expert_count / target->sizes.ep,
                            .tree = tree};
    cairn_err err = CAIRN_OK;

    cairn_torch_builder_init(&builder, tree);
    *dict = making.dict = cairn_torch_ordered_dict(&builder);
    if (making.place == 0)
        err = add_class(&making, 'B');
    for (uint32_t layer = target->first_layer[making.place];
         layer < target->first_layer[making.place + 1] && !err; layer++)
        err = add_layer(&making, layer);
    if (!err && making.place + 1 == target->sizes.pp * target->sizes.vpp)
        err = add_class(&making, 'A');
    return err ? err : cairn_pickle_done(tree);
}
