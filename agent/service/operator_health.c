/*
 * agent/service/operator_health.c - what all nodes' views say together: the protection, what would
 * be lost now, what is wrong and what to do. Pure.
 */
#include "agent/service/operator_health.h"

#include "agent/process/config.h"
#include "agent/process/credentials.h"
#include "agent/service/operator_causes.h"
#include "agent/service/operator_coverage.h"
#include "agent/service/operator_poison.h"
#include "agent/service/operator_protection.h"
#include "replan/live/enforce.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCKED_MS_MIN = 5000,
    STEPS_BEHIND_FACTOR = 4,
    NODES_NAMED_MAX = 8,
    VERDICTS_NAMED_MAX = 6
};

/* A job whose newest generation is younger needs no warning, however many of its steps fit in that
 * time. */
static const uint64_t FRESH_NS = 1000000000;

struct cairn_generation_id
operator_newest(const struct operator_node *nodes, uint32_t node_count, bool *from_files)
{
    struct cairn_generation_id newest = {0};

    *from_files = false;
    for (uint32_t i = 0; i < node_count; i++) {
        struct cairn_generation_id committed = {nodes[i].committed_epoch, nodes[i].committed_step,
                                                nodes[i].committed_run};
        struct cairn_generation_id ready = {nodes[i].ready_epoch, nodes[i].ready_step,
                                            nodes[i].ready_run};

        if (!nodes[i].known)
            continue;
        if (cairn_generation_id_compare(committed, newest) > 0) {
            newest = committed;
            *from_files = false;
        }
        if (cairn_generation_id_compare(ready, newest) > 0) {
            newest = ready;
            *from_files = nodes[i].ready_from_files;
        }
    }
    return newest;
}

__attribute__((format(printf, 5, 6))) static void
add_check(struct operator_health *health, enum operator_level level, const char *code,
          const char *fix, const char *format, ...)
{
    struct operator_check *check;
    va_list arguments;

    if (level > health->level)
        health->level = level;
    if (health->check_count == OPERATOR_CHECKS_MAX)
        return;
    check = &health->checks[health->check_count++];
    check->level = level;
    check->code = code;
    snprintf(check->fix, sizeof check->fix, "%s", fix);
    va_start(arguments, format);
    vsnprintf(check->what, sizeof check->what, format, arguments);
    va_end(arguments);
}

/* ---- sums ---- */

static uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void
sum_nodes(const struct operator_job *job, struct operator_health *out)
{
    out->age_ns = OPERATOR_UNKNOWN;
    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        if (!node->known)
            continue;
        out->answering++;
        out->trainers += node->trainers;
        out->last_step = larger(out->last_step, node->last_step);
        out->protect_ns = larger(out->protect_ns, node->protect_ns);
        out->reserved_bytes += node->reserved_bytes;
        out->state_bytes += node->state_bytes;
        out->captured += node->captured;
        out->skipped += node->skipped;
        out->failed += node->failed;
        out->dropped_messages += node->dropped_messages;
        out->spills_given_up += node->spills_given_up;
        if (node->blocked_step)
            out->blocked_ms = larger(out->blocked_ms, node->blocked_ms);
        out->fence_count += node->fence_count;
        out->fence_ns_p50 = larger(out->fence_ns_p50, node->fence_ns_p50);
        out->fence_ns_p99 = larger(out->fence_ns_p99, node->fence_ns_p99);
        out->fence_ns_max = larger(out->fence_ns_max, node->fence_ns_max);
        for (uint32_t h = 0; h < node->part_count; h++) {
            const struct operator_part *part = &node->parts[h];

            out->bad_blocks += part->bad_blocks;
            if (cairn_generation_id_compare(part->generation, job->newest) != 0)
                continue;
            out->bytes += part->data_bytes;
            if (part->age_ns < out->age_ns)
                out->age_ns = part->age_ns;
        }
    }
    if (out->last_step > job->newest.step)
        out->lost_steps = out->last_step - job->newest.step;
    if (out->protect_ns) /* rebuilding a lost part takes about as long as protecting it did, after
                          * the wait for silent agents */
        out->restore_estimate_ns =
            out->protect_ns + (uint64_t)job->config->dead_after_ms * UINT64_C(1000000);
    for (uint32_t i = 0; !out->spilled && i < job->files->count; i++)
        if (job->files->spilled[i].committed)
            out->spilled = &job->files->spilled[i];
    if (job->newest_from_files && out->spilled)
        out->age_ns = out->spilled->age_ns;
}

