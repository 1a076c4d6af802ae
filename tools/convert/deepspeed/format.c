/*
 * tools/convert/deepspeed/format.c - DeepSpeed's own checkpoints: ZeRO 0 to 3 and the BF16
 * optimizer, and pipelines.
 *
 *     latest                  the name of the newest folder
 *     global_step<N>/         deepspeed/files.h says which file is whose
 *
 * The place is the directory with `latest`, or one of the folders. What the files hold is
 * deepspeed/state.h's, where parameters lie in flat buffers deepspeed/groups.h's, and how files are
 * laid out for another number of ranks deepspeed/plan.c's. Written with the ZeRO stage that the
 * source had, or, where it did not come from DeepSpeed, with what deepspeed/make.h makes.
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>

#include "tools/convert/core/numbers.h"
#include "tools/convert/deepspeed/files.h"
#include "tools/convert/deepspeed/make.h"
#include "tools/convert/deepspeed/target.h"

static bool
probe(const struct cairn_place *place)
{
    return cairn_deepspeed_probe(place, "latest", false);
}

static cairn_err
check_counts(const struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_files *files,
             const struct cairn_deepspeed_state *state)
{
    if (state->has_groups && files->optim_count != files->part_count * (uint64_t)state->ranks)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%s says that %" PRIu32
                            " ranks wrote the checkpoint, and there are %" PRIu32
                            " optim_states files; copy the others from the nodes that wrote them",
                            files->models[0].path, state->ranks, files->optim_count);
    if (!state->has_groups && files->optim_count > 0)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%s has no param_shapes, without which the optim_states files cannot "
                            "be cut into parameters; take the checkpoint's own",
                            files->models[0].path);
    if (files->model_by_rank && files->model_count != files->part_count * (uint64_t)state->ranks)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%s says that %" PRIu32
                            " ranks wrote the checkpoint, and there are %" PRIu32
                            " model_states files; copy the others from the nodes that wrote them",
                            files->models[0].path, state->ranks, files->model_count);
    return CAIRN_OK;
}

/* All files of one part of the module. */
static cairn_err
read_part(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_files *files,
          struct cairn_deepspeed_state *state)
{
    uint32_t models = files->model_count / files->part_count;
    uint32_t optims = files->optim_count / files->part_count;
    const struct cairn_deepspeed_file *model = &files->models[state->part * models];
    const struct cairn_deepspeed_file *optim = optims ? &files->optims[state->part * optims] : NULL;
    cairn_err err;

    err = cairn_deepspeed_model_read(checkpoint, state, model[0].path, 0);
    if (!err)
        err = check_counts(checkpoint, files, state);
    for (uint32_t i = 1; i < models && !err; i++)
        err = cairn_deepspeed_model_read(checkpoint, state, model[i].path, i);
    for (uint32_t i = 0; i < optims && !err; i++)
        err = cairn_deepspeed_optim_read(checkpoint, state, optim[i].path, i);
    return err ? err : cairn_deepspeed_state_end(checkpoint, state);
}

/* What a layer's experts are called in the module, as the file of one says. */
static cairn_err
learn_layer(struct cairn_checkpoint *checkpoint, const char *path, uint32_t experts,
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

/* The layers of a part that have files of experts. The caller ends *layers in any case. */
static cairn_err
learn_layers(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_files *files,
             uint32_t part, struct cairn_deepspeed_layers *layers)
{
    const struct cairn_deepspeed_file *experts = files->experts;
    cairn_err err = CAIRN_OK;

    if (files->expert_count > 0 && files->model_by_rank)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "%s has experts, and %s ZeRO 3, which DeepSpeed does not combine: they "
                            "are of two checkpoints; separate them",
                            experts[0].path, files->models[0].path);
    for (uint32_t i = 0, next; i < files->expert_count && !err; i = next) {
        for (next = i + 1; next < files->expert_count && experts[next].part == experts[i].part &&
                           experts[next].layer == experts[i].layer;)
            next++;
        if (experts[i].part == part)
            err = learn_layer(checkpoint, experts[i].path, next - i, layers);
    }
    return err;
}

static cairn_err
read_parts(struct cairn_checkpoint *checkpoint, const struct cairn_deepspeed_files *files,
           struct cairn_deepspeed_spreading *spreading)
{
    struct cairn_deepspeed_state first = {0};
    cairn_err err = CAIRN_OK;

    for (uint32_t part = 0; part < files->part_count && !err; part++) {
        struct cairn_deepspeed_state later = {0}, *state = part == 0 ? &first : &later;
        struct cairn_deepspeed_layers layers = {0};

        err = learn_layers(checkpoint, files, part, &layers);
        state->part = part;
        state->part_count = files->part_count;
        state->first_tensor = cairn_layout_tensor_count(checkpoint->layout);
        state->has_layers = files->layer_count > 0;
        state->layers = layers;
        state->spreading = spreading;
        state->stage3 = files->model_by_rank;
        state->first = part == 0 ? NULL : &first;
        if (!err)
            err = read_part(checkpoint, files, state);
        state->layers = (struct cairn_deepspeed_layers){0};
        cairn_deepspeed_layers_fini(&layers);
        cairn_deepspeed_state_fini(&later);
    }
    cairn_deepspeed_state_fini(&first);
    return err;
}

/* After all parts: carries how experts were spread if another number would make other groups. */
static cairn_err
note_spreading(struct cairn_checkpoint *checkpoint,
               const struct cairn_deepspeed_spreading *spreading)
{
    uint64_t ranks = spreading->mixed ? 0 : spreading->ranks;

    checkpoint->parallelism.ep = spreading->ranks > 0 ? spreading->ranks : 1;
    if (!spreading->split && !spreading->mixed)
        return CAIRN_OK;
    return cairn_numbers_add(checkpoint, CAIRN_DEEPSPEED_EXPERT_RANKS, &ranks, 1);
}

static cairn_err
read_all(struct cairn_checkpoint *checkpoint)
{
    struct cairn_deepspeed_files files = {0};
    struct cairn_deepspeed_spreading spreading = {0};
    char folder[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    err = cairn_deepspeed_folder(&checkpoint->place, "latest", folder, checkpoint->complaint);
    if (!err)
        err = cairn_deepspeed_files_list(checkpoint, folder, &files);
    if (!err)
        err = read_parts(checkpoint, &files, &spreading);
    if (!err)
        err = note_spreading(checkpoint, &spreading);
    if (!err)
        err = cairn_deepspeed_layers_read(checkpoint, &files);
    if (!err && files.bf16) /* what the loader looks for first, where the job trains in bf16 */
        err = cairn_checkpoint_add_opaque(checkpoint, CAIRN_DEEPSPEED_PREFIX, "bf16_", 5);
    cairn_deepspeed_files_fini(&files);
    return err;
}

const struct cairn_format cairn_format_deepspeed = {
    .name = "deepspeed",
    .about = "DeepSpeed's checkpoint: ZeRO 0 to 3, a folder per step with files per rank",
    .probe = probe,
    .read = read_all,
    .prepare = cairn_deepspeed_prepare,
    .plan = cairn_deepspeed_plan,
    .finish = cairn_torch_outputs_finish,
    .release = cairn_torch_outputs_release,
};
