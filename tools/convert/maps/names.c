/* tools/convert/maps/names.c - names of tensors with captures, matched and made
 * (maps/language.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/convert/maps/language.h"

enum { DIGITS_MAX = 9 };

bool
cairn_map_name_match(const struct cairn_map_name *pattern, const char *name,
                     uint64_t values[CAIRN_MAP_SYMBOLS_MAX])
{
    uint64_t found[CAIRN_MAP_CAPTURES_MAX];
    const char *at = pattern->text;
    uint32_t captured = 0;

    for (; *at; at++) {
        uint32_t digits = 0;

        if (*at != '{') {
            if (*at != *name++)
                return false;
            continue;
        }
        found[captured] = 0;
        for (; name[digits] >= '0' && name[digits] <= '9' && digits < DIGITS_MAX; digits++)
            found[captured] = 10 * found[captured] + (uint64_t)(name[digits] - '0');
        if (digits == 0 || (name[0] == '0' && digits > 1)) /* "01" is another name than "1" */
            return false;
        name += digits;
        captured++;
        at = strchr(at, '}');
    }
    if (*name)
        return false;
    for (uint32_t i = 0; i < captured; i++)
        values[pattern->captures[i]] = found[i];
    return true;
}

bool
cairn_map_name_make(const struct cairn_map_name *pattern, const char *key,
                    const uint64_t values[CAIRN_MAP_SYMBOLS_MAX], char out[CAIRN_NAME_BYTES_MAX])
{
    size_t used = 0;
    uint32_t captured = 0;
    int added = snprintf(out, CAIRN_NAME_BYTES_MAX, "%s%s", key, key[0] ? "." : "");

    if (added < 0 || added >= CAIRN_NAME_BYTES_MAX)
        return false;
    used = (size_t)added;
    for (const char *at = pattern->text; *at; at++) {
        if (*at != '{') {
            if (used + 1 >= CAIRN_NAME_BYTES_MAX)
                return false;
            out[used++] = *at;
            continue;
        }
        added = snprintf(out + used, CAIRN_NAME_BYTES_MAX - used, "%" PRIu64,
                         values[pattern->captures[captured++]]);
        if (added < 0 || (size_t)added >= CAIRN_NAME_BYTES_MAX - used)
            return false;
        used += (size_t)added;
        at = strchr(at, '}');
    }
    out[used] = '\0';
    return true;
}

bool
cairn_map_name_has(const struct cairn_map_name *pattern, uint32_t symbol)
{
    for (uint32_t i = 0; i < pattern->capture_count; i++)
        if (pattern->captures[i] == symbol)
            return true;
    return false;
}
