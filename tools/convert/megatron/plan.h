/* tools/convert/megatron/plan.h - lays a checkpoint out as Megatron-LM's own files, at any
 * parallelism. */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_PLAN_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_PLAN_H

#include "tools/convert/core/output.h"

/*
 * As `prepare` of struct cairn_format. An optimizer's state that came neither from Megatron-LM nor
 * from Megatron-Core gets the object that such ranks would have carried (CAIRN_MEGATRON_COMMON),
 * with the parameter groups that the source or --job says, as Megatron-LM groups parameters.
 */
CAIRN_MUST_CHECK cairn_err cairn_megatron_prepare(struct cairn_checkpoint *checkpoint,
                                                  const struct cairn_output_options *options);

/* As `plan` of struct cairn_format; the output's state is that of torch/output.h. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_plan(const struct cairn_checkpoint *checkpoint,
                                               const struct cairn_output_options *options,
                                               struct cairn_output *output);

#endif
