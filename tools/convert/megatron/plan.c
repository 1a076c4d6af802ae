/*
 * tools/convert/megatron/plan.c - the files of a Megatron-LM checkpoint, rank by rank.
 *
 * The first rank's model_optim_rng.pt is made last: what has found no place in any other file goes
 * into it.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron/files.h"
#include "snapshot/box.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/megatron/target.h"

/* ---- what the words of a tree stand for, and which pieces of tensors that makes ---- */

/* One flat tensor of distrib_optim.pt: what `key` is of parts[order[i]], which begin at begins[i].
 */
struct flat {
    const char *key; /* "fp32", "exp_avg", "exp_avg_sq" */
    const uint32_t *order;
    const uint64_t *begins;
    uint32_t count;
    uint64_t elements;
    enum cairn_dtype dtype;
};

/* A file of a rank that is being made. */
struct fill {
    struct cairn_megatron_target *target;
    const struct cairn_megatron_rank *rank;
    struct cairn_pickle *tree;
    struct flat *flats; /* ("flat", index) */
    uint32_t flat_count;
    /* of distrib_optim.pt */
    struct cairn_torch_builder builder;
    bool *taken;      /* [part_count] */
    uint32_t *order;  /* [part_count]: each buffer has its own part of it */
    uint64_t *begins; /* [part_count] */
    uint32_t order_count;
};

/* Identities: parts, then flats, then whole tensors. */
static uint32_t
tensors_begin(const struct fill *fill)
{
    return fill->target->part_count + fill->flat_count;
}

/* The tensor of the source that is a part's `key`; UINT32_MAX, complained about. */
static uint32_t
fill_state(const struct cairn_megatron_target *target, const char *key, uint32_t part)
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
    struct fill *fill = context;
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

    uint32_t count = cairn_megatron_part_boxes(part, boxes), index = 0;
    cairn_err err = cairn_output_add_tensor(target->output, target->options, source, &index);

    cairn_shape_strides(part->dims, part->shape,
                        cairn_dtype_bytes(cairn_output_dtype(target->options, source)), strides);
    for (uint32_t i = 0; i < count && !err; i++)
        err = cairn_output_add_box(target->output, index, file, boxes[i].start, boxes[i].extent,
                                   at + (part->dims > 0 ? boxes[i].row * strides[0] : 0), strides);
    return err;
}

static cairn_err
add_flat(struct cairn_megatron_target *target, const struct flat *flat, uint32_t file, uint64_t at)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < flat->count && !err; i++) {
        const struct cairn_megatron_part *part = &target->parts[flat->order[i]];
        uint32_t tensor = fill_state(target, flat->key, flat->order[i]);
        const struct cairn_tensor *source;

        if (tensor == UINT32_MAX)
            return CAIRN_INVAL;
        source = cairn_layout_tensor(target->checkpoint->layout, tensor);
        if (!cairn_shape_equal(source->dims, source->shape, part->dims, part->whole_shape) ||
            cairn_output_dtype(target->options, source) != flat->dtype)
            return cairn_refuse(
                target->checkpoint, CAIRN_INVAL,
                "%s has another shape than its parameter, or not the dtype of other parameters' %s",
                source->name, flat->key);
        target->placed[tensor] = true;
        err = add_part(target, tensor, part, file,
                       at + flat->begins[i] * cairn_dtype_bytes(flat->dtype));
    }
    return err;
}

static cairn_err
add_storage(void *context, uint32_t identity, uint32_t file, uint64_t at)
{
    struct fill *fill = context;
    struct cairn_megatron_target *target = fill->target;

    if (identity < target->part_count)
        return add_part(target, target->part_tensor[identity], &target->parts[identity], file, at);
    if (identity < tensors_begin(fill))
        return add_flat(target, &fill->flats[identity - target->part_count], file, at);
    identity -= tensors_begin(fill);
    target->placed[identity] = true;
    return cairn_output_add_whole(target->output, target->options,
                                  cairn_layout_tensor(target->checkpoint->layout, identity), file,
                                  at);
}

