/*
 * tools/convert/megatron/state.h - what Megatron-LM's files hold, while they are read.
 *
 * Canonical tensors: each parameter and buffer under its global name (megatron/names.h), without
 * the padding of the vocabulary; fp32.<parameter>, exp_avg.<parameter> and so on for what
 * distrib_optim.pt has. If embeddings are tied, the last stage's copy is a replica.
 *
 * Carried:
 *
 *   megatron/common.pickle   the object of rank (0, 0, 0) without its model: args, iteration,
 *                            optimizer groups, scheduler, RNG states
 *   rank<tp>_<pp>_<ep>/megatron/common.pickle
 *                            the same of each other file
 *   megatron/keys            the order in which modules register: lines of a class, a space and a
 *                            key. Class 'B' is before the layers, 'L' of a layer, 'A' after them.
 *                            Only the first expert is listed. If layers are split unevenly there is
 *                            a line "S <pp> <vpp> <layers of each chunk>…"
 *   megatron/extra/<key>     what a module has as _extra_state, unless it is None
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_STATE_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_STATE_H

#include <stdio.h>

#include "tools/convert/megatron/args.h"
#include "tools/convert/megatron/files.h"
#include "tools/convert/megatron/parts.h"
#include "tools/convert/state/reserved.h"
#include "tools/convert/torch/source.h"

#define CAIRN_MEGATRON_KEYS "megatron/keys"
#define CAIRN_MEGATRON_EXTRA "megatron/extra/"
/* In the object of rank (0, 0, 0): what this format has no place for, by kind and name. */
#define CAIRN_MEGATRON_CARRIED "cairn_carried"
/* In each object of a checkpoint without args: a dict of the parallelism, which folders alone do
 * not tell: {"tp", "pp", "ep", "etp"}. */
#define CAIRN_MEGATRON_SIZES "cairn_sizes"

enum { CAIRN_MEGATRON_CHUNKS_MAX = 4096, CAIRN_MEGATRON_KEY_BYTES_MAX = 64 };

/* All zero is the empty value. */
struct cairn_megatron_state {
    struct cairn_megatron_args args;
    struct cairn_parallelism sizes; /* all of them known */
    uint32_t vpp;
    bool glu_known, glu;
    uint64_t vocabulary; /* true rows; 0: not known */
    bool vocabulary_said;
    uint32_t *first_layer; /* [vpp * pp + 1], by chunk * pp + stage */
    FILE *keys;            /* into the next: text, as it is carried */
    char *key_text;
    size_t key_bytes;
    /* of the file that is being read */
    struct cairn_megatron_part *parts;
    uint32_t part_count;
};

void cairn_megatron_state_fini(struct cairn_megatron_state *state);

void cairn_megatron_chunk_key(uint32_t vpp, uint32_t chunk, char key[16]);
struct cairn_pickle_node *cairn_megatron_chunk(const struct cairn_megatron_state *state,
                                               const struct cairn_pickle_node *root,
                                               uint32_t chunk);

/* Reads a rank's open model_optim_rng.pt, and notes its parts. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_model_read(struct cairn_checkpoint *checkpoint,
                                                     struct cairn_megatron_state *state,
                                                     struct cairn_torch_source *source,
                                                     const struct cairn_megatron_rank *rank);

/* Reads the distrib_optim.pt of the same rank, after its model; `stage`: its pipeline rank. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_optim_read(struct cairn_checkpoint *checkpoint,
                                                     struct cairn_megatron_state *state,
                                                     const char *path, uint32_t stage);

/* A part's boxes as pieces of `tensor`: at offset_bytes of the container, row-major unless strides
 * are given. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_add_part(struct cairn_checkpoint *checkpoint,
                                                   const struct cairn_megatron_part *part,
                                                   const char *name, enum cairn_kind kind,
                                                   enum cairn_dtype dtype, uint32_t container,
                                                   uint64_t offset_bytes,
                                                   const uint64_t *stride_bytes);

#endif
