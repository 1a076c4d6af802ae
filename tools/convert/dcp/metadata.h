/*
 * tools/convert/dcp/metadata.h - what the `.metadata` of a PyTorch Distributed Checkpoint says.
 *
 * The file is a pickle of torch.distributed.checkpoint.metadata.Metadata, read as an inert tree:
 *
 *   state_dict_metadata  {name: TensorStorageMetadata(properties, size, [chunk(offsets, sizes)]),
 *                         name: BytesStorageMetadata}
 *   planner_data         {name: keys that lead to it in the nested state dict}, or None
 *   storage_data         {MetadataIndex(name, offsets): _StorageInfo(relative_path, offset, length,
 *                         transform_descriptors)}
 *
 * A chunk is an item: one archive of torch.save at [offset, offset + length) of a file. Nothing
 * here opens a file of the checkpoint.
 *
 * The tree takes several times the memory of the file. Names, keys and what a reader copies into
 * `kept` outlive the tree, which readers free before they build the layout.
 */
#ifndef CAIRN_TOOLS_CONVERT_DCP_METADATA_H
#define CAIRN_TOOLS_CONVERT_DCP_METADATA_H

#include "base/complaint.h"
#include "tools/convert/pickle/pickle.h"
#include "tools/convert/state/names.h"

/* A tensor or a bytes object. Strings are in `kept`, nodes in the tree. */
struct cairn_dcp_entry {
    const char *name;                   /* as the state dict was flattened: "model.0.weight" */
    const struct cairn_state_key *keys; /* [key_count]: what leads to it in the state dict */
    uint32_t key_count;
    bool keys_said;                         /* false: the one key is the name */
    bool tensor;                            /* false: a bytes object */
    const struct cairn_pickle_node *chunks; /* list; NULL: a bytes object, or forgotten */
    enum cairn_dtype dtype;
    uint32_t dims;
    uint64_t shape[CAIRN_DIMS_MAX];
};

struct cairn_dcp_item {
    const struct cairn_pickle_node *path; /* text: the file's name; not checked here */
    uint64_t offset_bytes;
    uint64_t bytes;
};

struct cairn_dcp_slot;

/* All zero is the empty value. */
struct cairn_dcp_metadata {
    struct cairn_pickle pickle;      /* the tree */
    struct cairn_pickle kept;        /* what outlives it */
    uint8_t *bytes;                  /* owned: strings of the tree lie in it */
    struct cairn_dcp_entry *entries; /* in the order of the state dict, where that is known */
    uint32_t entry_count;
    struct cairn_dcp_slot *slots;               /* storage_data by name and offsets */
    uint64_t slot_count;                        /* a power of 2, or 0 */
    const struct cairn_pickle_node *mcore_data; /* what Megatron-Core adds; NULL: nothing */
    char version[32];                           /* of the format; "": before it was written down */
};

/* Reads bytes[bytes_len] (from malloc), which it takes over, also on failure. `where` names the
 * file. CAIRN_CORRUPT, CAIRN_INVAL (a dtype that is not converted), CAIRN_NOMEM; complained about.
 * The caller ends *out with cairn_dcp_metadata_fini; on failure it is all zero. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_metadata_parse(uint8_t *bytes, size_t bytes_len,
                                                    const char *where,
                                                    struct cairn_dcp_metadata *out,
                                                    struct cairn_complaint *complaint);
void cairn_dcp_metadata_fini(struct cairn_dcp_metadata *metadata);

/* Frees the tree and the table of storage_data: what is left are the entries without chunks, and
 * what is in `kept`. */
void cairn_dcp_metadata_forget_tree(struct cairn_dcp_metadata *metadata);

/* The keys of an entry as a path. */
struct cairn_state_path cairn_dcp_entry_path(const struct cairn_dcp_entry *entry);

/* The box of a tensor's chunk. False: it is none, or has not the tensor's dimensions. */
bool cairn_dcp_chunk_box(const struct cairn_dcp_entry *entry, uint32_t chunk,
                         uint64_t start[CAIRN_DIMS_MAX], uint64_t extent[CAIRN_DIMS_MAX]);

/* Where the chunk of `start` lies (NULL: a bytes object). CAIRN_NOT_FOUND, CAIRN_CORRUPT (the value
 * is not a place), CAIRN_VERSION (the item was transformed when it was written); complained
 * about. */
CAIRN_MUST_CHECK cairn_err cairn_dcp_find_item(const struct cairn_dcp_metadata *metadata,
                                               const struct cairn_dcp_entry *entry,
                                               const uint64_t *start, struct cairn_dcp_item *item,
                                               struct cairn_complaint *complaint);

#endif
