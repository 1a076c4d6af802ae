/*
 * tools/convert/core/format.h - the table behind which every checkpoint format lives.
 *
 * A format reads metadata into a `cairn_checkpoint` and lays a checkpoint out as a `cairn_output`.
 * Both are a layout of snapshot/layout.h plus its containers, so the one engine of
 * snapshot/reshard.h stands between any two formats, and no format ever moves a tensor's bytes:
 * the executor (execute.h) does.
 *
 *     place --probe/read--> checkpoint --(map)--> checkpoint --plan--> output
 *                                 \__ reshard, tiles, sums, fingerprints __/ --finish--> marker
 *
 * WHAT A READER SAYS
 *
 * Tensors. One per logical, global array of the job, unsharded: global shape, unpadded (padding of
 * a vocabulary or a flat buffer is bytes that no piece covers). Names are canonical, so that the
 * same state has the same names in every format:
 *   - a parameter or buffer: its name in the module ("layers.0.weight"), without what wrappers and
 *     containers put in front ("module.", "model." of a dict of state dicts, "_orig_mod.");
 *   - optimizer state: "<key>.<parameter>", the key without a dot: "fp32.layers.0.weight" (the
 *     master weight), "exp_avg.layers.0.weight", "exp_avg_sq.…", "step.…" (a scalar), whatever the
 *     optimizer calls it. A format that knows no names (a flat buffer) finds the parameter first;
 *   - opaque state: a CAIRN_U8 tensor of one dimension, kind CAIRN_OPAQUE; see below.
 * A format that needs more to write itself back exactly (a prefix that it took off, an order) keeps
 * it as opaque bytes named "<format>/<what>"; all others carry them along unread.
 *
 * Pieces. Where each part of each tensor lies: a box of the tensor, a container, the byte offset of
 * the box's first element and a byte stride per dimension. That fits
 *   - a chunk of DCP, a safetensors tensor: one piece, row-major strides;
 *   - a torch.save view: one piece with the storage's strides (0 for an expanded dimension);
 *   - a transposed or interleaved part (fused qkv, GLU halves, Conv1D, stacked experts): a piece
 *     per part, with offset and strides of where it lies in the fused array;
 *   - a flat range of a row-major box (ZeRO, Megatron's distributed optimizer), which may begin and
 *     end anywhere: cairn_checkpoint_add_flat cuts it into at most 2 * dims - 1 pieces;
 *   - replicas: each holder adds its own piece. The executor compares all of them.
 * A reader does not check that a tensor is whole: the engine proves it before anything is written,
 * and names what is missing.
 *
 * Opaque state. What is no tensor travels as bytes: RNG states, schedulers, arguments. Its pieces
 * lie in a file, or in memory (cairn_checkpoint_add_opaque). The name is a path of the keys joined
 * by '.', with a scope before a '/' where it belongs to one rank ("rank3/rng"). A name that ends in
 * ".pickle" says that the bytes are one pickle of plain inert data, as pickle/write.h emits it; a
 * tensor inside is a persistent id: the tuple ("tensor", name), and the tensor is in the layout.
 *
 * Tied tensors. A tensor whose elements are another's by construction is added as an alias: it has
 * no pieces. A writer that can say "the same" does; one that cannot writes it twice.
 *
 * Nothing read here is executed, and everything is bounded: see limits below. Names of files that
 * come out of a checkpoint pass cairn_place_name_check, or are refused.
 *
 * WHAT A WRITER SAYS
 *
 * The files with their sizes; the layout of the tensors in them (a container is a file's index);
 * the literal bytes between (headers, pickles, zip directories); which checksums it needs of what
 * will have been written. Bytes that are neither are zero. After all is written, `finish` gets the
 * sums and adds the literals that depend on them and the small files that make the directory a
 * checkpoint; the last small file is the commit marker.
 *
 * A tensor of the output has the source's name and shape. Its dtype may differ only where the
 * options asked for it: the executor casts.
 */
#ifndef CAIRN_TOOLS_CONVERT_CORE_FORMAT_H
#define CAIRN_TOOLS_CONVERT_CORE_FORMAT_H

