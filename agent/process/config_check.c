/* agent/process/config_check.c - the rules between options, and those for addresses and names. */
#include "agent/process/config.h"

#include "snapshot/spill.h"
#include "transport/identity.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WHY_BYTES = 512 };

static bool
is_name(const char *text)
{
    return text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789._-")] == '\0';
}

/* Cuts "host:port" or "[v6]:port" into host[CAIRN_CONFIG_ADDRESS_BYTES_MAX]. False for other
 * text. */
static bool
cut_address(const char *address, char *host)
{
    const char *colon = strrchr(address, ':');
    struct in6_addr v6;
    size_t host_len, digits;

    if (!colon)
        return false;
    host_len = (size_t)(colon - address);
    digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] || colon[1] == '0' ||
        atol(colon + 1) > 65535)
        return false;
    if (address[0] == '[') {
        if (host_len < 3 || address[host_len - 1] != ']')
            return false;
        memcpy(host, address + 1, host_len - 2);
        host[host_len - 2] = '\0';
        return inet_pton(AF_INET6, host, &v6) == 1;
    }
    memcpy(host, address, host_len);
    host[host_len] = '\0';
    return host_len > 0 && is_name(host);
}

static bool
is_loopback(const char *address)
{
    char host[CAIRN_CONFIG_ADDRESS_BYTES_MAX];
    struct in6_addr v6;
    struct in_addr v4;

    if (!cut_address(address, host))
        return false;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1)
        return IN6_IS_ADDR_LOOPBACK(&v6);
    return strcasecmp(host, "localhost") == 0;
}

bool
cairn_config_on_loopback(const struct cairn_config *config)
{
    for (uint32_t i = 0; i < config->node_count; i++)
        if (!is_loopback(config->nodes[i].address))
            return false;
    return true;
}

bool
cairn_config_has_credentials(const struct cairn_config *config)
{
    return config->key_file[0] || config->certificate_file[0];
}

enum cairn_config_protection
cairn_config_protection(const struct cairn_config *config)
{
    if (config->protection != CAIRN_CONFIG_PROTECTION_AUTO)
        return (enum cairn_config_protection)config->protection;
    return config->network_is_closed || !cairn_config_has_credentials(config) ||
                   cairn_config_on_loopback(config)
               ? CAIRN_CONFIG_PROTECTION_NONE
               : CAIRN_CONFIG_PROTECTION_AUTHENTICATE;
}

static int
by_address(const void *a, const void *b)
{
    const struct cairn_config_node *left = *(const struct cairn_config_node *const *)a;
    const struct cairn_config_node *right = *(const struct cairn_config_node *const *)b;

    return strcasecmp(left->address, right->address);
}

/* Finds two nodes with one address: *line and why[WHY_BYTES] name them. */
static cairn_err
check_distinct(const struct cairn_config *config, uint32_t *line, char *why)
{
    const struct cairn_config_node **sorted = malloc(config->node_count * sizeof *sorted);
    cairn_err err = CAIRN_OK;

    if (!sorted) {
        snprintf(why, WHY_BYTES, "out of memory; free some and try again");
        return CAIRN_NOMEM;
    }
    for (uint32_t i = 0; i < config->node_count; i++)
        sorted[i] = &config->nodes[i];
    qsort(sorted, config->node_count, sizeof *sorted, by_address);
    for (uint32_t i = 1; i < config->node_count && !err; i++)
        if (by_address(&sorted[i - 1], &sorted[i]) == 0) {
            uint32_t first = (uint32_t)(sorted[i - 1] - config->nodes);
            uint32_t second = (uint32_t)(sorted[i] - config->nodes);

            *line = config->nodes[first > second ? first : second].line;
            snprintf(why, WHY_BYTES,
                     "nodes: %u and %u have the same address %s, but each agent needs its own; "
                     "give one of them another port or host",
                     first < second ? first : second, first < second ? second : first,
                     sorted[i]->address);
            err = CAIRN_CONFIG;
        }
    free(sorted);
    return err;
}

