/* tools/convert/torch/carry.c - trees of torch.save without their tensors, and with new tensors. */
#include "tools/convert/torch/carry.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "snapshot/box.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/parts.h"
#include "tools/convert/torch/source.h"

void
cairn_torch_carry_out(struct cairn_pickle *tree, const struct cairn_pickle_node *node,
                      const char *word, const char *name)
{
    if (cairn_pickle_replace(tree, node, cairn_pickle_named(tree, word, name)) != CAIRN_OK)
        return; /* the arena says why */
}

void
cairn_torch_carry_replace(struct cairn_pickle_node *dict, const char *key,
                          struct cairn_pickle_node *made)
{
    /* the dict is the caller's own to change, only those who ask have no need to */
    struct cairn_pickle_node *pairs = (struct cairn_pickle_node *)cairn_pickle_pairs(dict);
    uint32_t kept = 0;

    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        bool found = cairn_pickle_is_text(pairs->items[2 * i], key);

        if (found && !made)
            continue;
        pairs->items[2 * kept] = pairs->items[2 * i];
        pairs->items[2 * kept++ + 1] = found ? made : pairs->items[2 * i + 1];
    }
    if (pairs)
        pairs->count = kept;
}

/* ---- filling ---- */

struct filler {
    const struct cairn_torch_fill *fill;
    struct cairn_torch_builder builder;
    uint32_t *storage_of; /* by identity: index + 1; NULL before the first tensor */
    struct cairn_torch_filled *storages;
    struct cairn_pickle_node **keys; /* [storage_count]: of their keys; NULL: not made yet */
    uint32_t storage_count;
};

static cairn_err
storage_for(struct filler *filler, uint32_t identity, uint64_t bytes, uint32_t *storage)
{
    if (identity >= filler->fill->identity_count)
        return CAIRN_INTERNAL;
    if (!filler->storage_of)
        filler->storage_of = calloc(filler->fill->identity_count, sizeof(*filler->storage_of));
    if (!filler->storage_of)
        return CAIRN_NOMEM;
    if (filler->storage_of[identity] != 0) {
        *storage = filler->storage_of[identity] - 1;
        return filler->storages[*storage].bytes == bytes ? CAIRN_OK : CAIRN_INTERNAL;
    }
    if (!cairn_array_grow(&filler->storages, filler->storage_count, sizeof(*filler->storages)) ||
        !cairn_array_grow(&filler->keys, filler->storage_count, sizeof(*filler->keys)))
        return CAIRN_NOMEM;
    filler->keys[filler->storage_count] = NULL;
    *storage = filler->storage_count++;
    filler->storages[*storage] = (struct cairn_torch_filled){bytes, identity};
    filler->storage_of[identity] = *storage + 1;
    return CAIRN_OK;
}

/* A tensor over a storage. torch.save has one text for a storage's key, however many share it. */
static struct cairn_pickle_node *
make_tensor(struct filler *filler, const struct cairn_torch_view *view, uint32_t storage)
{
    struct cairn_pickle_node **key = &filler->keys[storage], *id;
    char text[16];

    (void)snprintf(text, sizeof(text), "%" PRIu32, storage);
    id = cairn_torch_storage(&filler->builder, view->dtype, text, filler->storages[storage].bytes);
    if (!id)
        return NULL;
    if (*key)
        id->items[0]->items[2] = *key;
    *key = id->items[0]->items[2];
    return cairn_torch_tensor_node(&filler->builder, id, view);
}

static cairn_err
fill_node(void *context, struct cairn_pickle_node *node)
{
    struct filler *filler = context;
    char word[CAIRN_PICKLE_WORD_BYTES_MAX], name[CAIRN_NAME_BYTES_MAX];
    struct cairn_torch_filling filling = {0};
    struct cairn_torch_view view = {0};
    uint32_t storage = 0;
    uint64_t bytes;
    cairn_err err;

    if (!cairn_pickle_read_named(node, word, name))
        return cairn_complain(filler->fill->complaint, CAIRN_CORRUPT,
                              "carried state refers to an object outside that is not a tensor");
    err = filler->fill->resolve(filler->fill->context, word, name, &filling);
    if (err)
        return err;
    view.dtype = filling.dtype;
    view.dims = filling.dims;
    memcpy(view.shape, filling.shape, sizeof(view.shape));
    cairn_shape_strides(view.dims, view.shape, 1, view.stride);
    bytes = filling.dtype->element_bytes * cairn_shape_elements(view.dims, view.shape);
    err = storage_for(filler, filling.identity, bytes, &storage);
    return err ? err
               : cairn_pickle_replace(filler->fill->tree, node,
                                      make_tensor(filler, &view, storage));
}

cairn_err
cairn_torch_carry_fill(const struct cairn_torch_fill *fill, struct cairn_torch_filled **storages,
                       uint32_t *storage_count)
{
    struct filler filler = {.fill = fill};
    cairn_err err;

    if (fill->builder)
        filler.builder = *fill->builder;
    else
        cairn_torch_builder_init(&filler.builder, fill->tree);
    err = cairn_torch_visit_persistent(fill->tree, fill->root, fill_node, &filler);
    free(filler.storage_of);
    free(filler.keys);
    if (err) {
        free(filler.storages);
        return err == CAIRN_CORRUPT ? cairn_complain(fill->complaint, err,
                                                     "carried state is nested more than %d deep",
                                                     CAIRN_PICKLE_DEPTH_MAX)
                                    : err;
    }
    *storages = filler.storages;
    *storage_count = filler.storage_count;
    return CAIRN_OK;
}

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
                return cairn_refuse_file(
                    checkpoint, source->path, CAIRN_CORRUPT,
                    "%s does not map names to tensors; it was changed after it was written", key);
            err = cairn_torch_source_add(checkpoint, source, tensor, name, kinds[k].kind);
            if (err)
                return err;
        }
    }
    return CAIRN_OK;
}