/* ---- checks ---- */

static void
check_nodes(const struct operator_job *job, struct operator_health *health)
{
    uint32_t silent = 0, named = 0, waiting = 0;
    uint32_t denied = 0, unkept = 0, outside = 0, flooded = 0;
    char names[128] = "";
    size_t used = 0;
    bool fenced = false;

    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        silent += !node->known && !job->config->nodes[i].removed;
        if (!node->known && !job->config->nodes[i].removed && named < NODES_NAMED_MAX) {
            int len = snprintf(names + used, sizeof names - used, "%s%u", named ? ", " : "", i);

            used += len > 0 ? (size_t)len : 0;
            named++;
        }
        fenced |= node->known && node->fenced;
        if (!node->known)
            continue;
        waiting += node->trainers && node->trainers < node->local_ranks;
        outside += node->trainers && node->member == UINT32_MAX;
        denied += node->denied_peers != 0;
        flooded += node->ignored_addresses != 0;
        unkept += node->unkept != 0;
    }
    if (health->answering <= job->config->node_count / 2)
        add_check(health, OPERATOR_CRITICAL, "no-majority",
                  "start the missing agents: a restore needs the promise of more than half",
                  "only %u of %u agents answer", health->answering, job->config->node_count);
    if (silent)
        add_check(health, OPERATOR_WARN, "nodes-silent",
                  "see whether these nodes are up, and start `cairn agent` there",
                  "%u of %u agents do not answer: node %s%s", silent, job->config->node_count,
                  names, silent > named ? ", ..." : "");
    if (denied)
        add_check(
            health, OPERATOR_WARN, "peers-denied",
            "give all nodes of the job the same `job`, `nodes` and key_file, or certificates of "
            "the same authorities, then restart the agents that differ; their logs have the "
            "reasons",
            "%u node%s refuse%s an agent that holds another key, shows an invalid certificate, "
            "belongs to another job, or is not the node that it claims to be",
            denied, denied == 1 ? "" : "s", denied == 1 ? "s" : "");
    if (flooded)
        add_check(health, OPERATOR_WARN, "strangers-ignored",
                  "find out who runs at the addresses that these agents' logs name, and stop them",
                  "%u node%s ignore%s addresses that connect again and again without a key or "
                  "certificate",
                  flooded, flooded == 1 ? "" : "s", flooded == 1 ? "s" : "");
    if (outside)
        add_check(health, OPERATOR_CRITICAL, "not-a-member",
                  "wait some seconds: they join once all agents are up and all ranks attached; if "
                  "they do "
                  "not, stop the trainers, run `cairn restore` with all agents up, and start the "
                  "trainers again",
                  "trainers run on %u node%s that the last restore did not find, and so nothing is "
                  "committed",
                  outside, outside == 1 ? "" : "s");
    health->unkept = unkept;
    if (unkept)
        add_check(health, OPERATOR_WARN, "memory-unkept",
                  "set `keeper: true` where it is off, and restart the agent there at a moment "
                  "when no other node is missing",
                  "on %u node%s no keeper holds the memory: it would be lost with its agent",
                  unkept, unkept == 1 ? "" : "s");
    if (fenced)
        add_check(health, OPERATOR_WARN, "restore-running",
                  "wait for it; `cairn restore` takes an unfinished one over",
                  "a restore is under way or was left unfinished: nothing new is captured");
    if (waiting)
        add_check(health, OPERATOR_WARN, "ranks-missing",
                  "see why the other ranks of these nodes have not registered",
                  "on %u node%s not all ranks are attached: nothing is captured", waiting,
                  waiting == 1 ? "" : "s");
}

/* Nodes with a certificate in one of two states, and the least time that is left. */
static uint32_t
count_certificates(const struct operator_job *job, enum cairn_certificate_state one,
                   enum cairn_certificate_state other, uint32_t *node, uint64_t *left_s)
{
    uint32_t count = 0;

    *left_s = UINT64_MAX;
    for (uint32_t i = job->config->node_count; i-- > 0;) {
        const struct operator_node *each = &job->nodes[i];

        if (!each->known || (each->certificate_state != one && each->certificate_state != other))
            continue;
        count++;
        if (each->certificate_left_s <= *left_s) {
            *left_s = each->certificate_left_s;
            *node = i;
        }
    }
    return count;
}

