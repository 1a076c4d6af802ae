/* tools/convert/dcp/metadata.c - the classes that a `.metadata` is made of, as inert nodes. */
#include "tools/convert/dcp/metadata.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/state/kept_names.h"
#include "tools/convert/torch/tree.h"
#include "base/array.h"

#define METADATA_MODULE "torch.distributed.checkpoint.metadata"
/* Of Megatron-Core, whose checkpoints are distributed checkpoints. */
#define MCORE_MODULE "megatron.core.dist_checkpointing.strategies.torch"

/* One of storage_data; all zero where the table has none. */
struct cairn_dcp_slot {
    const struct cairn_pickle_node *name;
    const struct cairn_pickle_node *offsets; /* of the chunk; NULL for a bytes object */
    const struct cairn_pickle_node *info;
};

/* ---- storage_data ---- */

static uint64_t
hash_bytes(uint64_t hash, const void *bytes, size_t bytes_len)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < bytes_len; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u; /* FNV-1a */
    return hash;
}

static uint64_t
hash_place(const void *name, size_t name_bytes, const uint64_t *offsets, uint32_t dims)
{
    uint64_t hash = hash_bytes(0xcbf29ce484222325u, name, name_bytes);

    hash = hash_bytes(hash, offsets, dims * sizeof(*offsets));
    return hash ^ hash >> 29;
}

static bool
slot_is(const struct cairn_dcp_slot *slot, const void *name, size_t name_bytes,
        const uint64_t *offsets, uint32_t dims, bool tensor)
{
    uint64_t known[CAIRN_DIMS_MAX];
    uint32_t known_dims = 0;

    if (slot->name->count != name_bytes || memcmp(slot->name->bytes, name, name_bytes) != 0 ||
        (slot->offsets != NULL) != tensor)
        return false;
    if (!tensor)
        return true;
    return cairn_torch_read_size(slot->offsets, known, &known_dims) &&
           cairn_shape_equal(known_dims, known, dims, offsets);
}

/* The slot of a place, or the free one where it belongs. */
static struct cairn_dcp_slot *
find_slot(const struct cairn_dcp_metadata *metadata, const void *name, size_t name_bytes,
          const uint64_t *offsets, uint32_t dims, bool tensor)
{
    uint64_t mask = metadata->slot_count - 1;

    for (uint64_t at = hash_place(name, name_bytes, offsets, dims) & mask;; at = (at + 1) & mask)
        if (!metadata->slots[at].name ||
            slot_is(&metadata->slots[at], name, name_bytes, offsets, dims, tensor))
            return &metadata->slots[at];
}

static bool
is_none(const struct cairn_pickle_node *node)
{
    return !node || node->kind == CAIRN_PICKLE_NONE;
}

static cairn_err
index_storage(struct cairn_dcp_metadata *metadata, const struct cairn_pickle_node *storage,
              const char *where, struct cairn_complaint *complaint)
{
    const struct cairn_pickle_node *pairs = cairn_pickle_pairs(storage);

    if (!pairs)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: has no storage_data; was it saved by another writer than "
                              "torch.distributed.checkpoint's for file systems?",
                              where);
    for (metadata->slot_count = 16; metadata->slot_count < 2 * (uint64_t)pairs->count;)
        metadata->slot_count *= 2;
    metadata->slots = calloc((size_t)metadata->slot_count, sizeof(*metadata->slots));
    if (!metadata->slots)
        return cairn_complain(complaint, CAIRN_NOMEM, "%s: no memory for %" PRIu32 " items", where,
                              pairs->count);
    for (uint32_t i = 0; i < pairs->count; i++) {
        const struct cairn_pickle_node *key = pairs->items[2 * i];
        const struct cairn_pickle_node *name = cairn_pickle_attribute(key, "fqn");
        const struct cairn_pickle_node *offset = cairn_pickle_attribute(key, "offset");
        uint64_t offsets[CAIRN_DIMS_MAX] = {0};
        uint32_t dims = 0;

        if (!name || name->kind != CAIRN_PICKLE_TEXT ||
            (!is_none(offset) && !cairn_torch_read_size(offset, offsets, &dims)))
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: key %" PRIu32 " of storage_data names no item", where, i);
        *find_slot(metadata, name->bytes, name->count, offsets, dims, !is_none(offset)) =
            (struct cairn_dcp_slot){name, is_none(offset) ? NULL : offset, pairs->items[2 * i + 1]};
    }
    return CAIRN_OK;
}

