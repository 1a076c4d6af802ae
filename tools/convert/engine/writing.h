/*
 * tools/convert/engine/writing.h - what a conversion does with a tile: cast, fingerprint, put
 * literals in, checksum, write, note in the journal. A tile that an earlier run wrote is read back
 * instead of gathered, and everything but the writing is done with what was read.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_WRITING_H
#define CAIRN_TOOLS_CONVERT_ENGINE_WRITING_H

#include "tools/convert/engine/conversion.h"
#include "tools/convert/engine/tally.h"
#include "tools/convert/engine/target.h"

struct cairn_writing;

/* All are borrowed. The sums of the conversion's output are filled. CAIRN_NOMEM; CAIRN_INTERNAL
 * where literals or sums lie outside of their files, or over each other. */
CAIRN_MUST_CHECK cairn_err cairn_writing_create(struct cairn_conversion *conversion,
                                                struct cairn_target *target,
                                                struct cairn_tally *tally,
                                                struct cairn_writing **out);
void cairn_writing_destroy(struct cairn_writing *writing); /* NULL is allowed */

/* Makes an execution hand its tiles to this. */
void cairn_writing_attach(struct cairn_writing *writing, struct cairn_execution *execution);

/* Bytes that were found written, and were as the journal says. */
uint64_t cairn_writing_kept_bytes(const struct cairn_writing *writing);

#endif
