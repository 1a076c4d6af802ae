/* agent/process/reload.c - see reload.h. */
#include "agent/process/reload.h"

#include "agent/process/agent_state.h"
#include "agent/process/config_table.h"
#include "agent/process/credentials.h"
#include "agent/process/recorder.h"
#include "base/log.h"
#include "base/worker.h"
#include "transport/transport.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const applied_options[] = {"log_level",
                                              "log_format",
                                              "spill_every_generations",
                                              "spill_keep",
                                              "local_every_generations",
                                              "local_keep",
                                              "local_after_ms",
                                              "exchanges_per_day",
                                              "on_poison",
                                              "scrub_interval_ms"};

/* Taken over together with what the files hold. */
static const char *const credential_options[] = {
    "key_file", "second_key_file", "certificate_file", "private_key_file", "ca_file", "identity"};

struct reload {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_config config;
    struct cairn_credentials *credentials;
    cairn_err err;
    char error[CAIRN_CONFIG_ERROR_BYTES];
};

static void __attribute__((format(printf, 2, 3)))
record(struct cairn_agent *agent, const char *format, ...)
{
    struct history_event event = history_event_of(HISTORY_CONFIG);
    char text[HISTORY_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    event.text = text;
    recorder_add(agent, &event);
}

static bool
is_among(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Whether an option is applied at once; credentials only together. */
static bool
is_applied(const char *name, bool credentials_taken)
{
    return is_among(name, applied_options, sizeof applied_options / sizeof *applied_options) ||
           (credentials_taken && is_among(name, credential_options,
                                          sizeof credential_options / sizeof *credential_options));
}

static size_t
field_bytes(const struct cairn_option *option)
{
    switch (option->type) {
    case CAIRN_OPTION_TEXT:
    case CAIRN_OPTION_PATH:
        return option->max + 1;
    case CAIRN_OPTION_U32:
    case CAIRN_OPTION_CHOICE:
        return sizeof(uint32_t);
    case CAIRN_OPTION_BYTES:
        return sizeof(uint64_t);
    case CAIRN_OPTION_BOOL:
        return sizeof(bool);
    case CAIRN_OPTION_COMMAND:
        return sizeof(struct cairn_config_command);
    default:
        return 0;
    }
}

static void
format_value(const struct cairn_option *option, const struct cairn_config *config, char *out,
             size_t out_bytes)
{
    const void *field = (const char *)config + option->offset;

    switch (option->type) {
    case CAIRN_OPTION_U32:
        snprintf(out, out_bytes, "%" PRIu32, *(const uint32_t *)field);
        break;
    case CAIRN_OPTION_CHOICE:
        snprintf(out, out_bytes, "%s", option->choices[*(const uint32_t *)field]);
        break;
    case CAIRN_OPTION_BYTES:
        snprintf(out, out_bytes, "%" PRIu64, *(const uint64_t *)field);
        break;
    case CAIRN_OPTION_BOOL:
        snprintf(out, out_bytes, "%s", *(const bool *)field ? "true" : "false");
        break;
    case CAIRN_OPTION_COMMAND:
        snprintf(out, out_bytes, "%.200s", ((const struct cairn_config_command *)field)->text);
        break;
    default:
        snprintf(out, out_bytes, "\"%.200s\"", (const char *)field);
        break;
    }
}

/* Takes over one option; returns 1 if it differs. */
static uint32_t
apply_option(struct cairn_agent *agent, const struct cairn_option *option,
             const struct cairn_config *fresh, bool credentials_taken)
{
    char *running = (char *)&agent->config + option->offset;
    const char *value = (const char *)fresh + option->offset;
    size_t bytes = field_bytes(option);
    char before[256], after[256];

    if (bytes == 0 || memcmp(running, value, bytes) == 0)
        return 0;
    format_value(option, &agent->config, before, sizeof before);
    format_value(option, fresh, after, sizeof after);
    if (is_applied(option->name, credentials_taken)) {
        memcpy(running, value, bytes);
        CAIRN_LOG_AT(WARN, "reload: %s: %s is %s now", option->name, before, after);
        record(agent, "%s: %s is %s now", option->name, before, after);
    } else {
        CAIRN_LOG_AT(WARN, "reload: %s stays %s; restart this agent to make it %s", option->name,
                     before, after);
        record(agent, "%s stays %s until a restart makes it %s", option->name, before, after);
    }
    return 1;
}

static void
apply_address(struct cairn_agent *agent, uint32_t node, const char *address)
{
    char *running = agent->config.nodes[node].address;
    cairn_err err = CAIRN_OK;

    if (agent->config.nodes[node].replaced) {
        CAIRN_LOG_AT(WARN,
                     "reload: the address of node %u stays %s, as `cairn node replace` set it",
                     node, running);
        return;
    }
    if (node == agent->config.node) {
        CAIRN_LOG_AT(WARN, "reload: the own address stays %s; restart this agent to make it %s",
                     running, address);
        return;
    }
    err = cairn_transport_readdress(agent->transport, node, address);
    if (err) {
        CAIRN_LOG_AT(ERROR, "reload: the address of node %u stays %s: %s cannot be used: %s", node,
                     running, address, cairn_err_text(err));
        return;
    }
    CAIRN_LOG_AT(WARN, "reload: the address of node %u: %s is %s now", node, running, address);
    record(agent, "the address of node %u: %s is %s now", node, running, address);
    snprintf(running, sizeof agent->config.nodes[node].address, "%s", address);
}

static uint32_t
apply_nodes(struct cairn_agent *agent, const struct cairn_config *fresh)
{
    uint32_t changes = 0;

    if (fresh->node_count != agent->config.node_count) {
        CAIRN_LOG_AT(WARN, "reload: nodes stay %u; restart this agent to make them %u",
                     agent->config.node_count, fresh->node_count);
        return 1;
    }
    for (uint32_t i = 0; i < fresh->node_count; i++) {
        const struct cairn_config_node *running = &agent->config.nodes[i], *node = &fresh->nodes[i];

        if (strcmp(running->domain, node->domain) != 0 || running->spare != node->spare) {
            changes++;
            CAIRN_LOG_AT(WARN,
                         "reload: domain and spare of node %u stay as they are; restart all agents "
                         "to change them",
                         i);
        }
        if (strcmp(running->address, node->address) != 0) {
            changes++;
            apply_address(agent, i, node->address);
        }
    }
    return changes;
}

/* Passes keys and certificate to the transport, which logs them. False: the old ones stay. */
static bool
apply_credentials(struct cairn_agent *agent, const struct reload *reload)
{
    const struct cairn_transport_certificate *certificate;
    struct cairn_transport_certificate pem;
    struct cairn_transport_key keys[2];
    cairn_err err;

    if (!cairn_config_has_credentials(&agent->config) &&
        !cairn_config_has_credentials(&reload->config))
        return true;
    cairn_credentials_keys(reload->credentials, keys);
    certificate = cairn_credentials_certificate(reload->credentials, &reload->config, &pem);
    pem.job = agent->config.job; /* a reload changes neither the job nor the node */
    err = cairn_transport_rekey(agent->transport, keys, certificate);
    if (err == CAIRN_INVAL)
        CAIRN_LOG_AT(WARN, "reload: key and certificate stay; restart this agent to change them");
    else if (err)
        CAIRN_LOG_AT(ERROR, "reload: key and certificate stay: %s", cairn_err_text(err));
    else
        agent->mail.dates = reload->credentials->dates;
    return !err;
}

static void
load(struct cairn_job *job)
{
    struct reload *reload = (struct reload *)job;
    char when[64];

    reload->err = cairn_config_load(reload->agent->config.source, &reload->config, reload->error,
                                    sizeof reload->error);
    if (!reload->err)
        reload->err = cairn_credentials_read(&reload->config, &reload->credentials, reload->error,
                                             sizeof reload->error);
    if (!reload->err &&
        cairn_credentials_not_valid(
            &reload->credentials->dates,
            (int64_t)(cairn_clock_wall_ns(&reload->agent->clock) / UINT64_C(1000000000)), when,
            sizeof when)) {
        reload->err = CAIRN_CONFIG;
        snprintf(reload->error, sizeof reload->error, "the certificate in %.800s %s; renew it",
                 reload->config.certificate_file, when);
    }
}

static void
apply(struct cairn_job *job)
{
    struct reload *reload = (struct reload *)job;
    struct cairn_agent *agent = reload->agent;
    uint32_t changes = 0;

    if (reload->err) {
        CAIRN_LOG_AT(ERROR, "reload: nothing is changed: %s", reload->error);
        record(agent, "the new file is wrong, nothing is changed: %s", reload->error);
    } else if (!agent->stopping) {
        bool taken = apply_credentials(agent, reload);

        for (uint32_t i = 0; i < cairn_option_count; i++)
            changes += apply_option(agent, &cairn_options[i], &reload->config, taken);
        changes += apply_nodes(agent, &reload->config);
        cairn_log_level((enum cairn_log_level)agent->config.log_level);
        cairn_log_format((enum cairn_log_format)agent->config.log_format);
        if (changes == 0)
            CAIRN_LOG_AT(WARN, "reload: %s is what runs already", agent->config.source);
    }
    cairn_credentials_free(reload->credentials);
    cairn_config_fini(&reload->config);
    free(reload);
}

void
reload_start(struct cairn_agent *agent)
{
    struct reload *reload;

    if (!agent->config.source[0]) {
        CAIRN_LOG_AT(WARN, "reload: this agent was not started from a file");
        return;
    }
    reload = calloc(1, sizeof *reload);
    if (reload) {
        reload->agent = agent;
        reload->job = (struct cairn_job){.run = load, .done = apply};
        if (cairn_workers_submit(agent->workers, &reload->job) == CAIRN_OK)
            return;
    }
    free(reload);
    CAIRN_LOG_AT(ERROR, "reload: the agent is too busy; send the signal again");
}
