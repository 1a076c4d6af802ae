/*
 * tools/convert/megatron_dist/common.h - writes common.pt of a checkpoint of Megatron-Core: a dict
 * of opaque state whose names are "<key>.pickle".
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_COMMON_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_COMMON_H

#include "tools/convert/megatron_dist/megatron.h"
#include "tools/convert/torch/output.h"

/* Whether opaque state is a pickle all of whose tensors are the source's. CAIRN_NOMEM, errors of
 * reading. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_common_fits(const struct cairn_checkpoint *source,
                                                   const struct cairn_output_options *options,
                                                   uint32_t tensor, bool *fits);

/* Adds the file: values[count] fit, and are in the order of the dict, behind them made[made_count].
 * Sets inside[tensor] for tensors that lie in it and nowhere else. *out is for the caller to finish
 * and to end in any case. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_common_add(
    const struct cairn_checkpoint *source, const struct cairn_output_options *options,
    const uint32_t *values, uint32_t count, const struct cairn_mdist_made *made,
    uint32_t made_count, bool *inside, struct cairn_output *output, struct cairn_torch_output *out);

#endif
