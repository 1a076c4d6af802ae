/*
 * tools/convert/engine/source_sums.h - a checkpoint's own checksums, held against what is read, as
 * it is read.
 *
 * Runs come in any order, so the checksum of a block is joined from its parts (crc_join.h). If only
 * parts of a block were read, the rest is read in the end. Where each byte was read once, the sum
 * of what was read decides: what a file says later is not what went into the output. Where
 * something was read twice, the block is read once more by itself, and that decides. A block that
 * was not read is not checked.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_SOURCE_SUMS_H
#define CAIRN_TOOLS_CONVERT_ENGINE_SOURCE_SUMS_H

#include "snapshot/reshard.h"
#include "tools/convert/core/checkpoint.h"
#include "tools/convert/engine/handles.h"

struct cairn_source_sums;

/* Borrows the checkpoint, and sorts its sums. *out is NULL without sums. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_source_sums_create(struct cairn_checkpoint *checkpoint,
                                                    struct cairn_source_sums **out);
void cairn_source_sums_destroy(struct cairn_source_sums *sums); /* NULL is allowed */

/* Adds what moves have brought into a tile. `sums` NULL: does nothing. Thread: any. */
void cairn_source_sums_add(struct cairn_source_sums *sums, const struct cairn_move *moves,
                           size_t count, const uint8_t *tile);

/* After all is read: CAIRN_CORRUPT if a block's checksum does not fit, complained about with file,
 * offset and tensor. CAIRN_NOMEM, errors of reading. `sums` NULL: CAIRN_OK. */
CAIRN_MUST_CHECK cairn_err cairn_source_sums_check(struct cairn_source_sums *sums,
                                                   const struct cairn_checkpoint *checkpoint,
                                                   struct cairn_handles *handles);

#endif
