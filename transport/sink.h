/*
 * transport/sink.h - has the kernel drop connections from some addresses before they are queued.
 *
 * A second socket, the sink, listens at the listener's address (SO_REUSEPORT), and nobody accepts
 * from it. A classic BPF program (SO_ATTACH_REUSEPORT_CBPF, Linux 4.6) sends SYNs of the addresses
 * to the sink, and all others to the listener, with those from spared ports (transport/ports.h). A
 * handful of connections fill the sink's queue; then the kernel drops what comes for it, and counts
 * that. Programs are replaced as a whole, so peers' connections always go to the listener.
 *
 * A filter on the listener itself (SO_ATTACH_FILTER) would do without a second socket, but newer
 * kernels (6.18) want CAP_NET_ADMIN for that on a TCP socket, and accepted sockets inherit it.
 *
 * A process of the same user may listen at the address too if it asks for that (SO_REUSEPORT), and
 * gets no connections. All others, and a second agent, find the port in use.
 *
 * Thread: one at a time.
 */
#ifndef CAIRN_TRANSPORT_SINK_H
#define CAIRN_TRANSPORT_SINK_H

#include "transport/ports.h"

#include "cairn/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

enum { CAIRN_SINK_ADDRESSES_MAX = 64, CAIRN_SINK_PORTS_MAX = 2 };

struct cairn_sink {
    int listener;
    int fd;           /* -1: nothing is dropped */
    int code;         /* errno of why the kernel cannot; 0: it can */
    bool logged;      /* that it cannot */
    uint64_t dropped; /* by sinks that are closed */
    struct cairn_ports ports[CAIRN_SINK_PORTS_MAX];
    uint32_t ports_count;
};

/* The listener is bound and does not listen yet; it stays the caller's. */
void cairn_sink_init(struct cairn_sink *sink, int listener);

/* From the next cairn_sink_set on, connections from these ports[count] are never dropped; count <=
 * CAIRN_SINK_PORTS_MAX. A packet whose header has options or extensions has no such port. */
void cairn_sink_spare(struct cairn_sink *sink, const struct cairn_ports ports[], uint32_t count);

/*
 * From now on connections from addresses[count] are dropped, count <= CAIRN_SINK_ADDRESSES_MAX, and
 * no others. IPv4 addresses are mapped into IPv6. CAIRN_IO: nothing is dropped, since the kernel
 * cannot, or there are no descriptors; logged once.
 */
CAIRN_MUST_CHECK cairn_err cairn_sink_set(struct cairn_sink *sink,
                                          const struct in6_addr addresses[], uint32_t count);

/* SYNs that were dropped: a caller sends several for one connection. */
uint64_t cairn_sink_dropped(const struct cairn_sink *sink);

void cairn_sink_close(struct cairn_sink *sink);

#endif
