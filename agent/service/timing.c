/* agent/service/timing.c - detection in the agent: the timer, messages, numbers for operators. */
#include "agent/service/timing.h"

#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/step.h"
#include "agent/service/enforcing.h"
#include "agent/service/operator_view.h"
#include "agent/service/replanning.h"
#include "agent/service/timing_analysis.h"
#include "agent/service/timing_causes.h"
#include "agent/service/timing_ledger.h"
#include "agent/service/timing_rings.h"
#include "agent/service/timing_state.h"
#include "agent/service/watch.h"
#include "base/log.h"
#include "replan/live/enforce.h"

#include <inttypes.h>
#include <stdlib.h>

enum { IDLE_PERIOD_MS = 500, LOG_DROPPED_S = 60 };
static const uint64_t resend_after_ns = 500 * CAIRN_NS_PER_MS;
static const uint64_t tell_again_ns = 10 * CAIRN_NS_PER_S;
static const uint64_t store_every_ns = CAIRN_NS_PER_S;

/* ---- messages ---- */

static void
take_ledger(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct timing_state *timing = agent->timing;
    struct cairn_ledger *arrived = malloc(sizeof *arrived);
    bool knows_better = false;

    if (arrived && cairn_ledger_unpack(message->bytes, message->bytes_len, arrived) == CAIRN_OK) {
        if (arrived->version > timing->ledger.version) {
            uint64_t version = arrived->version;

            knows_better = cairn_enforce_keep(arrived, &timing->ledger);
            knows_better |= cairn_enforce_keep_budget(arrived, &timing->ledger);
            timing->ledger = *arrived;
            timing->told_version = version; /* the agent that changed it tells it */
        } else {                            /* an older one may still tell how a command ended */
            knows_better = cairn_enforce_keep(&timing->ledger, arrived);
        }
        knows_better |= enforcing_add_end(agent);
    }
    free(arrived);
    if (knows_better)
        timing_tell(agent, agent_now_ns(agent));
}

/* ---- what the watch asks for ---- */

static void
on_send(void *context, const struct cairn_service_message *message)
{
    mail_send_service(context, message, NULL, 0, UINT32_MAX);
}

static void
on_announce(void *context)
{
    timing_rings_announce(context);
}

static void
on_begin(void *context)
{
    timing_analysis_begin(context);
}

static void
on_end(void *context)
{
    struct cairn_agent *agent = context;

    timing_analysis_end(agent);
    timing_tell(agent, agent_now_ns(agent)); /* the next analyst may have been away */
}

static void
on_deliver(void *context, uint32_t from, const uint8_t *bytes, size_t bytes_len)
{
    struct cairn_agent *agent = context;

    agent->timing->has_reports = true;
    timing_analysis_take(agent, from, bytes, bytes_len);
}

static void
on_turn(struct cairn_agent *agent)
{
    enforcing_turn(agent);
    replanning_turn(agent);
}

void
timing_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    if (!agent->timing)
        return;
    if (message->kind == CAIRN_SERVICE_VERDICTS)
        take_ledger(agent, message);
    else
        cairn_watch_message(agent->timing->watch, message, agent_now_ns(agent));
}

/* ---- the timer ---- */

/* The agents that may be the analyst: live members, or live agents other than spares as long as
 * there is no roster. */
static void
find_eligible(struct cairn_agent *agent)
{
    bool *eligible = agent->timing->eligible;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    for (uint32_t node = 0; node < agent->config.node_count; node++)
        eligible[node] = !view.roster && !agent->config.nodes[node].spare;
    for (uint32_t member = 0; view.roster && member < view.roster->member_count; member++)
        if (view.roster->members[member].agent < agent->config.node_count)
            eligible[view.roster->members[member].agent] = true;
    for (uint32_t node = 0; node < agent->config.node_count; node++)
        eligible[node] &= node == agent->config.node || cairn_core_alive(agent->core, node);
}

/* Once a minute at most. timing_analysis.c logs the analyst's side. */
static void
log_unsent(struct timing_state *timing, uint64_t now_ns)
{
    struct cairn_watch_view view = cairn_watch_look(timing->watch);

    if (view.overflows == timing->unsent_said ||
        (timing->unsent_said > 0 &&
         now_ns < timing->unsent_said_ns + LOG_DROPPED_S * CAIRN_NS_PER_S))
        return;
    CAIRN_LOG_AT(WARN,
                 "detect: reports of this node are dropped: node %u, which analyses, has not taken "
                 "%d parcels that wait here, or there is no "
                 "memory for more; this node begins again; dropped=%" PRIu64
                 " since this agent's start",
                 view.analyst, CAIRN_WATCH_PARTS_MAX, view.dropped);
    timing->unsent_said = view.overflows;
    timing->unsent_said_ns = now_ns;
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;
    struct timing_state *timing = agent->timing;
    uint64_t now_ns = agent_now_ns(agent);
    struct cairn_live_view view;
    bool is_busy;

    timing_rings_read(agent, now_ns);
    find_eligible(agent);
    log_unsent(timing, now_ns); /* before the tick, which may choose another analyst */
    cairn_watch_tick(timing->watch, timing->eligible, now_ns);
    if (timing_analysis_look(agent, &view) && cairn_ledger_open_count(&timing->ledger) > 0 &&
        now_ns > timing->told_ns + tell_again_ns)
        timing_tell(agent, now_ns);
    timing_analysis_turn(agent, now_ns);
    timing_causes_tick(agent, now_ns);
    if (timing->ledger.version != timing->stored_version &&
        now_ns > timing->stored_ns + store_every_ns)
        (void)timing_store(agent);
    is_busy = timing->ring_count > 0 || (timing_analysis_look(agent, &view) && timing->has_reports);
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &timing->timer,
                          now_ns + (is_busy ? TIMING_PERIOD_MS : IDLE_PERIOD_MS) * CAIRN_NS_PER_MS);
}

