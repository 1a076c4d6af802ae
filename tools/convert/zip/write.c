/* tools/convert/zip/write.c - the records of an archive around data that others write. */
#include "tools/convert/zip/write.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/wire.h"
#include "tools/convert/zip/format.h"
#include "tools/convert/zip/read.h"

enum {
    DESCRIPTOR_BYTES = 16,
    DESCRIPTOR64_BYTES = 24,
    EXTRA_HEAD_BYTES = 4,
    MADE_BY = 0x031e, /* what PyTorch's writer says of itself: version 3.0 on Unix */
    VERSION64 = 45
};

static bool
large(uint64_t value)
{
    return value >= UINT32_MAX;
}

static uint32_t
narrow(uint64_t value)
{
    return large(value) ? UINT32_MAX : (uint32_t)value;
}

/* Bytes of the ZIP64 extra, in a local header and in the directory alike. */
static uint64_t
extra64_bytes(const struct cairn_zip_planned *entry)
{
    uint64_t fields = (large(entry->bytes) ? 2u : 0u) + (large(entry->header_at) ? 1u : 0u);

    return fields > 0 ? EXTRA_HEAD_BYTES + 8 * fields : 0;
}

static uint64_t
descriptor_bytes(const struct cairn_zip_planned *entry)
{
    if (entry->bytes == 0)
        return 0;
    return extra64_bytes(entry) > 0 ? DESCRIPTOR64_BYTES : DESCRIPTOR_BYTES;
}

/* ---- planning ---- */

cairn_err
cairn_zip_plan_init(struct cairn_zip_plan *plan, const char *folder)
{
    memset(plan, 0, sizeof(*plan));
    plan->folder = strdup(folder);
    return plan->folder ? CAIRN_OK : CAIRN_NOMEM;
}

void
cairn_zip_plan_fini(struct cairn_zip_plan *plan)
{
    for (uint32_t i = 0; i < plan->entry_count; i++)
        free(plan->entries[i].name);
    free(plan->entries);
    free(plan->folder);
    memset(plan, 0, sizeof(*plan));
}

cairn_err
cairn_zip_plan_add(struct cairn_zip_plan *plan, const char *name, uint64_t bytes, uint32_t *index)
{
    struct cairn_zip_planned entry = {.header_at = plan->end_at, .bytes = bytes};
    char whole[CAIRN_ZIP_NAME_BYTES_MAX];
    int name_bytes = snprintf(whole, sizeof(whole), "%s/%s", plan->folder, name);

    if (name_bytes < 0 || (size_t)name_bytes >= sizeof(whole) ||
        bytes > (uint64_t)INT64_MAX / 2 - plan->end_at ||
        plan->entry_count >= CAIRN_ZIP_ENTRIES_MAX)
        return CAIRN_INVAL;
    if (!cairn_array_grow(&plan->entries, plan->entry_count, sizeof(*plan->entries)))
        return CAIRN_NOMEM;
    entry.name = strdup(whole);
    if (!entry.name)
        return CAIRN_NOMEM;
    entry.at = plan->end_at + CAIRN_ZIP_LOCAL_BYTES + (uint64_t)name_bytes + extra64_bytes(&entry) +
               EXTRA_HEAD_BYTES;
    entry.at =
        (entry.at + CAIRN_ZIP_ALIGN_BYTES - 1) / CAIRN_ZIP_ALIGN_BYTES * CAIRN_ZIP_ALIGN_BYTES;
    plan->end_at = entry.at + bytes + descriptor_bytes(&entry);
    plan->directory_bytes += CAIRN_ZIP_CENTRAL_BYTES + (uint64_t)name_bytes + extra64_bytes(&entry);
    *index = plan->entry_count;
    plan->entries[plan->entry_count++] = entry;
    return CAIRN_OK;
}

uint64_t
cairn_zip_plan_bytes(const struct cairn_zip_plan *plan)
{
    return plan->end_at + plan->directory_bytes + CAIRN_ZIP_END64_BYTES + CAIRN_ZIP_LOCATOR_BYTES +
           CAIRN_ZIP_END_BYTES;
}

/* ---- records ---- */

static void
pack_extra64(struct cairn_writer *writer, const struct cairn_zip_planned *entry,
             uint64_t stored_bytes)
{
    uint64_t bytes = extra64_bytes(entry);

    if (bytes == 0)
        return;
    cairn_write_u16(writer, CAIRN_ZIP_EXTRA64);
    cairn_write_u16(writer, (uint16_t)(bytes - EXTRA_HEAD_BYTES));
    if (large(entry->bytes)) {
        cairn_write_u64(writer, entry->bytes);
        cairn_write_u64(writer, stored_bytes);
    }
    if (large(entry->header_at))
        cairn_write_u64(writer, entry->header_at);
}

static uint16_t
flags_of(const struct cairn_zip_planned *entry)
{
    return entry->bytes > 0 ? CAIRN_ZIP_NAME_UTF8 | CAIRN_ZIP_DESCRIBED : CAIRN_ZIP_NAME_UTF8;
}

