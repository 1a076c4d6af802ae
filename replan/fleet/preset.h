/*
 * replan/fleet/preset.h - known models and devices, for questions that are asked before anything
 * has been measured.
 *
 * What is known are shapes (layers, widths, vocabulary) and data sheets (operations, memory,
 * links); times follow from counting operations, at the part of its peak that a device reaches in
 * training. Measured coefficients (replan/profile/fit.h) are better, always.
 */
#ifndef CAIRN_REPLAN_FLEET_PRESET_H
#define CAIRN_REPLAN_FLEET_PRESET_H

#include "replan/fleet/problem.h"

struct cairn_model_shape {
    const char *name;
    uint32_t layers;
    uint32_t width;       /* of the residual stream */
    uint32_t inner_width; /* of the feed-forward part */
    uint32_t key_width;   /* of all keys of a token; less than `width` where heads share them */
    uint32_t matrices;    /* of the feed-forward part: 2, or 3 where it is gated */
    uint32_t vocabulary;
    const char *source;
};

struct cairn_device_sheet {
    const char *name;
    double peak_tflops; /* bfloat16 with float32 sums, dense */
    uint64_t memory_bytes;
    double intra_gbps; /* into one device, from its node */
    double inter_gbps; /* from other nodes: what such a node usually has per device */
    const char *source;
};

extern const struct cairn_model_shape cairn_model_shapes[];
extern const uint32_t cairn_model_shape_count;
extern const struct cairn_device_sheet cairn_device_sheets[];
extern const uint32_t cairn_device_sheet_count;

/* By name; NULL where there is none. */
const struct cairn_model_shape *cairn_model_shape_find(const char *name);
const struct cairn_device_sheet *cairn_device_sheet_find(const char *name);

/* What a preset needs beside names. */
struct cairn_preset {
    const struct cairn_model_shape *model;
    const struct cairn_device_sheet *device;
    uint32_t sequence_tokens; /* of a micro-batch of one sequence */
    double reached;           /* of the peak, above 0 and at most 1 */
};

/*
 * Sets what a problem says of model and links: layers, layer_ms for groups of `tp` devices,
 * embed_layers, head_layers, sizes (1, 2, 4 … tp, all of the same cost), layer_bytes (18
 * bytes of state per parameter: bfloat16 weights, float32 gradients, master weights and two
 * moments), activation_bytes (34 bytes per token and width: attention is recomputed),
 * reserved_bytes (4 GiB), links. tp: a power of two, at most 1024. Devices and micro-batches stay.
 */
void cairn_preset_apply(const struct cairn_preset *preset, uint32_t tp,
                        struct cairn_problem *problem);

#endif