static cairn_err
check_nodes(const struct cairn_config *config, uint32_t *line, char *why)
{
    char host[CAIRN_CONFIG_ADDRESS_BYTES_MAX];

    *line = cairn_config_line(config, "nodes");
    if (config->node_count == 0 || config->node_count > CAIRN_NODES_MAX || !config->nodes) {
        snprintf(why, WHY_BYTES, "nodes: %u are listed, but a job has 1 to %d; list them",
                 config->node_count, CAIRN_NODES_MAX);
        return CAIRN_CONFIG;
    }
    for (uint32_t i = 0; i < config->node_count; i++) {
        const struct cairn_config_node *node = &config->nodes[i];

        *line = node->line;
        if (!cut_address(node->address, host)) {
            snprintf(why, WHY_BYTES,
                     "nodes: the address \"%.64s\" of node %u is not host:port; write it as "
                     "node1:7431, 10.0.0.1:7431 or \"[fd00::1]:7431\", with a port from 1 to 65535",
                     node->address, i);
            return CAIRN_CONFIG;
        }
        if (!is_name(node->domain)) {
            snprintf(why, WHY_BYTES,
                     "nodes: the domain \"%.64s\" of node %u is not a plain name; use only "
                     "letters, digits and . _ -",
                     node->domain, i);
            return CAIRN_CONFIG;
        }
    }
    return check_distinct(config, line, why);
}

static cairn_err
check_group(const struct cairn_config *config, uint32_t *line, char *why)
{
    uint32_t active_count = cairn_config_active_count(config);

    *line = cairn_config_line(config, "node");
    if (config->node >= config->node_count) {
        snprintf(why, WHY_BYTES,
                 "node: is %u, but nodes lists %u, numbered 0 to %u; fix the number or the list",
                 config->node, config->node_count, config->node_count - 1);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "nodes");
    if (active_count == 0) {
        snprintf(why, WHY_BYTES,
                 "nodes: every node is a spare, so none trains; set spare: false on some");
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "parity");
    if (config->parity >= active_count) {
        snprintf(why, WHY_BYTES,
                 "parity: is %u, but %u active nodes can stand the loss of at most %u; lower it to "
                 "that or add nodes",
                 config->parity, active_count, active_count - 1);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "group_size");
    if (config->group_size && config->group_size <= config->parity) {
        snprintf(why, WHY_BYTES,
                 "group_size: is %u, but a group of parity %u has at least %u nodes; raise it, or "
                 "lower parity",
                 config->group_size, config->parity, config->parity + 1);
        return CAIRN_CONFIG;
    }
    if (config->group_size > active_count) {
        snprintf(why, WHY_BYTES,
                 "group_size: is %u, but there are %u active nodes; lower it, or set 0 to have it "
                 "chosen",
                 config->group_size, active_count);
        return CAIRN_CONFIG;
    }
    return CAIRN_OK;
}

/* The four options of a certificate. */
static cairn_err
check_certificate(const struct cairn_config *config, uint32_t *line, char *why)
{
    const struct {
        const char *option, *value;
    } parts[] = {{"certificate_file", config->certificate_file},
                 {"private_key_file", config->private_key_file},
                 {"ca_file", config->ca_file},
                 {"identity", config->identity}};
    const size_t part_count = sizeof parts / sizeof *parts;
    const char *set = NULL, *missing = NULL;
    char wrong[WHY_BYTES / 2];

    for (size_t i = 0; i < part_count; i++) {
        if (parts[i].value[0])
            set = parts[i].option;
        else
            missing = parts[i].option;
    }
    if (!set)
        return CAIRN_OK;
    *line = cairn_config_line(config, set);
    if (missing) {
        snprintf(why, WHY_BYTES,
                 "%s: is set and %s is not; set certificate_file, private_key_file, ca_file and "
                 "identity together",
                 set, missing);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "identity");
    if (cairn_identity_check(config->identity, config->job, wrong, sizeof wrong) != CAIRN_OK) {
        snprintf(why, WHY_BYTES, "identity: is \"%.100s\": %s", config->identity, wrong);
        return CAIRN_CONFIG;
    }
    return CAIRN_OK;
}

