/* transport/names.c - see names.h. */
#include "transport/names.h"

#include "transport/address.h"
#include "transport/lookup.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct place {
    struct sockaddr_storage address;
    char *name; /* NULL where the address is a number */
    bool ask;   /* the name must be asked for again */
};

struct cairn_names {
    uint32_t node; /* of this agent */
    uint32_t node_count;
    struct place *places;        /* [node_count] */
    bool asking;                 /* some place has `ask` */
    struct cairn_lookup *lookup; /* of node `looked_up`, NULL: none runs */
    uint32_t looked_up;
};

const struct sockaddr_storage *
cairn_names_address(const struct cairn_names *names, uint32_t node)
{
    return &names->places[node].address;
}

void
cairn_names_ask(struct cairn_names *names, uint32_t node)
{
    if (names->places[node].name)
        names->places[node].ask = names->asking = true;
}

static bool
answer_take(struct cairn_names *names)
{
    struct place *place = &names->places[names->looked_up];
    struct sockaddr_storage address;
    cairn_err err = cairn_lookup_result(names->lookup, &address);

    if (err == CAIRN_AGAIN)
        return false;
    cairn_lookup_end(names->lookup);
    names->lookup = NULL;
    if (err || memcmp(&address, &place->address, sizeof address) == 0)
        return false;
    CAIRN_LOG_AT(INFO, "transport: %s has another address now node=%" PRIu32, place->name,
                 names->looked_up);
    place->address = address;
    return true;
}

static void
next_ask(struct cairn_names *names)
{
    for (uint32_t i = 1; i <= names->node_count; i++) {
        uint32_t next = (names->looked_up + i) % names->node_count;
        struct place *place = &names->places[next];

        if (!place->ask)
            continue;
        place->ask = false;
        names->looked_up = next;
        if (cairn_lookup_start(place->name, names->places[names->node].address.ss_family,
                               &names->lookup) != CAIRN_OK)
            names->lookup = NULL; /* the peer's next failure asks again */
        return;
    }
    names->asking = false;
}

bool
cairn_names_turn(struct cairn_names *names, uint32_t *node)
{
    bool moved = names->lookup && answer_take(names);

    *node = names->looked_up;
    if (!names->lookup && names->asking)
        next_ask(names);
    return moved;
}

cairn_err
cairn_names_readdress(struct cairn_names *names, uint32_t node, const char *address, bool *at_once)
{
    struct place *place = &names->places[node];
    struct sockaddr_storage found = {0};
    bool is_name = cairn_address_is_name(address);
    char *name = is_name ? strdup(address) : NULL;
    const char *why;

    if (is_name && !name)
        return CAIRN_NOMEM;
    if (!is_name && cairn_address_resolve(address, names->places[names->node].address.ss_family,
                                          &found, &why) != CAIRN_OK) {
        CAIRN_LOG_AT(ERROR, "transport: cannot use \"%s\" for node=%" PRIu32 ": %s", address, node,
                     why);
        return CAIRN_CONFIG;
    }
    free(place->name);
    place->name = name;
    place->ask = is_name;
    names->asking |= is_name;
    if (names->lookup && names->looked_up == node) { /* it asks for the old name */
        cairn_lookup_end(names->lookup);
        names->lookup = NULL;
        names->asking = true;
    }
    if (!is_name)
        place->address = found;
    *at_once = !is_name;
    return CAIRN_OK;
}

/* A peer's address, of this node's family; a name without one leaves it empty, to be asked for
 * again. */
static cairn_err
peer_find(struct cairn_names *names, uint32_t node, const struct cairn_transport_options *options)
{
    const char *text = options->addresses[node], *why = "";
    struct place *place = &names->places[node];
    int family = names->places[names->node].address.ss_family;
    struct sockaddr_storage other;
    cairn_err err;

    if (cairn_address_is_name(text) && !(place->name = strdup(text)))
        return CAIRN_NOMEM;
    err = cairn_address_resolve(text, family, &place->address, &why);
    if (!err)
        return CAIRN_OK;
    if (err == CAIRN_CONFIG && cairn_address_resolve(text, AF_UNSPEC, &other, &why) == CAIRN_OK) {
        CAIRN_LOG_AT(ERROR,
                     "transport: %s and %s differ in family; give all nodes IPv4, or all IPv6",
                     text, options->bind_address);
        return CAIRN_CONFIG;
    }
    if (err == CAIRN_CONFIG) {
        CAIRN_LOG_AT(ERROR, "transport: cannot resolve \"%s\": %s", text, why);
        return err;
    }
    CAIRN_LOG_AT(
        WARN,
        "transport: cannot resolve \"%s\" node=%" PRIu32
        ": %s: this node cannot be reached until it has an %s address; the name is looked up again",
        text, node, why, family == AF_INET6 ? "IPv6" : "IPv4");
    return CAIRN_OK;
}

cairn_err
cairn_names_create(const struct cairn_transport_options *options, struct cairn_names **out)
{
    struct cairn_names *names = calloc(1, sizeof *names);
    cairn_err err = CAIRN_NOMEM;

    if (!names)
        return err;
    names->node = options->node;
    names->node_count = options->node_count;
    names->places = calloc(options->node_count, sizeof *names->places);
    if (!names->places)
        goto done;
    err = cairn_address_parse(options->bind_address, &names->places[names->node].address);
    if (err)
        goto done;
    if (!options->key && !options->certificate &&
        !cairn_address_is_loopback(&names->places[names->node].address)) {
        CAIRN_LOG_AT(ERROR,
                     "transport: refusing to listen on %s without a key or a certificate; give the "
                     "job one, or listen on loopback",
                     options->bind_address);
        err = CAIRN_DENIED;
        goto done;
    }
    for (uint32_t i = 0; i < names->node_count && !err; i++)
        if (i != names->node)
            err = peer_find(names, i, options);
    if (err)
        goto done;
    *out = names;
    names = NULL;
done:
    cairn_names_destroy(names);
    return err;
}

void
cairn_names_destroy(struct cairn_names *names)
{
    if (!names)
        return;
    cairn_lookup_end(names->lookup);
    for (uint32_t i = 0; names->places && i < names->node_count; i++)
        free(names->places[i].name);
    free(names->places);
    free(names);
}
