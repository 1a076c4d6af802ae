/* tools/convert/torch/write.c - the entries of a torch.save archive, in PyTorch's order. */
#include "tools/convert/torch/write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "tools/convert/pickle/write.h"
#include "tools/convert/torch/file.h"

struct small {
    const char *name, *text;
};

/* What stands before the storages, behind the object, and what after them. */
static const struct small before[] = {
    {".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}};
static const struct small version = {"version", "3\n"};

/* An entry whose bytes are known (borrowed), or, with NULL, a storage. */
static cairn_err
add(struct cairn_torch_plan *plan, const char *name, const void *bytes, uint64_t bytes_len)
{
    uint32_t index;
    cairn_err err = cairn_zip_plan_add(&plan->zip, name, bytes_len, &index);

    if (!err && bytes) {
        plan->zip.entries[index].data = bytes;
        plan->zip.entries[index].crc32 = cairn_crc32(0, bytes, (size_t)bytes_len);
    }
    return err;
}

static cairn_err
add_entries(struct cairn_torch_plan *plan, size_t pickle_bytes,
            const struct cairn_torch_filled *storages, struct cairn_complaint *complaint)
{
    char name[24];
    cairn_err err = add(plan, "data.pkl", plan->pickle_bytes, pickle_bytes);

    for (size_t i = 0; i < sizeof(before) / sizeof(before[0]) && err == CAIRN_OK; i++)
        err = add(plan, before[i].name, before[i].text, strlen(before[i].text));
    plan->first_storage = plan->zip.entry_count;
    for (uint32_t i = 0; i < plan->storage_count && err == CAIRN_OK; i++) {
        (void)snprintf(name, sizeof(name), "data/%" PRIu32, i);
        err = add(plan, name, NULL, storages[i].bytes);
    }
    if (err == CAIRN_OK)
        err = add(plan, version.name, version.text, strlen(version.text));
    if (err == CAIRN_OK)
        err = add(plan, ".data/serialization_id", NULL, sizeof(plan->id) - 1);
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

struct cairn_zip_planned *
cairn_torch_plan_storage_at(struct cairn_torch_plan *plan, uint32_t storage)
{
    return &plan->zip.entries[plan->first_storage + storage];
}

/* Equal contents have equal digits: 20 for the names, 20 for the checksums, as in PyTorch. */
void
cairn_torch_plan_seal(struct cairn_torch_plan *plan)
{
    struct cairn_zip_planned *last = &plan->zip.entries[plan->zip.entry_count - 1];
    uint64_t names = 0, sums = 0;

    for (const struct cairn_zip_planned *entry = plan->zip.entries; entry < last; entry++) {
        names = cairn_crc64(names, entry->name, strlen(entry->name) + 1);
        sums = cairn_crc64(sums, &entry->crc32, sizeof(entry->crc32));
    }
    (void)snprintf(plan->id, sizeof(plan->id), "%020" PRIu64 "%020" PRIu64, names, sums);
    last->data = plan->id;
    last->crc32 = cairn_crc32(0, plan->id, (size_t)last->bytes);
}
