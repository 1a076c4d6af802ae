/* tools/convert/torch/storages.c - the storages that a tree names, each once, found by key. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "tools/convert/torch/carry.h"
#include "tools/convert/torch/parts.h"

static uint32_t
hash_of(const char *key)
{
    uint32_t hash = 2166136261u; /* FNV-1a */

    for (; *key; key++)
        hash = (hash ^ (uint8_t)*key) * 16777619u;
    return hash;
}

/* The slot where a key is, or where it would be; there is always a free one. */
static uint32_t
slot_of(const struct cairn_torch_file *file, const char *key)
{
    uint32_t slot = hash_of(key) & (file->slot_count - 1);

    while (file->storage_slots[slot] != 0 &&
           strcmp(file->storages[file->storage_slots[slot] - 1].key, key) != 0)
        slot = (slot + 1) & (file->slot_count - 1);
    return slot;
}

struct cairn_torch_stored *
cairn_torch_find_storage(const struct cairn_torch_file *file, const char *key)
{
    uint32_t index = file->slot_count > 0 ? file->storage_slots[slot_of(file, key)] : 0;

    return index > 0 ? &file->storages[index - 1] : NULL;
}

/* Room for one more storage, and a table of slots that is at most half full. */
static cairn_err
make_room(struct cairn_torch_file *file)
{
    uint32_t count = file->slot_count ? 2 * file->slot_count : 32;
    uint32_t *slots;

    if (file->storage_count >= CAIRN_TORCH_TENSORS_MAX)
        return CAIRN_CORRUPT;
    if (!cairn_array_grow(&file->storages, file->storage_count, sizeof(*file->storages)))
        return CAIRN_NOMEM;
    if (2 * file->storage_count < file->slot_count)
        return CAIRN_OK;
    slots = calloc(count, sizeof(*slots));
    if (!slots)
        return CAIRN_NOMEM;
    free(file->storage_slots);
    file->storage_slots = slots;
    file->slot_count = count;
    for (uint32_t i = 0; i < file->storage_count; i++)
        slots[slot_of(file, file->storages[i].key)] = i + 1;
    return CAIRN_OK;
}

/*
 * What only the form before 1.6 has becomes what the one since has: ('module', class, source file,
 * source) the class, and a storage's id without the view that it is not.
 */
static bool
modernize(struct cairn_pickle_node *node)
{
    struct cairn_pickle_node *id = node->items[0];

    if (id->kind == CAIRN_PICKLE_TUPLE && id->count == 4 &&
        cairn_pickle_is_text(id->items[0], "module") && id->items[1]->kind == CAIRN_PICKLE_GLOBAL) {
        node->kind = CAIRN_PICKLE_GLOBAL;
        node->global = id->items[1]->global;
        return false;
    }
    if (id->kind == CAIRN_PICKLE_TUPLE && id->count == 6 && id->items[5]->kind == CAIRN_PICKLE_NONE)
        id->count = 5;
    return true;
}

static cairn_err
add_storage(void *context, struct cairn_pickle_node *node)
{
    const struct cairn_torch_opening *opening = context;
    struct cairn_torch_file *file = opening->file;
    struct cairn_torch_storage_id id;
    struct cairn_torch_stored *known;
    const char *why;
    cairn_err err;

    if (file->legacy && !modernize(node))
        return CAIRN_OK;
    why = cairn_torch_read_storage(node, &id);
    if (why)
        return cairn_complain(opening->complaint, CAIRN_CORRUPT, "%s: storage %" PRIu32 ": %s",
                              opening->where, file->storage_count + 1, why);
    known = cairn_torch_find_storage(file, id.key);
    if (known) {
        if (known->bytes < id.bytes)
            known->bytes = id.bytes; /* a count of elements leaves the rest of the last one out */
        return CAIRN_OK;
    }
    err = make_room(file);
    if (err == CAIRN_CORRUPT)
        return cairn_torch_refuse(opening, "it has too many storages");
    if (err)
        return err;
    known = &file->storages[file->storage_count];
    memset(known, 0, sizeof(*known));
    memcpy(known->key, id.key, sizeof(known->key));
    known->dtype = id.dtype;
    known->bytes = id.bytes;
    file->storage_slots[slot_of(file, id.key)] = ++file->storage_count;
    return CAIRN_OK;
}

cairn_err
cairn_torch_list_storages(struct cairn_torch_opening *opening)
{
    cairn_err err = cairn_torch_visit_persistent(&opening->file->tree, opening->file->root,
                                                 add_storage, opening);

    return err == CAIRN_CORRUPT
               ? cairn_torch_refuse(opening, "its object is nested more than 1000 deep")
               : err;
}
