/*
 * tools/convert/megatron/dist_names.h - what the keys of Megatron-Core's distributed checkpoints
 * stand for.
 *
 * A key names an array; logical tensors are its parts. Layers that are all alike share a key
 * without a number, and their number is the first dimension of the array. Experts do the same, one
 * dimension further:
 *
 *   key and shape of the array                        name of a logical tensor
 *   decoder.layers.mlp.linear_fc2.weight [L, …]       decoder.layers.<n>.mlp.linear_fc2.weight
 *   decoder.layers.3.mlp.linear_fc2.weight            the same name
 *   …experts.experts.linear_fc1.weight [(L,) E, …]    …experts.local_experts.<e>.linear_fc1.weight
 *   …experts.experts.5.linear_fc1.weight              …experts.local_experts.5.linear_fc1.weight
 *   optimizer.state.exp_avg.<key>                     exp_avg.<name>
 *   optimizer.state.param.<key>, …fp32_param.<key>    fp32.<name>
 *
 * "chained_<i>." (one of several optimizers) and "module." in front have no meaning. A pattern is a
 * name with a '*' for each number that is a dimension.
 *
 * What a module keeps beside its parameters ("_extra_state") is a sharded object. Megatron-Core's
 * loader looks for one of each linear layer, even if it holds only None:
 *
 *   decoder.layers.self_attention.linear_qkv._extra_state/shard_<layer>_<layers>
 *   decoder.layers.mlp.experts.experts.linear_fc1._extra_state/shard_<layer>.<expert>_<both counts>
 *   decoder.layers.3.self_attention.linear_qkv._extra_state/shard_0_1      if it is not stacked
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_NAMES_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_NAMES_H

#include "cairn/types.h"

#include <stdbool.h>

#define CAIRN_MDIST_EXTRA_ENDING "._extra_state"

enum { CAIRN_MDIST_NAME_BYTES_MAX = 512, CAIRN_MDIST_STARS_MAX = 4 };

#define CAIRN_MDIST_DIMENSION UINT64_MAX

struct cairn_mdist_name {
    char state[64]; /* "exp_avg", "fp32", …; "": a parameter or buffer */
    char pattern[CAIRN_MDIST_NAME_BYTES_MAX]; /* without the state */
    uint32_t stars;
};

/* What a key stands for; false where it is too long, or has a '*'. */
bool cairn_mdist_name_of_key(const char *key, struct cairn_mdist_name *out);

/* The key that Megatron-Core gives a pattern; false where it is too long. */
bool cairn_mdist_key_of(const struct cairn_mdist_name *name, char key[CAIRN_MDIST_NAME_BYTES_MAX]);

/* The logical tensor's name, with its state in front and a number for each star; false where it has
 * CAIRN_NAME_BYTES_MAX bytes or more. */
bool cairn_mdist_expand(const struct cairn_mdist_name *name, const uint64_t *numbers,
                        char out[CAIRN_NAME_BYTES_MAX]);

/* The pattern of a name whose first state_bytes belong to the state ("exp_avg", 7; 0: none), with
 * every number that may be a dimension as a star. numbers get their values, CAIRN_MDIST_DIMENSION
 * where there was a star already. False where it is too long, has more than CAIRN_MDIST_STARS_MAX
 * of them, or a star elsewhere. */
bool cairn_mdist_pattern_of(const char *logical, uint32_t state_bytes, struct cairn_mdist_name *out,
                            uint64_t numbers[CAIRN_MDIST_STARS_MAX]);

/* Puts numbers back in the place of the stars that `keep` does not have a bit for. */
bool cairn_mdist_fix(const struct cairn_mdist_name *name, const uint64_t *numbers, uint32_t keep,
                     struct cairn_mdist_name *out);

/* The name of a module's extra state, from one of its parameters or from the state itself:
 * "a.b.weight" and "a.b._extra_state" become the latter. False if it is too long. */
bool cairn_mdist_extra_state(const char *logical, char out[CAIRN_NAME_BYTES_MAX]);

/* The name of the object with that state, without an ending. The numbers whose bits are set in
 * `stacked` become dimensions; extents[] are the extents of all numbers. False if it is too long.
 */
bool cairn_mdist_extra_key(const char *logical, uint32_t stacked, const uint64_t *extents,
                           char out[CAIRN_NAME_BYTES_MAX]);

#endif
