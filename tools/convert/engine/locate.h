/*
 * tools/convert/engine/locate.h - which element of a tensor lies at a byte of a container.
 *
 * The inverse of a layout, made for checking: a byte that was read stands, by the source's pieces,
 * at some place of the tensor's canonical bytes (row-major, no padding), and by the target's pieces
 * it is written as some place. Both must be the same. Nothing of this comes from the planner.
 */
#ifndef CAIRN_TOOLS_CONVERT_ENGINE_LOCATE_H
#define CAIRN_TOOLS_CONVERT_ENGINE_LOCATE_H

#include "snapshot/layout.h"

struct cairn_locator;

/* The layout is borrowed and must not change. CAIRN_NOMEM. O(P log P). Thread: any. */
CAIRN_MUST_CHECK cairn_err cairn_locator_create(const struct cairn_layout *layout,
                                                struct cairn_locator **out);
void cairn_locator_destroy(struct cairn_locator *locator); /* NULL is allowed */

/*
 * Whether the tensor's pieces can be inverted at a price worth paying: the strides of each nest, so
 * that no byte is two elements, and its runs are at least 64 bytes long (or whole pieces).
 */
bool cairn_locator_regular(const struct cairn_locator *locator, uint32_t tensor);

/* Whether some piece of the tensor holds elements that another one, added before it, holds too. */
bool cairn_locator_is_replica(const struct cairn_locator *locator, size_t piece);

struct cairn_spot {
    size_t piece;
    uint64_t position_bytes; /* in the tensor's canonical bytes */
    uint64_t run_bytes;      /* from here on contiguous on both sides; > 0 */
};

/* False where no piece of the tensor has that byte of the container. The tensor is regular. Thread:
 * any, concurrently. */
bool cairn_locate(const struct cairn_locator *locator, uint32_t tensor, uint32_t container,
                  uint64_t offset_bytes, struct cairn_spot *out);

#endif
