/*
 * tools/convert/megatron_dist/optimizer.c - the settings of Megatron-Core's optimizer (parameter
 * groups, loss scale). With a fully reshardable optimizer they lie in common.pt; with the other
 * encodings each group of data-parallel ranks saves its own as objects. Both become the former.
 */
#include <stdio.h>
#include <string.h>

#include "tools/convert/megatron_dist/mdist.h"
#include "tools/convert/megatron/settings.h"
#include "tools/convert/core/numbers.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/carry.h"

#define TYPE_KEY CAIRN_MEGATRON_SETTINGS_TYPE
#define CONTENT_KEY CAIRN_MEGATRON_CONTENT_TYPE
#define RESHARDABLE CAIRN_MEGATRON_RESHARDABLE

static bool
is_other_encoding(const struct cairn_pickle_node *type)
{
    return cairn_pickle_is_text(type, "dp_reshardable") ||
           cairn_pickle_is_text(type, "fully_sharded_model_space");
}

bool
cairn_mdist_take_group(const char **key, uint32_t *chained, uint32_t *group)
{
    *chained = UINT32_MAX;
    if (cairn_number_after(key, "chained_", chained) && *(*key)++ != '.')
        return false;
    return cairn_number_after(key, "optimizer.distributed.dp_group_idx_", group);
}

bool
cairn_mdist_is_object(const char *key, struct cairn_mdist_object *out)
{
    size_t used;

    memset(out, 0, sizeof(*out));
    if (!cairn_mdist_take_group(&key, &out->chained, &out->group) || *key++ != '.')
        return false;
    used = strcspn(key, "/");
    if (strcmp(key + used, "/shard_0_1") != 0 || used >= sizeof(out->key))
        return false;
    memcpy(out->key, key, used);
    return true;
}

/* The first group's object of an optimizer; NULL. */
static const struct cairn_mdist_object *
find_object(const struct cairn_mdist_reading *reading, uint32_t chained, const char *key)
{
    const struct cairn_mdist_object *found = NULL;

    for (uint32_t i = 0; i < reading->object_count; i++) {
        const struct cairn_mdist_object *object = &reading->objects[i];

        if (object->chained == chained && strcmp(object->key, key) == 0 &&
            (!found || object->group < found->group))
            found = object;
    }
    return found;
}

/* The value of an object: it is saved as a list of one. */
static cairn_err
read_object(struct cairn_pickle *tree, const struct cairn_mdist_object *object,
            struct cairn_pickle_node **value)
{
    struct cairn_pickle_node *list = NULL;
    cairn_err err;

    err = cairn_pickle_read(tree, object->key, object->bytes, object->bytes_len, &list, NULL);
    *value = err ? NULL : cairn_pickle_only(list);
    return err || *value ? err : CAIRN_CORRUPT;
}

/* One optimizer's settings: its objects first, then what common.pt says, and the encoding. */
static cairn_err
join_one(const struct cairn_mdist_reading *reading, struct cairn_pickle *tree, uint32_t chained,
         struct cairn_pickle_node **settings)
{
    static const char *const keys[] = {"optimizer", "grad_scaler"};
    struct cairn_pickle_node *joined;
    cairn_err err = CAIRN_OK;

    if (!is_other_encoding(cairn_pickle_get(*settings, TYPE_KEY)))
        return CAIRN_OK;
    joined = cairn_pickle_dict(tree);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && !err; i++) {
        const struct cairn_mdist_object *object = find_object(reading, chained, keys[i]);
        struct cairn_pickle_node *value = NULL;

        if (!object)
            continue;
        err = read_object(tree, object, &value);
        if (!err)
            cairn_pickle_set(tree, joined, keys[i], value);
    }
    cairn_pickle_put_all(tree, joined, *settings, NULL);
    cairn_torch_carry_replace(joined, TYPE_KEY, cairn_pickle_text(tree, RESHARDABLE));
    *settings = joined;
    return err;
}

static cairn_err
join(const struct cairn_mdist_reading *reading, struct cairn_pickle *tree,
     struct cairn_pickle_node **root)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(*root);
    struct cairn_pickle_node *joined;
    uint64_t number;
    cairn_err err = CAIRN_OK;

    if (!pairs || pairs->count == 0 || !cairn_pickle_u64(pairs->items[0], &number))
        return join_one(reading, tree, UINT32_MAX, root);
    joined = cairn_pickle_dict(tree); /* several optimizers, by number */
    for (uint32_t i = 0; i < pairs->count && !err; i++) {
        struct cairn_pickle_node *settings = pairs->items[2 * i + 1];

        if (!cairn_pickle_u64(pairs->items[2 * i], &number) || number >= UINT32_MAX)
            return CAIRN_CORRUPT;
        err = join_one(reading, tree, (uint32_t)number, &settings);
        cairn_pickle_put(tree, joined, pairs->items[2 * i], settings);
    }
    *root = joined;
    return err;
}

static cairn_err
add(struct cairn_mdist_reading *reading, const char *name, const struct cairn_pickle_node *settings,
    cairn_err err)
{
    if (!err)
        err = cairn_opaque_add(reading->checkpoint, name, &reading->common.torch.tree, settings);
    return cairn_complain_failed(reading->checkpoint->complaint, err,
                                 "%s: the settings of the optimizer in " CAIRN_MDIST_COMMON
                                 " (%s) cannot be read",
                                 reading->checkpoint->place.path, name);
}

/* Settings of other groups that are not the first's are kept as they are. */
static cairn_err
add_others(struct cairn_mdist_reading *reading)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < reading->object_count && !err; i++) {
        const struct cairn_mdist_object *object = &reading->objects[i];
        const struct cairn_mdist_object *first = find_object(reading, object->chained, object->key);
        char name[CAIRN_NAME_BYTES_MAX];

        if (strncmp(object->key, "per_bucket_numel", 16) == 0 || object == first ||
            (object->bytes_len == first->bytes_len &&
             memcmp(object->bytes, first->bytes, object->bytes_len) == 0))
            continue;
        if (snprintf(name, sizeof(name), "%s.pickle",
                     reading->metadata.entries[object->entry].name) >= (int)sizeof(name))
            return CAIRN_CORRUPT;
        err = cairn_checkpoint_add_opaque(reading->checkpoint, name, object->bytes,
                                          object->bytes_len);
    }
    return err;
}

cairn_err
cairn_mdist_add_optimizer(struct cairn_mdist_reading *reading)
{
    struct cairn_pickle *tree = &reading->common.torch.tree;
    struct cairn_pickle_node *optimizer = reading->optimizer, *content = reading->content;
    cairn_err err = CAIRN_OK;

    if (optimizer) {
        err = join(reading, tree, &optimizer);
        err = add(reading, "optimizer.pickle", optimizer, err);
    }
    if (!err && content) {
        if (is_other_encoding(cairn_pickle_get(content, CONTENT_KEY)))
            content = cairn_megatron_settings_with(tree, content, CONTENT_KEY,
                                                   cairn_pickle_text(tree, RESHARDABLE));
        err = add(reading, CAIRN_MEGATRON_CONTENT ".pickle", content, CAIRN_OK);
    }
    return err ? err : add_others(reading);
}
