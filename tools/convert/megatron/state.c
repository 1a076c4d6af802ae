/* tools/convert/megatron/state.c - what Megatron-LM's files hold, while they are read: its chunks,
 * and the pieces of a rank's parts. */
#include "snapshot/box.h"
#include "tools/convert/megatron/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
cairn_megatron_state_fini(struct cairn_megatron_state *state)
{
    free(state->first_layer);
    free(state->keys);
    free(state->parts);
    memset(state, 0, sizeof(*state));
}

struct cairn_pickle_node *
cairn_megatron_chunk(const struct cairn_megatron_state *state, const struct cairn_pickle_node *root,
                     uint32_t chunk)
{
    char key[16] = "model";

    if (state->vpp > 1)
        (void)snprintf(key, sizeof(key), "model%" PRIu32, chunk);
    return cairn_pickle_get(root, key);
}

cairn_err
cairn_megatron_add_part(struct cairn_checkpoint *checkpoint, const struct cairn_megatron_part *part,
                        const char *name, enum cairn_kind kind, enum cairn_dtype dtype,
                        uint32_t container, uint64_t offset_bytes, const uint64_t *stride_bytes)
{
    struct cairn_megatron_box boxes[2];
    uint64_t row_major[CAIRN_DIMS_MAX];
    uint32_t count = cairn_megatron_part_boxes(part, boxes), index = 0;
    cairn_err err;

    cairn_shape_strides(part->dims, part->shape, cairn_dtype_bytes(dtype), row_major);
    if (!stride_bytes)
        stride_bytes = row_major;
    err = cairn_checkpoint_add_tensor(checkpoint, name, dtype, kind, part->dims, part->whole_shape,
                                      &index);
    for (uint32_t i = 0; i < count && !err; i++)
        err = cairn_checkpoint_add_box(
            checkpoint, index, container, boxes[i].start, boxes[i].extent,
            offset_bytes + (part->dims > 0 ? boxes[i].row * stride_bytes[0] : 0), stride_bytes);
    return err;
}
