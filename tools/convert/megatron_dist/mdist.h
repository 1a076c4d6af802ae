/*
 * tools/convert/megatron_dist/mdist.h - Megatron-Core's distributed checkpoints (torch_dist), for
 * megatron_dist/format.c and the files that it calls. They are:
 *
 *   a distributed checkpoint of PyTorch with keys of its own (megatron/dist_names.h)
 *   common.pt, what is not an array
 *   metadata.json, the commit marker
 *
 * Canonical is what all forms have in common: one tensor per layer and expert, GLU's linear_fc1 as
 * [gates; ups], the vocabulary without padding if the arguments give its size, the optimizer's
 * state by parameter. Opaque state:
 *
 *   <key>.pickle                a value of common.pt: args, iteration, optimizer, …
 *   <key>/shard_<i>_<n>.pickle  a ShardedObject: a list of one object, unchanged
 *   megatron-dist/keys.pickle   what the names do not tell, a list of tuples:
 *                               (default key, key)
 *                               ("apart", what stands before a number that is not a dimension)
 *                               ("halves", "") if gates and ups are arrays of their own
 *                               ("norms", "") if norms before layers are
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_DIST_MDIST_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_DIST_MDIST_H

#include "tools/convert/dcp/dcp.h"
#include "tools/convert/megatron/args.h"
#include "tools/convert/megatron/dist_names.h"
#include "tools/convert/torch/source.h"

#define CAIRN_MDIST_COMMON "common.pt"
#define CAIRN_MDIST_COMMON_KEY                                                                     \
    "common_state/shard_0_1" /* of Megatron-Core 0.19: common.pt's dict */
#define CAIRN_MDIST_MARKER "metadata.json"
#define CAIRN_MDIST_KEYS "megatron-dist/keys.pickle"
/* Opaque state that Megatron-Core has no place for lies in byte arrays of this prefix. */
#define CAIRN_MDIST_CARRIED "cairn/"

enum { CAIRN_MDIST_OBJECT_BYTES_MAX = 1 << 28 };

/* ---- reading ---- */

enum cairn_mdist_half { CAIRN_MDIST_WHOLE, CAIRN_MDIST_GATE, CAIRN_MDIST_UP };

/* An array of .metadata and the logical tensors that it holds. */
struct cairn_mdist_array {
    bool known;   /* false: an object, or a bucket */
    bool flat;    /* chunks are flat ranges of its boxes (fully_sharded_model_space) */
    bool carried; /* opaque state */
    enum cairn_mdist_half half;
    struct cairn_mdist_name name;
    uint32_t dims; /* of the array, and its shape */
    uint64_t shape[CAIRN_DIMS_MAX];
    uint64_t box[CAIRN_DIMS_MAX]; /* where it is flat: the extents of a box */
    uint32_t first; /* its logical tensors are consecutive from here, row-major by the stars */
    uint64_t rows;  /* of the logical tensors' first dimension, without padding */
};

/* An object of the optimizer that is saved once per group of data-parallel ranks. */
struct cairn_mdist_object {
    uint32_t chained; /* which optimizer; UINT32_MAX: there is one */
    uint32_t group;
    uint32_t entry;
    char key[64]; /* "optimizer", "grad_scaler", "per_bucket_numel", … */
    uint8_t *bytes;
    size_t bytes_len;
};

/* A chunk of a bucket of the distributed optimizer: elements [begin, end) of its array. */
struct cairn_mdist_bucket_chunk {
    uint32_t entry;
    uint32_t container;
    uint64_t begin, end;
    uint64_t at;
};

struct cairn_mdist_reading {
    struct cairn_checkpoint *checkpoint;
    struct cairn_dcp_metadata metadata;
    struct cairn_dcp_wants wants;
    struct cairn_mdist_array *arrays; /* [entry_count] */
    struct cairn_megatron_args args;
    struct cairn_mdist_object *objects;
    uint32_t object_count;
    struct cairn_mdist_bucket_chunk *bucket_chunks;
    size_t bucket_chunk_count;
    struct cairn_torch_source common; /* common.pt; the tree alone if that is an object */
    struct cairn_pickle_node *optimizer, *content; /* in it; NULL: it has none */
};

/* Reads common.pt: what the rest of the checkpoint needs from it, and all of it as opaque state
 * but for what megatron_dist/optimizer.c has to put together. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_read_common(struct cairn_mdist_reading *reading);

/* Takes "[chained_<chained>.]optimizer.distributed.dp_group_idx_<group>", with UINT32_MAX for a
 * *chained that is not there; false for other keys. */
bool cairn_mdist_take_group(const char **key, uint32_t *chained, uint32_t *group);

/* Whether an entry is an object of the optimizer as above; fills in *out but for its bytes. */
bool cairn_mdist_is_object(const char *key, struct cairn_mdist_object *out);

/* Adds the optimizer's settings and the checkpoint's description of itself as they are in a
 * checkpoint whose optimizer is fully reshardable: the state is the same for every kind. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_add_optimizer(struct cairn_mdist_reading *reading);

/* ---- writing ---- */

cairn_err cairn_mdist_plan(const struct cairn_checkpoint *checkpoint,
                           const struct cairn_output_options *options, struct cairn_output *output);
cairn_err cairn_mdist_finish(const struct cairn_checkpoint *checkpoint,
                             struct cairn_output *output);
void cairn_mdist_release(void *state);

/* Remembers where a chunk of a bucket lies. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_buckets_note(struct cairn_mdist_reading *reading,
                                                    uint32_t entry, uint32_t container,
                                                    const struct cairn_dcp_chunk *chunk);

/* Finds the parameters in the buckets and adds their state, after all parameters are known.
 * Complained about: CAIRN_CORRUPT, CAIRN_INVAL where the order of parameters cannot be known. */
CAIRN_MUST_CHECK cairn_err cairn_mdist_buckets_add(struct cairn_mdist_reading *reading);

#endif
