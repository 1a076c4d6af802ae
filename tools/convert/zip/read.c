/* tools/convert/zip/read.c - the directory of an archive, checked against its local headers. */
#include "tools/convert/zip/read.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "base/file.h"
#include "base/json.h"
#include "base/complaint.h"
#include "base/wire.h"
#include "tools/convert/zip/format.h"

cairn_err
cairn_window_open(int fd, uint64_t begin, uint64_t bytes, struct cairn_window *window)
{
    bool whole = bytes <= sizeof(window->kept);
    size_t head = whole ? (size_t)bytes : CAIRN_WINDOW_BYTES;
    cairn_err err;

    window->fd = fd;
    window->begin = begin;
    window->bytes = bytes;
    window->head_bytes = window->tail_bytes = 0;
    err = cairn_file_read_at(fd, begin, window->kept, head, &window->head_bytes);
    if (!err && !whole)
        err = cairn_file_read_at(fd, begin + bytes - CAIRN_WINDOW_BYTES,
                                 window->kept + CAIRN_WINDOW_BYTES, CAIRN_WINDOW_BYTES,
                                 &window->tail_bytes);
    return err;
}

/* Copies from kept[kept_bytes], which are at `kept_at` of the file, where all of it is there. */
static bool
take(const uint8_t *kept, uint64_t kept_at, size_t kept_bytes, uint64_t at, void *bytes,
     size_t bytes_len)
{
    if (at < kept_at || at - kept_at > kept_bytes || bytes_len > kept_bytes - (at - kept_at))
        return false;
    memcpy(bytes, kept + (at - kept_at), bytes_len);
    return true;
}

/* Reads bytes_len bytes from `at` (in the file) on, from memory where they are kept; fewer only at
 * the end of the file, *got says how many. Errors as cairn_file_read_at. */
static cairn_err
window_read(const struct cairn_window *window, uint64_t at, void *bytes, size_t bytes_len,
            size_t *got)
{
    uint64_t tail_at = window->begin + window->bytes - CAIRN_WINDOW_BYTES;

    *got = bytes_len;
    if (take(window->kept, window->begin, window->head_bytes, at, bytes, bytes_len) ||
        (window->tail_bytes > 0 && take(window->kept + CAIRN_WINDOW_BYTES, tail_at,
                                        window->tail_bytes, at, bytes, bytes_len)))
        return CAIRN_OK;
    return cairn_file_read_at(window->fd, at, bytes, bytes_len, got);
}

/* An archive that is being read. */
struct archive {
    const struct cairn_window *window;
    const char *where;
    struct cairn_complaint *complaint;
    uint64_t begin, bytes;
    uint64_t directory_at, directory_bytes, entry_count; /* at: from the archive's start */
    uint64_t *headers; /* per entry: where its local header is, from the archive's start */
    struct cairn_zip *zip;
};

/* Where an entry's header and bytes lie, for finding overlaps. */
struct extent {
    uint64_t begin, end;
    uint32_t entry;
};

static cairn_err
refuse(const struct archive *archive, const char *why)
{
    return cairn_complain(archive->complaint, CAIRN_CORRUPT, "%s: %s", archive->where, why);
}

static cairn_err
refuse_entry(const struct archive *archive, const char *name, const char *why)
{
    return cairn_complain(archive->complaint, CAIRN_CORRUPT, "%s: entry %s %s", archive->where,
                          name, why);
}

/* Reads [at, at + bytes_len) of the archive. */
static cairn_err
read_exact(const struct archive *archive, uint64_t at, void *bytes, size_t bytes_len)
{
    size_t got = 0;
    cairn_err err;

    if (at > archive->bytes || bytes_len > archive->bytes - at)
        return refuse(archive,
                      "it is shorter than its records say; it is truncated, take another copy");
    err = window_read(archive->window, archive->begin + at, bytes, bytes_len, &got);
    if (err == CAIRN_OK && got != bytes_len)
        err = refuse(archive,
                     "the file is shorter than the archive; it is truncated, take another copy");
    return err;
}

/* ---- the end ---- */

