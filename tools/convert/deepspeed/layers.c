/*
 * tools/convert/deepspeed/layers.c - the layers of a pipeline's module, or the experts of a module,
 * a file each.
 *
 * A file holds what the layer's own state_dict has, so its names are without the layer's: tensor
 * "up.weight" of layer 3 is "3.up.weight" in the module. A layer that shares its weights is
 * "tied_modules.<key>" there, and which key is not in the file: it is the tied parameter of the
 * same ending and shape. An expert's tensors have the names that they have in the module, with the
 * number of the expert over all ranks.
 *
 * What the files of a job say of its experts is read before: the layers that they are of, how they
 * are spread over ranks, and the objects as those of a job that does not spread them.
 */
#include "tools/convert/deepspeed/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/core/name_set.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/deepspeed/files.h"

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
    uint32_t layers = state->layers.count;
    uint64_t count;
    bool fits;
    cairn_err err;

    fits = layers == (cairn_pickle_is_list(counts) ? counts->count : 0);
    for (uint32_t i = 0; fits && i < layers; i++)
        fits =
            cairn_pickle_u64(counts->items[i], &count) && count == state->layers.layers[i].experts;
    if (!fits)
        return cairn_refuse_file(
            checkpoint, where, CAIRN_CORRUPT,
            "it has another number of layers of experts, or of experts in one (num_experts), than "
            "layer_…_expert_… files; copy those that are missing from the nodes that wrote them");
    for (uint32_t i = 0; shared && i < shared->count; i++)
        if (cairn_pickle_copy_text(shared->items[2 * i], name, sizeof(name)) &&
            cairn_deepspeed_expert_in(cairn_deepspeed_canonical(name), &expert))
            return cairn_refuse_file(checkpoint, where, CAIRN_VERSION,
                                     "%s is a tied parameter of an expert, which only the first "
                                     "rank's experts alone and not read",
                                     name);
    state->groups.data_first = cairn_pickle_is_true(first);
    err = cairn_deepspeed_experts_place(&state->groups, &state->layers, state->ranks, &why);
    return err == CAIRN_CORRUPT ? cairn_refuse_file(checkpoint, where, err, "%s", why) : err;
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

#define MASTER "fp32."
#define TIED "tied_modules."

static const uint32_t EXPERT = UINT32_MAX; /* in place of a layer's number */

/* Adds what a stage's model_states have in `buffer_names`. */
static cairn_err
add_buffer_names(const struct cairn_checkpoint *checkpoint, uint32_t part,
                 struct cairn_name_set *names)
{
    struct cairn_opaque_tree model;
    char carried[CAIRN_NAME_BYTES_MAX];
    cairn_err err;

    cairn_deepspeed_scoped(part, 0, CAIRN_DEEPSPEED_MODEL, carried);
    err = cairn_opaque_tree_open(checkpoint, carried, &model);
    if (!err)
        err = cairn_deepspeed_buffer_names(model.root, names);
    cairn_opaque_tree_close(&model);
    return err;
}

static bool
ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), end_bytes = strlen(end);

    return bytes > end_bytes && text[bytes - end_bytes - 1] == '.' &&
           strcmp(text + bytes - end_bytes, end) == 0;
}

/* The tied parameter that a tensor of a layer is, or NULL; refused if ambiguous. Each layer
 * that shares it has a copy in its file, and the copies are compared. */
static cairn_err
find_tied(const struct cairn_checkpoint *checkpoint, const struct cairn_torch_source *source,
          const char *key, const struct cairn_torch_tensor *tensor, const char **found)
{
    *found = NULL;
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *known = cairn_layout_tensor(checkpoint->layout, i);
        const char *name = known->name + strlen(MASTER);

        if (strncmp(known->name, MASTER TIED, strlen(MASTER TIED)) != 0 || !ends_with(name, key) ||
            !cairn_shape_equal(known->dims, known->shape, tensor->view.dims, tensor->view.shape))
            continue;
        if (*found)
            return cairn_refuse_file(
                checkpoint, source->path, CAIRN_VERSION,
                "%s is %s or %s, which is unknown; tied layers of one shape are not distinguished",
                key, *found, name);
        *found = name;
    }
    return CAIRN_OK;
}

