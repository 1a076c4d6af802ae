/* tools/convert/state/param_groups.c - see param_groups.h. */
#include "tools/convert/state/param_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/read.h"
#include "tools/convert/state/names.h"

/* ---- ("tensor", name) ---- */

bool
cairn_pickle_read_named(const struct cairn_pickle_node *node,
                        char word[CAIRN_PICKLE_WORD_BYTES_MAX], char *name)
{
    const struct cairn_pickle_node *id =
        node && node->kind == CAIRN_PICKLE_PERSISTENT ? node->items[0] : NULL;

    return id && id->kind == CAIRN_PICKLE_TUPLE && id->count == 2 &&
           cairn_pickle_copy_text(id->items[0], word, CAIRN_PICKLE_WORD_BYTES_MAX) &&
           (!name || cairn_pickle_copy_text(id->items[1], name, CAIRN_NAME_BYTES_MAX));
}

bool
cairn_pickle_tensor_name(const struct cairn_pickle_node *node, char *name)
{
    char word[CAIRN_PICKLE_WORD_BYTES_MAX];

    return cairn_pickle_read_named(node, word, name) && strcmp(word, "tensor") == 0;
}

struct cairn_pickle_node *
cairn_pickle_tensor(struct cairn_pickle *pickle, const char *name)
{
    return cairn_pickle_named(pickle, "tensor", name);
}

struct cairn_pickle_node *
cairn_pickle_named(struct cairn_pickle *pickle, const char *word, const char *name)
{
    struct cairn_pickle_node *items[2];

    items[0] = cairn_pickle_text(pickle, word);
    items[1] = cairn_pickle_text(pickle, name);
    return cairn_pickle_persistent(pickle,
                                   cairn_pickle_sequence(pickle, CAIRN_PICKLE_TUPLE, items, 2));
}

cairn_err
cairn_pickle_replace(struct cairn_pickle *pickle, const struct cairn_pickle_node *node,
                     const struct cairn_pickle_node *by)
{
    /* The tree is the arena's, and so ours to change; only its readers see it as constant. */
    struct cairn_pickle_node *changed = (struct cairn_pickle_node *)(uintptr_t)node;
    uint32_t index = node->index;
    bool memoized = node->memoized; /* what holds it twice holds one value also when read again */

    if (!by)
        return cairn_pickle_done(pickle);
    *changed = *by;
    changed->index = index;
    changed->memoized = memoized || by->memoized;
    return CAIRN_OK;
}

/* ---- putting together ---- */

static struct cairn_pickle_node *
named_member(struct cairn_pickle *pickle, struct cairn_pickle_node *member,
             const char *const names[], uint32_t name_count)
{
    char name[CAIRN_STATE_NAME_BYTES_MAX];
    uint64_t number;

    if (cairn_pickle_u64(member, &number))
        return number < name_count ? cairn_pickle_text(pickle, names[number]) : member;
    if (!cairn_pickle_copy_text(member, name, sizeof(name)))
        return member;
    cairn_state_unwrap(name);
    return cairn_pickle_text(pickle, name);
}

/* A value as a node of its own tree: read from its own pickle, so that it shares with nothing. */
static cairn_err
read_value(struct cairn_pickle *pickle, const struct cairn_group_value *value,
           const char *const names[], uint32_t name_count, struct cairn_pickle_node **out)
{
    struct cairn_pickle_node *node = NULL, *list;
    cairn_err err;

    if (!value->bytes) {
        *out = cairn_pickle_tensor(pickle, value->tensor);
        return *out ? CAIRN_OK : CAIRN_NOMEM;
    }
    err = cairn_pickle_read(pickle, value->key, value->bytes, value->bytes_len, &node, NULL);
    if (err)
        return err;
    if (strcmp(value->key, "params") == 0 && node->kind == CAIRN_PICKLE_LIST) {
        list = cairn_pickle_list(pickle);
        for (uint32_t i = 0; i < node->count; i++)
            cairn_pickle_append(pickle, list,
                                named_member(pickle, node->items[i], names, name_count));
        node = list;
    }
    *out = node;
    return cairn_pickle_done(pickle);
}

static cairn_err
pack_numbered(struct cairn_pickle *pickle, const struct cairn_group_value *values, size_t count,
              const char *const names[], uint32_t name_count, struct cairn_pickle_node *list)
{
    struct cairn_pickle_node *dict = NULL, *node = NULL;
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < count && !err; i++) {
        if (values[i].group == list->count) {
            dict = cairn_pickle_dict(pickle);
            cairn_pickle_append(pickle, list, dict);
        } else if (values[i].group + 1 != list->count) {
            return CAIRN_CORRUPT;
        }
        err = read_value(pickle, &values[i], names, name_count, &node);
        if (!err)
            cairn_pickle_set(pickle, dict, values[i].key, node);
    }
    return err;
}

