/*
 * tools/convert/engine/tally.h - the fingerprints of both sides of a conversion, taken from the
 * tiles as they pass by.
 *
 * For each run of bytes the place in the tensor is found twice: from the pieces of the source,
 * where it was read, and from those of the output, where it is written. If they are not the same,
 * the planner or the executor is wrong, and the conversion stops. Where they are, the run's
 * fingerprint counts for both sides. Of elements that the output holds several times the first
 * counts.
 *
 * Tensors whose pieces cannot be inverted at a sensible price (locate.h) are left out here and
 * fingerprinted by reading them again (fingerprints.h).
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_TALLY_H
#define CAIRN_TOOLS_CONVERT_ENGINE_TALLY_H

#include "tools/convert/engine/fingerprint.h"
#include "tools/convert/engine/regions.h"

struct cairn_tally;

/* The layouts and regions are borrowed. `source` has every tensor of the output. CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_tally_create(const struct cairn_layout *source,
                                              const struct cairn_output *output,
                                              const struct cairn_regions *regions,
                                              struct cairn_tally **out);
void cairn_tally_destroy(struct cairn_tally *tally); /* NULL is allowed */

/* Counts a tile; `written` are its bytes after casting (tile->bytes where nothing is cast).
 * CAIRN_INTERNAL where the two places differ. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_tally_tile(struct cairn_tally *tally,
                                            const struct cairn_tile *tile, const uint8_t *written,
                                            struct cairn_complaint *complaint);

/* True where the tensor (of the output) is left out. */
bool cairn_tally_left_out(const struct cairn_tally *tally, uint32_t tensor);

/* The fingerprints of a tensor that is not left out, after all tiles; the bytes of the source that
 * were counted. */
void cairn_tally_result(const struct cairn_tally *tally, uint32_t tensor,
                        struct cairn_fingerprint *source, struct cairn_fingerprint *target,
                        uint64_t *bytes);

#endif
