/*
 * agent/service/replanning.c - advises what to do about the plan while ranks are slow; see
 * replanning.h.
 *
 * If this agent is the analyst, rates from open verdicts go to an adviser twice a second while
 * steps are made. A worker makes the offers that the adviser asks for: one thread of low priority,
 * with a time limit, so that trainers keep their processors. The problem that it plans for is also
 * written to `replan.json` in the agent's directory, for `cairn plan --problem`.
 */
#include "agent/service/replanning.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/operator_view.h"
#include "agent/service/placing.h"
#include "agent/service/problem_file.h"
#include "agent/service/proposal_plan.h"
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

enum { ROUND_MS = 500, PLAN_LIMIT_MS = 1000, PLAN_NICE = 10, ROUNDS_AT_REST = 6 };
static const char advice_key[] = "advice";
/* Estimated, not measured: of any change but one of shares alone, and of layers that trainers move
 * while they run. */
static const uint64_t standstill_ns = 10 * CAIRN_NS_PER_S;
static const uint64_t live_standstill_ns = CAIRN_NS_PER_S;

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
    struct cairn_clock clock;
    uint64_t until_ns;
    struct cairn_offers offers;
    cairn_err err;
    char path[CAIRN_CONFIG_PATH_BYTES_MAX + 32];
    int write_errno; /* of that file; 0: it is written */
};

struct replanning_state {
    struct cairn_timer timer;
    struct cairn_adviser *adviser;
    struct cairn_workers *worker;
    double *rates; /* [device_count] */
    atomic_bool is_closing;
    struct cairn_advice advice;
    uint64_t given_wall_ns;
    uint64_t fingerprint; /* of the problem */
    uint64_t plans_made;
    uint64_t steps_before; /* that the analysis had at the last round */
    cairn_err said_err; /* why no plans could be made, when that was said last; CAIRN_OK: they could
                         * since */
    bool was_analysing, said_unknown, said_unwritten;
    uint32_t rounds_at_rest; /* in a row without advice */
};

/* ---- in the worker ---- */

static bool
is_over(void *context)
{
    const struct offering *offering = context;

    return atomic_load(&offering->agent->replanning->is_closing) ||
           cairn_clock_now_ns(&offering->clock) >= offering->until_ns;
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

    /* of this thread; where it cannot be, the limit of time is still there */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), PLAN_NICE);
    offering->until_ns = cairn_clock_now_ns(&offering->clock) + PLAN_LIMIT_MS * CAIRN_NS_PER_MS;
    offering->write_errno = write_problem(&offering->problem, offering->path);
    offering->err =
        cairn_offers_make(&offering->problem, &offering->costs, &stop, &offering->offers);
}

/* ---- in the loop ---- */

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
    cairn_adviser_offered(state->adviser, offering->number,
                          offering->err ? NULL : &offering->offers);
    free(offering->problem.devices);
    free(offering);
}

static void
make_offers(struct cairn_agent *agent)
{
    struct replanning_state *state = agent->replanning;
    struct offering *offering = calloc(1, sizeof *offering);

    if (!offering)
        return; /* with the next round */
    if (!cairn_adviser_wants(state->adviser, &offering->number, &offering->problem)) {
        free(offering);
        return;
    }
    offering->job = (struct cairn_job){.run = run_offering, .done = offering_done};
    offering->agent = agent;
    offering->clock = agent->clock;
    offering->costs =
        (struct cairn_offer_costs){.pause_ms = (double)standstill_ns / 1e6, .restart_ms = INFINITY};
    offering->costs.layers_ms = agent->placing && placing_stages(agent) > 0
                                    ? (double)live_standstill_ns / 1e6
                                    : offering->costs.pause_ms;
    (void)snprintf(offering->path, sizeof offering->path, "%s/replan.json", agent->config.dir);
    if (cairn_workers_submit(state->worker, &offering->job) != CAIRN_OK) {
        cairn_adviser_offered(state->adviser, offering->number, NULL);
        free(offering->problem.devices);
        free(offering);
    }
}

/* Stores the advice for the next agent of this node. */
static void
store_advice(struct cairn_agent *agent)
{
    const struct replanning_state *state = agent->replanning;
    const struct cairn_advice_kept kept = {state->fingerprint, state->given_wall_ns, state->advice};
    uint8_t bytes[CAIRN_ADVICE_KEPT_BYTES];
    struct cairn_writer writer;

    cairn_writer_init(&writer, bytes, sizeof bytes);
    cairn_advice_pack(&kept, &writer);
    if (cairn_writer_done(&writer) != CAIRN_OK ||
        cairn_catalog_put(agent->catalog, CAIRN_TABLE_VERDICTS, advice_key, sizeof advice_key - 1,
                          bytes, writer.used_bytes) != CAIRN_OK)
        CAIRN_LOG_AT(WARN, "catalog: advice is not written any more");
}

