/*
 * agent/service/timing_analysis.c - the analysis of the job, in a thread of its own; see
 * timing_analysis.h.
 *
 * With 16,384 ranks the analysis of a step takes some 75 ms, and the search for hangs as long. In
 * the loop, heartbeats and blocks to protect would wait for that. So reports wait here and go to a
 * worker with the next turn of the timer. The worker owns the analysis and a copy of the ledger
 * until it is done. Its copy then becomes the agent's ledger, unless a newer one has arrived: then
 * the next turn merges the open verdicts into that one.
 */
#include "agent/service/timing_analysis.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/timing_ledger.h"
#include "agent/service/timing_state.h"
#include "agent/service/watch.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    WAITING_BYTES_MAX = 64 << 20, /* of reports that no turn has taken yet */
    SAY_DROPPED_S = 60,
    CHANGES_MAX = 4 * CAIRN_LEDGER_MAX /* of verdicts that one turn logs */
};

/* In front of each delivery's bytes. */
struct delivery {
    uint64_t now_ns;
    uint32_t from;
    uint32_t bytes_len;
};

struct change {
    struct cairn_ledger_entry entry;
    enum cairn_ledger_change change;
};

struct bytes {
    uint8_t *data;
    size_t used, room;
};

struct timing_analysis {
    struct cairn_job job;
    struct cairn_agent *agent;
    timing_turned_fn *turned;
    struct cairn_workers *worker;
    struct cairn_live *live; /* NULL: another agent analyses */
    struct bytes waiting;
    bool has_lost; /* reports, since there was no room for them */
    /* deliveries; how many were logged, and when */
    uint64_t dropped, dropped_said, dropped_said_ns;
    bool is_running;
    struct cairn_live_view view;
    uint64_t last_run; /* in the agent's ledger */
    bool said_malformed, said_no_memory, said_large;

    /* the worker's while it runs */
    struct cairn_live *running; /* may be `live` no longer */
    struct cairn_ledger ledger;
    uint64_t base_version; /* of the agent's ledger when it was copied */
    struct bytes taken;
    uint64_t now_ns, wall_ns;
    struct cairn_report report; /* room to unpack one */
    struct cairn_live_view seen;
    struct change changes[CHANGES_MAX];
    uint32_t change_count;
    uint32_t malformed_from, large_world; /* UINT32_MAX and 0: none */
    bool lacks_memory, wants_announcements;
};

/* ---- in the worker ---- */

static void
keep_change(void *context, const struct cairn_ledger_entry *entry, enum cairn_ledger_change change)
{
    struct timing_analysis *analysis = context;

    if (analysis->change_count < CHANGES_MAX)
        analysis->changes[analysis->change_count++] = (struct change){*entry, change};
}

static void
take_reports(struct timing_analysis *analysis, const struct delivery *delivery,
             const uint8_t *bytes)
{
    struct cairn_reader reader;

    cairn_reader_init(&reader, bytes, delivery->bytes_len);
    while (cairn_reader_left(&reader) > 0) {
        cairn_report_unpack(&reader, &analysis->report);
        if (reader.failed) {
            analysis->malformed_from = delivery->from;
            return;
        }
        if (analysis->report.world > CAIRN_LIVE_WORLD_MAX)
            analysis->large_world = analysis->report.world;
        if (cairn_live_take(analysis->running, delivery->from, &analysis->report, delivery->now_ns,
                            analysis->wall_ns) != CAIRN_OK)
            analysis->lacks_memory = true; /* the report is lost, as it may be on its way */
    }
}

static void
run(struct cairn_job *job)
{
    struct timing_analysis *analysis = (struct timing_analysis *)job;
    struct delivery delivery;

    for (size_t at = 0; at < analysis->taken.used; at += sizeof delivery + delivery.bytes_len) {
        memcpy(&delivery, analysis->taken.data + at, sizeof delivery);
        take_reports(analysis, &delivery, analysis->taken.data + at + sizeof delivery);
    }
    if (cairn_live_check(analysis->running, analysis->now_ns, analysis->wall_ns) != CAIRN_OK)
        analysis->lacks_memory = true; /* again with the next turn */
    analysis->wants_announcements = cairn_live_wants_announcements(analysis->running);
    cairn_live_look(analysis->running, analysis->now_ns, &analysis->seen);
}

