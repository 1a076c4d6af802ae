/*
 * tools/convert/dcp/items.c - the items of a distributed checkpoint: archives of torch.save, one
 * behind the other in a file. One with a tensor is that tensor's chunk (dcp/chunks.c); one without
 * is a pickled object.
 */
#include "tools/convert/dcp/dcp.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "tools/convert/state/param_groups.h"
#include "tools/convert/torch/refs.h"
#include "tools/convert/torch/file.h"
#include "tools/convert/torch/source.h"
#include "tools/convert/state/opaque_tree.h"

/* ---- files ---- */

cairn_err
cairn_dcp_metadata_load(const struct cairn_checkpoint *checkpoint, struct cairn_dcp_metadata *out)
{
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    cairn_err err;

    (void)snprintf(path, sizeof(path), "%s/" CAIRN_DCP_METADATA, checkpoint->place.path);
    err = cairn_place_load(&checkpoint->place, CAIRN_DCP_METADATA, CAIRN_CONVERT_METADATA_BYTES_MAX,
                           &bytes, &bytes_len, checkpoint->complaint);
    return err ? err : cairn_dcp_metadata_parse(bytes, bytes_len, path, out, checkpoint->complaint);
}

int
cairn_dcp_compare_paths(const struct cairn_pickle_node *a, const struct cairn_pickle_node *b)
{
    uint32_t common = a->count < b->count ? a->count : b->count;
    int order;

    if (a == b)
        return 0;
    order = common > 0 ? memcmp(a->bytes, b->bytes, common) : 0;
    return order ? order : a->count < b->count ? -1 : a->count > b->count;
}

static int
compare_wanted(const void *left, const void *right)
{
    const struct cairn_dcp_wanted *a = left, *b = right;
    int order = cairn_dcp_compare_paths(a->item.path, b->item.path);

    order = order ? order : CAIRN_COMPARE(a->item.offset_bytes, b->item.offset_bytes);
    order = order ? order : CAIRN_COMPARE(a->entry, b->entry);
    return order ? order : CAIRN_COMPARE(a->chunk, b->chunk);
}

cairn_err
cairn_dcp_wants_sort(const struct cairn_checkpoint *checkpoint,
                     const struct cairn_dcp_metadata *metadata, struct cairn_dcp_wants *wants)
{
    if (wants->count > 0)
        qsort(wants->items, wants->count, sizeof(*wants->items), compare_wanted);
    for (size_t i = 1; i < wants->count; i++) {
        const struct cairn_dcp_wanted *a = &wants->items[i - 1], *b = &wants->items[i];
        char name[CAIRN_NAME_BYTES_MAX] = "";

        if (cairn_dcp_compare_paths(a->item.path, b->item.path) != 0 ||
            b->item.offset_bytes - a->item.offset_bytes >= a->item.bytes)
            continue;
        (void)cairn_pickle_copy_text(b->item.path, name, sizeof(name));
        return cairn_refuse_file(checkpoint, CAIRN_DCP_METADATA, CAIRN_CORRUPT,
                                 "items of %s and of %s overlap at byte %" PRIu64
                                 " of %s; take another copy",
                                 metadata->entries[a->entry].name, metadata->entries[b->entry].name,
                                 b->item.offset_bytes, name);
    }
    return CAIRN_OK;
}

/* What outlives the tree: the name of a file, once for all items that follow one another. */
static const struct cairn_pickle_node *
keep_path(struct cairn_pickle *kept, const struct cairn_dcp_wants *wants,
          const struct cairn_pickle_node *path)
{
    uint8_t *copy;

    if (wants->count > 0 &&
        cairn_dcp_compare_paths(wants->items[wants->count - 1].item.path, path) == 0)
        return wants->items[wants->count - 1].item.path;
    copy = cairn_pickle_alloc(kept, (uint64_t)path->count + 1);
    if (!copy)
        return NULL;
    memcpy(copy, path->bytes, path->count);
    return cairn_pickle_borrow(kept, CAIRN_PICKLE_TEXT, copy, path->count);
}

