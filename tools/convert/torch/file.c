/*
 * tools/convert/torch/file.c - opening what torch.save wrote, in both of its forms.
 *
 * Since 1.6 it writes an archive. Before (and since, when asked for): five pickles, then the
 * storages.
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
#include "tools/convert/torch/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/parts.h"
#include "base/wire.h"

enum { TAR_MAGIC_AT = 257, ORDER_BYTES_MAX = 16 };
enum { VERSION = 1001, START_BYTES = 1 << 16, COUNT_BYTES = 8, PICKLES = 5 };
enum { MAGIC, VERSION_NUMBER, SYSTEM, OBJECT, KEYS };
static const uint8_t magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

cairn_err
cairn_torch_refuse(const struct cairn_torch_opening *opening, const char *why)
{
    return cairn_complain(opening->complaint, CAIRN_CORRUPT, "%s: %s", opening->where, why);
}

enum cairn_torch_form
cairn_torch_probe(const void *bytes, size_t bytes_len)
{
    const uint8_t *head = bytes;

    if (cairn_zip_probe(bytes, bytes_len))
        return CAIRN_TORCH_ZIP;
    if (bytes_len >= TAR_MAGIC_AT + 5 && memcmp(head + TAR_MAGIC_AT, "ustar", 5) == 0)
        return CAIRN_TORCH_TAR;
    return bytes_len >= 2 && head[0] == 0x80 && head[1] <= 5 ? CAIRN_TORCH_LEGACY : CAIRN_TORCH_NOT;
}

/* ---- the archive ---- */

/* Only little-endian values are read; files before 2.1 do not say, and are. */
static cairn_err
check_order(const struct cairn_torch_opening *opening, const struct cairn_zip *zip)
{
    const struct cairn_zip_entry *entry = cairn_zip_find(zip, "byteorder");
    char order[ORDER_BYTES_MAX + 1] = "";
    cairn_err err;

    if (!entry)
        return CAIRN_OK;
    if (entry->bytes > ORDER_BYTES_MAX)
        return cairn_torch_refuse(opening, "unknown byte order");
    err = cairn_zip_take(zip, opening->where, entry, order, opening->complaint);
    if (err)
        return err;
    if (strcmp(order, "little") == 0)
        return CAIRN_OK;
    return cairn_torch_refuse(opening, strcmp(order, "big") == 0
                                           ? "it was written on a big-endian machine; load and "
                                             "save it with PyTorch on a little-endian one"
                                           : "unknown byte order");
}

static cairn_err
read_tree(const struct cairn_torch_opening *opening, const struct cairn_zip *zip,
          const struct cairn_zip_entry *entry)
{
    struct cairn_torch_file *file = opening->file;
    char where[CAIRN_FILE_PATH_BYTES_MAX];
    cairn_err err;

    if (entry->bytes > CAIRN_PICKLE_BYTES_MAX || entry->bytes > opening->memory_bytes)
        return cairn_torch_refuse(opening, "its object is too large; allow more memory");
    file->pickle_bytes = malloc((size_t)entry->bytes + 1);
    if (!file->pickle_bytes)
        return CAIRN_NOMEM;
    err = cairn_zip_take(zip, opening->where, entry, file->pickle_bytes, opening->complaint);
    if (err)
        return err;
    (void)snprintf(where, sizeof(where), "data.pkl of %s", opening->where);
    err = cairn_pickle_read(&file->tree, where, file->pickle_bytes, (size_t)entry->bytes,
                            &file->root, opening->complaint);
    return err;
}

static cairn_err
place_storages(const struct cairn_torch_opening *opening, const struct cairn_zip *zip)
{
    struct cairn_torch_file *file = opening->file;

    for (uint32_t i = 0; i < file->storage_count; i++) {
        struct cairn_torch_stored *stored = &file->storages[i];
        const struct cairn_zip_entry *entry;
        char name[CAIRN_TORCH_KEY_BYTES_MAX + 8];

        (void)snprintf(name, sizeof(name), "data/%s", stored->key);
        entry = cairn_zip_find(zip, name);
        if (!entry)
            return cairn_complain(opening->complaint, CAIRN_CORRUPT,
                                  "%s: entry %s is missing, a tensor needs it", opening->where,
                                  name);
        /* an untyped storage may have a few bytes more than its last whole element needs */
        if (entry->bytes < stored->bytes)
            return cairn_complain(opening->complaint, CAIRN_CORRUPT,
                                  "%s: entry %s has %" PRIu64 " bytes, expected %" PRIu64,
                                  opening->where, name, entry->bytes, stored->bytes);
        stored->at = entry->at;
        stored->bytes = entry->bytes;
        stored->crc32 = entry->crc32;
    }
    return CAIRN_OK;
}

