/* replan/fleet/field.c - keys and numbers of problem files. */
#include "replan/fleet/field.h"

#include <string.h>

uint32_t
cairn_field_key(struct cairn_json_reader *reader, const char *name, const char *const *names,
                uint32_t count, uint32_t *seen)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) {
            if (*seen >> i & 1)
                cairn_json_reader_fail(reader, "a duplicate key");
            *seen |= 1u << i;
            return i;
        }
    cairn_json_reader_fail(reader, "an unknown key");
    return count;
}

double
cairn_field_number(struct cairn_json_reader *reader, double low, double high, const char *why)
{
    double value = cairn_json_read_double(reader);

    if (!(value >= low && value <= high))
        cairn_json_reader_fail(reader, why);
    return value;
}
