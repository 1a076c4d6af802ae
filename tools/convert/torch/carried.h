/*
 * tools/convert/torch/carried.h - what a format has no place for, under a key of its own in an
 * object of torch.save: {"opaque": {name: bytes as a tensor}, "buffer": {name: tensor},
 * "optimizer": …, "param": …}.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_CARRIED_H
#define CAIRN_TOOLS_CONVERT_TORCH_CARRIED_H

#include "tools/convert/torch/source.h"

/* Adds a tensor of the source to *carried, which is NULL at first. Failures are the tree's. */
void cairn_torch_carried_put(struct cairn_pickle *tree, struct cairn_pickle_node **carried,
                             const struct cairn_tensor *tensor);

/* Adds what lies under `key` in a file to the checkpoint. CAIRN_CORRUPT, also for opaque state for
 * which `is_own` (NULL: none) is true; errors of cairn_torch_source_add; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_torch_carried_take(struct cairn_checkpoint *checkpoint,
                                                    struct cairn_torch_source *source,
                                                    const char *key,
                                                    bool (*is_own)(const char *name));

#endif
