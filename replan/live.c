/* replan/live.c - the analysis of a job while it trains; see live.h. */
#include "replan/live_state.h"

#include <stdlib.h>
#include <string.h>

enum {
    USED_STEPS_MIN = 4,      /* of a communicator before it counts */
    PARTIAL_STEPS_MIN = 20,  /* … where not all of its ranks report, and nothing else has begun */
    STEPS_IN_FLIGHT_MAX = 256, /* by which reports of different nodes may be apart */
    CONFIRM_STEPS = 24,      /* within which a new run must say what an older one has said */
    VERDICTS_MAX = 256       /* of one run, those that ended included */
};
static const uint64_t silent_ns = 10000000000; /* after which a rank is not waited for */
static const uint64_t confirm_ns = 150000000000; /* the same of a job without steps: above all waits that are no hang */
static const uint64_t away_ns = 5000000000;  /* whoever has not looked for longer was stopped himself */
static const uint64_t absent_ns = 30000000000; /* after which verdicts on a job that nobody reports of are closed */

#define RUN_NONE 0 /* no detector's */

cairn_err
cairn_live_create(const struct cairn_live_options *options, struct cairn_live **out)
{
    struct cairn_live *live = calloc(1, sizeof *live);

    if (!live)
        return CAIRN_NOMEM;
    live->options = *options;
    live->run = options->first_run;
    *out = live;
    return CAIRN_OK;
}

static void
end_run(struct cairn_live *live)
{
    cairn_detector_destroy(live->detector);
    cairn_topology_destroy(live->topology);
    live->detector = NULL;
    live->topology = NULL;
}

static void
free_ranks(struct cairn_live *live)
{
    for (uint32_t rank = 0; rank < live->world; rank++)
        live_progress_destroy(live->ranks[rank].progress);
    free(live->ranks);
}

void
cairn_live_destroy(struct cairn_live *live)
{
    if (!live)
        return;
    end_run(live);
    live_hang_forget(live);
    live_comms_fini(&live->comms);
    free_ranks(live);
    free(live);
}

static cairn_err
begin_run(struct cairn_live *live)
{
    cairn_err err;

    end_run(live);
    live->is_due = false;
    live->run++;
    live->runs++;
    err = live_topology(live, &live->topology);
    if (!err)
        err = cairn_detector_create(live->topology, STEPS_IN_FLIGHT_MAX, &live->detector);
    if (err) {
        end_run(live);
        live->is_due = true; /* tried again with the next step */
        return err;
    }
    live->is_partial = false;
    for (uint32_t rank = 0; rank < live->world; rank++) {
        live->is_partial |= !live->ranks[rank].known;
        if (!live->ranks[rank].known || live->ranks[rank].presence == CAIRN_PRESENCE_GONE)
            cairn_detector_leave_out(live->detector, rank);
    }
    return CAIRN_OK;
}

/* ---- who reports ---- */

bool
live_is_silent(const struct live_rank *rank, uint64_t now_ns)
{
    return now_ns > rank->heard_ns + silent_ns;
}

/* Takes up a job of another size, or the first. CAIRN_NOMEM. */
static cairn_err
adopt_world(struct cairn_live *live, uint32_t world, uint64_t wall_ns)
{
    struct live_rank *ranks = calloc(world, sizeof *ranks);

    if (!ranks)
        return CAIRN_NOMEM;
    live->wants_announcements = live->world != 0;
    if (live->world != 0)
        cairn_ledger_close_others(live->options.ledger, ++live->run, wall_ns, "a job of another size has taken its place",
                                  live->options.said, live->options.context);
    end_run(live);
    live_hang_forget(live);
    live_comms_fini(&live->comms);
    free_ranks(live);
    live->ranks = ranks;
    live->ranks_with_steps = 0;
    live->world = world;
    live->newest_step = 0;
    live->is_due = false;
    return CAIRN_OK;
}

