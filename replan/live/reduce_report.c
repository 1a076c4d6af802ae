/* replan/live/reduce_report.c - what is reported of one rank: its communicators, steps, standings
 * and counts; see reduce.h. */
#include "replan/live/reduce_state.h"

#include <math.h>

static const uint64_t quiet_ns = 2000000000; /* after which the report names what the rank waits
                                              * in */

static struct cairn_report *
begin_report(struct cairn_reduce *reduce, enum cairn_report_kind kind)
{
    struct cairn_report *report = &reduce->report;

    reduce->has_said = true;
    report->kind = kind;
    report->rank = reduce->options.rank;
    report->world = reduce->options.world;
    report->attachment = reduce->options.attachment;
    report->step = reduce->counts.step;
    report->end_ns = reduce->intake.end_ns;
    return report;
}

void
reduce_emit_member(struct cairn_reduce *reduce, const struct reduce_comm *comm)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_MEMBER);

    if (comm->ranks == 0 || comm->ranks > reduce->options.world)
        return; /* nobody can tell when all of it were seen */
    report->comm = comm->hash;
    report->comm_ranks = comm->ranks;
    report->place = comm->place < comm->ranks ? comm->place : CAIRN_PLACE_NONE;
    reduce->options.emit(reduce->options.context, report);
}

/* The lane of a sample or an open operation, by the numbers of the intake. */
static struct cairn_report_lane
lane_named(const struct cairn_reduce *reduce, uint32_t comm, uint8_t op, uint32_t peer)
{
    const struct reduce_pair *pair;

    if (op < CAIRN_SEND)
        return (struct cairn_report_lane){
            .comm = reduce->comms[comm].hash, .peer = CAIRN_PEER_NONE, .op = op};
    pair = &reduce->pairs[peer];
    return (struct cairn_report_lane){.comm = reduce->comms[pair->comm].hash,
                                      .peer = pair->peer,
                                      .op = op,
                                      .is_place = pair->is_place};
}

static struct cairn_report_lane
lane_of_sample(const struct cairn_reduce *reduce, uint32_t lane)
{
    if (lane & CAIRN_LANE_PAIR)
        return lane_named(reduce, 0, lane & CAIRN_LANE_SEND ? CAIRN_SEND : CAIRN_RECV,
                          lane & CAIRN_LANE_PEER);
    return lane_named(reduce, lane / 16, (uint8_t)(lane % 16), 0);
}

/* Copies the first samples of each lane. */
static void
fill_samples(const struct cairn_reduce *reduce, const struct cairn_rank_step *done,
             struct cairn_report *report)
{
    uint32_t lanes[CAIRN_REPORT_LANES_MAX], counts[CAIRN_REPORT_LANES_MAX] = {0};

    report->lane_count = report->sample_count = 0;
    for (uint32_t i = 0; i < done->sample_count; i++) {
        const struct cairn_sample *sample = &done->samples[i];
        uint32_t at = 0;

        while (at < report->lane_count && lanes[at] != sample->lane)
            at++;
        if (at == CAIRN_REPORT_LANES_MAX)
            continue;
        if (at == report->lane_count) {
            lanes[at] = sample->lane;
            report->lanes[report->lane_count++] = lane_of_sample(reduce, sample->lane);
        }
        if (counts[at]++ >= CAIRN_REPORT_LANE_SAMPLES_MAX)
            continue;
        report->samples[report->sample_count++] =
            (struct cairn_report_sample){.lane = at,
                                         .seq = sample->seq,
                                         .duration_ns = sample->duration_ns,
                                         .bytes = sample->bytes};
    }
}

static struct reduce_work
work_in(const struct cairn_reduce *reduce, uint32_t step)
{
    const struct reduce_work *work = &reduce->work[step % REDUCE_WORK_STEPS];

    return work->step == step ? *work : (struct reduce_work){.step = step};
}

