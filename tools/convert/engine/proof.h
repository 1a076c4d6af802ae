/*
 * tools/convert/engine/proof.h - the proofs of a conversion by fingerprints.
 *
 * At the end, every tensor has the same one in the source and in what was written. Before anything
 * is written, tensors that the target's format keeps once are equal: a format says of a tensor that
 * it leaves it out because another one, which it writes, has the same elements
 * (cairn_output_add_equal), or is the float32 that they were rounded from.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_PROOF_H
#define CAIRN_TOOLS_CONVERT_ENGINE_PROOF_H

#include "tools/convert/engine/conversion.h"
#include "tools/convert/engine/tally.h"
#include "tools/convert/engine/target.h"
#include "tools/convert/engine/handles.h"

/* After all tiles: compares, and fills in the report's `proved` and digests. `handles` are of the
 * source. CAIRN_INTERNAL if a tensor differs or is partly missing; errors of reading. Complained
 * about; nothing is final. */
CAIRN_MUST_CHECK cairn_err cairn_prove(struct cairn_conversion *conversion,
                                       struct cairn_tally *tally, const struct cairn_target *target,
                                       struct cairn_handles *handles);

/* CAIRN_INVAL with the names where two of them differ; the errors of cairn_fingerprints_read.
 * Complained about. */
CAIRN_MUST_CHECK cairn_err cairn_equals_check(struct cairn_conversion *conversion,
                                              struct cairn_handles *handles);

#endif