/* A rank's process is new: what was known of the one before is over, and so is what was said. */
static void
adopt_rank(struct cairn_live *live, uint32_t node, const struct cairn_report *report, uint64_t wall_ns)
{
    struct live_rank *rank = &live->ranks[report->rank];
    bool replaces = rank->known;

    live->ranks_with_steps -= rank->has_steps;
    live_progress_destroy(rank->progress);
    *rank = (struct live_rank){
        .known = true, .node = node, .attachment = report->attachment, .presence = CAIRN_PRESENCE_RUNS};
    if (!replaces)
        return;
    live_comms_leave(&live->comms, report->rank);
    end_run(live);
    live_hang_forget(live);
    live->run++;
    live->newest_step = 0;
    cairn_ledger_close_others(live->options.ledger, live->run, wall_ns, "trainers were started anew", live->options.said,
                              live->options.context);
}

/* False where a report is not of the job that is analysed. */
static bool
is_of_job(struct cairn_live *live, const struct cairn_report *report, uint64_t now_ns)
{
    if (report->world > CAIRN_LIVE_WORLD_MAX)
        return false;
    if (report->world == live->world)
        live->world_heard_ns = now_ns;
    return report->world == live->world || live->world == 0 || now_ns > live->world_heard_ns + silent_ns;
}

/* ---- steps ---- */

static void
note_use(struct cairn_live *live, const struct cairn_report *report)
{
    for (uint32_t i = 0; i < report->lane_count; i++) {
        struct live_comm *comm = live_comms_find(&live->comms, report->lanes[i].comm);

        if (!comm)
            continue;
        comm->ops |= 1u << report->lanes[i].op;
        if (report->step > comm->last_step) {
            comm->last_step = report->step;
            comm->steps++;
        }
        if (live->detector ? live_comm_is_complete(comm) && comm->steps >= USED_STEPS_MIN && comm->index == CAIRN_COMM_NONE
                           : comm->steps >= (live_comm_is_complete(comm) ? (uint32_t)USED_STEPS_MIN : (uint32_t)PARTIAL_STEPS_MIN))
            live->is_due = true;
    }
}

/* A rank has reported a step. What is normal for it is learned in the first steps of a run alone, so that after a run that lacked
 * ranks another begins when all of them report. */
static void
note_rank(struct cairn_live *live, struct live_rank *rank)
{
    if (rank->has_steps)
        return;
    rank->has_steps = true;
    live->ranks_with_steps++;
    if (live->detector && live->is_partial && live->ranks_with_steps == live->world)
        live->is_due = true;
}

/* A lane in the topology's numbers; UINT32_MAX where it is none of its. *peer is global. */
static uint32_t
comm_index(const struct cairn_live *live, const struct cairn_report_lane *lane, uint32_t *peer)
{
    const struct live_comm *comm = live_comms_find(&live->comms, lane->comm);

    *peer = lane->peer;
    if (lane->op >= CAIRN_SEND) {
        if (lane->is_place)
            *peer = comm ? live_comm_rank_at(comm, lane->peer) : UINT32_MAX;
        return *peer < live->world ? 0 : UINT32_MAX;
    }
    return comm && comm->index != CAIRN_COMM_NONE ? comm->index : UINT32_MAX;
}

static uint32_t
lane_number(const struct cairn_live *live, const struct cairn_report_lane *lane)
{
    uint32_t peer, comm = comm_index(live, lane, &peer);

    if (comm == UINT32_MAX)
        return UINT32_MAX;
    if (lane->op >= CAIRN_SEND)
        return CAIRN_LANE_PAIR | (lane->op == CAIRN_SEND ? CAIRN_LANE_SEND : 0) | peer;
    return comm * 16 + lane->op;
}

static cairn_err
take_step(struct cairn_live *live, const struct cairn_report *report)
{
    uint32_t lanes[CAIRN_REPORT_LANES_MAX];
    struct cairn_rank_step *step;
    cairn_err err;

    if (report->step > live->newest_step)
        live->newest_step = report->step;
    note_use(live, report);
    note_rank(live, &live->ranks[report->rank]);
    if (live->is_due) {
        err = begin_run(live);
        if (err)
            return err;
    }
    if (!live->detector)
        return CAIRN_OK;
    step = malloc(sizeof *step + report->sample_count * sizeof *step->samples);
    if (!step)
        return CAIRN_NOMEM;
    *step = (struct cairn_rank_step){
        .step = report->step, .sends_aside = report->sends_aside, .span_ns = report->span_ns, .work = report->work};
    memcpy(step->compute_ns, report->compute_ns, sizeof step->compute_ns);
    for (uint32_t i = 0; i < report->lane_count; i++)
        lanes[i] = lane_number(live, &report->lanes[i]);
    for (uint32_t i = 0; i < report->sample_count; i++) {
        const struct cairn_report_sample *sample = &report->samples[i];

        if (lanes[sample->lane] != UINT32_MAX)
            step->samples[step->sample_count++] = (struct cairn_sample){
                .lane = lanes[sample->lane], .seq = sample->seq, .duration_ns = sample->duration_ns, .bytes = sample->bytes};
    }
    return cairn_detector_take_step(live->detector, report->rank, step, report->end_ns);
}