#include "cairn/err.h"
#include "cairn/types.h"
#include "snapshot/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_CONVERT_CONTAINERS_MAX = 1 << 22, /* files and blobs of a checkpoint */
    CAIRN_CONVERT_TENSORS_MAX = 1 << 24,
    CAIRN_CONVERT_PIECES_MAX = 1 << 26,
    CAIRN_CONVERT_METADATA_BYTES_MAX = 1 << 30, /* of one file of metadata, read into memory
                                                 * whole */
    CAIRN_COMPLAINT_BYTES_MAX = 1024
};

/* ---- what went wrong: what, where (file, offset, tensor), what to do ---- */

struct cairn_complaint {
    char text[CAIRN_COMPLAINT_BYTES_MAX]; /* "": nothing was said */
};

/* Sets the text, unless one is there already (the first is the cause), and returns `err`.
 * `complaint` may be NULL. */
cairn_err cairn_complain(struct cairn_complaint *complaint, cairn_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- where a checkpoint is: a directory, or one file ---- */

struct cairn_place {
    char *path; /* as the user said it, for messages */
    int dir_fd; /* of the directory, or of the one that the file is in */
    char *name; /* of the file in dir_fd; NULL: the place is a directory */
};

/* Opens a place that must be there. CAIRN_NOT_FOUND, CAIRN_DENIED, CAIRN_IO, CAIRN_NOMEM, said in
 * the complaint. Symbolic links are followed, here and below: what is named is the user's own. */
CAIRN_MUST_CHECK cairn_err cairn_place_open(const char *path, struct cairn_place *out,
                                            struct cairn_complaint *complaint);
void cairn_place_close(struct cairn_place *place); /* an all-zero one is allowed */

/* True for a relative path of plain names ("a/b.pt"): no "..", no empty name, no leading '/', at
 * most 1023 bytes, UTF-8 without control characters. */
bool cairn_place_name_check(const char *name);

/* Opens a file of the place for reading; `name` "" is the place itself where it is a file. The
 * caller closes *fd. CAIRN_NOT_FOUND is not complained about; everything else is. */
CAIRN_MUST_CHECK cairn_err cairn_place_open_file(const struct cairn_place *place, const char *name,
                                                 int *fd, struct cairn_complaint *complaint);

/* True where the place is a directory with a regular file (or a link to one) of that name. */
bool cairn_place_has_file(const struct cairn_place *place, const char *name);

/* Reads a whole file of at most bytes_max bytes, with a NUL after its end (not counted); the caller
 * frees *bytes. Errors as cairn_place_open_file; CAIRN_CORRUPT where it is longer. */
CAIRN_MUST_CHECK cairn_err cairn_place_load(const struct cairn_place *place, const char *name,
                                            size_t bytes_max, uint8_t **bytes, size_t *bytes_len,
                                            struct cairn_complaint *complaint);

/* The names in the directory `name` of the place ("" is the place itself), sorted by bytes; freed
 * by cairn_dir_list_free (base/file.h). */
CAIRN_MUST_CHECK cairn_err cairn_place_list(const struct cairn_place *place, const char *name,
                                            char ***names, size_t *count,
                                            struct cairn_complaint *complaint);

/* ---- a checkpoint that was read ---- */

/* Sizes of the groups of ranks that wrote it, or shall read it; 0: not known, or not asked for. */
struct cairn_parallelism {
    uint32_t tp, pp, vpp, dp, ep, etp;
};

/*
 * What a file is known by again. Nobody sets a ctime back, and what is put in a file's place has
 * another one. The number of its inode is not looked at: file systems of networks and of user space
 * may have another one for the same file when it is opened again.
 */
struct cairn_file_mark {
    uint64_t bytes;
    uint64_t modified_ns, changed_ns; /* since 1970 */
};

/* That of an open file, to be taken before it is read. CAIRN_CORRUPT where it is no regular file,
 * CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_file_mark_take(int fd, struct cairn_file_mark *out);
bool cairn_file_mark_equal(const struct cairn_file_mark *a, const struct cairn_file_mark *b);

struct cairn_container {
    char *path;       /* in the place, "" for the place itself; NULL: the bytes are in memory */
    uint8_t *literal; /* bytes[bytes_len] where path is NULL, else NULL */
    uint64_t bytes;
    struct cairn_file_mark mark; /* of the file; one that has another by now is refused */
};

