/* tools/convert/mdist_buckets.c - see mdist_buckets.h. */
#include "tools/convert/mdist_buckets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool
cairn_mdist_is_bucket(const char *key)
{
    return strstr(key, "optimizer.distributed.dp_group_idx_") && strstr(key, ".bucket_idx_");
}

cairn_err
cairn_mdist_buckets_note(struct cairn_mdist_reading *reading, uint32_t entry, uint32_t container,
                         const struct cairn_dcp_chunk *chunk)
{
    struct cairn_mdist_bucket_chunk *grown;

    if (reading->bucket_chunk_count == reading->bucket_chunk_room) {
        size_t room = reading->bucket_chunk_room ? 2 * reading->bucket_chunk_room : 256;

        grown = realloc(reading->bucket_chunks, room * sizeof(*grown));
        if (!grown)
            return CAIRN_NOMEM;
        reading->bucket_chunks = grown;
        reading->bucket_chunk_room = room;
    }
    reading->bucket_chunks[reading->bucket_chunk_count++] = (struct cairn_mdist_bucket_chunk){
        .entry = entry, .container = container, .begin = chunk->start[0],
        .end = chunk->start[0] + chunk->extent[0], .at = chunk->at};
    return CAIRN_OK;
}

cairn_err
cairn_mdist_buckets_add(struct cairn_mdist_reading *reading)
{
    return reading->bucket_chunk_count == 0
               ? CAIRN_OK
               : cairn_complain(reading->complaint, CAIRN_INVAL,
                                "%s: the optimizer is dp_reshardable, which is not read",
                                reading->checkpoint->place.path);
}
