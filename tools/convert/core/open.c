/* tools/convert/core/open.c - opens a checkpoint: finds its format and lets it read the metadata.
 */
#include "tools/convert/core/format.h"

#include <inttypes.h>

static cairn_err
warn_of_unsummed(struct cairn_checkpoint *checkpoint)
{
    if (checkpoint->unsummed_count == 0)
        return CAIRN_OK;
    return cairn_checkpoint_warn(
        checkpoint,
        "%" PRIu64 " tensors or objects, the first in %.200s, were saved without checksums (after "
        "torch.serialization.set_crc32_options(False), in the form of before PyTorch 1.6, or as "
        "plain bytes): damage to their data cannot be detected",
        checkpoint->unsummed_count,
        cairn_checkpoint_container_name(checkpoint, checkpoint->unsummed_first));
}

/* Lets a format read the place, which the checkpoint takes over, also on failure. */
static cairn_err
read_place(struct cairn_place *place, const struct cairn_format *format, uint32_t thread_count,
           struct cairn_checkpoint *out, struct cairn_complaint *complaint)
{
    struct cairn_checkpoint checkpoint = {
        .format = format, .place = *place, .thread_count = thread_count, .complaint = complaint};
    cairn_err err = cairn_layout_create(&checkpoint.layout);

    if (!err)
        err = format->read(&checkpoint);
    if (!err)
        err = warn_of_unsummed(&checkpoint);
    if (!err) {
        *out = checkpoint;
        return CAIRN_OK;
    }
    (void)cairn_complain_failed(complaint, err, "%s: cannot be read as %s", place->path,
                                format->name);
    cairn_checkpoint_close(&checkpoint);
    return err;
}

static cairn_err
open_place(const char *path, struct cairn_place *place, struct cairn_complaint *complaint)
{
    cairn_err err = cairn_place_open(path, place, complaint);

    return cairn_complain_failed(complaint, err, "%s: cannot be read", path);
}

cairn_err
cairn_checkpoint_open(const char *path, const struct cairn_format *format, uint32_t thread_count,
                      struct cairn_checkpoint *out, struct cairn_complaint *complaint)
{
    struct cairn_place place;
    cairn_err err = open_place(path, &place, complaint);

    return err ? err : read_place(&place, format, thread_count, out, complaint);
}

cairn_err
cairn_checkpoint_detect(const char *path, const struct cairn_format *const formats[],
                        uint32_t thread_count, struct cairn_checkpoint *out,
                        struct cairn_complaint *complaint)
{
    struct cairn_place place;
    cairn_err err = open_place(path, &place, complaint);

    if (err)
        return err;
    for (size_t i = 0; formats[i]; i++)
        if (formats[i]->probe(&place))
            return read_place(&place, formats[i], thread_count, out, complaint);
    cairn_place_close(&place);
    return cairn_complain(complaint, CAIRN_NOT_FOUND,
                          "%s: unrecognized checkpoint format; name the directory that was saved, "
                          "or the file",
                          path);
}
