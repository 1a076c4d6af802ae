/*
 * tools/convert/torch/output.h - one file of torch.save among the files of an output: storages
 * where tensors are written to, everything else literals. What lies before the first storage does
 * not depend on its checksum and is written with its first tile; the rest is there once the
 * checksums are.
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_OUTPUT_H
#define CAIRN_TOOLS_CONVERT_TORCH_OUTPUT_H

#include "tools/convert/core/output.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/torch/write.h"

/* All zero is the empty value. */
struct cairn_torch_output {
    uint32_t file;  /* of the output */
    uint64_t begin; /* of the archive, in that file */
    struct cairn_torch_plan plan;
    struct cairn_torch_filled *storages; /* [storage_count] */
    uint32_t storage_count;
    uint32_t *sums; /* [storage_count]: the output's sum; UINT32_MAX where there are no bytes */
};

/* The same in two steps, for an archive that is only a part of a file: fills the tree and lays the
 * archive out as that of a file at `path`; then gives it its place. */
CAIRN_MUST_CHECK cairn_err cairn_torch_output_plan(struct cairn_torch_output *out, const char *path,
                                                   const struct cairn_torch_fill *fill);
CAIRN_MUST_CHECK cairn_err cairn_torch_output_place(struct cairn_output *output,
                                                    struct cairn_torch_output *added, uint32_t file,
                                                    uint64_t begin);

/* What lies before the first storage, and what between and behind them. */
enum { CAIRN_TORCH_HEAD = 1, CAIRN_TORCH_TAIL = 2 };

/* Adds as literals what lies around the storages of an archive that begins at `begin` in a file,
 * with the checksums of now. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_plan_literals(struct cairn_torch_plan *plan, unsigned parts,
                                                     struct cairn_output *output, uint32_t file,
                                                     uint64_t begin);

/* Where a storage lies in the file. */
uint64_t cairn_torch_output_at(const struct cairn_torch_output *added, uint32_t storage);

/* Adds the literals behind the first storage, once the output's sums are there. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_output_finish(struct cairn_output *output,
                                                     struct cairn_torch_output *added);

void cairn_torch_output_fini(struct cairn_torch_output *added); /* zeroes are allowed */

/* One more file of an output that has such files alone; they are output->state, which ends them.
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_torch_output_next(struct cairn_output *output,
                                                   struct cairn_torch_output **next);

/* Adds a file at `path` with `fill`'s tree, and for each storage what `place` says of its identity.
 * Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_torch_output_fill(
    struct cairn_output *output, const char *path, const struct cairn_torch_fill *fill,
    cairn_err (*place)(void *context, uint32_t identity, uint32_t file, uint64_t at));

/* A format's `finish` and `release` for such an output: what lies behind the first storage of each
 * file; the end. */
CAIRN_MUST_CHECK cairn_err cairn_torch_outputs_finish(const struct cairn_checkpoint *checkpoint,
                                                      struct cairn_output *output);
void cairn_torch_outputs_release(void *state); /* NULL is allowed */

#endif
