/* tools/convert/maps/load.c - finds a map by what the user calls it: a preset, or a file. */
#include <stdio.h>
#include <stdlib.h>

#include "base/complaint.h"
#include "tools/convert/core/place.h"
#include "tools/convert/maps/language.h"

enum { LIST_BYTES_MAX = 400 };

/* No file has the name, and no preset. */
static cairn_err
say_no_map(const char *path, struct cairn_complaint *complaint)
{
    char all[LIST_BYTES_MAX] = "";
    size_t used = 0;

    for (uint32_t i = 0; cairn_map_preset_name(i); i++)
        used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", i ? ", " : "",
                                 cairn_map_preset_name(i));
    return cairn_complain(complaint, CAIRN_NOT_FOUND,
                          "%s: neither a file nor a built-in map; use one of %s", path, all);
}

static cairn_err
load_file(const char *path, struct cairn_map **out, struct cairn_complaint *complaint)
{
    struct cairn_place place = {.dir_fd = -1};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    struct cairn_complaint cause = {""};
    cairn_err err;

    err = cairn_place_open(path, &place, &cause);
    if (err == CAIRN_NOT_FOUND || (!err && !place.name)) {
        cairn_place_close(&place);
        return say_no_map(path, complaint);
    }
    if (!err)
        err = cairn_place_load(&place, "", CAIRN_MAP_BYTES_MAX, &bytes, &bytes_len, &cause);
    cairn_place_close(&place);
    if (err == CAIRN_DENIED)
        return cairn_complain(
            complaint, err,
            "this user may not read the map %s; give the file read permission and "
            "its directories search permission, or copy it",
            path);
    if (err)
        return cairn_complain(complaint, err, "the map %s: cannot be read: %s", path, cause.text);
    err = cairn_map_parse(path, (const char *)bytes, bytes_len, out, complaint);
    free(bytes);
    return err;
}

cairn_err
cairn_map_load(const char *map, struct cairn_map **out, struct cairn_complaint *complaint)
{
    size_t text_bytes = 0;
    const char *text = cairn_map_preset(map, &text_bytes);

    return text ? cairn_map_parse(map, text, text_bytes, out, complaint)
                : load_file(map, out, complaint);
}
