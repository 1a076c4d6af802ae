/*
 * snapshot/manifest.c - the packed form of a manifest.
 *
 * All numbers are little-endian and unaligned; nothing lies between the parts.
 *
 *   bytes  what
 *       8  magic "CAIRNMAN"
 *       4  version, 2
 *       4  container            4  container_count
 *       4  rank_count           4  tensor_count        4  entry_count
 *       8  job_id               8  epoch               8  step
 *       8  container_bytes      8  block_count
 *   rank_count times:
 *       4  rank                 4  world               8  region_offset       8  region_bytes
 *   tensor_count times, in the order in which the entries first name them, each name once:
 *       4  bytes of the name    .. the name, without NUL
 *       1  dtype                1  kind                1  dims                1  zero
 *       8  shape, dims times
 *   entry_count times:
 *       4  tensor               4  rank                8  offset_bytes
 *       4  replica_index        4  replica_count
 *       8  flat_begin           8  flat_end
 *       8  offset, dims times   8  extent, dims times
 *   block_count times:
 *       8  CRC-64 of the block
 *       8  CRC-64 (base/crc.h) of all bytes before it
 *
 * One manifest has one packed form. Version 2: an entry says which replica captured it. The last
 * CRC stands in every version, so that damage is told from another version. The invariants are
 * those of manifest.h; the bytes are checked in the order size, magic, CRC, version, counts against
 * what is left (before anything is allocated for them), then the rest.
 */
#include "snapshot/manifest.h"

#include "snapshot/box.h"
#include "snapshot/manifest_check.h"

#include "base/crc.h"
#include "base/limits.h"
#include "base/wire.h"

#include <stdlib.h>
#include <string.h>

enum {
    VERSION = 2,
    MAGIC_BYTES = 8,
    HEAD_BYTES = 72,
    RANK_BYTES = 24,
    TENSOR_BYTES_MIN = 9, /* a scalar whose name is one byte */
    ENTRY_BYTES_MIN = 40,
    CRC_BYTES = 8
};

static const uint8_t magic[MAGIC_BYTES] = {'C', 'A', 'I', 'R', 'N', 'M', 'A', 'N'};

/* The tensor table of a packed manifest: the first entry of each tensor, and the reverse. */
struct tensor_table {
    uint32_t *first_entry; /* of tensor t */
    uint32_t *tensor;      /* of entry i */
    uint32_t count;
};

/* A tensor while it is unpacked. */
struct tensor_row {
    const char *name;
    uint32_t dtype, kind, dims;
    uint64_t shape[CAIRN_DIMS_MAX];
};

/* An entry while entries are put in the order of their names. */
struct named_entry {
    const char *name;
    uint32_t index;
};

void
cairn_manifest_fini(struct cairn_manifest *manifest)
{
    free(manifest->ranks);
    free(manifest->entries);
    free(manifest->block_crcs);
    free(manifest->names);
    memset(manifest, 0, sizeof *manifest);
}

