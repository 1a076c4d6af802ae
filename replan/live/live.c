/* replan/live/live.c - the analysis of a job while it trains: reports in, and when a detector
 * begins again; see live.h. */
#include "replan/live/state.h"

#include <stdlib.h>
#include <string.h>

enum {
    USED_STEPS_MIN = 4,     /* of a communicator before it counts */
    PARTIAL_STEPS_MIN = 20, /* … where not all of its ranks report, and nothing else has begun */
    STEPS_IN_FLIGHT_MAX = 256 /* by which reports of different nodes may be apart */
};

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

/* A run that ends before it has learned what is normal leaves what is known. */
static void
keep_normals(struct cairn_live *live)
{
    struct cairn_detector_summary summary;

    cairn_detector_summarize(live->detector, &summary);
    for (uint32_t rank = 0; summary.is_calibrated && rank < live->world; rank++) {
        live->ranks[rank].has_earlier = true;
        live->ranks[rank].earlier = cairn_detector_earlier(live->detector, rank);
    }
}

void
live_end_run(struct cairn_live *live)
{
    if (live->detector)
        keep_normals(live);
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
    live_end_run(live);
    live_hang_forget(live);
    live_comms_fini(&live->comms);
    free_ranks(live);
    free(live);
}

static cairn_err
make_topology(struct cairn_live *live)
{
    uint32_t *node = malloc(live->world * sizeof *node);
    struct live_shape shape = {.world = live->world, .node = node};
    cairn_err err = CAIRN_NOMEM;

    if (!node)
        goto done;
    for (uint32_t rank = 0; rank < live->world; rank++)
        node[rank] = live->ranks[rank].known ? live->ranks[rank].node : CAIRN_NODE_UNKNOWN;
    err = live_topology(&live->comms, &shape, &live->topology);
done:
    free(node);
    return err;
}

static cairn_err
begin_run(struct cairn_live *live)
{
    cairn_err err;

    live_end_run(live);
    live->is_due = false;
    live->run++;
    live->runs++;
    err = make_topology(live);
    if (!err)
        err = cairn_detector_create(live->topology, STEPS_IN_FLIGHT_MAX, &live->detector);
    if (err) {
        live_end_run(live);
        live->is_due = true; /* tried again with the next step */
        return err;
    }
    live->is_partial = false;
    for (uint32_t rank = 0; rank < live->world; rank++) {
        live->is_partial |= !live->ranks[rank].known;
        if (live->ranks[rank].has_earlier)
            cairn_detector_recall(live->detector, rank, &live->ranks[rank].earlier);
        if (!live->ranks[rank].known || live->ranks[rank].presence == CAIRN_PRESENCE_GONE)
            cairn_detector_leave_out(live->detector, rank);
    }
    return CAIRN_OK;
}

/* ---- who reports ---- */

/* Takes up a job of another size, or the first. CAIRN_NOMEM. */
static cairn_err
adopt_world(struct cairn_live *live, uint32_t world, uint64_t wall_ns)
{
    struct live_rank *ranks = calloc(world, sizeof *ranks);

    if (!ranks)
        return CAIRN_NOMEM;
    live->wants_announcements = live->world != 0;
    if (live->world != 0)
        cairn_ledger_close_others(live->options.ledger, ++live->run, wall_ns,
                                  "a job of another size has taken its place", live->options.said,
                                  live->options.context);
    live_end_run(live);
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

/* A rank's process is new: what was known of the one before is over, and so are its reports. */
static void
adopt_rank(struct cairn_live *live, uint32_t node, const struct cairn_report *report,
           uint64_t wall_ns)
{
    struct live_rank *rank = &live->ranks[report->rank];
    bool replaces = rank->known;

    if (replaces)
        live_end_run(live);
    live->ranks_with_steps -= rank->has_steps;
    live_progress_destroy(rank->progress);
    *rank = (struct live_rank){.known = true,
                               .has_earlier = rank->has_earlier && rank->node == node,
                               .earlier = rank->earlier,
                               .node = node,
                               .attachment = report->attachment,
                               .presence = CAIRN_PRESENCE_RUNS};
    if (!replaces)
        return;
    live_comms_leave(&live->comms, report->rank);
    live_hang_forget(live);
    live->run++;
    live->newest_step = 0;
    cairn_ledger_close_others(live->options.ledger, live->run, wall_ns, "trainers were restarted",
                              live->options.said, live->options.context);
}

/* False where a report is not of the job that is analysed. */
static bool
is_of_job(struct cairn_live *live, const struct cairn_report *report, uint64_t now_ns)
{
    if (report->world > CAIRN_LIVE_WORLD_MAX)
        return false;
    if (report->world == live->world)
        live->world_heard_ns = now_ns;
    return report->world == live->world || live->world == 0 ||
           now_ns > live->world_heard_ns + LIVE_SILENT_NS;
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
        if (live->detector
                ? live_comm_is_complete(comm) && comm->steps >= USED_STEPS_MIN &&
                      comm->index == CAIRN_COMM_NONE
                : comm->steps >= (live_comm_is_complete(comm) ? (uint32_t)USED_STEPS_MIN
                                                              : (uint32_t)PARTIAL_STEPS_MIN))
            live->is_due = true;
    }
}