static cairn_err
read_end64(struct archive *archive)
{
    uint8_t locator_bytes[CAIRN_ZIP_LOCATOR_BYTES], bytes[CAIRN_ZIP_END64_BYTES];
    struct cairn_reader reader;
    uint64_t locator_at = archive->bytes - CAIRN_ZIP_END_BYTES - CAIRN_ZIP_LOCATOR_BYTES, end_at;
    cairn_err err;

    err = read_exact(archive, locator_at, locator_bytes, sizeof(locator_bytes));
    if (err)
        return err;
    cairn_reader_init(&reader, locator_bytes, sizeof(locator_bytes));
    if (cairn_read_u32(&reader) != CAIRN_ZIP_LOCATOR_SIGNATURE || cairn_read_u32(&reader) != 0)
        return refuse(archive, "the locator of its ZIP64 end is damaged");
    end_at = cairn_read_u64(&reader);
    if (end_at != locator_at - CAIRN_ZIP_END64_BYTES || locator_at < CAIRN_ZIP_END64_BYTES)
        return refuse(archive, "its ZIP64 end is not where the locator says");
    err = read_exact(archive, end_at, bytes, sizeof(bytes));
    if (err)
        return err;
    cairn_reader_init(&reader, bytes, sizeof(bytes));
    if (cairn_read_u32(&reader) != CAIRN_ZIP_END64_SIGNATURE)
        return refuse(archive, "its ZIP64 end is damaged");
    (void)cairn_read_borrow(&reader, 28); /* sizes, versions, disks, entries of this disk */
    archive->entry_count = cairn_read_u64(&reader);
    archive->directory_bytes = cairn_read_u64(&reader);
    archive->directory_at = cairn_read_u64(&reader);
    if (archive->directory_at > end_at ||
        archive->directory_bytes != end_at - archive->directory_at)
        return refuse(archive, "its directory has wrong bounds");
    return CAIRN_OK;
}

static cairn_err
read_end(struct archive *archive)
{
    uint8_t bytes[CAIRN_ZIP_LOCATOR_BYTES + CAIRN_ZIP_END_BYTES] = {0};
    const uint8_t *end = bytes + CAIRN_ZIP_LOCATOR_BYTES;
    size_t tail = archive->bytes < sizeof(bytes) ? (size_t)archive->bytes : sizeof(bytes);
    struct cairn_reader reader;
    uint64_t end_at = archive->bytes - CAIRN_ZIP_END_BYTES;
    cairn_err err;

    if (archive->bytes < CAIRN_ZIP_END_BYTES)
        return refuse(archive,
                      "it is too short for an archive; it is truncated, take another copy");
    err = read_exact(archive, archive->bytes - tail, bytes + sizeof(bytes) - tail, tail);
    if (err)
        return err;
    cairn_reader_init(&reader, end, CAIRN_ZIP_END_BYTES);
    if (cairn_read_u32(&reader) != CAIRN_ZIP_END_SIGNATURE)
        return refuse(
            archive,
            "its end record is missing; it is truncated or was appended to, take another copy");
    if (cairn_read_u32(&reader) != 0)
        return refuse(archive, "it is one part of a split archive; join the parts");
    (void)cairn_read_u16(&reader); /* entries of this disk */
    archive->entry_count = cairn_read_u16(&reader);
    archive->directory_bytes = cairn_read_u32(&reader);
    archive->directory_at = cairn_read_u32(&reader);
    cairn_reader_init(&reader, bytes, CAIRN_ZIP_LOCATOR_BYTES);
    if (cairn_read_u32(&reader) == CAIRN_ZIP_LOCATOR_SIGNATURE)
        return read_end64(archive);
    if (archive->directory_at > end_at ||
        archive->directory_bytes != end_at - archive->directory_at)
        return refuse(archive, "its directory has wrong bounds");
    return CAIRN_OK;
}

/* ---- the directory ---- */

static bool
name_fits(const char *name, size_t name_bytes)
{
    if (name_bytes == 0 || name_bytes >= CAIRN_ZIP_NAME_BYTES_MAX || name[0] == '/' ||
        memchr(name, 0, name_bytes) || memchr(name, '\\', name_bytes) ||
        !cairn_utf8_valid(name, name_bytes))
        return false;
    for (size_t at = 0; at + 1 < name_bytes; at++)
        if (name[at] == '.' && name[at + 1] == '.' && (at == 0 || name[at - 1] == '/') &&
            (at + 2 == name_bytes || name[at + 2] == '/'))
            return false;
    return true;
}

