/* agent/service/operator_node.c - one node's view of itself, and its JSON between agents. */
#include "agent/service/operator_node.h"

#include "agent/process/agent_state.h"
#include "agent/process/carry.h"
#include "agent/process/mail.h"
#include "agent/process/memory.h"
#include "agent/process/session.h"
#include "agent/service/local.h"
#include "agent/service/operator_causes.h"
#include "agent/service/operator_coverage.h"
#include "agent/service/operator_stacks.h"
#include "agent/service/operator_state.h"
#include "agent/service/placing.h"
#include "agent/service/replanning.h"
#include "agent/service/scrub.h"
#include "agent/service/scrub_files.h"
#include "agent/service/scrub_spilled.h"
#include "agent/service/spill.h"
#include "agent/service/timing.h"
#include "base/text.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { PART_NUMBERS = 9 };

static const struct field {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(name) {#name, offsetof(struct operator_node, name)},
    OPERATOR_NODE_LIST(FIELD)
#undef FIELD
};

/* Texts; empty texts are left out. */
static const struct text_field {
    const char *name;
    size_t offset;
    size_t bytes;
} texts[] = {
    {"refusal", offsetof(struct operator_node, refusal),
     sizeof((struct operator_node *)0)->refusal},
    {"mismatch", offsetof(struct operator_node, mismatch),
     sizeof((struct operator_node *)0)->mismatch},
    {"poison_name", offsetof(struct operator_node, poison_name),
     sizeof((struct operator_node *)0)->poison_name},
    {"poison_reason", offsetof(struct operator_node, poison_reason),
     sizeof((struct operator_node *)0)->poison_reason},
    {"unwatched_name", offsetof(struct operator_node, unwatched_name),
     sizeof((struct operator_node *)0)->unwatched_name},
    {"spill_failure", offsetof(struct operator_node, spill_failure),
     sizeof((struct operator_node *)0)->spill_failure},
    {"launcher_note", offsetof(struct operator_node, launcher_note),
     sizeof((struct operator_node *)0)->launcher_note},
};

static uint64_t
commit_age_ns(const struct cairn_agent *agent, struct cairn_generation_id generation,
              uint64_t *protect_ns)
{
    uint64_t now_ns = cairn_clock_wall_ns(&agent->clock);

    for (uint32_t i = 0; i < COMMIT_TIMES_MAX; i++) {
        const struct committed_time *commit = &agent->carry.commits[i];

        if (commit->wall_ns == 0 ||
            cairn_generation_id_compare(commit->generation, generation) != 0)
            continue;
        if (protect_ns)
            *protect_ns = commit->protect_ns;
        return now_ns > commit->wall_ns ? now_ns - commit->wall_ns : 0;
    }
    return OPERATOR_UNKNOWN;
}

static void
fill_trainers(const struct cairn_agent *agent, struct operator_node *out)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const struct session *session = &agent->sessions[i];
        const struct cairn_client_stats *stats = &session->stats;

        if (!session->used || !session->trainer || !session->registered || session->stale)
            continue;
        if (out->trainers++ == 0 || session->hello.rank < out->holder_rank) {
            out->holder_rank = session->hello.rank;
            out->holder_pid = session->pid > 0 ? (uint64_t)session->pid : 0;
            out->holder_ms = (agent_now_ns(agent) - session->since_ns) / CAIRN_NS_PER_MS;
        }
        out->world = session->hello.world > out->world ? session->hello.world : out->world;
        if (session->unwatched.tensors && !out->unwatched_tensors) {
            out->unwatched_rank = session->hello.rank;
            out->unwatched_tensors = session->unwatched.tensors;
            memcpy(out->unwatched_name, session->unwatched.name, sizeof out->unwatched_name);
        }
        out->local_ranks = session->hello.local_ranks;
        out->captured += stats->snapshots_captured;
        out->skipped += stats->snapshots_skipped;
        out->failed += stats->snapshots_failed;
        out->fence_count += stats->fence_count;
        out->fence_ns_total += stats->fence_ns_total;
        if (stats->fence_ns_p50 > out->fence_ns_p50)
            out->fence_ns_p50 = stats->fence_ns_p50;
        if (stats->fence_ns_p99 > out->fence_ns_p99)
            out->fence_ns_p99 = stats->fence_ns_p99;
        if (stats->fence_ns_max > out->fence_ns_max)
            out->fence_ns_max = stats->fence_ns_max;
    }
}

static void
fill_parts(const struct cairn_agent *agent, struct operator_node *out)
{
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        struct cairn_part_view view;

        if (!cairn_core_look_part(agent->core, i, &view) || view.state == CAIRN_PART_FREE)
            continue;
        out->mended_records += view.record_mended;
        out->parts[out->part_count++] =
            (struct operator_part){.generation = view.generation,
                                   .member = view.member,
                                   .state = view.state,
                                   .committed = view.committed,
                                   .data_bytes = view.data_blocks * CAIRN_BLOCK_BYTES,
                                   .bad_blocks = view.bad_blocks,
                                   .age_ns = commit_age_ns(agent, view.generation, NULL)};
    }
}

