/* tools/convert/deepspeed/fill.c - files made from carried objects: what their words stand for, and
 * which pieces of tensors that makes. */
#include "snapshot/box.h"
#include "tools/convert/deepspeed/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIED "tied_modules." /* what a pipeline calls parameters of several of its stages */

/* ---- what a word stands for; identities: tensors, fragments of them, flat buffers, empties,
 * scalars of groups ---- */

enum { EMPTIES = 64 }; /* more than there are dtypes */

static uint32_t
flats_begin(const struct cairn_deepspeed_target *target)
{
    return 2 * cairn_layout_tensor_count(target->checkpoint->layout);
}

static uint32_t
empties_begin(const struct cairn_deepspeed_target *target)
{
    return flats_begin(target) + CAIRN_DEEPSPEED_KEYS_MAX * target->groups.group_count;
}

static uint32_t
scalars_begin(const struct cairn_deepspeed_target *target)
{
    return empties_begin(target) + EMPTIES;
}

static cairn_err
unknown(const struct cairn_deepspeed_target *target, const char *name)
{
    return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                        "DeepSpeed's files need %s, which is missing; was it dropped?", name);
}

static cairn_err
fill_tensor(const struct cairn_deepspeed_target *target, const char *name,
            struct cairn_torch_filling *out)
{
    uint32_t index = cairn_layout_tensor_find(target->checkpoint->layout, name);
    const struct cairn_tensor *tensor;
    enum cairn_dtype dtype;

    if (index == UINT32_MAX)
        return unknown(target, name);
    tensor = cairn_layout_tensor(target->checkpoint->layout, index);
    dtype = cairn_output_dtype(target->options, tensor);
    if (cairn_deepspeed_target_past_alias(target, index) != index)
        index = cairn_output_past_alias(target->checkpoint, target->options, index);
    out->dtype = cairn_torch_dtype_of(dtype);
    out->dims = tensor->dims;
    memcpy(out->shape,
           target->cut_at && target->cut_at[index] ? target->pieces[target->cut_at[index] - 1].shape
                                                   : tensor->shape,
           sizeof(out->shape));
    out->identity = index;
    return out->dtype ? CAIRN_OK : CAIRN_INTERNAL;
}

/* "<key>/<group>" in two. */
static bool
split_flat(const struct cairn_deepspeed_target *target, const char *name,
           char key[CAIRN_DEEPSPEED_KEY_BYTES_MAX], uint32_t *group)
{
    const char *slash = strchr(name, '/');
    unsigned long number;
    char *end;

    if (!slash || slash == name || slash - name >= CAIRN_DEEPSPEED_KEY_BYTES_MAX ||
        slash[1] < '0' || slash[1] > '9')
        return false;
    memcpy(key, name, (size_t)(slash - name));
    key[slash - name] = '\0';
    number = strtoul(slash + 1, &end, 10);
    *group = (uint32_t)number;
    return *end == '\0' && number < target->groups.group_count;
}

/* The state of the first parameter of a group stands for its dtype, or for the group's where it is
 * one. */
static cairn_err
name_first(const struct cairn_deepspeed_target *target, const char *key, uint32_t group,
           char name[CAIRN_NAME_BYTES_MAX])
{
    const struct cairn_deepspeed_group *known = &target->groups.groups[group];

    if (known->count == 0 ||
        snprintf(name, CAIRN_NAME_BYTES_MAX, "%s.%s", key,
                 target->groups.parameters[known->first].name) >= CAIRN_NAME_BYTES_MAX)
        return cairn_refuse(target->checkpoint, CAIRN_CORRUPT,
                            "group %" PRIu32 " has no parameter to hold its %s", group, key);
    return CAIRN_OK;
}

/* Elements of a rank's buffer of a group as they are saved. */
static uint64_t
saved_elements(const struct cairn_deepspeed_target *target, uint32_t group, bool master)
{
    bool padded = master ? !target->stage_known : !target->elastic;

    return target->stage3 || padded
               ? cairn_deepspeed_partition(&target->groups, group, target->stage3, target->ranks)
               : cairn_deepspeed_unpadded(&target->groups, group, target->ranks, target->rank);
}

