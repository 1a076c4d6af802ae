/*
 * tools/convert/megatron_dist/megatron.h - what Megatron-LM's own files carry around the model
 * (megatron/state.h), as Megatron-Core's distributed checkpoints have it: the values of the first
 * rank's object in common.pt, and each rank's RNG states as a sharded object.
 *
 * The settings of a distributed optimizer become those of a fully reshardable one, since its state
 * is written by parameter.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_MEGATRON_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_MEGATRON_H

#include "tools/convert/megatron_dist/mdist.h"

/* A pickle that is made; tensors in it are the source's. */
struct cairn_mdist_made {
    char name[CAIRN_NAME_BYTES_MAX];
    uint8_t *bytes; /* owned */
    size_t bytes_len;
};

/* All zero is the empty value. */
struct cairn_mdist_megatron {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    struct cairn_mdist_made *values;  /* of common.pt, by key */
    struct cairn_mdist_made *objects; /* by the key of .metadata */
    uint32_t value_count, object_count;
    bool *dissolved; /* [tensors of the source]: opaque state that is wholly in these */
};

/* If the source has no such object, or has values of a common.pt already, only remakes the
 * optimizer's settings for another expert parallelism. The source outlives *out, which the caller
 * ends in any case. CAIRN_CORRUPT if the object is damaged, CAIRN_NOMEM, errors of reading;
 * complained about. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_megatron_take(const struct cairn_checkpoint *source,
                                                     const struct cairn_output_options *options,
                                                     struct cairn_mdist_megatron *out);
void cairn_mdist_megatron_fini(struct cairn_mdist_megatron *made);

#endif