static void
check_certificates(const struct operator_job *job, struct operator_health *health)
{
    static const char fix[] =
        "renew the certificate there (certificate_file, private_key_file) and "
        "send its agent SIGHUP; see why that has not happened by itself";
    uint32_t node = 0, count;
    uint64_t left_s;

    count =
        count_certificates(job, CAIRN_CERTIFICATE_EXPIRED, CAIRN_CERTIFICATE_EARLY, &node, &left_s);
    if (count)
        add_check(health, OPERATOR_CRITICAL, "certificate-invalid", fix,
                  "the certificate of %u node%s is not valid now, first node %u: sessions live on, "
                  "but no new one begins",
                  count, count == 1 ? "" : "s", node);
    count = count_certificates(job, CAIRN_CERTIFICATE_DUE, CAIRN_CERTIFICATE_DUE, &node, &left_s);
    if (count)
        add_check(health, OPERATOR_WARN, "certificate-ends", fix,
                  "the certificate of %u node%s ends soon, first that of node %u in %" PRIu64
                  " minutes: renewal is late",
                  count, count == 1 ? "" : "s", node, left_s / 60);
}

static void
check_generation(const struct operator_job *job, struct operator_health *health)
{
    uint64_t step = job->newest.step, epoch = cairn_epoch_number(job->newest.epoch);
    uint64_t behind = STEPS_BEHIND_FACTOR * (uint64_t)job->config->snapshot_every_steps;

    if (step == 0) {
        add_check(health, OPERATOR_WARN, "nothing-committed",
                  health->trainers
                      ? "wait for the first commit; `cairn snapshot --wait` asks for one"
                      : "start the trainers (`cairn run`)",
                  "no generation is committed yet: a failure now loses everything");
        return;
    }
    if (health->trainers && health->last_step > 0 && health->last_step < step &&
        health->age_ns > FRESH_NS)
        add_check(health, OPERATOR_WARN, "not-restored",
                  "`cairn restore --fresh` if the generation that is held is not wanted; else end "
                  "the trainers, and start them so that they resume",
                  "the trainers are at step %" PRIu64 " and have not restored epoch %" PRIu64
                  " step %" PRIu64 ": nothing is captured before they pass that step",
                  health->last_step, epoch, step);
    if (job->newest_from_files)
        return;
    if (health->survives < 0) {
        add_check(health, OPERATOR_CRITICAL, "not-restorable",
                  "start the agents of the lost nodes whose memory still lives; else `cairn "
                  "restore` says what is left",
                  "epoch %" PRIu64 " step %" PRIu64
                  ": no node that answers holds %u of %u parts, more than the parity covers",
                  epoch, step, health->missing, health->parts);
        return;
    }
    if (health->missing)
        add_check(
            health, OPERATOR_WARN, "parts-missing",
            "start the missing agents, or let the repair finish: `cairn restore` brings the parts "
            "back at once",
            "epoch %" PRIu64 " step %" PRIu64
            ": %u of %u parts must be rebuilt; until then %d more lost node%s can be survived",
            epoch, step, health->missing, health->parts, health->survives,
            health->survives == 1 ? "" : "s");
    if (health->parity == 0)
        add_check(health, OPERATOR_WARN, "no-parity",
                  "set `parity` to 1 or more, with more than that many nodes",
                  "a lost node is not covered: m = 0; the death of trainers%s is",
                  health->unkept ? "" : " and of the agent");
    else if (health->missing == 0 && health->survives < (int32_t)health->parity)
        add_check(health, OPERATOR_WARN, "parts-together",
                  "start the missing agents, or add a node: a repair moves a part there",
                  "a node holds several parts of one group: %d more lost node%s can be survived, "
                  "not %u",
                  health->survives, health->survives == 1 ? "" : "s", health->parity);
    else if (health->parity < job->config->parity)
        add_check(health, OPERATOR_WARN, "less-parity",
                  "start the missing agents and run `cairn restore`",
                  "a group survives %u lost node%s, not the %u of the configuration: there are too "
                  "few nodes for more",
                  health->parity, health->parity == 1 ? "" : "s", job->config->parity);
    else if (!health->survives_domain && health->missing == 0)
        add_check(health, OPERATOR_WARN, "domain-not-covered",
                  health->answering < job->config->node_count
                      ? "start the missing agents: until then a node holds several parts"
                      : "raise `parity`, or spread the nodes over more failure domains",
                  "the loss of one whole failure domain takes more than %u nodes of a group",
                  health->parity);
    if (health->lost_steps > behind && health->age_ns > FRESH_NS)
        add_check(health, OPERATOR_WARN, "commits-behind",
                  "look for skipped snapshots below, and at the agents' logs",
                  "the newest generation is %" PRIu64 " steps old, one is due every %u",
                  health->lost_steps, job->config->snapshot_every_steps);
}

