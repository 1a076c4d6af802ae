/* tools/convert/megatron/parts.c - the arithmetic of Megatron-LM's shards and buffers. */
#include "snapshot/box.h"
#include "tools/convert/megatron/parts.h"

#include <string.h>

enum { ALIGN_ELEMENTS = 64 }; /* where a parameter begins in a buffer */

/* The dimension that is split. */
static bool
split_dimension(const struct cairn_megatron_part *part, uint32_t *dimension)
{
    *dimension = part->split == CAIRN_MEGATRON_COLUMNS;
    return part->split != CAIRN_MEGATRON_REPLICATED && part->dims > *dimension;
}

bool
cairn_megatron_part_join(struct cairn_megatron_part *part, uint64_t rows)
{
    uint32_t d;

    memcpy(part->whole_shape, part->shape, sizeof(part->whole_shape));
    if (part->split == CAIRN_MEGATRON_REPLICATED)
        return true;
    if (!split_dimension(part, &d) ||
        __builtin_mul_overflow(part->shape[d], part->count, &part->whole_shape[d]))
        return false;
    if (part->split == CAIRN_MEGATRON_HALVES && part->shape[0] % 2 != 0)
        return false;
    if (part->split == CAIRN_MEGATRON_VOCABULARY && rows > 0) {
        if (rows > part->whole_shape[0])
            return false;
        part->whole_shape[0] = rows;
    }
    return true;
}

bool
cairn_megatron_part_cut(struct cairn_megatron_part *part, uint64_t multiple)
{
    uint64_t extent, ways = part->count;
    uint32_t d;

    memcpy(part->shape, part->whole_shape, sizeof(part->shape));
    if (part->split == CAIRN_MEGATRON_REPLICATED)
        return true;
    if (!split_dimension(part, &d))
        return false;
    extent = part->whole_shape[d];
    if (part->split == CAIRN_MEGATRON_VOCABULARY) {
        if (multiple == 0 || __builtin_mul_overflow(multiple, ways, &multiple) ||
            extent > UINT64_MAX - multiple)
            return false;
        extent = (extent + multiple - 1) / multiple * multiple;
    }
    if (extent % ways != 0 || (part->split == CAIRN_MEGATRON_HALVES && (extent / ways) % 2 != 0))
        return false;
    part->shape[d] = extent / ways;
    return true;
}

uint32_t
cairn_megatron_part_boxes(const struct cairn_megatron_part *part,
                          struct cairn_megatron_box boxes[2])
{
    uint32_t d;

    memset(boxes, 0, 2 * sizeof(*boxes));
    memcpy(boxes[0].extent, part->shape, sizeof(boxes[0].extent));
    if (!split_dimension(part, &d))
        return 1;
    if (part->split == CAIRN_MEGATRON_HALVES) {
        uint64_t half = part->shape[0] / 2;

        boxes[1] = boxes[0];
        boxes[0].extent[0] = boxes[1].extent[0] = half;
        boxes[0].start[0] = half * part->index;
        boxes[1].start[0] = half * part->count + half * part->index;
        boxes[1].row = half;
        return 2;
    }
    boxes[0].start[d] = part->shape[d] * part->index;
    if (boxes[0].start[d] >= part->whole_shape[d])
        return 0; /* only a vocabulary is padded */
    if (boxes[0].extent[d] > part->whole_shape[d] - boxes[0].start[d])
        boxes[0].extent[d] = part->whole_shape[d] - boxes[0].start[d];
    return 1;
}

uint32_t
cairn_megatron_collect(const struct cairn_megatron_part *parts, uint32_t part_count, uint32_t chunk,
                       bool expert, bool *taken, uint32_t *order)
{
    enum cairn_dtype dtype = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < part_count; i++) {
        const struct cairn_megatron_part *part = &parts[i];

        if (taken[i] || part->buffer || part->chunk != chunk || part->expert != expert ||
            (dtype && part->dtype != dtype))
            continue;
        dtype = part->dtype;
        taken[i] = true;
        order[count++] = i;
    }
    return count;
}

static uint64_t
align(uint64_t elements)
{
    return (elements + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
}

/* Parameters from the last registered to the first, each at a multiple of 64 elements. A bucket
 * ends once it has bucket_elements, and before and after a tied embedding; padding at its end is
 * not saved. Buckets begin at a multiple of 64 too, so only lengths count here. */
uint64_t
cairn_megatron_buffer(const struct cairn_megatron_part *parts, const uint32_t *order,
                      uint32_t count, uint64_t bucket_elements, uint64_t *begins)
{
    uint64_t saved = 0, used = 0; /* of the buckets before this one; of this one */
    bool empty = true;

    for (uint32_t i = count; i-- > 0;) {
        const struct cairn_megatron_part *part = &parts[order[i]];

        used = align(used);
        if (part->shared_bucket && !empty) {
            saved += used;
            used = 0;
        }
        begins[i] = saved + used;
        used += cairn_shape_elements(part->dims, part->shape);
        empty = false;
        if ((bucket_elements > 0 && used >= bucket_elements) || part->shared_bucket) {
            saved += used;
            used = 0;
            empty = true;
        }
    }
    return saved + used;
}
