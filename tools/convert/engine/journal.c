/*
 * tools/convert/engine/journal.c - see engine/journal.h. The file, little-endian:
 *
 *   header, 48 bytes
 *      0   "CAIRNJ01"
 *      8   digest of the plan, 32 bytes
 *     40   u64 CRC-64 of the bytes before
 *
 *   record, 40 bytes
 *      0   u32 container
 *      4   u32 0
 *      8   u64 begin
 *     16   u64 end
 *     24   u64 CRC-64 of the tile
 *     32   u64 CRC-64 of the record's bytes before
 *
 * Everything after the first damaged record is cut off.
 */
#include "tools/convert/engine/journal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include "base/array.h"
#include "base/assert.h"
#include "base/crc.h"
#include "base/file.h"
#include "base/wire.h"

enum { MAGIC_BYTES = 8, HEADER_BYTES = 48, RECORD_BYTES = 40, JOURNAL_BYTES_MAX = 1 << 30 };

static const char magic[] = "CAIRNJ01";

struct record {
    uint32_t container;
    uint64_t begin, end, crc;
    size_t order; /* later records win */
};

struct cairn_journal {
    int fd;
    struct record *records; /* of earlier runs, sorted by container, begin; not changed any more */
    size_t count;
    pthread_mutex_t lock; /* guards `at` */
    uint64_t at;          /* where the next record goes */
};

static int
compare_records(const void *left, const void *right)
{
    const struct record *a = left, *b = right;
    int order = CAIRN_COMPARE(a->container, b->container);

    order = order ? order : CAIRN_COMPARE(a->begin, b->begin);
    return order ? order : CAIRN_COMPARE(a->order, b->order);
}

/* Takes over the sound records of an old journal. */
static cairn_err
take_records(struct cairn_journal *journal, const uint8_t *bytes, size_t bytes_len)
{
    size_t room = (bytes_len - HEADER_BYTES) / RECORD_BYTES, kept = 0;

    journal->records = malloc((room + 1) * sizeof(*journal->records));
    if (!journal->records)
        return CAIRN_NOMEM;
    for (size_t i = 0; i < room; i++) {
        const uint8_t *from = bytes + HEADER_BYTES + i * RECORD_BYTES;

        if (cairn_crc64(0, from, RECORD_BYTES - 8) != cairn_little_get(from + RECORD_BYTES - 8, 8))
            break;
        journal->records[kept] =
            (struct record){(uint32_t)cairn_little_get(from, 8), cairn_little_get(from + 8, 8),
                            cairn_little_get(from + 16, 8), cairn_little_get(from + 24, 8), kept};
        kept++;
    }
    journal->at = HEADER_BYTES + kept * RECORD_BYTES;
    if (kept > 1)
        qsort(journal->records, kept, sizeof(*journal->records), compare_records);
    for (size_t i = 0; i < kept; i++) { /* of the same tile only the last */
        const struct record *record = &journal->records[i];

        if (i + 1 < kept && record[1].container == record->container &&
            record[1].begin == record->begin)
            continue;
        journal->records[journal->count++] = *record;
    }
    return CAIRN_OK;
}

static void
make_header(const uint8_t digest[CAIRN_SHA256_BYTES], uint8_t header[HEADER_BYTES])
{
    _Static_assert(MAGIC_BYTES + CAIRN_SHA256_BYTES + 8 == HEADER_BYTES, "the header is full");
    memcpy(header, magic, MAGIC_BYTES);
    memcpy(header + MAGIC_BYTES, digest, CAIRN_SHA256_BYTES);
    cairn_little_put(header + HEADER_BYTES - 8, 8, cairn_crc64(0, header, HEADER_BYTES - 8));
}

