/*
 * tools/convert/dcp/output.c - see dcp/output.h.
 *
 * `.metadata` is written as PyTorch 2.13 writes it (dcp/metadata.h says what is in it), but with
 * protocol 2 of pickle and without the path and the id of a save.
 */
#include "base/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "snapshot/box.h"
#include "base/text.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/dcp/output.h"
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
tuple(struct cairn_dcp_index *index, struct cairn_pickle_node *const items[], size_t count)
{
    return cairn_pickle_sequence(&index->pickle, CAIRN_PICKLE_TUPLE, items, count);
}

/* An object of a class, with `state` as its attributes (NULL: it has none). */
static struct cairn_pickle_node *
object(struct cairn_dcp_index *index, enum class_index which, struct cairn_pickle_node *state)
{
    struct cairn_pickle_node *made;

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
    cairn_pickle_put(&index->pickle, dict, index->words[key],
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

    cairn_pickle_put(pickle, key, index->words[FQN], index->name);
    if (offset) {
        cairn_pickle_put(pickle, key, index->words[INDEX_HINT],
                         cairn_pickle_int(pickle, index->chunk_count));
        cairn_pickle_put(pickle, key, index->words[OFFSET], offset);
    } else {
        cairn_pickle_put(pickle, key, index->words[INDEX_HINT], cairn_pickle_none(pickle));
    }
    cairn_pickle_put(pickle, info, index->words[RELATIVE_PATH], spot->file);
    put_number(index, info, OFFSET, spot->offset_bytes);
    put_number(index, info, LENGTH, spot->bytes);
    cairn_pickle_put(pickle, index->storage, object(index, INDEX, key),
                     object(index, STORAGE_INFO, info));
}

static void
index_add_chunk(struct cairn_dcp_index *index, uint32_t dims, const uint64_t *start,
                const uint64_t *extent, const struct cairn_dcp_spot *spot)
{
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *state = cairn_pickle_dict(pickle);
    struct cairn_pickle_node *offset = cairn_torch_size(&index->builder, start, dims);

    cairn_pickle_put(pickle, state, index->words[OFFSETS], offset);
    cairn_pickle_put(pickle, state, index->words[SIZES],
                     cairn_torch_size(&index->builder, extent, dims));
    cairn_pickle_append(pickle, index->chunks, object(index, CHUNK, state));
    add_spot(index, offset, spot);
    index->chunk_count++;
}

static void
index_add_object(struct cairn_dcp_index *index, const char *name,
                 const struct cairn_state_path *path, const struct cairn_dcp_spot *spot)
{
    add_entry(index, name, path, object(index, BYTES, cairn_pickle_dict(&index->pickle)));
    add_spot(index, NULL, spot);
}

/* The file's bytes, which the caller frees. CAIRN_NOMEM, CAIRN_INVAL. */
static cairn_err
index_pack(struct cairn_dcp_index *index, uint8_t **bytes, size_t *bytes_len)
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

enum {
    RANKS_MAX = 1 << 16,
    ITEM_ALIGN_BYTES = 64,
    FILE_NAME_BYTES_MAX = 48,
    ITEM_TREE_BYTES_MAX = 1 << 20
};

#define INDEX_BYTES_MAX ((uint64_t)1 << 34)

void
cairn_dcp_kept_end(void *state)
{
    struct cairn_dcp_kept *kept = state;

    if (!kept)
        return;
    for (uint32_t i = 0; i < kept->archive_count; i++)
        cairn_torch_output_fini(&kept->archives[i]);
    free(kept->archives);
    free(kept->chunks);
    free(kept->index_bytes);
    free(kept);
}

/* The archive of one tensor. */
static cairn_err
plan_chunk(enum cairn_dtype dtype, uint32_t dims, const uint64_t *extent,
           struct cairn_torch_plan *plan, struct cairn_complaint *complaint)
{
    struct cairn_torch_view view = {.dtype = cairn_torch_dtype_of(dtype), .dims = dims};
    struct cairn_torch_filled storage = {.bytes = cairn_dtype_bytes(dtype)};
    struct cairn_torch_builder builder;
    struct cairn_pickle tree;
    struct cairn_pickle_node *root;
    cairn_err err;

