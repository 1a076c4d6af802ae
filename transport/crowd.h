/*
 * transport/crowd.h - the inbound connections of the backend `tcp` that are not proved, and which
 * gives way to a newcomer.
 *
 * There are at most CAIRN_CROWD_MAX, and CAIRN_CROWD_PER_SOURCE of one address. Beyond that the
 * oldest (of this address) must go for the newcomer, so that strangers' connections, idle or many,
 * keep a peer out no longer than its own handshake takes. Those whose hello fits our keys or
 * certificates go last, but keep half of the places at most: a stranger can repeat a hello.
 *
 * A stream is in the crowd by its field `next`. Pure. Thread: the loop's.
 */
#ifndef CAIRN_TRANSPORT_CROWD_H
#define CAIRN_TRANSPORT_CROWD_H

#include "transport/stream.h"

enum { CAIRN_CROWD_MAX = 256, CAIRN_CROWD_PER_SOURCE = 64 };

/* All zero: it is empty. Streams stay their owner's. */
struct cairn_crowd {
    struct stream *newest;
};

void cairn_crowd_add(struct cairn_crowd *crowd, struct stream *stream);

/* No effect on a stream that is not in it. */
void cairn_crowd_remove(struct cairn_crowd *crowd, struct stream *stream);

/* The one to close before another of this address is added; NULL: there is room. */
struct stream *cairn_crowd_worst(const struct cairn_crowd *crowd, const struct in6_addr *source);

/* One whose deadline is over; NULL: there is none. */
struct stream *cairn_crowd_overdue(const struct cairn_crowd *crowd, uint64_t now_ns);

#endif
