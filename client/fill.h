/*
 * client/fill.h - carries out the moves of a restore: verified blocks in, tensors filled.
 *
 * Private to client/. It walks the moves block by block of their source containers, and compares
 * each whole block with its checksum: while it is copied, where all of it goes to one place on the
 * host, else before any byte goes into a tensor.
 *
 * - Blocks of this rank's own region are read in place; for host tensors by this rank's share of
 *   the cores: the trainer waits, and faulting in untouched memory costs more than the copy.
 * - Other blocks, and own blocks that fail, are fetched into the window, whose parts are in flight
 *   at once. A fetched block that fails is fetched once more.
 * - Tensors that the trainer still holds with the generation's bytes are copied from where they
 *   are, while the first blocks arrive.
 *
 * Memory: a bit per block, an index per move and reader, and what the caller gives.
 */
#ifndef CAIRN_CLIENT_FILL_H
#define CAIRN_CLIENT_FILL_H

#include "client/state.h"
#include "snapshot/manifest.h"
#include "snapshot/reshard.h"

struct client_fill {
    struct cairn_client *client; /* mail is wanted; lock not held */
    const struct cairn_slice *slices;
    uint32_t slice_count;
    const struct cairn_manifest *manifests; /* [container_count], by container */
    uint32_t container_count;
    /* With the bytes of the generation, in host memory: source container container_count + i. */
    const struct cairn_slice *present; /* [present_count] */
    uint32_t present_count;
    const struct cairn_moves *moves; /* target container = index of the slice */
    uint32_t own_container;          /* CAIRN_CONTAINER_NONE: all is fetched */
    const uint8_t *own;              /* its blocks [own_first_block, own_end_block), mapped */
    uint64_t own_first_block, own_end_block;
    uint8_t *window;
    uint64_t window_bytes;
    uint64_t deadline_ns;
    struct client_sink *hung; /* out: a device still copies from own and window, until this can be
                               * closed; NULL: none does */
    atomic_bool *failing; /* [slice_count] out: set for slices with values that are not finite */
    uint64_t own_bytes;   /* out: put into tensors from own memory */
    uint64_t fetched_bytes;
};

/*
 * Fills the slices. CAIRN_INVAL, CAIRN_CORRUPT: a move or block contradicts the manifests;
 * CAIRN_PEER, CAIRN_TIMEOUT, CAIRN_DEVICE, CAIRN_NOMEM, or the agent's answer to a FETCH. After an
 * error the slices may be half filled. On return nothing is copied into them any more, unless a
 * device hangs.
 */
CAIRN_MUST_CHECK cairn_err client_fill_run(struct client_fill *fill);

#endif
