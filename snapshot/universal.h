/*
 * snapshot/universal.h - the universal checkpoint: whole tensors in safetensors files that stock
 * tools read.
 *
 * A directory of
 *   param-00001-of-00006.safetensors      parameters and buffers: loads as a model's state
 *   optimizer-00001-of-00006.safetensors  optimizer state
 *   opaque-00001-of-00002.safetensors     opaque blobs, one U8 tensor each
 *   model.safetensors.index.json          which param file holds what, for Hugging Face tools
 *   index.json                            tensors, files, the CRC-64 of every block of them
 *   COMMIT                                written last: bytes and CRC-64 of index.json
 *
 * A directory without a COMMIT that fits its index.json is not a checkpoint. The format of
 * index.json stands in universal_index.c.
 *
 * A file is a safetensors file: u64 header length, JSON header padded with spaces so that the data
 * section starts at a multiple of CAIRN_UNIVERSAL_ALIGN_BYTES, then the tensors without gaps,
 * larger elements first, so that each is aligned to its elements. The header follows from the index
 * alone, so a header is checked by packing it again and comparing bytes.
 *
 * Planning and packing are pure and deterministic: every agent computes the same from the same
 * layout, in any order of the layout's tensors. Only the functions named _dir_ touch a
 * disk.
 */
#ifndef CAIRN_SNAPSHOT_UNIVERSAL_H
#define CAIRN_SNAPSHOT_UNIVERSAL_H

#include "snapshot/layout.h"
#include "snapshot/manifest.h"

enum {
    CAIRN_UNIVERSAL_ALIGN_BYTES = 4096,
    CAIRN_UNIVERSAL_NAME_BYTES_MAX = 64,          /* of a file, its NUL included */
    CAIRN_UNIVERSAL_JOB_BYTES_MAX = 128,          /* of a job's name, its NUL included */
    CAIRN_UNIVERSAL_HEADER_BYTES_MAX = 100000000, /* what safetensors readers accept */
    CAIRN_UNIVERSAL_INDEX_BYTES_MAX = 1 << 30,
    CAIRN_UNIVERSAL_FILES_MAX = 3 * 4096
};

enum cairn_universal_class {
    CAIRN_CLASS_PARAM = 0,
    CAIRN_CLASS_OPTIMIZER = 1,
    CAIRN_CLASS_OPAQUE = 2
};

struct cairn_universal_tensor {
    struct cairn_tensor tensor;
    uint32_t file; /* index into files */
    uint32_t reserved;
    uint64_t offset_bytes; /* from the start of the file's data section */
    uint64_t bytes;
};

struct cairn_universal_file {
    char name[CAIRN_UNIVERSAL_NAME_BYTES_MAX];
    enum cairn_universal_class kind;
    uint32_t writer;       /* container number of the node that writes it */
    uint32_t tensor_first; /* its tensors are tensors[tensor_first … + tensor_count) in the order of
                              offsets */
    uint32_t tensor_count;
    uint64_t data_offset; /* of the data section in the file: the bytes of the header */
    uint64_t data_bytes;
    uint64_t block_count; /* ceil(data_bytes / CAIRN_BLOCK_BYTES) */
    uint64_t *block_crcs; /* [block_count], NULL until they are known */
};

/* All zero is the empty value. */
struct cairn_universal {
    char job[CAIRN_UNIVERSAL_JOB_BYTES_MAX];
    uint64_t job_id;
    struct cairn_generation_id generation;
    struct cairn_universal_file *files;
    uint32_t file_count;
    uint32_t tensor_count;
    struct cairn_universal_tensor *tensors; /* by file, then offset */
};

void cairn_universal_fini(struct cairn_universal *universal); /* frees what it owns and zeroes it */