/* start and extent: NULL for a bytes object. */
static cairn_err
add_wanted(struct cairn_dcp_metadata *metadata, uint32_t index, uint32_t chunk,
           const uint64_t *start, const uint64_t *extent, struct cairn_dcp_wants *wants,
           struct cairn_complaint *complaint)
{
    const struct cairn_dcp_entry *entry = &metadata->entries[index];
    struct cairn_dcp_wanted wanted = {.entry = index, .chunk = chunk};
    cairn_err err;

    err = cairn_dcp_find_item(metadata, entry, start, &wanted.item, complaint);
    if (err)
        return err;
    wanted.item.path = keep_path(&metadata->kept, wants, wanted.item.path);
    if (start) {
        size_t half_bytes = entry->dims * sizeof(*start);
        uint64_t *box = cairn_pickle_alloc(&metadata->kept, 2 * half_bytes);

        if (box) {
            memcpy(box, start, half_bytes);
            memcpy(box + entry->dims, extent, half_bytes);
        }
        wanted.box = box;
    }
    if (!wanted.item.path || (start && !wanted.box))
        return CAIRN_NOMEM;
    if (!cairn_array_grow(&wants->items, wants->count, sizeof(*wants->items)))
        return CAIRN_NOMEM;
    wants->items[wants->count++] = wanted;
    return CAIRN_OK;
}

cairn_err
cairn_dcp_want_entry(const struct cairn_checkpoint *checkpoint, struct cairn_dcp_metadata *metadata,
                     uint32_t index, struct cairn_dcp_wants *wants)
{
    const struct cairn_dcp_entry *entry = &metadata->entries[index];
    uint64_t start[CAIRN_DIMS_MAX], extent[CAIRN_DIMS_MAX];
    cairn_err err = CAIRN_OK;

    if (!entry->tensor)
        return add_wanted(metadata, index, 0, NULL, NULL, wants, checkpoint->complaint);
    for (uint32_t i = 0; i < entry->chunks->count && !err; i++) {
        bool empty = false;

        if (!cairn_dcp_chunk_box(entry, i, start, extent))
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                "chunk %" PRIu32 " of tensor %.300s is not a box inside it", i,
                                entry->name);
        for (uint32_t d = 0; d < entry->dims; d++)
            empty = empty || extent[d] == 0;
        if (!empty)
            err = add_wanted(metadata, index, i, start, extent, wants, checkpoint->complaint);
    }
    return err;
}

void
cairn_dcp_source_close(struct cairn_dcp_source *source)
{
    (void)cairn_file_close(source->fd); /* only read; -1 is allowed */
    source->fd = -1;
    source->path = NULL;
}

cairn_err
cairn_dcp_source_select(struct cairn_checkpoint *checkpoint, struct cairn_dcp_source *source,
                        const struct cairn_dcp_item *item, const char *name)
{
    cairn_err err = CAIRN_OK;

    if (!source->path || cairn_dcp_compare_paths(source->path, item->path) != 0) {
        cairn_dcp_source_close(source);
        if (!cairn_pickle_copy_text(item->path, source->name, sizeof(source->name)) ||
            !cairn_place_name_check(source->name))
            return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                                ".metadata says that %.200s lies outside the checkpoint, or has no "
                                "usable name; take another copy",
                                name);
        err = cairn_checkpoint_add_file(checkpoint, source->name, &source->container);
        if (!err)
            err = cairn_place_open_file(&checkpoint->place, source->name, &source->fd,
                                        checkpoint->complaint);
        if (err)
            return cairn_complain_failed(checkpoint->complaint, err, "%s/%s: cannot be opened",
                                         checkpoint->place.path, source->name);
        source->mark = checkpoint->containers[source->container].mark;
        source->path = item->path;
    }
    if (item->offset_bytes > source->mark.bytes ||
        item->bytes > source->mark.bytes - item->offset_bytes)
        return cairn_refuse_file(checkpoint, source->name, CAIRN_CORRUPT,
                                 "%.200s ends at byte %" PRIu64 " and the file has %" PRIu64
                                 "; it is truncated, take another copy",
                                 name, item->offset_bytes + item->bytes, source->mark.bytes);
    return CAIRN_OK;
}

