/*
 * agent/service/replanning.c - advises what to do about the plan while ranks are slow; see
 * replanning.h.
 *
 * The shell of the analyst (analyst.h), which decides: twice a second, and when steps have been
 * analysed, it gets the results of the analysis. A worker makes the plans that it asks for: one
 * thread of low priority, with a time limit, so that trainers keep their processors. The problem
 * that it plans for is also written to `replan.json` in the agent's directory, for `cairn plan
 * --problem`.
 */
#include "agent/service/replanning.h"

#include "agent/core/core.h"
#include "agent/process/agent_state.h"
#include "agent/process/session.h"
#include "agent/process/step.h"
#include "agent/service/analyst.h"
#include "agent/service/operator_state.h"
#include "agent/service/operator_view.h"
#include "agent/service/placing.h"
#include "agent/service/problem_file.h"
#include "agent/service/timing_analysis.h"
#include "agent/service/timing_state.h"
#include "base/log.h"
#include "base/worker.h"
#include "snapshot/catalog.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ROUND_MS = 500, PLAN_LIMIT_MS = 1000, PLAN_NICE = 10 };
static const char advice_key[] = "advice";
/* Of an exchange of hardware: estimated, not measured. */
static const uint64_t standstill_ns = 10 * CAIRN_NS_PER_S;

uint64_t
replanning_standstill_ns(void)
{
    return standstill_ns;
}

/* Offers being made. Belongs to the worker between submit and done. */
struct offering {
    struct cairn_job job;
    struct cairn_agent *agent;
    struct cairn_problem problem; /* owns its devices alone */
    uint64_t number;
    struct cairn_offer_costs costs;
    uint64_t until_ns; /* of the worker's CPU time: trainers' use does not count */
    struct cairn_offers offers;
    cairn_err err;
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 32];
    int write_errno; /* of that file; 0: it is written */
};

struct replanning_state {
    struct cairn_timer timer;
    struct cairn_workers *worker;
    atomic_bool is_closing;
    uint64_t fingerprint; /* of the problem */
    uint64_t plans_made;
    cairn_err said_err; /* the logged reason for making no plans; CAIRN_OK: it has worked since */
    bool said_unwritten;
};

/* ---- in the worker ---- */

static bool
is_over(void *context)
{
    const struct offering *offering = context;

    return atomic_load(&offering->agent->replanning->is_closing) ||
           cairn_clock_thread_cpu_ns() >= offering->until_ns;
}

/* Writes the problem beside its place and renames it, so that readers see a whole file. Returns 0
 * or errno. */
static int
write_problem(const struct cairn_problem *problem, const char *path)
{
    char beside[CAIRN_CONFIG_PATH_BYTES_MAX + 40], *text = NULL;
    struct cairn_json_writer writer;
    size_t text_bytes = 0;
    int failed = ENOMEM;
    FILE *file;

    (void)snprintf(beside, sizeof beside, "%s.new", path);
    cairn_json_writer_init(&writer);
    if (cairn_problem_write(problem, &writer) == CAIRN_OK &&
        cairn_json_writer_done(&writer, &text, &text_bytes) == CAIRN_OK) {
        file = fopen(beside, "we");
        failed = file ? 0 : errno;
        if (file && fwrite(text, 1, text_bytes, file) != text_bytes)
            failed = errno ? errno : EIO;
        if (file && fclose(file) != 0 && !failed)
            failed = errno;
        if (!failed && rename(beside, path) != 0)
            failed = errno;
    }
    free(text);
    cairn_json_writer_fini(&writer);
    return failed;
}

static void
run_offering(struct cairn_job *job)
{
    struct offering *offering = (struct offering *)job;
    struct cairn_stop stop = {is_over, offering};

    /* of this thread; if that fails, the time limit still holds */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), PLAN_NICE);
    offering->until_ns = cairn_clock_thread_cpu_ns() + PLAN_LIMIT_MS * CAIRN_NS_PER_MS;
    offering->write_errno = write_problem(&offering->problem, offering->path);
    offering->err =
        cairn_offers_make(&offering->problem, &offering->costs, &stop, &offering->offers);
}

