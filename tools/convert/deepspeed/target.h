/*
 * tools/convert/deepspeed/target.h - what the writers of DeepSpeed's two formats share: the carried
 * objects, the groups of parameters in them, and files of torch.save made from them.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_TARGET_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_TARGET_H

#include "tools/convert/core/output.h"
#include "tools/convert/deepspeed/state.h"
#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/torch/output.h"

/* What a tensor-parallel rank has of a tensor. */
struct cairn_deepspeed_piece {
    uint64_t shape[CAIRN_DIMS_MAX];
    struct cairn_deepspeed_cut cut;
};

/* All zero is the empty value. */
struct cairn_deepspeed_target {
    const struct cairn_checkpoint *checkpoint;
    const struct cairn_output_options *options;
    struct cairn_output *output;
    struct cairn_deepspeed_groups groups; /* as a rank of the target has them */
    struct cairn_deepspeed_layers layers; /* of experts */
    uint32_t spread;                      /* ranks that they are spread over */
    uint32_t *setting_of; /* [groups.group_count]: the optimizer's group of a buffer of ZeRO 3, if
                           * they are split again; else NULL */
    bool has_groups, stage_known, stage3;
    bool elastic;              /* the optimizer's state is saved without padding */
    uint32_t ranks, rank;      /* of the target; whose file is being made */
    uint64_t step;             /* of the checkpoint, or as it is carried */
    uint32_t part, part_count; /* of the module: stages of a pipeline, as the source had them, or
                                * tensor-parallel ranks */
    uint32_t tensor_ranks;     /* 1: no tensor parallelism, and the next five are not used */
    struct cairn_deepspeed_cuts cuts;
    uint64_t padded_rows;               /* of embeddings, in all parts; 0: no padding */
    struct cairn_deepspeed_cut *cut_of; /* [groups.parameter_count] */
    uint32_t *cut_at;                   /* [tensors]: 0, or 1 + which of the following a tensor of
                                         * the module is written as */
    struct cairn_deepspeed_piece *pieces;
    const struct cairn_deepspeed_target *parts; /* [part_count], this one among them; NULL: one */
    struct cairn_deepspeed_keys keys;           /* of flat buffers */
    bool *left_out;                             /* [tensors]: as equal to one that is written */
};

/* Reads what the checkpoint carries of one part. CAIRN_INVAL if it carries nothing of DeepSpeed, or
 * `flat` buffers cannot be made for these ranks; complained about, as all here. The caller ends
 * *target in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_target_init(struct cairn_deepspeed_target *target,
                                                       const struct cairn_checkpoint *checkpoint,
                                                       const struct cairn_output_options *options,
                                                       bool flat, uint32_t part,
                                                       struct cairn_output *output);
void cairn_deepspeed_target_fini(struct cairn_deepspeed_target *target);

/* The carried object of a rank (which: 0 model, 1 optim): its own where it has one, else rank 0's,
 * else the first part's. The caller ends *object in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_object_load(struct cairn_deepspeed_target *target,
                                                       int which, uint32_t rank,
                                                       struct cairn_opaque_tree *object);
/* The object that is carried under a name. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_object_named(struct cairn_deepspeed_target *target,
                                                        const char *name,
                                                        struct cairn_opaque_tree *object);

/* deepspeed/tensor.c: chooses the tensor-parallel ranks (`wanted`, 0: as the source), and makes the
 * groups those of one rank. CAIRN_INVAL if that is unknown or impossible. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_tensor_plan(struct cairn_deepspeed_target *target,
                                                       const struct cairn_pickle_node *model,
                                                       uint32_t wanted, bool flat);
/* Makes a model_states object that of a tensor-parallel rank, and notes its module's tensors. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_tensor_object(struct cairn_deepspeed_target *target,
                                                         struct cairn_opaque_tree *object);
/* Makes the groups those of the target's ranks if the size is known. CAIRN_INVAL if not, and `flat`
 * buffers are for other ranks than the source's; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_subgroups_plan(struct cairn_deepspeed_target *target,
                                                          const struct cairn_pickle_node *model,
                                                          bool flat);
/* Gives an optimizer_state_dict these buffers if they differ. Failures are the tree's. */
void cairn_deepspeed_subgroups_apply(const struct cairn_deepspeed_target *target,
                                     struct cairn_pickle *tree,
                                     struct cairn_pickle_node *optimizer);

/* Adds a file with a tree (target->rank says whose), and the pieces of the tensors in it. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_target_add(struct cairn_deepspeed_target *target,
                                                      const char *path, struct cairn_pickle *tree,
                                                      struct cairn_pickle_node *root);

/* Names the opaque state, if it is there, as carried by literals. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_target_carried(struct cairn_deepspeed_target *target,
                                                          const char *name);

/* The numbers that are carried under a name; else they stay what they are. *said may be NULL. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_target_numbers(struct cairn_deepspeed_target *target,
                                                          const char *name, uint64_t max,
                                                          uint64_t *numbers, size_t count,
                                                          bool *said);

/* Whether a file has a tensor of the source so far. */
bool cairn_deepspeed_target_writes(const struct cairn_deepspeed_target *target, uint32_t tensor);

/* After the last file: carries tied tensors with those that they are tied to. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_target_tied(struct cairn_deepspeed_target *target);

/* What a tensor is an alias of and written with; else itself. */
uint32_t cairn_deepspeed_target_past_alias(const struct cairn_deepspeed_target *target,
                                           uint32_t tensor);
/* A tensor of the source by name, past an alias; UINT32_MAX. */
uint32_t cairn_deepspeed_target_find(const struct cairn_deepspeed_target *target, const char *name);

/* Opaque state: "bf16_", which then stands before "zero_pp_rank" in names of optim_states files. */
#define CAIRN_DEEPSPEED_PREFIX "deepspeed/optim_prefix"

/* As `plan` of struct cairn_format; the output's state is that of torch/output.h. CAIRN_INVAL where
 * the checkpoint has neither come from DeepSpeed nor been prepared (deepspeed/make.h). */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan(const struct cairn_checkpoint *checkpoint,
                                                const struct cairn_output_options *options,
                                                struct cairn_output *output);
/* The model_states file of target->rank in a folder. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan_model(struct cairn_deepspeed_target *target,
                                                      const char *folder);
/* After a part's files: what the source has apart and DeepSpeed keeps once (deepspeed/rest.c). */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_plan_rest(struct cairn_deepspeed_target *target);

#endif
