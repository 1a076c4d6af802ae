/*
 * replan/live/verdicts.c - what the detector says and what counts show become the ledger; and when
 * a job's verdicts are over, since it has ended or another analysis does not confirm them; see
 * live.h.
 */
#include "replan/live/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    CONFIRM_STEPS = 24, /* within which a new run must say what an older one has said */
    VERDICTS_MAX = 256  /* of one run, those that ended included */
};
static const uint64_t confirm_ns = 150000000000; /* the same of a job without steps: above all waits
                                                  * that are not a hang */
static const uint64_t away_ns = 5000000000;      /* an analyst that did not look for longer was
                                                  * stopped itself */
static const uint64_t absent_ns = 30000000000; /* after which verdicts on a job that nobody reports
                                                * of are closed */

#define RUN_NONE 0 /* no detector's */

static bool
process_seen(const struct cairn_live *live, const struct cairn_verdict *verdict)
{
    for (uint32_t i = 0; i < verdict->ranks.count; i++)
        if (live->ranks[verdict->ranks.items[i]].presence != CAIRN_PRESENCE_RUNS)
            return true;
    return false;
}

static uint32_t
evidence_of(const struct cairn_live *live, const struct cairn_verdict *verdict)
{
    uint32_t waiting = verdict->victims.count > 0 ? CAIRN_EVIDENCE_WAITING : 0;

    switch (verdict->kind) {
    case CAIRN_SLOW_COMPUTE:
    case CAIRN_SLOW_NODE:
        return CAIRN_EVIDENCE_COMPUTE | waiting;
    case CAIRN_SLOW_LINK:
        return CAIRN_EVIDENCE_TRANSFER | waiting;
    case CAIRN_HANG_COMPUTE:
    case CAIRN_HANG_LINK:
    case CAIRN_CRASH:
        return CAIRN_EVIDENCE_PROGRESS | (process_seen(live, verdict) ? CAIRN_EVIDENCE_PROCESS : 0);
    case CAIRN_STRUCTURAL:
        break;
    }
    return CAIRN_EVIDENCE_COMPUTE;
}

/* True while the detector says that something hangs: it sees more than counts do. */
static bool
detector_says_hang(const struct cairn_verdicts *verdicts)
{
    for (uint32_t i = 0; i < verdicts->count; i++)
        if (verdicts->items[i].kind >= CAIRN_HANG_COMPUTE &&
            verdicts->items[i].kind <= CAIRN_CRASH &&
            verdicts->items[i].until_step == CAIRN_STEP_NONE)
            return true;
    return false;
}

/* What the detector says, and what counts show. */
static cairn_err
merge(struct cairn_live *live, uint64_t wall_ns)
{
    static const struct cairn_verdicts none;
    const struct cairn_verdicts *verdicts =
        live->detector ? cairn_detector_verdicts(live->detector) : &none;
    struct cairn_verdicts all = {.items = malloc((verdicts->count + 1) * sizeof *all.items),
                                 .count = verdicts->count};
    uint32_t *kinds = malloc((verdicts->count + 1) * sizeof *kinds);
    bool is_merged = all.items && kinds;

    if (is_merged) {
        if (all.count > 0)
            memcpy(all.items, verdicts->items, all.count * sizeof *all.items);
        if (live->hang.is_said && !detector_says_hang(verdicts))
            all.items[all.count++] = live->hang.verdict; /* borrowed, as the others are */
        for (uint32_t i = 0; i < all.count; i++)
            kinds[i] = evidence_of(live, &all.items[i]);
        cairn_ledger_merge(live->options.ledger, &all, kinds, live->run, wall_ns,
                           live->options.said, live->options.context);
    }
    free(kinds);
    free(all.items);
    return is_merged ? CAIRN_OK : CAIRN_NOMEM;
}

/* Time in which nobody looked is nobody's silence: its reports may still be waiting. */
static void
forgive_absence(struct cairn_live *live, uint64_t now_ns)
{
    uint64_t since_ns =
        live->checked_ns > 0 && now_ns > live->checked_ns + away_ns ? now_ns - live->checked_ns : 0;

    live->checked_ns = now_ns;
    for (uint32_t rank = 0; since_ns > 0 && rank < live->world; rank++) {
        uint64_t heard_ns = live->ranks[rank].heard_ns + since_ns;

        live->ranks[rank].heard_ns = heard_ns < now_ns ? heard_ns : now_ns;
    }
}

/* Closes the verdicts on a job that is no more. False: it goes on. */
static bool
has_ended(struct cairn_live *live, uint64_t now_ns, uint64_t wall_ns)
{
    bool gone = false;

    if (live->present_ns == 0)
        live->present_ns = now_ns;
    for (uint32_t i = 0; i < live->world; i++) {
        const struct live_rank *rank = &live->ranks[i];

        gone |= rank->known && rank->presence == CAIRN_PRESENCE_GONE;
        if (rank->known && rank->presence != CAIRN_PRESENCE_GONE && !live_is_silent(rank, now_ns)) {
            live->present_ns = now_ns;
            return false;
        }
    }
    if (!gone && now_ns <= live->present_ns + absent_ns)
        return false;
    if (live->detector)
        live_end_run(live); /* a further report of use begins another */
    live_hang_forget(live);
    cairn_ledger_close_others(live->options.ledger, RUN_NONE, wall_ns,
                              "its trainers have ended, or are not seen any more",
                              live->options.said, live->options.context);
    return true;
}

/* True once the present analysis has seen enough to say what an earlier one said. */
static bool
may_confirm(struct cairn_live *live, uint64_t now_ns)
{
    struct cairn_detector_summary summary;

    if (live->begun_ns == 0)
        live->begun_ns = now_ns;
    if (!live->detector) /* in a job that names no steps */
        return now_ns > live->begun_ns + confirm_ns && live->newest_step == 0 &&
               !live->hang.is_said;
    cairn_detector_summarize(live->detector, &summary);
    return summary.steps >= CONFIRM_STEPS;
}

cairn_err
cairn_live_check(struct cairn_live *live, uint64_t now_ns, uint64_t wall_ns)
{
    cairn_err err;

    forgive_absence(live, now_ns);
    if (has_ended(live, now_ns, wall_ns))
        return CAIRN_OK;
    for (uint32_t rank = 0; live->detector && rank < live->world; rank++)
        if (live_is_silent(&live->ranks[rank], now_ns) ||
            (live->ranks[rank].is_idle && !live->ranks[rank].has_steps))
            cairn_detector_leave_out(live->detector, rank);
    err = live_hang_check(live, now_ns);
    if (!err && live->detector)
        err = cairn_detector_check_hangs(live->detector);
    if (!err && (live->detector || live->hang.is_said))
        err = merge(live, wall_ns);
    for (uint32_t rank = 0; live->detector && rank < live->world; rank++)
        if (cairn_detector_has_recalled(live->detector, rank))
            cairn_ledger_settle(live->options.ledger, rank, live->run);
    if (may_confirm(live, now_ns))
        cairn_ledger_close_others(live->options.ledger, live->run, wall_ns,
                                  "the analysis that began since does not confirm it",
                                  live->options.said, live->options.context);
    if (live->detector && cairn_detector_verdicts(live->detector)->count > VERDICTS_MAX)
        live->is_due = true;
    return err;
}