/* Offset of torch before 2.0 and of some writers: a whole tensor has none. */
static const struct cairn_dcp_slot *
lookup(const struct cairn_dcp_metadata *metadata, const struct cairn_dcp_entry *entry,
       const uint64_t *start)
{
    size_t name_bytes = strlen(entry->name);
    const struct cairn_dcp_slot *slot;
    bool first = true;

    slot =
        find_slot(metadata, entry->name, name_bytes, start, start ? entry->dims : 0, start != NULL);
    for (uint32_t d = 0; start && d < entry->dims; d++)
        first = first && start[d] == 0;
    if (!slot->name && start && first)
        slot = find_slot(metadata, entry->name, name_bytes, NULL, 0, false);
    return slot->name ? slot : NULL;
}

cairn_err
cairn_dcp_find_item(const struct cairn_dcp_metadata *metadata, const struct cairn_dcp_entry *entry,
                    const uint64_t *start, struct cairn_dcp_item *item,
                    struct cairn_complaint *complaint)
{
    const struct cairn_dcp_slot *slot = lookup(metadata, entry, start);
    const struct cairn_pickle_node *transforms;

    if (!slot)
        return cairn_complain(
            complaint, CAIRN_NOT_FOUND,
            ".metadata does not say in which file %s%.300s lies; the save did not finish",
            start ? "a part of tensor " : "", entry->name);
    transforms = cairn_pickle_attribute(slot->info, "transform_descriptors");
    if (!is_none(transforms) && (transforms->kind != CAIRN_PICKLE_LIST || transforms->count > 0))
        return cairn_complain(complaint, CAIRN_VERSION,
                              "%.300s: was compressed or otherwise transformed when it was saved; "
                              "load it with PyTorch and save it without extensions",
                              entry->name);
    item->path = cairn_pickle_attribute(slot->info, "relative_path");
    if (!item->path || item->path->kind != CAIRN_PICKLE_TEXT ||
        !cairn_pickle_u64(cairn_pickle_attribute(slot->info, "offset"), &item->offset_bytes) ||
        !cairn_pickle_u64(cairn_pickle_attribute(slot->info, "length"), &item->bytes) ||
        item->offset_bytes > (uint64_t)INT64_MAX - item->bytes)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              ".metadata names no file, offset and length for %.300s", entry->name);
    return CAIRN_OK;
}

/* ---- state_dict_metadata ---- */

static const struct cairn_torch_dtype *
read_properties(const struct cairn_pickle_node *properties)
{
    const struct cairn_pickle_node *state;

    if (!properties || properties->kind != CAIRN_PICKLE_OBJECT)
        return NULL;
    state = properties->object->state;
    /* (dtype, layout, requires_grad, memory format, pin_memory) */
    if (!state || state->kind != CAIRN_PICKLE_TUPLE || state->count < 1)
        return NULL;
    return cairn_torch_read_dtype(state->items[0]);
}

static cairn_err
read_tensor(const struct cairn_pickle_node *value, const char *where, struct cairn_dcp_entry *entry,
            struct cairn_complaint *complaint)
{
    const struct cairn_pickle_node *size = cairn_pickle_attribute(value, "size");
    const struct cairn_torch_dtype *dtype;

    entry->tensor = true;
    entry->chunks = cairn_pickle_attribute(value, "chunks");
    dtype = read_properties(cairn_pickle_attribute(value, "properties"));
    if (!dtype || !cairn_pickle_is_list(entry->chunks))
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: tensor %.300s has an unknown dtype, or no chunks", where,
                              entry->name);
    if (!cairn_torch_read_size(size, entry->shape, &entry->dims))
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: tensor %.300s has no size of at most %d dimensions", where,
                              entry->name, CAIRN_DIMS_MAX);
    if (!dtype->dtype)
        return cairn_complain(complaint, CAIRN_INVAL,
                              "%s: tensor %.300s is of torch.%s, which is not converted; save it "
                              "with another dtype, or leave it out",
                              where, entry->name, dtype->name);
    entry->dtype = dtype->dtype;
    return CAIRN_OK;
}

