/*
 * tools/convert/megatron/args.h - what a job's `args` (an argparse.Namespace) say that matters
 * here.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_ARGS_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_ARGS_H

#include "tools/convert/core/checkpoint.h"
#include "tools/convert/pickle/pickle.h"

/* 0 where it is not said. */
struct cairn_megatron_args {
    bool known;
    struct cairn_parallelism sizes; /* etp 0: as tp */
    uint64_t vocabulary;            /* true rows, without padding */
    uint64_t padded_vocabulary;
    uint64_t vocabulary_multiple; /* 128 where it is not said */
    bool tied;                    /* the output layer's weight is the embedding's */
    bool buckets;                 /* gradients are reduced in buckets while others are computed */
    uint64_t bucket_elements;     /* ddp_bucket_size */
    bool bucket_count_set;        /* ddp_num_buckets, which is not followed here */
    bool fp32_gradients;
    bool embedding_counts, loss_counts;
    bool grouped_experts;
};

void cairn_megatron_args_read(const struct cairn_pickle_node *args,
                              struct cairn_megatron_args *out);

/* Whether the arguments that a distributed checkpoint brought speak of the local layer spec. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_args_spec(const struct cairn_checkpoint *checkpoint,
                                                    bool *local);

/* Elements of a bucket on the first stage's first chunk; 0: one bucket. */
uint64_t cairn_megatron_args_bucket(const struct cairn_megatron_args *args, uint32_t dp);

/* Changes an attribute that is there. */
void cairn_megatron_args_set(struct cairn_pickle_node *args, const char *name,
                             struct cairn_pickle_node *value);

#endif
