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
 * Tensors whose pieces cannot be inverted at a sensible price are left out here and
 * fingerprinted by reading them again (fingerprints.h).
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_TALLY_H
#define CAIRN_TOOLS_CONVERT_ENGINE_TALLY_H

#include "tools/convert/engine/fingerprint.h"
#include "tools/convert/engine/regions.h"

struct cairn_locator;

/* All zero is the empty value. The arrays are [tensors of the output]. */
struct cairn_tally {
    const struct cairn_regions *regions;
    struct cairn_locator *locators;            /* of the source and the output */
    uint32_t *from;                            /* the tensor of the source */
    bool *left_out;                            /* it is not counted here */
    struct cairn_fingerprint *source, *target; /* after all tiles */
    uint64_t *bytes;                           /* of the source, that were counted */
};

/* The layouts and regions are borrowed. `source` has every tensor of the output. CAIRN_NOMEM. The
 * caller ends *tally with cairn_tally_fini in any case. */
CAIRN_MUST_CHECK cairn_err cairn_tally_init(struct cairn_tally *tally,
                                            const struct cairn_layout *source,
                                            const struct cairn_output *output,
                                            const struct cairn_regions *regions);
void cairn_tally_fini(struct cairn_tally *tally);

/* Counts a tile; `written` are its bytes after casting (tile->bytes where nothing is cast).
 * CAIRN_INTERNAL where the two places differ. Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_tally_tile(struct cairn_tally *tally,
                                            const struct cairn_tile *tile, const uint8_t *written,
                                            struct cairn_complaint *complaint);

#endif
