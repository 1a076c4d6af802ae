/* agent/service/operator_replan.c - advice, proposals and offers about the plan, as JSON: the
 * status' "replan", and the answer of `cairn replan`. Pure. */
#include "agent/service/operator_replan.h"

#include "agent/service/operator_verdicts.h"
#include "replan/advise/adviser.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const action_names[CAIRN_REPLAN_COUNT] = {[CAIRN_REPLAN_MICROBATCHES] =
                                                                 "microbatches",
                                                             [CAIRN_REPLAN_LAYERS] = "layers",
                                                             [CAIRN_REPLAN_GROUPS] = "groups",
                                                             [CAIRN_REPLAN_RESTART] = "restart"};

static const char *const policy_names[] = {[CAIRN_PLAN_OBSERVE] = "observe",
                                           [CAIRN_PLAN_ADVISE] = "advise",
                                           [CAIRN_PLAN_APPROVE] = "approve",
                                           [CAIRN_PLAN_ENFORCE] = "enforce"};

enum { EXIT_NOTHING = 4 };

static void
put_ms(struct cairn_json_writer *writer, const char *key, double ms)
{
    cairn_json_write_key(writer, key);
    if (ms < INFINITY)
        cairn_json_write_double(writer, ms);
    else
        cairn_json_write_null(writer);
}

static double
ms_of(uint64_t ns)
{
    return ns == OPERATOR_UNKNOWN ? INFINITY : (double)ns / 1e6;
}

static void
put_advice(struct cairn_json_writer *writer, const struct operator_node *node)
{
    const struct cairn_advice advice = {.action =
                                            (enum cairn_replan_action)(node->advice_action - 1),
                                        .current_ms = ms_of(node->advice_current_ns),
                                        .step_ms = ms_of(node->advice_step_ns),
                                        .cost_ms = ms_of(node->advice_cost_ns),
                                        .payback_steps = node->advice_payback_steps};
    char text[CAIRN_ADVICE_BYTES];

    cairn_advice_describe(&advice, text, sizeof text);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "action", action_names[advice.action]);
    cairn_json_put_string(writer, "what", text);
    put_ms(writer, "current_ms", advice.current_ms);
    put_ms(writer, "step_ms", advice.step_ms);
    put_ms(writer, "cost_ms", advice.cost_ms);
    cairn_json_put_u64(writer, "payback_steps", advice.payback_steps);
    cairn_json_put_u64(writer, "given_wall_ns", node->advice_given_wall_ns);
    cairn_json_write_object_end(writer);
}

/* ---- placements ---- */

