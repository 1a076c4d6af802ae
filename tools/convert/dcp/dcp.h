/*
 * tools/convert/dcp/dcp.h - what the reader and the writer of PyTorch Distributed Checkpoints
 * share; for dcp/format.c, dcp/items.c, dcp/chunks.c and dcp/write.c.
 *
 * Names that do not follow from canonical names are kept as opaque state: state/kept_names.h.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_DCP_H
#define CAIRN_TOOLS_CONVERT_DCP_DCP_H

#include "tools/convert/core/output.h"
#include "tools/convert/dcp/metadata.h"
#include "tools/convert/state/names.h"
#include "tools/convert/state/reserved.h"

#define CAIRN_DCP_METADATA ".metadata"

enum {
    CAIRN_DCP_OBJECT_BYTES_MAX = 1 << 28, /* of one bytes object that is read into memory */
    CAIRN_DCP_TREE_BYTES_MAX = 1 << 28
};

/* ---- items: dcp/items.c ---- */

/* The `.metadata` of a checkpoint; as cairn_dcp_metadata_parse, and the errors of reading. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_metadata_load(const struct cairn_checkpoint *checkpoint,
                                                   struct cairn_dcp_metadata *out);

/* Where something lies in the checkpoint's files. It points into the metadata's `kept`. */
struct cairn_dcp_wanted {
    struct cairn_dcp_item item;
    const uint64_t *box; /* of a tensor's chunk: start[dims], extent[dims] */
    uint32_t entry;
    uint32_t chunk; /* of a tensor */
};

struct cairn_dcp_wants {
    struct cairn_dcp_wanted *items; /* freed by the caller */
    size_t count;
};

/* Adds the items of a tensor's chunks that are not empty, or of a bytes object. CAIRN_NOMEM, and
 * the errors of cairn_dcp_find_item. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_want_entry(const struct cairn_checkpoint *checkpoint,
                                                struct cairn_dcp_metadata *metadata, uint32_t entry,
                                                struct cairn_dcp_wants *wants);

/* Sorts by file and offset. CAIRN_CORRUPT, complained about, if two items share bytes. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_wants_sort(const struct cairn_checkpoint *checkpoint,
                                                const struct cairn_dcp_metadata *metadata,
                                                struct cairn_dcp_wants *wants);

/* An open file of the checkpoint. */
struct cairn_dcp_source {
    const struct cairn_pickle_node *path;
    int fd; /* -1: none */
    uint32_t container;
    struct cairn_file_mark mark; /* taken before anything was read */
    char name[1024];
};

/* Opens the file of an item, if it is not the open one. The errors of cairn_checkpoint_add_file. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_source_select(struct cairn_checkpoint *checkpoint,
                                                   struct cairn_dcp_source *source,
                                                   const struct cairn_dcp_item *item,
                                                   const char *name);
void cairn_dcp_source_close(struct cairn_dcp_source *source);

enum { CAIRN_DCP_WHERE_BYTES_MAX = 512 };

/* What an item is called in messages: file, offset and the entry's name. */
void cairn_dcp_say_where(const struct cairn_dcp_source *source, const struct cairn_dcp_item *item,
                         const char *name, char where[CAIRN_DCP_WHERE_BYTES_MAX]);

/* The order of two names of files. */
int cairn_dcp_compare_paths(const struct cairn_pickle_node *a, const struct cairn_pickle_node *b);

/* Adds a bytes object as opaque state called `name`, to which ".pickle" is added where that is what
 * it is; final_name gets what it is called. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_add_object(struct cairn_checkpoint *checkpoint,
                                                const struct cairn_dcp_source *source,
                                                const struct cairn_dcp_wanted *wanted,
                                                const char *name,
                                                char final_name[CAIRN_NAME_BYTES_MAX]);

/* Reads the pickle of a bytes object that has no tensors into memory that the caller frees. *bytes
 * is NULL where it has some, or is not an archive. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_load_object(const struct cairn_dcp_source *source,
                                                 const struct cairn_dcp_wanted *wanted,
                                                 const char *name, uint8_t **bytes,
                                                 size_t *bytes_len,
                                                 struct cairn_complaint *complaint);

/* ---- tensors' chunks, opened on several threads: dcp/chunks.c ---- */

/* A chunk whose item was read as far as to know where its elements lie. */
struct cairn_dcp_chunk {
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX]; /* of the box in the array */
    uint64_t at;                                            /* of its first element, in the file */
    uint64_t stride_bytes[CAIRN_DIMS_MAX];
    uint64_t stored_at, stored_bytes; /* of the storage that it lies in */
    uint32_t crc32;                   /* of the storage; 0: the archive does not say */
    struct cairn_file_mark mark;      /* of the file in which this was found */
};

struct cairn_dcp_chunks;

/* What opens the chunks of all `wants`, which are sorted and are asked for in this order. Borrows
 * its arguments. The caller ends it with cairn_dcp_chunks_close (NULL is allowed). CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_chunks_open(const struct cairn_checkpoint *checkpoint,
                                                 const struct cairn_dcp_metadata *metadata,
                                                 const struct cairn_dcp_wants *wants,
                                                 struct cairn_dcp_chunks **out);
void cairn_dcp_chunks_close(struct cairn_dcp_chunks *chunks);

/* The chunk of wants->items[index], a tensor's, whose file `source` has selected: valid until the
 * next call. Its checksum goes to the checkpoint. CAIRN_CORRUPT, also where the file was another
 * one when the chunk was opened, CAIRN_IO, CAIRN_NOMEM; complained about. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_chunks_take(struct cairn_dcp_chunks *chunks, size_t index,
                                                 struct cairn_checkpoint *checkpoint,
                                                 const struct cairn_dcp_source *source,
                                                 const struct cairn_dcp_chunk **chunk);

/* ---- writing: dcp/write.c ---- */

cairn_err cairn_dcp_plan(const struct cairn_checkpoint *checkpoint,
                         const struct cairn_output_options *options, struct cairn_output *output);
cairn_err cairn_dcp_finish(const struct cairn_checkpoint *checkpoint, struct cairn_output *output);

#endif
