/*
 * tools/convert/formats.c - the table of formats, in the order in which a place is shown to them: a
 * format that is recognized by a marker file of its own comes before one that is recognized by the
 * ending of a name.
 */
#include "tools/convert/formats.h"

#include <string.h>

const struct cairn_format *const cairn_formats[] = {
    &cairn_format_universal, &cairn_format_ds_universal, &cairn_format_deepspeed,
    &cairn_format_megatron,  &cairn_format_safetensors,  &cairn_format_megatron_dist,
    &cairn_format_dcp,       &cairn_format_torch,        NULL,
};

const struct cairn_format *
cairn_format_find(const char *name)
{
    for (size_t i = 0; cairn_formats[i]; i++)
        if (strcmp(cairn_formats[i]->name, name) == 0)
            return cairn_formats[i];
    return NULL;
}