/*
 * Assigns every tensor of `source` (containers are nodes) to one file of one of
 * writers[writer_count] (container numbers, distinct): the writer that holds most of the tensor, as
 * long as no writer gets more than its fair share (plus a twentieth); and lays out the files. A
 * writer has one file per class at most, and none for a class without tensors. `job` is copied.
 * CAIRN_INVAL (logged, with the name) for no writer, no tensor, a job or tensor name that is too
 * long, no UTF-8 or "__metadata__", two names for one writer, sums that overflow, a header beyond
 * CAIRN_UNIVERSAL_HEADER_BYTES_MAX. CAIRN_NOMEM. The caller ends *out with cairn_universal_fini.
 */
CAIRN_MUST_CHECK cairn_err cairn_universal_plan(const struct cairn_layout *source,
                                                const uint32_t *writers, uint32_t writer_count,
                                                const char *job, uint64_t job_id,
                                                struct cairn_generation_id generation,
                                                struct cairn_universal *out);

/* The first data_offset bytes of a file, freed by the caller. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_universal_header_pack(const struct cairn_universal *universal,
                                                       uint32_t file, uint8_t **bytes,
                                                       size_t *bytes_len);

/* The target layout: container = file index, offsets from the start of the data section. */
CAIRN_MUST_CHECK cairn_err cairn_universal_layout(const struct cairn_universal *universal,
                                                  struct cairn_layout **out);

/* Takes over the block checksums of a file (from malloc). CAIRN_INVAL, nothing taken, if their
 * number does not fit. */
CAIRN_MUST_CHECK cairn_err cairn_universal_crcs_set(struct cairn_universal *universal,
                                                    uint32_t file, uint64_t *block_crcs,
                                                    uint64_t block_count);

/* index.json, with a NUL after it; freed by the caller. CAIRN_INVAL if a file's checksums are
 * unknown; CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_universal_index_pack(const struct cairn_universal *universal,
                                                      char **text, size_t *text_bytes);

/* model.safetensors.index.json, the same way. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_universal_weight_map_pack(const struct cairn_universal *universal,
                                                           char **text, size_t *text_bytes);

/*
 * Reads an index.json, checking everything that can be checked without its files. Bounded and total
 * on hostile bytes: memory is at most a small multiple of the input. CAIRN_CORRUPT or
 * CAIRN_VERSION, logged with what and where.
 */
CAIRN_MUST_CHECK cairn_err cairn_universal_index_parse(const void *text, size_t text_bytes,
                                                       struct cairn_universal *out);

/* The manifest of one file, as a container: container = file index, entries = whole tensors,
 * offsets in the data section. */
CAIRN_MUST_CHECK cairn_err cairn_universal_manifest(const struct cairn_universal *universal,
                                                    uint32_t file, struct cairn_manifest *out);

/* COMMIT for an index.json, the same way; its length is its strlen. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_universal_commit_pack(const char *index, size_t index_bytes,
                                                       char **text);

/*
 * Makes the directory a checkpoint after all its files are written: the weight map, index.json, and
 * last COMMIT, each synced. The errors of base/file.h; without CAIRN_OK it may only be removed or
 * finished again. Blocks on the disk.
 */
CAIRN_MUST_CHECK cairn_err cairn_universal_dir_commit(int dir_fd,
                                                      const struct cairn_universal *universal);

/*
 * Opens a checkpoint: COMMIT exists, index.json fits it and is sound, every file exists with its
 * size and its header. CAIRN_NOT_FOUND: no COMMIT (not logged). CAIRN_CORRUPT, CAIRN_VERSION:
 * `report` (report_bytes long, may be NULL) and the log name the file and the reason. The data is
 * checked when it is read (snapshot/spill.h), or by cairn_universal_dir_verify.
 */
CAIRN_MUST_CHECK cairn_err cairn_universal_dir_open(int dir_fd, struct cairn_universal *out,
                                                    char *report, size_t report_bytes);

/* Reads every data block of an opened checkpoint and checks it. CAIRN_CORRUPT as above; reads all
 * bytes, so it blocks for long. */
CAIRN_MUST_CHECK cairn_err cairn_universal_dir_verify(int dir_fd,
                                                      const struct cairn_universal *universal,
                                                      char *report, size_t report_bytes);

#endif
