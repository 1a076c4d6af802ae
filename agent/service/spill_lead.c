/*
 * agent/service/spill_lead.c - the leader of a spill: begins it, gathers checksums, commits, gives
 * up; see spill_state.h.
 *
 *   NONE     ─ N-th commit ──────────────────────────────► BEGIN
 *   BEGIN    ─ the directory is made ────────────────────► WRITE
 *   WRITE    ─ the checksums of every file are here ─────► COMMIT
 *   COMMIT   ─ committed ────────────────────────────────► END
 *   END      ─ all members are told ─────────────────────► NONE
 *   any      ─ a failure, or no progress for
 *              SPILL_PATIENCE_NS ────────────────────────► END, with an error
 *
 * A spill that fails harms nothing: it is logged once, what it wrote is removed, and a later
 * generation is tried. A failure that an operator must fix (a full disk) pauses spilling for
 * pause_after_failure_ns, so that it is not logged for each generation.
 */
#include "agent/service/spill_lead.h"

#include "erasure/roster.h"
#include "agent/process/agent_state.h"
#include "agent/process/mail.h"
#include "agent/process/recorder.h"
#include "agent/process/step.h"
#include "agent/service/spill_disk.h"
#include "agent/service/spill_part.h"
#include "agent/service/spill_pin.h"
#include "agent/service/spill_run.h"
#include "base/assert.h"
#include "base/log.h"
#include "base/wire.h"
#include "snapshot/spill.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REMOVALS_MAX = 5 };
static const uint64_t end_patience_ns = 15 * CAIRN_NS_PER_S;
static const uint64_t pause_after_failure_ns = 60 * CAIRN_NS_PER_S;
static const uint64_t said_pause_ns =
    60 * CAIRN_NS_PER_S; /* between warnings of what fixes itself */
static const uint64_t all_received = UINT64_MAX;

/* ---- small parts ---- */

static void
forget_files(struct spill_lead *lead)
{
    for (uint32_t f = 0; lead->crcs && f < lead->file_count; f++)
        free(lead->crcs[f]);
    free(lead->crcs);
    free(lead->received);
    lead->crcs = NULL;
    lead->received = NULL;
    lead->file_count = 0;
}

void
spill_lead_fini(struct cairn_agent *agent)
{
    forget_files(&agent->spill->lead);
    free(agent->spill->lead.members);
    agent->spill->lead = (struct spill_lead){0};
}

/* The lowest live agent that is a member. */
static bool
is_leader(const struct cairn_agent *agent, const struct cairn_core_view *view)
{
    if (!view->roster || view->self_member == UINT32_MAX)
        return false;
    for (uint32_t m = 0; m < view->roster->member_count; m++)
        if (view->roster->members[m].agent < agent->config.node &&
            cairn_core_alive(agent->core, view->roster->members[m].agent))
            return false;
    return true;
}

/* A member's agent that is not alive; UINT32_MAX: all are. */
static uint32_t
find_dead(const struct cairn_agent *agent, const struct cairn_roster *table)
{
    for (uint32_t m = 0; m < table->member_count; m++)
        if (!cairn_core_alive(agent->core, table->members[m].agent))
            return table->members[m].agent;
    return UINT32_MAX;
}

/* True for errors that an operator must fix; the others go away by themselves. */
static bool
needs_people(cairn_err err)
{
    return err == CAIRN_FULL || err == CAIRN_IO || err == CAIRN_DENIED || err == CAIRN_CONFIG ||
           err == CAIRN_CORRUPT || err == CAIRN_INTERNAL || err == CAIRN_INVAL;
}

/* ---- the end ---- */

static void
tell_end(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;

    lead->sent_ns = agent_now_ns(agent);
    for (uint32_t a = 0; a < agent->config.node_count; a++)
        if (!lead->members[a].ended && cairn_core_alive(agent->core, a))
            spill_send(agent, a, SPILL_END, lead->request, lead->generation, lead->err, "");
}

static void
enter_end(struct cairn_agent *agent, cairn_err err)
{
    struct spill_lead *lead = &agent->spill->lead;

    lead->state = LEAD_END;
    lead->err = err;
    lead->end_ns = agent_now_ns(agent);
    lead->removals_left = err ? REMOVALS_MAX : 0;
    lead->members[agent->config.node].ended = true;
    forget_files(lead);
    spill_part_end(agent);
    spill_unpin(agent, lead->request);
    tell_end(agent);
}

