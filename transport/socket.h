/*
 * transport/socket.h - TCP sockets of the backend `tcp`, and from which address and port a node
 * calls another. Nothing blocks. Thread: any.
 */
#ifndef CAIRN_TRANSPORT_SOCKET_H
#define CAIRN_TRANSPORT_SOCKET_H

#include "transport/ports.h"

#include <sys/socket.h>

/* A socket for an address of this family, which does not delay what is sent. The caller closes it.
 * -1: errno is the reason. */
int cairn_socket_make(const struct sockaddr_storage *address);

/*
 * A socket that connects to an address from this node's own: others may check the source of a call.
 * From one of these ports (NULL: any), in the system's own range for callers, beginning at *place,
 * which moves on with each one that is tried; from any port if none is free. The caller closes it.
 * -1: errno is the reason.
 */
int cairn_socket_call(const struct sockaddr_storage *own, const struct cairn_ports *ports,
                      uint32_t *place, const struct sockaddr_storage *to);

#endif