    memcpy(view.shape, extent, dims * sizeof(*extent));
    cairn_shape_strides(dims, extent, 1, view.stride);
    storage.bytes *= cairn_shape_elements(dims, extent);
    cairn_pickle_init(&tree, ITEM_TREE_BYTES_MAX);
    cairn_torch_builder_init(&builder, &tree);
    root = cairn_torch_tensor_node(
        &builder, cairn_torch_storage(&builder, view.dtype, "0", storage.bytes), &view);
    err = cairn_pickle_done(&tree);
    if (!err)
        err = cairn_torch_plan_init(plan, "archive", &tree, root, &storage, 1, complaint);
    cairn_pickle_fini(&tree);
    return err;
}

/* ---- places ---- */

static uint64_t
align_up(uint64_t at)
{
    return (at + ITEM_ALIGN_BYTES - 1) / ITEM_ALIGN_BYTES * ITEM_ALIGN_BYTES;
}

/* Room for an item in a rank's file. CAIRN_NOMEM. */
static cairn_err
take_place(struct cairn_dcp_output *dcp, uint32_t rank, uint64_t bytes, struct cairn_dcp_spot *spot,
           uint32_t *file)
{
    struct cairn_dcp_rank_file *at = &dcp->ranks[rank];
    uint64_t limit = dcp->options->file_bytes_max;
    char name[FILE_NAME_BYTES_MAX];
    cairn_err err = CAIRN_OK;

    if (at->open && limit > 0 && at->bytes > 0 && align_up(at->bytes) + bytes > limit)
        at->open = false;
    if (!at->open) {
        (void)snprintf(name, sizeof(name), "__%" PRIu32 "_%" PRIu32 ".distcp", rank, at->number);
        err = cairn_output_add_file(dcp->output, name, &at->file);
        if (err)
            return err;
        at->name = cairn_pickle_text(&dcp->index.pickle, name);
        at->number++;
        at->bytes = 0;
        at->open = true;
    }
    *spot = (struct cairn_dcp_spot){at->name, align_up(at->bytes), bytes};
    *file = at->file;
    at->bytes = spot->offset_bytes + bytes;
    cairn_output_set_bytes(dcp->output, at->file, at->bytes);
    return CAIRN_OK;
}

/* ---- tensors ---- */

/* A box of a tensor of the output as one chunk; box_start and box_extent are of the array. */
static cairn_err
add_chunk(struct cairn_dcp_output *dcp, uint32_t rank, uint32_t target, const uint64_t *start,
          const uint64_t *extent, uint32_t box_dims, const uint64_t *box_start,
          const uint64_t *box_extent)
{
    struct cairn_output *output = dcp->output;
    struct cairn_dcp_open_chunk chunk = {.dtype =
                                             cairn_layout_tensor(output->layout, target)->dtype,
                                         .dims = box_dims,
                                         .sum = UINT32_MAX};
    struct cairn_dcp_kept *kept = dcp->kept;
    struct cairn_torch_plan plan = {0};
    struct cairn_zip_planned *data;
    struct cairn_dcp_spot spot;
    cairn_err err;

    memcpy(chunk.extent, box_extent, box_dims * sizeof(*box_extent));
    err = plan_chunk(chunk.dtype, box_dims, box_extent, &plan, dcp->source->complaint);
    if (err)
        return err;
    data = cairn_torch_plan_storage_at(&plan, 0);
    err = take_place(dcp, rank, cairn_zip_plan_bytes(&plan.zip), &spot, &chunk.file);
    chunk.begin = spot.offset_bytes;
    if (!err)
        err = cairn_torch_plan_literals(&plan, CAIRN_TORCH_HEAD, output, chunk.file, chunk.begin);
    if (!err && data->bytes > 0)
        err = cairn_output_add_sum(output, chunk.file, CAIRN_CRC_ZIP, chunk.begin + data->at,
                                   data->bytes, data->bytes, &chunk.sum);
    if (!err)
        err = cairn_output_add_box(output, target, chunk.file, start, extent,
                                   chunk.begin + data->at, NULL);
    if (!err && !cairn_array_grow(&kept->chunks, kept->chunk_count, sizeof(*kept->chunks)))
        err = CAIRN_NOMEM;
    if (!err) {
        kept->chunks[kept->chunk_count++] = chunk;
        index_add_chunk(&dcp->index, box_dims, box_start, box_extent, &spot);
    }
    cairn_torch_plan_fini(&plan);
    return err;
}

void
cairn_dcp_output_array(struct cairn_dcp_output *dcp, const char *name,
                       const struct cairn_state_path *path, enum cairn_dtype dtype, uint32_t dims,
                       const uint64_t *shape)
{
    struct cairn_dcp_index *index = &dcp->index;
    struct cairn_pickle *pickle = &index->pickle;
    struct cairn_pickle_node *state = cairn_pickle_dict(pickle);

    index->chunks = cairn_pickle_list(pickle);
    cairn_pickle_set(pickle, state, "properties", properties(index, cairn_torch_dtype_of(dtype)));
    cairn_pickle_put(pickle, state, index->words[SIZE],
                     cairn_torch_size(&index->builder, shape, dims));
    cairn_pickle_set(pickle, state, "chunks", index->chunks);
    add_entry(index, name, path, object(index, TENSOR, state));
}

cairn_err
cairn_dcp_output_part(struct cairn_dcp_output *dcp, const struct cairn_dcp_part *part)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, part->tensor);
    uint32_t dims = known->dims, ahead = part->ahead, target, rank = 0;
    uint64_t row_bytes = cairn_dtype_bytes(cairn_output_dtype(dcp->options, known)), least;
    uint64_t start[CAIRN_DIMS_MAX] = {0}, extent[CAIRN_DIMS_MAX] = {0};
    uint64_t box_start[CAIRN_DIMS_MAX] = {0}, box_extent[CAIRN_DIMS_MAX];
    uint64_t end, rows;
    bool empty = false;
    cairn_err err;

    if (dims + ahead > CAIRN_DIMS_MAX)
        return CAIRN_INVAL;
    err = cairn_output_add_tensor(dcp->output, dcp->options, known, &target);
    if (err)
        return err;
    memcpy(extent, known->shape, dims * sizeof(*extent));
    for (uint32_t d = 0; d < ahead; d++) {
        box_start[d] = part->at[d];
        box_extent[d] = 1;
    }
    for (uint32_t d = 0; d < dims; d++)
        empty = empty || known->shape[d] == 0;
    if (part->rows > 0)
        extent[0] = part->rows;
    memcpy(box_extent + ahead, extent, dims * sizeof(*extent));
    if (dims == 0 || empty || known->kind == CAIRN_OPAQUE)
        return add_chunk(dcp, 0, target, start, extent, dims + ahead, box_start, box_extent);
    end = part->from + extent[0];
    rows = (extent[0] + dcp->rank_count - 1) / dcp->rank_count;
    row_bytes *= cairn_shape_elements(dims - 1, extent + 1);
    least = (dcp->chunk_bytes_min + row_bytes - 1) / row_bytes;
    if (rows < least) {
        rows = least;
        rank = dcp->next_rank++ % dcp->rank_count;
    }
    for (start[0] = part->from; start[0] < end && !err; rank = (rank + 1) % dcp->rank_count) {
        extent[0] = end - start[0] < rows ? end - start[0] : rows;
        box_start[ahead] = start[0] - part->from;
        box_extent[ahead] = extent[0];
        err = add_chunk(dcp, rank, target, start, extent, dims + ahead, box_start, box_extent);
        start[0] += extent[0];
    }
    return err;
}

