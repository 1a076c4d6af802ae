/*
 * tools/convert/megatron/format.c - Megatron-LM's own checkpoints (`--ckpt-format torch`): a folder
 * per model-parallel rank.
 *
 * The place is the directory with latest_checkpointed_iteration.txt, or one of its iterations.
 * Which file is whose is megatron/files.h's, what it holds megatron/state.h's, where parameters lie
 * megatron/parts.h's, and how files are laid out for another parallelism megatron/plan.c's.
 */
#include "tools/convert/core/format.h"

#include "tools/convert/megatron/files.h"
#include "tools/convert/megatron/plan.h"
#include "tools/convert/megatron/read.h"
#include "tools/convert/torch/output.h"

/* A folder of a rank, or an iteration that cannot be: reading complains. */
static bool
probe(const struct cairn_place *place)
{
    struct cairn_complaint unsaid = {{0}};
    struct cairn_megatron_folders folders;
    cairn_err err = cairn_megatron_folders_list(place, &folders, &unsaid);

    cairn_megatron_folders_fini(&folders);
    return err == CAIRN_OK || err == CAIRN_CORRUPT;
}

const struct cairn_format cairn_format_megatron = {
    .name = "megatron",
    .about = "Megatron-LM's checkpoint (ckpt_format torch): a folder per model-parallel rank",
    .probe = probe,
    .read = cairn_megatron_read,
    .prepare = cairn_megatron_prepare,
    .plan = cairn_megatron_plan,
    .finish = cairn_torch_outputs_finish,
    .release = cairn_torch_outputs_release,
};