static cairn_err
read_entry(struct cairn_dcp_metadata *metadata, const struct cairn_pickle_node *key,
           const struct cairn_pickle_node *value, const struct cairn_pickle_node *path,
           const char *where, struct cairn_complaint *complaint)
{
    struct cairn_dcp_entry *entry = &metadata->entries[metadata->entry_count];
    struct cairn_state_key *only = NULL;
    char *name;

    name = cairn_pickle_alloc(&metadata->kept, (uint64_t)key->count + 1);
    if (!name)
        return cairn_complain(complaint, CAIRN_NOMEM, "%s: no memory for its names", where);
    memset(entry, 0, sizeof(*entry));
    if (!cairn_pickle_copy_text(key, name, (size_t)key->count + 1))
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: a name of state_dict_metadata is not UTF-8 text", where);
    entry->name = name;
    entry->keys = cairn_state_keys_read(&metadata->kept, path);
    entry->keys_said = entry->keys != NULL;
    entry->key_count = entry->keys ? path->count : 1;
    if (!entry->keys) {
        only = cairn_pickle_alloc(&metadata->kept, sizeof(*only));
        if (!only)
            return cairn_complain(complaint, CAIRN_NOMEM, "%s: no memory for its names", where);
        *only = (struct cairn_state_key){name, false};
        entry->keys = only;
    }
    metadata->entry_count++;
    if (cairn_pickle_is_call(value, METADATA_MODULE, "BytesStorageMetadata"))
        return CAIRN_OK;
    if (cairn_pickle_is_call(value, METADATA_MODULE, "TensorStorageMetadata"))
        return read_tensor(value, where, entry, complaint);
    return cairn_complain(complaint, CAIRN_CORRUPT,
                          "%s: %.300s expected a tensor or a bytes object, got a %s", where, name,
                          cairn_pickle_kind_name(value));
}

/* ---- the order of the state dict ---- */

/* A name of state_dict_metadata. */
struct ranked {
    const struct cairn_pickle_node *key;
    uint32_t pair;
    uint32_t path; /* its pair in planner_data, UINT32_MAX: none */
};

static int
compare_texts(const struct cairn_pickle_node *a, const struct cairn_pickle_node *b)
{
    uint32_t common = a->count < b->count ? a->count : b->count;

    return (common > 0 ? memcmp(a->bytes, b->bytes, common) : 0)
               ?: CAIRN_COMPARE(a->count, b->count);
}

static int
compare_keys(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;

    return compare_texts(a->key, b->key) ?: CAIRN_COMPARE(a->pair, b->pair);
}

static int
compare_paths(const void *left, const void *right)
{
    const struct ranked *a = left, *b = right;

    return CAIRN_COMPARE(a->path, b->path) ?: CAIRN_COMPARE(a->pair, b->pair);
}

/* The names of state_dict_metadata in the order of planner_data, which is the state dict's own:
 * what several ranks hold is saved by any one of them, so state_dict_metadata is in no order. Of
 * equal keys the last counts, as in Python. */
static cairn_err
order_names(const struct cairn_pickle_node *pairs, const struct cairn_pickle_node *planner,
            struct ranked **out, uint32_t *count)
{
    struct ranked *ranked = calloc((size_t)pairs->count + 1, sizeof(*ranked));
    uint32_t kept = 0;

    if (!ranked)
        return CAIRN_NOMEM;
    for (uint32_t i = 0; i < pairs->count; i++)
        ranked[i] = (struct ranked){pairs->items[2 * i], i, UINT32_MAX};
    qsort(ranked, pairs->count, sizeof(*ranked), compare_keys);
    for (uint32_t i = 0; i < pairs->count; i++)
        if (i + 1 == pairs->count || compare_texts(ranked[i].key, ranked[i + 1].key) != 0)
            ranked[kept++] = ranked[i];
    for (uint32_t i = 0; planner && i < planner->count; i++) {
        const struct cairn_pickle_node *key = planner->items[2 * i];
        uint32_t low = 0;

        if (key->kind != CAIRN_PICKLE_TEXT)
            continue;
        CAIRN_BISECT(low, kept, middle, compare_texts(ranked[middle].key, key) < 0);
        if (low < kept && compare_texts(ranked[low].key, key) == 0)
            ranked[low].path = i;
    }
    qsort(ranked, kept, sizeof(*ranked), compare_paths);
    *out = ranked;
    *count = kept;
    return CAIRN_OK;
}

