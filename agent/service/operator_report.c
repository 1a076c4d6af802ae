/* agent/service/operator_report.c - the JSON of the answers to operators. Pure. Unknown ages and
 * durations are null. */
#include "agent/service/operator_report.h"

#include "agent/service/operator_coverage.h"
#include "agent/service/operator_poison.h"
#include "agent/service/operator_replan.h"
#include "agent/service/operator_verdicts.h"
#include <stdio.h>
#include <string.h>

static void
put_known(struct cairn_json_writer *writer, const char *key, uint64_t value, uint64_t unknown)
{
    cairn_json_write_key(writer, key);
    if (value == unknown)
        cairn_json_write_null(writer);
    else
        cairn_json_write_u64(writer, value);
}

static void
put_generation_fields(struct cairn_json_writer *writer, struct cairn_generation_id generation)
{
    cairn_json_put_u64(writer, "epoch", cairn_epoch_number(generation.epoch));
    cairn_json_put_u64(writer, "step", generation.step);
}

static void
write_generation(struct cairn_json_writer *writer, const char *key,
                 struct cairn_generation_id generation)
{
    cairn_json_write_key(writer, key);
    if (generation.step == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    put_generation_fields(writer, generation);
    cairn_json_write_object_end(writer);
}

/* One string per line of a text. */
static void
put_lines(struct cairn_json_writer *writer, const char *key, const char *text)
{
    cairn_json_put_array(writer, key);
    while (*text) {
        size_t len = strcspn(text, "\n");
        char line[1024];

        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), text);
        if (len)
            cairn_json_write_string(writer, line);
        text += len + (text[len] == '\n');
    }
    cairn_json_write_array_end(writer);
}

/* ---- status ---- */

static void
put_generations(struct cairn_json_writer *writer, const struct operator_job *job,
                const struct operator_health *health)
{
    cairn_json_write_key(writer, "newest");
    if (job->newest.step == 0) {
        cairn_json_write_null(writer);
    } else {
        cairn_json_write_object_begin(writer);
        put_generation_fields(writer, job->newest);
        cairn_json_put_u64(writer, "bytes", health->bytes);
        cairn_json_put_string(writer, "from", job->newest_from_files ? "files" : "memory");
        put_known(writer, "age_ns", health->age_ns, OPERATOR_UNKNOWN);
        put_known(writer, "protect_ns", health->protect_ns, 0);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_key(writer, "spilled");
    if (!health->spilled) {
        cairn_json_write_null(writer);
    } else {
        cairn_json_write_object_begin(writer);
        put_generation_fields(writer, health->spilled->generation);
        cairn_json_put_u64(writer, "bytes", health->spilled->bytes);
        put_known(writer, "age_ns", health->spilled->age_ns, OPERATOR_UNKNOWN);
        cairn_json_write_object_end(writer);
    }
}

static void
put_protection(struct cairn_json_writer *writer, const struct operator_health *health)
{
    cairn_json_write_key(writer, "protection");
    if (health->parts == 0) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "groups", health->group_count);
    cairn_json_put_u64(writer, "parity", health->parity);
    cairn_json_put_u64(writer, "parts", health->parts);
    cairn_json_put_u64(writer, "missing_parts", health->missing);
    cairn_json_write_key(writer, "survives_nodes_per_group");
    cairn_json_write_i64(writer, health->survives);
    cairn_json_put_bool(writer, "survives_any_one_domain", health->survives_domain);
    cairn_json_write_object_end(writer);
}

static void
put_numbers(struct cairn_json_writer *writer, const struct operator_job *job,
            const struct operator_health *health)
{
    cairn_json_put_object(writer, "lost_now");
    cairn_json_put_u64(writer, "last_step", health->last_step);
    cairn_json_put_u64(writer, "steps", health->lost_steps);
    put_known(writer, "ns", health->age_ns, OPERATOR_UNKNOWN);
    cairn_json_write_object_end(writer);
    cairn_json_put_object(writer, "stall");
    cairn_json_put_u64(writer, "fence_count", health->fence_count);
    cairn_json_put_u64(writer, "fence_ns_p50", health->fence_ns_p50);
    cairn_json_put_u64(writer, "fence_ns_p99", health->fence_ns_p99);
    cairn_json_put_u64(writer, "fence_ns_max", health->fence_ns_max);
    cairn_json_put_u64(writer, "snapshots_captured", health->captured);
    cairn_json_put_u64(writer, "snapshots_skipped", health->skipped);
    cairn_json_put_u64(writer, "snapshots_failed", health->failed);
    cairn_json_put_u64(writer, "every_steps", job->config->snapshot_every_steps);
    cairn_json_write_object_end(writer);
    cairn_json_put_object(writer, "memory");
    cairn_json_put_u64(writer, "reserved_bytes", health->reserved_bytes);
    cairn_json_put_u64(writer, "state_bytes", health->state_bytes);
    cairn_json_write_object_end(writer);
    cairn_json_write_key(writer, "restore_estimate_seconds");
    if (health->restore_estimate_ns)
        cairn_json_write_double(writer, (double)health->restore_estimate_ns / 1e9);
    else
        cairn_json_write_null(writer);
}