/* Checksums that the checkpoint has of its own bytes: where one does not fit what was read, the
 * checkpoint is damaged. */
enum cairn_sum_kind {
    CAIRN_SUM_CRC64 = 1, /* base/crc.h */
    CAIRN_SUM_CRC32 = 2  /* of zip */
};

struct cairn_source_sum {
    uint32_t container;
    enum cairn_sum_kind kind;
    uint64_t offset_bytes;
    uint64_t bytes;
    uint64_t block_bytes; /* one value for each; the last may be shorter */
    uint64_t count;
    uint64_t *values; /* [count], owned */
};

struct cairn_alias {
    uint32_t tensor; /* has no pieces: its elements are those of `of` */
    uint32_t of;     /* no alias itself; same dtype and shape */
};

struct cairn_format;

/* All zero is the empty value, but for place.dir_fd. */
struct cairn_checkpoint {
    const struct cairn_format *format;
    struct cairn_place place; /* owned */
    uint32_t thread_count;    /* a reader starts no more than these, itself among them; 0: not
                               * said */
    char framework[128];      /* who wrote it, for people: "PyTorch 2.13"; "": it does not say */
    bool step_known;
    uint64_t step; /* iteration or global step */
    struct cairn_parallelism parallelism;
    struct cairn_layout *layout;
    struct cairn_container *containers; /* [container_count]; pieces name them by index */
    uint32_t container_count;
    uint32_t container_room;
    struct cairn_alias *aliases;
    uint32_t alias_count;
    uint32_t alias_room;
    struct cairn_source_sum *sums;
    uint32_t sum_count;
    uint32_t sum_room;
    uint64_t unsummed_count; /* storages and objects whose writer took no checksums */
    uint32_t unsummed_first; /* the container with the first of them */
    char **warnings;         /* what the user should hear, one line each */
    uint32_t warning_count;
};

/* Finds the format that knows the place (`format` NULL: ask all of them) and reads its metadata. On
 * success the caller ends *out with cairn_checkpoint_close. CAIRN_NOT_FOUND: no such place, or no
 * format knows it; else the errors of `read`. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_open(const char *path,
                                                 const struct cairn_format *format,
                                                 struct cairn_checkpoint *out,
                                                 struct cairn_complaint *complaint);
/* The same on at most so many threads. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_open_threads(const char *path,
                                                         const struct cairn_format *format,
                                                         uint32_t thread_count,
                                                         struct cairn_checkpoint *out,
                                                         struct cairn_complaint *complaint);
void cairn_checkpoint_close(struct cairn_checkpoint *checkpoint);

/*
 * For readers. All of them complain with the checkpoint's place, `where` (a file, may be NULL) and
 * the tensor's name. CAIRN_NOMEM, CAIRN_CORRUPT for what no checkpoint may say (a box outside its
 * tensor, bytes outside their file, a tensor known with another dtype or shape), the errors of
 * files.
 */

/* What a container is called in messages: its path, or the place's where it is the place itself. */
const char *cairn_checkpoint_container_name(const struct cairn_checkpoint *checkpoint,
                                            uint32_t container);

/* A file of the place as a container; one index per call, so call it once per file. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_file(struct cairn_checkpoint *checkpoint,
                                                     const char *path, uint32_t *container,
                                                     struct cairn_complaint *complaint);
/* CAIRN_CORRUPT, with what is to be said of a file that has another mark than it had. */
cairn_err cairn_checkpoint_complain_changed(const struct cairn_checkpoint *checkpoint,
                                            const char *path, struct cairn_complaint *complaint);

