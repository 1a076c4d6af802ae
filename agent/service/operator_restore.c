/* agent/service/operator_restore.c - the stages of a restore, its export, and a verify; see
 * operator.c. */
#include "agent/service/operator_restore.h"

#include "agent/process/agent_state.h"
#include "agent/process/step.h"
#include "agent/service/operator_gather.h"
#include "agent/service/operator_health.h"
#include "agent/service/operator_report.h"
#include "agent/service/operator_request.h"
#include "agent/service/operator_view.h"
#include "agent/service/spill.h"
#include "snapshot/catalog.h"
#include "snapshot/spill.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXPORT_RETRIES_MAX = 40, EXPORT_RETRY_MS = 20 };

/* ---- restore ---- */

/* Notes a committed generation that is later than the restored one; once. */
static void
give_up(struct operator_restored *restored, struct cairn_generation_id generation, bool in_memory)
{
    if (cairn_spill_compare(generation, restored->outcome.generation) <= 0 ||
        restored->given_up_count == OPERATOR_SPILLED_MAX)
        return;
    for (uint32_t i = 0; i < restored->given_up_count; i++)
        if (restored->given_up[i].in_memory == in_memory &&
            cairn_spill_compare(restored->given_up[i].generation, generation) == 0)
            return;
    restored->given_up[restored->given_up_count++] =
        (struct operator_given_up){generation, in_memory};
}

/* What is lost if an operator chooses a generation. */
static void
count_loss(const struct cairn_agent *agent, struct request *request, uint64_t *last_step)
{
    struct operator_restored *restored = &request->restored;

    for (uint32_t i = 0; request->nodes && i < agent->config.node_count; i++)
        for (uint32_t p = 0; request->nodes[i].known && p < request->nodes[i].part_count; p++)
            if (request->nodes[i].parts[p].committed)
                give_up(restored, request->nodes[i].parts[p].generation, true);
    for (uint32_t i = 0; request->files && i < request->files->count; i++)
        if (request->files->spilled[i].committed)
            give_up(restored, request->files->spilled[i].generation, false);
    for (uint32_t i = 0; i < restored->given_up_count; i++)
        if (restored->given_up[i].generation.step > *last_step)
            *last_step = restored->given_up[i].generation.step;
}

static void
answer_restore(struct cairn_agent *agent, struct request *request, int exit_code)
{
    struct operator_restored *restored = &request->restored;
    struct cairn_json_writer writer;
    uint64_t last_step = 0;

    for (uint32_t i = 0; request->nodes && i < agent->config.node_count; i++)
        if (request->nodes[i].known && request->nodes[i].last_step > last_step)
            last_step = request->nodes[i].last_step;
    if (request->wanted.step && restored->outcome.generation.step)
        count_loss(agent, request, &last_step);
    restored->lost_steps = OPERATOR_UNKNOWN;
    if (last_step && restored->outcome.generation.step)
        restored->lost_steps = last_step > restored->outcome.generation.step
                                   ? last_step - restored->outcome.generation.step
                                   : 0;
    restored->took_ns = agent_now_ns(agent) - request->started_ns;
    restored->dry_run = request->dry_run;
    cairn_json_writer_init(&writer);
    operator_write_restore(&writer, restored);
    request_answer(agent, request, exit_code, &writer);
}

static bool
is_wanted(const struct request *request, struct cairn_generation_id generation)
{
    return request->wanted.step == 0 ||
           (request->wanted.step == generation.step &&
            request->wanted.epoch == cairn_epoch_number(generation.epoch));
}

static void
export_done(void *context, uint64_t number, const struct spill_export_result *result)
{
    struct cairn_agent *agent = context;
    struct request *request = request_find(agent, number);

    if (!request)
        return;
    request->waiting &= ~(uint32_t)WAIT_EXPORT;
    if (result->err == CAIRN_AGAIN && request->retries < EXPORT_RETRIES_MAX) {
        request->retries++;
        request->stage = STAGE_EXPORT_AGAIN;
        request->waiting |= WAIT_RETRY;
        request->retry_at_ns = agent_now_ns(agent) + EXPORT_RETRY_MS * CAIRN_NS_PER_MS;
        return;
    }
    request->stage = STAGE_EXPORTED;
    request->restored.exported_bytes = result->bytes;
    if (result->err) {
        request->restored.outcome.err = result->err;
        snprintf(request->restored.error, sizeof request->restored.error, "%s", result->text);
    } else {
        request->restored.outcome.generation = result->generation;
    }
    agent->operators->advance(agent, request);
}

static void
begin_export(struct cairn_agent *agent, struct request *request)
{
    const struct cairn_generation_id ready = {0};
    struct operator_restored *restored = &request->restored;
    cairn_err err;

    request->waiting |= WAIT_EXPORT;
    err = spill_export(
        agent, restored->directory,
        restored->from_files && !restored->ready ? restored->outcome.generation : ready,
        request->number, export_done, agent, restored->error, sizeof restored->error);
    if (!err)
        return;
    request->waiting &= ~(uint32_t)WAIT_EXPORT;
    restored->outcome.err = err;
    answer_restore(agent, request, err == CAIRN_INVAL ? 64 : request_exit_code(err));
}