static void
put_checks(struct cairn_json_writer *writer, const struct operator_health *health)
{
    static const char *const levels[] = {"OK", "WARN", "CRITICAL"};

    cairn_json_put_string(writer, "health", levels[health->level]);
    cairn_json_put_array(writer, "checks");
    for (uint32_t i = 0; i < health->check_count; i++) {
        const struct operator_check *check = &health->checks[i];

        cairn_json_write_line(writer);
        cairn_json_write_object_begin(writer);
        cairn_json_put_string(writer, "level", levels[check->level]);
        cairn_json_put_string(writer, "code", check->code);
        cairn_json_put_string(writer, "what", check->what);
        cairn_json_put_string(writer, "fix", check->fix);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
}

static struct cairn_generation_id
newest_complete(const struct operator_node *node)
{
    struct cairn_generation_id newest = {0};

    for (uint32_t h = 0; h < node->part_count; h++)
        if (node->parts[h].state == CAIRN_PART_COMPLETE &&
            cairn_generation_id_compare(node->parts[h].generation, newest) > 0)
            newest = node->parts[h].generation;
    return newest;
}

static void
put_scrub(struct cairn_json_writer *writer, const struct operator_node *node)
{
    cairn_json_put_object(writer, "scrub");
    cairn_json_put_u64(writer, "bytes", node->scrub_bytes);
    cairn_json_put_u64(writer, "passes", node->scrub_passes);
    put_known(writer, "pass_age_ns",
              node->scrub_passes ? node->scrub_pass_age_ns : OPERATOR_UNKNOWN, OPERATOR_UNKNOWN);
    cairn_json_put_u64(writer, "found", node->scrub_found);
    cairn_json_put_u64(writer, "repaired", node->scrub_repaired);
    cairn_json_put_u64(writer, "unrepairable", node->scrub_unrepairable);
    cairn_json_write_object_end(writer);
}

static void
put_node(struct cairn_json_writer *writer, const struct operator_job *job, uint32_t index)
{
    const struct cairn_config_node *configured = &job->config->nodes[index];
    const struct operator_node *node = &job->nodes[index];

    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "node", index);
    cairn_json_put_string(writer, "address", configured->address);
    cairn_json_put_string(writer, "domain", configured->domain);
    cairn_json_put_bool(writer, "spare", configured->spare);
    cairn_json_put_bool(writer, "removed", configured->removed);
    cairn_json_put_bool(writer, "answers", node->known);
    cairn_json_put_bool(writer, "alive", node->alive);
    if (node->known) {
        cairn_json_put_u64(writer, "trainers", node->trainers);
        cairn_json_put_u64(writer, "trainers_attached_total", node->attached_total);
        cairn_json_put_u64(writer, "local_ranks", node->local_ranks);
        write_generation(
            writer, "local",
            (struct cairn_generation_id){.epoch = node->local_epoch, .step = node->local_step});
        cairn_json_put_u64(writer, "world", node->world);
        cairn_json_put_u64(writer, "holder_rank", node->holder_rank);
        cairn_json_put_u64(writer, "holder_pid", node->holder_pid);
        cairn_json_put_u64(writer, "holder_ms", node->holder_ms);
        cairn_json_put_u64(writer, "epoch", cairn_epoch_number(node->active));
        cairn_json_put_u64(writer, "last_step", node->last_step);
        write_generation(writer, "complete", newest_complete(node));
        cairn_json_put_u64(writer, "reserved_bytes", node->reserved_bytes);
        cairn_json_put_u64(writer, "uptime_ns", node->uptime_ns);
        cairn_json_put_u64(writer, "peers", node->peers);
        cairn_json_put_u64(writer, "sent_bytes", node->sent_bytes);
        cairn_json_put_u64(writer, "received_bytes", node->received_bytes);
        cairn_json_put_u64(writer, "sent_messages", node->sent_messages);
        cairn_json_put_u64(writer, "sent_block_bytes", node->sent_block_bytes);
        if (node->disk_free_bytes != OPERATOR_UNKNOWN)
            cairn_json_put_u64(writer, "disk_free_bytes", node->disk_free_bytes);
        put_scrub(writer, node);
        cairn_json_put_u64(writer, "spill_failed_ms", node->spill_failed_ms);
        cairn_json_put_u64(writer, "spill_stuck_ms", node->spill_stuck_ms);
        cairn_json_put_u64(writer, "run", node->run);
        cairn_json_put_u64(writer, "next_step", node->next_step);
        cairn_json_put_u64(writer, "dropped_messages", node->dropped_messages);
        cairn_json_put_u64(writer, "refused_connections", node->refused_connections);
        cairn_json_put_u64(writer, "ignored_connections", node->ignored_connections);
        cairn_json_put_u64(writer, "ignored_addresses", node->ignored_addresses);
        cairn_json_put_bool(writer, "blank", node->blank);
        cairn_json_put_bool(writer, "fenced", node->fenced);
        cairn_json_put_bool(writer, "busy", node->busy);
    }
    cairn_json_write_object_end(writer);
}