/* ---- files ---- */

static bool
is_first(const struct cairn_megatron_rank *rank)
{
    return rank->tp == 0 && rank->pp == 0 && rank->ep == 0;
}

/* Adds a file with the tree, and the pieces of the tensors in it. Complained about. */
static cairn_err
fill_add(struct fill *fill, const char *file, struct cairn_pickle_node *root)
{
    struct cairn_megatron_target *target = fill->target;
    struct cairn_torch_fill carry = {.tree = fill->tree,
                                     .root = root,
                                     .resolve = resolve,
                                     .context = fill,
                                     .complaint = target->checkpoint->complaint};
    char path[CAIRN_NAME_BYTES_MAX];

    if (!cairn_megatron_path(target->folder, &target->sizes, fill->rank, file, path))
        return CAIRN_INTERNAL;
    carry.identity_count =
        tensors_begin(fill) + cairn_layout_tensor_count(target->checkpoint->layout);
    return cairn_torch_output_fill(target->output, path, &carry, add_storage);
}

static const char *const keys[] = {"fp32", "exp_avg", "exp_avg_sq"};
enum { KEY_COUNT = sizeof(keys) / sizeof(keys[0]) };

/* ---- model_optim_rng.pt ---- */

/* Tensors of the first rank's object are placed by its own file, the last one to be made; a tied
 * parameter is where the one is that it is tied to. */
static bool
is_left(const struct cairn_megatron_target *target, uint32_t index)
{
    const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, index);

    if (target->placed[index] ||
        (tensor->kind == CAIRN_PARAM &&
         cairn_output_past_alias(target->checkpoint, target->options, index) != index))
        return false;
    return !target->common ||
           strncmp(tensor->name, CAIRN_MEGATRON_SCOPE, strlen(CAIRN_MEGATRON_SCOPE)) != 0 ||
           strncmp(tensor->name, CAIRN_MEGATRON_EXTRA, strlen(CAIRN_MEGATRON_EXTRA)) == 0;
}

/* What has no place in any other file, as a dict by kind and name; NULL if there is nothing. */
static cairn_err
list_rest(struct cairn_megatron_target *target, struct cairn_pickle *tree,
          struct cairn_pickle_node **dict)
{
    *dict = NULL;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(target->checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(target->checkpoint->layout, i);

        if (!is_left(target, i))
            continue;
        if (tensor->kind == CAIRN_PARAM && !strchr(tensor->name, '/'))
            return cairn_refuse(
                target->checkpoint, CAIRN_INVAL,
                "parameter %s has no place in a model of Megatron-LM; leave it out with --drop",
                tensor->name);
        cairn_torch_carried_put(tree, dict, tensor);
    }
    return cairn_pickle_done(tree);
}

static cairn_err
plan_model(struct cairn_megatron_target *target, const struct cairn_megatron_rank *rank,
           struct cairn_pickle *tree, struct cairn_pickle_node *const chunks[])
{
    struct fill fill = {.target = target, .rank = rank, .tree = tree};
    struct cairn_pickle_node *root = NULL, *rest = NULL;
    cairn_err err = cairn_megatron_target_object(target, rank, tree, chunks, &root);

    if (!err && is_first(rank))
        err = list_rest(target, tree, &rest);
    if (!err && rest)
        cairn_pickle_set(tree, root, CAIRN_MEGATRON_CARRIED, rest);
    if (!err)
        err = cairn_pickle_done(tree);
    return err ? err : fill_add(&fill, CAIRN_MEGATRON_MODEL, root);
}

/* ---- distrib_optim.pt ---- */

static cairn_err
add_flats(struct fill *fill, uint32_t first, uint32_t count, uint64_t elements,
          struct cairn_pickle_node *dict)
{
    const struct cairn_megatron_target *target = fill->target;
    struct cairn_pickle *tree = fill->tree;

