/*
 * tests/fuzz/fuzz_journal.c - any bytes as the journal of a killed conversion: refused with a
 * complaint, or records that are found, and one more can be added and is found the next time.
 *
 * Bytes are tried as they are, and behind the header that the plan asks for, with the checksums of
 * records made right, since no mutation finds a CRC-64 by itself.
 */
#include "base/crc.h"
#include "base/file.h"
#include "tests/fuzz/folder.h"
#include "tools/convert/engine/journal.h"

#define NAME "journal"

enum { HEADER_BYTES = 48, RECORD_BYTES = 40, RECORDS_BYTES_MAX = 1 << 16, BESIDE = 77 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
put_crc(uint8_t *bytes, size_t bytes_len)
{
    uint64_t crc = cairn_crc64(0, bytes, bytes_len - 8);

    for (int i = 0; i < 8; i++)
        bytes[bytes_len - 8 + (size_t)i] = (uint8_t)(crc >> 8 * i);
}

/* Opens the file as a journal; NULL where it is refused. */
static struct cairn_journal *
open_journal(bool *found)
{
    static const uint8_t digest[CAIRN_SHA256_BYTES] = {1, 2, 3};
    struct cairn_complaint complaint = {""};
    struct cairn_journal *journal = NULL;
    cairn_err err = cairn_journal_open(fuzz_folder_fd, NAME, digest, &journal, found, &complaint);

    require(err == CAIRN_OK ? journal != NULL : complaint.text[0] != '\0' && err != CAIRN_INTERNAL);
    return journal;
}

static void
try_bytes(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_journal *journal;
    uint64_t crc = 0;
    bool found = false;

    require(fuzz_folder_write(NAME, bytes, bytes_len, false));
    journal = open_journal(&found);
    if (!journal)
        return;
    for (size_t at = HEADER_BYTES; at + RECORD_BYTES <= bytes_len; at += RECORD_BYTES) {
        uint32_t container;
        uint64_t range[2];

        memcpy(&container, bytes + at, sizeof(container));
        memcpy(range, bytes + at + 8, sizeof(range));
        (void)cairn_journal_find(journal, container, range[0], range[1], &crc);
    }
    require(cairn_journal_add(journal, BESIDE, 1, 2, 3) == CAIRN_OK);
    cairn_journal_close(journal);
    journal = open_journal(&found);
    require(journal && found && cairn_journal_find(journal, BESIDE, 1, 2, &crc) && crc == 3);
    cairn_journal_close(journal);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len)
{
    static uint8_t header[HEADER_BYTES], copy[HEADER_BYTES + RECORDS_BYTES_MAX];
    bool found;

    if (bytes_len > RECORDS_BYTES_MAX)
        return 0;
    fuzz_folder_init();
    if (header[0] == 0) { /* an empty file gets the plan's header */
        uint8_t *made = NULL;
        size_t made_len = 0;

        require(fuzz_folder_write(NAME, bytes, 0, false));
        cairn_journal_close(open_journal(&found));
        require(cairn_file_load(fuzz_folder_fd, NAME, 1 << 20, &made, &made_len) == CAIRN_OK &&
                made_len == HEADER_BYTES);
        memcpy(header, made, HEADER_BYTES);
        free(made);
    }
    try_bytes(bytes, bytes_len);
    memcpy(copy, header, HEADER_BYTES);
    if (bytes_len > 0)
        memcpy(copy + HEADER_BYTES, bytes, bytes_len);
    for (size_t at = 0; at + RECORD_BYTES <= bytes_len; at += RECORD_BYTES)
        put_crc(copy + HEADER_BYTES + at, RECORD_BYTES);
    try_bytes(copy, HEADER_BYTES + bytes_len);
    (void)unlinkat(fuzz_folder_fd, NAME, 0);
    return 0;
}