/* ---- for operators ---- */

const struct cairn_ledger *
timing_ledger(const struct cairn_agent *agent)
{
    return agent->timing ? &agent->timing->ledger : NULL;
}

void
timing_fill(const struct cairn_agent *agent, struct operator_node *out)
{
    const struct timing_state *timing = agent->timing;
    struct cairn_live_view view;

    if (!timing)
        return;
    timing_causes_fill(agent, out);
    out->timing_rings = timing->ring_count;
    out->timing_records = timing->records_before;
    out->timing_lost = timing->lost_before;
    out->timing_refused = timing->refused_before;
    for (uint32_t i = 0; i < TIMING_RANKS_MAX; i++) {
        struct cairn_reduce_counts counts;

        if (!timing->ranks[i].used)
            continue;
        counts = cairn_reduce_count(timing->ranks[i].reduce);
        out->timing_records += counts.records;
        out->timing_lost += counts.lost;
        out->timing_refused += counts.refused;
    }
    out->timing_dropped = timing_analysis_dropped(agent) + cairn_watch_look(timing->watch).dropped;
    if (!timing_analysis_look(agent, &view))
        return;
    out->analyses = 1;
    out->analysis_world = view.world;
    out->analysis_ranks = view.ranks_reporting;
    out->analysis_steps = view.steps;
    out->analysis_last_step = view.last_step;
    out->analysis_step_ns = (uint64_t)(view.period_ms * 1e6);
    out->analysis_calibrated = view.is_calibrated;
}

cairn_err
timing_pack_recordings(const struct cairn_agent *agent, uint32_t steps, uint32_t until,
                       uint8_t **out, size_t *out_len)
{
    uint64_t now_ns = agent_now_ns(agent);
    struct cairn_writer writer;
    uint8_t *bytes;
    size_t bytes_len;

    *out = NULL;
    *out_len = 0;
    if (!agent->timing)
        return CAIRN_OK;
    cairn_writer_init(&writer, NULL, SIZE_MAX);
    timing_rings_pack(agent, steps, until, now_ns, &writer);
    bytes_len = writer.used_bytes;
    if (bytes_len == 0)
        return CAIRN_OK;
    bytes = malloc(bytes_len);
    if (!bytes)
        return CAIRN_NOMEM;
    cairn_writer_init(&writer, bytes, bytes_len);
    timing_rings_pack(agent, steps, until, now_ns, &writer);
    *out = bytes;
    *out_len = bytes_len;
    return CAIRN_OK;
}

/* ---- life ---- */

cairn_err
timing_open(struct cairn_agent *agent)
{
    struct timing_state *timing = calloc(1, sizeof *timing);
    struct cairn_watch_options options = {.self = agent->config.node,
                                          .agent_count = agent->config.node_count,
                                          .incarnation = agent->incarnation,
                                          .resend_after_ns = resend_after_ns,
                                          .context = agent,
                                          .send = on_send,
                                          .announce = on_announce,
                                          .begin = on_begin,
                                          .end = on_end,
                                          .deliver = on_deliver};
    cairn_err err;

    if (!timing)
        return CAIRN_NOMEM;
    agent->timing = timing;
    timing->eligible = calloc(agent->config.node_count, sizeof *timing->eligible);
    if (!timing->eligible)
        return CAIRN_NOMEM;
    timing_load(agent);
    err = timing_analysis_open(agent, on_turn);
    if (!err)
        err = timing_causes_open(agent);
    if (!err)
        err = cairn_watch_create(&options, &timing->watch);
    if (err)
        return err;
    cairn_timer_init(&timing->timer, on_timer, agent);
    cairn_timer_start(agent->loop, &timing->timer, 0);
    return CAIRN_OK;
}

void
timing_close(struct cairn_agent *agent)
{
    struct timing_state *timing = agent->timing;

    if (!timing)
        return;
    cairn_timer_stop(agent->loop, &timing->timer);
    timing_analysis_close(agent);
    timing_causes_close(agent);
    if (timing->watch && timing->ledger.version != timing->stored_version)
        (void)timing_store(agent);
    timing_rings_close(agent);
    cairn_watch_destroy(timing->watch);
    free(timing->eligible);
    free(timing);
    agent->timing = NULL;
}