/* A tensor without pieces; adding one again gives its index. dims <= CAIRN_DIMS_MAX. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_tensor(struct cairn_checkpoint *checkpoint,
                                                       const char *name, enum cairn_dtype dtype,
                                                       enum cairn_kind kind, uint32_t dims,
                                                       const uint64_t *shape, uint32_t *tensor,
                                                       struct cairn_complaint *complaint);

/* A box [start, start + extent) of a tensor (elements), its first element at offset_bytes of the
 * container. stride_bytes NULL: row-major without gaps. An empty box adds nothing. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_box(struct cairn_checkpoint *checkpoint,
                                                    uint32_t tensor, uint32_t container,
                                                    const uint64_t *start, const uint64_t *extent,
                                                    uint64_t offset_bytes,
                                                    const uint64_t *stride_bytes,
                                                    struct cairn_complaint *complaint);

/* The elements [flat_begin, flat_end) of the row-major box [start, start + extent) of a tensor,
 * which lie contiguously at offset_bytes of the container. start and extent NULL: the whole
 * tensor. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_flat(struct cairn_checkpoint *checkpoint,
                                                     uint32_t tensor, uint32_t container,
                                                     const uint64_t *start, const uint64_t *extent,
                                                     uint64_t flat_begin, uint64_t flat_end,
                                                     uint64_t offset_bytes,
                                                     struct cairn_complaint *complaint);

/* Opaque state held in memory; `bytes` are copied. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_opaque(struct cairn_checkpoint *checkpoint,
                                                       const char *name, const void *bytes,
                                                       size_t bytes_len,
                                                       struct cairn_complaint *complaint);

/* `name` has the elements of tensor `of`, by construction (tied weights). */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_alias(struct cairn_checkpoint *checkpoint,
                                                      const char *name, uint32_t of,
                                                      struct cairn_complaint *complaint);

/* The same, with a kind of its own: a parameter that is nowhere but in its master weights. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_alias_as(struct cairn_checkpoint *checkpoint,
                                                         const char *name, enum cairn_kind kind,
                                                         uint32_t of,
                                                         struct cairn_complaint *complaint);

/* The checkpoint's own checksums of a range of a container, one for each block_bytes (the last may
 * be shorter; >= bytes: one in all). They are held against what is read, as it is read. Ranges do
 * not overlap. `values` are copied. CAIRN_CORRUPT where the range leaves its container. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_sums(struct cairn_checkpoint *checkpoint,
                                                     uint32_t container, enum cairn_sum_kind kind,
                                                     uint64_t offset_bytes, uint64_t bytes,
                                                     uint64_t block_bytes, const uint64_t *values,
                                                     struct cairn_complaint *complaint);

/* The same of a storage or an object in an archive of torch.save. crc32 0: its writer took none, of
 * which the checkpoint gets one warning for all of them. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_add_storage_sum(struct cairn_checkpoint *checkpoint,
                                                            uint32_t container,
                                                            uint64_t offset_bytes, uint64_t bytes,
                                                            uint32_t crc32,
                                                            struct cairn_complaint *complaint);

/* A line that the user gets to read; not an error. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_warn(struct cairn_checkpoint *checkpoint,
                                                 const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Reads what is opaque and small (from memory or its file) for a writer that must look into it: one
 * row-major piece, at most bytes_max bytes. The caller frees *bytes. CAIRN_NOT_FOUND (not
 * complained about): no such tensor. */
CAIRN_MUST_CHECK cairn_err cairn_checkpoint_load_opaque(const struct cairn_checkpoint *checkpoint,
                                                        const char *name, size_t bytes_max,
                                                        uint8_t **bytes, size_t *bytes_len,
                                                        struct cairn_complaint *complaint);

/* The parameter that an optimizer tensor belongs to, and where its key ends in the name; UINT32_MAX
 * where it belongs to none. "exp_avg.layers.0.weight" -> index of "layers.0.weight", 7. */
uint32_t cairn_checkpoint_parameter_of(const struct cairn_checkpoint *checkpoint, uint32_t tensor,
                                       uint32_t *key_bytes);

/* ---- what shall be written ---- */

/* Which of DeepSpeed's optimizers shall load the target; the numbers of ZeRO's stages. */
enum cairn_zero { CAIRN_ZERO_1 = 1, CAIRN_ZERO_2 = 2, CAIRN_ZERO_3 = 3, CAIRN_ZERO_BF16 = 4 };

