/*
 * tests/fuzz/fuzz_universal.c - any bytes as an index.json: refused, or a whole checkpoint that
 * packs and parses to itself.
 *
 * What is taken must give file headers (or be refused for their size), manifests that unpack, and a
 * layout that covers each tensor once.
 */
#include "snapshot/universal.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
check_file(const struct cairn_universal *universal, uint32_t file)
{
    struct cairn_manifest manifest = {0}, unpacked = {0};
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err = cairn_universal_header_pack(universal, file, &bytes, &bytes_len);

    require(err == CAIRN_OK || err == CAIRN_INVAL);
    if (err == CAIRN_OK)
        require(bytes_len % CAIRN_UNIVERSAL_ALIGN_BYTES == 0 && bytes[8] == '{');
    free(bytes);
    require(!strchr(universal->files[file].name, '/'));
    require(cairn_universal_manifest(universal, file, &manifest) == CAIRN_OK);
    require(cairn_manifest_pack(&manifest, &bytes, &bytes_len) == CAIRN_OK);
    require(cairn_manifest_unpack(bytes, bytes_len, &unpacked) == CAIRN_OK);
    free(bytes);
    cairn_manifest_fini(&manifest);
    cairn_manifest_fini(&unpacked);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_universal universal = {0}, again = {0};
    struct cairn_layout *layout = NULL;
    char *text = NULL, *text_again = NULL;
    size_t text_bytes = 0, text_again_bytes = 0;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    if (cairn_universal_index_parse(bytes, bytes_len, &universal) != CAIRN_OK) {
        require(universal.files == NULL && universal.tensors == NULL);
        return 0;
    }
    require(cairn_universal_index_pack(&universal, &text, &text_bytes) == CAIRN_OK);
    require(cairn_universal_index_parse(text, text_bytes, &again) == CAIRN_OK);
    require(cairn_universal_index_pack(&again, &text_again, &text_again_bytes) == CAIRN_OK);
    require(text_bytes == text_again_bytes && memcmp(text, text_again, text_bytes) == 0);
    for (uint32_t f = 0; f < universal.file_count; f++)
        check_file(&universal, f);
    require(cairn_universal_layout(&universal, &layout) == CAIRN_OK);
    require(cairn_layout_check_tiling(layout, true, NULL, 0) == CAIRN_OK);
    cairn_layout_destroy(layout);
    free(text);
    free(text_again);
    cairn_universal_fini(&universal);
    cairn_universal_fini(&again);
    return 0;
}
