/* tools/convert/megatron_dist/common_write.c - see megatron_dist/common.h. */
#include "tools/convert/megatron_dist/common.h"

#include <string.h>

#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/refs.h"
#include "tools/convert/state/opaque_tree.h"

static cairn_err
read_value(const struct cairn_checkpoint *source, uint32_t tensor, struct cairn_pickle *tree,
           struct cairn_pickle_node **value)
{
    return cairn_opaque_read(source, cairn_layout_tensor(source->layout, tensor)->name,
                             CAIRN_MDIST_OBJECT_BYTES_MAX, tree, value);
}

cairn_err
cairn_mdist_common_fits(const struct cairn_checkpoint *source,
                        const struct cairn_output_options *options, uint32_t tensor, bool *fits)
{
    struct cairn_torch_refs refs = {0};
    struct cairn_pickle_node *value = NULL;
    struct cairn_pickle tree;
    cairn_err err = CAIRN_OK;

    *fits = false;
    if (cairn_layout_tensor(source->layout, tensor)->shape[0] > CAIRN_MDIST_OBJECT_BYTES_MAX)
        return CAIRN_OK;
    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    err = read_value(source, tensor, &tree, &value);
    if (!err)
        err = cairn_torch_refs_find(source, options, &tree, value, &refs);
    *fits = err == CAIRN_OK;
    if (err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_INVAL)
        err = CAIRN_OK;
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}

struct filling {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
};

static cairn_err
resolve(void *context, const char *word, const char *name, struct cairn_torch_filling *out)
{
    const struct filling *filling = context;
    uint32_t tensor = cairn_layout_tensor_find(filling->source->layout, name);
    const struct cairn_tensor *known;

    if (strcmp(word, "tensor") != 0 || tensor == UINT32_MAX)
        return cairn_complain(filling->source->complaint, CAIRN_CORRUPT,
                              "%s %s is not in the checkpoint", word, name);
    known = cairn_layout_tensor(filling->source->layout, tensor);
    out->dtype = cairn_torch_dtype_of(cairn_output_dtype(filling->options, known));
    out->dims = known->dims;
    memcpy(out->shape, known->shape, sizeof(out->shape));
    out->identity = tensor;
    return CAIRN_OK;
}

static cairn_err
place_tensors(const struct filling *filling, bool *inside, struct cairn_output *output,
              const struct cairn_torch_output *added)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < added->storage_count && !err; i++) {
        uint32_t tensor = added->storages[i].identity;
        const struct cairn_tensor *known = cairn_layout_tensor(filling->source->layout, tensor);

        err = cairn_output_add_whole(output, filling->options, known, added->file,
                                     cairn_torch_output_at(added, i));
        if (known->kind == CAIRN_BUFFER)
            inside[tensor] = true; /* what the model has is an array as well */
    }
    return err;
}

cairn_err
cairn_mdist_common_add(const struct cairn_checkpoint *source,
                       const struct cairn_output_options *options, const uint32_t *values,
                       uint32_t count, const struct cairn_mdist_made *made, uint32_t made_count,
                       bool *inside, struct cairn_output *output, struct cairn_torch_output *out)
{
    struct filling filling = {source, options};
    struct cairn_torch_fill fill = {.identity_count = cairn_layout_tensor_count(source->layout),
                                    .resolve = resolve,
                                    .context = &filling,
                                    .complaint = source->complaint};
    char key[CAIRN_NAME_BYTES_MAX];
    struct cairn_pickle tree;
    cairn_err err = CAIRN_OK;

    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    fill.tree = &tree;
    fill.root = cairn_pickle_dict(&tree);
    for (uint32_t i = 0; i < count && !err; i++) {
        const char *name = cairn_layout_tensor(source->layout, values[i])->name;
        struct cairn_pickle_node *value = NULL;

        err = read_value(source, values[i], &tree, &value);
        if (err)
            break;
        memcpy(key, name, strlen(name) + 1);
        key[strlen(name) - strlen(".pickle")] = '\0';
        cairn_pickle_set(&tree, fill.root, key, value);
        err = cairn_output_add_carried(output, values[i]);
    }
    for (uint32_t i = 0; i < made_count && !err; i++) {
        struct cairn_pickle_node *value = NULL;

        err = cairn_pickle_read(&tree, made[i].name, made[i].bytes, made[i].bytes_len, &value,
                                source->complaint);
        if (!err)
            cairn_pickle_set(&tree, fill.root, made[i].name, value);
    }
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_torch_output_add(output, CAIRN_MDIST_COMMON, &fill, out);
    if (!err)
        err = place_tensors(&filling, inside, output, out);
    cairn_pickle_fini(&tree);
    return err;
}
