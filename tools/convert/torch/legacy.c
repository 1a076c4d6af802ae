/*
 * tools/convert/torch/legacy.c - torch.save before 1.6 (and since, when asked for): five pickles,
 * then the storages.
 *
 *   1  the number 0x1950a86a20f9469cfc6c
 *   2  the number 1001
 *   3  {'protocol_version': 1001, 'little_endian': …, 'type_sizes': …}
 *   4  the object
 *   5  the list of the storages' keys, in the order in which they follow
 *   per storage: the count of its elements (8 bytes, little-endian) and the elements
 *
 * How long the pickles are is not said, so a growing part of the file is read until they end in it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/wire.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/parts.h"

enum { VERSION = 1001, START_BYTES = 1 << 16, COUNT_BYTES = 8, PICKLES = 5 };
enum { MAGIC, VERSION_NUMBER, SYSTEM, OBJECT, KEYS };

static const uint8_t magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static bool
is_magic(const struct cairn_pickle_node *node)
{
    return node->kind == CAIRN_PICKLE_BIG_INT && node->count == sizeof(magic) &&
           memcmp(node->bytes, magic, sizeof(magic)) == 0;
}

/* What the first pickles must say; those that were not read yet are NULL. */
static cairn_err
check_pickle(const struct cairn_torch_opening *opening, int which,
             const struct cairn_pickle_node *node)
{
    const struct cairn_pickle_node *little;
    uint64_t version;

    switch (which) {
    case MAGIC:
        if (!is_magic(node))
            return cairn_torch_refuse(opening, "it is a pickle, but not from torch.save");
        break;
    case VERSION_NUMBER:
        if (!cairn_pickle_u64(node, &version) || version != VERSION)
            return cairn_torch_refuse(opening, "unknown version, expected 1001");
        break;
    case SYSTEM:
        little = cairn_pickle_get(node, "little_endian");
        if (!little || little->kind != CAIRN_PICKLE_BOOL)
            return cairn_torch_refuse(opening, "its byte order is missing");
        if (!little->truth)
            return cairn_torch_refuse(opening, "it was written on a big-endian machine; load and "
                                               "save it with PyTorch on a little-endian one");
        break;
    case KEYS:
        if (node->kind != CAIRN_PICKLE_LIST)
            return cairn_torch_refuse(opening, "its list of storages is damaged");
        break;
    default:
        break;
    }
    return CAIRN_OK;
}

/* Reads the five pickles from the bytes that are there; CAIRN_AGAIN where they do not suffice. */
static cairn_err
read_pickles(const struct cairn_torch_opening *opening, size_t there, bool all,
             const struct cairn_pickle_node **keys, uint64_t *data_at)
{
    struct cairn_torch_file *file = opening->file;
    size_t at = 0, taken = 0;
    cairn_err err = CAIRN_OK;

    cairn_pickle_fini(&file->tree);
    cairn_pickle_init(&file->tree, opening->memory_bytes);
    for (int which = 0; which < PICKLES && err == CAIRN_OK; which++) {
        struct cairn_pickle_node *node = NULL;

        err = cairn_pickle_read_start(&file->tree, opening->where, file->pickle_bytes + at,
                                      there - at, all, &node, &taken, opening->complaint);
        if (err == CAIRN_OK)
            err = check_pickle(opening, which, node);
        if (which == OBJECT)
            file->root = node;
        if (which == KEYS)
            *keys = node;
        at += taken;
    }
    *data_at = at;
    return err;
}

cairn_err
cairn_torch_read_legacy(const struct cairn_torch_opening *opening,
                        const struct cairn_pickle_node **keys, uint64_t *data_at)
{
    struct cairn_torch_file *file = opening->file;
    uint64_t limit =
        opening->bytes < CAIRN_PICKLE_BYTES_MAX ? opening->bytes : CAIRN_PICKLE_BYTES_MAX;
    size_t wanted = START_BYTES;
    cairn_err err;

    if (limit > opening->memory_bytes)
        limit = opening->memory_bytes;
    for (;;) {
        size_t got = 0;
        uint8_t *bytes;

        if (wanted > limit)
            wanted = (size_t)limit;
        bytes = realloc(file->pickle_bytes, wanted + 1);
        if (!bytes)
            return CAIRN_NOMEM;
        file->pickle_bytes = bytes;
        err = cairn_file_read_at(opening->fd, opening->begin, bytes, wanted, &got);
        if (err)
            return err;
        if (got < wanted)
            return cairn_torch_refuse(opening, "it was truncated while it was read");
        err = read_pickles(opening, got, wanted == limit, keys, data_at);
        if (err != CAIRN_AGAIN)
            return err;
        wanted *= 4;
    }
}

static cairn_err
refuse_storage(const struct cairn_torch_opening *opening, const char *key, const char *why)
{
    return cairn_complain(opening->complaint, CAIRN_CORRUPT, "%s: storage %s %s", opening->where,
                          key, why);
}

/* One storage at *at of the part; *at moves past it. */
static cairn_err
place_storage(const struct cairn_torch_opening *opening, struct cairn_torch_stored *stored,
              uint64_t *at)
{
    uint64_t element_bytes = stored->dtype ? stored->dtype->element_bytes : 1, count;
    uint8_t bytes[COUNT_BYTES];
    struct cairn_reader reader;
    size_t got = 0;
    cairn_err err;

    if (opening->bytes - *at < COUNT_BYTES)
        return refuse_storage(opening, stored->key, "is missing: the file is truncated");
    err = cairn_file_read_at(opening->fd, opening->begin + *at, bytes, sizeof(bytes), &got);
    if (err)
        return err;
    if (got != sizeof(bytes))
        return refuse_storage(opening, stored->key, "is missing: the file is truncated");
    *at += COUNT_BYTES;
    cairn_reader_init(&reader, bytes, sizeof(bytes));
    count = cairn_read_u64(&reader);
    if (count > (opening->bytes - *at) / element_bytes)
        return refuse_storage(opening, stored->key, "reaches past the end: the file is truncated");
    if (count * element_bytes < stored->bytes)
        return refuse_storage(opening, stored->key, "has fewer elements than the object says");
    stored->at = opening->begin + *at;
    stored->bytes = count * element_bytes;
    *at += stored->bytes;
    return CAIRN_OK;
}

cairn_err
cairn_torch_place_legacy(const struct cairn_torch_opening *opening,
                         const struct cairn_pickle_node *keys, uint64_t data_at)
{
    struct cairn_torch_file *file = opening->file;
    uint64_t at = data_at;
    cairn_err err = CAIRN_OK;

    if (keys->count != file->storage_count)
        return cairn_torch_refuse(opening, "its list of storages differs from those of the object");
    for (uint32_t i = 0; i < keys->count && err == CAIRN_OK; i++) {
        char key[CAIRN_TORCH_KEY_BYTES_MAX];
        struct cairn_torch_stored *stored = NULL;

        if (cairn_pickle_copy_text(keys->items[i], key, sizeof(key)))
            stored = cairn_torch_find_storage(file, key);
        if (!stored || stored->at != 0)
            return cairn_torch_refuse(opening,
                                      "its list of storages differs from those of the object");
        err = place_storage(opening, stored, &at);
    }
    if (err == CAIRN_OK && at != opening->bytes)
        err = cairn_torch_refuse(opening, "something follows the last storage");
    return err;
}