/* ---- in the loop ---- */

static void
say_troubles(struct timing_analysis *analysis)
{
    if (analysis->lacks_memory && !analysis->said_no_memory)
        CAIRN_LOG_AT(WARN, "detect: out of memory: steps are left out of the analysis");
    if (analysis->malformed_from != UINT32_MAX && !analysis->said_malformed)
        CAIRN_LOG_AT(WARN,
                     "detect: node %u sends reports that are malformed, or of another version",
                     analysis->malformed_from);
    if (analysis->large_world > 0 && !analysis->said_large)
        CAIRN_LOG_AT(
            WARN,
            "detect: the job has %u ranks, and at most %d are analysed: nobody is called slow",
            analysis->large_world, CAIRN_LIVE_WORLD_MAX);
    analysis->said_no_memory |= analysis->lacks_memory;
    analysis->said_malformed |= analysis->malformed_from != UINT32_MAX;
    analysis->said_large |= analysis->large_world > 0;
}

static void
done(struct cairn_job *job)
{
    struct timing_analysis *analysis = (struct timing_analysis *)job;
    struct cairn_agent *agent = analysis->agent;
    struct timing_state *timing = agent->timing;
    bool is_taken;

    analysis->is_running = false;
    if (analysis->running != analysis->live) { /* somebody else analyses by now */
        cairn_live_destroy(analysis->running);
        return;
    }
    analysis->view = analysis->seen;
    analysis->last_run = analysis->seen.run;
    is_taken = timing->ledger.version == analysis->base_version;
    if (is_taken)
        timing->ledger = analysis->ledger;
    if (!agent->stopping)
        timing_tell_changes(agent);
    /* else the numbers belong to other verdicts; reported with the next turn */
    for (uint32_t i = 0; is_taken && i < analysis->change_count; i++)
        timing_log_change(agent, &analysis->changes[i].entry, analysis->changes[i].change);
    say_troubles(analysis);
    if (analysis->wants_announcements)
        cairn_watch_ask_anew(timing->watch);
    if (is_taken)
        analysis->turned(agent);
}

void
timing_analysis_begin(struct cairn_agent *agent)
{
    struct timing_analysis *analysis = agent->timing->analysis;
    struct cairn_live_options options = {.ledger = &analysis->ledger,
                                         .first_run = analysis->last_run + 1,
                                         .said = keep_change,
                                         .context = analysis};

    analysis->waiting.used = 0;
    analysis->has_lost = false;
    analysis->view = (struct cairn_live_view){0};
    if (cairn_live_create(&options, &analysis->live) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "detect: out of memory: nobody analyses the timing of collectives");
    else
        CAIRN_LOG_AT(DEBUG, "detect: this agent analyses the job from here on");
}

void
timing_analysis_end(struct cairn_agent *agent)
{
    struct timing_analysis *analysis = agent->timing->analysis;

    if (!analysis->is_running) /* else it is ended when its turn is done */
        cairn_live_destroy(analysis->live);
    analysis->live = NULL;
    analysis->waiting.used = 0;
}

/* Once a minute at most. */
static void
say_dropped(struct timing_analysis *analysis, uint64_t now_ns)
{
    if (analysis->dropped_said > 0 &&
        now_ns < analysis->dropped_said_ns + SAY_DROPPED_S * CAIRN_NS_PER_S)
        return;
    CAIRN_LOG_AT(WARN,
                 "detect: reports are dropped: %zu MiB of them wait for the analysis, which is "
                 "slower than they come, or there is no memory "
                 "for more; all nodes are asked to begin again; dropped=%" PRIu64
                 " since this agent's start",
                 analysis->waiting.used >> 20, analysis->dropped);
    analysis->dropped_said = analysis->dropped;
    analysis->dropped_said_ns = now_ns;
}

