/* tools/convert/core/name_set.h - a set of names: filled, sorted, then asked. */
#ifndef CAIRN_TOOLS_CONVERT_CORE_NAME_SET_H
#define CAIRN_TOOLS_CONVERT_CORE_NAME_SET_H

#include "cairn/err.h"

#include <stdbool.h>
#include <stddef.h>

/* All zero is the empty value. */
struct cairn_name_set {
    char **names; /* owned */
    size_t count;
};

/* Adds a copy of a name, which may be there already. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_name_set_add(struct cairn_name_set *set, const char *name);
/* Call it after the last cairn_name_set_add, before cairn_name_set_has. */
void cairn_name_set_sort(struct cairn_name_set *set);
bool cairn_name_set_has(const struct cairn_name_set *set, const char *name);
void cairn_name_set_fini(struct cairn_name_set *set); /* zeroes are allowed */

#endif