static void
record_failure(struct cairn_agent *agent, cairn_err err, const char *text)
{
    struct history_event event = history_event_of(HISTORY_SPILL);

    event.generation = agent->spill->lead.generation;
    event.err = (uint32_t)err;
    event.text = text;
    recorder_add(agent, &event);
}

static void __attribute__((format(printf, 3, 4)))
give_up(struct cairn_agent *agent, cairn_err err, const char *format, ...)
{
    struct spill_lead *lead = &agent->spill->lead;
    char text[SPILL_TEXT_BYTES];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (err == CAIRN_TIMEOUT && agent->spill->pause_ns <= agent_now_ns(agent))
        spill_stuck(agent, lead->progress_ns);
    if (needs_people(err)) {
        agent->spill->pause_ns = agent_now_ns(agent) + pause_after_failure_ns;
        if (strcmp(agent->spill->failure, text) != 0 || !agent->spill->failed_ns)
            record_failure(agent, err, text);
        if (!agent->spill->failed_ns)
            agent->spill->failed_ns = agent_now_ns(agent);
        snprintf(agent->spill->failure, sizeof agent->spill->failure, "%s", text);
        CAIRN_LOG_AT(ERROR,
                     "spill: given up epoch=%" PRIu64 " step=%" PRIu64 ": %s; training and its "
                     "protection in memory go on, and a spill is tried again in 60 s",
                     cairn_epoch_number(lead->generation.epoch), lead->generation.step, text);
    } else if (!agent->spill->said_ns ||
               agent_now_ns(agent) - agent->spill->said_ns >= said_pause_ns) {
        agent->spill->said_ns = agent_now_ns(agent);
        CAIRN_LOG_AT(WARN,
                     "spill: given up epoch=%" PRIu64 " step=%" PRIu64 ": %s; the next one that is "
                     "due is tried",
                     cairn_epoch_number(lead->generation.epoch), lead->generation.step, text);
    } else {
        CAIRN_LOG_AT(DEBUG, "spill: given up epoch=%" PRIu64 " step=%" PRIu64 ": %s",
                     cairn_epoch_number(lead->generation.epoch), lead->generation.step, text);
    }
    if (err == CAIRN_NOT_FOUND) /* a newer one came too soon: the next one at once */
        agent->spill->commits = agent->config.spill_every_generations - 1;
    enter_end(agent, err);
}

static void
removed(struct spill_disk_job *job)
{
    struct spill_lead *lead = &job->agent->spill->lead;

    if (lead->state == LEAD_END && lead->request == job->request && !job->err)
        lead->removals_left = 0;
}

/* Removes a failed spill's files; again later if abandoned threads still have one open. */
static void
remove_left(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct spill_disk_job job = {.work = SPILL_DISK_REMOVE,
                                 .request = lead->request,
                                 .generation = lead->generation,
                                 .done = removed};

    lead->removals_left--;
    snprintf(job.dir, sizeof job.dir, "%s", agent->config.spill_dir);
    (void)!spill_disk_submit(agent, &job); /* what stays is cleared by the next spill */
}

static void
tick_end(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;
    uint64_t now_ns = agent_now_ns(agent);
    bool all = true;

    for (uint32_t a = 0; a < agent->config.node_count; a++)
        all &= lead->members[a].ended || !cairn_core_alive(agent->core, a);
    if (now_ns - lead->sent_ns >= SPILL_RESEND_NS) {
        tell_end(agent);
        if (lead->removals_left && all)
            remove_left(agent);
    }
    if (now_ns - lead->end_ns > end_patience_ns || (all && lead->removals_left == 0))
        lead->state = LEAD_NONE;
}

/* ---- commit ---- */

