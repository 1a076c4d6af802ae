/* tools/convert/megatron/object.c - what a rank's model_optim_rng.pt holds around its model, for a
 * new parallelism. */
#include "tools/convert/megatron/target.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron/plain.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/megatron/dist_names.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/pickle/write.h"

#define ENDING ".pickle"
#define RNG_KEY "rng_state"

/* In the order in which Megatron-LM puts them; others follow by name. */
static const char *const first_keys[] = {"args",      "checkpoint_version",  "iteration",
                                         "optimizer", "opt_param_scheduler", NULL};

static cairn_err
refuse(const struct cairn_megatron_target *target, cairn_err err, const char *name)
{
    return cairn_complain_failed(target->checkpoint->complaint, err,
                                 "%s: %s cannot be read as a value of Megatron-Core's",
                                 target->checkpoint->place.path, name);
}

/* A tensor that the object names is written with it. */
static cairn_err
place_named(void *context, struct cairn_pickle_node *node)
{
    struct cairn_megatron_target *target = context;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor = UINT32_MAX;

    if (cairn_pickle_tensor_name(node, name))
        tensor = cairn_megatron_target_find(target, name);
    if (tensor != UINT32_MAX)
        target->placed[tensor] = true;
    return CAIRN_OK; /* what it does not find is complained about where the object is written */
}

/* Opaque state that becomes part of an object; its bytes lie in the arena. */
static cairn_err
take(struct cairn_megatron_target *target, uint32_t tensor, struct cairn_pickle *tree,
     struct cairn_pickle_node **value)
{
    const char *name = cairn_layout_tensor(target->checkpoint->layout, tensor)->name;
    cairn_err err =
        cairn_opaque_read(target->checkpoint, name, CAIRN_CONVERT_METADATA_BYTES_MAX, tree, value);

    if (!err)
        err = cairn_megatron_target_carry(target, tensor);
    if (!err)
        err = cairn_torch_visit_persistent(tree, *value, place_named, target);
    return refuse(target, err, name);
}

cairn_err
cairn_megatron_join(struct cairn_megatron_target *target)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    struct cairn_pickle_node *all, *root, *value = NULL;
    struct cairn_pickle tree;
    uint32_t *order;
    cairn_err err;

    if (cairn_layout_tensor_find(layout, "args" ENDING) == UINT32_MAX &&
        cairn_layout_tensor_find(layout, CAIRN_MEGATRON_CONTENT ENDING) == UINT32_MAX)
        return CAIRN_OK;
    order = cairn_checkpoint_sorted(layout);
    err = order ? CAIRN_OK : CAIRN_NOMEM;
    cairn_pickle_init(&tree, CAIRN_CONVERT_METADATA_BYTES_MAX);
    all = cairn_pickle_dict(&tree);
    root = cairn_pickle_dict(&tree);
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && !err; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, order[i]);
        size_t bytes = strcspn(tensor->name, "./");
        char key[CAIRN_NAME_BYTES_MAX];

        if (tensor->kind != CAIRN_OPAQUE || bytes == 0 || strcmp(tensor->name + bytes, ENDING) != 0)
            continue;
        (void)snprintf(key, sizeof(key), "%.*s", (int)bytes, tensor->name);
        err = take(target, order[i], &tree, &value);
        if (!err && strcmp(key, "optimizer") == 0)
            value = cairn_megatron_settings_plain(&tree, value);
        if (!err)
            cairn_pickle_set(&tree, all, key, value);
    }
    for (size_t i = 0; first_keys[i]; i++) {
        value = cairn_pickle_get(all, first_keys[i]);
        if (value)
            cairn_pickle_set(&tree, root, first_keys[i], value);
        if (value && strcmp(first_keys[i], "iteration") == 0) /* put there later */
            cairn_pickle_set(&tree, root, "model", cairn_pickle_none(&tree));
    }
    cairn_pickle_put_all(&tree, root, all, first_keys);
    if (!cairn_pickle_get(root, "checkpoint_version")) /* without it, Megatron-LM reorders qkv */
        cairn_pickle_set(&tree, root, "checkpoint_version", cairn_pickle_float(&tree, 3.0));
    cairn_pickle_set(&tree, root, RNG_KEY, cairn_pickle_none(&tree)); /* each rank's own, later */
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_pickle_write(&tree, root, &target->common, &target->common_bytes, NULL);
    cairn_pickle_fini(&tree);
    free(order);
    target->joined = true;
    return err;
}

