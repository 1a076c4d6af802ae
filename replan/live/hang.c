/*
 * replan/live/hang.c - who hangs in a running job, from how many operations each rank has entered
 * (replan/live/tally.h).
 *
 * For jobs whose operations are mostly not seen to end, as NCCL's: that one is entered says nothing
 * of when it is over, and a rank that waits cannot be told from one that computes. But when ranks
 * stand still and their counts of a communicator differ, those with more wait for those with less.
 * Who is waited for and waits for nobody is the cause; who is waited for and waits himself is a
 * victim. Where the causes are all members of a communicator, and have last entered the same of its
 * operations, that operation does not end. Otherwise a transfer that has stopped with everybody in
 * it is only seen where the device was looked at: equal counts are what a job looks like, too, that
 * loads data, or saves. A process that has died is missed at equal counts as well: its node knows
 * that it has not left its session as one that finishes does.
 *
 * Only lanes count that a rank has used shortly before it fell quiet: a communicator that was given
 * up with unequal counts is nobody's reason to wait. Where a member is not known, moves, or lost
 * records, its communicator says nothing but that its members may wait for that one. Counts of
 * different communicators are never compared. A process that is gone and has entered all that
 * others have may have finished, while another saves the result: unless it has died it is
 * missed only where an operation was seen to begin and not to end.
 */
#include "replan/live/counts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- thresholds of a hang by counts ---- */

/* Ranks hang when they have stood still for the largest of these. */
static const double hang_ns = 8e9; /* 8 s: above usual pauses, below what an operator waits for */
static const double hang_periods = 4; /* steps, for jobs with long steps */
static const double hang_gaps = 2;    /* times the longest time in which no operation began, where
                                       * no step is named */
static const double outlived_factor = 1.5; /* times the longest wait that went on by itself */
/* A job that has been busy for less than 30 s still compiles and loads data, which may take 120 s.
 * Longer waits do not raise the limits. */
static const double young_ns = 3e10, longest_ns = 1.2e11;

static const uint64_t look_every_ns = 500000000;
/* Confidence of a verdict, by what it rests on. */
static const double sure_behind = 0.9, sure_link = 0.9, sure_level = 0.6, sure_cycle = 0.5;

static double
limit_of(const struct cairn_live *live)
{
    struct cairn_detector_summary summary = {0};
    double gap_ns = 0, active_ns = 0,
           limit_ns = fmax(hang_ns, outlived_factor * live->hang.outlived_ns);

    if (live->detector)
        cairn_detector_summarize(live->detector, &summary);
    if (summary.period_ms > 0)
        return fmax(limit_ns, hang_periods * summary.period_ms * 1e6);
    for (uint32_t rank = 0; rank < live->world; rank++)
        if (live->ranks[rank].progress) {
            gap_ns = fmax(gap_ns, (double)live->ranks[rank].progress->gap_ns);
            active_ns = fmax(active_ns, (double)live->ranks[rank].progress->active_ns);
        }
    if (active_ns < young_ns)
        return longest_ns;
    return fmax(limit_ns, fmin(hang_gaps * gap_ns, longest_ns));
}

/* Adds the ranks with exactly `marks` of `among` set. */
static cairn_err
list_ranks(const struct live_look *look, uint8_t among, uint8_t marks, struct cairn_u32_list *out)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; !err && rank < look->live->world; rank++)
        if ((look->sights[rank].marks & among) == marks)
            err = cairn_list_add(out, rank);
    return err;
}

static void
tell_others(uint32_t count, char *out, size_t out_bytes)
{
    out[0] = '\0';
    if (count > 1)
        snprintf(out, out_bytes, " and %" PRIu32 " more", count - 1);
}

static const char *
op_text(uint8_t op)
{
    static const char *const texts[] = {
#define OP_TEXT(symbol, value, text) [value] = text,
        CAIRN_COLLECTIVE_LIST(OP_TEXT)
#undef OP_TEXT
    };

    return texts[op];
}

static cairn_err
say_dead(const struct live_look *look, struct cairn_verdict *verdict)
{
    char others[32];
    cairn_err err = list_ranks(look, LIVE_DEAD, LIVE_DEAD, &verdict->ranks);

    if (err || verdict->ranks.count == 0)
        return err;
    verdict->kind = CAIRN_CRASH;
    verdict->confidence = sure_behind;
    tell_others(verdict->ranks.count, others, sizeof others);
    snprintf(verdict->evidence, sizeof verdict->evidence,
             look->live->ranks[verdict->ranks.items[0]].has_died
                 ? "the process of rank %" PRIu32 "%s has ended without a word, and those that "
                   "have entered operations with it have waited "
                   "for %.1f s"
                 : "rank %" PRIu32 "%s is gone or not heard of any more, and those that have "
                   "entered operations with it have waited for "
                   "%.1f s",
             verdict->ranks.items[0], others, look->waited_ns / 1e9);
    return list_ranks(look, LIVE_WAITS | LIVE_DEAD, LIVE_WAITS, &verdict->victims);
}

