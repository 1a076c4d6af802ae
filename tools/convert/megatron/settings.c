/* tools/convert/megatron/settings.c - see megatron/settings.h. */
#include "tools/convert/megatron/settings.h"
#include "tools/convert/torch/carry.h"

#include <stddef.h>

/* A copy of one optimizer's settings without the type, and with it where `type` is given. */
static struct cairn_pickle_node *
copy_one(struct cairn_pickle *tree, struct cairn_pickle_node *settings, const char *type)
{
    static const char *const without[] = {CAIRN_MEGATRON_SETTINGS_TYPE, NULL};
    struct cairn_pickle_node *copy;

    if (!cairn_pickle_pairs(settings) || !cairn_pickle_get(settings, "optimizer") ||
        cairn_pickle_get(cairn_pickle_get(settings, "optimizer"), "state"))
        return settings; /* not that of a distributed optimizer */
    copy = cairn_pickle_dict(tree);
    cairn_pickle_put_all(tree, copy, settings, without);
    if (type)
        cairn_pickle_set(tree, copy, CAIRN_MEGATRON_SETTINGS_TYPE, cairn_pickle_text(tree, type));
    return copy;
}

struct cairn_pickle_node *
cairn_megatron_settings_reshardable(struct cairn_pickle *tree, struct cairn_pickle_node *settings)
{
    struct cairn_pickle_node *several;

    if (settings->kind != CAIRN_PICKLE_LIST)
        return copy_one(tree, settings, CAIRN_MEGATRON_RESHARDABLE);
    several = cairn_pickle_dict(tree);
    for (uint32_t i = 0; i < settings->count; i++)
        cairn_pickle_put(tree, several, cairn_pickle_int(tree, i),
                         copy_one(tree, settings->items[i], CAIRN_MEGATRON_RESHARDABLE));
    return several;
}

struct cairn_pickle_node *
cairn_megatron_settings_plain(struct cairn_pickle *tree, struct cairn_pickle_node *settings)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(settings);
    struct cairn_pickle_node *several;
    uint64_t number;

    if (!pairs || pairs->count == 0 || !cairn_pickle_u64(pairs->items[0], &number))
        return copy_one(tree, settings, NULL);
    several = cairn_pickle_list(tree);
    for (uint32_t i = 0; i < pairs->count; i++) /* Megatron-Core writes them in order */
        cairn_pickle_append(tree, several, copy_one(tree, pairs->items[2 * i + 1], NULL));
    return several;
}

struct cairn_pickle_node *
cairn_megatron_settings_with(struct cairn_pickle *tree, const struct cairn_pickle_node *dict,
                             const char *key, struct cairn_pickle_node *value)
{
    struct cairn_pickle_node *copy = cairn_pickle_dict(tree);

    cairn_pickle_put_all(tree, copy, dict, NULL);
    cairn_torch_carry_replace(copy, key, value);
    return copy;
}

/* ---- experts ---- */

/* The optimizer of experts, as that of the other parameters, which is all that a job without expert
 * parallelism had: the same groups, called is_expert_parallel. */
static struct cairn_pickle_node *
for_experts(struct cairn_pickle *tree, const struct cairn_pickle_node *dense)
{
    const struct cairn_pickle_node *inner = cairn_pickle_get(dense, "optimizer");
    const struct cairn_pickle_node *groups = cairn_pickle_get(inner, "param_groups");
    struct cairn_pickle_node *list = cairn_pickle_list(tree);

    for (uint32_t i = 0; cairn_pickle_is_list(groups) && i < groups->count; i++)
        cairn_pickle_append(tree, list,
                            cairn_megatron_settings_with(tree, groups->items[i],
                                                         "is_expert_parallel",
                                                         cairn_pickle_bool(tree, true)));
    return cairn_megatron_settings_with(
        tree, dense, "optimizer", cairn_megatron_settings_with(tree, inner, "param_groups", list));
}

struct cairn_pickle_node *
cairn_megatron_settings_for(struct cairn_pickle *tree, struct cairn_pickle_node *settings, bool two)
{
    struct cairn_pickle_node *items[2];

    if (settings->kind == CAIRN_PICKLE_LIST && settings->count == 2 && !two)
        return settings->items[0];
    if (!cairn_pickle_pairs(settings) || !two)
        return settings;
    items[0] = settings;
    items[1] = for_experts(tree, settings);
    return cairn_pickle_sequence(tree, CAIRN_PICKLE_LIST, items, 2);
}

/* ---- content ---- */

struct cairn_pickle_node *
cairn_megatron_settings_content(struct cairn_pickle *tree)
{
    struct cairn_pickle_node *content = cairn_pickle_dict(tree);

    cairn_pickle_set(tree, content, CAIRN_MEGATRON_CONTENT_TYPE,
                     cairn_pickle_text(tree, CAIRN_MEGATRON_RESHARDABLE));
    cairn_pickle_set(tree, content, "singleton_local_shards", cairn_pickle_bool(tree, false));
    cairn_pickle_set(tree, content, "chained_optim_avoid_prefix", cairn_pickle_bool(tree, true));
    return content;
}