/* ---- RNG states ---- */

/* The states of a pair of stage and tensor-parallel rank, with any number of data-parallel ranks
 * beside it; UINT32_MAX. */
static uint32_t
find_states(const struct cairn_megatron_target *target, uint32_t pp, uint32_t tp)
{
    const struct cairn_layout *layout = target->checkpoint->layout;
    char name[96];
    uint32_t found = UINT32_MAX;

    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout) && found == UINT32_MAX; i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(layout, i);

        (void)snprintf(name, sizeof(name), RNG_KEY "/shard_%" PRIu32 ".%" PRIu32, pp, tp);
        if (tensor->kind == CAIRN_OPAQUE && strncmp(tensor->name, name, strlen(name)) == 0 &&
            (tensor->name[strlen(name)] == '_' ||
             strncmp(tensor->name + strlen(name), ".0_", 3) == 0))
            found = i;
    }
    return found;
}

/* Puts the RNG states of a rank into its object, where the checkpoint has them; those of the first
 * rank where it has none of this one. Complained about. */
static cairn_err
join_states(struct cairn_megatron_target *target, const struct cairn_megatron_rank *rank,
            struct cairn_pickle *tree, struct cairn_pickle_node *root)
{
    struct cairn_pickle_node *value = NULL;
    uint32_t tensor = find_states(target, rank->pp, rank->tp);
    cairn_err err;

    if (tensor == UINT32_MAX) /* a rank that the source did not have */
        tensor = find_states(target, 0, 0);
    if (tensor == UINT32_MAX)
        return CAIRN_OK;
    err = take(target, tensor, tree, &value);
    if (err)
        return err;
    if (!cairn_pickle_only(value))
        return refuse(target, CAIRN_CORRUPT,
                      cairn_layout_tensor(target->checkpoint->layout, tensor)->name);
    cairn_torch_carry_replace(root, RNG_KEY, value->items[0]);
    return CAIRN_OK;
}

/* ---- extra states ---- */

cairn_err
cairn_megatron_join_extra(struct cairn_megatron_target *target, const char *canonical,
                          struct cairn_pickle *tree, struct cairn_pickle_node **value)
{
    const uint64_t extents[CAIRN_MDIST_STARS_MAX] = {target->layer_count, target->expert_count};
    const struct cairn_layout *layout = target->checkpoint->layout;
    char name[CAIRN_NAME_BYTES_MAX], file[CAIRN_NAME_BYTES_MAX + sizeof(ENDING)];
    uint32_t tensor = UINT32_MAX, forms[] = {3, 0, 1, 2};
    struct cairn_pickle_node *list = NULL;
    cairn_err err;

    *value = NULL;
    /* layers and experts stacked, or either */
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]) && tensor == UINT32_MAX; i++) {
        if (!cairn_mdist_extra_key(canonical, forms[i], extents, name))
            continue;
        (void)snprintf(file, sizeof(file), "%s" ENDING, name);
        tensor = cairn_layout_tensor_find(layout, file);
    }
    if (tensor == UINT32_MAX)
        return CAIRN_OK;
    err = take(target, tensor, tree, &list);
    if (err)
        return err;
    *value = cairn_pickle_only(list);
    return *value ? CAIRN_OK : refuse(target, CAIRN_CORRUPT, file);
}

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
    if (sizes->pp != said->pp || (sizes->vpp > 1 ? sizes->vpp != said->vpp : said->vpp > 1)) {
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
    if (!err && tensor != UINT32_MAX)
        err = cairn_megatron_target_carry(target, tensor);
    if (!err && !cairn_pickle_pairs(*root))
        err = cairn_refuse(target->checkpoint, CAIRN_CORRUPT, "%s: expected a dict", own);
    if (!err && tensor == UINT32_MAX)
        err = join_states(target, rank, tree, *root);
    return err;
}

static void
put_models(const struct cairn_megatron_target *target, struct cairn_pickle *tree,
           struct cairn_pickle_node *const chunks[], struct cairn_pickle_node *root)
{
    for (uint32_t i = 0; i < target->sizes.vpp; i++) {
        char key[16];

        cairn_megatron_chunk_key(target->sizes.vpp, i, key);
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
