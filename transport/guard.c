/* transport/guard.c - see guard.h. */
#include "transport/guard.h"

#include "transport/address.h"
#include "transport/keys.h"
#include "transport/ports.h"
#include "transport/sink.h"
#include "transport/strangers.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdlib.h>

enum { ADDRESS_TEXT_BYTES = 64 };

_Static_assert((int)CAIRN_STRANGERS_MAX <= (int)CAIRN_SINK_ADDRESSES_MAX,
               "the kernel can ignore all that are ignored");

static const uint64_t refused_logged_every_ns = 10000000000;

struct cairn_guard {
    const struct cairn_names *names;
    const struct cairn_tls *tls; /* NULL: neither keys nor certificates */
    uint32_t node, node_count;
    struct in6_addr *sources; /* [node_count], from which each was proved last; 0: never */
    struct cairn_strangers strangers;
    struct cairn_ports ports[CAIRN_KEYS_MAX]; /* from which holders of our keys call us */
    uint32_t ports_count;
    bool all_keyed; /* every peer calls from these ports, if one is free */
    struct cairn_sink sink;
    uint64_t refused, refused_logged_ns;
    uint64_t shut; /* ignored connections that were queued, or that the kernel cannot drop */
};

static void
address_text(const struct in6_addr *address, char out[ADDRESS_TEXT_BYTES])
{
    bool v4 = IN6_IS_ADDR_V4MAPPED(address);

    if (!inet_ntop(v4 ? AF_INET : AF_INET6, address->s6_addr + (v4 ? 12 : 0), out,
                   ADDRESS_TEXT_BYTES))
        out[0] = '\0';
}

/* Whether this port is one that holders of our keys call from. */
static bool
is_keyed(const struct cairn_guard *guard, const struct sockaddr_storage *address)
{
    for (uint32_t i = 0; i < guard->ports_count; i++)
        if (cairn_ports_has(&guard->ports[i], cairn_address_port(address)))
            return true;
    return false;
}

/* Whether connections from this address may be a peer's. */
static bool
is_peers(const struct cairn_guard *guard, const struct in6_addr *source)
{
    for (uint32_t i = 0; i < guard->node_count; i++) {
        struct in6_addr address;

        if (i == guard->node)
            continue;
        cairn_address_ip(cairn_names_address(guard->names, i), &address);
        if (IN6_ARE_ADDR_EQUAL(source, &address) || IN6_ARE_ADDR_EQUAL(source, &guard->sources[i]))
            return true;
    }
    return false;
}

static void
ignored_changed(struct cairn_guard *guard)
{
    struct in6_addr ignored[CAIRN_STRANGERS_MAX];
    uint32_t count = cairn_strangers_list(&guard->strangers, ignored);

    (void)!cairn_sink_set(&guard->sink, ignored, count);
}

/* Ignores no address of a peer any more. */
static void
peers_forget(struct cairn_guard *guard)
{
    struct in6_addr ignored[CAIRN_STRANGERS_MAX];
    uint32_t count = cairn_strangers_list(&guard->strangers, ignored);

    for (uint32_t i = 0; i < count; i++)
        if (is_peers(guard, &ignored[i]))
            (void)cairn_strangers_forget(&guard->strangers, &ignored[i]);
}

/* The address turns out to be a peer's. */
static void
peers_address(struct cairn_guard *guard, const struct in6_addr *address)
{
    if (cairn_strangers_forget(&guard->strangers, address))
        ignored_changed(guard);
}

void
cairn_guard_destroy(struct cairn_guard *guard)
{
    if (!guard)
        return;
    cairn_sink_close(&guard->sink);
    free(guard->sources);
    free(guard);
}

cairn_err
cairn_guard_create(const struct cairn_names *names, uint32_t node, uint32_t node_count,
                   const struct cairn_tls *tls, int listener, struct cairn_guard **out)
{
    struct cairn_guard *guard = calloc(1, sizeof *guard);
    struct in6_addr *sources = calloc(node_count, sizeof *sources);

    if (!guard || !sources) {
        free(guard);
        free(sources);
        return CAIRN_NOMEM;
    }
    guard->names = names;
    guard->tls = tls;
    guard->node = node;
    guard->node_count = node_count;
    guard->sources = sources;
    cairn_sink_init(&guard->sink, listener);
    cairn_guard_rekeyed(guard);
    *out = guard;
    return CAIRN_OK;
}

void
cairn_guard_rekeyed(struct cairn_guard *guard)
{
    guard->ports_count = 0;
    for (uint32_t i = 0; guard->tls && i < CAIRN_KEYS_MAX; i++)
        if (cairn_tls_ports(guard->tls, i, guard->node, &guard->ports[guard->ports_count]))
            guard->ports_count++;
    guard->all_keyed = guard->ports_count > 0 && !cairn_tls_is_certified(guard->tls);
    if (!guard->all_keyed)
        peers_forget(guard);
    cairn_sink_spare(&guard->sink, guard->ports, guard->ports_count);
    ignored_changed(guard);
}

bool
cairn_guard_ignores(struct cairn_guard *guard, const struct sockaddr_storage *address)
{
    struct in6_addr source;

    cairn_address_ip(address, &source);
    if (!cairn_strangers_ignores(&guard->strangers, &source) || is_keyed(guard, address))
        return false;
    guard->shut++;
    return true;
}

void
cairn_guard_refused(struct cairn_guard *guard, const struct in6_addr *source, const char *why,
                    uint64_t cost_ns, uint64_t now_ns)
{
    char address[ADDRESS_TEXT_BYTES];

    guard->refused++;
    if (!guard->refused_logged_ns || now_ns - guard->refused_logged_ns >= refused_logged_every_ns) {
        guard->refused_logged_ns = now_ns;
        address_text(source, address);
        CAIRN_LOG_AT(
            WARN, "transport: refused a connection from %s: %s (%" PRIu64 " refused since start)",
            address, why, guard->refused);
    }
    if (!cairn_strangers_failed(&guard->strangers, source, cost_ns, now_ns) ||
        (!guard->all_keyed && is_peers(guard, source)))
        return;
    address_text(source, address);
    if (cairn_strangers_ignore(&guard->strangers, source, now_ns))
        CAIRN_LOG_AT(WARN,
                     "transport: connections from %s are ignored, %d s at a time: within a second "
                     "they took %d ms of processor and proved no key or certificate; find out who "
                     "runs there%s",
                     address, CAIRN_STRANGERS_IGNORED_S, CAIRN_STRANGERS_COST_NS / 1000000,
                     is_peers(guard, source) ? "; the agent there is heard all the same" : "");
    ignored_changed(guard);
}

void
cairn_guard_proved(struct cairn_guard *guard, uint32_t node, const struct in6_addr *source)
{
    guard->sources[node] = *source;
    peers_address(guard, source);
}

void
cairn_guard_moved(struct cairn_guard *guard, uint32_t node)
{
    struct in6_addr address;

    cairn_address_ip(cairn_names_address(guard->names, node), &address);
    peers_address(guard, &address);
}

bool
cairn_guard_turn(struct cairn_guard *guard, uint64_t now_ns)
{
    if (cairn_strangers_expire(&guard->strangers, now_ns))
        ignored_changed(guard);
    return guard->strangers.ignored > 0;
}

void
cairn_guard_count(const struct cairn_guard *guard, struct cairn_transport_stats *out)
{
    out->refused_connections = guard->refused;
    out->ignored_connections = guard->shut + cairn_sink_dropped(&guard->sink);
    out->ignored_addresses = guard->strangers.ignored;
}
