/*
 * tools/convert/megatron/target.h - a Megatron-LM checkpoint to be written: its ranks, which keys
 * each chunk has in which order, and which tensors have found their place.
 *
 * The order of keys is that in which modules register, because it decides the optimizer's buffers.
 * It is carried from a checkpoint that Megatron-LM saved. For others it is the order of the table
 * in megatron/names.c.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_TARGET_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_TARGET_H

#include "tools/convert/core/output.h"
#include "tools/convert/megatron/state.h"
#include "tools/convert/torch/output.h"

struct cairn_megatron_key {
    char class; /* 'B', 'L', 'A', as megatron/state.h has it */
    struct cairn_megatron_name name;
};

/* All zero is the empty value. */
struct cairn_megatron_target {
    const struct cairn_checkpoint *checkpoint;
    const struct cairn_output_options *options;
    struct cairn_output *output;
    struct cairn_parallelism sizes; /* all known, with vpp */
    struct cairn_megatron_args args;
    uint8_t
        *common; /* megatron/common.pickle; NULL: the checkpoint did not come from Megatron-LM */
    size_t common_bytes;
    bool joined; /* it is made of the values of a distributed checkpoint */
    struct cairn_megatron_key *keys;
    uint32_t key_count;
    uint32_t layer_count, expert_count;
    uint32_t *first_layer; /* [pp * vpp + 1], by chunk * pp + stage */
    bool uneven;           /* layers are split as the source had them, not evenly */
    bool tied;
    bool has_optim; /* distrib_optim.pt is written; else the optimizer's tensors are carried beside
                       the model */
    bool plain_state;    /* the optimizer is not distributed, and its state is filled in again */
    bool omit_optimizer; /* the groups of an optimizer whose state was dropped */
    bool *placed;        /* [tensors of the source] */

    uint64_t step;   /* of the checkpoint, or what is carried says; 0: neither, and Megatron-LM
                          * has no such iteration */
    char folder[32]; /* of the iteration; "release" if there is none; Megatron-LM loads the
                          * weights alone then */
    /* of the file that is being made */
    struct cairn_megatron_part *parts;
    uint32_t *part_tensor; /* [part_count]: of the source */
    uint32_t part_count;
};

/* Reads what the checkpoint carries and settles all but the parts. CAIRN_INVAL where it cannot be
 * laid out so; complained about, as all here. The caller ends *target in any case. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_target_init(struct cairn_megatron_target *target,
                                                      const struct cairn_checkpoint *checkpoint,
                                                      const struct cairn_output_options *options,
                                                      struct cairn_output *output);
void cairn_megatron_target_fini(struct cairn_megatron_target *target);

/* Fills in target->keys, once its sizes are known. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_target_keys(struct cairn_megatron_target *target);

/* A tensor of the source by name; of an expert's parameter, also where it has the spelling of
 * grouped modules. UINT32_MAX. */
uint32_t cairn_megatron_target_named(const struct cairn_megatron_target *target, const char *name);
/* The same, past an alias. */
uint32_t cairn_megatron_target_find(const struct cairn_megatron_target *target, const char *name);

CAIRN_MUST_CHECK cairn_err cairn_megatron_target_carry(struct cairn_megatron_target *target,
                                                       uint32_t tensor);

/* A new part of a tensor of the source, which then has its place, and the node for it; invalidates
 * pointers to other parts. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_target_part(struct cairn_megatron_target *target,
                                                      uint32_t tensor,
                                                      const struct cairn_megatron_part *part,
                                                      struct cairn_pickle *tree,
                                                      struct cairn_pickle_node **node);

/* One state dict of a chunk: an ordered dict of ("part", number) and what modules have beside; its
 * parts are added to target->parts. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_target_chunk(struct cairn_megatron_target *target,
                                                       const struct cairn_megatron_rank *rank,
                                                       uint32_t chunk, struct cairn_pickle *tree,
                                                       struct cairn_pickle_node **dict);

/* The object of a rank around its chunks: its own carried one, else the first rank's, for the new
 * parallelism. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_target_object(struct cairn_megatron_target *target,
                                                        const struct cairn_megatron_rank *rank,
                                                        struct cairn_pickle *tree,
                                                        struct cairn_pickle_node *const chunks[],
                                                        struct cairn_pickle_node **root);

/* As `prepare` of struct cairn_format. An optimizer that came neither from Megatron-LM nor from
 * Megatron-Core gets the object that such ranks carry (CAIRN_MEGATRON_COMMON), with the groups that
 * the source or --job says, as Megatron-LM groups parameters. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_prepare(struct cairn_checkpoint *checkpoint,
                                                  const struct cairn_output_options *options);

/* As `plan` of struct cairn_format; the output's state is that of torch/output.h. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_plan(const struct cairn_checkpoint *checkpoint,
                                               const struct cairn_output_options *options,
                                               struct cairn_output *output);

/* Gives the pickle of the object, without models, as target->common, and notes that what it is made
 * of has its place. Leaves it NULL where the checkpoint is of another kind. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_join(struct cairn_megatron_target *target);

/* What a distributed checkpoint has as the extra state of a module, by its name in the layout;
 * *value stays NULL where it has nothing. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_join_extra(struct cairn_megatron_target *target,
                                                     const char *canonical,
                                                     struct cairn_pickle *tree,
                                                     struct cairn_pickle_node **value);

#endif