/* Reads what is there: an old journal of this plan, an empty or torn one, or another one. */
static cairn_err
load(struct cairn_journal *journal, const uint8_t header[HEADER_BYTES], bool *found)
{
    uint8_t *bytes = NULL;
    uint64_t size = 0;
    size_t got = 0;
    cairn_err err;

    err = cairn_file_size(journal->fd, &size);
    if (!err && size > JOURNAL_BYTES_MAX)
        return CAIRN_INVAL;
    if (!err && !(bytes = malloc((size_t)size + 1)))
        err = CAIRN_NOMEM;
    if (!err)
        err = cairn_file_read_at(journal->fd, 0, bytes, (size_t)size, &got);
    if (!err && got >= HEADER_BYTES && memcmp(bytes, header, HEADER_BYTES) == 0) {
        *found = true;
        err = take_records(journal, bytes, got);
    } else if (!err && got >= HEADER_BYTES) {
        err = CAIRN_INVAL;
    } else if (!err) { /* none, or one that was killed in its first write: before any tile */
        err = cairn_file_write_at(journal->fd, 0, header, HEADER_BYTES);
        journal->at = HEADER_BYTES;
    }
    if (!err)
        err = cairn_file_resize(journal->fd, journal->at);
    free(bytes);
    return err;
}

cairn_err
cairn_journal_open(int dir_fd, const char *name, const uint8_t digest[CAIRN_SHA256_BYTES],
                   struct cairn_journal **out, bool *found, struct cairn_complaint *complaint)
{
    struct cairn_journal *journal = calloc(1, sizeof(*journal));
    uint8_t header[HEADER_BYTES];
    char path[CAIRN_FILE_PATH_BYTES_MAX];
    bool known = false;
    cairn_err err;

    if (!journal)
        return CAIRN_NOMEM;
    cairn_file_path(dir_fd, name, path);
    make_header(digest, header);
    journal->fd = -1;
    (void)pthread_mutex_init(&journal->lock, NULL); /* a plain one cannot fail on Linux */
    err = cairn_file_open(dir_fd, name, CAIRN_FILE_UPDATE, &journal->fd);
    if (!err && flock(journal->fd, LOCK_EX | LOCK_NB) != 0)
        err = cairn_complain(complaint, CAIRN_AGAIN,
                             "%s: another process is converting into the same place; wait for it",
                             path);
    if (!err)
        err = load(journal, header, &known);
    if (err == CAIRN_INVAL)
        (void)cairn_complain(complaint, err,
                             "%s: belongs to an unfinished conversion from another source, or with "
                             "other options; run that one again, or remove its files",
                             path);
    if (err) {
        cairn_journal_close(journal);
        return cairn_complain_failed(complaint, err, "%s", path);
    }
    *found = known;
    *out = journal;
    return CAIRN_OK;
}

void
cairn_journal_close(struct cairn_journal *journal)
{
    if (!journal)
        return;
    (void)cairn_file_close(journal->fd); /* a record that is lost costs one tile of work */
    (void)pthread_mutex_destroy(&journal->lock);
    free(journal->records);
    free(journal);
}

bool
cairn_journal_find(const struct cairn_journal *journal, uint32_t container, uint64_t begin,
                   uint64_t end, uint64_t *crc)
{
    size_t low = 0, high = journal->count;

    CAIRN_BISECT(low, high, middle,
                 journal->records[middle].container < container ||
                     (journal->records[middle].container == container &&
                      journal->records[middle].begin < begin));
    if (low == journal->count || journal->records[low].container != container ||
        journal->records[low].begin != begin || journal->records[low].end != end)
        return false;
    *crc = journal->records[low].crc;
    return true;
}

cairn_err
cairn_journal_add(struct cairn_journal *journal, uint32_t container, uint64_t begin, uint64_t end,
                  uint64_t crc)
{
    uint8_t record[RECORD_BYTES];
    uint64_t at;

    CAIRN_ASSERT(begin < end);
    cairn_little_put(record, 8, container);
    cairn_little_put(record + 8, 8, begin);
    cairn_little_put(record + 16, 8, end);
    cairn_little_put(record + 24, 8, crc);
    cairn_little_put(record + 32, 8, cairn_crc64(0, record, RECORD_BYTES - 8));
    (void)pthread_mutex_lock(&journal->lock);
    at = journal->at;
    journal->at += RECORD_BYTES;
    (void)pthread_mutex_unlock(&journal->lock);
    return cairn_file_write_at(journal->fd, at, record, RECORD_BYTES);
}

cairn_err
cairn_journal_forget(struct cairn_journal *journal)
{
    journal->count = 0;
    journal->at = HEADER_BYTES;
    return cairn_file_resize(journal->fd, HEADER_BYTES);
}
