/*
 * tools/convert/megatron/join.h - the object of Megatron-LM's ranks (megatron/state.h) put together
 * of what a distributed checkpoint of Megatron-Core has: the values of its common.pt, and RNG
 * states of "rng_state/shard_<pp>.<tp>_<all pp>.<all tp>.pickle".
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_JOIN_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_JOIN_H

#include "tools/convert/megatron/target.h"

/* Gives the pickle of the object, without models, as target->common, and notes that what it is made
 * of has its place. Leaves it NULL where the checkpoint is of another kind. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_join(struct cairn_megatron_target *target);

/* Puts the RNG states of a rank into its object, where the checkpoint has them; those of the first
 * rank where it has none of this one. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_join_states(struct cairn_megatron_target *target,
                                                      const struct cairn_megatron_rank *rank,
                                                      struct cairn_pickle *tree,
                                                      struct cairn_pickle_node *root);

/* What a distributed checkpoint has as the extra state of a module, by its name in the layout;
 * *value stays NULL where it has nothing. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_join_extra(struct cairn_megatron_target *target,
                                                     const char *canonical,
                                                     struct cairn_pickle *tree,
                                                     struct cairn_pickle_node **value);

#endif
