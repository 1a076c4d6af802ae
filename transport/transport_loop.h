/*
 * transport/transport_loop.h - the hub that connects the `loop` backend's transports of one
 * process, and the hooks by which a test makes it fail.
 *
 * A hub has a place per node. Frames and writes travel on the link from a node to a node, a bounded
 * queue that is emptied when the receiving transport polls. Threads: any, a lock in the hub guards
 * it all; different threads may poll transports of one hub.
 */
#ifndef CAIRN_TRANSPORT_LOOP_H
#define CAIRN_TRANSPORT_LOOP_H

#include "transport/transport.h"

struct cairn_transport_hub;

/* Makes a hub of node_count places. CAIRN_INVAL, CAIRN_NOMEM. Ended by
 * cairn_transport_hub_destroy. */
CAIRN_MUST_CHECK cairn_err cairn_transport_hub_create(uint32_t node_count,
                                                      struct cairn_transport_hub **out);

/* All its transports must be closed before. NULL is allowed. */
void cairn_transport_hub_destroy(struct cairn_transport_hub *hub);

/* Cuts or mends the link from one node to another: what is on it stays there, neither lost nor
 * done. */
void cairn_transport_hub_cut(struct cairn_transport_hub *hub, uint32_t from, uint32_t to, bool cut);

/* Loses the next `count` frames on a link; the sender sees success. */
void cairn_transport_hub_drop(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                              uint32_t count);

/* The same with payloads: the frames behind them arrive. */
void cairn_transport_hub_drop_payloads(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                                       uint32_t count);

/* Flips a bit in each of the next `count` frames on a link. */
void cairn_transport_hub_corrupt(struct cairn_transport_hub *hub, uint32_t from, uint32_t to,
                                 uint32_t count);

/*
 * Kills a node as SIGKILL would: operations to it fail, and its transport, which should only be
 * closed after this, does nothing more. A transport opened at its place later is its restart.
 */
void cairn_transport_hub_kill(struct cairn_transport_hub *hub, uint32_t node);

/* Puts bytes in front of a node's receiver as a frame would come, for hostile frames. */
CAIRN_MUST_CHECK cairn_err cairn_transport_hub_inject(struct cairn_transport_hub *hub, uint32_t to,
                                                      const void *bytes, size_t bytes_len);

#endif
