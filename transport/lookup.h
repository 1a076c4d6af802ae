/*
 * transport/lookup.h - a host's address, asked for in the background: the name service may take
 * many seconds, and the loop that sends heartbeats must not wait for it.
 */
#ifndef CAIRN_TRANSPORT_LOOKUP_H
#define CAIRN_TRANSPORT_LOOKUP_H

#include "cairn/err.h"

#include <sys/socket.h>

struct cairn_lookup;

/*
 * Asks for "host:port" among the addresses of one family (AF_INET, AF_INET6) in a thread of its
 * own, which ends with the answer. CAIRN_NOMEM, also where no thread can be had. On success the
 * caller ends *out with cairn_lookup_end.
 */
CAIRN_MUST_CHECK cairn_err cairn_lookup_start(const char *text, int family,
                                              struct cairn_lookup **out);

/* CAIRN_AGAIN while there is no answer; CAIRN_NOT_FOUND: the name has no such address. Does not
 * block. */
CAIRN_MUST_CHECK cairn_err cairn_lookup_result(const struct cairn_lookup *lookup,
                                               struct sockaddr_storage *out);

/* Gives it up: a thread that still waits for the name service ends by itself. NULL is allowed. */
void cairn_lookup_end(struct cairn_lookup *lookup);

#endif
