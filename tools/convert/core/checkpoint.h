/*
 * tools/convert/core/checkpoint.h - a checkpoint as a reader describes it: tensors, containers, and
 * where the parts of each tensor lie. A format's `read` (core/format.h) fills it.
 *
 * A checkpoint is a layout of snapshot/layout.h plus its containers (files, or bytes in memory). It
 * holds no tensor data: the executor (engine/execute.h) moves that.
 *
 * WHAT A READER SAYS
 *
 * Tensors. A reader adds one tensor per logical, global array of the job, unsharded. The shape is
 * global and unpadded: padding of a vocabulary or a flat buffer is bytes that no piece covers.
 * Names are canonical, so the same state has the same name in every format:
 *
 *   parameter, buffer   its name in the module ("layers.0.weight"), without what wrappers and
 *                       containers put in front: "module.", "_orig_mod.", the "model." of a dict of
 *                       state dicts.
 *   optimizer state     "<key>.<parameter>"; the key is the optimizer's own and has no dot:
 *                       "fp32.layers.0.weight" (the master weight), "exp_avg.layers.0.weight",
 *                       "exp_avg_sq.…", "step.…" (a scalar). A format that stores no names (a flat
 *                       buffer) finds the parameter first.
 *   opaque state        a CAIRN_U8 tensor of one dimension, kind CAIRN_OPAQUE; see below.
 *
 * A format that needs more to write itself back exactly (a prefix that it removed, an order) keeps
 * it as opaque bytes named "<format>/<what>". All other formats carry these along unread.
 *
 * Pieces. A piece says where one part of one tensor lies: a box of the tensor, a container, the
 * byte offset of the box's first element, and a byte stride per dimension. This covers:
 *
 *   - a chunk of DCP, a safetensors tensor: one piece with row-major strides;
 *   - a torch.save view: one piece with the storage's strides (0 for an expanded dimension);
 *   - a transposed or interleaved part (fused qkv, GLU halves, Conv1D, stacked experts): one piece
 *     per part, with the offset and strides that it has in the fused array;
 *   - a flat range of a row-major box (ZeRO, Megatron's distributed optimizer), which may begin and
 *     end anywhere: cairn_checkpoint_add_flat cuts it into at most 2 * dims - 1 pieces;
 *   - replicas: each holder adds its own piece, and the executor compares all of them.
 *
 * A reader does not check that a tensor is complete. The engine proves it before anything is
 * written, and names what is missing.
 *
 * Opaque state. Everything that is not a tensor travels as bytes: RNG states, schedulers,
 * arguments. Its pieces lie in a file or in memory (cairn_checkpoint_add_opaque). The name is the
 * path of keys joined by '.'; state of one rank has a scope before a '/' ("rank3/rng"). A name that
 * ends in ".pickle" means that the bytes are one pickle of plain inert data, as pickle/write.h
 * writes it. A tensor inside it is a persistent id, the tuple ("tensor", name), and is in the
 * layout.
 *
 * Tied tensors. A tensor that shares its elements with another by construction is an alias without
 * pieces. A writer that can express the tie does; any other writes the elements twice.
 *
 * SAFETY
 *
 * Nothing that is read is executed, and everything is bounded by the limits below. File names that
 * come from a checkpoint must pass cairn_place_name_check.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_CHECKPOINT_H
#define CAIRN_TOOLS_CONVERT_CORE_CHECKPOINT_H

#include "cairn/types.h"
#include "snapshot/layout.h"
#include "base/complaint.h"
#include "base/crc_join.h"
#include "tools/convert/core/place.h"

enum {
    CAIRN_CONVERT_CONTAINERS_MAX = 1 << 22, /* files and blobs of a checkpoint */
    CAIRN_CONVERT_TENSORS_MAX = 1 << 24,
    CAIRN_CONVERT_PIECES_MAX = 1 << 26,
    CAIRN_CONVERT_METADATA_BYTES_MAX = 1 << 30 /* of one metadata file, read into memory whole */
};

/* Sizes of the groups of ranks that wrote a checkpoint, or will read it; 0: unknown. */
struct cairn_parallelism {
    uint32_t tp, pp, vpp, dp, ep, etp;
};

struct cairn_container {
    char *path;       /* in the place, "" for the place itself; NULL: the bytes are in memory */
    uint8_t *literal; /* bytes[bytes_len] if path is NULL, else NULL */
    uint64_t bytes;
    struct cairn_file_mark mark; /* when metadata was read; the file is refused if it changes */
};

