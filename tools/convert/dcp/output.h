/*
 * tools/convert/dcp/output.h - the files of items of a distributed checkpoint that is written, and
 * its `.metadata`; for the formats that are such checkpoints, which decide about names.
 *
 * There is a file "__<rank>_<number>.distcp" per rank of the target (and a next one where a file
 * would become too large). A tensor is cut along its first dimension as torch.chunk does it;
 * scalars and objects belong to rank 0. Each chunk is an archive of torch.save, whose bytes before
 * the data are known beforehand; those after the data hold its checksum and are made again when all
 * checksums are known.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_OUTPUT_H
#define CAIRN_TOOLS_CONVERT_DCP_OUTPUT_H

#include "tools/convert/dcp/dcp.h"
#include "tools/convert/torch/refs.h"
#include "tools/convert/state/names.h"
#include "tools/convert/torch/tree.h"

struct cairn_dcp_kept;
struct cairn_dcp_rank_file;

/* The `.metadata` that is put together. Failures are the arena's. */
struct cairn_dcp_index {
    struct cairn_pickle pickle;
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *classes[8]; /* made once; see dcp/output.c */
    struct cairn_pickle_node *words[8];
    struct cairn_pickle_node *memory_format, *layout;
    struct cairn_pickle_node *state, *planner, *storage; /* dicts */
    struct cairn_pickle_node *name, *chunks;             /* of the last entry */
    uint32_t chunk_count;
};

struct cairn_dcp_spot {
    struct cairn_pickle_node *file; /* the name of a file, one node for all items in it */
    uint64_t offset_bytes;
    uint64_t bytes;
};

/* All zero is the empty value. */
struct cairn_dcp_output {
    const struct cairn_checkpoint *source;
    const struct cairn_output_options *options;
    struct cairn_output *output;
    struct cairn_dcp_kept *kept; /* what `finish` needs */
    struct cairn_dcp_index index;
    struct cairn_dcp_rank_file *ranks;
    uint32_t rank_count;
    uint64_t chunk_bytes_min; /* what is not larger is not cut, and is the next rank's; 0: all are
                               * cut */
    uint32_t next_rank;
    bool *inside; /* [tensors of the source]: it lies in an object, and gets no item of its own */
};

/* Borrows all it is given. The caller ends *dcp with cairn_dcp_output_fini, also on failure, and
 * what is in *kept with cairn_dcp_kept_end, after that. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_init(struct cairn_dcp_output *dcp,
                                                 const struct cairn_checkpoint *source,
                                                 const struct cairn_output_options *options,
                                                 struct cairn_output *output,
                                                 struct cairn_dcp_kept **kept);
void cairn_dcp_output_fini(struct cairn_dcp_output *dcp);

/* How an array of the checkpoint is filled: a tensor's elements [from, from + rows) of the first
 * dimension lie at `at` in an array that has `ahead` more dimensions in front of the tensor's. */
struct cairn_dcp_part {
    uint32_t tensor; /* of the source */
    uint32_t ahead;
    uint64_t at[CAIRN_DIMS_MAX]; /* [ahead] */
    uint64_t from, rows;         /* rows 0: the whole tensor */
};

/* Begins an array; its parts follow. `path` may be empty. */
void cairn_dcp_output_array(struct cairn_dcp_output *dcp, const char *name,
                            const struct cairn_state_path *path, enum cairn_dtype dtype,
                            uint32_t dims, const uint64_t *shape);

/* The chunks of a part. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_part(struct cairn_dcp_output *dcp,
                                                 const struct cairn_dcp_part *part);

/* A tensor that is an array of its own. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_tensor(struct cairn_dcp_output *dcp, uint32_t tensor,
                                                   const char *name,
                                                   const struct cairn_state_path *path);

/* An object whose bytes are all known: `root`, a node of `tree`, pickled. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_literal(struct cairn_dcp_output *dcp, const char *name,
                                                    const struct cairn_state_path *path,
                                                    const struct cairn_pickle *tree,
                                                    const struct cairn_pickle_node *root);

/* A pickle (the name ends in ".pickle") as an object that torch.load reads, with the tensors in it.
 * *done stays false if torch would not read it; it is then carried as bytes. `bytes` are the
 * state's. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_object(struct cairn_dcp_output *dcp, uint32_t tensor,
                                                   const uint8_t *bytes, size_t bytes_len,
                                                   const char *name,
                                                   const struct cairn_state_path *path, bool *done);

/* An object of a pickle that is not the source's own, but whose tensors are: they lie in it and get
 * no items of their own. CAIRN_NOT_FOUND where one of them is not there. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_made(struct cairn_dcp_output *dcp, const uint8_t *bytes,
                                                 size_t bytes_len, const char *name,
                                                 const struct cairn_state_path *path);

/* Makes `.metadata`, after all else. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_output_end(struct cairn_dcp_output *dcp);

/* Adds what depends on checksums, and `.metadata` as a small file. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_kept_finish(struct cairn_dcp_kept *kept,
                                                 struct cairn_output *output);
void cairn_dcp_kept_end(void *kept); /* NULL is allowed */

/* A path of keys as the tuple that PyTorch has it in. */
struct cairn_pickle_node *cairn_dcp_path_node(struct cairn_pickle *pickle,
                                              const struct cairn_state_path *path);

#endif
