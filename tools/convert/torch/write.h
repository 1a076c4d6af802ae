/*
 * tools/convert/torch/write.h - lays out and writes a file as torch.save does (PyTorch 2.13's ZIP
 * form): everything but the bytes of the storages, which their owner writes to where the plan says.
 *
 * torch.load reads it with weights_only, memory-mapped, and with storage offsets calculated instead
 * of read; written from what torch/file.h read, with the same folder and where storages are called
 * by their indexes, it is the same file byte for byte but for the 40 digits of
 * .data/serialization_id (and their checksum).
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_WRITE_H
#define CAIRN_TOOLS_CONVERT_TORCH_WRITE_H

#include "tools/convert/pickle/pickle.h"
#include "tools/convert/zip/write.h"

/* A storage; its key is its index, in the order in which torch.load meets them. */
struct cairn_torch_filled {
    uint64_t bytes;
    uint32_t identity; /* what its owner calls it (torch/carry.h) */
};

struct cairn_torch_plan {
    struct cairn_zip_plan zip; /* cairn_zip_plan_bytes gives the file's size */
    uint32_t first_storage;    /* storage i of the plan is zip.entries[first_storage + i] */
    uint32_t storage_count;
    uint8_t *pickle_bytes; /* owned: the object */
    char id[41];           /* the file's last entry, once it is sealed */
};

/* Lays out a file with the object `root`, a node of `tree`, and its storages in the order in which
 * the object names them first. `folder` begins the archive's names: torch.save takes the file's
 * name without its ending, or "archive". The caller ends *plan with cairn_torch_plan_fini.
 * CAIRN_INVAL, complained about, CAIRN_NOMEM; then *plan is zeroes. */
CAIRN_MUST_CHECK cairn_err cairn_torch_plan_init(struct cairn_torch_plan *plan, const char *folder,
                                                 const struct cairn_pickle *tree,
                                                 const struct cairn_pickle_node *root,
                                                 const struct cairn_torch_filled *storages,
                                                 uint32_t storage_count,
                                                 struct cairn_complaint *complaint);
/* Frees; allowed twice and on zeroes. */
void cairn_torch_plan_fini(struct cairn_torch_plan *plan);

/* Where the bytes of a storage belong, from the file's start, and where their CRC-32 goes. */
struct cairn_zip_planned *cairn_torch_plan_storage_at(struct cairn_torch_plan *plan,
                                                      uint32_t storage);

/* Makes plan->zip ready to be packed around the storages: once every checksum is filled in (what
 * precedes the first storage needs none). The plan must not move until it is packed. */
void cairn_torch_plan_seal(struct cairn_torch_plan *plan);

#endif