void
cairn_dcp_say_where(const struct cairn_dcp_source *source, const struct cairn_dcp_item *item,
                    const char *name, char where[CAIRN_DCP_WHERE_BYTES_MAX])
{
    (void)snprintf(where, CAIRN_DCP_WHERE_BYTES_MAX, "%.160s at byte %" PRIu64 " (%.200s)",
                   source->name, item->offset_bytes, name);
}

/* ---- objects ---- */

/* Whether an item is an archive, and where the object's pickle lies in one without storages; else
 * entry->at is 0. `bytes`, if not NULL, gets the pickle, which the caller frees, unless it is too
 * large. */
static cairn_err
look_into(const struct cairn_dcp_source *source, const struct cairn_dcp_item *item,
          const char *where, bool *archive, struct cairn_zip_entry *entry, uint8_t **bytes,
          struct cairn_complaint *complaint)
{
    const struct cairn_zip_entry *found;
    struct cairn_zip zip = {0};
    uint8_t first[4];
    size_t got = 0;
    bool storages = false;
    cairn_err err;

    memset(entry, 0, sizeof(*entry));
    err =
        cairn_file_read_at(source->fd, item->offset_bytes, first,
                           item->bytes < sizeof(first) ? (size_t)item->bytes : sizeof(first), &got);
    *archive = !err && cairn_zip_probe(first, got);
    if (*archive)
        err = cairn_zip_open(source->fd, where, item->offset_bytes, item->bytes, &zip, complaint);
    if (err || !*archive)
        return cairn_complain_failed(complaint, err, "%s: cannot be read", where);
    for (uint32_t i = 0; i < zip.entry_count; i++)
        storages = storages || strncmp(zip.entries[i].name + strlen(zip.folder), "data/", 5) == 0;
    found = cairn_zip_find(&zip, "data.pkl");
    if (found && !storages)
        *entry = *found;
    entry->name = NULL; /* the archive's */
    if (bytes && entry->at > 0 && entry->bytes <= CAIRN_DCP_OBJECT_BYTES_MAX) {
        *bytes = malloc((size_t)entry->bytes + 1);
        err = *bytes ? cairn_zip_take(&zip, where, found, *bytes, complaint) : CAIRN_NOMEM;
    }
    cairn_zip_fini(&zip);
    return cairn_complain_failed(complaint, err, "%s: cannot be read", where);
}

cairn_err
cairn_dcp_load_object(const struct cairn_dcp_source *source, const struct cairn_dcp_wanted *wanted,
                      const char *name, uint8_t **bytes, size_t *bytes_len,
                      struct cairn_complaint *complaint)
{
    struct cairn_zip_entry entry;
    char where[CAIRN_DCP_WHERE_BYTES_MAX];
    bool archive;
    cairn_err err;

    *bytes = NULL;
    cairn_dcp_say_where(source, &wanted->item, name, where);
    err = look_into(source, &wanted->item, where, &archive, &entry, bytes, complaint);
    *bytes_len = (size_t)entry.bytes;
    if (err) {
        free(*bytes);
        *bytes = NULL;
    }
    return err;
}

/* Bytes as they lie in the file. */
static cairn_err
add_opaque_piece(struct cairn_checkpoint *checkpoint, const struct cairn_dcp_source *source,
                 const char *name, uint64_t at, uint64_t bytes)
{
    uint32_t tensor;
    cairn_err err;

    if (cairn_layout_tensor_find(checkpoint->layout, name) != UINT32_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "duplicate %.200s", name);
    err = cairn_checkpoint_add_tensor(checkpoint, name, CAIRN_U8, CAIRN_OPAQUE, 1, &bytes, &tensor);
    if (err)
        return err;
    return cairn_checkpoint_add_box(checkpoint, tensor, source->container, NULL, NULL, at, NULL);
}

