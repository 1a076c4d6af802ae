/* tools/convert/megatron/fill.c - what the words of a tree stand for, and which pieces of tensors
 * that makes. */
#include "tools/convert/megatron/fill.h"

#include <stdio.h>
#include <string.h>

#include "tools/convert/core/numbers.h"

/* Identities: parts, then flats, then whole tensors. */
static uint32_t
tensors_begin(const struct cairn_megatron_fill *fill)
{
    return fill->target->part_count + fill->flat_count;
}

uint32_t
cairn_megatron_fill_state(const struct cairn_megatron_target *target, const char *key,
                          uint32_t part)
{
    const char *parameter = target->parts[part].name;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor = UINT32_MAX;

    if (snprintf(name, sizeof(name), "%s.%s", key, parameter) < (int)sizeof(name))
        tensor = cairn_megatron_target_find(target, name);
    /* a parameter that is trained as float32 is its own master */
    if (tensor == UINT32_MAX && strcmp(key, "fp32") == 0 &&
        cairn_layout_tensor(target->checkpoint->layout, target->part_tensor[part])->dtype ==
            CAIRN_F32)
        return target->part_tensor[part];
    if (tensor == UINT32_MAX)
        (void)cairn_refuse(target->checkpoint, CAIRN_INVAL,
                           "the distributed optimizer needs %s, which is missing; drop all state "
                           "of the optimizer (--drop 'fp32.*,exp_avg*'), or none",
                           name);
    return tensor;
}

/* ---- words ---- */

static cairn_err
resolve(void *context, const char *word, const char *name, struct cairn_torch_filling *out)
{
    struct cairn_megatron_fill *fill = context;
    struct cairn_megatron_target *target = fill->target;
    uint64_t number = UINT32_MAX;
    uint32_t index = cairn_number_read(name, UINT32_MAX, &number) ? (uint32_t)number : UINT32_MAX;

    if (strcmp(word, "part") == 0 && index < target->part_count) {
        const struct cairn_megatron_part *part = &target->parts[index];

        out->dtype = cairn_torch_dtype_of(part->dtype);
        out->dims = part->dims;
        memcpy(out->shape, part->shape, sizeof(out->shape));
        out->identity = index;
    } else if (strcmp(word, "flat") == 0 && index < fill->flat_count) {
        out->dtype = cairn_torch_dtype_of(fill->flats[index].dtype);
        out->dims = 1;
        out->shape[0] = fill->flats[index].elements;
        out->identity = target->part_count + index;
    } else if (strcmp(word, "tensor") == 0) {
        const struct cairn_tensor *tensor;

        index = cairn_megatron_target_find(target, name);
        if (index == UINT32_MAX)
            return cairn_refuse(
                target->checkpoint, CAIRN_INVAL,
                "the state carried from Megatron-LM needs %s, which is missing; was it dropped?",
                name);
        tensor = cairn_layout_tensor(target->checkpoint->layout, index);
        out->dtype = cairn_torch_dtype_of(cairn_output_dtype(target->options, tensor));
        out->dims = tensor->dims;
        memcpy(out->shape, tensor->shape, sizeof(out->shape));
        out->identity = tensors_begin(fill) + index;
    }
    return out->dtype ? CAIRN_OK
                      : cairn_refuse(target->checkpoint, CAIRN_CORRUPT,
                                     "carried state holds (%s, %s)", word, name);
}

/* ---- pieces ---- */

/* A part of a tensor of the source, row-major from `at` on. */
static cairn_err
add_part(const struct cairn_megatron_target *target, uint32_t tensor,
         const struct cairn_megatron_part *part, uint32_t file, uint64_t at)
{
    const struct cairn_tensor *source = cairn_layout_tensor(target->checkpoint->layout, tensor);
    struct cairn_megatron_box boxes[2];
    uint64_t strides[CAIRN_DIMS_MAX];
    uint64_t stride = cairn_dtype_bytes(cairn_output_dtype(target->options, source));
    uint32_t count = cairn_megatron_part_boxes(part, boxes), index = 0;
    cairn_err err = cairn_output_add_tensor(target->output, target->options, source, &index);

    for (uint32_t d = part->dims; d-- > 0; stride *= part->shape[d])
        strides[d] = stride;
    for (uint32_t i = 0; i < count && !err; i++)
        err = cairn_output_add_box(target->output, index, file, boxes[i].start, boxes[i].extent,
                                   at + (part->dims > 0 ? boxes[i].row * strides[0] : 0), strides);
    return err;
}

static cairn_err
add_flat(struct cairn_megatron_target *target, const struct cairn_megatron_flat *flat,
         uint32_t file, uint64_t at)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < flat->count && !err; i++) {
        const struct cairn_megatron_part *part = &target->parts[flat->order[i]];
        uint32_t tensor = cairn_megatron_fill_state(target, flat->key, flat->order[i]);
        const struct cairn_tensor *source;

        if (tensor == UINT32_MAX)
            return CAIRN_INVAL;
        source = cairn_layout_tensor(target->checkpoint->layout, tensor);
        if (source->dims != part->dims ||
            memcmp(source->shape, part->whole_shape, part->dims * sizeof(uint64_t)) != 0 ||
            cairn_output_dtype(target->options, source) != flat->dtype)
            return cairn_refuse(
                target->checkpoint, CAIRN_INVAL,
                "%s has another shape than its parameter, or not the dtype of other parameters' %s",
                source->name, flat->key);
        cairn_megatron_target_place(target, tensor);
        err = add_part(target, tensor, part, file,
                       at + flat->begins[i] * cairn_dtype_bytes(flat->dtype));
    }
    return err;
}

static cairn_err
add_storage(void *context, uint32_t identity, uint32_t file, uint64_t at)
{
    struct cairn_megatron_fill *fill = context;
    struct cairn_megatron_target *target = fill->target;

    if (identity < target->part_count)
        return add_part(target, target->part_tensor[identity], &target->parts[identity], file, at);
    if (identity < tensors_begin(fill))
        return add_flat(target, &fill->flats[identity - target->part_count], file, at);
    identity -= tensors_begin(fill);
    cairn_megatron_target_place(target, identity);
    return cairn_output_add_whole(target->output, target->options,
                                  cairn_layout_tensor(target->checkpoint->layout, identity), file,
                                  at);
}

/* ---- files ---- */

cairn_err
cairn_megatron_fill_add(struct cairn_megatron_fill *fill, const char *path,
                        struct cairn_pickle *tree, struct cairn_pickle_node *root)
{
    struct cairn_megatron_target *target = fill->target;
    struct cairn_torch_fill carry = {
        .tree = tree, .root = root, .resolve = resolve, .context = fill};

    carry.identity_count =
        tensors_begin(fill) + cairn_layout_tensor_count(target->checkpoint->layout);
    return cairn_torch_output_fill(target->output, path, &carry, add_storage,
                                   target->checkpoint->complaint);
}