/* Sets state->rates from the open verdicts; returns how many slow ranks are no device. */
static uint32_t
take_rates(struct cairn_agent *agent)
{
    struct replanning_state *state = agent->replanning;
    uint32_t ranks[CAIRN_LEDGER_SLOW_MAX], count;
    double rates[CAIRN_LEDGER_SLOW_MAX];

    count = cairn_ledger_slow_ranks(&agent->timing->ledger, ranks, rates);
    return cairn_adviser_rates(state->adviser, ranks, rates, count, state->rates);
}

/* Continues with the stored advice about the same problem, if stored verdicts still say that
 * something is slow. */
static void
load_advice(struct cairn_agent *agent)
{
    struct replanning_state *state = agent->replanning;
    struct cairn_advice_kept kept;
    uint8_t *bytes = NULL;
    size_t bytes_len = 0;
    bool is_slow = false;

    (void)take_rates(agent);
    for (uint32_t i = 0; i < cairn_adviser_device_count(state->adviser); i++)
        is_slow |= state->rates[i] > 1;
    if (is_slow &&
        cairn_catalog_get(agent->catalog, CAIRN_TABLE_VERDICTS, advice_key, sizeof advice_key - 1,
                          &bytes, &bytes_len) == CAIRN_OK &&
        cairn_advice_unpack(bytes, bytes_len, &kept) == CAIRN_OK &&
        kept.fingerprint == state->fingerprint && kept.fingerprint != 0) {
        cairn_adviser_resume(state->adviser, &kept.advice);
        state->advice = kept.advice;
        state->given_wall_ns = kept.given_wall_ns;
    }
    free(bytes);
}

static void
say_change(struct cairn_agent *agent, enum cairn_advice_change change)
{
    struct replanning_state *state = agent->replanning;
    char text[CAIRN_ADVICE_BYTES];

    if (change == CAIRN_ADVICE_WITHDRAWN)
        CAIRN_LOG_AT(INFO,
                     "replan: the advice is withdrawn: the plan that runs is good enough again");
    if (change == CAIRN_ADVICE_GIVEN)
        state->given_wall_ns = cairn_clock_wall_ns(&agent->clock);
    if (change != CAIRN_ADVICE_SAME)
        store_advice(agent);
    if (change != CAIRN_ADVICE_GIVEN)
        return;
    cairn_advice_describe(&state->advice, text, sizeof text);
    CAIRN_LOG_AT(WARN, "replan: advice: %s; `cairn plan --problem %s/replan.json` shows the plan%s",
                 text, agent->config.dir,
                 agent->config.verdict_policy == CAIRN_CONFIG_ENFORCE && !placing_book(agent)
                     ? "; enforce_command is not run for plans: do it yourself"
                     : "");
}

/* ---- acting: shares of micro-batches, and layers ---- */

bool
replanning_home(const struct cairn_agent *agent, struct proposal *out)
{
    return agent->replanning && agent->placing &&
           proposal_make_home(agent->replanning->adviser, placing_stages(agent), out);
}

/* Proposes or offers the placement that the advice leads to, or home when nothing has been advised
 * for some rounds. Advice that needs more than the trainers can do changes nothing. */
static void
act(struct cairn_agent *agent)
{
    struct replanning_state *state = agent->replanning;
    const struct proposal_book *book = placing_book(agent);
    const struct proposal *running;
    struct proposal_round round = {.needs_approval =
                                       agent->config.plan_policy == CAIRN_PLAN_APPROVE,
                                   .changes_per_day = agent->config.plans_per_day,
                                   .wall_ns = cairn_clock_wall_ns(&agent->clock)};
    struct proposal home, plan;
    uint64_t layer_bytes;

    if (!book || !replanning_home(agent, &home))
        return;
    placing_repeat(agent);
    state->rounds_at_rest =
        state->advice.action == CAIRN_REPLAN_NONE ? state->rounds_at_rest + 1 : 0;
    layer_bytes = cairn_adviser_problem(state->adviser)->layer_bytes;
    running = proposal_running(book, &home);
    if (proposal_make(state->adviser, &state->advice, placing_stages(agent), &plan)) {
        proposal_compare(running, layer_bytes, &plan);
        round.plan = &plan;
    }
    proposal_compare(running, layer_bytes, &home);
    round.home = &home;
    round.at_rest = state->rounds_at_rest >= ROUNDS_AT_REST;
    placing_take_round(agent, &round);
}

