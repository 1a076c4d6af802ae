/*
 * tools/convert/core/output.h - a checkpoint as a writer lays it out: files with final sizes,
 * tensors in them, the bytes between, and the checksums it needs. A format's `plan` and `finish`
 * (core/format.h) fill it.
 *
 * WHAT A WRITER SAYS
 *
 * `plan` says, before a byte is written:
 *
 *   - the files with their sizes;
 *   - the layout of the tensors in them (a container is the index of a file);
 *   - the literal bytes between (headers, pickles, zip directories);
 *   - which checksums it needs of what will have been written.
 *
 * Bytes that are neither a tensor's nor literal are zero.
 *
 * After everything is written, `finish` gets the checksums. It adds the literals that depend on
 * them, and the small files that make the directory a checkpoint. The last small file is the commit
 * marker.
 *
 * A tensor of the output has the source's name and shape. Its dtype differs only if the options
 * asked for it: the executor casts.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_OUTPUT_H
#define CAIRN_TOOLS_CONVERT_CORE_OUTPUT_H

#include "tools/convert/core/checkpoint.h"

/* Which of DeepSpeed's optimizers will load the target; the numbers are ZeRO's stages. */
enum cairn_zero { CAIRN_ZERO_1 = 1, CAIRN_ZERO_2 = 2, CAIRN_ZERO_3 = 3, CAIRN_ZERO_BF16 = 4 };

struct cairn_output_options {
    struct cairn_parallelism parallelism; /* of the target; 0: as the source, or 1 */
    enum cairn_zero zero;                 /* 0: not given */
    const char *job;                      /* path of a job file (state/job_file.h); NULL: none */
    enum cairn_dtype dtype;               /* of parameters; 0: unchanged. The executor casts */
    uint64_t file_bytes_max;              /* of data in one file; 0: the format's usual size */
    bool canonical_names;                 /* a tree does not keep the source's keys */
    bool single_file;                     /* the target is one file, whose path is "" */
};

struct cairn_output_file {
    char *path;     /* in the target directory; "" if the target is one file */
    uint64_t bytes; /* final size, all included */
};

/* Bytes that are known beforehand, or by `finish`. */
struct cairn_output_literal {
    uint32_t file;
    uint64_t offset_bytes;
    uint64_t bytes_len;
    uint8_t *bytes; /* owned */
};

/* A file that is written as one unit, atomically, after all others. */
struct cairn_output_small {
    char *path;
    uint8_t *bytes; /* owned */
    size_t bytes_len;
};

/* A tensor of the source that is not written, because a written one has the same elements. */
struct cairn_output_equal {
    uint32_t tensor, of; /* of the source */
};

/* All zero is the empty value. */
struct cairn_output {
    const struct cairn_format *format;
    struct cairn_layout *layout; /* containers are files */
    struct cairn_output_file *files;
    uint32_t file_count;
    struct cairn_output_literal *literals;
    uint32_t literal_count;
    /* What the executor takes of what it writes, and sets before `finish` is called. Ranges of a
     * file do not overlap, and hold no literal of `finish`. */
    struct cairn_sum *sums;
    uint32_t sum_count;
    struct cairn_output_small *smalls; /* in the order of writing; the last is the marker */
    uint32_t small_count;
    uint64_t small_bytes; /* about what `finish` will add to them, to check the free disk space */
    uint32_t *carried; /* source tensors that are in literals or small files, not in the layout */
    uint32_t carried_count;
    struct cairn_output_equal *equals;
    uint32_t equal_count;
    void *state; /* the format's own, freed by its `release` */
};

/* Frees what the output owns; the format's `release` frees `state`. The empty value is allowed. */
void cairn_output_fini(struct cairn_output *output);

/* For writers. Errors: CAIRN_NOMEM, and CAIRN_INTERNAL for contradictions. Sizes of files are set
 * last: cairn_output_set_bytes. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_file(struct cairn_output *output, const char *path,
                                                 uint32_t *file);
void cairn_output_set_bytes(struct cairn_output *output, uint32_t file, uint64_t bytes);
/* Takes over `bytes` (from malloc), also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_literal(struct cairn_output *output, uint32_t file,
                                                    uint64_t offset_bytes, uint8_t *bytes,
                                                    size_t bytes_len);
CAIRN_MUST_CHECK cairn_err cairn_output_add_sum(struct cairn_output *output, uint32_t file,
                                                enum cairn_crc_kind kind, uint64_t offset_bytes,
                                                uint64_t bytes, uint64_t block_bytes,
                                                uint32_t *sum);
/* Takes over `bytes` (from malloc), also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_small(struct cairn_output *output, const char *path,
                                                  uint8_t *bytes, size_t bytes_len);

/* The same of a copy of a text. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_text(struct cairn_output *output, const char *path,
                                                 const char *text);

/* Notes that literals or small files carry a tensor of the source (its index). The conversion stops
 * at a source tensor that is neither carried, nor in the layout, nor an alias: it was forgotten. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_carried(struct cairn_output *output, uint32_t tensor);

/* Notes that a tensor of the source is not written, because the format keeps it and `of` once. Both
 * are read and compared before anything is written: equal, or BF16 or F16 rounded from F32. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_equal(struct cairn_output *output, uint32_t tensor,
                                                  uint32_t of);

/* The dtype in which a tensor of the source is written: options->dtype, if set, for floating
 * parameters and buffers; else the source's. */
enum cairn_dtype cairn_output_dtype(const struct cairn_output_options *options,
                                    const struct cairn_tensor *tensor);

/* What a tensor of the source is written as: the original of an alias if both have one dtype then,
 * else itself. A parameter that is cast is no longer its master. UINT32_MAX is its own. */
uint32_t cairn_output_past_alias(const struct cairn_checkpoint *source,
                                 const struct cairn_output_options *options, uint32_t tensor);

/* Adds the tensor of the source (with the dtype of cairn_output_dtype) to the output's layout, and
 * a box in a file, as cairn_checkpoint_add_tensor, _add_box and _add_flat do for readers. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_tensor(struct cairn_output *output,
                                                   const struct cairn_output_options *options,
                                                   const struct cairn_tensor *tensor,
                                                   uint32_t *index);
CAIRN_MUST_CHECK cairn_err cairn_output_add_box(struct cairn_output *output, uint32_t tensor,
                                                uint32_t file, const uint64_t *start,
                                                const uint64_t *extent, uint64_t offset_bytes,
                                                const uint64_t *stride_bytes);
/* The tensor and a box that is all of it, row-major. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_whole(struct cairn_output *output,
                                                  const struct cairn_output_options *options,
                                                  const struct cairn_tensor *tensor, uint32_t file,
                                                  uint64_t offset_bytes);
CAIRN_MUST_CHECK cairn_err cairn_output_add_flat(struct cairn_output *output, uint32_t tensor,
                                                 uint32_t file, const uint64_t *start,
                                                 const uint64_t *extent, uint64_t flat_begin,
                                                 uint64_t flat_end, uint64_t offset_bytes);

#endif
