/*
 * replan/detect/hang.c - who has stopped, from progress alone.
 *
 * A rank waits when one of its operations has been open for hang_ns on its own clock. If every
 * member of such an operation is in it, the transfer has stopped (hang_link). Otherwise somebody is
 * missing: a rank that waits in another operation is a victim too; one that waits in none and still
 * gives signs of life never arrives (hang_compute), and so does one whose process is stopped; one
 * whose signs of life end long before the others' is gone (crash).
 *
 * A member that has left an operation says two things. Of an operation in which everybody needs
 * everybody's data it says that all members have entered it; of a broadcast or a reduction to one
 * rank it does not. And a member that is still in it when all others have left stands there by
 * itself, since nobody's part is missing: it has stopped before it could report the end. Where two
 * or more are still in it, one of them may lack what another one does not give, and no record tells
 * which: then the transfer between them has stopped. The same while a member's process is stopped
 * or gone.
 *
 * Where ranks report (detector->by_reports) it is known which of them are not heard of, and one
 * that is busy with something else while others wait for it is not gone.
 */
#include "replan/detect/detector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- thresholds of a hang ---- */

/* A rank hangs or waits when an operation has been open for the largest of these three. */
static const double hang_ns = 8e9; /* 8 s: above usual pauses, below what an operator waits for */
static const double hang_periods = 4;      /* steps, for jobs with long steps */
static const double outlived_factor = 1.5; /* times the longest wait that went on by itself, ... */
static const double outlived_ns_max = 1.2e11; /* ... at most 120 s count */
/* A rank is dead when its last sign of life is older than the others' by this much. */
static const double silent_ns = 3e9;
/* Confidence in a stopped transfer, where some have left the operation: one of those that are in it
 * may have stopped by itself. */
static const double left_share = 0.6;

struct standing {
    double idle_ns;                /* from the last thing done to the last sign of life */
    const struct cairn_open *open; /* the oldest open operation that others have not left, NULL */
    bool is_left;                  /* others have left one that it has not reported the end of */
    bool dead;
};

static double
since(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? (double)(now_ns - then_ns) : 0;
}

static bool
is_dead(const struct cairn_detector *detector, uint32_t rank, double idle_ns, double longest_ns)
{
    if (!detector->seen[rank] || detector->intakes[rank].is_gone)
        return detector->seen[rank];
    if (detector->by_reports && !detector->left_out[rank])
        return false;
    return idle_ns < longest_ns / 2 && longest_ns - idle_ns > silent_ns;
}

/* True where `rank` is in the operation that `other` waits in. */
static bool
is_in(const struct cairn_intake *intake, uint32_t rank, const struct cairn_open *wanted,
      uint32_t other)
{
    for (uint32_t i = 0; i < intake->open_count; i++) {
        const struct cairn_open *open = &intake->open[i];

        if (wanted->op == CAIRN_SEND || wanted->op == CAIRN_RECV) {
            if (rank == wanted->peer && open->peer == other && open->op != wanted->op &&
                (open->op == CAIRN_SEND || open->op == CAIRN_RECV))
                return true;
        } else if (open->comm == wanted->comm && open->op == wanted->op &&
                   open->seq == wanted->seq) {
            return true;
        }
    }
    return false;
}

/* The newest operation of its kind in a communicator that a rank is in. */
struct front {
    uint64_t seq; /* 0: none */
    uint32_t rank;
};

/* By communicator and operation; NULL where there is no memory. The caller frees it. */
static struct front *
find_fronts(const struct cairn_detector *detector)
{
    struct front *fronts = calloc(detector->topology->comm_count, CAIRN_OPS * sizeof *fronts);

    for (uint32_t rank = 0; fronts && rank < detector->topology->world; rank++)
        for (uint32_t i = 0; i < detector->intakes[rank].open_count; i++) {
            const struct cairn_open *open = &detector->intakes[rank].open[i];
            struct front *front;

            if (open->op == CAIRN_SEND || open->op == CAIRN_RECV)
                continue;
            front = &fronts[open->comm * CAIRN_OPS + open->op];
            if (open->seq > front->seq)
                *front = (struct front){.seq = open->seq, .rank = rank};
        }
    return fronts;
}

/* True where a member's process is stopped or gone. Some members may have left an operation that it
 * is in, while others still need its part. */
static bool
has_halted_member(const struct cairn_detector *detector, const struct cairn_comm *comm)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        const struct cairn_intake *intake = &detector->intakes[comm->ranks[i]];

        if (intake->is_stopped || intake->is_gone)
            return true;
    }
    return false;
}

/* True for operations that no member can leave before all have entered them. */
static bool
needs_all(uint8_t op)
{
    return op == CAIRN_ALL_REDUCE || op == CAIRN_ALL_GATHER || op == CAIRN_REDUCE_SCATTER ||
           op == CAIRN_ALL_TO_ALL || op == CAIRN_BARRIER;
}

