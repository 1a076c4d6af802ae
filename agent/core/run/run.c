/* agent/core/run/run.c - see run.h. */
#include "agent/core/run/run.h"

#include "base/text.h"

#include <string.h>

void
run_fini(struct run *run)
{
    cairn_tiling_destroy(run->trainers.tiling);
    memset(run, 0, sizeof *run);
}

void
run_ranks(struct run *run, const struct cairn_event_ranks *ranks)
{
    uint64_t registration = run->trainers.registration + 1;
    bool same = ranks->ranks > 0 && run->trainers.ranks > 0;

    cairn_tiling_destroy(run->trainers.tiling);
    run->trainers = (struct trainers){.registration = registration};
    memset(run->steps, 0, sizeof run->steps);
    run->told = 0;
    run->audited = 0;
    if (!same)
        run->begun = 0;
    if (ranks->ranks == 0 || ranks->ranks > CAIRN_RANKS_PER_NODE_MAX)
        return;
    if (ranks->manifest_len > 0) {
        cairn_err err =
            cairn_tiling_create(ranks->manifest, ranks->manifest_len, &run->trainers.tiling);

        if (err == CAIRN_NOMEM)
            return;
        if (!err)
            run->trainers.tiling_sum = cairn_tiling_sum(run->trainers.tiling);
    }
    run->trainers.ranks = ranks->ranks;
    run->trainers.world = ranks->world;
    run->trainers.blocks = ranks->blocks;
    run->trainers.launch = ranks->launch;
    for (uint32_t r = 0; ranks->steps && r < ranks->ranks; r++) {
        const struct cairn_begun_step *step = &ranks->steps[r];

        run->steps[r] = *step;
        run->begun = max_u64(run->begun, step->step);
        if (step->waiting && step->last)
            run->asked = max_u64(run->asked, step->step);
    }
}

bool
run_audited(const struct env *env, struct run *run, const struct cairn_message_audit *question)
{
    if (question->incarnation != env->options->incarnation ||
        question->registration != run->trainers.registration + 1)
        return false;
    run->audited = question->run;
    return true;
}

void
run_enter(struct run *run, bool restart)
{
    run->decision = (struct cairn_decision){0};
    run->audited = 0;
    run->refusal[0] = '\0';
    run->aborted = (struct cairn_generation_id){0};
    run->told = 0;
    run->reported = (struct cairn_message_report){0};
    if (!restart)
        return; /* ranks that wait are answered by run_grant */
    run_ranks(run, &(struct cairn_event_ranks){0});
    run->asked = 0;
}

uint64_t
run_everyone(const struct run *run)
{
    return run->trainers.ranks >= 64 ? UINT64_MAX : (UINT64_C(1) << run->trainers.ranks) - 1;
}

/* Lists a complete own part, newest first. */
static void
list_complete(struct cairn_message_report *report, struct cairn_generation_id generation)
{
    struct cairn_generation_id *list[] = {&report->complete0, &report->complete1,
                                          &report->complete2, &report->complete3};

    for (uint32_t i = 0; i < CAIRN_OWN_SLOTS_MAX; i++)
        if (cairn_generation_later(generation, *list[i])) {
            struct cairn_generation_id older = *list[i];

            *list[i] = generation;
            generation = older;
        }
}

void
run_abort(struct env *env, struct run *run, struct cairn_generation_id generation,
          enum cairn_abort reason)
{
    struct part *part = parts_find(env->parts, generation, env->membership->self_member);

    if (!reason)
        return;
    if (part && (part->state == CAIRN_PART_OPEN || part->state == CAIRN_PART_FINISHING))
        part_drop(env, part, true);
    if (generation.run != run->decision.run)
        return; /* the leader asks for it no more */
    run->aborted = generation;
    run->reason = reason;
}

/* The newest step that trainers here have begun and cannot be asked for any more: a last one that
 * waits can. */
static uint64_t
newest_gone(const struct run *run)
{
    bool held = false;

    for (uint32_t r = 0; r < run->trainers.ranks; r++) {
        const struct cairn_begun_step *rank = &run->steps[r];

        if (rank->step == run->begun && !(rank->waiting && rank->last))
            return run->begun;
        held |= rank->step == run->begun;
    }
    return held && run->begun > 1 ? run->begun - 1 : run->begun; /* 0 says that none has begun */
}

/* All of this member's part is there, and so are all parts below it, as far as is reported. */
static bool
is_complete(const struct env *env, const struct reports *reports, const struct part *part)
{
    bool planted = env->membership->self_member == 0 && CAIRN_PLANTED(env, BUG_COUNT_ONE_LESS);
    bool early = part->seals[part->position].whole && CAIRN_PLANTED(env, BUG_DONE_BEFORE_FINISH);
    uint32_t first;

    return (part->state == CAIRN_PART_COMPLETE || early) && !parts_abort(env, part->generation) &&
           reports_missing(env, reports, part->generation, &first) <= (uint32_t)planted;
}

