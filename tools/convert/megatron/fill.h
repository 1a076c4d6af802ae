/* tools/convert/megatron/fill.h - files of torch.save from trees with ("part", …), ("flat", …) and
 * ("tensor", …) in them. */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_FILL_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_FILL_H

#include "tools/convert/megatron/target.h"

/* One flat tensor of distrib_optim.pt: what `key` is of parts[order[i]], which begin at begins[i].
 */
struct cairn_megatron_flat {
    const char *key; /* "fp32", "exp_avg", "exp_avg_sq" */
    const uint32_t *order;
    const uint64_t *begins;
    uint32_t count;
    uint64_t elements;
    enum cairn_dtype dtype;
};

struct cairn_megatron_fill {
    struct cairn_megatron_target *target;
    const struct cairn_megatron_flat *flats; /* ("flat", index) */
    uint32_t flat_count;
};

/* Adds a file with a tree, and the pieces of the tensors in it. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_fill_add(struct cairn_megatron_fill *fill,
                                                   const char *path, struct cairn_pickle *tree,
                                                   struct cairn_pickle_node *root);

/* The tensor of the source that is a part's `key`; UINT32_MAX, complained about, where there is
 * none. */
uint32_t cairn_megatron_fill_state(const struct cairn_megatron_target *target, const char *key,
                                   uint32_t part);

#endif