static void
fill_poison(const struct poison *poison, struct operator_node *out)
{
    out->poison_epoch = poison->last.epoch;
    out->poison_step = poison->last.step;
    out->poison_run = poison->last.run;
    out->poison_kept = poison->is_kept;
    out->poison_first_step = poison->first.generation.step;
    out->poison_rank = poison->rank;
    out->poison_tensors = poison->first.tensors;
    memcpy(out->poison_name, poison->first.name, sizeof out->poison_name);
    memcpy(out->poison_reason, poison->first.reason, sizeof out->poison_reason);
}

static void
fill_scrub(const struct cairn_agent *agent, struct operator_node *out)
{
    struct scrub_report reports[3];

    scrub_read(agent, &reports[0]);
    scrub_files_read(agent, &reports[1]);
    scrub_spilled_read(agent, &reports[2]);
    out->scrub_passes = reports[0].passes;
    out->scrub_pass_age_ns = reports[0].pass_age_ns;
    for (size_t i = 0; i < sizeof reports / sizeof reports[0]; i++) {
        if (reports[i].passes > 0 && reports[i].pass_age_ns > out->scrub_pass_age_ns)
            out->scrub_pass_age_ns = reports[i].pass_age_ns;
        out->scrub_bytes += reports[i].read_bytes;
        out->scrub_found += reports[i].found;
        out->scrub_repaired += reports[i].repaired;
        out->scrub_unrepairable += reports[i].unrepairable;
    }
}

void
operator_node_fill(struct cairn_agent *agent, struct operator_node *out)
{
    struct cairn_generation_id local;
    struct cairn_core_view view;
    struct mail_unwanted unwanted = mail_unwanted(agent);
    struct statvfs disk;
    const char *failure;
    cairn_err local_err;

    memset(out, 0, sizeof *out);
    cairn_core_look(agent->core, &view);
    out->known = true;
    out->alive = true;
    out->member = view.self_member;
    out->uptime_ns = cairn_clock_wall_ns(&agent->clock) - agent->started_wall_ns;
    out->promised = view.promised;
    out->active = view.active;
    out->blank = view.blank;
    out->fenced = view.fenced;
    out->busy = view.busy;
    out->run = view.run;
    out->next_step = view.next_step;
    out->dropped_messages = unwanted.messages + view.dropped_messages;
    out->refused_connections = unwanted.refused_connections;
    out->ignored_connections = unwanted.ignored_connections;
    out->ignored_addresses = unwanted.ignored_addresses;
    out->blocked_step = view.blocker.generation.step;
    out->blocked_agent = view.blocker.agent;
    out->blocked_for_agent = view.blocker.for_agent;
    out->blocked_cause = view.blocker.cause;
    out->blocked_ms = view.blocker.for_ms;
    snprintf(out->refusal, sizeof out->refusal, "%s", view.refusal ? view.refusal : "");
    out->unkept = agent->unkept;
    out->denied_peers = mail_denied_peers(agent);
    out->certificate_state = mail_certificate(agent, &out->certificate_left_s);
    for (uint32_t i = 0; i < agent->config.node_count; i++) {
        const struct mailbox *box = &agent->mail.boxes[i];

        if (box->mismatch && (!out->mismatch[0] || (box->refused && !out->refused_peers)))
            snprintf(out->mismatch, sizeof out->mismatch, "%s", box->mismatch);
        out->refused_peers += box->refused;
        out->peers += box->up;
    }
    out->sent_bytes = agent->mail.sent_bytes;
    out->received_bytes = agent->mail.received_bytes;
    out->sent_messages = agent->mail.sent_messages;
    out->sent_block_bytes = agent->mail.sent_block_bytes;
    out->disk_free_bytes = OPERATOR_UNKNOWN;
    if (statvfs(agent->config.dir, &disk) == 0)
        out->disk_free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    out->version_peers = mail_version_peers(agent);
    out->last_step = view.last_step;
    out->committed_epoch = view.committed.epoch;
    out->committed_step = view.committed.step;
    out->committed_run = view.committed.run;
    out->ready_epoch = view.ready.epoch;
    out->ready_step = view.ready.step;
    out->ready_run = view.ready.run;
    out->ready_from_files = view.ready_from_files;
    (void)commit_age_ns(agent, view.committed, &out->protect_ns);
    out->reserved_bytes = cairn_memory_reserved_bytes(agent->memory);
    out->state_bytes = agent->regions.shard_blocks * CAIRN_BLOCK_BYTES;
    spill_stuck_read(agent, &out->spill_stuck_ms, &out->spills_given_up);
    spill_failure_read(agent, &out->spill_failed_ms, &failure);
    cairn_text_clean(out->spill_failure, sizeof out->spill_failure, failure);
    local_read(agent, &local, &local_err);
    out->local_epoch = local.epoch;
    out->local_step = local.step;
    out->local_err = (uint64_t)local_err;
    fill_scrub(agent, out);
    out->attached_total = agent->attached_total;
    if (agent->operators) {
        out->launcher = agent->operators->launcher.serial != 0;
        out->relaunch_asked_ms =
            operator_launcher_asked_ms(&agent->operators->launcher, agent_now_ns(agent));
        memcpy(out->launcher_note, agent->operators->launcher.note, sizeof out->launcher_note);
    }
    fill_poison(&agent->poison, out);
    fill_trainers(agent, out);
    operator_coverage_fill(agent, out);
    timing_fill(agent, out);
    replanning_fill(agent, out);
    placing_fill(agent, out);
    fill_parts(agent, out);
}