cairn_err
cairn_dcp_output_tensor(struct cairn_dcp_output *dcp, uint32_t tensor, const char *name,
                        const struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_dcp_part part = {.tensor = tensor};

    cairn_dcp_output_array(dcp, name, path, cairn_output_dtype(dcp->options, known), known->dims,
                           known->shape);
    return cairn_dcp_output_part(dcp, &part);
}

/* ---- objects ---- */

/* One more archive that `finish` closes. */
static cairn_err
next_archive(struct cairn_dcp_output *dcp, struct cairn_torch_output **archive)
{
    struct cairn_dcp_kept *kept = dcp->kept;

    if (!cairn_array_grow(&kept->archives, kept->archive_count, sizeof(*kept->archives)))
        return CAIRN_NOMEM;
    *archive = &kept->archives[kept->archive_count++];
    memset(*archive, 0, sizeof(**archive));
    return CAIRN_OK;
}

static cairn_err
place_archive(struct cairn_dcp_output *dcp, struct cairn_torch_output *archive, const char *name,
              const struct cairn_state_path *path)
{
    struct cairn_dcp_spot spot;
    uint32_t file;
    cairn_err err = take_place(dcp, 0, cairn_zip_plan_bytes(&archive->plan.zip), &spot, &file);

    if (!err)
        err = cairn_torch_refs_place(dcp->source, dcp->options, dcp->output, archive, file,
                                     spot.offset_bytes);
    if (!err)
        index_add_object(&dcp->index, name, path, &spot);
    return err;
}