/* True where a member is in a later operation of the same kind. */
static bool
is_beyond(const struct cairn_intake *intake, const struct cairn_open *open)
{
    for (uint32_t i = 0; i < intake->open_count; i++)
        if (intake->open[i].comm == open->comm && intake->open[i].op == open->op &&
            intake->open[i].seq > open->seq)
            return true;
    return false;
}

/* True where a member is in a later operation, and not in this one any more. */
static bool
is_left_by_one(const struct cairn_detector *detector, const struct front *fronts,
               const struct cairn_open *open)
{
    const struct front *front;

    if (open->op == CAIRN_SEND || open->op == CAIRN_RECV)
        return false;
    front = &fronts[open->comm * CAIRN_OPS + open->op];
    return front->seq > open->seq &&
           !is_in(&detector->intakes[front->rank], front->rank, open, front->rank);
}

/* True where all members have entered an operation, by the records of those that have left it. */
static bool
is_entered_by_all(const struct cairn_detector *detector, const struct front *fronts,
                  const struct cairn_open *open)
{
    return needs_all(open->op) && is_left_by_one(detector, fronts, open) &&
           !has_halted_member(detector, &detector->topology->comms[open->comm]);
}

/* True where all but `rank` have left an operation that it is in. */
static bool
is_left_by_others(const struct cairn_detector *detector, const struct front *fronts,
                  const struct cairn_open *open, uint32_t rank)
{
    const struct cairn_comm *comm;

    if (!is_left_by_one(detector, fronts, open))
        return false;
    comm = &detector->topology->comms[open->comm];
    for (uint32_t i = 0; i < comm->count; i++) {
        const struct cairn_intake *intake = &detector->intakes[comm->ranks[i]];

        if (comm->ranks[i] != rank && (is_in(intake, comm->ranks[i], open, rank) ||
                                       (!needs_all(open->op) && !is_beyond(intake, open))))
            return false;
    }
    return !has_halted_member(detector, comm);
}

/* fronts: NULL where what others have left does not matter yet. */
static struct standing
standing_of(const struct cairn_detector *detector, const struct front *fronts, uint32_t rank)
{
    const struct cairn_intake *intake = &detector->intakes[rank];
    struct standing standing = {.open = NULL};
    uint64_t last_ns = intake->end_ns;

    /* where sends go on by themselves, nobody waits in one */
    bool aside = intake->sends_aside >= CAIRN_SENDS_ASIDE;

    for (uint32_t i = 0; i < intake->open_count; i++) {
        const struct cairn_open *open = &intake->open[i];

        if (aside && open->op == CAIRN_SEND)
            continue;
        if (fronts && is_left_by_others(detector, fronts, open, rank)) {
            standing.is_left = true;
            last_ns = open->start_ns > last_ns ? open->start_ns : last_ns;
        } else if (!standing.open || open->start_ns < standing.open->start_ns) {
            standing.open = open;
        }
    }
    if (standing.open && (standing.open->start_ns > last_ns || last_ns == 0))
        last_ns = standing.open->start_ns;
    standing.idle_ns = since(intake->life_ns, last_ns);
    return standing;
}

/* True where all that take part in a rank's open operation are in it, or have been, and live. */
static bool
all_arrived(const struct cairn_detector *detector, const struct front *fronts,
            const struct standing *standings, uint32_t rank)
{
    const struct cairn_open *open = standings[rank].open;
    const struct cairn_comm *comm;
    bool all_entered;

    if (open->op == CAIRN_SEND || open->op == CAIRN_RECV)
        return !standings[open->peer].dead &&
               is_in(&detector->intakes[open->peer], open->peer, open, rank);
    comm = &detector->topology->comms[open->comm];
    all_entered = is_entered_by_all(detector, fronts, open);
    for (uint32_t i = 0; i < comm->count; i++)
        if (standings[comm->ranks[i]].dead ||
            (!all_entered &&
             !is_in(&detector->intakes[comm->ranks[i]], comm->ranks[i], open, rank)))
            return false;
    return comm->count > 1;
}

static cairn_err
say(struct cairn_detector *detector, enum cairn_verdict_kind kind, double idle_ns,
    struct cairn_verdict **out)
{
    uint32_t index;
    cairn_err err = cairn_verdicts_add(&detector->verdicts, kind, &index);

    if (err)
        return err;
    *out = &detector->verdicts.items[index];
    (*out)->confidence = 1 - exp(-idle_ns / 2e9);
    (*out)->rate = 1;
    return CAIRN_OK;
}

