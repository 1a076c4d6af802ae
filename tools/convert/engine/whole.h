/*
 * tools/convert/engine/whole.h - a checkpoint's tensors are whole, and what is there twice is the
 * same.
 *
 * Splits the pieces of a checkpoint into those that are read, which tile every tensor exactly once
 * (proved), and replicas of them. Aliases get the pieces of what they are an alias of, so behind
 * this every tensor has pieces of its own.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_WHOLE_H
#define CAIRN_TOOLS_CONVERT_ENGINE_WHOLE_H

#include "tools/convert/engine/execute.h"

/* All zero is the empty value. */
struct cairn_whole {
    const struct cairn_layout *layout; /* to be read; the checkpoint's own where that is the same */
    struct cairn_layout *owned;        /* NULL where layout is borrowed */
    /* NULL where there are none. Each piece is a container of its own, since replicas of different
     * tensors may share bytes: piece i is in replica_containers[i] of the checkpoint. */
    struct cairn_layout *replicas;
    uint32_t *replica_containers;
    uint64_t replica_bytes;
    uint64_t unchecked_count; /* replicas whose elements share bytes: they cannot be compared */
    const char *map; /* borrowed: what may have made one number of several, for messages; or NULL */
};

/* Accepts tensors of any size. Otherwise tensors far larger than their files are refused: a view
 * may repeat elements (torch.Tensor.expand), so a few hundred bytes can describe terabytes. */
void cairn_whole_allow_expanded(bool allow);

/* CAIRN_INVAL: the tensors are far larger than the files, and that is not allowed. CAIRN_CORRUPT:
 * elements of a tensor are missing, or in two pieces that are not replicas; complained about with
 * the tensor and where. CAIRN_NOMEM. The checkpoint is borrowed until cairn_whole_fini. */
CAIRN_MUST_CHECK cairn_err cairn_whole_init(const struct cairn_checkpoint *checkpoint,
                                            struct cairn_whole *out);
void cairn_whole_fini(struct cairn_whole *whole);

/* Reads all replicas and compares them. CAIRN_CORRUPT if one differs, with tensor, files and
 * offsets; the errors of cairn_execute. */
CAIRN_MUST_CHECK cairn_err cairn_whole_compare(const struct cairn_checkpoint *checkpoint,
                                               const struct cairn_whole *whole,
                                               struct cairn_handles *handles,
                                               uint64_t memory_limit_bytes, uint32_t thread_count);

#endif