/* ---- in the loop ---- */

static void
give_plans(struct cairn_agent *agent, uint64_t number, struct cairn_offers *offers)
{
    const struct analyst_event event = {.type = ANALYST_PLANS, .as.plans = {number, offers}};
    struct analyst_actions actions;

    analyst_step(agent->analyst, &event, &actions);
}

static void
offering_done(struct cairn_job *job)
{
    struct offering *offering = (struct offering *)job;
    struct replanning_state *state = offering->agent->replanning;

    if (offering->write_errno && !state->said_unwritten) {
        CAIRN_LOG_AT(WARN,
                     "replan: cannot write %s: %s: advice comes without the file to plan with",
                     offering->path, strerror(offering->write_errno));
        state->said_unwritten = true;
    }
    /* they are tried again with each round */
    if (offering->err && offering->err != state->said_err)
        CAIRN_LOG_AT(WARN, "replan: no plans could be made: %s", cairn_err_text(offering->err));
    state->said_err = offering->err;
    state->plans_made += !offering->err;
    give_plans(offering->agent, offering->number, offering->err ? NULL : &offering->offers);
    free(offering->problem.devices);
    free(offering);
}

/* Takes over actions->problem. */
static void
make_plans(struct cairn_agent *agent, const struct analyst_actions *actions)
{
    struct offering *offering = calloc(1, sizeof *offering);

    if (!offering) { /* they are wanted again with the next round */
        give_plans(agent, actions->plans_number, NULL);
        free(actions->problem.devices);
        return;
    }
    offering->job = (struct cairn_job){.run = run_offering, .done = offering_done};
    offering->agent = agent;
    offering->number = actions->plans_number;
    offering->problem = actions->problem;
    offering->costs = actions->costs;
    (void)snprintf(offering->path, sizeof offering->path, "%s/replan.json", agent->config.dir);
    if (cairn_workers_submit(agent->replanning->worker, &offering->job) != CAIRN_OK) {
        give_plans(agent, offering->number, NULL);
        free(offering->problem.devices);
        free(offering);
    }
}

/* Stores the advice for the next agent of this node. */
static void
store_advice(struct cairn_agent *agent)
{
    struct cairn_advice_kept kept = {.fingerprint = agent->replanning->fingerprint};
    uint8_t bytes[CAIRN_ADVICE_KEPT_BYTES];
    struct cairn_writer writer;

    kept.advice = *analyst_advice(agent->analyst, &kept.given_wall_ns);
    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_advice_pack(&kept, &writer);
    if (cairn_writer_done(&writer) != CAIRN_OK ||
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_VERDICTS, advice_key, sizeof advice_key - 1,
                          bytes, writer.used_bytes) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: advice is not written any more");
}

/* Whether stored verdicts say that a device of the problem is slow. */
static bool
is_something_slow(const struct cairn_agent *agent, const struct cairn_adviser *adviser)
{
    const struct cairn_problem *problem = cairn_adviser_problem(adviser);
    uint32_t ranks[CAIRN_LEDGER_SLOW_MAX], count;
    double rates[CAIRN_LEDGER_SLOW_MAX];

    count = cairn_ledger_slow_ranks(&agent->timing->ledger, ranks, rates);
    for (uint32_t i = 0; i < count; i++)
        if (rates[i] > 1 && cairn_problem_device_find(problem, ranks[i]) < problem->device_count)
            return true;
    return false;
}

/* Continues with the stored advice about the same problem, if stored verdicts still show something
 * slow. */
static void
load_advice(struct cairn_agent *agent)
{
    struct cairn_advice_kept kept;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;

    if (is_something_slow(agent, analyst_adviser(agent->analyst)) &&
        cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, advice_key, sizeof advice_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        cairn_advice_unpack(bytes, bytes_len, &kept) == CAIRN_OK &&
        kept.fingerprint == agent->replanning->fingerprint && kept.fingerprint != 0)
        analyst_start_with_advice(agent->analyst, &kept);
    free(bytes);
}