struct cairn_message_report
run_report(const struct env *env, const struct run *run, const struct reports *reports)
{
    struct part *part = parts_in_flight(env);
    struct cairn_message_report report = {.agent = env->options->self,
                                          .ranks = run->trainers.ranks,
                                          .world = run->trainers.world,
                                          .launch = run->trainers.launch,
                                          .tiling_sum = run->trainers.tiling_sum,
                                          .begun = newest_gone(run),
                                          .begun_below = reports_begun(env, reports),
                                          .committed = env->membership->committed,
                                          .incarnation = env->options->incarnation,
                                          .registration = run->trainers.registration + 1,
                                          .aborted = run->aborted,
                                          .reason = run->aborted.step ? run->reason : 0,
                                          .asked = run->asked,
                                          .for_agent = UINT32_MAX};

    if (part && part->state != CAIRN_PART_COMPLETE &&
        env->now_ns - part->progress_ns >= env->options->dead_after_ns) {
        report.stalled = part->generation;
        report.cause = save_waits_for(env, part, run_everyone(run), &report.for_agent);
        report.for_ms = (env->now_ns - part->progress_ns) / 1000000;
    }
    for (uint32_t i = 0; i < CAIRN_PARTS_MAX; i++) {
        part = &env->parts->list[i];
        if (part_captures(part) || part->state == CAIRN_PART_REBUILDING ||
            part->member != env->membership->self_member ||
            part->generation.epoch != env->membership->record.epoch)
            continue;
        if (cairn_generation_later(part->generation, report.captured))
            report.captured = part->generation;
        if (is_complete(env, reports, part))
            list_complete(&report, part->generation);
    }
    return report;
}

bool
run_decide(struct run *run, const struct cairn_decision *decision, const char *refusal)
{
    if (decision->serial <= run->decision.serial)
        return false;
    run->aborted = (struct cairn_generation_id){0};
    run->decision = *decision;
    if (strcmp(run->refusal, refusal) != 0) {
        cairn_text_clean(run->refusal, sizeof run->refusal, refusal);
        run->told = 0;
    }
    if (run->asked <= decision->committed.step)
        run->asked = 0;
    return true;
}

/* ---- the local trainers ---- */

static void
skip(struct env *env, uint32_t rank, uint64_t step, enum cairn_skip reason)
{
    env_act(env, CAIRN_ACTION_SKIP)->as.trainer = (struct cairn_action_trainer){
        .rank = rank,
        .step = step,
        .reason = reason,
        .until_step = reason == CAIRN_SKIP_STALE ? membership_ready(env->membership).step : 0,
        .generation = membership_ready(env->membership)};
}

/* Decisions can be carried out here. */
static bool
is_open(const struct env *env, const struct run *run)
{
    return membership_acts(env->membership) && run->decision.run != 0 &&
           run->decision.run == run->audited;
}

/*
 * Why a rank that waits cannot have its step; 0: it can, or it holds its last step until it can.
 * While a rank begins its first step other ranks may be registering, and what is refused then may
 * mix old and new layouts. So a rank hears of a refusal at its second step, when all have
 * registered.
 */
static enum cairn_skip
why_not(const struct env *env, struct run *run, uint32_t r)
{
    const struct cairn_begun_step *rank = &run->steps[r];
    uint64_t bit = UINT64_C(1) << r;
    bool open = is_open(env, run);

    if (!open && membership_acts(env->membership) && run->refusal[0] != '\0' && rank->before != 0 &&
        !(run->told & bit)) {
        run->told |= bit;
        return CAIRN_SKIP_UNTILED;
    }
    if (open && rank->step <= membership_ready(env->membership).step &&
        !CAIRN_PLANTED(env, BUG_CAPTURE_BEHIND))
        return CAIRN_SKIP_STALE;
    if (rank->last)
        return 0;
    if (!open)
        return CAIRN_SKIP_NOT_READY;
    if (run->decision.next == 0 || rank->step < run->decision.next)
        return CAIRN_SKIP_NOT_DUE;
    return env->parts->pinned ? CAIRN_SKIP_BUSY : 0;
}

void
run_begin(struct run *run, const struct cairn_event_step *begin)
{
    struct cairn_begun_step *rank = &run->steps[begin->rank % CAIRN_RANKS_PER_NODE_MAX];

    if (begin->rank >= run->trainers.ranks || begin->step == 0)
        return;
    *rank = (struct cairn_begun_step){
        .step = begin->step, .before = rank->step, .waiting = true, .last = begin->last};
    run->begun = max_u64(run->begun, begin->step);
    if (begin->last)
        run->asked = max_u64(run->asked, begin->step);
}

void
run_cancel(struct env *env, struct run *run, const struct cairn_event_step *cancel)
{
    struct part *part = parts_in_flight(env);
    uint64_t bit = UINT64_C(1) << (cancel->rank % 64);

    if (cancel->rank >= run->trainers.ranks)
        return;
    if (run->steps[cancel->rank].step == cancel->step)
        run->steps[cancel->rank].waiting = false;
    if (part && part_captures(part) && part->generation.step == cancel->step &&
        !(part->capture.done & bit))
        run_abort(env, run, part->generation, CAIRN_ABORT_CANCELLED);
}

