/* tools/convert/torch/carried.c - see torch/carried.h. */
#include "tools/convert/torch/carried.h"

#include "tools/convert/state/param_groups.h"

static const struct {
    const char *key;
    enum cairn_kind kind;
} kinds[] = {{"opaque", CAIRN_OPAQUE},
             {"buffer", CAIRN_BUFFER},
             {"optimizer", CAIRN_OPTIMIZER},
             {"param", CAIRN_PARAM}};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

void
cairn_torch_carried_put(struct cairn_pickle *tree, struct cairn_pickle_node **carried,
                        const struct cairn_tensor *tensor)
{
    struct cairn_pickle_node *dict;
    size_t k = 0;

    while (k + 1 < KINDS && kinds[k].kind != tensor->kind)
        k++;
    if (!*carried)
        *carried = cairn_pickle_dict(tree);
    dict = cairn_pickle_get(*carried, kinds[k].key);
    if (!dict) {
        dict = cairn_pickle_dict(tree);
        cairn_pickle_set(tree, *carried, kinds[k].key, dict);
    }
    cairn_pickle_set(tree, dict, tensor->name, cairn_pickle_tensor(tree, tensor->name));
}

cairn_err
cairn_torch_carried_take(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
                         const char *key, bool (*is_own)(const char *name))
{
    const struct cairn_pickle_node *carried = cairn_pickle_get(source->torch.root, key);

    for (size_t k = 0; k < KINDS; k++) {
        const struct cairn_pickle_node *pairs =
            cairn_pickle_pairs(cairn_pickle_get(carried, kinds[k].key));

        for (uint32_t i = 0; pairs && i < pairs->count; i++) {
            const struct cairn_torch_tensor *tensor =
                cairn_torch_source_tensor(source, pairs->items[2 * i + 1]);
            char name[CAIRN_NAME_BYTES_MAX];
            cairn_err err;

            if (!tensor || !cairn_pickle_copy_text(pairs->items[2 * i], name, sizeof(name)) ||
                (kinds[k].kind == CAIRN_OPAQUE && is_own && is_own(name)))
                return cairn_refuse_file(checkpoint, source->path, CAIRN_CORRUPT,
                                         "%s does not map names to tensors; it was changed after "
                                         "it was written",
                                         key);
            err = cairn_torch_source_add(checkpoint, source, tensor, name, kinds[k].kind);
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}