/* Replaces what is all ones by what the ZIP64 extra says; false where it does not. */
static bool
widen(struct cairn_reader *extra, uint64_t *bytes, uint64_t *stored_bytes, uint64_t *header_at)
{
    uint64_t *fields[3] = {bytes, stored_bytes, header_at};
    struct cairn_reader body;
    const uint8_t *bytes_of_body;
    uint16_t body_bytes;

    if (*bytes != UINT32_MAX && *stored_bytes != UINT32_MAX && *header_at != UINT32_MAX)
        return true;
    while (cairn_reader_left(extra) >= 4) {
        uint16_t id = cairn_read_u16(extra);

        body_bytes = cairn_read_u16(extra);
        if (id != CAIRN_ZIP_EXTRA64) {
            (void)cairn_read_borrow(extra, body_bytes);
            continue;
        }
        bytes_of_body = cairn_read_borrow(extra, body_bytes);
        if (!bytes_of_body)
            return false;
        cairn_reader_init(&body, bytes_of_body, body_bytes);
        for (size_t i = 0; i < 3; i++)
            if (*fields[i] == UINT32_MAX)
                *fields[i] = cairn_read_u64(&body);
        return !body.failed;
    }
    return false;
}

/* One entry of the directory; its name goes to names[*names_bytes]. */
static cairn_err
read_entry(struct archive *archive, struct cairn_reader *reader, uint32_t index,
           size_t *names_bytes)
{
    struct cairn_zip_entry *entry = &archive->zip->entries[index];
    uint64_t bytes, stored_bytes, header_at;
    uint16_t flags, method, name_bytes, extra_bytes, comment_bytes;
    const uint8_t *name, *extra;
    struct cairn_reader extra_reader;
    char *copy = archive->zip->names + *names_bytes;

    if (cairn_read_u32(reader) != CAIRN_ZIP_CENTRAL_SIGNATURE)
        return refuse(archive, "its directory is damaged");
    (void)cairn_read_u32(reader); /* versions */
    flags = cairn_read_u16(reader);
    method = cairn_read_u16(reader);
    (void)cairn_read_u32(reader); /* time and date */
    entry->crc32 = cairn_read_u32(reader);
    stored_bytes = cairn_read_u32(reader);
    bytes = cairn_read_u32(reader);
    name_bytes = cairn_read_u16(reader);
    extra_bytes = cairn_read_u16(reader);
    comment_bytes = cairn_read_u16(reader);
    (void)cairn_read_u64(reader); /* disk and attributes */
    header_at = cairn_read_u32(reader);
    name = cairn_read_borrow(reader, name_bytes);
    extra = cairn_read_borrow(reader, extra_bytes);
    (void)cairn_read_borrow(reader, comment_bytes);
    if (reader->failed)
        return refuse(archive, "its directory ends in the middle of an entry");
    if (!name_fits((const char *)name, name_bytes))
        return refuse(archive, "it has an entry with an illegal name");
    memcpy(copy, name, name_bytes);
    copy[name_bytes] = '\0';
    entry->name = copy;
    *names_bytes += (size_t)name_bytes + 1;
    if (flags & CAIRN_ZIP_ENCRYPTED)
        return refuse_entry(archive, copy, "is encrypted");
    if (method != 0)
        return refuse_entry(archive, copy,
                            "is compressed, which is not supported; unpack the archive and write "
                            "it again without compression");
    cairn_reader_init(&extra_reader, extra, extra_bytes);
    if (!widen(&extra_reader, &bytes, &stored_bytes, &header_at))
        return refuse_entry(archive, copy, "has no sizes");
    if (bytes != stored_bytes)
        return refuse_entry(archive, copy, "has two sizes, though it is not compressed");
    entry->bytes = bytes;
    archive->headers[index] = header_at;
    return CAIRN_OK;
}

