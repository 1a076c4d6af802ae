/*
 * transport/guard.h - whose connections a node ignores, and who is heard all the same.
 *
 * The guard decides what its three parts cannot know of each other: whose connections cost much and
 * prove nothing (strangers.h), how the kernel drops connections (sink.h), and from which ports
 * holders of the job's keys call (ports.h).
 *
 *  1. A connection from a port of ours is heard, from any address.
 *  2. The address of a peer, which is a node's own or one from which a node has proved itself, is
 *     ignored only while every peer has such ports: with a key, and without certificates. Where
 *     both count, a peer may have a certificate alone, as while a job goes from one to the other.
 *  3. An address that becomes a peer's is heard at once.
 *
 * Thread: the loop's. Nothing blocks.
 */
#ifndef CAIRN_TRANSPORT_GUARD_H
#define CAIRN_TRANSPORT_GUARD_H

#include "transport/names.h"
#include "transport/tls.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct cairn_guard;

/*
 * Begins with nobody ignored. `node` is this one of node_count nodes. Their names, tls (NULL:
 * neither keys nor certificates) and the listener, which is bound and does not listen yet, stay the
 * caller's and outlive the guard. If the kernel cannot drop connections, that is logged with the
 * first address that is ignored, and the caller closes them (cairn_guard_ignores). CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_guard_create(const struct cairn_names *names, uint32_t node,
                                              uint32_t node_count, const struct cairn_tls *tls,
                                              int listener, struct cairn_guard **out);
void cairn_guard_destroy(struct cairn_guard *guard); /* NULL is allowed */

/* The keys or certificates of tls have changed. */
void cairn_guard_rekeyed(struct cairn_guard *guard);

/* Whether to close a connection that was accepted from this address and port; counts those. */
bool cairn_guard_ignores(struct cairn_guard *guard, const struct sockaddr_storage *address);

/* A connection from this address has ended unproved, for a reason, after it has cost so much
 * processor time. Ignores the address if it is due. Logs both: the first once in ten seconds. */
void cairn_guard_refused(struct cairn_guard *guard, const struct in6_addr *source, const char *why,
                         uint64_t cost_ns, uint64_t now_ns);

/* The node has proved itself from this address. */
void cairn_guard_proved(struct cairn_guard *guard, uint32_t node, const struct in6_addr *source);

/* The names have another address for the node. */
void cairn_guard_moved(struct cairn_guard *guard, uint32_t node);

/* Hears those again that were ignored for long enough. True: call again, some still are. */
bool cairn_guard_turn(struct cairn_guard *guard, uint64_t now_ns);

/* Fills the counters of connections that were refused or ignored. */
void cairn_guard_count(const struct cairn_guard *guard, struct cairn_transport_stats *out);

#endif
