/*
 * tools/convert/deepspeed_subgroups.c - ZeRO 3 splits a group of the optimizer into buffers by what a rank has of it
 * (sub_group_size), so for another number of ranks DeepSpeed has other ones, and does not load these.
 */
#include "tools/convert/deepspeed_target.h"

#include <inttypes.h>

/* What DeepSpeed takes where the job's configuration does not say it. */
static const uint64_t SIZE_DEFAULT = 1000000000;

static uint64_t
find_size(const struct cairn_pickle_node *model)
{
    const struct cairn_pickle_node *zero =
        cairn_pickle_get(cairn_pickle_get(model, "ds_config"), "zero_optimization");
    const struct cairn_pickle_node *said = cairn_pickle_get(zero, "sub_group_size");
    uint64_t size;

    if (said && said->kind == CAIRN_PICKLE_FLOAT && said->real >= 0 && said->real < 9e15) /* 1e9 */
        return (uint64_t)said->real;
    return cairn_pickle_u64(said, &size) ? size : SIZE_DEFAULT;
}

/* Whether buffers [first, first + count) are what DeepSpeed makes of their parameters. */
static bool
fits(const struct cairn_deepspeed_groups *groups, uint32_t first, uint32_t count, uint64_t size, uint32_t ranks)
{
    uint64_t all = 0;

    for (uint32_t g = first; g < first + count; g++)
        all += cairn_deepspeed_partition(groups, g, true, ranks);
    if (size >= all)
        return count <= 1;
    for (uint32_t g = first; g < first + count; g++) {
        const struct cairn_deepspeed_group *group = &groups->groups[g];
        uint64_t held = 0;

        for (uint32_t i = 0; i < group->count; i++) {
            uint64_t elements = groups->parameters[group->first + i].elements;
            bool ends = i + 1 == group->count, last = ends && g + 1 == first + count;

            held += elements / ranks + (elements % ranks != 0);
            if ((held >= size || last) != ends)
                return false;
        }
    }
    return true;
}

bool
cairn_deepspeed_subgroups_fit(const struct cairn_deepspeed_groups *groups, const struct cairn_pickle_node *settings,
                              uint64_t size, uint32_t ranks, bool *known)
{
    uint32_t first = 0;
    bool alike = true;

    *known = false;
    if (!settings || settings->kind != CAIRN_PICKLE_LIST)
        return false;
    for (uint32_t i = 0; i < settings->count; i++) {
        const struct cairn_pickle_node *buffers = cairn_pickle_get(settings->items[i], "params");
        uint32_t count = buffers && buffers->kind == CAIRN_PICKLE_LIST ? buffers->count : 0;

        if (count > groups->group_count - first)
            return false;
        alike = alike && fits(groups, first, count, size, ranks);
        first += count;
    }
    *known = first == groups->group_count;
    return alike && *known;
}

cairn_err
cairn_deepspeed_subgroups_check(struct cairn_deepspeed_target *target, const struct cairn_pickle_node *model)
{
    uint32_t had = target->checkpoint->parallelism.dp;
    uint64_t size = find_size(model);
    const struct cairn_pickle_node *optimizer, *settings;
    struct cairn_deepspeed_object object;
    bool known = false, split = false;
    cairn_err err = cairn_deepspeed_object_load(target, 1, 0, &object);

    optimizer = err ? NULL : cairn_pickle_get(object.root, "optimizer_state_dict");
    settings = cairn_pickle_get(cairn_pickle_get(optimizer, "optimizer_state_dict"), "param_groups");
    /* where the source's own ranks do not have these buffers either, the size is not known */
    if (!cairn_deepspeed_subgroups_fit(&target->groups, settings, size, target->ranks, &known) && known && had > 0)
        split = cairn_deepspeed_subgroups_fit(&target->groups, settings, size, had, &known);
    cairn_deepspeed_object_fini(&object);
    if (err || !split)
        return err;
    return cairn_complain(target->complaint, CAIRN_INVAL,
                          "%s: with ZeRO 3 DeepSpeed splits the groups of its optimizer at %" PRIu64
                          " elements of a rank (sub_group_size), so %" PRIu32 " ranks have other buffers than the %" PRIu32
                          " that saved it, and would not load these: write deepspeed-universal, or make the files anew: --drop "
                          "'*deepspeed/*' with --zero 3 and --job",
                          target->checkpoint->place.path, size, target->ranks, had);
}
