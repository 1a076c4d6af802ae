/* agent/core/run/leader.c - see leader.h. */
#include "agent/core/run/leader.h"

#include "agent/core/part/part.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MARGIN_MAX = 64,
    SHRINK_AFTER = 16, /* commits in a row before the margin shrinks by one */
    RETRIES_CLOSE = 8, /* aborts in a row before the tries get rarer */
    RETRY_GAP_LOG2_MAX = 6,
    CHAIN_MAX = 8 /* longest chain of waiting agents that is followed to its end */
};

void
leader_end(struct leader *leader)
{
    audit_end(&leader->audit);
    *leader = (struct leader){
        .reports = leader->reports, .counter = leader->counter, .given_up = leader->given_up};
}

/* ---- the next step ---- */

static uint64_t
choose_next(const struct env *env, const struct leader *leader)
{
    const struct due *due = &leader->due;
    uint64_t every = env->options->every_steps, gap = 0, first, step, next;

    if (due->aborts_in_row > RETRIES_CLOSE)
        gap = UINT64_C(1) << min_u64(due->aborts_in_row - RETRIES_CLOSE, RETRY_GAP_LOG2_MAX);
    first = max_u64(due->passed, leader->decision.committed.step) + 1;
    if (!CAIRN_PLANTED(env, BUG_CAPTURE_BEHIND))
        first = max_u64(first, membership_ready(env->membership).step + 1);
    step = max_u64(due->begun + due->margin, first) + gap;
    next = every == 0 ? 0 : (step + every - 1) / every * every;
    if (every != 0 && due->aborts_in_row > 0 && !CAIRN_PLANTED(env, BUG_ASKS_ONCE))
        next = step;
    /* Try the requested step itself: it may be the last one. */
    if (due->asked >= max_u64(due->begun, first))
        step = due->asked;
    return due->asked != 0 && (next == 0 || step < next) ? step : next;
}

/* What the decision asks for, or the first that would do. */
static struct cairn_generation_id
due_generation(const struct env *env, const struct leader *leader)
{
    return (struct cairn_generation_id){.epoch = env->membership->record.epoch,
                                        .run = leader->decision.run,
                                        .step = leader->decision.next};
}

/* A new decision: `next` follows from what is known now. */
static void
decide(const struct env *env, struct leader *leader)
{
    struct cairn_decision *decision = &leader->decision;

    if (!leader->assembled)
        decision->run = 0;
    decision->next = leader->assembled ? choose_next(env, leader) : 0;
    if (decision->next != 0)
        leader->floor = due_generation(env, leader);
    decision->serial = env->options->incarnation + ++leader->counter;
    leader->due.since_ns = env->now_ns;
}

/* ---- assembling a run ---- */

static void
refuse(const struct env *env, struct leader *leader, const char *text)
{
    if (strcmp(leader->refusal, text) == 0)
        return;
    snprintf(leader->refusal, sizeof leader->refusal, "%s", text);
    if (text[0] != '\0')
        CAIRN_LOG_AT(WARN, "run: not assembled: %s", text);
    decide(env, leader);
}

/* A summary of all reports. */
struct roll {
    uint32_t ranks, late_ranks, world;
    uint64_t launch;
    uint32_t agent;   /* that said world and launch first */
    uint32_t other;   /* that disagrees; UINT32_MAX: nobody */
    uint64_t begun;   /* newest step */
    uint32_t without; /* members without ranks */
    uint32_t unheard; /* members that have not reported */
};

static void
add_report(struct roll *roll, const struct cairn_message_report *report)
{
    if (report->ranks == 0)
        return;
    roll->begun = max_u64(roll->begun, report->begun);
    if ((roll->world && report->world && roll->world != report->world) ||
        (roll->launch && report->launch && roll->launch != report->launch))
        roll->other = report->agent;
    if (!roll->world && !roll->launch)
        roll->agent = report->agent;
    roll->world = roll->world ? roll->world : report->world;
    roll->launch = roll->launch ? roll->launch : report->launch;
}

