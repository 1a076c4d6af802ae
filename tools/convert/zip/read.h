/*
 * tools/convert/zip/read.h - where the entries of a ZIP archive lie, so that their bytes can be
 * read in place. For archives as PyTorch writes them: every entry stored, ZIP64 where needed.
 *
 * An archive may lie anywhere in a file. Refused, with the entry's name: compressed, encrypted and
 * overlapping entries, names twice or with tricks in them, local headers that contradict the
 * directory, anything that reaches past the archive. Names are data here, never paths.
 */
#ifndef CAIRN_TOOLS_CONVERT_ZIP_READ_H
#define CAIRN_TOOLS_CONVERT_ZIP_READ_H

#include "base/complaint.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CAIRN_ZIP_NAME_BYTES_MAX = 1024,
    CAIRN_ZIP_ENTRIES_MAX = 1 << 24,
    CAIRN_ZIP_DIRECTORY_BYTES_MAX = 1 << 30
};

/* A range of a file whose first and last bytes are kept in memory. What describes an archive stands
 * at its two ends: if these are read at once, an archive with one tensor is known after two reads,
 * not a dozen. */
enum { CAIRN_WINDOW_BYTES = 4096 }; /* kept of each end */

struct cairn_window {
    int fd;                               /* borrowed */
    uint64_t begin, bytes;                /* of the range */
    size_t head_bytes, tail_bytes;        /* kept; less than the file should have where it is cut */
    uint8_t kept[2 * CAIRN_WINDOW_BYTES]; /* the first bytes, and from the middle on the last */
};

/* Reads both ends of [begin, begin + bytes), or all of it where it is short: then it is all "head",
 * of up to the size of both. CAIRN_IO and the like, as cairn_file_read_at. */
CAIRN_MUST_CHECK cairn_err cairn_window_open(int fd, uint64_t begin, uint64_t bytes,
                                             struct cairn_window *window);

struct cairn_zip_entry {
    const char *name; /* whole, the archive's folder included */
    uint64_t at;      /* of its first byte in the file */
    uint64_t bytes;
    uint32_t crc32; /* 0 where the writer was told to leave it out */
};

struct cairn_zip {
    char *names;                     /* owned; what entries point to */
    struct cairn_zip_entry *entries; /* owned; in the order of the directory */
    uint32_t *by_name;               /* owned; indexes of entries, sorted by name */
    struct cairn_window *window;     /* owned; the archive's two ends */
    uint32_t entry_count;
    char folder[CAIRN_ZIP_NAME_BYTES_MAX]; /* that of the first entry, with its '/'; "" where
                                            * none */
};

/* Whether these first bytes of a file are those of an archive. */
bool cairn_zip_probe(const void *bytes, size_t bytes_len);

/* Reads the directory and every local header of the archive at [begin, begin + bytes) of an open
 * file. `where` names it in complaints. The caller ends *zip with cairn_zip_fini. CAIRN_CORRUPT,
 * CAIRN_IO, CAIRN_NOMEM; then *zip is zeroes. */
CAIRN_MUST_CHECK cairn_err cairn_zip_open(int fd, const char *where, uint64_t begin, uint64_t bytes,
                                          struct cairn_zip *zip, struct cairn_complaint *complaint);
/* The same of what a window shows, which it takes over (from malloc), also on failure. */
CAIRN_MUST_CHECK cairn_err cairn_zip_open_window(struct cairn_window *window, const char *where,
                                                 struct cairn_zip *zip,
                                                 struct cairn_complaint *complaint);
/* Frees; allowed twice and on zeroes. */
void cairn_zip_fini(struct cairn_zip *zip);

/* The entry of a name below the archive's folder ("data.pkl"); NULL where there is none. */
const struct cairn_zip_entry *cairn_zip_find(const struct cairn_zip *zip, const char *name);

/* Reads an entry into `out`, which has room for entry->bytes, from memory where it stands at one of
 * the archive's ends, and checks its checksum, if it has one. CAIRN_CORRUPT, complained about,
 * CAIRN_IO. */
CAIRN_MUST_CHECK cairn_err cairn_zip_take(const struct cairn_zip *zip, const char *where,
                                          const struct cairn_zip_entry *entry, void *out,
                                          struct cairn_complaint *complaint);

#endif