cairn_err
cairn_dcp_output_literal(struct cairn_dcp_output *dcp, const char *name,
                         const struct cairn_state_path *path, const struct cairn_pickle *tree,
                         const struct cairn_pickle_node *root)
{
    struct cairn_torch_output *archive;
    cairn_err err = next_archive(dcp, &archive);

    if (!err)
        err = cairn_torch_plan_init(&archive->plan, "archive", tree, root, NULL, 0,
                                    dcp->source->complaint);
    return err ? err : place_archive(dcp, archive, name, path);
}

/* An object whose pickle is the opaque state itself, copied from the source to where it belongs. */
static cairn_err
add_plain_object(struct cairn_dcp_output *dcp, uint32_t tensor, const struct cairn_pickle *tree,
                 const struct cairn_pickle_node *root, const uint8_t *bytes, size_t bytes_len,
                 const char *name, const struct cairn_state_path *path)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_torch_plan plan = {0};
    struct cairn_dcp_spot spot;
    uint64_t at;
    uint32_t file;
    cairn_err err;

    err = cairn_torch_plan_init(&plan, "archive", tree, root, NULL, 0, dcp->source->complaint);
    if (err)
        return err;
    at = plan.zip.entries[0].at;
    if (plan.zip.entries[0].bytes != bytes_len ||
        memcmp(plan.pickle_bytes, bytes, bytes_len) != 0) {
        /* Not as it would be written here: the values are the same, the bytes are not. */
        cairn_torch_plan_fini(&plan);
        err = cairn_dcp_output_literal(dcp, name, path, tree, root);
        return err ? err : cairn_output_add_carried(dcp->output, tensor);
    }
    plan.zip.entries[0].data = NULL; /* the source's bytes are copied there */
    err = take_place(dcp, 0, cairn_zip_plan_bytes(&plan.zip), &spot, &file);
    if (!err)
        err = cairn_torch_plan_literals(&plan, CAIRN_TORCH_HEAD | CAIRN_TORCH_TAIL, dcp->output,
                                        file, spot.offset_bytes);
    if (!err)
        err =
            cairn_output_add_whole(dcp->output, dcp->options, known, file, spot.offset_bytes + at);
    if (!err)
        index_add_object(&dcp->index, name, path, &spot);
    cairn_torch_plan_fini(&plan);
    return err;
}

