/*
 * agent/process/part_file.h - copies of this node's parts in files of a local disk, and back into
 * memory when an agent starts cold.
 *
 * A file holds one complete part as it lies in memory: its record, its data, its parity. So an
 * agent that loads it holds the part as if a keeper had kept it, and the restore compares every
 * block with the checksums of the record. Each node has its own files; no two nodes share any.
 *
 *   4096 bytes  header: "cairn-part 1\n", then little-endian from byte 16: u64 job, epoch, run,
 *               step, record_bytes, data_blocks, parity_blocks; CRC-64 of all that and the record
 *               after that u64 1 if there are checksums, 0 from earlier versions
 *   record, padded with zeros to 4096 bytes; data; parity: blocks of CAIRN_BLOCK_BYTES
 *   checksums: CRC-64 of each of these blocks, CRC-64 of all that; padded with zeros to 4096 bytes
 *
 * The name is "e<epoch>-r<run>-s<step>.part"; a file that is being written is "<name>.new". It gets
 * its name when it is synced and read back. "<name>.bad" was found damaged; nobody loads it.
 *
 * Thread: any, one call at a time per directory; all calls block on the disk.
 */
#ifndef CAIRN_AGENT_PROCESS_PART_FILE_H
#define CAIRN_AGENT_PROCESS_PART_FILE_H

#include "cairn/err.h"
#include "snapshot/generation.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct cairn_memory;

struct part_file {
    uint64_t job_id;
    struct cairn_generation_id generation;
    const uint8_t *record; /* this and the next two are borrowed */
    uint64_t record_bytes;
    const uint8_t *data;
    uint64_t data_blocks;
    const uint8_t *parity; /* NULL: none */
    uint64_t parity_blocks;
};

/*
 * Writes the part, and removes all others but the newest `keep` - 1. `progress` counts bytes;
 * `stop` set ends the call with CAIRN_AGAIN, and nothing is left of the file. CAIRN_CORRUPT: the
 * disk gives back other bytes than were written; the errors of base/file.h.
 */
CAIRN_MUST_CHECK cairn_err part_file_write(const char *dir, const struct part_file *part,
                                           uint32_t keep, _Atomic uint64_t *progress,
                                           atomic_bool *stop);

/* ---- for a scrub ---- */

enum { PART_FILES_MAX = 128, PART_FILE_CHECK_MAX = 16 };

/* Units of a file: its head and checksums, then each block; 0: written without checksums. */
struct part_file_units {
    struct cairn_generation_id generation;
    uint64_t units;
};

/* Lists the newest PART_FILES_MAX files, newest first. CAIRN_NOT_FOUND: no directory. */
CAIRN_MUST_CHECK cairn_err part_files_list(const char *dir,
                                           struct part_file_units out[PART_FILES_MAX],
                                           uint32_t *count);

/* Compares units with the file's checksums, from the disk; *bad has a bit for each that differs.
 * count <= PART_FILE_CHECK_MAX. CAIRN_NOT_FOUND: no such file; the errors of base/file.h. */
CAIRN_MUST_CHECK cairn_err part_file_check(const char *dir, struct cairn_generation_id generation,
                                           uint64_t first, uint32_t count, uint32_t *bad);

/* Renames the file so that nobody loads it; the next write removes it. */
CAIRN_MUST_CHECK cairn_err part_file_mark_bad(const char *dir,
                                              struct cairn_generation_id generation);

/*
 * Loads the newest parts of the job into the own slots of fresh memory, one into each, and stores
 * their records. Files that cannot be used are logged and left. *newest: step 0 if none was
 * loaded.
 */
void part_files_load(const char *dir, uint64_t job_id, struct cairn_memory *memory, uint32_t slots,
                     uint64_t parity_blocks, struct cairn_generation_id *newest);

#endif