/* ---- standings ---- */

/* True where a standing says that a process lives, and nothing of what it does: it has done nothing yet, or its agent has just begun. */
static bool
says_little(const struct cairn_report *standing)
{
    return standing->presence == CAIRN_PRESENCE_RUNS && standing->step == 0 && standing->end_ns == 0 && standing->entered == 0 &&
           standing->open_count == 0;
}

static void
take_standing(struct cairn_live *live, const struct cairn_report *report)
{
    struct cairn_open open[CAIRN_INTAKE_OPEN];
    struct cairn_standing standing = {.life_ns = report->life_ns,
                                      .end_ns = report->end_ns,
                                      .open = open,
                                      .step = report->step,
                                      .is_stopped = report->presence == CAIRN_PRESENCE_STOPPED,
                                      .is_gone = report->presence == CAIRN_PRESENCE_GONE};

    live->ranks[report->rank].presence = report->presence;
    live->ranks[report->rank].is_idle = says_little(report);
    live_take_quiet(&live->ranks[report->rank], report);
    if (!live->detector || says_little(report))
        return; /* of no operations that a detector has seen */
    for (uint32_t i = 0; i < report->open_count; i++) {
        const struct cairn_report_open *from = &report->open[i];
        uint32_t peer, comm = comm_index(live, &from->lane, &peer);

        if (comm == UINT32_MAX)
            continue;
        open[standing.open_count++] = (struct cairn_open){.seq = from->seq,
                                                          .start_ns = from->start_ns,
                                                          .comm = from->lane.op >= CAIRN_SEND ? CAIRN_COMM_NONE : comm,
                                                          .peer = peer,
                                                          .step = report->step,
                                                          .op = from->lane.op};
    }
    cairn_detector_take_standing(live->detector, report->rank, &standing);
    if (standing.is_gone)
        cairn_detector_leave_out(live->detector, report->rank);
}

cairn_err
cairn_live_take(struct cairn_live *live, uint32_t node, const struct cairn_report *report, uint64_t now_ns,
                uint64_t wall_ns)
{
    struct live_rank *rank;
    cairn_err err = CAIRN_OK;
    bool is_end = report->kind == CAIRN_REPORT_STANDING && report->presence == CAIRN_PRESENCE_GONE;

    if (!is_of_job(live, report, now_ns)) {
        live->ignored++;
        return CAIRN_OK;
    }
    if (report->world != live->world) {
        if (is_end)
            return CAIRN_OK;
        err = adopt_world(live, report->world, wall_ns);
        if (err)
            return err;
        live->world_heard_ns = now_ns;
    }
    rank = &live->ranks[report->rank];
    if (!rank->known || rank->attachment != report->attachment) {
        if (is_end) /* of a process that another has replaced, or that was never heard of */
            return CAIRN_OK;
        adopt_rank(live, node, report, wall_ns);
    }
    rank->heard_ns = now_ns;
    rank->node = node;
    switch (report->kind) {
    case CAIRN_REPORT_MEMBER:
        err = live_comms_join(&live->comms, live->world, report);
        if (err == CAIRN_FULL) {
            live->ignored++;
            err = CAIRN_OK;
        }
        break;
    case CAIRN_REPORT_STEP:
        rank->presence = CAIRN_PRESENCE_RUNS;
        rank->is_idle = false;
        err = take_step(live, report);
        break;
    case CAIRN_REPORT_STANDING:
        take_standing(live, report);
        break;
    case CAIRN_REPORT_COUNTS:
        err = live_take_counts(rank, report);
        break;
    }
    return err;
}

/* ---- verdicts ---- */

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
        if (verdicts->items[i].kind >= CAIRN_HANG_COMPUTE && verdicts->items[i].kind <= CAIRN_CRASH &&
            verdicts->items[i].until_step == CAIRN_STEP_NONE)
            return true;
    return false;
}