    for (size_t k = 0; k < KEY_COUNT; k++) {
        uint32_t tensor = fill_state(target, keys[k], fill->order[first]);
        char number[16];

        if (tensor == UINT32_MAX)
            return CAIRN_INVAL;
        (void)snprintf(number, sizeof(number), "%" PRIu32, fill->flat_count);
        fill->flats[fill->flat_count++] = (struct flat){
            .key = keys[k],
            .order = fill->order + first,
            .begins = fill->begins + first,
            .count = count,
            .elements = elements,
            .dtype = cairn_output_dtype(target->options,
                                        cairn_layout_tensor(target->checkpoint->layout, tensor))};
        cairn_pickle_set(tree, dict, k == 0 ? "param" : keys[k],
                         cairn_pickle_named(tree, "flat", number));
    }
    cairn_pickle_set(tree, dict, "numel_unpadded", cairn_pickle_int(tree, (int64_t)elements));
    return CAIRN_OK;
}

/* The next buffer of a chunk: its parameters of one dtype; none: *dict is NULL. */
static cairn_err
add_buffer(struct fill *fill, uint32_t chunk, bool expert, struct cairn_pickle_node **dict)
{
    struct cairn_megatron_target *target = fill->target;
    struct cairn_pickle *tree = fill->tree;
    uint32_t first = fill->order_count, count;
    struct cairn_pickle_node *dtypes[2], *tensors;
    enum cairn_dtype dtype;
    uint64_t elements, bucket = 0;
    cairn_err err;

    *dict = NULL;
    count = cairn_megatron_collect(target->parts, target->part_count, chunk, expert, fill->taken,
                                   fill->order + first);
    if (count == 0)
        return CAIRN_OK;
    fill->order_count += count;
    dtype = target->parts[fill->order[first]].dtype;
    if (chunk == 0 && fill->rank->pp == 0)
        bucket = cairn_megatron_args_bucket(&target->args, target->sizes.dp);
    elements = cairn_megatron_buffer(target->parts, fill->order + first, count, bucket,
                                     fill->begins + first);
    tensors = cairn_pickle_dict(tree);
    err = add_flats(fill, first, count, elements, tensors);
    dtypes[0] = cairn_torch_dtype_node(&fill->builder, cairn_torch_dtype_of(dtype));
    dtypes[1] = cairn_torch_dtype_node(
        &fill->builder, cairn_torch_dtype_of(target->args.fp32_gradients ? CAIRN_F32 : dtype));
    *dict = cairn_pickle_dict(tree);
    cairn_pickle_put(tree, *dict, cairn_pickle_sequence(tree, CAIRN_PICKLE_TUPLE, dtypes, 2),
                     tensors);
    return err;
}

static cairn_err
make_optimizer(struct fill *fill, bool expert, struct cairn_pickle_node **state)
{
    struct cairn_pickle *tree = fill->tree;
    uint32_t buffer = 0, chunk = 0;
    cairn_err err = CAIRN_OK;

    *state = cairn_pickle_dict(tree);
    cairn_pickle_set(tree, *state, "buckets_coalesced", cairn_pickle_bool(tree, true));
    while (chunk < fill->target->sizes.vpp && !err) {
        struct cairn_pickle_node *dict;

        err = add_buffer(fill, chunk, expert, &dict);
        if (dict)
            cairn_pickle_put(tree, *state, cairn_pickle_int(tree, buffer++), dict);
        else
            chunk++;
    }
    return err;
}

/* One dict; or with an optimizer for experts a list, in which the other is where data-parallel rank
 * 0 of the other parameters is. */
