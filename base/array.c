/* base/array.c - see base/array.h. */
#include "base/array.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MIN = 8 };

bool
cairn_array_grow(void *array, size_t count, size_t element_bytes)
{
    size_t room = count < COUNT_MIN ? COUNT_MIN : 2 * count;
    void *old, *grown;

    if (count > 0 && (count < COUNT_MIN || (count & (count - 1)) != 0))
        return true;
    if (room > SIZE_MAX / 2 / element_bytes)
        return false;
    memcpy(&old, array, sizeof(old));
    grown = realloc(old, room * element_bytes);
    if (!grown)
        return false;
    memcpy(array, &grown, sizeof(grown));
    /* cppcheck-suppress memleak ; *array holds it */
    return true;
}
