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

cairn_err
cairn_mdist_common_add(const struct cairn_checkpoint *source,
                       const struct cairn_output_options *options, const uint32_t *values,
                       uint32_t count, const struct cairn_mdist_made *made, uint32_t made_count,
                       bool *inside, struct cairn_output *output, struct cairn_torch_output *out)
{
    char key[CAIRN_NAME_BYTES_MAX];
    struct cairn_pickle tree;
    struct cairn_pickle_node *root, *value = NULL;
    cairn_err err = CAIRN_OK;

    cairn_pickle_init(&tree, CAIRN_DCP_TREE_BYTES_MAX);
    root = cairn_pickle_dict(&tree);
    for (uint32_t i = 0; i < count && !err; i++) {
        const char *name = cairn_layout_tensor(source->layout, values[i])->name;

        err = read_value(source, values[i], &tree, &value);
        if (err)
            break;
        memcpy(key, name, strlen(name) + 1);
        key[strlen(name) - strlen(".pickle")] = '\0';
        cairn_pickle_set(&tree, root, key, value);
        err = cairn_output_add_carried(output, values[i]);
    }
    for (uint32_t i = 0; i < made_count && !err; i++) {
        err = cairn_pickle_read(&tree, made[i].name, made[i].bytes, made[i].bytes_len, &value,
                                source->complaint);
        if (!err)
            cairn_pickle_set(&tree, root, made[i].name, value);
    }
    if (!err)
        err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_torch_refs_add(source, options, NULL, &tree, root, output, CAIRN_MDIST_COMMON,
                                   out);
    for (uint32_t i = 0; i < out->storage_count && !err; i++) {
        uint32_t tensor = out->storages[i].identity;

        if (cairn_layout_tensor(source->layout, tensor)->kind == CAIRN_BUFFER)
            inside[tensor] = true; /* what the model has is an array as well */
    }
    cairn_pickle_fini(&tree);
    return err;
}
