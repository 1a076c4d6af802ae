/*
 * tools/convert/megatron/parts.h - the part of a tensor that one rank of a Megatron-LM job holds,
 * and where parameters lie in the flat buffers of its distributed optimizer.
 *
 * A part is one or two boxes of the logical tensor, one below the other in the rank's own row-major
 * array. Both directions go by the same boxes: what is read lies there, what is written goes there.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_PARTS_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_PARTS_H

#include "tools/convert/megatron/names.h"

struct cairn_megatron_part {
    char name[CAIRN_NAME_BYTES_MAX]; /* canonical */
    enum cairn_megatron_split split;
    uint32_t index, count; /* of the ranks that it is split over */
    enum cairn_dtype dtype;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];       /* of the rank's own array */
    uint64_t whole_shape[CAIRN_DIMS_MAX]; /* of the logical tensor, without padding */
    uint32_t chunk;                       /* of the rank's pipeline chunks */
    bool expert;                          /* in the optimizer of the experts */
    bool buffer;                          /* in no optimizer */
    bool shared_bucket; /* a tied embedding, which the optimizer keeps in a bucket of its own */
};

struct cairn_megatron_box {
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX]; /* in the logical tensor */
    uint64_t row; /* of the rank's array, where the box begins */
};

/* Sets whole_shape from shape, or shape from whole_shape; false where they cannot be split so.
 * `rows` are the true rows of a vocabulary (0: not known), `multiple` what they are padded to a
 * multiple of. */
bool cairn_megatron_part_join(struct cairn_megatron_part *part, uint64_t rows);
bool cairn_megatron_part_cut(struct cairn_megatron_part *part, uint64_t multiple);

/* Gives how many; 0: the rank's array is all padding. */
uint32_t cairn_megatron_part_boxes(const struct cairn_megatron_part *part,
                                   struct cairn_megatron_box boxes[2]);

/* The parameters of a chunk that are of one dtype and one optimizer, from the first on that is not
 * yet taken, into order[]; gives how many. */
uint32_t cairn_megatron_collect(const struct cairn_megatron_part *parts, uint32_t part_count,
                                uint32_t chunk, bool expert, bool *taken, uint32_t *order);

/* Where the parameters of one buffer begin in distrib_optim.pt: parts[order[i]], i < count, in the
 * order of registration; begins[i] elements. Gives all elements. bucket_elements 0: one bucket. */
uint64_t cairn_megatron_buffer(const struct cairn_megatron_part *parts, const uint32_t *order,
                               uint32_t count, uint64_t bucket_elements, uint64_t *begins);

#endif
