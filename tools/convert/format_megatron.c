/*
 * tools/convert/format_megatron.c - Megatron-LM's own checkpoints (`--ckpt-format torch`): a folder per model-parallel rank.
 *
 * The place is the directory with latest_checkpointed_iteration.txt, or one of its iterations. Which file is whose is
 * megatron_files.h's, what it holds megatron_state.h's, where parameters lie megatron_parts.h's, and how files are laid
 * out for another parallelism megatron_plan.c's.
 */
#include "tools/convert/megatron_plan.h"
#include "tools/convert/megatron_read.h"

#include "tools/convert/megatron_files.h"

#include <stdio.h>

static bool
probe(const struct cairn_place *place)
{
    struct cairn_complaint unsaid = {{0}};
    struct cairn_megatron_folders folders;
    char path[CAIRN_NAME_BYTES_MAX];
    bool found = cairn_megatron_folders_list(place, &folders, &unsaid) == CAIRN_OK;

    if (found) {
        (void)snprintf(path, sizeof(path), "%s%s%s/" CAIRN_MEGATRON_MODEL, folders.iteration,
                       folders.iteration[0] ? "/" : "", folders.folders[0].name);
        found = cairn_place_has_file(place, path);
    }
    cairn_megatron_folders_fini(&folders);
    return found;
}

const struct cairn_format cairn_format_megatron = {
    .name = "megatron",
    .about = "Megatron-LM's checkpoint (ckpt_format torch): a folder per model-parallel rank",
    .reads = true,
    .writes = true,
    .probe = probe,
    .read = cairn_megatron_read,
    .plan = cairn_megatron_plan,
    .finish = cairn_megatron_finish,
    .release = cairn_megatron_release,
};
