/*
 * tools/convert/megatron_dist/format.c - checkpoints of Megatron-Core's dist_checkpointing, backend
 * torch_dist: the table's row. mdist.h says what is in them.
 */
#include "tools/convert/core/format.h"

#include <stdio.h>

#include "tools/convert/state/opaque_tree.h"
#include "tools/convert/megatron_dist/read.h"
#include "tools/convert/megatron/plain.h"
#include "tools/convert/megatron/plan.h"

static bool
probe(const struct cairn_place *place)
{
    return cairn_place_has_file(place, CAIRN_DCP_METADATA) &&
           cairn_place_has_file(place, CAIRN_MDIST_MARKER);
}

static cairn_err
read_checkpoint(struct cairn_checkpoint *checkpoint)
{
    struct cairn_mdist_reading reading = {.checkpoint = checkpoint};
    cairn_err err = cairn_dcp_metadata_load(checkpoint, &reading.metadata);

    if (err)
        return err;
    (void)snprintf(checkpoint->framework, sizeof(checkpoint->framework),
                   "Megatron-Core (torch_dist)");
    err = cairn_mdist_read_all(&reading);
    cairn_mdist_read_end(&reading);
    return cairn_complain_failed(checkpoint->complaint, err,
                                 "%s: cannot be read as a checkpoint of Megatron-Core",
                                 checkpoint->place.path);
}

/* Whether the ranks of Megatron-LM that saved the source had an optimizer that is not
 * distributed. */
static cairn_err
find_plain(const struct cairn_checkpoint *checkpoint, bool *plain)
{
    struct cairn_opaque_tree common;
    cairn_err err = cairn_opaque_tree_open(checkpoint, CAIRN_MEGATRON_COMMON, &common);

    *plain = !err && cairn_megatron_plain(cairn_pickle_get(common.root, "optimizer"));
    cairn_opaque_tree_close(&common);
    if (err == CAIRN_NOT_FOUND)
        return CAIRN_OK;
    return cairn_complain_failed(checkpoint->complaint, err,
                                 "%s: the carried object " CAIRN_MEGATRON_COMMON " cannot be read",
                                 checkpoint->place.path);
}

/* Whether any parameter has state of the optimizer, which may have been left out. */
static bool
has_moments(const struct cairn_layout *layout)
{
    for (uint32_t i = 0; i < cairn_layout_tensor_count(layout); i++)
        if (cairn_layout_tensor(layout, i)->kind == CAIRN_OPTIMIZER)
            return true;
    return false;
}

static cairn_err
prepare(struct cairn_checkpoint *checkpoint, const struct cairn_output_options *options)
{
    bool plain = false;
    cairn_err err = cairn_megatron_prepare(checkpoint, options);

    if (!err)
        err = find_plain(checkpoint, &plain);
    if (!err && plain && has_moments(checkpoint->layout))
        return cairn_refuse(
            checkpoint, CAIRN_INVAL,
            "has an optimizer that is not the distributed one, whose state Megatron-Core does not "
            "load from this format as it is: to load it into a distributed one, make new settings: "
            "--drop 'megatron/*,rank*/megatron/*' with --job FILE; or take the weights alone: "
            "--drop 'fp32.*,exp_avg*,step.*'");
    return err;
}

const struct cairn_format cairn_format_megatron_dist = {
    .name = "megatron-dist",
    .about = "Megatron-Core's torch_dist checkpoint: .metadata, common.pt and .distcp files",
    .probe = probe,
    .read = read_checkpoint,
    .prepare = prepare,
    .plan = cairn_mdist_plan,
    .finish = cairn_mdist_finish,
    .release = cairn_mdist_release,
};