static cairn_err
resolve(void *context, const char *word, const char *name, struct cairn_torch_filling *out)
{
    struct cairn_deepspeed_target *target = context;
    uint32_t tensors = cairn_layout_tensor_count(target->checkpoint->layout), group = 0, key_at;
    char key[CAIRN_DEEPSPEED_KEY_BYTES_MAX], first[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    if (strcmp(word, "tensor") == 0)
        return fill_tensor(target, name, out);
    if (strcmp(word, "line") == 0 || strcmp(word, "fragment") == 0) {
        err = fill_tensor(target, name, out);
        out->shape[0] = cairn_shape_elements(out->dims, out->shape);
        out->dims = 1;
        if (word[0] == 'f') {
            out->shape[0] = cairn_deepspeed_evenly(out->shape[0], target->ranks);
            out->identity += tensors;
        }
        return err;
    }
    if (strcmp(word, "empty") == 0) {
        out->dtype = cairn_torch_dtype_named(name);
        out->dims = 1;
        out->identity = empties_begin(target);
        if (out->dtype && out->dtype->dtype)
            out->identity += out->dtype->dtype;
        return out->dtype ? CAIRN_OK : unknown(target, name);
    }

    if (!split_flat(target, name, key, &group))
        return cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "carried from DeepSpeed: %s %s",
                            word, name);
    err = name_first(target, key, group, first);
    if (!err)
        err = fill_tensor(target, first, out);
    if (err)
        return err;
    key_at = cairn_deepspeed_keys_index(&target->keys, key, strlen(key), true);
    if (strcmp(word, "scalar") == 0 && key_at != UINT32_MAX) {
        /* a group counts its own steps in place, so no two may share the storage of an alias */
        out->identity = scalars_begin(target) + key_at * target->groups.group_count + group;
        return CAIRN_OK;
    }
    if (strcmp(word, "flat") != 0 || key_at == UINT32_MAX)
        return cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "carried from DeepSpeed: %s %s",
                            word, name);
    out->dims = 1;
    out->shape[0] = saved_elements(target, group, strcmp(key, "fp32") == 0);
    out->identity = flats_begin(target) + key_at * target->groups.group_count + group;
    return CAIRN_OK;
}

/* ---- pieces ---- */

static cairn_err
add_flat(struct cairn_deepspeed_target *target, uint32_t tensor, uint32_t file, uint64_t begin,
         uint64_t end, uint64_t at)
{
    uint32_t index = 0;
    cairn_err err =
        cairn_output_add_tensor(target->output, target->options,
                                cairn_layout_tensor(target->checkpoint->layout, tensor), &index);

    return err ? err
               : cairn_output_add_flat(target->output, index, file, NULL, NULL, begin, end, at);
}

/* Elements [begin, end) of the rank's part of a group's parameter lie at `at` of a file. */
static cairn_err
add_part_flat(struct cairn_deepspeed_target *target, uint32_t parameter, uint32_t tensor,
              uint32_t file, uint64_t begin, uint64_t end, uint64_t at)
{
    const struct cairn_tensor *known = cairn_layout_tensor(target->checkpoint->layout, tensor);
    uint32_t index = 0;
    cairn_err err = cairn_output_add_tensor(target->output, target->options, known, &index);

    return err ? err
               : cairn_deepspeed_cut_add(NULL, target->output, index, file,
                                         &target->cut_of[parameter],
                                         &target->groups.parameters[parameter], begin, end, at,
                                         cairn_dtype_bytes(known->dtype));
}

