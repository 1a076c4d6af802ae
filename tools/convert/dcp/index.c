/* tools/convert/dcp/index.c - see dcp/index.h. */
#include "tools/convert/dcp/index.h"

#include <stdlib.h>
#include <string.h>

#include "tools/convert/pickle/write.h"

#define METADATA_MODULE "torch.distributed.checkpoint.metadata"

enum class_index {
    METADATA,
    TENSOR,
    BYTES,
    PROPERTIES,
    CHUNK,
    INDEX,
    STORAGE_META,
    STORAGE_INFO,
    CLASS_COUNT
};
_Static_assert(CLASS_COUNT == sizeof(((struct cairn_dcp_index *)0)->classes) / sizeof(void *),
               "one node per class");

static const struct {
    const char *module, *name;
} classes[CLASS_COUNT] = {
    [METADATA] = {METADATA_MODULE, "Metadata"},
    [TENSOR] = {METADATA_MODULE, "TensorStorageMetadata"},
    [BYTES] = {METADATA_MODULE, "BytesStorageMetadata"},
    [PROPERTIES] = {METADATA_MODULE, "TensorProperties"},
    [CHUNK] = {METADATA_MODULE, "ChunkStorageMetadata"},
    [INDEX] = {METADATA_MODULE, "MetadataIndex"},
    [STORAGE_META] = {METADATA_MODULE, "StorageMeta"},
    [STORAGE_INFO] = {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
};

enum word { OFFSETS, SIZES, FQN, OFFSET, INDEX_HINT, RELATIVE_PATH, LENGTH, SIZE, WORD_COUNT };
_Static_assert(WORD_COUNT == sizeof(((struct cairn_dcp_index *)0)->words) / sizeof(void *),
               "one node per word");

static const char *const words[WORD_COUNT] = {
    [OFFSETS] = "offsets", [SIZES] = "sizes",      [FQN] = "fqn",
    [OFFSET] = "offset",   [INDEX_HINT] = "index", [RELATIVE_PATH] = "relative_path",
    [LENGTH] = "length",   [SIZE] = "size",
};

/* ---- nodes ---- */

static struct cairn_pickle_node *
word(struct cairn_dcp_index *index, enum word which)
{
    if (!index->words[which])
        index->words[which] = cairn_pickle_text(&index->pickle, words[which]);
    return index->words[which];
}

static struct cairn_pickle_node *
tuple(struct cairn_dcp_index *index, struct cairn_pickle_node *const items[], size_t count)
{
    return cairn_pickle_sequence(&index->pickle, CAIRN_PICKLE_TUPLE, items, count);
}

/* An object of a class, with `state` as its attributes (NULL: it has none). */
static struct cairn_pickle_node *
object(struct cairn_dcp_index *index, enum class_index which, struct cairn_pickle_node *state)
{
    struct cairn_pickle_node *made;

    if (!index->classes[which])
        index->classes[which] =
            cairn_pickle_global(&index->pickle, classes[which].module, classes[which].name);
    made = cairn_pickle_object(&index->pickle, CAIRN_PICKLE_NEWOBJ, index->classes[which],
                               tuple(index, NULL, 0));
    if (state)
        cairn_pickle_build(&index->pickle, made, state);
    return made;
}

static void
put_number(struct cairn_dcp_index *index, struct cairn_pickle_node *dict, enum word key,
           uint64_t number)
{
    cairn_pickle_put(&index->pickle, dict, word(index, key),
                     cairn_pickle_int(&index->pickle, (int64_t)number));
}

/* (dtype, layout, requires_grad, memory format, pin_memory) */
static struct cairn_pickle_node *
properties(struct cairn_dcp_index *index, const struct cairn_torch_dtype *dtype)
{
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *items[5], *argument;

    if (!index->layout) {
        argument = cairn_pickle_text(pickle, "torch.strided");
        index->layout =
            cairn_pickle_object(pickle, CAIRN_PICKLE_REDUCE,
                                cairn_pickle_global(pickle, "torch.serialization", "_get_layout"),
                                tuple(index, &argument, 1));
        argument = cairn_pickle_int(pickle, 0); /* contiguous */
        index->memory_format = cairn_pickle_object(
            pickle, CAIRN_PICKLE_REDUCE,
            cairn_pickle_global(pickle, METADATA_MODULE, "_MEM_FORMAT_ENCODING"),
            tuple(index, &argument, 1));
    }
    items[0] = cairn_torch_dtype_node(&index->builder, dtype);
    items[1] = index->layout;
    items[2] = cairn_pickle_bool(pickle, false);
    items[3] = index->memory_format;
    items[4] = cairn_pickle_bool(pickle, false);
    return object(index, PROPERTIES, tuple(index, items, 5));
}

struct cairn_pickle_node *
cairn_dcp_path_node(struct cairn_pickle *pickle, const struct cairn_state_path *path)
{
    struct cairn_pickle_node *items[CAIRN_STATE_KEYS_MAX];

    for (uint32_t i = 0; i < path->count; i++)
        items[i] = path->keys[i].number
                       ? cairn_pickle_int(pickle, (int64_t)strtoll(path->keys[i].text, NULL, 10))
                       : cairn_pickle_text(pickle, path->keys[i].text);
    return cairn_pickle_sequence(pickle, CAIRN_PICKLE_TUPLE, items, path->count);
}

/* ---- entries ---- */

void
cairn_dcp_index_init(struct cairn_dcp_index *index, uint64_t memory_bytes)
{
    memset(index, 0, sizeof(*index));
    cairn_pickle_init(&index->pickle, memory_bytes);
    cairn_torch_builder_init(&index->builder, &index->pickle);
    index->state = cairn_pickle_dict(&index->pickle);
    index->planner = cairn_pickle_dict(&index->pickle);
    index->storage = cairn_pickle_dict(&index->pickle);
}

void
cairn_dcp_index_fini(struct cairn_dcp_index *index)
{
    cairn_pickle_fini(&index->pickle);
    memset(index, 0, sizeof(*index));
}

struct cairn_pickle_node *
cairn_dcp_index_file(struct cairn_dcp_index *index, const char *path)
{
    return cairn_pickle_text(&index->pickle, path);
}

static void
add_entry(struct cairn_dcp_index *index, const char *name, const struct cairn_state_path *path,
          struct cairn_pickle_node *metadata)
{
    index->name = cairn_pickle_text(&index->pickle, name);
    index->chunk_count = 0;
    cairn_pickle_put(&index->pickle, index->state, index->name, metadata);
    if (path->count > 0)
        cairn_pickle_put(&index->pickle, index->planner, index->name,
                         cairn_dcp_path_node(&index->pickle, path));
}

/* storage_data[MetadataIndex(name, offset, index)] = _StorageInfo(…) */
static void
add_spot(struct cairn_dcp_index *index, struct cairn_pickle_node *offset,
         const struct cairn_dcp_spot *spot)
{
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *key = cairn_pickle_dict(pickle), *info = cairn_pickle_dict(pickle);

    cairn_pickle_put(pickle, key, word(index, FQN), index->name);
    if (offset) {
        cairn_pickle_put(pickle, key, word(index, INDEX_HINT),
                         cairn_pickle_int(pickle, index->chunk_count));
        cairn_pickle_put(pickle, key, word(index, OFFSET), offset);
    } else {
        cairn_pickle_put(pickle, key, word(index, INDEX_HINT), cairn_pickle_none(pickle));
    }
    cairn_pickle_put(pickle, info, word(index, RELATIVE_PATH), spot->file);
    put_number(index, info, OFFSET, spot->offset_bytes);
    put_number(index, info, LENGTH, spot->bytes);
    cairn_pickle_put(pickle, index->storage, object(index, INDEX, key),
                     object(index, STORAGE_INFO, info));
}

void
cairn_dcp_index_add_tensor(struct cairn_dcp_index *index, const char *name,
                           const struct cairn_state_path *path,
                           const struct cairn_torch_dtype *dtype, uint32_t dims,
                           const uint64_t *shape)
{
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *state = cairn_pickle_dict(pickle);

    index->chunks = cairn_pickle_list(pickle);
    cairn_pickle_set(pickle, state, "properties", properties(index, dtype));
    cairn_pickle_put(pickle, state, word(index, SIZE),
                     cairn_torch_size(&index->builder, shape, dims));
    cairn_pickle_set(pickle, state, "chunks", index->chunks);
    add_entry(index, name, path, object(index, TENSOR, state));
}

void
cairn_dcp_index_add_chunk(struct cairn_dcp_index *index, uint32_t dims, const uint64_t *start,
                          const uint64_t *extent, const struct cairn_dcp_spot *spot)
{
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *state = cairn_pickle_dict(pickle);
    struct cairn_pickle_node *offset = cairn_torch_size(&index->builder, start, dims);

    cairn_pickle_put(pickle, state, word(index, OFFSETS), offset);
    cairn_pickle_put(pickle, state, word(index, SIZES),
                     cairn_torch_size(&index->builder, extent, dims));
    cairn_pickle_append(pickle, index->chunks, object(index, CHUNK, state));
    add_spot(index, offset, spot);
    index->chunk_count++;
}

void
cairn_dcp_index_add_object(struct cairn_dcp_index *index, const char *name,
                           const struct cairn_state_path *path, const struct cairn_dcp_spot *spot)
{
    add_entry(index, name, path, object(index, BYTES, cairn_pickle_dict(&index->pickle)));
    add_spot(index, NULL, spot);
}

cairn_err
cairn_dcp_index_pack(struct cairn_dcp_index *index, uint8_t **bytes, size_t *bytes_len)
{
    static const char *const unknown[] = {"checkpoint_id", "save_id", "load_id"};
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *state = cairn_pickle_dict(pickle), *save = cairn_pickle_dict(pickle);
    cairn_err err;

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        cairn_pickle_set(pickle, save, unknown[i], cairn_pickle_none(pickle));
    cairn_pickle_set(pickle, save, "modules", cairn_pickle_list(pickle));
    cairn_pickle_set(pickle, state, "state_dict_metadata", index->state);
    cairn_pickle_set(pickle, state, "planner_data", index->planner);
    cairn_pickle_set(pickle, state, "storage_data", index->storage);
    cairn_pickle_set(pickle, state, "storage_meta", object(index, STORAGE_META, save));
    cairn_pickle_set(pickle, state, "version", cairn_pickle_text(pickle, "1.0.0"));
    state = object(index, METADATA, state);
    err = cairn_pickle_done(pickle);
    return err ? err : cairn_pickle_write(pickle, state, bytes, bytes_len, NULL);
}
