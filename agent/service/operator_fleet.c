/* agent/service/operator_fleet.c - see operator_fleet.h. */
#include "agent/service/operator_fleet.h"

#include "agent/process/agent_state.h"
#include "agent/process/fleet.h"
#include "agent/process/step.h"
#include "agent/service/operator_request.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 64, EXIT_DENIED = 77, REFUSAL_BYTES = 640 };

static bool
is_remove(const struct operator_change *change)
{
    return strcmp(change->what, "remove") == 0;
}

/* A node's number from its number or its address; UINT32_MAX: unknown. */
static uint32_t
find_node(const struct cairn_config *config, const char *text)
{
    unsigned long number;
    char *end;

    for (uint32_t i = 0; i < config->node_count; i++)
        if (strcmp(config->nodes[i].address, text) == 0)
            return i;
    if (text[0] < '0' || text[0] > '9')
        return UINT32_MAX;
    number = strtoul(text, &end, 10);
    return *end == '\0' && number < config->node_count ? (uint32_t)number : UINT32_MAX;
}

/* The configuration with the change must be a right one, as if an operator had written it. */
static bool
address_fits(const struct cairn_config *config, uint32_t node, const char *address, char *why,
             size_t why_bytes)
{
    struct cairn_config changed = *config;
    bool fits;

    changed.nodes = malloc(config->node_count * sizeof *changed.nodes);
    if (!changed.nodes) {
        snprintf(why, why_bytes, "the agent is out of memory");
        return false;
    }
    memcpy(changed.nodes, config->nodes, config->node_count * sizeof *changed.nodes);
    snprintf(changed.nodes[node].address, sizeof changed.nodes[node].address, "%s", address);
    fits = cairn_config_check(&changed, why, why_bytes) == CAIRN_OK;
    free(changed.nodes);
    return fits;
}

/* 0, or the exit code of a change that is refused, with why[REFUSAL_BYTES]. */
static int
refuse_change(struct cairn_agent *agent, struct operator_change *change, char *why)
{
    const struct cairn_config *config = &agent->config;
    bool removes = is_remove(change);
    uint32_t node = find_node(config, change->node);

    change->number = node;
    if (!removes && strcmp(change->what, "replace") != 0) {
        snprintf(why, REFUSAL_BYTES, "this agent does not know the change; upgrade it");
        return EXIT_FAILED;
    }
    if (node == UINT32_MAX) {
        snprintf(why, REFUSAL_BYTES, "%.64s: no node has this number or address; there are 0 to %u",
                 change->node, config->node_count - 1);
        return EXIT_USAGE;
    }
    if (config->nodes[node].removed) {
        snprintf(why, REFUSAL_BYTES, "node %u: it was removed before", node);
        return EXIT_USAGE;
    }
    if (node == config->node) {
        snprintf(why, REFUSAL_BYTES, "node %u: this is the asked agent's own; ask another agent",
                 node);
        return EXIT_USAGE;
    }
    if (!removes && !address_fits(config, node, change->address, why, REFUSAL_BYTES))
        return EXIT_USAGE;
    if (!change->force && cairn_core_alive(agent->core, node)) {
        snprintf(why, REFUSAL_BYTES,
                 "node %u: its agent runs; stop it first, or use --force if it is cut off for good",
                 node);
        return EXIT_DENIED;
    }
    return 0;
}

void
request_fleet_begin(struct cairn_agent *agent, struct request *request)
{
    struct operator_change *change = &request->change;
    char why[REFUSAL_BYTES] = "";
    int exit_code = refuse_change(agent, change, why);
    struct cairn_event event = {.type = CAIRN_EVENT_OPERATOR};
    struct cairn_fleet_change packed;
    uint8_t *bytes = NULL;
    size_t len = 0;

    if (exit_code) {
        request_refuse(agent, request, exit_code, why);
        return;
    }
    if (request->dry_run) {
        request_fleet_answer(agent, request);
        return;
    }
    packed = (struct cairn_fleet_change){.node = change->number,
                                         .removed = is_remove(change),
                                         .address = is_remove(change) ? NULL : change->address};
    if (cairn_fleet_pack(&agent->config, &packed, &bytes, &len) != CAIRN_OK) {
        request_refuse(agent, request, EXIT_FAILED, "the agent is out of memory");
        return;
    }
    CAIRN_LOG_AT(INFO, "operator: %s node %u %s", change->what, change->number, change->address);
    event.as.op = (struct cairn_event_operator){
        .operation = CAIRN_OP_FLEET, .request = request->number, .fleet = bytes, .fleet_len = len};
    request->waiting |= WAIT_CORE;
    agent_step(agent, &event, NULL);
    free(bytes);
}

void
request_fleet_answer(struct cairn_agent *agent, struct request *request)
{
    const struct cairn_outcome *outcome = &request->restored.outcome;
    const struct operator_change *change = &request->change;
    const struct cairn_config_node *node = &agent->config.nodes[change->number];
    struct cairn_json_writer writer;
    struct cairn_core_view view;

    if (outcome->err) {
        request_refuse(agent, request, request_exit_code(outcome->err),
                       outcome->text[0] ? outcome->text : cairn_err_text(outcome->err));
        return;
    }
    cairn_core_look(agent->core, &view);
    cairn_json_writer_init(&writer);
    cairn_json_write_object_begin(&writer);
    cairn_json_put_u64(&writer, "schema", 1);
    cairn_json_put_bool(&writer, "dry_run", request->dry_run);
    cairn_json_put_u64(&writer, "epoch", cairn_epoch_number(view.active));
    cairn_json_put_u64(&writer, "node", change->number);
    cairn_json_put_string(&writer, "address", is_remove(change) ? node->address : change->address);
    cairn_json_put_bool(&writer, "removed", is_remove(change));
    cairn_json_write_object_end(&writer);
    request_answer(agent, request, 0, &writer);
}