void
timing_analysis_take(struct cairn_agent *agent, uint32_t from, const uint8_t *bytes,
                     size_t bytes_len)
{
    struct timing_analysis *analysis = agent->timing->analysis;
    struct bytes *waiting = &analysis->waiting;
    struct delivery delivery = {agent_now_ns(agent), from, (uint32_t)bytes_len};
    size_t needed = waiting->used + sizeof delivery + bytes_len;

    if (!analysis->live)
        return;
    analysis->dropped += analysis->has_lost;
    if (analysis->has_lost)
        return;
    if (needed > waiting->room) {
        size_t room = needed < WAITING_BYTES_MAX / 2 ? 2 * needed : (size_t)WAITING_BYTES_MAX;
        uint8_t *data = needed <= WAITING_BYTES_MAX ? realloc(waiting->data, room) : NULL;

        if (!data) {
            analysis->has_lost = true;
            analysis->dropped++;
            say_dropped(analysis, delivery.now_ns);
            return;
        }
        waiting->data = data;
        waiting->room = room;
    }
    memcpy(waiting->data + waiting->used, &delivery, sizeof delivery);
    memcpy(waiting->data + waiting->used + sizeof delivery, bytes, bytes_len);
    waiting->used = needed;
}

void
timing_analysis_turn(struct cairn_agent *agent, uint64_t now_ns)
{
    struct timing_state *timing = agent->timing;
    struct timing_analysis *analysis = timing->analysis;
    struct bytes emptied = analysis->taken;

    if (!analysis->live || analysis->is_running)
        return;
    if (analysis->has_lost) { /* what was announced may be among it */
        analysis->has_lost = false;
        cairn_watch_ask_anew(timing->watch);
    }
    analysis->taken = analysis->waiting;
    analysis->waiting = emptied;
    analysis->waiting.used = 0;
    analysis->running = analysis->live;
    analysis->ledger = timing->ledger;
    analysis->base_version = timing->ledger.version;
    analysis->now_ns = now_ns;
    analysis->wall_ns = cairn_clock_wall_ns(&agent->clock);
    analysis->change_count = 0;
    analysis->malformed_from = UINT32_MAX;
    analysis->large_world = 0;
    analysis->lacks_memory = analysis->wants_announcements = false;
    analysis->is_running = cairn_workers_submit(analysis->worker, &analysis->job) == CAIRN_OK;
}

bool
timing_analysis_look(const struct cairn_agent *agent, struct cairn_live_view *out)
{
    const struct timing_analysis *analysis = agent->timing->analysis;

    *out = analysis->view;
    return analysis->live != NULL;
}

uint64_t
timing_analysis_dropped(const struct cairn_agent *agent)
{
    return agent->timing->analysis->dropped;
}

uint32_t
timing_analysis_node_of(const struct cairn_agent *agent, uint32_t rank)
{
    const struct timing_analysis *analysis = agent->timing->analysis;

    CAIRN_ASSERT(!analysis->is_running);
    return analysis->live ? cairn_live_node_of(analysis->live, rank) : UINT32_MAX;
}

cairn_err
timing_analysis_open(struct cairn_agent *agent, timing_turned_fn *turned)
{
    struct timing_analysis *analysis = calloc(1, sizeof *analysis);

    if (!analysis)
        return CAIRN_NOMEM;
    agent->timing->analysis = analysis;
    analysis->agent = agent;
    analysis->turned = turned;
    analysis->job = (struct cairn_job){.run = run, .done = done};
    return cairn_workers_start(agent->loop, 1, 1, &analysis->worker);
}

void
timing_analysis_close(struct cairn_agent *agent)
{
    struct timing_analysis *analysis = agent->timing->analysis;

    if (!analysis)
        return;
    cairn_workers_stop(analysis->worker); /* its turn is done, and its changes are in the ledger */
    cairn_live_destroy(analysis->live);
    free(analysis->waiting.data);
    free(analysis->taken.data);
    free(analysis);
    agent->timing->analysis = NULL;
}
