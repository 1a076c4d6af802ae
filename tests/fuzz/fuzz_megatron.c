/*
 * tests/fuzz/fuzz_megatron.c - any text as a key of Megatron-LM's state dicts: refused, or a name
 * that prints as what it was read from, and whose canonical form is one that reads as itself.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/convert/megatron/names.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_megatron_name name, again;
    char text[CAIRN_NAME_BYTES_MAX], stored[CAIRN_NAME_BYTES_MAX], canonical[CAIRN_NAME_BYTES_MAX];

    if (bytes_len >= sizeof(text) || memchr(bytes, 0, bytes_len))
        return 0;
    memcpy(text, bytes, bytes_len);
    text[bytes_len] = '\0';
    if (!cairn_megatron_name_parse(text, &name))
        return 0;
    if (cairn_megatron_name_print(&name, true, stored))
        require(strcmp(stored, text) == 0);
    if (!cairn_megatron_name_print(&name, false, canonical))
        return 0;
    if (cairn_megatron_name_parse(canonical, &again) &&
        cairn_megatron_name_print(&again, false, stored))
        require(strcmp(stored, canonical) == 0);
    (void)cairn_megatron_order_of(canonical);
    return 0;
}