static cairn_err
add_victims(struct cairn_detector *detector, const struct standing *standings, double limit_ns,
            struct cairn_verdict *verdict)
{
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; !err && rank < detector->topology->world; rank++) {
        bool culprit = false;

        for (uint32_t i = 0; i < verdict->ranks.count && !culprit; i++)
            culprit = verdict->ranks.items[i] == rank;
        if (!culprit && standings[rank].open && !standings[rank].dead &&
            standings[rank].idle_ns >= limit_ns)
            err = cairn_list_add(&verdict->victims, rank);
    }
    return err;
}

static void
set_steps(const struct cairn_detector *detector, uint32_t step, struct cairn_verdict *verdict)
{
    verdict->since_step = step;
    verdict->detected_step = step;
    if (detector->steps > 0 && step < detector->last_step)
        verdict->detected_step = detector->last_step;
}

/* The ranks that are dead, or those that never arrive. */
static cairn_err
say_ranks(struct cairn_detector *detector, const struct standing *standings, bool dead,
          double limit_ns, double longest_ns, bool *said)
{
    enum cairn_verdict_kind kind = dead ? CAIRN_CRASH : CAIRN_HANG_COMPUTE;
    struct cairn_verdict *verdict = NULL;
    uint32_t step = UINT32_MAX;
    cairn_err err = CAIRN_OK;
    char others[32];

    for (uint32_t rank = 0; !err && rank < detector->topology->world; rank++) {
        const struct standing *standing = &standings[rank];

        if (!detector->seen[rank] || standing->dead != dead ||
            (!dead && (standing->open || standing->idle_ns < limit_ns)))
            continue;
        if (!verdict)
            err = say(detector, kind, longest_ns, &verdict);
        if (!err)
            err = cairn_list_add(&verdict->ranks, rank);
        if (detector->intakes[rank].step < step)
            step = detector->intakes[rank].step;
    }
    if (err || !verdict)
        return err;
    *said = true;
    detector->stop_said |= detector->intakes[verdict->ranks.items[0]].is_stopped;
    set_steps(detector, step, verdict);
    others[0] = '\0';
    if (verdict->ranks.count > 1)
        snprintf(others, sizeof others, " and %u others", verdict->ranks.count - 1);
    snprintf(verdict->evidence, sizeof verdict->evidence,
             dead ? "the last sign of life of rank %u%s came long before that of the rest, which "
                    "has waited for "
                    "%.1f s"
             : detector->intakes[verdict->ranks.items[0]].is_stopped
                 ? "the process of rank %u%s is stopped, and those that wait have waited for %.1f s"
             : standings[verdict->ranks.items[0]].is_left
                 ? "rank %u%s gave signs of life and has not gone on from an operation that the "
                   "others have left, while those that wait for them have waited for %.1f s"
                 : "rank %u%s gave signs of life and was in no operation, while those that wait "
                   "for them have "
                   "waited for %.1f s",
             verdict->ranks.items[0], others, longest_ns / 1e9);
    return add_victims(detector, standings, limit_ns, verdict);
}

static bool
said_already(const struct cairn_detector *detector, uint32_t from, uint32_t rank)
{
    for (uint32_t i = from; i < detector->verdicts.count; i++)
        for (uint32_t k = 0; k < detector->verdicts.items[i].ranks.count; k++)
            if (detector->verdicts.items[i].ranks.items[k] == rank)
                return true;
    return false;
}

/* Names the links between those that are in the operation. */
static cairn_err
name_links(struct cairn_detector *detector, const struct cairn_open *open, uint32_t rank,
           struct cairn_verdict *verdict)
{
    bool send = open->op == CAIRN_SEND;
    cairn_err err = CAIRN_OK;

    if (send || open->op == CAIRN_RECV) {
        err = cairn_list_add(&verdict->links, send ? rank : open->peer);
        if (!err)
            err = cairn_list_add(&verdict->links, send ? open->peer : rank);
        for (int side = 0; !err && side < 2; side++)
            err = cairn_list_add(&verdict->ranks, verdict->links.items[side]);
        return err;
    }
    const struct cairn_comm *comm = &detector->topology->comms[open->comm];

    for (uint32_t i = 0; !err && i < comm->count; i++)
        if (is_in(&detector->intakes[comm->ranks[i]], comm->ranks[i], open, rank))
            err = cairn_list_add(&verdict->ranks, comm->ranks[i]);
    for (uint32_t i = 0; !err && i < verdict->ranks.count; i++) {
        err = cairn_list_add(&verdict->links, verdict->ranks.items[i]);
        if (!err)
            err = cairn_list_add(&verdict->links,
                                 verdict->ranks.items[(i + 1) % verdict->ranks.count]);
    }
    return err;
}

