/*
 * tools/convert/pickle/write.h - writes an inert tree as a pickle of protocol 2, the one that
 * torch.save uses and that torch.load(weights_only=True) reads.
 *
 * What Python's C pickler wrote with protocol 2 comes out byte for byte as it went in: numbers of
 * the memo are given in the same order, batches are cut where it cuts them, a value that holds
 * itself is made twice and fetched as it does. What only later protocols have is written as Python
 * says it in protocol 2: sets by calling set, bytes by calling _codecs.encode.
 */
#ifndef CAIRN_TOOLS_CONVERT_PICKLE_WRITE_H
#define CAIRN_TOOLS_CONVERT_PICKLE_WRITE_H

#include "tools/convert/pickle/pickle.h"

/* Writes the tree below `root`, a node of `pickle`, into a new buffer that the caller frees. Time
 * and memory depend on that tree alone. Nodes that are not memoized are repeated. CAIRN_INVAL,
 * complained about, if it is deeper than CAIRN_PICKLE_DEPTH_MAX or the pickle larger than 1 GiB;
 * CAIRN_NOMEM. */
CAIRN_MUST_CHECK cairn_err cairn_pickle_write(const struct cairn_pickle *pickle,
                                              const struct cairn_pickle_node *root, uint8_t **bytes,
                                              size_t *bytes_len, struct cairn_complaint *complaint);

#endif
