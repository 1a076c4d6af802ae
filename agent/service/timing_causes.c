/* agent/service/timing_causes.c - why ranks of this node are slow or hang; see timing_causes.h. */
#include "agent/service/timing_causes.h"

#include "agent/process/agent_state.h"
#include "agent/process/recorder.h"
#include "agent/service/cause.h"
#include "agent/service/operator_stacks.h"
#include "agent/service/operator_view.h"
#include "agent/service/timing_state.h"
#include "base/log.h"
#include "base/worker.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { READ_AGAIN_S = 5, BASE_EVERY_S = 60, STACKS_EVERY_S = 60, TOLD_MAX = 64 };

struct rank_stack {
    uint32_t rank;
    char text[READING_STACK_BYTES];
};

struct timing_causes {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_workers *worker; /* NULL before the first reading */
    bool is_running, is_for_verdict, wants_stacks;
    bool has_base;
    uint64_t read_ns; /* when the last reading began; 0: never */
    struct cause causes[CAUSES_MAX];
    uint32_t cause_count;
    struct {
        uint64_t verdict;
        enum cause_kind kind;
        uint32_t rank;
    } told[TOLD_MAX]; /* to the history; the newest replace the oldest */
    uint64_t told_count;
    uint64_t stacks_ns; /* when the stacks were asked for; 0: no rank hangs */
    struct rank_stack stacks[READING_RANKS_MAX];
    uint32_t stack_count;
    /* Readings for a verdict are compared with `base`. It is the last but one of those without a
     * verdict: the last may have come after the trouble began and before its verdict. */
    struct health_reading base, last;

    /* the worker's while it runs */
    bool has_opened;
    struct health_gpus *gpus;
    struct health_reading now;
};

/* ---- in the worker ---- */

static void
run(struct cairn_job *job)
{
    struct timing_causes *causes = (struct timing_causes *)job;
    const struct cairn_config *config = &causes->agent->config; /* these never change */

    if (!causes->has_opened) {
        causes->gpus = health_gpus_open(config->nvml_library);
        causes->has_opened = true;
    }
    health_read(causes->gpus, config->sysfs_dir, &causes->now);
    if (causes->wants_stacks)
        health_read_stacks(&causes->now);
}

/* ---- in the loop ---- */

static bool
names_rank(const struct timing_state *timing, const uint32_t *ranks, uint32_t count, uint32_t max)
{
    for (uint32_t i = 0; i < count && i < max; i++)
        for (uint32_t at = 0; at < TIMING_RANKS_MAX; at++)
            if (timing->ranks[at].used && timing->ranks[at].rank == ranks[i])
                return true;
    return false;
}

/* True if an open verdict names this node, one of its ranks, or an end of a link here. */
static bool
names_us(const struct cairn_agent *agent, const struct cairn_ledger_entry *entry)
{
    const struct timing_state *timing = agent->timing;

    if (entry->closed_wall_ns > 0)
        return false;
    for (uint32_t i = 0; i < entry->node_count && i < CAIRN_LEDGER_NODES_MAX; i++)
        if (entry->nodes[i] == agent->config.node)
            return true;
    return names_rank(timing, entry->ranks, entry->rank_count, CAIRN_LEDGER_RANKS_MAX) ||
           names_rank(timing, entry->links, 2 * entry->link_count, 2 * CAIRN_LEDGER_LINKS_MAX);
}

static bool
is_named(const struct cairn_agent *agent)
{
    for (uint32_t i = 0; i < agent->timing->ledger.count; i++)
        if (names_us(agent, &agent->timing->ledger.entries[i]))
            return true;
    return false;
}

/* Logs causes that were not known before. */
static void
log_new(const struct timing_causes *causes, const struct cause *found, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool is_known = false;

        for (uint32_t at = 0; at < causes->cause_count; at++)
            is_known |= causes->causes[at].kind == found[i].kind &&
                        causes->causes[at].rank == found[i].rank;
        if (!is_known)
            CAIRN_LOG_AT(WARN, "detect: cause=%s on this node: %s", cause_text(found[i].kind),
                         found[i].what);
    }
}

/* Tells the history what is new for a verdict. */
static void
record_new(struct cairn_agent *agent, uint64_t verdict, const struct cause *found)
{
    struct timing_causes *causes = agent->timing->causes;
    struct history_event event = history_event_of(HISTORY_CAUSE);
    uint32_t at;

    for (at = 0; at < TOLD_MAX; at++)
        if (causes->told[at].verdict == verdict && causes->told[at].kind == found->kind &&
            causes->told[at].rank == found->rank)
            return;
    at = (uint32_t)(causes->told_count++ % TOLD_MAX);
    causes->told[at].verdict = verdict;
    causes->told[at].kind = found->kind;
    causes->told[at].rank = found->rank;
    event.subject = verdict;
    event.rank = found->rank;
    event.text = found->what;
    recorder_add(agent, &event);
}

static void
record_all(struct cairn_agent *agent, const struct cause *found, uint32_t count)
{
    const struct cairn_ledger *ledger = &agent->timing->ledger;

    for (uint32_t i = 0; i < ledger->count; i++)
        for (uint32_t c = 0; c < count && names_us(agent, &ledger->entries[i]); c++)
            record_new(agent, ledger->entries[i].number, &found[c]);
}