static cairn_err
add_tensor(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source, uint32_t number,
           const char *key, const struct cairn_torch_tensor *tensor,
           const struct cairn_name_set *buffers)
{
    char own[CAIRN_NAME_BYTES_MAX + 16], master[CAIRN_NAME_BYTES_MAX + 32];
    char name[CAIRN_NAME_BYTES_MAX];
    const char *tied = NULL;
    bool buffer;
    cairn_err err = CAIRN_OK;

    if (number == EXPERT)
        (void)snprintf(own, sizeof(own), "%s", cairn_deepspeed_canonical(key));
    else
        (void)snprintf(own, sizeof(own), "%" PRIu32 ".%s", number, key);
    (void)snprintf(master, sizeof(master), MASTER "%s", own);
    buffer = cairn_name_set_has(buffers, own);
    if (!buffer && number != EXPERT &&
        cairn_layout_tensor_find(checkpoint->layout, master) == UINT32_MAX &&
        cairn_layout_tensor_find(checkpoint->layout, own) == UINT32_MAX) /* else it is frozen */
        err = find_tied(checkpoint, source, key, tensor, &tied);
    if (err)
        return err;
    if (snprintf(name, sizeof(name), "%s", tied ? tied : own) >= (int)sizeof(name))
        return cairn_refuse_file(checkpoint, source->path, CAIRN_VERSION,
                                 "the name %s is longer than %d bytes", own,
                                 CAIRN_NAME_BYTES_MAX - 1);
    return cairn_torch_source_add(checkpoint, source, tensor, name,
                                  buffer ? CAIRN_BUFFER : CAIRN_PARAM);
}

static cairn_err
read_layer(struct cairn_checkpoint *checkpoint, const char *path, uint32_t number,
           const struct cairn_name_set *buffers)
{
    const struct cairn_pickle_node *pairs;
    struct cairn_torch_source source = {0};
    const char *file = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char carried[CAIRN_NAME_BYTES_MAX], key[CAIRN_NAME_BYTES_MAX];
    cairn_err err = cairn_torch_source_open(checkpoint, path, &source);

    pairs = err ? NULL : cairn_pickle_pairs(source.torch.root);
    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        const struct cairn_torch_tensor *tensor =
            cairn_torch_source_tensor(&source, pairs->items[2 * i + 1]);

        if (tensor && cairn_pickle_copy_text(pairs->items[2 * i], key, sizeof(key)) && key[0])
            err = add_tensor(checkpoint, &source, number, key, tensor, buffers);
    }
    (void)snprintf(carried, sizeof(carried), CAIRN_DEEPSPEED_SCOPE "%.*s.pickle",
                   (int)(strlen(file) - strlen(".pt")), file);
    if (!err)
        err = cairn_torch_source_carry_as(checkpoint, &source, CAIRN_DEEPSPEED_SCOPE, carried);
    cairn_torch_source_close(&source);
    return err;
}

/* Layers without parameters have no file, so only the optimizer says which should be there. */
static cairn_err
check_whole(const struct cairn_checkpoint *checkpoint, const char *path)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const char *name = cairn_layout_tensor(checkpoint->layout, i)->name;

        if (strncmp(name, MASTER, strlen(MASTER)) == 0 &&
            cairn_layout_tensor_find(checkpoint->layout, name + strlen(MASTER)) == UINT32_MAX)
            return cairn_refuse(
                checkpoint, CAIRN_CORRUPT,
                "the optimizer has state of %s, which is in no layer's file beside %s; copy the "
                "layer_… file that is missing from the node that wrote it",
                name + strlen(MASTER), path);
    }
    return CAIRN_OK;
}

cairn_err
cairn_deepspeed_layers_read(struct cairn_checkpoint *checkpoint,
                            const struct cairn_deepspeed_files *files)
{
    struct cairn_name_set buffers = {0};
    cairn_err err = CAIRN_OK;

    if (files->layer_count == 0 && files->expert_count == 0)
        return CAIRN_OK;
    for (uint32_t part = 0; part < files->part_count && !err; part++)
        err = add_buffer_names(checkpoint, part, &buffers);
    cairn_name_set_sort(&buffers);
    for (uint32_t i = 0; i < files->expert_count && !err; i++)
        err = read_layer(checkpoint, files->experts[i].path, EXPERT, &buffers);
    for (uint32_t i = 0; i < files->layer_count && !err; i++)
        err = read_layer(checkpoint, files->layers[i].path, files->layers[i].number, &buffers);
    cairn_name_set_fini(&buffers);
    return err ? err
               : check_whole(checkpoint,
                             files->layer_count ? files->layers[0].path : files->experts[0].path);
}
