/* tools/convert/core/name_set.c - see name_set.h. */
#include "tools/convert/core/name_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

cairn_err
cairn_name_set_add(struct cairn_name_set *set, const char *name)
{
    char *copy;

    if (!cairn_array_grow(&set->names, set->count, sizeof(*set->names)))
        return CAIRN_NOMEM;
    copy = strdup(name);
    if (!copy)
        return CAIRN_NOMEM;
    set->names[set->count++] = copy;
    return CAIRN_OK;
}

static int
compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

void
cairn_name_set_sort(struct cairn_name_set *set)
{
    if (set->count > 0)
        qsort(set->names, set->count, sizeof(*set->names), compare_names);
}

bool
cairn_name_set_has(const struct cairn_name_set *set, const char *name)
{
    return set->count > 0 &&
           bsearch(&name, set->names, set->count, sizeof(*set->names), compare_names) != NULL;
}

void
cairn_name_set_fini(struct cairn_name_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        free(set->names[i]);
    free(set->names);
    memset(set, 0, sizeof(*set));
}