/* Whether the members, whose reports the roll has, have all ranks of one launch. */
static bool
is_complete(const struct roll *roll)
{
    return roll->unheard == 0 && roll->without == 0 && roll->other == UINT32_MAX &&
           roll->world != 0 && roll->ranks == roll->world;
}

static struct roll
call_roll(const struct reports *reports, const struct cairn_roster *roster)
{
    struct roll roll = {.agent = UINT32_MAX, .other = UINT32_MAX};
    uint32_t ranks = 0;

    for (uint32_t m = 0; m < roster->member_count; m++) {
        uint32_t agent = roster->members[m].agent;
        bool known = reports->heard_ns[agent] != 0;

        roll.unheard += !known;
        roll.without += known && reports->list[agent].ranks == 0;
        roll.ranks += known ? reports->list[agent].ranks : 0;
        if (known)
            add_report(&roll, &reports->list[agent]);
    }
    if (is_complete(&roll))
        return roll;
    for (uint32_t a = 0; a < reports->count; a++)
        if (reports->heard_ns[a] != 0) {
            add_report(&roll, &reports->list[a]);
            ranks += reports->list[a].ranks;
        }
    roll.late_ranks = ranks - roll.ranks;
    return roll;
}

static void
issue(const struct env *env, struct leader *leader)
{
    leader->assembled = true;
    leader->refusal[0] = '\0';
    leader->decision.run = leader->audit.run;
    leader->due.begun = call_roll(leader->reports, env->membership->record.roster).begun;
    leader->due.passed = 0;
    leader->due.aborts_in_row = leader->due.margin = 0;
    decide(env, leader);
    CAIRN_LOG_AT(INFO, "run: assembled run=%" PRIu64 " next_step=%" PRIu64, leader->decision.run,
                 leader->decision.next);
}

/* Why there can be no run yet; "" if there can. Nothing is written while nobody has trainers. */
static bool
may_run(const struct roll *roll, char *text, size_t text_bytes)
{
    uint32_t ranks = roll->ranks;

    text[0] = '\0';
    if (ranks + roll->late_ranks == 0)
        return false;
    if (roll->other != UINT32_MAX)
        snprintf(text, text_bytes,
                 "trainers of two launches are attached: nodes %u and %u disagree about the launch "
                 "or the number of ranks; stop one of them",
                 roll->agent, roll->other);
    else if (roll->world != 0 && ranks > roll->world)
        snprintf(text, text_bytes, "%u ranks are attached, the job says it has %u", ranks,
                 roll->world);
    return text[0] == '\0' && roll->unheard == 0 && roll->without == 0 &&
           (roll->world == 0 || ranks == roll->world);
}

static void
assemble(struct env *env, struct leader *leader)
{
    struct roll roll = call_roll(leader->reports, env->membership->record.roster);
    uint64_t old = CAIRN_PLANTED(env, BUG_RUN_REUSED) ? leader->decision.run : 0;
    char text[CAIRN_REFUSAL_BYTES];
    bool may = may_run(&roll, text, sizeof text);

    leader->wants_join =
        roll.unheard == 0 && roll.other == UINT32_MAX &&
        (roll.world == 0 ? roll.late_ranks > 0 && roll.without == 0
                         : (roll.late_ranks > 0 || (roll.without > 0 && roll.begun > 0)) &&
                               roll.ranks + roll.late_ranks == roll.world);
    if (may)
        audit_begin(env, &leader->audit, old ? old : env->options->incarnation + ++leader->counter,
                    leader->reports->list, env->membership->record.roster->member_count);
    else
        refuse(env, leader, text);
}

void
leader_audited(struct env *env, struct leader *leader, const struct cairn_message *message)
{
    switch (audit_answered(env, &leader->audit, message)) {
    case CAIRN_TILING_GOOD:
        issue(env, leader);
        break;
    case CAIRN_TILING_BAD:
        refuse(env, leader, leader->audit.text);
        break;
    case CAIRN_TILING_OPEN:
        break;
    }
}

