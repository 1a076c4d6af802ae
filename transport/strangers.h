/*
 * transport/strangers.h - which addresses are ignored for a while: those whose connections have
 * cost much and proved no key.
 *
 * An address is due once its connections that ended unproved have cost CAIRN_STRANGERS_COST_NS of
 * processor time within a second. The caller then has it ignored for CAIRN_STRANGERS_IGNORED_S, or
 * not, since it is a peer's: only the caller knows those. Cost counts, not the number of failures:
 * an answer with an RSA certificate costs a hundred times as much as a refusal.
 *
 * CAIRN_STRANGERS_MAX addresses are remembered. A new one takes the place of the address that
 * failed longest ago and is not ignored; if all are ignored, nothing is counted for it.
 *
 * IPv4 addresses are mapped into IPv6. Pure: no clock, no sockets. Thread: any.
 */
#ifndef CAIRN_TRANSPORT_STRANGERS_H
#define CAIRN_TRANSPORT_STRANGERS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    CAIRN_STRANGERS_MAX = 64,
    CAIRN_STRANGERS_COST_NS = 5000000, /* in a second: half a percent of a core */
    CAIRN_STRANGERS_IGNORED_S = 10
};

struct cairn_stranger {
    struct in6_addr address;
    uint64_t begun_ns; /* of the second in which it has cost cost_ns */
    uint64_t cost_ns;
    uint64_t failed_ns; /* the last time */
    uint64_t until_ns;  /* ignored until then; 0: it is not */
    bool logged;        /* that it is ignored */
};

/* All zero: none are known. */
struct cairn_strangers {
    struct cairn_stranger list[CAIRN_STRANGERS_MAX];
    uint32_t count;
    uint32_t ignored; /* of them */
};

/* A connection of this address has ended unproved. True: the address is due, and its cost counts
 * from 0 again. */
bool cairn_strangers_failed(struct cairn_strangers *strangers, const struct in6_addr *address,
                            uint64_t cost_ns, uint64_t now_ns);

/* Has an address ignored that is due. True: log it. It was not ignored in the last minute. */
bool cairn_strangers_ignore(struct cairn_strangers *strangers, const struct in6_addr *address,
                            uint64_t now_ns);

bool cairn_strangers_ignores(const struct cairn_strangers *strangers,
                             const struct in6_addr *address);

/* Forgets an address, which is a peer's. True: it was ignored. */
bool cairn_strangers_forget(struct cairn_strangers *strangers, const struct in6_addr *address);

/* Ends what has lasted long enough. True: some address is no longer ignored. */
bool cairn_strangers_expire(struct cairn_strangers *strangers, uint64_t now_ns);

/* The addresses that are ignored; their number. */
uint32_t cairn_strangers_list(const struct cairn_strangers *strangers,
                              struct in6_addr out[CAIRN_STRANGERS_MAX]);

#endif