/* An object with tensors, which then get no items of their own. */
static cairn_err
add_mixed_object(struct cairn_dcp_output *dcp, struct cairn_pickle *tree,
                 struct cairn_pickle_node *root, const struct cairn_torch_refs *refs,
                 const char *name, const struct cairn_state_path *path)
{
    struct cairn_torch_output *archive;
    cairn_err err = next_archive(dcp, &archive);

    for (uint32_t i = 0; i < refs->count; i++)
        dcp->inside[refs->tensors[i]] = true;
    if (!err)
        err =
            cairn_torch_refs_plan(dcp->source, dcp->options, NULL, tree, root, "archive", archive);
    return err ? err : place_archive(dcp, archive, name, path);
}

/* Whether an object may take its tensors into itself: they are named below it, and free. */
static bool
may_hold(const struct cairn_dcp_output *dcp, const char *name, const struct cairn_torch_refs *refs)
{
    size_t base_bytes = strlen(name) - strlen(".pickle");

    for (uint32_t i = 0; i < refs->count; i++) {
        const char *held = cairn_layout_tensor(dcp->source->layout, refs->tensors[i])->name;

        if (dcp->inside[refs->tensors[i]] || strncmp(held, name, base_bytes) != 0 ||
            (held[base_bytes] != '.' && held[base_bytes] != '\0'))
            return false;
    }
    return true;
}

/* Reads a pickle and finds the tensors that it names. The caller ends *tree and *refs in any
 * case. */
static cairn_err
read_object(const struct cairn_dcp_output *dcp, const uint8_t *bytes, size_t bytes_len,
            const char *name, struct cairn_pickle *tree, struct cairn_pickle_node **root,
            struct cairn_torch_refs *refs)
{
    cairn_err err;

    cairn_pickle_init(tree, CAIRN_DCP_TREE_BYTES_MAX);
    *refs = (struct cairn_torch_refs){.count = 0};
    err = cairn_pickle_read(tree, name, bytes, bytes_len, root, NULL);
    return err ? err : cairn_torch_refs_find(dcp->source, dcp->options, tree, *root, refs);
}

cairn_err
cairn_dcp_output_object(struct cairn_dcp_output *dcp, uint32_t tensor, const uint8_t *bytes,
                        size_t bytes_len, const char *name, const struct cairn_state_path *path,
                        bool *done)
{
    const struct cairn_tensor *known = cairn_layout_tensor(dcp->source->layout, tensor);
    struct cairn_torch_refs refs;
    struct cairn_pickle_node *root = NULL;
    struct cairn_pickle tree;
    cairn_err err;

    if (!cairn_text_ends(known->name, ".pickle"))
        return CAIRN_OK;
    err = read_object(dcp, bytes, bytes_len, known->name, &tree, &root, &refs);
    if (err == CAIRN_CORRUPT || err == CAIRN_NOT_FOUND || err == CAIRN_INVAL) {
        err = CAIRN_OK; /* carried as bytes */
    } else if (!err && refs.count == 0) {
        *done = true;
        err = add_plain_object(dcp, tensor, &tree, root, bytes, bytes_len, name, path);
    } else if (!err && may_hold(dcp, known->name, &refs)) {
        *done = true;
        err = add_mixed_object(dcp, &tree, root, &refs, name, path);
        if (!err)
            err = cairn_output_add_carried(dcp->output, tensor);
    }
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}

cairn_err
cairn_dcp_output_made(struct cairn_dcp_output *dcp, const uint8_t *bytes, size_t bytes_len,
                      const char *name, const struct cairn_state_path *path)
{
    struct cairn_torch_refs refs;
    struct cairn_pickle_node *root = NULL;
    struct cairn_pickle tree;
    cairn_err err = read_object(dcp, bytes, bytes_len, name, &tree, &root, &refs);

    if (!err)
        err = add_mixed_object(dcp, &tree, root, &refs, name, path);
    cairn_torch_refs_fini(&refs);
    cairn_pickle_fini(&tree);
    return err;
}

/* ---- the whole ---- */