static cairn_err
read_directory(struct archive *archive)
{
    struct cairn_zip *zip = archive->zip;
    struct cairn_reader reader;
    uint8_t *bytes = NULL;
    size_t names_bytes = 0;
    cairn_err err = CAIRN_OK;

    if (archive->directory_bytes > CAIRN_ZIP_DIRECTORY_BYTES_MAX ||
        archive->entry_count > CAIRN_ZIP_ENTRIES_MAX ||
        archive->entry_count > archive->directory_bytes / CAIRN_ZIP_CENTRAL_BYTES)
        return refuse(archive, "its directory has another size than its entries");
    zip->entry_count = (uint32_t)archive->entry_count;
    bytes = malloc((size_t)archive->directory_bytes + 1);
    zip->names = malloc((size_t)archive->directory_bytes + 1); /* an entry has more than its name */
    zip->entries = calloc((size_t)zip->entry_count + 1, sizeof(*zip->entries));
    zip->by_name = calloc((size_t)zip->entry_count + 1, sizeof(*zip->by_name));
    archive->headers = calloc((size_t)zip->entry_count + 1, sizeof(*archive->headers));
    if (!bytes || !zip->names || !zip->entries || !zip->by_name || !archive->headers) {
        err = CAIRN_NOMEM;
        goto done;
    }
    err = read_exact(archive, archive->directory_at, bytes, (size_t)archive->directory_bytes);
    if (err)
        goto done;
    cairn_reader_init(&reader, bytes, (size_t)archive->directory_bytes);
    for (uint32_t i = 0; i < zip->entry_count && err == CAIRN_OK; i++)
        err = read_entry(archive, &reader, i, &names_bytes);
    if (err == CAIRN_OK && cairn_reader_left(&reader) > 0)
        err = refuse(archive, "its directory has more entries than its end record says");
done:
    free(bytes);
    return err;
}

/* ---- local headers and overlaps ---- */

static cairn_err
read_local(struct archive *archive, uint32_t index, struct extent *extent)
{
    struct cairn_zip_entry *entry = &archive->zip->entries[index];
    uint8_t bytes[CAIRN_ZIP_LOCAL_BYTES + CAIRN_ZIP_NAME_BYTES_MAX];
    size_t name_bytes = strlen(entry->name);
    uint64_t header_at = archive->headers[index], data_at;
    struct cairn_reader reader;
    uint16_t flags, method;
    cairn_err err;

    if (header_at > archive->directory_at ||
        archive->directory_at - header_at < CAIRN_ZIP_LOCAL_BYTES + name_bytes)
        return refuse_entry(archive, entry->name, "lies outside the archive");
    err = read_exact(archive, header_at, bytes, CAIRN_ZIP_LOCAL_BYTES + name_bytes);
    if (err)
        return err;
    cairn_reader_init(&reader, bytes, CAIRN_ZIP_LOCAL_BYTES);
    if (cairn_read_u32(&reader) != CAIRN_ZIP_LOCAL_SIGNATURE)
        return refuse_entry(archive, entry->name, "has no header where the directory says");
    (void)cairn_read_u16(&reader); /* version */
    flags = cairn_read_u16(&reader);
    method = cairn_read_u16(&reader);
    (void)cairn_read_borrow(&reader, 16); /* time, checksum and sizes: often not filled in */
    if (cairn_read_u16(&reader) != name_bytes || method != 0 || (flags & CAIRN_ZIP_ENCRYPTED) ||
        memcmp(bytes + CAIRN_ZIP_LOCAL_BYTES, entry->name, name_bytes) != 0)
        return refuse_entry(archive, entry->name, "has the header of another entry");
    data_at = header_at + CAIRN_ZIP_LOCAL_BYTES + name_bytes + cairn_read_u16(&reader);
    if (data_at > archive->directory_at || entry->bytes > archive->directory_at - data_at)
        return refuse_entry(archive, entry->name, "is longer than the archive");
    entry->at = archive->begin + data_at;
    *extent = (struct extent){header_at, data_at + entry->bytes, index};
    return CAIRN_OK;
}

