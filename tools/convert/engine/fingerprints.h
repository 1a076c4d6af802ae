/*
 * tools/convert/engine/fingerprints.h - the fingerprints of a checkpoint's tensors, found by
 * reading them in the order of their elements.
 *
 * The fingerprint of a checkpoint is the SHA-256 of its tensors' names, dtypes, shapes and
 * fingerprints, in the order of names; so it says which of two states a checkpoint holds, and
 * nothing of how it is stored. Opaque state has one of its own, since formats encode it
 * differently.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_FINGERPRINTS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_FINGERPRINTS_H

#include "tools/convert/engine/execute.h"
#include "tools/convert/engine/fingerprint.h"

struct cairn_fingerprints_options {
    uint32_t thread_count;
    uint64_t memory_limit_bytes;
    const bool *wanted;    /* [tensors of the layout]; NULL: all */
    enum cairn_dtype cast; /* 0, or: of the elements cast to this type; then those wanted are of one
                            * type */
    struct cairn_source_sums *sums; /* gets what is read; may be NULL */
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *context;
};

/* Fills out[tensor] for every wanted tensor of `layout`, whose containers are the checkpoint's and
 * whose pieces hold every element. Complained about: CAIRN_NOMEM, CAIRN_CORRUPT, the errors of
 * cairn_execute. */
CAIRN_MUST_CHECK cairn_err cairn_fingerprints_read(const struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_layout *layout,
                                                   struct cairn_handles *handles,
                                                   const struct cairn_fingerprints_options *options,
                                                   struct cairn_fingerprint *out);

/* The digests of all but opaque state, and of opaque state, from the fingerprints. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_fingerprints_digest(const struct cairn_layout *layout,
                                                     const struct cairn_fingerprint *fingerprints,
                                                     char state[65], char opaque[65]);

#endif