/* Tensors in an object go into the layout; the rest is pickled with their names. */
static cairn_err
add_mixed_object(struct cairn_checkpoint *checkpoint, const struct cairn_dcp_source *source,
                 const struct cairn_dcp_wanted *wanted, const char *name, const char *final_name,
                 const char *where)
{
    struct cairn_torch_source archive = {.path = name, .container = source->container};
    char scope[CAIRN_NAME_BYTES_MAX + 1];
    cairn_err err;

    (void)snprintf(scope, sizeof(scope), "%s.", name);
    err = cairn_torch_source_read(checkpoint, source->fd, where, wanted->item.offset_bytes,
                                  wanted->item.bytes, &archive);
    if (!err)
        err = cairn_torch_source_carry_as(checkpoint, &archive, scope, final_name);
    cairn_torch_source_close(&archive);
    return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be read", where);
}

/* An object that is not an archive: bytes as they are, without a checksum. PyTorch ends archives
 * with the same 22 bytes but for numbers, which tells those with a damaged beginning. */
static cairn_err
add_raw_object(struct cairn_checkpoint *checkpoint, const struct cairn_dcp_source *source,
               const struct cairn_dcp_item *item, const char *name, const char *where)
{
    enum { END_BYTES = 22 };
    static const uint8_t end[4] = {'P', 'K', 5, 6};
    uint8_t last[sizeof(end)] = {0};
    size_t got = 0;
    cairn_err err = CAIRN_OK;

    if (item->bytes >= END_BYTES)
        err = cairn_file_read_at(source->fd, item->offset_bytes + item->bytes - END_BYTES, last,
                                 sizeof(last), &got);
    if (err)
        return cairn_complain_failed(checkpoint->complaint, err, "%s: cannot be read", where);
    if (memcmp(last, end, sizeof(end)) == 0)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT,
                            "the item of %s ends as an archive of torch.save and does not begin as "
                            "one: it is damaged; take another copy",
                            where);
    err = cairn_checkpoint_add_storage_sum(checkpoint, source->container, item->offset_bytes,
                                           item->bytes, 0);
    return err ? err : add_opaque_piece(checkpoint, source, name, item->offset_bytes, item->bytes);
}

cairn_err
cairn_dcp_add_object(struct cairn_checkpoint *checkpoint, const struct cairn_dcp_source *source,
                     const struct cairn_dcp_wanted *wanted, const char *name,
                     char final_name[CAIRN_NAME_BYTES_MAX])
{
    const struct cairn_dcp_item *item = &wanted->item;
    struct cairn_zip_entry entry;
    char where[CAIRN_DCP_WHERE_BYTES_MAX];
    bool archive;
    cairn_err err;

    cairn_dcp_say_where(source, item, name, where);
    err = look_into(source, item, where, &archive, &entry, NULL, checkpoint->complaint);
    if (err)
        return err;
    if (snprintf(final_name, CAIRN_NAME_BYTES_MAX, "%s%s", name, archive ? ".pickle" : "") >=
        CAIRN_NAME_BYTES_MAX)
        return cairn_refuse(checkpoint, CAIRN_CORRUPT, "the name %.200s… is too long", name);
    if (!archive)
        return add_raw_object(checkpoint, source, item, final_name, where);
    if (entry.at > 0) {
        err = cairn_checkpoint_add_storage_sum(checkpoint, source->container, entry.at, entry.bytes,
                                               entry.crc32);
        return err ? err : add_opaque_piece(checkpoint, source, final_name, entry.at, entry.bytes);
    }
    return add_mixed_object(checkpoint, source, wanted, name, final_name, where);
}