static int
compare_extents(const void *a, const void *b)
{
    const struct extent *left = a, *right = b;

    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static cairn_err
read_locals(struct archive *archive)
{
    const struct cairn_zip *zip = archive->zip;
    struct extent *extents = calloc((size_t)zip->entry_count + 1, sizeof(*extents));
    cairn_err err = extents ? CAIRN_OK : CAIRN_NOMEM;
    bool ordered = true;

    for (uint32_t i = 0; i < zip->entry_count && err == CAIRN_OK; i++) {
        err = read_local(archive, i, &extents[i]);
        ordered = ordered && (i == 0 || extents[i].begin >= extents[i - 1].begin);
    }
    if (err == CAIRN_OK && !ordered) /* PyTorch writes them in the order of its directory */
        qsort(extents, zip->entry_count, sizeof(*extents), compare_extents);
    for (uint32_t i = 1; i < zip->entry_count && err == CAIRN_OK; i++)
        if (extents[i].begin < extents[i - 1].end)
            err = refuse_entry(archive, zip->entries[extents[i].entry].name,
                               "overlaps another entry");
    free(extents);
    return err;
}

/* ---- names ---- */

static int
compare_names(const void *a, const void *b, void *entries)
{
    const struct cairn_zip_entry *entry = entries;

    return strcmp(entry[*(const uint32_t *)a].name, entry[*(const uint32_t *)b].name);
}

static cairn_err
sort_names(struct archive *archive)
{
    struct cairn_zip *zip = archive->zip;
    const char *slash = zip->entry_count > 0 ? strchr(zip->entries[0].name, '/') : NULL;

    for (uint32_t i = 0; i < zip->entry_count; i++)
        zip->by_name[i] = i;
    qsort_r(zip->by_name, zip->entry_count, sizeof(*zip->by_name), compare_names, zip->entries);
    for (uint32_t i = 1; i < zip->entry_count; i++)
        if (strcmp(zip->entries[zip->by_name[i]].name, zip->entries[zip->by_name[i - 1]].name) == 0)
            return refuse_entry(archive, zip->entries[zip->by_name[i]].name, "is there twice");
    if (slash)
        memcpy(zip->folder, zip->entries[0].name, (size_t)(slash - zip->entries[0].name) + 1);
    return CAIRN_OK;
}

/* ---- public ---- */

bool
cairn_zip_probe(const void *bytes, size_t bytes_len)
{
    return bytes_len >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
}

cairn_err
cairn_zip_open_window(struct cairn_window *window, const char *where, struct cairn_zip *zip,
                      struct cairn_complaint *complaint)
{
    struct archive archive = {.window = window,
                              .where = where,
                              .complaint = complaint,
                              .begin = window->begin,
                              .bytes = window->bytes,
                              .zip = zip};
    cairn_err err;

    memset(zip, 0, sizeof(*zip));
    zip->window = window;
    err = read_end(&archive);
    if (err == CAIRN_OK)
        err = read_directory(&archive);
    if (err == CAIRN_OK)
        err = read_locals(&archive);
    if (err == CAIRN_OK)
        err = sort_names(&archive);
    free(archive.headers);
    if (err)
        cairn_zip_fini(zip);
    return err;
}

cairn_err
cairn_zip_open(int fd, const char *where, uint64_t begin, uint64_t bytes, struct cairn_zip *zip,
               struct cairn_complaint *complaint)
{
    struct cairn_window *window;
    cairn_err err;

    memset(zip, 0, sizeof(*zip));
    if (bytes > INT64_MAX || begin > INT64_MAX - bytes) {
        struct archive archive = {.where = where, .complaint = complaint};

        return refuse(&archive, "its offset and length are too large");
    }
    window = malloc(sizeof(*window));
    err = window ? cairn_window_open(fd, begin, bytes, window) : CAIRN_NOMEM;
    if (err) {
        free(window);
        return err;
    }
    return cairn_zip_open_window(window, where, zip, complaint);
}

void
cairn_zip_fini(struct cairn_zip *zip)
{
    free(zip->names);
    free(zip->entries);
    free(zip->by_name);
    free(zip->window);
    memset(zip, 0, sizeof(*zip));
}

const struct cairn_zip_entry *
cairn_zip_find(const struct cairn_zip *zip, const char *name)
{
    size_t folder_bytes = strlen(zip->folder);
    uint32_t low = 0, high = zip->entry_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct cairn_zip_entry *entry = &zip->entries[zip->by_name[middle]];
        int order = strncmp(entry->name, zip->folder, folder_bytes);

        if (order == 0)
            order = strcmp(entry->name + folder_bytes, name);
        if (order == 0)
            return entry;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

cairn_err
cairn_zip_take(const struct cairn_zip *zip, const char *where, const struct cairn_zip_entry *entry,
               void *out, struct cairn_complaint *complaint)
{
    size_t got = 0;
    cairn_err err = window_read(zip->window, entry->at, out, (size_t)entry->bytes, &got);

    if (err)
        return err;
    if (got != entry->bytes)
        return cairn_complain(complaint, CAIRN_CORRUPT,
                              "%s: entry %s was truncated while it was read", where, entry->name);
    /* 0: PyTorch was told to leave it out */
    if (entry->crc32 == 0 || entry->crc32 == cairn_crc32(0, out, got))
        return CAIRN_OK;
    return cairn_complain(complaint, CAIRN_CORRUPT,
                          "%s: entry %s is damaged, its checksum is wrong; take another copy",
                          where, entry->name);
}