static cairn_err
check_wire(const struct cairn_config *config, uint32_t *line, char *why)
{
    enum cairn_config_protection protection = cairn_config_protection(config);
    bool is_tcp = strcmp(config->provider, "tcp") == 0;

    *line = cairn_config_line(config, "nodes");
    if (!cairn_config_has_credentials(config) && !cairn_config_on_loopback(config)) {
        snprintf(why, WHY_BYTES,
                 "nodes: reached off loopback without a key, so anyone on the network could read "
                 "and change the job's state; make one with \"openssl rand -out job.key 32\", "
                 "chmod 600 it, copy it to every node and set key_file, or use certificates");
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "provider");
    if (!is_tcp && !config->network_is_closed) {
        snprintf(why, WHY_BYTES,
                 "provider: is %s, and libfabric reads frames of anyone who can reach it; use tcp, "
                 "or set network_is_closed to true if nobody else can",
                 config->provider);
        return CAIRN_CONFIG;
    }
    if (!is_tcp && !cairn_config_has_credentials(config)) {
        snprintf(why, WHY_BYTES,
                 "provider: is %s, which opens an agent's memory by keys sent in TLS, and TLS "
                 "needs a key; set key_file or certificates, or use tcp",
                 config->provider);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "protection");
    if (protection == CAIRN_CONFIG_PROTECTION_NONE && !config->network_is_closed &&
        !cairn_config_on_loopback(config)) {
        snprintf(why, WHY_BYTES,
                 "protection: is none off loopback; use authenticate or encrypt, or set "
                 "network_is_closed to true if nobody else can reach the network");
        return CAIRN_CONFIG;
    }
    if (protection == CAIRN_CONFIG_PROTECTION_NONE && strncmp(config->provider, "shm", 3) == 0) {
        snprintf(why, WHY_BYTES,
                 "protection: is none, which misses that provider shm reports some bytes too "
                 "early; set protection to authenticate, or use tcp");
        return CAIRN_CONFIG;
    }
    if (protection != CAIRN_CONFIG_PROTECTION_NONE && !cairn_config_has_credentials(config)) {
        snprintf(why, WHY_BYTES,
                 "protection: needs a key or a certificate; set key_file or certificate_file, or "
                 "set protection to none");
        return CAIRN_CONFIG;
    }
    if (protection == CAIRN_CONFIG_PROTECTION_ENCRYPT && !is_tcp) {
        snprintf(
            why, WHY_BYTES,
            "protection: encrypt needs provider tcp; use it, or set protection to authenticate");
        return CAIRN_CONFIG;
    }
    return CAIRN_OK;
}

static cairn_err
check_rest(const struct cairn_config *config, uint32_t *line, char *why)
{
    struct cairn_spill_keep keep;

    *line = cairn_config_line(config, "job");
    if (!config->job[0] || !is_name(config->job)) {
        snprintf(why, WHY_BYTES,
                 "job: is \"%s\", not a plain name; use only letters, digits and . _ -",
                 config->job);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "dead_after_ms");
    if (!*line) /* the default, too short for the other */
        *line = cairn_config_line(config, "heartbeat_interval_ms");
    if (config->dead_after_ms / 2 < config->heartbeat_interval_ms) {
        snprintf(why, WHY_BYTES,
                 "dead_after_ms: is %u, but one late heartbeat of %u ms must not kill a node; set "
                 "it to at least %u",
                 config->dead_after_ms, config->heartbeat_interval_ms,
                 2 * config->heartbeat_interval_ms);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "spill_every_generations");
    if (config->spill_every_generations && !config->spill_dir[0]) {
        snprintf(why, WHY_BYTES,
                 "spill_every_generations: is %u, but there is nowhere to spill to; set spill_dir",
                 config->spill_every_generations);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "spill_keep");
    if (cairn_spill_keep_parse(config->spill_keep, &keep) != CAIRN_OK) {
        snprintf(why, WHY_BYTES,
                 "spill_keep: is \"%s\", not a rule; write one such as last=2,hourly=24,daily=7, "
                 "with numbers up to 1000 and at least last=1",
                 config->spill_keep);
        return CAIRN_CONFIG;
    }
    *line = cairn_config_line(config, "verdict_policy");
    if (config->verdict_policy == CAIRN_CONFIG_ENFORCE && config->enforce_command.count == 0) {
        snprintf(why, WHY_BYTES,
                 "verdict_policy: is enforce, but there is nothing to run; set enforce_command to "
                 "a program that takes ranks' nodes out of the cluster's use, or verdict_policy to "
                 "advise");
        return CAIRN_CONFIG;
    }
    if (check_certificate(config, line, why) != CAIRN_OK)
        return CAIRN_CONFIG;
    return check_wire(config, line, why);
}

cairn_err
cairn_config_check(const struct cairn_config *config, char *error, size_t error_bytes)
{
    const char *source = config->source[0] ? config->source : "configuration";
    char why[WHY_BYTES];
    uint32_t line = 0;
    cairn_err err;

    err = check_nodes(config, &line, why);
    if (!err)
        err = check_group(config, &line, why);
    if (!err)
        err = check_rest(config, &line, why);
    if (err && line)
        snprintf(error, error_bytes, "%s:%u: %s", source, line, why);
    else if (err)
        snprintf(error, error_bytes, "%s: %s", source, why);
    return err;
}
