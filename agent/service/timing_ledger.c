/*
 * agent/service/timing_ledger.c - the agent's copy of the ledger of verdicts; see timing_ledger.h.
 *
 * The analyst announces the ledger with each change, and every ten seconds while a verdict lasts. A
 * newer version replaces an older one, except for what the older one knows better about the
 * operator's command.
 */
#include "agent/service/timing_ledger.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "agent/service/timing_state.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/catalog.h"

#include <inttypes.h>
#include <stdlib.h>

static const char ledger_key[] = "ledger";

void
timing_log_change(const struct cairn_agent *agent, const struct cairn_ledger_entry *entry,
                  enum cairn_ledger_change change)
{
    static const char *const changes[] = {[CAIRN_LEDGER_OPENED] = "opened",
                                          [CAIRN_LEDGER_RETURNED] = "is back",
                                          [CAIRN_LEDGER_CLOSED] = "closed"};
    char text[512], advice[256] = "";

    cairn_ledger_describe(entry, text, sizeof text);
    if (change == CAIRN_LEDGER_CLOSED) {
        CAIRN_LOG_AT(INFO, "detect: verdict=%" PRIu64 " %s (%s): %s", entry->number,
                     changes[change], entry->closed_why, text);
        return;
    }
    if (agent->config.verdict_policy != CAIRN_CONFIG_OBSERVE)
        cairn_ledger_advise(&agent->timing->ledger, entry, agent->config.exchanges_per_day,
                            agent->config.verdict_policy == CAIRN_CONFIG_ENFORCE, advice,
                            sizeof advice);
    CAIRN_LOG_AT(WARN, "detect: verdict=%" PRIu64 " %s: %s; confidence=%.2f; %s%s%s", entry->number,
                 changes[change], text, entry->confidence, entry->evidence,
                 advice[0] ? "; do: " : "", advice);
}

/* Packs the ledger into timing->ledger_bytes; 0 on failure, which cannot happen. */
static size_t
pack_ledger(struct timing_state *timing)
{
    struct cairn_writer writer;

    cairn_writer_init(&writer, timing->ledger_bytes, sizeof timing->ledger_bytes);
    cairn_ledger_pack(&timing->ledger, &writer);
    return cairn_writer_done(&writer) == CAIRN_OK ? writer.used_bytes : 0;
}

void
timing_tell(struct cairn_agent *agent, uint64_t now_ns)
{
    struct timing_state *timing = agent->timing;
    size_t bytes_len = pack_ledger(timing);

    timing->told_version = timing->ledger.version;
    timing->told_ns = now_ns;
    /* An agent that starts is the analyst until it hears of others: no full mesh for that. */
    if (timing->ledger.count == 0)
        return;
    for (uint32_t node = 0; bytes_len > 0 && node < agent->config.node_count; node++) {
        struct cairn_service_message message = {.kind = CAIRN_SERVICE_VERDICTS,
                                                .from = agent->config.node,
                                                .to = node,
                                                .bytes = timing->ledger_bytes,
                                                .bytes_len = (uint32_t)bytes_len};

        if (node != agent->config.node && cairn_core_alive(agent->core, node))
            mail_send_service(agent, &message, NULL, 0, UINT32_MAX);
    }
}

void
timing_tell_changes(struct cairn_agent *agent)
{
    if (agent->timing->ledger.version != agent->timing->told_version)
        timing_tell(agent, agent_now_ns(agent));
}

bool
timing_store(struct cairn_agent *agent)
{
    struct timing_state *timing = agent->timing;
    size_t bytes_len = pack_ledger(timing);

    timing->stored_version = timing->ledger.version;
    timing->stored_ns = agent_now_ns(agent);
    if (bytes_len > 0 &&
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_VERDICTS, ledger_key, sizeof ledger_key - 1,
                          timing->ledger_bytes, bytes_len) == CAIRN_OK)
        return true;
    CAIRN_LOG_AT(WARN, "catalog: verdicts are not written any more");
    return false;
}

void
timing_load(struct cairn_agent *agent)
{
    struct timing_state *timing = agent->timing;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    cairn_ledger_init(&timing->ledger);
    if (cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, ledger_key, sizeof ledger_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        cairn_ledger_unpack(bytes, bytes_len, &timing->ledger) != CAIRN_OK)
        CAIRN_LOG_AT(
            WARN,
            "catalog: the stored verdicts are of another version, or damaged: they are forgotten");
    free(bytes);
    timing->told_version = timing->stored_version = timing->ledger.version;
}