static void
keep_stacks(struct timing_causes *causes)
{
    causes->stack_count = 0;
    for (uint32_t i = 0; i < causes->now.rank_count; i++) {
        struct rank_stack *stack = &causes->stacks[causes->stack_count];

        if (causes->now.ranks[i].stack[0] == '\0')
            continue;
        stack->rank = causes->now.ranks[i].rank;
        memcpy(stack->text, causes->now.ranks[i].stack, sizeof stack->text);
        causes->stack_count++;
    }
    CAIRN_LOG_AT(INFO, "detect: python stacks ranks=%" PRIu32 " of=%" PRIu32, causes->stack_count,
                 causes->now.rank_count);
}

static void
done(struct cairn_job *job)
{
    struct timing_causes *causes = (struct timing_causes *)job;
    struct cause found[CAUSES_MAX];
    uint32_t count;

    causes->is_running = false;
    if (causes->wants_stacks && causes->stacks_ns > 0) /* else nothing hangs any more */
        keep_stacks(causes);
    causes->wants_stacks = false;
    if (!causes->has_base || !causes->is_for_verdict) {
        causes->base = causes->has_base ? causes->last : causes->now;
        causes->last = causes->now;
        causes->has_base = true;
    }
    if (!causes->is_for_verdict)
        return;
    count = cause_find(&causes->base, &causes->now, found);
    log_new(causes, found, count);
    record_all(causes->agent, found, count);
    memcpy(causes->causes, found, count * sizeof *found);
    causes->cause_count = count;
}

static bool
is_hanging(const struct cairn_ledger *ledger)
{
    for (uint32_t i = 0; i < ledger->count; i++)
        if (ledger->entries[i].closed_wall_ns == 0 &&
            (ledger->entries[i].kind == CAIRN_HANG_COMPUTE ||
             ledger->entries[i].kind == CAIRN_HANG_LINK || ledger->entries[i].kind == CAIRN_CRASH))
            return true;
    return false;
}

static void
begin(struct cairn_agent *agent, bool is_for_verdict, uint64_t now_ns)
{
    struct timing_causes *causes = agent->timing->causes;

    causes->read_ns = now_ns;
    if (!causes->worker && cairn_workers_start(agent->loop, 1, 1, &causes->worker) != CAIRN_OK)
        return; /* tried again when the next reading is due */
    causes->is_for_verdict = is_for_verdict;
    causes->now.rank_count = 0;
    for (uint32_t i = 0; i < TIMING_RANKS_MAX && causes->now.rank_count < READING_RANKS_MAX; i++) {
        const struct timing_rank *rank = &agent->timing->ranks[i];

        if (rank->used && rank->process.pid > 0 && rank->presence != CAIRN_PRESENCE_GONE)
            causes->now.ranks[causes->now.rank_count++] =
                (struct reading_rank){.rank = rank->rank, .pid = rank->process.pid};
    }
    causes->is_running = cairn_workers_submit(causes->worker, &causes->job) == CAIRN_OK;
}

void
timing_causes_tick(struct cairn_agent *agent, uint64_t now_ns)
{
    struct timing_causes *causes = agent->timing->causes;
    bool named;
    uint64_t every_s;

    if (causes->is_running)
        return;
    named = is_named(agent);
    if (!named)
        causes->cause_count = 0;
    if (!is_hanging(&agent->timing->ledger))
        causes->stacks_ns = causes->stack_count = 0;
    else if (causes->stacks_ns == 0 ||
             now_ns >= causes->stacks_ns + STACKS_EVERY_S * CAIRN_NS_PER_S)
        causes->wants_stacks = true;
    if (causes->wants_stacks) {
        causes->stacks_ns = now_ns;
        begin(agent, named, now_ns);
        return;
    }
    every_s = named && causes->is_for_verdict ? READ_AGAIN_S : named ? 0 : BASE_EVERY_S;
    if ((named || agent->timing->ring_count > 0) &&
        (causes->read_ns == 0 || now_ns >= causes->read_ns + every_s * CAIRN_NS_PER_S))
        begin(agent, named, now_ns);
    else if (!named)
        causes->is_for_verdict = false;
}

void
timing_causes_fill(const struct cairn_agent *agent, struct operator_node *out)
{
    const struct timing_causes *causes = agent->timing->causes;

    operator_stacks_begin(out, causes->stack_count);
    for (uint32_t i = 0; i < causes->stack_count; i++)
        operator_stacks_add(out, causes->stacks[i].rank, causes->stacks[i].text);
    out->cause_count = causes->cause_count;
    memcpy(out->causes, causes->causes, causes->cause_count * sizeof *causes->causes);
    for (uint32_t i = 0; causes->cause_count > 0 && i < agent->timing->ledger.count; i++)
        if (names_us(agent, &agent->timing->ledger.entries[i]))
            out->cause_verdicts[out->cause_verdict_count++] =
                agent->timing->ledger.entries[i].number;
}

cairn_err
timing_causes_open(struct cairn_agent *agent)
{
    struct timing_causes *causes = calloc(1, sizeof *causes);

    if (!causes)
        return CAIRN_NOMEM;
    causes->agent = agent;
    causes->job = (struct cairn_job){.run = run, .done = done};
    agent->timing->causes = causes;
    return CAIRN_OK;
}

void
timing_causes_close(struct cairn_agent *agent)
{
    struct timing_causes *causes = agent->timing->causes;

    if (!causes)
        return;
    cairn_workers_stop(causes->worker);
    health_gpus_close(causes->gpus);
    free(causes);
    agent->timing->causes = NULL;
}
