/*
 * transport/address.h - "host:port" and "[v6]:port" as socket addresses.
 */
#ifndef CAIRN_TRANSPORT_ADDRESS_H
#define CAIRN_TRANSPORT_ADDRESS_H

#include "cairn/err.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

/*
 * Resolves the address of an IPv4 or IPv6 host; may block on the name service. The port is 1 …
 * 65535. CAIRN_CONFIG, logged. Thread: any.
 */
CAIRN_MUST_CHECK cairn_err cairn_address_parse(const char *text, struct sockaddr_storage *out);

/*
 * The same among the addresses of one family, AF_UNSPEC for any, without a log line.
 * CAIRN_NOT_FOUND: the name has none, at least for now; CAIRN_CONFIG: it can never have one:
 * malformed, or a number of the other family. *why is the reason, static.
 */
CAIRN_MUST_CHECK cairn_err cairn_address_resolve(const char *text, int family,
                                                 struct sockaddr_storage *out, const char **why);

/* Whether the host is a name, whose address may change. */
bool cairn_address_is_name(const char *text);

/* Whether only this machine can reach it. */
bool cairn_address_is_loopback(const struct sockaddr_storage *address);

/* The address without its port, IPv4 mapped into IPv6; :: if it is unknown. */
void cairn_address_ip(const struct sockaddr_storage *address, struct in6_addr *out);

uint16_t cairn_address_port(const struct sockaddr_storage *address);
void cairn_address_set_port(struct sockaddr_storage *address, uint16_t port);

/* The length of the struct inside. */
socklen_t cairn_address_len(const struct sockaddr_storage *address);

#endif