/* The node that blocks the due generation, as its leader knows; null: none. */
static void
put_blocker(struct cairn_json_writer *writer, const struct operator_job *job)
{
    static const char *const causes[] = {[CAIRN_WAIT_TRAINERS] = "trainers",
                                         [CAIRN_WAIT_BLOCKS] = "blocks",
                                         [CAIRN_WAIT_PARITY] = "parity",
                                         [CAIRN_WAIT_HERE] = "disk",
                                         [CAIRN_WAIT_SILENT] = "silent"};
    const struct operator_node *leader = NULL;

    for (uint32_t i = 0; i < job->config->node_count; i++)
        if (job->nodes[i].known && job->nodes[i].blocked_step)
            leader = &job->nodes[i];
    cairn_json_write_key(writer, "blocker");
    if (!leader) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "step", leader->blocked_step);
    cairn_json_put_u64(writer, "leader", (uint64_t)(leader - job->nodes));
    cairn_json_put_u64(writer, "node", leader->blocked_agent);
    put_known(writer, "for_node", leader->blocked_for_agent, UINT32_MAX);
    cairn_json_put_string(writer, "cause",
                          leader->blocked_cause < sizeof causes / sizeof *causes &&
                                  causes[leader->blocked_cause]
                              ? causes[leader->blocked_cause]
                              : "unknown");
    cairn_json_put_u64(writer, "for_ms", leader->blocked_ms);
    cairn_json_write_object_end(writer);
}

void
operator_write_status(struct cairn_json_writer *writer, const struct operator_job *job,
                      const struct operator_health *health, uint32_t self)
{
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "job", job->config->job);
    cairn_json_put_u64(writer, "node", self);
    cairn_json_put_u64(writer, "epoch", cairn_epoch_number(job->nodes[self].active));
    cairn_json_put_u64(writer, "nodes_configured", job->config->node_count);
    cairn_json_put_u64(writer, "nodes_answering", health->answering);
    cairn_json_put_u64(writer, "trainers", health->trainers);
    cairn_json_put_u64(writer, "dropped_messages", health->dropped_messages);
    cairn_json_put_u64(writer, "spills_given_up", health->spills_given_up);
    cairn_json_put_u64(writer, "blocked_ms", health->blocked_ms);
    cairn_json_put_object(writer, "configured");
    cairn_json_put_u64(writer, "parity", job->config->parity);
    cairn_json_put_string(writer, "local_dir", job->config->local_dir);
    cairn_json_put_string(writer, "spill_dir", job->config->spill_dir);
    cairn_json_write_object_end(writer);
    put_generations(writer, job, health);
    put_protection(writer, health);
    put_blocker(writer, job);
    put_numbers(writer, job, health);
    cairn_json_write_key(writer, "coverage");
    operator_coverage_report(writer, job, health);
    cairn_json_write_key(writer, "detection");
    operator_verdicts_report(writer, job);
    cairn_json_write_key(writer, "replan");
    operator_replan_report(writer, job);
    put_checks(writer, health);
    cairn_json_put_array(writer, "nodes");
    for (uint32_t i = 0; i < job->config->node_count; i++)
        put_node(writer, job, i);
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

/* ---- snapshots ---- */

struct listed {
    struct cairn_generation_id generation;
    uint64_t bytes, age_ns;
    uint32_t complete, open;
    bool committed, rebuilding;
};

enum { LISTED_MAX = 64 };