/* True if every part of the generation that trainers find is held by an agent that is alive. */
static bool
ready_is_whole(struct cairn_agent *agent, const struct cairn_core_view *view)
{
    uint32_t members = view->ready_roster ? view->ready_roster->member_count : 0;

    if (view->ready.step == 0 || view->fenced || (members == 0 && !view->ready_from_files))
        return false;
    for (uint32_t m = 0; m < members; m++) {
        uint32_t holder = cairn_core_holder(agent->core, view->ready, m);

        if (holder != agent->config.node &&
            (holder >= agent->config.node_count || !cairn_core_alive(agent->core, holder)))
            return false;
    }
    return true;
}

bool
request_export_ready(struct cairn_agent *agent, struct request *request)
{
    struct cairn_outcome *outcome = &request->restored.outcome;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    if (!is_wanted(request, view.ready) || !ready_is_whole(agent, &view))
        return false;
    *outcome = (struct cairn_outcome){.generation = view.ready, .epoch = view.active};
    snprintf(outcome->text, sizeof outcome->text,
             "epoch %" PRIu64 " step %" PRIu64
             ": taken: held ready, no part is missing: nothing is restored, no trainer stopped\n",
             cairn_epoch_number(view.ready.epoch), view.ready.step);
    request->restored.from_files = view.ready_from_files;
    request->restored.ready = true;
    request->stage = STAGE_RESTORED;
    if (request->dry_run)
        answer_restore(agent, request, 0);
    else
        begin_export(agent, request);
    return true;
}

/*
 * True if trainers find the generation that the last restore began with, no later one is committed,
 * and `chosen` is of before: that restore passed it over, and what an operator decided stays
 * decided.
 */
static bool
was_decided(const struct cairn_core_view *view, struct cairn_generation_id chosen)
{
    return view->ready.step != 0 && view->ready.epoch < view->active &&
           chosen.epoch < view->active && cairn_spill_compare(chosen, view->ready) > 0;
}

/* The files were looked at: has the core choose. */
static void
look_for_wanted(struct cairn_agent *agent, struct request *request)
{
    const struct operator_files *files = request->files;

    if (files->verified && !files->verify_err)
        request->spilled = files->verified_generation;
    request->stage = STAGE_FIRST;
    request_run_core(agent, request, CAIRN_OP_DRY_RUN);
}

/* Explains why the generation that an operator named cannot be restored. */
static void
refuse_wanted(struct request *request)
{
    const struct operator_files *files = request->files;
    struct operator_restored *restored = &request->restored;
    bool damaged = files->verified && files->verify_err;

    snprintf(restored->error, sizeof restored->error,
             "epoch %" PRIu64 " step %" PRIu64 " cannot be restored: its parts are not in memory, "
             "and %s%.300s; `cairn snapshots` lists what can be chosen",
             request->wanted.epoch, request->wanted.step,
             damaged             ? "its files are bad: "
             : files->err        ? "the spill directory cannot be read: "
             : files->configured ? "the spill directory has no committed files for it"
                                 : "no spill_dir is configured",
             damaged      ? files->report
             : files->err ? (files->report[0] ? files->report : cairn_err_text(files->err))
                          : "");
}

/* The dry run before a wanted generation or an export is done: decides how to go on. */
static void
chosen(struct cairn_agent *agent, struct request *request)
{
    struct operator_restored *restored = &request->restored;
    struct cairn_core_view view;

    cairn_core_look(agent->core, &view);
    if (!request->wanted.step && was_decided(&view, restored->outcome.generation) &&
        ready_is_whole(agent, &view))
        restored->decided = view.ready;
    restored->ready = !restored->outcome.err && restored->outcome.lost_members == 0 &&
                      !view.fenced &&
                      cairn_generation_id_compare(view.ready, restored->outcome.generation) == 0;
    if (restored->outcome.err == CAIRN_LOST && request->wanted.step)
        refuse_wanted(request);
    if (restored->outcome.err || request->dry_run) {
        answer_restore(agent, request, request_exit_code(restored->outcome.err));
        return;
    }
    if (restored->directory[0] && (restored->ready || restored->from_files)) {
        request->stage = STAGE_RESTORED; /* it can be exported without stopping the trainers */
        begin_export(agent, request);
        return;
    }
    request->stage = STAGE_CHOSEN;
    request_run_core(agent, request, CAIRN_OP_RESTORE);
}

static void
restored(struct cairn_agent *agent, struct request *request)
{
    struct operator_restored *restored = &request->restored;

    restored->ready = !restored->outcome.err;
    if (!restored->outcome.err && restored->directory[0]) {
        request->stage = STAGE_RESTORED;
        begin_export(agent, request);
        return;
    }
    answer_restore(agent, request, request_exit_code(restored->outcome.err));
}

/* ---- verify ---- */

