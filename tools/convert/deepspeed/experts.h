/*
 * tools/convert/deepspeed/experts.h - the experts of DeepSpeed's MoE layers, which are spread over
 * ranks.
 *
 * A parameter of one is called <layer>.deepspeed_moe.experts.deepspeed_experts.<number>.<rest>. A
 * rank counts its own experts from 0, in param_shapes as in buffer_names; here, and in the files of
 * the module, the number is that of all ranks. Experts lie in groups of the optimizer that hold
 * nothing else. Where they are spread over `spread` of the data-parallel ranks, ranks / spread have
 * the same experts, and cut the buffers of these groups into as many parts.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_EXPERTS_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_EXPERTS_H

#include "tools/convert/deepspeed/groups.h"

/* Groups of experts of more elements than this on a rank are several:
 * split_params_into_different_moe_groups_for_optimizer. */
#define CAIRN_DEEPSPEED_EXPERT_GROUP_ELEMENTS_MAX UINT64_C(178956971)

/* One layer: what stands before the number, and how many experts all ranks have. */
struct cairn_deepspeed_layer {
    char *prefix; /* owned */
    uint32_t experts;
};

/* All zero is the empty value. */
struct cairn_deepspeed_layers {
    struct cairn_deepspeed_layer *layers;
    uint32_t count;
};

/* A rank's part in the buffers of a group. */
struct cairn_deepspeed_share {
    uint32_t ranks, rank; /* of those that cut the buffer */
    uint32_t expert_rank; /* whose experts they are; 0 for a group without */
};

/* Where the number in a name begins and ends. */
struct cairn_deepspeed_expert {
    size_t begin, end;
    uint32_t number;
};

/* False where the name is of no expert. */
bool cairn_deepspeed_expert_in(const char *name, struct cairn_deepspeed_expert *expert);

const struct cairn_deepspeed_layer *
cairn_deepspeed_layer_find(const struct cairn_deepspeed_layers *layers, const char *prefix,
                           size_t bytes);
/* CAIRN_VERSION for more layers than any model has. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_layer_add(struct cairn_deepspeed_layers *layers,
                                                     const char *prefix, size_t bytes,
                                                     uint32_t experts);
/* The layers of groups that count experts over all ranks. Errors of cairn_deepspeed_layer_add. The
 * caller ends *out with cairn_deepspeed_layers_fini in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_layers_of(const struct cairn_deepspeed_groups *groups,
                                                     struct cairn_deepspeed_layers *out);
void cairn_deepspeed_layers_fini(struct cairn_deepspeed_layers *layers); /* zeroes are allowed */

/* Finds which of a rank's groups are of experts, and how many ranks they are spread over.
 * CAIRN_CORRUPT with *why (static): a layer that is not in `layers`, groups that hold other
 * parameters too, or ranks that the experts do not divide. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_experts_place(
    struct cairn_deepspeed_groups *groups, const struct cairn_deepspeed_layers *layers,
    uint32_t ranks, const char **why);

/* The same groups as a rank has them if experts are spread over `spread` ranks, 1 for all experts;
 * other groups are copied. CAIRN_VERSION with *why (static) if experts do not follow one another by
 * number, or do not divide; CAIRN_NOMEM. The caller ends *out in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_experts_spread(
    const struct cairn_deepspeed_groups *from, const struct cairn_deepspeed_layers *layers,
    uint32_t spread, struct cairn_deepspeed_groups *out, const char **why);

struct cairn_deepspeed_share cairn_deepspeed_share(const struct cairn_deepspeed_groups *groups,
                                                   uint32_t group, uint32_t ranks, uint32_t rank);

/* Elements of a rank's part of a group's buffer that are not padding at the end (ZeRO 1 and 2). */
uint64_t cairn_deepspeed_unpadded(const struct cairn_deepspeed_groups *groups, uint32_t group,
                                  uint32_t ranks, uint32_t rank);

/* "<key>.<name>", with the number that an expert has over all ranks. CAIRN_VERSION where it does
 * not fit. */
CAIRN_MUST_CHECK cairn_err
cairn_deepspeed_state_name(const char *key, const struct cairn_deepspeed_parameter *parameter,
                           uint32_t expert_rank, char name[CAIRN_NAME_BYTES_MAX]);

/* The largest spread of any group, and whether groups differ in it. */
uint32_t cairn_deepspeed_spread(const struct cairn_deepspeed_groups *groups, bool *mixed);

/* `param_shapes` of these groups. Failures are the tree's. */
struct cairn_pickle_node *cairn_deepspeed_shapes_node(const struct cairn_deepspeed_groups *groups,
                                                      struct cairn_pickle *tree);

/* A list of names (buffer_names) for another spread. Errors of cairn_deepspeed_experts_spread. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_names_spread(struct cairn_pickle *tree,
                                                        struct cairn_pickle_node *dict,
                                                        const char *key,
                                                        const struct cairn_deepspeed_layers *layers,
                                                        uint32_t spread, const char **why);

/* Groups of experts have no gaps, and names that say how they are spread. Failures are the tree's.
 */
void cairn_deepspeed_optim_spread(struct cairn_pickle *tree, struct cairn_pickle_node *optimizer,
                                  const struct cairn_deepspeed_groups *groups);

#endif