static int
compare_names(const void *left, const void *right)
{
    const struct named_entry *a = left, *b = right;
    int order = strcmp(a->name, b->name);

    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* Room for `count` things, and for one more so that no room is none. */
static void *
new_array(uint64_t count, size_t bytes)
{
    return count < SIZE_MAX / bytes ? malloc((size_t)(count + 1) * bytes) : NULL;
}

static bool
same_tensor(const struct cairn_slice *a, const struct cairn_slice *b)
{
    return a->dtype == b->dtype && a->kind == b->kind &&
           cairn_shape_equal(a->dims, a->shape, b->dims, b->shape);
}

static void
table_fini(struct tensor_table *table)
{
    free(table->first_entry);
    free(table->tensor);
}

/*
 * Numbers the tensors in the order of the first entries that name them. CAIRN_INVAL if entries
 * disagree.
 */
static cairn_err
table_init(struct tensor_table *table, const struct cairn_manifest *manifest)
{
    struct named_entry *order = new_array(manifest->entry_count, sizeof *order);
    uint32_t *first = new_array(manifest->entry_count, sizeof *first);
    uint32_t *tensor = new_array(manifest->entry_count, sizeof *tensor);
    uint32_t count = 0;
    cairn_err err = CAIRN_NOMEM;

    if (!order || !first || !tensor)
        goto done;
    for (uint32_t i = 0; i < manifest->entry_count; i++)
        order[i] = (struct named_entry){manifest->entries[i].slice.name, i};
    qsort(order, manifest->entry_count, sizeof *order, compare_names);
    err = CAIRN_INVAL;
    for (uint32_t i = 0, same = 0; i < manifest->entry_count; i++) {
        if (strcmp(order[i].name, order[same].name) != 0)
            same = i;
        if (!same_tensor(&manifest->entries[order[same].index].slice,
                         &manifest->entries[order[i].index].slice))
            goto done;
        /* the first entry of that name; its number comes below */
        tensor[order[i].index] = order[same].index;
    }
    for (uint32_t i = 0; i < manifest->entry_count; i++) {
        if (tensor[i] == i) {
            first[count] = i;
            tensor[i] = count++;
        } else {
            tensor[i] = tensor[tensor[i]]; /* an earlier entry, which has its number by now */
        }
    }
    table->first_entry = first;
    table->tensor = tensor;
    table->count = count;
    first = NULL;
    tensor = NULL;
    err = CAIRN_OK;
done:
    free(order);
    free(first);
    free(tensor);
    return err;
}

static void
write_numbers(struct cairn_writer *writer, const uint64_t *numbers, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        cairn_write_u64(writer, numbers[i]);
}

static void
write_body(struct cairn_writer *writer, const struct cairn_manifest *manifest,
           const struct tensor_table *table)
{
    cairn_write_bytes(writer, magic, sizeof magic);
    cairn_write_u32(writer, VERSION);
    cairn_write_u32(writer, manifest->container);
    cairn_write_u32(writer, manifest->container_count);
    cairn_write_u32(writer, manifest->rank_count);
    cairn_write_u32(writer, table->count);
    cairn_write_u32(writer, manifest->entry_count);
    cairn_write_u64(writer, manifest->job_id);
    cairn_write_u64(writer, manifest->generation.epoch);
    cairn_write_u64(writer, manifest->generation.step);
    cairn_write_u64(writer, manifest->container_bytes);
    cairn_write_u64(writer, manifest->block_count);
    for (uint32_t i = 0; i < manifest->rank_count; i++) {
        cairn_write_u32(writer, manifest->ranks[i].rank);
        cairn_write_u32(writer, manifest->ranks[i].world);
        cairn_write_u64(writer, manifest->ranks[i].region_offset);
        cairn_write_u64(writer, manifest->ranks[i].region_bytes);
    }
    for (uint32_t t = 0; t < table->count; t++) {
        const struct cairn_slice *slice = &manifest->entries[table->first_entry[t]].slice;

        cairn_write_string(writer, slice->name);
        cairn_write_u8(writer, (uint8_t)slice->dtype);
        cairn_write_u8(writer, (uint8_t)slice->kind);
        cairn_write_u8(writer, (uint8_t)slice->dims);
        cairn_write_u8(writer, 0);
        write_numbers(writer, slice->shape, slice->dims);
    }
    for (uint32_t i = 0; i < manifest->entry_count; i++) {
        const struct cairn_manifest_entry *entry = &manifest->entries[i];

        cairn_write_u32(writer, table->tensor[i]);
        cairn_write_u32(writer, entry->rank);
        cairn_write_u64(writer, entry->offset_bytes);
        cairn_write_u32(writer, entry->slice.replica_index);
        cairn_write_u32(writer, entry->slice.replica_count);
        cairn_write_u64(writer, entry->slice.flat_begin);
        cairn_write_u64(writer, entry->slice.flat_end);
        write_numbers(writer, entry->slice.offset, entry->slice.dims);
        write_numbers(writer, entry->slice.extent, entry->slice.dims);
    }
    write_numbers(writer, manifest->block_crcs, manifest->block_count);
}

cairn_err
cairn_manifest_pack(const struct cairn_manifest *manifest, uint8_t **bytes, size_t *bytes_len)
{
    struct tensor_table table = {0};
    struct cairn_writer writer;
    uint8_t *packed = NULL;
    size_t packed_bytes;
    cairn_err err;

    err = cairn_manifest_check(manifest, CAIRN_INVAL);
    if (err)
        goto done;
    err = table_init(&table, manifest);
    if (err)
        goto done;
    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_body(&writer, manifest, &table);
    packed_bytes = writer.used_bytes + CRC_BYTES;
    packed = malloc(packed_bytes);
    if (!packed) {
        err = CAIRN_NOMEM;
        goto done;
    }
    cairn_writer_init(&writer, packed, packed_bytes);
    write_body(&writer, manifest, &table);
    cairn_write_u64(&writer, cairn_crc64(0, packed, packed_bytes - CRC_BYTES));
    err = cairn_writer_done(&writer);
    if (err)
        goto done;
    *bytes = packed;
    *bytes_len = packed_bytes;
    packed = NULL;
done:
    free(packed);
    table_fini(&table);
    return err;
}

/* Checks the frame around the body, and opens a reader on the body after magic and version. */
static cairn_err
open_body(const void *bytes, size_t bytes_len, struct cairn_reader *reader)
{
    struct cairn_reader tail;

    if (bytes_len < HEAD_BYTES + CRC_BYTES || memcmp(bytes, magic, sizeof magic) != 0)
        return CAIRN_CORRUPT;
    cairn_reader_init(&tail, (const uint8_t *)bytes + bytes_len - CRC_BYTES, CRC_BYTES);
    if (cairn_read_u64(&tail) != cairn_crc64(0, bytes, bytes_len - CRC_BYTES))
        return CAIRN_CORRUPT;
    cairn_reader_init(reader, bytes, bytes_len - CRC_BYTES);
    (void)cairn_read_borrow(reader, MAGIC_BYTES);
    return cairn_read_u32(reader) == VERSION ? CAIRN_OK : CAIRN_VERSION;
}

/*
 * Reads the numbers of the head, and allocates for their counts once the rest of the input can hold
 * them.
 */
static cairn_err
read_head(struct cairn_reader *reader, struct cairn_manifest *manifest, uint32_t *tensor_count)
{
    uint64_t least, blocks;
    bool too_large;

    manifest->container = cairn_read_u32(reader);
    manifest->container_count = cairn_read_u32(reader);
    manifest->rank_count = cairn_read_u32(reader);
    *tensor_count = cairn_read_u32(reader);
    manifest->entry_count = cairn_read_u32(reader);
    manifest->job_id = cairn_read_u64(reader);
    manifest->generation.epoch = cairn_read_u64(reader);
    manifest->generation.step = cairn_read_u64(reader);
    manifest->container_bytes = cairn_read_u64(reader);
    manifest->block_count = cairn_read_u64(reader);
    least = (uint64_t)manifest->rank_count * RANK_BYTES +
            (uint64_t)*tensor_count * TENSOR_BYTES_MIN +
            (uint64_t)manifest->entry_count * ENTRY_BYTES_MIN;
    too_large = __builtin_mul_overflow(manifest->block_count, (uint64_t)CRC_BYTES, &blocks) ||
                __builtin_add_overflow(least, blocks, &least) || least > cairn_reader_left(reader);
    if (too_large)
        return CAIRN_CORRUPT;
    manifest->ranks = new_array(manifest->rank_count, sizeof *manifest->ranks);
    manifest->entries = new_array(manifest->entry_count, sizeof *manifest->entries);
    manifest->block_crcs = new_array(manifest->block_count, sizeof *manifest->block_crcs);
    /* Each name has a length of 4 bytes in the input, and a NUL of one here. */
    manifest->names = new_array(cairn_reader_left(reader), 1);
    if (!manifest->ranks || !manifest->entries || !manifest->block_crcs || !manifest->names)
        return CAIRN_NOMEM;
    return CAIRN_OK;
}

/* Reads the tensors; no name may be there twice. */
static cairn_err
read_tensors(struct cairn_reader *reader, char *names, struct tensor_row *rows, uint32_t count)
{
    struct named_entry *order = new_array(count, sizeof *order);
    cairn_err err = CAIRN_NOMEM;
    size_t used = 0;

    if (!order)
        return CAIRN_NOMEM;
    for (uint32_t t = 0; t < count; t++) {
        char name[CAIRN_NAME_BYTES_MAX];

        cairn_read_string(reader, name, sizeof name);
        rows[t].name = memcpy(names + used, name, strlen(name) + 1);
        used += strlen(name) + 1;
        rows[t].dtype = cairn_read_u8(reader);
        rows[t].kind = cairn_read_u8(reader);
        rows[t].dims = cairn_read_u8(reader);
        err = CAIRN_CORRUPT;
        if (cairn_read_u8(reader) != 0 || rows[t].dims > CAIRN_DIMS_MAX || reader->failed)
            goto done;
        for (uint32_t d = 0; d < rows[t].dims; d++)
            rows[t].shape[d] = cairn_read_u64(reader);
        order[t] = (struct named_entry){rows[t].name, t};
    }
    qsort(order, count, sizeof *order, compare_names);
    err = CAIRN_OK;
    for (uint32_t t = 1; t < count; t++)
        if (strcmp(order[t].name, order[t - 1].name) == 0)
            err = CAIRN_CORRUPT;
done:
    free(order);
    return err;
}

/* Reads the entries; they must name every tensor, and new ones in the order of the table. */
static cairn_err
read_entries(struct cairn_reader *reader, const struct tensor_row *rows, uint32_t tensor_count,
             struct cairn_manifest *manifest)
{
    uint32_t named = 0;

    for (uint32_t i = 0; i < manifest->entry_count; i++) {
        struct cairn_manifest_entry *entry = &manifest->entries[i];
        struct cairn_slice *slice = &entry->slice;
        uint32_t tensor = cairn_read_u32(reader);

        if (reader->failed || tensor >= tensor_count || tensor > named)
            return CAIRN_CORRUPT;
        named += tensor == named;
        memset(entry, 0, sizeof *entry);
        slice->name = rows[tensor].name;
        slice->dtype = (enum cairn_dtype)rows[tensor].dtype;
        slice->kind = (enum cairn_kind)rows[tensor].kind;
        slice->dims = rows[tensor].dims;
        memcpy(slice->shape, rows[tensor].shape, sizeof slice->shape);
        slice->device = -1;
        entry->rank = cairn_read_u32(reader);
        entry->offset_bytes = cairn_read_u64(reader);
        slice->replica_index = cairn_read_u32(reader);
        slice->replica_count = cairn_read_u32(reader);
        slice->flat_begin = cairn_read_u64(reader);
        slice->flat_end = cairn_read_u64(reader);
        for (uint32_t d = 0; d < slice->dims; d++)
            slice->offset[d] = cairn_read_u64(reader);
        for (uint32_t d = 0; d < slice->dims; d++)
            slice->extent[d] = cairn_read_u64(reader);
    }
    return named == tensor_count ? CAIRN_OK : CAIRN_CORRUPT;
}

cairn_err
cairn_manifest_unpack(const void *bytes, size_t bytes_len, struct cairn_manifest *out)
{
    struct cairn_manifest manifest = {0};
    struct cairn_reader reader;
    struct tensor_row *rows = NULL;
    uint32_t tensor_count = 0;
    cairn_err err;

    err = open_body(bytes, bytes_len, &reader);
    if (err)
        goto done;
    err = read_head(&reader, &manifest, &tensor_count);
    if (err)
        goto done;
    for (uint32_t i = 0; i < manifest.rank_count; i++) {
        manifest.ranks[i].rank = cairn_read_u32(&reader);
        manifest.ranks[i].world = cairn_read_u32(&reader);
        manifest.ranks[i].region_offset = cairn_read_u64(&reader);
        manifest.ranks[i].region_bytes = cairn_read_u64(&reader);
    }
    rows = calloc((size_t)tensor_count + 1, sizeof *rows);
    if (!rows) {
        err = CAIRN_NOMEM;
        goto done;
    }
    err = read_tensors(&reader, manifest.names, rows, tensor_count);
    if (err)
        goto done;
    err = read_entries(&reader, rows, tensor_count, &manifest);
    if (err)
        goto done;
    for (uint64_t i = 0; i < manifest.block_count; i++)
        manifest.block_crcs[i] = cairn_read_u64(&reader);
    err = cairn_reader_done(&reader);
    if (err)
        goto done;
    err = cairn_manifest_check(&manifest, CAIRN_CORRUPT);
    if (err)
        goto done;
    *out = manifest;
    memset(&manifest, 0, sizeof manifest);
done:
    free(rows);
    cairn_manifest_fini(&manifest);
    return err;
}

cairn_err
cairn_manifest_add_to_layout(const struct cairn_manifest *manifest, struct cairn_layout *layout,
                             const char **why)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; i < manifest->entry_count && !err; i++) {
        const struct cairn_manifest_entry *entry = &manifest->entries[i];

        err = cairn_layout_add(layout, manifest->container, &entry->slice, entry->slice.flat_begin,
                               entry->slice.flat_end, entry->offset_bytes, why);
    }
    return err;
}