/* The entry of a generation in a list that is kept newest first; NULL if the list is full. */
static struct listed *
list_entry(struct listed *list, uint32_t *count, struct cairn_generation_id generation)
{
    uint32_t at = 0;

    while (at < *count && cairn_generation_id_compare(list[at].generation, generation) > 0)
        at++;
    if (at < *count && cairn_generation_id_compare(list[at].generation, generation) == 0)
        return &list[at];
    if (*count == LISTED_MAX)
        return NULL;
    memmove(&list[at + 1], &list[at], (*count - at) * sizeof *list);
    (*count)++;
    list[at] = (struct listed){.generation = generation, .age_ns = OPERATOR_UNKNOWN};
    return &list[at];
}

static uint32_t
list_memory(const struct operator_job *job, struct listed *list)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++)
        for (uint32_t h = 0; job->nodes[i].known && h < job->nodes[i].part_count; h++) {
            const struct operator_part *part = &job->nodes[i].parts[h];
            struct listed *entry = list_entry(list, &count, part->generation);

            if (!entry)
                continue;
            entry->bytes += part->data_bytes;
            entry->committed |= part->committed != 0;
            entry->rebuilding |= part->state == CAIRN_PART_REBUILDING;
            if (part->state == CAIRN_PART_COMPLETE)
                entry->complete++;
            else
                entry->open++;
            if (part->age_ns < entry->age_ns)
                entry->age_ns = part->age_ns;
        }
    return count;
}

static void
put_listed(struct cairn_json_writer *writer, struct cairn_generation_id generation,
           const char *state, const char *where)
{
    cairn_json_write_line(writer);
    cairn_json_write_object_begin(writer);
    put_generation_fields(writer, generation);
    cairn_json_put_string(writer, "state", state);
    cairn_json_put_string(writer, "where", where);
}

/* The newest poisoned generation, if it matters: only that one is remembered. */
static void
put_poisoned(struct cairn_json_writer *writer, const struct operator_node *poisoned)
{
    char what[OPERATOR_POISON_BYTES];

    if (!poisoned || poisoned->poison_kept)
        return;
    operator_poison_describe(poisoned, what);
    put_listed(writer, operator_poison_of(poisoned), "poisoned", "not kept");
    cairn_json_put_u64(writer, "bytes", 0);
    cairn_json_put_string(writer, "why", what);
    cairn_json_write_object_end(writer);
}

void
operator_write_snapshots(struct cairn_json_writer *writer, const struct operator_job *job)
{
    struct listed list[LISTED_MAX];
    const struct operator_node *poisoned = operator_poison_find(job);
    uint32_t count = list_memory(job, list), answering = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++)
        answering += job->nodes[i].known;
    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "job", job->config->job);
    cairn_json_put_u64(writer, "nodes_configured", job->config->node_count);
    cairn_json_put_u64(writer, "nodes_answering", answering);
    cairn_json_put_array(writer, "generations");
    put_poisoned(writer, poisoned);
    for (uint32_t i = 0; i < count; i++) {
        const struct listed *entry = &list[i];

        put_listed(writer, entry->generation,
                   entry->committed    ? "committed"
                   : entry->rebuilding ? "rebuilding"
                   : entry->open       ? "open"
                                       : "complete",
                   "memory");
        cairn_json_put_u64(writer, "bytes", entry->bytes);
        put_known(writer, "age_ns", entry->age_ns, OPERATOR_UNKNOWN);
        cairn_json_put_u64(writer, "parts", entry->complete);
        if (poisoned && poisoned->poison_kept &&
            cairn_generation_id_compare(entry->generation, operator_poison_of(poisoned)) == 0) {
            char what[OPERATOR_POISON_BYTES];

            operator_poison_describe(poisoned, what);
            cairn_json_put_string(writer, "why", what);
        }
        cairn_json_write_object_end(writer);
    }
    for (uint32_t i = 0; i < job->files->count; i++) {
        const struct operator_spilled *spilled = &job->files->spilled[i];

        put_listed(writer, spilled->generation, spilled->committed ? "spilled" : "incomplete",
                   job->config->spill_dir);
        cairn_json_put_u64(writer, "bytes", spilled->bytes);
        put_known(writer, "age_ns", spilled->age_ns, OPERATOR_UNKNOWN);
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    cairn_json_write_object_end(writer);
}

/* ---- restore and verify ---- */

