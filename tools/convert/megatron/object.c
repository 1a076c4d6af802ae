/* tools/convert/megatron/object.c - what a rank's model_optim_rng.pt holds around its model, for a
 * new parallelism. */
#include "tools/convert/megatron/join.h"
#include "tools/convert/megatron/plain.h"
#include "tools/convert/megatron/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/carry.h"

/* ---- args ---- */

static void
set_number(struct cairn_pickle *tree, struct cairn_pickle_node *args, const char *name,
           uint64_t number)
{
    cairn_megatron_args_set(args, name, cairn_pickle_int(tree, (int64_t)number));
}

/* A number that was one before, for sizes that may be None. */
static void
change_number(struct cairn_pickle *tree, struct cairn_pickle_node *args, const char *name,
              uint64_t number)
{
    const struct cairn_pickle_node *known = cairn_pickle_attribute(args, name);

    if (known && known->kind == CAIRN_PICKLE_INT)
        set_number(tree, args, name, number);
}

static void
set_args(const struct cairn_megatron_target *target, struct cairn_pickle *tree,
         struct cairn_pickle_node *args)
{
    const struct cairn_parallelism *sizes = &target->sizes;
    const struct cairn_parallelism *said = &target->args.sizes;
    uint32_t embedding = cairn_megatron_target_find(target, CAIRN_MEGATRON_EMBEDDING);
    struct cairn_megatron_part part = {
        .split = CAIRN_MEGATRON_VOCABULARY, .count = sizes->tp, .dims = 2};
    uint64_t contexts = 0;

    part.whole_shape[0] = cairn_layout_tensor(target->checkpoint->layout, embedding)->shape[0];
    if (cairn_megatron_part_cut(&part, target->args.vocabulary_multiple))
        set_number(tree, args, "padded_vocab_size", part.shape[0] * sizes->tp);
    set_number(tree, args, "tensor_model_parallel_size", sizes->tp);
    set_number(tree, args, "pipeline_model_parallel_size", sizes->pp);
    set_number(tree, args, "expert_model_parallel_size", sizes->ep);
    set_number(tree, args, "expert_tensor_parallel_size", sizes->etp);
    set_number(tree, args, "data_parallel_size", sizes->dp);
    if (!cairn_pickle_u64(cairn_pickle_attribute(args, "context_parallel_size"), &contexts) ||
        contexts == 0)
        contexts = 1;
    set_number(tree, args, "world_size", sizes->tp * sizes->pp * contexts * sizes->dp);
    if (sizes->vpp > 1) {
        set_number(tree, args, "virtual_pipeline_model_parallel_size", sizes->vpp);
        change_number(tree, args, "num_layers_per_virtual_pipeline_stage",
                      target->layer_count / (sizes->pp * sizes->vpp));
        change_number(tree, args, "num_virtual_stages_per_pipeline_rank", sizes->vpp);
    } else {
        cairn_megatron_args_set(args, "virtual_pipeline_model_parallel_size",
                                cairn_pickle_none(tree));
        cairn_megatron_args_set(args, "num_layers_per_virtual_pipeline_stage",
                                cairn_pickle_none(tree));
        cairn_megatron_args_set(args, "num_virtual_stages_per_pipeline_rank",
                                cairn_pickle_none(tree));
    }
    if (sizes->pp != said->pp ||
        (sizes->vpp > 1 ? sizes->vpp != target->args.vpp : target->args.vpp > 1)) {
        cairn_megatron_args_set(args, "decoder_first_pipeline_num_layers", cairn_pickle_none(tree));
        cairn_megatron_args_set(args, "decoder_last_pipeline_num_layers", cairn_pickle_none(tree));
        cairn_megatron_args_set(args, "pipeline_model_parallel_layout", cairn_pickle_none(tree));
    }
}

/* ---- the object ---- */

/* A rank's own object, where one is carried. */
static cairn_err
load(struct cairn_megatron_target *target, const struct cairn_megatron_rank *rank,
     struct cairn_pickle *tree, struct cairn_pickle_node **root)
{
    char own[96];
    uint32_t tensor;
    cairn_err err = CAIRN_OK;