void
operator_node_fini(struct operator_node *node)
{
    free(node->coverage);
    free(node->stacks);
    node->coverage = NULL;
    node->stacks = NULL;
}

static void
part_numbers(const struct operator_part *part, uint64_t numbers[PART_NUMBERS])
{
    const uint64_t values[PART_NUMBERS] = {
        part->generation.epoch, part->generation.step, part->member,     part->state,
        part->committed,        part->data_bytes,      part->bad_blocks, part->age_ns,
        part->generation.run};

    memcpy(numbers, values, sizeof values);
}

void
operator_node_write(struct cairn_json_writer *writer, const struct operator_node *node)
{
    cairn_json_write_object_begin(writer);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint64_t value;

        memcpy(&value, (const char *)node + fields[i].offset, sizeof value);
        cairn_json_put_u64(writer, fields[i].name, value);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = (const char *)node + texts[i].offset;

        if (text[0] == '\0')
            continue;
        cairn_json_put_string(writer, texts[i].name, text);
    }
    cairn_json_put_array(writer, "parts");
    for (uint32_t i = 0; i < node->part_count; i++) {
        uint64_t numbers[PART_NUMBERS];

        part_numbers(&node->parts[i], numbers);
        cairn_json_write_array_begin(writer);
        for (uint32_t n = 0; n < PART_NUMBERS; n++)
            cairn_json_write_u64(writer, numbers[n]);
        cairn_json_write_array_end(writer);
    }
    cairn_json_write_array_end(writer);
    if (node->coverage) {
        cairn_json_write_key(writer, "coverage");
        operator_coverage_write(writer, node->coverage);
    }
    if (node->stacks) {
        cairn_json_write_key(writer, "stacks");
        operator_stacks_write(writer, node->stacks);
    }
    if (node->cause_count > 0) {
        cairn_json_write_key(writer, "causes");
        operator_causes_write(writer, node);
    }
    cairn_json_write_object_end(writer);
}

/* Skips further numbers: they come from a newer version. */
static void
read_part(struct cairn_json_reader *reader, struct operator_node *node)
{
    uint64_t numbers[PART_NUMBERS] = {0};
    uint32_t count = 0;

    cairn_json_array_begin(reader);
    while (cairn_json_array_next(reader)) {
        uint64_t value = cairn_json_read_u64(reader, UINT64_MAX);

        if (count < PART_NUMBERS)
            numbers[count++] = value;
    }
    if (count < PART_NUMBERS || numbers[3] > CAIRN_PART_REBUILDING ||
        node->part_count == CAIRN_PARTS_MAX) {
        cairn_json_reader_fail(reader, "a part is malformed, or one too many");
        return;
    }
    node->parts[node->part_count++] =
        (struct operator_part){.generation = {numbers[0], numbers[1], numbers[8]},
                               .member = numbers[2],
                               .state = numbers[3],
                               .committed = numbers[4],
                               .data_bytes = numbers[5],
                               .bad_blocks = numbers[6],
                               .age_ns = numbers[7]};
}

/* Reads the text of this name. False: it is none. */
static bool
read_text(struct cairn_json_reader *reader, struct operator_node *node, const char *name)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(name, texts[i].name) == 0) {
            cairn_json_read_string(reader, (char *)node + texts[i].offset, texts[i].bytes);
            return true;
        }
    return false;
}

/* The field with this name; NULL: it comes from a newer version. */
static uint64_t *
find_field(struct operator_node *node, const char *name)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(name, fields[i].name) == 0)
            return (uint64_t *)(void *)((char *)node + fields[i].offset);
    return NULL;
}

bool
operator_node_read(struct cairn_json_reader *reader, struct operator_node *out)
{
    struct operator_node node = {.known = true};
    char key[64];

    cairn_json_object_begin(reader);
    while (cairn_json_object_next(reader, key, sizeof key)) {
        uint64_t *field = find_field(&node, key);

        if (strcmp(key, "parts") == 0) {
            cairn_json_array_begin(reader);
            while (cairn_json_array_next(reader))
                read_part(reader, &node);
            continue;
        }
        if (strcmp(key, "coverage") == 0) {
            operator_coverage_read(reader, &node);
            continue;
        }
        if (strcmp(key, "stacks") == 0) {
            operator_stacks_read(reader, &node);
            continue;
        }
        if (strcmp(key, "causes") == 0) {
            operator_causes_read(reader, &node);
            continue;
        }
        if (read_text(reader, &node, key))
            continue;
        if (field)
            *field = cairn_json_read_u64(reader, UINT64_MAX);
        else
            cairn_json_skip(reader);
    }
    if (cairn_json_reader_failed(reader)) {
        operator_node_fini(&node);
        return false;
    }
    *out = node;
    return true;
}