static void
check_poison(const struct operator_job *job, struct operator_health *health)
{
    const struct operator_node *node = operator_poison_find(job);
    char what[OPERATOR_POISON_BYTES], fix[sizeof health->checks[0].fix];

    if (!node)
        return;
    operator_poison_describe(node, what);
    if (node->poison_kept) {
        add_check(health, OPERATOR_WARN, "poisoned-kept",
                  "look for the cause; with `on_poison: keep_good` such steps are not committed",
                  "%s", what);
        return;
    }
    if (job->newest.step)
        snprintf(fix, sizeof fix,
                 "look for the cause, stop the job, and go on from step %" PRIu64
                 " with `cairn run --resume`; docs/OPERATIONS.md has more",
                 job->newest.step);
    else
        snprintf(fix, sizeof fix, "look for the cause: no good step is held");
    add_check(health, OPERATOR_CRITICAL, "poisoned", fix, "%s", what);
}

/* A state that was bad from the start replaces nothing good, but nobody expects it either. */
static void
check_unwatched(const struct operator_job *job, struct operator_health *health)
{
    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        if (!node->known || node->unwatched_tensors == 0)
            continue;
        add_check(
            health, OPERATOR_WARN, "never-finite",
            "if you did not intend that, look for the cause, and begin again with `cairn restore "
            "--fresh`",
            "rank %" PRIu64 ": %" PRIu64 " tensor%s of model or optimizer held values that "
            "are not finite from the start, such as %.120s; %s not watched for them",
            node->unwatched_rank, node->unwatched_tensors, node->unwatched_tensors == 1 ? "" : "s",
            node->unwatched_name, node->unwatched_tensors == 1 ? "it is" : "they are");
        return;
    }
}

/* Damage that a scrub found and the job could not repair. */
static void
check_scrub(const struct operator_job *job, struct operator_health *health)
{
    const struct operator_node *first = NULL;
    uint32_t nodes = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        if (!node->known || node->scrub_unrepairable == 0)
            continue;
        first = first ? first : node;
        nodes++;
    }
    if (first)
        add_check(health, OPERATOR_CRITICAL, "scrub-unrepairable",
                  "keep the job running: the next generation replaces what is damaged; `cairn "
                  "verify` names it; look at that node's memory (ECC) and disk",
                  "node %u%s: %" PRIu64 " damaged blocks in memory or in local_dir cannot be "
                  "repaired",
                  (unsigned)(first - job->nodes), nodes > 1 ? " and others" : "",
                  first->scrub_unrepairable);
}

static void
check_rest(const struct operator_job *job, struct operator_health *health)
{
    if (health->bad_blocks)
        add_check(health, OPERATOR_WARN, "damaged-blocks",
                  "run `cairn verify`: it repairs them from the others",
                  "%" PRIu64 " blocks do not match their checksums", health->bad_blocks);
    if (health->failed)
        add_check(health, OPERATOR_WARN, "snapshots-failed",
                  "read the trainers' log lines that name the failed copies",
                  "%" PRIu64 " snapshots failed in the trainers", health->failed);
    if (health->skipped > health->captured && health->age_ns > FRESH_NS)
        add_check(health, OPERATOR_WARN, "snapshots-skipped",
                  "protecting takes longer than a step; raise `slots`, or snapshot_every_steps",
                  "%" PRIu64 " snapshots were skipped, %" PRIu64 " taken", health->skipped,
                  health->captured);
    if (job->files->configured && job->files->err)
        add_check(health, OPERATOR_WARN, "spill-unreadable",
                  "fix the directory, or set `spill_dir` to another",
                  "the spill directory cannot be read: %s: %s", job->config->spill_dir,
                  cairn_err_text(job->files->err));
}

/* The node that blocks the due generation, as its leader knows. */
static void
check_blocker(const struct operator_node *leader, uint32_t leader_index,
              struct operator_health *health)
{
    uint64_t agent = leader->blocked_agent, other = leader->blocked_for_agent;
    char cause[96];