    (void)snprintf(own, sizeof(own),
                   "rank%" PRIu32 "_%" PRIu32 "_%" PRIu32 "/" CAIRN_MEGATRON_COMMON, rank->tp,
                   rank->pp, rank->ep);
    tensor = cairn_layout_tensor_find(target->checkpoint->layout, own);
    if (tensor != UINT32_MAX) {
        err = cairn_opaque_read(target->checkpoint, own, CAIRN_CONVERT_METADATA_BYTES_MAX, tree,
                                root);
    } else {
        tensor = cairn_layout_tensor_find(target->checkpoint->layout, CAIRN_MEGATRON_COMMON);
        err = cairn_pickle_read(tree, CAIRN_MEGATRON_COMMON, target->common, target->common_bytes,
                                root, target->checkpoint->complaint);
    }
    if (!err && tensor != UINT32_MAX && !target->placed[tensor])
        err = cairn_output_add_carried(target->output, tensor);
    if (!err && tensor != UINT32_MAX)
        cairn_megatron_target_place(target, tensor);
    if (!err && !cairn_pickle_pairs(*root))
        err = cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "%s: expected a dict", own);
    if (!err && tensor == UINT32_MAX)
        err = cairn_megatron_join_states(target, rank, tree, *root);
    return err;
}

static void
put_models(const struct cairn_megatron_target *target, struct cairn_pickle *tree,
           struct cairn_pickle_node *const chunks[], struct cairn_pickle_node *root)
{
    for (uint32_t i = 0; i < target->sizes.vpp; i++) {
        char key[16] = "model";

        if (target->sizes.vpp > 1)
            (void)snprintf(key, sizeof(key), "model%" PRIu32, i);
        cairn_pickle_set(tree, root, key, chunks[i]);
    }
}

/* "model", or "model" and a number. */
static bool
is_model(const struct cairn_pickle_node *key)
{
    char text[16];

    return cairn_pickle_copy_text(key, text, sizeof(text)) && strncmp(text, "model", 5) == 0 &&
           text[5 + strspn(text + 5, "0123456789")] == '\0';
}

static void
put_sizes(const struct cairn_megatron_target *target, struct cairn_pickle *tree,
          struct cairn_pickle_node *root)
{
    const struct cairn_parallelism *sizes = &target->sizes;
    const struct {
        const char *key;
        uint32_t size;
    } all[] = {{"tp", sizes->tp}, {"pp", sizes->pp}, {"ep", sizes->ep}, {"etp", sizes->etp}};
    struct cairn_pickle_node *dict = cairn_pickle_dict(tree);

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        cairn_pickle_set(tree, dict, all[i].key, cairn_pickle_int(tree, all[i].size));
    cairn_pickle_set(tree, root, CAIRN_MEGATRON_SIZES, dict);
}

cairn_err
cairn_megatron_target_object(struct cairn_megatron_target *target,
                             const struct cairn_megatron_rank *rank, struct cairn_pickle *tree,
                             struct cairn_pickle_node *const chunks[],
                             struct cairn_pickle_node **root)
{
    struct cairn_pickle_node *made = cairn_pickle_dict(tree), *carried = NULL;
    const struct cairn_pickle_node *pairs;
    bool models = false;
    cairn_err err;

    *root = made;
    if (!target->common) {
        cairn_pickle_set(tree, made, "checkpoint_version", cairn_pickle_float(tree, 3.0));
        if (target->checkpoint->step_known)
            cairn_pickle_set(tree, made, "iteration",
                             cairn_pickle_int(tree, (int64_t)target->checkpoint->step));
        put_models(target, tree, chunks, made);
        put_sizes(target, tree, made);
        return cairn_pickle_done(tree);
    }
    err = load(target, rank, tree, &carried);
    if (err)
        return err;
    set_args(target, tree, cairn_pickle_get(carried, "args"));
    pairs = cairn_pickle_pairs(carried);
    for (uint32_t i = 0; i < pairs->count; i++) {
        struct cairn_pickle_node *key = pairs->items[2 * i], *value = pairs->items[2 * i + 1];

        if (cairn_pickle_is_text(key, CAIRN_MEGATRON_CARRIED) ||
            cairn_pickle_is_text(key, CAIRN_MEGATRON_SIZES) ||
            (target->omit_optimizer && cairn_pickle_is_text(key, "optimizer")))
            continue;
        if (is_model(key)) {
            if (!models)
                put_models(target, tree, chunks, made);
            models = true;
            continue;
        }
        if (cairn_pickle_is_text(key, "optimizer")) {
            value = cairn_megatron_settings_for(tree, value,
                                                target->sizes.ep > 1 && target->expert_count > 0);
            if (target->plain_state)
                err = cairn_megatron_plain_make(target, tree, value);
        }
        if (err)
            return err;
        cairn_pickle_put(tree, made, key, value);
    }
    if (!models)
        put_models(target, tree, chunks, made);
    if (!target->args.known)
        put_sizes(target, tree, made);
    return cairn_pickle_done(tree);
}

/* ---- what has no place ---- */

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

cairn_err
cairn_megatron_target_rest(struct cairn_megatron_target *target, struct cairn_pickle *tree,
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