void
replanning_decide(struct cairn_agent *agent, const struct proposal_decision *decision, bool dry_run,
                  struct proposal_answer *out)
{
    struct proposal_slow slow = {0};
    struct proposal home;
    bool has_home = replanning_home(agent, &home);
    struct proposal_scene scene = {.home = has_home ? &home : NULL,
                                   .slow = &slow,
                                   .needs_approval =
                                       agent->config.plan_policy == CAIRN_PLAN_APPROVE,
                                   .wall_ns = cairn_clock_wall_ns(&agent->clock)};

    if (has_home)
        proposal_find_slow(agent->replanning->adviser, &slow);
    if (!agent->placing) {
        *out = (struct proposal_answer){.exit_code = 77};
        (void)snprintf(out->text, sizeof out->text,
                       "plan_policy: it is neither approve nor enforce in the file of node %u, "
                       "which plans; set it to approve there, and restart that agent",
                       agent->config.node);
        return;
    }
    placing_decide(agent, decision, &scene, dry_run, out);
}

static void
take_round(struct cairn_agent *agent, const struct cairn_live_view *view)
{
    struct replanning_state *state = agent->replanning;
    uint64_t steps;
    uint32_t unknown;

    steps = state->was_analysing && view->steps > state->steps_before
                ? view->steps - state->steps_before
                : 0;
    state->steps_before = view->steps;
    state->was_analysing = true;
    if (steps == 0)
        return; /* the job stands, or begins: nothing is measured */
    unknown = take_rates(agent);
    if (unknown > 0 && !state->said_unknown) {
        CAIRN_LOG_AT(
            WARN, "replan: %u slow ranks are no device's id in %s: nothing is advised about them",
            unknown, agent->config.problem);
        state->said_unknown = true;
    }
    say_change(agent,
               cairn_adviser_round(state->adviser, state->rates, (uint32_t)steps, &state->advice));
    act(agent);
    make_offers(agent);
}

static void
on_timer(void *context)
{
    struct cairn_agent *agent = context;
    struct replanning_state *state = agent->replanning;
    struct cairn_live_view view;

    if (agent->timing && timing_analysis_look(agent, &view))
        take_round(agent, &view);
    else
        state->was_analysing = false;
    if (!agent->stopping)
        cairn_timer_start(agent->loop, &state->timer,
                          agent_now_ns(agent) + ROUND_MS * CAIRN_NS_PER_MS);
}

void
replanning_fill(const struct cairn_agent *agent, struct operator_node *out)
{
    const struct replanning_state *state = agent->replanning;
    const struct cairn_advice *advice;
    struct cairn_live_view view;

    if (!state || !agent->timing || !timing_analysis_look(agent, &view))
        return;
    advice = &state->advice;
    out->plans_made = state->plans_made;
    if (advice->action == CAIRN_REPLAN_NONE)
        return;
    out->advice_action = (uint64_t)advice->action + 1;
    out->advice_current_ns =
        advice->current_ms < INFINITY ? (uint64_t)(advice->current_ms * 1e6) : OPERATOR_UNKNOWN;
    out->advice_step_ns = (uint64_t)(advice->step_ms * 1e6);
    out->advice_cost_ns = (uint64_t)(advice->cost_ms * 1e6);
    out->advice_payback_steps = advice->payback_steps;
    out->advice_given_wall_ns = state->given_wall_ns;
}

/* ---- life ---- */

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
    if (!err && adviser && !is_wanted)
        CAIRN_LOG_AT(INFO,
                     "agent: there is a problem to plan for, but %s is observe: nothing is "
                     "planned",
                     agent->config.plan_policy == CAIRN_PLAN_OBSERVE ? "plan_policy"
                                                                     : "verdict_policy");
    if (err || !adviser || !is_wanted) {
        cairn_adviser_destroy(adviser);
        return err;
    }
    state = calloc(1, sizeof *state);
    if (!state) {
        cairn_adviser_destroy(adviser);
        return CAIRN_NOMEM;
    }
    agent->replanning = state;
    state->adviser = adviser;
    state->advice.action = CAIRN_REPLAN_NONE;
    atomic_init(&state->is_closing, false);
    state->rates = calloc((size_t)cairn_adviser_device_count(adviser) + 1, sizeof *state->rates);
    if (!state->rates)
        return CAIRN_NOMEM;
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

    if (!state)
        return;
    atomic_store(&state->is_closing, true);
    if (state->worker) {
        cairn_timer_stop(agent->loop, &state->timer);
        cairn_workers_stop(state->worker);
    }
    cairn_adviser_destroy(state->adviser);
    free(state->rates);
    free(state);
    agent->replanning = NULL;
}
