/*
 * tools/convert/format_megatron_dist.c - checkpoints of Megatron-Core's dist_checkpointing, backend
 * torch_dist: the table's row. mdist.h says what is in them.
 */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/mdist_read.h"
#include "tools/convert/megatron_plan.h"

static bool
probe(const struct cairn_place *place)
{
    return cairn_place_has_file(place, CAIRN_DCP_METADATA) &&
           cairn_place_has_file(place, CAIRN_MDIST_MARKER);
}

static cairn_err
read_checkpoint(struct cairn_checkpoint *checkpoint, struct cairn_complaint *complaint)
{
    struct cairn_mdist_reading reading = {.checkpoint = checkpoint, .complaint = complaint};
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    (void)snprintf(path, sizeof(path), "%s/" CAIRN_DCP_METADATA, checkpoint->place.path);
    err = cairn_place_load(&checkpoint->place, CAIRN_DCP_METADATA,
                           CAIRN_CONVERT_METADATA_BYTES_MAX, &bytes, &bytes_len, complaint);
    if (err)
        return err;
    err = cairn_dcp_metadata_parse(bytes, bytes_len, path, &reading.metadata, complaint);
    if (err)
        return err;
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework),
                   "Megatron-Core (torch_dist)");
    err = cairn_mdist_read_all(&reading);
    cairn_mdist_read_end(&reading);
    return err ? cairn_complain(complaint, err,
                                "%s cannot be read as a checkpoint of Megatron-Core: %s",
                                checkpoint->place.path, cairn_err_text(err))
               : CAIRN_OK;
}

const struct cairn_format cairn_format_megatron_dist = {
    .name = "megatron-dist",
    .about = "Megatron-Core's torch_dist checkpoint: .metadata, common.pt and .distcp files",
    .reads = true,
    .writes = true,
    .probe = probe,
    .read = read_checkpoint,
    .prepare = cairn_megatron_prepare,
    .plan = cairn_mdist_plan,
    .finish = cairn_mdist_finish,
    .release = cairn_mdist_release,
};
