/*
 * tools/convert/megatron_dist/order.h - the parameters of a rank of Megatron-Core in the order of
 * its module, which is that of the model's arrays in .metadata, layer by layer; for
 * megatron_dist/buckets.c.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_ORDER_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_ORDER_H

#include "tools/convert/megatron_dist/mdist.h"

struct cairn_mdist_parameter {
    uint32_t entry;                          /* of the model's array */
    uint64_t numbers[CAIRN_MDIST_STARS_MAX]; /* which of the tensors in it */
    bool tied; /* the output layer of a last stage that shares the embedding */
};

/* Where numbers stand in an array's name: as one of its dimensions, or as themselves. */
struct cairn_mdist_place {
    uint32_t dimension[2]; /* of layer and expert; UINT32_MAX: none */
    uint64_t number[2];    /* where there is no dimension; UINT64_MAX: it has none at all */
};

/* All zero is the empty value; who uses it allocates and frees the arrays. */
struct cairn_mdist_order {
    struct cairn_mdist_reading *reading;
    struct cairn_mdist_place *places; /* [entry_count] */
    uint32_t *model;                  /* entries of parameters, in order */
    uint32_t model_count;
    uint64_t layers, experts;
    struct cairn_mdist_parameter *parameters;
    size_t parameter_count;
};

/* Where a rank stands, by its numbers in the groups. */
struct cairn_mdist_rank {
    uint64_t tensor_rank, tensor_ranks;
    uint64_t stage, stages;
    uint64_t expert_begin, expert_end; /* which experts it has */
    bool dense, expert;                /* which kinds of parameters its buffers hold */
};

/* Complains that the order cannot be told; CAIRN_INVAL. */
cairn_err cairn_mdist_order_refuse(const struct cairn_mdist_order *order, const char *why);

/* Lists the model's arrays; `places` and `model` have room for all entries. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_order_model(struct cairn_mdist_order *order);

/* Lists the parameters of a rank again. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_order_rank(struct cairn_mdist_order *order,
                                                  const struct cairn_mdist_rank *rank);

#endif