/* A rank has reported a step. What is normal for it is learned in the first steps of a run alone,
 * so that after a run that lacked ranks another begins when all of them report. */
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
    *step = (struct cairn_rank_step){.step = report->step,
                                     .sends_aside = report->sends_aside,
                                     .is_measured = report->is_measured,
                                     .span_ns = report->span_ns,
                                     .work = report->work};
    memcpy(step->compute_ns, report->compute_ns, sizeof step->compute_ns);
    for (uint32_t i = 0; i < report->lane_count; i++)
        lanes[i] = lane_number(live, &report->lanes[i]);
    for (uint32_t i = 0; i < report->sample_count; i++) {
        const struct cairn_report_sample *sample = &report->samples[i];

        if (lanes[sample->lane] != UINT32_MAX)
            step->samples[step->sample_count++] =
                (struct cairn_sample){.lane = lanes[sample->lane],
                                      .seq = sample->seq,
                                      .duration_ns = sample->duration_ns,
                                      .bytes = sample->bytes};
    }
    return cairn_detector_take_step(live->detector, report->rank, step, report->end_ns);
}

/* ---- standings ---- */

/* True where a standing says that a process lives, and nothing of what it does: it has done nothing
 * yet, or its agent has just begun. */
static bool
says_little(const struct cairn_report *standing)
{
    return standing->presence == CAIRN_PRESENCE_RUNS && standing->step == 0 &&
           standing->end_ns == 0 && standing->entered == 0 && standing->open_count == 0;
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
    live->ranks[report->rank].has_died = report->has_died;
    live_take_quiet(&live->ranks[report->rank], report);
    if (!live->detector || says_little(report))
        return; /* of no operations that a detector has seen */
    for (uint32_t i = 0; i < report->open_count; i++) {
        const struct cairn_report_open *from = &report->open[i];
        uint32_t peer, comm = comm_index(live, &from->lane, &peer);

        if (comm == UINT32_MAX)
            continue;
        open[standing.open_count++] =
            (struct cairn_open){.seq = from->seq,
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
cairn_live_take(struct cairn_live *live, uint32_t node, const struct cairn_report *report,
                uint64_t now_ns, uint64_t wall_ns)
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

bool
cairn_live_wants_announcements(struct cairn_live *live)
{
    bool wants = live->wants_announcements;

    live->wants_announcements = false;
    return wants;
}

uint32_t
cairn_live_node_of(const struct cairn_live *live, uint32_t rank)
{
    return rank < live->world && live->ranks[rank].known ? live->ranks[rank].node : UINT32_MAX;
}

void
cairn_live_look(const struct cairn_live *live, uint64_t now_ns, struct cairn_live_view *out)
{
    struct cairn_detector_summary summary = {0};

    *out = (struct cairn_live_view){.world = live->world,
                                    .comms = live->comms.count,
                                    .last_step = live->newest_step,
                                    .run = live->run,
                                    .runs = live->runs,
                                    .ignored = live->ignored};
    for (uint32_t rank = 0; rank < live->world; rank++)
        out->ranks_reporting += live->ranks[rank].known &&
                                live->ranks[rank].presence != CAIRN_PRESENCE_GONE &&
                                now_ns <= live->ranks[rank].heard_ns + LIVE_SILENT_NS;
    for (uint32_t i = 0; i < live->comms.count; i++) {
        const struct live_comm *comm = &live->comms.items[i];

        out->comms_complete += live_comm_is_complete(comm);
        out->comms_used += live->detector && comm->index != CAIRN_COMM_NONE;
    }
    if (!live->detector)
        return;
    cairn_detector_summarize(live->detector, &summary);
    out->steps = summary.steps;
    out->analysed_step = summary.last_step;
    out->period_ms = summary.period_ms;
    out->recent_ms = summary.recent_ms;
    out->is_calibrated = summary.is_calibrated;
}
