/*
 * tools/convert/deepspeed/expert_read.c - what the files of a job say of its experts: the layers
 * that they are of, how they are spread over ranks, and the objects as those of a job that does not
 * spread them.
 */
#include "tools/convert/deepspeed/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/files.h"

static cairn_err
refuse(const struct cairn_checkpoint *checkpoint, const char *where, const char *why)
{
    return cairn_refuse_file(checkpoint, where, CAIRN_CORRUPT, "%s", why);
}

/* What a layer's experts are called in the module, as the file of one says. */
static cairn_err
read_layer(struct cairn_checkpoint *checkpoint, const char *path, uint32_t experts,
           struct cairn_deepspeed_layers *layers)
{
    struct cairn_torch_source source = {0};
    const struct cairn_pickle_node *pairs;
    char key[CAIRN_NAME_BYTES_MAX];
    struct cairn_deepspeed_expert expert;
    const char *name;
    cairn_err err = cairn_torch_source_open(checkpoint, path, &source);

    pairs = err ? NULL : cairn_pickle_pairs(source.torch.root);
    if (!err &&
        (!pairs || pairs->count == 0 || !cairn_pickle_copy_text(pairs->items[0], key, sizeof(key))))
        err = cairn_refuse_file(checkpoint, path, CAIRN_CORRUPT,
                                "holds no tensors of an expert by name");
    name = err ? NULL : cairn_deepspeed_canonical(key);
    if (!err && !cairn_deepspeed_expert_in(name, &expert))
        err = cairn_refuse_file(
            checkpoint, path, CAIRN_VERSION,
            "%s is not a name of an expert of DeepSpeed's MoE layers, which alone are read", key);
    if (!err && cairn_deepspeed_layer_find(layers, name, expert.begin))
        err = cairn_refuse_file(checkpoint, path, CAIRN_CORRUPT,
                                "is of the same layer as another file; take all of one checkpoint");
    if (!err)
        err = cairn_deepspeed_layer_add(layers, name, expert.begin, experts);
    cairn_torch_source_close(&source);
    return err;
}

cairn_err
cairn_deepspeed_experts_in_files(struct cairn_checkpoint *checkpoint,
                                 const struct cairn_deepspeed_files *files, uint32_t part,
                                 struct cairn_deepspeed_layers *layers)
{
    const struct cairn_deepspeed_file *experts = files->experts;
    cairn_err err = CAIRN_OK;

    if (files->expert_count > 0 && files->model_by_rank)
        return cairn_refuse(
            checkpoint, CAIRN_CORRUPT,
            "%s is of a job with experts, and %s of one with ZeRO 3, with which DeepSpeed does not "
            "train its MoE layers: they are of two checkpoints; separate them",
            experts[0].path, files->models[0].path);
    for (uint32_t i = 0, next; i < files->expert_count && !err; i = next) {
        for (next = i + 1; next < files->expert_count && experts[next].part == experts[i].part &&
                           experts[next].layer == experts[i].layer;)
            next++;
        if (experts[i].part == part)
            err = read_layer(checkpoint, experts[i].path, next - i, layers);
    }
    return err;
}

cairn_err
cairn_deepspeed_experts_in_model(const struct cairn_checkpoint *checkpoint,
                                 struct cairn_deepspeed_state *state,
                                 const struct cairn_pickle_node *root, const char *where)
{
    const struct cairn_pickle_node *counts = cairn_pickle_get(root, "num_experts");
    const struct cairn_pickle_node *first =
        cairn_pickle_get(cairn_pickle_get(root, "ds_config"), "use_data_before_expert_parallelism");
    const struct cairn_pickle_node *shared =
        cairn_pickle_pairs(cairn_pickle_get(root, "shared_params"));
    char name[CAIRN_NAME_BYTES_MAX];
    struct cairn_deepspeed_expert expert;
    const char *why = NULL;
    uint64_t count;
    cairn_err err;

    if (state->layers.count > 0 && !cairn_pickle_is_list(counts))
        return refuse(checkpoint, where, "it has files of experts beside it and no num_experts");
    if (cairn_pickle_is_list(counts) && counts->count != state->layers.count)
        return refuse(checkpoint, where,
                      "it has another number of layers of experts than layer_…_expert_… files of; "
                      "copy those that are missing from the nodes that wrote them");
    for (uint32_t i = 0; i < state->layers.count; i++)
        if (!cairn_pickle_u64(counts->items[i], &count) || count != state->layers.layers[i].experts)
            return refuse(checkpoint, where,
                          "its num_experts are not as many as there are layer_…_expert_… files of "
                          "each layer; copy those that are missing from the nodes that wrote them");
    for (uint32_t i = 0; shared && i < shared->count; i++)
        if (cairn_pickle_copy_text(shared->items[2 * i], name, sizeof(name)) &&
            cairn_deepspeed_expert_in(cairn_deepspeed_canonical(name), &expert))
            return cairn_refuse_file(checkpoint, where, CAIRN_VERSION,
                                     "%s is a tied parameter of an expert, which only the first "
                                     "rank's experts alone and not read",
                                     name);
    state->groups.data_first = cairn_pickle_is_true(first);
    err = cairn_deepspeed_experts_place(&state->groups, &state->layers, state->ranks, &why);
    return err == CAIRN_CORRUPT ? refuse(checkpoint, where, why) : err;
}

cairn_err
cairn_deepspeed_experts_gather(struct cairn_checkpoint *checkpoint,
                               struct cairn_deepspeed_state *state, struct cairn_pickle *tree,
                               struct cairn_pickle_node *root, const char *where)
{
    struct cairn_deepspeed_spreading *spreading = state->spreading;
    struct cairn_deepspeed_groups whole = {0};
    const char *why = NULL;
    bool mixed;
    uint32_t spread = cairn_deepspeed_spread(&state->groups, &mixed);
    cairn_err err;

    err = cairn_deepspeed_experts_spread(&state->groups, &state->layers, 1, &whole, &why);
    if (!err) {
        cairn_torch_carry_replace(root, "param_shapes", cairn_deepspeed_shapes_node(&whole, tree));
        err = cairn_deepspeed_names_spread(tree, root, "buffer_names", &state->layers, 1, &why);
    }
    for (uint32_t i = 0; i < whole.group_count && !err; i++)
        if (whole.groups[i].count > 0 && whole.parameters[whole.groups[i].first].own_experts > 0 &&
            whole.groups[i].elements > CAIRN_DEEPSPEED_EXPERT_GROUP_ELEMENTS_MAX)
            spreading->split = true;
    spreading->mixed =
        spreading->mixed || mixed || (spreading->ranks > 0 && spreading->ranks != spread);
    spreading->ranks = spread > spreading->ranks ? spread : spreading->ranks;
    cairn_deepspeed_groups_fini(&whole);
    return err == CAIRN_VERSION ? cairn_refuse_file(checkpoint, where, err, "%s", why) : err;
}

cairn_err
cairn_deepspeed_experts_end(struct cairn_checkpoint *checkpoint,
                            const struct cairn_deepspeed_spreading *spreading)
{
    uint64_t ranks = spreading->mixed ? 0 : spreading->ranks;

    checkpoint->parallelism.ep = spreading->ranks > 0 ? spreading->ranks : 1;
    if (!spreading->split && !spreading->mixed)
        return CAIRN_OK;
    return cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_EXPERT_RANKS, &ranks, 1);
}