static void
committed(struct spill_disk_job *job)
{
    struct cairn_agent *agent = job->agent;
    struct spill_lead *lead = &agent->spill->lead;
    bool awaited = lead->state == LEAD_COMMIT && lead->request == job->request;
    char name[CAIRN_SPILL_DIR_NAME_BYTES];
    double seconds;

    if (agent->stopping)
        return;
    if (job->err && awaited)
        give_up(agent, job->err, "%s", job->text);
    if (job->err)
        return;
    if (awaited) {
        cairn_spill_dir_name(job->generation, name);
        seconds = (double)(agent_now_ns(agent) - lead->started_ns) / (double)CAIRN_NS_PER_S;
        CAIRN_LOG_AT(INFO,
                     "spill: committed epoch=%" PRIu64 " step=%" PRIu64
                     " dir=%s/%s files=%u bytes=%" PRIu64 " seconds=%.3f mib_per_s=%.1f",
                     cairn_epoch_number(job->generation.epoch), job->generation.step, job->dir,
                     name, job->plan.file_count, job->bytes, seconds,
                     (double)job->bytes / 1048576.0 / (seconds > 0 ? seconds : 1e-9));
        enter_end(agent, CAIRN_OK);
    }
    spill_learn(agent, job->generation);
}

static void
commit_when_whole(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct cairn_universal *plan;
    struct spill_disk_job job = {.work = SPILL_DISK_COMMIT,
                                 .request = lead->request,
                                 .generation = lead->generation,
                                 .done = committed};
    cairn_err err;

    if (lead->state != LEAD_WRITE || !agent->spill->part.written || !lead->received)
        return;
    for (uint32_t f = 0; f < lead->file_count; f++)
        if (lead->received[f] != all_received)
            return;
    err = cairn_spill_keep_parse(agent->config.spill_keep, &job.keep);
    CAIRN_ASSERT(!err); /* the configuration was checked */
    plan = spill_run_plan(agent->spill->part.run);
    job.plan = *plan; /* handed over, with all checksums */
    memset(plan, 0, sizeof *plan);
    snprintf(job.dir, sizeof job.dir, "%s", agent->config.spill_dir);
    lead->state = LEAD_COMMIT;
    lead->progress_ns = agent_now_ns(agent);
    err = spill_disk_submit(agent, &job);
    if (err)
        give_up(agent, err, "the commit cannot be handed to the disk thread: %s",
                cairn_err_text(err));
}

/* ---- messages of members ---- */

/* Makes room for the checksums, once the own plan is known. */
static bool
open_files(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;
    const struct spill_part *part = &agent->spill->part;
    const struct cairn_universal *plan = part->run ? spill_run_plan(part->run) : NULL;

    if (lead->received)
        return true;
    if (!plan || part->request != lead->request)
        return false;
    lead->received = calloc(plan->file_count + (size_t)1, sizeof *lead->received);
    lead->crcs = calloc(plan->file_count + (size_t)1, sizeof *lead->crcs);
    if (!lead->received || !lead->crcs) {
        forget_files(lead);
        return false;
    }
    lead->file_count = plan->file_count;
    for (uint32_t f = 0; f < plan->file_count; f++)
        if (plan->files[f].writer == part->writer)
            lead->received[f] = all_received; /* the own run sets them */
    return true;
}

static void
send_ack(struct cairn_agent *agent, const struct cairn_service_message *message, uint64_t received)
{
    struct cairn_service_message ack = {.kind = CAIRN_SERVICE_SPILL,
                                        .from = agent->config.node,
                                        .to = message->from,
                                        .generation = message->generation,
                                        .verb = SPILL_CRCS_ACK,
                                        .item = message->item,
                                        .request = message->request,
                                        .offset = received};

    mail_send_service(agent, &ack, NULL, 0, UINT32_MAX);
}

/* Adds a part that follows what is here. */
static cairn_err
add_crcs(struct spill_lead *lead, struct cairn_universal *plan,
         const struct cairn_service_message *message)
{
    uint32_t file = message->item, count = message->bytes_len / 8;
    uint64_t total = plan->files[file].block_count;
    struct cairn_reader reader;
    cairn_err err;

    if (message->offset != lead->received[file])
        return CAIRN_OK; /* a repeated one */
    if (!lead->crcs[file] && total) {
        lead->crcs[file] = calloc(total, sizeof *lead->crcs[file]);
        if (!lead->crcs[file])
            return CAIRN_NOMEM;
    }
    cairn_reader_init(&reader, message->bytes, message->bytes_len);
    for (uint32_t i = 0; i < count; i++)
        lead->crcs[file][lead->received[file]++] = cairn_read_u64(&reader);
    if (lead->received[file] < total)
        return CAIRN_OK;
    err = cairn_universal_crcs_set(plan, file, lead->crcs[file], total);
    if (!err) {
        lead->crcs[file] = NULL;
        lead->received[file] = all_received;
    }
    return err;
}