static cairn_err
make_state(struct fill *fill, struct cairn_pickle_node **root)
{
    const struct cairn_megatron_target *target = fill->target;
    const struct cairn_parallelism *sizes = &target->sizes;
    const struct cairn_megatron_rank *rank = fill->rank;
    struct cairn_pickle_node *items[2];
    cairn_err err = CAIRN_OK;

    if (sizes->ep == 1 || target->expert_count == 0)
        return make_optimizer(fill, false, root);
    items[0] = items[1] = cairn_pickle_none(fill->tree);
    if (cairn_megatron_is_file(sizes, rank->tp, rank->ep, sizes->tp))
        err = make_optimizer(fill, false, &items[0]);
    if (!err && cairn_megatron_is_file(sizes, rank->tp, rank->ep, sizes->etp * sizes->ep))
        err = make_optimizer(fill, true, &items[1]);
    if (items[0]->kind == CAIRN_PICKLE_NONE && items[1]->kind == CAIRN_PICKLE_NONE)
        *root = NULL; /* Megatron-LM writes no such file */
    else
        *root = cairn_pickle_sequence(fill->tree, CAIRN_PICKLE_LIST, items, 2);
    return err;
}

static cairn_err
plan_optim(struct cairn_megatron_target *target, const struct cairn_megatron_rank *rank)
{
    struct cairn_pickle tree;
    struct cairn_pickle_node *root = NULL;
    struct fill fill = {.target = target, .rank = rank, .tree = &tree};
    size_t count = (size_t)target->part_count + 1;
    cairn_err err;

    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    cairn_torch_builder_init(&fill.builder, &tree);
    fill.taken = calloc(count, sizeof(*fill.taken));
    fill.order = calloc(count, sizeof(*fill.order));
    fill.begins = calloc(count, sizeof(*fill.begins));
    fill.flats = calloc(KEY_COUNT * count, sizeof(*fill.flats));
    err = fill.taken && fill.order && fill.begins && fill.flats ? make_state(&fill, &root)
                                                                : CAIRN_NOMEM;
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err && root)
        err = fill_add(&fill, CAIRN_MEGATRON_OPTIM, root);
    cairn_pickle_fini(&tree);
    free(fill.taken);
    free(fill.order);
    free(fill.begins);
    free(fill.flats);
    return err;
}

/* ---- the whole ---- */

/* Both files of a rank, whose parts are those of its chunks. */
static cairn_err
plan_rank(struct cairn_megatron_target *target, const struct cairn_megatron_rank *rank)
{
    struct cairn_pickle_node **chunks = calloc(target->sizes.vpp, sizeof(*chunks));
    struct cairn_pickle tree;
    cairn_err err = chunks ? CAIRN_OK : CAIRN_NOMEM;

    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    target->part_count = 0;
    for (uint32_t i = 0; i < target->sizes.vpp && !err; i++)
        err = cairn_megatron_target_chunk(target, rank, i, &tree, &chunks[i]);
    if (!err && target->has_optim)
        err = plan_optim(target, rank);
    if (!err)
        err = plan_model(target, rank, &tree, chunks);
    cairn_pickle_fini(&tree);
    free(chunks);
    return err;
}

static cairn_err
plan_all(struct cairn_megatron_target *target)
{
    const struct cairn_parallelism *sizes = &target->sizes;
    struct cairn_megatron_rank rank;
    cairn_err err = CAIRN_OK;

    for (rank.pp = 0; rank.pp < sizes->pp; rank.pp++)
        for (rank.tp = 0; rank.tp < sizes->tp; rank.tp++)
            for (rank.ep = 0; rank.ep < sizes->ep && !err; rank.ep++)
                if (!is_first(&rank) && cairn_megatron_is_file(sizes, rank.tp, rank.ep,
                                                               sizes->tp * sizes->etp * sizes->ep))
                    err = plan_rank(target, &rank);
    rank.tp = rank.pp = rank.ep = 0;
    return err ? err : plan_rank(target, &rank);
}

cairn_err
cairn_megatron_plan(const struct cairn_checkpoint *checkpoint,
                    const struct cairn_output_options *options, struct cairn_output *output)
{
    struct cairn_megatron_target target;
    char text[32] = "release";
    cairn_err err = cairn_megatron_target_init(&target, checkpoint, options, output);

    if (!err)
        err = plan_all(&target);
    if (target.step > 0)
        (void)snprintf(text, sizeof(text), "%" PRIu64, target.step);
    cairn_megatron_target_fini(&target);
    return err ? err : cairn_output_add_text(output, CAIRN_MEGATRON_LATEST, text);
}