static cairn_err
say_link(struct cairn_detector *detector, const struct front *fronts,
         const struct standing *standings, uint32_t rank, double limit_ns)
{
    const struct cairn_open *open = standings[rank].open;
    bool pair = open->comm == CAIRN_COMM_NONE;
    const char *name = pair ? "a pair" : detector->topology->comms[open->comm].name;
    double waited_s = standings[rank].idle_ns / 1e9;
    struct cairn_verdict *verdict;
    cairn_err err = say(detector, CAIRN_HANG_LINK, standings[rank].idle_ns, &verdict);

    if (!err)
        err = name_links(detector, open, rank, verdict);
    if (err)
        return err;
    set_steps(detector, open->step, verdict);
    if (is_left_by_one(detector, fronts, open)) {
        verdict->confidence *= left_share;
        snprintf(
            verdict->evidence, sizeof verdict->evidence,
            "others have left an operation of %s that %u ranks have been in for %.1f s: one of "
            "these ranks has stopped, or a transfer between them",
            name, verdict->ranks.count, waited_s);
    } else {
        snprintf(
            verdict->evidence, sizeof verdict->evidence,
            "all %u ranks have been in the same operation of %s for %.1f s and it does not end",
            verdict->ranks.count, name, waited_s);
    }
    return add_victims(detector, standings, limit_ns, verdict);
}

static cairn_err
say_links(struct cairn_detector *detector, const struct front *fronts,
          const struct standing *standings, double limit_ns)
{
    uint32_t first = detector->verdicts.count;
    cairn_err err = CAIRN_OK;

    for (uint32_t rank = 0; !err && rank < detector->topology->world; rank++)
        if (standings[rank].open && !standings[rank].dead && standings[rank].idle_ns >= limit_ns &&
            !said_already(detector, first, rank) && all_arrived(detector, fronts, standings, rank))
            err = say_link(detector, fronts, standings, rank, limit_ns);
    return err;
}

/*
 * Nobody waits that long any more. Somebody who saves a checkpoint while the others wait for it
 * will do so again: that is reported once. A process that was stopped says nothing of what is
 * usual.
 */
static void
end_hangs(struct cairn_detector *detector)
{
    bool was_stopped = false;

    for (uint32_t i = 0; i < detector->verdicts.count; i++) {
        struct cairn_verdict *verdict = &detector->verdicts.items[i];
        bool is_hang = verdict->kind >= CAIRN_HANG_COMPUTE && verdict->kind <= CAIRN_CRASH;

        if (!is_hang || verdict->until_step != CAIRN_STEP_NONE)
            continue;
        verdict->until_step =
            verdict->since_step > detector->last_step ? verdict->since_step : detector->last_step;
        was_stopped |= detector->stop_said;
    }
    if (!was_stopped && detector->hang_longest_ns > detector->hang_outlived_ns)
        detector->hang_outlived_ns = fmin(detector->hang_longest_ns, outlived_ns_max);
    detector->hang_said = detector->stop_said = false;
    detector->hang_longest_ns = 0;
}

cairn_err
cairn_detector_check_hangs(struct cairn_detector *detector)
{
    uint32_t world = detector->topology->world;
    struct cairn_detector_summary summary;
    struct standing *standings;
    struct front *fronts = NULL;
    double longest_ns = 0, limit_ns;
    bool said = false;
    cairn_err err;

    standings = calloc(world, sizeof *standings);
    if (!standings)
        return CAIRN_NOMEM;
    cairn_detector_summarize(detector, &summary);
    limit_ns = fmax(hang_ns, hang_periods * summary.period_ms * 1e6);
    limit_ns = fmax(limit_ns, outlived_factor * detector->hang_outlived_ns);
    for (uint32_t rank = 0; rank < world; rank++) {
        standings[rank] = standing_of(detector, NULL, rank);
        if (standings[rank].open)
            longest_ns = fmax(longest_ns, standings[rank].idle_ns);
    }
    if (detector->hang_said)
        detector->hang_longest_ns = fmax(detector->hang_longest_ns, longest_ns);
    if (longest_ns < limit_ns || detector->hang_said) {
        if (longest_ns < limit_ns && detector->hang_said)
            end_hangs(detector);
        err = CAIRN_OK;
        goto done;
    }
    fronts = find_fronts(detector);
    if (!fronts) {
        err = CAIRN_NOMEM;
        goto done;
    }
    for (uint32_t rank = 0; rank < world; rank++)
        standings[rank] = standing_of(detector, fronts, rank);
    for (uint32_t rank = 0; rank < world; rank++)
        standings[rank].dead = is_dead(detector, rank, standings[rank].idle_ns, longest_ns);
    err = say_ranks(detector, standings, true, limit_ns, longest_ns, &said);
    if (!err && !said)
        err = say_ranks(detector, standings, false, limit_ns, longest_ns, &said);
    if (!err)
        err = say_links(detector, fronts, standings, limit_ns);
    detector->hang_said = said || detector->hang_said;
done:
    free(fronts);
    free(standings);
    return err;
}
