/*
 * tests/fuzz/fuzz_dcp.c - any bytes as the `.metadata` of a distributed checkpoint: refused with a
 * complaint, or entries whose names, chunks and items can all be asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tools/convert/dcp/metadata.h"
#include "tests/fuzz/require.h"
#include "tests/support/quiet_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
walk_entry(const struct cairn_dcp_metadata *metadata, const struct cairn_dcp_entry *entry,
           struct cairn_state_roots *roots)
{
    struct cairn_state_path path = cairn_dcp_entry_path(entry);
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    struct cairn_state_place place;
    struct cairn_dcp_item item;
    struct cairn_complaint complaint = {{0}};

    require(path.count > 0 && path.count <= CAIRN_STATE_KEYS_MAX);
    if (entry->chunks)
        cairn_state_roots_see(roots, &path);
    if (cairn_state_classify(roots, &path, &place))
        require(strlen(place.parameter) < CAIRN_STATE_NAME_BYTES_MAX);
    if (!entry->chunks) {
        if (cairn_dcp_find_item(metadata, entry, NULL, &item, &complaint) == CAIRN_OK)
            require(item.offset_bytes + item.bytes <= INT64_MAX);
        return;
    }
    require(cairn_dtype_bytes(entry->dtype) > 0 && entry->dims <= CAIRN_DIMS_MAX);
    for (uint32_t i = 0; i < entry->chunks->count && i < 1000; i++)
        if (cairn_dcp_chunk_box(entry, i, start, extent) &&
            cairn_dcp_find_item(metadata, entry, start, &item, &complaint) == CAIRN_OK)
            require(item.offset_bytes + item.bytes <= INT64_MAX && item.path != NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_dcp_metadata metadata;
    struct cairn_state_roots roots = {0};
    struct cairn_complaint complaint = {{0}};
    uint8_t *copy = malloc(bytes_len + 1);
    cairn_err err;

    cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
    require(copy != NULL);
    if (bytes_len > 0)
        memcpy(copy, bytes, bytes_len);
    err = cairn_dcp_metadata_parse(copy, bytes_len, "fuzz", &metadata, &complaint);
    require(err == CAIRN_OK || complaint.text[0] != '\0');
    for (uint32_t i = 0; i < metadata.entry_count; i++)
        walk_entry(&metadata, &metadata.entries[i], &roots);
    cairn_dcp_metadata_fini(&metadata);
    return 0;
}
