/* tools/convert/deepspeed/plan.h - lays a checkpoint out as DeepSpeed's own files, for any number
 * of ranks. */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_PLAN_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_PLAN_H

#include "tools/convert/core/output.h"
#include "tools/convert/deepspeed/target.h"

/* Opaque state: what stands before "zero_pp_rank" in names of optim_states files. */
#define CAIRN_DEEPSPEED_PREFIX "deepspeed/optim_prefix"

/* As `plan` of struct cairn_format; the output's state is that of torch/output.h. CAIRN_INVAL where
 * the checkpoint has neither come from DeepSpeed nor been prepared (deepspeed/make.h). */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan(const struct cairn_checkpoint *checkpoint,
                                                const struct cairn_output_options *options,
                                                struct cairn_output *output);
/* The model_states file of target->rank in a folder. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan_model(struct cairn_deepspeed_target *target,
                                                      const char *folder);
/* After the files of a part: what the source has apart and DeepSpeed keeps once
 * (deepspeed/rest.c). */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan_rest(struct cairn_deepspeed_target *target);

#endif
