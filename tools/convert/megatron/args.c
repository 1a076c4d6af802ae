/* tools/convert/megatron/args.c - Megatron-LM's args. */
#include "tools/convert/megatron/args.h"

#include <string.h>

#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/carry.h"

enum { VOCABULARY_MULTIPLE = 128 }; /* Megatron-LM's default */

static uint64_t
number_of(const struct cairn_pickle_node *args, const char *name)
{
    uint64_t number = 0;

    return cairn_pickle_u64(cairn_pickle_attribute(args, name), &number) ? number : 0;
}

static uint32_t
size_of(const struct cairn_pickle_node *args, const char *name)
{
    uint64_t number = number_of(args, name);

    return number <= UINT32_MAX ? (uint32_t)number : 0;
}

static bool
truth_of(const struct cairn_pickle_node *args, const char *name, bool otherwise)
{
    const struct cairn_pickle_node *node = cairn_pickle_attribute(args, name);

    return node && node->kind == CAIRN_PICKLE_BOOL ? node->truth : otherwise;
}

/*
 * The true rows of the vocabulary, 0 where they are not known. Only some tokenizers go by
 * --vocab-size; with others the rows after it may be real. The tokenizer without a vocabulary once
 * had the end of document after it.
 */
static uint64_t
vocabulary_of(const struct cairn_pickle_node *args)
{
    const struct cairn_pickle_node *tokenizer = cairn_pickle_attribute(args, "tokenizer_type");
    uint64_t rows = number_of(args, "vocab_size");

    if (rows > 0 && cairn_pickle_is_text(tokenizer, "NullTokenizer"))
        return rows + 1;
    if (tokenizer && tokenizer->kind != CAIRN_PICKLE_NONE &&
        !cairn_pickle_is_text(tokenizer, "TikTokenizer"))
        return 0;
    return rows;
}

void
cairn_megatron_args_read(const struct cairn_pickle_node *args, struct cairn_megatron_args *out)
{
    memset(out, 0, sizeof(*out));
    out->known = args && args->kind == CAIRN_PICKLE_OBJECT;
    out->sizes.tp = size_of(args, "tensor_model_parallel_size");
    out->sizes.pp = size_of(args, "pipeline_model_parallel_size");
    out->sizes.ep = size_of(args, "expert_model_parallel_size");
    out->sizes.etp = size_of(args, "expert_tensor_parallel_size");
    out->sizes.dp = size_of(args, "data_parallel_size");
    out->sizes.vpp = size_of(args, "virtual_pipeline_model_parallel_size");
    out->vocabulary = vocabulary_of(args);
    out->padded_vocabulary = number_of(args, "padded_vocab_size");
    out->vocabulary_multiple = number_of(args, "make_vocab_size_divisible_by");
    if (out->vocabulary_multiple == 0)
        out->vocabulary_multiple = VOCABULARY_MULTIPLE;
    out->tied = !truth_of(args, "untie_embeddings_and_output_weights", true);
    out->buckets = truth_of(args, "overlap_grad_reduce", false);
    out->bucket_elements = number_of(args, "ddp_bucket_size");
    out->bucket_count_set = number_of(args, "ddp_num_buckets") > 0;
    out->fp32_gradients = truth_of(args, "accumulate_allreduce_grads_in_fp32", true);
    out->embedding_counts = truth_of(args, "account_for_embedding_in_pipeline_split", false);
    out->loss_counts = truth_of(args, "account_for_loss_in_pipeline_split", false);
    out->grouped_experts = truth_of(args, "moe_grouped_gemm", false);
}

cairn_err
cairn_megatron_args_spec(const struct cairn_checkpoint *checkpoint, bool *local)
{
    struct cairn_opaque_tree args;
    cairn_err err = cairn_opaque_tree_open(checkpoint, "args.pickle", &args);

    *local = !err &&
             cairn_pickle_is_text(cairn_pickle_attribute(args.root, "transformer_impl"), "local");
    cairn_pickle_fini(&args.tree);
    /* what is not a pickle says nothing; what cannot be loaded is not known to be none */
    return err == CAIRN_NOT_FOUND || (args.loaded && (err == CAIRN_CORRUPT || err == CAIRN_VERSION))
               ? CAIRN_OK
               : err;
}

uint64_t
cairn_megatron_args_bucket(const struct cairn_megatron_args *args, uint32_t dp)
{
    uint64_t least = 40000000, by_ranks = 1000000 * (uint64_t)dp;

    if (!args->buckets)
        return 0;
    if (args->bucket_elements > 0)
        return args->bucket_elements;
    return by_ranks > least ? by_ranks : least;
}

void
cairn_megatron_args_set(struct cairn_pickle_node *args, const char *name,
                        struct cairn_pickle_node *value)
{
    if (args && args->kind == CAIRN_PICKLE_OBJECT && args->object->state)
        cairn_torch_carry_replace(args->object->state, name, value);
}
