/*
 * snapshot/spill.h - writes and reads the files of a universal checkpoint, and keeps their
 * directory.
 *
 * A writer streams one file: the header, then the data section front to back, with direct I/O from
 * two aligned buffers by a thread of its own, so that the agent's loop never waits for a disk. The
 * caller asks for a buffer, fills all of it, commits it:
 *
 *     acquire ─► fill ─► commit ─┐         states of a buffer:
 *        ▲ CAIRN_AGAIN: wait     │         free → filling → queued → (written) → free
 *        └── for the event fd ◄──┘
 *
 * until all data_bytes are in, then finish (CAIRN_AGAIN until it is done) gives the checksums.
 *
 * The file gets its name only when it is whole: it grows as "<name>.part" and is cut to size,
 * synced, closed, read back, renamed, and its directory synced. The thread computes the checksum of
 * each CAIRN_BLOCK_BYTES of the data section from the written buffer, and compares what it reads
 * back. Reading back makes the event fd readable too: it is progress.
 *
 * Thread: every call of one writer from one thread; none of them blocks on the disk except open
 * (which makes the temporary file).
 */
#ifndef CAIRN_SNAPSHOT_SPILL_H
#define CAIRN_SNAPSHOT_SPILL_H

#include "snapshot/universal.h"

enum { CAIRN_SPILL_BUFFER_BYTES = 4 << 20, CAIRN_SPILL_BUFFERS = 4 };

struct cairn_spill;

/*
 * Starts a file in the directory. header[header_bytes] is copied; header_bytes is a multiple of
 * CAIRN_UNIVERSAL_ALIGN_BYTES (else CAIRN_INVAL). dir_fd is duplicated. Space for all of it is
 * reserved now: CAIRN_FULL comes before anything is written. The errors of base/file.h,
 * CAIRN_NOMEM. The caller ends *out with cairn_spill_close.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_open(int dir_fd, const char *name, const void *header,
                                            size_t header_bytes, uint64_t data_bytes,
                                            struct cairn_spill **out);

/* Readable when a call that returned CAIRN_AGAIN should be tried again. Owned by the writer;
 * reading it is not needed. */
int cairn_spill_event_fd(const struct cairn_spill *spill);

/*
 * Gives the next buffer: fill it with bytes [*offset, *offset + *bytes) of the data section, all of
 * them. Returns the same one until it is committed. CAIRN_AGAIN: both are in flight.
 * CAIRN_NOT_FOUND: all data is in, go on with finish. Any error of the thread, for good.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_acquire(struct cairn_spill *spill, uint8_t **buffer,
                                               uint64_t *offset, size_t *bytes);
/* Hands the acquired buffer, filled, to the thread. CAIRN_INVAL if none is acquired. */
CAIRN_MUST_CHECK cairn_err cairn_spill_commit(struct cairn_spill *spill);

/*
 * CAIRN_OK when the file is durable under its name: *block_crcs[*block_count] is then the caller's
 * (NULL for 0 blocks). CAIRN_AGAIN while the thread is at work; CAIRN_INVAL before all data is in;
 * an error, for good, when it failed.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_finish(struct cairn_spill *spill, uint64_t **block_crcs,
                                              uint64_t *block_count);

/* The errno behind the error that these calls return, 0 where there is none. */
int cairn_spill_os_error(struct cairn_spill *spill);

/*
 * Ends the writer; NULL is allowed. Before finish has returned CAIRN_OK it gives the file up: the
 * thread removes the temporary as soon as its current disk call returns. Never waits for it.
 */
void cairn_spill_close(struct cairn_spill *spill);

/*
 * Reads bytes [offset, offset + bytes_len) of a file's data section, and checks every block that it
 * touches. CAIRN_CORRUPT (logged with file and block): `out` is undefined. CAIRN_INVAL: beyond the
 * data section. Blocks on the disk. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_read(int dir_fd, const struct cairn_universal_file *file,
                                            uint64_t offset, void *out, size_t bytes_len);

enum { CAIRN_SPILL_CHECK_MAX = 16 };

/*
 * Compares blocks [first, first + count) of a file with their checksums, from the disk if the
 * kernel allows that. *bad has a bit for each that differs or is cut off; nothing is logged. count
 * <= CAIRN_SPILL_CHECK_MAX, and all blocks exist (else CAIRN_INVAL). The errors of base/file.h;
 * CAIRN_NOMEM. Blocks on the disk. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_check(int dir_fd, const struct cairn_universal_file *file,
                                             uint64_t first, uint32_t count, uint32_t *bad);

/* ---- the directory of spilled generations: one subdirectory "e<epoch>-s<step>" each ---- */

enum { CAIRN_SPILL_DIR_NAME_BYTES = 48 };

/*
 * Compares generations by epoch, then step: a generation in files has no run. Within an epoch
 * committed steps only grow.
 */
static inline int
cairn_spill_compare(struct cairn_generation_id a, struct cairn_generation_id b)
{
    a.run = b.run = 0;
    return cairn_generation_id_compare(a, b);
}

struct cairn_spilled {
    struct cairn_generation_id generation;
    bool committed; /* its COMMIT is there and fits its index.json in size; cairn_universal_dir_open
                       checks the rest */
    uint64_t committed_ns; /* wall clock, when COMMIT was written; 0: it is not there */
};

/*
 * Which committed generations stay: the newest `last` (at least one), and of each of the newest
 * `hourly` hours and `daily` days, UTC, in which one was committed, the newest of them.
 */
struct cairn_spill_keep {
    uint32_t last, hourly, daily;
};

/* Reads "2" or "last=2,hourly=24,daily=7": each at most once, each number at most 1000, `last` at
 * least 1 (1 if it is left out). CAIRN_INVAL: *out is untouched. */
CAIRN_MUST_CHECK cairn_err cairn_spill_keep_parse(const char *text, struct cairn_spill_keep *out);

void cairn_spill_dir_name(struct cairn_generation_id generation,
                          char name[CAIRN_SPILL_DIR_NAME_BYTES]);
/* False where it is not such a name. */
bool cairn_spill_dir_parse(const char *name, struct cairn_generation_id *out);

/* Lists the generations, newest first; skips other names. The caller frees *list (NULL if
 * empty). */
CAIRN_MUST_CHECK cairn_err cairn_spill_list(int spill_fd, struct cairn_spilled **list,
                                            size_t *count);

/*
 * Opens the subdirectory of a generation to be written, and makes it if necessary. Removes a COMMIT
 * left in it first: a directory that is being overwritten is not a checkpoint. The caller closes
 * *dir_fd.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_dir_begin(int spill_fd,
                                                 struct cairn_generation_id generation,
                                                 int *dir_fd);

/* Removes a generation: its COMMIT first, durably, then the rest. CAIRN_NOT_FOUND. */
CAIRN_MUST_CHECK cairn_err cairn_spill_remove(int spill_fd, struct cairn_generation_id generation);

/* Renames a generation to "<name>.bad": no list shows it, and its files stay until retention
 * removes them. Removes an earlier one of that name. CAIRN_NOT_FOUND: another agent may have marked
 * it, and that stays. */
CAIRN_MUST_CHECK cairn_err cairn_spill_mark_bad(int spill_fd,
                                                struct cairn_generation_id generation);

/*
 * Removes the committed generations that `keep` does not keep, those marked as bad, and incomplete
 * generations older than the newest committed one. Newer incomplete generations stay: one may still
 * be being written. *removed counts.
 */
CAIRN_MUST_CHECK cairn_err cairn_spill_retain(int spill_fd, const struct cairn_spill_keep *keep,
                                              uint32_t *removed);

#endif
