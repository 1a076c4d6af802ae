/*
 * tools/convert/deepspeed/carried.c - what DeepSpeed has no place for, in the first rank's
 * model_states: put there when files are written, and found there when they are read.
 */
#include "tools/convert/deepspeed/make.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/carry.h"

static const struct {
    const char *key;
    enum cairn_kind kind;
} kinds[] = {{"opaque", CAIRN_OPAQUE},
             {"buffer", CAIRN_BUFFER},
             {"optimizer", CAIRN_OPTIMIZER},
             {"param", CAIRN_PARAM}};

bool
cairn_deepspeed_is_own(const char *name)
{
    while (strncmp(name, "part", 4) == 0 || strncmp(name, "rank", 4) == 0) {
        const char *slash = strchr(name, '/');

        if (!slash || strspn(name + 4, "0123456789") != (size_t)(slash - name - 4))
            break;
        name = slash + 1;
    }
    return strncmp(name, CAIRN_DEEPSPEED_SCOPE, strlen(CAIRN_DEEPSPEED_SCOPE)) == 0;
}

struct named {
    const char *name;
    uint32_t tensor;
};

static int
by_name(const void *left, const void *right)
{
    const struct named *a = left, *b = right;

    return strcmp(a->name, b->name);
}

uint32_t *
cairn_deepspeed_sorted(const struct cairn_layout *layout)
{
    uint32_t count = cairn_layout_tensor_count(layout);
    struct named *named = calloc((size_t)count + 1, sizeof(*named));
    uint32_t *order = calloc((size_t)count + 1, sizeof(*order));

    for (uint32_t i = 0; named && i < count; i++)
        named[i] = (struct named){cairn_layout_tensor(layout, i)->name, i};
    if (named)
        qsort(named, count, sizeof(*named), by_name);
    for (uint32_t i = 0; named && order && i < count; i++)
        order[i] = named[i].tensor;
    if (!named) {
        free(order);
        order = NULL;
    }
    free(named);
    return order;
}

void
cairn_deepspeed_carried_remove(struct cairn_pickle_node *root)
{
    cairn_torch_carry_remove(root, CAIRN_DEEPSPEED_CARRIED);
}

/* The names of a dict that are still there; NULL where there are none. */
static struct cairn_pickle_node *
keep_names(const struct cairn_checkpoint *checkpoint, struct cairn_pickle *tree,
           const struct cairn_pickle_node *dict)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(dict);
    struct cairn_pickle_node *kept = NULL;

    for (uint32_t i = 0; pairs && i < pairs->count; i++) {
        char name[CAIRN_NAME_BYTES_MAX];

        if (!cairn_pickle_copy_text(pairs->items[2 * i], name, sizeof(name)) ||
            cairn_layout_tensor_find(checkpoint->layout, name) == UINT32_MAX)
            continue;
        if (!kept)
            kept = cairn_pickle_dict(tree);
        cairn_pickle_put(tree, kept, pairs->items[2 * i], pairs->items[2 * i + 1]);
    }
    return kept;
}

cairn_err
cairn_deepspeed_carried_put(const struct cairn_checkpoint *checkpoint, struct cairn_pickle *tree,
                            struct cairn_pickle_node *root)
{
    const struct cairn_pickle_node *known = cairn_pickle_get(root, CAIRN_DEEPSPEED_CARRIED);
    struct cairn_pickle_node *carried = cairn_pickle_dict(tree), *opaque = NULL;
    uint32_t *order = cairn_deepspeed_sorted(checkpoint->layout);

    if (!order || !carried) {
        free(order);
        return CAIRN_NOMEM;
    }
    for (size_t k = 1; k < sizeof(kinds) / sizeof(*kinds); k++) {
        struct cairn_pickle_node *kept =
            keep_names(checkpoint, tree, cairn_pickle_get(known, kinds[k].key));

        if (kept)
            cairn_pickle_put(tree, carried, cairn_pickle_text(tree, kinds[k].key), kept);
    }
    for (uint32_t i = 0; i < cairn_layout_tensor_count(checkpoint->layout); i++) {
        const struct cairn_tensor *tensor = cairn_layout_tensor(checkpoint->layout, order[i]);

        if (tensor->kind != CAIRN_OPAQUE || cairn_deepspeed_is_own(tensor->name))
            continue;
        if (!opaque)
            opaque = cairn_pickle_dict(tree);
        cairn_pickle_put(tree, opaque, cairn_pickle_text(tree, tensor->name),
                         cairn_pickle_tensor(tree, tensor->name));
    }
    free(order);
    if (opaque)
        cairn_pickle_put(tree, carried, cairn_pickle_text(tree, kinds[0].key), opaque);
    cairn_deepspeed_carried_remove(root);
    if (carried->count > 0)
        cairn_pickle_put(tree, root, cairn_pickle_text(tree, CAIRN_DEEPSPEED_CARRIED), carried);
    return cairn_pickle_done(tree);
}

static cairn_err
take_kind(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
          const struct cairn_pickle_node *dict, enum cairn_kind kind,
          struct cairn_complaint *complaint)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(dict);
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; pairs && i < pairs->count && !err; i++) {
        const struct cairn_torch_tensor *tensor =
            cairn_torch_source_tensor(source, pairs->items[2 * i + 1]);
        char name[CAIRN_NAME_BYTES_MAX];

        if (!tensor || !cairn_pickle_copy_text(pairs->items[2 * i], name, sizeof(name)) ||
            (kind == CAIRN_OPAQUE && cairn_deepspeed_is_own(name)))
            return cairn_complain(
                complaint, CAIRN_CORRUPT,
                "%s/%s: %s does not map names to tensors; it was changed after it was written",
                checkpoint->place.path, source->path, CAIRN_DEEPSPEED_CARRIED);
        err = cairn_torch_source_add(checkpoint, source, tensor, name, kind, complaint);
    }
    return err;
}

cairn_err
cairn_deepspeed_carried_take(struct cairn_checkpoint *checkpoint, struct cairn_torch_source *source,
                             struct cairn_complaint *complaint)
{
    struct cairn_pickle_node *carried =
        cairn_pickle_get(source->torch.root, CAIRN_DEEPSPEED_CARRIED);
    cairn_err err = CAIRN_OK;

    for (size_t k = 0; carried && k < sizeof(kinds) / sizeof(*kinds) && !err; k++)
        err = take_kind(checkpoint, source, cairn_pickle_get(carried, kinds[k].key), kinds[k].kind,
                        complaint);
    cairn_torch_carry_remove(carried, kinds[0].key); /* found again by what it is */
    if (carried && (!cairn_pickle_pairs(carried) || cairn_pickle_pairs(carried)->count == 0))
        cairn_deepspeed_carried_remove(source->torch.root);
    return err;
}