/* Checksums of a range of a container, CAIRN_CRC_ECMA or CAIRN_CRC_ZIP: those that a checkpoint has
 * of its own bytes (if one does not match what was read, it is damaged), or those that a writer
 * needs of what is written. */
struct cairn_sum {
    uint32_t container;
    enum cairn_crc_kind kind;
    uint64_t offset_bytes;
    uint64_t bytes;
    uint64_t block_bytes; /* one value for each (the last may be shorter); >= bytes: one of all */
    uint64_t count;       /* ceil(bytes / block_bytes) */
    uint64_t *values;     /* [count], owned */
};

/* Appends a sum to sums[*count], with values[sum->count], which are copied, or zeroes (NULL); its
 * `count` is calculated. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_sum_append(struct cairn_sum **sums, uint32_t *count,
                                            const struct cairn_sum *sum, const uint64_t *values);

/* Where a block of a sum begins and ends in its container. */
uint64_t cairn_sum_block_begin(const struct cairn_sum *sum, uint64_t block);
uint64_t cairn_sum_block_end(const struct cairn_sum *sum, uint64_t block);

struct cairn_alias {
    uint32_t tensor; /* has no pieces: its elements are those of `of` */
    uint32_t of;     /* not an alias itself; same dtype and shape */
};

struct cairn_format;

/* All zero is the empty value, except place.dir_fd. */
struct cairn_checkpoint {
    const struct cairn_format *format;
    struct cairn_place place;          /* owned */
    struct cairn_complaint *complaint; /* takes what readers and writers say is wrong; borrowed.
                                        * NULL: nobody listens */
    uint32_t thread_count; /* the most threads a reader may use, itself included; 0: no limit
                               * given */
    char framework[128];   /* who wrote it, for people: "PyTorch 2.13"; "": unknown */
    bool step_known;
    uint64_t step; /* iteration or global step */
    struct cairn_parallelism parallelism;
    struct cairn_layout *layout;
    struct cairn_container *containers; /* [container_count]; pieces refer to them by index */
    uint32_t container_count;
    struct cairn_alias *aliases; /* sorted by tensor */
    uint32_t alias_count;
    struct cairn_sum *sums;
    uint32_t sum_count;
    uint64_t unsummed_count; /* storages and objects written without checksums */
    uint32_t unsummed_first; /* the container of the first of them */
    char **warnings;         /* for the user, one line each */
    uint32_t warning_count;
};

/* Frees everything that the checkpoint owns. The empty value is allowed. */
void cairn_checkpoint_close(struct cairn_checkpoint *checkpoint);

/* For readers. Every function complains with the place or file, and the tensor's name. Errors:
 * CAIRN_NOMEM, errors of files; CAIRN_CORRUPT for a box outside its tensor, bytes outside their
 * file, a tensor known with another dtype or shape. */

/* Complains of one of the checkpoint's files, or of the checkpoint itself, "<place>: <format>", and
 * returns `err`. For writers, too, which refuse a source. */