static void
say_advice(const struct cairn_agent *agent, uint32_t what, uint32_t unknown)
{
    char text[CAIRN_ADVICE_BYTES];
    uint64_t given_wall_ns;

    if (what & ANALYST_SAY_UNKNOWN)
        CAIRN_LOG_AT(WARN,
                     "replan: %u slow ranks are not devices in %s: nothing is advised about them",
                     unknown, agent->config.problem);
    if (what & ANALYST_SAY_NO_ADVICE)
        CAIRN_LOG_AT(INFO,
                     "replan: the advice is withdrawn: the plan that runs is good enough again");
    if (!(what & ANALYST_SAY_ADVICE))
        return;
    cairn_advice_describe(analyst_advice(agent->analyst, &given_wall_ns), text, sizeof text);
    CAIRN_LOG_AT(WARN, "replan: advice: %s; `cairn plan --problem %s/replan.json` shows the plan%s",
                 text, agent->config.dir,
                 agent->config.verdict_policy == CAIRN_CONFIG_ENFORCE && !placing_book(agent)
                     ? "; enforce_command is not run for plans: do it yourself"
                     : "");
}

/* ---- events ---- */

/* Steps that were made since the last verdict that lasts began or came back. */
static uint32_t
count_steady(const struct cairn_ledger *ledger, uint32_t last_step)
{
    uint32_t since = 0;

    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[i];

        if (entry->closed_wall_ns == 0 &&
            (entry->kind == CAIRN_SLOW_COMPUTE || entry->kind == CAIRN_SLOW_NODE) &&
            entry->run_since_step != CAIRN_STEP_NONE && entry->run_since_step > since)
            since = entry->run_since_step;
    }
    return last_step > since ? last_step - since : 0;
}

static bool
is_hung(const struct cairn_ledger *ledger)
{
    for (uint32_t i = 0; i < ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[i];

        if (entry->closed_wall_ns == 0 && entry->kind >= CAIRN_HANG_COMPUTE &&
            entry->kind <= CAIRN_CRASH)
            return true;
    }
    return false;
}

/* What the verdicts say about the ranks that a proposal was made for. */
static uint32_t
find_unsure(const struct cairn_agent *agent, uint64_t run, uint64_t unsure[PROPOSAL_SLOW_MAX])
{
    const struct proposal_book *book = placing_book(agent);
    uint32_t count = 0;

    for (uint32_t i = 0; book && i < book->offer.slow.count && i < PROPOSAL_SLOW_MAX; i++)
        if (cairn_ledger_is_unsure(&agent->timing->ledger, book->offer.slow.ranks[i], run,
                                   book->offer.evidence_wall_ns))
            unsure[count++] = book->offer.slow.ranks[i];
    return count;
}

/* The state that this node's trainers have registered, by rank. */
static uint64_t
find_held(const struct cairn_agent *agent, uint32_t ranks[SESSIONS_MAX], uint32_t *count)
{
    uint64_t blocks = 0;

    *count = 0;
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];

        if (!session_is_rank(session))
            continue;
        ranks[(*count)++] = session->hello.rank;
        blocks += session->region_blocks;
    }
    return blocks * CAIRN_BLOCK_BYTES;
}