/* The rank's part of a tensor of the module, at `at` of a file. */
static cairn_err
add_part(struct cairn_deepspeed_target *target, uint32_t tensor, uint32_t file, uint64_t at)
{
    const struct cairn_tensor *known = cairn_layout_tensor(target->checkpoint->layout, tensor);
    const struct cairn_deepspeed_piece *piece = &target->pieces[target->cut_at[tensor] - 1];
    uint64_t strides[CAIRN_DIMS_MAX];
    uint32_t index = 0;
    cairn_err err = cairn_output_add_tensor(target->output, target->options, known, &index);

    cairn_shape_strides(known->dims, piece->shape,
                        cairn_dtype_bytes(cairn_output_dtype(target->options, known)), strides);
    for (uint32_t b = 0; b < piece->cut.box_count && !err; b++) {
        const struct cairn_deepspeed_cut_box *box = &piece->cut.boxes[b];

        err = cairn_output_add_box(target->output, index, file, box->start, box->extent,
                                   at + (known->dims > 0 ? box->row * strides[0] : 0), strides);
    }
    return err;
}

/* Where a buffer of any part next cuts a parameter behind element `at`. Tied parameters lie in
 * several stages' buffers, cut at other places in each; cut at all of these places, their pieces
 * are the same boxes. A part that has another shape is refused when its own turn comes. */
static uint64_t
next_cut(const struct cairn_deepspeed_target *target, const char *name,
         const struct cairn_tensor *tensor, uint64_t at)
{
    uint64_t cut = UINT64_MAX;

    for (uint32_t p = 0; target->parts && p < target->part_count; p++) {
        const struct cairn_deepspeed_groups *groups = &target->parts[p].groups;

        for (uint32_t g = 0; g < groups->group_count; g++) {
            uint64_t partition = cairn_deepspeed_partition(groups, g, false, target->ranks);

            for (uint32_t i = 0; i < groups->groups[g].count; i++) {
                const struct cairn_deepspeed_parameter *other =
                    &groups->parameters[groups->groups[g].first + i];
                uint64_t next;

                if (strcmp(other->name, name) != 0 ||
                    !cairn_shape_equal(tensor->dims, tensor->shape, other->dims, other->shape))
                    continue;
                next = ((other->begin + at) / partition + 1) * partition - other->begin;
                cut = next < cut ? next : cut;
            }
        }
    }
    return cut;
}

static cairn_err
add_cut(struct cairn_deepspeed_target *target, const char *parameter, uint32_t tensor,
        uint32_t file, uint64_t begin, uint64_t end, uint64_t at)
{
    const struct cairn_tensor *known = cairn_layout_tensor(target->checkpoint->layout, tensor);
    size_t element_bytes = cairn_dtype_bytes(known->dtype);
    bool tied = target->parts && strncmp(parameter, TIED, strlen(TIED)) == 0;
    cairn_err err = CAIRN_OK;

    if (!tied)
        return add_flat(target, tensor, file, begin, end, at);
    while (begin < end && !err) {
        uint64_t cut = next_cut(target, parameter, known, begin);
        uint64_t stop = cut < end ? cut : end;

        err = add_flat(target, tensor, file, begin, stop, at);
        at += (stop - begin) * element_bytes;
        begin = stop;
    }
    return err;
}

/* Whether a tensor has the shape that the files are made for. */
static bool
has_shape(const struct cairn_deepspeed_target *target, uint32_t parameter,
          const struct cairn_tensor *tensor)
{
    const struct cairn_deepspeed_parameter *known = &target->groups.parameters[parameter];

    return cairn_shape_equal(tensor->dims, tensor->shape, known->dims,
                             target->tensor_ranks == 1 ? known->shape
                                                       : target->cut_of[parameter].shape);
}

