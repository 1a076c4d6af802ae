/*
 * tests/fuzz/archive.h - an archive as torch.save makes it around any pickle: without checksums,
 * which no mutation would get right, and with storages of zeros, enough and large enough for small
 * fixtures.
 */
#ifndef CAIRN_TESTS_FUZZ_ARCHIVE_H
#define CAIRN_TESTS_FUZZ_ARCHIVE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    FUZZ_STORAGES = 24,
    FUZZ_STORAGE_BYTES_MAX = 8192,
    FUZZ_ENTRY_BYTES_MAX = 128, /* of headers around an entry */
    FUZZ_PICKLE_BYTES_MAX = 1 << 16
};

struct fuzz_archive {
    uint8_t bytes[(FUZZ_STORAGES + 2) * (FUZZ_STORAGE_BYTES_MAX + 2 * FUZZ_ENTRY_BYTES_MAX) +
                  FUZZ_PICKLE_BYTES_MAX];
    size_t used;
    uint8_t directory[(FUZZ_STORAGES + 2) * FUZZ_ENTRY_BYTES_MAX];
    size_t directory_used;
    uint16_t count;
};

static inline void
fuzz_put(uint8_t *to, size_t *used, uint64_t value, size_t value_bytes)
{
    for (size_t i = 0; i < value_bytes; i++)
        to[(*used)++] = (uint8_t)(value >> (8 * i));
}

/* What local header and directory have in common: from the version to the lengths of name and
 * extra. */
static inline void
fuzz_put_common(uint8_t *to, size_t *used, size_t name_bytes, size_t bytes_len)
{
    fuzz_put(to, used, 0, 2); /* version */
    fuzz_put(to, used, 0, 2); /* flags */
    fuzz_put(to, used, 0, 2); /* method: stored */
    fuzz_put(to, used, 0, 4); /* time */
    fuzz_put(to, used, 0, 4); /* checksum: none */
    fuzz_put(to, used, bytes_len, 4);
    fuzz_put(to, used, bytes_len, 4);
    fuzz_put(to, used, name_bytes, 2);
    fuzz_put(to, used, 0, 2);
}

/* bytes NULL: zeros. */
static inline void
fuzz_archive_add(struct fuzz_archive *archive, const char *name, const uint8_t *bytes,
                 size_t bytes_len)
{
    size_t name_bytes = strlen(name), at = archive->used;

    fuzz_put(archive->bytes, &archive->used, 0x04034b50, 4);
    fuzz_put_common(archive->bytes, &archive->used, name_bytes, bytes_len);
    memcpy(archive->bytes + archive->used, name, name_bytes);
    archive->used += name_bytes;
    if (bytes_len > 0 && bytes)
        memcpy(archive->bytes + archive->used, bytes, bytes_len);
    else
        memset(archive->bytes + archive->used, 0, bytes_len);
    archive->used += bytes_len;
    fuzz_put(archive->directory, &archive->directory_used, 0x02014b50, 4);
    fuzz_put(archive->directory, &archive->directory_used, 0, 2); /* made by */
    fuzz_put_common(archive->directory, &archive->directory_used, name_bytes, bytes_len);
    fuzz_put(archive->directory, &archive->directory_used, 0, 2); /* comment */
    fuzz_put(archive->directory, &archive->directory_used, 0, 8); /* disk, attributes */
    fuzz_put(archive->directory, &archive->directory_used, at, 4);
    memcpy(archive->directory + archive->directory_used, name, name_bytes);
    archive->directory_used += name_bytes;
    archive->count++;
}

/* The whole archive; what is in *archive is overwritten. pickle[pickle_bytes <=
 * FUZZ_PICKLE_BYTES_MAX]; storage_bytes <= FUZZ_STORAGE_BYTES_MAX. */
static inline void
fuzz_archive_make(struct fuzz_archive *archive, const uint8_t *pickle, size_t pickle_bytes,
                  size_t storage_bytes)
{
    char entry[32];
    size_t directory_at;

    archive->used = archive->directory_used = 0;
    archive->count = 0;
    fuzz_archive_add(archive, "a/data.pkl", pickle, pickle_bytes);
    for (int i = 0; i < FUZZ_STORAGES; i++) {
        (void)snprintf(entry, sizeof(entry), "a/data/%d", i);
        fuzz_archive_add(archive, entry, NULL, storage_bytes);
    }
    directory_at = archive->used;
    memcpy(archive->bytes + archive->used, archive->directory, archive->directory_used);
    archive->used += archive->directory_used;
    fuzz_put(archive->bytes, &archive->used, 0x06054b50, 4);
    fuzz_put(archive->bytes, &archive->used, 0, 4); /* disks */
    fuzz_put(archive->bytes, &archive->used, archive->count, 2);
    fuzz_put(archive->bytes, &archive->used, archive->count, 2);
    fuzz_put(archive->bytes, &archive->used, archive->directory_used, 4);
    fuzz_put(archive->bytes, &archive->used, directory_at, 4);
    fuzz_put(archive->bytes, &archive->used, 0, 2);
}

#endif