/* Takes the trainers from a report: the run ends if they have begun again. */
static void
take_trainers(struct env *env, struct leader *leader, const struct cairn_message_report *report)
{
    const struct cairn_roster *roster = env->membership->record.roster;
    bool changed = reports_take(env, leader->reports, report);
    struct roll roll = call_roll(leader->reports, roster);

    if (is_complete(&roll) && cairn_roster_member_of(roster, report->agent) == UINT32_MAX) {
        if (changed && report->ranks > 0)
            CAIRN_LOG_AT(WARN,
                         "run: trainers of another launch are attached to node=%u and wait; all "
                         "%u ranks of the job are attached to other nodes; end one of the launches",
                         report->agent, roll.world);
        return;
    }
    /* A restarted leader learns its earlier decisions from the members that heard them. */
    if (report->committed.epoch == env->membership->record.epoch &&
        cairn_generation_later(report->committed, leader->decision.committed)) {
        leader->decision.committed = report->committed;
        decide(env, leader);
    }
    if (!changed && audit_under_way(&leader->audit))
        audit_ask_again(env, &leader->audit, report->agent);
    if (!changed && (leader->assembled || audit_under_way(&leader->audit)))
        return;
    if (leader->assembled || audit_under_way(&leader->audit)) {
        leader->assembled = false;
        audit_end(&leader->audit);
        /* A generation that this agent has captured in full needs its trainers no more. */
        if (report->captured.run != leader->decision.run ||
            report->captured.step < leader->decision.next || leader->decision.next == 0)
            decide(env, leader);
    }
    assemble(env, leader);
}

/* ---- how a generation ends ---- */

/* All members hold a generation. Also one of before this agent restarted: nobody remembers what was
 * committed then, but nobody has dropped it. */
static void
commit(struct env *env, struct leader *leader, struct cairn_generation_id generation)
{
    struct due *due = &leader->due;

    if (cairn_generation_later(leader->floor, generation) ||
        !cairn_generation_later(generation, leader->decision.committed))
        return;
    leader->decision.committed = generation;
    due->aborts_in_row = 0;
    if (generation.step >= due->asked)
        due->asked = 0;
    if (++due->commits_in_row >= SHRINK_AFTER) {
        due->commits_in_row = 0;
        due->margin -= due->margin > 0;
    }
    decide(env, leader);
}

/* An agent has given up a generation that the decision asks for. */
static void
abort_due(struct env *env, struct leader *leader, struct cairn_generation_id generation,
          uint32_t agent, enum cairn_abort reason, uint64_t begun)
{
    struct due *due = &leader->due;

    CAIRN_LOG_AT(DEBUG, "save: aborted step=%" PRIu64 " agent=%u reason=%u begun=%" PRIu64,
                 generation.step, agent, reason, begun);
    leader->given_up =
        (struct cairn_given_up){leader->given_up.count + 1, generation, agent, reason};
    due->passed = max_u64(due->passed, reason == CAIRN_ABORT_PASSED ? begun : generation.step);
    due->commits_in_row = 0;
    due->aborts_in_row++;
    /* The first abort only shows where the trainers are; a second one shows that the margin is too
     * small for them. */
    if (reason == CAIRN_ABORT_PASSED && due->aborts_in_row > 1 && due->margin < MARGIN_MAX)
        due->margin++;
    if (CAIRN_PLANTED(env, BUG_ASKS_ONCE))
        due->asked = 0;
    decide(env, leader);
}

/* True for a generation that the decision asks for. */
static bool
is_due(const struct leader *leader, struct cairn_generation_id generation)
{
    return leader->decision.next != 0 && generation.run == leader->decision.run &&
           generation.step >= leader->decision.next;
}