/* The communicator all of whose members are in a verdict, and have last entered the same of its
 * operations; NULL. */
static const struct live_comm *
level_comm(const struct live_look *look, const struct cairn_verdict *verdict)
{
    for (uint32_t i = 0; i < look->live->comms.count; i++) {
        const struct live_comm *comm = &look->live->comms.items[i];
        bool is_theirs = comm->member_count == verdict->ranks.count;

        /* both are in the order of ranks */
        for (uint32_t k = 0; is_theirs && k < comm->member_count; k++)
            is_theirs = comm->members[k].rank == verdict->ranks.items[k];
        if (is_theirs && live_look_is_level(look, comm))
            return comm;
    }
    return NULL;
}

static cairn_err
list_ring(const struct live_comm *comm, struct cairn_verdict *verdict)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t i = 0; !err && i < comm->ranks; i++) {
        uint32_t rank = live_comm_rank_at(comm, i),
                 next = live_comm_rank_at(comm, (i + 1) % comm->ranks);

        if (rank == UINT32_MAX || next == UINT32_MAX)
            continue; /* two that say the same place */
        err = cairn_list_add(&verdict->links, rank);
        if (!err)
            err = cairn_list_add(&verdict->links, next);
    }
    return err;
}

static cairn_err
say_behind(const struct live_look *look, struct cairn_verdict *verdict)
{
    const struct live_sight *sight;
    const struct live_comm *level;
    bool in_a_circle = false;
    char others[32];
    cairn_err err = list_ranks(look, LIVE_BEHIND | LIVE_WAITS, LIVE_BEHIND, &verdict->ranks);

    if (!err && verdict->ranks.count == 0 && !look->has_unknown && look->link_comm == UINT32_MAX) {
        in_a_circle = true;
        err = list_ranks(look, LIVE_BEHIND, LIVE_BEHIND, &verdict->ranks);
    }
    if (err || verdict->ranks.count == 0)
        return err;
    sight = &look->sights[verdict->ranks.items[0]];
    verdict->kind = CAIRN_HANG_COMPUTE;
    verdict->confidence = in_a_circle ? sure_cycle : sure_behind;
    tell_others(verdict->ranks.count, others, sizeof others);
    if (look->live->ranks[verdict->ranks.items[0]].presence == CAIRN_PRESENCE_STOPPED)
        snprintf(
            verdict->evidence, sizeof verdict->evidence,
            "the process of rank %" PRIu32
            "%s is stopped, and those that have entered operations with it have waited for %.1f s",
            verdict->ranks.items[0], others, look->waited_ns / 1e9);
    else
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "rank %" PRIu32 "%s has entered %" PRIu64
                 " operations %s of a communicator of %" PRIu32 " ranks, those that wait %" PRIu64
                 ", and nothing has begun or ended on them for %.1f s%s",
                 verdict->ranks.items[0], others, sight->count, op_text(sight->op),
                 look->live->comms.items[sight->comm].ranks, sight->needed, look->waited_ns / 1e9,
                 in_a_circle
                     ? "; each waits for another: they may call operations in different orders"
                     : "");
    level = in_a_circle ? NULL : level_comm(look, verdict);
    if (level) {
        verdict->kind = CAIRN_HANG_LINK;
        verdict->confidence = sure_level;
        snprintf(verdict->evidence, sizeof verdict->evidence,
                 "all %" PRIu32 " ranks of a communicator have last entered the same operation of "
                 "it, and nothing has begun or ended on them "
                 "since, while others have waited for them for %.1f s",
                 level->ranks, look->waited_ns / 1e9);
        err = list_ring(level, verdict);
    }
    return err || in_a_circle ? err : list_ranks(look, LIVE_WAITS, LIVE_WAITS, &verdict->victims);
}

static cairn_err
say_link(const struct live_look *look, struct cairn_verdict *verdict)
{
    const struct live_comm *comm = &look->live->comms.items[look->link_comm];
    cairn_err err = list_ring(comm, verdict);

    for (uint32_t i = 0; !err && i < comm->member_count; i++)
        err = cairn_list_add(&verdict->ranks, comm->members[i].rank);
    verdict->kind = CAIRN_HANG_LINK;
    verdict->confidence = sure_link;
    snprintf(verdict->evidence, sizeof verdict->evidence,
             "all %" PRIu32 " ranks of a communicator have entered %s number %" PRIu64
             ", the device has begun it, and it has not ended for %.1f s",
             comm->ranks, op_text(look->link_op), look->link_seq, look->waited_ns / 1e9);
    return err;
}

