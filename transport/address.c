/* transport/address.c - see address.h. */
#include "transport/address.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_BYTES = 256, PORT_BYTES = 6 };

/* Cuts "host:port" at its last colon; brackets around the host are taken off. */
static bool
address_split(const char *text, char host[HOST_BYTES], char port[PORT_BYTES])
{
    const char *colon = strrchr(text, ':');
    size_t host_len = colon ? (size_t)(colon - text) : 0;
    char *end;
    unsigned long number;

    if (!colon || host_len == 0 || host_len >= HOST_BYTES || strlen(colon + 1) >= PORT_BYTES ||
        colon[1] < '0' || colon[1] > '9')
        return false;
    number = strtoul(colon + 1, &end, 10);
    if (*end || number == 0 || number > 65535)
        return false;
    if (text[0] == '[') {
        if (text[host_len - 1] != ']' || host_len < 3)
            return false;
        text++;
        host_len -= 2;
    } else if (memchr(text, ':', host_len)) {
        return false; /* an IPv6 address without brackets */
    }
    memcpy(host, text, host_len);
    host[host_len] = '\0';
    memcpy(port, colon + 1, strlen(colon + 1) + 1);
    return true;
}

static bool
host_is_name(const char *host)
{
    struct in_addr v4;
    char number[HOST_BYTES];
    struct in6_addr v6;

    /* in fe80::1%eth0 the scope follows the address */
    snprintf(number, sizeof number, "%.*s", (int)strcspn(host, "%"), host);
    return inet_pton(AF_INET, host, &v4) != 1 && inet_pton(AF_INET6, number, &v6) != 1;
}

bool
cairn_address_is_name(const char *text)
{
    char host[HOST_BYTES];
    char port[PORT_BYTES];

    return address_split(text, host, port) && host_is_name(host);
}

cairn_err
cairn_address_resolve(const char *text, int family, struct sockaddr_storage *out, const char **why)
{
    struct addrinfo hints = {
        .ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[HOST_BYTES];
    char port[PORT_BYTES];
    int code;

    if (!address_split(text, host, port)) {
        *why = "it is not an address; write host:port or [v6]:port";
        return CAIRN_CONFIG;
    }
    code = getaddrinfo(host, port, &hints, &found);
    if (code || !found || found->ai_addrlen > sizeof *out) {
        *why = code ? gai_strerror(code) : "no address";
        if (found)
            freeaddrinfo(found);
        return host_is_name(host) ? CAIRN_NOT_FOUND : CAIRN_CONFIG;
    }
    memset(out, 0, sizeof *out);
    memcpy(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return CAIRN_OK;
}

cairn_err
cairn_address_parse(const char *text, struct sockaddr_storage *out)
{
    const char *why = "";
    cairn_err err = cairn_address_resolve(text, AF_UNSPEC, out, &why);

    if (!err)
        return CAIRN_OK;
    CAIRN_LOG_AT(ERROR, "transport: cannot resolve \"%s\": %s", text, why);
    return CAIRN_CONFIG;
}

bool
cairn_address_is_loopback(const struct sockaddr_storage *address)
{
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;

    if (address->ss_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    memcpy(&v6, address, sizeof v6);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

void
cairn_address_ip(const struct sockaddr_storage *address, struct in6_addr *out)
{
    *out = (struct in6_addr){{{0}}};
    if (address->ss_family == AF_INET6) {
        *out = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    } else if (address->ss_family == AF_INET) {
        out->s6_addr[10] = out->s6_addr[11] = 0xff;
        memcpy(out->s6_addr + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr,
               4);
    }
}

uint16_t
cairn_address_port(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                     : ((const struct sockaddr_in *)(const void *)address)->sin_port);
}

void
cairn_address_set_port(struct sockaddr_storage *address, uint16_t port)
{
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
}

socklen_t
cairn_address_len(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}