static void
take_crcs(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct cairn_core_view view;
    struct cairn_universal *plan;
    cairn_err err;

    if (lead->state != LEAD_WRITE || !open_files(agent))
        return; /* told again */
    plan = spill_run_plan(agent->spill->part.run);
    cairn_core_look(agent->core, &view);
    if (message->item >= lead->file_count || message->bytes_len % 8 != 0 ||
        message->total != plan->files[message->item].block_count ||
        plan->files[message->item].writer != cairn_roster_member_of(view.roster, message->from) ||
        message->offset > message->total ||
        message->bytes_len / 8 > message->total - message->offset) {
        give_up(agent, CAIRN_INTERNAL, "node %u plans other files than node %u", message->from,
                agent->config.node);
        return;
    }
    lead->progress_ns = agent_now_ns(agent);
    if (lead->received[message->item] != all_received) {
        err = add_crcs(lead, plan, message);
        if (err) {
            give_up(agent, err, "checksums of a file cannot be kept: %s", cairn_err_text(err));
            return;
        }
    }
    send_ack(agent, message,
             lead->received[message->item] == all_received ? message->total
                                                           : lead->received[message->item]);
    commit_when_whole(agent);
}

static void
take_progress(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct lead_member *member = &lead->members[message->from];

    if (message->err) {
        if (lead->state == LEAD_BEGIN || lead->state == LEAD_WRITE)
            give_up(agent, (cairn_err)message->err, "%.*s", (int)message->bytes_len,
                    (const char *)message->bytes);
        return;
    }
    if (!member->heard || message->offset > member->written_bytes)
        lead->progress_ns = agent_now_ns(agent);
    member->heard = true;
    member->written_bytes = message->offset;
}

void
spill_lead_message(struct cairn_agent *agent, const struct cairn_service_message *message)
{
    struct spill_lead *lead = &agent->spill->lead;

    if (lead->state == LEAD_NONE || lead->request != message->request) {
        if (message->verb !=
            SPILL_ENDED) /* of a spill that is over, or from before a restart of this agent */
            spill_send(agent, message->from, SPILL_END, message->request, message->generation,
                       CAIRN_STALE, "");
        return;
    }
    if (message->verb == SPILL_ENDED)
        lead->members[message->from].ended = true;
    else if (message->verb == SPILL_CRCS)
        take_crcs(agent, message);
    else
        take_progress(agent, message);
}

void
spill_lead_own(struct cairn_agent *agent, cairn_err err, const char *text)
{
    struct spill_lead *lead = &agent->spill->lead;
    char copy[SPILL_TEXT_BYTES];

    if (lead->state != LEAD_WRITE)
        return;
    snprintf(copy, sizeof copy, "%s", text); /* giving up ends the part that the text is in */
    lead->progress_ns = agent_now_ns(agent);
    if (err)
        give_up(agent, err, "%s", copy);
    else if (!open_files(agent))
        give_up(agent, CAIRN_NOMEM, "no memory is left for the checksums");
    else
        commit_when_whole(agent);
}

/* ---- the beginning ---- */

/* Asks every member that has not answered yet to take part. */
static void
tell_start(struct cairn_agent *agent, enum spill_row row)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    lead->sent_ns = agent_now_ns(agent);
    for (uint32_t m = 0; m < view.roster->member_count; m++) {
        uint32_t a = view.roster->members[m].agent;

        if (a != agent->config.node && !lead->members[a].heard)
            spill_send(agent, a, row, lead->request, lead->generation, CAIRN_OK, "");
    }
}

static void
begun(struct spill_disk_job *job)
{
    struct cairn_agent *agent = job->agent;
    struct spill_lead *lead = &agent->spill->lead;
    struct cairn_service_message start = {.kind = CAIRN_SERVICE_SPILL,
                                          .from = agent->config.node,
                                          .to = agent->config.node,
                                          .verb = SPILL_START};

    if (lead->state != LEAD_BEGIN || lead->request != job->request || agent->stopping)
        return;
    if (job->err) {
        give_up(agent, job->err, "%s", job->text);
        return;
    }
    lead->state = LEAD_WRITE;
    lead->progress_ns = agent_now_ns(agent);
    start.generation = lead->generation;
    start.request = lead->request;
    tell_start(agent, SPILL_START);
    spill_part_start(agent, &start);
}

