/*
 * tests/fuzz/fuzz_manifest.c - any bytes as a manifest: refused, or packed again to the same
 * bytes.
 *
 * Each input is tried as it is, and once more with its checksum made right, since no mutation
 * finds a CRC-64 by itself. Build: clang -fsanitize=fuzzer,address,undefined, with snapshot and
 * base.
 */
#include "snapshot/manifest.h"

#include "base/crc.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
try_bytes(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_manifest manifest = {0};
    struct cairn_layout *layout = NULL;
    uint8_t *again = NULL;
    size_t again_len = 0;

    if (cairn_manifest_unpack(bytes, bytes_len, &manifest) != CAIRN_OK)
        return;
    if (cairn_manifest_pack(&manifest, &again, &again_len) != CAIRN_OK || again_len != bytes_len ||
        memcmp(again, bytes, bytes_len) != 0)
        abort();
    free(again);
    /* An accepted manifest also makes a layout, and can be checked. */
    if (cairn_layout_create(&layout) != CAIRN_OK ||
        cairn_manifest_add_to_layout(&manifest, layout, NULL) != CAIRN_OK)
        abort();
    (void)!cairn_layout_check_tiling(layout, false, NULL, 0);
    cairn_layout_destroy(layout);
    cairn_manifest_fini(&manifest);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *sealed;

    try_bytes(data, size);
    if (size < 8)
        return 0;
    sealed = malloc(size);
    if (!sealed)
        return 0;
    memcpy(sealed, data, size);
    for (size_t i = 0; i < 8; i++)
        sealed[size - 8 + i] = (uint8_t)(cairn_crc64(0, data, size - 8) >> (8 * i));
    try_bytes(sealed, size);
    free(sealed);
    return 0;
}
