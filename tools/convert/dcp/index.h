/*
 * tools/convert/dcp/index.h - puts the `.metadata` of a distributed checkpoint together, as PyTorch
 * 2.13 writes it (dcp/metadata.h says what is in it), but with protocol 2 of pickle and without the
 * path and the id of a save.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_INDEX_H
#define CAIRN_TOOLS_CONVERT_DCP_INDEX_H

#include "tools/convert/state/names.h"
#include "tools/convert/torch/tree.h"

/* Failures are the arena's, and told by cairn_dcp_index_pack. */
struct cairn_dcp_index {
    struct cairn_pickle pickle;
    struct cairn_torch_builder builder;
    struct cairn_pickle_node *classes[8]; /* made once; see dcp/index.c */
    struct cairn_pickle_node *words[8];
    struct cairn_pickle_node *memory_format, *layout;
    struct cairn_pickle_node *state, *planner, *storage; /* dicts */
    struct cairn_pickle_node *name, *chunks;             /* of the last entry */
    uint32_t chunk_count;
};

struct cairn_dcp_spot {
    struct cairn_pickle_node *file; /* from cairn_dcp_index_file */
    uint64_t offset_bytes;
    uint64_t bytes;
};

void cairn_dcp_index_init(struct cairn_dcp_index *index, uint64_t memory_bytes);
void cairn_dcp_index_fini(struct cairn_dcp_index *index);

/* The name of a file, to be used for all items in it. */
struct cairn_pickle_node *cairn_dcp_index_file(struct cairn_dcp_index *index, const char *path);

/* Begins a tensor, whose chunks follow. */
void cairn_dcp_index_add_tensor(struct cairn_dcp_index *index, const char *name,
                                const struct cairn_state_path *path,
                                const struct cairn_torch_dtype *dtype, uint32_t dims,
                                const uint64_t *shape);
void cairn_dcp_index_add_chunk(struct cairn_dcp_index *index, uint32_t dims, const uint64_t *start,
                               const uint64_t *extent, const struct cairn_dcp_spot *spot);
void cairn_dcp_index_add_object(struct cairn_dcp_index *index, const char *name,
                                const struct cairn_state_path *path,
                                const struct cairn_dcp_spot *spot);

/* The file's bytes, which the caller frees. CAIRN_NOMEM, CAIRN_INVAL. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_index_pack(struct cairn_dcp_index *index, uint8_t **bytes,
                                                size_t *bytes_len);

/* A path of keys as the tuple that PyTorch has it in. */
struct cairn_pickle_node *cairn_dcp_path_node(struct cairn_pickle *pickle,
                                              const struct cairn_state_path *path);

#endif