void
operator_write_restore(struct cairn_json_writer *writer, const struct operator_restored *restored)
{
    const struct cairn_outcome *outcome = &restored->outcome;

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_string(writer, "result", cairn_err_name(outcome->err));
    cairn_json_put_bool(writer, "dry_run", restored->dry_run);
    write_generation(writer, "generation", outcome->generation);
    cairn_json_put_string(writer, "from", restored->from_files ? "files" : "memory");
    cairn_json_put_bool(writer, "ready", restored->ready);
    if (restored->decided.step)
        write_generation(writer, "decided", restored->decided);
    cairn_json_put_u64(writer, "epoch", cairn_epoch_number(outcome->epoch));
    cairn_json_put_u64(writer, "rebuilt_bytes", outcome->rebuilt_blocks * CAIRN_BLOCK_BYTES);
    cairn_json_put_u64(writer, "lost_members", outcome->lost_members);
    put_known(writer, "lost_steps", restored->lost_steps, OPERATOR_UNKNOWN);
    cairn_json_put_double(writer, "seconds", (double)restored->took_ns / 1e9);
    if (restored->directory[0]) {
        cairn_json_put_string(writer, "directory", restored->directory);
        cairn_json_put_u64(writer, "exported_bytes", restored->exported_bytes);
    }
    cairn_json_put_array(writer, "given_up");
    for (uint32_t i = 0; i < restored->given_up_count; i++) {
        cairn_json_write_object_begin(writer);
        put_generation_fields(writer, restored->given_up[i].generation);
        cairn_json_put_string(writer, "where",
                              restored->given_up[i].in_memory ? "memory" : "files");
        cairn_json_write_object_end(writer);
    }
    cairn_json_write_array_end(writer);
    put_lines(writer, "considered", outcome->text);
    if (restored->error[0])
        cairn_json_put_string(writer, "error", restored->error);
    cairn_json_write_object_end(writer);
}

static void
put_files(struct cairn_json_writer *writer, const struct operator_files *files)
{
    cairn_json_write_key(writer, "files");
    if (!files->configured) {
        cairn_json_write_null(writer);
        return;
    }
    cairn_json_write_object_begin(writer);
    cairn_json_put_string(writer, "result",
                          cairn_err_name(files->err ? files->err : files->verify_err));
    cairn_json_put_bool(writer, "checked", files->verified);
    write_generation(writer, "generation", files->verified_generation);
    cairn_json_put_u64(writer, "bytes", files->verified_bytes);
    cairn_json_put_string(writer, "report", files->report);
    cairn_json_write_object_end(writer);
}

void
operator_write_verify(struct cairn_json_writer *writer, const struct operator_verified *verified)
{
    const struct cairn_outcome *outcome = &verified->outcome;

    cairn_json_write_object_begin(writer);
    cairn_json_put_u64(writer, "schema", 1);
    cairn_json_put_bool(writer, "dry_run", verified->dry_run);
    cairn_json_put_string(writer, "verdict",
                          verified->dry_run                                     ? "not verified"
                          : verified->exit_code == 0                            ? "good"
                          : verified->exit_code == 2 && verified->missing_parts ? "parts missing"
                          : verified->exit_code == 2                            ? "repaired"
                          : verified->exit_code == 3 && !outcome->err && verified->still_bad_blocks
                              ? "damage left"
                          : verified->exit_code == 3 ? "loss"
                                                     : "not verified");
    cairn_json_put_string(writer, "result", cairn_err_name(outcome->err));
    write_generation(writer, "generation", outcome->generation);
    cairn_json_put_u64(writer, "checked_bytes", verified->checked_bytes);
    cairn_json_put_u64(writer, "bad_blocks", outcome->bad_blocks);
    cairn_json_put_u64(writer, "repaired_blocks", outcome->repaired_blocks);
    cairn_json_put_u64(writer, "lost_members", outcome->lost_members);
    cairn_json_put_u64(writer, "rebuilt_bytes", outcome->rebuilt_blocks * CAIRN_BLOCK_BYTES);
    cairn_json_put_u64(writer, "still_bad_blocks", verified->still_bad_blocks);
    cairn_json_put_u64(writer, "other_bad_blocks", verified->other_bad_blocks);
    cairn_json_put_u64(writer, "mended_records", verified->mended_records);
    cairn_json_put_u64(writer, "missing_parts", verified->missing_parts);
    cairn_json_put_u64(writer, "nodes_answering", verified->answering);
    cairn_json_put_u64(writer, "nodes_configured", verified->configured);
    cairn_json_put_object(writer, "catalog");
    cairn_json_put_string(writer, "result", cairn_err_name(verified->catalog_err));
    cairn_json_put_u64(writer, "records", verified->catalog_records);
    cairn_json_write_object_end(writer);
    put_files(writer, verified->files);
    cairn_json_put_double(writer, "seconds", (double)verified->took_ns / 1e9);
    put_lines(writer, "considered", outcome->text);
    cairn_json_write_object_end(writer);
}
