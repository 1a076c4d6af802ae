/*
 * tools/convert/megatron/optim.c - distrib_optim.pt: the flat buffers of a rank's distributed
 * optimizer.
 *
 *   {"buckets_coalesced": True,
 *    <buffer>: {(param dtype, grad dtype): {"param", "exp_avg", "exp_avg_sq": flat,
 *                                           "numel_unpadded": n}}}
 *
 * If experts have an optimizer of their own, it is a list of two such dicts. None in the list means
 * that another rank's file has it. Nothing in it has a name. A buffer holds the parameters of one
 * chunk and dtype; megatron/parts.h says where.
 */
#include "tools/convert/megatron/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_megatron_state *state;
    struct cairn_torch_source source;
};

static cairn_err
refuse(const struct reading *reading, const char *why)
{
    return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT, "%s", why);
}

/* One flat tensor: a piece or two for each parameter. */
static cairn_err
cut(struct reading *reading, const char *key, const struct cairn_torch_tensor *flat,
    const uint32_t *order, const uint64_t *begins, uint32_t count, uint64_t elements)
{
    const struct cairn_torch_view *view = &flat->view;
    const char *prefix = strcmp(key, "param") == 0 ? "fp32" : key;
    cairn_err err = CAIRN_OK;

    if (view->dims != 1 || !flat->contiguous || view->dtype->dtype == 0)
        return refuse(reading, "a flat buffer is not flat");
    if (view->shape[0] != elements)
        return cairn_refuse_file(reading->checkpoint, reading->source.path, CAIRN_CORRUPT,
                                 "%s has %" PRIu64 " elements, and the %" PRIu32
                                 " parameters of its model make %" PRIu64
                                 ": the file is of another checkpoint, the job has frozen "
                                 "parameters, or args do not say ddp_bucket_size",
                                 key, view->shape[0], count, elements);
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_megatron_part *part = &reading->state->parts[order[i]];
        char name[CAIRN_NAME_BYTES_MAX + CAIRN_MEGATRON_KEY_BYTES_MAX + 1];

        (void)snprintf(name, sizeof(name), "%s.%s", prefix, part->name);
        if (strlen(name) >= CAIRN_NAME_BYTES_MAX)
            return refuse(reading, "a parameter's name is too long for its state");
        err = cairn_megatron_add_part(reading->checkpoint, part, name, CAIRN_OPTIMIZER,
                                      view->dtype->dtype, reading->source.container,
                                      flat->at + begins[i] * view->dtype->element_bytes, NULL);
    }
    return err;
}

static cairn_err
read_buffer(struct reading *reading, const struct cairn_pickle_node *tensors, const uint32_t *order,
            const uint64_t *begins, uint32_t count, uint64_t elements)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < tensors->count && !err; i++) {
        const struct cairn_torch_tensor *flat =
            cairn_torch_source_tensor(&reading->source, tensors->items[2 * i + 1]);
        char key[CAIRN_MEGATRON_KEY_BYTES_MAX];

        if (!cairn_pickle_copy_text(tensors->items[2 * i], key, sizeof(key)) || !key[0] ||
            strchr(key, '.') || strchr(key, '/'))
            return refuse(reading, "a key of the optimizer's state is not a plain name");
        if (flat)
            err = cut(reading, key, flat, order, begins, count, elements);
        else if (strcmp(key, "numel_unpadded") != 0)
            err = refuse(reading, "it is of before February 2024, with a list of tensors for each "
                                  "bucket; load and save it with a newer Megatron-LM first");
    }
    return err;
}

/* One optimizer's buffers: those of the first chunk, one per dtype, then those of the next. */
static cairn_err
read_optimizer(struct reading *reading, const struct cairn_pickle_node *optimizer, bool expert,
               uint32_t stage)
{
    struct cairn_megatron_state *state = reading->state;
    bool *taken = calloc((size_t)state->part_count + 1, sizeof(*taken));
    uint32_t *order = calloc((size_t)state->part_count + 1, sizeof(*order));
    uint64_t *begins = calloc((size_t)state->part_count + 1, sizeof(*begins));
    uint32_t buffer = 0, chunk = 0, count;
    cairn_err err = taken && order && begins ? CAIRN_OK : CAIRN_NOMEM;

    while (!err && chunk < state->vpp) {
        const struct cairn_pickle_node *dtypes, *tensors;
        uint64_t bucket = chunk == 0 && stage == 0
                              ? cairn_megatron_args_bucket(&state->args, state->sizes.dp)
                              : 0;

        count =
            cairn_megatron_collect(state->parts, state->part_count, chunk, expert, taken, order);
        if (count == 0) {
            chunk++;
            continue;
        }
        dtypes = cairn_pickle_pairs(cairn_pickle_at(optimizer, buffer++));
        tensors = dtypes && dtypes->count == 1 ? cairn_pickle_pairs(dtypes->items[1]) : NULL;
        err = tensors
                  ? read_buffer(reading, tensors, order, begins, count,
                                cairn_megatron_buffer(state->parts, order, count, bucket, begins))
                  : refuse(reading, "it has fewer buffers than its model has chunks and dtypes");
    }
    if (!err && cairn_pickle_at(optimizer, buffer))
        err = refuse(reading, "it has more buffers than its model has chunks and dtypes");
    free(taken);
    free(order);
    free(begins);
    return err;
}

cairn_err
cairn_megatron_optim_read(struct cairn_checkpoint *checkpoint, struct cairn_megatron_state *state,
                          const char *path, uint32_t stage)
{
    struct reading reading = {.checkpoint = checkpoint, .state = state};
    const struct cairn_pickle_node *root;
    cairn_err err = cairn_torch_source_open(checkpoint, path, &reading.source);

    root = err ? NULL : reading.source.torch.root;
    if (!err && state->args.buckets && state->args.bucket_count_set)
        err =
            refuse(&reading, "its buckets were counted with --ddp-num-buckets, which is not read");
    if (err) {
        ;
    } else if (cairn_pickle_pairs(root)) {
        err = read_optimizer(&reading, root, false, stage);
    } else if (root->kind == CAIRN_PICKLE_LIST && root->count == 2) {
        for (uint32_t i = 0; i < 2 && !err; i++)
            if (root->items[i]->kind != CAIRN_PICKLE_NONE)
                err = read_optimizer(&reading, root->items[i], i == 1, stage);
    } else {
        err = refuse(
            &reading,
            "it is neither a dict of buffers nor a list of two, for the model and its experts");
    }
    cairn_torch_source_close(&reading.source);
    return err;
}
