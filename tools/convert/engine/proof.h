/*
 * tools/convert/engine/proof.h - the proof that ends a conversion: every tensor has the same
 * fingerprint in the source and in what was written.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_PROOF_H
#define CAIRN_TOOLS_CONVERT_ENGINE_PROOF_H

#include "tools/convert/engine/conversion.h"
#include "tools/convert/engine/tally.h"
#include "tools/convert/engine/target.h"

/*
 * All tiles are written: compares, and fills in the report's `proved` and digests. `handles` are of
 * the source's containers. CAIRN_INTERNAL where a tensor differs, or part of it was not written;
 * the errors of reading. Complained about; nothing was made final.
 */
CAIRN_MUST_CHECK cairn_err cairn_prove(struct cairn_conversion *conversion,
                                       const struct cairn_tally *tally,
                                       const struct cairn_target *target,
                                       struct cairn_handles *handles);

#endif
