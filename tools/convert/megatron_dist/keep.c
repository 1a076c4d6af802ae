/*
 * tools/convert/megatron_dist/keep.c - keeps what the canonical names of a checkpoint of
 * Megatron-Core do not give back: keys that are not those by default, and what is not stacked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron_dist/mdist.h"
#include "tools/convert/megatron/names.h"
#include "tools/convert/state/opaque_tree.h"

struct keeping {
    struct cairn_pickle pickle;
    struct cairn_pickle_node *list;
    uint32_t marks; /* the first items of the list, which is short */
};

static void
keep_line(struct keeping *keeping, const char *word, const char *text)
{
    struct cairn_pickle_node *items[2];

    items[0] = cairn_pickle_text(&keeping->pickle, word);
    items[1] = cairn_pickle_text(&keeping->pickle, text);
    cairn_pickle_append(&keeping->pickle, keeping->list,
                        cairn_pickle_sequence(&keeping->pickle, CAIRN_PICKLE_TUPLE, items, 2));
}

static void
keep_mark(struct keeping *keeping, const char *word, const char *text)
{
    for (uint32_t i = 0; i < keeping->marks; i++)
        if (cairn_pickle_is_text(keeping->list->items[i]->items[0], word) &&
            cairn_pickle_is_text(keeping->list->items[i]->items[1], text))
            return;
    keep_line(keeping, word, text);
    keeping->marks = keeping->list ? keeping->list->count : 0;
}

/* What in front of a number in a parameter's name is not stacked. */
static void
keep_form(struct keeping *keeping, const struct cairn_mdist_array *array)
{
    struct cairn_mdist_name pattern;
    uint64_t numbers[CAIRN_MDIST_STARS_MAX];
    char fused[CAIRN_MDIST_NAME_BYTES_MAX];
    uint32_t star = 0;

    if (array->half != CAIRN_MDIST_WHOLE)
        keep_mark(keeping, "halves", "");
    if (cairn_megatron_norm_rename(array->name.pattern, true, fused, sizeof(fused)))
        keep_mark(keeping, "norms", "");
    if (!cairn_mdist_pattern_of(array->name.pattern, 0, &pattern, numbers))
        return;
    for (char *at = strchr(pattern.pattern, '*'); at; at = strchr(at + 1, '*'), star++) {
        if (numbers[star] == CAIRN_MDIST_DIMENSION)
            continue;
        *at = '\0';
        keep_mark(keeping, "apart", pattern.pattern);
        *at = '*';
    }
}

static void
keep_key(struct keeping *keeping, const struct cairn_mdist_array *array, const char *said)
{
    char key[CAIRN_MDIST_NAME_BYTES_MAX], cut[CAIRN_MDIST_NAME_BYTES_MAX];

    (void)snprintf(cut, sizeof(cut), "%s", said);
    if (array->half != CAIRN_MDIST_WHOLE)
        cut[strlen(cut) - 2] = '\0';
    if (cairn_mdist_key_of(&array->name, key) && strcmp(key, cut) != 0 &&
        array->half != CAIRN_MDIST_UP)
        keep_line(keeping, key, cut);
}

static int
compare_lines(const void *left, const void *right)
{
    const struct cairn_pickle_node *a = *(struct cairn_pickle_node *const *)left;
    const struct cairn_pickle_node *b = *(struct cairn_pickle_node *const *)right;
    char one[CAIRN_MDIST_NAME_BYTES_MAX], other[CAIRN_MDIST_NAME_BYTES_MAX];
    int order = 0;

    for (uint32_t i = 0; i < 2 && order == 0; i++)
        if (cairn_pickle_copy_text(a->items[i], one, sizeof(one)) &&
            cairn_pickle_copy_text(b->items[i], other, sizeof(other)))
            order = strcmp(one, other);
    return order;
}

cairn_err
cairn_mdist_keep_keys(struct cairn_mdist_reading *reading)
{
    struct keeping keeping = {0};
    cairn_err err;

    cairn_pickle_init(&keeping.pickle, CAIRN_DCP_TREE_BYTES_MAX);
    keeping.list = cairn_pickle_list(&keeping.pickle);
    for (uint32_t i = 0; i < reading->metadata.entry_count; i++)
        if (reading->arrays[i].known && reading->arrays[i].name.state[0] == '\0')
            keep_form(&keeping, &reading->arrays[i]);
    for (uint32_t i = 0; i < reading->metadata.entry_count; i++)
        if (reading->arrays[i].known && !reading->arrays[i].flat)
            keep_key(&keeping, &reading->arrays[i], reading->metadata.entries[i].name);
    err = cairn_pickle_done(&keeping.pickle);
    if (!err && keeping.list->count > 0) {
        qsort(keeping.list->items, keeping.list->count, sizeof(*keeping.list->items),
              compare_lines);
        err =
            cairn_opaque_add(reading->checkpoint, CAIRN_MDIST_KEYS, &keeping.pickle, keeping.list);
    }
    cairn_pickle_fini(&keeping.pickle);
    return err;
}