void
reduce_emit_step(struct cairn_reduce *reduce, const struct cairn_rank_step *done, bool known,
                 uint64_t end_ns)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_STEP);
    struct reduce_work work = work_in(reduce, done->step);
    double amount = work.units > 0 ? work.units : work.amount;

    /* recorded computation needs no ends of operations, only that no record was lost */
    report->is_measured = work.compute_ns > 0 && !reduce->done_lossy;
    /* computation of an unknown amount of work is not a measure */
    known = (known || report->is_measured) && (amount > 0 || !reduce->has_work);
    report->step = done->step;
    report->end_ns = end_ns;
    for (int i = 0; i < CAIRN_GAPS; i++)
        report->compute_ns[i] = !known                ? (double)NAN
                                : report->is_measured ? work.compute_ns
                                                      : done->compute_ns[i];
    report->span_ns = done->span_ns;
    report->work = amount;
    report->sends_aside = done->sends_aside && !report->is_measured;
    if (reduce->recording)
        cairn_recording_tell(reduce->recording, done->step,
                             !known                ? CAIRN_RECORDED_UNKNOWN
                             : report->is_measured ? CAIRN_RECORDED_TOLD
                                                   : CAIRN_RECORDED_GAPS,
                             known && report->is_measured ? work.compute_ns : 0, amount);
    fill_samples(reduce, done, report);
    reduce->options.emit(reduce->options.context, report);
}

void
cairn_reduce_announce(struct cairn_reduce *reduce)
{
    reduce->said = 0;
    reduce->said_counts = false;
    for (uint32_t i = 0; i < reduce->comm_count; i++)
        reduce_emit_member(reduce, &reduce->comms[i]);
}

/* ---- standings ---- */

/* Before the standing that says that the rank is quiet, so that it is known what its counts are
 * when that is. */
static void
emit_counts(struct cairn_reduce *reduce)
{
    struct cairn_report *report = begin_report(reduce, CAIRN_REPORT_COUNTS);

    cairn_tally_fill(&reduce->tally, report);
    reduce->said_counts = true;
    reduce->options.emit(reduce->options.context, report);
}

/* True where something is counted: what ranks enter of communicators in which they have a place. */
static bool
knows_a_place(const struct cairn_reduce *reduce)
{
    for (uint32_t i = 0; i < reduce->comm_count; i++)
        if (reduce->comms[i].place != CAIRN_PLACE_NONE)
            return true;
    return false;
}

void
cairn_reduce_die(struct cairn_reduce *reduce)
{
    reduce->has_died = true;
    reduce->said = 0; /* that it is gone was not all */
}

void
cairn_reduce_stand(struct cairn_reduce *reduce, enum cairn_presence presence, uint64_t now_ns)
{
    bool quiet = reduce->last_ns > 0 && now_ns > reduce->last_ns + quiet_ns, busy;
    struct cairn_report *report;

    if (reduce->has_said) {
        reduce->said_ns = now_ns;
        reduce->has_said = reduce->has_taken = false;
    }
    busy = (reduce->has_taken || (reduce->tally.is_late && reduce->last_ns == 0)) &&
           now_ns > reduce->said_ns + quiet_ns;
    if (presence == CAIRN_PRESENCE_GONE
            ? reduce->said == CAIRN_PRESENCE_GONE
            : presence == CAIRN_PRESENCE_RUNS && !quiet && !busy && reduce->said == 0)
        return;
    if (presence != CAIRN_PRESENCE_GONE)
        reduce->gone_ns = 0;
    else if (reduce->gone_ns == 0)
        reduce->gone_ns = now_ns;
    if ((quiet || presence != CAIRN_PRESENCE_RUNS) && !reduce->said_counts && knows_a_place(reduce))
        emit_counts(reduce);
    report = begin_report(reduce, CAIRN_REPORT_STANDING);
    report->quiet_ns = quiet ? now_ns - reduce->last_ns : 0;
    report->entered = reduce->tally.entered;
    report->presence = presence;
    report->has_died = presence == CAIRN_PRESENCE_GONE && reduce->has_died;
    report->life_ns = presence == CAIRN_PRESENCE_GONE ? reduce->gone_ns : now_ns;
    report->open_count = presence == CAIRN_PRESENCE_GONE ? 0 : reduce->intake.open_count;
    for (uint32_t i = 0; i < report->open_count; i++) {
        const struct cairn_open *open = &reduce->intake.open[i];

        report->open[i] =
            (struct cairn_report_open){.lane = lane_named(reduce, open->comm, open->op, open->peer),
                                       .seq = open->seq,
                                       .start_ns = open->start_ns};
    }
    reduce->said = presence == CAIRN_PRESENCE_RUNS && !quiet ? 0 : presence;
    reduce->options.emit(reduce->options.context, report);
}
