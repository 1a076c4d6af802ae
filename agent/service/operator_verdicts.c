/* agent/service/operator_verdicts.c - the status' "detection": which node analyses, and the
 * verdicts. Pure. */
#include "agent/service/operator_verdicts.h"

#include "agent/process/config.h"
#include "agent/service/operator_causes.h"
#include "agent/service/operator_stacks.h"
#include "replan/live/enforce.h"

#include <stdio.h>
#include <string.h>

static const char *const evidence_names[] = {"computation", "waiting", "transfers", "progress",
                                             "process"};

/* The step, or null where it lasts or nobody knows. */
static void
put_step(struct cairn_json_writer *writer, const char *key, uint32_t step)
{
    cairn_json_write_key(writer, key);
    if (step == CAIRN_STEP_NONE)
        cairn_json_write_null(writer);
    else
        cairn_json_write_u64(writer, step);
}

static void
put_items(struct cairn_json_writer *writer, const char *key, const uint32_t *items, uint32_t count,
          uint32_t listed_max)
{
    cairn_json_put_array(writer, key);
    for (uint32_t i = 0; i < count && i < listed_max; i++)
        cairn_json_write_u64(writer, items[i]);
    cairn_json_write_array_end(writer);
}

static void
put_links(struct cairn_json_writer *writer, const struct cairn_ledger_entry *entry)
{
    cairn_json_put_array(writer, "links");
    for (uint32_t i = 0; i < entry->link_count && i < CAIRN_LEDGER_LINKS_MAX; i++) {
        cairn_json_write_array_begin(writer);
        cairn_json_write_u64(writer, entry->links[2 * i]);
        cairn_json_write_u64(writer, entry->links[2 * i + 1]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static void
put_evidence(struct cairn_json_writer *writer, const struct cairn_ledger_entry *entry)
{
    cairn_json_put_string(writer, "evidence", entry->evidence);
    cairn_json_put_array(writer, "evidence_kinds");
    for (uint32_t i = 0; i < sizeof evidence_names / sizeof *evidence_names; i++)
        if (entry->evidence_kinds >> i & 1)
            cairn_json_write_string(writer, evidence_names[i]);
    cairn_json_write_array_end(writer);
}

/* The outcome of the operator's command; null if it did not run. */
static void
put_enforcement(struct cairn_json_writer *writer, const struct cairn_enforcement *enforcement)
{
    enum cairn_enforcement_result result = cairn_enforcement_result(enforcement);
    char text[CAIRN_ENFORCE_TEXT_BYTES];

    cairn_json_write_key(writer, "enforcement");
    if (enforcement->state == CAIRN_ENFORCEMENT_NONE) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_enforce_describe(enforcement, text, sizeof text);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "result",
                          result == CAIRN_ENFORCED_RESULTS ? "running"
                                                           : cairn_enforce_result_text(result));
    cairn_json_put_string(writer, "what", text);
    cairn_json_put_u64(writer, "node", enforcement->node);
    if (enforcement->state == CAIRN_ENFORCEMENT_EXITED)
        cairn_json_put_u64(writer, "exit_status", enforcement->value);
    if (enforcement->state == CAIRN_ENFORCEMENT_SIGNALLED)
        cairn_json_put_u64(writer, "signal", enforcement->value);
    cairn_json_put_u64(writer, "begun_wall_ns", enforcement->begun_wall_ns);
    if (result != CAIRN_ENFORCED_RESULTS)
        cairn_json_put_u64(writer, "ended_wall_ns", enforcement->ended_wall_ns);
    cairn_json_write_object_end(writer);
}

/* How often the command came to each result. */
static void
put_enforcements(struct cairn_json_writer *writer, const struct cairn_ledger *ledger)
{
    uint64_t counts[CAIRN_ENFORCED_RESULTS] = {0};

    if (ledger)
        cairn_enforce_count(ledger, counts);
    cairn_json_put_object(writer, "enforcements");
    for (int i = 0; i < CAIRN_ENFORCED_RESULTS; i++)
        cairn_json_put_u64(writer, cairn_enforce_result_text((enum cairn_enforcement_result)i),
                           counts[i]);
    cairn_json_write_object_end(writer);
}

void
operator_verdict_write(struct cairn_json_writer *writer, const struct operator_job *job,
                       const struct cairn_ledger_entry *entry)
{
    bool is_open = entry->closed_wall_ns == 0;
    char text[512];

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "verdict", entry->number);
    cairn_json_put_string(writer, "kind", cairn_verdict_kind_text(entry->kind));
    cairn_json_put_bool(writer, "open", is_open);
    cairn_ledger_describe(entry, text, sizeof text);
    cairn_json_put_string(writer, "what", text);
    if (is_open && job->config->verdict_policy != CAIRN_CONFIG_OBSERVE) {
        cairn_ledger_advise(job->ledger, entry, job->config->exchanges_per_day,
                            job->config->verdict_policy == CAIRN_CONFIG_ENFORCE, text, sizeof text);
        cairn_json_put_string(writer, "advice", text);
    }
    put_enforcement(writer, &entry->enforcement);
    put_items(writer, "ranks", entry->ranks, entry->rank_count, CAIRN_LEDGER_RANKS_MAX);
    cairn_json_put_u64(writer, "rank_count", entry->rank_count);
    put_items(writer, "nodes", entry->nodes, entry->node_count, CAIRN_LEDGER_NODES_MAX);
    put_links(writer, entry);
    cairn_json_put_u64(writer, "link_count", entry->link_count);
    cairn_json_put_u64(writer, "victim_count", entry->victim_count);
    cairn_json_write_key(writer, "pattern");
    if (entry->pattern[0])
        cairn_json_write_string(writer, entry->pattern);
    else
        cairn_json_write_null(writer);
    put_step(writer, "since_step", entry->since_step);
    put_step(writer, "until_step", entry->until_step);
    put_step(writer, "detected_step", entry->detected_step);
    cairn_json_put_double(writer, "rate", entry->rate);
    cairn_json_put_double(writer, "confidence", entry->confidence);
    cairn_json_put_u64(writer, "returns", entry->returns);
    put_evidence(writer, entry);
    cairn_json_write_key(writer, "causes");
    operator_causes_report(writer, job, entry->number);
    cairn_json_put_u64(writer, "opened_wall_ns", entry->opened_wall_ns);
    if (!is_open) {
        cairn_json_put_u64(writer, "closed_wall_ns", entry->closed_wall_ns);
        cairn_json_put_string(writer, "closed_why", entry->closed_why);
    }
    cairn_json_write_object_end(writer);
}

const struct operator_node *
operator_analyst(const struct operator_job *job, uint32_t *index)
{
    for (uint32_t i = 0; i < job->config->node_count; i++)
        if (job->nodes[i].known && job->nodes[i].analyses) {
            *index = i;
            return &job->nodes[i];
        }
    return NULL;
}

void
operator_verdicts_report(struct cairn_json_writer *writer, const struct operator_job *job)
{
    static const char *const policies[] = {"observe", "advise", "enforce"};
    uint64_t rings = 0, records = 0, lost = 0, refused = 0, dropped = 0;
    const struct operator_node *analyst;
    uint32_t index = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        if (!node->known)
            continue;
        rings += node->timing_rings;
        records += node->timing_records;
        lost += node->timing_lost;
        refused += node->timing_refused;
        dropped += node->timing_dropped;
    }
    analyst = operator_analyst(job, &index);
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "policy", policies[job->config->verdict_policy]);
    cairn_json_write_key(writer, "analyst");
    if (analyst)
        cairn_json_write_u64(writer, index);
    else
        cairn_json_write_null(writer);
    cairn_json_put_u64(writer, "world", analyst ? analyst->analysis_world : 0);
    cairn_json_put_u64(writer, "ranks_seen", analyst ? analyst->analysis_ranks : 0);
    cairn_json_put_u64(writer, "steps", analyst ? analyst->analysis_steps : 0);
    cairn_json_put_u64(writer, "last_step", analyst ? analyst->analysis_last_step : 0);
    cairn_json_put_u64(writer, "step_ns", analyst ? analyst->analysis_step_ns : 0);
    cairn_json_put_bool(writer, "calibrated", analyst && analyst->analysis_calibrated);
    cairn_json_put_u64(writer, "rings", rings);
    cairn_json_put_u64(writer, "records", records);
    cairn_json_put_u64(writer, "records_lost", lost);
    cairn_json_put_u64(writer, "records_refused", refused);
    cairn_json_put_u64(writer, "reports_dropped", dropped);
    put_enforcements(writer, job->ledger);
    cairn_json_write_key(writer, "stacks");
    operator_stacks_report(writer, job);
    cairn_json_put_array(writer, "verdicts");
    for (uint32_t i = 0; job->ledger && i < job->ledger->count; i++) {
        cairn_json_write_line(writer);
        operator_verdict_write(writer, job, &job->ledger->entries[i]);
    }
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}