static void
take_round(struct cairn_agent *agent, bool is_early)
{
    struct analyst_event event = {.type = ANALYST_ROUND,
                                  .wall_ns = cairn_clock_wall_ns(&agent->clock)};
    struct analyst_round *round = &event.as.round;
    uint32_t ranks[CAIRN_LEDGER_SLOW_MAX], held_ranks[SESSIONS_MAX];
    double rates[CAIRN_LEDGER_SLOW_MAX];
    uint64_t unsure[PROPOSAL_SLOW_MAX];
    struct analyst_actions actions;
    struct cairn_core_view core;
    struct cairn_live_view view;

    if (agent->timing && timing_analysis_look(agent, &view)) {
        const struct cairn_ledger *ledger = &agent->timing->ledger;

        *round = (struct analyst_round){.analyses = true,
                                        .is_early = is_early,
                                        .steps = view.steps,
                                        .last_step = view.analysed_step,
                                        .is_calibrated = view.is_calibrated,
                                        .is_whole =
                                            view.ranks_reporting == view.world && !is_hung(ledger),
                                        .recent_ms = view.recent_ms,
                                        .steady_steps = count_steady(ledger, view.last_step),
                                        .is_asked = agent->placing && placing_is_asked(agent),
                                        .stages = agent->placing ? placing_stages(agent) : 0,
                                        .slow_count = cairn_ledger_slow_ranks(ledger, ranks, rates),
                                        .slow_ranks = ranks,
                                        .slow_rates = rates,
                                        .unsure_count = find_unsure(agent, view.run, unsure),
                                        .unsure_ranks = unsure,
                                        .held_ranks = held_ranks};
        cairn_core_look(agent->core, &core);
        round->committed_epoch = core.committed.epoch;
        round->committed_step = core.committed.step;
        if (agent->operators && agent->operators->launcher.serial) {
            round->reads = agent->operators->launcher.reads;
            round->shape = agent->operators->launcher.shape;
            round->standby = agent->operators->launcher.standby;
        }
        round->held_bytes = find_held(agent, held_ranks, &round->held_count);
    }
    analyst_step(agent->analyst, &event, &actions);
    say_advice(agent, actions.what, actions.unknown);
    if (actions.what & ANALYST_STORE_ADVICE)
        store_advice(agent);
    (void)placing_carry_out(agent, &actions, UINT32_MAX);
    if (actions.what & ANALYST_MAKE_PLANS)
        make_plans(agent, &actions);
    if (round->analyses)
        placing_repeat(agent);
}

void
replanning_turn(struct cairn_agent *agent)
{
    if (agent->replanning && !agent->stopping)
        take_round(agent, true);
}

void
replanning_decide(struct cairn_agent *agent, const struct proposal_decision *decision, bool dry_run,
                  struct proposal_answer *out)
{
    struct analyst_event event = {.type = ANALYST_DECISION,
                                  .wall_ns = cairn_clock_wall_ns(&agent->clock),
                                  .as.decision = {.decision = decision, .dry_run = dry_run}};
    static const char *const words[] = {[PROPOSAL_APPROVE] = "approved",
                                        [PROPOSAL_DENY] = "denied",
                                        [PROPOSAL_GO_BACK] = "went back by offer",
                                        [PROPOSAL_NOW] = "did not wait with offer"};
    struct analyst_actions actions;

    if (!agent->placing) {
        *out = (struct proposal_answer){.exit_code = 77};
        (void)snprintf(out->text, sizeof out->text,
                       "plan_policy: it is neither approve nor enforce in the file of node %u, "
                       "which plans; set it to approve there, and restart that agent",
                       agent->config.node);
        return;
    }
    event.as.decision.stages = placing_stages(agent);
    analyst_step(agent->analyst, &event, &actions);
    *out = actions.answer;
    if (actions.what & ANALYST_STORE)
        CAIRN_LOG_AT(INFO, "replan: an operator at node %u %s %" PRIu64, decision->node,
                     words[decision->word], out->number);
    if (!placing_carry_out(agent, &actions, UINT32_MAX)) {
        out->exit_code = 74;
        (void)snprintf(out->text, sizeof out->text,
                       "plan: the agent of node %u cannot store decisions; look at its disk and "
                       "its log, then try again",
                       agent->config.node);
    }
}

bool
replanning_home(const struct cairn_agent *agent, struct proposal *out)
{
    return agent->placing && analyst_home(agent->analyst, placing_stages(agent), out);
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;

    take_round(agent, false);
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &agent->replanning->timer,
                          agent_now_ns(agent) + ROUND_MS * CAIRN_NS_PER_MS);
}