/* "micro_batches", and "layers" of each stage of each replica; null if they stay where they are. */
static void
put_placement(struct cairn_json_writer *writer, const struct cairn_session_shares *placement)
{
    cairn_json_put_array(writer, "micro_batches");
    for (uint32_t i = 0; i < placement->count; i++)
        cairn_json_write_u64(writer, placement->parts[i]);
    cairn_json_write_array_end(writer);
    cairn_json_write_key(writer, "layers");
    if (placement->stages == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_array_begin(writer);
    for (uint32_t r = 0; r < placement->count; r++) {
        cairn_json_write_array_begin(writer);
        for (uint32_t s = 0; s < placement->stages; s++)
            cairn_json_write_u64(writer, placement->layers[r * placement->stages + s]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

/* Since which step an open verdict calls the rank or its node slow; null unknown. A verdict may
 * have ended and come back: what slows the rank now began with its return. */
static void
put_since(struct cairn_json_writer *writer, const struct cairn_ledger *ledger, uint64_t rank)
{
    uint32_t since = CAIRN_STEP_NONE;

    for (uint32_t i = 0; ledger && i < ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &ledger->entries[i];

        if (entry->closed_wall_ns != 0 || entry->run_since_step >= since ||
            (entry->kind != CAIRN_SLOW_COMPUTE && entry->kind != CAIRN_SLOW_NODE))
            continue;
        for (uint32_t r = 0; r < entry->rank_count && r < CAIRN_LEDGER_RANKS_MAX; r++)
            if (entry->ranks[r] == rank)
                since = entry->run_since_step;
    }
    cairn_json_write_key(writer, "since_step");
    if (since == CAIRN_STEP_NONE)
        cairn_json_write_null(writer);
    else
        cairn_json_write_u64(writer, since);
}

static void
put_slow(struct cairn_json_writer *writer, const struct operator_job *job,
         const struct proposal_slow *slow)
{
    cairn_json_put_u64(writer, "slow_count", slow->count);
    cairn_json_put_array(writer, "slow");
    for (uint32_t i = 0; i < slow->count && i < PROPOSAL_SLOW_MAX; i++) {
        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "rank", slow->ranks[i]);
        cairn_json_put_double(writer, "rate", slow->rates[i]);
        put_since(writer, job->ledger, slow->ranks[i]);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

/* The cost: 0 a new start of the job's command, 1 other shares, 2 layers that move. */
static uint64_t
level_of(const struct proposal *proposal)
{
    if (proposal->shape.tp)
        return 0;
    return proposal->moved_layers || proposal->action == CAIRN_REPLAN_LAYERS ? 2 : 1;
}

/* Where the command of a relaunch starts. */
static void
put_shape(struct cairn_json_writer *writer, const struct proposal_shape *shape)
{
    if (shape->tp == 0)
        return;
    cairn_json_put_u64(writer, "tp", shape->tp);
    cairn_json_put_array(writer, "nodes");
    for (uint32_t i = 0; i < shape->node_count; i++)
        cairn_json_write_u64(writer, shape->nodes[i]);
    cairn_json_write_array_end(writer);
}

/* The fields of a proposal, into the object that is open. */
static void
put_proposal(struct cairn_json_writer *writer, const struct operator_job *job,
             const struct proposal *proposal)
{
    bool is_action = proposal->action < CAIRN_REPLAN_COUNT;

    cairn_json_put_u64(writer, "number", proposal->placement.number);
    cairn_json_put_u64(writer, "level", level_of(proposal));
    put_placement(writer, &proposal->placement);
    put_shape(writer, &proposal->shape);
    cairn_json_put_bool(writer, "home", proposal->is_home);
    cairn_json_put_string(writer, "action", is_action ? action_names[proposal->action] : "home");
    put_ms(writer, "current_ms", proposal->current_ms);
    put_ms(writer, "step_ms", proposal->step_ms);
    put_ms(writer, "lower_bound_ms", proposal->bound_ms);
    put_ms(writer, "price_ms", proposal->cost_ms);
    cairn_json_put_u64(writer, "payback_steps", proposal->payback_steps);
    cairn_json_put_u64(writer, "moved_layers", proposal->moved_layers);
    cairn_json_put_u64(writer, "moved_bytes", proposal->moved_bytes);
    cairn_json_put_u64(writer, "made_wall_ns", proposal->made_wall_ns);
    put_slow(writer, job, &proposal->slow);
}

/* The proposal that waits for an operator; null: none does. */
static void
put_waiting(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct proposal_book *book = job->book;

    cairn_json_write_key(writer, "proposal");
    if (!book || book->waiting.placement.count == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    put_proposal(writer, job, &book->waiting);
    cairn_json_write_key(writer, "running_ms"); /* a step of the last offer, if it can be
                                                 * compared */
    if (book->offer.placement.count &&
        proposal_is_same_slow(&book->offer.slow, &book->waiting.slow))
        cairn_json_write_double(writer, book->offer.step_ms);
    else
        cairn_json_write_null(writer);
    cairn_json_write_object_end(writer);
}

/* How the offer was decided: "approved" or "back" by an operator at "decided_node", or "enforced"
 * by plan_policy. */
static void
put_decided(struct cairn_json_writer *writer, const struct proposal *offer)
{
    cairn_json_put_string(writer, "decided",
                          offer->decided == PROPOSAL_BACK ? "back"
                          : offer->decided                ? "approved"
                                                          : "enforced");
    cairn_json_write_key(writer, "decided_node");
    if (offer->decided)
        cairn_json_write_u64(writer, offer->node);
    else
        cairn_json_write_null(writer);
}

/* A relaunch: the one that waits for an operator, or the last approved one; null. */
static void
put_relaunch(struct cairn_json_writer *writer, const struct operator_job *job, const char *key,
             const struct proposal *relaunch)
{
    cairn_json_write_key(writer, key);
    if (!relaunch || relaunch->placement.count == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    put_proposal(writer, job, relaunch);
    put_ms(writer, "running_ms", relaunch->running_ms);
    if (relaunch->decided)
        put_decided(writer, relaunch);
    cairn_json_write_object_end(writer);
}

/* The newest offer, and how many ranks compute by it; null: there was none. */
static void
put_offer(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct proposal *offer = job->book ? &job->book->offer : NULL;
    uint64_t askers = 0, takers = 0, changes = 0;

    cairn_json_write_key(writer, "offer");
    if (!offer || offer->placement.count == 0) {
        cairn_json_write_null(writer);
        return;
    }
    for (uint32_t node = 0; node < job->config->node_count; node++) {
        const struct operator_node *each = &job->nodes[node];

        if (!each->known)
            continue;
        askers += each->offer_askers;
        if (each->offer_number != offer->placement.number)
            continue;
        takers += each->offer_takers;
        changes = each->offer_changes > changes ? each->offer_changes : changes;
    }
    cairn_json_write_object_begin(writer);
    put_proposal(writer, job, offer);
    put_decided(writer, offer);
    cairn_json_put_u64(writer, "ranks_asking", askers);
    cairn_json_put_u64(writer, "ranks_taken", takers);
    cairn_json_put_u64(writer, "changes_today", changes);
    cairn_json_put_u64(writer, "changes_per_day", job->config->plans_per_day);
    cairn_json_write_object_end(writer);
}

/* Why the wanted placement is neither proposed nor offered; null: none is wanted, or it is. */
static void
put_refused(struct cairn_json_writer *writer, const struct operator_node *analyst)
{
    uint64_t gate = analyst ? analyst->refused_gate : PROPOSAL_GATE_NONE;

    cairn_json_write_key(writer, "refused");
    if (gate == PROPOSAL_GATE_NONE || gate >= PROPOSAL_GATES) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "gate", proposal_gate_name((enum proposal_gate)gate));
    cairn_json_put_string(writer, "why", proposal_gate_why((enum proposal_gate)gate));
    cairn_json_put_u64(writer, "since_wall_ns", analyst->refused_wall_ns);
    cairn_json_write_object_end(writer);
}

/* "problem" to "proposal", into the object that is open. */
static void
put_plan(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct operator_node *analyst;
    uint32_t index = 0;

    analyst = operator_analyst(job, &index);
    cairn_json_write_key(writer, "problem");
    if (job->config->problem[0])
        cairn_json_write_string(writer, job->config->problem);
    else
        cairn_json_write_null(writer);
    cairn_json_put_string(writer, "policy", policy_names[job->config->plan_policy]);
    cairn_json_write_key(writer, "node"); /* of the agent that plans, with replan.json in its
                                           * directory */
    if (analyst && job->config->problem[0])
        cairn_json_write_u64(writer, index);
    else
        cairn_json_write_null(writer);
    cairn_json_put_u64(writer, "plans_made", analyst ? analyst->plans_made : 0);
    cairn_json_put_bool(writer, "enforced", job->config->plan_policy == CAIRN_PLAN_ENFORCE);
    cairn_json_write_key(writer, "advice");
    if (analyst && analyst->advice_action >= 1 && analyst->advice_action <= CAIRN_REPLAN_COUNT)
        put_advice(writer, analyst);
    else
        cairn_json_write_null(writer);
    put_offer(writer, job);
    put_waiting(writer, job);
    put_relaunch(writer, job, "relaunch", job->book ? &job->book->relaunch : NULL);
    put_relaunch(writer, job, "shape", job->book ? &job->book->shape : NULL);
    put_refused(writer, analyst);
}

void
operator_replan_report(struct cairn_json_writer *writer, const struct operator_job *job)
{
    cairn_json_write_object_begin(writer);
    put_plan(writer, job);
    cairn_json_write_object_end(writer);
}

/* ---- `cairn replan` ---- */

/* How the last proposals ended. */
static void
put_ended(struct cairn_json_writer *writer, const struct proposal_book *book)
{
    static const char *const names[] = {[PROPOSAL_APPROVED] = "approved",
                                        [PROPOSAL_DENIED] = "denied",
                                        [PROPOSAL_REPLACED] = "replaced",
                                        [PROPOSAL_WITHDRAWN] = "withdrawn",
                                        [PROPOSAL_BACK] = "back"};

    cairn_json_put_array(writer, "ended");
    for (uint32_t i = 0; book && i < book->ended_count; i++) {
        const struct proposal_ended *ended = &book->ended[i];

        cairn_json_write_object_begin(writer);
        cairn_json_put_u64(writer, "number", ended->number);
        cairn_json_put_string(writer, "how", names[ended->end]);
        cairn_json_write_key(writer, "node"); /* where an operator decided */
        if (ended->node == UINT32_MAX)
            cairn_json_write_null(writer);
        else
            cairn_json_write_u64(writer, ended->node);
        cairn_json_put_u64(writer, "wall_ns", ended->wall_ns);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_alternatives(struct cairn_json_writer *writer, const struct proposal_story *story)
{
    cairn_json_put_object(writer, "alternatives");
    for (uint32_t i = 0; i < CAIRN_REPLAN_COUNT; i++) {
        cairn_json_put_object(writer, action_names[i]);
        put_ms(writer, "step_ms", story->alternatives[i].step_ms);
        put_ms(writer, "price_ms", story->alternatives[i].cost_ms);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_object_end(writer);
}

/* Which gates have refused it before it was offered, and for how long. */
static void
put_refused_before(struct cairn_json_writer *writer, const struct proposal_refused *refused)
{
    cairn_json_put_array(writer, "refused");
    for (uint32_t gate = PROPOSAL_GATE_NONE + 1; gate < PROPOSAL_GATES; gate++) {
        if (!(refused->gates >> gate & 1))
            continue;
        cairn_json_write_object_begin(writer);
        cairn_json_put_string(writer, "gate", proposal_gate_name((enum proposal_gate)gate));
        cairn_json_put_string(writer, "why", proposal_gate_why((enum proposal_gate)gate));
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    put_ms(writer, "refused_ms", (double)refused->ns / 1e6);
}

static void
put_story(struct cairn_json_writer *writer, const struct operator_job *job,
          const struct proposal_story *story)
{
    static const char *const fates[] = {[PROPOSAL_OFFERED] = "offered",
                                        [PROPOSAL_TAKEN] = "taken",
                                        [PROPOSAL_KEPT] = "kept",
                                        [PROPOSAL_LEFT] = "left",
                                        [PROPOSAL_TAKEN_BACK] = "taken_back",
                                        [PROPOSAL_FAILED] = "failed",
                                        [PROPOSAL_AGED] = "aged"};
    const struct proposal decided = {.decided = story->decided, .node = story->node};

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "number", story->number);
    cairn_json_put_string(writer, "placement", story->text);
    cairn_json_put_bool(writer, "home", story->is_home);
    cairn_json_put_bool(writer, "relaunch", story->is_relaunch);
    cairn_json_put_string(writer, "fate", fates[story->fate]);
    cairn_json_put_u64(writer, "withdraws", story->withdraws); /* 0: none */
    put_slow(writer, job, &story->slow);
    put_ms(writer, "current_ms", story->current_ms);
    put_ms(writer, "running_ms", story->running_ms);
    put_ms(writer, "step_ms", story->step_ms);
    put_ms(writer, "lower_bound_ms", story->bound_ms);
    put_ms(writer, "price_ms", story->cost_ms);
    put_alternatives(writer, story);
    cairn_json_put_u64(writer, "moved_layers", story->moved_layers);
    cairn_json_put_u64(writer, "moved_bytes", story->moved_bytes);
    put_refused_before(writer, &story->refused);
    put_decided(writer, &decided);
    cairn_json_put_u64(writer, "offered_wall_ns", story->offered_wall_ns);
    cairn_json_put_u64(writer, "taken_wall_ns", story->taken_wall_ns); /* 0: not yet, as the next */
    cairn_json_put_u64(writer, "ended_wall_ns", story->ended_wall_ns);
    put_ms(writer, "before_ms", story->before_ms);
    put_ms(writer, "expected_ms", story->expected_ms);
    put_ms(writer, "after_ms", story->after_ms);
    put_ms(writer, "standstill_ms",
           story->standstill_ns ? (double)story->standstill_ns / 1e6 : (double)INFINITY);
    cairn_json_write_object_end(writer);
}

/* What became of the last offers, for `cairn explain plan`. */
static void
put_stories(struct cairn_json_writer *writer, const struct operator_job *job)
{
    cairn_json_put_array(writer, "stories");
    for (uint32_t i = 0; job->book && i < job->book->story_count; i++)
        put_story(writer, job, &job->book->stories[i]);
    cairn_json_write_array_end(writer);
}

/* The denials that hold; null: there are none. */
static void
put_denied(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct proposal_book *book = job->book;

    cairn_json_write_key(writer, "denied");
    if (!book || (!book->is_all_denied && book->denied_count == 0)) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_write_key(writer, "all"); /* an operator went back */
    cairn_json_write_bool(writer, book->is_all_denied);
    cairn_json_put_u64(writer, "placements", book->denied_count);
    put_slow(writer, job, &book->denied_at);
    cairn_json_write_object_end(writer);
}

/* Why nothing is proposed. */
static void
explain_nothing(const struct operator_job *job, char *out, size_t out_bytes)
{
    const struct operator_node *analyst;
    uint64_t askers = 0;
    uint32_t index = 0;

    analyst = operator_analyst(job, &index);
    for (uint32_t i = 0; i < job->config->node_count; i++)
        askers += job->nodes[i].known ? job->nodes[i].offer_askers : 0;
    if (!job->config->problem[0])
        (void)snprintf(out, out_bytes,
                       "nothing is planned; set `problem` in the agents' files (docs/PLANNER.md)");
    else if (job->config->plan_policy < CAIRN_PLAN_APPROVE)
        (void)snprintf(out, out_bytes,
                       "plan_policy is %s: nothing is offered to trainers; set it to approve or "
                       "enforce in the agents' files",
                       policy_names[job->config->plan_policy]);
    else if (askers == 0)
        (void)snprintf(out, out_bytes, "no trainer asks for its share (docs/REPLANNING.md)");
    else if (!analyst || analyst->analysis_ranks == 0)
        (void)snprintf(out, out_bytes,
                       "the job is not timed; start the trainers with CAIRN_TIMING=1");
    else if (!analyst->analysis_calibrated)
        (void)snprintf(out, out_bytes, "the normal is being learned");
    else if (job->book && (job->book->is_all_denied || job->book->denied_count > 0))
        (void)snprintf(out, out_bytes,
                       "the advised plan was denied; it is proposed again when other ranks are "
                       "slow, or these by another factor");
    else if (analyst->refused_gate > PROPOSAL_GATE_NONE && analyst->refused_gate < PROPOSAL_GATES)
        (void)snprintf(out, out_bytes, "%s",
                       proposal_gate_why((enum proposal_gate)analyst->refused_gate));
    else if (analyst->advice_action == 0)
        (void)snprintf(out, out_bytes, "no other plan gains enough to pay for the change");
    else
        (void)snprintf(out, out_bytes,
                       "the advised plan runs already, or needs more than the trainers can "
                       "do");
}

int
operator_replan_write(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct operator_node *analyst;
    bool waits = job->book && job->book->waiting.placement.count > 0;
    bool is_away = job->book && job->book->offer.placement.count > 0 && !job->book->offer.is_home;
    bool is_relaunched =
        job->book && (job->book->relaunch.placement.count > 0 ||
                      (job->book->shape.placement.count > 0 && !job->book->shape.is_home));
    char nothing[256];
    uint32_t index = 0;

    analyst = operator_analyst(job, &index);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "job", job->config->job);
    put_plan(writer, job);
    cairn_json_write_key(writer, "measured_ms"); /* a step now */
    if (analyst && analyst->analysis_step_ns)
        cairn_json_write_double(writer, (double)analyst->analysis_step_ns / 1e6);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "home");
    if (job->home) {
        cairn_json_write_object_begin(writer);
        put_placement(writer, &job->home->placement);
        cairn_json_write_object_end(writer);
    } else {
        cairn_json_write_null(writer);
    }
    put_denied(writer, job);
    put_ended(writer, job->book);
    put_stories(writer, job);
    cairn_json_put_u64(writer, "wall_ns", job->wall_ns);
    cairn_json_write_key(writer, "nothing");
    if (waits) {
        cairn_json_write_null(writer);
    } else {
        explain_nothing(job, nothing, sizeof nothing);
        cairn_json_write_string(writer, nothing);
    }
    cairn_json_write_object_end(writer);
    return waits || is_away || is_relaunched ? 0 : EXIT_NOTHING;
}