/* All parameters of a group in a rank's buffer at `at`. */
static cairn_err
add_buffer(struct cairn_deepspeed_target *target, uint32_t key, uint32_t group, uint32_t file,
           uint64_t at)
{
    const struct cairn_deepspeed_group *known = &target->groups.groups[group];
    uint64_t partition =
        cairn_deepspeed_partition(&target->groups, group, target->stage3, target->ranks);
    struct cairn_deepspeed_share share =
        cairn_deepspeed_share(&target->groups, group, target->ranks, target->rank);
    enum cairn_dtype dtype = 0;
    uint64_t walked = 0;
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < known->count && !err; i++) {
        const struct cairn_deepspeed_parameter *parameter =
            &target->groups.parameters[known->first + i];
        const struct cairn_tensor *tensor;
        char name[CAIRN_NAME_BYTES_MAX];
        uint64_t begin, end, offset, at_part;
        uint32_t index;

        cairn_deepspeed_part(parameter, target->stage3, share.ranks, share.rank, partition, &begin,
                             &end, &offset);
        if (target->stage3)
            offset = walked;
        walked += cairn_deepspeed_evenly(parameter->elements, share.ranks);
        if (begin == end && share.rank > 0)
            continue;
        if (cairn_deepspeed_state_name(target->keys.keys[key], parameter, share.expert_rank,
                                       name) != CAIRN_OK)
            return unknown(target, parameter->name);
        index = cairn_deepspeed_target_find(target, name);
        if (index == UINT32_MAX)
            return unknown(target, name);
        tensor = cairn_layout_tensor(target->checkpoint->layout, index);
        if (!has_shape(target, known->first + i, tensor) ||
            (i > 0 && dtype && dtype != tensor->dtype))
            return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                                "%s has another shape than in DeepSpeed's param_shapes, or another "
                                "dtype than its group",
                                name);
        dtype = tensor->dtype;
        at_part = at + offset * cairn_dtype_bytes(dtype);
        err = target->tensor_ranks > 1
                  ? add_part_flat(target, known->first + i, index, file, begin, end, at_part)
                  : add_cut(target, parameter->name, index, file, begin, end, at_part);
    }
    return err;
}

static cairn_err
add_storage(void *context, uint32_t identity, uint32_t file, uint64_t at)
{
    struct cairn_deepspeed_target *target = context;
    uint32_t tensors = cairn_layout_tensor_count(target->checkpoint->layout);
    const struct cairn_tensor *tensor;
    cairn_err err;

    if (identity >= scalars_begin(target)) {
        char first[CAIRN_NAME_BYTES_MAX];

        identity -= scalars_begin(target);
        err = name_first(target, target->keys.keys[identity / target->groups.group_count],
                         identity % target->groups.group_count, first);
        /* it was found for its shape */
        identity = err ? 0 : cairn_deepspeed_target_find(target, first);
        if (err)
            return err;
    }
    if (identity >= empties_begin(target))
        return CAIRN_OK;
    if (identity >= flats_begin(target)) {
        identity -= flats_begin(target);
        return add_buffer(target, identity / target->groups.group_count,
                          identity % target->groups.group_count, file, at);
    }
    tensor = cairn_layout_tensor(target->checkpoint->layout, identity % tensors);
    if (identity >= tensors) {
        struct cairn_deepspeed_parameter frozen = {
            .elements = cairn_shape_elements(tensor->dims, tensor->shape)};
        uint64_t begin, end, offset;

        cairn_deepspeed_part(&frozen, true, target->ranks, target->rank, 0, &begin, &end, &offset);
        return add_flat(target, identity - tensors, file, begin, end, at);
    }
    if (target->cut_at && target->cut_at[identity])
        return add_part(target, identity, file, at);
    return cairn_output_add_whole(target->output, target->options, tensor, file, at);
}

cairn_err
cairn_deepspeed_target_add(struct cairn_deepspeed_target *target, const char *path,
                           struct cairn_pickle *tree, struct cairn_pickle_node *root)
{
    struct cairn_torch_fill fill = {.tree = tree,
                                    .root = root,
                                    .resolve = resolve,
                                    .context = target,
                                    .complaint = target->checkpoint->complaint};
    cairn_err err = cairn_pickle_done(tree);

    if (!cairn_place_name_check(path)) /* of what is carried, which any file may say */
        return cairn_refuse(target->checkpoint, CAIRN_INVAL,
                            "\"%.200s\" is not a name of a file in a checkpoint; refused", path);
    fill.identity_count =
        scalars_begin(target) + CAIRN_DEEPSPEED_KEYS_MAX * target->groups.group_count;
    return err ? err : cairn_torch_output_fill(target->output, path, &fill, add_storage);
}
