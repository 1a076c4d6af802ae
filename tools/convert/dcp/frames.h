/*
 * tools/convert/dcp/frames.h - what the files behind dcp/output.h share: dcp/output.c (files and
 * chunks) and dcp/objects.c.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_FRAMES_H
#define CAIRN_TOOLS_CONVERT_DCP_FRAMES_H

#include "tools/convert/dcp/output.h"

/* The file of a rank that grows. */
struct cairn_dcp_rank_file {
    bool open;
    uint32_t number; /* of the next one */
    uint32_t file;
    uint64_t bytes;
    struct cairn_pickle_node *name;
};

/* A chunk whose archive is closed by `finish`. */
struct cairn_dcp_open_chunk {
    enum cairn_dtype dtype;
    uint32_t dims;
    uint32_t file;
    uint32_t sum;
    uint64_t begin; /* of the archive, in the file */
    uint64_t extent[CAIRN_DIMS_MAX];
};

/* What is kept between plan and finish. */
struct cairn_dcp_kept {
    struct cairn_dcp_open_chunk *chunks;
    size_t chunk_count;
    struct cairn_torch_output *archives; /* of objects, which `finish` closes */
    uint32_t archive_count;
    uint8_t *index_bytes;
    size_t index_bytes_len;
};

/* Room for an item in a rank's file. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_take_place(struct cairn_dcp_output *dcp, uint32_t rank,
                                                uint64_t bytes, struct cairn_dcp_spot *spot,
                                                uint32_t *file);

#endif
