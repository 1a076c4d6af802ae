/*
 * tools/convert/torch/parts.h - what the files behind torch/file.h share:
 *
 *   torch/file.c       opening; both forms
 *   torch/tensors.c    the storages and the tensors in a tree
 *   torch/walk.c       every way down a tree
 */
#ifndef CAIRN_TOOLS_CONVERT_TORCH_PARTS_H
#define CAIRN_TOOLS_CONVERT_TORCH_PARTS_H

#include "tools/convert/torch/file.h"
#include "tools/convert/zip/read.h"

/* A file that is being opened. */
struct cairn_torch_opening {
    int fd;
    const char *where;
    uint64_t begin, bytes;
    uint64_t memory_bytes;
    struct cairn_window *window; /* of all of it; NULL once an archive has taken it over */
    struct cairn_torch_file *file;
    struct cairn_complaint *complaint;
};

/* Complains that the file cannot be read; CAIRN_CORRUPT. */
cairn_err cairn_torch_refuse(const struct cairn_torch_opening *opening, const char *why);

/* Lists every storage that the tree names, without a place. */
CAIRN_MUST_CHECK cairn_err cairn_torch_list_storages(struct cairn_torch_opening *opening);

/* Lists every tensor, once the storages have their places. */
CAIRN_MUST_CHECK cairn_err cairn_torch_list_tensors(const struct cairn_torch_opening *opening);

/* ---- walking a tree: torch/walk.c ---- */

/* One way down from a node. */
struct cairn_torch_child {
    struct cairn_pickle_node *node;
    const struct cairn_pickle_node *key; /* of a dict, else NULL */
    uint32_t index;
    bool argument; /* of a call */
    bool silent;   /* adds nothing to the path: an object's state */
};

/* The way down number `slot`, from 0 on; false if there is none. */
bool cairn_torch_next_child(const struct cairn_pickle_node *node, uint64_t slot,
                            struct cairn_torch_child *child);

#endif
