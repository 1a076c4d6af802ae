/* tools/convert/torch/file.c - opening what torch.save wrote; the archive of PyTorch since 1.6. */
#include "tools/convert/torch/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tools/convert/pickle/read.h"
#include "tools/convert/torch/parts.h"

enum { TAR_MAGIC_AT = 257, ORDER_BYTES_MAX = 16 };

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
    return cairn_torch_refuse(opening,
                              strcmp(order, "big") == 0
                                  ? "it was written on a big-endian machine; load and save "
                                    "it with PyTorch on a little-endian one"
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
        return cairn_torch_refuse(opening, "its object is too large; allow "
                                           "more memory");
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
        err = cairn_torch_refuse(opening, "it is a TorchScript program, not a checkpoint; save its "
                                          "state_dict() with torch.save");
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

static cairn_err
open_legacy(struct cairn_torch_opening *opening)
{
    const struct cairn_pickle_node *keys = NULL;
    uint64_t data_at = 0;
    cairn_err err;

    opening->file->legacy = true;
    err = cairn_torch_read_legacy(opening, &keys, &data_at);
    if (err == CAIRN_OK)
        err = cairn_torch_list_storages(opening);
    if (err == CAIRN_OK)
        err = cairn_torch_place_legacy(opening, keys, data_at);
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
            err = cairn_torch_refuse(&opening, "it is a tar archive of PyTorch before 0.1.10; "
                                               "load and save it with PyTorch before 2.10");
            break;
        default:
            err = cairn_torch_refuse(&opening, "torch.save did not write it: it begins neither as "
                                               "a ZIP archive nor as a pickle");
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
