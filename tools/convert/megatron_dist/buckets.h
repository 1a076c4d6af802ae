/*
 * tools/convert/megatron_dist/buckets.h - the optimizer's state as Megatron-Core's distributed
 * optimizer holds it (dp_reshardable): flat buckets of parameters that no key names.
 *
 * A bucket is an array of one dimension with the key (here in two lines)
 *
 *   optimizer.distributed.dp_group_idx_<group>.gbuf_idx_<buffer>.dtype_<dtypes>.
 *   bucket_idx_<bucket>.<state>
 *
 * A group is a pair of tensor and pipeline rank.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_BUCKETS_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_BUCKETS_H

#include "tools/convert/megatron_dist/mdist.h"

bool cairn_mdist_is_bucket(const char *key);

/* Remembers where a chunk of a bucket lies. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_buckets_note(struct cairn_mdist_reading *reading,
                                                    uint32_t entry, uint32_t container,
                                                    const struct cairn_dcp_chunk *chunk);

/* Finds the parameters in the buckets and adds their state, after all parameters are known.
 * Complained about: CAIRN_CORRUPT, CAIRN_INVAL where the order of parameters cannot be known. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_buckets_add(struct cairn_mdist_reading *reading);

#endif
