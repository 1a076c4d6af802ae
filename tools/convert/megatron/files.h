/*
 * tools/convert/megatron/files.h - the folders of a Megatron-LM checkpoint.
 *
 *     latest_checkpointed_iteration.txt              "1000", or "release"
 *     iter_0001000/mp_rank_<tp>[_<pp>][_<ep>]/       release/ likewise
 *         model_optim_rng.pt                         all but the distributed optimizer's tensors
 *         distrib_optim.pt                           those, of all data-parallel ranks
 *
 * <tp> has two digits, the others three; <pp> stands there where there are several stages, <ep>
 * where there are several expert-parallel ranks. So one number behind <tp> may be either, which
 * only the files tell.
 */
#ifndef CAIRN_TOOLS_CONVERT_MEGATRON_FILES_H
#define CAIRN_TOOLS_CONVERT_MEGATRON_FILES_H

#include "tools/convert/core/checkpoint.h"

#define CAIRN_MEGATRON_LATEST "latest_checkpointed_iteration.txt"
#define CAIRN_MEGATRON_MODEL "model_optim_rng.pt"
#define CAIRN_MEGATRON_OPTIM "distrib_optim.pt"

enum { CAIRN_MEGATRON_FOLDER_BYTES = 32 }; /* of its name */

struct cairn_megatron_rank {
    uint32_t tp, pp, ep;
};

struct cairn_megatron_folder {
    char name[CAIRN_MEGATRON_FOLDER_BYTES];
    uint32_t number_count; /* 1 to 3 */
    uint32_t numbers[3];
};

/* All zero is the empty value. */
struct cairn_megatron_folders {
    char iteration[CAIRN_MEGATRON_FOLDER_BYTES]; /* "iter_0001000"; "" where the place is that
                                                    folder itself */
    struct cairn_megatron_folder *folders;
    uint32_t count;
};

/* Lists the newest iteration. CAIRN_NOT_FOUND (not complained about) where there is none;
 * CAIRN_CORRUPT for folders whose names do not go together. The caller ends *out in any case. */
CAIRN_MUST_CHECK cairn_err cairn_megatron_folders_list(const struct cairn_place *place,
                                                       struct cairn_megatron_folders *out,
                                                       struct cairn_complaint *complaint);
void cairn_megatron_folders_fini(struct cairn_megatron_folders *folders);

/* The path of a file of a rank in the place; false where it does not fit. pp and ep are left out
 * where there is one of them alone. */
bool cairn_megatron_path(const char *iteration, const struct cairn_parallelism *sizes,
                         const struct cairn_megatron_rank *rank, const char *file,
                         char path[CAIRN_NAME_BYTES_MAX]);

/* Whether any of the first `ranks` ranks of a stage is both of them; all sizes at least 1. */
bool cairn_megatron_is_file(const struct cairn_parallelism *sizes, uint32_t tp, uint32_t ep,
                            uint32_t ranks);

#endif