/* What the detector says, and what counts show. */
static cairn_err
merge(struct cairn_live *live, uint64_t wall_ns)
{
    static const struct cairn_verdicts none;
    const struct cairn_verdicts *verdicts = live->detector ? cairn_detector_verdicts(live->detector) : &none;
    struct cairn_verdicts all = {.items = malloc((verdicts->count + 1) * sizeof *all.items), .count = verdicts->count};
    uint32_t *kinds = malloc((verdicts->count + 1) * sizeof *kinds);
    bool is_merged = all.items && kinds;

    if (is_merged) {
        if (all.count > 0)
            memcpy(all.items, verdicts->items, all.count * sizeof *all.items);
        if (live->hang.is_said && !detector_says_hang(verdicts))
            all.items[all.count++] = live->hang.verdict; /* borrowed, as the others are */
        for (uint32_t i = 0; i < all.count; i++)
            kinds[i] = evidence_of(live, &all.items[i]);
        cairn_ledger_merge(live->options.ledger, &all, kinds, live->run, wall_ns, live->options.said, live->options.context);
    }
    free(kinds);
    free(all.items);
    return is_merged ? CAIRN_OK : CAIRN_NOMEM;
}

/* Time in which nobody looked is nobody's silence: reports of it may still be waiting. */
static void
forgive_absence(struct cairn_live *live, uint64_t now_ns)
{
    uint64_t since_ns = live->checked_ns > 0 && now_ns > live->checked_ns + away_ns ? now_ns - live->checked_ns : 0;

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
        if (rank->known && rank->presence != CAIRN_PRESENCE_GONE && now_ns <= rank->heard_ns + silent_ns) {
            live->present_ns = now_ns;
            return false;
        }
    }
    if (!gone && now_ns <= live->present_ns + absent_ns)
        return false;
    if (live->detector)
        end_run(live); /* a further report of use begins another */
    live_hang_forget(live);
    cairn_ledger_close_others(live->options.ledger, RUN_NONE, wall_ns, "its trainers have ended, or are not seen any more",
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
        return now_ns > live->begun_ns + confirm_ns && live->newest_step == 0 && !live->hang.is_said;
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
        if (live_is_silent(&live->ranks[rank], now_ns) || (live->ranks[rank].is_idle && !live->ranks[rank].has_steps))
            cairn_detector_leave_out(live->detector, rank);
    err = live_hang_check(live, now_ns);
    if (!err && live->detector)
        err = cairn_detector_check_hangs(live->detector);
    if (!err && (live->detector || live->hang.is_said))
        err = merge(live, wall_ns);
    if (may_confirm(live, now_ns))
        cairn_ledger_close_others(live->options.ledger, live->run, wall_ns,
                                  "the analysis that began since does not confirm it", live->options.said,
                                  live->options.context);
    if (live->detector && cairn_detector_verdicts(live->detector)->count > VERDICTS_MAX)
        live->is_due = true;
    return err;
}

bool
cairn_live_wants_announcements(struct cairn_live *live)
{
    bool wants = live->wants_announcements;

    live->wants_announcements = false;
    return wants;
}

void
cairn_live_look(const struct cairn_live *live, uint64_t now_ns, struct cairn_live_view *out)
{
    struct cairn_detector_summary summary = {0};

    *out = (struct cairn_live_view){.world = live->world,
                                    .comms = live->comms.count,
                                    .last_step = live->newest_step,
                                    .runs = live->runs,
                                    .ignored = live->ignored};
    for (uint32_t rank = 0; rank < live->world; rank++)
        out->ranks_reporting += live->ranks[rank].known && live->ranks[rank].presence != CAIRN_PRESENCE_GONE &&
                                now_ns <= live->ranks[rank].heard_ns + silent_ns;
    for (uint32_t i = 0; i < live->comms.count; i++) {
        const struct live_comm *comm = &live->comms.items[i];

        out->comms_complete += live_comm_is_complete(comm);
        out->comms_used += live->detector && comm->index != CAIRN_COMM_NONE;
    }
    if (!live->detector)
        return;
    cairn_detector_summarize(live->detector, &summary);
    out->steps = summary.steps;
    out->period_ms = summary.period_ms;
    out->is_calibrated = summary.is_calibrated;
}