/* Takes from a report what became of the generation that is due. */
static void
take_progress(struct env *env, struct leader *leader, const struct cairn_message_report *report)
{
    uint64_t next = leader->decision.next;
    bool asks = report->asked > max_u64(leader->due.asked, leader->decision.committed.step);

    if (asks)
        leader->due.asked = report->asked;
    if (report->reason && is_due(leader, report->aborted))
        abort_due(env, leader, report->aborted, report->agent, (enum cairn_abort)report->reason,
                  report->begun);
    else if (asks && leader->assembled && (next == 0 || choose_next(env, leader) < next))
        decide(env, leader);
}

void
leader_report(struct env *env, struct leader *leader, const struct cairn_message_report *report)
{
    uint64_t begun = max_u64(report->begun, report->begun_below);

    if (report->agent >= leader->reports->count)
        return;
    if (cairn_roster_member_of(env->membership->record.roster, report->agent) != UINT32_MAX) {
        leader->due.begun = max_u64(leader->due.begun, begun);
        if (report->agent == env->options->self)
            commit(env, leader, report->complete0);
        take_progress(env, leader, report);
    }
    take_trainers(env, leader, report);
}

/* ---- who blocks ---- */

/* What an agent waits for with the generation that is due, and in *since_ns since when; NULL:
 * nothing that is known. */
static const struct cairn_message_report *
waits(const struct leader *leader, uint32_t agent, uint64_t *since_ns)
{
    const struct cairn_message_report *report = &leader->reports->list[agent];
    uint64_t heard_ns = leader->reports->heard_ns[agent];

    *since_ns = heard_ns - min_u64(heard_ns, report->for_ms * 1000000);
    return heard_ns != 0 && report->cause && is_due(leader, report->stalled) ? report : NULL;
}

void
leader_tick(struct env *env, struct leader *leader)
{
    bool under_way = false;
    uint64_t since_ns;

    for (uint32_t a = 0; a < leader->reports->count; a++)
        under_way |= waits(leader, a, &since_ns) != NULL;
    if (!under_way || env->now_ns - leader->due.since_ns < env->options->rebuild_timeout_ns)
        return;
    abort_due(env, leader, due_generation(env, leader), env->options->self, CAIRN_ABORT_CANCELLED,
              0);
}

/* Nobody reports that it waits, yet a member does not hold what this one does: it is silent. */
static void
name_silent(const struct env *env, const struct leader *leader, struct cairn_blocker *out)
{
    const struct part *part = parts_in_flight(env);
    uint64_t for_ns = env->now_ns - leader->due.since_ns;
    uint32_t agent;

    if (leader->decision.next != 0 && part && part->state == CAIRN_PART_COMPLETE &&
        for_ns >= env->options->dead_after_ns &&
        reports_missing(env, leader->reports, part->generation, &agent) > 0)
        *out = (struct cairn_blocker){.generation = part->generation,
                                      .agent = agent,
                                      .for_agent = UINT32_MAX,
                                      .cause = CAIRN_WAIT_SILENT,
                                      .for_ms = for_ns / 1000000};
}

void
leader_blocker(const struct env *env, const struct leader *leader, struct cairn_blocker *out)
{
    const struct cairn_message_report *at = NULL, *report;
    uint64_t first_ns = UINT64_MAX, since_ns;

    *out = (struct cairn_blocker){.agent = UINT32_MAX, .for_agent = UINT32_MAX};
    for (uint32_t a = 0; a < leader->reports->count; a++) {
        report = waits(leader, a, &since_ns);
        if (report && since_ns < first_ns) {
            first_ns = since_ns;
            at = report;
        }
    }
    if (!at) {
        name_silent(env, leader, out);
        return;
    }
    for (uint32_t i = 0; i < CHAIN_MAX && at->for_agent < leader->reports->count; i++) {
        report = waits(leader, at->for_agent, &since_ns);
        if (!report)
            break;
        at = report;
    }
    *out = (struct cairn_blocker){.generation = due_generation(env, leader),
                                  .agent = at->agent,
                                  .for_agent = at->for_agent,
                                  .cause = (enum cairn_wait)at->cause,
                                  .for_ms = (env->now_ns - first_ns) / 1000000};
}
