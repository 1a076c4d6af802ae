/*
 * tools/convert/megatron_dist/extra.h - what modules keep beside their parameters ("_extra_state"),
 * as sharded objects. Their names: megatron/dist_names.h.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_EXTRA_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_EXTRA_H

#include "tools/convert/dcp/output.h"
#include "tools/convert/megatron/dist_names.h"

/* Whether this parameter is the weight of a module that has such an object. */
bool cairn_mdist_extra_of(const char *parameter);

/* Whether the source was saved by Megatron-Core's dist_checkpointing, and has its objects. */
bool cairn_mdist_extra_there(const struct cairn_checkpoint *source);

/* Notes what Megatron-LM's own files had of modules, as far as it will be in such objects: tensors
 * in dcp->inside, pickles in dissolved[tensors of the source]. */
void cairn_mdist_extra_claim(struct cairn_dcp_output *dcp, bool *dissolved);

/* Adds the object of a parameter's module: what Megatron-LM's own files had, else None. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_extra_add(struct cairn_dcp_output *dcp,
                                                 const char *parameter, uint32_t stacked,
                                                 const uint64_t *extents);

#endif