/* ---- which step ---- */

/* A rank has let this step pass, or a later one that could have replaced it. */
static bool
passed(const struct run *run, uint64_t step)
{
    for (uint32_t r = 0; r < run->trainers.ranks; r++) {
        const struct cairn_begun_step *rank = &run->steps[r];

        if (rank->step < run->decision.next)
            continue;
        if (rank->before >= run->decision.next || rank->step != step || !rank->waiting)
            return true;
    }
    return false;
}

/* The first step at or after `next` that a rank waits with; 0: none. */
static uint64_t
first_waiting(const struct run *run)
{
    uint64_t first = 0;

    for (uint32_t r = 0; r < run->trainers.ranks; r++)
        if (run->steps[r].waiting && run->steps[r].step >= run->decision.next &&
            (first == 0 || run->steps[r].step < first))
            first = run->steps[r].step;
    return first;
}

/* Opens the own part of a generation that the decision asks for. */
static struct part *
open_part(struct env *env, struct run *run, struct cairn_generation_id generation)
{
    struct cairn_roster *roster = env->membership->record.roster;
    uint32_t member = env->membership->self_member;
    enum cairn_abort reason = 0;
    struct part *part = NULL;

    if (passed(run, generation.step))
        reason = CAIRN_ABORT_PASSED;
    else if (!save_parity_fits(env->options, cairn_roster_group_of(roster, member),
                               run->trainers.blocks))
        reason = CAIRN_ABORT_TOO_LARGE;
    else
        part = part_open(env, generation, member, roster, CAIRN_PART_OPEN, true);
    if (!reason && !part)
        reason = CAIRN_ABORT_NO_SLOT;
    if (part && save_prepare(env, part, run->trainers.blocks) != CAIRN_OK) {
        part_drop(env, part, false);
        part = NULL;
        reason = CAIRN_ABORT_MEMORY;
    }
    run_abort(env, run, generation, reason);
    return part;
}

/* What a decision's generation is called here. */
static struct cairn_generation_id
name_of(const struct env *env, const struct run *run, uint64_t step)
{
    return (struct cairn_generation_id){
        .epoch = env->membership->record.epoch, .run = run->decision.run, .step = step};
}

static bool
may_open(const struct env *env, const struct run *run)
{
    return is_open(env, run) && run->decision.next != 0 && !env->parts->pinned &&
           run->aborted.step == 0;
}

/* Grants the ranks that wait with the part's step; a rank beyond it that has not copied it is past
 * it. */
static void
grant_part(struct env *env, struct run *run, struct part *part)
{
    for (uint32_t r = 0; r < run->trainers.ranks; r++) {
        struct cairn_begun_step *rank = &run->steps[r];
        uint64_t bit = UINT64_C(1) << r;

        if (part->state != CAIRN_PART_OPEN || (part->capture.done & bit) ||
            rank->step < run->decision.next)
            continue;
        if (rank->step != part->generation.step) {
            run_abort(env, run, part->generation,
                      rank->before < run->decision.next && rank->waiting &&
                              rank->step < part->generation.step
                          ? CAIRN_ABORT_MISMATCH
                          : CAIRN_ABORT_PASSED);
            return;
        }
        if (rank->waiting)
            env_act(env, CAIRN_ACTION_GRANT)->as.trainer =
                (struct cairn_action_trainer){.rank = r,
                                              .part = part_index(env, part),
                                              .step = part->generation.step,
                                              .generation = part->generation};
        rank->waiting = false;
    }
}

void
run_grant(struct env *env, struct run *run)
{
    struct part *part = parts_in_flight(env);
    uint64_t step;

    for (uint32_t r = 0; r < run->trainers.ranks; r++) {
        enum cairn_skip reason = run->steps[r].waiting ? why_not(env, run, r) : 0;

        if (!reason)
            continue;
        run->steps[r].waiting = false;
        skip(env, r, run->steps[r].step, reason);
    }
    if (!part && may_open(env, run)) {
        step = first_waiting(run);
        if (step != 0)
            part = open_part(env, run, name_of(env, run, step));
        else if (passed(run, 0))
            run_abort(env, run, name_of(env, run, run->decision.next), CAIRN_ABORT_PASSED);
    }
    if (part)
        grant_part(env, run, part);
}

struct part *
run_part_for(struct env *env, struct run *run, struct cairn_generation_id generation)
{
    struct part *part = parts_find(env->parts, generation, env->membership->self_member);

    if (part || generation.epoch != env->membership->record.epoch ||
        generation.run != run->decision.run || generation.step < run->decision.next ||
        !may_open(env, run))
        return part;
    if (!parts_in_flight(env))
        return open_part(env, run, generation);
    run_abort(env, run, generation, CAIRN_ABORT_MISMATCH); /* that one is of another step */
    return NULL;
}
