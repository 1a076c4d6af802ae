/*
 * tools/convert/engine/journal.h - which tiles of a conversion are written, so that a killed one
 * goes on.
 *
 * A file of a header and records, each with a checksum. A record says the CRC-64 of a tile's bytes
 * as written. Nothing is synced: what a crash of the machine took is found by reading the tile and
 * comparing, which is done for every record. The header names the plan (source files with size and
 * time, target files, moves) by a digest: a journal of another plan is not touched.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_JOURNAL_H
#define CAIRN_TOOLS_CONVERT_ENGINE_JOURNAL_H

#include "base/sha256.h"
#include "base/complaint.h"

#include <stdbool.h>

struct cairn_journal;

/* Opens the journal `name` in a directory, or starts one. *found: it was there, with this digest.
 * CAIRN_AGAIN: another process converts into this place; CAIRN_INVAL: it is another conversion's;
 * CAIRN_NOMEM, errors of base/file.h. Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_journal_open(int dir_fd, const char *name,
                                              const uint8_t digest[CAIRN_SHA256_BYTES],
                                              struct cairn_journal **out, bool *found,
                                              struct cairn_complaint *complaint);
void cairn_journal_close(struct cairn_journal *journal); /* NULL is allowed; the file stays */

/* The checksum of a tile that an earlier run recorded; false where there is none. Thread: any. */
bool cairn_journal_find(const struct cairn_journal *journal, uint32_t container, uint64_t begin,
                        uint64_t end, uint64_t *crc);

/* Appends a record. The errors of base/file.h. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_journal_add(struct cairn_journal *journal, uint32_t container,
                                             uint64_t begin, uint64_t end, uint64_t crc);

/* Forgets all records for good. No other call may be running. The errors of base/file.h. */
CAIRN_MUST_CHECK cairn_err cairn_journal_forget(struct cairn_journal *journal);

#endif
