/* agent/process/fleet.c - see fleet.h. */
#include "agent/process/fleet.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "base/log.h"
#include "base/wire.h"
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FLEET_VERSION = 1, EXIT_CONFIG = 78 };

static void
write_changes(const struct cairn_config *config, const struct cairn_fleet_change *change,
              struct cairn_writer *writer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < config->node_count; i++)
        count +=
            config->nodes[i].replaced || config->nodes[i].removed || (change && change->node == i);
    cairn_write_u32(writer, FLEET_VERSION);
    cairn_write_u32(writer, count);
    for (uint32_t i = 0; i < config->node_count; i++) {
        const struct cairn_config_node *node = &config->nodes[i];
        bool changes = change && change->node == i;

        if (!node->replaced && !node->removed && !changes)
            continue;
        cairn_write_u32(writer, i);
        cairn_write_u8(writer, node->removed || (changes && change->removed));
        cairn_write_string(writer, changes && change->address ? change->address
                                   : node->replaced           ? node->address
                                                              : "");
    }
}

cairn_err
cairn_fleet_pack(const struct cairn_config *config, const struct cairn_fleet_change *change,
                 uint8_t **bytes, size_t *len)
{
    struct cairn_writer writer;
    uint8_t *packed;

    if (change && (change->node >= config->node_count ||
                   (change->address && strlen(change->address) >= CAIRN_CONFIG_ADDRESS_BYTES_MAX)))
        return CAIRN_INVAL;
    cairn_writer_init(&writer, NULL, SIZE_MAX);
    write_changes(config, change, &writer);
    packed = malloc(writer.used_bytes);
    if (!packed)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, packed, writer.used_bytes);
    write_changes(config, change, &writer);
    *bytes = packed;
    *len = writer.used_bytes;
    return CAIRN_OK;
}

/* Reads the entries; with `apply` they change the configuration. */
static cairn_err
read_changes(struct cairn_config *config, const uint8_t *bytes, size_t len, bool apply,
             cairn_fleet_changed_fn *changed, void *context)
{
    struct cairn_reader reader;
    uint32_t count;

    cairn_reader_init(&reader, bytes, len);
    if (cairn_read_u32(&reader) != FLEET_VERSION)
        return len >= 4 ? CAIRN_VERSION : CAIRN_CORRUPT;
    count = cairn_read_u32(&reader);
    for (uint32_t i = 0; i < count && !reader.failed; i++) {
        uint32_t number = cairn_read_u32(&reader);
        bool removed = cairn_read_u8(&reader) != 0, differs;
        char address[CAIRN_CONFIG_ADDRESS_BYTES_MAX];
        struct cairn_config_node *node;

        cairn_read_string(&reader, address, sizeof address);
        if (reader.failed || !apply || number >= config->node_count)
            continue;
        node = &config->nodes[number];
        differs = removed != node->removed || (address[0] && strcmp(address, node->address) != 0);
        node->removed = removed;
        if (address[0]) {
            snprintf(node->address, sizeof node->address, "%s", address);
            node->replaced = true;
        }
        if (differs && changed)
            changed(context, number);
    }
    return cairn_reader_done(&reader);
}

cairn_err
cairn_fleet_apply(struct cairn_config *config, const uint8_t *bytes, size_t len,
                  cairn_fleet_changed_fn *changed, void *context)
{
    cairn_err err;

    if (len == 0)
        return CAIRN_OK;
    err = read_changes(config, bytes, len, false, NULL, NULL);
    return err ? err : read_changes(config, bytes, len, true, changed, context);
}

static void
node_changed(void *context, uint32_t number)
{
    struct cairn_agent *agent = context;
    const struct cairn_config_node *node = &agent->config.nodes[number];

    CAIRN_LOG_AT(INFO, "fleet: node %u %s%s", number, node->removed ? "is removed" : "is now at ",
                 node->removed ? "" : node->address);
    if (number == agent->config.node)
        agent_abort(agent, EXIT_CONFIG,
                    node->removed
                        ? "this node was removed from the job by `cairn node remove`"
                        : "another machine has replaced this node by `cairn node replace`");
    else if (node->removed)
        agent->spares[number] = true; /* the core gives it no ranks any more */
    else if (agent->transport &&
             cairn_transport_readdress(agent->transport, number, node->address) != CAIRN_OK)
        CAIRN_LOG_AT(ERROR, "fleet: node %u cannot be reached at %s", number, node->address);
}

void
fleet_activated(struct cairn_agent *agent)
{
    struct cairn_core_view view;
    cairn_err err;

    cairn_core_look(agent->core, &view);
    err = cairn_fleet_apply(&agent->config, view.fleet, view.fleet_len, node_changed, agent);
    if (err)
        CAIRN_LOG_AT(ERROR,
                     "fleet: the changes of nodes that epoch %llu carries cannot be read: %s",
                     (unsigned long long)view.active, cairn_err_text(err));
}
