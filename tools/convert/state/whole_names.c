/* tools/convert/state/whole_names.c - see state/whole_names.h. */
#include "tools/convert/state/whole_names.h"

#include <string.h>

#include "tools/convert/state/reserved.h"

cairn_err
cairn_whole_names_add(struct cairn_name_set *whole, const struct cairn_state_roots *roots,
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
    return cairn_name_set_add(whole, joined);
}