    if (leader->blocked_step == 0 || leader->blocked_ms < BLOCKED_MS_MIN)
        return;
    switch ((enum cairn_wait)leader->blocked_cause) {
    case CAIRN_WAIT_TRAINERS:
        snprintf(cause, sizeof cause, "node %" PRIu64 " waits for its trainers", agent);
        break;
    case CAIRN_WAIT_BLOCKS:
        snprintf(cause, sizeof cause, "node %" PRIu64 " waits for blocks of node %" PRIu64, agent,
                 other);
        break;
    case CAIRN_WAIT_PARITY:
        snprintf(cause, sizeof cause,
                 "node %" PRIu64 " waits until node %" PRIu64 " has its blocks", agent, other);
        break;
    case CAIRN_WAIT_HERE:
        snprintf(cause, sizeof cause, "node %" PRIu64 " computes checksums or stores the record",
                 agent);
        break;
    default: /* the leader receives nothing from a node, or a node from another */
        snprintf(cause, sizeof cause, "node %" PRIu64 " receives nothing from node %" PRIu64,
                 other == UINT32_MAX ? leader_index : agent, other == UINT32_MAX ? agent : other);
        break;
    }
    add_check(health, OPERATOR_WARN, "commit-blocked",
              "look at the log of the node that is named last, at its trainers and its network",
              "step %" PRIu64 " is not committed since %" PRIu64 " s: %s", leader->blocked_step,
              leader->blocked_ms / 1000, cause);
}

/* Why nothing is captured: no run is assembled, options differ, or an agent is blank. */
static void
check_run(const struct operator_job *job, struct operator_health *health)
{
    const struct operator_node *refused = NULL, *different = NULL, *stuck = NULL, *failed = NULL;
    const struct operator_node *unwritten = NULL;
    uint32_t blank = 0, versions = 0;

    for (uint32_t i = 0; i < job->config->node_count; i++) {
        const struct operator_node *node = &job->nodes[i];

        if (!node->known)
            continue;
        check_blocker(node, i, health);
        blank += node->blank != 0;
        if (node->spill_stuck_ms && (!stuck || node->spill_stuck_ms > stuck->spill_stuck_ms))
            stuck = node;
        if (node->spill_failed_ms && (!failed || node->spill_failed_ms < failed->spill_failed_ms))
            failed = node; /* the newest leader */
        if (node->local_err && !unwritten)
            unwritten = node;
        versions += node->version_peers != 0;
        if (node->refusal[0] && !refused)
            refused = node;
        if (node->mismatch[0] && (!different || node->refused_peers > different->refused_peers))
            different = node;
    }
    if (refused && health->trainers)
        add_check(health, OPERATOR_WARN, "run-not-assembled",
                  "fix what is named; nothing is captured until then", "%s", refused->refusal);
    if (different)
        add_check(health, different->refused_peers ? OPERATOR_CRITICAL : OPERATOR_WARN,
                  "options-differ",
                  "give all nodes the same options, and restart the agents that differ", "%s",
                  different->mismatch);
    if (stuck)
        add_check(health, OPERATOR_WARN, "spill-stuck",
                  "look at the disk or the mount of that directory on that node; commits in memory "
                  "go on without it",
                  "node %u: the disk of %.120s has not answered for %" PRIu64 " s",
                  (unsigned)(stuck - job->nodes), job->config->spill_dir,
                  stuck->spill_stuck_ms / 1000);
    if (failed)
        add_check(health, OPERATOR_WARN, "spill-failed",
                  "fix what is named; commits in memory go on, and a spill is tried again each "
                  "minute",
                  "node %u: trouble with spills since %" PRIu64 " s: %s",
                  (unsigned)(failed - job->nodes), failed->spill_failed_ms / 1000,
                  failed->spill_failure);
    if (unwritten)
        add_check(health, OPERATOR_WARN, "local-failed",
                  "look at that disk; commits in memory go on, and it is tried again each minute",
                  "node %u: cannot write to %.200s: %s", (unsigned)(unwritten - job->nodes),
                  job->config->local_dir, cairn_err_text((cairn_err)unwritten->local_err));
    if (versions)
        add_check(health, OPERATOR_WARN, "versions-differ", "upgrade the older agents",
                  "%u node%s refuse%s an agent that speaks no version of the protocol that they "
                  "speak; the agents' logs name the versions",
                  versions, versions == 1 ? "" : "s", versions == 1 ? "s" : "");
    if (blank)
        add_check(health, OPERATOR_WARN, "node-blank",
                  "wait for the repair; if silent nodes hold it up, start them, or give up what "
                  "they hold: `cairn restore`, or with --fresh to begin with nothing",
                  "%u node%s lost its memory and is not a member until a repair adds it", blank,
                  blank == 1 ? "" : "s");
}

