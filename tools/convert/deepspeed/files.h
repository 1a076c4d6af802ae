/*
 * tools/convert/deepspeed/files.h - which file of a DeepSpeed checkpoint belongs to which rank:
 *
 *   mp_rank_<part>_model_states.pt
 *       the module, ZeRO 0 to 2
 *   zero_pp_rank_<rank>_mp_rank_<part>_model_states.pt
 *       the module of a rank, ZeRO 3
 *   [bf16_]zero_pp_rank_<rank>_mp_rank_<part>_optim_states.pt
 *       a rank's part of the optimizer
 *   layer_<number>-model_states.pt
 *       a layer of a pipeline's module
 *   layer_<layer>_expert_<number>_mp_rank_<part>_model_states.pt
 *       one expert of a layer of the part, ZeRO 1 and 2
 *
 * "pp_rank" is the data-parallel rank, a number without leading zeros, so names do not sort as
 * ranks do. A part is what model parallelism makes of the module: a stage of a pipeline, or a
 * rank's share of tensor parallelism. It is 0 without model parallelism.
 */
#ifndef CAIRN_TOOLS_CONVERT_DEEPSPEED_FILES_H
#define CAIRN_TOOLS_CONVERT_DEEPSPEED_FILES_H

#include "cairn/types.h"
#include "tools/convert/core/checkpoint.h"

enum { CAIRN_DEEPSPEED_RANKS_MAX = 1 << 20 };

struct cairn_deepspeed_file {
    char *path;       /* in the place; owned */
    const char *name; /* its end, without the folder */
    uint32_t kind;    /* deepspeed/files.c's */
    uint32_t part;
    uint32_t layer;       /* of an expert, which the part counts from 0 */
    uint32_t number;      /* of the rank, the layer or the expert */
    uint32_t tensor_rank; /* of a layer */
    bool bf16;            /* it has the prefix */
};

/* All zero is the empty value. */
struct cairn_deepspeed_files {
    struct cairn_deepspeed_file *all; /* owned: what follows is in it */
    uint32_t count;
    const struct cairn_deepspeed_file *models; /* by part and rank; one of all ranks unless
                                                * model_by_rank */
    uint32_t model_count;
    bool model_by_rank;                        /* ZeRO 3 */
    const struct cairn_deepspeed_file *optims; /* by part and rank, as many ranks in each part */
    uint32_t optim_count;
    bool bf16;                                 /* optims have the prefix */
    const struct cairn_deepspeed_file *layers; /* by number */
    uint32_t layer_count;
    const struct cairn_deepspeed_file *experts; /* by part, layer and number, as many as each layer
                                                 * has */
    uint32_t expert_count;
    uint32_t part_count; /* >= 1 */
};

/* The folder that `marker` ("latest") names in the place, "" where there is no such file and the
 * place itself is the folder. CAIRN_CORRUPT for a name that is not a plain one, or of nothing. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_folder(const struct cairn_place *place,
                                                  const char *marker,
                                                  char folder[CAIRN_NAME_BYTES_MAX],
                                                  struct cairn_complaint *complaint);

/* As `probe` of struct cairn_format: `universal` tells that form, which has copies of the
 * model_states beside its folder "zero". */
bool cairn_deepspeed_probe(const struct cairn_place *place, const char *marker, bool universal);

/* `folder` and `name` as a path in the place; CAIRN_INVAL where it does not fit. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_path(const char *folder, const char *name, char *path,
                                                size_t path_bytes);

/* Lists a folder. CAIRN_CORRUPT if a file is missing or there twice; CAIRN_VERSION for layers or
 * experts cut by tensor parallelism, and for unknown forms of experts; CAIRN_NOMEM, CAIRN_IO.
 * Complained about. The caller ends *out with cairn_deepspeed_files_fini in any case. */
CAIRN_MUST_CHECK cairn_err cairn_deepspeed_files_list(const struct cairn_checkpoint *checkpoint,
                                                      const char *folder,
                                                      struct cairn_deepspeed_files *out);
void cairn_deepspeed_files_fini(struct cairn_deepspeed_files *files); /* zeroes are allowed */

#endif