struct cairn_output_options {
    struct cairn_parallelism parallelism; /* of the target; 0: as the source, or 1 */
    enum cairn_zero zero;                 /* 0: not said */
    const char *job;                      /* deepspeed/job.h: a file's path; NULL: there is none */
    enum cairn_dtype dtype;               /* of parameters; 0: as they are. The executor casts */
    uint64_t file_bytes_max;              /* of data in one file; 0: what the format is used to */
    bool single_file;                     /* the target is one file, whose path is "" */
};

struct cairn_output_file {
    char *path;     /* in the target directory; "" where the target is one file */
    uint64_t bytes; /* whole, final size */
};

/* Bytes that are known beforehand, or by `finish`. */
struct cairn_output_literal {
    uint32_t file;
    uint64_t offset_bytes;
    uint64_t bytes_len;
    uint8_t *bytes; /* owned */
};

/* Checksums that the executor takes of what it writes: of each block of block_bytes (the last may
 * be shorter) of the range. Ranges of a file do not overlap, and hold no literal of `finish`. */
struct cairn_output_sum {
    uint32_t file;
    enum cairn_sum_kind kind;
    uint64_t offset_bytes;
    uint64_t bytes;
    uint64_t block_bytes; /* >= bytes: one sum of all */
    uint64_t count;       /* ceil(bytes / block_bytes); 0 where bytes is 0 */
    uint64_t *values;     /* [count], owned; there when `finish` is called */
};

/* A file that is written whole, atomically, after all others. */
struct cairn_output_small {
    char *path;
    uint8_t *bytes; /* owned */
    size_t bytes_len;
};

/* A tensor of the source that is not written, since one that is has the same elements. */
struct cairn_output_equal {
    uint32_t tensor, of; /* of the source */
};

/* All zero is the empty value. */
struct cairn_output {
    const struct cairn_format *format;
    struct cairn_layout *layout; /* containers are files */
    struct cairn_output_file *files;
    uint32_t file_count, file_room;
    struct cairn_output_literal *literals;
    uint32_t literal_count, literal_room;
    struct cairn_output_sum *sums;
    uint32_t sum_count, sum_room;
    struct cairn_output_small *smalls; /* in the order in which they are written; the last is the
                                        * marker */
    uint32_t small_count, small_room;
    uint64_t small_bytes; /* about what `finish` will add to them, for the room on the disk */
    uint32_t *carried; /* source tensors that are in literals or small files, not in the layout */
    uint32_t carried_count, carried_room;
    struct cairn_output_equal *equals;
    uint32_t equal_count, equal_room;
    void *state; /* the format's own, ended by its `release` */
};

void cairn_output_fini(struct cairn_output *output); /* an all-zero one is allowed */

/*
 * For writers. Errors: CAIRN_NOMEM, and CAIRN_INTERNAL for what contradicts itself. Sizes of files
 * are set last: cairn_output_set_bytes.
 */
CAIRN_MUST_CHECK cairn_err cairn_output_add_file(struct cairn_output *output, const char *path,
                                                 uint32_t *file);
void cairn_output_set_bytes(struct cairn_output *output, uint32_t file, uint64_t bytes);
/* Takes over `bytes` (from malloc), also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_literal(struct cairn_output *output, uint32_t file,
                                                    uint64_t offset_bytes, uint8_t *bytes,
                                                    size_t bytes_len);
CAIRN_MUST_CHECK cairn_err cairn_output_add_sum(struct cairn_output *output, uint32_t file,
                                                enum cairn_sum_kind kind, uint64_t offset_bytes,
                                                uint64_t bytes, uint64_t block_bytes,
                                                uint32_t *sum);
/* Takes over `bytes` (from malloc), also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_small(struct cairn_output *output, const char *path,
                                                  uint8_t *bytes, size_t bytes_len);

/* Says that a tensor of the source (its index) is carried by literals or small files: what is
 * neither said so, nor in the layout, nor an alias stops the conversion as forgotten. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_carried(struct cairn_output *output, uint32_t tensor);

/* Says that a tensor of the source (its index) is not written, because the format keeps it and
 * `of`, which is written, once: both are read and compared before anything is written, and must be
 * equal, or the first of type BF16 or F16 and what the second, of type F32, rounds to. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_equal(struct cairn_output *output, uint32_t tensor,
                                                  uint32_t of);

/* The dtype in which a tensor of the source is written: options->dtype for floating parameters and
 * floating buffers where it is set, else the source's. */
