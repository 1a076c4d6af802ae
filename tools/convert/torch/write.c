/* tools/convert/torch/write.c - the entries of a torch.save archive, in PyTorch's order. */
#include "tools/convert/torch/write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/torch/file.h"

enum { ID_BYTES = 40 };

struct small {
    const char *name, *text;
};

/* What stands before the storages, behind the object, and what after them. */
static const struct small before[] = {
    {".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
static const struct small version = {"version", "3\n"};

static cairn_err
add(struct cairn_torch_plan *plan, const char *name, uint64_t bytes)
{
    uint32_t index;

    return cairn_zip_plan_add(&plan->zip, name, bytes, &index);
}

static cairn_err
add_entries(struct cairn_torch_plan *plan, size_t pickle_bytes,
            const struct cairn_torch_filled *storages, struct cairn_complaint *complaint)
{
    char name[24];
    cairn_err err = add(plan, "data.pkl", pickle_bytes);

    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]) && err == CAIRN_OK; i++)
        err = add(plan, before[i].name, strlen(before[i].text));
    plan->first_storage = plan->zip.entry_count;
    for (uint32_t i = 0; i < plan->storage_count && err == CAIRN_OK; i++) {
        (void)snprintf(name, sizeof(name), "data/%" PRIu32, i);
        err = add(plan, name, storages[i].bytes);
    }
    if (err == CAIRN_OK)
        err = add(plan, version.name, strlen(version.text));
    if (err == CAIRN_OK)
        err = add(plan, ".data/serialization_id", ID_BYTES);
    return err == CAIRN_INVAL
               ? cairn_complain(complaint, err,
                                "%s: too many storages, or one is too large; leave some out",
                                plan->zip.folder)
               : err;
}

cairn_err
cairn_torch_plan_init(struct cairn_torch_plan *plan, const char *folder,
                      const struct cairn_pickle *tree, const struct cairn_pickle_node *root,
                      const struct cairn_torch_filled *storages, uint32_t storage_count,
                      struct cairn_complaint *complaint)
{
    size_t pickle_bytes = 0;
    cairn_err err;

    memset(plan, 0, sizeof(*plan));
    plan->storage_count = storage_count;
    err = cairn_zip_plan_init(&plan->zip, folder);
    if (err == CAIRN_OK)
        err = cairn_pickle_write(tree, root, &plan->pickle_bytes, &pickle_bytes, complaint);
    if (err == CAIRN_OK)
        err = add_entries(plan, pickle_bytes, storages, complaint);
    if (err)
        cairn_torch_plan_fini(plan);
    return err;
}

void
cairn_torch_plan_fini(struct cairn_torch_plan *plan)
{
    cairn_zip_plan_fini(&plan->zip);
    free(plan->pickle_bytes);
    memset(plan, 0, sizeof(*plan));
}

uint64_t
cairn_torch_plan_bytes(const struct cairn_torch_plan *plan)
{
    return cairn_zip_plan_bytes(&plan->zip);
}

struct cairn_zip_planned *
cairn_torch_plan_storage_at(struct cairn_torch_plan *plan, uint32_t storage)
{
    return &plan->zip.entries[plan->first_storage + storage];
}

static cairn_err
put_entry(struct cairn_torch_plan *plan, uint32_t index, const void *bytes, cairn_zip_put_fn *put,
          void *context)
{
    struct cairn_zip_planned *entry = &plan->zip.entries[index];

    entry->crc32 = cairn_crc32(0, bytes, (size_t)entry->bytes);
    return put(context, entry->at, bytes, (size_t)entry->bytes);
}

/* Equal contents have equal digits: 20 for the names, 20 for the checksums, as in PyTorch. */
static void
make_id(const struct cairn_zip_plan *zip, char id[ID_BYTES + 1])
{
    uint64_t names = 0, sums = 0;

    for (uint32_t i = 0; i + 1 < zip->entry_count; i++) {
        const struct cairn_zip_planned *entry = &zip->entries[i];

        names = cairn_crc64(names, entry->name, strlen(entry->name) + 1);
        sums = cairn_crc64(sums, &entry->crc32, sizeof(entry->crc32));
    }
    (void)snprintf(id, ID_BYTES + 1, "%020" PRIu64 "%020" PRIu64, names, sums);
}

cairn_err
cairn_torch_plan_put(struct cairn_torch_plan *plan, cairn_zip_put_fn *put, void *context)
{
    uint32_t last = plan->first_storage + plan->storage_count;
    char id[ID_BYTES + 1];
    cairn_err err = put_entry(plan, 0, plan->pickle_bytes, put, context);

    for (uint32_t i = 0; i < sizeof(before) / sizeof(before[0]) && err == CAIRN_OK; i++)
        err = put_entry(plan, 1 + i, before[i].text, put, context);
    if (err == CAIRN_OK)
        err = put_entry(plan, last, version.text, put, context);
    make_id(&plan->zip, id);
    if (err == CAIRN_OK)
        err = put_entry(plan, last + 1, id, put, context);
    return err == CAIRN_OK ? cairn_zip_plan_put(&plan->zip, put, context) : err;
}
