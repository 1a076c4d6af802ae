/*
 * tools/convert/megatron/settings.h - the settings of an optimizer (parameter groups, loss scale)
 * as Megatron-LM's own files have them, and as common.pt of a distributed checkpoint has them whose
 * optimizer is fully reshardable:
 *
 *     {"optimizer": {"param_groups": […]}, "grad_scaler": …}                a list of those where
 *                                                                           there are several
 *     the same with "param_state_sharding_type": "fully_reshardable"        a dict by number
 *
 * An optimizer that is not distributed has no such type, and its groups lie there as they are.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_SETTINGS_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_SETTINGS_H

#include "tools/convert/pickle/pickle.h"

#define CAIRN_MEGATRON_CONTENT "content_metadata"
#define CAIRN_MEGATRON_CONTENT_TYPE "distrib_optim_sharding_type"
#define CAIRN_MEGATRON_SETTINGS_TYPE "param_state_sharding_type"
#define CAIRN_MEGATRON_RESHARDABLE "fully_reshardable"

/* New nodes of `tree`, whose failures are the arena's; anything else stays as it is. */
struct cairn_pickle_node *cairn_megatron_settings_reshardable(struct cairn_pickle *tree,
                                                              struct cairn_pickle_node *settings);
struct cairn_pickle_node *cairn_megatron_settings_plain(struct cairn_pickle *tree,
                                                        struct cairn_pickle_node *settings);

/* Settings for a job whose experts have their own optimizer (expert parallelism): a list of two; or
 * for one without: those of the first. */
struct cairn_pickle_node *cairn_megatron_settings_for(struct cairn_pickle *tree,
                                                      struct cairn_pickle_node *settings, bool two);

/* A copy of a dict with another value under a text key that it has: nodes may be shared, so none is
 * changed. */
struct cairn_pickle_node *cairn_megatron_settings_with(struct cairn_pickle *tree,
                                                       const struct cairn_pickle_node *dict,
                                                       const char *key,
                                                       struct cairn_pickle_node *value);

/* What such a checkpoint says of its content, for Megatron-LM to find the optimizer's state. */
struct cairn_pickle_node *cairn_megatron_settings_content(struct cairn_pickle *tree);

#endif