static uint32_t
rank_count(const struct cairn_checkpoint *source, const struct cairn_output_options *options)
{
    const struct cairn_parallelism *from = &source->parallelism, *to = &options->parallelism;
    uint64_t sizes[] = {to->tp ? to->tp : from->tp, to->pp ? to->pp : from->pp,
                        to->dp ? to->dp : from->dp};
    uint64_t count = 1;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        count *= sizes[i] > 0 && sizes[i] <= RANKS_MAX ? sizes[i] : 1;
    return count <= RANKS_MAX ? (uint32_t)count : RANKS_MAX;
}

cairn_err
cairn_dcp_output_init(struct cairn_dcp_output *dcp, const struct cairn_checkpoint *source,
                      const struct cairn_output_options *options, struct cairn_output *output,
                      struct cairn_dcp_kept **kept)
{
    uint32_t tensor_count = cairn_layout_tensor_count(source->layout);

    *dcp = (struct cairn_dcp_output){.source = source,
                                     .options = options,
                                     .output = output,
                                     .rank_count = rank_count(source, options)};
    cairn_pickle_init(&dcp->index.pickle, INDEX_BYTES_MAX);
    cairn_torch_builder_init(&dcp->index.builder, &dcp->index.pickle);
    dcp->index.state = cairn_pickle_dict(&dcp->index.pickle);
    dcp->index.planner = cairn_pickle_dict(&dcp->index.pickle);
    dcp->index.storage = cairn_pickle_dict(&dcp->index.pickle);
    for (int i = 0; i < CLASS_COUNT; i++)
        dcp->index.classes[i] =
            cairn_pickle_global(&dcp->index.pickle, classes[i].module, classes[i].name);
    for (int i = 0; i < WORD_COUNT; i++)
        dcp->index.words[i] = cairn_pickle_text(&dcp->index.pickle, words[i]);
    *kept = dcp->kept = calloc(1, sizeof(*dcp->kept));
    dcp->ranks = calloc(dcp->rank_count, sizeof(*dcp->ranks));
    dcp->inside = calloc((size_t)tensor_count + 1, sizeof(*dcp->inside));
    return dcp->kept && dcp->ranks && dcp->inside ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_dcp_output_fini(struct cairn_dcp_output *dcp)
{
    cairn_pickle_fini(&dcp->index.pickle);
    free(dcp->ranks);
    free(dcp->inside);
    memset(dcp, 0, sizeof(*dcp));
}

cairn_err
cairn_dcp_output_end(struct cairn_dcp_output *dcp)
{
    cairn_err err = index_pack(&dcp->index, &dcp->kept->index_bytes, &dcp->kept->index_bytes_len);

    dcp->output->small_bytes = dcp->kept->index_bytes_len;
    return err;
}

/* ---- with the checksums ---- */

static cairn_err
finish_chunk(struct cairn_output *output, const struct cairn_dcp_open_chunk *chunk)
{
    struct cairn_torch_plan plan = {0};

    cairn_err err = plan_chunk(chunk->dtype, chunk->dims, chunk->extent, &plan, NULL);

    if (err)
        return err;
    if (chunk->sum != UINT32_MAX)
        cairn_torch_plan_storage_at(&plan, 0)->crc32 = (uint32_t)output->sums[chunk->sum].values[0];
    err = cairn_torch_plan_literals(&plan, CAIRN_TORCH_TAIL, output, chunk->file, chunk->begin);

    cairn_torch_plan_fini(&plan);
    return err;
}

cairn_err
cairn_dcp_kept_finish(struct cairn_dcp_kept *kept, struct cairn_output *output)
{
    cairn_err err = CAIRN_OK;

    for (size_t i = 0; i < kept->chunk_count && !err; i++)
        err = finish_chunk(output, &kept->chunks[i]);
    for (uint32_t i = 0; i < kept->archive_count && !err; i++)
        err = cairn_torch_output_finish(output, &kept->archives[i]);
    if (!err) {
        err = cairn_output_add_small(output, CAIRN_DCP_METADATA, kept->index_bytes,
                                     kept->index_bytes_len);
        kept->index_bytes = NULL;
    }
    return err;
}