static void
forget_verdict(struct live_hang *hang)
{
    cairn_verdict_fini(&hang->verdict);
    hang->verdict = (struct cairn_verdict){.until_step = CAIRN_STEP_NONE};
    hang->is_said = false;
}

void
live_hang_forget(struct cairn_live *live)
{
    forget_verdict(&live->hang);
    live->hang = (struct live_hang){.looked_ns = 0};
}

/* Looks for a new hang. */
static cairn_err
find_hang(struct cairn_live *live, struct live_look *look)
{
    struct live_hang *hang = &live->hang;
    cairn_err err;

    for (uint32_t i = 0; i < live->comms.count; i++)
        live_look_at_comm(look, i);
    for (uint32_t rank = 0; rank < live->world; rank++)
        if (look->sights[rank].marks & LIVE_WAITS)
            look->waited_ns = fmax(look->waited_ns, live_look_stood_ns(look, rank));
    forget_verdict(hang);
    hang->verdict.rate = 1;
    hang->verdict.since_step = hang->verdict.detected_step = live->newest_step;
    err = say_dead(look, &hang->verdict);
    if (!err && hang->verdict.ranks.count == 0)
        err = say_behind(look, &hang->verdict);
    if (!err && hang->verdict.ranks.count == 0 && look->link_comm != UINT32_MAX)
        err = say_link(look, &hang->verdict);
    hang->is_said = !err && hang->verdict.ranks.count > 0;
    if (!hang->is_said)
        forget_verdict(hang);
    hang->longest_ns = hang->is_said ? look->waited_ns : 0;
    return err;
}

/* How long those in the reported hang have waited; 0: they go on. What others do is nothing to it,
 * nor is who has died meanwhile. */
static double
waited_ns(const struct live_look *look, const struct cairn_verdict *verdict)
{
    const struct cairn_u32_list *waiting =
        verdict->victims.count > 0 ? &verdict->victims : &verdict->ranks;
    double longest = 0;
    bool lives = false;

    for (uint32_t i = 0; i < waiting->count; i++) {
        const struct live_rank *rank = &look->live->ranks[waiting->items[i]];

        if (rank->presence == CAIRN_PRESENCE_GONE || live_is_silent(rank, look->now_ns))
            continue;
        lives = true;
        longest = fmax(longest, rank->is_idle /* its agent was restarted, and does not know */
                                    ? look->live->hang.longest_ns
                                    : live_look_stood_ns(look, waiting->items[i]));
    }
    return lives ? longest : look->live->hang.longest_ns;
}

/* Somebody who waited goes on. What ended by itself was not a hang, and will be waited for again; a
 * process that was stopped says nothing of what is usual. */
static void
end_hang(struct cairn_live *live)
{
    struct live_hang *hang = &live->hang;

    hang->verdict.until_step = live->newest_step;
    if (!hang->was_stopped && hang->longest_ns > hang->outlived_ns)
        hang->outlived_ns = fmin(hang->longest_ns, longest_ns);
    hang->longest_ns = 0;
    hang->was_stopped = false;
}

cairn_err
live_hang_check(struct cairn_live *live, uint64_t now_ns)
{
    struct live_look look = {.live = live, .now_ns = now_ns, .link_comm = UINT32_MAX};
    struct live_hang *hang = &live->hang;
    bool lasts = hang->is_said && hang->verdict.until_step == CAIRN_STEP_NONE;
    cairn_err err = CAIRN_OK;

    if (now_ns < hang->looked_ns + look_every_ns || live->world == 0)
        return CAIRN_OK;
    hang->looked_ns = now_ns;
    look.limit_ns = limit_of(live);
    look.sights = calloc(live->world, sizeof *look.sights);
    if (!look.sights)
        return CAIRN_NOMEM;
    if (lasts)
        look.waited_ns = waited_ns(&look, &hang->verdict);
    if (lasts && look.waited_ns <= 0)
        end_hang(live);
    else if (lasts)
        hang->longest_ns = fmax(hang->longest_ns, look.waited_ns);
    else if (live_look_for_waiting(&look))
        err = find_hang(live, &look);
    for (uint32_t i = 0; hang->is_said && hang->verdict.until_step == CAIRN_STEP_NONE &&
                         i < hang->verdict.ranks.count;
         i++)
        hang->was_stopped |=
            live->ranks[hang->verdict.ranks.items[i]].presence == CAIRN_PRESENCE_STOPPED;
    free(look.sights);
    return err;
}
