/* agent/service/operator_replan.c - the status' "replan": what is advised about the plan, as the
 * agent that analyses the job sees it. Pure. */
#include "agent/service/operator_replan.h"

#include "agent/service/operator_verdicts.h"
#include "replan/advise/adviser.h"

#include <math.h>

static const char *const action_names[CAIRN_REPLAN_COUNT] = {[CAIRN_REPLAN_MICROBATCHES] =
                                                                 "microbatches",
                                                             [CAIRN_REPLAN_LAYERS] = "layers",
                                                             [CAIRN_REPLAN_GROUPS] = "groups",
                                                             [CAIRN_REPLAN_RESTART] = "restart"};

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
    cairn_json_write_key(writer, "action");
    cairn_json_write_string(writer, action_names[advice.action]);
    cairn_json_write_key(writer, "what");
    cairn_json_write_string(writer, text);
    put_ms(writer, "current_ms", advice.current_ms);
    put_ms(writer, "step_ms", advice.step_ms);
    put_ms(writer, "cost_ms", advice.cost_ms);
    cairn_json_write_key(writer, "payback_steps");
    cairn_json_write_u64(writer, advice.payback_steps);
    cairn_json_write_key(writer, "given_wall_ns");
    cairn_json_write_u64(writer, node->advice_given_wall_ns);
    cairn_json_write_object_end(writer);
}

/* The layers of each stage of each replica; null if the offer leaves them where they are. */
static void
put_layers(struct cairn_json_writer *writer, const struct cairn_session_shares *offer)
{
    cairn_json_write_key(writer, "layers");
    if (offer->stages == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_array_begin(writer);
    for (uint32_t r = 0; r < offer->count; r++) {
        cairn_json_write_array_begin(writer);
        for (uint32_t s = 0; s < offer->stages; s++)
            cairn_json_write_u64(writer, offer->layers[r * offer->stages + s]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

/* The newest placement, and how many ranks compute by it. */
static void
put_offer(struct cairn_json_writer *writer, const struct operator_job *job)
{
    uint64_t askers = 0, takers = 0, changes = 0;

    for (uint32_t node = 0; node < job->config->node_count; node++) {
        const struct operator_node *each = &job->nodes[node];

        if (!each->known)
            continue;
        askers += each->offer_askers;
        if (each->offer_number != job->offer->number)
            continue;
        takers += each->offer_takers;
        changes = each->offer_changes > changes ? each->offer_changes : changes;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_write_key(writer, "number");
    cairn_json_write_u64(writer, job->offer->number);
    cairn_json_write_key(writer, "micro_batches");
    cairn_json_write_array_begin(writer);
    for (uint32_t i = 0; i < job->offer->count; i++)
        cairn_json_write_u64(writer, job->offer->parts[i]);
    cairn_json_write_array_end(writer);
    put_layers(writer, job->offer);
    cairn_json_write_key(writer, "ranks_asking");
    cairn_json_write_u64(writer, askers);
    cairn_json_write_key(writer, "ranks_taken");
    cairn_json_write_u64(writer, takers);
    cairn_json_write_key(writer, "changes_today");
    cairn_json_write_u64(writer, changes);
    cairn_json_write_key(writer, "changes_per_day");
    cairn_json_write_u64(writer, job->config->plans_per_day);
    cairn_json_write_object_end(writer);
}

void
operator_replan_report(struct cairn_json_writer *writer, const struct operator_job *job)
{
    const struct operator_node *analyst;
    uint32_t index = 0;

    analyst = operator_analyst(job, &index);
    cairn_json_write_object_begin(writer);
    cairn_json_write_key(writer, "problem");
    if (job->config->problem[0])
        cairn_json_write_string(writer, job->config->problem);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "node"); /* whose agent plans, and has replan.json in its
                                           * directory */
    if (analyst && job->config->problem[0])
        cairn_json_write_u64(writer, index);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "plans_made");
    cairn_json_write_u64(writer, analyst ? analyst->plans_made : 0);
    cairn_json_write_key(writer, "enforced");
    cairn_json_write_bool(writer, job->config->plan_policy == CAIRN_CONFIG_ENFORCE);
    cairn_json_write_key(writer, "advice");
    if (analyst && analyst->advice_action >= 1 && analyst->advice_action <= CAIRN_REPLAN_COUNT)
        put_advice(writer, analyst);
    else
        cairn_json_write_null(writer);
    cairn_json_write_key(writer, "offer");
    if (job->offer && job->offer->count > 0)
        put_offer(writer, job);
    else
        cairn_json_write_null(writer);
    cairn_json_write_object_end(writer);
}
