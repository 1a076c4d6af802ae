/*
 * transport/lookup.h - looks up a host's address in the background: the name service may take many
 * seconds, and the loop that sends heartbeats must not wait for it.
 */
#ifndef CAIRN_TRANSPORT_LOOKUP_H
#define CAIRN_TRANSPORT_LOOKUP_H

#include "cairn/err.h"

#include <sys/socket.h>

struct cairn_lookup;

/*
 * Looks up "host:port" among the addresses of one family (AF_INET, AF_INET6) in a thread of its
 * own, which ends with the answer. CAIRN_NOMEM, also if no thread is available. On success the
 * caller ends *out with cairn_lookup_end.
 */
CAIRN_MUST_CHECK cairn_err cairn_lookup_start(const char *text, int family,
                                              struct cairn_lookup **out);

/* CAIRN_AGAIN: no answer yet; CAIRN_NOT_FOUND: the name has no such address. Does not block. */
CAIRN_MUST_CHECK cairn_err cairn_lookup_result(const struct cairn_lookup *lookup,
                                               struct sockaddr_storage *out);

/* Abandons it: a thread that still waits for the name service ends by itself. NULL is allowed. */
void cairn_lookup_end(struct cairn_lookup *lookup);

#endif