static cairn_err
read_entries(struct cairn_dcp_metadata *metadata, const struct cairn_pickle_node *root,
             const char *where, struct cairn_complaint *complaint)
{
    const struct cairn_pickle_node *pairs =
        cairn_pickle_pairs(cairn_pickle_attribute(root, "state_dict_metadata"));
    const struct cairn_pickle_node *planner =
        cairn_pickle_pairs(cairn_pickle_attribute(root, "planner_data"));
    struct ranked *listed = NULL;
    uint32_t count = 0;
    cairn_err err;

    if (!pairs)
        return cairn_complain(complaint, CAIRN_CORRUPT, "%s: has no state_dict_metadata", where);
    for (uint32_t i = 0; i < pairs->count; i++)
        if (pairs->items[2 * i]->kind != CAIRN_PICKLE_TEXT)
            return cairn_complain(complaint, CAIRN_CORRUPT,
                                  "%s: a key of state_dict_metadata is not text", where);
    err = order_names(pairs, planner, &listed, &count);
    if (!err && !(metadata->entries = calloc((size_t)count + 1, sizeof(*metadata->entries))))
        err = CAIRN_NOMEM;
    for (uint32_t i = 0; i < count && !err; i++) {
        const struct cairn_pickle_node *path =
            listed[i].path == UINT32_MAX ? NULL : planner->items[2 * listed[i].path + 1];

        err = read_entry(metadata, pairs->items[2 * listed[i].pair],
                         pairs->items[2 * listed[i].pair + 1], path, where, complaint);
    }
    free(listed);
    return err;
}

struct cairn_state_path
cairn_dcp_entry_path(const struct cairn_dcp_entry *entry)
{
    struct cairn_state_path path = {.count = entry->key_count};

    memcpy(path.keys, entry->keys, entry->key_count * sizeof(*entry->keys));
    return path;
}

bool
cairn_dcp_chunk_box(const struct cairn_dcp_entry *entry, uint32_t chunk,
                    uint64_t start[CAIRN_DIMS_MAX], uint64_t extent[CAIRN_DIMS_MAX])
{
    const struct cairn_pickle_node *node;
    uint32_t start_dims, extent_dims;

    if (!entry->chunks || chunk >= entry->chunks->count)
        return false;
    node = entry->chunks->items[chunk];
    return cairn_torch_read_size(cairn_pickle_attribute(node, "offsets"), start, &start_dims) &&
           cairn_torch_read_size(cairn_pickle_attribute(node, "sizes"), extent, &extent_dims) &&
           start_dims == entry->dims && extent_dims == entry->dims;
}

/* ---- the whole ---- */

cairn_err
cairn_dcp_metadata_parse(uint8_t *bytes, size_t bytes_len, const char *where,
                         struct cairn_dcp_metadata *out, struct cairn_complaint *complaint)
{
    struct cairn_dcp_metadata metadata = {.bytes = bytes};
    struct cairn_pickle_node *root = NULL;
    cairn_err err;

    memset(out, 0, sizeof(*out));
    cairn_pickle_init(&metadata.pickle,
                      (uint64_t)CAIRN_PICKLE_ARENA_FACTOR * ((uint64_t)bytes_len + 4096));
    cairn_pickle_init(&metadata.kept, metadata.pickle.limit_bytes);
    err = cairn_pickle_read(&metadata.pickle, where, bytes, bytes_len, &root, complaint);
    if (!err && !cairn_pickle_is_call(root, METADATA_MODULE, "Metadata") &&
        !cairn_pickle_is_call(root, MCORE_MODULE, "MCoreMetadata"))
        err =
            cairn_complain(complaint, CAIRN_CORRUPT,
                           "%s: expected the pickled metadata of a distributed checkpoint", where);
    if (!err)
        err = read_entries(&metadata, root, where, complaint);
    if (!err)
        err = index_storage(&metadata, cairn_pickle_attribute(root, "storage_data"), where,
                            complaint);
    if (err) {
        cairn_dcp_metadata_fini(&metadata);
        return cairn_complain_failed(complaint, err, "%s: cannot be read", where);
    }
    (void)cairn_pickle_copy_text(cairn_pickle_attribute(root, "version"), metadata.version,
                                 sizeof(metadata.version));
    metadata.mcore_data = cairn_pickle_attribute(root, "mcore_data");
    *out = metadata;
    return CAIRN_OK;
}

void
cairn_dcp_metadata_forget_tree(struct cairn_dcp_metadata *metadata)
{
    for (uint32_t i = 0; i < metadata->entry_count; i++)
        metadata->entries[i].chunks = NULL;
    cairn_pickle_fini(&metadata->pickle);
    free(metadata->bytes);
    free(metadata->slots);
    metadata->bytes = NULL;
    metadata->slots = NULL;
    metadata->slot_count = 0;
    metadata->mcore_data = NULL;
}

void
cairn_dcp_metadata_fini(struct cairn_dcp_metadata *metadata)
{
    cairn_dcp_metadata_forget_tree(metadata);
    cairn_pickle_fini(&metadata->kept);
    free(metadata->entries);
    memset(metadata, 0, sizeof(*metadata));
}