static void
pack_local(struct cairn_writer *writer, const struct cairn_zip_planned *entry)
{
    size_t name_bytes = strlen(entry->name);
    uint64_t extra_bytes = entry->at - entry->header_at - CAIRN_ZIP_LOCAL_BYTES - name_bytes;
    uint64_t padding_bytes = extra_bytes - extra64_bytes(entry) - EXTRA_HEAD_BYTES;

    cairn_write_u32(writer, CAIRN_ZIP_LOCAL_SIGNATURE);
    cairn_write_u16(writer, 0); /* version */
    cairn_write_u16(writer, flags_of(entry));
    cairn_write_u16(writer, 0); /* stored */
    cairn_write_u32(writer, 0); /* time and date */
    cairn_write_u32(writer, 0); /* checksum and sizes: in the descriptor and the directory */
    cairn_write_u64(writer, 0);
    cairn_write_u16(writer, (uint16_t)name_bytes);
    cairn_write_u16(writer, (uint16_t)extra_bytes);
    cairn_write_bytes(writer, entry->name, name_bytes);
    pack_extra64(writer, entry, 0);
    cairn_write_u16(writer, CAIRN_ZIP_EXTRA_PADDING);
    cairn_write_u16(writer, (uint16_t)padding_bytes);
    for (uint64_t i = 0; i < padding_bytes; i++)
        cairn_write_u8(writer, 'Z');
}

static void
pack_descriptor(struct cairn_writer *writer, const struct cairn_zip_planned *entry)
{
    uint64_t bytes = descriptor_bytes(entry);

    if (bytes == 0)
        return;
    cairn_write_u32(writer, CAIRN_ZIP_DESCRIPTOR_SIGNATURE);
    cairn_write_u32(writer, entry->crc32);
    if (bytes == DESCRIPTOR64_BYTES) {
        cairn_write_u64(writer, entry->bytes);
        cairn_write_u64(writer, entry->bytes);
    } else {
        cairn_write_u32(writer, (uint32_t)entry->bytes);
        cairn_write_u32(writer, (uint32_t)entry->bytes);
    }
}

static void
pack_central(struct cairn_writer *writer, const struct cairn_zip_planned *entry)
{
    size_t name_bytes = strlen(entry->name);

    cairn_write_u32(writer, CAIRN_ZIP_CENTRAL_SIGNATURE);
    cairn_write_u32(writer, 0); /* versions */
    cairn_write_u16(writer, flags_of(entry));
    cairn_write_u16(writer, 0);
    cairn_write_u32(writer, 0);
    cairn_write_u32(writer, entry->crc32);
    cairn_write_u32(writer, narrow(entry->bytes));
    cairn_write_u32(writer, narrow(entry->bytes));
    cairn_write_u16(writer, (uint16_t)name_bytes);
    cairn_write_u16(writer, (uint16_t)extra64_bytes(entry));
    cairn_write_u16(writer, 0); /* comment */
    cairn_write_u64(writer, 0); /* disk and attributes */
    cairn_write_u32(writer, narrow(entry->header_at));
    cairn_write_bytes(writer, entry->name, name_bytes);
    pack_extra64(writer, entry, entry->bytes);
}

static void
pack_end(struct cairn_writer *writer, const struct cairn_zip_plan *plan)
{
    uint16_t count = plan->entry_count < UINT16_MAX ? (uint16_t)plan->entry_count : UINT16_MAX;

    cairn_write_u32(writer, CAIRN_ZIP_END64_SIGNATURE);
    cairn_write_u64(writer, CAIRN_ZIP_END64_BYTES - 12);
    cairn_write_u16(writer, MADE_BY);
    cairn_write_u16(writer, VERSION64);
    cairn_write_u64(writer, 0); /* disks */
    cairn_write_u64(writer, plan->entry_count);
    cairn_write_u64(writer, plan->entry_count);
    cairn_write_u64(writer, plan->directory_bytes);
    cairn_write_u64(writer, plan->end_at);
    cairn_write_u32(writer, CAIRN_ZIP_LOCATOR_SIGNATURE);
    cairn_write_u32(writer, 0);
    cairn_write_u64(writer, plan->end_at + plan->directory_bytes);
    cairn_write_u32(writer, 1);
    cairn_write_u32(writer, CAIRN_ZIP_END_SIGNATURE);
    cairn_write_u32(writer, 0);
    cairn_write_u16(writer, count);
    cairn_write_u16(writer, count);
    cairn_write_u32(writer, narrow(plan->directory_bytes));
    cairn_write_u32(writer, narrow(plan->end_at));
    cairn_write_u16(writer, 0); /* comment */
}

/* ---- packing ---- */

uint32_t
cairn_zip_plan_hole(const struct cairn_zip_plan *plan, uint32_t from)
{
    while (from < plan->entry_count && (plan->entries[from].data || plan->entries[from].bytes == 0))
        from++;
    return from;
}

cairn_err
cairn_zip_plan_pack(const struct cairn_zip_plan *plan, uint32_t from, uint32_t hole, uint64_t *at,
                    uint8_t **bytes, size_t *bytes_len)
{
    const struct cairn_zip_planned *entries = plan->entries;
    bool last = hole == plan->entry_count;
    struct cairn_writer writer;

    *at = from > 0 ? entries[from - 1].at + entries[from - 1].bytes : 0;
    *bytes_len = (size_t)((last ? cairn_zip_plan_bytes(plan) : entries[hole].at) - *at);
    *bytes = malloc(*bytes_len);
    if (!*bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, *bytes, *bytes_len);
    for (uint32_t i = from; i <= hole; i++) {
        if (i > 0)
            pack_descriptor(&writer, &entries[i - 1]);
        if (i < plan->entry_count)
            pack_local(&writer, &entries[i]);
        if (i < hole)
            cairn_write_bytes(&writer, entries[i].data, (size_t)entries[i].bytes);
    }
    for (uint32_t i = 0; last && i < plan->entry_count; i++)
        pack_central(&writer, &entries[i]);
    if (last)
        pack_end(&writer, plan);
    CAIRN_ASSERT(!writer.failed && writer.used_bytes == *bytes_len);
    return CAIRN_OK;
}