/* What is slow or hangs. A job that stands still is as bad as a lost one; the verdicts have the
 * details. */
static void
check_verdicts(const struct operator_job *job, struct operator_health *health)
{
    static const char *const codes[] = {
        [CAIRN_SLOW_COMPUTE] = "slow-rank",   [CAIRN_SLOW_NODE] = "slow-node",
        [CAIRN_SLOW_LINK] = "slow-link",      [CAIRN_HANG_COMPUTE] = "rank-hangs",
        [CAIRN_HANG_LINK] = "transfer-hangs", [CAIRN_CRASH] = "rank-gone",
        [CAIRN_STRUCTURAL] = "plan-uneven"};
    uint32_t named = 0;

    for (uint32_t i = 0; job->ledger && i < job->ledger->count; i++) {
        const struct cairn_ledger_entry *entry = &job->ledger->entries[i];
        bool hangs = entry->kind >= CAIRN_HANG_COMPUTE && entry->kind <= CAIRN_CRASH;
        char what[sizeof health->checks[0].what], advice[sizeof health->checks[0].fix];
        char command[CAIRN_ENFORCE_TEXT_BYTES] = "", why[CAUSE_TEXT_BYTES + 32] = "";
        const struct cause *cause;
        uint32_t node;

        if (entry->closed_wall_ns != 0 || named++ >= VERDICTS_NAMED_MAX)
            continue;
        cairn_ledger_describe(entry, what, sizeof what);
        if (entry->enforcement.state != CAIRN_ENFORCEMENT_NONE)
            cairn_enforce_describe(&entry->enforcement, command, sizeof command);
        cause = operator_causes_first(job, entry->number, &node);
        if (cause)
            (void)snprintf(why, sizeof why, "; on node %" PRIu32 " %s", node, cause->what);
        cairn_ledger_advise(job->ledger, entry, job->config->exchanges_per_day,
                            job->config->verdict_policy == CAIRN_CONFIG_ENFORCE, advice,
                            sizeof advice);
        add_check(health, hangs ? OPERATOR_CRITICAL : OPERATOR_WARN, codes[entry->kind],
                  job->config->verdict_policy == CAIRN_CONFIG_OBSERVE
                      ? "`cairn status -o json` has the evidence"
                      : advice,
                  "%s%s%s%s", what, why, command[0] ? "; " : "", command);
    }
}

/* State that is in no snapshot is gone after a failure: for the model that is a warning, for the
 * rest a note. */
static void
check_coverage(struct operator_health *health)
{
    const struct operator_uncovered *refusal = NULL, *model = NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; i < health->uncovered.count; i++) {
        const struct operator_uncovered *item = &health->uncovered.items[i];

        if (item->kind == 0 && !refusal)
            refusal = item;
        if (item->kind != CAIRN_PARAM && item->kind != CAIRN_OPTIMIZER)
            continue;
        if (!model)
            model = item;
        count++;
    }
    if (refusal)
        add_check(
            health, OPERATOR_WARN, "snapshots-refused",
            "fix what the reason names; the README of bindings/python says what can be covered",
            "%u rank%s take%s no snapshots; rank %" PRIu64 ": %s", health->ranks_refusing,
            health->ranks_refusing == 1 ? "" : "s", health->ranks_refusing == 1 ? "s" : "",
            refusal->rank, refusal->reason);
    if (model)
        add_check(health, OPERATOR_WARN, "not-covered",
                  "fix what the reason names: what is not covered does not come back; `cairn "
                  "status -o json` lists it all",
                  "%u%s tensor%s of model or optimizer %s not covered; %.100s: %s", count,
                  health->uncovered.left_out ? " or more" : "", count == 1 ? "" : "s",
                  count == 1 ? "is" : "are", model->name, model->reason);
}

void
operator_health_find(const struct operator_job *job, struct operator_health *out)
{
    memset(out, 0, sizeof *out);
    sum_nodes(job, out);
    operator_coverage_sum(job, out);
    operator_protection_find(job, out);
    check_nodes(job, out);
    check_certificates(job, out);
    check_generation(job, out);
    check_poison(job, out);
    check_unwatched(job, out);
    check_run(job, out);
    check_verdicts(job, out);
    check_coverage(out);
    check_scrub(job, out);
    check_rest(job, out);
}
