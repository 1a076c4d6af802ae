/*
 * tests/fuzz/fuzz_journal.c - any bytes as the journal of a killed conversion: refused with a complaint,
 * or records that are found, one more of which can be added and is found the next time.
 *
 * Bytes are tried as they are, and behind the header that the plan asks for, with the checksums of
 * records made right, since no mutation finds a CRC-64 by itself.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc.h"
#include "base/log.h"
#include "tools/convert/journal.h"

enum { HEADER_BYTES = 48, RECORD_BYTES = 40, INPUT_BYTES_MAX = 1 << 16, BESIDE = 77 };

static char name[64];
static int fd = -1;

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t bytes_len);

static void
drop_line(void *context, enum cairn_log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void
require(bool condition)
{
    if (!condition)
        abort();
}

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
    cairn_err err = cairn_journal_open(AT_FDCWD, name, digest, &journal, found, &complaint);

    require(err == CAIRN_OK ? journal != NULL : complaint.text[0] != '\0' && err != CAIRN_INTERNAL);
    return journal;
}

static void
try_bytes(const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_journal *journal;
    uint64_t crc = 0;
    bool found = false;

    require(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, bytes_len, 0) == (ssize_t)bytes_len);
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
    static uint8_t header[HEADER_BYTES], copy[HEADER_BYTES + INPUT_BYTES_MAX];
    bool found;

    if (bytes_len > INPUT_BYTES_MAX)
        return 0;
    if (fd < 0) {
        cairn_log_setup(CAIRN_LOG_ERROR, drop_line, NULL);
        fd = memfd_create("fuzz-journal", MFD_CLOEXEC);
        require(fd >= 0);
        (void)snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
        cairn_journal_close(open_journal(&found)); /* an empty file gets the plan's header */
        require(pread(fd, header, HEADER_BYTES, 0) == HEADER_BYTES);
    }
    try_bytes(bytes, bytes_len);
    memcpy(copy, header, HEADER_BYTES);
    if (bytes_len > 0)
        memcpy(copy + HEADER_BYTES, bytes, bytes_len);
    for (size_t at = 0; at + RECORD_BYTES <= bytes_len; at += RECORD_BYTES)
        put_crc(copy + HEADER_BYTES + at, RECORD_BYTES);
    try_bytes(copy, HEADER_BYTES + bytes_len);
    return 0;
}
