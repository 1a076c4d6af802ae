/*
 * tools/convert/maps/groups.c - parameter groups name their members: each becomes what it was
 * mapped to, in the group of its parts.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "tools/convert/maps/stage.h"
#include "tools/convert/state/param_groups.h"

enum { NO_GROUP = 0 };

struct renaming {
    struct cairn_map_stage *stage;
    const struct cairn_layout *from;
    struct cairn_opaque_tree *groups;
    uint32_t *group_of; /* [tensors of the new layout]: 1 + its group */
};

/* Appends what a member became; names that no tensor has stay. */
static cairn_err
add_member(struct renaming *renaming, struct cairn_pickle_node *list, uint32_t group,
           struct cairn_pickle_node *member)
{
    struct cairn_map_stage *stage = renaming->stage;
    struct cairn_pickle *pickle = &renaming->groups->tree;
    char name[CAIRN_NAME_BYTES_MAX];
    uint32_t tensor = UINT32_MAX;

    if (cairn_pickle_copy_text(member, name, sizeof(name)))
        tensor = cairn_layout_tensor_find(renaming->from, name);
    if (tensor == UINT32_MAX || !stage->used[tensor]) {
        cairn_pickle_append(pickle, list, member);
        return CAIRN_OK;
    }
    for (uint32_t i = 0; i < stage->target_count[tensor]; i++) {
        uint32_t target = stage->target_first[tensor] + i;
        const char *target_name = cairn_layout_tensor(stage->checkpoint->layout, target)->name;

        if (renaming->group_of[target] == NO_GROUP) {
            renaming->group_of[target] = group + 1;
            cairn_pickle_append(pickle, list, cairn_pickle_text(pickle, target_name));
        } else if (renaming->group_of[target] != group + 1) {
            return cairn_complain(stage->checkpoint->complaint, CAIRN_INVAL,
                                  "%s: is in group %" PRIu32
                                  " of the optimizer and other parts of %s in group %" PRIu32
                                  "; leave the groups out with --drop '%s'",
                                  name, group, target_name, renaming->group_of[target] - 1,
                                  CAIRN_PARAM_GROUPS_NAME);
        }
    }
    return CAIRN_OK;
}

/* torch's own list of names, where the group has one: the same as the members, which are names. */
static cairn_err
rename_names(struct cairn_pickle *pickle, const struct cairn_pickle_node *group,
             const struct cairn_pickle_node *members)
{
    const struct cairn_pickle_node *names = cairn_pickle_get(group, "param_names");
    struct cairn_pickle_node *list = cairn_pickle_list(pickle);
    char name[CAIRN_NAME_BYTES_MAX];

    if (!cairn_pickle_is_list(names))
        return CAIRN_OK;
    for (uint32_t i = 0; i < members->count; i++) {
        if (!cairn_pickle_copy_text(members->items[i], name, sizeof(name)))
            return CAIRN_OK; /* numbers: whose they are is not known */
        cairn_pickle_append(pickle, list, cairn_pickle_text(pickle, name));
    }
    return cairn_pickle_replace(pickle, names, list);
}

static cairn_err
rename_groups(struct renaming *renaming)
{
    struct cairn_pickle *pickle = &renaming->groups->tree;
    cairn_err err = CAIRN_OK;

    for (uint32_t g = 0; g < renaming->groups->root->count && !err; g++) {
        const struct cairn_pickle_node *members =
            cairn_pickle_get(renaming->groups->root->items[g], "params");
        struct cairn_pickle_node *list = cairn_pickle_list(pickle);

        if (!cairn_pickle_is_list(members))
            continue;
        for (uint32_t i = 0; i < members->count && !err; i++)
            err = add_member(renaming, list, g, members->items[i]);
        if (!err)
            err = cairn_pickle_replace(pickle, members, list);
        if (!err)
            err = rename_names(pickle, renaming->groups->root->items[g], members);
    }
    return err ? err : cairn_pickle_done(pickle);
}

cairn_err
cairn_map_groups_rename(struct cairn_map_stage *stage, const struct cairn_layout *from,
                        struct cairn_opaque_tree *groups)
{
    struct renaming renaming = {.stage = stage, .from = from, .groups = groups};
    cairn_err err;

    renaming.group_of = calloc((size_t)cairn_layout_tensor_count(stage->checkpoint->layout) + 1,
                               sizeof(*renaming.group_of));
    if (!renaming.group_of)
        return CAIRN_NOMEM;
    err = rename_groups(&renaming);
    free(renaming.group_of);
    if (!err)
        err = cairn_opaque_add(stage->checkpoint, CAIRN_PARAM_GROUPS_NAME, &groups->tree,
                               groups->root);
    return err ? cairn_refuse(stage->checkpoint, err,
                              "the optimizer's groups of parameters cannot be renamed")
               : CAIRN_OK;
}
