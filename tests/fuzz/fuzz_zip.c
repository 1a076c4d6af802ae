/*
 * tests/fuzz/fuzz_zip.c - any bytes as an archive: refused, or entries that lie inside, apart
 * from each other, and are found by name.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/convert/zip/read.h"
#include "tests/fuzz/require.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
check_entry(const struct cairn_zip *zip, uint32_t index, size_t bytes_len)
{
    const struct cairn_zip_entry *entry = &zip->entries[index];
    size_t folder_bytes = strlen(zip->folder);
    uint8_t *data;
    cairn_err err;

    require(entry->at <= bytes_len && entry->bytes <= bytes_len - entry->at);
    if (strncmp(entry->name, zip->folder, folder_bytes) == 0)
        require(cairn_zip_find(zip, entry->name + folder_bytes) == entry);
    data = malloc((size_t)entry->bytes + 1);
    require(data != NULL);
    err = cairn_zip_take(zip, "fuzz", entry, data, NULL);
    free(data);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT);
    for (uint32_t i = 0; i < zip->entry_count && i < 64; i++)
        require(i == index || zip->entries[i].at >= entry->at + entry->bytes ||
                entry->at >= zip->entries[i].at + zip->entries[i].bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    int fd = memfd_create("fuzz", 0);
    struct cairn_zip zip;
    cairn_err err;

    require(fd >= 0 && write(fd, bytes, bytes_len) == (ssize_t)bytes_len);
    err = cairn_zip_open(fd, "fuzz", 0, bytes_len, &zip, NULL);
    require(err == CAIRN_OK || err == CAIRN_CORRUPT);
    for (uint32_t i = 0; i < zip.entry_count && i < 64; i++)
        check_entry(&zip, i, bytes_len);
    cairn_zip_fini(&zip);
    require(close(fd) == 0);
    return 0;
}
