/*
 * transport/names.h - where the nodes of a job are.
 *
 * A node that is gone may lose its name (a pod, a host that is being replaced), and return under
 * another address. So a peer whose name does not resolve is only unreachable for now; the names of
 * peers that were lost or not reached are looked up again, one at a time, in the background.
 * Thread: the one that opened it.
 */
#ifndef CAIRN_TRANSPORT_NAMES_H
#define CAIRN_TRANSPORT_NAMES_H

#include "transport/transport.h"

#include <sys/socket.h>

struct cairn_names;

/*
 * Finds the addresses of all nodes in the options, which are borrowed for the call. Errors and log
 * lines as cairn_transport_open. On success the caller ends *out with cairn_names_destroy.
 */
CAIRN_MUST_CHECK cairn_err cairn_names_create(const struct cairn_transport_options *options,
                                              struct cairn_names **out);
void cairn_names_destroy(struct cairn_names *names); /* NULL is allowed */

/* The node's address; ss_family is AF_UNSPEC while its name has none. */
const struct sockaddr_storage *cairn_names_address(const struct cairn_names *names, uint32_t node);

/* The node was lost or not reached: asks for its name again, if it has one. */
void cairn_names_ask(struct cairn_names *names, uint32_t node);

/* Takes answers. True: *node has another address than before. */
bool cairn_names_turn(struct cairn_names *names, uint32_t *node);

/*
 * The node is at this address from now on: a number counts at once, a name is looked up in the
 * background; *at_once tells which. CAIRN_CONFIG: malformed, or of another family than this node's;
 * CAIRN_NOMEM.
 */
CAIRN_MUST_CHECK cairn_err cairn_names_readdress(struct cairn_names *names, uint32_t node,
                                                 const char *address, bool *at_once);

#endif
