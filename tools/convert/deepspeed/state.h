/*
 * tools/convert/deepspeed/state.h - what DeepSpeed's files hold, as both of its formats read it.
 *
 * Canonical tensors: each entry of `module` under its name; fp32.<parameter> and <key>.<parameter>
 * for each buffer of the optimizer; <key>.<first parameter of a group> for what it has once per
 * group (step), which is the others' by alias. With ZeRO 3 the module's parameters are nowhere but
 * in the fp32 buffers: <parameter> is an alias of fp32.<parameter> then.
 *
 * Carried, as torch/carry.h has it: deepspeed/model_states.pickle and
 * deepspeed/optim_states.pickle, the objects of rank 0's files, and rank<N>/… of those ranks whose
 * objects differ; with part<N>/ in front those of the later stages of a pipeline, and
 * deepspeed/layer_<number>-model_states.pickle of its layers, or
 * deepspeed/layer_<layer>_expert_<number>_mp_rank_<part>_model_states.pickle of experts. Words
 * besides "tensor":
 *   ("flat", "<key>/<group>")    a rank's buffer of a group
 *   ("scalar", "<key>/<group>")  a tensor of one element that all ranks have
 *   ("fragment", parameter)      a rank's part of a frozen parameter, ZeRO 3
 *   ("empty", dtype)             a parameter's place in a module of ZeRO 3
 *   ("line", name)               a tensor without its shape (never carried, only written)
 *
 * What depends on the number of ranks is as good as left out, so that the same state is the same
 * bytes: parts of tensor parallelism carry what those of a job without would, and nothing where it
 * is what the first part has; group_paddings and param_slice_mappings are None, dp_world_size and
 * partition_count 1, and experts are those of a job that spreads them over one rank.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_STATE_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_STATE_H

#include "tools/convert/core/name_set.h"
#include "tools/convert/deepspeed/cuts.h"
#include "tools/convert/deepspeed/experts.h"
#include "tools/convert/torch/source.h"

#define CAIRN_DEEPSPEED_MODEL "deepspeed/model_states.pickle"
#define CAIRN_DEEPSPEED_OPTIM "deepspeed/optim_states.pickle"
/* The following are numbers as text. Rows of an embedding with the padding of all tensor-parallel
 * parts; not there without padding. */
#define CAIRN_DEEPSPEED_VOCABULARY_ROWS "deepspeed/vocabulary_rows"
/* The only number of ranks whose groups of experts these are; 0: several numbers. */
#define CAIRN_DEEPSPEED_EXPERT_RANKS "deepspeed/expert_ranks"
/* The only number of ranks that the order of parameters holds for (round_robin_gradients). */
#define CAIRN_DEEPSPEED_ORDER_RANKS "deepspeed/order_ranks"
/* ZeRO 3: at how many elements of a rank groups are split into buffers, if they are split so. */
#define CAIRN_DEEPSPEED_SUB_GROUP_SIZE "deepspeed/sub_group_size"
/* Else the data-parallel and the tensor-parallel ranks that the buffers hold for. */
#define CAIRN_DEEPSPEED_SUB_GROUP_RANKS "deepspeed/sub_group_ranks"
#define CAIRN_DEEPSPEED_SCOPE "deepspeed/"

/* How many ranks the experts of all parts are spread over. All zero without experts. */
struct cairn_deepspeed_spreading {
    uint32_t ranks; /* the most of any */
    bool mixed;     /* layers have other numbers */
    bool split;     /* a group is so large that DeepSpeed splits it by this number */
};

/* What all ranks must agree on. */
struct cairn_deepspeed_scalar {
    char key[CAIRN_DEEPSPEED_KEY_BYTES_MAX];
    uint32_t group;
    uint8_t value[16];
};

/* All zero is the empty value, but for part_count. */
struct cairn_deepspeed_state {
    uint32_t part, part_count; /* which part of the module this is of */
    uint32_t first_tensor;     /* of this part in the layout: tied parameters are in several
                                * parts */
    bool has_layers;           /* a pipeline's files */
    struct cairn_deepspeed_layers layers;        /* of experts of this part; borrowed */
    struct cairn_deepspeed_spreading *spreading; /* of the experts of all parts; borrowed, NULL
                                                  * where there are none */
    bool cut; /* parts are those of tensor parallelism, else stages of a
                                * pipeline */
    struct cairn_deepspeed_cuts cuts;
    struct cairn_deepspeed_cut *cut_of; /* [groups.parameter_count] where `cut` */
    struct cairn_deepspeed_groups groups;
    bool has_groups; /* false: no ZeRO */
    bool stage3;
    bool stage_known;
    uint32_t stage;
    uint32_t ranks;
    uint8_t *carried[2]; /* rank 0's pickles: model, optim; as other ranks would have them */
    size_t carried_bytes[2];
    const struct cairn_deepspeed_state *first; /* the first part's, where this is a later one;
                                                * borrowed */
    struct cairn_deepspeed_scalar *scalars;
    uint32_t scalar_count;
    char version[32];
};