/* Whether two parameters have the same values. */
static bool
same_values(const struct cairn_group_value *a, const struct cairn_group_value *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(a[i].key, b[i].key) != 0 || !a[i].bytes || !b[i].bytes ||
            a[i].bytes_len != b[i].bytes_len || memcmp(a[i].bytes, b[i].bytes, a[i].bytes_len) != 0)
            return false;
    return true;
}

/* A group, with the values of its first parameter. */
struct made {
    const struct cairn_group_value *values;
    size_t count;
    struct cairn_pickle_node *members;
};

static cairn_err
pack_flat(struct cairn_pickle *pickle, const struct cairn_group_value *values, size_t count,
          struct cairn_pickle_node *list)
{
    struct made *made = calloc(count + 1, sizeof(*made));
    char name[CAIRN_STATE_NAME_BYTES_MAX];
    uint32_t made_count = 0;
    cairn_err err = made ? CAIRN_OK : CAIRN_NOMEM;

    for (size_t at = 0, end; at < count && !err; at = end) {
        struct made *group = NULL;

        for (end = at + 1; end < count && strcmp(values[end].parameter, values[at].parameter) == 0;)
            end++;
        for (uint32_t g = made_count; g-- > 0 && !group;)
            if (made[g].count == end - at && same_values(made[g].values, values + at, end - at))
                group = &made[g];
        if (!group) {
            struct cairn_pickle_node *dict = cairn_pickle_dict(pickle), *node = NULL;

            group = &made[made_count++];
            *group = (struct made){values + at, end - at, cairn_pickle_list(pickle)};
            for (size_t i = at; i < end && !err; i++) {
                err = read_value(pickle, &values[i], NULL, 0, &node);
                if (!err)
                    cairn_pickle_set(pickle, dict, values[i].key, node);
            }
            cairn_pickle_set(pickle, dict, "params", group->members);
            cairn_pickle_append(pickle, list, dict);
        }
        (void)snprintf(name, sizeof(name), "%s", values[at].parameter);
        cairn_state_unwrap(name);
        cairn_pickle_append(pickle, group->members, cairn_pickle_text(pickle, name));
    }
    free(made);
    return err;
}

cairn_err
cairn_param_groups_add(struct cairn_checkpoint *checkpoint, const struct cairn_group_value *values,
                       size_t count, const char *const names[], uint32_t name_count, bool *added)
{
    bool flat = count > 0 && values[0].parameter;
    struct cairn_pickle_node *list;
    struct cairn_pickle pickle;
    cairn_err err = CAIRN_OK;

    *added = false;
    for (size_t i = 0; i < count; i++)
        if ((values[i].parameter != NULL) != flat)
            return CAIRN_OK;
    cairn_pickle_init(&pickle, CAIRN_PARAM_GROUPS_BYTES_MAX);
    list = cairn_pickle_list(&pickle);
    if (!list)
        err = CAIRN_NOMEM;
    else if (flat)
        err = pack_flat(&pickle, values, count, list);
    else
        err = pack_numbered(&pickle, values, count, names, name_count, list);
    *added = !err;
    if (*added)
        err = cairn_opaque_add(checkpoint, CAIRN_PARAM_GROUPS_NAME, &pickle, list);
    else if (err == CAIRN_CORRUPT)
        err = CAIRN_OK;
    cairn_pickle_fini(&pickle);
    return err;
}

/* ---- reading again ---- */

cairn_err
cairn_param_groups_open(const struct cairn_checkpoint *checkpoint, struct cairn_opaque_tree *out)
{
    cairn_err err = cairn_opaque_tree_open(checkpoint, CAIRN_PARAM_GROUPS_NAME, out);

    if (!err && out->root->kind != CAIRN_PICKLE_LIST)
        err = CAIRN_CORRUPT;
    for (uint32_t i = 0; !err && i < out->root->count; i++) {
        const struct cairn_pickle_node *dict = out->root->items[i];

        if (dict->kind != CAIRN_PICKLE_DICT)
            err = CAIRN_CORRUPT;
        for (uint32_t k = 0; !err && k < dict->count; k++)
            if (dict->items[2 * k]->kind != CAIRN_PICKLE_TEXT)
                err = CAIRN_CORRUPT;
    }
    return err;
}
