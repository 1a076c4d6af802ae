/*
 * tools/convert/megatron/names.h - names of tensors in Megatron-LM's state dicts, and how each is
 * split.
 *
 * A chunk of the pipeline numbers its layers from 0, and an expert-parallel rank its experts.
 * Canonical names number both over the whole model:
 *
 *   decoder.layers.<layer>.mlp.experts.local_experts.<expert>.linear_fc1.weight
 *   decoder.layers.<layer>.mlp.experts.linear_fc1.weight<expert>
 *       the same tensor, in the spelling of grouped GEMMs
 *
 * The table in megatron/names.c says by the last two words of a name whether a parameter is split
 * over tensor-parallel ranks, and along which dimension. A name that is not in it counts as
 * replicated.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_NAMES_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_NAMES_H

#include "cairn/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CAIRN_MEGATRON_EMBEDDING "embedding.word_embeddings.weight"
#define CAIRN_MEGATRON_OUTPUT "output_layer.weight"

enum cairn_megatron_split {
    CAIRN_MEGATRON_REPLICATED = 1,
    CAIRN_MEGATRON_ROWS,       /* equal parts of dimension 0: column-parallel weights and biases */
    CAIRN_MEGATRON_COLUMNS,    /* equal parts of dimension 1: row-parallel weights */
    CAIRN_MEGATRON_HALVES,     /* as ROWS, of each half of a gated linear unit: [gates; ups] */
    CAIRN_MEGATRON_VOCABULARY, /* as ROWS, after padding */
    CAIRN_MEGATRON_UNREADABLE  /* of a layout that is refused */
};

struct cairn_megatron_rule {
    const char *name; /* the last two words */
    enum cairn_megatron_split split;
    bool buffer;      /* no parameter: it is in no optimizer */
    bool extra_state; /* its module has an entry "_extra_state" too */
};

/* A name in parts. */
struct cairn_megatron_name {
    bool has_layer;
    uint32_t layer; /* in the chunk, or of the whole model */
    bool has_expert;
    uint32_t expert;                 /* on the rank, or of the whole model */
    bool grouped;                    /* an expert's number stands behind "weight" or "bias" */
    char rest[CAIRN_NAME_BYTES_MAX]; /* the canonical name with '*' for both numbers */
};

/* False where the name does not fit, has a '*', or a number in it is none. */
bool cairn_megatron_name_parse(const char *text, struct cairn_megatron_name *name);

/* The canonical name, or how a state dict spells it (as_stored); false if it is too long. */
bool cairn_megatron_name_print(const struct cairn_megatron_name *name, bool as_stored,
                               char text[CAIRN_NAME_BYTES_MAX]);

/* The spelling of an expert's parameter in a grouped module for the one with
 * "local_experts.<expert>.", with any prefix; false where the name is not such a parameter's, or
 * does not fit. */
bool cairn_megatron_name_group(const char *name, char out[CAIRN_NAME_BYTES_MAX]);

/* The rule of a name in either spelling; NULL: unknown. The caller makes GLU's ROWS HALVES. */
const struct cairn_megatron_rule *cairn_megatron_rule_of(const char *name);

/* A name's place in its layer, in the order in which modules register; unknown names last. */
uint32_t cairn_megatron_order_of(const char *name);

/*
 * A norm of a layer of Megatron-Core's local spec is a module of its own, and in its distributed
 * checkpoints, as with Transformer Engine, a part of the next layer:
 *
 *     input_layernorm.<weight or bias>      self_attention.linear_qkv.layer_norm_<weight or bias>
 *     pre_mlp_layernorm.<weight or bias>    mlp.linear_fc1.layer_norm_<weight or bias>
 *
 * Gives the name on the right for that on the left (`fused`), or the other way; false where the
 * name is not such a norm's, or does not fit.
 */
bool cairn_megatron_norm_rename(const char *name, bool fused, char *out, size_t out_bytes);

/* "…._extra_state" */
bool cairn_megatron_is_extra(const char *name);

#endif