void cairn_deepspeed_state_fini(struct cairn_deepspeed_state *state);

/* The name under which `what` of a rank is carried. */
void cairn_deepspeed_scoped(uint32_t part, uint32_t rank, const char *what,
                            char name[CAIRN_NAME_BYTES_MAX]);

/* Stands for what a group of the optimizer has under a key: "flat" or "scalar", as above. */
struct cairn_pickle_node *cairn_deepspeed_mark(struct cairn_pickle *tree, const char *word,
                                               const char *key, uint32_t group);
/* The list of the masters of all groups. */
struct cairn_pickle_node *cairn_deepspeed_masters(struct cairn_pickle *tree, uint32_t group_count);

struct cairn_deepspeed_files;

/* Reads a pipeline's layers and a module's experts, after all parts. CAIRN_CORRUPT also if the
 * optimizer has state of what is in no file. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_layers_read(struct cairn_checkpoint *checkpoint,
                                                       const struct cairn_deepspeed_files *files);

/* Finds the groups of experts in a model_states object. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_experts_in_model(
    const struct cairn_checkpoint *checkpoint, struct cairn_deepspeed_state *state,
    const struct cairn_pickle_node *root, const char *where);
/* The object becomes that of a job whose experts are not spread; *state->spreading says how. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_experts_gather(struct cairn_checkpoint *checkpoint,
                                                          struct cairn_deepspeed_state *state,
                                                          struct cairn_pickle *tree,
                                                          struct cairn_pickle_node *root,
                                                          const char *where);

/* Reads a model_states file of a rank; rank 0 first. Complained about, as all here. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_model_read(struct cairn_checkpoint *checkpoint,
                                                      struct cairn_deepspeed_state *state,
                                                      const char *path, uint32_t rank);

/* Reads an optim_states file of a rank; rank 0 first, and after its model_states. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_optim_read(struct cairn_checkpoint *checkpoint,
                                                      struct cairn_deepspeed_state *state,
                                                      const char *path, uint32_t rank);

/* After all files: the aliases, and what is known of the whole. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_state_end(struct cairn_checkpoint *checkpoint,
                                                     struct cairn_deepspeed_state *state);

/* Adds what a model_states object has in `buffer_names`. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_buffer_names(const struct cairn_pickle_node *model,
                                                        struct cairn_name_set *names);

/* What a dict has under a key, a number or a list of them, becomes the count of ranks. */
void cairn_deepspeed_set_ranks(struct cairn_pickle *tree, struct cairn_pickle_node *dict,
                               const char *key, uint32_t ranks);

/* Carries the rest of a rank's object if it differs from rank 0's (which: 0 model, 1 optim). */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_carry(struct cairn_checkpoint *checkpoint,
                                                 struct cairn_deepspeed_state *state,
                                                 struct cairn_torch_source *source, int which,
                                                 uint32_t rank);

/* The stage of `zero_stage`: a number, or ZeroStageEnum in either of its pickled forms. */
bool cairn_deepspeed_stage(const struct cairn_pickle_node *node, uint32_t *stage);
/* Whether a model_states object is of a job with round_robin_gradients. */
bool cairn_deepspeed_takes_turns(const struct cairn_pickle_node *model);

/* Adds a tensor of one element: if *first is UINT32_MAX itself, else an alias of that one. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_add_scalar(struct cairn_checkpoint *checkpoint,
                                                      const struct cairn_torch_source *source,
                                                      const struct cairn_torch_tensor *tensor,
                                                      const char *name, uint32_t *first);

/* Notes rank 0's scalar, or compares another rank's with it: CAIRN_CORRUPT if they differ. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_agree(struct cairn_deepspeed_state *state,
                                                 const char *where, uint32_t rank,
                                                 const struct cairn_deepspeed_scalar *scalar,
                                                 struct cairn_complaint *complaint);

#endif
