/*
 * tools/convert/megatron/plain.h - the state of Megatron-LM's optimizers that are not distributed.
 * It lies in model_optim_rng.pt under "optimizer":
 *
 *   {"optimizer": {"state": {<number>: {"step", "exp_avg", "exp_avg_sq"}},
 *                  "param_groups": [{…, "params": [<number>…]}…]},
 *    "fp32_from_fp16_params": [[<tensor>…]…]}
 *
 * A job in float32 has only the inner "optimizer". Nothing in it has a name. A group with wd_mult 0
 * has the parameters of one dimension, a group with another wd_mult the others, both in the order
 * of their registration.
 *
 * What is carried is the dict with an empty "state", without "params" in the groups, and with an
 * empty "fp32_from_fp16_params".
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_PLAIN_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_PLAIN_H

#include "tools/convert/megatron/target.h"

/* Whether this is such an optimizer's dict, with or without its state. */
bool cairn_megatron_plain(const struct cairn_pickle_node *optimizer);

/* Reads the state of the parts of state->parts, and empties the dict. Does nothing where there is
 * none, or groups are not told by wd_mult: then all is carried as it is. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_plain_read(struct cairn_checkpoint *checkpoint,
                                                     struct cairn_megatron_state *state,
                                                     struct cairn_torch_source *source,
                                                     struct cairn_pickle_node *optimizer);

/* Fills the dict again for the parts of target->parts, to which the state's own parts are added. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_plain_make(struct cairn_megatron_target *target,
                                                     struct cairn_pickle *tree,
                                                     struct cairn_pickle_node *optimizer);

#endif