void
replanning_fill(const struct cairn_agent *agent, struct operator_node *out)
{
    const struct cairn_advice *advice;
    struct cairn_live_view view;
    uint64_t given_wall_ns;

    if (!agent->replanning || !agent->timing || !timing_analysis_look(agent, &view))
        return;
    advice = analyst_advice(agent->analyst, &given_wall_ns);
    out->refused_gate = analyst_refused(agent->analyst, &out->refused_wall_ns);
    out->plans_made = agent->replanning->plans_made;
    if (advice->action == CAIRN_REPLAN_NONE)
        return;
    out->advice_action = (uint64_t)advice->action + 1;
    out->advice_current_ns =
        advice->current_ms < INFINITY ? (uint64_t)(advice->current_ms * 1e6) : OPERATOR_UNKNOWN;
    out->advice_step_ns = (uint64_t)(advice->step_ms * 1e6);
    out->advice_cost_ns = (uint64_t)(advice->cost_ms * 1e6);
    out->advice_payback_steps = advice->payback_steps;
    out->advice_given_wall_ns = given_wall_ns;
}

/* ---- life ---- */

/* Takes the adviser over, also if it fails. */
static cairn_err
create_analyst(struct cairn_agent *agent, struct cairn_adviser *adviser)
{
    const struct cairn_config *config = &agent->config;
    const struct analyst_options options = {
        .adviser = adviser,
        .offers = config->plan_policy >= CAIRN_PLAN_APPROVE,
        .needs_approval = config->plan_policy == CAIRN_PLAN_APPROVE,
        .node = config->node,
        .changes_per_day = config->plans_per_day,
        .standstill_per_day_ns = config->standstill_per_day_s * CAIRN_NS_PER_S,
        .snapshot_every_steps = config->snapshot_every_steps,
        .state_bytes = config->state_bytes};
    cairn_err err = analyst_create(&options, &agent->analyst);

    if (err)
        cairn_adviser_destroy(adviser);
    return err;
}

cairn_err
replanning_open(struct cairn_agent *agent)
{
    char error[CAIRN_CONFIG_ERROR_BYTES];
    struct cairn_adviser *adviser = NULL;
    struct replanning_state *state;
    bool is_wanted = agent->config.plan_policy >= CAIRN_PLAN_APPROVE ||
                     (agent->config.plan_policy == CAIRN_PLAN_ADVISE &&
                      agent->config.verdict_policy != CAIRN_CONFIG_OBSERVE);
    cairn_err err;

    err = cairn_problem_file_load(&agent->config, &adviser, error, sizeof error);
    if (err)
        CAIRN_LOG_AT(ERROR, "agent: %s", error);
    if (err)
        return err;
    if (adviser && !is_wanted) {
        CAIRN_LOG_AT(INFO,
                     "agent: there is a problem to plan for, but %s is observe: nothing is "
                     "planned",
                     agent->config.plan_policy == CAIRN_PLAN_OBSERVE ? "plan_policy"
                                                                     : "verdict_policy");
        cairn_adviser_destroy(adviser);
        adviser = NULL;
    }
    if (!adviser && agent->config.plan_policy < CAIRN_PLAN_APPROVE)
        return CAIRN_OK;
    err = create_analyst(agent, adviser);
    if (err || !adviser)
        return err;
    state = calloc(1, sizeof *state);
    if (!state)
        return CAIRN_NOMEM;
    agent->replanning = state;
    atomic_init(&state->is_closing, false);
    state->fingerprint = cairn_adviser_fingerprint(adviser);
    load_advice(agent);
    err = cairn_workers_start(agent->loop, 1, 1, &state->worker);
    if (err)
        return err;
    cairn_timer_init(&state->timer, on_timer, agent);
    cairn_timer_start(agent->loop, &state->timer, agent_now_ns(agent) + ROUND_MS * CAIRN_NS_PER_MS);
    return CAIRN_OK;
}

void
replanning_close(struct cairn_agent *agent)
{
    struct replanning_state *state = agent->replanning;

    if (state) {
        atomic_store(&state->is_closing, true);
        if (state->worker) {
            cairn_timer_stop(agent->loop, &state->timer);
            cairn_workers_stop(state->worker);
        }
        free(state);
    }
    agent->replanning = NULL;
    analyst_destroy(agent->analyst);
    agent->analyst = NULL;
}
