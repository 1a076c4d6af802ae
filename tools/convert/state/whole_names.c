/* tools/convert/state/whole_names.c - see state/whole_names.h. */
#include "tools/convert/state/whole_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/state/reserved.h"

cairn_err
cairn_whole_names_add(struct cairn_whole_names *whole, const struct cairn_state_roots *roots,
                      const struct cairn_state_path *path)
{
    char joined[CAIRN_STATE_NAME_BYTES_MAX];
    struct cairn_state_place place;

    if (path->count == 2 && strcmp(path->keys[0].text, CAIRN_CARRIED_KEY) == 0)
        return CAIRN_OK; /* named by its last key */
    if (!cairn_state_join(path, joined, sizeof(joined)) ||
        !cairn_state_classify(roots, path, &place) || place.class != CAIRN_STATE_OTHER ||
        strcmp(place.parameter, joined) != 0)
        return CAIRN_OK;
    if (!cairn_array_grow(&whole->names, whole->count, sizeof(*whole->names)))
        return CAIRN_NOMEM;
    whole->names[whole->count] = strdup(joined);
    if (!whole->names[whole->count])
        return CAIRN_NOMEM;
    whole->count++;
    return CAIRN_OK;
}

static int
compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

void
cairn_whole_names_sort(struct cairn_whole_names *whole)
{
    if (whole->count > 0)
        qsort(whole->names, whole->count, sizeof(*whole->names), compare_names);
}

bool
cairn_whole_names_has(const struct cairn_whole_names *whole, const char *name)
{
    return whole->count > 0 &&
           bsearch(&name, whole->names, whole->count, sizeof(*whole->names), compare_names) != NULL;
}

void
cairn_whole_names_fini(struct cairn_whole_names *whole)
{
    for (size_t i = 0; i < whole->count; i++)
        free(whole->names[i]);
    free(whole->names);
    memset(whole, 0, sizeof(*whole));
}