#define cairn_refuse(checkpoint, err, ...) cairn_refuse_file(checkpoint, NULL, err, __VA_ARGS__)
cairn_err cairn_refuse_file(const struct cairn_checkpoint *checkpoint, const char *path,
                            cairn_err err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* A container's name in messages: its path, or the place's if it is the place itself. */
const char *cairn_checkpoint_container_name(const struct cairn_checkpoint *checkpoint,
                                            uint32_t container);

/* Adds a file of the place as a container. Every call makes a new index: call it once per file. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_file(struct cairn_checkpoint *checkpoint,
                                                     const char *path, uint32_t *container);

/* The same of bytes in memory (> 0), which are copied. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_bytes(struct cairn_checkpoint *checkpoint,
                                                      const void *bytes, size_t bytes_len,
                                                      uint32_t *container);

/* Complains that a file changed; CAIRN_CORRUPT. Threads that read data have a complaint each. */
cairn_err cairn_checkpoint_complain_changed(const struct cairn_checkpoint *checkpoint,
                                            const char *path, struct cairn_complaint *complaint);

/* Complains that a tensor or opaque state cannot have this name (its length, control characters, no
 * UTF-8) and returns CAIRN_CORRUPT; CAIRN_OK if it can. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_check_name(const struct cairn_checkpoint *checkpoint,
                                                       const char *name);

/* Adds a tensor without pieces; adding it again returns its index. dims <= CAIRN_DIMS_MAX. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_tensor(struct cairn_checkpoint *checkpoint,
                                                       const char *name, enum cairn_dtype dtype,
                                                       enum cairn_kind kind, uint32_t dims,
                                                       const uint64_t *shape, uint32_t *tensor);

/* Adds the box [start, start + extent) of a tensor (elements), with its first element at
 * offset_bytes of the container. stride_bytes NULL: row-major without gaps. An empty box adds
 * nothing. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_box(struct cairn_checkpoint *checkpoint,
                                                    uint32_t tensor, uint32_t container,
                                                    const uint64_t *start, const uint64_t *extent,
                                                    uint64_t offset_bytes,
                                                    const uint64_t *stride_bytes);

/* Adds the elements [flat_begin, flat_end) of the row-major box [start, start + extent) of a
 * tensor, which lie contiguously at offset_bytes of the container. start and extent NULL: the whole
 * tensor. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_flat(struct cairn_checkpoint *checkpoint,
                                                     uint32_t tensor, uint32_t container,
                                                     const uint64_t *start, const uint64_t *extent,
                                                     uint64_t flat_begin, uint64_t flat_end,
                                                     uint64_t offset_bytes);

/* Adds opaque state held in memory; `bytes` are copied. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_opaque(struct cairn_checkpoint *checkpoint,
                                                       const char *name, const void *bytes,
                                                       size_t bytes_len);

/* Adds `name` as an alias: it has the elements of tensor `of` by construction (tied weights). */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_alias(struct cairn_checkpoint *checkpoint,
                                                      const char *name, uint32_t of);

/* The same, with a kind of its own: a parameter that exists only as its master weights. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_alias_as(struct cairn_checkpoint *checkpoint,
                                                         const char *name, enum cairn_kind kind,
                                                         uint32_t of);

/* What a tensor has its elements of: itself unless it is an alias. UINT32_MAX is its own. */
uint32_t cairn_checkpoint_past_alias(const struct cairn_checkpoint *checkpoint, uint32_t tensor);

/* Adds the checkpoint's own checksums of a range of a container, one for each block_bytes (the last
 * block may be shorter; >= bytes: one in all). The engine compares them with what it reads. Ranges
 * do not overlap. `values` are copied. CAIRN_CORRUPT if the range leaves its container. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_sums(struct cairn_checkpoint *checkpoint,
                                                     uint32_t container, enum cairn_crc_kind kind,
                                                     uint64_t offset_bytes, uint64_t bytes,
                                                     uint64_t block_bytes, const uint64_t *values);

/* The same for a storage or an object in an archive of torch.save. crc32 0: it was written without
 * a checksum; the checkpoint gets one warning for all of these. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_storage_sum(struct cairn_checkpoint *checkpoint,
                                                            uint32_t container,
                                                            uint64_t offset_bytes, uint64_t bytes,
                                                            uint32_t crc32);

/* Adds a warning for the user, one line. This is not an error. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_warn(struct cairn_checkpoint *checkpoint,
                                                 const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* For writers and the stages between. */

/* Reads the first bytes of a piece, from memory or its file. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_load_piece(const struct cairn_checkpoint *checkpoint,
                                                       const struct cairn_piece *piece, void *bytes,
                                                       size_t bytes_len);

/* Reads small opaque state, from memory or its file, for a writer that must look into it. It must
 * be one row-major piece of at most bytes_max bytes. The caller frees *bytes. CAIRN_NOT_FOUND (not
 * complained about): no such tensor. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_load_opaque(const struct cairn_checkpoint *checkpoint,
                                                        const char *name, size_t bytes_max,
                                                        uint8_t **bytes, size_t *bytes_len);

/* Sorts tensors (their indexes) by name. */
void cairn_checkpoint_sort(const struct cairn_layout *layout, uint32_t *tensors, size_t count);
/* All tensors, sorted so; the caller frees them. NULL: no memory. */
uint32_t *cairn_checkpoint_sorted(const struct cairn_layout *layout);

/* The parameter that an optimizer tensor belongs to, and the length of the key in its name;
 * UINT32_MAX if there is none. "exp_avg.layers.0.weight" -> index of "layers.0.weight", 7. */
uint32_t cairn_checkpoint_parameter_of(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                                       uint32_t *key_bytes);

#endif