static cairn_err
count_record(void *context, const void *key, size_t key_bytes, const void *value,
             size_t value_bytes)
{
    (void)key;
    (void)key_bytes;
    (void)value;
    (void)value_bytes;
    ++*(uint64_t *)context;
    return CAIRN_OK;
}

static cairn_err
check_catalog(struct cairn_agent *agent, uint64_t *records)
{
    cairn_err err = CAIRN_OK;

    *records = 0;
    for (int table = CAIRN_TABLE_STATE + 1; !err && table < CAIRN_TABLE_COUNT;
         table++) /* the first one is its own */
        err = cairn_catalog_scan(agent->catalog, (enum cairn_table)table, NULL, 0, count_record,
                                 records);
    return err;
}

/* 0: all good; 2: repaired; 3: loss found; else the error's exit code. */
static int
verify_exit_code(const struct operator_verified *verified)
{
    const struct cairn_outcome *outcome = &verified->outcome;
    bool nothing = outcome->generation.step == 0 && outcome->err == CAIRN_LOST;
    bool loss = (outcome->err == CAIRN_LOST && !nothing) || outcome->err == CAIRN_CORRUPT ||
                verified->catalog_err || verified->still_bad_blocks ||
                (verified->missing_parts && verified->survives < 0) ||
                (verified->files->configured && verified->files->err) ||
                verified->files->verify_err;

    if (loss)
        return 3;
    if (nothing || outcome->err == CAIRN_NOT_FOUND) /* in memory; else only the files, or nothing */
        return verified->files->verified ? 0 : 4;
    if (outcome->err)
        return request_exit_code(outcome->err);
    return outcome->bad_blocks || outcome->lost_members || verified->missing_parts ||
                   outcome->repaired_blocks || verified->other_bad_blocks ||
                   verified->mended_records
               ? 2
               : 0;
}

static void
answer_verify(struct cairn_agent *agent, struct request *request)
{
    struct operator_verified verified = {.outcome = request->restored.outcome,
                                         .files = request->files,
                                         .configured = agent->config.node_count};
    struct operator_health *health = malloc(sizeof *health);
    struct cairn_json_writer writer;
    struct operator_job job;

    if (!health) {
        request_refuse(agent, request, 1, "the agent is out of memory");
        return;
    }
    request_fill_job(agent, request, &job);
    operator_health_find(&job, health);
    verified.missing_parts = health->missing;
    verified.survives = health->survives;
    free(health);
    verified.took_ns = agent_now_ns(agent) - request->started_ns;
    if (!request->dry_run)
        verified.catalog_err = check_catalog(agent, &verified.catalog_records);
    for (uint32_t i = 0; i < agent->config.node_count; i++) {
        const struct operator_node *node = &request->nodes[i];

        verified.answering += node->known;
        verified.mended_records += node->known ? node->mended_records : 0;
        for (uint32_t h = 0; node->known && h < node->part_count; h++) {
            if (cairn_generation_id_compare(node->parts[h].generation,
                                            verified.outcome.generation) == 0)
                verified.still_bad_blocks += node->parts[h].bad_blocks;
            else
                verified.other_bad_blocks += node->parts[h].bad_blocks;
            if (node->parts[h].state == CAIRN_PART_COMPLETE)
                verified.checked_bytes += node->parts[h].data_bytes;
        }
    }
    verified.dry_run = request->dry_run;
    verified.exit_code =
        request->dry_run ? request_exit_code(verified.outcome.err) : verify_exit_code(&verified);
    cairn_json_writer_init(&writer);
    operator_write_verify(&writer, &verified);
    request_answer(agent, request, verified.exit_code, &writer);
}

static void
export_again(struct cairn_agent *agent, struct request *request)
{
    if (request_export_ready(agent, request))
        return;
    request->restored.outcome.err = CAIRN_AGAIN;
    snprintf(
        request->restored.error, sizeof request->restored.error,
        "a newer generation replaced it before all nodes could keep it, and none is complete now");
    answer_restore(agent, request, request_exit_code(CAIRN_AGAIN));
}

void
request_restore_advance(struct cairn_agent *agent, struct request *request)
{
    if (request->stage == STAGE_FILES)
        look_for_wanted(agent, request);
    else if (request->stage == STAGE_FIRST)
        chosen(agent, request);
    else if (request->stage == STAGE_CHOSEN)
        restored(agent, request);
    else if (request->stage == STAGE_EXPORT_AGAIN)
        export_again(agent, request);
    else
        answer_restore(agent, request, request_exit_code(request->restored.outcome.err));
}

void
request_verify_advance(struct cairn_agent *agent, struct request *request)
{
    if (request->stage == STAGE_CHOSEN) {
        answer_verify(agent, request);
        return;
    }
    request->stage = STAGE_CHOSEN;
    if (!request_gather(agent, request) ||
        !request_read_files(agent, request,
                            request->dry_run ? OPERATOR_LOOK_LIST : OPERATOR_LOOK_VERIFY))
        request_refuse(agent, request, 75, "the agent is too busy; try again");
    else if (request_gathered(agent, request))
        request->waiting &= ~(uint32_t)WAIT_PEERS;
}