enum cairn_dtype cairn_output_dtype(const struct cairn_output_options *options,
                                    const struct cairn_tensor *tensor);

/* The tensor of the source (its dtype as cairn_output_dtype says) in the output's layout, and a
 * box of it in a file, as cairn_checkpoint_add_tensor, _add_box and _add_flat do for readers. */
CAIRN_MUST_CHECK cairn_err cairn_output_add_tensor(struct cairn_output *output,
                                                   const struct cairn_output_options *options,
                                                   const struct cairn_tensor *tensor,
                                                   uint32_t *index);
CAIRN_MUST_CHECK cairn_err cairn_output_add_box(struct cairn_output *output, uint32_t tensor,
                                                uint32_t file, const uint64_t *start,
                                                const uint64_t *extent, uint64_t offset_bytes,
                                                const uint64_t *stride_bytes);
CAIRN_MUST_CHECK cairn_err cairn_output_add_flat(struct cairn_output *output, uint32_t tensor,
                                                 uint32_t file, const uint64_t *start,
                                                 const uint64_t *extent, uint64_t flat_begin,
                                                 uint64_t flat_end, uint64_t offset_bytes);

/* ---- the table ---- */

struct cairn_format {
    const char *name;  /* as in --to: "dcp" */
    const char *about; /* one line, for `cairn convert --help` */
    bool reads, writes;
    bool target_is_file; /* DST is one file unless it is a directory or ends in '/' */

    /* Whether the place is of this format, by names and by the first bytes of few files. Never
     * complains. */
    bool (*probe)(const struct cairn_place *place);

    /* Reads all metadata into a checkpoint whose place and layout are set. CAIRN_CORRUPT,
     * CAIRN_VERSION, CAIRN_NOT_FOUND (a file of the checkpoint), CAIRN_INVAL (it needs a flag to
     * be read), CAIRN_NOMEM, CAIRN_IO, each complained about. What it leaves is ended by
     * cairn_checkpoint_close. */
    cairn_err (*read)(struct cairn_checkpoint *checkpoint, struct cairn_complaint *complaint);

    /* Adds to a source what the target keeps apart and the source does not have so: opaque state,
     * and aliases. Comes before the source is proved whole. NULL: nothing to add. Errors as
     * `plan`. */
    cairn_err (*prepare)(struct cairn_checkpoint *checkpoint,
                         const struct cairn_output_options *options,
                         struct cairn_complaint *complaint);

    /* Lays the checkpoint out. Every tensor of the source is in the output's layout, or carried in
     * its literals or small files, or refused (CAIRN_INVAL, with its name): never dropped in
     * silence. The checkpoint lives until cairn_output_fini. Deterministic: the same source and
     * options give the same bytes, since a killed run is continued by planning again. */
    cairn_err (*plan)(const struct cairn_checkpoint *checkpoint,
                      const struct cairn_output_options *options, struct cairn_output *output,
                      struct cairn_complaint *complaint);

    /* All sums are there: adds the literals that depend on them, and the small files. */
    cairn_err (*finish)(const struct cairn_checkpoint *checkpoint, struct cairn_output *output,
                        struct cairn_complaint *complaint);

    void (*release)(void *state); /* NULL where `state` is never set */
};

/* Each format's file defines one; the table is formats.c, in the order in which they are asked. */
extern const struct cairn_format cairn_format_universal;
extern const struct cairn_format cairn_format_safetensors;
extern const struct cairn_format cairn_format_dcp;
extern const struct cairn_format cairn_format_megatron_dist;
extern const struct cairn_format cairn_format_torch;
extern const struct cairn_format cairn_format_deepspeed;
extern const struct cairn_format cairn_format_ds_universal;
extern const struct cairn_format cairn_format_megatron;

extern const struct cairn_format *const cairn_formats[]; /* ended by NULL */

/* By name; NULL where there is none. */
const struct cairn_format *cairn_format_find(const char *name);

#endif
