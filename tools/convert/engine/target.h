/*
 * tools/convert/engine/target.h - the files of a conversion on the disk, from temporary names to
 * the marker.
 *
 * Everything is written as "<name>.cairn-part" in the directory where it will be, with a journal
 * beside it. Only when all bytes are written and synced do the files get their names, and the
 * marker comes last. A run that ends before leaves parts and journal, so that the same command
 * goes on there; it never leaves anything that looks complete. One that finds its source damaged
 * leaves nothing.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_TARGET_H
#define CAIRN_TOOLS_CONVERT_ENGINE_TARGET_H

#include "tools/convert/core/output.h"
#include "tools/convert/engine/handles.h"
#include "tools/convert/engine/journal.h"

struct cairn_target;

/* Opens a directory (made if missing), or that of the single file. CAIRN_INVAL if something is
 * there that is not an unfinished conversion with this digest; CAIRN_FULL if the disk has too
 * little room; CAIRN_DENIED, CAIRN_AGAIN, CAIRN_IO, CAIRN_NOMEM. Complained about. `path` and
 * `output` are borrowed. */
CAIRN_MUST_CHECK cairn_err cairn_target_open(const char *path, const struct cairn_output *output,
                                             bool single_file,
                                             const uint8_t digest[CAIRN_SHA256_BYTES],
                                             struct cairn_target **out,
                                             struct cairn_complaint *complaint);
void cairn_target_close(struct cairn_target *target); /* NULL is allowed; files stay */

/* Whether an earlier run was found there. */
bool cairn_target_resumed(const struct cairn_target *target);
struct cairn_journal *cairn_target_journal(struct cairn_target *target);

/* Makes the journal forget, and removes what all runs wrote: another copy of the source must not be
 * taken for another conversion. Then only cairn_target_close may be called. */
void cairn_target_discard(struct cairn_target *target);

/* Makes the part files that no write has made. Errors as open. */
CAIRN_MUST_CHECK cairn_err cairn_target_create(struct cairn_target *target,
                                               struct cairn_complaint *complaint);

/* Reads and writes a part file. A read gives fewer bytes only at the end of the file. Complained
 * about. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_target_read(struct cairn_target *target, uint32_t file,
                                             uint64_t at, void *bytes, size_t bytes_len,
                                             size_t *got, struct cairn_complaint *complaint);
CAIRN_MUST_CHECK cairn_err cairn_target_write(struct cairn_target *target, uint32_t file,
                                              uint64_t at, const void *bytes, size_t bytes_len,
                                              struct cairn_complaint *complaint);

/* The temporary name of a file (the final one, where an earlier run has given it that), in the
 * place that cairn_place_open finds at cairn_target_directory. */
cairn_err cairn_target_part_name(const struct cairn_target *target, uint32_t file, char *name,
                                 size_t name_bytes);
const char *cairn_target_directory(const struct cairn_target *target);

/* All bytes are there: syncs, renames, writes the small files, the marker last, and removes the
 * journal. Complained about; after a failure the same command goes on. */
CAIRN_MUST_CHECK cairn_err cairn_target_commit(struct cairn_target *target,
                                               struct cairn_complaint *complaint);

#endif