static cairn_err
open_zip(struct cairn_torch_opening *opening)
{
    struct cairn_zip zip = {0};
    struct cairn_window *window = opening->window;
    const struct cairn_zip_entry *entry = NULL;
    cairn_err err;

    opening->window = NULL;
    err = cairn_zip_open_window(window, opening->where, &zip, opening->complaint);
    if (err)
        return err;
    entry = cairn_zip_find(&zip, "data.pkl");
    if (!entry)
        err = cairn_torch_refuse(opening,
                                 "entry data.pkl is missing, so torch.save did not write it");
    else if (cairn_zip_find(&zip, "constants.pkl"))
        err = cairn_torch_refuse(
            opening,
            "it is a TorchScript program, not a checkpoint; save its state_dict() with torch.save");
    if (err == CAIRN_OK)
        err = check_order(opening, &zip);
    if (err == CAIRN_OK)
        err = read_tree(opening, &zip, entry);
    if (err == CAIRN_OK)
        err = cairn_torch_list_storages(opening);
    if (err == CAIRN_OK)
        err = place_storages(opening, &zip);
    cairn_zip_fini(&zip);
    return err;
}

/* ---- the form before 1.6 ---- */

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

/* Fills in tree, root and pickle_bytes of a file of the form before 1.6; *data_at says where the
 * storages begin, *keys is the list of their keys. */
static cairn_err
read_legacy(const struct cairn_torch_opening *opening, const struct cairn_pickle_node **keys,
            uint64_t *data_at)
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
    count = cairn_little_get(bytes, sizeof(bytes));
    if (count > (opening->bytes - *at) / element_bytes)
        return refuse_storage(opening, stored->key, "reaches past the end: the file is truncated");
    if (count * element_bytes < stored->bytes)
        return refuse_storage(opening, stored->key, "has fewer elements than the object says");
    stored->at = opening->begin + *at;
    stored->bytes = count * element_bytes;
    *at += stored->bytes;
    return CAIRN_OK;
}

/* Finds where each storage lies, from the counts between them. */
static cairn_err
place_legacy(const struct cairn_torch_opening *opening, const struct cairn_pickle_node *keys,
             uint64_t data_at)
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

static cairn_err
open_legacy(struct cairn_torch_opening *opening)
{
    const struct cairn_pickle_node *keys = NULL;
    uint64_t data_at = 0;
    cairn_err err;

    opening->file->legacy = true;
    err = read_legacy(opening, &keys, &data_at);
    if (err == CAIRN_OK)
        err = cairn_torch_list_storages(opening);
    if (err == CAIRN_OK)
        err = place_legacy(opening, keys, data_at);
    return err;
}

cairn_err
cairn_torch_open(int fd, const char *where, uint64_t begin, uint64_t bytes, uint64_t memory_bytes,
                 struct cairn_torch_file *file, struct cairn_complaint *complaint)
{
    struct cairn_torch_opening opening = {.fd = fd,
                                          .where = where,
                                          .begin = begin,
                                          .bytes = bytes,
                                          .memory_bytes = memory_bytes,
                                          .file = file,
                                          .complaint = complaint};
    cairn_err err;

    memset(file, 0, sizeof(*file));
    if (bytes > INT64_MAX || begin > INT64_MAX - bytes)
        return cairn_torch_refuse(&opening, "its offset and length are too large");
    cairn_pickle_init(&file->tree, memory_bytes);
    cairn_pickle_init(&file->names, memory_bytes);
    opening.window = malloc(sizeof(*opening.window));
    err = opening.window ? cairn_window_open(fd, begin, bytes, opening.window) : CAIRN_NOMEM;
    if (err == CAIRN_OK) {
        switch (cairn_torch_probe(opening.window->kept, opening.window->head_bytes)) {
        case CAIRN_TORCH_ZIP:
            err = open_zip(&opening);
            break;
        case CAIRN_TORCH_LEGACY:
            err = open_legacy(&opening);
            break;
        case CAIRN_TORCH_TAR:
            err = cairn_torch_refuse(&opening, "it is a tar archive of PyTorch before 0.1.10; load "
                                               "and save it with PyTorch before 2.10");
            break;
        default:
            err = cairn_torch_refuse(
                &opening,
                "torch.save did not write it: it begins neither as a ZIP archive nor as a pickle");
        }
    }
    free(opening.window);
    if (err == CAIRN_OK)
        err = cairn_torch_list_tensors(&opening);
    if (err)
        cairn_torch_close(file);
    return err;
}

void
cairn_torch_close(struct cairn_torch_file *file)
{
    cairn_pickle_fini(&file->tree);
    cairn_pickle_fini(&file->names);
    free(file->pickle_bytes);
    free(file->storages);
    free(file->storage_slots);
    free(file->tensors);
    memset(file, 0, sizeof(*file));
}