void
spill_lead_committed(struct cairn_agent *agent, struct cairn_generation_id generation)
{
    struct spill_state *state = agent->spill;
    struct spill_lead *lead = &state->lead;
    struct spill_disk_job job = {.work = SPILL_DISK_BEGIN, .generation = generation, .done = begun};
    struct cairn_core_view view;
    cairn_err err;

    cairn_core_look(agent->core, &view);
    if (!is_leader(agent, &view) || view.fenced || lead->state != LEAD_NONE ||
        state->part.request || agent_now_ns(agent) < state->pause_ns ||
        spill_disk_is_stuck(agent) || cairn_generation_id_compare(generation, state->tried) <= 0 ||
        find_dead(agent, view.roster) != UINT32_MAX)
        return; /* skipped, never queued */
    free(lead->members);
    *lead = (struct spill_lead){.state = LEAD_BEGIN,
                                .request = spill_request_next(agent),
                                .generation = generation,
                                .epoch = view.active,
                                .started_ns = agent_now_ns(agent),
                                .progress_ns = agent_now_ns(agent),
                                .members = calloc(agent->config.node_count, sizeof *lead->members)};
    err = lead->members ? spill_pin(agent, lead->request, generation, SPILL_LEASE_NS) : CAIRN_NOMEM;
    if (err) {
        CAIRN_LOG_AT(WARN, "spill: not begun step=%" PRIu64 ": %s", generation.step,
                     cairn_err_text(err));
        lead->state = LEAD_NONE;
        return;
    }
    job.request = lead->request;
    snprintf(job.dir, sizeof job.dir, "%s", agent->config.spill_dir);
    tell_start(agent, SPILL_PIN); /* so that it is still there when the directory is */
    err = spill_disk_submit(agent, &job);
    if (err)
        give_up(agent, err,
                "the disk of %s still has not answered for an earlier spill; look at it",
                agent->config.spill_dir);
}

/* ---- time ---- */

static void
tick_write(struct cairn_agent *agent, uint64_t now_ns)
{
    struct spill_lead *lead = &agent->spill->lead;
    struct cairn_core_view view;
    uint64_t written = 0, total = 0;
    uint32_t dead;

    cairn_core_look(agent->core, &view);
    if (view.active != lead->epoch || view.fenced || !view.roster) {
        give_up(agent, CAIRN_STALE, "a new epoch began");
        return;
    }
    dead = find_dead(agent, view.roster);
    if (dead != UINT32_MAX) {
        give_up(agent, CAIRN_PEER, "node %u died", dead);
        return;
    }
    if (agent->spill->part.run)
        spill_run_progress(agent->spill->part.run, &written, &total);
    if (written > lead->members[agent->config.node].written_bytes) {
        lead->members[agent->config.node].written_bytes = written;
        lead->progress_ns = now_ns;
    }
    if (now_ns - lead->sent_ns >= SPILL_RESEND_NS)
        tell_start(agent, lead->state == LEAD_BEGIN ? SPILL_PIN : SPILL_START);
}

void
spill_lead_tick(struct cairn_agent *agent)
{
    struct spill_lead *lead = &agent->spill->lead;
    uint64_t now_ns = agent_now_ns(agent);

    if (lead->state == LEAD_NONE)
        return;
    if (lead->state == LEAD_END) {
        tick_end(agent);
        return;
    }
    if (now_ns - lead->progress_ns > spill_patience_ns(agent, lead->generation)) {
        bool committing = lead->state == LEAD_COMMIT;

        spill_stuck(agent, lead->progress_ns);
        give_up(agent, CAIRN_TIMEOUT,
                "no progress for %" PRIu64
                " s: a node or the disk of %s does not answer; a spill is tried again in %" PRIu64
                " s",
                (now_ns - lead->progress_ns) / CAIRN_NS_PER_S, agent->config.spill_dir,
                agent->spill->pause_step_ns / CAIRN_NS_PER_S);
        if (committing)
            lead->removals_left = 0; /* the disk may still finish it, and then it stays */
        return;
    }
    if (lead->state != LEAD_COMMIT)
        tick_write(agent, now_ns);
}
